"""The file system of an image, from the indexes of its layers: what a container would see, but none is run.

Layers are stacked as overlayfs stacks them (image-spec 1.1, ``layer.md``): a path's topmost entry counts,
and a whiteout, an opaque directory, or anything that is not a directory hides what the layers below have
there. Symbolic links are followed as the kernel does for a process whose root is the image: ``..`` stops at
the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from builder.errors import ImageMismatch
from builder.oci.layer_index import Entry
from builder.oci.tarwalk import Kind

_MAX_LINKS = 40  # as Linux has it


@dataclass(frozen=True)
class Found:
    """What is at a path.

    ``path`` is the real one, no component of it a symbolic link, without a leading slash. ``layer`` counts
    the manifest's layers from 0, the lowest. ``mode``, ``uid``, ``gid``, ``size`` (bytes), ``mtime``
    (seconds), git ``blob``, ``sha256`` and ``data`` are as in :class:`~builder.oci.layer_index.Entry`;
    ``link`` is a symbolic link's target. A file's bytes lie in the tar of layer ``stored_layer``, under the
    path ``stored``.
    """

    path: str
    layer: int
    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    link: str
    blob: str | None
    sha256: str | None
    stored: str
    stored_layer: int
    data: bytes | None = field(repr=False)

    @property
    def is_directory(self) -> bool:
        return self.kind is Kind.DIRECTORY

    @property
    def is_file(self) -> bool:
        return self.kind is Kind.FILE


@dataclass(frozen=True)
class _Node:
    """What is at a path, and the lowest layer whose entries below the path still show."""

    found: Found | None
    floor: int


class Files(Protocol):
    """A file system that can be asked but not changed: an image's layers, or a container's files."""

    def lookup(self, path: str) -> Found | None:
        """What ``path`` leads to."""
        ...

    def at(self, path: str) -> Found | None:
        """What is at ``path`` itself, reached through no symbolic link, and none itself followed."""
        ...

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        ...


class Layered(Protocol):
    """What one layer says of paths (see :class:`~builder.oci.layer_index.LayerIndex`)."""

    def get(self, path: str) -> Entry | None: ...

    def children(self, path: str) -> list[str]: ...

    def whiteouts(self, path: str) -> list[str]: ...

    def hides(self, path: str) -> bool: ...

    def is_opaque(self, path: str) -> bool: ...


class RootFS:
    """The layers of one image.

    Args:
        layers: in the manifest's order, the lowest first.
    """

    def __init__(self, layers: Sequence[Layered]) -> None:
        self._layers = tuple(layers)
        self._nodes: dict[str, _Node] = {}

    def lookup(self, path: str) -> Found | None:
        """What ``path`` leads to, all symbolic links followed; None when it leads nowhere.

        Raises:
            ImageMismatch: symbolic links in a circle, or more than 40 of them.
        """
        waiting = path.split("/")[::-1]
        real: list[str] = []
        here = self._at("")
        links = 0
        while waiting:
            part = waiting.pop()
            if part in ("", "."):
                continue
            if here is None or not here.is_directory:
                return None
            if part == "..":
                del real[-1:]
                here = self._at("/".join(real))
                continue
            found = self._at("/".join([*real, part]))
            if found is not None and found.kind is Kind.SYMLINK:
                links += 1
                if links > _MAX_LINKS:
                    raise ImageMismatch(
                        "symbolic links in the image lead in a circle", where="/" + path.lstrip("/")
                    )
                if found.link.startswith("/"):
                    real.clear()
                    here = self._at("")
                waiting.extend(found.link.split("/")[::-1])
                continue
            real.append(part)
            here = found
        return here

    def at(self, path: str) -> Found | None:
        """What is at ``path`` itself; None where that is reached through a symbolic link alone."""
        return self._at(path.strip("/"))

    def real_path(self, path: str) -> str | None:
        """The path that ``path`` leads to, free of symbolic links; None when it leads nowhere."""
        found = self.lookup(path)
        return None if found is None else found.path

    def listdir(self, path: str) -> list[str]:
        """The names in the directory that ``path`` leads to, sorted; none when there is no such directory."""
        directory = self.lookup(path)
        if directory is None or not directory.is_directory:
            return []
        names: set[str] = set()
        removed: set[str] = set()
        for number in self._numbers(self._node(directory.path).floor):
            layer = self._layers[number]
            names.update(name for name in layer.children(directory.path) if name not in removed)
            removed.update(layer.whiteouts(directory.path))
        return sorted(names)

    def _at(self, path: str) -> Found | None:
        """What is at ``path`` itself, whose parents must be no symbolic links."""
        return self._node(path).found

    def _node(self, path: str) -> _Node:
        missing: list[str] = []
        above = path
        while above not in self._nodes:
            missing.append(above)
            if not above:
                break
            above = above.rpartition("/")[0]
        for one in reversed(missing):  # from the top down: recursion would go as deep as the path
            self._nodes[one] = self._stacked(one)
        return self._nodes[path]

    def _numbers(self, floor: int) -> range:
        """Layers from the topmost down to ``floor``."""
        return range(len(self._layers) - 1, floor - 1, -1)

    def _stacked(self, path: str) -> _Node:
        """What the layers make of ``path``, read from the topmost down to where one hides the rest."""
        parent = self._node(path.rpartition("/")[0]) if path else _Node(None, 0)
        if path and (parent.found is None or not parent.found.is_directory):
            return _Node(None, 0)
        found: Found | None = None
        implied: Found | None = None
        floor: int | None = None
        for number in self._numbers(parent.floor):
            layer = self._layers[number]
            entry = layer.get(path)
            if entry is not None and entry.kind is not Kind.DIRECTORY:
                if found or implied:  # a directory above hides it, and all that is below
                    floor = number + 1 if floor is None else floor
                else:
                    found = self._found(path, number, entry)
                break
            if entry is not None and entry.implied:
                implied = implied or self._found(path, number, entry)
            elif entry is not None:
                found = found or self._found(path, number, entry)
            if floor is None and layer.is_opaque(path):
                floor = number
            if path and layer.hides(path):
                floor = number if floor is None else floor
                break
        return _Node(
            found or implied or (None if path else _root()), parent.floor if floor is None else floor
        )

    def _found(self, path: str, number: int, entry: Entry) -> Found:
        kind, size, link, blob, sha256 = entry.kind, entry.size, entry.link, entry.blob, entry.sha256
        stored, stored_layer, data = entry.stored, number, entry.data
        if kind is Kind.HARDLINK:  # to what a layer below has: this layer's own were settled by its index
            below = RootFS(self._layers[:number])._at(entry.link)
            if below is None:
                raise ImageMismatch(
                    "a hard link in the image leads nowhere",
                    where=f"/{path} in layer {number}",
                    found=f"/{entry.link}",
                )
            kind, size, link, blob, sha256 = below.kind, below.size, below.link, below.blob, below.sha256
            stored, stored_layer, data = below.stored, below.stored_layer, below.data
        return Found(
            path=path,
            layer=number,
            kind=kind,
            mode=entry.mode,
            uid=entry.uid,
            gid=entry.gid,
            size=size,
            mtime=entry.mtime,
            link=link,
            blob=blob,
            sha256=sha256,
            stored=stored,
            stored_layer=stored_layer,
            data=data,
        )


def _root() -> Found:
    """The root of an image that has no entry for it."""
    return Found("", 0, Kind.DIRECTORY, 0o755, 0, 0, 0, 0, "", None, None, "", 0, None)
