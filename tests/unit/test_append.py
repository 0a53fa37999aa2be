"""Appending a layer changes what it says it changes, and nothing else of the base."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builder.errors import ImageMismatch
from builder.oci.append import (
    DOCKER_LAYERS,
    MAX_LAYERS,
    NewImage,
    append,
    as_oci,
    base_config,
    base_layers,
    depth_warning,
    diff_ids,
    environment_of,
    new_index,
    platform_of,
)
from builder.oci.layer import Layer, LayerFile, build_layer, layer_media_type
from builder.oci.model import (
    DOCKER_CONFIG,
    DOCKER_INDEX,
    DOCKER_LAYER_GZIP,
    DOCKER_MANIFEST,
    OCI_CONFIG,
    OCI_INDEX,
    OCI_LAYER_GZIP,
    OCI_MANIFEST,
    Descriptor,
    Platform,
    RawManifest,
    canonical_json,
    sha256_digest,
)

FAMILIES = [OCI_MANIFEST, DOCKER_MANIFEST]


def a_config(layers: int = 2, **changes: Any) -> dict[str, Any]:
    return {
        "architecture": "arm64",
        "os": "linux",
        "created": "2020-02-02T02:02:02Z",
        "author": "Zoë",
        "config": {
            "User": "1000:1000",
            "WorkingDir": "/srv",
            "Entrypoint": ["/entry.sh"],
            "Cmd": ["serve"],
            "Env": ["PATH=/usr/bin", "EMPTY=", "A=x=y"],
            "Labels": {
                "kept": "yes",
                "changed": "before",
                "org.opencontainers.image.base.name": "docker.io/nvidia/cuda:13.0",
            },
            "Shell": ["/bin/sh"],
            "x-unknown": {"b": [1, 2.5, None]},
        },
        "history": [{"created_by": f"step {n}"} for n in range(layers)] + [{"empty_layer": True}],
        "rootfs": {"type": "layers", "diff_ids": [sha256_digest(b"tar %d" % n) for n in range(layers)]},
        "docker_version": "20.10",
        **changes,
    }


def an_image(
    media_type: str, layers: int = 2, settings: dict[str, Any] | None = None
) -> tuple[RawManifest, bytes]:
    docker = media_type == DOCKER_MANIFEST
    config = json.dumps(settings or a_config(layers), indent=3).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": {
            "mediaType": DOCKER_CONFIG if docker else OCI_CONFIG,
            "digest": sha256_digest(config),
            "size": len(config),
        },
        "layers": [
            {
                "mediaType": DOCKER_LAYER_GZIP if docker else OCI_LAYER_GZIP,
                "digest": sha256_digest(b"blob %d" % n),
                "size": n,
            }
            for n in range(layers)
        ],
        "x-unknown": ["kept"],
    }
    return RawManifest(media_type, json.dumps(manifest, indent=3).encode()), config


def a_layer(media_type: str) -> Layer:
    return build_layer([LayerFile("srv/a.py", b"1\n")], mtime=9, media_type=layer_media_type(media_type))


def appended(media_type: str, settings: dict[str, Any] | None = None, **changes: Any) -> NewImage:
    manifest, config = an_image(media_type, settings=settings)
    wanted = {"created": 1_700_000_000, "created_by": "overlay demo", **changes}
    return append(manifest, config, a_layer(media_type), **wanted)


@pytest.mark.parametrize("media_type", FAMILIES)
def test_only_what_is_asked_for_changes_in_the_config(media_type: str) -> None:
    image = appended(media_type, labels={"changed": "after", "new": "1"}, env={"A": "2", "Z": "é"})
    expected = a_config()
    expected["created"] = "2023-11-14T22:13:20Z"
    expected["config"]["Labels"] = {"kept": "yes", "changed": "after", "new": "1"}
    expected["config"]["Env"] = ["PATH=/usr/bin", "EMPTY=", "A=2", "Z=é"]
    expected["history"].append(
        {"created": "2023-11-14T22:13:20Z", "created_by": "overlay demo", "comment": "sglang-overlay"}
    )
    expected["rootfs"]["diff_ids"].append(a_layer(media_type).diff_id)
    assert json.loads(image.config) == expected


@pytest.mark.parametrize("media_type", FAMILIES)
def test_base_layers_stay_the_first_ones(media_type: str) -> None:
    manifest, config = an_image(media_type)
    image = append(manifest, config, a_layer(media_type), created=0, created_by="x")
    assert image.layers[:-1] == base_layers(manifest)
    assert image.layers[-1] == a_layer(media_type).descriptor
    assert diff_ids(image.config)[:-1] == diff_ids(config)
    assert base_layers(image.manifest) == image.layers
    written = json.loads(image.manifest.data)
    assert written["layers"][:-1] == json.loads(manifest.data)["layers"]
    assert written["x-unknown"] == ["kept"]


@pytest.mark.parametrize("media_type", FAMILIES)
def test_media_types_are_the_family_of_the_base(media_type: str) -> None:
    manifest, _ = an_image(media_type)
    image = appended(media_type)
    assert image.manifest.media_type == json.loads(image.manifest.data)["mediaType"] == media_type
    assert image.config_descriptor.media_type == base_config(manifest).media_type
    assert image.config_descriptor.digest == sha256_digest(image.config)
    assert base_config(image.manifest) == image.config_descriptor
    assert image.descriptor == Descriptor(
        media_type,
        sha256_digest(image.manifest.data),
        len(image.manifest.data),
        Platform("linux", "arm64"),
    )


DOCKERS_LAYERS = {
    "application/vnd.docker.image.rootfs.diff.tar": "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
}


@pytest.mark.parametrize("layer_type", DOCKERS_LAYERS)
def test_an_image_in_dockers_types_is_the_same_in_ocis(layer_type: str) -> None:
    manifest, _ = an_image(DOCKER_MANIFEST)
    value = json.loads(manifest.data)
    for layer in value["layers"]:
        layer["mediaType"] = layer_type
    converted = as_oci(RawManifest(DOCKER_MANIFEST, json.dumps(value).encode()))
    found = json.loads(converted.data)
    assert converted.media_type == found.pop("mediaType") == OCI_MANIFEST
    assert found["config"].pop("mediaType") == "application/vnd.oci.image.config.v1+json"
    assert {layer.pop("mediaType") for layer in found["layers"]} == {DOCKERS_LAYERS[layer_type]}
    for described in (value, value["config"], *value["layers"]):
        del described["mediaType"]
    assert found == value
    assert as_oci(converted) is converted


def test_annotations_go_where_the_family_has_them() -> None:
    wanted = {"org.opencontainers.image.version": "1"}
    assert json.loads(appended(OCI_MANIFEST, annotations=wanted).manifest.data)["annotations"] == wanted
    assert "annotations" not in json.loads(appended(DOCKER_MANIFEST, annotations=wanted).manifest.data)


def test_what_the_base_says_of_itself_gives_way_to_what_is_said_of_the_image() -> None:
    version, own = "org.opencontainers.image.version", "org.example.kept"
    manifest, config = an_image(OCI_MANIFEST)
    value = json.loads(manifest.data) | {"annotations": {version: "base", own: "yes"}}
    base = RawManifest(OCI_MANIFEST, json.dumps(value).encode())
    image = append(base, config, a_layer(OCI_MANIFEST), created=0, created_by="x", annotations={version: "1"})
    assert json.loads(image.manifest.data)["annotations"] == {version: "1", own: "yes"}


def test_an_image_without_settings_or_history_takes_a_layer() -> None:
    bare = {key: value for key, value in a_config().items() if key not in ("config", "history")}
    image = json.loads(appended(OCI_MANIFEST, bare, labels={"a": "b"}, env={"C": "d"}).config)
    assert image["config"] == {"Labels": {"a": "b"}, "Env": ["C=d"]}
    assert len(image["history"]) == 1
    null = json.loads(appended(OCI_MANIFEST, {**bare, "config": {"Labels": None, "Env": None}}).config)
    assert null["config"] == {"Labels": None, "Env": None}


def test_the_last_free_layer_is_used_and_the_next_is_refused() -> None:
    layer = a_layer(OCI_MANIFEST)
    full = append(*an_image(OCI_MANIFEST, MAX_LAYERS - 1), layer, created=0, created_by="x")
    assert len(full.layers) == MAX_LAYERS
    with pytest.raises(ImageMismatch, match="no room") as caught:
        append(full.manifest, full.config, layer, created=0, created_by="x")
    assert caught.value.found == f"{MAX_LAYERS} layers"


@pytest.mark.parametrize(("layers", "warned"), [(DOCKER_LAYERS - 1, False), (DOCKER_LAYERS, True)])
def test_base_too_deep_for_docker_alone_is_warned_of(layers: int, warned: bool) -> None:
    manifest, _ = an_image(OCI_MANIFEST, layers)
    assert (depth_warning(manifest) is not None) == warned


def test_config_that_the_manifest_does_not_name_is_refused() -> None:
    manifest, config = an_image(OCI_MANIFEST)
    with pytest.raises(ImageMismatch, match="not the one") as caught:
        append(manifest, config + b" ", a_layer(OCI_MANIFEST), created=0, created_by="x")
    assert caught.value.expected == sha256_digest(config)


def test_base_with_more_layers_than_diff_ids_is_refused() -> None:
    with pytest.raises(ImageMismatch, match="contradicts") as caught:
        appended(OCI_MANIFEST, a_config(layers=1))
    assert caught.value.found == "1 diff ID in its config"


def test_base_with_more_history_than_layers_is_refused() -> None:
    with pytest.raises(ImageMismatch, match="contradicts") as caught:
        appended(OCI_MANIFEST, a_config(history=[{}] * 3))
    assert caught.value.found == "3 of them"


def test_layer_of_the_other_family_is_refused() -> None:
    with pytest.raises(ImageMismatch, match="family"):
        append(*an_image(DOCKER_MANIFEST), a_layer(OCI_MANIFEST), created=0, created_by="x")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"layers": [], "config": []}',
        b'{"layers": [{"digest": "sha256:1"}], "config": {}}',
        b'{"layers": [{"digest": "x", "size": -1}], "config": {}}',
        b'{"layers": NaN}',
        b'"\\ud800"',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_manifest_that_is_none_is_refused_with_its_digest(data: bytes) -> None:
    with pytest.raises(ImageMismatch) as caught:
        base_layers(RawManifest(OCI_MANIFEST, data))
    assert caught.value.where


@pytest.mark.parametrize(
    "changes",
    [
        {"rootfs": None},
        {"rootfs": {"diff_ids": [1, 2]}},
        {"config": []},
        {"config": {"Env": "A=1"}},
        {"config": {"Labels": ["a"]}},
        {"history": {"a": 1}},
        {"history": [1]},
        {"os": 5},
        {"architecture": ""},
    ],
)
def test_config_of_another_shape_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ImageMismatch):
        appended(OCI_MANIFEST, {**a_config(), **changes}, labels={"a": "b"}, env={"A": "1"})


def test_index_is_not_taken_for_an_image() -> None:
    with pytest.raises(ImageMismatch, match="single image"):
        base_layers(RawManifest(OCI_INDEX, b"{}"))


def child(media_type: str, platform: str) -> Descriptor:
    return Descriptor(media_type, sha256_digest(platform.encode()), 7, Platform(*platform.split("/")))


@pytest.mark.parametrize(
    ("children", "media_type"),
    [
        ([OCI_MANIFEST, OCI_MANIFEST], OCI_INDEX),
        ([DOCKER_MANIFEST, DOCKER_MANIFEST], DOCKER_INDEX),
        ([DOCKER_MANIFEST, OCI_MANIFEST], OCI_INDEX),
    ],
)
def test_index_is_of_the_family_of_its_children(children: list[str], media_type: str) -> None:
    pair = [child(children[0], "linux/arm64/v8"), child(children[1], "linux/amd64")]
    index = new_index(pair, annotations={"a": "b"})
    assert index == new_index(pair[::-1], annotations={"a": "b"})
    written = json.loads(index.data)
    assert index.media_type == written["mediaType"] == media_type
    assert [entry["platform"] for entry in written["manifests"]] == [
        {"architecture": "amd64", "os": "linux"},
        {"architecture": "arm64", "os": "linux", "variant": "v8"},
    ]
    assert ("annotations" in written) == (media_type == OCI_INDEX)


@pytest.mark.parametrize(
    "children",
    [
        [],
        [Descriptor(OCI_MANIFEST, "x", 1)],
        [child(OCI_MANIFEST, "linux/amd64")] * 2,
        [child(OCI_INDEX, "linux/amd64")],
    ],
)
def test_index_of_anything_but_one_image_a_platform_is_refused(children: list[Descriptor]) -> None:
    with pytest.raises(ImageMismatch):
        new_index(children)


def test_environment_and_platform_are_read_from_the_config() -> None:
    config = canonical_json(a_config(variant="v8"))
    assert environment_of(config) == {"PATH": "/usr/bin", "EMPTY": "", "A": "x=y"}
    assert platform_of(config) == Platform("linux", "arm64", "v8")
