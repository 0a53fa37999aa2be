"""Which patches of a series use what only another of its patches adds: a name, a keyword, an attribute."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from builder.patch.apply import AppliedSeries, PatchReport
from builder.patch.definitions import MODULE, Outline, outline_of, parse_source
from builder.patch.hunks import numbered_lines
from builder.retire.moved_code import grep, is_complete
from builder.source.upstream import Upstream

SHORTEST = 3
AT_ONCE = 500
"""Names that git looks for in a tree at once."""

_SOURCES = (".py", ".pyi")
_WORD = re.compile(rb"[A-Za-z_]\w*")


@dataclass(frozen=True)
class _Names:
    """The names in the lines that a patch adds: those it uses, binds, and gives to others."""

    used: frozenset[str]
    bound: frozenset[str]
    given: frozenset[str]


@dataclass
class _Met:
    used: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)


def uses_of(applied: AppliedSeries, pin: Upstream, target: Upstream) -> dict[str, dict[str, tuple[str, ...]]]:
    """For each patch the names that it uses and that only one other patch adds, by that other.

    Names that stand in the target as it is are left out.

    Args:
        applied: the series on its pin.
        pin, target: the trees.
    """
    usable = [report for report in applied.reports if not report.problems]
    words = {report.patch.name: _words(report) for report in usable}
    names: dict[str, _Names] = {}
    found: dict[str, dict[str, set[str]]] = {}
    for number, report in enumerate(usable):
        for other in usable[:number]:
            common = words[report.patch.name] & words[other.patch.name]
            if not any(_is_new(word, other) for word in common):
                continue
            for one in (report, other):
                if one.patch.name not in names:
                    names[one.patch.name] = _names(one)
            mine, theirs = names[report.patch.name], names[other.patch.name]
            shared = {n for n in mine.used & theirs.given - mine.bound if _is_new(n.encode(), other)}
            if shared:
                found.setdefault(report.patch.name, {})[other.patch.name] = shared
    wanted = {name for others in found.values() for some in others.values() for name in some}
    missing = wanted - _standing(wanted, pin, target)
    return {
        patch: {other: left for other, some in others.items() if (left := tuple(sorted(some & missing)))}
        for patch, others in found.items()
    }


def _standing(wanted: set[str], pin: Upstream, target: Upstream) -> set[str]:
    """The names that stand in the target, or in the pin: those are not a patch's own."""
    if not wanted or not is_complete(pin, target):
        return set(wanted)  # without every file nobody can say that a name stands nowhere
    there: set[str] = set()
    for mount in (pin.main, target.main):
        left = sorted(name.encode() for name in wanted - there)
        for first in range(0, len(left), AT_ONCE):
            names = tuple(left[first : first + AT_ONCE])
            rows = grep(mount.store.path, mount.commit, names, words=True)
            found = {
                word for path, _, text in rows if path.endswith(_SOURCES) for word in _WORD.findall(text)
            }
            there |= {word.decode() for word in found.intersection(names)}
    return there


def _words(report: PatchReport) -> set[bytes]:
    """The words of the lines that a patch adds to Python files."""
    return {
        word
        for diff in report.patch.files
        if diff.path.endswith(_SOURCES)
        for hunk in diff.hunks
        for line in hunk.lines
        if line[:1] == b"+"
        for word in _WORD.findall(line)
        if len(word) >= SHORTEST
    }


def _is_new(word: bytes, report: PatchReport) -> bool:
    """Whether the files that a patch changes do not have the word before it."""
    pattern = re.compile(rb"\b" + word + rb"\b")
    datas = [change.pre.data for change in report.files if change.pre is not None]
    return not any(word in data and pattern.search(data) for data in datas)


def _names(report: PatchReport) -> _Names:
    met = _Met()
    for change in report.files:
        if change.post is None or not change.path.endswith(_SOURCES):
            continue
        outline = outline_of(change.path, change.post.data)
        lines = set(_added(report, change.path))
        for start, tree in _trees(outline, lines):
            for node in ast.walk(tree):
                if getattr(node, "lineno", 0) + start in lines:
                    _meet(node, met)
    return _Names(frozenset(met.used), frozenset(met.bound), frozenset(met.bound | met.given))


def _added(report: PatchReport, path: str) -> Iterator[int]:
    """The numbers of the lines that a patch adds to a file, in the file afterwards."""
    for change in report.files:
        for diff in report.patch.files:
            if change.path != path or diff.path != path:
                continue
            shift = 0
            for hunk, place in zip(diff.hunks, change.hunks, strict=True):
                yield from (new for line, _, new in numbered_lines(hunk, place, shift) if line[:1] == b"+")
                shift += hunk.new_count - hunk.old_count


def _trees(outline: Outline, lines: set[int]) -> Iterator[tuple[int, ast.Module]]:
    """The syntax of the definitions that lines are in, and what to add to its line numbers."""
    for definition in {outline.enclosing(line) for line in lines}:
        text = outline.text(definition)
        tree = parse_source(text)
        if tree is not None:
            indented = definition.name != MODULE and text[:1] in (b" ", b"\t")
            yield definition.start - 1 - indented, tree


def _meet(node: ast.AST, met: _Met) -> None:
    if isinstance(node, ast.Name):
        (met.used if isinstance(node.ctx, ast.Load) else met.bound).add(node.id)
    elif isinstance(node, ast.Attribute):
        (met.used if isinstance(node.ctx, ast.Load) else met.given).add(node.attr)
    elif isinstance(node, ast.keyword) and node.arg is not None:
        met.used.add(node.arg)
    elif isinstance(node, ast.arg):
        met.bound.add(node.arg)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        met.bound.add(node.name)
    elif isinstance(node, ast.ImportFrom):
        met.used |= {alias.name for alias in node.names}


def hanging_on(
    uses: Mapping[str, tuple[str, ...]], out: Mapping[str, str]
) -> Sequence[tuple[str, str, tuple[str, ...]]]:
    """The other patches that one hangs on and that are not there: name, why, and what of it is used.

    Args:
        uses: names that it uses, by the patch that alone adds them.
        out: the patches that are not in the result, and why.
    """
    return [(other, out[other], names) for other, names in uses.items() if other in out]
