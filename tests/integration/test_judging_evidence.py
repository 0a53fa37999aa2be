"""Patches without probes: what their text proves on a target, and what it does not."""

from __future__ import annotations

import datetime
import textwrap
from pathlib import Path

import pytest

from builder.patch.patch import Patch, parse_patch
from builder.retire.evaluate import Evaluation
from builder.retire.markdown import evidence_rows
from builder.retire.retire import retired_patch
from tests.projects.history import DEMO, P0_AFTER, P0_BEFORE, HistoryProject, mail, overlay, write_root

OTHER = "python/sglang/other.py"
WORK = b"""\
import os


def work(items, limit):
    total = 0
    for item in items:
        value = item.load(limit)
        total += value
    log.info("worked on %d items", len(items))
    return total


def rest(items):
    return len(items)
"""
CHECKS = b"        if not item.is_ready():\n            raise NotReady(item)\n"
# checks an item before it is loaded, and says so behind the loop
WORKED = WORK.replace(
    b"        value = item",
    b"        if not item.is_ready():\n            raise NotReady(item)\n        value = item",
).replace(b"    return total\n", b"    count_work(total)\n    return total\n")


@pytest.fixture
def lab(tmp_path: Path) -> HistoryProject:
    return HistoryProject(tmp_path)


def judged(
    lab: HistoryProject, before: bytes, after: bytes, *upstream: bytes, trailer: str = ""
) -> list[Evaluation]:
    """One patch, judged on each of the releases that follow."""
    pin = lab.commit({DEMO: before}, tag="v1.0.0")
    patch = lab.patch("p0", pin, {DEMO: after}, *([trailer] if trailer else []))
    tags = []
    for number, data in enumerate(upstream, 1):
        tags.append(f"v1.{number}.0")
        lab.commit({DEMO: data}, f"upstream {number}", tag=tags[-1])
    report = lab.judge(pin, [patch], *tags, history=False)
    return [report.of(patch.name, tag) for tag in tags]


def one(lab: HistoryProject, before: bytes, after: bytes, target: bytes) -> Evaluation:
    (found,) = judged(lab, before, after, target)
    return found


def proof(found: Evaluation) -> tuple[str, str | None]:
    return found.verdict.word, found.evidence.text.proof


# --- by its lines -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("was", "now"),
    [
        # a neighbour that stands right beside the added lines changed, and more than its name
        (b"        value = item.load(limit)\n", b"        value = item.load(limit, retries=3)\n"),
        (b"    for item in items:\n", b"    for item in sorted(items, key=size):\n"),
        (b"    return total\n", b"    return total, len(items)\n"),
        # a neighbour was put in: git would add the lines a second time, cleanly
        (b"        if not item", b"        item.touch()\n        if not item"),
        (b"    count_work(total)\n", b"    total += 1\n    count_work(total)\n"),
    ],
)
def test_lines_that_stand_between_the_same_neighbours_are_merged(
    lab: HistoryProject, was: bytes, now: bytes
) -> None:
    found = one(lab, WORK, WORKED, WORKED.replace(was, now, 1))
    assert found.verdict.word == "merged", found.verdict.why
    assert not found.verdict.retirable  # the text alone, and nobody said that it is enough
    by_lines = [h.standing for h in found.evidence.text.hunks if h.standing is not None]
    for standing in by_lines:
        assert standing.path == DEMO
        assert f"{DEMO}:" in found.verdict.why
        assert "work" in standing.definition


def test_a_clean_merge_is_no_proof_of_need(lab: HistoryProject) -> None:
    """Two neighbours are new on either side: git merges without a conflict, and has the check twice."""
    target = WORKED.replace(
        b"        if not item", b"        item.touch()\n        item.lock()\n        if not item"
    )
    target = target.replace(b"        value = item", b"        item.unlock()\n        value = item")
    found = one(lab, WORK, WORKED, target)
    assert proof(found) == ("merged", "lines")
    (standing, *_) = [h.standing for h in found.evidence.text.hunks if h.standing is not None]
    assert standing.lines == ((9, 10), (15, 15))


