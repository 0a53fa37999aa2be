"""Bring a baked image into a Docker Engine: a stream of what it lacks, as ``docker save`` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from builder.engine.connection import Engine, engine_errors
from builder.errors import ImageMismatch, Unavailable
from builder.image.append import diff_ids
from builder.image.layer import tar_end, tar_header, tar_padding

if TYPE_CHECKING:
    from builder.finished import FinishedImage
    from builder.image.model import ByteProgress, ImageSource


def load_image(
    engine: Engine, finished: FinishedImage, source: ImageSource, name: str, *, progress: ByteProgress
) -> str:
    """Load an image; the engine's id of it.

    Layers that the engine has already, below one of its images, are not sent: of a base that it has
    pulled before, only the new layer travels.

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
    skip = 0 if engine.stores_blobs else _shared(engine, ids)
    stream = _archive(finished, source, name, skip, progress)
    with engine_errors("loading the image", name):
        for event in engine.api.load_image(stream):
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


def _archive(
    finished: FinishedImage, source: ImageSource, name: str, skip: int, progress: ByteProgress
) -> Iterator[bytes]:
    """The tar: config, layers from ``skip`` on, and ``manifest.json``."""
    image = finished.image
    config = image.config_descriptor.digest.removeprefix("sha256:") + ".json"
    names = [f"{layer.digest.removeprefix('sha256:')}.tar" for layer in image.layers]
    listing = json.dumps([{"Config": config, "RepoTags": [name], "Layers": names}]).encode()
    written = 0
    for chunk in _entries(finished, source, config, names, listing, skip, progress):
        written += len(chunk)
        yield chunk
    yield tar_end(written)


def _entries(
    finished: FinishedImage,
    source: ImageSource,
    config: str,
    names: list[str],
    listing: bytes,
    skip: int,
    progress: ByteProgress,
) -> Iterator[bytes]:
    yield from _entry("manifest.json", len(listing), [listing])
    yield from _entry(config, len(finished.image.config), [finished.image.config])
    sent: set[str] = set()
    for layer, name in list(zip(finished.image.layers, names, strict=True))[skip:]:
        if name in sent:
            continue
        sent.add(name)
        if layer.digest == finished.layer_descriptor.digest:
            yield from _entry(name, layer.size, [finished.layer])
            continue
        count = progress(f"loading layer {layer.digest[7:19]}", layer.size)
        with source.open_blob(layer) as chunks:
            for chunk in _entry(name, layer.size, chunks):
                count(len(chunk))
                yield chunk


def _entry(name: str, size: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    yield tar_header(name, kind=b"0", mode=0o644, uid=0, gid=0, mtime=0, size=size)
    yield from chunks
    yield tar_padding(size)
