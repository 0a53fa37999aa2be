"""A layer's bytes depend on nothing but what is asked for."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import py_compile
import random
import subprocess
import sys
import tarfile
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import InvalidInput
from builder.oci.layer import (
    LayerDirectory,
    LayerFile,
    LayerLink,
    Whiteout,
    build_layer,
    gzip_stored,
    layer_media_type,
    parent_directories,
    tar_stream,
)
from builder.oci.model import DOCKER_LAYER_GZIP, DOCKER_MANIFEST, OCI_INDEX, OCI_LAYER_GZIP, OCI_MANIFEST

SAMPLE = [
    LayerDirectory("srv"),
    LayerDirectory("srv/app", mode=0o2775, uid=1000, gid=1001, mtime=1_600_000_000),
    LayerFile("srv/app/demo.py", b"def f():\n    return 3\n", mode=0o640, uid=1000, gid=1001),
    LayerFile("srv/app/__pycache__/demo.cpython-312.pyc", b""),
    LayerFile("srv/app/" + "d" * 120 + "/größe.py", b"x = 1\n", uid=3_000_000),
    LayerLink("srv/app/current", "demo.py"),
    Whiteout("srv/app/old.py"),
]


def read(tar: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return {member.name: member for member in archive}


def test_layer_bytes_are_the_ones_they_always_were() -> None:
    layer = build_layer(SAMPLE, mtime=1_700_000_000, media_type=OCI_LAYER_GZIP)
    assert (layer.diff_id, layer.descriptor.digest) == (
        "sha256:9c987aa590d27dad49e08ef04c4d501a4dd26d3616c27f80771c747184d74249",
        "sha256:7f407f461ecbd3eb38cc69b521b7f24f32a4aaf09eef93361ba149154bd91e43",
    )


def test_order_of_the_request_does_not_matter() -> None:
    shuffled = random.Random(7).sample(SAMPLE, len(SAMPLE))
    one, other = (build_layer(e, mtime=5, media_type=OCI_LAYER_GZIP) for e in (SAMPLE, shuffled))
    assert one == other
    assert one.data == other.data


def test_modes_owners_and_times_are_the_ones_asked_for() -> None:
    layer = build_layer(SAMPLE, mtime=1_700_000_000, media_type=OCI_LAYER_GZIP)
    tar = gzip.decompress(layer.data)
    members = read(tar)
    demo, app = members["srv/app/demo.py"], members["srv/app"]
    assert (demo.mode, demo.uid, demo.gid, demo.mtime) == (0o640, 1000, 1001, 1_700_000_000)
    assert (app.mode, app.uid, app.gid, app.mtime, app.isdir()) == (0o2775, 1000, 1001, 1_600_000_000, True)
    assert members["srv/app/" + "d" * 120 + "/größe.py"].uid == 3_000_000
    assert members["srv/app/.wh.old.py"].size == 0
    assert members["srv/app/current"].linkname == "demo.py"
    assert {(m.uname, m.gname) for m in members.values()} == {("", "")}
    assert layer.diff_id == "sha256:" + hashlib.sha256(tar).hexdigest()
    assert layer.descriptor.size == len(layer.data)


def test_parents_come_before_their_children() -> None:
    members = list(read(b"".join(tar_stream([*SAMPLE, LayerFile("srv-a", b"")], mtime=0))))
    assert (
        members.index("srv")
        < members.index("srv/app")
        < members.index("srv/app/demo.py")
        < members.index("srv-a")
    )


names = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=130
).filter(lambda name: name not in (".", "..") and not name.startswith(".wh."))


@given(
    st.dictionaries(names, st.binary(max_size=1500), max_size=8),
    st.integers(0, 0o7777),
    st.integers(0, 2**32),
    st.integers(0, 2**40),
)
def test_tarfile_reads_back_what_was_written(
    files: dict[str, bytes], mode: int, owner: int, mtime: int
) -> None:
    entries = [LayerFile(name, data, mode, owner, owner + 1) for name, data in files.items()]
    with tarfile.open(fileobj=io.BytesIO(b"".join(tar_stream(entries, mtime=mtime)))) as archive:
        found = {}
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            assert (member.mode, member.uid, member.gid, member.mtime) == (mode, owner, owner + 1, mtime)
            found[member.name] = content.read()
    # tarfile strips what it takes for a directory's slash only; names cannot hold one here
    assert found == files


@given(st.lists(st.binary(max_size=70_000), max_size=6))
def test_stored_gzip_is_gzip_however_the_input_is_cut(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    packed = b"".join(gzip_stored(chunks))
    assert gzip.decompress(packed) == whole
    assert packed == b"".join(gzip_stored([whole]))


@pytest.mark.parametrize("size", [0, 65_534, 65_535, 65_536, 131_070, 131_071])
def test_stored_blocks_at_their_borders(size: int) -> None:
    data = random.Random(size).randbytes(size)
    packed = b"".join(gzip_stored([data]))
    assert gzip.decompress(packed) == data
    assert len(packed) == size + 18 + 5 * max(1, -(-size // 65_535))


@pytest.mark.parametrize("path", ["../x", "a/../b", "a//b", "a/./b", "", "/", "a\0b", "a/"])
def test_paths_that_unpackers_read_differently_are_refused(path: str) -> None:
    with pytest.raises(InvalidInput):
        b"".join(tar_stream([LayerFile(path, b"")], mtime=0))


def test_a_file_that_would_be_a_whiteout_is_refused() -> None:
    with pytest.raises(InvalidInput, match="whiteout"):
        b"".join(tar_stream([LayerFile("a/.wh.b", b"")], mtime=0))


def test_one_path_twice_is_refused_however_it_is_written() -> None:
    with pytest.raises(InvalidInput, match="twice") as caught:
        b"".join(tar_stream([LayerFile("a/b", b"1"), LayerFile("/a/b", b"2")], mtime=0))
    assert caught.value.where == "a/b"


def test_a_path_below_a_file_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not a directory") as caught:
        b"".join(tar_stream([LayerFile("a", b"1"), LayerFile("a/b", b"2")], mtime=0))
    assert caught.value.where == "a"


def test_parent_directories_are_named_once_and_topmost_first() -> None:
    assert parent_directories(["/a/b/c.py", "a/b-x/d.py", "e"]) == ["a", "a/b", "a/b-x"]


def test_empty_bytecode_makes_python_run_the_patched_source(tmp_path: Path) -> None:
    """The stale kinds: unchecked hash, and compiled from a source of the same size and time."""
    source = tmp_path / "demo.py"
    kinds = py_compile.PycInvalidationMode
    bytecode = Path(cache_from_source(str(source)))
    for mode in (kinds.UNCHECKED_HASH, kinds.TIMESTAMP):
        source.write_text("print('old')\n")
        os.utime(source, (1_700_000_000, 1_700_000_000))
        py_compile.compile(str(source), cfile=str(bytecode), invalidation_mode=mode, doraise=True)
        source.write_text("print('new')\n")
        os.utime(source, (1_700_000_000, 1_700_000_000))
        assert imported(source) == "old"  # what happens without it
        bytecode.write_bytes(b"")
        assert imported(source) == "new"


def imported(source: Path) -> str:
    command = [sys.executable, "-B", "-c", f"import {source.stem}"]
    environment = {"PYTHONPATH": str(source.parent)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return done.stdout.strip()


def test_layer_media_type_follows_the_family() -> None:
    assert layer_media_type(DOCKER_MANIFEST) == DOCKER_LAYER_GZIP
    assert layer_media_type(OCI_MANIFEST) == OCI_LAYER_GZIP
    with pytest.raises(InvalidInput):
        layer_media_type(OCI_INDEX)
