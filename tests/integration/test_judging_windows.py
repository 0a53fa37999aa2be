"""A hunk merged with the lines around it becomes what it becomes in the whole file."""

from __future__ import annotations

import random

from builder.patch.diff import Hunk
from builder.patch.hunks import PlacedHunk, apply_hunks, split_lines
from builder.retire.windows import LARGE, FilePair
from builder.source.files import SourceFile
from builder.source.merge_tree import Scratch, ThreeWay, open_scratch

LINES = 900


def file(lines: list[bytes]) -> SourceFile:
    return SourceFile("100644", b"".join(lines))


def edited(lines: list[bytes], rng: random.Random) -> list[bytes]:
    """A target: lines changed, taken out and put in, here and there one large stretch of them."""
    result = list(lines)
    for number in range(rng.randint(1, 60)):
        at, count = rng.randrange(len(result)), rng.choice((0, 1, 1, 2, 5))
        if number == 0 and rng.random() < 0.3:
            count = LARGE + 50
        new = [b"target_%d\n" % rng.randrange(400) for _ in range(rng.choice((0, 1, 2, count)))]
        result[at : at + count] = new
    return result


def hunk_at(lines: list[bytes], ours: list[bytes], at: int, rng: random.Random) -> tuple[Hunk, PlacedHunk]:
    removed = rng.choice((0, 1, 2))
    added = [
        rng.choice(ours) if rng.random() < 0.3 else b"patch_%d\n" % at for _ in range(rng.choice((1, 1, 3)))
    ]
    before, old, after = lines[at - 3 : at], lines[at : at + removed], lines[at + removed : at + removed + 3]
    body = [b" " + x for x in before] + [b"-" + x for x in old] + [b"+" + x for x in added]
    body += [b" " + x for x in after]
    hunk = Hunk(at - 2, 6 + removed, at - 2, 6 + len(added), b"", tuple(body), 1)
    return hunk, PlacedHunk(at - 2, at - 2)


def whole(scratch: Scratch, base: list[bytes], ours: list[bytes], theirs: list[bytes]) -> list[bytes] | None:
    """The whole file merged; None where it conflicts."""
    (merged,) = scratch.merge([ThreeWay({"f": file(base)}, {"f": file(ours)}, {"f": file(theirs)})])
    return None if merged.conflicts else list(split_lines(merged.files["f"].data))


def test_a_window_becomes_what_the_whole_file_becomes() -> None:
    rng = random.Random(1)
    outcomes: dict[str, int] = {}
    with open_scratch() as scratch:
        for _ in range(12):
            base = [b"line_%d\n" % (n if rng.random() < 0.8 else n % 7) for n in range(LINES)]
            ours = edited(base, rng)
            (spans,) = scratch.differences([(file(base), file(ours))])
            pair = FilePair(split_lines(b"".join(base)), split_lines(b"".join(ours)), spans)
            for at in rng.sample(range(5, LINES - 10), 10):
                hunk, place = hunk_at(base, ours, at, rng)
                window = pair.window(hunk, place)
                right = whole(scratch, base, ours, list(split_lines(apply_hunks([hunk], [place], base))))
                found: list[bytes] | None = list(window.theirs)
                if window.outcome == "conflict":
                    found = None
                elif window.outcome == "open":
                    found = whole(scratch, list(window.base), list(window.ours), list(window.theirs))
                result = None if found is None else [*ours[: window.start], *found, *ours[window.end :]]
                assert result == right, (at, window.outcome)
                said = "conflict" if right is None else "clean"
                outcomes[f"{window.outcome}, {said}"] = outcomes.get(f"{window.outcome}, {said}", 0) + 1
    assert set(outcomes) == {"clean, clean", "open, clean", "open, conflict", "conflict, conflict"}
