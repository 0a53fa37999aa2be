"""The user's cache: how an entry is kept and believed, what there is of which kind, and how to be rid of it.

Everything in the cache can be made again; the lock and the images are elsewhere. An entry is named after all
that it follows from, and begins with a checksum over kind, key and content (:class:`Store`): what is cut, was
changed, or was put in another's place is not believed, and made again. Two things have checks of their own:
git's objects, whose names are their hashes, and indexes of layers, which are opened and not read whole
(:mod:`builder.oci.layer_index`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from builder.errors import Unavailable
from builder.project.whole_file import sweep_parts, write_cached
from builder.temporary import is_temporary, sweep_directories

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
LARGEST = 256 << 20  # bytes of an entry; what is larger is made again each time
# Directories of entries that begin with a checksum, below the cache's.
STORES = ("built", "probes", "evidence", "lint", "soundness", "series.git/opinions")
_NOT_A_USE = getattr(os, "O_NOATIME", 0)


@dataclass(frozen=True)
class Store:
    """Entries of one kind.

    Args:
        directory: where they are; made when the first is written. Its name is the kind's.
    """

    directory: Path

    def get(self, key: str) -> bytes | None:
        """What is kept under a key; None where nothing is, or what is there was not kept under it.

        Args:
            key: names all that the entry follows from; a file name.
        """
        path = self.directory / key
        sweep_parts(self.directory)
        try:
            checksum, _, data = _read(path).partition(b"\n")
        except (OSError, ValueError):
            return None
        if checksum == _checksum(self.directory.name, key, data):
            return data
        self.remove(key)
        return None

    def put(self, key: str, data: bytes) -> None:
        """Keep an entry, whole or not at all; one that is too large is not kept.

        Raises:
            OSError: it cannot be written; the error names a file.
        """
        if len(data) <= LARGEST:
            checksum = _checksum(self.directory.name, key, data)
            write_cached(self.directory / key, b"\n".join((checksum, data)))

    def remove(self, key: str) -> None:
        """Forget an entry."""
        with suppress(OSError):
            (self.directory / key).unlink(missing_ok=True)


def _checksum(kind: str, key: str, data: bytes) -> bytes:
    digest = hashlib.sha256(f"{kind}\n{key}\n".encode())
    digest.update(data)
    return digest.hexdigest().encode()


def _read(path: Path) -> bytes:
    """An entry's file; an error if it is not a file, or too large to be one."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("no file")
        data = file.read(LARGEST + 100)
    if len(data) == LARGEST + 100:
        raise ValueError("too large")
    return data


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
    """Indexes of layers and entries whose bytes are not what they should be, and unfinished files."""
    layers = cache / "layers"
    wrong = [path for path in sorted(layers.glob("*")) if not (_is_whole(path) or is_temporary(path.name))]
    return wrong + [
        path for name in STORES for path in sorted((cache / name).glob("*")) if not _is_kept(path)
    ]


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
    for place in (cache, cache / "layers", cache / "wheels"):
        sweep_directories(place)
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
            yield from (part for part in sorted(path.iterdir()) if not is_temporary(part.name))
        elif path.suffix != ".lock" and not is_temporary(path.name):
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


def _is_kept(path: Path) -> bool:
    """Whether a file is what :meth:`Store.put` wrote there."""
    if not path.is_file():
        return False
    with _looking(path) as stream:
        checksum, _, data = stream.read().partition(b"\n")
    return checksum == _checksum(path.parent.name, path.name, data)


def _looking(path: Path) -> BufferedReader:
    """A file opened to look after it, which does not count as using it."""
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
