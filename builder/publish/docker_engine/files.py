"""Files of a container, read out by the engine: nothing in it is started, nothing is needed in it.

The engine's archive of a directory shows what the container sees there, bind mounts and all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from builder.errors import Unavailable
from builder.oci.rootfs import Found
from builder.oci.tarwalk import Kind, Limits, Member, walk_tar
from builder.publish.docker_engine.connection import engine_errors, is_missing
from builder.source.git import blob_id

MAX_KEPT = 4 << 20  # bytes of one file
_LIMITS = Limits(entries=1_000_000, unpacked=32 << 30)
NO_LAYER = -1


class ContainerFiles:
    """Some directories of one container, with the bytes of small files in them (a ``Files``).

    Args:
        container: docker-py's container.
        keep: which files' bytes are kept, by path without a leading slash.
    """

    def __init__(self, container: Any, keep: Callable[[str], bool]) -> None:
        self._container = container
        self._keep = keep
        self._found: dict[str, Found] = {}
        self._names: dict[str, set[str]] = {}

    def add(self, path: str) -> bool:
        """Read a file, or a directory with all below it; False where there is none.

        Raises:
            ImageMismatch: the engine's archive is damaged or too large.
            Unavailable: the engine failed.
        """
        where = f"container {self._container.name}: {path}"
        above = path.strip("/").rpartition("/")[0]
        try:
            with engine_errors("reading files out of a container", where):
                chunks, _ = self._container.get_archive(path)
                walk_tar(
                    _chunks(chunks), lambda member: self._take(above, member), where=where, limits=_LIMITS
                )
        except Unavailable as error:
            if is_missing(error.__cause__):
                return False
            raise
        return True

    def lookup(self, path: str) -> Found | None:
        """What is at ``path`` itself: a symbolic link is not followed."""
        return self._found.get(path.strip("/"))

    def at(self, path: str) -> Found | None:
        return self.lookup(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(self._names.get(path.strip("/"), ()))

    def all(self) -> list[Found]:
        """Everything that was read."""
        return list(self._found.values())

    def read(self, found: Iterable[Found]) -> dict[str, bytes]:
        """The bytes that were kept, by path."""
        return {file.path: file.data for file in found if file.data is not None}

    def _take(self, above: str, member: Member) -> Callable[[bytes], object] | None:
        path = "/".join(part for part in (above, member.path.decode("utf-8", "surrogateescape")) if part)
        parent, _, name = path.rpartition("/")
        self._names.setdefault(parent, set()).add(name)
        if member.kind is Kind.HARDLINK:
            linked = self.lookup("/".join((above, member.link.decode("utf-8", "surrogateescape"))))
            if linked is not None:
                self._found[path] = replace(linked, path=path)
            return None
        if member.kind is not Kind.FILE or member.sparse:
            self._found[path] = _found(path, member, None, None)
            return None
        pieces: list[bytes] = []
        sha256 = hashlib.sha256()

        def write(piece: bytes) -> None:
            sha256.update(piece)
            if member.size <= MAX_KEPT:
                pieces.append(piece)
            if not piece:
                data = b"".join(pieces) if member.size <= MAX_KEPT and self._keep(path) else None
                self._found[path] = _found(path, member, data, sha256.hexdigest())

        return write


def read_files(container: Any, paths: Collection[str]) -> dict[str, Found | None]:
    """Single files of a container, by the path that was asked for; None where there is none."""
    found: dict[str, Found | None] = {}
    for path in paths:
        files = ContainerFiles(container, lambda _: True)
        found[path] = files.lookup(path) if files.add(path) else None
    return found


def _chunks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    yield from chunks


def _found(path: str, member: Member, data: bytes | None, sha256: str | None) -> Found:
    return Found(
        path=path,
        layer=NO_LAYER,
        kind=member.kind,
        mode=member.mode,
        uid=member.uid,
        gid=member.gid,
        size=member.size,
        mtime=member.mtime,
        link=member.link.decode("utf-8", "surrogateescape"),
        blob=None if data is None else blob_id(data),
        sha256=sha256,
        stored=path,
        stored_layer=NO_LAYER,
        data=data,
    )
