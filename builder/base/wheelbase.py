"""A small base image that holds SGLang's sources as the real images do, made from a release wheel.

It is for trying the tool out and for its tests: nothing in it runs. The same wheel gives the same digest on
every machine. Sources lie where the images of ``lmsysorg/sglang`` have them, found through the ``.pth``
file of an editable install; ``/usr/bin/python3.12`` is a stub that makes the layout recognisable as Ubuntu's.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from pathlib import Path

from packaging.utils import canonicalize_name

from builder.errors import ImageMismatch, InvalidInput
from builder.oci.append import new_index, timestamp
from builder.oci.layer import (
    LayerDirectory,
    LayerEntry,
    LayerFile,
    LayerLink,
    gzip_stored,
    layer_media_type,
    parent_directories,
    tar_end,
    tar_header,
    tar_padding,
    tar_stream,
)
from builder.oci.model import (
    DOCKER_CONFIG,
    DOCKER_MANIFEST,
    OCI_CONFIG,
    OCI_MANIFEST,
    Descriptor,
    ImageSink,
    Platform,
    RawManifest,
    canonical_json,
    sha256_digest,
)
from builder.source.wheel import WheelFile, read_wheel

FAMILIES = {"oci": (OCI_MANIFEST, OCI_CONFIG), "docker": (DOCKER_MANIFEST, DOCKER_CONFIG)}

_TREE = "sgl-workspace/sglang/python"
_PACKAGES = "usr/local/lib/python3.12/dist-packages"
_STUB = b"This file stands for a Python interpreter, and runs nothing. See `overlay base wheel`.\n"
_CREATED = 1_767_225_600  # 2026-01-01: a base has a time of its own, not the clock's
_PIECE = 1 << 20


@dataclass(frozen=True)
class Filler:
    """Random bytes that give a base the weight of a real one: ``size`` bytes, over ``layers`` layers."""

    size: int
    layers: int = 4
    seed: int = 0


@dataclass(frozen=True)
class WheelBase:
    """What was written: the manifest to name as base (an index for several platforms) and its images."""

    manifest: RawManifest
    images: tuple[Descriptor, ...]
    version: str


@dataclass(frozen=True)
class _Blob:
    """A layer that is made anew each time it is read, so that a big one never lies in memory."""

    descriptor: Descriptor
    diff_id: str
    chunks: Callable[[], Iterator[bytes]] = field(repr=False)


class _MadeLayers:
    """The layers as an :class:`~builder.oci.model.ImageSource`, for sinks that copy by streams."""

    name = "the layers made from the wheel"

    def __init__(self, blobs: Iterable[_Blob]) -> None:
        self._blobs = {blob.descriptor.digest: blob for blob in blobs}

    def get_manifest(self, identifier: str) -> RawManifest:
        raise ImageMismatch("no manifest is kept here", where=self.name, found=identifier)

    def read_blob(self, descriptor: Descriptor, *, limit: int = 64 << 20) -> bytes:
        if descriptor.size > limit:
            raise ImageMismatch(
                "a blob is too big to hold", where=descriptor.digest, expected=f"<= {limit} bytes"
            )
        return b"".join(self._blobs[descriptor.digest].chunks())

    def open_blob(self, descriptor: Descriptor) -> AbstractContextManager[Iterator[bytes]]:
        return _opened(self._blobs[descriptor.digest])


@contextmanager
def _opened(blob: _Blob) -> Iterator[Iterator[bytes]]:
    yield blob.chunks()


def write_wheel_base(
    wheel: Path,
    sink: ImageSink,
    *,
    platforms: Iterable[Platform],
    family: str = "oci",
    filler: Filler | None = None,
    tag: str | None = None,
) -> WheelBase:
    """Make the base image of ``wheel`` and write it to ``sink``.

    Args:
        wheel: a wheel of SGLang. Compiled extensions in it are for one platform, and are left out.
        sink: a registry's repository or an OCI layout.
        platforms: one image for each; all share their layers.
        family: ``oci`` or ``docker``, the family of media types.
        filler: weight to add, for measuring.
        tag: a name for the manifest in the sink.

    Raises:
        InvalidInput: the wheel is none, is not SGLang's, or is larger than a wheel of SGLang can be.
    """
    if family not in FAMILIES:
        raise InvalidInput("not a family of media types", expected=" or ".join(FAMILIES), found=family)
    manifest_type, config_type = FAMILIES[family]
    media_type = layer_media_type(manifest_type)
    sources = read_sources(wheel)
    blobs = [
        _made(media_type, lambda: tar_stream(_system_entries(sources), mtime=_CREATED)),
        _made(media_type, lambda: tar_stream(_source_entries(sources), mtime=_CREATED)),
        *(_made(media_type, _filler_tar(filler, number)) for number in range(filler.layers if filler else 0)),
    ]
    made = _MadeLayers(blobs)
    for blob in blobs:
        sink.copy_blob(made, blob.descriptor)
    chosen = sorted(set(platforms), key=str)
    images = []
    for platform in chosen:
        config = canonical_json(_config(platform, sources.version, blobs))
        descriptor = Descriptor(config_type, sha256_digest(config), len(config))
        sink.put_blob(descriptor, config)
        manifest = _manifest(manifest_type, descriptor, blobs)
        sink.put_manifest(manifest, tag=tag if len(chosen) == 1 else None)
        images.append(Descriptor(manifest_type, manifest.digest, len(manifest.data), platform))
    if len(images) != 1:
        manifest = new_index(images)
        sink.put_manifest(manifest, tag=tag)
    return WheelBase(manifest, tuple(images), sources.version)


@dataclass(frozen=True)
class Sources:
    """What a wheel of SGLang holds: its version, metadata, and ``sglang/…`` files."""

    version: str
    metadata: bytes = field(repr=False)
    files: tuple[WheelFile, ...] = field(repr=False)


def read_sources(wheel: Path) -> Sources:
    """The sources in a wheel, without compiled extensions.

    Raises:
        InvalidInput: as :func:`write_wheel_base` says.
    """
    metadata, *files = read_wheel(wheel, "sglang")
    headers = BytesHeaderParser().parsebytes(metadata.data)
    name, version = str(headers.get("Name", "")), str(headers.get("Version", ""))
    if canonicalize_name(name) != "sglang" or not re.fullmatch(r"[A-Za-z0-9.!+]+", version):
        raise InvalidInput(
            "not a wheel of SGLang",
            where=str(wheel),
            expected="Name: sglang",
            found=f"{name} {version}".strip(),
        )
    return Sources(version, metadata.data, tuple(files))


def _system_entries(sources: Sources) -> list[LayerEntry]:
    """What says to a reader of the image which Python it has, and where SGLang is installed."""
    info = f"{_PACKAGES}/sglang-{sources.version}.dist-info"
    url = canonical_json({"dir_info": {"editable": True}, "url": f"file:///{_TREE}"})
    return _with_parents(
        LayerFile("usr/bin/python3.12", _STUB, mode=0o755),
        LayerLink("usr/bin/python3", "python3.12"),
        LayerFile("usr/lib/python3.12/os.py", b"# The file by which Python knows its library.\n"),
        LayerDirectory("usr/lib/python3/dist-packages"),
        LayerFile(f"{_PACKAGES}/__editable__.sglang-{sources.version}.pth", f"/{_TREE}\n".encode()),
        LayerFile(f"{info}/METADATA", sources.metadata),
        LayerFile(f"{info}/direct_url.json", url),
    )


def _source_entries(sources: Sources) -> list[LayerEntry]:
    return _with_parents(
        *(
            LayerFile(f"{_TREE}/{file.path}", file.data, 0o755 if file.is_executable else 0o644)
            for file in sources.files
        )
    )


def _with_parents(*entries: LayerEntry) -> list[LayerEntry]:
    named = {entry.path for entry in entries}
    parents = parent_directories(named)
    return [*entries, *(LayerDirectory(parent) for parent in parents if parent not in named)]


def _filler_tar(filler: Filler | None, number: int) -> Callable[[], Iterator[bytes]]:
    """One layer of random bytes: incompressible, so that stored blocks are what any gzip would make of it."""

    def chunks() -> Iterator[bytes]:
        if filler is None:
            return
        size = filler.size // filler.layers + (filler.size % filler.layers if number == 0 else 0)
        pool = _random_pieces(f"{filler.seed}/{number}")
        header = tar_header(
            f"opt/filler/{number:03}.bin", kind=b"0", mode=0o644, uid=0, gid=0, mtime=_CREATED, size=size
        )
        yield header
        for start in range(0, size, _PIECE):
            piece = b"%016x" % start + pool[start // _PIECE % len(pool)][16:]
            yield piece[: size - start]
        yield tar_padding(size)
        yield tar_end(len(header) + size + len(tar_padding(size)))

    return chunks


def _random_pieces(seed: str) -> list[bytes]:
    """Pieces to be repeated: farther apart than any deflate window reaches, and cheap to make."""
    generator = random.Random(seed)  # noqa: S311 (weight, not a secret)
    return [generator.randbytes(_PIECE) for _ in range(8)]


def _made(media_type: str, tar: Callable[[], Iterator[bytes]]) -> _Blob:
    """The blob of a tar: made once here to learn its digests, and again whenever it is read."""
    inner, outer, size = hashlib.sha256(), hashlib.sha256(), 0

    def seen(chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            inner.update(chunk)
            yield chunk

    for chunk in gzip_stored(seen(tar())):
        outer.update(chunk)
        size += len(chunk)
    descriptor = Descriptor(media_type, "sha256:" + outer.hexdigest(), size)
    return _Blob(descriptor, "sha256:" + inner.hexdigest(), lambda: gzip_stored(tar()))


def _config(platform: Platform, version: str, blobs: Iterable[_Blob]) -> dict[str, object]:
    blobs = list(blobs)
    settings = {
        "Env": [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND=noninteractive",
            "PYTHONUNBUFFERED=1",
        ],
        "Cmd": ["python3"],
        "WorkingDir": f"/{_TREE.removesuffix('/python')}",
        "Labels": {"org.opencontainers.image.version": version},
    }
    return {
        "architecture": platform.architecture,
        "os": platform.os,
        **({"variant": platform.variant} if platform.variant else {}),
        "created": timestamp(_CREATED),
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [blob.diff_id for blob in blobs]},
        "history": [
            {"created": timestamp(_CREATED), "created_by": f"overlay base wheel sglang=={version}"}
            for _ in blobs
        ],
    }


def _manifest(media_type: str, config: Descriptor, blobs: Iterable[_Blob]) -> RawManifest:
    value = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": config.as_json(),
        "layers": [blob.descriptor.as_json() for blob in blobs],
    }
    return RawManifest(media_type, canonical_json(value))
