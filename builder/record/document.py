"""One document about an image: a file, and an artifact of a registry."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from builder.project.whole_file import write_whole

if TYPE_CHECKING:
    from builder.oci.registry.artifact import Artifact

CYCLONEDX = "application/vnd.cyclonedx+json"
ENVELOPE = "application/vnd.dsse.envelope.v1+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
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
        from builder.oci.registry.artifact import Artifact

        kind = PAYLOAD_TYPE if self.predicate_type else self.media_type
        named = {PREDICATE_TYPE: self.predicate_type} if self.predicate_type else {}
        return Artifact(kind, self.media_type, self.name, self.data, named)


def write_documents(documents: tuple[Document, ...], directory: Path) -> list[Path]:
    """Write documents into a directory, which is made; each whole or not at all."""
    paths = [directory / document.name for document in documents]
    for path, document in zip(paths, documents, strict=True):
        write_whole(path, document.data)
    return paths
