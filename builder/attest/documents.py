"""The documents about one image, as files and as artifacts of a registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builder.attest.materials import bill_of_materials
from builder.attest.signature import PAYLOAD_TYPE, SigningKey, sign
from builder.attest.statement import (
    APPLIED_PATCHES,
    BILL_OF_MATERIALS,
    PROVENANCE,
    provenance,
    statement,
)
from builder.image.artifact import Artifact
from builder.manifest import Manifest
from builder.wholefile import write_whole

CYCLONEDX = "application/vnd.cyclonedx+json"
ENVELOPE = "application/vnd.dsse.envelope.v1+json"
PREDICATE_TYPE = "in-toto.io/predicate-type"  # the annotation by which others find a statement


@dataclass(frozen=True)
class Document:
    """One attestation.

    Args:
        name: its file name.
        media_type: of its bytes.
        predicate_type: of an in-toto statement; None for the bare bill of materials.
        data: its bytes.
    """

    name: str
    media_type: str
    predicate_type: str | None
    data: bytes = field(repr=False)

    @property
    def artifact(self) -> Artifact:
        """As an OCI artifact; an envelope goes by the type of what is in it, so that both are found alike."""
        kind = PAYLOAD_TYPE if self.predicate_type else self.media_type
        named = {PREDICATE_TYPE: self.predicate_type} if self.predicate_type else {}
        return Artifact(
            kind, self.media_type, self.data, named | {"org.opencontainers.image.title": self.name}
        )


def make_documents(
    manifest: Manifest,
    digest: str,
    *,
    created: int,
    patches: Mapping[str, bytes],
    key: SigningKey | None,
) -> tuple[Document, ...]:
    """Everything that is attested of an image; the same bytes for the same arguments.

    Args:
        manifest: the image's manifest.
        digest: of its platform manifest.
        created: the image's time, in seconds since 1970.
        patches: the patches' bytes by name, as far as they are at hand.
        key: signs the statements; None leaves them unsigned.
    """
    materials = bill_of_materials(manifest, digest, created, patches)
    predicates = {
        "provenance": (PROVENANCE, provenance(manifest)),
        "patches": (APPLIED_PATCHES, manifest.model_dump(mode="json")),
        "materials": (BILL_OF_MATERIALS, json.loads(materials)),
    }
    documents = [Document("materials.cdx.json", CYCLONEDX, None, materials)]
    for name, (predicate_type, predicate) in predicates.items():
        data = statement(manifest, digest, predicate_type, predicate)
        if key is None:
            documents.append(Document(f"{name}.intoto.json", PAYLOAD_TYPE, predicate_type, data))
        else:
            documents.append(Document(f"{name}.dsse.json", ENVELOPE, predicate_type, sign(data, key)))
    return tuple(documents)


def write_documents(documents: tuple[Document, ...], directory: Path) -> list[Path]:
    """Write documents into a directory, which is made; each whole or not at all."""
    paths = [directory / document.name for document in documents]
    for path, document in zip(paths, documents, strict=True):
        write_whole(path, document.data)
    return paths
