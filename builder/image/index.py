"""The images of an image index, without what is no image (attestations)."""

from __future__ import annotations

from dataclasses import replace

from builder.errors import ImageMismatch
from builder.image.document import json_object
from builder.image.model import MANIFEST_TYPES, Descriptor, Platform, RawManifest

MOST_CHILDREN = 500


def index_images(manifest: RawManifest) -> list[Descriptor]:
    """The platform images of an index, in its order (OCI image-spec 1.1, image-index).

    Children that are no image manifest, or whose platform is ``unknown/unknown`` as BuildKit's
    attestations have it, are left out; of a platform that comes twice, the first counts, as for engines.

    Raises:
        ImageMismatch: the index cannot be read.
    """
    where = f"index {manifest.digest}"
    entries = json_object(manifest.data, where).get("manifests")
    if not isinstance(entries, list) or len(entries) > MOST_CHILDREN:
        raise ImageMismatch("image index cannot be read", where=where, expected="a list of manifests")
    found: dict[Platform, Descriptor] = {}
    for entry in entries:
        child = Descriptor.from_json(entry, where)
        if child.media_type in MANIFEST_TYPES and child.platform is not None and child.platform.is_known:
            platform = child.platform.canonical
            found.setdefault(platform, replace(child, platform=platform))
    return list(found.values())
