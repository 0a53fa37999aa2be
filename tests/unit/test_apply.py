"""A series goes in as a whole or not at all, and what it makes is what git makes of it."""

from __future__ import annotations

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.errors import PatchConflict
from builder.patch import apply as module
from builder.patch.apply import AppliedSeries, apply_series, try_series
from builder.patch.patch import parse_patch
from builder.patch.series import Series, check_depends
from builder.source.files import SourceFile
from builder.source.git import GitStore
from tests.examples import examples
from tests.projects.trees import Tree, histories, plain, shared_judge

DEMO = plain("def f():\n    a = 1\n\n    b = 2\n    return a + b\n")
P0 = (
    b"diff --git a/demo.py b/demo.py\n--- a/demo.py\n+++ b/demo.py\n@@ -1,5 +1,5 @@\n"
    b" def f():\n     a = 1\n \n-    b = 2\n+    b = 3\n     return a + b\n"
)


def series(*diffs: bytes) -> Series:
    names = [f"p{number}" for number in range(len(diffs))]
    text = b"From: A <a@example.org>\nSubject: x\n\nUpstream-Status: Pending\n---\n\n"
    return Series("demo", tuple(parse_patch(n, text + d) for n, d in zip(names, diffs, strict=True)))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GitStore:
    return GitStore.create(tmp_path_factory.mktemp("store") / "series.git")


def refusal(sources: Tree, store: GitStore, *diffs: bytes) -> PatchConflict:
    with pytest.raises(PatchConflict) as caught:
        apply_series(series(*diffs), sources, store)
    return caught.value


def only_problem(tried: AppliedSeries) -> str:
    (problem,) = [problem for report in tried.reports for problem in report.problems]
    return problem.kind


def test_patched_file_is_the_expected_one(store: GitStore) -> None:
    applied = apply_series(series(P0), {"demo.py": DEMO}, store)
    assert applied.after["demo.py"] == plain("def f():\n    a = 1\n\n    b = 3\n    return a + b\n")
    judge = shared_judge()
    assert applied.tree == judge.tree({"demo.py": DEMO})
    assert applied.patched_tree == judge.tree({"demo.py": applied.after["demo.py"]})  # type: ignore[dict-item]


def test_a_bad_second_patch_leaves_nothing_and_every_patch_is_reported(store: GitStore) -> None:
    """One patch that fails is exit 3; the report says of each patch whether it applies."""
    bad = P0.replace(b"a = 1", b"a = 7")
    last = P0.replace(b"demo.py", b"gone.py")
    error = refusal({"demo.py": DEMO}, store, P0, bad, last)
    assert error.exit_code == 3
    assert "2 of 3 patches do not apply; nothing was written" in error.what
    facts = error.facts["patches"]
    assert isinstance(facts, list)
    assert [fact["applies"] for fact in facts] == [True, False, False]
    assert "p1: demo.py, hunk 1: conflict" in str(error.details)
    assert "p2: gone.py: missing" in str(error.details)


def test_the_same_patch_twice_names_the_one_that_did_it(store: GitStore) -> None:
    assert "from patch p0" in str(refusal({"demo.py": DEMO}, store, P0, P0).details)


def test_a_patch_that_makes_a_change_twice_is_said_to_have_done_so(store: GitStore) -> None:
    assert "from an earlier part of patch p0" in str(refusal({"demo.py": DEMO}, store, P0 + P0).details)


def test_a_change_that_upstream_has_is_said_to_be_upstream_s(store: GitStore) -> None:
    there = plain(DEMO.data.replace(b"b = 2", b"b = 3"))
    assert "from the pinned upstream" in str(refusal({"demo.py": there}, store, P0).details)


def test_file_that_two_patches_create_names_the_first(store: GitStore) -> None:
    new = b"diff --git a/n.py b/n.py\nnew file mode 100644\n--- /dev/null\n+++ b/n.py\n@@ -0,0 +1 @@\n+x\n"
    assert "already there, from patch p0" in str(refusal({}, store, new, new).details)


