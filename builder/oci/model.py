"""What an image is made of, as values (OCI image-spec 1.1 and Docker image manifest v2, schema 2)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import BinaryIO, Literal, Protocol

from builder.errors import ImageMismatch, InvalidInput
from builder.printable import counted

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
DOCKER_LAYER_ZSTD = "application/vnd.docker.image.rootfs.diff.tar.zstd"  # containerd and BuildKit write it

INDEX_TYPES = frozenset({OCI_INDEX, DOCKER_INDEX})
MANIFEST_TYPES = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})

# Each of Docker's types for which OCI has another name; the bytes are the same.
OCI_TYPES = {
    DOCKER_MANIFEST: OCI_MANIFEST,
    DOCKER_CONFIG: OCI_CONFIG,
    DOCKER_LAYER: OCI_LAYER,
    DOCKER_LAYER_GZIP: OCI_LAYER_GZIP,
    DOCKER_LAYER_ZSTD: OCI_LAYER_ZSTD,
}

Format = Literal["base", "oci"]
"""The media types that an image gets: those of its base's family, or OCI's."""

LARGEST_SIZE = (1 << 63) - 1  # bytes: sizes are int64 (image-spec, descriptor.md)

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")


def format_input(format: Format) -> dict[str, str]:
    """The format as one of the things that an image is made from; the default is not written."""
    return {} if format == "base" else {"format": format}


def sha256_digest(data: bytes) -> str:
    """``sha256:<hex>`` of ``data``."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def is_digest(text: str) -> bool:
    """Whether ``text`` is a sha256 digest in canonical form."""
    return _DIGEST.match(text) is not None


def canonical_json(value: object) -> bytes:
    """JSON with sorted keys, no white space and UTF-8 as it is: one value, one byte string."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(frozen=True)
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
        return cls(*parts).canonical

    @property
    def canonical(self) -> Platform:
        """The same under its one name: arm64's variant is v8 or left out, and both name the same machines."""
        is_plain = (self.architecture, self.variant) == ("arm64", "v8")
        return Platform(self.os, self.architecture) if is_plain else self

    @property
    def is_known(self) -> bool:
        """Whether machines have it; ``unknown/unknown`` is how attestations are marked."""
        return self.os not in ("", "unknown") and bool(self.architecture)

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Platform:
        """A descriptor's ``platform``; parts that are not strings are empty."""
        parts = (value.get(key) for key in ("os", "architecture", "variant"))
        return cls(*(part if isinstance(part, str) else "" for part in parts))

    def as_json(self) -> dict[str, str]:
        named = {"architecture": self.architecture, "os": self.os, "variant": self.variant}
        return {key: value for key, value in named.items() if value}

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
    artifact_type: str | None = None

    @classmethod
    def from_json(cls, value: object, where: str) -> Descriptor:
        """Read a descriptor of an index or manifest; ``where`` names that document in errors.

        An annotation that is not a string is left out.

        Raises:
            ImageMismatch: it is not a descriptor, or its digest is not a sha256.
        """
        if not isinstance(value, Mapping):
            raise _no_descriptor(where, repr(value)[:80])
        media_type, digest, size = value.get("mediaType"), value.get("digest"), value.get("size")
        if not isinstance(digest, str) or not is_digest(digest):
            raise _no_descriptor(where, f"digest {digest!r:.90}")
        is_size = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= LARGEST_SIZE
        if not isinstance(media_type, str) or not isinstance(size, int) or not is_size:
            raise _no_descriptor(where, f"media type {media_type!r:.80}, size {size!r:.40} at {digest}")
        annotations, platform = value.get("annotations") or {}, value.get("platform")
        if not isinstance(annotations, Mapping) or not isinstance(platform, Mapping | None):
            raise _no_descriptor(where, f"annotations or platform of {digest}")
        artifact_type = value.get("artifactType")
        return cls(
            media_type,
            digest,
            size,
            Platform.from_json(platform) if platform else None,
            {key: text for key, text in annotations.items() if isinstance(text, str)},
            artifact_type if isinstance(artifact_type, str) else None,
        )

    def as_json(self) -> dict[str, object]:
        """The descriptor as index and manifests hold it."""
        value: dict[str, object] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.platform is not None:
            value["platform"] = self.platform.as_json()
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        if self.artifact_type is not None:
            value["artifactType"] = self.artifact_type
        return value


