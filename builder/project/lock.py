"""The lock ``overlays/NAME.lock``: what was pinned, verified and built, for people to review.

Canonical JSON, two spaces deep, keys sorted. Everything in it is keyed by digest, so an entry is true or
unused, never stale.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.errors import InvalidInput, Unavailable
from builder.locking import exclusive
from builder.project.whole_file import write_whole

LOCK_SCHEMA = 1
INPUTS = "inputs"  # the section that says what a build was made from (see builder.build.drift)
MAX_LOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class Lock:
    """A lock's contents.

    Args:
        bases: facts verified of a base, by platform manifest digest (see :mod:`builder.base.image`).
        pins: what ``overlay pin`` resolved, by image reference.
        images: what was built last, by platform.
        sections: everything else, such as what ``overlay diff`` saw last.
    """

    bases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    images: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sections: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        body = {"bases": self.bases, "pins": self.pins, "images": self.images} | dict(self.sections)
        return {"schema": LOCK_SCHEMA} | {key: value for key, value in body.items() if value}


def read_lock(paths: Sequence[Path]) -> Lock:
    """The first lock of ``paths`` that exists; an empty one when none does.

    Raises:
        InvalidInput: it is not a lock, or was written by a newer tool.
    """
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return Lock()
    if path.stat().st_size > MAX_LOCK_BYTES:
        raise InvalidInput("lock is too large", where=str(path), expected=f"at most {MAX_LOCK_BYTES} bytes")
    try:
        value = json.loads(path.read_bytes(), parse_constant=_no_number)
        json.dumps(value, ensure_ascii=False).encode()  # what cannot be written again is not read
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            "lock is not JSON",
            where=str(path),
            found=str(error),
            hint="restore it from version control, or delete it",
        ) from error
    if not isinstance(value, dict) or value.get("schema") != LOCK_SCHEMA:
        raise InvalidInput(
            "lock is of another schema",
            where=str(path),
            expected=f"schema {LOCK_SCHEMA}",
            found=str(value.get("schema") if isinstance(value, dict) else type(value).__name__),
            hint="delete it; the next build writes it anew",
        )
    known = {key: _table(value.pop(key, {}), path, key) for key in ("bases", "pins", "images")}
    value.pop("schema")
    return Lock(**known, sections=value)


def write_lock(path: Path, lock: Lock) -> None:
    """Write a lock as a whole or not at all; nothing is written when it says the same already."""
    data = json.dumps(lock.as_json(), indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    if path.is_file() and path.read_bytes() == data:
        return
    write_whole(path, data)


def update_lock(paths: Sequence[Path], change: Callable[[Lock], Lock]) -> None:
    """Change the first of ``paths`` that there is, and write it as ``paths[0]``.

    Nobody else changes it meanwhile: of two builds that end at once, for two platforms, both are kept.

    Args:
        paths: as for :func:`read_lock`.
        change: gives the new lock, from what the lock says now.

    Raises:
        InvalidInput: as :func:`read_lock`.
        OSError: it cannot be written.
    """
    directory = paths[0].parent
    directory.mkdir(parents=True, exist_ok=True)
    with exclusive(directory):
        write_lock(paths[0], change(read_lock(paths)))


def check_writable(path: Path) -> None:
    """Say before a long build that its lock cannot be written after it.

    Raises:
        Unavailable: there is something else in the lock's place, or its directory cannot be written.
    """
    above = next(parent for parent in path.absolute().parents if parent.exists())
    problem = None
    if path.exists() and not path.is_file():
        problem = "it is not a file"
    elif not above.is_dir():
        problem = f"{above} is not a directory"
    elif not os.access(above, os.W_OK | os.X_OK):
        problem = f"{above} is not writable"
    if problem is not None:
        raise Unavailable(
            "the lock cannot be written",
            where=str(path),
            found=problem,
            hint="name another place with --lock FILE, or use --locked to write none",
        )


def _no_number(text: str) -> object:
    raise ValueError(f"{text} is not a JSON number")


def _table(value: object, path: Path, key: str) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(entry, dict) for entry in value.values()):
        raise InvalidInput(
            "lock is damaged", where=f"{path}: {key}", hint="restore it from version control, or delete it"
        )
    return value
