"""Where a hunk lands: at the one place that is meant, as far as that is a fact. Never with fuzz.

Where the file is the very one that the patch was made for, the declared line is the place. Else every place
that its lines fit is a candidate, and the section heading tells which one is in the definition that is meant.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from builder.patch.diff import FULL_CONTEXT, FileDiff, Hunk
from builder.patch.headings import Headings, indentation, leaves
from builder.printable import counted
from builder.source.files import SourceFile

MAX_NAMED_PLACES = 20
_SHOWN_LINES = 60
_SEARCHED_LINES = 20_000
_SEARCHES = 16  # of one file, from which on it pays to know where each of its lines stands

ProblemKind = Literal[
    "conflict",
    "ambiguous",
    "already",
    "overlap",
    "endings",
    "missing",
    "exists",
    "content",
    "binary",
    "unsupported",
]


@dataclass(frozen=True)
class PlacedHunk:
    """A hunk and the lines (from 1) it declared and landed on in the pre-image."""

    declared: int
    landed: int


def numbered_lines(hunk: Hunk, place: PlacedHunk, shift: int) -> Iterator[tuple[bytes, int, int]]:
    """Each line of a hunk, with its sign, and its number (from 1) in the file before and after.

    Args:
        hunk, place: the hunk and where it landed.
        shift: lines that the hunks before it add to the file.
    """
    old = place.landed if hunk.old_count else place.landed + 1
    new = old + shift
    for line in hunk.lines:
        yield line, old, new
        old += line[:1] != b"+"
        new += line[:1] != b"-"


@dataclass(frozen=True)
class Problem:
    """Why a patch does not apply to a file.

    Args:
        kind: what is wrong.
        path: the file.
        hunk: its number in the file's diff, from 1; None where the whole file is meant.
        what: one sentence.
        expected, found: what should have been there and what was.
        places: line numbers that matter (where the hunk fits, or where the change already is).
        details: a diff of the expected lines against the nearest ones there are.
        hint: what to do, where that is not to repair the patch or to ask whether upstream has the fix.
    """

    kind: ProblemKind
    path: str
    hunk: int | None
    what: str
    expected: str = ""
    found: str = ""
    places: tuple[int, ...] = ()
    details: str = ""
    hint: str = ""

    def advice(self, series: str) -> str:
        """The hint to the owner of a series, with the command that follows it."""
        if self.kind == "ambiguous":
            return f"{self.hint}: overlay patch import {series} REPO BASE..HEAD"
        return self.hint


class Lines(list[bytes]):
    """The lines of a file, each with its newline, and the file's bytes; it is not changed.

    Args:
        data: the bytes; only ``\\n`` ends a line.
    """

    def __init__(self, data: bytes) -> None:
        *whole, last = data.split(b"\n")
        super().__init__([line + b"\n" for line in whole] + ([last] if last else []))
        self.data = data
        self._sought = 0

    def find(self, wanted: Sequence[bytes]) -> list[int]:
        """Every index at which these lines stand."""
        self._sought += 1
        # A file of many hunks is asked often: then knowing where each line stands pays.
        at, starts = self._rarest(wanted) if self._sought > _SEARCHES else (0, None)
        if starts is None:
            return _find_bytes(self.data, b"".join(wanted))
        count, wanted = len(wanted), list(wanted)
        return [
            start - at for start in starts if start >= at and self[start - at : start - at + count] == wanted
        ]

    def _rarest(self, wanted: Sequence[bytes]) -> tuple[int, Sequence[int] | None]:
        """Which of these lines stands least often, and where; None where all stand too often."""
        at = min(range(len(wanted)), key=lambda n: len(self.numbers.get(wanted[n], ())))
        starts = self.numbers.get(wanted[at], ())
        return at, starts if len(starts) * len(wanted) <= max(len(self), _SEARCHES) else None

    @cached_property
    def numbers(self) -> dict[bytes, list[int]]:
        """The indexes of each line."""
        found: dict[bytes, list[int]] = {}
        for number, line in enumerate(self):
            found.setdefault(line, []).append(number)
        return found

    @cached_property
    def bare(self) -> Lines:
        """The same lines whatever their endings."""
        return Lines(b"".join(line.rstrip(b"\r\n") + b"\n" for line in self))

    @cached_property
    def has_crlf(self) -> bool:
        """Whether a line ends as on Windows."""
        return any(line.endswith(b"\r\n") for line in self)


def split_lines(data: bytes) -> Lines:
    """Lines with their newlines; only ``\\n`` ends a line."""
    return Lines(data)


def find_lines(lines: Sequence[bytes], wanted: Sequence[bytes]) -> list[int]:
    """Every index at which ``wanted`` stands in ``lines``."""
    if not wanted:
        return []
    return (lines if isinstance(lines, Lines) else Lines(b"".join(lines))).find(wanted)


def _find_bytes(data: bytes, needle: bytes) -> list[int]:
    """The lines (indexes) at which bytes begin that are whole lines.

    Searched as one string: the time is then linear, also in a file of 100,000 equal lines.
    """
    ends_anywhere = needle.endswith(b"\n")
    found: list[int] = []
    counted = line = 0
    at = data.find(needle)
    while at >= 0:
        whole = at == 0 or data[at - 1 : at] == b"\n"
        if whole and (ends_anywhere or at + len(needle) == len(data)):
            line += data.count(b"\n", counted, at)
            counted = at
            found.append(line)
        at = data.find(needle, at + 1)
    return found


def places_of(hunk: Hunk, lines: Sequence[bytes]) -> list[int]:
    """Every index of ``lines`` at which the hunk fits exactly.

    A hunk with too little context on one side was cut at the file's beginning or end, and fits only there.
    """
    old = hunk.old
    if not old:
        # Nothing to compare: only an empty file is certain to be what was meant.
        return [] if lines else [0]
    found = find_lines(lines, old)
    if _cut_at_start(hunk):
        found = [place for place in found if place == 0]
    if _cut_at_end(hunk):
        found = [place for place in found if place + len(old) == len(lines)]
    return found


def _cut_at_start(hunk: Hunk) -> bool:
    leading, trailing = hunk.leading_context, hunk.trailing_context
    return leading == 0 or (hunk.old_start <= 1 and leading < min(trailing, FULL_CONTEXT))


def _cut_at_end(hunk: Hunk) -> bool:
    leading, trailing = hunk.leading_context, hunk.trailing_context
    return trailing == 0 or trailing < min(leading, FULL_CONTEXT)


def place_hunks(diff: FileDiff, pre: SourceFile | None) -> tuple[list[PlacedHunk], list[Problem]]:
    """Find the place of every hunk of one file.

    Args:
        diff: what the patch does to the file.
        pre: the file as it is where the patch is to be applied; None where it is not there.

    Returns:
        The places of the hunks that have one, and a problem for each that has none.
    """
    target = _Target(diff, pre)
    placed: list[PlacedHunk] = []
    problems: list[Problem] = []
    free_from = 0
    for number, hunk in enumerate(diff.hunks, 1):
        place = _choose(target, number, hunk)
        if isinstance(place, int) and place < free_from:
            what = "hunk overlaps the one before it"
            place = Problem("overlap", diff.old_path, number, what, places=(place + 1,))
        if isinstance(place, Problem):
            problems.append(place)
            continue
        free_from = place + hunk.old_count
        placed.append(PlacedHunk(hunk.old_start, place + hunk.old_start - declared_index(hunk)))
    return placed, problems


def declared_index(hunk: Hunk) -> int:
    """The index of the line at which a hunk says it begins."""
    return hunk.old_start - 1 if hunk.old_count else hunk.old_start


class _Target:
    """A file that a diff is to be applied to, and what is known of it."""

    def __init__(self, diff: FileDiff, pre: SourceFile | None) -> None:
        self.diff = diff
        self.path = diff.old_path
        self.lines = split_lines(pre.data if pre else b"")
        self._pre = pre

    @cached_property
    def is_the_one_meant(self) -> bool:
        """Whether it is the file that the patch was made for: the index line names its blob, or begins to."""
        blob = self.diff.old_blob
        return bool(blob and self._pre and blob.strip("0") and self._pre.blob.startswith(blob))

    @cached_property
    def headings(self) -> Headings:
        return Headings(self.lines)

    def meant(self, hunk: Hunk) -> set[int]:
        """The definitions here that the hunk's heading may name; none where it says nothing of its change.

        A heading speaks for the hunk's first line, and so for the first change only if no line up to that
        leaves the definition.
        """
        begin = [line[1:] for line in hunk.lines[: hunk.leading_context + 1]]
        named = self.headings.named(hunk.section) if hunk.section else []
        return {head for head in named if not leaves(begin, indentation(self.lines[head]))}

    @cached_property
    def candidates(self) -> list[tuple[tuple[int, ...], set[int]]]:
        """For each hunk, where it fits as far as its heading agrees, and what that heading may name."""
        known: dict[tuple[object, ...], tuple[tuple[int, ...], set[int]]] = {}
        keys = [(hunk.lines, hunk.section, hunk.old_start <= 1) for hunk in self.diff.hunks]
        for key, hunk in zip(keys, self.diff.hunks, strict=True):
            if key not in known:
                known[key] = self._candidates(hunk)
        return [known[key] for key in keys]

    def _candidates(self, hunk: Hunk) -> tuple[tuple[int, ...], set[int]]:
        places = places_of(hunk, self.lines)
        meant = self.meant(hunk) if places and not self.is_the_one_meant else set()
        return tuple(p for p in places if not meant or meant & self.headings.heads_of(p)), meant

    @cached_property
    def equals(self) -> dict[tuple[object, ...], list[int]]:
        """Numbers (from 0) of hunks that are equal and have the same candidates."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for number, hunk in enumerate(self.diff.hunks):
            groups.setdefault((hunk.lines, self.candidates[number][0]), []).append(number)
        return groups


