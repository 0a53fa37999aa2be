"""A patch of which nothing is applied is never in an image: a rule skips it, or it is an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.errors import InvalidInput
from builder.patch.patch import parse_patch
from builder.patch.series import check_reaches, rule_for
from builder.record.manifest import read_manifest
from tests.projects.history import DEMO
from tests.projects.image import ImageProject, patch

KERNEL = "sgl-kernel/csrc/attention.cu"


@pytest.fixture
def world(tmp_path: Path) -> ImageProject:
    """An overlay with a patch more, which lies wholly in sgl-kernel/."""
    world = ImageProject.create(tmp_path)
    series = world.root / "patches/one"
    (series / "kernel.patch").write_bytes(patch(b"a\nb\nc\n", b"a\nB\nc\n", KERNEL))
    (series / "series").write_text("p0.patch\nkernel.patch\n")
    return world


def drop(world: ImageProject, *rules: str) -> None:
    text = world.spec.read_text()
    world.spec.write_text(text.replace("{series: one}", f"{{series: one, drop: {json.dumps(rules)}}}"))


def test_a_patch_outside_of_the_package_is_refused_where_no_rule_drops_it(world: ImageProject) -> None:
    ran = world.overlay(*world.build(world.base().reference), "--json")
    error = json.loads(ran.out)["error"] if ran.out else json.loads(ran.err)
    assert ran.code == 1
    assert error["where"] == "kernel.patch"
    assert error["found"] == KERNEL
    assert "sgl-kernel/*" in error["hint"]


def test_a_patch_that_rules_drop_whole_is_skipped_and_said_to_be(world: ImageProject) -> None:
    drop(world, "test/*", "sgl-kernel/*")
    reason = "skipped: patches.drop leaves out all of its files (sgl-kernel/*)"
    ran = world.overlay(*world.build(world.base().reference))
    assert ran.code == 0, ran.err
    assert reason in " ".join(ran.out.split())
    shown = world.overlay("show", "demo")
    assert f"kernel: {reason}" in shown.out
    (skipped,) = json.loads(world.overlay("show", "demo", "--json").out)["skipped"]
    assert (skipped["name"], skipped["dropped"]) == ("kernel", [{"path": KERNEL, "rule": "sgl-kernel/*"}])


def test_the_manifest_has_no_patch_without_files_and_lists_the_skipped(world: ImageProject) -> None:
    drop(world, "sgl-kernel/*")
    ran = world.overlay(*world.build(world.base().reference), "--json")
    (image,) = json.loads(ran.out)["images"]
    assert [one["name"] for one in image["manifest"]["patches"]] == ["p0"]
    (skipped,) = image["manifest"]["skipped"]
    assert (skipped["name"], skipped["dropped"]) == ("kernel", [{"path": KERNEL, "rule": "sgl-kernel/*"}])
    assert read_manifest(json.dumps(image["manifest"]).encode(), where="x").skipped[0].name == "kernel"


def test_the_image_is_what_it_is_without_the_skipped_patch_but_for_the_record_of_it(
    world: ImageProject,
) -> None:
    base = world.base().reference
    drop(world, "sgl-kernel/*")
    (with_it,) = json.loads(world.overlay(*world.build(base), "--json").out)["images"]
    (world.root / "patches/one/series").write_text("p0.patch\n")
    (without,) = json.loads(world.overlay(*world.build(base, to="two"), "--json").out)["images"]
    assert "skipped" not in without["manifest"]
    del with_it["manifest"]["skipped"]
    assert with_it["manifest"] == without["manifest"]


def test_an_overlay_of_skipped_patches_alone_has_nothing_to_build(world: ImageProject) -> None:
    drop(world, "sgl-kernel/*", "python/*")
    ran = world.overlay(*world.build(world.base().reference))
    assert ran.code == 1
    assert "kernel skipped: patches.drop leaves out all of its files" in " ".join(ran.err.split())


@pytest.mark.parametrize("blank", [b"\n", b"\n\n"])
def test_a_blank_line_at_the_end_of_a_patch_builds_the_same_image(tmp_path: Path, blank: bytes) -> None:
    world = ImageProject.create(tmp_path)
    base = world.base().reference
    path = world.root / "patches/one/p0.patch"
    clean = json.loads(world.overlay(*world.build(base), "--json").out)["images"][0]["manifest"]
    path.write_bytes(path.read_bytes() + blank)
    ran = world.overlay(*world.build(base, to="two"), "--json")
    assert ran.code == 0, ran.err
    built = json.loads(ran.out)["images"][0]["manifest"]
    assert built["patched_tree"] == clean["patched_tree"]


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("sgl-kernel/csrc/x.cu", "sgl-kernel/*"),
        # a rule for all beside these would drop every patch of the package
        ("python/pyproject.toml", "python/pyproject.toml"),
        ("README.md", "README.md"),
    ],
)
def test_the_hint_to_drop_a_patch_drops_it_and_no_other(path: str, rule: str) -> None:
    other = parse_patch("other", patch(b"a\n", b"b\n", path))
    with pytest.raises(InvalidInput) as caught:
        check_reaches([other], ["python/sglang"])
    assert f"add {rule} to" in str(caught.value.hint)
    assert rule_for(path, [rule]) == rule
    assert rule_for(DEMO, [rule]) is None
