"""The images of an image index, without what is not an image (attestations)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from builder.errors import ImageMismatch
from builder.oci.append import base_config, platform_of
from builder.oci.document import json_object
from builder.oci.model import (
    DOCKER_CONFIG,
    INDEX_TYPES,
    MANIFEST_TYPES,
    OCI_CONFIG,
    Descriptor,
    ImageSource,
    Platform,
    RawManifest,
)

MOST_CHILDREN = 500
MOST_NESTED = 4  # indexes inside an index
_CONFIG_TYPES = frozenset({OCI_CONFIG, DOCKER_CONFIG})


def index_images(manifest: RawManifest, source: ImageSource) -> list[Descriptor]:
    """The platform images of an index, in its order (OCI image-spec 1.1, image-index).

    Left out are children that are not an image, among them those whose platform is ``unknown/unknown`` as
    BuildKit's attestations have it; of a platform that comes twice, the first counts, as for engines. A child
    without a platform is asked for its config's, and an index inside the index for its own images.

    Args:
        manifest: the index.
        source: where it was read from.

    Raises:
        ImageMismatch: an index cannot be read, or holds too much.
        Unavailable: the registry did not answer.
    """
    found: dict[Platform, Descriptor] = {}
    for platform, child in _images(manifest, source, [MOST_NESTED]):
        found.setdefault(platform, replace(child, platform=platform))
    return list(found.values())


def _images(
    manifest: RawManifest, source: ImageSource, indexes_left: list[int]
) -> Iterator[tuple[Platform, Descriptor]]:
    where = f"index {manifest.digest}"
    entries = json_object(manifest.data, where).get("manifests")
    if not isinstance(entries, list) or len(entries) > MOST_CHILDREN:
        raise ImageMismatch("image index cannot be read", where=where, expected="a list of manifests")
    for entry in entries:
        child = Descriptor.from_json(entry, where)
        if child.media_type in INDEX_TYPES:
            indexes_left[0] -= 1
            if indexes_left[0] < 0:
                raise ImageMismatch(
                    "the image index holds too many other indexes",
                    where=where,
                    expected=f"at most {MOST_NESTED}",
                    hint="name the index or the image that is meant by its own digest",
                )
            yield from _images(source.get_manifest(child.digest), source, indexes_left)
        elif child.media_type in MANIFEST_TYPES and child.artifact_type is None:
            platform = child.platform or _configured_platform(child, source)
            if platform is not None and platform.is_known:
                yield platform.canonical, child


def _configured_platform(child: Descriptor, source: ImageSource) -> Platform | None:
    """What the config of an index's child says it is for; None where it is not an image's."""
    descriptor = base_config(source.get_manifest(child.digest))
    if descriptor.media_type not in _CONFIG_TYPES:
        return None
    return platform_of(source.read_blob(descriptor))