@pytest.mark.parametrize(
    "target",
    [
        # the line that the patch takes out is left, beside its own
        P0_BEFORE.replace(b"    b = 2\n", b"    b = 2\n    b = 3\n"),
        # the added line stands in another function
        P0_BEFORE + b"\n\ndef g():\n    a = 1\n\n    b = 3\n    return a + b\n",
        # and in one above
        b"def g():\n    a = 1\n\n    b = 3\n    return a + b\n\n\n" + P0_BEFORE,
        # the function has another name, and is as it was
        P0_BEFORE.replace(b"def f", b"def h"),
        # it was moved into a class as it was
        b"class C:\n" + b"".join(b"    " + line + b"\n" for line in P0_BEFORE.splitlines()),
    ],
)
def test_what_is_needed_is_never_merged(lab: HistoryProject, target: bytes) -> None:
    found = one(lab, P0_BEFORE, P0_AFTER, target)
    assert found.verdict.word in ("carry", "rework"), found.verdict.why
    assert not found.verdict.retirable


def test_lines_that_the_pin_has_elsewhere_prove_nothing(lab: HistoryProject) -> None:
    """A patch that adds sync() to g is not merged because f has it."""
    two = b"def f(x):\n    first(x)\n    sync()\n    last(x)\n\n\ndef g(x):\n    first(x)\n    last(x)\n"
    after = two.replace(b"def g(x):\n    first(x)\n", b"def g(x):\n    first(x)\n    sync()\n")
    found = one(
        lab,
        two,
        after,
        two.replace(b"last(x)\n\n\ndef g(x):\n    first(x)", b"last(x, 1)\n\n\ndef g(x):\n    first(x, 1)"),
    )
    assert found.verdict.word in ("carry", "rework")


def test_a_second_call_in_the_same_function_is_needed(lab: HistoryProject) -> None:
    one_call = b"def g(x):\n    sync()\n    first(x)\n    second(x)\n    last(x)\n    return x\n"
    after = one_call.replace(b"    last(x)\n", b"    sync()\n    last(x)\n")
    found = one(lab, one_call, after, one_call.replace(b"    second(x)\n", b"    second(x, deep=True)\n"))
    assert found.verdict.word in ("carry", "rework")


def test_nothing_added_proves_nothing_by_lines(lab: HistoryProject) -> None:
    after = WORK.replace(b'    log.info("worked on %d items", len(items))\n', b"")
    target = WORK.replace(b'    log.info("worked on %d items", len(items))\n', b'    log.debug("worked")\n')
    found = one(lab, WORK, after, target)
    assert found.verdict.word == "rework"


def test_half_of_the_hunk_elsewhere_in_the_function_is_no_proof_and_no_carry(lab: HistoryProject) -> None:
    """Where its lines stand already but not at their place, a person looks before they are put in again."""
    target = WORK.replace(b"    total = 0\n", b"    total = 0\n    count_work(total)\n")
    after = WORK.replace(b"    return total\n", b"    count_work(total)\n    return total\n")
    found = one(lab, WORK, after, target)
    assert found.verdict.word == "rework"
    assert "a part seems to be there" in found.verdict.why
    assert f"{DEMO}:6" in found.verdict.why


def test_one_hunk_there_and_one_needed_is_partial_and_only_the_rest_is_carried(lab: HistoryProject) -> None:
    long = WORK.replace(b"        total += value\n", b"        total += value\n" + b"".join(
        b"        step_%d(value)\n" % n for n in range(9)
    ))  # fmt: skip
    after = long.replace(
        b"        value = item",
        b"        if not item.is_ready():\n            raise NotReady(item)\n        value = item",
    ).replace(b"    return total\n", b"    count_work(total)\n    return total\n")
    target = long.replace(
        b"        value = item",
        CHECKS + b"        item.touch()\n        value = item",
    )
    pin = lab.commit({DEMO: long}, tag="v1.0.0")
    patch = lab.patch("p0", pin, {DEMO: after})
    lab.commit({DEMO: target}, tag="v1.1.0")
    report = lab.judge(pin, [patch], "v1.1.0")
    found = report.of("p0", "v1.1.0")
    assert found.verdict.word == "partial", found.verdict.why
    assert [hunk.state for hunk in found.evidence.text.hunks] == ["present", "carries"]
    carried = report.merge("v1.1.0").changed[DEMO]
    assert carried is not None
    assert carried.data.count(b"is_ready") == 1
    assert carried.data.count(b"count_work") == 1


# --- by the syntax ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edit",
    [
        lambda t: t.replace(b"value", b"loaded"),
        lambda t: t.replace(b"def work(items, limit):", b"def work(items: list[Item], limit: int) -> int:"),
        lambda t: t.replace(b"    total = 0\n", b"    # counts from none\n    total = 0\n"),
        lambda t: t.replace(b"item.load(limit)", b"item.load(\n            limit,\n        )"),
        lambda t: t.replace(b"    total = 0\n", b'    """Work on items."""\n    total: int = 0\n'),
        lambda t: t.replace(b"item", b"thing").replace(b"things", b"items"),
    ],
)
def test_what_is_equal_but_for_names_and_form_is_merged_by_the_syntax(lab: HistoryProject, edit) -> None:  # type: ignore[no-untyped-def]
    found = one(lab, WORK, WORKED, edit(WORKED))
    assert found.verdict.word == "merged", found.verdict.why
    if found.evidence.text.proof == "syntax":
        assert "apart" in found.verdict.why


