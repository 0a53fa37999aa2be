"""What a patch or an overlay demands of its base: versions of distributions (PEP 440), and of CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Pep508
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builder.errors import ImageMismatch, InvalidInput

TRAILER = "Overlay-Requires"
CUDA = "cuda"
"""What the base's CUDA is called among distributions."""

Installed = Mapping[str, str | None]
"""What of the demanded a base has: versions by normalised name, ``cuda`` among them; None for what is not."""

ALTERNATIVES = " and "
"""Between versions of which nobody knows the right one: a base has the metadata of several installations."""

# A comma before a name begins the next requirement; one before an operator goes on with this one's versions.
_NEXT = re.compile(r",\s*(?=[A-Za-z])")


@dataclass(frozen=True)
class Requirement:
    """A distribution that must be installed, or CUDA, in one of some versions.

    Args:
        name: normalised (PEP 503).
        specifier: PEP 440, such as ``<0.1.13,>=0.1.10``; empty where any version will do.
        by: who demands it: a patch's name, or ``spec``.
    """

    name: str
    specifier: str
    by: str = ""

    def __str__(self) -> str:
        return f"{self.name}{self.specifier}"

    def allows(self, version: str | None) -> bool:
        """Whether a version, and each that it may be, is one of those; what PEP 440 does not know is none."""
        return version is not None and all(map(self._allows, version.split(ALTERNATIVES)))

    def _allows(self, version: str) -> bool:
        try:
            return SpecifierSet(self.specifier).contains(Version(version), prereleases=True)
        except InvalidVersion:
            return not self.specifier


def parse_requirements(text: str, *, where: str, by: str = "") -> tuple[Requirement, ...]:
    """``tilelang>=0.1.10,<0.1.13``, or several of them with commas between.

    Args:
        text: what is written.
        where: for errors.
        by: who demands it.

    Raises:
        InvalidInput: it is none, or asks for more than a version (extras, a marker, a URL).
    """
    return tuple(_parse(part, where, by) for part in _NEXT.split(text.strip()))


def _parse(text: str, where: str, by: str) -> Requirement:
    wrong = InvalidInput(
        "not a requirement",
        where=where,
        expected="NAME and versions (PEP 440), such as tilelang>=0.1.10,<0.1.13 or cuda>=13.0",
        found=text,
    )
    try:
        found = Pep508(text)
    except InvalidRequirement as error:
        raise wrong from error
    if found.extras or found.marker or found.url:
        raise wrong
    return Requirement(canonicalize_name(found.name), str(found.specifier), by)


def check_specifier(text: str) -> str:
    """A version specifier in canonical order; a :class:`ValueError` if it is none (PEP 440)."""
    try:
        return str(SpecifierSet(text))
    except InvalidSpecifier as error:
        raise ValueError("must be versions such as >=0.1.10,<0.1.13 (PEP 440)") from error


def said_of(requirement: Requirement, installed: Installed) -> str:
    """What a base has of what is demanded, for people."""
    version = installed.get(requirement.name)
    if version is not None:
        return f"{requirement.name} {version}"
    if requirement.name == CUDA:
        return "no CUDA version: neither CUDA_VERSION nor /usr/local/cuda/version.json"
    return f"{requirement.name} is not installed"


def unmet(requirements: Iterable[Requirement], installed: Installed) -> list[Requirement]:
    """The requirements that a base does not meet."""
    return [one for one in requirements if not one.allows(installed.get(one.name))]


def check_installed(requirements: Sequence[Requirement], installed: Installed, *, where: str) -> None:
    """The base must have what is demanded of it.

    Args:
        requirements: of the overlay and its patches.
        installed: what the base has.
        where: the base.

    Raises:
        ImageMismatch: naming each requirement with what was found and who demands it.
    """
    wrong = unmet(requirements, installed)
    if not wrong:
        return
    first = wrong[0]
    raise ImageMismatch(
        f"the base does not have what the overlay requires: {', '.join(dict.fromkeys(map(str, wrong)))}",
        where=where,
        expected=f"{first} ({_by(first)})",
        found=said_of(first, installed),
        hint="take a base that has it; or leave the patch out (patches.except), where another will do",
        details="\n".join(f"{one} ({_by(one)}): {said_of(one, installed)}" for one in wrong)
        if wrong[1:]
        else None,
        facts={"requires": [facts_of(one, installed) for one in wrong]},
    )


def facts_of(requirement: Requirement, installed: Installed) -> dict[str, Any]:
    """A requirement and what was found, for records."""
    return {
        "name": requirement.name,
        "specifier": requirement.specifier,
        "by": requirement.by,
        "found": installed.get(requirement.name),
    }


def _by(requirement: Requirement) -> str:
    return "the spec" if requirement.by == "spec" else f"patch {requirement.by}"
