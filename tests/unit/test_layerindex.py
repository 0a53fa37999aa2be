"""A layer is read once, as a stream, however it is compressed and whoever made it; its index is kept."""

from __future__ import annotations

import gzip
import hashlib
import io
import multiprocessing
import sqlite3
import subprocess
import sys
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import ImageMismatch
from builder.oci import inflate as inflate_module
from builder.oci.inflate import inflate
from builder.oci.layer import LayerFile, tar_stream
from builder.oci.layer_index import LayerIndex, cached_index, index_layer, read_files
from builder.oci.model import DOCKER_LAYER_GZIP, OCI_LAYER, OCI_LAYER_GZIP, Descriptor, sha256_digest
from builder.oci.tarwalk import Kind, Limits
from tests.examples import examples


def cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def described(blob: bytes, media_type: str = OCI_LAYER_GZIP) -> Descriptor:
    return Descriptor(media_type, sha256_digest(blob), len(blob))


def index(tar: bytes, cache: Path, *, blob: bytes | None = None, limits: Limits | None = None) -> LayerIndex:
    blob = tar if blob is None else blob
    diff_id = sha256_digest(tar)
    return index_layer(cut(blob, 997), described(blob), cache_dir=cache, diff_id=diff_id, limits=limits)


def a_tar(*members: tuple[tarfile.TarInfo, bytes], tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tar_format) as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def member(name: str, data: bytes = b"", **attributes: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, data


TEXT = b"".join(b"line %d\n" % (n * n) for n in range(50_000))
SIMPLE = a_tar(member("a/b.py", TEXT, mode=0o4640, uid=5, gid=6, mtime=1234), member("a/c", b"c"))
SKIPPABLE = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda tar: tar,
    "gzip": lambda tar: gzip.compress(tar, 6),
    "gzip in members": lambda tar: b"".join(gzip.compress(part) for part in (tar[:999], b"", tar[999:])),
    "zstd": lambda tar: zstandard.compress(tar),
    "zstd in frames": lambda tar: zstandard.compress(tar[:999]) + SKIPPABLE + zstandard.compress(tar[999:]),
    "zstd after a skippable frame": lambda tar: SKIPPABLE + zstandard.compress(tar),
}