def test_a_patch_of_an_annotation_is_not_there_for_want_of_looking_at_annotations(
    lab: HistoryProject,
) -> None:
    before = b"@jit\ndef kernel(x, SIZE):\n    return load(x, SIZE)\n"
    after = before.replace(b"SIZE)", b"SIZE: constexpr)", 1)
    found = one(lab, before, after, before.replace(b"load(x, SIZE)", b"load(x, SIZE)  # as it was"))
    assert found.verdict.word == "rework" or found.verdict.word == "carry"


def test_other_names_that_mean_something_else_are_no_renamed_locals(lab: HistoryProject) -> None:
    before = b"def f(a, b):\n    c = a\n    return c - b\n"
    after = b"def f(a, b):\n    c = b\n    return c - b\n"
    found = one(lab, before, after, b"def f(a, b):\n    d = a\n    return d - b\n")
    assert found.verdict.word != "merged"


# --- over several releases ----------------------------------------------------------------------------------


def test_merged_in_an_earlier_release_and_changed_since(lab: HistoryProject) -> None:
    first, second = judged(lab, P0_BEFORE, P0_AFTER, P0_AFTER, P0_AFTER.replace(b"b = 3", b"b = 4"))
    assert proof(first) == ("merged", "merge")
    assert proof(second) == ("merged", "earlier release")
    assert "merged in v1.1.0, changed since" in second.verdict.why


def test_one_release_alone_does_not_know_what_an_earlier_one_had(lab: HistoryProject) -> None:
    found = one(lab, P0_BEFORE, P0_AFTER, P0_AFTER.replace(b"b = 3", b"b = 4"))
    assert found.verdict.word == "rework"


@pytest.mark.parametrize(
    "back",
    [
        P0_BEFORE,
        P0_BEFORE.replace(b"    a = 1\n", b"    a = 7\n"),  # with a neighbour changed
        P0_BEFORE.replace(b"return a + b", b"return b + a + 0"),
        P0_BEFORE.replace(b"    b = 2\n", b"    b  =  2\n"),
    ],
)
def test_merged_and_taken_back_is_needed(lab: HistoryProject, back: bytes) -> None:
    first, second = judged(lab, P0_BEFORE, P0_AFTER, P0_AFTER, back)
    assert first.verdict.word == "merged"
    assert second.verdict.word in ("carry", "rework"), second.verdict.why


def test_lines_that_were_only_added_and_are_all_gone_may_have_been_taken_back(lab: HistoryProject) -> None:
    again = WORK.replace(b"    for item in items:\n", b"    for item in reversed(items):\n").replace(
        b"    return total\n", b"    return total, 1\n"
    )
    first, second = judged(lab, WORK, WORKED, WORKED, again)
    assert first.verdict.word == "merged"
    assert second.verdict.word in ("carry", "rework")


# --- what retires -------------------------------------------------------------------------------------------


def test_text_retires_where_the_patch_says_that_it_has_no_probe(lab: HistoryProject) -> None:
    trailer = "Overlay-Probe: none [it only logs]"
    target = WORKED.replace(b"item.load(limit)", b"item.load(limit, retries=3)")
    (found,) = judged(lab, WORK, WORKED, target, trailer=trailer)
    assert (found.verdict.word, found.verdict.retirable) == ("merged", True)


# --- where it went ------------------------------------------------------------------------------------------


def test_code_that_moved_is_named_with_its_lines(lab: HistoryProject) -> None:
    body = b"    cutoff = compute_the_cutoff(limit)\n    return cutoff + 1\n"
    before = b"def f(limit):\n" + body
    pin = lab.commit({DEMO: before, OTHER: b"import os\n"}, tag="v1.0.0")
    patch = lab.patch(
        "p0", pin, {DEMO: before.replace(b"(limit)\n    return", b"(limit, exact=True)\n    return")}
    )
    lab.commit(
        {DEMO: b"from .other import f\n", OTHER: b"import os\n\n\ndef moved(limit):\n" + body}, tag="v1.1.0"
    )
    found = lab.judge(pin, [patch], "v1.1.0").of("p0", "v1.1.0")
    assert found.verdict.word == "rework"
    assert f"{OTHER}:5, in moved" in found.verdict.why


