"""All that an overlay demands of its base: what its patches do in trailers, and its spec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from packaging.utils import canonicalize_name

from builder.patch.patch import Patch
from builder.project.requirements import TRAILER, Requirement, parse_requirements


def requirements_of(
    patches: Iterable[Patch], spec: Mapping[str, str] | None = None
) -> tuple[Requirement, ...]:
    """All that patches and a spec demand, the spec's first.

    Args:
        patches: of a series.
        spec: ``requires`` of the overlay: a specifier by name.

    Raises:
        InvalidInput: a patch's trailer is not a requirement.
    """
    found = [
        Requirement(canonicalize_name(name), versions, "spec") for name, versions in (spec or {}).items()
    ]
    for patch in patches:
        for value in patch.values(TRAILER):
            found += parse_requirements(value, where=f"{patch.name}.patch: {TRAILER}", by=patch.name)
    return tuple(dict.fromkeys(found))
