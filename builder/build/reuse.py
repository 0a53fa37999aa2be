"""Builds that were made before, kept in the cache under what they were made from.

A build's digest is decided by its inputs alone, so the same inputs need no second build. What is key for
names a file of the cache; that file says which build it holds and what the inputs were, each of which is
compared: the spec, the series and its patches, the probes, the template, this program, and what the lock
knows of the bases. Versions of jinja2 and pydantic are not inputs: what they make of the
same inputs is the same, and the tests of reproducibility are where that is seen.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder import __version__
from builder.build.result import BuildResult, from_parts, to_parts
from builder.errors import OverlayError
from builder.oci.model import Format
from builder.oci.reference import LAYOUT_SCHEME
from builder.project.cache import Store
from builder.project.lock import INPUTS, Lock
from builder.project.project import Root

DIRECTORY = "built"


@dataclass(frozen=True)
class BuildKey:
    """What a build is key for, beside what is in the files that it reads.

    Args:
        root: where those files are.
        name: of the overlay.
        base: what ``--base`` says.
        platforms: what ``--platform`` says, in order.
        format: what ``--format`` says.
    """

    root: Root
    name: str
    base: str | None
    platforms: tuple[str, ...]
    format: Format = "base"

    @property
    def key(self) -> str:
        """Names the entry of the cache that a build of this is kept in; layouts from the directory."""
        value = [
            __version__,
            str(self.root.path),
            self.name,
            self.base,
            self.platforms,
            self.format,
            os.environ.get("SOURCE_DATE_EPOCH"),
            _directory() if (self.base or "").startswith(LAYOUT_SCHEME) else "",
        ]
        return hashlib.sha256(json.dumps(value).encode()).hexdigest()

    def read_files(self, series: str) -> str:
        """One digest of every file that decides the build, and of this program.

        Args:
            series: the name of the series that the spec takes.

        Raises:
            OSError: one cannot be read.
        """
        root = self.root
        found = hashlib.sha256(_PROGRAM.encode())
        for path in _inputs(root, self.name, series):
            kind = f"link to {path.readlink()}" if path.is_symlink() else "file"
            line = f"{_digest(path)} {kind} {path.relative_to(root.path)}\0"
            found.update(line.encode("utf-8", "surrogateescape"))
        return found.hexdigest()


def _directory() -> str:
    """The current directory, from which layouts are named; nothing where it is gone."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _digest(path: Path) -> str:
    if not path.is_file():
        return "no file"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def look_up_build(key: BuildKey, cache: Path, lock: Lock, *, documents: bool) -> BuildResult | None:
    """The build that was made of the same inputs before; None where it has to be made.

    Args:
        key: what is to be built.
        cache: the user's cache.
        lock: the overlay's, which has to record the same build: what changed since is for a build to tell.
        documents: whether the attestations are needed too.
    """
    store = Store(cache / DIRECTORY)
    packed = store.get(key.key)
    if packed is None:
        return None
    try:
        head, blobs = _unpack(packed)
        if head["files"] != key.read_files(head["series"]) or head["pins"] != lock.pins:
            return None
        finished = from_parts(head["build"], blobs)
        if documents and not all(image.documents for image in finished.images):
            return None
        if not finished.images or not _recorded(finished, lock):
            return None
    except (
        OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, OverlayError,
    ):  # fmt: skip
        store.remove(key.key)  # another version's: it is worth no message, since it can be made again
        return None
    return finished


@dataclass(frozen=True)
class InputSnapshot:
    """The files that a build is made from, as they were before it read them.

    Args:
        key: what is built.
        series: the name of the series that its spec takes.
        files: one digest of them all.
    """

    key: BuildKey
    series: str
    files: str


def take_snapshot(key: BuildKey) -> InputSnapshot | None:
    """Look at the files of a build before it reads them; None where one is missing, which the build tells."""
    from builder.project.spec import read_spec

    try:
        series = read_spec(key.root.spec_path(key.name)).patches.series
        return InputSnapshot(key, series, key.read_files(series))
    except (OSError, OverlayError):
        return None


def store_build(snapshot: InputSnapshot, cache: Path, lock: Lock, finished: BuildResult) -> None:
    """Keep a build, unless a file that it was made from changed meanwhile.

    Args:
        snapshot: its files, as they were before it.
        cache: the user's cache.
        lock: the overlay's, as it was read.
        finished: what came out.

    Raises:
        OSError: the cache cannot be written.
    """
    if snapshot.key.read_files(snapshot.series) != snapshot.files:
        return
    build, blobs = to_parts(finished)
    head = {"files": snapshot.files, "series": snapshot.series, "pins": lock.pins, "build": build}
    Store(cache / DIRECTORY).put(snapshot.key.key, _pack(head, blobs))


def _recorded(finished: BuildResult, lock: Lock) -> bool:
    """Whether the lock says of inputs, bases and images what this build would write."""
    return lock.sections.get(INPUTS) == finished.inputs and all(
        lock.bases.get(str(image.base.digest)) == image.facts
        and _without_references(lock.images.get(str(image.image.platform.canonical), {})) == image.record
        for image in finished.images
    )


def _without_references(record: Any) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "references"}


def _inputs(root: Root, name: str, series: str) -> Iterator[Path]:
    yield root.overlays / f"{name}.yaml"
    yield root.template
    directory = root.patches / series
    yield from sorted([directory / "series", *directory.glob("*.patch")])
    yield from sorted(root.probes.glob("**/*.py"))


def program_stamp(directory: Path) -> str:
    """Tells this program from every other: in a checkout it changes between versions.

    Names, sizes and times of its files are enough: nobody can set back when an inode changed.
    """
    return hashlib.sha256("\0".join(_program(directory)).encode("utf-8", "surrogateescape")).hexdigest()


def _program(directory: Path) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _program(Path(entry.path))
            elif entry.name.endswith(".py"):
                facts = entry.stat()
                yield f"{entry.path} {facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}"


# Taken when this module is imported, before the steps of a build are: they are of these files or newer ones.
_PROGRAM = program_stamp(Path(__file__).parent.parent)


def _pack(head: dict[str, Any], blobs: Iterable[bytes]) -> bytes:
    """A line of JSON with the sizes of what follows it, and that."""
    blobs = list(blobs)
    line = json.dumps(head | {"sizes": [len(blob) for blob in blobs]}).encode()
    return b"".join([line, b"\n", *blobs])


def _unpack(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """What :func:`_pack` was given."""
    start = data.index(b"\n") + 1
    head: dict[str, Any] = json.loads(data[:start])
    blobs = []
    for size in head["sizes"]:
        blobs.append(data[start : start + size])
        start += size
    return head, blobs
