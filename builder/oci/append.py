"""Image to image: a base's manifest and config, and one layer, give a new manifest and config. No network.

What the base says stays as it is: unknown keys, user, working directory, entry point, command, ports, earlier
history, and the family of its media types (OCI image-spec 1.1, or Docker image manifest v2, schema 2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from builder.errors import ImageMismatch
from builder.oci.document import json_object
from builder.oci.inflate import LAYER_TYPES
from builder.oci.layer import Layer, layer_media_type
from builder.oci.model import (
    DOCKER_INDEX,
    DOCKER_MANIFEST,
    MANIFEST_TYPES,
    OCI_CONFIG,
    OCI_INDEX,
    OCI_MANIFEST,
    OCI_TYPES,
    Descriptor,
    NewImage,
    Platform,
    RawManifest,
    canonical_json,
    is_digest,
    sha256_digest,
)
from builder.printable import counted

MAX_LAYERS = 127  # lower directories that overlayfs can stack below a container's own
DOCKER_LAYERS = 125  # what Docker Engine registers; it refuses the next with "max depth exceeded"

# What a base says of the base that it was made from itself; of an image made from it, it is wrong.
OF_ITS_OWN_BASE = frozenset({"org.opencontainers.image.base.name", "org.opencontainers.image.base.digest"})

_PLATFORM_PART = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")


def append(
    manifest: RawManifest,
    config: bytes,
    layer: Layer,
    *,
    created: int,
    created_by: str,
    labels: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> NewImage:
    """The base plus ``layer``: one more diff ID, one more entry of history, labels and environment merged.

    Args:
        manifest: the base's platform manifest, as stored.
        config: the base's config blob, as stored.
        layer: what is added; its media type must be of the base's family.
        created: time of the new image, in seconds since 1970.
        created_by: what the entry of history says.
        labels: set in the config, over the base's.
        env: set in the config; a name the base has keeps its place.
        annotations: set in the manifest, over the base's. Docker schema 2 manifests cannot hold any, and
            get none: say what must be known of an image in ``labels``, which both families hold.

    Raises:
        ImageMismatch: the base contradicts itself, is not a single image, or has no room for a layer.
    """
    base, settings = check_base(manifest, config)
    if layer.descriptor.media_type != layer_media_type(manifest.media_type):
        raise ImageMismatch(
            "the layer's media type is not of the base's family",
            where=f"manifest {manifest.digest}",
            expected=layer_media_type(manifest.media_type),
            found=layer.descriptor.media_type,
        )
    new_config = canonical_json(_extended(settings, layer, created, created_by, labels or {}, env or {}))
    # A copy of the base's config in its descriptor, and where else to get it, say nothing of the new one.
    kept = {key: value for key, value in base["config"].items() if key not in ("data", "urls")}
    entry = {**kept, "digest": sha256_digest(new_config), "size": len(new_config)}
    # What the base refers to, and what kind of artifact it is, is not said of an image made from it.
    new_manifest = {
        **{key: value for key, value in base.items() if key not in ("subject", "artifactType")},
        "schemaVersion": 2,
        "mediaType": manifest.media_type,
        "config": entry,
        "layers": [*base["layers"], layer.descriptor.as_json()],
    }
    if annotations and manifest.media_type == OCI_MANIFEST:
        new_manifest["annotations"] = {**_inherited(base.get("annotations"), "annotations"), **annotations}
    return NewImage(
        manifest=RawManifest(manifest.media_type, canonical_json(new_manifest)),
        config=new_config,
        config_descriptor=Descriptor.from_json(entry, "the new manifest"),
        layers=(*base_layers(manifest), layer.descriptor),
        platform=platform_of(config),
    )


def as_oci(manifest: RawManifest) -> RawManifest:
    """The manifest of the same image in OCI's media types: config and layers stay the same bytes.

    Raises:
        ImageMismatch: it cannot be read, or has a layer of a kind that OCI has no type for.
    """
    if manifest.media_type == OCI_MANIFEST:
        return manifest
    value, layers = _read_manifest(manifest), base_layers(manifest)
    converted = {
        **value,
        "mediaType": OCI_MANIFEST,
        "config": {**value["config"], "mediaType": OCI_CONFIG},
        "layers": [
            {**entry, "mediaType": OCI_TYPES.get(layer.media_type, layer.media_type)}
            for entry, layer in zip(value["layers"], layers, strict=True)
        ],
    }
    return RawManifest(OCI_MANIFEST, canonical_json(converted))


def new_index(children: Sequence[Descriptor], *, annotations: Mapping[str, str] | None = None) -> RawManifest:
    """An index of platform manifests, sorted by platform, in the family of its children.

    A Docker manifest list holds Docker manifests only, and no annotations; everything else is an OCI index.

    Raises:
        ImageMismatch: no child, one without a platform, a platform twice, or a child that is not an image.
    """
    if not children:
        raise ImageMismatch("an index needs at least one image")
    platforms = [child.platform for child in children]
    if None in platforms or len(set(platforms)) != len(platforms):
        raise ImageMismatch(
            "each image of an index needs a platform of its own",
            found=", ".join(str(platform) for platform in platforms),
        )
    types = {child.media_type for child in children}
    if not types <= MANIFEST_TYPES:
        raise ImageMismatch("only image manifests go into an index", found=", ".join(sorted(types)))
    media_type = DOCKER_INDEX if types == {DOCKER_MANIFEST} else OCI_INDEX
    index: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "manifests": [child.as_json() for child in sorted(children, key=lambda c: str(c.platform))],
    }
    if annotations and media_type == OCI_INDEX:
        index["annotations"] = dict(annotations)
    return RawManifest(media_type, canonical_json(index))


def depth_warning(manifest: RawManifest) -> str | None:
    """What to say of a base that has room for one more layer in other engines, but not in Docker's."""
    layers = len(base_layers(manifest))
    if layers < DOCKER_LAYERS:
        return None
    return (
        f"the base has {layers} layers: Docker Engine pulls images of at most {DOCKER_LAYERS}, "
        "so it cannot pull the result"
    )


