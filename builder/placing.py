"""Where a hunk lands: at its declared line, or at the one other place its lines fit. Never with fuzz."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from builder.diff import Hunk

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
    first, count = wanted[0], len(wanted)
    found: list[int] = []
    start = 0
    while True:
        try:
            start = lines.index(first, start, len(lines) - count + 1)
        except ValueError:
            return found
        if list(lines[start : start + count]) == list(wanted):
            found.append(start)
        start += 1


def places_of(hunk: Hunk, lines: Sequence[bytes]) -> list[int]:
    """Every index of ``lines`` at which the hunk fits exactly.

    A hunk with less context on one side than on the other was cut at the file's beginning or end, and
    fits only there (as git-apply has it).
    """
    old = hunk.old
    if not old:
        # Nothing to compare: an insertion without context names its line, and that is all there is.
        return [hunk.old_start] if hunk.old_start <= len(lines) else []
    leading, trailing = hunk.leading_context, hunk.trailing_context
    at_start = hunk.old_start <= 1 and leading < trailing
    at_end = trailing < leading
    found = find_lines(lines, old)
    if at_start:
        found = [place for place in found if place == 0]
    if at_end:
        found = [place for place in found if place + len(old) == len(lines)]
    return found


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


def _nearest(path: str, number: int, hunk: Hunk, lines: Sequence[bytes]) -> Problem:
    """A conflict, with the lines that differ at the place that is most like the hunk's pre-image."""
    old = hunk.old
    best, score = 0, -1.0
    declared = hunk.old_start - 1
    wanted = {line for line in old if line.strip()}
    for start in range(max(1, len(lines) - len(old) + 1)):
        window = lines[start : start + len(old)]
        equal = sum(a == b for a, b in zip(window, old, strict=False)) + sum(
            line in wanted for line in window
        )
        here = equal - min(abs(start - declared), 10_000) / 1e6
        if here > score:
            best, score = start, here
    window = lines[best : best + len(old)]
    shown = [
        line.rstrip("\n")
        for line in difflib.ndiff(
            [line.decode("utf-8", "replace") for line in old],
            [line.decode("utf-8", "replace") for line in window],
        )
        if not line.startswith("?")
    ]
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