@pytest.fixture(params=["isal", "zlib"])
def inflater(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both inflaters: a machine without isal must give the same answers and the same errors."""
    if request.param == "zlib":
        monkeypatch.setattr(inflate_module, "_zlib", lambda: zlib)
    else:
        pytest.importorskip("isal", reason="isal has no wheel for this machine")
    return str(request.param)


@pytest.mark.usefixtures("inflater")
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("chunk", [1, 997, 1 << 20])
def test_every_compression_gives_the_tar_in_any_chunks(compression: str, chunk: int) -> None:
    tar = SIMPLE[:20_000] if chunk == 1 else SIMPLE
    blob = COMPRESSIONS[compression](tar)
    assert b"".join(inflate(cut(blob, chunk), described(blob), limit=1 << 30)) == tar


@pytest.mark.usefixtures("inflater")
@pytest.mark.parametrize(
    "damage",
    [
        lambda blob: blob[:-1],
        lambda blob: blob[: len(blob) // 2],
        lambda blob: blob[:2],
        lambda blob: blob + b"rubbish",
        lambda blob: blob[:-8] + b"1234" + blob[-4:],
        lambda blob: blob[:500] + b"\xff\x00\xff" + blob[503:],
    ],
)
def test_damaged_gzip_is_refused(damage: Callable[[bytes], bytes]) -> None:
    blob = damage(gzip.compress(SIMPLE))
    with pytest.raises(ImageMismatch, match="decompressed") as caught:
        list(inflate(cut(blob, 997), described(blob), limit=1 << 30))
    assert described(blob).digest in str(caught.value.where)


def test_damaged_zstd_is_refused(tmp_path: Path) -> None:
    whole = zstandard.ZstdCompressor(write_checksum=True).compress(SIMPLE)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for blob in (bytes(flipped), whole[:-5] + b"abcde", whole[: len(whole) // 2]):
        with pytest.raises(ImageMismatch):
            index(SIMPLE, tmp_path, blob=blob)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("inflater")
@pytest.mark.parametrize("compress", [lambda data: gzip.compress(data, 9), zstandard.compress])
def test_a_bomb_comes_in_small_pieces_and_is_stopped(compress: Callable[[bytes], bytes]) -> None:
    blob = compress(bytes(64 << 20))
    pieces = inflate(iter([blob]), described(blob), limit=8 << 20)
    sizes = [len(piece) for _, piece in zip(range(8), pieces, strict=False)]
    assert sizes == [1 << 20] * 8
    with pytest.raises(ImageMismatch, match="larger than allowed"):
        next(pieces)


@pytest.mark.usefixtures("inflater")
@pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 << 20])
@pytest.mark.parametrize("cut_off", [0, 1, 4, 8, 9, 12])
def test_no_byte_is_lost_where_pieces_and_chunks_end(size: int, cut_off: int) -> None:
    blob = gzip.compress(bytes(size), 9)
    chunks = iter([blob[: len(blob) - cut_off], blob[len(blob) - cut_off :]])
    assert b"".join(inflate(chunks, described(blob), limit=1 << 30)) == bytes(size)


def test_media_type_that_is_no_layer_is_refused() -> None:
    descriptor = Descriptor("application/vnd.oci.image.layer.v1.tar+encrypted", "sha256:0", 1)
    with pytest.raises(ImageMismatch, match="not a layer"):
        inflate(iter([SIMPLE]), descriptor, limit=1)


def test_first_bytes_and_not_the_media_type_tell_the_compression(tmp_path: Path) -> None:
    for media_type in (OCI_LAYER_GZIP, DOCKER_LAYER_GZIP):
        assert b"".join(inflate(iter([SIMPLE]), described(SIMPLE, media_type), limit=1 << 30)) == SIMPLE


def test_index_holds_what_the_tar_says(tmp_path: Path) -> None:
    found = index(SIMPLE, tmp_path, blob=gzip.compress(SIMPLE))
    entry = found.get("a/b.py")
    assert entry is not None
    assert (entry.kind, entry.mode, entry.uid, entry.gid, entry.size, entry.mtime) == (
        Kind.FILE, 0o4640, 5, 6, len(TEXT), 1234,
    )  # fmt: skip
    assert entry.blob == hashlib.sha1(b"blob %d\0" % len(TEXT) + TEXT).hexdigest()
    assert entry.sha256 == hashlib.sha256(TEXT).hexdigest()
    assert entry.data is None
    assert found.children("a") == ["b.py", "c"]
    directory = found.get("a")
    assert directory is not None
    assert directory.implied
    assert found.get("a/x") is None


def test_large_files_are_listed_and_not_hashed(tmp_path: Path) -> None:
    found = index(a_tar(member("big", bytes((4 << 20) + 1)), member("edge", bytes(4 << 20))), tmp_path)
    big, edge = found.get("big"), found.get("edge")
    assert big is not None
    assert edge is not None
    assert (big.size, big.sha256, big.blob) == ((4 << 20) + 1, None, None)
    assert edge.sha256 == hashlib.sha256(bytes(4 << 20)).hexdigest()


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("d/x.pth", True),
        ("v/pyvenv.cfg", True),
        ("d/x-1.dist-info/direct_url.json", True),
        ("d/x-1.dist-info/METADATA", True),
        ("d/x.egg-info/PKG-INFO", True),
        ("d/__editable___x_finder.py", True),
        ("d/METADATA", False),
        ("d/x.py", False),
    ],
)
def test_bytes_are_kept_of_what_says_where_python_imports_from(tmp_path: Path, name: str, kept: bool) -> None:
    data = b"0123456789" * 10_000
    entry = index(a_tar(member(name, data)), tmp_path).get(name)
    assert entry is not None
    assert entry.data == (data[: 64 << 10] if kept else None)


LONG = "d" * 90 + "/" + "e" * 90 + "/" + "f" * 90


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_targets_and_big_numbers(tmp_path: Path, tar_format: int) -> None:
    tar = a_tar(
        member(LONG, b"x", uid=2**31, mtime=2**34),
        member("ü/" + LONG, b"y"),
        member("link", type=tarfile.SYMTYPE, linkname="../" + LONG),
        member("hard", type=tarfile.LNKTYPE, linkname=LONG),
        tar_format=tar_format,
    )
    found = index(tar, tmp_path)
    entry, link, hard = found.get(LONG), found.get("link"), found.get("hard")
    assert entry is not None
    assert link is not None
    assert hard is not None
    assert (entry.uid, entry.mtime) == (2**31, 2**34)
    assert link.link == "../" + LONG
    assert (hard.kind, hard.stored, hard.sha256) == (Kind.FILE, LONG, entry.sha256)
    assert found.get("ü/" + LONG) is not None


def test_ustar_prefix_belongs_to_the_name(tmp_path: Path) -> None:
    found = index(a_tar(member(LONG[:150], b"x"), tar_format=tarfile.USTAR_FORMAT), tmp_path)
    assert found.get(LONG[:150]) is not None


def test_names_that_are_no_utf8_are_kept_apart(tmp_path: Path) -> None:
    tar = a_tar(member("a\udcff", b"1"), member("a\udcfe", b"2"), tar_format=tarfile.GNU_FORMAT)
    found = index(tar, tmp_path)
    assert found.children("") == ["a\udcfe", "a\udcff"]
    assert found.get("a\udcff").sha256 == hashlib.sha256(b"1").hexdigest()  # type: ignore[union-attr]


def test_times_where_gnu_tar_keeps_them_are_no_part_of_the_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    command = ["tar", "-C", str(tmp_path), "--format=gnu", "--incremental", "-cf", "-", "a"]
    tar = subprocess.run(command, check=True, capture_output=True).stdout
    assert tar[345:357].strip(b"\0")  # the time of access, where POSIX has the prefix
    assert index(tar, tmp_path / "cache").children("") == ["a"]


@pytest.mark.parametrize("version", ["0.0", "0.1", "1.0", "gnu"])
def test_sparse_files_of_gnu_tar_have_their_real_size(tmp_path: Path, version: str) -> None:
    holes = tmp_path / "holes"
    with holes.open("wb") as stream:
        for block in range(0, 60, 2):  # enough islands for an old map that goes on in further blocks
            stream.seek(block * 65_536)
            stream.write(b"x" * 4096)
        stream.truncate(5 << 20)
    (tmp_path / "after").write_bytes(b"after")
    kind = ["--format=gnu"] if version == "gnu" else ["--format=posix", f"--sparse-version={version}"]
    command = ["tar", "-C", str(tmp_path), "-S", *kind, "-cf", "-", "holes", "after"]
    tar = subprocess.run(command, check=True, capture_output=True).stdout
    assert len(tar) < 1 << 20  # or it is not a sparse entry at all
    found = index(tar, tmp_path / "cache")
    entry, after = found.get("holes"), found.get("after")
    assert entry is not None
    assert after is not None
    assert (entry.size, entry.sha256) == (5 << 20, None)
    assert after.sha256 == hashlib.sha256(b"after").hexdigest()


def test_global_pax_headers_count_for_what_follows(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"uid": "77"}) as archive:
        archive.addfile(tarfile.TarInfo("a"))
    entry = index(out.getvalue(), tmp_path).get("a")
    assert entry is not None
    assert entry.uid == 77


@pytest.mark.parametrize(
    ("written", "meant"),
    [("/abs", "abs"), ("./a/./b", "a/b"), ("a//b/", "a/b"), ("a/x/../b", "a/b"), ("/./", "")],
)
def test_paths_are_made_relative_to_the_root(tmp_path: Path, written: str, meant: str) -> None:
    info = tarfile.TarInfo(written)
    info.type = tarfile.DIRTYPE
    entry = index(info.tobuf() + bytes(1024), tmp_path).get(meant)
    assert entry is not None
    assert not entry.implied


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/..", ".."])
def test_paths_outside_the_root_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ImageMismatch, match="outside its root") as caught:
        index(a_tar(member(path, b"x")), tmp_path)
    assert caught.value.found == path
    with pytest.raises(ImageMismatch, match="outside its root"):
        index(a_tar(member("l", type=tarfile.LNKTYPE, linkname=path)), tmp_path)


def patched_header(name: str, at: int, value: bytes) -> bytes:
    """A tar of one file whose header says something else, with a right checksum."""
    header = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    header[at : at + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


@pytest.mark.parametrize(
    ("tar", "match"),
    [
        (patched_header("a", 124, b"\xff" * 12), "negative"),
        (patched_header("a", 124, b"77777777777\0"), "ends early"),
        (patched_header("a", 124, b"\x80" + b"\xff" * 11), "too large"),
        (patched_header("a", 124, b"12x45678901\0"), "cannot be read"),
        (patched_header("a", 108, b"-0000001"), "cannot be read"),
        (patched_header("a", 156, b"Z"), "unknown kind"),
        (patched_header("a", 0, b"b")[:300], "ends early"),
        (b"\x01" * 1024, "not a tar"),
        (SIMPLE[:600], "ends early"),
        (SIMPLE[:512] + b"x" + SIMPLE[513:1024] + SIMPLE[:5000], "ends early"),
    ],
)
def test_headers_that_lie_are_refused(tmp_path: Path, tar: bytes, match: str) -> None:
    with pytest.raises(ImageMismatch, match=match):
        index(tar, tmp_path)
    assert list(tmp_path.iterdir()) == []


def extended(kind: bytes, data: bytes) -> bytes:
    info = tarfile.TarInfo("ext")
    info.type, info.size = kind, len(data)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)


@pytest.mark.parametrize(
    ("tar", "match"),
    [
        (extended(b"x", b"zz path=a\n"), "pax header"),
        (extended(b"x", b"99 path=a\n"), "pax header"),
        (extended(b"x", b"0 path=a\n"), "pax header"),
        (extended(b"x", b"8 =aaaa\n"), "pax header"),
        (extended(b"x", b"13 path=a\0bc\n") + tarfile.TarInfo("b").tobuf(), "not a path"),
        (extended(b"x", b"11 size=-1\n") + tarfile.TarInfo("b").tobuf(), "cannot be read"),
        (extended(b"x", b"13 path=../x\n") + tarfile.TarInfo("b").tobuf(), "outside"),
        (extended(b"L", b"a/" * 5000) + tarfile.TarInfo("b").tobuf(), "not a path"),
        (extended(b"K", b"a" * 5000) + member("b", type=tarfile.SYMTYPE)[0].tobuf(), "not a path"),
        (extended(b"x", b"9" * 2_000_000), "too long"),
    ],
)
def test_extended_headers_that_lie_are_refused(tmp_path: Path, tar: bytes, match: str) -> None:
    with pytest.raises(ImageMismatch, match=match):
        index(tar + bytes(1024), tmp_path)


@pytest.mark.parametrize(
    ("limits", "match"),
    [
        (Limits(entries=9), "too many entries"),
        (Limits(path=3), "not a path"),
        (Limits(unpacked=4096), "larger than allowed"),
        (Limits(held=500), "held in memory"),
    ],
)
def test_limits_hold(tmp_path: Path, limits: Limits, match: str) -> None:
    tar = a_tar(*(member(f"d{n}/f", b"x") for n in range(10)))
    index(tar, tmp_path / "fine", limits=Limits(entries=10, path=4, unpacked=1 << 20, held=5000))
    with pytest.raises(ImageMismatch, match=match):
        index(tar, tmp_path, limits=limits)


def test_pax_headers_cannot_fill_the_memory(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        for number in range(200):
            record = b" key%06d=" % number + b"x" * 99_985 + b"\n"
            yield extended(b"g" if number % 2 else b"x", b"%06d" % (len(record) + 6) + record)
        yield bytes(1024)

    tar = hashlib.sha256()
    for chunk in chunks():
        tar.update(chunk)
    tracemalloc.start()
    index_layer(chunks(), described(b""), cache_dir=tmp_path, diff_id="sha256:" + tar.hexdigest()).close()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 << 20


def test_replacing_directories_again_and_again_is_stopped(tmp_path: Path) -> None:
    tar = a_tar(*(member(name) for _ in range(1001) for name in ("a/b", "a")))
    with pytest.raises(ImageMismatch, match="replaced"):
        index(tar, tmp_path)


def test_blob_with_another_diff_id_is_refused_and_not_kept(tmp_path: Path) -> None:
    other = a_tar(member("a", b"other"))
    with pytest.raises(ImageMismatch, match="config names") as caught:
        index(SIMPLE, tmp_path, blob=gzip.compress(other))
    assert caught.value.expected == f"diff ID {sha256_digest(SIMPLE)}"
    assert caught.value.found == sha256_digest(other)
    assert list(tmp_path.iterdir()) == []


def test_blob_is_read_to_its_end_even_behind_the_tar(tmp_path: Path) -> None:
    """So that whoever checks the digest of what was read has seen all of it."""
    tar = SIMPLE + bytes(1 << 20)
    chunks = cut(tar, 997)
    index_layer(chunks, described(tar), cache_dir=tmp_path, diff_id=sha256_digest(tar))
    assert next(chunks, None) is None


@pytest.mark.usefixtures("inflater")
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_an_error_at_the_blobs_very_end_comes_through_and_nothing_is_kept(
    tmp_path: Path, compression: str
) -> None:
    """A blob's reader finds out that the digest is wrong only after the last byte."""
    blob = COMPRESSIONS[compression](SIMPLE)

    def chunks() -> Iterator[bytes]:
        yield blob
        raise ImageMismatch("the bytes differ from the digest")

    with pytest.raises(ImageMismatch, match="differ from the digest"):
        index_layer(chunks(), described(blob), cache_dir=tmp_path, diff_id=sha256_digest(SIMPLE))
    assert list(tmp_path.iterdir()) == []


def test_index_is_found_again_without_the_blob(tmp_path: Path) -> None:
    first = index(SIMPLE, tmp_path)
    again = cached_index(tmp_path, described(SIMPLE), sha256_digest(SIMPLE))
    assert again is not None
    assert again.get("a/b.py") == first.get("a/b.py")
    assert cached_index(tmp_path, described(SIMPLE), sha256_digest(b"another")) is None


def test_an_index_belongs_to_the_blob_it_was_made_of(tmp_path: Path) -> None:
    """A config can name any diff ID: only a blob that was read is known to hold what it names."""
    index(SIMPLE, tmp_path)
    assert cached_index(tmp_path, described(b"another blob"), sha256_digest(SIMPLE)) is None


def test_an_index_under_the_name_of_another_blob_is_made_again(tmp_path: Path) -> None:
    index(SIMPLE, tmp_path / "mine")
    other = gzip.compress(SIMPLE)
    index(SIMPLE, tmp_path / "other", blob=other)
    (mine,), (theirs,) = ((tmp_path / name).iterdir() for name in ("mine", "other"))
    key, file_hash = theirs.stem.split("-")[0], mine.stem.split("-")[1]
    theirs.unlink()
    mine.rename(theirs.parent / f"{key}-{file_hash}.layer")
    assert cached_index(tmp_path / "other", described(other), sha256_digest(SIMPLE)) is None


def foreign_database(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE entry (parent, name)")


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\xff" + path.read_bytes()[1:]),
        lambda path: path.write_bytes(path.read_bytes().replace(b"b.py", b"x.py")),
        foreign_database,
    ],
)
def test_damaged_index_is_made_again(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    index(SIMPLE, tmp_path).close()
    (path,) = tmp_path.iterdir()
    damage(path)
    assert cached_index(tmp_path, described(SIMPLE), sha256_digest(SIMPLE)) is None
    assert list(tmp_path.iterdir()) == []
    assert index(SIMPLE, tmp_path).get("a/b.py") is not None


def test_index_of_another_schema_is_made_again(tmp_path: Path) -> None:
    index(SIMPLE, tmp_path).close()
    (path,) = tmp_path.iterdir()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 0")
    connection.close()
    diff_id, _, _ = path.stem.rpartition("-")
    path.rename(tmp_path / f"{diff_id}-{hashlib.sha256(path.read_bytes()).hexdigest()}.layer")
    assert cached_index(tmp_path, described(SIMPLE), sha256_digest(SIMPLE)) is None


def _index_in_a_process(cache: str) -> str:
    found = index(SIMPLE, Path(cache), blob=gzip.compress(SIMPLE, mtime=0))
    entry = found.get("a/b.py")
    return entry.sha256 or "" if entry else ""


def test_processes_at_once_share_one_cache(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.map(_index_in_a_process, [str(tmp_path)] * 6)
    assert set(found) == {hashlib.sha256(TEXT).hexdigest()}
    assert [path.suffix for path in tmp_path.iterdir()] == [".layer"]


def test_temporary_of_a_killed_process_is_never_read(tmp_path: Path) -> None:
    script = (
        "import sys, os, signal; from pathlib import Path\n"
        "from builder.oci.layer_index import index_layer\n"
        "from builder.oci.model import *\n"
        "def chunks():\n"
        "    yield Path(sys.argv[1]).read_bytes()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "cache, layer = Path(sys.argv[2]), Descriptor(OCI_LAYER, 'x', 1)\n"
        "index_layer(chunks(), layer, cache_dir=cache, diff_id=sys.argv[3])\n"
    )
    (tmp_path / "tar").write_bytes(SIMPLE)
    cache, diff_id = tmp_path / "cache", sha256_digest(SIMPLE)
    killed = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "tar"), str(cache), diff_id],
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert killed.returncode == -9
    assert len(list(cache.iterdir())) == 1
    assert cached_index(cache, Descriptor(OCI_LAYER, "x", 1), diff_id) is None
    assert index(SIMPLE, cache).get("a/b.py") is not None


