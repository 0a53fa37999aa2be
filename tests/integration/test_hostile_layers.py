"""A base whose blobs are not what its config says: the same answer cold and warm, with and without a lock."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.projects.history import P0_BEFORE
from tests.projects.image import NAME, SYSTEM, TREE, ImageProject, digest_of, layer

OTHER = P0_BEFORE.replace(b"a = 1", b"a = 9")
WAYS = ["cold", "warm", "lock", "warm and lock"]


@pytest.fixture
def world(tmp_path: Path) -> ImageProject:
    """A world that was built once on a sound base: its cache is warm, and its lock is written."""
    world = ImageProject.create(tmp_path)
    world.overlay(*world.build(world.base().reference, "--complete")).check()
    return world


def prepared(world: ImageProject, way: str) -> None:
    if "warm" not in way:
        shutil.rmtree(world.cache / "layers")
    if "lock" not in way:
        world.lock.unlink()


def pretending(world: ImageProject) -> str:
    """A base that has the sound one's diff IDs, and another file in its second layer's blob."""
    sound = world.base("sound")
    layout = world.base("pretending")
    system, right = layer(SYSTEM), layer({f"{TREE}/sglang/demo.py": P0_BEFORE})
    wrong = layer({f"{TREE}/sglang/demo.py": OTHER})
    layout.put_image([system, (wrong[0], right[1])])
    assert sound.entry() != layout.entry()
    return layout.reference


def build(world: ImageProject, base: str, *more: str) -> Run:
    return world.overlay(*world.build(base, *more, to="second"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("more", [(), ("--check",)])
def test_a_blob_that_nobody_read_is_read_whatever_its_diff_id(
    world: ImageProject, way: str, more: tuple[str, ...]
) -> None:
    base = pretending(world)
    prepared(world, way)
    refused = build(world, base, *more).check(5)
    assert "not the one that the image's config names" in refused.err


@pytest.mark.parametrize("way", WAYS)
def test_facts_copied_under_the_digest_of_another_base_are_not_believed(
    world: ImageProject, way: str
) -> None:
    base = pretending(world)
    lock = json.loads(world.lock.read_text())
    (facts,) = lock["bases"].values()
    lock["bases"][base.partition("@")[2]] = facts
    world.lock.write_text(json.dumps(lock))
    prepared(world, way)
    build(world, base).check(5)


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_of_the_image_that_was_replaced_deviates(world: ImageProject, way: str) -> None:
    """An image whose own layer is another blob under the diff ID of the right one."""
    out = world.directory / "out"
    entry = json.loads((out / "index.json").read_text())["manifests"][0]

    def blob(digest: str) -> Path:
        return out / "blobs" / digest.replace(":", "/")

    world.overlay("verify", f"oci:{out}:new", "--base", f"oci:{world.directory}/base:latest").check()
    manifest = json.loads(blob(entry["digest"]).read_bytes())
    evil, _ = layer({"usr/lib/python3.12/sitecustomize.py": b"import evil\n"})
    blob(digest_of(evil)).write_bytes(evil)
    manifest["layers"][-1] |= {"digest": digest_of(evil), "size": len(evil)}
    data = json.dumps(manifest).encode()
    blob(digest_of(data)).write_bytes(data)
    index = {"schemaVersion": 2, "manifests": [{**entry, "digest": digest_of(data), "size": len(data)}]}
    (out / "index.json").write_text(json.dumps(index))
    prepared(world, way)
    refused = world.overlay("verify", f"oci:{out}:new").check(5)
    assert "not the one that the image's config names" in refused.err


def test_a_lock_of_before_is_verified_anew_and_completed(world: ImageProject) -> None:
    """What an older tool wrote does not say which blobs were read."""
    lock = json.loads(world.lock.read_text())
    for facts in lock["bases"].values():
        del facts["layers"]
    world.lock.write_text(json.dumps(lock))
    base = f"oci:{world.directory}/base@{next(iter(lock['bases']))}"
    world.overlay("build", NAME, "--base", base, "--output", f"oci:{world.directory}/again:new").check()
    assert all(facts["layers"] for facts in json.loads(world.lock.read_text())["bases"].values())