MOVED = """\
def process(units, bound):
    total = 0
    for unit in units:
        loaded = unit.load(bound)  # each of them
        total += loaded
    log.info('worked on %d items', len(units))
    return total
"""
ALIKE = WORK[WORK.index(b"def work") : WORK.index(b"\n\n\ndef rest")].decode() + " + 1\n"


@pytest.mark.parametrize(
    ("path", "text", "like"),
    [
        (OTHER, MOVED, "the same body"),
        (DEMO, MOVED, "the same body"),
        (OTHER, "class Worker:\n" + textwrap.indent(MOVED, "    "), "the same body"),
        (OTHER, ALIKE, "the same parameters and 83% of the body"),
        (OTHER, ALIKE.replace("item in items", "item in list(items)").replace("total += value", "pass"), ""),
        (OTHER, MOVED.replace("total += loaded", "total = total or loaded").replace("units", "parts"), ""),
        (OTHER, MOVED.replace("log.info", "lag.info"), ""),
    ],
)  # fmt: skip
def test_a_function_that_is_not_there_is_found_under_another_name(
    lab: HistoryProject, path: str, text: str, like: str
) -> None:
    """By its syntax: the patch only adds lines, and none that stand there verbatim."""
    rest = WORK[WORK.index(b"def rest") :]
    pin = lab.commit({DEMO: WORK, OTHER: b"import os\n"}, tag="v1.0.0")
    patch = lab.patch("p0", pin, {DEMO: WORKED})
    files = {DEMO: b"import os\n\n\n" + rest, OTHER: b"import os\n"}
    lab.commit(files | {path: files[path] + b"\n\n" + text.encode()}, tag="v1.1.0")
    found = lab.judge(pin, [patch], "v1.1.0").of("p0", "v1.1.0")
    assert found.verdict.word == "rework"
    said = [str(place) for place in found.evidence.text.went_to if place.like]
    name = "work" if text == ALIKE else "Worker.process" if "class" in text else "process"
    assert [place.rpartition(":")[0] for place in said] == ([path] if like else [])
    assert all(place.endswith(f"in {name} ({like})") and place in found.verdict.why for place in said)


def test_a_probe_that_does_not_find_a_name_is_told_where_it_may_have_gone(
    lab: HistoryProject, tmp_path: Path
) -> None:
    lab.probe("p0", "from builder.probe.harness import unknown\ndef probe(tree): return unknown('no work')\n")
    pin = lab.commit({DEMO: WORK, OTHER: b"import os\n"}, tag="v1.0.0")
    patch = lab.patch("p0", pin, {DEMO: WORKED})
    lab.commit({DEMO: b"import os\n", OTHER: MOVED.encode()}, tag="v1.1.0")
    found = lab.judge(pin, [patch], "v1.1.0").of("p0", "v1.1.0")
    assert found.verdict.word == "unknown"
    assert f"{OTHER}:1-7, in process (the same body)" in found.verdict.why
    root = write_root(lab, tmp_path / "root", pin, [patch])
    done = overlay(lab, root, "rebase", "demo", "--upstream-url", str(lab.repository), "--onto", "v1.1.0")
    assert done.returncode == 3, done.stderr
    assert f"{OTHER}:1-7, in process (the same body)" in done.stderr


# --- the commits of its pull request ------------------------------------------------------------------------


def with_number(lab: HistoryProject, pin: str, files: dict[str, bytes], number: int) -> Patch:
    patch = lab.patch("p0", pin, files)  # type: ignore[arg-type]
    return parse_patch("p0", patch.data.replace(b"Subject: p0\n", b"Subject: repair f (#%d)\n" % number))


def test_its_pull_request_is_found_and_so_is_the_revert(lab: HistoryProject) -> None:
    pin = lab.commit({DEMO: P0_BEFORE}, tag="v1.0.0")
    patch = with_number(lab, pin, {DEMO: P0_AFTER}, 12)
    assert patch.subject.endswith("(#12)"), patch.subject
    lab.commit({DEMO: P0_AFTER}, "repair f (#12)", tag="v1.1.0")
    lab.commit({DEMO: P0_BEFORE}, 'Revert "repair f (#12)" (#15)', tag="v1.2.0")
    lab.commit({DEMO: P0_AFTER}, 'Reapply "repair f (#12)" (#16)', tag="v1.3.0")
    report = lab.judge(pin, [patch], "v1.0.0", "v1.1.0", "v1.2.0", "v1.3.0")
    said = {name: report.of("p0", name) for name in ("v1.0.0", "v1.1.0", "v1.2.0", "v1.3.0")}
    assert [found.verdict.word for found in said.values()] == ["carry", "merged", "carry", "merged"]
    landed = {name: found.evidence.landed[0] for name, found in said.items()}
    assert [one.contained for one in landed.values()] == [False, True, True, True]
    assert [one.reverted_by is not None for one in landed.values()] == [False, False, True, False]
    assert landed["v1.1.0"].release == "v1.1.0"