def test_what_a_killed_reader_left_is_swept(tmp_path: Path) -> None:
    left = tmp_path / "overlay-index-abcdefgh.held"
    left.mkdir()
    index(SIMPLE, tmp_path)
    assert not left.exists()


def test_files_are_read_by_a_second_pass(tmp_path: Path) -> None:
    tar = a_tar(
        member("a", b"first"),
        member("h", type=tarfile.LNKTYPE, linkname="a"),
        member("big", bytes(100)),
        member("a", b"last"),
    )
    blob = zstandard.compress(tar)
    read = read_files(cut(blob, 99), described(blob), {"a", "big", "missing"}, limit=50)
    assert read == {"a": b"last"}


names = st.sampled_from(["a", "b", "ü", "x" * 101, "d/a", "d/b", "d/e/" + "f" * 99, LONG])
files = st.dictionaries(names, st.binary(max_size=2000), max_size=6)


@settings(deadline=None, max_examples=examples(20))
@given(
    files,
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    st.sampled_from(sorted(COMPRESSIONS)),
    st.integers(1, 5000),
)
def test_any_tar_is_read_as_tarfile_reads_it(
    content: dict[str, bytes], tar_format: int, compression: str, chunk: int
) -> None:
    tar = a_tar(*(member(name, data) for name, data in content.items()), tar_format=tar_format)
    blob = COMPRESSIONS[compression](tar)
    with TemporaryDirectory() as cache:
        found = index_layer(
            cut(blob, chunk), described(blob), cache_dir=Path(cache), diff_id=sha256_digest(tar)
        )
        with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
            for info in archive:
                entry, stream = found.get(info.name), archive.extractfile(info)
                assert entry is not None
                assert stream is not None
                assert entry.sha256 == hashlib.sha256(stream.read()).hexdigest()
                assert (entry.size, entry.mode) == (info.size, info.mode)
        assert read_files(cut(blob, chunk), described(blob), list(content)) == content


@settings(deadline=None, max_examples=examples(20))
@given(st.binary(max_size=3000), st.integers(0, 2000), st.integers(0, 255))
def test_rubbish_is_an_error_and_never_a_crash(rubbish: bytes, at: int, byte: int) -> None:
    damaged = bytearray(b"".join(tar_stream([LayerFile("a", b"x" * 600), LayerFile(LONG, b"y")], mtime=1)))
    damaged[at] = byte
    for tar in (rubbish, bytes(damaged), bytes(damaged[:512]) + rubbish):
        with TemporaryDirectory() as cache, suppress(ImageMismatch):
            index(tar, Path(cache))
