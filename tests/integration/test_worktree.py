"""A series in a real git work tree: edited with plain git, written back without loss, never thrown away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from builder.author.worktree import WorkTree
from builder.errors import InvalidInput, PatchConflict
from builder.source.files import SourceFile
from tests.projects.series import DEMO as DEMO_TEXT
from tests.projects.series import FILES, SeriesProject, workshop
from tests.projects.trees import PLAIN, plain

__all__ = ["workshop"]

DEMO = "python/sglang/demo.py"
OTHER = "python/sglang/other.py"
NEW = "Other: a new thing!\n\n# not a comment\n\nUpstream-Status: Pending"


@pytest.fixture
def shop(workshop: SeriesProject) -> SeriesProject:
    """Three patches: two on one file, one on another."""
    workshop.add(
        "one", (DEMO, "a = 1", "a = 10"), trailers="Upstream-Status: Pending\nBug: https://a.example/1"
    )
    workshop.add("two", (DEMO, "return a + b", "return a * b"))
    workshop.add("three", (OTHER, "X = 1", "X = 3"))
    return workshop


def open_tree(shop: SeriesProject, *arguments: str) -> Path:
    ran = shop("patch", "edit", "--json", "demo", *arguments)
    assert ran.code == 0, ran.error
    return Path(json.loads(ran.out)["worktree"])


def git(tree: Path, *arguments: str, editor: str = "true", code: int = 0) -> str:
    """The user's own git: a fresh identity, hostile habits."""
    others = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    env = others | PLAIN | {"GIT_EDITOR": editor, "GIT_SEQUENCE_EDITOR": editor}
    habits = tree.parent.parent.parent / "habits"
    habits.write_text("[core]\nautocrlf = true\n[diff]\nnoprefix = true\n[merge]\nconflictStyle = diff3\n")
    env["GIT_CONFIG_GLOBAL"] = str(habits)
    done = subprocess.run(["git", *arguments], cwd=tree, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_unedited_series_comes_back_byte_for_byte(shop: SeriesProject) -> None:
    before = shop.bytes()
    tree = open_tree(shop)
    assert (
        git(tree, "log", "--format=%s", "refs/patches/upstream-head..")
        == "demo: three\ndemo: two\ndemo: one\n"
    )
    assert git(tree, "rev-parse", "refs/patches/upstream-head").strip() == shop.commit
    assert shop("patch", "export", "demo").code == 0
    assert shop.bytes() == before


def test_work_tree_shows_touched_files_and_neighbours_and_the_rest_on_demand(shop: SeriesProject) -> None:
    tree = open_tree(shop)
    assert {str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_file() and ".git" not in p.parts} == {
        DEMO, OTHER, "python/sglang/run.sh",
    }  # fmt: skip
    assert os.access(tree / "python/sglang/run.sh", os.X_OK)
    git(tree, "sparse-checkout", "add", "/python/sglang/sub/")
    assert (tree / "python/sglang/sub/deep.py").read_text() == "Y = 1\n"
    assert git(tree, "status", "--porcelain") == ""


def test_amended_commit_changes_its_patch_alone(shop: SeriesProject) -> None:
    before = shop.bytes()
    tree = open_tree(shop)
    (tree / OTHER).write_text((tree / OTHER).read_text().replace("X = 3", "X = 33"))
    git(tree, "commit", "--quiet", "--all", "--amend", "--no-edit")
    ran = shop("patch", "export", "demo")
    assert "3 patches, 1 written anew" in ran.out
    after = shop.bytes()
    assert b"+X = 33" in after["three.patch"]
    assert {name for name in before if before[name] != after[name]} == {"three.patch"}
    assert shop("patch", "lint").code == 0


def test_reordered_dropped_and_new_commits_are_written_back(shop: SeriesProject) -> None:
    tree = open_tree(shop)
    (tree / OTHER).write_text((tree / OTHER).read_text() + "Z = 9\n")
    git(
        tree,
        "commit",
        "--quiet",
        "--all",
        "-m",
        "Other: a new thing!\n\n# not a comment\n\nUpstream-Status: Pending",
    )
    editor = "sed -i -e '/demo: two/d' -e '1{h;d}' -e '3{G}'"
    git(tree, "rebase", "--quiet", "-i", "refs/patches/upstream-head", editor=editor)
    ran = shop("patch", "export", "demo")
    assert ran.code == 0, ran.error
    assert shop.names() == ["three", "one", "other-a-new-thing"]
    assert "removed  two" in ran.out
    assert not shop.path("two").exists()
    assert (shop.series / "series").read_text().startswith("# the demo series\n")
    assert b"\n# not a comment\n" in shop.path("other-a-new-thing").read_bytes()
    assert shop("patch", "lint").code == 0


def test_work_that_is_not_exported_is_never_thrown_away(shop: SeriesProject) -> None:
    tree = open_tree(shop)
    (tree / OTHER).write_text("X = 4\n")
    git(tree, "commit", "--quiet", "--all", "--amend", "--no-edit")
    head = git(tree, "rev-parse", "HEAD")
    shop.path("one").write_bytes(shop.path("one").read_bytes().replace(b"demo: one", b"demo: uno"))
    ran = shop("patch", "edit", "demo")
    assert ran.code == 2
    assert "holds work that is not exported" in str(ran.error)
    assert git(tree, "rev-parse", "HEAD") == head


def test_export_does_not_overwrite_patch_files_that_changed_meanwhile(shop: SeriesProject) -> None:
    tree = open_tree(shop)
    shop.path("one").write_bytes(shop.path("one").read_bytes().replace(b"demo: one", b"demo: uno"))
    before = shop.bytes()
    assert shop("patch", "export", "demo").code == 0  # the work tree holds no work: the files count
    assert shop.bytes() == before
    (tree / OTHER).write_text("X = 4\n")
    git(tree, "commit", "--quiet", "--all", "--amend", "--no-edit")
    ran = shop("patch", "export", "demo")
    assert (ran.code, shop.bytes()) == (2, before)
    assert shop("patch", "export", "demo", "--output", shop.directory / "out").code == 0
    assert b"+X = 4" in (shop.directory / "out" / "three.patch").read_bytes()


def test_work_tree_without_work_follows_the_patch_files(shop: SeriesProject) -> None:
    tree = open_tree(shop)
    shop.path("one").write_bytes(shop.path("one").read_bytes().replace(b"demo: one", b"demo: uno"))
    assert open_tree(shop) == tree
    assert "demo: uno" in git(tree, "log", "--format=%s")


def test_uncommitted_changes_are_not_exported_silently(shop: SeriesProject) -> None:
    tree = open_tree(shop)
    (tree / OTHER).write_text("X = 4\n")
    ran = shop("patch", "export", "demo")
    assert ran.code == 2
    assert OTHER in str(ran.error.found)  # type: ignore[union-attr]


def test_refresh_folds_changes_into_a_patch_in_one_go(shop: SeriesProject) -> None:
    tree = open_tree(shop)
    text = (tree / DEMO).read_text()
    (tree / DEMO).write_text(text.replace("a = 10", "a = 11"))
    ran = shop("patch", "refresh", "demo", "one")
    assert ran.code == 0, ran.error
    assert b"+    a = 11" in shop.path("one").read_bytes()
    assert b"     a = 11" in shop.path("two").read_bytes()  # a context line of the later patch moved with it
    assert shop("patch", "lint").code == 0
    assert shop("patch", "export", "demo", "--check").code == 0


def test_conflict_is_left_as_git_leaves_it_and_goes_on_after_it_was_resolved(shop: SeriesProject) -> None:
    tree = open_tree(shop)
    (tree / DEMO).write_text((tree / DEMO).read_text().replace("return a * b", "return a - b"))
    ran = shop("patch", "refresh", "demo", "one")
    assert ran.code == 3
    assert isinstance(ran.error, PatchConflict)
    assert f"cd {tree}" in str(ran.error.hint)
    assert "git rebase --continue" in str(ran.error.hint)
    assert "<<<<<<<" in (tree / DEMO).read_text()
    assert shop("patch", "export", "demo").code == 3  # nothing is written while it waits
    assert json.loads(shop("patch", "edit", "demo", "--json").out)["busy"] == "rebase"
    (tree / DEMO).write_text(DEMO_TEXT.replace("a = 1", "a = 10").replace("return a + b", "return a - b"))
    git(tree, "add", DEMO)
    git(tree, "rebase", "--continue", code=1)  # now the later patch conflicts with it
    assert json.loads(shop("patch", "edit", "demo", "--json").out)["busy"] == "rebase"
    (tree / DEMO).write_text(DEMO_TEXT.replace("a = 1", "a = 10").replace("return a + b", "return a / b"))
    git(tree, "add", DEMO)
    git(tree, "rebase", "--continue")
    ran = shop("patch", "export", "demo")
    assert ran.code == 0, ran.error
    assert b"+    return a - b" in shop.path("one").read_bytes()
    assert b"+    return a / b" in shop.path("two").read_bytes()
    assert b"combination" not in shop.path("one").read_bytes()
    assert shop("patch", "lint").code == 0


def test_edit_stops_at_the_patch_that_is_named(shop: SeriesProject) -> None:
    tree = open_tree(shop, "one")
    assert git(tree, "log", "-1", "--format=%s") == "demo: one\n"
    (tree / DEMO).write_text((tree / DEMO).read_text().replace("a = 10", "a = 12"))
    git(tree, "commit", "--quiet", "--all", "--amend", "--no-edit")
    git(tree, "rebase", "--continue")
    assert shop("patch", "export", "demo").code == 0
    assert b"+    a = 12" in shop.path("one").read_bytes()


def test_patch_that_does_not_apply_opens_as_a_three_way_conflict(shop: SeriesProject) -> None:
    """Its pre-image is known to git, which merges it or stops; the user resolves, the rest goes on top."""
    path = shop.path("two")
    path.write_bytes(path.read_bytes().replace(b"     a = 10\n", b"     a = 1\n"))
    data = path.read_bytes()
    blob = FILES[DEMO].blob.encode()
    start = data.index(b"index ") + 6
    path.write_bytes(data[:start] + blob + data[start + 40 :])
    ran = shop("patch", "edit", "demo")
    tree = Path(str(ran.error.where)) if ran.error else open_tree(shop)
    if ran.error:
        assert (ran.code, "git am --continue" in str(ran.error.hint)) == (3, True)
    # Lines apart: git merges them by itself, or stops; either way every patch ends up as a commit.
    assert git(tree, "log", "--format=%s").splitlines()[-2:] == ["demo: one", "release"]
    assert shop("patch", "export", "demo").code == 0
    assert shop("patch", "lint").code == 0
    assert b"     a = 10\n" in path.read_bytes()


def test_new_patch_is_a_skeleton_that_passes_once_it_is_filled_in(shop: SeriesProject) -> None:
    ran = shop("patch", "new", "demo", "better")
    assert ran.code == 0, ran.error
    tree = open_tree(shop)
    empty = shop("patch", "export", "demo")
    assert (empty.code, "changes nothing" in str(empty.error)) == (1, True)
    (tree / OTHER).write_text((tree / OTHER).read_text() + "B = 1\n")
    git(tree, "commit", "--quiet", "--all", "--amend", "--no-edit")
    assert shop("patch", "export", "demo").code == 0
    assert shop.names()[-1] == "better"
    assert "placeholder" in shop("patch", "lint").out
    text = git(tree, "log", "-1", "--format=%B")
    filled = text.replace("TODO: where: what this does", "other: B").replace("TODO: the", "The")
    (tree / ".git" / "msg").write_text(filled)
    git(tree, "commit", "--quiet", "--amend", "-F", str(tree / ".git" / "msg"))
    assert shop("patch", "export", "demo").code == 0
    assert shop("patch", "lint").code == 0
    assert b"Overlay-Patch" not in shop.path("better").read_bytes()


def test_a_new_patch_is_by_whom_git_says_its_user_is(
    shop: SeriesProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Ada Någon")
    monkeypatch.setenv("GIT_AUTHOR_EMAIL", "ada@example.org")
    assert shop("patch", "new", "demo", "better").code == 0
    assert git(open_tree(shop), "log", "-1", "--format=%an <%ae>").strip() == "Ada Någon <ada@example.org>"
    assert shop("patch", "new", "demo", "other", "--author", "B <b@example.org>").code == 0
    assert git(open_tree(shop), "log", "-1", "--format=%an <%ae>").strip() == "B <b@example.org>"


def test_two_commits_of_one_patch_are_refused(shop: SeriesProject) -> None:
    tree = open_tree(shop)
    git(tree, "commit", "--quiet", "--allow-empty", "-C", "HEAD")
    error = shop("patch", "export", "demo").error
    assert isinstance(error, InvalidInput)
    assert error.found == "three"


def test_files_that_any_configuration_would_change_stay_as_they_are(tmp_path: Path) -> None:
    """CRLF, no last newline, an executable, bytes that are not UTF-8, and the release's .gitattributes."""
    (tmp_path / "home").mkdir()
    files = {
        "python/sglang/crlf.py": plain("a\r\nb\r\n"),
        "python/sglang/latin.py": SourceFile("100644", b"# caf\xe9"),
        "python/sglang/run.sh": plain("x\n", "100755"),
        ".gitattributes": plain("* text=auto eol=lf\n*.py diff=python ident\n"),
    }
    shop = SeriesProject(tmp_path, files)
    # The release holds these bytes as they are: put there past git's own conversions.
    for path, file in files.items():
        blob = shop.git("hash-object", "-w", "--no-filters", "--stdin", stdin=file.data).decode().strip()
        shop.git("update-index", "--cacheinfo", f"{file.mode},{blob},{path}")
    shop.git("commit", "--quiet", "--allow-empty", "-m", "bytes")
    commit = shop.git("rev-parse", "HEAD").decode().strip()
    spec = shop.root / "overlays" / "demo.yaml"
    spec.write_text(spec.read_text().replace(shop.commit, commit))
    shop.add("one", ("python/sglang/crlf.py", "b\r\n", "c\r\n"))
    shop.path("one").read_bytes()
    shop.series.joinpath("series").write_text("one.patch\n")
    before = shop.bytes()
    tree = open_tree(shop)
    assert (tree / "python/sglang/crlf.py").read_bytes() == b"a\r\nc\r\n"
    (tree / "python/sglang/latin.py").write_bytes(b"# th\xe9\n")
    git(tree, "add", "-A")
    git(tree, "commit", "--quiet", "-m", "latin\n\nUpstream-Status: Pending\nOverlay-Patch: latin")
    assert shop("patch", "export", "demo").code == 0
    assert shop.bytes()["one.patch"] == before["one.patch"]
    assert b"-# caf\xe9\n\\ No newline at end of file\n+# th\xe9\n" in shop.path("latin").read_bytes()


def test_series_as_a_branch_of_a_repository_that_has_the_release(shop: SeriesProject) -> None:
    ran = shop("patch", "export", "demo", "--format", "branch", "--output", shop.upstream)
    assert ran.code == 0, ran.error
    assert (
        shop.git("log", "--format=%s", "overlay/demo").decode()
        == "demo: three\ndemo: two\ndemo: one\nrelease\n"
    )
    assert b"a = 10" in shop.git("show", "overlay/demo:" + DEMO)
    assert b"Overlay-Patch" not in shop.git("log", "overlay/demo")
    assert (
        shop("patch", "export", "demo", "--format", "branch", "--output", shop.directory / "home").code == 1
    )


def test_new_overlay_keeps_comments_and_pins(shop: SeriesProject) -> None:
    assert shop("new", "mine", "--from", "demo").code == 0
    spec = shop.root / "overlays" / "mine.yaml"
    text = spec.read_text()
    assert text.startswith("# the demo\nname: mine\n")
    spec.write_text(text.replace("TODO: what mine is for", "Mine"))
    assert "TODO" not in spec.read_text()
    assert shop("new", "mine", "--from", "demo").code == 1
    assert shop("new", "../x", "--from", "demo").code == 1
    assert shop("patch", "lint").code == 0


# --- killed in between --------------------------------------------------------------------------------------


def killed_refresh(shop: SeriesProject, calls: int, *, before: bool) -> bool:
    """Run ``patch refresh demo one`` in a process that is killed at its n-th call of git; whether it was."""
    child = os.fork()
    if child == 0:
        plain, left = WorkTree.git, [calls]

        def git(self: WorkTree, *arguments: str, **options: Any) -> bytes:
            left[0] -= 1
            if left[0] == 0 and before:
                os.kill(os.getpid(), signal.SIGKILL)
            done = plain(self, *arguments, **options)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        WorkTree.git = git  # type: ignore[method-assign]
        try:
            shop("patch", "refresh", "demo", "one")
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


@pytest.mark.parametrize("before", [True, False])
def test_refresh_that_was_killed_at_any_step_is_finished_by_the_next_one(
    shop: SeriesProject, before: bool
) -> None:
    tree = open_tree(shop)
    kills = 0
    while True:
        value = f"a = {100 + kills}"
        text = (tree / DEMO).read_text()
        old = next(line for line in text.splitlines() if line.strip().startswith("a = "))
        (tree / DEMO).write_text(text.replace(old.strip(), value))
        if not killed_refresh(shop, kills + 1, before=before):
            break
        kills += 1
        ran = shop("patch", "refresh", "demo", "one")
        if ran.code:  # all was written before the kill
            assert "no changes to fold in" in str(ran.error)
        assert f"+    {value}".encode() in shop.path("one").read_bytes(), f"lost at call {kills}"
        assert shop("patch", "export", "demo", "--check").code == 0
        assert json.loads(shop("patch", "edit", "demo", "--json").out)["unexported"] is False
    assert kills > 5
    assert f"+    {value}".encode() in shop.path("one").read_bytes()


def test_export_folds_in_what_a_killed_refresh_left(shop: SeriesProject) -> None:
    tree = open_tree(shop)
    (tree / DEMO).write_text((tree / DEMO).read_text().replace("a = 10", "a = 11"))
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--fixup=:/demo: one")
    ran = shop("patch", "export", "demo")
    assert ran.code == 0, ran.error
    assert shop.names() == ["one", "two", "three"]
    assert b"+    a = 11" in shop.path("one").read_bytes()
