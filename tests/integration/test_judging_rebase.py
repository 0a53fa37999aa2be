"""Rebase: carried, resolved by a person, accepted by probes; written as a whole or not at all."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from builder.patch.patch import Patch, parse_patch
from builder.patch.series import read_series_file
from builder.project.spec import read_spec
from builder.source.git import git_environment
from tests.integration.test_judging_retire import OTHER, OTHER_PROBE, files_of
from tests.projects.history import DEMO, P0_AFTER, P0_BEFORE, HistoryProject, overlay, write_root


@pytest.fixture
def lab(tmp_path: Path) -> HistoryProject:
    return HistoryProject(tmp_path)


def two_patches(lab: HistoryProject) -> tuple[str, list[Patch]]:
    pin = lab.commit({DEMO: P0_BEFORE, OTHER: b"x = 1\n"}, tag="v1.0.0")
    lab.probe("p0")
    lab.probe("p1", OTHER_PROBE)
    p0 = lab.patch("p0", pin, {DEMO: P0_AFTER})
    return pin, [
        p0,
        lab.patch("p1", pin, {OTHER: b"x = 2\n"}, "Overlay-Depends: p0", "Last-Update: 2026-11-29"),
    ]


def rebase(lab: HistoryProject, root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return overlay(lab, root, "rebase", "demo", "--upstream-url", str(lab.repository), *arguments)


def in_work_tree(lab: HistoryProject, *arguments: str) -> str:
    who = {"GIT_AUTHOR_NAME": "p", "GIT_AUTHOR_EMAIL": "p@example.org"}
    done = subprocess.run(
        ["git", *arguments], cwd=work_tree(lab), env=git_environment(who), capture_output=True, check=True
    )
    return done.stdout.decode()


def work_tree(lab: HistoryProject) -> Path:
    directory = lab.state / "sglang-overlay" / "rebase"
    return next(directory.glob("demo-*[0-9a-f]"), directory / "none")


def test_merged_patch_is_left_out_and_the_rest_carried(lab: HistoryProject, tmp_path: Path) -> None:
    pin, patches = two_patches(lab)
    new = lab.commit({DEMO: P0_AFTER}, "repair f (#5)", tag="v1.1.0")
    root = write_root(lab, tmp_path / "root", pin, patches, lists="only: [p0, p1]\n")
    (root / "overlays/demo.lock").write_text('{"schema": 1}\n')
    done = rebase(lab, root, "--onto", "v1.1.0", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [(p["patch"], p["before"], p["after"]) for p in shown["patches"]] == [("p1", "defect", "fixed")]
    assert list(shown["retired"]) == ["p0"]
    assert read_series_file(root / "patches/v1.1.0") == ["p1"]
    assert "# p0 is left out: merged since" in (root / "patches/v1.1.0/series").read_text()
    carried = parse_patch("p1", (root / "patches/v1.1.0/p1.patch").read_bytes())
    assert carried.depends == ()
    assert carried.values("Last-Update") == ("2026-11-29",)
    spec = read_spec(root / "overlays/demo.yaml")
    assert (spec.upstream.release, spec.upstream.commit, spec.version) == ("v1.1.0", new, "2")
    assert (spec.patches.series, spec.patches.only) == ("v1.1.0", ())
    assert "# The demo. Comments stay.\n" in (root / "overlays/demo.yaml").read_text()
    assert not (root / "overlays/demo.lock").exists()
    assert not work_tree(lab).exists()
    after = json.loads(
        overlay(lab, root, "diff", "demo", "--json", "--upstream-url", str(lab.repository)).stdout
    )
    assert [j["verdict"] for j in after["reports"][0]["judgements"]] == ["carry"]


def test_another_overlay_is_written_and_the_old_one_stays(lab: HistoryProject, tmp_path: Path) -> None:
    pin, patches = two_patches(lab)
    lab.commit({"python/sglang/n.py": b"1\n"}, tag="v1.1.0")
    root = write_root(lab, tmp_path / "root", pin, patches)
    before = files_of(root)
    done = rebase(lab, root, "--onto", "v1.1.0", "--as", "demo-next")
    assert done.returncode == 0, done.stderr
    after = files_of(root)
    assert {name: after[name] for name in before} == before
    assert read_spec(root / "overlays/demo-next.yaml").patches.series == "v1.1.0"
    assert read_series_file(root / "patches/v1.1.0") == ["p0", "p1"]
    again = rebase(lab, root, "--onto", "v1.1.0", "--as", "demo-other")
    assert (again.returncode, "such a series already" in again.stderr) == (1, True)


@pytest.fixture
def conflicting(lab: HistoryProject, tmp_path: Path) -> Path:
    pin, patches = two_patches(lab)
    lab.commit({DEMO: P0_BEFORE.replace(b"b = 2", b"b = 2.5")}, tag="v1.1.0")
    return write_root(lab, tmp_path / "root", pin, patches)


def test_conflict_is_open_as_git_leaves_it_and_goes_on_when_resolved(
    lab: HistoryProject, conflicting: Path
) -> None:
    before = files_of(conflicting)
    done = rebase(lab, conflicting, "--onto", "v1.1.0")
    assert done.returncode == 3
    assert "p0 conflicts" in done.stderr
    assert b"<<<<<<< HEAD" in (work_tree(lab) / DEMO).read_bytes()
    assert in_work_tree(lab, "diff", "--name-only", "--diff-filter=U").split() == [DEMO]
    assert rebase(lab, conflicting, "--continue").returncode == 3  # nobody has resolved it yet
    assert files_of(conflicting) == before
    (work_tree(lab) / DEMO).write_bytes(P0_AFTER)
    in_work_tree(lab, "add", DEMO)
    done = rebase(lab, conflicting, "--continue")
    assert done.returncode == 0, done.stderr
    assert "-    b = 2.5" in done.stdout  # the difference to the original is shown
    made = parse_patch("p0", (conflicting / "patches/v1.1.0/p0.patch").read_bytes())
    assert (made.author, made.values("Last-Update")) == ("T <t@example.org>", ("2027-01-15",))
    assert not made.values("Overlay-Patch")
    assert read_series_file(conflicting / "patches/v1.1.0") == ["p0", "p1"]


def test_resolution_whose_probe_does_not_say_fixed_is_not_written(
    lab: HistoryProject, conflicting: Path
) -> None:
    before = files_of(conflicting)
    rebase(lab, conflicting, "--onto", "v1.1.0")
    (work_tree(lab) / DEMO).write_bytes(P0_BEFORE.replace(b"b = 2", b"b = 7"))
    in_work_tree(lab, "add", DEMO)
    done = rebase(lab, conflicting, "--continue")
    assert (done.returncode, "f() is 8, not 4" in done.stderr) == (7, True)
    assert files_of(conflicting) == before
    (work_tree(lab) / DEMO).write_bytes(P0_AFTER)
    in_work_tree(lab, "commit", "--quiet", "-a", "--fixup", "HEAD^")
    in_work_tree(lab, "-c", "sequence.editor=true", "rebase", "--quiet", "-i", "--autosquash", "HEAD~3")
    done = rebase(lab, conflicting, "--continue")
    assert done.returncode == 0, done.stderr
    assert read_series_file(conflicting / "patches/v1.1.0") == ["p0", "p1"]


def test_commit_of_no_patch_is_named(lab: HistoryProject, conflicting: Path) -> None:
    rebase(lab, conflicting, "--onto", "v1.1.0")
    (work_tree(lab) / DEMO).write_bytes(P0_AFTER)
    in_work_tree(lab, "add", DEMO)
    in_work_tree(lab, "commit", "--quiet", "-m", "my own")
    done = rebase(lab, conflicting, "--continue")
    assert (done.returncode, "does not say which patch it is" in done.stderr) == (1, True)


def test_abort_leaves_everything_as_it_was(lab: HistoryProject, conflicting: Path) -> None:
    before = files_of(conflicting)
    rebase(lab, conflicting, "--onto", "v1.1.0")
    assert rebase(lab, conflicting, "--onto", "v1.1.0").returncode == 1  # one at a time
    assert rebase(lab, conflicting, "--abort").returncode == 0
    assert not work_tree(lab).exists()
    assert files_of(conflicting) == before
    assert rebase(lab, conflicting, "--continue").returncode == 1


def test_merge_that_no_probe_vouches_for_is_shown_and_then_accepted(
    lab: HistoryProject, tmp_path: Path
) -> None:
    before = P0_BEFORE + b"\n\ndef g():\n    return 1\n"
    pin = lab.commit({DEMO: before}, tag="v1.0.0")
    patch = lab.patch("p0", pin, {DEMO: before.replace(b"b = 2", b"b = 3").replace(b"return 1", b"return 2")})
    lab.commit({DEMO: before.replace(b"b = 2", b"b = 3")}, tag="v1.1.0")  # a part of it
    root = write_root(lab, tmp_path / "root", pin, [patch])
    done = rebase(lab, root, "--onto", "v1.1.0")
    assert (done.returncode, "no probe that vouches" in done.stderr) == (3, True)
    assert not (root / "patches/v1.1.0").exists()
    done = rebase(lab, root, "--continue")
    assert done.returncode == 0, done.stderr
    (diff,) = parse_patch("p0", (root / "patches/v1.1.0/p0.patch").read_bytes()).files
    assert [line for hunk in diff.hunks for line in hunk.lines if line[:1] == b"+"] == [b"+    return 2\n"]


def test_release_that_nobody_can_pin_is_refused(lab: HistoryProject, tmp_path: Path) -> None:
    pin, patches = two_patches(lab)
    root = write_root(lab, tmp_path / "root", pin, patches)
    done = overlay(lab, root, "rebase", "demo", "--onto", f"{lab.repository}@v1.0.0")
    assert (done.returncode, "a spec cannot pin this" in done.stderr) == (2, True)


# --- what is left out, and what that asks of the others -----------------------------------------------------


def no_probes(lab: HistoryProject, *trailers: str) -> tuple[str, list[Patch]]:
    pin = lab.commit({DEMO: P0_BEFORE, OTHER: b"x = 1\n"}, tag="v1.0.0")
    p0 = lab.patch("p0", pin, {DEMO: P0_AFTER}, *trailers)
    lab.probe("p1", OTHER_PROBE)
    p1 = lab.patch("p1", pin, {OTHER: b"x = 2\n"}, "Overlay-Depends: p0")
    lab.commit({DEMO: P0_AFTER}, "repair f (#5)", tag="v1.1.0")
    return pin, [p0, p1]


def test_text_alone_leaves_nothing_out_in_any_of_the_three(lab: HistoryProject, tmp_path: Path) -> None:
    pin, patches = no_probes(lab)
    root = write_root(lab, tmp_path / "root", pin, patches)
    before = files_of(root)
    shown = overlay(lab, root, "diff", "demo", "--upstream", f"{lab.repository}@v1.1.0")
    assert "can be retired" not in shown.stdout
    assert "not retired on text alone (" in shown.stdout
    done = rebase(lab, root, "--onto", "v1.1.0")
    assert done.returncode == 3
    for said in (shown.stdout, done.stderr):
        assert "it has no probe and does not say why: not retired on text alone" in said
    assert "overlay rebase demo --continue --accept-text p0" in done.stderr
    assert rebase(lab, root, "--continue").returncode == 3
    assert files_of(root) == before
    done = rebase(lab, root, "--continue", "--accept-text", "p0")
    assert done.returncode == 0, done.stderr
    assert "left out: nothing is left of it when merged; it has no probe" in done.stdout
    assert "p1: Overlay-Depends: p0 is taken out: v1.1.0 has it" in done.stdout
    assert "# p0 is left out: nothing is left of it" in (root / "patches/v1.1.0/series").read_text()
    assert read_series_file(root / "patches/v1.1.0") == ["p1"]


@pytest.mark.parametrize(
    ("trailers", "options"),
    [(("Overlay-Probe: none [docs]",), ()), ((), ("--accept-text", "p0"))],
    ids=["the patch says it", "the user says it"],
)
def test_text_alone_is_enough_where_somebody_says_so(
    lab: HistoryProject, tmp_path: Path, trailers: tuple[str, ...], options: tuple[str, ...]
) -> None:
    pin, patches = no_probes(lab, *trailers)
    root = write_root(lab, tmp_path / "root", pin, patches)
    shown = overlay(lab, root, "diff", "demo", "--upstream", f"{lab.repository}@v1.1.0", *options)
    assert "can be retired (" in shown.stdout
    done = rebase(lab, root, "--onto", "v1.1.0", *options, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["retired"]["p0"].startswith("merged since")
    assert json.loads(done.stdout)["untied"] == {"p1": ["p0"]}


@pytest.mark.parametrize(
    ("name", "what"),
    [("p1", "the patch has a probe, and that decides"), ("p9", "there is no patch of this name to accept")],
)
def test_accepting_what_cannot_be_accepted_is_refused(
    lab: HistoryProject, tmp_path: Path, name: str, what: str
) -> None:
    pin, patches = no_probes(lab)
    root = write_root(lab, tmp_path / "root", pin, patches)
    for command in (("diff", "demo"), ("rebase", "demo", "--onto", "v1.1.0")):
        done = overlay(lab, root, *command, "--upstream-url", str(lab.repository), "--accept-text", name)
        assert (done.returncode, what in done.stderr) == (1, True)


def test_patch_that_depends_on_an_obsolete_one_is_not_carried(lab: HistoryProject, tmp_path: Path) -> None:
    pin, patches = two_patches(lab)
    lab.commit({DEMO: b"def caller():\n    return 4\n"}, "drop f", tag="v1.1.0")
    root = write_root(lab, tmp_path / "root", pin, patches)
    before = files_of(root)
    done = rebase(lab, root, "--onto", "v1.1.0")
    assert done.returncode == 3
    assert "p1: Overlay-Depends: p0; p0: obsolete since" in done.stderr
    assert files_of(root) == before
    message = in_work_tree(lab, "log", "-1", "--format=%B").replace("Overlay-Depends: p0\n", "")
    in_work_tree(lab, "commit", "--quiet", "--amend", "-m", message)
    done = rebase(lab, root, "--continue")
    assert done.returncode == 0, done.stderr
    assert read_series_file(root / "patches/v1.1.0") == ["p1"]


def test_patch_that_depends_on_one_left_out_by_hand_is_not_carried(
    lab: HistoryProject, conflicting: Path
) -> None:
    assert rebase(lab, conflicting, "--onto", "v1.1.0").returncode == 3
    in_work_tree(lab, "checkout", "--quiet", "HEAD", "--", DEMO)
    done = rebase(lab, conflicting, "--continue")
    assert done.returncode == 3
    assert "p1: Overlay-Depends: p0; p0: left out by hand" in done.stderr
    assert not (conflicting / "patches/v1.1.0").exists()


def test_retiring_a_needless_patch_that_another_depends_on_is_refused(
    lab: HistoryProject, tmp_path: Path
) -> None:
    pin = lab.commit({DEMO: P0_BEFORE, OTHER: b"x = 1\n"}, tag="v0.9.0")
    lab.probe("p0")
    lab.probe("p1", OTHER_PROBE)
    patches = [
        lab.patch("p0", pin, {DEMO: P0_AFTER}),
        lab.patch("p1", pin, {OTHER: b"x = 2\n"}, "Overlay-Depends: p0"),
    ]
    pin = lab.commit({DEMO: b"def caller():\n    return 4\n"}, tag="v1.0.0")
    root = write_root(lab, tmp_path / "root", pin, patches)
    before = files_of(root)
    done = overlay(lab, root, "diff", "demo", "--retire")
    assert (done.returncode, "p1: Overlay-Depends: p0" in done.stderr) == (1, True)
    assert files_of(root) == before


LONG = b"def f(x):\n    first(x)\n    second(x)\n" + b"".join(b"    step_%d(x)\n" % n for n in range(12))
LONG += b"    almost(x)\n    last(x)\n    return x\n"
LONG = b"from sglang.steps import *\n\n\n" + LONG
LONG_AFTER = LONG.replace(b"    second(x)\n", b"    check_it(x)\n    second(x)\n").replace(
    b"    last(x)\n", b"    note_it(x)\n    last(x)\n"
)


def test_what_the_release_has_already_is_not_put_in_twice(lab: HistoryProject, tmp_path: Path) -> None:
    """A neighbour is new beside the first hunk: git alone would merge it cleanly, a second time."""
    pin = lab.commit({DEMO: LONG}, tag="v1.0.0")
    patch = lab.patch("p0", pin, {DEMO: LONG_AFTER})
    new = LONG.replace(
        b"    second(x)\n", b"    warm_up(x)\n    check_it(x)\n    cool_down(x)\n    second(x)\n"
    )
    lab.commit({DEMO: new}, tag="v1.1.0")
    root = write_root(lab, tmp_path / "root", pin, [patch])
    assert rebase(lab, root, "--onto", "v1.1.0").returncode == 3  # a person looks at what is left
    done = rebase(lab, root, "--continue")
    assert done.returncode == 0, done.stderr
    (diff,) = parse_patch("p0", (root / "patches/v1.1.0/p0.patch").read_bytes()).files
    assert [line for hunk in diff.hunks for line in hunk.lines if line[:1] == b"+"] == [b"+    note_it(x)\n"]


def test_patch_judged_to_need_a_person_stops_although_git_merges_it(
    lab: HistoryProject, tmp_path: Path
) -> None:
    """Its line stands in the function already, at another place."""
    pin = lab.commit({DEMO: LONG}, tag="v1.0.0")
    patch = lab.patch("p0", pin, {DEMO: LONG.replace(b"    last(x)\n", b"    note_it(x)\n    last(x)\n")})
    lab.commit({DEMO: LONG.replace(b"    first(x)\n", b"    first(x)\n    note_it(x)\n")}, tag="v1.1.0")
    root = write_root(lab, tmp_path / "root", pin, [patch])
    done = rebase(lab, root, "--onto", "v1.1.0")
    assert (done.returncode, "overlay diff says rework" in done.stderr) == (3, True), done.stderr
    assert not (root / "patches/v1.1.0").exists()


def test_what_a_release_between_had_and_has_changed_since_is_left_out(
    lab: HistoryProject, tmp_path: Path
) -> None:
    pin = lab.commit({DEMO: P0_BEFORE}, tag="v1.0.0")
    patch = lab.patch("p0", pin, {DEMO: P0_AFTER}, "Overlay-Probe: none [a number]")
    between = lab.commit({DEMO: P0_AFTER}, tag="v1.1.0")
    new = lab.commit({DEMO: P0_AFTER.replace(b"b = 3", b"b = 4")}, tag="v1.2.0")
    root = write_root(lab, tmp_path / "root", pin, [patch])
    rows = "".join(f"{name}: {{commit: {commit}, wheel: {'0' * 64}}}\n" for name, commit in
                   (("v1.0.0", pin), ("v1.1.0", between), ("v1.2.0", new)))  # fmt: skip
    (root / "releases.yaml").write_text(rows)
    done = rebase(lab, root, "--onto", "v1.2.0", "--source", "repository", "--json")
    assert done.returncode == 0, done.stderr
    assert "merged in v1.1.0, changed since" in json.loads(done.stdout)["retired"]["p0"]
