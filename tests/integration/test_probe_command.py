"""``overlay probe``: one matrix for people, for programs and for pull requests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import Overlay

PROBE = """
from builder.probe.harness import Program, defect, fixed, absent

def probe(tree):
    if "python/sglang/a.py" not in tree:
        return absent("b alone", "python/sglang/b.py:alone")
    value = Program(tree).module("sglang.a").x
    return fixed(f"x is {value} | *good*", "torch") if value > 1 else defect(f"x is {value}")
"""


@pytest.fixture
def project(overlay: Overlay, tmp_path: Path) -> Overlay:
    """A root with two probes of the test's own, and three small checkouts beside it."""
    probes = overlay.directory / "patches" / "probes"
    shutil.rmtree(probes)
    probes.mkdir()
    (probes / "value.py").write_text(PROBE)
    (probes / "other.py").write_text("def probe(tree): raise ValueError('never knows')\n")
    for name, text in (("old", "x = 1\n"), ("new", "x = 2\n"), ("none", None)):
        folder = tmp_path / name / "python" / "sglang"
        folder.mkdir(parents=True)
        (folder / "b.py").write_text("alone = True\n")
        if text is not None:
            (folder / "a.py").write_text(text)
    return overlay


def test_table_and_evidence(project: Overlay, tmp_path: Path) -> None:
    out = project("probe", tmp_path / "old", tmp_path / "new", "--only", "value").check().out
    lines = out.splitlines()
    assert lines[0].split() == ["PROBE", str(tmp_path / "old"), str(tmp_path / "new")]
    assert lines[1].split() == ["value", "defect", "fixed"]
    assert f"  {tmp_path / 'new'}: fixed: x is 2 | *good* [torch]" in lines


def test_json_has_the_same_facts(project: Overlay, tmp_path: Path) -> None:
    facts = project("probe", tmp_path / "old", tmp_path / "none", "--json").check().json
    assert facts["trees"] == [str(tmp_path / "old"), str(tmp_path / "none")]
    answers = {probe["name"]: probe["answers"] for probe in facts["probes"]}
    assert answers["value"][str(tmp_path / "old")] == {"state": "defect", "evidence": "x is 1"}
    assert answers["value"][str(tmp_path / "none")]["state"] == "absent"
    assert answers["other"][str(tmp_path / "old")]["state"] == "unknown"
    assert "never knows" in answers["other"][str(tmp_path / "old")]["evidence"]
    assert facts["origins"][str(tmp_path / "old")] == str(tmp_path / "old")


def test_markdown_stays_a_table(project: Overlay, tmp_path: Path) -> None:
    out = project("probe", tmp_path / "new", "--only", "value", "--markdown").check().out
    header, rule, row = out.splitlines()[:3]
    assert header.count("|") == rule.count("|") == row.count("|") == 3
    assert row == "| value | fixed |"
    assert r"x is 2 \| \*good\* \[torch\]" in out


def test_revision_of_a_repository(project: Overlay, tmp_path: Path, run_git) -> None:  # type: ignore[no-untyped-def]
    repository = tmp_path / "old"
    run_git("init", "--quiet", cwd=repository)
    run_git("add", ".", cwd=repository)
    run_git("commit", "--quiet", "-m", "one", cwd=repository)
    (repository / "python/sglang/a.py").write_text("x = 5\n")
    name = f"{repository}@HEAD"
    facts = project("probe", name, repository, "--only", "value", "--json").check().json
    answers = facts["probes"][0]["answers"]
    assert (answers[name]["evidence"], answers[str(repository)]["evidence"]) == ("x is 1", "x is 5 | *good*")
    assert facts["origins"][name].startswith("git tree ")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "Missing argument"),
        (("nowhere",), 1, "there is no such tree"),
        (("glm53-flash-gb10",), 1, "did you mean overlay:glm53-flash-gb10?"),
        (("overlay:glm53-flash-gb1",), 1, "did you mean glm53-flash-gb10?"),
        (("v0.0.1",), 1, "v0.0.1"),
        ((".", "--only", "valeu"), 1, "did you mean value?"),
        ((".", "--json", "--markdown"), 2, "exclude each other"),
        ((".",), 1, "the directory holds no SGLang source"),
    ],
)
def test_mistakes_are_named(project: Overlay, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = project("probe", *arguments).check(code)
    assert said in done.err + done.out
