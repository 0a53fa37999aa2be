"""The lines around a hunk on which its merge depends: many hunks of a large file are then merged in little.

Git's merge takes a hunk as it is where the target changed nothing at its place, and compares no further than
the changes that overlap or touch. So it is enough to give it these, and some lines around.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from builder.patch.diff import Hunk
from builder.patch.hunks import Lines, PlacedHunk
from builder.source.merge_tree import Span

REACH = 40
"""Lines on each side that are merged with a hunk."""

FAR = 20
"""A target that changes nothing within so many lines takes a hunk as it is."""

LARGE = 200
"""A change of so many lines is taken whole only where the hunk is at its edge."""

_BINARY_WITHIN = 8000  # bytes, as in git

Outcome = Literal["clean", "conflict", "open"]


@dataclass(frozen=True)
class Window:
    """What git is asked of one hunk.

    Args:
        outcome: what is known of the merge; of a clean one ``theirs`` is the result.
        start, end: lines (from 0, end excluded) of the target.
        base, ours, theirs: the lines in the base, the target, and the base with the hunk.
    """

    outcome: Outcome
    start: int
    end: int
    base: Sequence[bytes]
    ours: Sequence[bytes]
    theirs: Sequence[bytes]


class FilePair:
    """A file of the base and of the target, and what differs.

    Args:
        base, ours: their lines.
        spans: the differences as git's merge finds them, in order.
    """

    def __init__(self, base: Lines, ours: Lines, spans: Sequence[Span]) -> None:
        self.base, self.ours = base, ours
        self._spans = spans
        self._starts = [span.start for span in spans]
        self._ends = [span.end for span in spans]
        self._is_binary = any(b"\0" in lines.data[:_BINARY_WITHIN] for lines in (base, ours))

    def window(self, hunk: Hunk, place: PlacedHunk) -> Window:
        """The window of a hunk of the base."""
        start = place.landed - 1 if hunk.old_count else place.landed
        end = start + hunk.old_count
        if self._is_binary:
            return self._cut("open", hunk, start, (0, len(self.base)), (0, len(self._spans)))
        first, last = self._at(start, end)
        inside = (span.start < start and end < span.end for span in self._spans[first:last])
        if any(inside) and self._spans[first].size > LARGE:
            return Window("conflict", 0, 0, (), (), ())
        near = self._at(start - FAR, end + FAR)
        if near[0] == near[1]:
            return self._cut("clean", hunk, start, (start, end), near)
        low, first = self._before(start, first, last)
        high, last = self._behind(end, first, last)
        return self._cut("open", hunk, start, (low, high), (first, last))

    def _at(self, start: int, end: int) -> tuple[int, int]:
        """Which differences overlap or touch these lines of the base: the first, and one after the last."""
        return bisect_left(self._ends, start), bisect_right(self._starts, end)

    def _before(self, start: int, first: int, last: int) -> tuple[int, int]:
        """Where a window begins: well before all that is at the hunk, but behind another large difference."""
        low = min(start, self._spans[first].start) if first < last else start
        low = max(low - REACH, 0)
        while first and self._spans[first - 1].end >= low:
            span = self._spans[first - 1]
            if span.size > LARGE:
                return span.end, first
            first, low = first - 1, min(low, span.start)
        return low, first

    def _behind(self, end: int, first: int, last: int) -> tuple[int, int]:
        """Where a window ends, likewise."""
        high = max(end, self._spans[last - 1].end) if first < last else end
        high = min(high + REACH, len(self.base))
        while last < len(self._spans) and self._spans[last].start <= high:
            span = self._spans[last]
            if span.size > LARGE:
                return span.start, last
            last, high = last + 1, max(high, span.end)
        return high, last

    def _cut(
        self, outcome: Outcome, hunk: Hunk, start: int, lines: tuple[int, int], spans: tuple[int, int]
    ) -> Window:
        low, high = lines
        new_low, new_high = low + self._shift(spans[0]), high + self._shift(spans[1])
        theirs = [*self.base[low:start], *hunk.new, *self.base[start + hunk.old_count : high]]
        return Window(outcome, new_low, new_high, self.base[low:high], self.ours[new_low:new_high], theirs)

    def _shift(self, number: int) -> int:
        """How much lower the target's lines are than the base's, before a difference."""
        return self._spans[number - 1].new_end - self._spans[number - 1].end if number else 0
