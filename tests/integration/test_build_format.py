"""``--format oci``: an image on a base in Docker's media types, as a layout that every tool reads."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Overlay
from tests.integration.conftest import Engine, Registry, needed_program, run_program
from tests.projects.history import P0_AFTER
from tests.projects.image import NAME, TREE, ImageProject, Layout

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
NOTE = "--format oci converts it"


@pytest.fixture
def world(tmp_path: Path) -> ImageProject:
    return ImageProject.create(tmp_path)


def read(layout: Path, digest: str) -> Any:
    return json.loads((layout / "blobs" / digest.replace(":", "/")).read_text())


def in_dockers_types(layout: Layout) -> Layout:
    """The layout's image with Docker's media types throughout."""
    manifest = read(layout.path, layout.entry())
    manifest["mediaType"] = DOCKER_MANIFEST
    manifest["config"]["mediaType"] = DOCKER_CONFIG
    for layer in manifest["layers"]:
        layer["mediaType"] = DOCKER_LAYER
    entry = layout.put(json.dumps(manifest).encode(), DOCKER_MANIFEST)
    layout.tag([{**entry, "annotations": {"org.opencontainers.image.ref.name": "latest"}}])
    return layout


def types_of(manifest: Any) -> tuple[str, str, set[str]]:
    return (
        manifest["mediaType"],
        manifest["config"]["mediaType"],
        {layer["mediaType"] for layer in manifest["layers"]},
    )


def applied(overlay_run: Any) -> Any:
    """The applied-patch manifest of the only image of a build."""
    return overlay_run["images"][0]["manifest"]


def test_a_layout_in_dockers_types_is_noted_and_oci_converts_it(world: ImageProject) -> None:
    base = in_dockers_types(world.base()).reference
    plain = world.overlay(*world.build(base, "--complete", "--json", to="plain")).check()
    converted = world.overlay(*world.build(base, "--complete", "--format", "oci", "--json", to="oci")).check()
    assert NOTE in plain.err
    assert NOTE in " ".join(plain.json["notes"])
    assert NOTE not in converted.err
    assert converted.json["notes"] == []

    before = read(world.directory / "plain", plain.json["digest"])
    after = read(world.directory / "oci", converted.json["digest"])
    assert types_of(before) == (DOCKER_MANIFEST, DOCKER_CONFIG, {DOCKER_LAYER})
    assert types_of(after) == (OCI_MANIFEST, OCI_CONFIG, {OCI_LAYER})
    assert [one["digest"] for one in after["layers"][:-1]] == [one["digest"] for one in before["layers"][:-1]]
    assert "media_type" not in applied(plain.json)["base"]
    assert applied(converted.json)["base"]["media_type"] == DOCKER_MANIFEST
    world.overlay("verify", f"oci:{world.directory / 'oci'}:new", "--base", base).check()


def test_a_base_in_ocis_types_is_not_converted(world: ImageProject) -> None:
    made = world.overlay(*world.build(world.base().reference, "--format", "oci", "--json")).check()
    assert "media_type" not in applied(made.json)["base"]


def test_two_platforms_get_an_index_of_ocis(world: ImageProject) -> None:
    layout = world.base()
    one = in_dockers_types(layout).entry()
    config = read(layout.path, read(layout.path, one)["config"]["digest"]) | {"architecture": "arm64"}
    manifest = read(layout.path, one)
    manifest["config"] = layout.put(json.dumps(config).encode(), DOCKER_CONFIG)
    two = layout.put(json.dumps(manifest).encode(), DOCKER_MANIFEST)["digest"]
    children = [
        {"mediaType": DOCKER_MANIFEST, "digest": digest, "size": layout.blob(digest).stat().st_size}
        | {"platform": {"os": "linux", "architecture": architecture}}
        for digest, architecture in ((one, "amd64"), (two, "arm64"))
    ]
    kind = "application/vnd.docker.distribution.manifest.list.v2+json"
    index = json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": children}).encode()
    layout.tag([layout.put(index, kind)])

    platforms = ("--platform", "linux/amd64", "--platform", "linux/arm64")
    made = world.overlay(*world.build(layout.reference, *platforms, "--format", "oci", "--json")).check()
    found = read(world.directory / "out", made.json["digest"])
    assert found["mediaType"] == "application/vnd.oci.image.index.v1+json"
    assert {child["mediaType"] for child in found["manifests"]} == {OCI_MANIFEST}


def test_another_format_is_another_build(world: ImageProject) -> None:
    """It is neither taken for one that was kept, nor for what the lock records; --check builds it twice."""
    base = in_dockers_types(world.base()).reference
    plain = world.overlay(*world.build(base, "--json")).check()
    converted = world.overlay(*world.build(base, "--format", "oci", "--json")).check()
    assert not converted.json["recalled"]
    assert converted.json["digest"] != plain.json["digest"]
    again = world.overlay(*world.build(base, "--format", "oci", "--json")).check()
    assert (again.json["recalled"], again.json["digest"]) == (True, converted.json["digest"])

    world.overlay(*world.build(base, "--format", "oci", "--locked", "--check")).check()
    drifted = world.overlay(*world.build(base, "--locked")).check(6)
    assert "--format" in drifted.err
    world.overlay(*world.build(base)).check()
    assert "format" not in world.lock.read_text().partition('"images"')[0]
    drifted = world.overlay(*world.build(base, "--format", "oci", "--locked")).check(6)
    assert "--format" in drifted.err


def test_a_docker_engine_chooses_its_own_types(world: ImageProject) -> None:
    refused = world.overlay("build", NAME, "--engine", "docker", "--format", "oci", "--dry-run").check(2)
    assert "--engine oci" in refused.err


def test_skopeo_podman_and_umoci_read_the_converted_layout(
    world: ImageProject, skopeo: Callable[..., str], tmp_path: Path
) -> None:
    base = in_dockers_types(world.base()).reference
    made = world.overlay(*world.build(base, "--complete", "--format", "oci", "--json")).check()
    layout = world.directory / "out"

    assert types_of(json.loads(skopeo("inspect", "--raw", f"oci:{layout}:new")))[0] == OCI_MANIFEST
    skopeo("copy", f"oci:{layout}:new", f"dir:{tmp_path / 'copied'}")
    copied = json.loads((tmp_path / "copied/manifest.json").read_text())
    assert copied["layers"][-1]["digest"] == made.json["images"][0]["layer"]["digest"]

    with tempfile.TemporaryDirectory(prefix="podman-") as place:  # its paths must be short
        storage = ("--root", f"{place}/root", "--runroot", f"{place}/run", "--storage-driver", "vfs")
        podman = [needed_program("podman"), *storage]
        image = run_program([*podman, "pull", "--quiet", f"oci:{layout}:new"]).strip()
        mounted = Path(run_program([*podman, "image", "mount", image]).strip())
        assert (mounted / TREE / "sglang/demo.py").read_bytes() == P0_AFTER
        run_program([*podman, "image", "umount", image])

    bundle = tmp_path / "bundle"
    run_program([needed_program("umoci"), "unpack", "--image", f"{layout}:new", str(bundle)])
    assert (bundle / "rootfs" / TREE / "sglang/demo.py").read_bytes() == P0_AFTER


def test_registry_engine_and_a_whole_fleet_have_the_converted_image(
    world: ImageProject, registry: Registry, docker_engine: Engine, skopeo: Callable[..., str]
) -> None:
    """Pushed, loaded, built with ``--all``, and told by ``matrix`` from what is not converted."""
    world.base()
    bases, target = registry.repository("base"), registry.repository("made")
    skopeo("copy", "--format", "v2s2", f"oci:{world.directory / 'base'}:latest", f"docker://{bases}:b")
    found = json.loads(skopeo("inspect", f"docker://{bases}:b"))
    assert types_of(json.loads(skopeo("inspect", "--raw", f"docker://{bases}:b")))[0] == DOCKER_MANIFEST
    pinned = f"image: {bases}, platforms: {{linux/amd64: '{found['Digest']}'}}"
    world.spec.write_text(world.spec.read_text().replace("image: registry.example/base", pinned))

    overlay = world.overlay.with_environment(DOCKER_HOST=docker_engine.host)
    overlay("build", "--all", "--push", target).check()
    assert todo(overlay, target) == []
    assert todo(overlay, target, "--format", "oci") == [NAME]
    both = overlay("build", NAME, "--format", "oci", "--push", target, "--load", "--json").check().json
    try:
        assert todo(overlay, target, "--format", "oci") == []
        pushed = json.loads(skopeo("inspect", "--raw", f"docker://{target}@{both['digest']}"))
        assert types_of(pushed) == (OCI_MANIFEST, OCI_CONFIG, {OCI_LAYER})
        overlay("verify", f"{target}@{both['digest']}").check()
        config = json.loads(skopeo("inspect", "--config", "--raw", f"docker://{target}@{both['digest']}"))
        loaded = docker_engine.api.images.get(both["loaded"])
        assert loaded.attrs["RootFS"]["Layers"] == config["rootfs"]["diff_ids"]
    finally:
        docker_engine.cli("image", "rm", "--force", both["loaded"])
    every = overlay("build", "--all", "--format", "oci", "--rebuild", "--push", target, "--json").check()
    assert every.json["overlays"][0]["digest"] == both["digest"]


def todo(overlay: Overlay, target: str, *options: str) -> list[str]:
    """The overlays that the repository lacks."""
    found = overlay("matrix", "--push", target, "--json", *options).check().json
    return [one["overlay"] for one in found["include"]]
