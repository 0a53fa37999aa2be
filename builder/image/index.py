"""The images of an image index, without what is no image (attestations)."""

from __future__ import annotations

from builder.errors import ImageMismatch
from builder.image.document import json_object
from builder.image.model import MANIFEST_TYPES, Descriptor, Platform, RawManifest, is_digest

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
        child = _child(entry, where)
        if child is not None and child.platform is not None:
            found.setdefault(child.platform, child)
    return list(found.values())


def _child(entry: object, where: str) -> Descriptor | None:
    match entry:
        case {"mediaType": str(media_type), "digest": str(digest), "size": int(size), **rest}:
            if not is_digest(digest) or size < 0:
                raise ImageMismatch("image index names no valid digest", where=where, found=digest[:80])
            match rest.get("platform"):
                case {"os": str(system), "architecture": str(architecture), **more}:
                    variant = more.get("variant")
                    platform = Platform(system, architecture, variant if isinstance(variant, str) else "")
                    if media_type in MANIFEST_TYPES and system != "unknown":
                        notes = _texts(rest.get("annotations"))
                        return Descriptor(media_type, digest, size, platform.canonical, notes)
            return None
    raise ImageMismatch("image index has an entry that is no descriptor", where=where, found=str(entry)[:80])


def _texts(value: object) -> dict[str, str]:
    """Annotations; what is none is left out."""
    pairs = value.items() if isinstance(value, dict) else ()
    return {key: text for key, text in pairs if isinstance(key, str) and isinstance(text, str)}
