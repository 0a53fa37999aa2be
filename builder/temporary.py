"""Temporary files and directories that say whose they are: what a killed process left is swept by the next.

Whoever makes one holds a lock (flock) on it while it is in use; the kernel gives it up with the process. What
follows this rule and is held by nobody is a leftover, whatever its age.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_HELD = ".held"
_OURS = re.compile(rf"overlay-[a-z]+-[a-z0-9_]{{8}}{re.escape(_HELD)}\Z")
_swept: set[Path] = set()


@contextmanager
def temporary_directory(kind: str, parent: Path | None = None) -> Iterator[Path]:
    """A directory that is gone afterwards; leftovers beside it are swept.

    Args:
        kind: what it is for, one word of small letters.
        parent: where it is made (default: where the system keeps temporary files).

    Raises:
        OSError: it cannot be made.
    """
    place = parent or Path(tempfile.gettempdir())
    sweep_directories(place)
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"overlay-{kind}-", suffix=_HELD, dir=place))
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists():  # nobody swept it before it was held
                break
            os.close(descriptor)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def is_temporary(name: str) -> bool:
    """Whether a directory of this name is one of ours."""
    return _OURS.match(name) is not None


def sweep_directories(place: Path) -> None:
    """Remove what killed commands of this user left in a place for temporary files; once a process."""
    if place in _swept:
        return
    _swept.add(place)
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if (
                is_temporary(entry.name)
                and entry.is_dir(follow_symlinks=False)
                and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
            ):
                _remove(Path(entry.path))


def sweep_files(directory: Path, pattern: re.Pattern[str]) -> None:
    """Remove the files of a directory whose names match and which nobody holds."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if pattern.match(entry.name) and entry.is_file(follow_symlinks=False):
                _remove(Path(entry.path))


def _remove(path: Path) -> None:
    """Remove a leftover, unless somebody holds it, or removes it as well."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        return  # it is in use
    finally:
        os.close(descriptor)
