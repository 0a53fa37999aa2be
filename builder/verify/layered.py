"""What is verified: an image in a registry or layout, read from its layers; nothing of it is run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from builder.base.image import Base, layer_indexes, reader_of
from builder.base.python_path import find_roots
from builder.errors import ImageMismatch, UsageError
from builder.oci.append import (
    annotations_of,
    base_config,
    base_layers,
    diff_ids,
    environment_of,
    labels_of,
    platform_of,
    working_dir_of,
)
from builder.oci.index import index_images
from builder.oci.layer_index import LayerIndex, read_files
from builder.oci.model import OCI_MANIFEST, ByteProgress, ImageSource, Platform, RawManifest
from builder.oci.reference import LayoutReference, Reference
from builder.oci.rootfs import Files, Found, Layered, RootFS
from builder.oci.settings import Settings, settings_of
from builder.record.manifest import MANIFEST_PATH


class Subject(Protocol):
    """An image or a container that is asked what is in it."""

    @property
    def name(self) -> str:
        """As people call it."""
        ...

    @property
    def digest(self) -> str | None:
        """Of the platform manifest, where there is one to be had."""
        ...

    @property
    def platform(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]:
        """Of the image's config."""
        ...

    @property
    def annotations(self) -> Mapping[str, str] | None:
        """Of the manifest; None where there is none that could hold any."""
        ...

    @property
    def settings(self) -> Settings:
        """What its containers are started with, or it itself; labels, volumes and ONBUILD are its image's."""
        ...

    @property
    def is_container(self) -> bool: ...

    @property
    def image_id(self) -> str | None:
        """The digest of the image's config, where it is known."""
        ...

    @property
    def diff_ids(self) -> tuple[str, ...]:
        """The digests of the uncompressed layers, lowest first."""
        ...

    @property
    def layer_digests(self) -> tuple[str, ...] | None:
        """The digests of the layers' blobs, lowest first; None where the subject does not have them."""
        ...

    def read_manifest_file(self) -> bytes | None:
        """The bytes of the applied-patch manifest; None where there is none."""
        ...

    def open_files(self, directories: Iterable[str]) -> Files:
        """The files, at least those below ``directories`` (absolute paths), the same ones each time."""
        ...

    def read(self, found: Iterable[Found]) -> dict[str, bytes]:
        """The bytes of files that :meth:`open_files` found, by path."""
        ...

    def undeclared(self, declared: frozenset[str], base_layers: int) -> list[str]:
        """Paths of the manifest's own layer, above the base's, that are not among ``declared``."""
        ...

    def written_since_start(self, path: str) -> bool:
        """Whether a file of a container was written there, and is not its image's; never so for an image."""
        ...

    def changed_beside(self, directories: Collection[str]) -> list[str]:
        """What is mounted or was written where a container's Python looks for packages, but not below these.

        It is known once :meth:`whole` was asked.
        """
        ...

    def base_files(self, base: LayeredImage | None) -> BaseFiles | None:
        """The files of its base; None where they cannot be known."""
        ...

    def whole(self, base: LayeredImage | None, packages: Collection[str]) -> RootFS | None:
        """All of its files that decide where Python imports ``packages`` from; None where nobody knows."""
        ...

    def read_one(self, found: Found) -> bytes | None:
        """The bytes of a file of :meth:`whole`, up to the size of an archive; None where they are lost."""
        ...

    def origin(self, found: Found) -> str:
        """Where a file comes from, in words: its layer, a mount, a change in the container."""
        ...


@dataclass(frozen=True)
class BaseFiles:
    """The files of a base, and how their bytes are read."""

    files: RootFS
    read: Callable[[Iterable[Found]], dict[str, bytes]]


