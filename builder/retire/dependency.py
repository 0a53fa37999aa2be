"""Evidence by dependency: the versions of other packages that a tree asks for, and the tree with others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.probe.harness import Tree
from builder.probe.trees import MappingTree
from builder.project.requirements import TRAILER, Requirement
from builder.retire.evidence import Dependency

METADATA = "python/sglang.dist-info/METADATA"
PYPROJECT = "python/pyproject.toml"
ASSERTED = "python/sglang/srt/entrypoints/engine.py"

_SPECIFIER = rb"(?:[=!<>~]=?=?[^\s,;\"')]+,?[ \t]*)+"
# One pattern a file: group 1 is the distribution's name, group 2 the version or specifier.
_PATTERNS = {
    METADATA: re.compile(
        rb"^Requires-Dist:\s*([A-Za-z0-9._-]+)(?:\[[^]\n]*\])?\s*\(?(" + _SPECIFIER + rb")", re.MULTILINE
    ),
    PYPROJECT: re.compile(rb"[\"']([A-Za-z0-9._-]+)(?:\[[^]\n]*\])?\s*(" + _SPECIFIER + rb")[^\"']*[\"']"),
    ASSERTED: re.compile(rb"assert_pkg_version\(\s*[\"']([A-Za-z0-9._-]+)[\"'],\s*[\"']([^\"']+)[\"']"),
}


@dataclass(frozen=True)
class Pin:
    """A version that a tree asks for, and the file that says so."""

    specifier: str
    source: str


def read_pins(tree: Tree) -> dict[str, Pin]:
    """The versions that a tree asks for, by normalised name (PEP 503).

    The wheel's metadata comes first, else ``pyproject.toml``, else what the source asserts when it starts (as
    ``>=``).
    """
    found: dict[str, Pin] = {}
    for path, pattern in _PATTERNS.items():
        for name, version in _matches(tree, path, pattern):
            specifier = f">={version}" if path == ASSERTED else version
            found.setdefault(canonicalize_name(name), Pin(specifier, path))
    return found


def compare_pins(names: Iterable[str], pin: dict[str, Pin], target: dict[str, Pin]) -> tuple[Dependency, ...]:
    """The distributions as the pinned tree and the target ask for them."""
    found = []
    for name in dict.fromkeys(map(canonicalize_name, names)):
        was, now = pin.get(name), target.get(name)
        source = now.source if now else was.source if was else ""
        found.append(Dependency(name, was.specifier if was else None, now.specifier if now else None, source))
    return tuple(found)


def clashes(requirements: Iterable[Requirement], pins: Mapping[str, Pin]) -> list[str]:
    """The requirements that what a tree asks for cannot meet, in words.

    Only what is certain: a pinned version that is none of those, or bounds that leave nothing between them.
    """
    found = []
    for one in requirements:
        pin = pins.get(one.name)
        if pin is not None and _exclude(one.specifier, pin.specifier):
            found.append(f"{TRAILER}: {one}, and {pin.source} asks for {one.name}{pin.specifier}")
    return found


def _exclude(wanted: str, pinned: str) -> bool:
    """Whether no version is of both specifiers, as far as their bounds say."""
    try:
        both = [*SpecifierSet(wanted), *SpecifierSet(pinned)]
    except InvalidSpecifier:
        return False
    exact = [one.version for one in both if one.operator == "==" and not one.version.endswith(".*")]
    if exact:
        return not all(one.contains(exact[0], prereleases=True) for one in both)
    lower = [(Version(one.version), one.operator) for one in both if one.operator in (">=", ">")]
    upper = [(Version(one.version), one.operator) for one in both if one.operator in ("<=", "<")]
    return any(
        low > high or (low == high and (below, above) != (">=", "<="))
        for low, below in lower
        for high, above in upper
    )


def with_pins(tree: Tree, dependencies: Iterable[Dependency]) -> Tree:
    """The tree as if it asked for the pinned versions: what would be if these dependencies went back."""
    changed: dict[str, bytes | None] = {}
    back = {d.name: d.pinned.encode() for d in dependencies if d.pinned is not None and d.target is not None}
    for path, pattern in _PATTERNS.items():
        if path in tree:
            changed[path] = pattern.sub(partial(_replaced, back, path), tree.read(path))
    return MappingTree(changed, under=tree)


def _matches(tree: Tree, path: str, pattern: re.Pattern[bytes]) -> Iterator[tuple[str, str]]:
    if path in tree:
        for match in pattern.finditer(tree.read(path)):
            yield match[1].decode(), match[2].decode().strip().rstrip(",")


def _replaced(back: dict[str, bytes], path: str, match: re.Match[bytes]) -> bytes:
    version = back.get(canonicalize_name(match[1].decode()))
    if version is None:
        return match[0]
    if path == ASSERTED:
        version = version.lstrip(b"=<>!~")
    start, end = match.start(2) - match.start(), match.end(2) - match.start()
    return match[0][:start] + version + match[0][end:]
