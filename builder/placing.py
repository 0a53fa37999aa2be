"""Where a hunk lands: at its declared line, or at the one other place its lines fit. Never with fuzz."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from builder.diff import Hunk

FULL_CONTEXT = 3
_SHOWN_LINES = 60
_SEARCHED_LINES = 20_000

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
    """

    kind: ProblemKind
    path: str
    hunk: int | None
    what: str
    expected: str = ""
    found: str = ""
    places: tuple[int, ...] = ()
    details: str = ""


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their newlines; only ``\\n`` ends a line."""
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def find_lines(lines: Sequence[bytes], wanted: Sequence[bytes]) -> list[int]:
    """Every index at which ``wanted`` stands in ``lines``."""
    if not wanted:
        return []
    # Searched as one string: the time is then linear, also in a file of 100,000 equal lines.
    data, needle = b"".join(lines), b"".join(wanted)
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


def place_hunks(
    path: str, hunks: Sequence[Hunk], lines: Sequence[bytes]
) -> tuple[list[PlacedHunk], list[Problem]]:
    """Find the place of every hunk of one file.

    Args:
        path: for the problems.
        hunks: in the order of the patch.
        lines: the pre-image's lines, newlines included.

    Returns:
        The places of the hunks that have one, and a problem for each that has none.
    """
    placed: list[PlacedHunk] = []
    problems: list[Problem] = []
    free_from = 0
    for number, hunk in enumerate(hunks, 1):
        declared = hunk.old_start - 1 if hunk.old_count else hunk.old_start
        places = places_of(hunk, lines)
        if declared in places:
            place = declared
        elif len(places) == 1:
            place = places[0]
        else:
            problems.append(_no_place(path, number, hunk, places, lines))
            continue
        if place < free_from:
            problems.append(
                Problem("overlap", path, number, "hunk overlaps the one before it", places=(place + 1,))
            )
            continue
        free_from = place + hunk.old_count
        shift = hunk.old_start - declared
        placed.append(PlacedHunk(hunk.old_start, place + shift))
    return placed, problems


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


def _no_place(path: str, number: int, hunk: Hunk, places: Sequence[int], lines: Sequence[bytes]) -> Problem:
    if len(places) > 1:
        at = tuple(place + 1 for place in places)
        return Problem(
            "ambiguous",
            path,
            number,
            "hunk fits more than one place, and not its declared line",
            expected=f"line {hunk.old_start}, or one place only",
            found="lines " + ", ".join(map(str, at)),
            places=at,
        )
    done = find_lines(lines, hunk.new)
    if done and hunk.new != hunk.old and any(line[:1] == b"+" for line in hunk.lines):
        at = tuple(place + 1 for place in done)
        return Problem(
            "already",
            path,
            number,
            "the change is already there",
            found="lines " + ", ".join(map(str, at)),
            places=at,
        )
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
            found=f"{len(lines)} lines",
        )
    return _nearest(path, number, hunk, lines)


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


def _other_endings(hunk: Hunk, lines: Sequence[bytes]) -> tuple[str, str] | None:
    """The endings of patch and tree where the hunk would fit but for them."""
    old = hunk.old
    bare_old = [line.rstrip(b"\r\n") for line in old]
    if not find_lines([line.rstrip(b"\r\n") for line in lines], bare_old):
        return None
    patch_crlf = any(line.endswith(b"\r\n") for line in old)
    tree_crlf = any(line.endswith(b"\r\n") for line in lines)
    names = {True: "CRLF", False: "LF"}
    return (names[patch_crlf], names[tree_crlf]) if patch_crlf != tree_crlf else None


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


def _nearest(path: str, number: int, hunk: Hunk, lines: Sequence[bytes]) -> Problem:
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


def _most_alike(old: Sequence[bytes], lines: Sequence[bytes], declared: int) -> int:
    """The index of the place with the most lines in common; the one nearest to ``declared`` of several."""
    wanted = {line for line in old if line.strip()}
    best, score = 0, -1.0
    last = max(1, len(lines) - len(old) + 1)
    for start in range(max(0, declared - _SEARCHED_LINES), min(last, declared + _SEARCHED_LINES)):
        window = lines[start : start + len(old)]
        equal = sum(map(bytes.__eq__, window, old)) + sum(map(wanted.__contains__, window))
        here = equal - min(abs(start - declared), 10_000) / 1e6
        if here > score:
            best, score = start, here
    return best


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
