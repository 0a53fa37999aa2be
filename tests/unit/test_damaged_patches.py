"""No part of a patch is lost in silence: what git refuses is refused, or repaired visibly.

git is the judge: what both of us read must be the same files.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.author.inputs import read_input_patches
from builder.author.lint.finding import RULES
from builder.author.lint.text import lint_patch
from builder.author.paths import find_reading, rewrite
from builder.errors import InvalidInput
from builder.patch.diff import parse_diff
from builder.patch.patch import parse_patch
from builder.patch.repair import put_back_blanks, repair_text
from tests.examples import examples
from tests.projects.trees import PLAIN

HEAD = b"From: A <a@example.org>\nSubject: x\n\nWhy.\n\nUpstream-Status: Pending\n---\n\n"
BODY = b"@@ -2,5 +2,5 @@ def f():\n     a = 1\n \n-    b = 2\n+    b = 3\n     return a + b\n \n"
LATER = b"@@ -22,7 +22,8 @@ def g():\n x\n y\n z\n-    b = 2\n+    b = 3\n+    b = 4\n u\n v\n \n"


def section(name: bytes) -> bytes:
    return b"diff --git a/d/%s b/d/%s\nindex 1111111..2222222 100644\n--- a/d/%s\n+++ b/d/%s\n" % (
        (name,) * 4
    )


ONE, TWO = section(b"one.py") + BODY, section(b"two.py") + BODY + LATER
PLAIN_NEW = b"--- /dev/null\t2026-01-01\n+++ b/d/new.py\t2026-01-01\n@@ -0,0 +1,2 @@\n+x\n+y\n"
PLAIN_CHANGE = b"--- a/d/p.py\t2026-01-01\n+++ b/d/p.py\t2026-01-01\n" + BODY
MODE = b"diff --git a/d/m.sh b/d/m.sh\nold mode 100644\nnew mode 100755\n"
RENAME = b"diff --git a/d/o.py b/d/q.py\nsimilarity index 100%\nrename from d/o.py\nrename to d/q.py\n"
COPY = RENAME.replace(b"rename", b"copy")
MOVED = (
    RENAME.replace(b"100%", b"90%") + b"index 1111111..2222222 100644\n--- a/d/o.py\n+++ b/d/q.py\n" + BODY
)
EMPTY = b"diff --git a/d/e.py b/d/e.py\nnew file mode 100644\nindex 0000000..e69de29\n"
EMPTIED = b"diff --git a/d/e.py b/d/e.py\ndeleted file mode 100644\nindex e69de29..0000000\n"
BINARY = b"diff --git a/d/x b/d/x\nindex 1111111..2222222 100644\nBinary files a/d/x and b/d/x differ\n"
GONE = (
    b"diff --git a/d/k.py b/d/k.py\ndeleted file mode 100644\nindex 1111111..0000000\n"
    b"--- a/d/k.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-x\n-y\n"
)
CUT = b"@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"


def read(data: bytes) -> list[str]:
    return [diff.path for diff in parse_patch("p", HEAD + data).files]


def imported(data: bytes) -> tuple[list[str], list[str]]:
    """The files that an import takes, and what it repaired."""
    pieces = read_input_patches(data, "p.patch")
    files = [diff.path for piece in pieces for diff in parse_diff(piece.diff, where="p")]
    return files, [repair.what for piece in pieces for repair in piece.repairs]


def refusal(data: bytes) -> InvalidInput:
    """What reading it says; importing refuses it as well."""
    with pytest.raises(InvalidInput):
        imported(data)
    with pytest.raises(InvalidInput) as caught:
        read(data)
    return caught.value


# --- a file's part without a change ------------------------------------------------------------------------


@pytest.mark.parametrize("part", [MODE, RENAME, COPY, EMPTY, EMPTIED, BINARY])
def test_what_git_writes_without_hunks_is_read(part: bytes) -> None:
    assert len(read(part + ONE)) == len(read(ONE + part)) == 2


@pytest.mark.parametrize(
    "part",
    [
        section(b"two.py"),
        section(b"two.py").split(b"---")[0],
        MODE + b"--- a/d/m.sh\n+++ b/d/m.sh\n",
        MODE + b"index 1111111..2222222\n",
        EMPTY.replace(b"e69de29", b"1234567"),
        EMPTIED.replace(b"e69de29", b"1234567"),
        MOVED.split(b"@@")[0],
    ],
)
def test_headers_whose_hunks_are_lost_are_refused(part: bytes) -> None:
    for data in (part + ONE, ONE + part):
        assert "has no hunk" in refusal(data).what


@pytest.mark.parametrize("start", [b"@@-2,5 +2,5@@", b"@@ -2,5 @@", b"@ -2,5 +2,5 @@", b"@@ 2,5 2,5 @@"])
def test_a_hunk_whose_first_line_is_damaged_is_not_taken_for_prose(start: bytes) -> None:
    damaged = ONE.replace(b"@@ -2,5 +2,5 @@", start)
    for data in (damaged + TWO, TWO + damaged, TWO.replace(LATER, BODY.replace(b"@@ -2,5 +2,5 @@", start))):
        error = refusal(data)
        assert start.decode() in f"{error.found} {error.where}"


def test_a_hunk_of_context_alone_changes_nothing() -> None:
    assert "changes nothing" in refusal(section(b"a") + b"@@ -1,2 +1,2 @@\n a\n b\n").what


# --- lines that are missing, or too many -------------------------------------------------------------------


@pytest.mark.parametrize("lines", range(5, 10))
def test_a_patch_that_was_cut_off_is_refused_wherever_it_was_cut(lines: int) -> None:
    data = b"".join(ONE.splitlines(keepends=True)[:lines])
    error = refusal(data)
    assert error.what.startswith(("hunk has fewer lines than it counts", "the last context line"))


def test_a_blank_context_line_that_was_cut_off_is_named_as_such_and_put_back() -> None:
    cut = ONE.removesuffix(b" \n")
    with pytest.raises(InvalidInput) as caught:
        read(cut)
    assert caught.value.what == "the last context line of the hunk is missing"
    assert "a mailer or an editor cut blank lines off it" in str(caught.value.found)
    assert repair_text(HEAD + cut) == (HEAD + cut, [])
    repaired, (repair,) = put_back_blanks(HEAD + cut)
    assert repaired == HEAD + ONE
    assert "1 blank context line was cut off" in repair.what
    assert imported(cut) == (["d/one.py"], [repair.what])


def test_two_blank_context_lines_that_were_cut_off_are_put_back() -> None:
    whole = section(b"a") + b"@@ -2,6 +2,6 @@\n a\n b\n-c\n+d\n e\n \n \n"
    repaired, (repair,) = put_back_blanks(whole.removesuffix(b" \n \n"))
    assert (repaired, "2 blank context lines were cut off" in repair.what) == (whole, True)


def test_a_blank_context_line_cut_off_in_the_middle_is_put_back_as_well() -> None:
    assert imported(ONE.removesuffix(b" \n") + PLAIN_NEW)[0] == ["d/one.py", "d/new.py"]


def test_more_lines_than_counted_are_counted_anew_on_import_alone() -> None:
    data = ONE.replace(b"-2,5 +2,5", b"-2,4 +2,3")
    with pytest.raises(InvalidInput, match="counts do not match"):
        read(data)
    assert imported(data)[1] == ["hunk 1 counts other lines than it has"]


@pytest.mark.parametrize("blank", [b"\n", b"\n\n", b"\r\n"])
def test_blank_lines_at_the_end_are_read_and_repaired_away(blank: bytes) -> None:
    for data in (ONE, ONE + TWO, ONE + PLAIN_NEW):
        assert read(data + blank) == read(data)
        repaired, repairs = repair_text(HEAD + data + blank)
        assert repaired == HEAD + data
        assert {repair.rule for repair in repairs} == {"blank-line"}


# --- sections with and without git's headers ---------------------------------------------------------------


@pytest.mark.parametrize("plain", [PLAIN_NEW, PLAIN_CHANGE])
@pytest.mark.parametrize("git", [ONE, TWO, MOVED, GONE, section(b"n.py") + CUT])
def test_sections_of_git_and_of_plain_diff_follow_each_other_in_any_order(git: bytes, plain: bytes) -> None:
    assert read(git + plain) == read(git) + read(plain)
    assert read(plain + git + plain + git) == (read(plain) + read(git)) * 2
    assert imported(git + plain) == (read(git) + read(plain), [])


@pytest.mark.parametrize(
    "stamp", ["1970-01-01 00:00:00.000000000 +0000", "1969-12-31 19:00:00 -0500", "1970-01-01 01:00:00 +0100"]
)
def test_a_file_dated_to_the_beginning_of_time_is_not_there(stamp: str) -> None:
    there, absent = "2026-01-01 00:00:00.000000000 +0000", stamp
    new = f"--- a/d/n.py\t{absent}\n+++ b/d/n.py\t{there}\n@@ -0,0 +1 @@\n+x\n".encode()
    gone = f"--- a/d/n.py\t{there}\n+++ b/d/n.py\t{absent}\n@@ -1 +0,0 @@\n-x\n".encode()
    kinds = [
        diff.kind
        for diff in parse_diff(new + gone + new.replace(b"-0,0", b"-1").replace(b"+x", b"-y\n+x"), where="p")
    ]
    assert kinds == ["create", "delete", "modify"]


def test_the_next_files_names_are_no_lines_of_a_hunk_that_counts_too_many() -> None:
    data = TWO.replace(b"-22,7 +22,8", b"-22,8 +22,9")
    assert refusal(data + PLAIN_NEW).what.startswith("hunk has fewer lines")


@pytest.mark.parametrize("before", [b"-", b" ", b"+", b"# ", b"> ", b"\t", b"-- "])
def test_a_damaged_opening_is_named(before: bytes) -> None:
    for first in (ONE, PLAIN_CHANGE, MODE):
        for second in (TWO, RENAME):
            error = refusal(first + before + second)
            assert error.what == "the line that begins a file's part is damaged"
            assert str(error.found).startswith(before.decode() + "diff --git a/d/")
    assert refusal(before + RENAME + ONE).what == "the line that begins a file's part is damaged"


@pytest.mark.parametrize(
    "data",
    [
        ONE.replace(b"+++ b/d/one.py", b"+++ b/d/other.py"),
        ONE.replace(b"--- a/d/one.py", b"--- a/d/other.py"),
        PLAIN_CHANGE.replace(b"+++ b/d/p.py", b"+++ b/d/p2.py"),
        RENAME + PLAIN_NEW,
        RENAME + PLAIN_CHANGE,
    ],
)
def test_two_names_for_one_file_are_refused(data: bytes) -> None:
    assert refusal(data).what == "a file's part of the patch names two files"


def test_a_diff_behind_a_signature_is_refused() -> None:
    with pytest.raises(InvalidInput, match="behind a mail's signature"):
        imported(ONE + b"-- \nA. Writer\n" + TWO)
    assert read(ONE + b"-- \nA. Writer\nhttps://example.org\n") == ["d/one.py"]


# --- whatever else somebody does ---------------------------------------------------------------------------

KNOWN = {"d/one.py", "d/two.py"}
T = TypeVar("T")
_PARTS = [ONE, TWO, PLAIN_NEW, PLAIN_CHANGE, MODE, RENAME, MOVED, EMPTY, GONE, section(b"n.py") + CUT]
_ODD = b"""\

