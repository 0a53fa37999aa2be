"""Documents beside an image: OCI manifests that name it as their subject (image-spec 1.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from builder.errors import ImageMismatch
from builder.oci.document import json_object
from builder.oci.layout import Layout
from builder.oci.model import OCI_MANIFEST, Descriptor, RawManifest, canonical_json, sha256_digest
from builder.oci.parallel import Task, run_parallel
from builder.oci.registry.client import Repository
from builder.oci.registry.referrers import listed, listing, referrer_descriptor, referrers_tag

EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY = b"{}"
TITLE = "org.opencontainers.image.title"  # by which oras and others name the file that they write
LARGEST_ARTIFACT = 32 << 20  # bytes

Place = Repository | Layout


@dataclass(frozen=True)
class Artifact:
    """A document that refers to an image.

    Args:
        artifact_type: what it is.
        media_type: of its bytes.
        title: its file name.
        data: its bytes.
        annotations: of its manifest.
    """

    artifact_type: str
    media_type: str
    title: str
    data: bytes = field(repr=False)
    annotations: Mapping[str, str]


def attach_artifacts(
    place: Place, subject: Descriptor, artifacts: Sequence[Artifact], *, mount_from: Place | None = None
) -> list[Descriptor]:
    """Attach artifacts to an image; attaching the same twice is the same as once.

    Args:
        place: the repository or layout of the image.
        subject: the image's manifest.
        artifacts: what is attached.
        mount_from: where they may be attached already.

    Raises:
        ImageMismatch: the list of what is attached already is damaged.
        Unavailable: the registry did not answer, or denies it; the directory cannot be written.
    """
    empty = Descriptor(EMPTY_TYPE, sha256_digest(EMPTY), len(EMPTY))
    plain = replace(subject, platform=None, annotations={})
    blobs = [_blob_of(artifact) for artifact in artifacts]
    manifests = [_manifest(*pair, empty, plain) for pair in zip(artifacts, blobs, strict=True)]
    tasks: list[Task] = [lambda check: place.put_blob(empty, EMPTY)]
    # A document names the image's digest: nobody else has it.
    tasks += [_putting(place, *pair, mount_from) for pair in zip(blobs, artifacts, strict=True)]
    run_parallel(tasks, place.workers)
    if isinstance(place, Repository):
        return place.put_referrers(manifests)
    return [_put_into_layout(place, manifest, subject.digest) for manifest in manifests]


def list_artifacts(place: Place, digest: str) -> list[Descriptor]:
    """What refers to an image.

    Raises:
        ImageMismatch: the list is damaged.
        Unavailable: the registry did not answer.
    """
    if isinstance(place, Repository):
        return place.list_referrers(digest)
    tag = referrers_tag(digest)
    index = place.get_manifest(tag) if tag in place.list_tags() else None
    return listed(index, f"{place.name}:{tag}")


def read_artifact(place: Place, descriptor: Descriptor) -> tuple[str, bytes]:
    """The media type and the bytes of an artifact that holds one document.

    Raises:
        ImageMismatch: it is not there, or holds something else.
        Unavailable: the registry did not answer.
    """
    where = f"{place.name}@{descriptor.digest}"
    layers = json_object(place.get_manifest(descriptor.digest).data, where).get("layers")
    if not isinstance(layers, list) or len(layers) != 1:
        raise ImageMismatch("not an artifact of one document", where=where)
    blob = Descriptor.from_json(layers[0], where)
    return blob.media_type, place.read_blob(blob, limit=LARGEST_ARTIFACT)


def _putting(place: Place, blob: Descriptor, artifact: Artifact, mount_from: Place | None) -> Task:
    return lambda check: place.put_blob(blob, artifact.data, is_new=True, mount_from=mount_from)


def _blob_of(artifact: Artifact) -> Descriptor:
    return Descriptor(
        artifact.media_type,
        sha256_digest(artifact.data),
        len(artifact.data),
        annotations={TITLE: artifact.title},
    )


def _manifest(artifact: Artifact, blob: Descriptor, empty: Descriptor, subject: Descriptor) -> RawManifest:
    value = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": artifact.artifact_type,
        "config": empty.as_json(),
        "layers": [blob.as_json()],
        "subject": subject.as_json(),
        "annotations": dict(artifact.annotations),
    }
    return RawManifest(OCI_MANIFEST, canonical_json(value))


def _put_into_layout(layout: Layout, manifest: RawManifest, digest: str) -> Descriptor:
    """A layout has no referrers API: the list is kept under the fallback tag, as in a registry without."""
    layout.put_manifest(manifest)
    own = referrer_descriptor(manifest, f"for {layout.name}")
    others = list_artifacts(layout, digest)
    if own.digest not in {other.digest for other in others}:
        layout.put_manifest(listing([*others, own]), tag=referrers_tag(digest))
    return own
