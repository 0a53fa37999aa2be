"""Bring a baked image into a Docker Engine, as a stream of what it lacks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import ImageMismatch, Unavailable
from builder.oci.append import diff_ids
from builder.oci.layer import tar_end, tar_header, tar_padding
from builder.oci.model import Descriptor, canonical_json
from builder.publish.docker_engine.connection import Engine, engine_errors

if TYPE_CHECKING:
    from builder.build.result import ImageResult
    from builder.oci.model import ByteProgress, ImageSource


def load_image(
    engine: Engine, finished: ImageResult, source: ImageSource, name: str, *, progress: ByteProgress
) -> str:
    """Load an image; the engine's id of it.

    An engine that keeps blobs gets an OCI layout and keeps the manifest as it is: its id of the image is the
    image's digest, and so is what it pushes later. The others get what ``docker save`` writes, and their id
    is the config's digest. Docker's does without the layers that it has already, below one of its images: of
    a base that it has pulled before, only the new layer travels.

    Args:
        engine: where to.
        finished: the image.
        source: where its base's layers are.
        name: ``repository:tag`` for it in the engine.
        progress: makes a byte counter for a layer that is sent.

    Raises:
        ImageMismatch: what the engine has afterwards is not the image.
        Unavailable: the engine failed, or a layer cannot be read.
    """
    ids = diff_ids(finished.image.config)
    if engine.stores_blobs:
        entries = _layout(finished, source, name, progress)
    else:
        skip = _shared(engine, ids) if engine.takes_layers_left_out else 0
        entries = _saved(finished, source, name, skip, progress)
    with engine_errors("loading the image", name):
        for event in engine.api.load_image(_archive(entries)):
            if "error" in event:
                raise Unavailable(
                    "the Docker Engine does not load the image", where=name, found=event["error"]
                )
        found = engine.client.images.get(name)
    layers = tuple(found.attrs["RootFS"]["Layers"])
    if layers != ids:
        raise ImageMismatch(
            "the engine holds another image than it was given",
            where=name,
            expected=f"layers {', '.join(ids)}",
            found=", ".join(layers),
        )
    return str(found.id)


def _shared(engine: Engine, ids: tuple[str, ...]) -> int:
    """How many of the lowest layers the engine has, stacked in this order."""
    most = 0
    with engine_errors("asking which layers are there", engine.host):
        for image in engine.api.images():
            layers = engine.api.inspect_image(image["Id"])["RootFS"].get("Layers") or []
            same = 0
            for ours, theirs in zip(ids, layers, strict=False):
                if ours != theirs:
                    break
                same += 1
            most = max(most, same)
    return min(most, len(ids) - 1)


@dataclass(frozen=True)
class _Entry:
    """A file of the archive: its name, its size in bytes, and what opens it."""

    name: str
    size: int
    open: Callable[[], AbstractContextManager[Iterable[bytes]]]


def _archive(entries: Iterable[_Entry]) -> Iterator[bytes]:
    """The tar; each name once."""
    written = 0
    sent: set[str] = set()
    for entry in entries:
        if entry.name in sent:
            continue
        sent.add(entry.name)
        with entry.open() as chunks:
            for chunk in _file(entry.name, entry.size, chunks):
                written += len(chunk)
                yield chunk
    yield tar_end(written)


def _saved(
    finished: ImageResult, source: ImageSource, name: str, skip: int, progress: ByteProgress
) -> Iterator[_Entry]:
    """What ``docker save`` writes: ``manifest.json``, the config, and the layers from ``skip`` on."""
    image = finished.image
    config = f"{_hex(image.config_descriptor)}.json"
    names = [f"{_hex(layer)}.tar" for layer in image.layers]
    listing = json.dumps([{"Config": config, "RepoTags": [name], "Layers": names}]).encode()
    yield _bytes("manifest.json", listing)
    yield _bytes(config, image.config)
    for layer, path in list(zip(image.layers, names, strict=True))[skip:]:
        yield _layer(path, layer, finished, source, progress)


def _layout(
    finished: ImageResult, source: ImageSource, name: str, progress: ByteProgress
) -> Iterator[_Entry]:
    """An OCI layout (image-spec 1.1) with the image in it, named as containerd and others look for a name."""
    image = finished.image
    names = {
        "io.containerd.image.name": f"docker.io/library/{name}",
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    entry = {**image.manifest.descriptor.as_json(), "annotations": names}
    yield _bytes("oci-layout", canonical_json({"imageLayoutVersion": "1.0.0"}))
    yield _bytes("index.json", canonical_json({"schemaVersion": 2, "manifests": [entry]}))
    yield _bytes(_blob(image.manifest.descriptor), image.manifest.data)
    yield _bytes(_blob(image.config_descriptor), image.config)
    for layer in image.layers:
        yield _layer(_blob(layer), layer, finished, source, progress)


def _layer(
    path: str, layer: Descriptor, finished: ImageResult, source: ImageSource, progress: ByteProgress
) -> _Entry:
    if layer.digest == finished.layer_descriptor.digest:
        return _bytes(path, finished.layer)
    return _Entry(path, layer.size, lambda: _counted(layer, source, progress))


@contextmanager
def _counted(layer: Descriptor, source: ImageSource, progress: ByteProgress) -> Iterator[Iterable[bytes]]:
    count = progress(f"loading layer {layer.digest[7:19]}", layer.size)

    def counted(chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            count(len(chunk))
            yield chunk

    with source.open_blob(layer) as chunks:
        yield counted(chunks)


def _bytes(path: str, data: bytes) -> _Entry:
    return _Entry(path, len(data), lambda: nullcontext([data]))


def _hex(descriptor: Descriptor) -> str:
    return descriptor.digest.removeprefix("sha256:")


def _blob(descriptor: Descriptor) -> str:
    return f"blobs/sha256/{_hex(descriptor)}"


def _file(name: str, size: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    yield tar_header(name, kind=b"0", mode=0o644, uid=0, gid=0, mtime=0, size=size)
    yield from chunks
    yield tar_padding(size)
