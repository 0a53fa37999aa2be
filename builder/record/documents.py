"""Making the documents about one image."""

from __future__ import annotations

import json
from collections.abc import Mapping

from builder.record.document import CYCLONEDX, ENVELOPE, PAYLOAD_TYPE, Document
from builder.record.manifest import Manifest
from builder.record.materials import bill_of_materials
from builder.record.signature import SigningKey, sign
from builder.record.statement import (
    APPLIED_PATCHES,
    BILL_OF_MATERIALS,
    PROVENANCE,
    provenance,
    statement,
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
