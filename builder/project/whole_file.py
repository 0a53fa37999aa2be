"""Files that are there whole, or not at all."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from io import FileIO
from pathlib import Path

from builder.temporary import sweep_files

_swept: set[Path] = set()
_PART = r"\.[0-9a-f]{16}\Z"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under a temporary name beside it, flush it to disk, and rename it.

    What killed processes left of the same file is removed.

    Raises:
        OSError: it cannot be written; the error names a file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path not in _swept:
        _swept.add(path)
        sweep_files(path.parent, re.compile(re.escape(f".{path.name}") + _PART))
    file, temporary = _held_file(path)
    try:
        with file:
            with open(file.fileno(), "wb", closefd=False) as stream:
                stream.write(data)
            os.fsync(file.fileno())
            temporary.rename(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk does not say which
        raise


def write_cached(path: Path, data: bytes) -> None:
    """Write an entry of the cache whole; what is in its place, if only a directory, can be made again.

    Raises:
        OSError: it cannot be written; the error names a file.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    write_whole(path, data)


def sweep_parts(directory: Path) -> None:
    """Remove what killed processes left of any file that was being written into a directory of ours."""
    if directory in _swept:
        return
    _swept.add(directory)
    sweep_files(directory, re.compile(r"\..+" + _PART))


def _held_file(path: Path) -> tuple[FileIO, Path]:
    """A new file beside ``path`` that is held, so that nobody takes it for a leftover."""
    while True:
        temporary = path.parent / f".{path.name}.{os.urandom(8).hex()}"
        file = FileIO(str(temporary), "x")
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file, temporary
        file.close()  # it was swept before it was held
