"""Attestations of an image that is somewhere: made, attached to it, listed, and checked against a key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from builder.base.image import Base
from builder.errors import ImageMismatch, UsageError
from builder.oci.append import labels_of
from builder.oci.layout import Layout
from builder.oci.model import ByteProgress, Descriptor, ImageSource
from builder.oci.registry.artifact import Place, attach_artifacts, list_artifacts, read_artifact
from builder.oci.registry.client import Repository
from builder.record.document import ENVELOPE, PAYLOAD_TYPE, PREDICATE_TYPE, Document
from builder.record.documents import make_documents
from builder.record.manifest import Manifest
from builder.record.signature import SigningKey, VerifyingKey, open_envelope
from builder.record.statement import APPLIED_PATCHES, PROVENANCE, STATEMENT
from builder.verify.deviation import Deviation
from builder.verify.read_record import creation_time_of, find_manifest, read_record


@dataclass(frozen=True)
class Attached:
    """An attestation of an image: its manifest's digest, its type, and its predicate's."""

    digest: str
    artifact_type: str
    predicate_type: str | None


def attest_image(
    image: Base, *, patches: Mapping[str, bytes], key: SigningKey | None, progress: ByteProgress
) -> tuple[Document, ...]:
    """The documents about an image, made from what is in it.

    Args:
        image: one that overlay made.
        patches: the patches' bytes by the SHA-256 of each file, as far as they are at hand.
        key: signs the statements.
        progress: makes a byte counter for a layer that is read.

    Raises:
        ImageMismatch: it was not made by overlay, or its manifest is not the one that its labels name.
    """
    labels = labels_of(image.config)
    where = f"{image.location.name}@{image.manifest.digest}"
    manifest = find_manifest(image, read_record(labels, where), progress)
    return make_documents(
        manifest,
        image.manifest.digest,
        created=creation_time_of(labels, where),
        patches=own_patches(manifest, patches),
        key=key,
    )


def own_patches(manifest: Manifest, patches: Mapping[str, bytes]) -> dict[str, bytes]:
    """The patches of a manifest by name, of those given by SHA-256."""
    return {patch.name: patches[patch.sha256] for patch in manifest.patches if patch.sha256 in patches}


def attach_documents(
    source: ImageSource, image: Descriptor, documents: tuple[Document, ...]
) -> list[Attached]:
    """Attach documents to an image as OCI referrers.

    Raises:
        Unavailable: the registry did not answer, or denies it.
    """
    artifacts = [document.artifact for document in documents]
    return [_attached(found) for found in attach_artifacts(place_of(source), image, artifacts)]


def list_attached(source: ImageSource, digest: str) -> list[Attached]:
    """What is attached to an image."""
    return [_attached(found) for found in list_artifacts(place_of(source), digest)]


def check_signatures(
    source: ImageSource, digest: str, manifest: Manifest, key: VerifyingKey
) -> Iterator[Deviation]:
    """Whether the key's owner signed that this image is from these patches; what else is attached is let be.

    Args:
        source: where the image and its referrers are.
        digest: of the image's manifest.
        manifest: what is in the image.
        key: whose word counts.
    """
    place = place_of(source)
    signed: set[str] = set()
    for descriptor in list_artifacts(place, digest):
        if descriptor.artifact_type != PAYLOAD_TYPE:
            continue
        where = f"attestation {descriptor.digest[:19]}…"
        try:
            media_type, data = read_artifact(place, descriptor)
            payload = open_envelope(data, key, where) if media_type == ENVELOPE else None
        except ImageMismatch as error:
            yield Deviation("signature", where, error.what, error.expected, error.found)
            continue
        if payload is None:
            continue
        predicate_type, wrong = _check_statement(payload, digest, manifest)
        signed.add(predicate_type)
        if wrong is not None:
            yield Deviation("signature", where, wrong)
    for needed in (PROVENANCE, APPLIED_PATCHES):
        if needed not in signed:
            what = f"no statement {needed} signed by this key is attached"
            yield Deviation(
                "signature", f"{place.name}@{digest}", what, f"a signature by {key.key_id[:16]}…", "none"
            )


def place_of(source: ImageSource) -> Place:
    """The repository or layout that an image was opened from; nothing else holds referrers."""
    if isinstance(source, Repository | Layout):
        return source
    raise UsageError("attestations are kept beside images in registries and layouts", found=source.name)


def _attached(found: Descriptor) -> Attached:
    return Attached(found.digest, found.artifact_type or "", found.annotations.get(PREDICATE_TYPE))


def _check_statement(payload: bytes, digest: str, manifest: Manifest) -> tuple[str, str | None]:
    """A signed statement's predicate type, and what is wrong with it, if something is."""
    try:
        value: Any = json.loads(payload)
    except (ValueError, RecursionError):
        value = None
    match value:
        case {
            "_type": str(kind),
            "subject": [{"digest": {"sha256": str(subject)}}],
            "predicateType": str(predicate_type),
            "predicate": predicate,
        } if kind == STATEMENT:
            if f"sha256:{subject}" != digest:
                return predicate_type, f"what was signed is about another image: sha256:{subject[:64]}"
            if predicate_type == APPLIED_PATCHES and predicate != manifest.model_dump(mode="json"):
                return predicate_type, "what was signed names other patches or files than the image has"
            return predicate_type, None
    return "", "what was signed is not an in-toto statement about one image"
