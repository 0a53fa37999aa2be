"""The lists beside a probe: read whole or refused with the entry, the key and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import InvalidInput
from builder.probe.lists import MAX_LIST_BYTES, Edit, edited, read_lists
from builder.probe.trees import MappingTree

TREE = MappingTree({"python/sglang/a.py": b"x = 1\ny = 1\n"})


def lists(directory: Path, mutants: str = "", variants: str = "") -> Path:
    probe = directory / "one.py"
    probe.write_text("")
    if mutants:
        (directory / "one.mutants.yaml").write_text(mutants)
    if variants:
        (directory / "one.variants.yaml").write_text(variants)
    return probe


def test_a_probe_needs_no_lists(tmp_path: Path) -> None:
    assert read_lists(lists(tmp_path)).mutants == ()


def test_both_lists_are_read(tmp_path: Path) -> None:
    found = read_lists(
        lists(
            tmp_path,
            "file: a.py\nmutants:\n  - {name: m, breaks: x is 2, on: v1, edits: [{old: x, new: y}]}\n"
            "hunks:\n  - {hunk: import os, costs: start, why: because}\n",
            "variants:\n  - name: v\n    on: [v1, v2]\n    edits:\n      - {file: b.py, new: made}\n",
        )
    )
    (mutant,), (excuse,), (variant,) = found.mutants, found.hunks, found.variants
    assert (mutant.edits, mutant.breaks, mutant.on) == ((Edit("a.py", "x", "y"),), "x is 2", ("v1",))
    assert (excuse.hunk, excuse.costs) == ("import os", "start")
    assert (variant.edits, variant.on) == ((Edit("b.py", "", "made"),), ("v1", "v2"))


EDIT = "edits: [{file: a.py, old: x, new: y}]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mutant: []\n", "did you mean mutants?"),
        (f"mutants: [{{name: m, brakes: p, {EDIT}}}]\n", "did you mean breaks?"),
        (f"mutants: [{{name: m, {EDIT}}}]\n", "breaks"),
        ("mutants: [{name: m, breaks: p, edits: []}]\n", "1 to"),
        ("mutants: [{name: m, breaks: p, edits: [{old: x, new: y}]}]\n", "file"),
        ("mutants: [{name: m, breaks: p, edits: [{file: a.py, old: x, new: x}]}]\n", "changes nothing"),
        ("mutants: [{name: m, breaks: p, edits: [{file: ../a.py, new: x}]}]\n", "not a file of the tree"),
        ("mutants: [{name: m, breaks: p, edits: [{file: /a.py, new: x}]}]\n", "not a file of the tree"),
        (f"mutants: [{{name: m, breaks: p, costs: nothing, why: w, {EDIT}}}]\n", "advice | speed | start"),
        (f"mutants: [{{name: m, breaks: p, costs: speed, {EDIT}}}]\n", "and a reason"),
        (f"mutants: [{{name: m, breaks: [p], {EDIT}}}]\n", "a text"),
        (f"mutants: [{{name: m, breaks: p, {EDIT}}}, {{name: m, breaks: q, {EDIT}}}]\n", "one name"),
        ("hunks: [{hunk: x}]\n", "costs"),
        ("mutants: [x]\n", "keys with values"),
        ("mutants: &a []\nhunks: *a\n", "another part of itself"),
        ("- mutants\n", "keys: "),
        ("mutants: [\n", "not YAML"),
        ("#" * (MAX_LIST_BYTES + 1), "too large"),
    ],
)
def test_a_wrong_list_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_lists(lists(tmp_path, text))
    error = caught.value
    assert said in f"{error.what} {error.expected} {error.hint}"
    assert "one.mutants.yaml" in str(error.where)


def test_a_variant_breaks_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        read_lists(lists(tmp_path, variants=f"variants: [{{name: v, breaks: p, {EDIT}}}]\n"))


def test_edits_of_one_file_come_one_after_the_other() -> None:
    path = "python/sglang/a.py"
    made = edited(
        TREE, [Edit(path, "x = 1", "x = 2"), Edit(path, "x = 2\ny", "z"), Edit("b.py", "", "new\n")]
    )
    assert made.read(path) == b"z = 1\n"
    assert made.read("b.py") == b"new\n"


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (Edit("python/sglang/a.py", "= 1", "= 2"), "2 times"),
        (Edit("python/sglang/a.py", "gone", "x"), "0 times"),
        (Edit("python/sglang/b.py", "x", "y"), "no such file"),
        (Edit("python/sglang/a.py", "", "new"), ""),
    ],
)
def test_an_edit_that_does_not_fit_is_refused(edit: Edit, found: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        edited(TREE, [edit])
    assert caught.value.where == edit.file
    assert found in (caught.value.found or "")
