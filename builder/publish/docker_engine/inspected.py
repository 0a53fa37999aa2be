"""An engine's image or container as something to verify (see :mod:`builder.verify.layered`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from builder.errors import ImageMismatch, OverlayError
from builder.oci.rootfs import Files, Found
from builder.publish.docker_engine.connection import Engine, engine_errors, is_missing
from builder.publish.docker_engine.files import ContainerFiles
from builder.record.manifest import MANIFEST_PATH

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
    def environment(self) -> Mapping[str, str]:
        entries = self._container.attrs["Config"].get("Env") or []
        return dict(str(entry).partition("=")[::2] for entry in entries)

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
        files = ContainerFiles(self._container, _is_source_or_bytecode)
        for directory in directories:
            if directory.count("/") < 2 or ".." in directory.split("/"):
                raise ImageMismatch(
                    "the manifest names a package in a place where none can be",
                    where=self.name,
                    found=directory[:200],
                )
            files.add(directory)
        if prefix := self.environment.get("PYTHONPYCACHEPREFIX"):
            files.add(prefix)
        self._opened = files
        return files

    def read(self, found: Iterable[Found]) -> dict[str, bytes]:
        return self._opened.read(found)

    def undeclared(self, declared: frozenset[str], base_layers: int) -> list[str]:
        return []

    def written_since_start(self, path: str) -> bool:
        return not self._is_image and path in self._changed

    def imported_from(self, package: str) -> str | None:
        return None  # it would take the whole image: its layers tell, in a registry or layout

    def origin(self, found: Found) -> str:
        path = f"/{found.path}"
        mounts = [str(mount.get("Destination")) for mount in self._container.attrs.get("Mounts") or []]
        over = next((place for place in mounts if path == place or path.startswith(place + "/")), None)
        if over is not None:
            return f"mounted at {over}"
        return "changed in the container" if self.written_since_start(path) else "as in its image"

    @cached_property
    def _changed(self) -> frozenset[str]:
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
