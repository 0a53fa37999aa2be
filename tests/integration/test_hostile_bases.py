"""A base that contradicts itself or its index is refused by name, before any of its layers is read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.base.image import Base, resolve_bases
from builder.errors import ImageMismatch
from builder.oci.append import base_layers, diff_ids
from builder.oci.layout import Layout as ReadLayout
from builder.oci.model import Platform
from builder.oci.reference import LayoutReference
from builder.project.spec import BaseSpec
from tests.conftest import Run
from tests.projects.history import P0_BEFORE
from tests.projects.image import (
    INDEX,
    LAYER,
    MANIFEST,
    NAME,
    SYSTEM,
    TREE,
    ImageProject,
    Layout,
    digest_of,
    layer,
)

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
    from builder.oci.append import append
    from builder.oci.layer import LayerFile, build_layer

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
    world = ImageProject.create(tmp_path)
    layout = Layout.create(tmp_path / "no-python")
    layout.put_image([layer({f"{TREE}/sglang/demo.py": P0_BEFORE})])
    refused = world.overlay(*world.build(layout.reference)).check(5)
    assert "base.roots" in refused.err
    world.write_spec(roots=f"/{TREE}/sglang")
    for _ in range(2):  # from the layers, then from the lock
        built = world.overlay(*world.build(layout.reference)).check()
        assert f"taken to be at /{TREE}/sglang" in built.err


def test_a_subject_that_is_not_utf8_is_built_and_recorded(tmp_path: Path) -> None:
    world = ImageProject.create(tmp_path)
    file = world.root / "patches/one/p0.patch"
    file.write_bytes(file.read_bytes().replace(b"b is three", b"b is \xe4"))
    built = world.overlay(*world.build(world.base().reference, "--json")).check().json
    (record,) = built["images"][0]["manifest"]["patches"]
    assert record["subject"] == "b is \ufffd"


# --- what a base says beside its layers ---------------------------------------------------------------------


def test_what_a_base_refers_to_is_not_said_of_the_image_made_from_it(tmp_path: Path) -> None:
    world = ImageProject.create(tmp_path)
    layout = world.base()
    subject = {"mediaType": MANIFEST, "digest": "sha256:" + "1" * 64, "size": 7}
    layers = [layer(SYSTEM), layer({f"{TREE}/sglang/demo.py": P0_BEFORE})]
    layout.put_image(layers, manifest={"subject": subject, "artifactType": "application/x.base"})
    built = world.overlay(*world.build(layout.reference, "--json")).check().json
    manifest = json.loads((tmp_path / "out/blobs" / built["digest"].replace(":", "/")).read_bytes())
    assert not {"subject", "artifactType"} & manifest.keys()
    assert manifest["config"].keys() == {"mediaType", "digest", "size"}


def test_a_layer_of_dockers_zstd_type_is_read(tmp_path: Path) -> None:
    import zstandard

    world = ImageProject.create(tmp_path)
    layout = world.base()
    layers = [layer(SYSTEM), layer({f"{TREE}/sglang/demo.py": P0_BEFORE})]
    packed = [(zstandard.compress(gzip.decompress(data)), diff_id) for data, diff_id in layers]
    layout.put_image(packed, layer_type="application/vnd.docker.image.rootfs.diff.tar.zstd")
    world.overlay(*world.build(layout.reference)).check()


def test_a_child_without_a_platform_is_what_its_config_says(tmp_path: Path) -> None:
    world = ImageProject.create(tmp_path)
    layout = world.base()
    layout.put_index([(layout.entry(), {})])
    built = world.overlay(*world.build(layout.reference, "--json")).check().json
    assert built["images"][0]["platform"] == "linux/amd64"
    other = world.overlay(*world.build(layout.reference, "--platform", "linux/arm64")).check(5)
    assert "found:    linux/amd64" in other.err


def test_an_index_inside_an_index_gives_its_images(tmp_path: Path) -> None:
    world = ImageProject.create(tmp_path)
    layout = world.base()
    inner = layout.put_index([(layout.entry(), {"os": "linux", "architecture": "amd64"})])

    def around(digest: str) -> str:
        child = {"mediaType": INDEX, "digest": digest, "size": layout.blob(digest).stat().st_size}
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [child]}
        entry = layout.put(json.dumps(index).encode(), INDEX)
        return str(entry["digest"])

    once = around(inner)
    world.overlay(*world.build(f"oci:{layout.path}@{once}")).check()
    deep = once
    for _ in range(5):
        deep = around(deep)
    refused = world.overlay(*world.build(f"oci:{layout.path}@{deep}")).check(5)
    assert "too many other indexes" in refused.err


@pytest.fixture
def two(tmp_path: Path) -> tuple[ImageProject, Layout, dict[str, str]]:
    """A layout with an image for each of two platforms and an index of both; digests by platform."""
    world = ImageProject.create(tmp_path)
    layout = world.base()
    layers = [layer(SYSTEM), layer({f"{TREE}/sglang/demo.py": P0_BEFORE})]
    digests = {
        f"linux/{name}": layout.put_image(layers, config={"architecture": name})
        for name in ("amd64", "arm64")
    }
    platforms = [
        (digest, dict(zip(("os", "architecture"), name.split("/"), strict=True)))
        for name, digest in digests.items()
    ]
    return world, layout, digests | {"index": layout.put_index(platforms)}


def write_base(world: ImageProject, layout: Layout, **base: object) -> None:
    text = world.spec.read_text()
    line = next(line for line in text.splitlines() if line.startswith("base:"))
    value = {"image": f"oci:{layout.path}", "roots": {"python/sglang": "auto"}} | base
    world.spec.write_text(text.replace(line, f"base: {json.dumps(value)}"))


def build_own(world: ImageProject, *more: str) -> Run:
    return world.overlay("build", NAME, "--output", f"oci:{world.directory}/out:new", "--json", *more)


def test_platforms_without_an_index_are_each_their_own_digest(
    two: tuple[ImageProject, Layout, dict[str, str]],
) -> None:
    world, layout, digests = two
    platforms = {name: digests[name] for name in ("linux/amd64", "linux/arm64")}
    write_base(world, layout, platforms=platforms)
    built = build_own(world).check().json
    assert {image["platform"]: image["base"] for image in built["images"]} == platforms
    one = build_own(world, "--platform", "linux/arm64").check().json
    assert [image["base"] for image in one["images"]] == [digests["linux/arm64"]]
    missing = build_own(world, "--platform", "linux/s390x").check(5)
    assert "pins no image for the platform" in missing.err


@pytest.mark.parametrize("is_indexed", [True, False])
def test_a_digest_that_is_another_platforms_is_refused(
    two: tuple[ImageProject, Layout, dict[str, str]], is_indexed: bool
) -> None:
    world, layout, digests = two
    swapped = {"linux/amd64": digests["linux/arm64"], "linux/arm64": digests["linux/amd64"]}
    write_base(world, layout, platforms=swapped, **({"index": digests["index"]} if is_indexed else {}))
    refused = build_own(world, "--platform", "linux/amd64").check(5)
    assert "base.platforms: linux/a" in refused.err
    assert "of another image" in refused.err


def test_a_digest_that_is_not_in_the_index_is_refused(
    two: tuple[ImageProject, Layout, dict[str, str]],
) -> None:
    world, layout, digests = two
    layers = [layer(SYSTEM), layer({f"{TREE}/sglang/demo.py": P0_BEFORE, "more": b""})]
    other = layout.put_image(layers)
    write_base(world, layout, index=digests["index"], platforms={"linux/amd64": other})
    for words in ((), ("--base", f"oci:{layout.path}@{other}")):
        refused = build_own(world, *words).check(5)
        assert "not in the index" in refused.err
