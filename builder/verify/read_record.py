"""What an image says of itself: its labels, and the applied-patch manifest in it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass

from builder.base.image import Base
from builder.build.plan import LABEL, OCI, base_name_label, notes_label, required_label
from builder.errors import ImageMismatch
from builder.oci.append import base_layers
from builder.oci.layer_index import read_files
from builder.oci.model import ByteProgress, sha256_digest
from builder.record.manifest import MANIFEST_PATH, MAX_MANIFEST_BYTES, FileRecord, Manifest, read_manifest

_NEEDED = ("name", "patches", "patchset", "manifest")


@dataclass(frozen=True)
class Record:
    """The labels of an image that overlay made."""

    name: str
    patches: tuple[str, ...]
    patchset: str
    manifest: str
    base_name: str
    base_digest: str
    source: str
    revision: str | None
    version: str
    hardware: str | None
    requires: str | None = None
    notes: tuple[str, ...] = ()


def read_record(labels: Mapping[str, str], where: str) -> Record:
    """The record in an image's labels.

    Raises:
        ImageMismatch: the image was not made by overlay, or its labels are not whole.
    """
    there = [key for key in _NEEDED if f"{LABEL}.{key}" in labels]
    if len(there) < len(_NEEDED):
        raise ImageMismatch(
            "labels of the image's record are missing" if there else "the image was not made by overlay",
            where=where,
            expected=f"labels {', '.join(f'{LABEL}.{key}' for key in _NEEDED)}",
            found=", ".join(f"{LABEL}.{key}" for key in there) or "none of them",
        )
    return Record(
        name=labels[f"{LABEL}.name"],
        patches=tuple(labels[f"{LABEL}.patches"].split()),
        patchset=labels[f"{LABEL}.patchset"],
        manifest=labels[f"{LABEL}.manifest"],
        base_name=labels.get(f"{OCI}.base.name", "").partition("@")[0],
        base_digest=labels.get(f"{OCI}.base.digest", ""),
        source=labels.get(f"{OCI}.source", ""),
        revision=labels.get(f"{OCI}.revision"),
        version=labels.get(f"{OCI}.version", ""),
        hardware=labels.get(f"{LABEL}.hardware"),
        requires=labels.get(f"{LABEL}.requires"),
        notes=_notes(labels.get(f"{LABEL}.notes", "[]")),
    )


def expected_labels(manifest: Manifest) -> dict[str, str]:
    """The labels (and annotations) that an image with this manifest has."""
    overlay, upstream = manifest.overlay, manifest.upstream
    labels = {
        **base_name_label(manifest),
        f"{OCI}.base.digest": manifest.base.digest,
        f"{OCI}.source": upstream.repository,
        f"{OCI}.version": f"{upstream.release}-{overlay.name}-{overlay.version}",
        f"{LABEL}.name": overlay.name,
        f"{LABEL}.patches": " ".join(patch.name for patch in manifest.patches),
        f"{LABEL}.patchset": manifest.patchset,
        f"{LABEL}.manifest": manifest.digest,
    }
    there = {
        f"{OCI}.revision": upstream.commit,
        f"{LABEL}.hardware": " ".join(manifest.hardware),
        f"{LABEL}.requires": required_label(manifest),
        f"{LABEL}.notes": notes_label(manifest) if manifest.base.notes else "",
    }
    return labels | {key: text for key, text in there.items() if text}


def final_files(manifest: Manifest) -> dict[str, FileRecord | None]:
    """Every file that the series touches as the last patch leaves it, by path in the image; None: removed."""
    final: dict[str, FileRecord | None] = {}
    for patch in manifest.patches:
        for file in patch.files:
            if file.kind == "rename" and file.old_path is not None:
                final[image_path_of(manifest, file.old_path)] = None
            final[file.image_path] = None if file.post is None else file
    return final


def image_path_of(manifest: Manifest, path: str) -> str:
    """Where a path of the upstream is in the image, by the manifest's roots."""
    above = [root for root in manifest.roots if path.startswith(root.path + "/")]
    root = max(above, key=lambda r: len(r.path), default=None)
    return f"/{path}" if root is None else root.image_path + path[len(root.path) :]


def _notes(label: str) -> tuple[str, ...]:
    """The notes of a label; what is not a list of texts says nothing."""
    try:
        value = json.loads(label)
    except (ValueError, RecursionError):
        return ()
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()


def find_manifest(image: Base, record: Record, progress: ByteProgress) -> Manifest:
    """The applied-patch manifest, out of the topmost layer that has one; layers below it are not read.

    Args:
        image: an image that overlay made.
        record: its labels; the manifest must be the one that they name.
        progress: makes a byte counter for a layer that is read.

    Raises:
        ImageMismatch: no layer has it, it cannot be read, or it is another one.
    """
    path = MANIFEST_PATH.lstrip("/")
    where = f"{image.location.name}@{image.manifest.digest}"
    for layer in reversed(base_layers(image.manifest)):
        progress(f"reading layer {layer.digest[7:19]}", layer.size)
        with image.source.open_blob(layer) as chunks:
            found = read_files(chunks, layer, [path], limit=MAX_MANIFEST_BYTES)
        if path in found:
            manifest = read_manifest(found[path], where=f"{where}: {MANIFEST_PATH}")
            if sha256_digest(found[path]) != record.manifest:
                raise other_manifest(where, record.manifest, sha256_digest(found[path]))
            return manifest
    raise ImageMismatch("no layer has the applied-patch manifest", where=where, expected=MANIFEST_PATH)


def other_manifest(where: str, expected: str, found: str) -> ImageMismatch:
    """The error for a manifest that is not the one that an image's labels name."""
    return ImageMismatch(
        "the manifest in the image is not the one that its labels name",
        where=where,
        expected=expected,
        found=found,
        hint="overlay verify says what else differs",
    )


def creation_time_of(labels: Mapping[str, str], where: str) -> int:
    """The time that an image's label gives, in seconds since 1970.

    Raises:
        ImageMismatch: it gives none.
    """
    text = labels.get(f"{OCI}.created", "")
    try:
        found = datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.UTC)
    except ValueError as error:
        raise ImageMismatch(
            "the image's time cannot be read", where=f"{where}: {OCI}.created", found=text[:40]
        ) from error
    return int(found.timestamp())
