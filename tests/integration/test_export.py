"""Export writes what it should and nothing else; refresh repairs what was edited by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import PatchConflict
from tests.projects.series import SeriesProject, workshop

__all__ = ["workshop"]

DEMO = "python/sglang/demo.py"


@pytest.fixture
def shop(workshop: SeriesProject) -> SeriesProject:
    workshop.add("one", (DEMO, "b = 2", "b = 3"))
    workshop.add("two", (DEMO, "a = 1", "a = 10"))
    return workshop


def edit(path: Path, old: bytes, new: bytes) -> bytes:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    return data


def test_check_names_stale_patches_and_writes_nothing(shop: SeriesProject) -> None:
    assert shop("patch", "export", "demo", "--check").code == 0
    edit(shop.path("two"), b"@@ -1,5 +1,5 @@", b"@@ -9,5 +9,5 @@")
    before = shop.bytes()
    ran = shop("patch", "export", "demo", "--check")
    assert isinstance(ran.error, PatchConflict)
    assert (ran.code, ran.error.found) == (3, "two")
    assert shop.bytes() == before


def test_stale_patch_alone_is_written_anew(shop: SeriesProject) -> None:
    good = edit(shop.path("two"), b"@@ -1,5 +1,5 @@", b"@@ -9,5 +9,5 @@")
    untouched = shop.path("one").stat()
    assert "wrote    two\n2 patches, 1 written anew, 1 as before" in shop("patch", "export", "demo").out
    assert shop.path("two").read_bytes() == good
    assert shop.path("one").stat().st_mtime_ns == untouched.st_mtime_ns


def test_series_that_does_not_apply_writes_nothing(shop: SeriesProject) -> None:
    edit(shop.path("two"), b"     b = 3", b"     b = 7")
    before = shop.bytes()
    assert shop("patch", "export", "demo").code == 3
    assert shop.bytes() == before


def test_a_commit_that_makes_no_patch_writes_nothing_and_can_be_repaired(shop: SeriesProject) -> None:
    """Somebody amends a new commit with a message of one line, and its trailers are gone."""
    told = shop("patch", "new", "demo", "better", "--author", "A <a@example.org>")
    assert told.code == 0
    tree = Path(told.out.splitlines()[0].removeprefix("cd "))
    message = shop.git("log", "-1", "--format=%B", cwd=tree)
    (tree / DEMO).write_text((tree / DEMO).read_text().replace("return a", "return 1 + a"))
    shop.git("commit", "--quiet", "--all", "--amend", "-m", "demo: a change", cwd=tree)
    before = shop.bytes()
    for _ in range(2):
        ran = shop("patch", "export", "demo")
        assert ran.code == 1
        assert "Upstream-Status" in str(ran.error)
        assert shop.bytes() == before
    shop.git("commit", "--quiet", "--amend", "--file=-", cwd=tree, stdin=message.replace(b"TODO", b"done"))
    assert shop("patch", "export", "demo").code == 0
    assert shop.names() == ["one", "two", "better"]


def test_a_patch_is_begun_once(shop: SeriesProject) -> None:
    words = ("patch", "new", "demo", "better", "--author", "A <a@example.org>")
    assert shop(*words).code == 0
    again = shop(*words)
    assert again.code == 1
    assert "commit for a patch of this name" in str(again.error)


def test_mailbox_goes_to_a_file_or_to_standard_output(shop: SeriesProject) -> None:
    target = shop.directory / "all.mbox"
    assert shop("patch", "export", "demo", "--format", "mbox", "--output", target).code == 0
    expected = shop.path("one").read_bytes() + b"\n" + shop.path("two").read_bytes()
    assert target.read_bytes() == expected
    assert shop("patch", "export", "demo", "--format", "mbox", "--output", "-").out == expected.decode()
    shop.git("am", "--quiet", target)
    assert b"b = 3" in (shop.upstream / DEMO).read_bytes()
    assert shop("patch", "export", "demo", "--format", "mbox").code == 2


def test_directory_is_a_series_of_its_own_and_overwrites_nothing_else(shop: SeriesProject) -> None:
    target = shop.directory / "out"
    assert shop("patch", "export", "demo", "--output", target).code == 0
    assert (target / "series").read_text() == "one.patch\ntwo.patch\n"
    assert (target / "two.patch").read_bytes() == shop.path("two").read_bytes()
    elsewhere = shop.directory / "photos"
    elsewhere.mkdir()
    (elsewhere / "x.png").write_bytes(b"x")
    assert shop("patch", "export", "demo", "--output", elsewhere).code == 1


def test_patch_with_files_the_release_lacks_is_left_as_it_is_and_said(shop: SeriesProject) -> None:
    extra = b"diff --git a/test/x.py b/test/x.py\n--- a/test/x.py\n+++ b/test/x.py\n@@ -7 +7 @@\n-a\n+b\n"
    path = shop.path("two")
    path.write_bytes(path.read_bytes() + extra)
    before = shop.bytes()
    ran = shop("patch", "export", "demo")
    assert "two is left as it is: it has files that the release lacks: test/x.py" in ran.out
    assert shop.bytes() == before


def test_refresh_repairs_counts_after_showing_the_change(workshop: SeriesProject) -> None:
    shop = workshop
    path = shop.add("one", (DEMO, "b = 2", "b = 3"))
    shop.add("two", ("python/sglang/other.py", "X = 1", "X = 2"))
    edit(path, b"+    b = 3\n", b"+    b = 3\n+    c = 4\n")
    broken = path.read_bytes()
    shown = shop("patch", "refresh", "demo", "one", "--dry-run")
    assert shown.code == 0, shown.error
    assert "hunk-counts: hunk 1 counts other lines than it has" in shown.out
    assert "-@@ -1,5 +1,5 @@\n+@@ -1,5 +1,6 @@" in shown.out
    assert path.read_bytes() == broken
    assert shop("patch", "refresh", "demo", "one").code == 0
    assert b"@@ -1,5 +1,6 @@" in path.read_bytes()
    assert shop("patch", "lint").code == 0


def test_refresh_refuses_what_then_breaks_a_later_patch(shop: SeriesProject) -> None:
    edit(shop.path("one"), b"-    b = 2\n", b"-    b = 2\n-    return a + b\n")
    edit(shop.path("one"), b"\n     return a + b\n", b"\n+    return b\n")
    before = shop.bytes()
    ran = shop("patch", "refresh", "demo", "one")
    assert (ran.code, "two" in str(ran.error.details)) == (3, True)  # type: ignore[union-attr]
    assert shop.bytes() == before


def test_refresh_of_an_unknown_patch_lists_the_known_ones(shop: SeriesProject) -> None:
    ran = shop("patch", "refresh", "demo", "three")
    assert (ran.code, "one, two" in str(ran.error.hint)) == (1, True)  # type: ignore[union-attr]


def test_unknown_series_gets_the_nearest_name(shop: SeriesProject) -> None:
    ran = shop("patch", "export", "dmo")
    assert (ran.code, "demo" in str(ran.error.hint)) == (1, True)  # type: ignore[union-attr]


def test_overlays_that_pin_one_series_to_different_releases_are_refused(shop: SeriesProject) -> None:
    spec = (shop.root / "overlays" / "demo.yaml").read_text()
    other = spec.replace("name: demo", "name: other").replace("v1.0.0", "v2.0.0")
    (shop.root / "overlays" / "other.yaml").write_text(other)
    assert "v1.0.0, v2.0.0" in str(shop("patch", "export", "demo").error.found)  # type: ignore[union-attr]
