"""Probes over trees: every pair is asked, a series is judged by both trees, and answers are remembered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.errors import InvalidInput, ProbeFailed
from builder.probe.cached import Memory
from builder.probe.evaluate import ask_all, find_probes, probe_series
from builder.probe.harness import Answer
from builder.probe.trees import DirectoryTree, MappingTree
from builder.project.cache import Store

BEFORE = MappingTree({"python/sglang/a.py": b"x = 1\n", "python/sglang/b.py": b"y = 1\n"})
AFTER = MappingTree({"python/sglang/a.py": b"x = 2\n"}, BEFORE)


@pytest.fixture
def probes(tmp_path: Path) -> Path:
    """Probes ``a`` and ``b``: is the value of x in a.py, y in b.py, still 1? And one that never knows."""
    for module, name in (("a", "x"), ("b", "y")):
        (tmp_path / f"{module}.py").write_text(
            "from builder.probe.harness import *\n"
            "def probe(tree):\n"
            f"    value = Program(tree).module('sglang.{module}').{name}\n"
            f"    return defect('{name} is 1') if value == 1 else fixed(f'{name} is {{value}}')\n"
        )
    (tmp_path / "lost.py").write_text("def probe(tree): raise ValueError('lost')\n")
    (tmp_path / "_part.py").write_text("")
    return tmp_path


def test_every_probe_is_asked_about_every_tree(probes: Path) -> None:
    matrix = ask_all(find_probes(probes), {"old": BEFORE, "new": AFTER})
    states = {key: answer.state for key, answer in matrix.answers.items()}
    assert states == {
        ("a", "old"): "defect",
        ("a", "new"): "fixed",
        ("b", "old"): "defect",
        ("b", "new"): "defect",
        ("lost", "old"): "unknown",
        ("lost", "new"): "unknown",
    }
    first = matrix.as_json()["probes"][0]
    assert first["answers"]["new"] == {"state": "fixed", "evidence": "x is 2"}


def test_probe_can_be_chosen_by_name(probes: Path) -> None:
    assert [path.stem for path in find_probes(probes, ["b"])] == ["b"]
    with pytest.raises(InvalidInput) as error:
        find_probes(probes, ["los"])
    assert error.value.hint == "did you mean lost?"


def test_patch_that_repairs_its_defect_passes(probes: Path) -> None:
    said = probe_series(["a", "without-probe"], probes, BEFORE, AFTER, see="overlay probe")
    assert said == {"a": "defect->fixed", "without-probe": "none"}


@pytest.mark.parametrize(
    ("names", "before", "after", "found"),
    [
        (["a"], BEFORE, BEFORE, "defect, then defect"),
        (["a"], AFTER, AFTER, "fixed, then fixed"),
        (["a"], AFTER, BEFORE, "fixed, then defect"),
        (["lost"], BEFORE, AFTER, "unknown, then unknown"),
        (["a", "b"], BEFORE, AFTER, "defect, then defect"),
    ],
)
def test_patch_that_does_not_is_refused_with_the_evidence(
    probes: Path, names: list[str], before: MappingTree, after: MappingTree, found: str
) -> None:
    with pytest.raises(ProbeFailed) as error:
        probe_series(names, probes, before, after, see="overlay probe")
    assert error.value.exit_code == 7
    assert error.value.found == found
    assert error.value.details
    assert f"{names[-1]}: patched tree: " in error.value.details


def test_every_failing_patch_is_named(probes: Path) -> None:
    with pytest.raises(ProbeFailed, match="2 patches") as error:
        probe_series(["a", "b", "lost"], probes, BEFORE, AFTER, see="overlay probe")
    assert [entry["patch"] for entry in error.value.facts["probes"]] == ["b", "lost"]  # type: ignore[attr-defined]


def test_answers_are_remembered_by_probe_and_tree(probes: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    path = probes / "a.py"
    assert ask_all([path], {"t": BEFORE}, remembered=kept).answers["a", "t"].state == "defect"
    (entry,) = (path for path in kept.iterdir() if b'"read"' not in path.read_bytes())
    Store(kept).put(entry.name, json.dumps([["fixed", "from memory", ["torch"], ""]]).encode())
    answer = ask_all([path], {"t": BEFORE}, remembered=kept).answers["a", "t"]
    assert answer == Answer("fixed", "from memory", ("torch",))
    assert ask_all([path], {"t": BEFORE}).answers["a", "t"].state == "defect"
    assert ask_all([path], {"t": AFTER}, remembered=kept).answers["a", "t"].evidence == "x is 2"
    path.write_text(path.read_text().replace("x is 1", "still"))
    assert ask_all([path], {"t": BEFORE}, remembered=kept).answers["a", "t"].evidence == "still"


CURIOUS = """
from builder.probe.harness import fixed

