"""Retiring, and what the lock remembers: through the command line, on a root of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from builder.patch.patch import parse_patch
from builder.project.spec_edit import SpecText, bumped
from builder.project.transaction import DECIDED, finish, write_all
from tests.projects.history import DEMO, P0_AFTER, P0_BEFORE, HistoryProject, overlay, write_root

OTHER = "python/sglang/other.py"
OTHER_PROBE = f"""
from builder.probe.harness import defect, fixed

def probe(tree):
    return fixed("2") if b"2" in tree.read({OTHER!r}) else defect("1")
"""


@pytest.fixture
def lab(tmp_path: Path) -> HistoryProject:
    return HistoryProject(tmp_path)


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def needless(lab: HistoryProject, tmp_path: Path) -> Path:
    """An overlay whose pin has one of its two patches in other words."""
    old = lab.commit({DEMO: P0_BEFORE, OTHER: b"x = 1\n"}, tag="v0.9.0")
    lab.probe("p0")
    lab.probe("p1", OTHER_PROBE)
    p0 = lab.patch("p0", old, {DEMO: P0_AFTER})
    p1 = lab.patch("p1", old, {OTHER: b"x = 2\n"}, "Overlay-Depends: p0")
    pin = lab.commit({DEMO: P0_BEFORE.replace(b"a + b", b"a + b + 1")}, "repair f (#5)", tag="v1.0.0")
    return write_root(lab, tmp_path / "root", pin, [p0, p1], lists="only: [p0, p1]  # both\n")


def test_retire_keeps_evidence_comments_and_order(lab: HistoryProject, needless: Path) -> None:
    done = overlay(lab, needless, "diff", "demo", "--retire")
    assert done.returncode == 0, done.stderr
    retired = parse_patch("p0", (needless / "patches/retired/v1.0.0/p0.patch").read_bytes())
    assert retired.values("Applied-Upstream") == ("v1.0.0",)
    assert retired.values("Overlay-Retired") == ("merged on v1.0.0 (2027-01-15)",)
    assert any("f() is 4" in value for value in retired.values("Overlay-Evidence"))
    assert not (needless / "patches/v1.0.0/p0.patch").exists()
    assert (needless / "patches/v1.0.0/series").read_text() == "# the series\n# p0 is\n# p1 is\np1.patch\n"
    spec = (needless / "overlays/demo.yaml").read_text()
    assert "# The demo. Comments stay.\n" in spec
    assert 'version: "2"  # of the overlay\n' in spec
    assert "date: 2027-01-15\n" in spec
    assert "  only: [p1]  # both\n" in spec
    assert "demo 2: retired from v1.0.0: p0 merged" in (needless / "overlays/CHANGELOG.md").read_text()
    assert not parse_patch("p1", (needless / "patches/v1.0.0/p1.patch").read_bytes()).depends
    shown = json.loads(overlay(lab, needless, "diff", "demo", "--json").stdout)
    assert [j["patch"] for j in shown["reports"][0]["judgements"]] == ["p1"]


def test_retire_twice_is_as_once(lab: HistoryProject, needless: Path) -> None:
    overlay(lab, needless, "diff", "demo", "--retire")
    once = files_of(needless)
    done = overlay(lab, needless, "diff", "demo", "--retire")
    assert done.returncode == 0, done.stderr
    assert files_of(needless) == once


def test_dry_run_shows_the_diff_and_writes_nothing(lab: HistoryProject, needless: Path) -> None:
    before = files_of(needless)
    done = overlay(lab, needless, "diff", "demo", "--retire", "--dry-run")
    assert files_of(needless) == before
    diff = done.stdout[done.stdout.index("--- ") :]
    copy = needless.parent / "copy"
    subprocess.run(["cp", "-r", needless, copy], check=True)
    subprocess.run(["git", "apply", "-"], cwd=copy, input=diff, text=True, check=True)
    overlay(lab, needless, "diff", "demo", "--retire")
    assert files_of(copy) == files_of(needless)


def test_patch_that_the_pin_needs_stays(lab: HistoryProject, tmp_path: Path) -> None:
    pin = lab.commit({DEMO: P0_BEFORE}, tag="v1.0.0")
    lab.probe("p0")
    patch = lab.patch("p0", pin, {DEMO: P0_AFTER})
    lab.commit({DEMO: P0_AFTER}, tag="v1.1.0")
    root = write_root(lab, tmp_path / "root", pin, [patch])
    before = files_of(root)
    done = overlay(lab, root, "diff", "demo", "--retire")
    assert done.returncode == 0, done.stderr
    assert "demo: nothing to retire" in done.stdout
    assert files_of(root) == before


def test_retire_for_another_tree_is_refused(lab: HistoryProject, needless: Path) -> None:
    before = files_of(needless)
    for tree in (("--upstream", f"{lab.repository}@v1.0.0"), ("--upstream", "all"), ("--image", "a:b")):
        done = overlay(lab, needless, "diff", "demo", *tree, "--retire")
        assert done.returncode == 2
        assert "--retire takes out what the overlay's own pin can do without" in done.stderr
        assert "overlay rebase demo --onto RELEASE" in done.stderr
        assert files_of(needless) == before


def test_a_patch_that_stays_and_needs_one_that_does_nothing_there_stops_the_retirement(
    lab: HistoryProject, tmp_path: Path
) -> None:
    """Obsolete is not taken by upstream: what depends on it would lose it."""
    old = lab.commit({DEMO: P0_BEFORE, OTHER: b"x = 1\n"}, tag="v0.9.0")
    lab.probe("p0")
    lab.probe("p1", OTHER_PROBE)
    p0 = lab.patch("p0", old, {DEMO: P0_AFTER})
    p1 = lab.patch("p1", old, {OTHER: b"x = 2\n"}, "Overlay-Depends: p0")
    pin = lab.commit({DEMO: b"def caller():\n    return 4\n"}, tag="v1.0.0")
    root = write_root(lab, tmp_path / "root", pin, [p0, p1])
    before = files_of(root)
    done = overlay(lab, root, "diff", "demo", "--retire")
    assert done.returncode == 1, done.stderr
    assert "p1: Overlay-Depends: p0" in done.stderr
    assert files_of(root) == before


def test_a_patch_that_stays_and_applies_only_on_one_that_goes_stops_the_retirement(
    lab: HistoryProject, tmp_path: Path
) -> None:
    old = lab.commit({DEMO: P0_BEFORE}, tag="v0.9.0")
    lab.probe("p0")
    lab.probe(
        "p1",
        f"""