def _choose(target: _Target, number: int, hunk: Hunk) -> int | Problem:
    """The index at which a hunk (its number from 1) lands, or why that is not known."""
    places, meant = target.candidates[number - 1]
    if target.is_the_one_meant and declared_index(hunk) in places:
        return declared_index(hunk)
    if not places:
        fits = places_of(hunk, target.lines) if meant else []
        if fits:
            return _elsewhere(target, number, hunk, fits, meant)
        return no_place(target.path, number, hunk, target.lines)
    if len(places) == 1:
        return places[0]
    # Equal hunks over equally many places: whichever takes which, the result is the same.
    equal = target.equals[hunk.lines, places]
    if len(equal) == len(places):
        return places[equal.index(number - 1)]
    return _ambiguous(target, number, hunk, places)


def apply_hunks(hunks: Sequence[Hunk], placed: Sequence[PlacedHunk], lines: Sequence[bytes]) -> bytes:
    """The post-image: ``lines`` with every hunk put in at its place."""
    result: list[bytes] = []
    position = 0
    for hunk, place in zip(hunks, placed, strict=True):
        start = place.landed - 1 if hunk.old_count else place.landed
        result += lines[position:start]
        result += hunk.new
        position = start + hunk.old_count
    return b"".join([*result, *lines[position:]])


