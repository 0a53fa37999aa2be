"""``overlay patch lint --probes``: a probe that calls a mutant fixed is found out."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.test_lint import DEMO, GOOD
from tests.projects.series import SeriesProject, workshop

__all__ = ["workshop"]

PROBE = """from builder.probe.harness import Answer, Program, Tree, defect, fixed
def probe(tree: Tree) -> Answer:
    found = Program(tree).module("python/sglang/demo.py").f()
    return fixed(f"f() is {found}") if %s else defect(f"f() is {found}")
"""
MUTANTS = (
    "file: python/sglang/demo.py\nmutants:\n  - name: minus\n    breaks: f adds\n    on: demo\n"
    '    edits: [{old: "a + b", new: "a - b"}]\n'
)
VARIANTS = (
    "file: python/sglang/demo.py\nvariants:\n  - name: summed\n"
    '    edits: [{old: "return a + b", new: "return sum((a, b))"}]\n'
)


def prepared(shop: SeriesProject, condition: str, mutants: str = MUTANTS) -> Path:
    shop.add("one", (DEMO, *GOOD))
    probes = shop.root / "patches" / "probes"
    (probes / "one.py").write_text(PROBE % condition)
    (probes / "one.mutants.yaml").write_text(mutants)
    (probes / "one.variants.yaml").write_text(VARIANTS)
    return probes


def test_a_probe_that_asks_the_promise_has_no_findings(workshop: SeriesProject) -> None:
    prepared(workshop, "found == 4")
    ran = workshop("patch", "lint", "--probes", "--json")
    facts = json.loads(ran.out)
    assert (ran.code, facts["findings"]) == (0, [])
    (trial,) = facts["probes"]
    kinds = [(outcome["kind"], outcome["state"]) for outcome in trial["outcomes"]]
    assert kinds.count(("mutant", "defect")) == 2  # the list's, and the hunk reverted
    assert kinds.count(("variant", "fixed")) == len(kinds) - 2 >= 4
    assert "0 of 2 mutants fixed" in workshop("patch", "lint", "--probes").out


def test_a_mutant_that_is_called_fixed_is_a_finding(workshop: SeriesProject) -> None:
    prepared(workshop, "found != 3")
    ran = workshop("patch", "lint", "--probes", "--json")
    (finding,) = json.loads(ran.out)["findings"]
    assert (ran.code, finding["rule"]) == (1, "mutants")
    assert "'minus' is called fixed, though it breaks: f adds (f() is -2)" in finding["what"]


def test_without_the_option_no_probe_is_tried(workshop: SeriesProject) -> None:
    prepared(workshop, "found != 3")
    assert workshop("patch", "lint").code == 0
    assert workshop("patch", "lint", "--probes", "--offline").code == 2


def test_a_variant_that_is_called_a_defect_is_a_finding(workshop: SeriesProject) -> None:
    prepared(workshop, "b'a + b' in tree.read('python/sglang/demo.py') and found == 4")
    findings = json.loads(workshop("patch", "lint", "--probes", "--json").out)["findings"]
    assert {finding["rule"] for finding in findings} == {"variants"}
    assert "'summed' is called defect" in findings[0]["what"]


def test_an_edit_that_no_longer_fits_and_a_needless_excuse_are_findings(workshop: SeriesProject) -> None:
    more = MUTANTS.replace("a + b", "a * b") + "hunks:\n  - {hunk: b = 3, costs: speed, why: not so}\n"
    prepared(workshop, "found == 4", more)
    findings = json.loads(workshop("patch", "lint", "--probes", "--json").out)["findings"]
    whats = " / ".join(finding["what"] for finding in findings)
    assert "cannot be tried: mutant 'minus': an edit does not fit" in whats
    assert "is excused, and yet called defect" in whats


def test_lists_are_read_without_the_option(workshop: SeriesProject) -> None:
    probes = prepared(workshop, "found == 4", "mutant: []\n")
    (probes / "two.mutants.yaml").write_text(MUTANTS)
    (probes / "one.other.yaml").write_text("")
    findings = json.loads(workshop("patch", "lint", "--offline", "--json").out)["findings"]
    assert sorted((f["rule"], f["file"]) for f in findings) == [
        ("probe-lists", "patches/probes/one.mutants.yaml"),
        ("probe-lists", "patches/probes/one.other.yaml"),
        ("unused-probe", "patches/probes/two.mutants.yaml"),
    ]
