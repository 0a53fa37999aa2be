"""This program as an input of what it finds: answers that are kept are named after what made them."""

from __future__ import annotations

import hashlib
import shutil
import sys
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent


@cache
def source_digest(*rooms: str) -> str:
    """One digest of the Python that runs and of some of this package's own modules.

    Args:
        rooms: directories of the package, each without those below it; ``.`` is the package's own.
    """
    digest = hashlib.sha256(sys.version.encode())
    for room in rooms:
        for path in sorted((_PACKAGE / room).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def git_identity() -> str:
    """Which git there is, without asking it; empty where there is none."""
    program = shutil.which("git")
    if program is None:
        return ""
    facts = Path(program).stat()
    return f"{program} {facts.st_size} {facts.st_mtime_ns}"