def _ambiguous(target: _Target, number: int, hunk: Hunk, places: Sequence[int]) -> Problem:
    return Problem(
        "ambiguous",
        target.path,
        number,
        "hunk fits more than one place, and nothing says which one is meant",
        expected="one place, a section heading that names one, or the file that the patch was made for",
        found=_named_places(target, hunk, places),
        places=tuple(place + 1 for place in places[:MAX_NAMED_PLACES]),
        hint="write the patch with more context (git diff -U10), or import it from the repository it was "
        "made in, which has its history",
    )


def _elsewhere(
    target: _Target, number: int, hunk: Hunk, fits: Sequence[int], meant: Collection[int]
) -> Problem:
    """The heading names a definition that is there, and the hunk does not fit in it, only elsewhere."""
    heading = hunk.section.decode("utf-8", "replace")
    done = [
        place for place in find_lines(target.lines, hunk.new) if target.headings.heads_of(place) & set(meant)
    ]
    if done:
        return _already(target.path, number, done)
    heads = sorted(meant)[:MAX_NAMED_PLACES]
    return Problem(
        "conflict",
        target.path,
        number,
        "hunk's lines are not in the definition that its heading names, only elsewhere",
        expected=f"in {heading}, line " + ", ".join(str(head + 1) for head in heads),
        found=_named_places(target, hunk, fits),
        places=tuple(place + 1 for place in fits[:MAX_NAMED_PLACES]),
        hint="look at what upstream made of that definition; where its lines have moved, name the definition "
        "that has them now behind the hunk's second @@",
    )


def _named_places(target: _Target, hunk: Hunk, places: Sequence[int]) -> str:
    """Lines with the definitions they are in, at most :data:`MAX_NAMED_PLACES`."""
    shown = []
    for place in places[:MAX_NAMED_PLACES]:
        around = target.headings.place(place + hunk.leading_context)
        shown.append(f"line {place + 1}" + (f" ({around})" if around else ""))
    rest = len(places) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def no_place(path: str, number: int, hunk: Hunk, lines: Lines) -> Problem:
    """Why a hunk fits nowhere in a file.

    Args:
        path: the file.
        number: of the hunk, from 1.
        hunk: it.
        lines: the file's lines.
    """
    done = find_lines(lines, hunk.new)
    if done and hunk.new != hunk.old and any(line[:1] == b"+" for line in hunk.lines):
        return _already(path, number, done)
    if other := _other_endings(hunk, lines):
        return other_endings_problem(path, number, *other)
    if elsewhere := find_lines(lines, hunk.old):
        return _cut_hunk(path, number, hunk, elsewhere)
    if not hunk.old:
        return Problem(
            "conflict",
            path,
            number,
            "hunk has nothing that could be compared: no context and no removed line",
            expected="an empty file",
            found=counted(len(lines), "line"),
        )
    return _nearest(path, number, hunk, lines)