--- a/d/z
+++ b/d/z
--- /dev/null
+++ /dev/null
@@ -1,3 +1,3 @@
@@-1,5 +1,5@@
@@ -0,0 +1 @@
@@ -9999999999999 +1 @@
--\x20
2.39.5
diff --git a/d/z b/d/z
diff --git "a/\\303 b/x
rename from d/z
new file mode 100644
old mode 100644
similarity index 100%
Index: d/z
stray
\\ No newline at end of file
\xff\xfe""".split(b"\n")


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A patch of one to three files, with up to three lines changed, lost, doubled or put in."""
    parts = draw(st.lists(st.sampled_from(_PARTS), min_size=1, max_size=3, unique=True))
    lines = b"".join(parts).split(b"\n")
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        line = lines[at]
        odd = st.sampled_from([*_ODD, *lines])
        put: list[bytes] = draw(
            st.one_of(
                st.just([]),
                st.sampled_from([b"-", b" ", b"+", b"# ", b"\t"]).map(lambda sign, line=line: [sign + line]),
                st.just([line.rstrip()]),
                st.just([line[1:]]),
                odd.map(lambda other: [other]),
                odd.map(lambda other, line=line: [line, other]),
            )
        )
        lines = (lines[:at] + put + lines[at + 1 :]) or [b""]
        if draw(st.booleans()) and draw(st.booleans()):
            lines = lines[: at + 1]
    return b"\n".join(lines).rstrip(b"\n") + b"\n"