def base_layers(manifest: RawManifest) -> tuple[Descriptor, ...]:
    """The layers of a platform manifest, lowest first.

    Raises:
        ImageMismatch: one is not a descriptor, or not of a kind that every engine and registry has
            (foreign layers, which registries do not store, among them).
    """
    where = f"manifest {manifest.digest}"
    layers = tuple(Descriptor.from_json(entry, where) for entry in _read_manifest(manifest)["layers"])
    for layer in layers:
        if layer.media_type not in LAYER_TYPES:
            raise ImageMismatch(
                "the base has a layer of a kind that cannot be read or copied",
                where=f"{where}, layer {layer.digest}",
                expected="a tar, plain or compressed by gzip or zstd",
                found=layer.media_type or "no media type",
            )
    return layers


def base_config(manifest: RawManifest) -> Descriptor:
    """The config of a platform manifest."""
    return Descriptor.from_json(_read_manifest(manifest)["config"], f"manifest {manifest.digest}")


def diff_ids(config: bytes) -> tuple[str, ...]:
    """The digests of the uncompressed layers, lowest first, as a config lists them."""
    rootfs = json_object(config, "image config").get("rootfs")
    found = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(found, list):
        raise _broken("image config", "no list of diff IDs")
    for diff_id in found:
        if not isinstance(diff_id, str) or not is_digest(diff_id):
            raise _broken("image config", f"a diff ID that is not a sha256 digest: {diff_id!r:.90}")
    return tuple(found)


def platform_of(config: bytes) -> Platform:
    """The platform that a config says its image is for."""
    settings = json_object(config, "image config")
    parts = [settings.get(key) or "" for key in ("os", "architecture", "variant")]
    if not all(isinstance(part, str) for part in parts) or not all(parts[:2]):
        raise _broken("image config", "no operating system and architecture")
    if not all(_PLATFORM_PART.match(part) for part in parts if part):
        raise _broken("image config", f"a platform that is none: {'/'.join(parts)!r:.200}")
    return Platform(*parts)


def environment_of(config: bytes) -> dict[str, str]:
    """The environment that a config gives to its containers."""
    inner = _inner(json_object(config, "image config"))
    return dict(entry.partition("=")[::2] for entry in _strings(inner, "Env"))


def labels_of(config: bytes) -> dict[str, str]:
    """The labels of a config.

    Raises:
        ImageMismatch: they are not an object of texts.
    """
    return _texts(_inner(json_object(config, "image config")).get("Labels"), "labels")


def annotations_of(manifest: RawManifest) -> dict[str, str]:
    """The annotations of a platform manifest.

    Raises:
        ImageMismatch: they are not an object of texts.
    """
    return _texts(_read_manifest(manifest).get("annotations"), "annotations")


def working_dir_of(config: bytes) -> str:
    """The directory that a config starts its containers in."""
    found = _inner(json_object(config, "image config")).get("WorkingDir")
    return found if isinstance(found, str) and found.startswith("/") else "/"