def _already(path: str, number: int, done: Sequence[int]) -> Problem:
    at = tuple(place + 1 for place in done[:MAX_NAMED_PLACES])
    return Problem(
        "already",
        path,
        number,
        "the change is already there",
        found=("line " if len(at) == 1 else "lines ") + ", ".join(map(str, at)),
        places=at,
    )


def other_endings_problem(path: str, number: int | None, patch: str, tree: str) -> Problem:
    """The patch's and the file's line endings differ."""
    return Problem(
        "endings",
        path,
        number,
        "line endings of patch and file differ",
        expected=f"{patch} (patch)",
        found=f"{tree} (file)",
    )


def _other_endings(hunk: Hunk, lines: Lines) -> tuple[str, str] | None:
    """The endings of patch and tree where the hunk would fit but for them."""
    if not hunk.old:
        return None
    patch_crlf = any(line.endswith(b"\r\n") for line in hunk.old)
    if patch_crlf == lines.has_crlf:
        return None
    if not lines.bare.find([line.rstrip(b"\r\n") + b"\n" for line in hunk.old]):
        return None
    names = {True: "CRLF", False: "LF"}
    return names[patch_crlf], names[lines.has_crlf]


def _cut_hunk(path: str, number: int, hunk: Hunk, elsewhere: Sequence[int]) -> Problem:
    """The lines are there, but the hunk shows that it belongs to the file's beginning or end."""
    edges = ("beginning", _cut_at_start(hunk)), ("end", _cut_at_end(hunk))
    at = tuple(place + 1 for place in elsewhere)
    return Problem(
        "conflict",
        path,
        number,
        "hunk has too little context on one side to stand in the middle of a file",
        expected="the " + " and the ".join(edge for edge, cut in edges if cut) + " of the file",
        found=("its lines at line " if len(at) == 1 else "its lines at lines ") + ", ".join(map(str, at)),
        places=at,
    )


def _nearest(path: str, number: int, hunk: Hunk, lines: Lines) -> Problem:
    """A conflict, with the lines that differ at the place that is most like the hunk's pre-image."""
    old = hunk.old[:_SHOWN_LINES]
    best = _most_alike(old, lines, hunk.old_start - 1)
    shown = _differing(old, lines[best : best + len(old)])
    expected = next((line[2:] for line in shown if line.startswith("- ")), "")
    found = next((line[2:] for line in shown if line.startswith("+ ")), "")
    return Problem(
        "conflict",
        path,
        number,
        "hunk's lines are not in the file",
        expected=expected.strip(),
        found=found.strip(),
        places=(best + 1,),
        details="\n".join(shown),
    )


def _most_alike(old: Sequence[bytes], lines: Lines, declared: int) -> int:
    """The index of the place with the most lines in common; the one nearest to ``declared`` of several."""
    first = max(0, declared - _SEARCHED_LINES)
    last = min(max(1, len(lines) - len(old) + 1), declared + _SEARCHED_LINES)
    if first >= last:
        return 0
    # Only places that have a line in common are looked at: by where each line stands.
    equal: Counter[int] = Counter()
    for at, line in enumerate(old):
        equal.update(_between(lines, line, first + at, last + at, at))
    for line in {line for line in old if line.strip()}:
        for at in range(len(old)):
            equal.update(_between(lines, line, first + at, last + at, at))
    nearest = min(max(declared, first), last - 1)
    return max(sorted({nearest, *equal}), key=lambda at: equal[at] - min(abs(at - declared), 10_000) / 1e6)


def _between(lines: Lines, line: bytes, first: int, last: int, less: int) -> Iterator[int]:
    """Where a line stands from ``first`` to before ``last``, each less by as much."""
    numbers = lines.numbers.get(line, [])
    return (n - less for n in numbers[bisect_left(numbers, first) : bisect_left(numbers, last)])


def _differing(old: Sequence[bytes], new: Sequence[bytes]) -> list[str]:
    """``- `` expected, ``+ `` found and two blanks before common lines, as text."""
    shown: list[str] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            shown += [f"  {_text(line)}" for line in old[a:b]]
        else:
            shown += [f"- {_text(line)}" for line in old[a:b]]
            shown += [f"+ {_text(line)}" for line in new[c:d]]
    return shown


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r\n")
