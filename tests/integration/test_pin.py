"""A tag becomes digests, once, and what happens to the tag afterwards is noticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.base.wheelbase import write_wheel_base
from builder.oci.model import Platform
from tests.conftest import Overlay
from tests.integration.bases import Base, changed_base
from tests.integration.conftest import Registry
from tests.integration.faulty import FaultyProxy, answer_with
from tests.integration.judge import OVERLAY
from tests.integration.layouts import INDEX, Layout


@pytest.fixture(scope="module")
def two_platforms(wheel: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """SGLang for two platforms, as a layout with one tag, `both`."""
    layout = Layout.create(tmp_path_factory.mktemp("pin") / "layout")
    platforms = [Platform("linux", "amd64"), Platform("linux", "arm64")]
    write_wheel_base(wheel("0.5.20"), layout, platforms=platforms, tag="both")
    return layout


@pytest.fixture
def pushed(two_platforms: Layout, skopeo: Callable[..., str], registry: Registry) -> str:
    target = f"{registry.repository('base')}:v1"
    skopeo("copy", "--all", f"oci:{two_platforms.directory}:both", f"docker://{target}")
    return target


def lock_of(overlay: Overlay) -> Any:
    return json.loads((overlay.directory / "overlays" / f"{OVERLAY}.lock").read_text())


def children(layout: Layout) -> dict[str, str]:
    index = json.loads(layout.read(layout.single()))
    return {f"linux/{entry['platform']['architecture']}": entry["digest"] for entry in index["manifests"]}


def set_base(overlay: Overlay, **base: Any) -> None:
    path = overlay.directory / "overlays" / f"{OVERLAY}.yaml"
    spec = yaml.safe_load(path.read_text())
    spec["base"] = {"roots": {"python/sglang": "auto"}} | base
    path.write_text(yaml.safe_dump(spec))


def test_tag_becomes_index_platforms_and_configs(
    overlay: Overlay, pushed: str, two_platforms: Layout
) -> None:
    overlay("pin", OVERLAY, "--base", pushed).check()
    pin = lock_of(overlay)["pins"][pushed]
    assert (pin["digest"], pin["media_type"]) == (two_platforms.single(), INDEX)
    assert {name: image["digest"] for name, image in pin["platforms"].items()} == children(two_platforms)
    for image in pin["platforms"].values():
        assert image["config"] == two_platforms.image(image["digest"]).manifest["config"]["digest"]


def test_pinning_twice_writes_the_same_lock(overlay: Overlay, pushed: str) -> None:
    overlay("pin", OVERLAY, "--base", pushed).check()
    first = lock_of(overlay)
    overlay("pin", OVERLAY, "--base", pushed).check()
    assert lock_of(overlay) == first


def test_platforms_that_the_spec_leaves_open_are_filled_in(
    overlay: Overlay, pushed: str, two_platforms: Layout
) -> None:
    set_base(
        overlay,
        image=pushed.rpartition(":")[0],
        index=two_platforms.single(),
        platforms={"linux/amd64": children(two_platforms)["linux/amd64"], "linux/arm64": None},
    )
    overlay("pin", OVERLAY).check()
    (pin,) = lock_of(overlay)["pins"].values()
    assert pin["platforms"]["linux/arm64"]["digest"] == children(two_platforms)["linux/arm64"]


def test_a_pinned_tag_can_be_built_on_and_a_bare_one_cannot(
    prepared: Overlay, pushed: str, two_platforms: Layout, wheel: Callable[[str], Path]
) -> None:
    overlay = prepared
    arguments = (OVERLAY, "--base", pushed, "--platform", "linux/arm64", "--wheel", wheel("0.5.20"))
    refused = overlay("build", *arguments, "--dry-run").check(1)
    assert f"overlay pin {OVERLAY} --base {pushed}" in refused.err
    overlay("pin", OVERLAY, "--base", pushed).check()
    built = overlay("build", *arguments, "--dry-run", "--json").check().json
    assert built["images"][0]["base"] == children(two_platforms)["linux/arm64"]


def test_where_no_base_is_pinned_the_hint_is_the_one_command_that_pins_it(
    prepared: Overlay,
    pushed: str,
    two_platforms: Layout,
    wheel: Callable[[str], Path],
    skopeo: Callable[..., str],
) -> None:
    overlay, repository = prepared, pushed.rpartition(":")[0]
    skopeo("copy", "--all", f"docker://{pushed}", f"docker://{repository}:v0.5.20")
    set_base(overlay, image=repository)
    arguments = ("build", OVERLAY, "--dry-run", "--platform", "linux/arm64", "--wheel", wheel("0.5.20"))
    hint = overlay(*arguments).check(1).err.partition("pin one: ")[2].splitlines()[0]
    assert hint == f"overlay pin {OVERLAY} --base {repository}:v0.5.20"
    assert overlay("pin", OVERLAY).check(1).err.partition("pin one: ")[2].splitlines()[0] == hint
    overlay(*hint.split()[1:]).check()
    built = overlay(*arguments, "--json").check().json
    assert built["images"][0]["base"] == children(two_platforms)["linux/arm64"]


def test_check_notices_a_tag_that_was_pushed_again(
    overlay: Overlay, pushed: str, two_platforms: Layout, skopeo: Callable[..., str]
) -> None:
    overlay("pin", OVERLAY, "--base", pushed).check()
    overlay("pin", OVERLAY, "--check").check()
    before = lock_of(overlay)
    changed = children(two_platforms)["linux/arm64"]
    skopeo("copy", f"docker://{pushed.rpartition(':')[0]}@{changed}", f"docker://{pushed}")
    moved = overlay("pin", OVERLAY, "--check", "--json").check(5)
    (entry,) = moved.json["error"]["moved"]
    assert (entry["expected"], entry["found"]) == (two_platforms.single(), changed)
    assert "pushed again" in moved.err
    assert lock_of(overlay) == before


def test_check_notices_a_tag_that_vanished_and_names_the_nearest(
    overlay: Overlay, pushed: str, skopeo: Callable[..., str]
) -> None:
    skopeo("copy", "--all", f"docker://{pushed}", f"docker://{pushed}-cu130")
    overlay("pin", OVERLAY, "--base", pushed).check()
    lock = overlay.directory / "overlays" / f"{OVERLAY}.lock"
    lock.write_text(lock.read_text().replace(f'"{pushed}"', f'"{pushed}-cu13"'))
    gone = overlay("pin", OVERLAY, "--check").check(5)
    assert "the tag is gone; the pinned digest still answers" in gone.err
    assert "v1-cu130" in gone.err


def test_check_asks_by_head_and_one_digest_that_is_gone_is_one_finding(
    overlay: Overlay, small_base_pushed: str, proxy: FaultyProxy, registry: Registry
) -> None:
    name = small_base_pushed.partition("@")[0].replace(registry.address, proxy.address)
    overlay("pin", OVERLAY, "--base", f"{name}@{small_base_pushed.partition('@')[2]}").check()
    before = proxy.count("GET", "/manifests/")
    overlay("pin", OVERLAY, "--check").check()
    assert proxy.count("GET", "/manifests/") == before
    for method in ("HEAD", "GET"):
        proxy.fail(method, "/manifests/sha256:", answer_with(404), times=100)
    gone = overlay("pin", OVERLAY, "--check", "--json").check(5)
    (entry,) = gone.json["error"]["moved"]
    assert "gone" in entry["what"]


def test_a_tag_that_never_existed_names_the_nearest(overlay: Overlay, pushed: str) -> None:
    refused = overlay("pin", OVERLAY, "--base", f"{pushed}-x").check(5)
    assert "no such tag" in refused.err
    assert "nearest tags are v1" in refused.err


def test_a_platforms_digest_in_the_place_of_the_index_is_told(
    overlay: Overlay, pushed: str, two_platforms: Layout
) -> None:
    arm64 = children(two_platforms)["linux/arm64"]
    set_base(overlay, image=pushed.rpartition(":")[0], index=arm64)
    refused = overlay("pin", OVERLAY).check(5)
    assert "as if it were the index" in refused.err
    assert "base.platforms, under linux/arm64" in refused.err


def test_the_index_in_the_place_of_a_platform_is_told(
    overlay: Overlay, pushed: str, two_platforms: Layout
) -> None:
    set_base(overlay, image=pushed.rpartition(":")[0], platforms={"linux/arm64": two_platforms.single()})
    refused = overlay("pin", OVERLAY).check(5)
    assert "as if it were one platform's image" in refused.err
    assert children(two_platforms)["linux/arm64"] in refused.err


def test_tag_and_digest_that_disagree_are_told(overlay: Overlay, pushed: str) -> None:
    refused = overlay("pin", OVERLAY, "--base", f"{pushed}@sha256:{'0' * 64}").check(5)
    assert "does not lead to the digest" in refused.err


def test_verify_writes_the_roots_and_pre_images_of_each_platform(
    overlay: Overlay, pushed: str, two_platforms: Layout, wheel: Callable[[str], Path]
) -> None:
    run = overlay("pin", OVERLAY, "--base", pushed, "--verify", "--wheel", wheel("0.5.20")).check()
    bases = lock_of(overlay)["bases"]
    assert set(bases) == set(children(two_platforms).values())
    for facts in bases.values():
        (root,) = facts["roots"]
        assert (root["path"], root["image_path"]) == ("python/sglang", "sgl-workspace/sglang/python/sglang")
        assert facts["files"]["python/sglang/srt/environ.py"]["blob"]
    assert "python/sglang at /sgl-workspace/sglang/python/sglang (sglang 0.5.20)" in run.out


def test_verify_refuses_a_base_that_the_series_was_not_made_for(
    overlay: Overlay,
    small_base: Base,
    skopeo: Callable[..., str],
    registry: Registry,
    wheel: Callable[[str], Path],
) -> None:
    base = changed_base(small_base, {"python/sglang/srt/environ.py": b"x = 1\n"}, "changed")
    target = base.push(skopeo, registry.repository("base"))
    overlay("pin", OVERLAY, "--base", target, "--verify", "--wheel", wheel("0.5.20")).check(5)
    assert not (overlay.directory / "overlays" / f"{OVERLAY}.lock").exists()