# --- what hangs on another ----------------------------------------------------------------------------------


def test_a_patch_hangs_on_the_one_that_adds_what_it_uses(lab: HistoryProject) -> None:
    helper = b"def helper():\n    return 1\n"
    use = b"from sglang.demo import helper\n\n\ndef use():\n    return helper()\n"
    pin = lab.commit({DEMO: helper, OTHER: use}, tag="v1.0.0")
    adds = lab.patch("adds", pin, {DEMO: b"def helper(depth_of_it=0):\n    return 1 + depth_of_it\n"})
    uses = lab.patch(
        "uses",
        lab.after(pin, adds),
        {OTHER: use.replace(b"helper()\n", b"helper(depth_of_it=2)\n")},
        "Overlay-Depends: adds",
    )
    lab.commit({DEMO: helper.replace(b"helper()", b"helper(other)")}, tag="v1.1.0")
    lab.commit({DEMO: b"def helper(depth_of_it):\n    return 1 + depth_of_it\n"}, tag="v1.2.0")
    report = lab.judge(pin, [adds, uses], "v1.0.0", "v1.1.0", "v1.2.0")
    assert [report.of("uses", name).verdict.word for name in ("v1.0.0", "v1.1.0", "v1.2.0")] == [
        "carry",
        "rework",
        "carry",
    ]
    why = report.of("uses", "v1.1.0").verdict.why
    assert "hangs on adds (conflict" in why
    assert "depth_of_it" in why


def test_markdown_has_the_lines(lab: HistoryProject) -> None:
    found = one(
        lab,
        WORK,
        WORKED,
        WORKED.replace(b"    for item in items:\n", b"    for item in sorted(items, key=size):\n"),
    )
    rows = dict(evidence_rows(found.evidence))
    assert any("there, by" in said and f"{DEMO}:" in said for said in rows.values())
    patch = parse_patch("p0", mail("p0", b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"))
    header = retired_patch(patch, found, datetime.date(2026, 12, 1)).decode()
    assert f"Overlay-Evidence: hunk 1 of {DEMO}: there, by" in header
    value = found.as_json()["evidence"]["text"]
    assert value["proof"] in ("lines", "syntax")
    assert [h["standing"]["lines"] for h in value["hunks"] if h["standing"]]


# --- what is there and does not count -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        WORKED + b"\n\ndef work(items, limit):\n    return 0\n",
        b"if SLOW:\n    def work(items, limit):\n        return 0\n\n\n" + WORKED,
    ],
)
def test_lines_of_a_definition_that_is_there_twice_retire_nothing(lab: HistoryProject, target: bytes) -> None:
    (found,) = judged(lab, WORK, WORKED, target, trailer="Overlay-Probe: none [it needs a GPU]")
    assert found.verdict.word == "rework"
    assert not found.verdict.retirable
    assert "defined 2 times" in found.verdict.why


def test_equal_lines_under_parameters_that_changed_places_are_no_merge(lab: HistoryProject) -> None:
    pin = b"def pick(first, second):\n    return join(first, second)\n"
    target = b"def pick(second, first):\n    return join(second, first)\n"
    after = pin.replace(b"join(first, second)", b"join(second, first)")
    (found,) = judged(lab, pin, after, target, trailer="Overlay-Probe: none [it needs a GPU]")
    assert found.verdict.word == "rework"
    assert "does what the pin's does" in found.verdict.why


def test_methods_that_the_pin_has_twice_as_well_are_merged(lab: HistoryProject) -> None:
    pin = b"class A:\n    @property\n    def x(self):\n        return load(1)\n\n"
    pin += b"    @x.setter\n    def x(self, value):\n        store(value)\n"
    after = pin.replace(b"load(1)", b"load(2)")
    (found,) = judged(lab, pin, after, after + b"\n\nY = 1\n", trailer="Overlay-Probe: none [it needs a GPU]")
    assert found.verdict.word == "merged"
    assert found.verdict.retirable
