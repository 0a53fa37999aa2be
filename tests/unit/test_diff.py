"""Diffs are read without losing a byte, and what is wrong with one is said with its line."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.errors import InvalidInput
from builder.patch.diff import FileDiff, parse_diff, unquote_path
from builder.patch.hunks import split_lines
from builder.source.files import SourceFile
from tests.examples import examples
from tests.projects.trees import Tree, edited_trees, shared_judge, source_trees

HEAD = b"diff --git a/demo.py b/demo.py\n--- a/demo.py\n+++ b/demo.py\n"
BODY = b"     a = 1\n \n-    b = 2\n+    b = 3\n     return a + b\n"


def read(data: bytes) -> FileDiff:
    (diff,) = parse_diff(data, where="p.patch")
    return diff


def refusal(data: bytes) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        parse_diff(data, where="p.patch")
    return caught.value


def test_hunk_keeps_every_byte_of_its_lines() -> None:
    diff = read(HEAD + b"@@ -2,4 +2,4 @@ def f():\n" + BODY)
    (hunk,) = diff.hunks
    assert hunk.lines == tuple(split_lines(BODY))
    assert (hunk.old_start, hunk.old_count, hunk.new_start, hunk.new_count) == (2, 4, 2, 4)
    assert hunk.section == b"def f():"
    assert hunk.patch_line == 4


@pytest.mark.parametrize(
    ("header", "expected", "found"),
    [
        (b"@@ -2,5 +2,4 @@", "5 old and 4 new", "4 old and 4 new"),
        (b"@@ -2,4 +2,3 @@", "4 old and 3 new", "4 old and 4 new"),
        (b"@@ -2,3 +2,3 @@", "3 old and 3 new", "4 old and 4 new"),
        (b"@@ -2,40 +2,40 @@", "40 old and 40 new", "4 old and 4 new"),
    ],
)
def test_wrong_counts_are_named_with_hunk_line_and_both_counts(
    header: bytes, expected: str, found: str
) -> None:
    error = refusal(HEAD + header + b"\n" + BODY)
    assert "hunk 1, line 4" in str(error.where)
    assert expected in str(error.expected)
    assert found in str(error.found)


def test_wrong_counts_of_a_later_hunk_name_that_hunk() -> None:
    error = refusal(HEAD + b"@@ -2,4 +2,4 @@\n" + BODY + b"@@ -12,9 +12,4 @@\n" + BODY)
    assert "hunk 2, line 10" in str(error.where)


def test_a_line_that_looks_like_a_header_inside_a_hunk_is_content() -> None:
    body = b"--- a/other.py\n-@@ -1 +1 @@\n+++ b/other.py\n+diff --git a/x b/x\n"
    diff = read(HEAD + b"@@ -1,2 +1,2 @@\n" + body)
    assert diff.hunks[0].old == [b"-- a/other.py\n", b"@@ -1 +1 @@\n"]
    assert diff.hunks[0].new == [b"++ b/other.py\n", b"diff --git a/x b/x\n"]


def test_blank_context_whose_space_an_editor_removed_is_context() -> None:
    body = BODY.replace(b"\n \n", b"\n\n")
    assert read(HEAD + b"@@ -2,4 +2,4 @@\n" + body).hunks == read(HEAD + b"@@ -2,4 +2,4 @@\n" + BODY).hunks


def test_patch_without_its_last_newline_reads_the_same() -> None:
    whole = HEAD + b"@@ -2,4 +2,4 @@\n" + BODY
    assert read(whole.removesuffix(b"\n")) == read(whole)


def test_a_files_missing_newline_is_kept_on_the_side_that_has_it() -> None:
    diff = read(HEAD + b"@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n")
    assert (diff.hunks[0].old, diff.hunks[0].new) == ([b"a"], [b"a\n"])
    diff = read(HEAD + b"@@ -1 +1 @@\n-a\n+a\n\\ No newline at end of file\n")
    assert (diff.hunks[0].old, diff.hunks[0].new) == ([b"a\n"], [b"a"])


def test_mail_signature_is_no_part_of_the_last_hunk() -> None:
    plain = HEAD + b"@@ -2,4 +2,4 @@\n" + BODY
    assert read(plain + b"-- \n2.39.5\n\n").hunks == read(plain).hunks


def test_a_second_mail_in_one_patch_is_refused() -> None:
    first = HEAD + b"@@ -2,4 +2,4 @@\n" + BODY + b"-- \n2.39.5\n\n"
    second = (
        b"From 1111111111111111111111111111111111111111 Mon Sep 17 00:00:00 2001\nSubject: two\n---\n" + HEAD
    )
    error = refusal(first + second + b"@@ -2,4 +2,4 @@\n" + BODY)
    assert "more than one mail" in error.what
    assert "overlay patch import" in str(error.hint)


def test_crlf_patch_is_refused_with_the_endings_named() -> None:
    error = refusal((HEAD + b"@@ -2,4 +2,4 @@\n" + BODY).replace(b"\n", b"\r\n"))
    assert error.found == "CRLF"
    assert "line 1" in str(error.where)


def test_text_that_belongs_to_no_hunk_is_refused() -> None:
    error = refusal(HEAD + b"@@ -2,4 +2,4 @@\n" + BODY + b"stray\n")
    assert "line 10" in str(error.where)


@pytest.mark.parametrize(
    "path", [b"../x", b"/etc/passwd", b"d/../../x", b".git/config", b"d/.GIT/hooks/x", b"", b"d//x", b"./x"]
)
def test_path_outside_the_tree_is_refused(path: bytes) -> None:
    data = b"diff --git a/%s b/%s\n--- a/%s\n+++ b/%s\n@@ -1 +1 @@\n-a\n+b\n" % ((path,) * 4)
    assert "outside the tree" in refusal(data).what


def test_binary_change_without_data_is_seen_as_binary() -> None:
    diff = read(
        b"diff --git a/logo.png b/logo.png\nindex 1111111..2222222 100644\n"
        b"Binary files a/logo.png and b/logo.png differ\n"
    )
    assert diff.binary
    assert diff.path == "logo.png"


def test_gitlinks_and_other_modes_are_refused() -> None:
    error = refusal(
        b"diff --git a/m b/m\nnew file mode 160000\n--- /dev/null\n+++ b/m\n@@ -0,0 +1 @@\n+Subproject x\n"
    )
    assert error.found == "160000"


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_every_diff_of_git_is_read_as_what_it_does(data: st.DataObject) -> None:
    before = data.draw(source_trees())
    after = data.draw(edited_trees(before))
    judge = shared_judge()
    text = judge.diff(judge.tree(before), judge.tree(after), "--find-renames=30%")
    diffs = parse_diff(text, where="p.patch") if text else ()
    assert _touched(before, after) == {path for d in diffs for path in _changed_paths(d)}
    for diff in diffs:
        old, new = before.get(diff.old_path), after.get(diff.new_path)
        if old and diff.kind != "create" and diff.old_blob and diff.hunks:
            assert diff.old_blob == old.blob
        if new and diff.kind != "delete" and diff.new_blob and diff.hunks:
            assert diff.new_blob == new.blob


def _touched(before: Tree, after: Tree) -> set[str]:
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def _changed_paths(diff: FileDiff) -> set[str]:
    return {diff.new_path} if diff.kind == "copy" else {diff.old_path, diff.new_path}


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_quoted_paths_come_back_as_they_were(path: str) -> None:
    quoted = b'"' + b"".join(b"\\%03o" % byte for byte in path.encode()) + b'"'
    assert unquote_path(quoted) == path


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_damaged_patches_are_refused_or_read_and_nothing_else(data: st.DataObject) -> None:
    """Whatever somebody does to a patch's bytes, reading it ends in a value or in InvalidInput."""
    lines = (HEAD + b"@@ -2,4 +2,4 @@\n" + BODY + b"@@ -12,4 +12,4 @@\n" + BODY).split(b"\n")
    pool = [
        *lines,
        b"--- a/x",
        b"+++ b/x",
        b"@@ -0,0 +0,0 @@",
        b"\\ No newline at end of file",
        b"-- ",
        b"\xff",
    ]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        lines[at : at + data.draw(st.integers(0, 2))] = data.draw(st.lists(st.sampled_from(pool), max_size=2))
    try:
        parse_diff(b"\n".join(lines), where="p.patch")
    except InvalidInput as error:
        if error.where is None:
            raise


def test_source_file_knows_the_blob_id_git_gives_it() -> None:
    judge = shared_judge()
    data = b"caf\xe9\r\n"
    assert SourceFile("100644", data).blob == judge.git("hash-object", "--stdin", stdin=data).decode().strip()
