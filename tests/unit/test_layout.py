"""A layout on disk gives only checked bytes, is never half written, and never leads out of itself."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from builder.errors import ImageMismatch, InvalidInput, OverlayError, Unavailable
from builder.oci import layout as layout_module
from builder.oci.layout import Layout, SparseLayout
from builder.oci.model import (
    DOCKER_MANIFEST,
    OCI_CONFIG,
    OCI_INDEX,
    OCI_LAYER,
    OCI_MANIFEST,
    Descriptor,
    RawManifest,
    canonical_json,
    sha256_digest,
)
from builder.oci.reference import LayoutReference, parse_layout_reference
from builder.oci.registry.client import Network
from builder.oci.registry.location import identifier_of, open_sink, open_source

CONFIG = b'{"architecture":"arm64","os":"linux"}'
LAYER = b"layer " * 1000


def blob(data: bytes, media_type: str = OCI_LAYER) -> Descriptor:
    return Descriptor(media_type, sha256_digest(data), len(data))


def image(layer: bytes = LAYER, **more: object) -> RawManifest:
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": blob(CONFIG, OCI_CONFIG).as_json(),
        "layers": [blob(layer).as_json()],
    }
    return RawManifest(OCI_MANIFEST, canonical_json(manifest | more))


def index_of(*manifests: RawManifest) -> RawManifest:
    children = [manifest.descriptor.as_json() for manifest in manifests]
    return RawManifest(
        OCI_INDEX, canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": children})
    )


def filled(path: Path, tag: str = "v1") -> Layout:
    layout = Layout(path)
    layout.put_blob(blob(CONFIG, OCI_CONFIG), CONFIG)
    layout.put_blob(blob(LAYER), LAYER)
    layout.put_manifest(image(), tag=tag)
    return layout


def blob_path(layout: Layout, digest: str) -> Path:
    return layout.path / "blobs" / "sha256" / digest.removeprefix("sha256:")


def everything(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_what_was_written_reads_back(tmp_path: Path) -> None:
    layout = filled(tmp_path / "out")
    again = Layout(tmp_path / "out")
    assert again.get_manifest("v1") == image()
    assert again.get_manifest(image().digest) == image()
    assert again.read_blob(blob(LAYER)) == LAYER
    assert again.list_tags() == ["v1"]
    assert layout.name == f"oci:{tmp_path / 'out'}"


def test_the_layout_holds_what_the_specification_names_and_nothing_else(tmp_path: Path) -> None:
    layout = filled(tmp_path / "out")
    files = everything(layout.path)
    digests = [blob(CONFIG).digest, blob(LAYER).digest, image().digest]
    assert set(files) == {"oci-layout", "index.json"} | {f"blobs/sha256/{d[7:]}" for d in digests}
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["digest"] == image().digest
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": "v1"}


def test_writing_twice_is_writing_once(tmp_path: Path) -> None:
    layout = filled(tmp_path / "out")
    layout.put_manifest(image(), tag="v2")
    before = everything(layout.path)
    filled(tmp_path / "out")
    assert everything(layout.path) == before


def test_a_tag_moves_and_the_others_stay(tmp_path: Path) -> None:
    layout = filled(tmp_path / "out")
    layout.put_manifest(image(), tag="other")
    moved = image(annotations={"a": "b"})
    layout.put_manifest(moved, tag="v1")
    assert layout.get_manifest("v1") == moved
    assert layout.get_manifest("other") == image()
    assert [entry.annotations for entry in layout.entries()] == [
        {layout_module.REF_NAME: "v1"},
        {layout_module.REF_NAME: "other"},
    ]


def test_what_others_wrote_into_the_index_is_kept(tmp_path: Path) -> None:
    layout = filled(tmp_path / "out")
    path = layout.path / "index.json"
    index = json.loads(path.read_bytes())
    index["annotations"] = {"org.example": "x"}
    index["manifests"][0]["annotations"]["org.example"] = "y"
    path.write_bytes(json.dumps(index).encode())
    layout.put_manifest(image(annotations={"a": "b"}), tag="v2")
    after = json.loads(path.read_bytes())
    assert after["annotations"] == {"org.example": "x"}
    assert after["manifests"][0] == index["manifests"][0]
    assert len(after["manifests"]) == 2


def test_wrong_bytes_are_refused(tmp_path: Path) -> None:
    layout = filled(tmp_path / "out")
    blob_path(layout, blob(LAYER).digest).write_bytes(b"evil  " * 1000)
    with pytest.raises(ImageMismatch, match="not what its digest says") as wrong:
        layout.read_blob(blob(LAYER))
    assert wrong.value.expected == blob(LAYER).digest
    assert wrong.value.found == sha256_digest(b"evil  " * 1000)


@pytest.mark.parametrize("data", [LAYER[:-1], LAYER + b"x", b""])
def test_a_blob_of_another_size_is_refused(tmp_path: Path, data: bytes) -> None:
    layout = filled(tmp_path / "out")
    blob_path(layout, blob(LAYER).digest).write_bytes(data)
    with pytest.raises(ImageMismatch), layout.open_blob(blob(LAYER)) as chunks:
        assert sum(map(len, chunks)) < len(LAYER)


def test_a_changed_manifest_is_refused(tmp_path: Path) -> None:
    layout = filled(tmp_path / "out")
    path = blob_path(layout, image().digest)
    path.write_bytes(path.read_bytes().replace(b"arm64", b"amd64").replace(b'"size":37', b'"size":38'))
    for identifier in ("v1", image().digest):
        with pytest.raises(ImageMismatch, match="not what its digest says"):
            layout.get_manifest(identifier)


def test_wrong_bytes_are_never_stored(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "out")
    with pytest.raises(ImageMismatch):
        layout.put_blob(blob(LAYER), LAYER + b"x")
    assert not layout.path.exists()


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "from"), filled(tmp_path / "to")
    other = blob(b"x" * 3_000_000)
    blob_path(source, other.digest).write_bytes(b"x" * 2_999_999 + b"y")
    before = everything(target.path)
    with pytest.raises(ImageMismatch):
        target.copy_blob(source, other)
    assert everything(target.path) == before


def test_a_half_written_blob_of_another_tool_is_replaced(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "from"), filled(tmp_path / "to")
    blob_path(target, blob(LAYER).digest).write_bytes(LAYER[:100])
    target.copy_blob(source, blob(LAYER))
    assert target.read_blob(blob(LAYER)) == LAYER


def test_a_copy_tells_its_progress(tmp_path: Path) -> None:
    source, target = Layout(tmp_path / "from"), Layout(tmp_path / "to")
    data = os.urandom(2_500_000)
    source.put_blob(blob(data), data)
    heard: list[int] = []
    target.copy_blob(source, blob(data), progress=heard.append)
    assert sum(heard) == len(data)
    assert len(heard) > 1


def test_a_complete_layout_wants_every_blob(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "out")
    layout.put_blob(blob(CONFIG, OCI_CONFIG), CONFIG)
    with pytest.raises(ImageMismatch, match="not in the layout") as missing:
        layout.put_manifest(image(), tag="v1")
    assert blob(LAYER).digest in str(missing.value.expected)
    assert layout.list_tags() == []


def test_a_sparse_layout_leaves_the_bases_layers_out(tmp_path: Path) -> None:
    source = filled(tmp_path / "base")
    layout = SparseLayout(tmp_path / "out")
    layout.put_blob(blob(CONFIG, OCI_CONFIG), CONFIG)
    layout.copy_blob(source, blob(LAYER))
    layout.put_manifest(image(), tag="v1")
    assert not layout.has_blob(blob(LAYER).digest)
    assert layout.get_manifest("v1") == image()
    with pytest.raises(ImageMismatch, match="not there") as missing:
        layout.read_blob(blob(LAYER))
    assert "sparse" in str(missing.value.hint)


def test_a_sparse_layout_still_wants_config_and_children(tmp_path: Path) -> None:
    layout = SparseLayout(tmp_path / "out")
    for manifest in (image(), index_of(image())):
        with pytest.raises(ImageMismatch, match="not in the layout"):
            layout.put_manifest(manifest, tag="v1")


def test_children_of_an_index_are_found_by_digest(tmp_path: Path) -> None:
    layout = filled(tmp_path / "out", tag="single")
    index = index_of(image())
    layout.put_manifest(index, tag="v1")
    assert layout.get_manifest("v1") == index
    assert layout.get_manifest(image().digest).media_type == OCI_MANIFEST


@pytest.mark.parametrize(
    ("given", "media_type"),
    [("index", OCI_INDEX), ("manifest", OCI_MANIFEST)],
)
def test_an_oci_manifest_need_not_name_its_own_type(tmp_path: Path, given: str, media_type: str) -> None:
    layout = filled(tmp_path / "out")
    document = {"index": json.loads(index_of(image()).data), "manifest": json.loads(image().data)}[given]
    del document["mediaType"]
    bare = RawManifest(media_type, canonical_json(document))
    layout.put_manifest(bare)
    assert layout.get_manifest(bare.digest) == bare


@pytest.mark.parametrize(
    "document",
    [
        {"schemaVersion": 2, "mediaType": OCI_INDEX, "config": {}, "layers": []},
        {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "manifests": []},
        {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "manifests": [], "layers": [], "config": {}},
        {"schemaVersion": 2, "manifests": [], "layers": [], "config": {}},
        {"schemaVersion": 1, "mediaType": OCI_MANIFEST, "config": {}, "layers": []},
        {"schemaVersion": 2, "mediaType": "text/html", "config": {}, "layers": []},
        {"schemaVersion": 2},
        [],
    ],
)
def test_what_two_readers_could_read_differently_is_refused(tmp_path: Path, document: object) -> None:
    layout = filled(tmp_path / "out")
    data = canonical_json(document)
    layout.put_blob(blob(data), data)
    with pytest.raises(ImageMismatch):
        layout.get_manifest(sha256_digest(data))


def test_a_type_in_the_index_that_the_manifest_contradicts_is_refused(tmp_path: Path) -> None:
    layout = filled(tmp_path / "out")
    path = layout.path / "index.json"
    path.write_text(path.read_text().replace(OCI_MANIFEST, DOCKER_MANIFEST))
    with pytest.raises(ImageMismatch, match="one type and given as another"):
        layout.get_manifest("v1")


def test_missing_tags_and_digests_say_which_tags_there_are(tmp_path: Path) -> None:
    layout = filled(tmp_path / "out")
    for identifier in ("v2", "sha256:" + "0" * 64):
        with pytest.raises(ImageMismatch) as missing:
            layout.get_manifest(identifier)
        assert "v1" in str(missing.value.hint)


def test_the_only_image_needs_no_tag(tmp_path: Path) -> None:
    layout = filled(tmp_path / "out")
    reference = parse_layout_reference(f"oci:{layout.path}")
    assert identifier_of(reference) == image().digest
    layout.put_manifest(image(), tag="another name of it")
    assert identifier_of(reference) == image().digest
    layout.put_manifest(image(annotations={"a": "b"}), tag="v2")
    with pytest.raises(ImageMismatch, match="which image"):
        identifier_of(reference)


def test_locations_open_what_they_name(tmp_path: Path) -> None:
    reference = LayoutReference(tmp_path / "out")
    with Network(warn=pytest.fail) as network:
        assert isinstance(open_sink(reference, network), SparseLayout)
        assert type(open_sink(reference, network, complete=True)) is Layout
        assert type(open_source(reference, network)) is Layout


# --- what a layout from a stranger may hold ---------------------------------------------------------------


def test_a_link_in_a_blobs_place_is_not_followed(tmp_path: Path) -> None:
    layout = filled(tmp_path / "out")
    secret = tmp_path / "secret"
    secret.write_bytes(LAYER)
    path = blob_path(layout, blob(LAYER).digest)
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(ImageMismatch, match="symbolic link"):
        layout.read_blob(blob(LAYER))


@pytest.mark.parametrize("name", ["blobs", "blobs/sha256"])
def test_a_link_in_a_directorys_place_is_neither_read_nor_written_through(tmp_path: Path, name: str) -> None:
    layout = filled(tmp_path / "out")
    outside = tmp_path / "outside"
    (layout.path / name).rename(outside)
    (layout.path / name).symlink_to(outside)
    before = everything(outside)
    with pytest.raises(ImageMismatch, match="symbolic link"):
        Layout(layout.path).read_blob(blob(LAYER))
    with pytest.raises(ImageMismatch, match="symbolic link"):
        Layout(layout.path).put_blob(blob(b"new"), b"new")
    assert everything(outside) == before


def test_a_linked_index_is_not_followed(tmp_path: Path) -> None:
    layout = filled(tmp_path / "out")
    index = layout.path / "index.json"
    index.rename(tmp_path / "elsewhere.json")
    index.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(ImageMismatch, match="symbolic link"):
        layout.get_manifest("v1")


def test_a_pipe_in_a_blobs_place_does_not_hang(tmp_path: Path) -> None:
    layout = filled(tmp_path / "out")
    path = blob_path(layout, blob(LAYER).digest)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ImageMismatch, match="not a regular file"):
        layout.read_blob(blob(LAYER))


@pytest.mark.parametrize(
    "digest", ["sha256:../../../etc/passwd", "sha256:" + "A" * 64, "../x", "", "sha512:" + "0" * 64]
)
def test_a_digest_that_is_a_path_is_refused(tmp_path: Path, digest: str) -> None:
    layout = filled(tmp_path / "out")
    with pytest.raises(OverlayError):
        layout.read_blob(Descriptor(OCI_LAYER, digest, 1))
    with pytest.raises(OverlayError):
        layout.put_blob(Descriptor(OCI_LAYER, digest, 1), b"x")


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"[]",
        b"{}",
        b'{"manifests": {}}',
        b'{"manifests": [{"digest": "sha256:../x", "mediaType": "a", "size": 1}]}',
        b'{"manifests": [{"digest": "sha256:' + b"0" * 64 + b'", "mediaType": "a", "size": -1}]}',
        b'{"manifests": [1]}',
        b"[" * 100_000,
        b" " * (5 << 20),
    ],
)
def test_a_damaged_index_is_an_error_that_names_it(tmp_path: Path, index: bytes) -> None:
    layout = filled(tmp_path / "out")
    (layout.path / "index.json").write_bytes(index)
    with pytest.raises(ImageMismatch) as damaged:
        layout.get_manifest("v1")
    assert "index.json" in str(damaged.value.where)


def test_a_manifest_larger_than_4_mib_is_refused(tmp_path: Path) -> None:
    layout = filled(tmp_path / "out")
    large = image(annotations={"x": "y" * (4 << 20)})
    layout.put_manifest(large, tag="large")
    with pytest.raises(ImageMismatch, match="larger"):
        layout.get_manifest("large")


@pytest.mark.parametrize("marker", [b'{"imageLayoutVersion":"2.0.0"}', b"{}", b"", None])
def test_a_layout_of_another_version_is_not_guessed_at(tmp_path: Path, marker: bytes | None) -> None:
    layout = filled(tmp_path / "out")
    (layout.path / "oci-layout").unlink()
    if marker is not None:
        (layout.path / "oci-layout").write_bytes(marker)
    with pytest.raises(ImageMismatch):
        layout.get_manifest("v1")


def test_a_directory_with_other_things_is_not_made_a_layout(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="neither empty nor"):
        Layout(tmp_path).put_blob(blob(LAYER), LAYER)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_no_layout_at_all_says_so(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ImageMismatch, match="not an OCI layout"):
            Layout(path).get_manifest("v1")


def test_a_path_that_cannot_be_a_directory_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((Unavailable, ImageMismatch)):
        Layout(tmp_path / "file").put_blob(blob(LAYER), LAYER)


# --- killed, and at once ----------------------------------------------------------------------------------


def test_files_of_killed_writers_are_removed_by_the_next(tmp_path: Path) -> None:
    layout = filled(tmp_path / "out")
    dead, alive = layout.path / ".partial-1-dead", layout.path / ".partial-2-alive"
    dead.write_bytes(b"half")
    with alive.open("xb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        filled(tmp_path / "out").put_blob(blob(b"new"), b"new")
    assert not dead.exists()
    assert alive.exists()


def test_a_layout_interrupted_while_it_was_made_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "out"
    for state in range(3):
        path.mkdir(exist_ok=True)
        (path / ".partial-1-a").write_bytes(b"half")
        if state > 0:
            (path / "blobs").mkdir()
        if state > 1:
            (path / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        assert filled(path).get_manifest("v1") == image()
        for file in sorted(path.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()


def _tag_many(path: Path, prefix: str) -> None:
    layout = filled(path, tag=f"{prefix}-0")
    for number in range(1, 15):
        layout.put_manifest(image(), tag=f"{prefix}-{number}")


def test_two_writers_at_once_lose_no_tag(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_tag_many, args=(tmp_path / "out", name)) for name in ("a", "b", "c")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    tags = Layout(tmp_path / "out").list_tags()
    assert tags == sorted(f"{name}-{number}" for name in "abc" for number in range(15))


def test_a_lock_that_is_held_for_long_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "LOCK_TIMEOUT", 0.1)
    layout = filled(tmp_path / "out")
    other = os.open(layout.path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(Unavailable, match="another process"):
        filled(tmp_path / "out", tag="v2")
    os.close(other)
