"""``overlay diff`` as people and programs see it, and where its targets come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.projects.adversarial_cases import AFTER_MANY, BEFORE_MANY, MOVED, PROBE
from tests.projects.history import DEMO, P0_AFTER, P0_BEFORE, SPEC, HistoryProject, overlay, write_root


@pytest.fixture
def lab(tmp_path: Path) -> HistoryProject:
    return HistoryProject(tmp_path)


@pytest.fixture
def root(lab: HistoryProject, tmp_path: Path) -> Path:
    """A pin, a release that needs the patch, one that has it, and one in which its lines changed."""
    pin = lab.commit({DEMO: P0_BEFORE}, tag="v1.0.0")
    lab.probe("p0")
    patch = lab.patch("p0", pin, {DEMO: P0_AFTER})
    lab.commit({"n": b"1"}, tag="v1.1.0")
    lab.commit({DEMO: P0_AFTER}, "repair f (#5)", tag="v1.2.0")
    lab.commit({DEMO: P0_BEFORE.replace(b"b = 2", b"b = 2.5")}, "break f again", tag="v1.3.0")
    return write_root(lab, tmp_path / "root", pin, [patch])


def test_table_of_one_target_says_why(lab: HistoryProject, root: Path) -> None:
    done = overlay(lab, root, "diff", "demo", "--upstream", "v1.2.0", "--upstream-url", str(lab.repository))
    assert done.returncode == 0, done.stderr
    assert "PATCH  ON v1.2.0  TEXT    PROBE  WHY\np0     merged     merged  fixed  f() is 4\n" in done.stdout
    assert "p0: merged since v1.2.0, " in done.stdout
    assert "repair f (#5) (#5): f() is 4" in done.stdout


def test_table_of_several_targets_is_a_matrix(lab: HistoryProject, root: Path) -> None:
    options = [word for tag in ("v1.1.0", "v1.2.0", "v1.3.0") for word in ("--upstream", tag)]
    done = overlay(lab, root, "diff", "demo", *options, "--upstream-url", str(lab.repository))
    assert "PATCH  v1.1.0  v1.2.0  v1.3.0\np0     carry   merged  rework\n" in done.stdout
    assert f"conflict: {DEMO}, hunk 1" in done.stdout


def test_json_has_the_same_facts(lab: HistoryProject, root: Path) -> None:
    done = overlay(lab, root, "diff", "demo", "--upstream", f"{lab.repository}@v1.3.0", "--json")
    (report,) = json.loads(done.stdout)["reports"]
    (evaluation,) = report["judgements"]
    assert (evaluation["verdict"], evaluation["retirable"]) == ("rework", False)
    assert evaluation["evidence"]["text"]["hunks"][0]["state"] == "conflict"
    assert evaluation["evidence"]["behaviour"]["pristine"]["state"] == "defect"
    assert report["changes"] == [
        {"patch": "p0", "target": f"{lab.repository}@v1.3.0", "was": None, "now": "rework"}
    ]


def test_markdown_stays_in_its_place(lab: HistoryProject, root: Path) -> None:
    done = overlay(lab, root, "diff", "demo", "--upstream", f"{lab.repository}@v1.2.0", "--markdown")
    assert "| p0 | merged |" in done.stdout
    assert "- **p0**: merged, can be retired: f() is 4" in done.stdout
    assert "  - behaviour of the pin: defect: f() is 3, not 4" in done.stdout


def test_page_is_written_whole(lab: HistoryProject, root: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    target = f"{lab.repository}@v1.2.0"
    assert overlay(lab, root, "diff", "demo", "--upstream", target, "--html", str(page)).returncode == 0
    text = page.read_text("utf-8")
    assert "default-src 'none'" in text
    assert 'aria-label="p0 on' in text


def test_no_upstream_judges_the_pin(lab: HistoryProject, root: Path) -> None:
    done = overlay(lab, root, "diff", "demo")
    assert "ON v1.0.0" in done.stdout
    assert "carry" in done.stdout


def test_remote_branch_is_fetched_with_only_what_is_needed(lab: HistoryProject, tmp_path: Path) -> None:
    pin = lab.commit({DEMO: BEFORE_MANY, "docs/large.md": b"x" * 1000}, tag="v1.0.0")
    lab.probe("p0", PROBE)
    patch = lab.patch("p0", pin, {DEMO: AFTER_MANY})
    lab.commit({DEMO: None, MOVED: BEFORE_MANY + b"\nmoved = 1\n"})
    lab.git("branch", "next-release")
    for key in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
        lab.git("config", key, "true")
    root = write_root(lab, tmp_path / "root", pin, [patch])
    url = f"file://{lab.repository}"
    text = (root / "overlays/demo.yaml").read_text().replace(str(lab.repository), url)
    (root / "overlays/demo.yaml").write_text(text)
    done = overlay(lab, root, "diff", "demo", "--upstream", "next-release", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (evaluation,) = json.loads(done.stdout)["reports"][0]["judgements"]
    assert (evaluation["verdict"], evaluation["evidence"]["text"]["state"]) == ("carry", "moves")
    unknown = overlay(lab, root, "diff", "demo", "--upstream", "no-such-branch")
    assert (unknown.returncode, "no such branch or tag" in unknown.stderr) == (1, True)


def test_history_of_a_remote_is_bisected_without_a_clone_of_it(lab: HistoryProject, tmp_path: Path) -> None:
    pin = lab.commit({DEMO: P0_BEFORE}, tag="v1.0.0")
    lab.probe("p0")
    patch = lab.patch("p0", pin, {DEMO: P0_AFTER})
    _, commits = lab.chain(pin, 40, lambda n: P0_AFTER if n >= 17 else P0_BEFORE)
    lab.git("branch", "line", commits[-1])
    lab.git("tag", "v1.1.0", commits[20])
    for key in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
        lab.git("config", key, "true")
    root = write_root(lab, tmp_path / "root", pin, [patch])
    spec = root / "overlays/demo.yaml"
    spec.write_text(spec.read_text().replace(str(lab.repository), f"file://{lab.repository}"))
    done = overlay(lab, root, "diff", "demo", "--upstream", "line", "--history", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (evaluation,) = json.loads(done.stdout)["reports"][0]["judgements"]
    history = evaluation["evidence"]["history"]
    assert (history["commit"], history["release"], history["method"]) == (commits[17], "v1.1.0", "bisection")
    assert history["pull_request"] == "#17"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("diff", "demo", "--dry-run"), 2, "--dry-run goes with --retire"),
        (("diff", "demo", "--json", "--markdown"), 2, "exclude each other"),
        (("diff", "demo", "--upstream", "v9.9.9"), 1, "no pin for this release"),
        (
            ("diff", "demo", "--upstream", "--help", "--upstream-url", "ext::sh"),
            1,
            "not a place to fetch from",
        ),
        (("diff", "demos"), 1, "did you mean demo?"),
        (("rebase", "demo"), 2, "name one of --onto"),
        (("rebase", "demo", "--continue"), 1, "no rebase to go on with"),
    ],
)
def test_mistakes_are_said_kindly(
    lab: HistoryProject, root: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = overlay(lab, root, *arguments)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_two_overlays_are_compared(lab: HistoryProject, root: Path) -> None:
    commit = lab.git("rev-parse", "v1.3.0")
    series = root / "patches/v1.3.0"
    series.mkdir()
    (series / "series").write_text("p1\n")
    patch = lab.patch("p1", commit, {DEMO: P0_AFTER})
    (series / "p1.patch").write_bytes(patch.data)
    other = SPEC.format(repository=lab.repository, release="v1.3.0", commit=commit, lists="")
    (root / "overlays/next.yaml").write_text(other.replace("name: demo", "name: next"))
    shown = json.loads(overlay(lab, root, "diff", "demo", "next", "--json").stdout)
    assert shown["facts"]["release"] == {"left": "v1.0.0", "right": "v1.3.0"}
    assert shown["patches"] == {"p0": "only in the first", "p1": "only in the second"}
    assert shown["files"] == {}  # both leave the same bytes
    same = overlay(lab, root, "diff", "demo", "demo")
    assert same.stdout == "demo and demo are the same\n"


# --- how a repository and a commit may be named -------------------------------------------------------------


@pytest.mark.parametrize("place", ["upstream", "./upstream", "../lab/upstream"])
def test_repositories_may_be_named_from_where_one_is(tmp_path: Path, place: str) -> None:
    here = tmp_path / "lab"
    here.mkdir()
    lab = HistoryProject(here)
    pin = lab.commit({DEMO: P0_BEFORE}, tag="v1.0.0")
    lab.probe("p0")
    patches = [lab.patch("p0", pin, {DEMO: P0_AFTER})]
    lab.commit({DEMO: P0_BEFORE.replace(b"b = 2", b"b = 2.5")}, tag="v1.1.0")
    lab.commit({"n": b"1"}, tag="v1.2.0")
    root = write_root(lab, here / "root", pin, patches)
    there = ("--upstream-url", place)
    for words in (
        ("diff", "demo", "--upstream", f"{place}@v1.2.0"),
        ("diff", "demo", "--upstream", "v1.2.0", *there),
        ("diff", "demo", "--upstream", "v1.2.0", *there, "--history"),
        ("probe", f"{place}@v1.2.0"),
        ("probe", place),
    ):
        done = overlay(lab, root, *words, cwd=here)
        assert done.returncode == 0, (words, done.stderr)
        assert "rework" in done.stdout or "defect" in done.stdout
    work = ("--worktree", "work")
    assert overlay(lab, root, "rebase", "demo", "--onto", "v1.2.0", *there, *work, cwd=here).returncode == 3
    (here / "work" / DEMO).write_bytes(P0_AFTER)
    lab.repository, kept = here / "work", lab.repository
    lab.git("add", DEMO)
    lab.repository = kept
    done = overlay(lab, root, "rebase", "demo", "--continue", "--worktree", "../work", cwd=root)
    assert done.returncode == 0, done.stderr


def test_tag_object_stands_for_its_commit(lab: HistoryProject, tmp_path: Path) -> None:
    pin = lab.commit({DEMO: P0_BEFORE}, tag="v1.0.0")
    lab.probe("p0")
    patches = [lab.patch("p0", pin, {DEMO: P0_AFTER})]
    new = lab.commit({"n": b"1"}, tag="v1.1.0")
    objects = {}
    for name, commit in (("old", pin), ("new", new)):
        lab.git("tag", "-a", "-m", name, name, commit)
        objects[name] = lab.git("rev-parse", f"refs/tags/{name}")
    assert objects["old"] != pin
    root = write_root(lab, tmp_path / "root", objects["old"], patches)
    for target in (objects["new"], f"{lab.repository}@{objects['new']}"):
        done = overlay(lab, root, "diff", "demo", "--upstream", target, "--json")
        assert done.returncode == 0, done.stderr
        (report,) = json.loads(done.stdout)["reports"]
        assert report["targets"][0]["commit"] == new
    done = overlay(lab, root, "rebase", "demo", "--onto", objects["new"])
    assert done.returncode == 0, done.stderr
    assert f"commit: {new}" in (root / "overlays/demo.yaml").read_text()
