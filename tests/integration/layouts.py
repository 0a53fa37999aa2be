"""Images of the tests' own making, as OCI layouts (image-spec 1.1), written without any code of overlay's.

They are what overlay is judged against, so they share nothing with it but the specification.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from isal import igzip

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
INDEX = "application/vnd.oci.image.index.v1+json"
REF_NAME = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class Layer:
    """A layer as a manifest and a config name it."""

    descriptor: Mapping[str, Any]
    diff_id: str


@dataclass(frozen=True)
class Image:
    """A manifest and its config, parsed."""

    manifest: Mapping[str, Any]
    config: Mapping[str, Any]

    @property
    def layers(self) -> list[Layer]:
        pairs = zip(self.manifest["layers"], self.config["rootfs"]["diff_ids"], strict=True)
        return [Layer(descriptor, diff_id) for descriptor, diff_id in pairs]


@dataclass(frozen=True)
class Layout:
    """An OCI layout on disk."""

    directory: Path

    @classmethod
    def create(cls, directory: Path) -> Layout:
        (directory / "blobs" / "sha256").mkdir(parents=True)
        (directory / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        layout = cls(directory)
        layout._write_index([])
        return layout

    def path(self, digest: str) -> Path:
        return self.directory / "blobs" / digest.replace(":", "/")

    def read(self, digest: str) -> bytes:
        return self.path(digest).read_bytes()

    def put(self, data: bytes, media_type: str) -> dict[str, Any]:
        """Store a blob; its descriptor."""
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        self.path(digest).write_bytes(data)
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def image(self, digest: str) -> Image:
        manifest = json.loads(self.read(digest))
        return Image(manifest, json.loads(self.read(manifest["config"]["digest"])))

    def single(self) -> str:
        """The digest of the only image."""
        (entry,) = self.entries()
        return str(entry["digest"])

    def entries(self) -> list[dict[str, Any]]:
        return list(json.loads((self.directory / "index.json").read_text())["manifests"])

    def put_image(self, config: Mapping[str, Any], layers: Sequence[Layer], tag: str) -> str:
        """An image of ``layers`` with the rest of ``config`` as it is; its digest, also named ``tag``."""
        history = [{"created_by": f"layer {number}"} for number, _ in enumerate(layers)]
        rootfs = {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]}
        new = {**config, "rootfs": rootfs, "history": history}
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.put(json.dumps(new).encode(), CONFIG),
            "layers": [layer.descriptor for layer in layers],
        }
        entry = self.put(json.dumps(manifest).encode(), MANIFEST)
        self._name(entry, tag)
        return str(entry["digest"])

    def put_layer(self, write: Callable[[tarfile.TarFile], None]) -> Layer:
        """A gzip layer of what ``write`` adds to the tar, streamed: it may be larger than memory."""
        temporary = self.directory / f"layer-{os.getpid()}"
        with temporary.open("wb") as file:
            packed = Hashing(file)
            with igzip.IGzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as gzip:  # type: ignore[no-untyped-call]
                plain = Hashing(gzip)
                with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                    write(tar)
        digest = packed.digest()
        temporary.rename(self.path(digest))
        return Layer({"mediaType": LAYER_GZIP, "digest": digest, "size": packed.size}, plain.digest())

    # What `builder.oci.model.ImageSink` asks for, so that overlay's own makers of images can write here.

    @property
    def name(self) -> str:
        return f"oci:{self.directory}"

    def put_blob(self, descriptor: Any, data: bytes) -> None:
        assert self.put(data, descriptor.media_type)["digest"] == descriptor.digest

    def copy_blob(self, source: Any, descriptor: Any, *, progress: Any = None) -> None:
        with source.open_blob(descriptor) as chunks, self.path(descriptor.digest).open("wb") as file:
            checked = Hashing(file)
            for chunk in chunks:
                checked.write(chunk)
        assert (checked.digest(), checked.size) == (descriptor.digest, descriptor.size)

    def put_manifest(self, manifest: Any, *, tag: str | None = None) -> Any:
        entry = self.put(manifest.data, manifest.media_type)
        if tag is not None:
            self._name(entry, tag)
        return entry

    def _name(self, entry: Mapping[str, Any], tag: str) -> None:
        others = [e for e in self.entries() if e.get("annotations", {}).get(REF_NAME) != tag]
        self._write_index([*others, {**entry, "annotations": {REF_NAME: tag}}])

    def _write_index(self, entries: Iterable[Mapping[str, Any]]) -> None:
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": list(entries)}
        (self.directory / "index.json").write_text(json.dumps(index))


class Hashing(io.RawIOBase):
    """A file that hashes and counts what is written through it."""

    def __init__(self, file: BinaryIO | Any) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._sha256.update(data)
        self.size += len(data)
        self._file.write(data)
        return len(data)

    def digest(self) -> str:
        return "sha256:" + self._sha256.hexdigest()


def files(contents: Mapping[str, bytes]) -> Callable[[tarfile.TarFile], None]:
    """For :meth:`Layout.put_layer`: these files, owned by root, mode 0644."""

    def write(tar: tarfile.TarFile) -> None:
        for name, data in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))

    return write


def filler(directory: str, size: int, *, file_size: int = 16 << 20) -> Callable[[tarfile.TarFile], None]:
    """For :meth:`Layout.put_layer`: ``size`` random bytes in files of ``file_size``; they do not compress.

    All files but for their beginnings have the same bytes: making others would take as long as all the rest.
    """

    def write(tar: tarfile.TarFile) -> None:
        block = os.urandom(min(size, file_size))
        for number, start in enumerate(range(0, size, file_size)):
            entry = tarfile.TarInfo(f"{directory}/{number}.bin")
            entry.size = min(file_size, size - start)
            tar.addfile(entry, io.BytesIO((os.urandom(64) + block[64:])[: entry.size]))

    return write


def files_of_layer(layout: Layout, digest: str) -> dict[str, bytes]:
    """The contents of a layer's regular files."""
    with tarfile.open(layout.path(digest)) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile()}  # type: ignore[union-attr]
