"""What refers to an image (signatures, attestations): the fallback for registries without a referrers API.

Follows OCI distribution-spec 1.1, "Referrers tag schema": an index under a tag made from the image's digest.
"""

from __future__ import annotations

from builder.errors import ImageMismatch
from builder.oci.document import json_object
from builder.oci.model import OCI_INDEX, Descriptor, RawManifest, canonical_json, is_digest


def referrers_tag(digest: str) -> str:
    """The tag under which referrers of the image with this digest are listed: ``sha256-<hex>``."""
    return digest.replace(":", "-")


def lists_referrers(tag: str) -> bool:
    """Whether a tag is one that :func:`referrers_tag` makes."""
    return tag.startswith("sha256-") and is_digest(tag.replace("-", ":", 1))


def subject_of(manifest: RawManifest, where: str) -> str:
    """The digest of the image that ``manifest`` is about.

    Raises:
        ImageMismatch: it is about none.
    """
    subject = json_object(manifest.data, where).get("subject")
    digest = subject.get("digest") if isinstance(subject, dict) else None
    if not isinstance(digest, str) or not is_digest(digest):
        raise ImageMismatch("a referrer names no subject", where=where, expected="subject.digest (sha256:…)")
    return digest


def referrer_descriptor(manifest: RawManifest, where: str) -> Descriptor:
    """How a list of referrers speaks of ``manifest``: with its artifact type and annotations."""
    document = json_object(manifest.data, where)
    config = document.get("config")
    own_type = document.get("artifactType") or (config.get("mediaType") if isinstance(config, dict) else None)
    value = manifest.descriptor.as_json() | {
        "artifactType": own_type,
        "annotations": document.get("annotations") or {},
    }
    return Descriptor.from_json(value, where)


def listed(index: RawManifest | None, where: str) -> list[Descriptor]:
    """The referrers that an index lists; none where there is no index.

    Raises:
        ImageMismatch: it is not an index, or damaged.
    """
    if index is None:
        return []
    manifests = json_object(index.data, where).get("manifests")
    if not index.is_index or not isinstance(manifests, list):
        raise ImageMismatch(
            "what is under the tag for referrers is not a list of them",
            where=where,
            expected=OCI_INDEX,
            found=index.media_type,
        )
    return [Descriptor.from_json(entry, where) for entry in manifests]


def listing(referrers: list[Descriptor]) -> RawManifest:
    """The index that lists ``referrers``, in their order."""
    manifests = [descriptor.as_json() for descriptor in referrers]
    return RawManifest(
        OCI_INDEX, canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests})
    )
