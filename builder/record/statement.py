"""in-toto statements about an image: SLSA provenance v1, and the applied-patch manifest as a predicate.

Every statement follows from the manifest and the image's digest alone: no clock, no machine, no user.
"""

from __future__ import annotations

from typing import Any

from builder.oci.model import canonical_json
from builder.record.manifest import Manifest

STATEMENT = "https://in-toto.io/Statement/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
APPLIED_PATCHES = "https://sglang-overlay.dev/applied-patches/v1"
BILL_OF_MATERIALS = "https://cyclonedx.org/bom/v1.6"
BUILD_TYPE = "https://sglang-overlay.dev/build/v1"
BUILDER_ID = "https://sglang-overlay.dev/builder/v1"


def statement(manifest: Manifest, digest: str, predicate_type: str, predicate: object) -> bytes:
    """An in-toto Statement v1 about the image with this digest, as canonical JSON.

    Args:
        manifest: the image's manifest.
        digest: of the platform manifest, ``sha256:…``.
        predicate_type: a URI.
        predicate: a JSON value.
    """
    return canonical_json(
        {
            "_type": STATEMENT,
            "subject": [
                {
                    "name": manifest.overlay.name,
                    "digest": _sha256(digest),
                    "annotations": {"platform": manifest.base.platform},
                }
            ],
            "predicateType": predicate_type,
            "predicate": predicate,
        }
    )


def provenance(manifest: Manifest) -> dict[str, Any]:
    """The SLSA provenance v1 predicate: base, upstream and every patch as materials, by digest."""
    overlay, base, upstream = manifest.overlay, manifest.base, manifest.upstream
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "overlay": {"name": overlay.name, "version": overlay.version},
                "base": f"{base.ref}@{base.digest}",
                "platform": base.platform,
                "release": upstream.release,
                **({"format": "oci"} if base.media_type else {}),
            },
            "internalParameters": {
                "manifestSchema": manifest.schema_version,
                "patchset": manifest.patchset,
                "patchedTree": manifest.patched_tree,
            },
            "resolvedDependencies": [_base(manifest), _upstream(manifest), *_patches(manifest)],
        },
        "runDetails": {
            "builder": {"id": BUILDER_ID, "version": {"sglang-overlay": manifest.tool.partition(" ")[2]}},
            "byproducts": [
                {"name": "applied-patch manifest", "digest": _sha256(manifest.digest)},
                {"name": "patched tree", "digest": {"gitTree": manifest.patched_tree}},
            ],
        },
    }


def _base(manifest: Manifest) -> dict[str, Any]:
    base = manifest.base
    index = {"annotations": {"index": base.index}} if base.index else {}
    place = {"uri": f"docker://{base.ref}@{base.digest}"} if "/" in base.ref else {}
    return {"name": "base", **place, "digest": _sha256(base.digest), **index}


def _upstream(manifest: Manifest) -> dict[str, Any]:
    upstream = manifest.upstream
    digest = {"gitCommit": upstream.commit} if upstream.commit else {"gitTree": upstream.tree}
    return {
        "name": "upstream",
        "uri": f"git+{upstream.repository}@refs/tags/{upstream.release}",
        "digest": digest,
        "annotations": {"touchedTree": upstream.tree},
    }


def _patches(manifest: Manifest) -> list[dict[str, Any]]:
    return [
        {"name": f"{patch.name}.patch", "digest": {"sha256": patch.sha256}, "mediaType": "text/x-patch"}
        for patch in manifest.patches
    ]


def _sha256(digest: str) -> dict[str, str]:
    return {"sha256": digest.removeprefix("sha256:")}
