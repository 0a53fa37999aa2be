"""What is kept in the user's cache: how much of what, whether it is whole, and how to be rid of it.

Everything in the cache can be made again; the lock and the images are elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from builder.errors import Unavailable

# What each entry of the cache's directory is, by how its name begins.
KINDS = {
    "layers": "indexes of base layers",
    "built": "finished builds",
    "wheels": "release wheels as git objects",
    "repository-": "clones of upstream repositories",
    "series.git": "patched trees as git objects",
    "images.git": "sources of images as git objects",
    "probes": "answers of probes",
    "evidence": "what was found of series on other releases",
    "lint": "what lint found to be in order",
    "soundness": "patched files found to be in order",
}
OTHER = "other"
_NOT_A_USE = getattr(os, "O_NOATIME", 0)


@dataclass(frozen=True)
class Entry:
    """One thing in the cache.

    Args:
        path: a file or directory that can be removed as a whole.
        kind: what it is, in words.
        size: in bytes.
        used: when it was last written or read, in seconds since 1970.
    """

    path: Path
    kind: str
    size: int
    used: float


def list_entries(cache: Path) -> list[Entry]:
    """Everything in the cache, the largest first; each layer's index and each build counts by itself.

    Raises:
        Unavailable: the directory cannot be read.
    """
    try:
        found = [_entry(path, _kind(path.relative_to(cache))) for path in _parts(cache)]
    except OSError as error:
        raise Unavailable("the cache cannot be read", where=str(cache), found=error.strerror) from error
    return sorted(found, key=lambda entry: (-entry.size, entry.path))


def damaged(cache: Path) -> list[Path]:
    """Indexes of layers and finished builds whose bytes are not what they should be, and unfinished files."""
    layers, builds = cache / "layers", cache / "built"
    wrong = [path for path in sorted(layers.glob("*.layer")) if not _is_whole(path)]
    wrong += [path for path in sorted(builds.glob("*")) if not _is_build(path)]
    return wrong + sorted(layers.glob("*.tmp"))


def prune(cache: Path, *, older_than: float, state: Path | None = None) -> list[Entry]:
    """Remove what was not used for a while, and what is damaged; not what an open work tree reads from.

    Args:
        cache: the directory.
        older_than: seconds; 0 removes everything.
        state: the user's state directory, with the work trees.

    Returns:
        What was removed.

    Raises:
        Unavailable: something cannot be removed.
    """
    wrong = set(damaged(cache))
    limit = time.time() - older_than
    settings = [path.read_bytes() for path in state.glob("*/*/.git/config")] if state else []
    gone = [
        entry
        for entry in list_entries(cache)
        if (entry.used <= limit or entry.path in wrong)
        and not any(os.fsencode(entry.path) in setting for setting in settings)
    ]
    for entry in gone:
        _remove(entry.path)
    return gone


def _parts(cache: Path) -> Iterator[Path]:
    for path in sorted(cache.iterdir()) if cache.is_dir() else ():
        if path.name in ("layers", "built") and path.is_dir():
            yield from sorted(path.iterdir())
        elif path.suffix != ".lock":
            yield path


def _kind(path: Path) -> str:
    return next((kind for start, kind in KINDS.items() if path.parts[0].startswith(start)), OTHER)


def _entry(path: Path, kind: str) -> Entry:
    size, used = 0, 0.0
    for file in [path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else ())]:
        facts = file.lstat()
        size += facts.st_size
        used = max(used, facts.st_mtime, facts.st_atime if file.is_file() else 0.0)
    return Entry(path, kind, size, used)


def _is_whole(path: Path) -> bool:
    if not path.is_file():
        return False
    with _looking(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == path.stem.rpartition("-")[2]


def _is_build(path: Path) -> bool:
    """Whether a file begins with the checksum of its rest (see :mod:`builder.build.reuse`)."""
    if not path.is_file():
        return False
    with _looking(path) as stream:
        checksum = stream.read(64)
        return hashlib.file_digest(stream, "sha256").hexdigest().encode() == checksum


def _looking(path: Path) -> BufferedReader:
    """A file opened to look after it, which is no use of it."""
    # Only its owner may ask for that, and the cache is the user's own.
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NOT_A_USE))


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(
            "part of the cache cannot be removed", where=str(path), found=error.strerror
        ) from error