def test_applying_inside_another_repository_changes_the_result_not(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """``git apply`` in a sub-directory of some repository skips paths and exits 0."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    inside = tmp_path / "sub" / "dir"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    applied = apply_series(series(P0), {"demo.py": DEMO}, GitStore.create(inside / "store.git"))
    assert b"b = 3" in applied.after["demo.py"].data  # type: ignore[union-attr]
    assert not (tmp_path / "index").exists()


def test_dependencies_decide_and_the_missing_one_is_named() -> None:
    one, two = series(P0, P0).patches
    text = one.data.replace(b"Upstream-Status", b"Overlay-Depends: p1\nUpstream-Status")
    with pytest.raises(Exception, match="comes after it"):
        check_depends(Series("demo", (parse_patch("p0", text), two)))


def test_crlf_patch_on_an_lf_tree_and_the_reverse_name_both_endings(store: GitStore) -> None:
    crlf = SourceFile("100644", DEMO.data.replace(b"\n", b"\r\n"))
    assert only_problem(try_series(series(P0), {"demo.py": crlf})) == "endings"
    body = P0.replace(b"\n", b"\r\n").replace(b".py\r\n", b".py\n").replace(b"@@\r\n", b"@@\n")
    assert only_problem(try_series(series(body), {"demo.py": DEMO})) == "endings"
    assert apply_series(series(body), {"demo.py": crlf}, store).after["demo.py"] == SourceFile(
        "100644", DEMO.data.replace(b"\n", b"\r\n").replace(b"b = 2", b"b = 3")
    )


def test_files_without_a_last_newline_work_in_both_directions(store: GitStore) -> None:
    mark = b"\\ No newline at end of file\n"
    head = b"diff --git a/n b/n\n--- a/n\n+++ b/n\n@@ -1,2 +1,2 @@\n a\n"
    lose, gain = head + b"-b\n+b\n" + mark, head + b"-b\n" + mark + b"+b\n"
    applied = apply_series(series(lose, gain), {"n": plain("a\nb\n")}, store)
    assert applied.after["n"] == plain("a\nb\n")
    assert apply_series(series(lose), {"n": plain("a\nb\n")}, store).after["n"] == plain("a\nb")


def test_binary_change_is_refused_or_dropped_by_a_rule(store: GitStore) -> None:
    logo = (
        b"diff --git a/docs/x.png b/docs/x.png\nindex 1111111..2222222 100644\n"
        b"Binary files a/docs/x.png and b/docs/x.png differ\n"
    )
    sources = {"demo.py": DEMO, "docs/x.png": plain(b"\x89PNG")}
    assert "binary" in str(refusal(sources, store, P0 + logo).details)
    applied = apply_series(series(P0 + logo), sources, store, drop=("docs/*",))
    assert applied.reports[0].dropped == (("docs/x.png", "docs/*"),)
    assert sorted(applied.after) == ["demo.py"]


def test_files_the_image_lacks_are_dropped_by_rule_and_listed(store: GitStore) -> None:
    test = P0.replace(b"demo.py", b"test/demo.py")
    applied = apply_series(series(P0 + test), {"demo.py": DEMO}, store, drop=("test/*", "docs/*"))
    assert applied.reports[0].dropped == (("test/demo.py", "test/*"),)


def test_a_series_of_which_rules_leave_nothing_applies_to_nothing(store: GitStore) -> None:
    test = P0.replace(b"demo.py", b"test/demo.py")
    applied = apply_series(series(test), {}, store, drop=("test/*",))
    assert applied.tree == applied.patched_tree == shared_judge().tree({})


def test_symbolic_links_are_no_part_of_it(store: GitStore) -> None:
    link = b"diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc/passwd\n"
    assert "symbolic link" in str(refusal({}, store, link + b"\\ No newline at end of file\n").details)


def test_blob_ids_of_the_index_line_need_not_exist(store: GitStore) -> None:
    invented = P0.replace(b"--- a", b"index " + b"a" * 40 + b".." + b"b" * 40 + b" 100644\n--- a", 1)
    assert apply_series(series(invented), {"demo.py": DEMO}, store).after["demo.py"] is not None


def test_moved_hunk_is_reported_with_both_lines(store: GitStore) -> None:
    moved = {"demo.py": plain(b"# one\n# two\n" + DEMO.data)}
    applied = apply_series(series(P0), moved, store)
    (change,) = applied.reports[0].files
    assert [(hunk.declared, hunk.landed) for hunk in change.hunks] == [(1, 3)]
    assert applied.reports[0].offsets == 1


def test_two_parts_of_one_file_in_one_patch_both_go_in(store: GitStore) -> None:
    more = P0.replace(b"b = 3", b"b = 4").replace(b"b = 2", b"b = 3")
    moved = {"demo.py": plain(b"# one\n" + DEMO.data)}
    assert b"b = 4" in apply_series(series(P0 + more), moved, store).after["demo.py"].data  # type: ignore[union-attr]


def test_file_created_by_one_patch_is_changed_and_deleted_by_later_ones(store: GitStore) -> None:
    judge = shared_judge()
    steps = [
        {"k": plain("k\n")},
        {"k": plain("k\n"), "n": plain("1\n2\n")},
        {"k": plain("k\n"), "n": plain("2\n")},
    ]
    trees = [judge.tree(step) for step in [*steps, steps[0], steps[1]]]
    diffs = [judge.diff(a, b) for a, b in pairwise(trees)]
    assert apply_series(series(*diffs), {"k": plain("k\n")}, store).after["n"] == plain("1\n2\n")


@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(histories())
def test_post_images_and_trees_are_the_ones_git_has(steps: list[dict[str, SourceFile]]) -> None:
    """Random trees and edits: renames, modes, deletions, CRLF, no last newline, empty files, odd bytes."""
    judge = shared_judge()
    trees = [judge.tree(step) for step in steps]
    diffs = [judge.diff(old, new) for old, new in pairwise(trees)]
    if not diffs:
        return
    applied = apply_series(series(*diffs), steps[0], GitStore(judge.path))
    touched = set(applied.after)
    assert {path: file for path, file in applied.after.items() if file} == {
        path: file for path, file in steps[-1].items() if path in touched
    }
    assert applied.patched_tree == judge.tree({p: f for p, f in steps[-1].items() if p in touched})
    assert applied.tree == judge.tree({p: f for p, f in steps[0].items() if p in touched})
    assert not any(report.offsets for report in applied.reports)


@settings(
    max_examples=examples(8),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(histories(most=2), st.integers(1, 5))
def test_what_moved_is_still_what_git_makes_of_it_or_is_refused(
    steps: list[dict[str, SourceFile]], lines: int
) -> None:
    """Lines put in above: every hunk has one place and git agrees on the result, or nothing is written."""
    judge = shared_judge()
    trees = [judge.tree(step) for step in steps]
    diffs = [judge.diff(old, new) for old, new in pairwise(trees)]
    above = b"".join(b"# above %d\n" % n for n in range(lines))
    moved = {path: SourceFile(file.mode, above + file.data) for path, file in steps[0].items()}
    try:
        applied = apply_series(series(*diffs), moved, GitStore(judge.path))
    except PatchConflict as error:
        if "not apply; nothing was written" not in error.what:
            raise  # git must never surprise us
        return
    for path, file in applied.after.items():
        pre = applied.before.get(path)
        if file and pre and steps[-1].get(path) and steps[0].get(path):
            assert file.data == above + steps[-1][path].data


def test_what_git_makes_otherwise_is_refused(store: GitStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cross-check: a mistake of our own in putting hunks in is seen, and nothing is built of it."""
    right = module.apply_hunks
    monkeypatch.setattr(module, "apply_hunks", lambda *given: right(*given) + b"# more\n")
    error = refusal({"demo.py": DEMO}, store, P0)
    assert "git makes other files of the series" in error.what
    assert error.where == "demo.py"


def test_a_patch_that_fails_halfway_leaves_nothing_to_the_ones_after_it(store: GitStore) -> None:
    """Its first file applies, its second does not: the next patch finds both as they were."""
    other = plain("x = 1\n")
    bad = P0 + diff_of("other.py", b"x = 7\n", b"x = 8\n")
    first, second, third = try_series(
        series(bad, P0, diff_of("other.py", b"x = 1\n", b"x = 2\n")), {"demo.py": DEMO, "other.py": other}
    ).reports
    assert [problem.path for problem in first.problems] == ["other.py"]
    assert (second.problems, third.problems) == ((), ())
    assert (second.files[0].pre, third.files[0].pre) == (DEMO, other)


def diff_of(path: str, before: bytes, after: bytes) -> bytes:
    """The diff of a file of one line."""
    head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n"
    return head.encode() + b"-" + before + b"+" + after


COPY = (
    b"diff --git a/demo.py b/copy.py\nsimilarity index 90%\ncopy from demo.py\ncopy to copy.py\n"
    b"--- a/demo.py\n+++ b/copy.py\n@@ -1,5 +1,5 @@\n"
    b" def f():\n     a = 1\n \n-    b = 2\n+    b = 9\n     return a + b\n"
)


def test_a_copy_is_made_and_what_it_is_of_stays(store: GitStore) -> None:
    copied = plain(DEMO.data.replace(b"b = 2", b"b = 9"))
    applied = apply_series(series(COPY), {"demo.py": DEMO}, store)
    assert applied.after == {"demo.py": DEMO, "copy.py": copied}
    (change,) = applied.reports[0].files
    assert (change.kind, change.old_path, change.path) == ("copy", "demo.py", "copy.py")
    judge = shared_judge()
    assert applied.patched_tree == judge.tree({"demo.py": DEMO, "copy.py": copied})
    error = refusal({"demo.py": DEMO, "copy.py": copied}, store, COPY)
    assert "target of the copy is already there" in str(error.details)


def test_a_copy_of_what_an_earlier_patch_changed_has_that_change(store: GitStore) -> None:
    whole = COPY[: COPY.index(b"--- a")].replace(b"90%", b"100%")
    applied = apply_series(series(P0, whole), {"demo.py": DEMO}, store)
    assert applied.after["copy.py"] == applied.after["demo.py"] != DEMO


@pytest.mark.parametrize(
    ("hunk", "said"),
    [
        (b"@@ -4 +4 @@\n-    b = 2\n+    b = 3\n", "too little context"),
        (b"@@ -2 +1,0 @@\n-    a = 1\n", "too little context"),
        (b"@@ -4,0 +5 @@\n+    c = 4\n", "nothing that could be compared"),
    ],
)
def test_hunks_without_context_are_refused_where_git_puts_them_in_unseen(
    store: GitStore, hunk: bytes, said: str, tmp_path: Path
) -> None:
    """What ``git diff -U0`` writes says nothing of what stands around it."""
    diff = b"diff --git a/demo.py b/demo.py\n--- a/demo.py\n+++ b/demo.py\n" + hunk
    (tmp_path / "demo.py").write_bytes(DEMO.data)
    subprocess.run(["git", "apply", "--unidiff-zero", "-"], cwd=tmp_path, input=diff, check=True)
    assert (tmp_path / "demo.py").read_bytes() != DEMO.data
    error = refusal({"demo.py": DEMO}, store, diff)
    assert said in str(error.details)
    whole = b"diff --git a/one.py b/one.py\n--- a/one.py\n+++ b/one.py\n@@ -1 +1 @@\n-a\n+b\n"
    assert apply_series(series(whole), {"one.py": plain("a\n")}, store).after["one.py"] == plain("b\n")
