"""What editors, mailers and people do to a patch's text, found by line, and undone where that is safe."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from builder.patch.diff import (
    HUNK_HEADER,
    body_length,
    count_lines,
    hunk_counts,
    is_damaged_opening,
    is_signature,
    lost_blanks,
)

_BOUNDARY = (b"@@ -", b"diff --git ", b"From ", b"Index: ", b"--- ")


@dataclass(frozen=True)
class Repair:
    """One thing that was not as it should be.

    Args:
        rule: the lint rule it falls under.
        line: line of the patch file, from 1.
        what: what was wrong.
        expected, found: where that is a matter of two values.
    """

    rule: str
    line: int
    what: str
    expected: str = ""
    found: str = ""


@dataclass(frozen=True)
class HunkSpan:
    """Where a hunk is among the lines of a patch file (indexes from 0, ``end`` excluded)."""

    header: int
    end: int
    number: int
    path: bytes


def split(data: bytes) -> list[bytes]:
    """Lines with their newlines."""
    parts = data.split(b"\n")
    last = parts.pop()
    return [part + b"\n" for part in parts] + ([last] if last else [])


def hunk_spans(lines: Sequence[bytes]) -> list[HunkSpan]:
    """Every hunk, also one whose counts are wrong: its lines then end where none can follow."""
    spans: list[HunkSpan] = []
    number, at, path = 0, diff_start(lines), b""
    while at < len(lines):
        line = lines[at]
        if line.startswith(b"diff --git "):
            number = 0
        if line.startswith(b"+++ "):
            path = line[4:].split(b"\t")[0].strip()
        match = HUNK_HEADER.match(line)
        if match is None:
            at += 1
            continue
        number += 1
        end = _end_of_hunk(lines, at + 1, match)
        spans.append(HunkSpan(at, end, number, path))
        at = end
    return spans


def repair_text(data: bytes) -> tuple[bytes, list[Repair]]:
    """Undo what can be undone without knowing more: line endings, blank lines, the last newline.

    Returns:
        The repaired bytes and what was repaired, by line.
    """
    repairs: list[Repair] = []
    if data and not data.endswith(b"\n"):
        repairs.append(Repair("last-newline", data.count(b"\n") + 1, "file does not end with a newline"))
        data += b"\n"
    lines = split(data)
    start = diff_start(lines)
    if start < len(lines) and lines[start].endswith(b"\r\n"):
        repairs.append(Repair("line-endings", 1, "patch has CRLF line endings", "LF", "CRLF"))
        lines = [line[:-2] + b"\n" if line.endswith(b"\r\n") else line for line in lines]
    for span in hunk_spans(lines):
        for number in range(span.header + 1, span.end):
            if lines[number] in (b"\n", b"\r\n"):
                repairs.append(Repair("blank-context", number + 1, "blank context line lost its space"))
                lines[number] = b" " + lines[number]
    return b"".join(_without_blanks(lines, start, repairs)), repairs


def put_back_blanks(data: bytes) -> tuple[bytes, list[Repair]]:
    """Put back blank context lines that were cut off a file's last hunk.

    Only for those who then see whether they fit: another line may have been cut off.

    Returns:
        The bytes with the lines, and what was put back.
    """
    lines = split(data)
    repairs: list[Repair] = []
    for span in reversed(hunk_spans(lines)):
        match = HUNK_HEADER.match(lines[span.header])
        lost = lost_blanks(lines, span.header, match) if match else 0
        if lost:
            were = "s were" if lost > 1 else " was"
            what = f"{lost} blank context line{were} cut off the end of the hunk"
            repairs.append(Repair("blank-context", span.end + 1, what))
            lines[span.end : span.end] = [b" \n"] * lost
    return b"".join(lines), repairs


def _without_blanks(lines: list[bytes], start: int, repairs: list[Repair]) -> list[bytes]:
    """The lines without blank ones right behind hunks; those of a mail's signature are its own."""
    inside = {number for span in hunk_spans(lines) for number in range(span.header, span.end)}
    kept: list[bytes] = []
    behind_hunk = False
    for number, line in enumerate(lines):
        if is_signature(lines, number) and number not in inside:
            return kept + lines[number:]
        behind_hunk = number in inside or (behind_hunk and not line.strip())
        if behind_hunk and number > start and number not in inside:
            repairs.append(Repair("blank-line", number + 1, "blank line belongs to no hunk"))
        else:
            kept.append(line)
    return kept


def recount(data: bytes) -> tuple[bytes, list[Repair]]:
    """Write the counts of every hunk anew that has more lines than it counts (A1).

    A hunk with fewer lines is left as it is: the patch may have been cut off, and reading it says so.

    Returns:
        The bytes with right counts, and what was wrong, with both counts.
    """
    lines = split(data)
    repairs: list[Repair] = []
    shift: dict[bytes, int] = {}
    for span in hunk_spans(lines):
        match = HUNK_HEADER.match(lines[span.header])
        if match is None:
            continue
        old_start, old, new_start, new = hunk_counts(match)
        has_old, has_new = count_lines(lines[span.header + 1 : span.end])
        if (old, new) != (has_old, has_new) and has_old >= old and has_new >= new:
            repairs.append(
                Repair(
                    "hunk-counts",
                    span.header + 1,
                    f"hunk {span.number} counts other lines than it has",
                    f"{has_old} old and {has_new} new lines, as there are",
                    f"{old} old and {new} new lines, by its header",
                )
            )
            new_start = max(old_start + shift.get(span.path, 0), 0 if not has_new else 1)
            rest = lines[span.header][match.end() :]
            lines[span.header] = b"@@ -%d,%d +%d,%d @@%s" % (old_start, has_old, new_start, has_new, rest)
        shift[span.path] = shift.get(span.path, 0) + has_new - has_old
    return b"".join(lines), repairs


def added_lines(lines: Sequence[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    """``(line of the patch file, path, text)`` of every line that a patch adds."""
    for span in hunk_spans(lines):
        path = span.path.partition(b"/")[2]
        for number in range(span.header + 1, span.end):
            if lines[number].startswith(b"+"):
                yield number + 1, path, lines[number][1:].rstrip(b"\r\n")


def diff_start(lines: Sequence[bytes]) -> int:
    """The index of the diff's first line; the number of lines where there is none."""
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else b""
        if line.startswith(b"diff --git ") or (line.startswith(b"--- ") and following.startswith(b"+++ ")):
            return number
    return len(lines)


def _end_of_hunk(lines: Sequence[bytes], start: int, match: re.Match[bytes]) -> int:
    """Where a hunk ends: by its counts, if what follows can follow a hunk; else where no line fits."""
    by_counts = start + body_length(lines, start, match)
    if count_lines([x for x in lines[start:by_counts] if x[:1] != b"\\"]) == hunk_counts(match)[1::2]:
        following = lines[by_counts] if by_counts < len(lines) else b""
        if not following.strip() or following.startswith(_BOUNDARY) or is_signature(lines, by_counts):
            return by_counts
    end = start
    while end < len(lines) and not is_signature(lines, end) and not is_damaged_opening(lines[end]):
        line = lines[end]
        if line[:1] not in (b" ", b"+", b"-", b"\\") and line.strip():
            break
        if line.startswith(b"--- ") and end + 1 < len(lines) and lines[end + 1].startswith(b"+++ "):
            break
        end += 1
    while end > start and not lines[end - 1].strip(b"\r\n"):
        end -= 1  # blank lines at the very end belong to the mail
    return end
