"""A hunk lands where its lines are, at one place, or not at all."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.patch.diff import FileDiff, Hunk, parse_diff
from builder.patch.hunks import PlacedHunk, Problem, apply_hunks, find_lines, place_hunks, split_lines
from builder.source.files import SourceFile
from builder.source.git import blob_id

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
    return diff_of(text).hunks


def diff_of(text: bytes, index: bytes = b"") -> FileDiff:
    head = b"diff --git a/demo.py b/demo.py\n" + index + b"--- a/demo.py\n+++ b/demo.py\n"
    (diff,) = parse_diff(head + text, where="p.patch")
    return diff


def place(text: bytes, data: bytes) -> tuple[list[PlacedHunk], list[Problem]]:
    return place_hunks(diff_of(text), SourceFile("100644", data))


def problem(text: bytes, data: bytes) -> Problem:
    placed, (found,) = place(text, data)
    assert placed == []
    return found


PLUS_TWO = b"@@ -8,3 +8,3 @@\n     x = load()\n-    x += 1\n+    x += 2\n     return x\n"


THIRD = b"def e():\n    x = load()\n    x += 1\n    return x\n\n\n"


def index_of(data: bytes, digits: int = 40) -> bytes:
    return b"index %s..1111111 100644\n" % blob_id(data)[:digits].encode()


def landed(text: bytes, data: bytes, index: bytes = b"") -> list[int]:
    """The lines its hunks land on; all of them must."""
    placed, problems = place_hunks(diff_of(text, index), SourceFile("100644", data))
    assert problems == []
    return [one.landed for one in placed]


def trouble(text: bytes, data: bytes, index: bytes = b"") -> Problem:
    placed, (found,) = place_hunks(diff_of(text, index), SourceFile("100644", data))
    assert placed == []
    return found


@pytest.mark.parametrize("digits", [4, 7, 12, 40])
def test_the_declared_line_counts_in_the_very_file_that_the_patch_was_made_for(digits: int) -> None:
    assert landed(PLUS_TWO, TWINS, index_of(TWINS, digits)) == [8]
    after = apply_hunks(hunks(PLUS_TWO), [PlacedHunk(8, 8)], split_lines(TWINS)).split(b"\n")
    assert (after[2], after[8]) == (b"    x += 1", b"    x += 2")


@pytest.mark.parametrize("index", [b"", index_of(THIRD), b"index 0000000..1111111\n"])
def test_a_declared_line_in_any_other_file_is_a_coincidence(index: bytes) -> None:
    """A third equal function above moves everything, and the declared line lies in another one."""
    assert trouble(PLUS_TWO, TWINS, index).kind == "ambiguous"
    found = trouble(PLUS_TWO, THIRD + TWINS, index)
    assert (found.kind, found.places) == ("ambiguous", (2, 8, 14))
    assert found.found == "line 2 (e), line 8 (f), line 14 (g)"
    assert "more context" in found.hint
    assert found.advice("mine").endswith(": overlay patch import mine REPO BASE..HEAD")


def test_at_most_twenty_places_are_named() -> None:
    data = b"".join(b"def f%d():\n    x = load()\n    x += 1\n    return x\n" % n for n in range(50))
    found = trouble(PLUS_TWO, data)
    assert len(found.places) == 20
    assert found.found.endswith("line 78 (f19) and 30 more")


def with_heading(heading: bytes) -> bytes:
    return PLUS_TWO.replace(b" @@\n", b" @@ " + heading + b"\n")


def test_a_heading_settles_which_of_several_places_is_meant() -> None:
    assert landed(with_heading(b"def g():"), THIRD + TWINS, index_of(TWINS)) == [14]
    assert landed(with_heading(b"def f():"), THIRD + TWINS) == [8]


def test_a_heading_is_known_by_its_name_when_its_signature_changed_or_was_cut() -> None:
    assert landed(with_heading(b"def g():"), THIRD + TWINS.replace(b"g()", b"g(a=1)")) == [14]
    long = b"def " + b"g" * 50 + b"(a, b, c, d, e, f, h, i, j, k, l):"
    data = THIRD + TWINS.replace(b"def g():", long)
    assert landed(with_heading(long[:40]), data) == [14]
    assert landed(with_heading(long[:80]), data) == [14]


METHODS = b"".join(
    b"class %s:\n    def one(self):\n        x = load()\n        x += 1\n        return x\n\n" % name
    for name in (b"A", b"B", b"C")
)
IN_METHOD = b"@@ -9,3 +9,3 @@%s\n         x = load()\n-        x += 1\n+        x += 2\n         return x\n"


def test_a_heading_is_often_the_class_and_then_all_of_it_is_meant() -> None:
    assert landed(IN_METHOD % b" class B:", METHODS) == [9]
    twice = METHODS.replace(b"class C:\n", b"")
    found = trouble(IN_METHOD % b" class B:", twice.replace(b"one", b"two"))
    assert found.found == "line 9 (B.two), line 14 (B.two)"


def test_pythons_pattern_names_the_method_and_may_name_many() -> None:
    assert landed(IN_METHOD % b" def two(self):", METHODS.replace(b"one", b"two", 1)) == [3]
    found = trouble(IN_METHOD % b" def one(self):", METHODS)
    assert found.found == "line 3 (A.one), line 9 (B.one), line 15 (C.one)"


def test_entries_of_tables_are_told_apart_by_the_table() -> None:
    table = b"T%d = {\n    1: a(\n        x=1,\n    ),\n}\n"
    text = b"@@ -3,3 +3,3 @@ T2 = {\n     1: a(\n-        x=1,\n+        x=2,\n     ),\n"
    assert landed(text, table % 1 + table % 2 + table % 3) == [7]
    assert trouble(text, table % 1 + table % 3 + b"T2 = {}\n").kind == "conflict"


def test_a_heading_that_a_line_before_the_change_leaves_says_nothing_of_it() -> None:
    text = b"@@ -5,7 +5,7 @@ def f():\n \n \n def g():\n"
    text += b"-    x = load()\n+    x = 0\n     x += 1\n     return x\n \n"
    elsewhere = TWINS.replace(b"def f():", b"def k():") + b"\n\ndef f():\n    pass\n"
    assert landed(text, elsewhere) == [5]


def test_the_only_place_is_no_place_where_the_heading_names_another_definition_that_is_there() -> None:
    """Upstream rewrote g, and f still is what g was."""
    rewritten = TWINS[: TWINS.index(b"def g")] + b"def g():\n    return load() + 1\n"
    for index in (b"", index_of(TWINS)):
        found = trouble(with_heading(b"def g():"), rewritten, index)
        assert found.kind == "conflict"
        assert (found.expected, found.found) == ("in def g():, line 7", "line 2 (f)")
    merged = TWINS[: TWINS.index(b"def g")] + TWINS[TWINS.index(b"def g") :].replace(b"+= 1", b"+= 2")
    found = trouble(with_heading(b"def g():"), merged)
    assert (found.kind, found.places) == ("already", (8,))


def test_the_only_place_is_the_place_where_the_heading_names_nothing_that_is_there() -> None:
    only = TWINS[: TWINS.index(b"def g")]
    assert landed(with_heading(b"def g():"), only) == [2]
    assert landed(with_heading(b"some words"), only) == [2]
    assert landed(with_heading(b"else:"), only + b"if a:\n    b\nelse:\n    c\n") == [2]


def test_the_only_place_in_the_very_file_is_the_place_whatever_the_heading_says() -> None:
    data = TWINS.replace(b"+= 1", b"+= 3", 1)
    assert landed(with_heading(b"def f():").replace(b"-8", b"-3"), data, index_of(data)) == [8]


def test_equal_hunks_over_equally_many_places_go_in_order() -> None:
    both = PLUS_TWO.replace(b"8,3", b"5,3") + PLUS_TWO.replace(b"8,3", b"11,3")
    assert landed(both, TWINS) == [2, 8]
    placed, problems = place(both, THIRD + TWINS)
    assert (placed, [found.kind for found in problems]) == ([], ["ambiguous", "ambiguous"])
    other = both[: len(both) // 2] + both[len(both) // 2 :].replace(b"x += 2", b"x += 3")
    assert [found.kind for found in place(other, TWINS)[1]] == ["ambiguous", "ambiguous"]


def test_equal_hunks_of_one_class_go_in_order_within_it() -> None:
    data = METHODS.replace(b"class B:\n", b"")
    text = IN_METHOD.replace(b"9,3", b"3,3") % b" class A:" + IN_METHOD % b" class A:"
    assert landed(text, data) == [3, 8]


def test_many_equal_hunks_over_too_many_places_are_refused_in_time() -> None:
    text = b"".join(PLUS_TWO.replace(b"-8", b"-%d" % (n * 4 + 1)) for n in range(400))
    data = b"def f():\n" + b"    x = load()\n    x += 1\n    return x\n" * 2_000
    start = time.perf_counter()
    assert len(place(text, data)[1]) == 400
    assert time.perf_counter() - start < 5


def test_moved_block_is_found_at_its_only_place() -> None:
    text = b"@@ -3,3 +3,3 @@\n def g():\n-    x = load()\n+    x = store()\n     x += 1\n"
    placed, problems = place(text, TWINS)
    assert (placed, problems) == ([PlacedHunk(3, 7)], [])


def test_nothing_is_ever_fuzzy() -> None:
    """One context line differs, so the hunk does not fit, however near it is."""
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
    """An insertion without context says only a number; nothing could be checked."""
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
