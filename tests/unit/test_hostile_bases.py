"""A base that contradicts itself or its index is refused by name, before any of its layers is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.base import Base, resolve_bases
from builder.errors import ImageMismatch
from builder.image.append import base_layers, diff_ids
from builder.image.layout import Layout as ReadLayout
from builder.image.model import Platform
from builder.image.reference import LayoutReference
from builder.spec import BaseSpec
from tests.unit.lab import P0_BEFORE
from tests.unit.smallworld import LAYER, SYSTEM, TREE, Layout, World, digest_of, layer

SPEC = BaseSpec(image="registry.example/base")
LAYERS = [layer(SYSTEM), layer({"demo": b"demo"})]
IDS = [diff_id for _, diff_id in LAYERS]
AMD64 = {"os": "linux", "architecture": "amd64"}
ARM64 = {"os": "linux", "architecture": "arm64"}
ARM64_V8 = {**ARM64, "variant": "v8"}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout.create(tmp_path / "base")


def resolve(layout: Layout, *platforms: str) -> list[Base]:
    location = LayoutReference(layout.path, digest=layout.entry())
    return resolve_bases(
        location, ReadLayout(layout.path), SPEC, [Platform.parse(platform) for platform in platforms]
    )


def named(number: int, **more: Any) -> dict[str, Any]:
    data, _ = LAYERS[number]
    return {"mediaType": LAYER, "digest": digest_of(data), "size": len(data)} | more


CONTRADICTIONS: dict[str, dict[str, Mapping[str, Any]]] = {
    "fewer diff IDs than layers": {"config": {"rootfs": {"type": "layers", "diff_ids": IDS[:1]}}},
    "more diff IDs than layers": {"config": {"rootfs": {"type": "layers", "diff_ids": IDS * 2}}},
    "a diff ID that is a pattern": {"config": {"rootfs": {"diff_ids": ["sha256:*", IDS[1]]}}},
    "a diff ID that leaves the cache": {"config": {"rootfs": {"diff_ids": ["../../x", IDS[1]]}}},
    "a diff ID that is an absolute path": {"config": {"rootfs": {"diff_ids": ["/etc/*", IDS[1]]}}},
    "a diff ID that is a number": {"config": {"rootfs": {"diff_ids": [1, 2]}}},
    "more history than layers": {"config": {"history": [{}] * 3}},
    "an architecture of two lines": {"config": {"architecture": "amd64\nUSER"}},
    "an architecture that is a path": {"config": {"architecture": "../x"}},
    "a layer's digest that is a path": {"manifest": {"layers": [named(0, digest="sha256:../x"), named(1)]}},
    "a layer's size that is a truth value": {"manifest": {"layers": [named(0, size=True), named(1)]}},
    "a layer's size beyond all files": {"manifest": {"layers": [named(0, size=10**30), named(1)]}},
    "a layer without a media type": {"manifest": {"layers": [named(0, mediaType=""), named(1)]}},
    "a config's digest that is a path": {"manifest": {"config": named(0, digest="sha256:../../x")}},
    "a foreign layer": {
        "manifest": {
            "layers": [
                named(0, mediaType="application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"),
                named(1),
            ]
        }
    },
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_a_base_that_contradicts_itself_is_refused_before_a_layer_is_read(what: str, layout: Layout) -> None:
    layout.put_image(LAYERS, **CONTRADICTIONS[what])
    for data, _ in LAYERS:
        layout.blob(digest_of(data)).unlink()
    with pytest.raises(ImageMismatch) as caught:
        resolve(layout)
    assert caught.value.what != "a blob is not there"
    assert caught.value.found


@pytest.mark.parametrize("key", ["annotations", "Labels"])
@pytest.mark.parametrize("value", [[1], {"a": 1}, "x"])
def test_labels_and_annotations_that_are_no_strings_are_refused(
    key: str, value: object, layout: Layout
) -> None:
    from builder.image.append import append
    from builder.image.layer import LayerFile, build_layer

    changes: dict[str, Any] = (
        {"manifest": {key: value}} if key == "annotations" else {"config": {"config": {key: value}}}
    )
    layout.put_image(LAYERS, **changes)
    (base,) = resolve(layout)
    added = build_layer([LayerFile("x", b"")], mtime=0, media_type=LAYER)
    said = {"created": 0, "created_by": "test", "labels": {"a": ""}, "annotations": {"a": ""}}
    with pytest.raises(ImageMismatch, match="metadata"):
        append(base.manifest, base.config, added, **said)  # type: ignore[arg-type]


@pytest.mark.parametrize(("room", "layers"), [(True, 126), (False, 127)])
def test_a_base_without_room_for_a_layer_is_refused_before_one_is_read(
    room: bool, layers: int, layout: Layout
) -> None:
    layout.put_image([LAYERS[0], *[LAYERS[1]] * (layers - 1)])
    layout.blob(digest_of(LAYERS[0][0])).unlink()
    if room:
        (base,) = resolve(layout)
        assert len(base_layers(base.manifest)) == len(diff_ids(base.config)) == layers
        return
    with pytest.raises(ImageMismatch, match="no room"):
        resolve(layout)


def put_index(layout: Layout, children: Sequence[tuple[Mapping[str, str], Mapping[str, str]]]) -> None:
    """An index over images by (what the config says, what the index says)."""
    layout.put_index([(layout.put_image(LAYERS, config=config), platform) for config, platform in children])


@pytest.mark.parametrize("asked", ["linux/arm64", "linux/arm64/v8"])
@pytest.mark.parametrize("in_index", [ARM64, ARM64_V8])
@pytest.mark.parametrize("in_config", [ARM64, ARM64_V8])
def test_arm64_and_its_variant_v8_name_the_same_machines(
    asked: str, in_index: Mapping[str, str], in_config: Mapping[str, str], layout: Layout
) -> None:
    put_index(layout, [(AMD64, AMD64), (in_config, in_index)])
    (base,) = resolve(layout, asked)
    assert str(base.platform) == "linux/arm64"
    layout.put_image(LAYERS, config=in_config)
    (alone,) = resolve(layout, asked)
    assert alone.platform == base.platform


def test_an_image_for_another_platform_than_its_index_says_is_refused(layout: Layout) -> None:
    put_index(layout, [(AMD64, ARM64)])
    with pytest.raises(ImageMismatch, match="another platform than its index says") as caught:
        resolve(layout, "linux/arm64")
    assert (caught.value.expected, caught.value.found) == ("linux/arm64", "linux/amd64, by its config")


def test_an_index_of_attestations_alone_holds_no_image(layout: Layout) -> None:
    unknown = {"os": "unknown", "architecture": "unknown"}
    put_index(layout, [(AMD64, unknown)])
    with pytest.raises(ImageMismatch, match="no image for any platform"):
        resolve(layout)


def test_a_platform_asked_for_twice_is_built_once(layout: Layout) -> None:
    put_index(layout, [(AMD64, AMD64), (ARM64, ARM64)])
    assert len(resolve(layout, "linux/amd64", "linux/amd64")) == 1


def test_a_base_without_python_builds_where_the_spec_names_the_directory(tmp_path: Path) -> None:
    world = World.create(tmp_path)
    layout = Layout.create(tmp_path / "no-python")
    layout.put_image([layer({f"{TREE}/sglang/demo.py": P0_BEFORE})])
    refused = world.overlay(*world.build(layout.reference)).check(5)
    assert "base.roots" in refused.err
    world.write_spec(roots=f"/{TREE}/sglang")
    for _ in range(2):  # from the layers, then from the lock
        built = world.overlay(*world.build(layout.reference)).check()
        assert f"taken to be at /{TREE}/sglang" in built.err


def test_a_subject_that_is_not_utf8_is_built_and_recorded(tmp_path: Path) -> None:
    """A11"""
    world = World.create(tmp_path)
    file = world.root / "patches/one/p0.patch"
    file.write_bytes(file.read_bytes().replace(b"b is three", b"b is \xe4"))
    built = world.overlay(*world.build(world.base().reference, "--json")).check().json
    (record,) = built["images"][0]["manifest"]["patches"]
    assert record["subject"] == "b is \ufffd"