def _no_descriptor(where: str, found: str) -> ImageMismatch:
    return ImageMismatch(
        "not a descriptor", where=where, expected="mediaType, digest (sha256:…) and size", found=found
    )


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

    @property
    def descriptor(self) -> Descriptor:
        """Type, digest and size of these bytes."""
        return Descriptor(self.media_type, self.digest, len(self.data))


@dataclass(frozen=True)
class NewImage:
    """An image to be written: config and manifest as bytes, layers by descriptor, the new one last."""

    manifest: RawManifest
    config: bytes = field(repr=False)
    config_descriptor: Descriptor
    layers: tuple[Descriptor, ...]
    platform: Platform

    @property
    def descriptor(self) -> Descriptor:
        """The manifest as an entry of an index."""
        return Descriptor(
            self.manifest.media_type, self.manifest.digest, len(self.manifest.data), self.platform
        )


Progress = Callable[[int], None]
ByteProgress = Callable[[str, int], Progress]  # a counter for a transfer, from what it is and its bytes


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

    @property
    def workers(self) -> int:
        """How many blobs may be brought at the same time."""
        ...

    def find_tag(self, tag: str) -> str | None:
        """The digest that a tag leads to; None where there is none, or it cannot be told."""
        ...

    def put_blob(
        self,
        descriptor: Descriptor,
        data: bytes,
        *,
        is_new: bool = False,
        mount_from: ImageSource | None = None,
    ) -> None:
        """Store a blob held in memory, unless it is there already.

        Args:
            descriptor, data: the blob.
            is_new: it is hardly there, and need not be asked for.
            mount_from: where it may be already.
        """
        ...

    def copy_blob(
        self, source: ImageSource, descriptor: Descriptor, *, progress: Progress | None = None
    ) -> None:
        """Bring a blob from ``source``: nothing if it is there, a mount within one registry, else a stream.

        ``progress`` hears of each stored piece of a stream, in bytes; a negative number takes back what has
        to be sent again.
        """
        ...

    def put_manifest(self, manifest: RawManifest, *, tag: str | None = None) -> Descriptor:
        """Store a manifest or index by digest, and under ``tag`` when given. Blobs must be there."""
        ...


def open_chunks(stream: BinaryIO, size: int = 1 << 20) -> Iterator[bytes]:
    """The rest of ``stream`` in chunks of at most ``size`` bytes."""
    while chunk := stream.read(size):
        yield chunk


class WrongBytesError(ImageMismatch):
    """A blob's or manifest's bytes are not what its digest says."""


def verified(chunks: Iterable[bytes], descriptor: Descriptor, where: str) -> Iterator[bytes]:
    """The chunks as they come; when they end, their size and digest must be the descriptor's.

    The last chunk is held back until then, so that a reader who copies what it gets never holds all of a
    wrong blob. More bytes than promised end it at once.

    Raises:
        WrongBytesError: naming the blob, ``where`` it was read, and both sizes or digests.
    """
    read = 0
    digest = hashlib.sha256()
    held = b""
    for chunk in chunks:
        if not chunk:
            continue  # it would let go of the chunk that is held back
        read += len(chunk)
        if read > descriptor.size:
            raise _wrong_blob(descriptor, where, counted(descriptor.size, "byte"), "more")
        digest.update(chunk)
        if held:
            yield held
        held = chunk
    if read != descriptor.size:
        raise _wrong_blob(descriptor, where, counted(descriptor.size, "byte"), counted(read, "byte"))
    if "sha256:" + digest.hexdigest() != descriptor.digest:
        raise _wrong_blob(descriptor, where, descriptor.digest, "sha256:" + digest.hexdigest())
    if held:
        yield held


def _wrong_blob(descriptor: Descriptor, where: str, expected: str, found: str) -> WrongBytesError:
    return WrongBytesError(
        f"the bytes of blob {descriptor.digest} are not what its digest says",
        where=where,
        expected=expected,
        found=found,
        hint="nothing of it was kept; the place it came from is damaged or was tampered with",
    )