def timestamp(seconds: int) -> str:
    """Seconds since 1970 as RFC 3339 in UTC, e.g. ``2026-01-31T00:00:00Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _extended(
    settings: dict[str, Any],
    layer: Layer,
    created: int,
    created_by: str,
    labels: Mapping[str, str],
    env: Mapping[str, str],
) -> dict[str, Any]:
    """The base's config with one more layer."""
    inner = _inner(settings)
    merged: dict[str, Any] = {}
    if labels:
        merged["Labels"] = {**_inherited(inner.get("Labels"), "labels"), **labels}
    if env:
        merged["Env"] = _merged_env(_strings(inner, "Env"), env)
    rootfs = settings["rootfs"]
    return {
        **settings,
        "created": timestamp(created),
        "config": {**inner, **merged},
        "rootfs": {**rootfs, "diff_ids": [*rootfs["diff_ids"], layer.diff_id]},
        "history": [
            *(settings.get("history") or []),
            {"created": timestamp(created), "created_by": created_by, "comment": "sglang-overlay"},
        ],
    }


def _inherited(value: Any, what: str) -> dict[str, str]:
    """Labels or annotations of a base that hold for an image made from it too."""
    return {key: text for key, text in _texts(value, what).items() if key not in OF_ITS_OWN_BASE}


def _merged_env(base: Sequence[str], env: Mapping[str, str]) -> list[str]:
    names = [entry.partition("=")[0] for entry in base]
    kept = [f"{name}={env[name]}" if name in env else entry for name, entry in zip(names, base, strict=True)]
    return kept + [f"{name}={env[name]}" for name in sorted(set(env) - set(names))]


def check_base(manifest: RawManifest, config: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Manifest and config as JSON, once they agree with each other and have room for a layer.

    Raises:
        ImageMismatch: they do not; nothing but these two is needed to say so.
    """
    base, settings = _read_manifest(manifest), json_object(config, "image config")
    where = f"base manifest {manifest.digest}"
    if base_config(manifest).digest != sha256_digest(config):
        raise ImageMismatch(
            "the config is not the one that the base's manifest names",
            where=where,
            expected=base_config(manifest).digest,
            found=sha256_digest(config),
        )
    layers, ids = len(base_layers(manifest)), len(diff_ids(config))
    if layers != ids:
        raise ImageMismatch(
            "the base contradicts itself",
            where=where,
            expected=f"a diff ID for each of {counted(layers, 'layer')}",
            found=f"{counted(ids, 'diff ID')} in its config",
        )
    filled = _filled_history(settings, where)
    if filled > layers:
        # Fewer entries than layers are allowed (history is optional), more make Docker refuse the image.
        raise ImageMismatch(
            "the base contradicts itself",
            where=where,
            expected=f"at most {layers} entries of history that made a layer",
            found=f"{filled} of them",
        )
    if layers + 1 > MAX_LAYERS:
        raise ImageMismatch(
            "the base has no room for one more layer",
            where=where,
            expected=f"at most {MAX_LAYERS - 1} layers, of the {MAX_LAYERS} that container engines can stack",
            found=counted(layers, "layer"),
            hint="squash the base into fewer layers, push it, and pin the result",
        )
    return base, settings


def _filled_history(settings: dict[str, Any], where: str) -> int:
    history = settings.get("history") or []
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise _broken(where, "a history that is not a list of objects")
    return sum(not entry.get("empty_layer") for entry in history)


def _read_manifest(manifest: RawManifest) -> dict[str, Any]:
    where = f"manifest {manifest.digest}"
    if manifest.media_type not in MANIFEST_TYPES:
        raise ImageMismatch(
            "not the manifest of a single image",
            where=where,
            expected=" or ".join(sorted(MANIFEST_TYPES)),
            found=manifest.media_type,
            hint="choose one image of an index by its platform first",
        )
    base = json_object(manifest.data, where)
    if not isinstance(base.get("layers"), list) or not isinstance(base.get("config"), dict):
        raise _broken(where, "no config or no list of layers")
    return base


def _inner(settings: dict[str, Any]) -> dict[str, Any]:
    inner = {} if settings.get("config") is None else settings["config"]
    if not isinstance(inner, dict):
        raise _broken("image config", "settings that are not an object")
    return inner


def _texts(value: object, what: str) -> dict[str, str]:
    """An object whose values are strings; none at all is an empty one."""
    found = {} if value is None else value
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise _broken("image", f"{what} that are not an object of strings")
    return found


def _strings(inner: dict[str, Any], key: str) -> list[str]:
    found = inner.get(key) or []
    if not isinstance(found, list) or not all(isinstance(entry, str) for entry in found):
        raise _broken("image config", f"{key} that is not a list of strings")
    return found


def _broken(where: str, found: str) -> ImageMismatch:
    return ImageMismatch("an image's metadata cannot be read", where=where, found=found)
