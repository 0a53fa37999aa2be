"""What probes said, kept in the user's cache: an answer follows from the probe and the tree alone.

An entry is named after everything it follows from (the probe's bytes, the machinery's, Python's version, the
tree's contents), so it is true or never looked at. ``unknown`` is not kept: a slow machine can be its reason.
"""

from __future__ import annotations

import hashlib
import json
import sys
from functools import cache
from pathlib import Path
from typing import cast, get_args

from builder.probe.harness import Answer, State
from builder.wholefile import write_whole

_STATES = frozenset(get_args(State)) - {"unknown"}


@cache
def _machinery_digest() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):  # probes import some, the others run them
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Memory:
    """Answers by probe and tree.

    Args:
        directory: where they are kept; made when the first is written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def _path(self, probe: bytes, fingerprint: str) -> Path:
        parts = (_machinery_digest(), hashlib.sha256(probe).hexdigest(), fingerprint)
        return self._directory / hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def get(self, probe: bytes, fingerprint: str) -> Answer | None:
        """The answer, if it is known.

        Args:
            probe: the probe's bytes.
            fingerprint: of the tree (see :mod:`builder.probe.trees`).
        """
        try:
            facts = json.loads(self._path(probe, fingerprint).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None  # nothing there, or not written by this tool: ask again
        match facts:
            case {"state": str(state), "evidence": str(evidence), "pins": [*pins]} if state in _STATES:
                return Answer(cast("State", state), evidence, tuple(str(pin) for pin in pins))
        return None

    def put(self, probe: bytes, fingerprint: str, answer: Answer) -> None:
        """Keep an answer, whole or not at all."""
        if answer.state == "unknown":
            return
        facts = {"state": answer.state, "evidence": answer.evidence, "pins": list(answer.pins)}
        write_whole(self._path(probe, fingerprint), json.dumps(facts).encode())
