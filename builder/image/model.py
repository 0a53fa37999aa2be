"""What an image is made of, as values (OCI image-spec 1.1 and Docker image manifest v2, schema 2)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from builder.errors import InvalidInput

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
OCI_LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
OCI_LAYER_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
DOCKER_LAYER_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"

INDEX_TYPES = frozenset({OCI_INDEX, DOCKER_INDEX})
MANIFEST_TYPES = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")


def sha256_digest(data: bytes) -> str:
    """``sha256:<hex>`` of ``data``."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def is_digest(text: str) -> bool:
    """Whether ``text`` is a sha256 digest in canonical form."""
    return _DIGEST.match(text) is not None


def canonical_json(value: object) -> bytes:
    """JSON with sorted keys, no white space and UTF-8 as it is: one value, one byte string."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(frozen=True, order=True)
class Platform:
    """Operating system and architecture, e.g. ``linux/arm64`` or ``linux/arm/v7``."""

    os: str
    architecture: str
    variant: str = ""

    @classmethod
    def parse(cls, text: str) -> Platform:
        """Read ``os/architecture[/variant]``; raise :class:`InvalidInput` otherwise."""
        parts = text.split("/")
        if len(parts) not in (2, 3) or not all(re.fullmatch(r"[a-z0-9_.]+", p) for p in parts):
            raise InvalidInput(
                "not a platform",
                where=text,
                expected="os/architecture[/variant]",
                hint="for example linux/arm64 or linux/amd64",
            )
        return cls(*parts)

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


@dataclass(frozen=True)
class Descriptor:
    """A blob by media type, digest and size in bytes."""

    media_type: str
    digest: str
    size: int
    platform: Platform | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RawManifest:
    """A manifest or index exactly as stored: its bytes and what they are."""

    media_type: str
    data: bytes

    @property
    def digest(self) -> str:
        return sha256_digest(self.data)

    @property
    def is_index(self) -> bool:
        return self.media_type in INDEX_TYPES


class ImageSource(Protocol):
    """Where images are read from: a registry's repository or an OCI layout.

    Every byte string handed out was checked against its digest.
    """

    @property
    def name(self) -> str:
        """How people call it, for messages: ``localhost:5000/sglang`` or ``oci:DIR``."""
        ...

    def get_manifest(self, identifier: str) -> RawManifest:
        """The manifest or index with this tag or digest.

        Raises:
            ImageMismatch: it is not there, or its bytes differ from the digest.
            Unavailable: the registry did not answer within the bounded retries.
        """
        ...

    def read_blob(self, descriptor: Descriptor, *, limit: int = 64 << 20) -> bytes:
        """A whole small blob (at most ``limit`` bytes), digest checked."""
        ...

    def open_blob(self, descriptor: Descriptor) -> AbstractContextManager[Iterator[bytes]]:
        """A blob as a stream of chunks; the digest and size are checked when it ends."""
        ...


class ImageSink(Protocol):
    """Where images are written to. Writing the same thing twice is the same as once."""

    @property
    def name(self) -> str: ...

    def put_blob(self, descriptor: Descriptor, data: bytes) -> None:
        """Store a blob held in memory, unless it is there already."""
        ...

    def copy_blob(self, source: ImageSource, descriptor: Descriptor) -> None:
        """Bring a blob from ``source``: nothing if it is there, a mount within one registry, else a stream."""
        ...

    def put_manifest(self, manifest: RawManifest, *, tag: str | None = None) -> Descriptor:
        """Store a manifest or index by digest, and under ``tag`` when given. Blobs must be there."""
        ...


def open_chunks(stream: BinaryIO, size: int = 1 << 20) -> Iterator[bytes]:
    """The rest of ``stream`` in chunks of at most ``size`` bytes."""
    while chunk := stream.read(size):
        yield chunk