def by_git(data: bytes, directory: Path) -> list[str] | None:
    """The files that git reads; None where it refuses."""
    done = subprocess.run(
        ["git", "apply", "--numstat", "-z", "-"],
        cwd=directory, env={**os.environ, **PLAIN, "GIT_CEILING_DIRECTORIES": str(directory.parent)},
        input=data, capture_output=True, check=False,
    )  # fmt: skip
    fields = iter(done.stdout.split(b"\0")[:-1])
    names = []
    for field in fields:
        name = field.split(b"\t", 2)[2]
        if not name:  # a rename: its two names stand in fields of their own
            next(fields)
            name = next(fields)
        names.append(name.decode(errors="replace"))
    return names if done.returncode == 0 else None


def same(ours: Sequence[str], gits: Sequence[str] | None) -> bool:
    # git takes a deletion without "deleted file mode" for a file of that name.
    return gits is not None and (sorted(ours) == sorted(gits) or "dev/null" in gits)


@settings(
    max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=damaged())
def test_what_is_read_is_what_git_reads(tmp_path: Path, data: bytes) -> None:
    for finding in lint_patch("p", "patches/demo/p.patch", HEAD + data):
        assert finding.rule in RULES
    gits = by_git(data, tmp_path)
    if (files := taken(lambda: read(data))) is not None:
        assert same(files, gits)
    if (found := taken(lambda: imported(data))) is not None:
        files, repairs = found
        assert same(files, gits) or (gits is None and repairs)
        for piece in read_input_patches(data, "p.patch"):
            taken(lambda piece=piece: rewrite(piece.diff, find_reading(piece.diff, KNOWN, "p")))


def taken(reading: Callable[[], T]) -> T | None:
    """What reading gives; None where it is refused, with the place."""
    try:
        return reading()
    except InvalidInput as error:
        if not error.where:
            raise
        return None


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=30), st.sampled_from(_ODD)), max_size=12).map(b"\n".join))
def test_bytes_of_any_kind_end_in_a_value_or_in_words(data: bytes) -> None:
    for text in (data, HEAD + data, ONE + data, data + ONE):
        taken(lambda text=text: parse_patch("p", text))
        taken(lambda text=text: imported(text))
        for finding in lint_patch("p", "patches/demo/p.patch", repair_text(text)[0]):
            assert finding.rule in RULES