@dataclass(frozen=True)
class LayeredImage:
    """One platform's image in a registry or layout.

    Args:
        image: where it is, its manifest and its config.
        cache: where layer indexes are kept.
        progress: makes a byte counter for a layer that is read.
    """

    image: Base
    cache: Path
    progress: ByteProgress = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.image.location.name}@{self.image.manifest.digest}"

    @property
    def digest(self) -> str | None:
        return self.image.manifest.digest

    @property
    def platform(self) -> str:
        return str(self.image.platform)

    @property
    def labels(self) -> Mapping[str, str]:
        return labels_of(self.image.config)

    @property
    def annotations(self) -> Mapping[str, str] | None:
        if self.image.manifest.media_type != OCI_MANIFEST:
            return None
        return annotations_of(self.image.manifest)

    @property
    def settings(self) -> Settings:
        return settings_of(self.image.config)

    @property
    def is_container(self) -> bool:
        return False

    @property
    def image_id(self) -> str | None:
        return base_config(self.image.manifest).digest

    @property
    def diff_ids(self) -> tuple[str, ...]:
        return diff_ids(self.image.config)

    @property
    def layer_digests(self) -> tuple[str, ...] | None:
        return tuple(layer.digest for layer in base_layers(self.image.manifest))

    @cached_property
    def _indexes(self) -> list[LayerIndex]:
        return layer_indexes(self.image, self.cache, self.progress)

    @cached_property
    def rootfs(self) -> RootFS:
        """All of its files."""
        return RootFS(self._indexes)

    def read_manifest_file(self) -> bytes | None:
        found = self.rootfs.lookup(MANIFEST_PATH)
        if found is None or not found.is_file:
            return None
        return self.read([found]).get(found.path)

    def open_files(self, directories: Iterable[str]) -> Files:
        return self.rootfs

    def read(self, found: Iterable[Found]) -> dict[str, bytes]:
        wanted: dict[int, dict[str, str]] = {}
        for file in found:
            wanted.setdefault(file.stored_layer, {})[file.stored] = file.path
        data: dict[str, bytes] = {}
        for number, names in wanted.items():
            layer = base_layers(self.image.manifest)[number]
            with self.image.source.open_blob(layer) as chunks:
                read = read_files(chunks, layer, list(names))
            data |= {names[stored]: content for stored, content in read.items()}
        return data

    def undeclared(self, declared: frozenset[str], base_layers: int) -> list[str]:
        manifest = self.rootfs.lookup(MANIFEST_PATH)
        if manifest is None or manifest.layer < base_layers:
            return []
        layer = self._indexes[manifest.layer]
        return [path for path in _paths(layer, "") if path not in declared]

    def written_since_start(self, path: str) -> bool:
        return False

    def changed_beside(self, directories: Collection[str]) -> list[str]:
        return []

    def base_files(self, base: LayeredImage | None) -> BaseFiles | None:
        """Of its own layers, where they are the base's; without a base, those below the manifest's layer."""
        manifest = self.rootfs.lookup(MANIFEST_PATH)
        count = (manifest.layer if manifest else 0) if base is None else len(base.diff_ids)
        if base is not None and self.diff_ids[:count] != base.diff_ids:
            return BaseFiles(base.rootfs, base.read)
        return BaseFiles(RootFS(self._indexes[:count]), self.read)

    def whole(self, base: LayeredImage | None, packages: Collection[str]) -> RootFS | None:
        return self.rootfs

    def with_layer(self, layer: Layered) -> RootFS:
        """The files that there are with one more layer."""
        return RootFS([*self._indexes, layer])

    def read_one(self, found: Found) -> bytes | None:
        return reader_of(self.image)(found)

    def root_of(self, package: str) -> str:
        """The directory that Python imports a package from.

        Raises:
            ImageMismatch: no Python of the image imports it.
        """
        config = self.image.config
        start = working_dir_of(config)
        return find_roots(self.rootfs, environment_of(config), package, working_dir=start).root.path

    def origin(self, found: Found) -> str:
        return f"from layer {found.layer + 1} of {len(self.diff_ids)}"


def open_image(
    location: Reference | LayoutReference, source: ImageSource, identifier: str, platform: Platform | None
) -> Base:
    """One platform's image, by its manifest and its config alone (for an index: that too).

    Args:
        location: what people named.
        source: the place it names.
        identifier: tag or digest there.
        platform: to take of an index; need not be given where there is only one.

    Raises:
        ImageMismatch: it is not there, or has no image for the platform.
        UsageError: the index has several platforms, and nobody chose.
    """
    manifest = source.get_manifest(identifier)
    if not manifest.is_index:
        image = _read_image(location, source, manifest, None)
        if platform not in (None, image.platform):
            raise _no_image(location, str(platform), str(image.platform))
        return image
    children = {child.platform: child for child in index_images(manifest, source)}
    if platform is None and len(children) != 1:
        raise UsageError(
            "the image index has several platforms: choose",
            where=str(location),
            found=", ".join(map(str, children)),
            hint=" or ".join(f"--platform {there}" for there in children),
        )
    chosen = platform or next(iter(children))
    if chosen not in children:
        raise _no_image(location, str(chosen), ", ".join(map(str, children)) or "no images")
    child = source.get_manifest(children[chosen].digest)
    return _read_image(location, source, child, manifest.digest)


def open_images(location: Reference | LayoutReference, source: ImageSource, identifier: str) -> list[Base]:
    """The image, or every platform's image of an index (see :func:`open_image`).

    Raises:
        ImageMismatch: it is not there, or the index has no images.
    """
    manifest = source.get_manifest(identifier)
    if not manifest.is_index:
        return [_read_image(location, source, manifest, None)]
    images = [
        _read_image(location, source, source.get_manifest(child.digest), manifest.digest)
        for child in index_images(manifest, source)
    ]
    if not images:
        raise ImageMismatch("the image index has no images", where=str(location))
    return images


def _read_image(
    location: Reference | LayoutReference, source: ImageSource, manifest: RawManifest, index: str | None
) -> Base:
    config = source.read_blob(base_config(manifest))
    return Base(source, location, index, manifest, config, platform_of(config))


def _no_image(location: Reference | LayoutReference, expected: str, found: str) -> ImageMismatch:
    return ImageMismatch(
        "there is no image for the platform", where=str(location), expected=expected, found=found
    )


def _paths(layer: LayerIndex, directory: str) -> Iterable[str]:
    """Every file and every whiteout of a layer, by path."""
    prefix = f"{directory}/" if directory else ""
    for name in layer.whiteouts(directory):
        yield f"{prefix}{name}"
    for name in layer.children(directory):
        entry = layer.get(f"{prefix}{name}")
        if entry is not None and entry.kind == "directory":
            yield from _paths(layer, f"{prefix}{name}")
        else:
            yield f"{prefix}{name}"
