"""A base image made from a wheel: the same digest everywhere, sources where the real images have them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from builder.base.wheelbase import Filler, read_sources, write_wheel_base
from builder.errors import InvalidInput
from builder.oci.append import base_config, base_layers, diff_ids
from builder.oci.model import (
    DOCKER_CONFIG,
    DOCKER_LAYER_GZIP,
    DOCKER_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    ImageSource,
    Platform,
    RawManifest,
    sha256_digest,
)

AMD64, ARM64 = Platform.parse("linux/amd64"), Platform.parse("linux/arm64")
METADATA = b"Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.20\n\nServes models.\n"
FILES = {
    "sglang/__init__.py": b"__version__ = '0.5.20'\n",
    "sglang/srt/server.py": b"x = 1\n",
    "sglang/srt/_ext.cpython-311-x86_64-linux-gnu.so": b"\x7fELF",
    "sglang-0.5.20.dist-info/METADATA": METADATA,
    "sglang-0.5.20.dist-info/RECORD": b"",
}

SOURCE = {"sglang/__init__.py": b""}


class Memory:
    """A sink that keeps everything, and refuses what is not as its descriptor says."""

    name = "memory"

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, RawManifest] = {}

    def put_blob(self, descriptor: Descriptor, data: bytes) -> None:
        assert (descriptor.digest, descriptor.size) == (sha256_digest(data), len(data))
        self.blobs[descriptor.digest] = data

    def copy_blob(self, source: ImageSource, descriptor: Descriptor) -> None:
        with source.open_blob(descriptor) as chunks:
            self.put_blob(descriptor, b"".join(chunks))

    def put_manifest(self, manifest: RawManifest, *, tag: str | None = None) -> Descriptor:
        if not manifest.is_index:
            assert {base_config(manifest).digest, *(d.digest for d in base_layers(manifest))} <= set(
                self.blobs
            )
        self.manifests[manifest.digest] = manifest
        if tag is not None:
            self.manifests[tag] = manifest
        return Descriptor(manifest.media_type, manifest.digest, len(manifest.data))

    def members(self, manifest: RawManifest) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
        """All files of an image; every layer must be what its diff ID says."""
        found = {}
        ids = diff_ids(self.blobs[base_config(manifest).digest])
        for descriptor, diff_id in zip(base_layers(manifest), ids, strict=True):
            tar = gzip.decompress(self.blobs[descriptor.digest])
            assert diff_id == "sha256:" + hashlib.sha256(tar).hexdigest()
            with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
                for member in archive:
                    content = archive.extractfile(member) if member.isreg() else None
                    found[member.name] = (member, content.read() if content else b"")
        return found


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return a_wheel(tmp_path / "sglang-0.5.20-py3-none-any.whl", FILES)


def a_wheel(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def test_sources_lie_in_an_editable_tree_that_a_pth_names(wheel: Path) -> None:
    sink = Memory()
    base = write_wheel_base(wheel, sink, platforms=[AMD64])
    members = sink.members(base.manifest)
    tree = "sgl-workspace/sglang/python"
    assert members[f"{tree}/sglang/srt/server.py"][1] == b"x = 1\n"
    packages = "usr/local/lib/python3.12/dist-packages"
    assert members[f"{packages}/__editable__.sglang-0.5.20.pth"][1] == f"/{tree}\n".encode()
    assert members[f"{packages}/sglang-0.5.20.dist-info/METADATA"][1] == METADATA
    assert members["usr/bin/python3"][0].linkname == "python3.12"
    assert members["usr/bin/python3.12"][0].mode == 0o755
    assert not [name for name in members if name.endswith(".so")]
    assert base.version == "0.5.20"


def test_every_directory_is_written_before_what_it_holds(wheel: Path) -> None:
    sink = Memory()
    seen = set()
    for name, (member, _) in sink.members(write_wheel_base(wheel, sink, platforms=[AMD64]).manifest).items():
        parent = name.rpartition("/")[0]
        assert not parent or parent in seen
        if member.isdir():
            seen.add(name)


def test_one_wheel_gives_one_digest(wheel: Path, tmp_path: Path) -> None:
    renamed = a_wheel(tmp_path / "other-name.whl", dict(reversed(FILES.items())))
    bases = [
        write_wheel_base(path, Memory(), platforms=[ARM64, AMD64], filler=Filler(100_001, 3))
        for path in (wheel, renamed)
    ]
    assert bases[0].manifest == bases[1].manifest


def test_several_platforms_share_layers_under_one_index(wheel: Path) -> None:
    sink = Memory()
    base = write_wheel_base(wheel, sink, platforms=[ARM64, AMD64], tag="v0.5.20")
    assert base.manifest.media_type == OCI_INDEX
    assert sink.manifests["v0.5.20"] == base.manifest
    assert [image.platform for image in base.images] == [AMD64, ARM64]
    manifests = [sink.manifests[image.digest] for image in base.images]
    assert base_layers(manifests[0]) == base_layers(manifests[1])
    configs = [json.loads(sink.blobs[base_config(manifest).digest]) for manifest in manifests]
    assert [config["architecture"] for config in configs] == ["amd64", "arm64"]


def test_one_platform_is_an_image_of_its_own(wheel: Path) -> None:
    base = write_wheel_base(wheel, Memory(), platforms=[ARM64], tag="x")
    assert base.manifest.media_type == OCI_MANIFEST
    assert [image.digest for image in base.images] == [base.manifest.digest]


def test_docker_family_uses_docker_media_types_throughout(wheel: Path) -> None:
    base = write_wheel_base(wheel, Memory(), platforms=[AMD64], family="docker")
    assert base.manifest.media_type == DOCKER_MANIFEST
    assert base_config(base.manifest).media_type == DOCKER_CONFIG
    assert {layer.media_type for layer in base_layers(base.manifest)} == {DOCKER_LAYER_GZIP}


def test_filler_weighs_what_was_asked_for_and_does_not_compress(wheel: Path) -> None:
    sink = Memory()
    base = write_wheel_base(wheel, sink, platforms=[AMD64], filler=Filler(5_000_003, 2))
    fillers = [m for m, _ in sink.members(base.manifest).values() if m.name.startswith("opt/filler/")]
    assert [m.size for m in fillers] == [2_500_002, 2_500_001]
    content = b"".join(data for m, data in sink.members(base.manifest).values() if m in fillers)
    other = [d for m, d in sink.members(base.manifest).values() if m.name.startswith("opt/filler/")]
    assert len(gzip.compress(b"".join(other) + content, 9)) > 5_000_003


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, "0 of them"),
        ({**FILES, "other-1.dist-info/METADATA": METADATA}, "2 of them"),
        ({**SOURCE, "torch-2.dist-info/METADATA": b"Name: torch\nVersion: 2\n\n"}, "torch 2"),
        ({**SOURCE, "sglang-1.dist-info/METADATA": b"Name: sglang\nVersion: ../../x\n\n"}, "sglang ../../x"),
    ],
)
def test_what_is_no_wheel_of_sglang_is_refused(tmp_path: Path, files: dict[str, bytes], found: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_sources(a_wheel(tmp_path / "x.whl", files))
    assert caught.value.found == found


def test_a_member_that_leaves_the_tree_is_refused(tmp_path: Path) -> None:
    path = a_wheel(tmp_path / "x.whl", {**FILES, "sglang/../../../etc/passwd": b"root"})
    with pytest.raises(InvalidInput, match="outside its package"):
        write_wheel_base(path, Memory(), platforms=[AMD64])


def test_a_file_that_is_no_zip_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(b"not a zip")
    with pytest.raises(InvalidInput) as caught:
        read_sources(path)
    assert caught.value.where == str(path)


def test_a_damaged_member_is_refused(wheel: Path) -> None:
    data = bytearray(wheel.read_bytes())
    start = data.index(b"sglang/srt/server.py") + len("sglang/srt/server.py")
    data[start] ^= 0xFF
    wheel.write_bytes(data)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_sources(wheel)


def test_an_unknown_family_is_refused(wheel: Path) -> None:
    with pytest.raises(InvalidInput, match="family"):
        write_wheel_base(wheel, Memory(), platforms=[AMD64], family="rkt")
