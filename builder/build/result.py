"""A finished build: its images as bytes, and all that is said of them. Values alone, light to import.

Delivering, printing and the lock need no more than this; how it was made is the affair of
:mod:`builder.build.pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from builder.oci.model import Descriptor, NewImage, Platform, RawManifest
from builder.oci.reference import LayoutReference, Reference, parse_location
from builder.project.lock import INPUTS, Lock
from builder.record.document import Document

MOST_REFERENCES = 16  # that the lock keeps of one image, the last ones first


@dataclass(frozen=True)
class ImageResult:
    """One platform's image.

    Args:
        base: where its base's layers are, by digest.
        image: manifest, config and layers, the new layer last.
        layer: the new layer's bytes.
        facts: what was verified of the base, as the lock keeps it.
        record: the digests that the lock keeps.
        documents: its attestations; empty where none were asked for.
    """

    base: Reference | LayoutReference
    image: NewImage
    layer: bytes = field(repr=False)
    facts: Mapping[str, Any] = field(repr=False)
    record: Mapping[str, Any]
    documents: tuple[Document, ...] = ()

    @property
    def layer_descriptor(self) -> Descriptor:
        return self.image.layers[-1]


@dataclass(frozen=True)
class Report:
    """What a build says of itself, planned or finished: ``--json`` shows it, and so do the tables.

    Args:
        name, version: of the overlay.
        images: for each platform ``platform``, ``base``, ``dockerfile``, ``warnings`` and ``manifest``; of a
            finished one ``digest`` and ``layer`` too.
        patches: name, status, what the probe said, and what was applied, for each patch.
    """

    name: str
    version: str
    images: Sequence[Mapping[str, Any]] = field(repr=False)
    patches: Sequence[Sequence[str]] = field(repr=False)

    @property
    def warnings(self) -> list[str]:
        """What a person should know of the bases, once each."""
        return list(dict.fromkeys(text for image in self.images for text in image["warnings"]))


@dataclass(frozen=True)
class BuildResult:
    """What a build made.

    Args:
        report: what is said of it.
        images: one for each platform.
        index: the index over them, when there are several.
        tag_values: what a tag template is filled in with.
        engine_name: what its images are called in a Docker Engine.
        inputs: what it was built from, as the lock keeps it (see :mod:`builder.build.drift`).
    """

    report: Report
    images: tuple[ImageResult, ...]
    index: RawManifest | None
    tag_values: Mapping[str, str]
    engine_name: str
    inputs: Mapping[str, Any] = field(repr=False)

    @property
    def digest(self) -> str:
        """Of the index, else of the only image."""
        return self.index.digest if self.index else self.images[0].image.manifest.digest


def locked(lock: Lock, finished: BuildResult, references: Sequence[str]) -> Lock:
    """The lock with what this build verified and made; where the same images went before stays there.

    Args:
        lock: as it was read.
        finished: the build.
        references: where it went.
    """
    bases = {str(image.base.digest): image.facts for image in finished.images}
    went = list(dict.fromkeys([*sorted(references), *pushed_before(lock, finished)]))[:MOST_REFERENCES]
    images = {
        str(image.image.platform.canonical): {**image.record, "references": went} for image in finished.images
    }
    return replace(
        lock,
        bases={**lock.bases, **bases},
        images={**lock.images, **images},
        sections={**lock.sections, INPUTS: finished.inputs},
    )


def pushed_before(lock: Lock, finished: BuildResult) -> list[str]:
    """The references under which the lock says that these very images went somewhere."""
    found: list[str] = []
    for image in finished.images:
        record = lock.images.get(str(image.image.platform.canonical), {})
        references = record.get("references")
        if record.get("digest") == image.record["digest"] and isinstance(references, list):
            found += [text for text in references if isinstance(text, str)]
    return list(dict.fromkeys(found))


# --- as bytes -----------------------------------------------------------------------------------------------


def to_parts(finished: BuildResult) -> tuple[dict[str, Any], list[bytes]]:
    """A build as a JSON value and the byte strings that it refers to by their number."""
    blobs: list[bytes] = []

    def number(data: bytes) -> int:
        blobs.append(data)
        return len(blobs) - 1

    value = {
        "report": vars(finished.report),
        "images": [_image_to_json(image, number) for image in finished.images],
        "index": finished.index and _manifest_to_json(finished.index, number),
        "tag_values": finished.tag_values,
        "engine_name": finished.engine_name,
        "inputs": finished.inputs,
    }
    return value, blobs


def from_parts(value: Mapping[str, Any], blobs: Sequence[bytes]) -> BuildResult:
    """What :func:`to_parts` made; anything else is a ``KeyError``, ``TypeError``, or an error of a value."""
    return BuildResult(
        Report(**value["report"]),
        tuple(_image_from_json(image, blobs) for image in value["images"]),
        value["index"] and _manifest_from_json(value["index"], blobs),
        value["tag_values"],
        value["engine_name"],
        value["inputs"],
    )


def _image_to_json(finished: ImageResult, number: Callable[[bytes], int]) -> dict[str, Any]:
    image = finished.image
    return {
        "base": str(finished.base),
        "manifest": _manifest_to_json(image.manifest, number),
        "config": number(image.config),
        "config_descriptor": image.config_descriptor.as_json(),
        "layers": [layer.as_json() for layer in image.layers],
        "platform": str(image.platform),
        "layer": number(finished.layer),
        "facts": finished.facts,
        "record": finished.record,
        "documents": [vars(one) | {"data": number(one.data)} for one in finished.documents],
    }


def _image_from_json(value: Mapping[str, Any], blobs: Sequence[bytes]) -> ImageResult:
    return ImageResult(
        parse_location(value["base"]),
        NewImage(
            _manifest_from_json(value["manifest"], blobs),
            blobs[value["config"]],
            Descriptor.from_json(value["config_descriptor"], "a kept image"),
            tuple(Descriptor.from_json(layer, "a kept image") for layer in value["layers"]),
            Platform(*value["platform"].split("/")),
        ),
        blobs[value["layer"]],
        value["facts"],
        value["record"],
        tuple(Document(**one | {"data": blobs[one["data"]]}) for one in value["documents"]),
    )


def _manifest_to_json(manifest: RawManifest, number: Callable[[bytes], int]) -> dict[str, Any]:
    return {"media_type": manifest.media_type, "data": number(manifest.data)}


def _manifest_from_json(value: Mapping[str, Any], blobs: Sequence[bytes]) -> RawManifest:
    return RawManifest(value["media_type"], blobs[value["data"]])
