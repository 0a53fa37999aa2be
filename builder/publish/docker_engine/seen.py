"""What an engine shows of the places where a container's Python looks for packages, as one more layer.

An engine lists no directory without sending all that is below it. So it is asked for the names that matter:
what could be imported in the place of a package, and code that runs at the start. Only what is mounted, or
was written in the container, is listed.
"""

from __future__ import annotations

import base64
import json
import posixpath
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from builder.oci.layer_index import Entry
from builder.oci.rootfs import Found, RootFS
from builder.oci.tarwalk import Kind
from builder.publish.docker_engine.connection import engine_errors
from builder.publish.docker_engine.files import ContainerFiles

_DIRECTORY, _SYMLINK = 1 << 31, 1 << 27  # bits of Go's os.FileMode
_MAX_LINKS = 40
_CUSTOM = ("sitecustomize", "usercustomize")


def loader_names(package: str, cache_tags: Collection[str], architecture: str) -> list[str]:
    """The names in a directory that could be imported as a package or module, the package's own first."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(architecture, architecture)
    extensions = [*(f".{tag}-{machine}-linux-gnu.so" for tag in cache_tags), ".abi3.so", ".so"]
    return [package, *(f"{package}{ending}" for ending in (*extensions, ".py", ".pyc"))]


class SeenLayer:
    """A layer of what was seen (see :class:`~builder.oci.rootfs.Layered`)."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._names: dict[str, set[str]] = {}
        self._hidden: dict[str, set[str]] = {}
        self._opaque: set[str] = set()

    def add_opaque(self, path: str) -> None:
        self._opaque.add(path.strip("/"))

    def add(self, path: str, entry: Entry) -> None:
        path = path.strip("/")
        self._entries[path] = entry
        parent, _, name = path.rpartition("/")
        while name:
            self._names.setdefault(parent, set()).add(name)
            self._entries.setdefault(parent, _directory(parent))
            parent, _, name = parent.rpartition("/")

    def hide(self, path: str) -> None:
        parent, _, name = path.strip("/").rpartition("/")
        self._hidden.setdefault(parent, set()).add(name)

    def get(self, path: str) -> Entry | None:
        return self._entries.get(path)

    def children(self, path: str) -> list[str]:
        return sorted(self._names.get(path, ()))

    def whiteouts(self, path: str) -> list[str]:
        return sorted(self._hidden.get(path, ()))

    def hides(self, path: str) -> bool:
        parent, _, name = path.rpartition("/")
        return name in self._hidden.get(parent, ())

    def is_opaque(self, path: str) -> bool:
        return path in self._opaque


class Sight:
    """Looks at single paths of a container.

    Args:
        container: docker-py's.
        base: the files of its image's base: directories that are links there are taken as such.
    """

    def __init__(self, container: Any, base: RootFS) -> None:
        self._container = container
        self._base = base
        self.layer = SeenLayer()

    def look(self, path: str) -> Kind | None:
        """Look at one path, a link's target too; that nothing is there is noted as well."""
        for _ in range(_MAX_LINKS):
            path = self._place(path)
            seen = self._stat(path)
            if seen is None:
                self.layer.hide(path)
                return None
            mode = int(seen.get("mode", 0))
            if mode & _DIRECTORY:
                self.layer.add(path, _directory(path))
                return Kind.DIRECTORY
            if not mode & _SYMLINK:
                self._read(path)
                return Kind.FILE
            link = str(seen.get("linkTarget") or "")
            self.layer.add(path, _link(path, link))
            path = posixpath.join(posixpath.dirname(path), link)
        return None

    def read_all(self, directory: str) -> None:
        """Read all of a directory that nothing of the image shows through."""
        place = self._place(directory)
        self.layer.add_opaque(place)
        self._read(place)

    def _read(self, path: str) -> None:
        files = ContainerFiles(self._container, lambda _: True)
        if files.add(path):
            for found in files.all():
                self.layer.add(found.path, _of(found))

    def _place(self, path: str) -> str:
        """A path whose directory is not a link in the base."""
        parent, _, name = posixpath.normpath(path).rpartition("/")
        if not parent:
            return f"/{name}"
        real = self._base.real_path(parent)
        return f"{self._place(parent) if real is None else f'/{real}'.rstrip('/')}/{name}"

    def _stat(self, path: str) -> dict[str, Any] | None:
        api = self._container.client.api
        url = f"{api.base_url}/v{api.api_version}/containers/{self._container.id}/archive"
        with engine_errors("looking at a file of a container", f"{self._container.name}: {path}"):
            answer = api.head(url, params={"path": path}, timeout=api.timeout)
            if answer.status_code == 404:
                return None
            answer.raise_for_status()
            said: dict[str, Any] = json.loads(
                base64.b64decode(answer.headers["X-Docker-Container-Path-Stat"])
            )
            return said


def look_around(
    sight: Sight,
    directories: Iterable[str],
    loaders: Sequence[str],
    written: Collection[str],
    mounts: Collection[str],
) -> None:
    """Look at everything that may decide what is imported.

    Args:
        sight: of a container.
        directories: that its Python looks into.
        loaders: names of packages and modules (see :func:`loader_names`); the package's own is the first.
        written: paths that were written in the container.
        mounts: where something is mounted.
    """
    package, *_ = loaders
    names = [*loaders, *(f"{module}{ending}" for module in _CUSTOM for ending in ("", ".py", ".pyc"))]
    for directory in dict.fromkeys(directories):
        if sight.look(directory) is not Kind.DIRECTORY:
            continue
        if is_below(directory, mounts):
            sight.read_all(directory)
            continue
        below = directory.rstrip("/")
        kinds = {name: sight.look(f"{below}/{name}") for name in names}
        if kinds[package] is Kind.DIRECTORY:
            for name in loaders[1:]:
                sight.look(f"{below}/{package}/__init__{name.removeprefix(package)}")
        for path in sorted({*_directly_in(below, written), *_directly_in(below, mounts)}):
            if path.endswith(".pth"):
                sight.look(path)


def is_below(path: str, places: Collection[str]) -> bool:
    """Whether a path is one of some places, or below one."""
    return any(path == place or path.startswith(f"{place.rstrip('/')}/") for place in places)


def _directly_in(directory: str, paths: Collection[str]) -> Iterator[str]:
    return (path for path in paths if posixpath.dirname(path) == directory)


def _of(found: Found) -> Entry:
    return Entry(
        kind=found.kind,
        mode=found.mode,
        uid=found.uid,
        gid=found.gid,
        size=found.size,
        mtime=found.mtime,
        link=found.link,
        blob=found.blob,
        sha256=found.sha256,
        data=found.data,
        stored=found.path,
        implied=False,
    )


def _link(path: str, target: str) -> Entry:
    return Entry(Kind.SYMLINK, 0o777, 0, 0, 0, 0, target, None, None, None, path, False)


def _directory(path: str) -> Entry:
    return Entry(Kind.DIRECTORY, 0o755, 0, 0, 0, 0, "", None, None, None, path, True)