from builder.probe.harness import defect, fixed

def probe(tree):
    return fixed("c") if b"c = 4" in tree.read({DEMO!r}) else defect("no c")
""",
    )
    p0 = lab.patch("p0", old, {DEMO: P0_AFTER})
    on_top = P0_AFTER.replace(b"    b = 3\n", b"    b = 3\n    c = 4\n")
    p1 = lab.patch("p1", lab.after(old, p0), {DEMO: on_top})
    pin = lab.commit({DEMO: P0_BEFORE.replace(b"a + b", b"a + b + 1")}, tag="v1.0.0")
    root = write_root(lab, tmp_path / "root", pin, [p0, p1])
    before = files_of(root)
    done = overlay(lab, root, "diff", "demo", "--retire")
    assert done.returncode == 1, done.stderr
    assert "a patch that stays does not apply without those that go" in done.stderr
    assert files_of(root) == before


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", range(12))
def test_killed_at_any_moment_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    before = {"a": b"1", "gone": b"1"}
    after = {"a": b"2", "b/c": b"3"}
    changes = {PurePosixPath(name): (after | {"gone": None})[name] for name in ("a", "b/c", "gone")}
    for name, data in before.items():
        (root / name).write_bytes(data)
    calls = iter(range(100))

    def dies(real):  # type: ignore[no-untyped-def]
        def wrapped(*arguments, **options):  # type: ignore[no-untyped-def]
            if next(calls) == moment:
                raise Killed
            return real(*arguments, **options)

        return wrapped

    with monkeypatch.context() as patched:
        for name in ("rename", "unlink", "write_bytes", "mkdir"):
            patched.setattr(Path, name, dies(getattr(Path, name)))
        try:
            write_all(
                root, {PurePosixPath("a"): b"2", PurePosixPath("b/c"): b"3", PurePosixPath("gone"): None}
            )
        except Killed:
            decided = (root / DECIDED).exists() or not (root / "gone").exists()
        else:
            decided = True
    finish(root)
    assert files_of(root) == (after if decided else before)
    write_all(root, changes)
    assert files_of(root) == after


# --- what the lock remembers --------------------------------------------------------------------------------


def test_d7_a_daily_job_speaks_once_a_change(lab: HistoryProject, tmp_path: Path) -> None:
    pin = lab.commit({DEMO: P0_BEFORE}, tag="v1.0.0")
    lab.probe("p0")
    patch = lab.patch("p0", pin, {DEMO: P0_AFTER})
    lab.git("branch", "main-line")
    root = write_root(lab, tmp_path / "root", pin, [patch])

    def daily() -> int:
        target = f"{lab.repository}@main-line"
        return overlay(lab, root, "diff", "demo", "--upstream", target, "--exit-code").returncode

    def upstream_becomes(data: bytes) -> None:
        lab.commit({DEMO: data})
        lab.git("branch", "--force", "main-line")

    assert [daily(), daily()] == [0, 0]
    upstream_becomes(P0_AFTER)
    assert [daily(), daily()] == [4, 0]
    upstream_becomes(P0_BEFORE.replace(b"b = 2", b"b = 2.5"))
    assert [daily(), daily()] == [3, 0]
    upstream_becomes(P0_BEFORE)
    assert [daily(), daily()] == [0, 0]
    lock = json.loads((root / "overlays/demo.lock").read_text())
    assert lock["verdicts"] == {f"{lab.repository}@main-line": {"p0": "carry"}}


def test_any_command_finishes_what_a_killed_one_had_decided(lab: HistoryProject, needless: Path) -> None:
    decided = needless / DECIDED
    decided.mkdir()
    (decided / "0").write_bytes(b"# none\n")
    (decided / "plan.json").write_text('{"patches/v1.0.0/series": "0"}')
    assert overlay(lab, needless, "list").returncode == 0
    assert (needless / "patches/v1.0.0/series").read_bytes() == b"# none\n"
    assert not decided.exists()


def test_looking_without_exit_code_writes_nothing(lab: HistoryProject, needless: Path) -> None:
    before = files_of(needless)
    assert overlay(lab, needless, "diff", "demo").returncode == 0
    assert files_of(needless) == before


# --- specs --------------------------------------------------------------------------------------------------

TEXT = """\
# top
a: 1  # one
list:
  # first
  - x  # about x
  - y
