"""Equal blocks: every command finds the one that a patch was made for, or says that it cannot be known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.errors import PatchConflict
from builder.source.git import blob_id
from tests.projects.series import Ran, SeriesProject
from tests.projects.trees import plain

TWINS = "python/sglang/twins.py"
_BODY = (
    "    x = load()\n    y = load()\n    x += 1\n    y += 1\n    z = x * y\n    store(z)\n    return z\n\n\n"
)
V1 = f"def f():\n{_BODY}def g():\n{_BODY}"
V2 = f"def h():\n{_BODY}{V1}"
REWRITTEN = f"def f():\n{_BODY}def g():\n    return load() * load() + 1\n"
FIXED = V1[: V1.index("def g")] + V1[V1.index("def g") :].replace("y += 1", "y += 2")
HEADER = f"index {blob_id(V1.encode())}..{blob_id(FIXED.encode())} 100644\n"
MAIL = (
    "From: A <a@example.org>\nDate: Sun, 29 Nov 2026 00:00:00 +0000\nSubject: x\n\nWhy.\n\n"
    "Upstream-Status: Pending\n---\n\n"
)


def patch(heading: str = " def g():", index: str = HEADER) -> bytes:
    """What git makes of V1 and FIXED, with another heading or index line."""
    names = f"diff --git a/{TWINS} b/{TWINS}\n{index}--- a/{TWINS}\n+++ b/{TWINS}\n"
    hunk = f"@@ -12,7 +12,7 @@{heading}\n     x = load()\n     y = load()\n     x += 1\n-    y += 1\n"
    hunk += "+    y += 2\n     z = x * y\n     store(z)\n     return z\n"
    return (MAIL + names + hunk).encode()


def shop_of(directory: Path, text: str) -> SeriesProject:
    (directory / "home").mkdir()
    return SeriesProject(directory, {TWINS: plain(text)})


def bring(shop: SeriesProject, data: bytes) -> Ran:
    (shop.directory / "in.patch").write_bytes(data)
    return shop("patch", "import", "demo", shop.directory / "in.patch")


def every_command(shop: SeriesProject, data: bytes) -> list[int]:
    """The exit codes of all that read a series: none may write a patch that it cannot place."""
    codes = [bring(shop, data).code]
    if codes != [0]:
        shop.put("in", data)
    before = shop.path("in").read_bytes()
    codes += [shop("patch", *words).code for words in (("refresh", "demo", "in"), ("export", "demo"))]
    codes.append(shop("patch", "lint", "--fix").code)
    assert codes[0] == 0 or shop.path("in").read_bytes() == before
    return codes


@pytest.mark.parametrize("index", [HEADER, HEADER[:13] + ".." + "2" * 7 + "\n", ""])
def test_the_heading_finds_the_twin_that_is_meant(tmp_path: Path, index: str) -> None:
    shop = shop_of(tmp_path, V2)
    assert every_command(shop, patch(index=index)) == [0, 0, 0, 0]
    text = shop.path("in").read_text()
    assert "@@ -22,7 +22,7 @@ def g():\n" in text
    assert blob_id(V2.encode()) in text


@pytest.mark.parametrize("index", [HEADER, ""])
def test_without_a_heading_no_command_takes_the_twin_on_the_declared_line(tmp_path: Path, index: str) -> None:
    """V2 has f where V1 has g: the line is there, and it is another function's."""
    shop = shop_of(tmp_path, V2)
    assert every_command(shop, patch("", index)) == [3, 3, 3, 1]
    error = bring(shop, patch("", index)).error
    assert isinstance(error, PatchConflict)
    assert error.found == "line 2 (h), line 12 (f), line 22 (g)"
    assert "overlay patch import demo REPO BASE..HEAD" in str(error.hint)


@pytest.mark.parametrize("index", [HEADER, ""])
def test_the_only_twin_left_is_not_the_one_that_was_rewritten(tmp_path: Path, index: str) -> None:
    shop = shop_of(tmp_path, REWRITTEN)
    assert every_command(shop, patch(index=index)) == [3, 3, 3, 1]
    assert "def g()" in str(bring(shop, patch(index=index)).error.expected)  # type: ignore[union-attr]


