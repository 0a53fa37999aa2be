"""The CycloneDX 1.6 bill of materials of an image: each patched package, with its patches as pedigree."""

from __future__ import annotations

import base64
import datetime
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from builder import __version__
from builder.oci.model import canonical_json
from builder.record.manifest import Manifest, PatchRecord, RootRecord

if TYPE_CHECKING:
    from cyclonedx.model.component import Component, Patch, PatchClassification

_COMMIT = re.compile(r"\b[0-9a-f]{40}\b")


def bill_of_materials(manifest: Manifest, digest: str, created: int, patches: Mapping[str, bytes]) -> bytes:
    """A CycloneDX 1.6 document, as canonical JSON; the same for the same arguments.

    Args:
        manifest: the image's manifest.
        digest: of the platform manifest; the serial number follows from it.
        created: the image's time, in seconds since 1970.
        patches: the patches' bytes by name, as far as they are at hand; they go in as diffs.
    """
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.tool import ToolRepository
    from cyclonedx.output.json import JsonV1Dot6

    tool = Component(
        name="sglang-overlay", version=__version__, type=ComponentType.APPLICATION, bom_ref="sglang-overlay"
    )
    image = Component(
        name=manifest.overlay.name,
        version=manifest.overlay.version,
        type=ComponentType.CONTAINER,
        description=manifest.overlay.summary,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest.removeprefix("sha256:"))],
        bom_ref=digest,
    )
    packages = [_package(manifest, root, patches) for root in manifest.roots]
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"https://sglang-overlay.dev/bom/{digest}"),
        components=packages,
        metadata=BomMetaData(
            tools=ToolRepository(components=[tool]),
            component=image,
            timestamp=datetime.datetime.fromtimestamp(created, datetime.UTC),
        ),
    )
    bom.register_dependency(image, packages)
    return canonical_json(json.loads(JsonV1Dot6(bom).output_as_string()))


def classification(status: str) -> PatchClassification:
    """CycloneDX's word for an ``Upstream-Status``: a named commit taken over is a cherry-pick."""
    from cyclonedx.model.component import PatchClassification

    if not status.startswith("Backport"):
        return PatchClassification.UNOFFICIAL
    return PatchClassification.CHERRY_PICK if _COMMIT.search(status) else PatchClassification.BACKPORT


def _package(manifest: Manifest, root: RootRecord, patches: Mapping[str, bytes]) -> Component:
    from cyclonedx.model import Property, XsUri
    from cyclonedx.model.component import Commit, Component, ComponentType, Pedigree
    from packageurl import PackageURL

    name = root.distribution or root.path.rpartition("/")[2]
    version = root.version or manifest.upstream.release.removeprefix("v")
    upstream = manifest.upstream
    own = [patch for patch in manifest.patches if any(_is_below(f.path, root) for f in patch.files)]
    commits = [Commit(uid=upstream.commit, url=XsUri(upstream.repository))] if upstream.commit else []
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=PackageURL("pypi", name=name, version=version),
        bom_ref=f"{name}@{version}",
        modified=True,
        properties=[
            Property(name="sglang-overlay:image-path", value=root.image_path),
            Property(name="sglang-overlay:patchset", value=manifest.patchset),
        ],
        pedigree=Pedigree(commits=commits, patches=[_patch(patch, patches.get(patch.name)) for patch in own]),
    )


def _is_below(path: str, root: RootRecord) -> bool:
    return path.startswith(root.path + "/")


def _patch(patch: PatchRecord, data: bytes | None) -> Patch:
    from cyclonedx.model import AttachedText, Encoding, XsUri
    from cyclonedx.model.component import Diff, Patch
    from cyclonedx.model.issue import IssueClassification, IssueType, IssueTypeSource

    diff = None
    if data is not None:
        text = base64.b64encode(data).decode()
        diff = Diff(text=AttachedText(content=text, content_type="text/x-patch", encoding=Encoding.BASE_64))
    return Patch(
        type=classification(patch.status),
        diff=diff,
        resolves=_unique(
            IssueType(
                type=IssueClassification.DEFECT,
                id=bug.rstrip("/").rpartition("/")[2],
                name=patch.subject,
                description=f"patch {patch.name}, sha256 {patch.sha256}",
                source=IssueTypeSource(url=XsUri(bug)),
            )
            for bug in patch.bugs or ()
        ),
    )


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
