"""An engine's image or container as something to verify (see :mod:`builder.verify.layered`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from builder.base.python_path import places_of
from builder.errors import ImageMismatch, OverlayError
from builder.oci.rootfs import Files, Found, RootFS
from builder.oci.settings import Settings, read_settings
from builder.publish.docker_engine.connection import Engine, engine_errors, is_missing
from builder.publish.docker_engine.files import ContainerFiles
from builder.publish.docker_engine.seen import Sight, is_below, loader_names, look_around
from builder.record.manifest import MANIFEST_PATH
from builder.verify.layered import BaseFiles, LayeredImage

NEVER_RUN = "overlay-never-started"  # a command that must be given to create; it is not run


class EngineSubject:
    """A container of an engine: running, stopped, or made of an image only to be read.

    Args:
        name: as people called it.
        container: docker-py's container.
        image: what the engine says of its image (``inspect``).
        is_image: whether the container was made only to read the image.
    """

    def __init__(self, name: str, container: Any, image: Mapping[str, Any], *, is_image: bool) -> None:
        self.name = name
        self._container = container
        self._image = image
        self._is_image = is_image
        self._places: tuple[str, ...] = ()
        self._opened: ContainerFiles | None = None

    @property
    def digest(self) -> str | None:
        return None

    @property
    def platform(self) -> str:
        return f"{self._image.get('Os')}/{self._image.get('Architecture')}"

    @property
    def labels(self) -> Mapping[str, str]:
        return dict((self._image.get("Config") or {}).get("Labels") or {})

    @property
    def annotations(self) -> Mapping[str, str] | None:
        return None

    @property
    def settings(self) -> Settings:
        of_image = read_settings(self._image.get("Config"), f"{self.name}: image")
        if self._is_image:
            return of_image
        own = read_settings(self._container.attrs.get("Config"), self.name)
        return replace(own, labels=of_image.labels, volumes=of_image.volumes, on_build=of_image.on_build)

    @property
    def is_container(self) -> bool:
        return not self._is_image

    @property
    def image_id(self) -> str | None:
        return None  # some engines call an image by its manifest's digest

    @property
    def diff_ids(self) -> tuple[str, ...]:
        return tuple((self._image.get("RootFS") or {}).get("Layers") or ())

    @property
    def layer_digests(self) -> tuple[str, ...] | None:
        return None

    def read_manifest_file(self) -> bytes | None:
        files = ContainerFiles(self._container, lambda _: True)
        found = files.lookup(MANIFEST_PATH) if files.add(MANIFEST_PATH) else None
        return found.data if found is not None else None

    def open_files(self, directories: Iterable[str]) -> Files:
        if self._opened is not None:
            return self._opened
        files = ContainerFiles(self._container, _is_source_or_bytecode)
        for directory in directories:
            if directory.count("/") < 2 or ".." in directory.split("/"):
                raise ImageMismatch(
                    "the manifest names a package in a place where none can be",
                    where=self.name,
                    found=directory[:200],
                )
            files.add(directory)
        if prefix := self.settings.environment.get("PYTHONPYCACHEPREFIX"):
            files.add(prefix)
        self._opened = files
        return files

    def read(self, found: Iterable[Found]) -> dict[str, bytes]:
        return self._opened.read(found) if self._opened else {}

    def undeclared(self, declared: frozenset[str], base_layers: int) -> list[str]:
        return []

    def written_since_start(self, path: str) -> bool:
        return path in self._changed

    def base_files(self, base: LayeredImage | None) -> BaseFiles | None:
        return None if base is None else BaseFiles(base.rootfs, base.read)

    def whole(self, base: LayeredImage | None, packages: Collection[str]) -> RootFS | None:
        """The base's files, with what is seen in the container where its Python looks for packages."""
        if base is None:
            return None
        self._base = base
        sight = Sight(self._container, base.rootfs)
        with suppress(ImageMismatch):  # without a Python in its environment, nothing is imported
            places, tags = places_of(base.rootfs, self.settings, base.read_one)
            self._places = tuple(places)
            architecture = str(self._image.get("Architecture"))
            for package in packages:
                names = loader_names(package, tags, architecture)
                look_around(sight, places, names, self._changed, self._mounts)
        return base.with_layer(sight.layer)

    def read_one(self, found: Found) -> bytes | None:
        if found.data is not None:
            return found.data
        count = len(self._base.diff_ids)
        return self._base.read_one(found) if found.stored_layer < count else None

    def changed_beside(self, directories: Collection[str]) -> list[str]:
        """Also mounts that such a place lies below; bytecode is left out, which Python writes."""
        places = [place for place in self._places if place.count("/") > 1]
        mounts = [m for m in self._mounts if is_below(m, places) or any(is_below(p, [m]) for p in places)]
        written = [path for path in self._changed if is_below(path, places) and "__pycache__" not in path]
        above = {
            str(parent) for path in (*self._changed, *directories) for parent in PurePosixPath(path).parents
        }
        return sorted(path for path in {*mounts, *written} - above if not is_below(path, directories))

    def origin(self, found: Found) -> str:
        path = f"/{found.path}"
        over = next((place for place in self._mounts if path == place or path.startswith(place + "/")), None)
        if over is not None:
            return f"mounted at {over}"
        return "changed in the container" if self.written_since_start(path) else "as in its image"

    @property
    def _mounts(self) -> tuple[str, ...]:
        return tuple(str(mount.get("Destination")) for mount in self._container.attrs.get("Mounts") or [])

    @cached_property
    def _changed(self) -> frozenset[str]:
        if self._is_image:
            return frozenset()
        with engine_errors("listing what changed in a container", self.name):
            return frozenset(str(change["Path"]) for change in self._container.diff() or [])


def _is_source_or_bytecode(path: str) -> bool:
    return path.endswith((".py", ".pyc"))


@contextmanager
def open_container(engine: Engine, name: str) -> Iterator[EngineSubject]:
    """A container by name or id, as it is now.

    Raises:
        ImageMismatch: there is none of this name.
        Unavailable: the engine failed.
    """
    container = _get(lambda: engine.client.containers.get(name), "container", name)
    with engine_errors("inspecting a container's image", name):
        image = engine.client.images.get(container.attrs["Image"])
    yield EngineSubject(f"container:{name}", container, image.attrs, is_image=False)


@contextmanager
def open_engine_image(engine: Engine, name: str) -> Iterator[EngineSubject]:
    """An image of the engine, through a container of it that is never started and removed afterwards.

    Raises:
        ImageMismatch: the engine has no such image.
        Unavailable: the engine failed.
    """
    image = _get(lambda: engine.client.images.get(name), "image", name)
    with created(engine, image.id) as container:
        yield EngineSubject(f"engine:{name}", container, image.attrs, is_image=True)


@contextmanager
def created(engine: Engine, image: str) -> Iterator[Any]:
    """A container of an image; its entry point is never run."""
    with engine_errors("creating a container to read an image", image):
        container = engine.client.containers.create(
            image, entrypoint=[NEVER_RUN], command=[], network_mode="none"
        )
    try:
        yield container
    finally:
        with engine_errors("removing the container that was made to read an image", image):
            container.remove(v=True, force=True)


def _get(get: Any, what: str, name: str) -> Any:
    try:
        with engine_errors(f"looking for {what} {name}", name):
            return get()
    except OverlayError as error:
        if is_missing(error.__cause__):
            raise ImageMismatch(f"the Docker Engine has no {what} of this name", where=name) from error
        raise
