"""What a base says of itself, held against the pin: only words, so each contradiction is a note."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from packaging.version import InvalidVersion, Version

from builder.base.image import RootFact
from builder.project.spec import UpstreamSpec

REVISION = "org.opencontainers.image.revision"
_RELEASE = re.compile(r"v?\d+(\.\d+)+")
_COMMIT = re.compile(r"[0-9a-f]{7,40}\Z")


def contradictions(
    labels: Mapping[str, str], roots: Sequence[RootFact], upstream: UpstreamSpec
) -> tuple[str, ...]:
    """Where a base's installed metadata or labels say another source than the pin.

    Args:
        labels: of the base's config.
        roots: where the packages are, with the versions that their metadata gives.
        upstream: the pin.
    """
    return (*_versions(roots, upstream), *_revision(labels, upstream))


def _versions(roots: Sequence[RootFact], upstream: UpstreamSpec) -> Iterator[str]:
    for root in roots:
        wanted = _wanted(root, upstream)
        try:
            version, pinned = Version(root.version or ""), Version(wanted)
        except InvalidVersion:
            continue
        said = f"the base's {root.distribution} calls itself {root.version}"
        commit = re.match(r"g([0-9a-f]{7,40})\b", version.local or "")
        is_pin = commit is not None and (upstream.commit or "").startswith(commit[1])
        if version.public != pinned.public and not is_pin:
            yield f"{said}, and the overlay pins {wanted}"
        elif commit is not None and not is_pin:
            yield f"{said}, built of commit {commit[1]}, and the overlay pins {wanted}"


def _wanted(root: RootFact, upstream: UpstreamSpec) -> str:
    """The version that a root's package should have; empty where the pin does not say."""
    package = root.path.rpartition("/")[2]
    if package == "sglang":
        return upstream.release if _RELEASE.match(upstream.release) else ""
    wheel = upstream.packages.get(package)
    return wheel.requirement.partition("==")[2] if wheel else ""


def _revision(labels: Mapping[str, str], upstream: UpstreamSpec) -> Iterator[str]:
    said = labels.get(REVISION, "").lower()
    if _COMMIT.match(said) and upstream.commit and not upstream.commit.startswith(said):
        yield f"the base's label {REVISION} is {said}, and the overlay pins {upstream.commit}"