flow: [x, y, z]  # flow
inner:
  key: "v"  # quoted
  # after
end: true
"""


def edited(*steps: tuple[str, ...]) -> str:
    text = SpecText(Path("t.yaml"), TEXT)
    for name, *arguments in steps:
        getattr(text, name)(tuple(arguments[0].split(".")), *arguments[1:])
    return text.text


def test_spec_edits_touch_nothing_else() -> None:
    assert edited(("set", "a", "2.0.0")) == TEXT.replace("a: 1 ", 'a: "2.0.0" ')
    assert edited(("set", "inner.key", "w")) == TEXT.replace('"v"', '"w"')
    assert edited(("set", "inner.new", "w")) == TEXT.replace("# quoted\n", "# quoted\n  new: w\n")
    assert edited(("remove", "inner")) == TEXT.replace('inner:\n  key: "v"  # quoted\n', "")
    assert edited(("remove_item", "list", "x")) == TEXT.replace("  - x  # about x\n", "")
    assert edited(("remove_item", "flow", "y")) == TEXT.replace("[x, y, z]", "[x, z]")
    assert edited(("remove_item", "flow", "z")) == TEXT.replace("[x, y, z]", "[x, y]")
    assert edited(("remove_item", "list", "x"), ("remove_item", "list", "y")) == TEXT.replace(
        "list:\n  # first\n  - x  # about x\n  - y\n", ""
    )
    assert edited(("remove_item", "flow", "no"), ("remove", "no.such")) == TEXT


@pytest.mark.parametrize(("was", "now"), [("1", "2"), ("1.9", "1.10"), ("2-rc", "3-rc"), ("a", "a.1")])
def test_versions_are_bumped_in_their_last_number(was: str, now: str) -> None:
    assert bumped(was) == now
