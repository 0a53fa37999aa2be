"""Every lint rule, shown on a small file: silent where all is well, naming the line where it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.author.lint.finding import RULES
from tests.conftest import ROOT
from tests.projects.series import SeriesProject, rules, workshop

__all__ = ["workshop"]

DEMO = "python/sglang/demo.py"
GOOD = ("b = 2", "b = 3")


def lint(shop: SeriesProject, *options: str) -> list[dict[str, object]]:
    ran = shop("patch", "lint", "--json", *options)
    found: list[dict[str, object]] = json.loads(ran.out)["findings"]
    assert ran.code == (1 if found else 0)
    return found


def change(path: Path, old: bytes, new: bytes) -> int:
    """Change a patch file; the number of the line that changed."""
    data = path.read_bytes()
    assert data.count(old) >= 1, old
    path.write_bytes(data.replace(old, new, 1))
    return data[: data.index(old)].count(b"\n") + 1


def only(shop: SeriesProject, rule: str, *options: str) -> dict[str, object]:
    (finding,) = lint(shop, *options)
    assert finding["rule"] == rule
    return finding


def test_series_in_order_has_no_findings(workshop: SeriesProject) -> None:
    workshop.add("one", (DEMO, *GOOD))
    workshop.add("two", (DEMO, "b = 3", "b = 4"), trailers="Upstream-Status: Pending\nOverlay-Depends: one")
    assert lint(workshop) == []


def test_wrong_counts_are_named_with_line_both_counts_and_the_repair(workshop: SeriesProject) -> None:
    path = workshop.add("one", (DEMO, *GOOD))
    line = change(path, b"@@ -1,5 +1,5 @@", b"@@ -1,4 +1,3 @@")
    finding = next(f for f in lint(workshop, "--offline") if f["rule"] == "hunk-counts")
    assert (finding["line"], finding["mend"]) == (line, "overlay patch refresh demo one")
    assert "4 old and 3 new" in str(finding["found"])
    assert "5 old and 5 new" in str(finding["expected"])


def test_hunk_with_fewer_lines_than_it_counts_is_a_cut_patch(workshop: SeriesProject) -> None:
    """What is left of it may be half a function: nothing repairs that."""
    path = workshop.add("one", (DEMO, *GOOD))
    line = change(path, b"@@ -1,5 +1,5 @@", b"@@ -1,6 +1,7 @@")
    before = path.read_bytes()
    finding = only(workshop, "hunk-counts", "--offline")
    assert (finding["line"], "cut off" in str(finding["what"])) == (line, True)
    assert "6 old and 7 new" in str(finding["expected"])
    assert "5 old and 5 new" in str(finding["found"])
    assert workshop("patch", "lint", "--fix").code == 1
    assert workshop("patch", "refresh", "demo", "one").code == 1
    assert path.read_bytes() == before


def test_invented_blob_ids_are_said_and_repaired(workshop: SeriesProject) -> None:
    path = workshop.add("one", (DEMO, *GOOD))
    good = path.read_bytes()
    blob = good[good.index(b"index ") + 6 :][:40]
    change(path, blob, b"a" * 40)
    finding = only(workshop, "blob-ids")
    assert (finding["found"], finding["expected"]) == ("a" * 40, blob.decode())
    assert lint(workshop, "--fix") == []
    assert path.read_bytes() == good


def test_crlf_patch_is_said_once_and_repaired(workshop: SeriesProject) -> None:
    path = workshop.add("one", (DEMO, *GOOD))
    good = path.read_bytes()
    path.write_bytes(good.replace(b"\n", b"\r\n"))
    finding = only(workshop, "line-endings", "--offline")
    assert (finding["expected"], finding["found"]) == ("LF", "CRLF")
    assert lint(workshop, "--fix") == []
    assert path.read_bytes() == good


def test_repository_keeps_checkouts_from_changing_patches() -> None:
    assert "*.patch -text" in (ROOT / ".gitattributes").read_text()


def test_lost_space_of_blank_context_is_named_and_repaired(workshop: SeriesProject) -> None:
    path = workshop.add("one", (DEMO, *GOOD))
    good = path.read_bytes()
    line = change(path, b"\n \n", b"\n\n") + 1
    assert only(workshop, "blank-context", "--offline")["line"] == line
    assert lint(workshop, "--fix") == []
    assert path.read_bytes() == good


def test_missing_last_newline_is_named_and_repaired(workshop: SeriesProject) -> None:
    path = workshop.add("one", (DEMO, *GOOD))
    good = path.read_bytes()
    path.write_bytes(good.rstrip(b"\n"))
    only(workshop, "last-newline", "--offline")
    assert lint(workshop, "--fix") == []
    assert path.read_bytes() == good


def test_target_without_a_last_newline_is_nothing_to_complain_of(workshop: SeriesProject) -> None:
    workshop.add("one", (DEMO, "return a + b\n", "return a + b"))
    workshop.add("two", (DEMO, "return a + b", "return a + b\n"))
    assert b"\\ No newline" in workshop.path("one").read_bytes()
    assert lint(workshop) == []


def test_binary_change_without_data_is_refused(workshop: SeriesProject) -> None:
    path = workshop.add("one", (DEMO, *GOOD))
    binary = b"diff --git a/x.png b/x.png\nindex 1111111..2222222 100644\n"
    binary += b"Binary files a/x.png and b/x.png differ\n"
    path.write_bytes(path.read_bytes() + binary)
    assert "binary" in str(only(workshop, "applies")["what"])


def test_files_that_a_rule_drops_do_not_fail(workshop: SeriesProject) -> None:
    path = workshop.add("one", (DEMO, *GOOD))
    extra = b"diff --git a/test/x.py b/test/x.py\n--- a/test/x.py\n+++ b/test/x.py\n@@ -1 +1 @@\n-a\n+b\n"
    path.write_bytes(path.read_bytes() + extra)
    assert lint(workshop) == []


def test_names_and_texts_of_any_script_are_fine(workshop: SeriesProject) -> None:
    path = workshop.add("one", (DEMO, *GOOD), trailers="Größe und 大きさ.\n\nUpstream-Status: Pending")
    change(path, b'"A. Writer"', "Jürgen".encode())
    assert lint(workshop) == []


@pytest.mark.parametrize(
    ("rule", "trailers"),
    [
        ("status", "Bug: https://example.org/1"),
        ("status", "Upstream-Status: Pendign"),
        ("status", "Upstream-Status: Submitted"),
        ("status", "Upstream-Status: Submitted [soon]"),
        ("status", "Upstream-Status: Backport [later]"),
        ("status", "Upstream-Status: Inappropriate"),
        ("trailer", "Upstream-Status: Pending\nUpstream-Status: Pending"),
        ("trailer", "Upstream-Status: Pending\nOverlay-Hardwear: 12.1"),
        ("trailer", "Upstream-Status: Pending\nOverlay-Provides: more-speed"),
        ("url", "Upstream-Status: Pending\nBug: #1234"),
        ("url", "Upstream-Status: Pending\nBug: https://example.org"),
        ("url", "Upstream-Status: Pending\nForwarded: maybe"),
        ("url", "Upstream-Status: Pending\nOrigin: somewhere"),
        ("date", "Upstream-Status: Pending\nLast-Update: 2026-13-01"),
        ("date", "Upstream-Status: Pending\nLast-Update: 2999-01-01"),
        ("hardware", "Upstream-Status: Pending\nOverlay-Hardware: sm120"),
        ("drop-after", "Upstream-Status: Pending\nOverlay-Drop-After: next"),
        ("depends", "Upstream-Status: Pending\nOverlay-Depends: nobody"),
        ("placeholder", "TODO: say why.\n\nUpstream-Status: Pending"),
    ],
)
def test_trailer_that_breaks_its_rule_is_found(workshop: SeriesProject, rule: str, trailers: str) -> None:
    workshop.add("one", (DEMO, *GOOD), trailers=trailers)
    found = lint(workshop, "--offline")
    assert rules(found) == [rule]


@pytest.mark.parametrize(
    "trailers",
    [
        "Upstream-Status: Submitted [https://github.com/sgl-project/sglang/pull/1]",
        "Upstream-Status: Backport [0123456789abcdef0123456789abcdef01234567]",
        "Upstream-Status: Inappropriate [only for GB10]",
        "Upstream-Status: Pending\nBug: https://a.example/1\nBug: https://a.example/2\nForwarded: not-needed",
        "Upstream-Status: Pending\nOrigin: upstream, https://a.example/1\nApplied-Upstream: 1, https://a.example/2",
        "Upstream-Status: Pending\nLast-Update: 2024-02-29\nOverlay-Hardware: 12.1",
        "Upstream-Status: Pending\nOverlay-Drop-After: v0.5.20",
    ],
)
def test_trailers_of_the_format_are_accepted(workshop: SeriesProject, trailers: str) -> None:
    workshop.add("one", (DEMO, *GOOD), trailers=trailers)
    assert lint(workshop, "--offline") == []


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("conflict-marker", "<<<<<<< HEAD"),
        ("conflict-marker", "======="),
        ("added-print", "    print(a)"),
        ("added-print", "    breakpoint()"),
        ("added-sleep", "    time.sleep(1)"),
        ("added-import", "    import requests"),
        ("compiles", "    b ="),
    ],
)
def test_added_line_that_breaks_its_rule_is_found(workshop: SeriesProject, rule: str, line: str) -> None:
    path = workshop.add("one", (DEMO, "    b = 2", f"{line}\n    b = 2"))
    found = [finding for finding in lint(workshop) if finding["rule"] == rule]
    assert len(found) == 1
    if rule != "compiles":
        number = path.read_text().splitlines().index(f"+{line}") + 1
        assert found[0]["line"] == number


def test_file_that_compiles_only_after_the_next_patch_is_found(workshop: SeriesProject) -> None:
    workshop.add("one", (DEMO, "b = 2", "b = ("))
    workshop.add("two", (DEMO, "b = (", "b = (2)"))
    finding = only(workshop, "compiles")
    assert finding["file"] == "patches/demo/one.patch"
    assert "line 4" in str(finding["what"])
    assert lint(workshop) == [finding]  # also when the good files are known to compile


def test_imports_of_touched_files_sglang_and_python_are_fine(workshop: SeriesProject) -> None:
    for number, line in enumerate(
        ["import json, os as o", "from sglang.demo import f", "from . import demo"]
    ):
        workshop.add(f"p{number}", ("python/sglang/other.py", "X = 1", f"{line}\nX = 1"))
    assert lint(workshop) == []


def test_prints_outside_of_python_are_no_business_of_ours(workshop: SeriesProject) -> None:
    workshop.add("one", ("python/sglang/run.sh", "echo 1", "print(1)"))
    assert lint(workshop) == []


def test_series_that_does_not_apply_names_patch_and_hunk(workshop: SeriesProject) -> None:
    path = workshop.add("one", (DEMO, *GOOD))
    change(path, b"     a = 1", b"     a = 7")
    finding = only(workshop, "applies")
    assert finding["line"] == path.read_bytes().split(b"@@")[0].count(b"\n") + 1
    assert finding["found"] == "a = 1"


def test_patch_with_an_offset_is_not_canonical_and_repaired(workshop: SeriesProject) -> None:
    path = workshop.add("one", (DEMO, *GOOD))
    good = path.read_bytes()
    line = change(path, b"@@ -1,5 +1,5 @@", b"@@ -3,5 +3,5 @@")
    assert only(workshop, "canonical")["line"] == line
    assert lint(workshop, "--fix") == []
    assert path.read_bytes() == good


def test_dependency_that_comes_later_or_in_a_circle_is_found(workshop: SeriesProject) -> None:
    workshop.add("one", (DEMO, *GOOD), trailers="Upstream-Status: Pending\nOverlay-Depends: two")
    workshop.add("two", (DEMO, "b = 3", "b = 4"))
    assert "comes after" in str(only(workshop, "depends", "--offline")["what"])
    change(workshop.path("two"), b"Upstream-Status", b"Overlay-Depends: one\nUpstream-Status")
    assert {str(f["what"]) for f in lint(workshop, "--offline")} == {"patches need each other in a circle"}


def test_what_nothing_uses_is_found(workshop: SeriesProject) -> None:
    workshop.add("one", (DEMO, *GOOD))
    (workshop.series / "left.patch").write_bytes(workshop.path("one").read_bytes())
    (workshop.root / "patches" / "probes" / "gone.py").write_text("")
    (workshop.root / "patches" / "probes" / "one.py").write_text("")
    assert rules(lint(workshop, "--offline")) == ["unused-patch", "unused-probe"]


def test_series_file_that_names_no_file_is_found(workshop: SeriesProject) -> None:
    workshop.add("one", (DEMO, *GOOD)).unlink()
    assert rules(lint(workshop, "--offline")) == ["series-file"]


def test_name_that_quilt_could_not_read_is_found_and_repaired_by_export(workshop: SeriesProject) -> None:
    workshop.add("one", (DEMO, *GOOD))
    (workshop.series / "series").write_text("# first\none # why\n")
    assert only(workshop, "series-file", "--offline")["line"] == 2
    assert workshop("patch", "export", "demo").code == 0
    assert (workshop.series / "series").read_text() == "# first\none.patch # why\n"
    assert lint(workshop) == []


def test_spec_that_names_no_patch_of_its_series_is_found(workshop: SeriesProject) -> None:
    workshop.add("one", (DEMO, *GOOD))
    spec = workshop.root / "overlays" / "demo.yaml"
    spec.write_text(spec.read_text() + "  only: [one, tow]\n")
    assert only(workshop, "overlay", "--offline")["found"] == "tow"


def test_new_overlay_is_to_be_filled_in(workshop: SeriesProject) -> None:
    workshop.add("one", (DEMO, *GOOD))
    assert workshop("new", "second", "--from", "demo").code == 0
    assert only(workshop, "placeholder", "--offline")["file"] == "overlays/second.yaml"


def test_patch_that_nobody_could_review_is_too_large(workshop: SeriesProject) -> None:
    workshop.add("one", (DEMO, "a = 1", "a = [\n" + "    1,\n" * 601 + "    ]"))
    assert rules(lint(workshop, "--offline")) == ["size"]


def test_unreadable_patch_is_found_not_raised(workshop: SeriesProject) -> None:
    path = workshop.add("one", (DEMO, *GOOD))
    change(path, b"+++ b/python", b"+++ b/../python")
    assert rules(lint(workshop)) == ["readable"]


def test_series_can_be_excused_with_a_reason_for_what_is_found(workshop: SeriesProject) -> None:
    workshop.add("one", (DEMO, "    b = 2", "    print(a)\n    b = 2"))
    series = workshop.series / "series"
    text = series.read_text()
    series.write_text(text + "# lint: allow added-print in one: the program is a tool that prints\n")
    assert lint(workshop) == []
    series.write_text(text + "# lint: allow added-sleep: it never sleeps\n# lint: allow prints: x\n")
    assert sorted(rules(lint(workshop))) == ["added-print", "allowance", "allowance"]


def test_excuse_from_a_rule_that_was_not_looked_at_is_left_alone(workshop: SeriesProject) -> None:
    workshop.add("one", (DEMO, "    b = 2", "    import requests\n    b = 2"))
    with (workshop.series / "series").open("a") as file:
        file.write("# lint: allow added-import in one: the image has it\n")
    assert lint(workshop) == lint(workshop, "--offline") == []


def test_every_rule_is_documented() -> None:
    text = (ROOT / "docs" / "formats.md").read_text()
    assert [rule for rule in RULES if f"| `{rule}` |" not in text] == []


def test_every_rule_can_be_listed(workshop: SeriesProject) -> None:
    out = workshop("patch", "lint", "--rules").out
    assert all(rule in out for rule in RULES)
