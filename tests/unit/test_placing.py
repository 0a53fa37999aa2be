"""A hunk lands where its lines are, at one place, or not at all."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from builder.diff import Hunk, parse_diff
from builder.placing import PlacedHunk, Problem, apply_hunks, find_lines, place_hunks, split_lines

TWINS = b"""\
def f():
    x = load()
    x += 1
    return x


def g():
    x = load()
    x += 1
    return x
"""


def hunks(text: bytes) -> tuple[Hunk, ...]:
    head = b"diff --git a/demo.py b/demo.py\n--- a/demo.py\n+++ b/demo.py\n"
    (diff,) = parse_diff(head + text, where="p.patch")
    return diff.hunks


def place(text: bytes, data: bytes) -> tuple[list[PlacedHunk], list[Problem]]:
    return place_hunks("demo.py", hunks(text), split_lines(data))


def problem(text: bytes, data: bytes) -> Problem:
    placed, (found,) = place(text, data)
    assert placed == []
    return found


PLUS_TWO = b"@@ -8,3 +8,3 @@\n     x = load()\n-    x += 1\n+    x += 2\n     return x\n"


def test_hunk_lands_on_its_declared_line_although_it_fits_elsewhere_too() -> None:
    placed, problems = place(PLUS_TWO, TWINS)
    assert (placed, problems) == ([PlacedHunk(8, 8)], [])
    after = apply_hunks(hunks(PLUS_TWO), placed, split_lines(TWINS)).split(b"\n")
    assert (after[2], after[8]) == (b"    x += 1", b"    x += 2")


def test_twin_block_is_ambiguous_when_neither_is_on_the_declared_line() -> None:
    """B3: a third equal function inserted above moves everything; plain git apply would patch the new one."""
    third = b"def e():\n    x = load()\n    x += 1\n    return x\n\n\n"
    found = problem(PLUS_TWO.replace(b"-8,3 +8,3", b"-9,3 +9,3"), third + TWINS)
    assert found.kind == "ambiguous"
    assert found.places == (2, 8, 14)
    assert "lines 2, 8, 14" in found.found


def test_moved_block_is_found_at_its_only_place() -> None:
    text = b"@@ -3,3 +3,3 @@\n def g():\n-    x = load()\n+    x = store()\n     x += 1\n"
    placed, problems = place(text, TWINS)
    assert (placed, problems) == ([PlacedHunk(3, 7)], [])


def test_nothing_is_ever_fuzzy() -> None:
    """B2: one context line differs, so the hunk does not fit, however near it is."""
    found = problem(PLUS_TWO, TWINS.replace(b"load()", b"load(0)"))
    assert found.kind == "conflict"
    assert (found.expected, found.found) == ("x = load()", "x = load(0)")
    assert "-     x = load()" in found.details
    assert "+     x = load(0)" in found.details


def test_change_that_is_there_already_is_named_with_its_line() -> None:
    data = b"a\nx = 2\nb\n"
    found = problem(b"@@ -5,3 +5,3 @@\n a\n-x = 1\n+x = 2\n b\n", data)
    assert (found.kind, found.places) == ("already", (1,))


def test_endings_that_differ_are_said_as_such_in_both_directions() -> None:
    lf = b"@@ -1,3 +1,3 @@\n a\n-x = 1\n+x = 2\n b\n"
    crlf = b"@@ -1,3 +1,3 @@\n a\r\n-x = 1\r\n+x = 2\r\n b\r\n"
    one, two = problem(lf, b"a\r\nx = 1\r\nb\r\n"), problem(crlf, b"a\nx = 1\nb\n")
    assert (one.kind, one.expected, one.found) == ("endings", "LF (patch)", "CRLF (file)")
    assert (two.kind, two.expected, two.found) == ("endings", "CRLF (patch)", "LF (file)")


def test_line_without_a_newline_is_another_line() -> None:
    text = b"@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"
    assert place(text, b"a\nb")[1] == []
    assert problem(text, b"a\nb\n").kind == "conflict"


def test_hunk_cut_at_the_end_of_its_file_fits_only_there() -> None:
    text = b"@@ -1,2 +1,3 @@\n a\n b\n+c\n"
    assert place(text, b"a\nb\n")[1] == []
    found = problem(text, b"a\nb\nz\n")
    assert found.kind == "conflict"
    assert "end of the file" in found.expected


def test_hunk_cut_at_the_beginning_of_its_file_fits_only_there() -> None:
    text = b"@@ -1,2 +1,3 @@\n+c\n a\n b\n"
    assert place(text, b"a\nb\n")[1] == []
    found = problem(text, b"z\na\nb\n")
    assert "beginning of the file" in found.expected


def test_a_line_number_alone_is_no_place() -> None:
    """B10: an insertion without context says only a number; nothing could be checked."""
    assert problem(b"@@ -1,0 +2 @@\n+c\n", b"a\nb\n").kind == "conflict"
    assert place(b"@@ -0,0 +1 @@\n+c\n", b"")[1] == []


def test_second_hunk_may_not_land_inside_the_first() -> None:
    text = b"@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n@@ -11,3 +11,3 @@\n b\n-c\n+C\n d\n"
    placed, problems = place(text, b"a\nb\nc\nd\n")
    assert len(placed) == 1
    assert [found.kind for found in problems] == ["overlap"]


def test_every_hunk_is_reported_not_only_the_first_that_fails() -> None:
    text = b"@@ -1,3 +1,3 @@\n 1\n-x\n+y\n 3\n@@ -4,3 +4,3 @@\n 4\n-5\n+five\n 6\n"
    text += b"@@ -7,3 +7,3 @@\n 7\n-x\n+y\n 9\n"
    placed, problems = place(text, b"1\n2\n3\n4\n5\n6\n7\n8\n9\n")
    assert [found.hunk for found in problems] == [1, 3]
    assert placed == [PlacedHunk(4, 4)]


def test_hopeless_hunk_is_reported_in_time() -> None:
    """Sources and patches are anybody's: 20,000 lines that all differ must not take minutes to compare."""
    old = b"".join(b"-old %d\n" % n for n in range(2_000))
    data = b"".join(b"new %d\n" % n for n in range(20_000))
    start = time.perf_counter()
    found = problem(b"@@ -1,2001 +1,1 @@\n new 0\n" + old, data)
    assert found.kind == "conflict"
    assert time.perf_counter() - start < 2


def test_thousands_of_equal_lines_are_searched_in_time() -> None:
    body = b"".join(b" \n" for _ in range(3_000)) + b"-x\n+y\n"
    start = time.perf_counter()
    assert problem(b"@@ -1,3001 +1,3001 @@\n" + body, b"\n" * 20_000).kind == "conflict"
    assert time.perf_counter() - start < 2


@given(st.lists(st.sampled_from([b"a\n", b"b\n", b"\n"]), max_size=12), st.integers(0, 12), st.integers(1, 4))
def test_lines_are_found_wherever_they_stand(lines: list[bytes], at: int, count: int) -> None:
    wanted = lines[at : at + count]
    naive = [n for n in range(len(lines)) if wanted and lines[n : n + len(wanted)] == wanted]
    assert find_lines(lines, wanted) == naive
