"""Several files written as one: all of them, or none, also when the process is killed in between.

The new contents are laid out in a directory beside the files, and renaming that directory is the moment
at which the change is decided. What comes after only repeats what the directory says, so whoever finds it
there finishes it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from builder.errors import InvalidInput
from builder.locking import exclusive
from builder.project.whole_file import write_whole

DECIDED = ".overlay-transaction"
_DRAFT = ".overlay-transaction.new"
_PLAN = "plan.json"


def write_all(root: Path, changes: Mapping[PurePosixPath, bytes | None]) -> None:
    """Write files below ``root``, all of them or none.

    Args:
        root: a directory that exists.
        changes: new contents by path below ``root``; None removes the file.

    Raises:
        InvalidInput: a path leaves the root.
    """
    if not changes:
        return
    for path in changes:
        _check(path)
    with exclusive(root):
        _finish(root)
        draft = root / _DRAFT
        draft.mkdir()
        plan: dict[str, str | None] = {}
        for number, (path, data) in enumerate(changes.items()):
            plan[str(path)] = None if data is None else str(number)
            if data is not None:
                write_whole(draft / str(number), data)
        write_whole(draft / _PLAN, json.dumps(plan).encode())
        draft.rename(root / DECIDED)
        _finish(root)


def finish(root: Path) -> None:
    """Finish what a killed process had decided, and forget what it had not."""
    if (root / DECIDED).exists() or (root / _DRAFT).exists():
        with exclusive(root):
            _finish(root)


def _finish(root: Path) -> None:
    decided = root / DECIDED
    if decided.exists():
        plan: dict[str, str | None] = json.loads((decided / _PLAN).read_bytes())
        for name, source in plan.items():
            path = PurePosixPath(name)
            _check(path)
            target = root / path
            if source is None:
                target.unlink(missing_ok=True)
            else:
                write_whole(target, (decided / source).read_bytes())
        # Renamed first: a plan that is half removed must not be taken for one that is decided.
        decided.rename(root / _DRAFT)
    if (root / _DRAFT).exists():
        shutil.rmtree(root / _DRAFT)


def _check(path: PurePosixPath) -> None:
    if path.is_absolute() or not path.parts or ".." in path.parts:
        raise InvalidInput("a path leaves the root", where=str(path))
