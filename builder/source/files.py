"""The files of a source tree, as values: what upstream brings, a series changes, and an image is held to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from builder.source.git import blob_id


@dataclass(frozen=True)
class SourceFile:
    """A file of a source tree: git mode and bytes."""

    mode: str
    data: bytes

    @cached_property
    def blob(self) -> str:
        """Its git blob id."""
        return blob_id(self.data)

    @cached_property
    def sha256(self) -> str:
        """Hex SHA-256 of its bytes."""
        return hashlib.sha256(self.data).hexdigest()


Sources = Mapping[str, SourceFile]