def probe(tree):
    said = [tree.read("python/sglang/a.py"), "b.py" in tree, "c.py" in tree, list(tree.paths("d/"))]
    try:
        said.append(tree.read("none.py"))
    except KeyError:
        pass
    return fixed(f"{said} {tree.grep(b'needle', 'd/')}")
"""
SEEN = {"python/sglang/a.py": b"x = 1\n", "b.py": b"", "d/1.py": b"needle", "d/2.py": b""}


@pytest.mark.parametrize(
    ("change", "is_recognized"),
    [
        pytest.param({"other.py": b"new"}, True, id="a file that it did not ask for"),
        pytest.param({"b.py": b"changed"}, True, id="bytes of a file of which it asked whether it is there"),
        pytest.param({"d/1.py": b"a needle"}, True, id="bytes in which it found the same"),
        pytest.param({"python/sglang/a.py": b"x = 2\n"}, False, id="a file that it read"),
        pytest.param({"python/sglang/a.py": None}, False, id="a file that it read is gone"),
        pytest.param({"b.py": None}, False, id="a file that was there is gone"),
        pytest.param({"c.py": b""}, False, id="a file that was not there has come"),
        pytest.param({"none.py": b""}, False, id="a file that could not be read has come"),
        pytest.param({"d/3.py": b""}, False, id="another path below"),
        pytest.param({"d/2.py": b"needle"}, False, id="another file with the text"),
    ],
)
def test_an_answer_holds_for_every_tree_that_says_the_same(
    change: dict[str, bytes | None], is_recognized: bool, tmp_path: Path
) -> None:
    path = tmp_path / "curious.py"
    path.write_text(CURIOUS)
    first, second = MappingTree(SEEN), MappingTree({**SEEN, **change})
    ask_all([path], {"t": first}, remembered=tmp_path / "kept")
    (traces,) = (entry for entry in (tmp_path / "kept").iterdir() if b'"read"' in entry.read_bytes())
    kept = Store(tmp_path / "kept")
    value = json.loads(kept.get(traces.name) or b"")
    value[0][0][1] = "from memory"
    kept.put(traces.name, json.dumps(value).encode())
    fresh = ask_all([path], {"t": second}).answers["curious", "t"]
    for _ in range(2):
        answer = ask_all([path], {"t": second}, remembered=tmp_path / "kept").answers["curious", "t"]
        assert (answer.evidence == "from memory") == is_recognized
        assert answer == fresh or is_recognized


def test_what_cannot_be_told_is_remembered_and_what_a_limit_ended_is_not(
    probes: Path, tmp_path: Path
) -> None:
    """A probe that cannot tell could not on a faster machine either."""
    kept = tmp_path / "kept"
    (probes / "slow.py").write_text("def probe(tree):\n    while True: pass\n")
    assert ask_all([probes / "slow.py"], {"t": BEFORE}, timeout=1, remembered=kept)
    assert not kept.exists()
    said = ask_all([probes / "lost.py"], {"t": BEFORE}, remembered=kept).answers["lost", "t"]
    assert said.state == "unknown"
    entries = [Store(kept).get(entry.name) or b"" for entry in kept.iterdir()]
    assert entries
    assert all(b'"unknown"' in entry for entry in entries)


@pytest.mark.parametrize("junk", ["", "[]", "{}", '{"state": "perfect"}', "\xff"])
def test_damaged_memory_is_asked_anew(probes: Path, tmp_path: Path, junk: str) -> None:
    kept = tmp_path / "kept"
    ask_all([probes / "a.py"], {"t": BEFORE}, remembered=kept)
    for entry in kept.iterdir():
        entry.write_bytes(junk.encode("latin-1"))
    assert ask_all([probes / "a.py"], {"t": BEFORE}, remembered=kept).answers["a", "t"].state == "defect"


def test_directory_is_asked_anew_each_time(probes: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "python/sglang").mkdir(parents=True)
    for value, state in ((1, "defect"), (2, "fixed")):
        (checkout / "python/sglang/a.py").write_text(f"x = {value}\n")
        matrix = ask_all([probes / "a.py"], {"t": DirectoryTree(checkout)}, remembered=tmp_path / "kept")
        assert matrix.answers["a", "t"].state == state


def test_memory_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "kept")
    assert memory.get(b"probe", "tree") is None
    memory.put(b"probe", "tree", Answer("fixed", "x", ("torch",)))
    assert memory.get(b"probe", "tree") == Answer("fixed", "x", ("torch",))
    assert [path.name for path in (tmp_path / "kept").iterdir() if path.name.startswith(".")] == []
