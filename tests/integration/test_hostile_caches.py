"""Whatever was done to the cache: the next build gives the same digest, or says which file and what to do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.probe.cached import Memory
from builder.probe.harness import Answer
from builder.probe.trees import MappingTree
from builder.source.git import GitStore
from tests.projects.image import ImageProject


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImageProject, str, str]:
    """A world that was built once: it, its base, its digest. The filled cache is kept beside it."""
    world = ImageProject.create_cold(tmp_path_factory.mktemp("world"))
    base = world.base().reference
    digest = world.overlay(*world.build(base, "--json")).check().json["digest"]
    world.lock.unlink()
    shutil.copytree(world.cache, world.directory / "sound")
    return world, base, digest


def overwrite(pattern: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(cache: Path) -> None:
        files = [path for path in cache.glob(pattern) if path.is_file()]
        assert files
        for path in files:
            path.chmod(0o644)
            path.write_bytes(change(path.read_bytes()))

    return damage


def remove(pattern: str) -> Callable[[Path], None]:
    def damage(cache: Path) -> None:
        found = list(cache.glob(pattern))
        assert found
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    return damage


def put_directories(pattern: str) -> Callable[[Path], None]:
    def damage(cache: Path) -> None:
        found = [path for path in cache.glob(pattern) if path.is_file() or path.is_symlink()]
        assert found
        for path in found:
            path.unlink()
            path.mkdir()
            (path / "more").write_text("")

    return damage


def put_file(name: str) -> Callable[[Path], None]:
    def damage(cache: Path) -> None:
        (found,) = cache.glob(name)
        shutil.rmtree(found)
        found.write_text("")

    return damage


HEALED: dict[str, Callable[[Path], None]] = {
    "indexes cut": overwrite("layers/*", lambda data: data[:100]),
    "indexes of random bytes": overwrite("layers/*", lambda _: os.urandom(5000)),
    "directories in place of indexes": put_directories("layers/*"),
    "directories in place of builds": put_directories("built/*"),
    "directories in place of answers": put_directories("probes/*"),
    "directories in place of git's opinions": put_directories("*.git/opinions/*"),
    "directories in place of locks": put_directories("*.lock"),
    "directories in place of all that is not a store": put_directories("[!rsw]*/**/*"),
    "a directory in place of a store": put_directories("series.git/HEAD"),
    "answers of another shape": overwrite("probes/*", lambda _: b'{"state":"fixed","evidence":"","pins":5}'),
    "a store with its objects cut": overwrite("repository-*.git/objects/**/*", lambda data: data[:10]),
    "a store without its objects": remove("repository-*.git/objects"),
    "a store without its packs": remove("repository-*.git/objects/pack/*"),
    "a store with a broken configuration": overwrite("repository-*.git/config", lambda _: b"[core\n"),
    "a store that is a file": put_file("repository-*.git"),
    "series without HEAD": remove("series.git/HEAD"),
    "every file emptied": overwrite("**/*", lambda _: b""),
}


@pytest.mark.parametrize("what", HEALED)
def test_a_damaged_cache_is_made_again(what: str, built: tuple[ImageProject, str, str]) -> None:
    world, base, digest = built
    shutil.rmtree(world.cache)
    shutil.copytree(world.directory / "sound", world.cache)
    HEALED[what](world.cache)
    done = world.overlay(*world.build(base, "--json")).check()
    world.lock.unlink()
    assert done.json["digest"] == digest


def test_what_cannot_be_made_again_is_named(built: tuple[ImageProject, str, str]) -> None:
    world, base, _ = built
    shutil.rmtree(world.cache)
    shutil.copytree(world.directory / "sound", world.cache)
    put_file("layers")(world.cache)
    error = world.overlay(*world.build(base, "--json")).check(8).json["error"]
    assert error["where"] == str(world.cache / "layers")
    assert "overlay cache prune" in error["hint"]


@pytest.mark.parametrize("record", [b"", b"{", b"[" * 100_000, b"[]", b'[["fixed","x",[],""]]'])
def test_an_answer_of_another_shape_is_asked_for_again(record: bytes, tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.put(b"probe", "tree", Answer("fixed", "x", ()))
    (path,) = tmp_path.iterdir()
    assert memory.get(b"probe", "tree") == Answer("fixed", "x", ())
    path.write_bytes(record)
    assert memory.get(b"probe", "tree") is None


def test_an_altered_answer_or_one_of_another_tree_is_asked_for_again(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.put(b"probe", "one", Answer("defect", "x", ()), {("contains", "nothing"): "False"})
    entries = {path: path.read_bytes() for path in tmp_path.iterdir()}
    memory.put(b"probe", "two", Answer("fixed", "x", ()))
    (two,) = set(tmp_path.iterdir()) - entries.keys()
    for path, data in entries.items():
        path.write_bytes(data.replace(b"defect", b"fixed"))
    assert memory.get(b"probe", "one") is None
    assert memory.recognize(b"probe", MappingTree({})) is None
    for path in entries:
        path.write_bytes(two.read_bytes())
    assert memory.get(b"probe", "one") is None
    assert memory.recognize(b"probe", MappingTree({})) is None
    for path, data in entries.items():
        path.write_bytes(data)
    assert memory.get(b"probe", "one") == memory.recognize(b"probe", MappingTree({})) == Answer("defect", "x")


def test_a_sound_store_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    store = GitStore.create(tmp_path / "store.git")
    assert not store.is_damaged()
    (blob,) = store.write_blobs([b"kept"])
    assert not store.is_damaged()
    assert GitStore.create(store.path).blobs([blob]) == {blob: b"kept"}


def test_a_partial_clone_with_blobs_left_out_is_sound(built: tuple[ImageProject, str, str]) -> None:
    world, _, _ = built
    (path,) = (world.directory / "sound").glob("repository-*.git")
    assert not GitStore(path).is_damaged()
