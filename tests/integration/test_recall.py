"""A build of the same inputs is not made twice, and one of other inputs always is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.build import reuse as module
from builder.build.reuse import BuildKey, store_build, take_snapshot
from builder.project.cache import LARGEST, Store
from builder.project.project import find_root
from tests.conftest import Run
from tests.projects.image import NAME, ImageProject


class Built:
    """A world in which an overlay was built, and in which none can be any more: its upstream is gone.

    What still comes out was recalled; what has to be built ends with exit 8.
    """

    def __init__(self, directory: Path, *more: object) -> None:
        self.world = ImageProject.create_apart(directory)
        self.base = self.world.base()
        self.digest = self.build(*more).check().json["digest"]
        for entry in self.world.cache.iterdir():
            if entry.name != "built":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self.world.upstream.rename(directory / "gone")

    def build(self, *more: object, to: str = "out") -> Run:
        return self.world.overlay(*self.world.build(self.base.reference, "--json", *more, to=to))

    @property
    def kept(self) -> Path:
        (path,) = (self.world.cache / "built").iterdir()
        return path

    def bring_back(self) -> None:
        (self.world.directory / "gone").rename(self.world.upstream)


def test_the_same_inputs_need_no_second_build(tmp_path: Path) -> None:
    built = Built(tmp_path)
    first = tmp_path / "out" / "index.json"
    again = built.build(to="again").check()
    assert again.json["digest"] == built.digest
    assert json.loads(first.read_bytes()) == json.loads((tmp_path / "again/index.json").read_bytes())
    assert {path.name for path in (tmp_path / "again/blobs/sha256").iterdir()} == {
        path.name for path in (tmp_path / "out/blobs/sha256").iterdir()
    }
    assert again.json["lock"] == str(built.world.lock)


def test_what_is_said_is_the_same(tmp_path: Path) -> None:
    world = ImageProject.create_apart(tmp_path)
    base = world.base().reference
    runs = [world.overlay(*world.build(base, "--json")).check() for _ in range(2)]
    assert [run.json["recalled"] for run in runs] == [False, True]
    assert runs[0].json | {"recalled": True} == runs[1].json
    again = world.overlay(*world.build(base)).check().out
    lock = world.lock.read_bytes()
    world.lock.unlink()
    first = world.overlay(*world.build(base)).check().out
    assert lock == world.lock.read_bytes()
    assert "defect → fixed" in first
    said = [line for line in again.splitlines() if not line.startswith("built ")]
    assert said == first.splitlines() != again.splitlines()


def append_to(path: Callable[[ImageProject], Path]) -> Callable[[ImageProject], None]:
    def change(world: ImageProject) -> None:
        with path(world).open("a") as file:
            file.write("\n# changed\n")

    return change


def change_lock(change: Callable[[dict[str, dict[str, object]]], object]) -> Callable[[ImageProject], None]:
    def rewrite(world: ImageProject) -> None:
        value = json.loads(world.lock.read_bytes())
        change(value)
        world.lock.write_text(json.dumps(value))

    return rewrite


def widen_a_mode(lock: dict[str, dict[str, object]]) -> None:
    (facts,) = lock["bases"].values()
    assert isinstance(facts, dict)
    next(iter(facts["files"].values()))["mode"] = "0777"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(append_to(lambda world: world.spec), id="spec"),
        pytest.param(append_to(lambda world: world.root / "patches/one/series"), id="series"),
        pytest.param(append_to(lambda world: world.root / "patches/one/p0.patch"), id="patch"),
        pytest.param(append_to(lambda world: world.root / "patches/probes/p0.py"), id="probe"),
        pytest.param(lambda world: (world.root / "patches/probes/p0.py").unlink(), id="probe gone"),
        pytest.param(append_to(lambda world: world.root / "Dockerfile.in"), id="template"),
        pytest.param(lambda world: world.lock.unlink(), id="no lock"),
        pytest.param(change_lock(widen_a_mode), id="facts of the base"),
        pytest.param(change_lock(lambda lock: lock.update(bases={})), id="base not verified"),
        pytest.param(change_lock(lambda lock: lock.update(images={})), id="image not recorded"),
        pytest.param(change_lock(lambda lock: lock.pop("inputs")), id="inputs not recorded"),
        pytest.param(change_lock(lambda lock: lock.update(pins={"x": {}})), id="pins"),
    ],
)
def test_other_inputs_are_built(
    tmp_path: Path, change: Callable[[ImageProject], None], request: pytest.FixtureRequest
) -> None:
    built = Built(tmp_path)
    change(built.world)
    # The patch with a line behind it is no longer a patch; all else could be built, were there an upstream.
    built.build(to="again").check(1 if request.node.callspec.id == "patch" else 8)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("words", [["--check"], ["--locked"], ["--source", "repository"], ["--dry-run"]])
def test_questions_about_a_build_are_answered_by_building(tmp_path: Path, words: list[str]) -> None:
    built = Built(tmp_path)
    built.build(*words, to="again").check(8)


def test_another_time_is_built(tmp_path: Path) -> None:
    built = Built(tmp_path)
    built.world.overlay = type(built.world.overlay)(
        built.world.overlay.program,
        built.world.overlay.directory,
        {**built.world.overlay.environment, "SOURCE_DATE_EPOCH": "1"},
    )
    built.build(to="again").check(8)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[:-1], id="truncated"),
        pytest.param(lambda data: data[:-1] + bytes([data[-1] ^ 1]), id="a bit"),
        pytest.param(lambda data: data[:65] + b"[]\n", id="another document"),
    ],
)
def test_a_damaged_one_is_built_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    built = Built(tmp_path)
    sound = built.kept.read_bytes()
    built.kept.write_bytes(damage(sound))
    built.build(to="again").check(8)
    built.bring_back()
    assert built.build(to="again").check().json["digest"] == built.digest
    assert built.kept.read_bytes() == sound


@pytest.mark.parametrize("data", [b"", b"[]\n", module._pack({"files": "x"}, [])])
def test_one_of_another_shape_is_built_again(tmp_path: Path, data: bytes) -> None:
    built = Built(tmp_path)
    Store(built.kept.parent).put(built.kept.name, data)
    built.build(to="again").check(8)


def test_one_that_cannot_be_kept_is_delivered(tmp_path: Path) -> None:
    world = ImageProject.create_apart(tmp_path)
    base = world.base().reference
    (world.cache / "built").write_text("in the way")
    run = world.overlay(*world.build(base)).check()
    assert "not kept" in run.err
    assert (tmp_path / "out").is_dir()


def test_attestations_are_recalled_where_they_were_made(tmp_path: Path) -> None:
    built = Built(tmp_path)
    built.build("--attest", tmp_path / "none").check(8)
    built.bring_back()
    built.build("--attest", tmp_path / "one").check()
    built.world.upstream.rename(tmp_path / "gone")
    shutil.rmtree(built.world.cache / "series.git")
    built.build("--attest", tmp_path / "two").check()
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert len(names) == 4
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_file_that_changes_during_the_build_keeps_nothing(tmp_path: Path) -> None:
    built = Built(tmp_path)
    key = BuildKey(find_root(built.world.root), NAME, None, ())
    snapshot = take_snapshot(key)
    assert snapshot
    finished = module.from_parts(*_parts(built.kept))
    append_to(lambda world: world.root / "patches/one/series")(built.world)
    store_build(snapshot, tmp_path / "other", module.Lock(), finished)
    assert not (tmp_path / "other").exists()
    snapshot = take_snapshot(key)
    assert snapshot
    store_build(snapshot, tmp_path / "other", module.Lock(), finished)
    assert len(list((tmp_path / "other/built").iterdir())) == 1


def _parts(path: Path) -> tuple[dict[str, object], list[bytes]]:
    head, blobs = module._unpack(Store(path.parent).get(path.name) or b"")
    return head["build"], blobs


def test_another_program_is_another_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = ImageProject.create_apart(tmp_path)
    key = BuildKey(find_root(world.root), NAME, None, ())
    before = key.read_files("one")
    assert key.read_files("one") == before
    monkeypatch.setattr(module, "_PROGRAM", "another")
    assert key.read_files("one") != before


def test_a_program_is_another_by_name_size_and_time(tmp_path: Path) -> None:
    source = tmp_path / "image" / "layer.py"
    source.parent.mkdir()
    source.write_text("one")
    (tmp_path / "image" / "__pycache__").mkdir()
    stamps = [module.program_stamp(tmp_path)]
    (tmp_path / "image" / "__pycache__" / "layer.pyc").write_text("no source")
    assert module.program_stamp(tmp_path) == stamps[0]
    was = source.stat()
    source.write_text("two")
    os.utime(source, ns=(was.st_atime_ns, was.st_mtime_ns))  # as copies do that store_build times
    stamps.append(module.program_stamp(tmp_path))
    source.write_text("three")
    stamps.append(module.program_stamp(tmp_path))
    source.rename(source.with_name("layers.py"))
    stamps.append(module.program_stamp(tmp_path))
    assert len(set(stamps)) == 4


@pytest.mark.parametrize("what", ["fifo", "link to zeros", "directory", "too large"])
def test_what_is_no_kept_build_is_not_read(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = Built(tmp_path)
    place = built.kept
    if what == "too large":
        with place.open("r+b") as file:
            file.truncate(LARGEST + 1000)
    else:
        place.unlink()
    if what == "fifo":
        os.mkfifo(place)
    elif what == "link to zeros":
        place.symlink_to("/dev/zero")
    elif what == "directory":
        place.mkdir()
    built.build(to="again").check(8)


def test_a_root_whose_name_is_no_text(tmp_path: Path) -> None:
    world = ImageProject.create_apart(tmp_path)
    odd = tmp_path / os.fsdecode(b"odd \xff")
    shutil.copytree(world.root, odd)
    words = world.build(world.base().reference, "--json", "--root", odd)
    assert [world.overlay(*words).check().json["recalled"] for _ in range(2)] == [False, True]


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    built = Built(tmp_path)
    built.bring_back()
    gone = tmp_path / "gone"
    words = built.world.build(built.base.reference, "--root", built.world.root, "--json", to="third")
    for _ in range(2):
        gone.mkdir()
        done = subprocess.run(
            ["sh", "-c", f'cd {gone} && rmdir {gone} && exec "$@"', "sh", built.world.overlay.program]
            + [str(word) for word in words],
            env=built.world.overlay.environment,
            capture_output=True,
            check=False,
        )
        assert json.loads(done.stdout)["digest"] == built.digest, done.stderr


def test_a_patch_that_became_a_link_is_another_input(tmp_path: Path) -> None:
    built = Built(tmp_path)
    patch = built.world.root / "patches/one/p0.patch"
    patch.rename(tmp_path / "elsewhere.patch")
    patch.symlink_to(tmp_path / "elsewhere.patch")
    assert "outside its series" in built.build(to="again").check(1).err


def test_a_changed_build_names_what_was_before_and_which_tag_moved(tmp_path: Path) -> None:
    world = ImageProject.create_apart(tmp_path)
    base = world.base().reference
    first = world.overlay(*world.build(base, "--json")).check().json
    assert (first["before"], first["moved"]) == ({}, {})
    append_to(lambda world: world.spec)(world)
    world.spec.write_text(world.spec.read_text().replace("a demo", "another demo"))
    run = world.overlay(*world.build(base)).check()
    assert f"before    {first['digest']} (linux/amd64)" in run.out
    assert f"which was {first['digest']}" in run.out
    same = world.overlay(*world.build(base, "--json")).check().json
    assert (same["before"], same["moved"], same["recalled"]) == ({}, {}, True)