def test_the_very_file_needs_no_heading(tmp_path: Path) -> None:
    shop = shop_of(tmp_path, V1)
    assert every_command(shop, patch("")) == [0, 0, 0, 0]
    assert (
        "@@ -11,6 +11,6 @@ def g():\n" in shop.path("in").read_text()
        or "def g()" in shop.path("in").read_text()
    )


def test_a_patch_for_what_an_earlier_one_leaves_is_known_by_that_blob(tmp_path: Path) -> None:
    shop = shop_of(tmp_path, V1)
    shop.add("first", ("python/sglang/twins.py", "def f():\n", "def f():\n    # first\n"))
    left = shop.files[TWINS].data
    moved = patch("").replace(b"-12,7 +12,7", b"-13,7 +13,7")
    assert bring(shop, moved).code == 3
    assert bring(shop, moved.replace(blob_id(V1.encode()).encode(), blob_id(left).encode())).code == 0
    assert "@@ -13,7 +13,7 @@ def g():" in shop.path("in").read_text()
    assert shop("patch", "lint").code == 0


# --- from a repository, which has the history ---------------------------------------------------------------


def fork(shop: SeriesProject, before: str, after: str) -> str:
    """A branch from before the release, in the upstream's repository, with one commit; as a range."""
    shop.git("checkout", "--quiet", "--orphan", "fork")
    for text in (before, after):
        (shop.upstream / TWINS).write_text(text)
        shop.git("commit", "--quiet", "--all", "-m", "twins: two\n\nWhy.")
    shop.git("checkout", "--quiet", shop.commit)
    return "fork~1..fork"


@pytest.mark.parametrize("release", [V2, V2.replace("def g():", "def renamed():")])
def test_a_commit_is_merged_three_ways_whatever_its_lines_fit(tmp_path: Path, release: str) -> None:
    shop = shop_of(tmp_path, release)
    ran = shop("patch", "import", "demo", shop.upstream, fork(shop, V1, FIXED), "--json")
    assert ran.code == 0, ran.error
    assert json.loads(ran.out)[0]["merged"] == [TWINS]
    text = shop.path("twins-two").read_text()
    at = release.rindex("y += 1")
    changed = release[:at] + "y += 2" + release[at + 6 :]
    assert blob_id(changed.encode()) in text
    assert shop("patch", "lint").code == 0


def test_a_commit_whose_function_was_rewritten_is_a_conflict_with_its_lines(tmp_path: Path) -> None:
    shop = shop_of(tmp_path, REWRITTEN)
    ran = shop("patch", "import", "demo", shop.upstream, fork(shop, V1, FIXED))
    assert ran.code == 3
    assert "<<<<<<<" in str(ran.error.details)  # type: ignore[union-attr]
    assert shop.names() == []


def test_a_commit_that_the_release_has_is_said_to_be_there(tmp_path: Path) -> None:
    shop = shop_of(tmp_path, FIXED + "\n\nX = 1\n")
    ran = shop("patch", "import", "demo", shop.upstream, fork(shop, V1, FIXED))
    assert (ran.code, "already there" in str(ran.error)) == (3, True)


def test_commits_of_a_range_are_merged_one_on_the_other(tmp_path: Path) -> None:
    shop = shop_of(tmp_path, V2)
    fork(shop, V1, FIXED)
    shop.git("checkout", "--quiet", "fork")
    (shop.upstream / TWINS).write_text(FIXED.replace("y += 2", "y += 3"))
    shop.git("commit", "--quiet", "--all", "-m", "twins: three")
    squashed = ("--squash", "--name", "both", "--dry-run", "--json")
    ran = shop("patch", "import", "demo", shop.upstream, "fork~2..fork", *squashed)
    assert json.loads(ran.out)[0]["merged"] == [TWINS]
    assert shop("patch", "import", "demo", shop.upstream, "fork~2..fork").code == 0
    assert "+    y += 3" in shop.path("twins-three").read_text()
