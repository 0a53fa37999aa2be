"""The program that builds with BuildKit: a ``docker`` client, where there is one that can."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass

_ASK_TIMEOUT = 30.0  # seconds
_NEEDS_BUILDX = 23  # the first release of the client whose `build` is buildx alone


@dataclass(frozen=True)
class BuildProgram:
    """A client that can build with BuildKit.

    Args:
        path: the program.
        buildx: whether it has the buildx plugin; otherwise its own ``build`` speaks to BuildKit.
    """

    path: str
    buildx: bool

    def command(self, host: str, result: str) -> list[str]:
        """The start of a build command that writes what it made to the file ``result``."""
        start = [self.path, "--host", host]
        if self.buildx:
            return [*start, "buildx", "build", "--load", "--metadata-file", result, "--progress=plain"]
        return [*start, "build", "--iidfile", result, "--progress=plain"]


def find_build_program() -> BuildProgram | None:
    """The first ``docker`` of ``PATH`` that can build with BuildKit; None where none can.

    A client from release 23 on without its buildx plugin cannot: it would fail, or fall back to the classic
    builder.
    """
    directories = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = dict.fromkeys(p for d in directories if d and (p := shutil.which("docker", path=d)))
    for path in found:
        if _ask(path, "buildx", "version") is not None:
            return BuildProgram(path, buildx=True)
        version = re.search(r"version (\d+)\.", _ask(path, "--version") or "")
        if version and int(version[1]) < _NEEDS_BUILDX:
            return BuildProgram(path, buildx=False)
    return None


def _ask(*command: str) -> str | None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
