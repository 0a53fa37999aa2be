"""Verdicts on small upstreams: what lies to people who read pull requests must not lie here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from builder.patch.patch import Patch
from builder.retire.evaluate import Evaluation
from tests.projects.adversarial_cases import CASES, Case
from tests.projects.history import DEMO, P0_AFTER, P0_BEFORE, RUNS_F, HistoryProject


@pytest.fixture
def lab(tmp_path: Path) -> HistoryProject:
    return HistoryProject(tmp_path)


def one(lab: HistoryProject, pin: str, patch: Patch, target: str) -> Evaluation:
    return lab.judge(pin, [patch], target).of(patch.name, target)


def p0(
    lab: HistoryProject, before: bytes = P0_BEFORE, after: bytes = P0_AFTER, *, probe: bool = True
) -> tuple[str, Patch]:
    pin = lab.commit({DEMO: before}, tag="v1.0.0")
    if probe:
        lab.probe("p0")
    return pin, lab.patch("p0", pin, {DEMO: after})


def git_applies(lab: HistoryProject, target: str, patch: Patch, *options: str) -> bool:
    lab.git("checkout", "--quiet", target)
    command = ["git", "apply", "--check", *options, "-"]
    return not subprocess.run(command, cwd=lab.repository, input=patch.diff, capture_output=True).returncode


# --- the plain answers --------------------------------------------------------------------------------------


def test_needed_patch_is_carried(lab: HistoryProject) -> None:
    pin, patch = p0(lab)
    lab.commit({"python/sglang/other.py": b"x = 1\n"}, tag="v1.1.0")
    found = one(lab, pin, patch, "v1.1.0")
    assert (found.verdict.word, found.evidence.text.state) == ("carry", "carries")
    assert found.evidence.behaviour is not None
    assert found.evidence.behaviour.pristine.state == "defect"
    assert found.evidence.behaviour.carried is not None
    assert found.evidence.behaviour.carried.state == "fixed"
    assert not found.verdict.contradictions
    assert not found.verdict.retirable


def test_merged_as_it_is(lab: HistoryProject) -> None:
    pin, patch = p0(lab)
    lab.commit({DEMO: P0_AFTER}, "fix f (#12)", tag="v1.1.0")
    found = one(lab, pin, patch, "v1.1.0")
    assert (found.verdict.word, found.verdict.retirable) == ("merged", True)
    assert [hunk.state for hunk in found.evidence.text.hunks] == ["present"]


def test_place_that_asks_no_more_is_obsolete(lab: HistoryProject) -> None:
    pin, patch = p0(lab)
    lab.commit({DEMO: b"def caller():\n    return 4\n"}, "drop f (#13)", tag="v1.1.0")
    found = one(lab, pin, patch, "v1.1.0")
    assert (found.verdict.word, found.verdict.retirable) == ("obsolete", True)


def test_absent_is_never_retirable_where_a_hunk_still_applies(lab: HistoryProject) -> None:
    pin, patch = p0(lab)
    lab.commit({DEMO: P0_BEFORE + b"\n\ndef caller():\n    return 4\n"}, tag="v1.1.0")
    lab.probe("p0", BLIND)
    found = one(lab, pin, patch, "v1.1.0")
    assert (found.verdict.word, found.verdict.retirable) == ("unknown", False)
    assert "1 of 1 hunk still applies" in found.verdict.why
    assert found.verdict.contradictions


BLIND = f"""
from builder.probe.harness import absent, defect

def probe(tree):
    if b"caller" in tree.read({DEMO!r}):
        return absent("the caller asks no f", {DEMO!r} + ":caller")
    return defect("it is there")
"""


def test_renamed_site_is_unknown_and_its_place_is_said(lab: HistoryProject) -> None:
    pin, patch = p0(lab)
    lab.commit({DEMO: b"import os\n\n\n" + P0_BEFORE.replace(b"def f", b"def g")}, tag="v1.1.0")
    found = one(lab, pin, patch, "v1.1.0")
    assert (found.verdict.word, found.verdict.retirable) == ("unknown", False)
    assert f"{DEMO}:4" in found.verdict.why


def test_site_that_is_not_found_is_unknown(lab: HistoryProject) -> None:
    pin, patch = p0(lab)
    lab.commit({DEMO: None, "python/sglang/x.py": b"pass\n"}, "drop the demo (#13)", tag="v1.1.0")
    found = one(lab, pin, patch, "v1.1.0")
    assert (found.verdict.word, found.evidence.text.state) == ("unknown", "gone")
    assert not found.verdict.retirable


def test_conflict_with_the_defect_there_is_rework(lab: HistoryProject) -> None:
    pin, patch = p0(lab)
    lab.commit({DEMO: P0_BEFORE.replace(b"b = 2", b"b = 2.5")}, tag="v1.1.0")
    found = one(lab, pin, patch, "v1.1.0")
    assert found.verdict.word == "rework"
    (hunk,) = found.evidence.text.hunks
    assert hunk.state == "conflict"
    assert "b = 2.5" in hunk.details


def test_probe_that_cannot_tell_is_unknown_and_never_retired(lab: HistoryProject) -> None:
    pin, patch = p0(lab)
    lab.commit({DEMO: b"raise RuntimeError\n" + P0_AFTER}, tag="v1.1.0")
    found = one(lab, pin, patch, "v1.1.0")
    assert (found.verdict.word, found.verdict.retirable) == ("unknown", False)


# --- case table D -------------------------------------------------------------------------------------------


def test_d1_fixed_in_other_words_is_merged_with_both_kinds_of_evidence(lab: HistoryProject) -> None:
    pin, patch = p0(lab)
    lab.commit(
        {DEMO: P0_BEFORE.replace(b"b = 2\n    return a + b", b"b = a + 1\n    return 2 * b")}, tag="v1.1.0"
    )
    assert not git_applies(lab, "v1.1.0", patch, "--reverse")  # the plain method says: still needed
    found = one(lab, pin, patch, "v1.1.0")
    assert (found.verdict.word, found.evidence.text.state) == ("merged", "conflict")
    assert found.verdict.contradictions
    assert found.verdict.retirable


TWINS_BEFORE = b"""def f():
    a = 1

    b = 2
    return a + b


def g():
    a = 1

    b = 2
    return a + b
"""
FIRST_FIXED = TWINS_BEFORE.replace(b"b = 2", b"b = 3", 1)
SECOND_FIXED = TWINS_BEFORE[:60] + TWINS_BEFORE[60:].replace(b"b = 2", b"b = 3")


def twin_patch(lab: HistoryProject) -> tuple[str, Patch]:
    """A patch whose lines say nothing of the function that it is for."""
    pin = lab.commit({DEMO: TWINS_BEFORE}, tag="v1.0.0")
    lab.probe("p0")
    patch = lab.patch("p0", pin, {DEMO: FIRST_FIXED})
    lab.git("checkout", "--quiet", pin)
    diff = lab.git("diff", "--full-index", "-U1", "HEAD", lab.after(pin, patch)).encode() + b"\n"
    from builder.patch.patch import parse_patch
    from tests.projects.history import mail

    return pin, parse_patch("p0", mail("p0", diff))


def test_d2_merged_although_it_still_applies_to_the_twin(lab: HistoryProject) -> None:
    pin, patch = twin_patch(lab)
    lab.commit({DEMO: FIRST_FIXED}, tag="v1.1.0")
    assert git_applies(lab, "v1.1.0", patch)  # the plain method says: still needed
    assert one(lab, pin, patch, "v1.1.0").verdict.word == "merged"


def test_twin_block_with_the_fix_is_not_merged(lab: HistoryProject) -> None:
    pin, patch = twin_patch(lab)
    lab.commit({DEMO: SECOND_FIXED}, tag="v1.1.0")
    assert git_applies(lab, "v1.1.0", patch, "--reverse")  # the plain method says: already there
    found = one(lab, pin, patch, "v1.1.0")
    assert (found.verdict.word, found.evidence.text.state) == ("carry", "carries")
    assert found.evidence.behaviour is not None
    assert found.evidence.behaviour.carried is not None
    assert found.evidence.behaviour.carried.evidence == "f() is 4"


def test_twin_above_the_site_does_not_take_the_patch(lab: HistoryProject) -> None:
    pin, patch = twin_patch(lab)
    above = TWINS_BEFORE.partition(b"def g")[0].replace(b"def f", b"def new") + TWINS_BEFORE
    lab.commit({DEMO: above}, tag="v1.1.0")
    found = one(lab, pin, patch, "v1.1.0")
    assert found.verdict.word == "carry"
    assert found.evidence.behaviour is not None
    assert found.evidence.behaviour.carried is not None
    assert found.evidence.behaviour.carried.evidence == "f() is 4"
    (hunk,) = found.evidence.text.hunks
    assert hunk.state == "carries"
    assert len(hunk.places) == 2


def test_site_is_gone_and_two_blocks_like_it_are_there(lab: HistoryProject) -> None:
    pin, patch = twin_patch(lab)
    body = TWINS_BEFORE.partition(b"def f")[2].partition(b"\n\n\ndef g")[0]
    lab.commit({DEMO: b"def g" + body + b"\n\n\ndef h" + body + b"\n"}, tag="v1.1.0")
    found = one(lab, pin, patch, "v1.1.0")
    (hunk,) = found.evidence.text.hunks
    assert (hunk.state, len(hunk.places)) == ("ambiguous", 2)
    assert (found.verdict.word, found.evidence.text.state) == ("unknown", "conflict")


def test_d3_merged_into_a_branch_that_the_target_has_not(lab: HistoryProject) -> None:
    pin, patch = p0(lab)
    lab.git("checkout", "--quiet", "-b", "feature")
    lab.commit({DEMO: P0_AFTER}, "fix f (#14)", tag="feature-end")
    lab.git("checkout", "--quiet", pin)
    lab.commit({"python/sglang/other.py": b"x = 1\n"}, tag="v1.1.0")
    report = lab.judge(pin, [patch], "v1.1.0", "feature-end")
    assert report.of("p0", "v1.1.0").verdict.word == "carry"
    assert report.of("p0", "feature-end").verdict.word == "merged"


@pytest.mark.parametrize(
    "status", ["Submitted [https://example.org/pull/1]", "Denied [closed]", "Backport [#1]"]
)
@pytest.mark.parametrize(("after", "word"), [(P0_BEFORE, "carry"), (P0_AFTER, "merged")])
def test_d4_what_is_said_of_the_pull_request_means_nothing(
    lab: HistoryProject, status: str, after: bytes, word: str
) -> None:
    pin = lab.commit({DEMO: P0_BEFORE}, tag="v1.0.0")
    lab.probe("p0")
    patch = lab.patch("p0", pin, {DEMO: P0_AFTER}, status=status)
    lab.commit({DEMO: after}, tag="v1.1.0")
    assert one(lab, pin, patch, "v1.1.0").verdict.word == word


LONG_BEFORE = (
    b"def f():\n    a = 1\n"
    + b"".join(b"    x%d = 0\n" % n for n in range(12))
    + b"    b = 1\n    return a + b\n"
)
LONG_AFTER = LONG_BEFORE.replace(b"a = 1", b"a = 2").replace(b"b = 1", b"b = 2")


def test_d5_one_of_two_hunks_merged_is_partial_and_the_rest_is_carried(lab: HistoryProject) -> None:
    pin, patch = p0(lab, LONG_BEFORE, LONG_AFTER)
    lab.commit({DEMO: LONG_BEFORE.replace(b"a = 1", b"a = 2")}, tag="v1.1.0")
    found = one(lab, pin, patch, "v1.1.0")
    assert (found.verdict.word, found.verdict.retirable) == ("partial", False)
    assert [(hunk.number, hunk.state) for hunk in found.evidence.text.hunks] == [
        (1, "present"),
        (2, "carries"),
    ]


def test_d6_first_commit_and_first_release_that_have_it_are_named(lab: HistoryProject) -> None:
    pin, patch = p0(lab)
    for number in range(5):
        lab.commit({"python/sglang/n.py": b"%d\n" % number}, f"work {number}")
    lab.git("tag", "v1.1.0")
    lab.commit({"python/sglang/n.py": b"a\n"})
    fix = lab.commit({DEMO: P0_BEFORE.replace(b"a + b", b"a + b + 1")}, "repair f in other words (#36755)")
    lab.commit({"python/sglang/n.py": b"b\n"}, tag="v1.2.0")
    lab.commit({"python/sglang/n.py": b"c\n"}, tag="v1.3.0")
    history = one(lab, pin, patch, "v1.3.0").evidence.history
    assert history is not None
    assert (history.commit, history.release, history.pull_request) == (fix, "v1.2.0", "#36755")
    assert (history.method, history.runs <= 4) == ("bisection", True)


def test_d6_without_a_repository_the_first_of_the_releases_asked(lab: HistoryProject) -> None:
    pin, patch = p0(lab)
    for number, data in enumerate((P0_BEFORE, P0_AFTER, P0_AFTER), 1):
        lab.commit({DEMO: data}, tag=f"v1.{number}.0")
    report = lab.judge(pin, [patch], "v1.1.0", "v1.2.0", "v1.3.0", history=False)
    assert [j.verdict.word for j in report.evaluations] == ["carry", "merged", "merged"]
    history = report.of("p0", "v1.3.0").evidence.history
    assert history is not None
    assert (history.release, history.method, history.note) == ("v1.2.0", "releases", "")


def test_d6_releases_that_were_not_asked_are_said(lab: HistoryProject) -> None:
    from builder.retire.history import by_releases

    known = ["v1.0.0", "v1.1.0", "v1.2.0", "v1.10.0"]
    found = by_releases([("v1.0.0", False), ("v1.10.0", True)], "v1.0.0", known)
    assert (found.release, found.note) == ("v1.10.0", "not asked: v1.1.0, v1.2.0")
    reopened = [("v1.0.0", False), ("v1.1.0", True), ("v1.2.0", False), ("v1.10.0", True)]
    assert by_releases(reopened, "v1.0.0", known).release == "v1.10.0"


# --- other lies ---------------------------------------------------------------------------------------------


def test_applies_and_compiles_but_what_it_uses_is_gone(lab: HistoryProject) -> None:
    before = b"class C:\n    pass\n\n\nC.three = 3\n\n\ndef f():\n    a = 1\n\n    b = 2\n    return a + b\n"
    pin, patch = p0(lab, before, before.replace(b"b = 2", b"b = C.three"))
    lab.commit({DEMO: before.replace(b"C.three = 3\n", b"")}, tag="v1.1.0")
    assert git_applies(lab, "v1.1.0", patch)  # the plain method says: fine
    found = one(lab, pin, patch, "v1.1.0")
    assert found.verdict.word == "rework"
    assert found.verdict.contradictions


METADATA = "python/sglang.dist-info/METADATA"
BY_PIN = f"""
import re
from builder.probe.harness import defect, fixed

def probe(tree):
    said = tree.read({METADATA!r}).decode()
    version = re.search(r"^Requires-Dist: flashinfer_python\\\\S*==(\\\\S+)$", said, re.M)[1]
    if b"own = 1" in tree.read({DEMO!r}) or int(version) >= 3:
        return fixed(f"flashinfer {{version}}", "flashinfer-python")
    return defect(f"flashinfer {{version}}", "flashinfer-python")
""".replace("\\\\", "\\")


def metadata(version: int) -> bytes:
    return b"Name: sglang\nRequires-Dist: flashinfer_python[cu13]==%d\nRequires-Dist: torch==1\n" % version


def test_fixed_by_dependency_names_it_and_reopens_when_it_goes_back(lab: HistoryProject) -> None:
    lab.probe("p0", BY_PIN)
    pin = lab.commit({DEMO: P0_BEFORE, METADATA: metadata(2)}, tag="v1.0.0")
    patch = lab.patch("p0", pin, {DEMO: b"own = 1\n" + P0_BEFORE})
    lab.commit({METADATA: metadata(3)}, tag="v1.1.0")
    assert git_applies(lab, "v1.1.0", patch)  # the plain method says: still needed
    found = one(lab, pin, patch, "v1.1.0")
    assert found.verdict.word == "fixed-by-dependency"
    assert "flashinfer-python ==2 -> ==3" in found.verdict.why
    assert "(the probe, asked: flashinfer 2)" in found.verdict.why
    lab.commit({METADATA: metadata(2)}, tag="v1.2.0")
    assert one(lab, pin, patch, "v1.2.0").verdict.word == "carry"


def test_fix_in_the_source_beside_a_new_dependency_is_merged(lab: HistoryProject) -> None:
    lab.probe("p0", BY_PIN)
    pin = lab.commit({DEMO: P0_BEFORE, METADATA: metadata(2)}, tag="v1.0.0")
    patch = lab.patch("p0", pin, {DEMO: b"own = 1\n" + P0_BEFORE})
    lab.commit({METADATA: metadata(3), DEMO: P0_BEFORE + b"\n\nown = 1\n"}, tag="v1.1.0")
    assert one(lab, pin, patch, "v1.1.0").verdict.word == "merged"


# --- mixtures -----------------------------------------------------------------------------------------------

MOVED = "python/sglang/kernels/demo.py"
FOLLOWS = RUNS_F.replace(f"tree.read({DEMO!r})", "tree.read(path)").replace(
    f"    if {DEMO!r} not in tree:\n",
    f"    path = {MOVED!r} if {MOVED!r} in tree else {DEMO!r}\n    if path not in tree:\n",
)


def padded(data: bytes) -> bytes:
    return data + b"".join(b"\n\ndef k%d():\n    return %d\n" % (n, n) for n in range(10))


def test_moved_file_is_found_and_named(lab: HistoryProject) -> None:
    pin, patch = p0(lab, padded(P0_BEFORE), padded(P0_AFTER))
    lab.probe("p0", FOLLOWS)
    lab.commit({DEMO: None, MOVED: padded(P0_BEFORE) + b"\n\nmoved = True\n"}, tag="v1.1.0")
    found = one(lab, pin, patch, "v1.1.0")
    assert (found.verdict.word, found.evidence.text.state) == ("carry", "moves")
    assert found.evidence.text.renames == {DEMO: MOVED}
    assert found.evidence.text.hunks[0].moved_to == MOVED


def test_moved_and_merged(lab: HistoryProject) -> None:
    pin, patch = p0(lab, padded(P0_BEFORE), padded(P0_AFTER))
    lab.probe("p0", FOLLOWS)
    lab.commit({DEMO: None, MOVED: padded(P0_AFTER)}, tag="v1.1.0")
    assert one(lab, pin, patch, "v1.1.0").verdict.word == "merged"


def test_moved_merged_and_reverted(lab: HistoryProject) -> None:
    """What merging makes is in the upstream's objects already."""
    pin, patch = p0(lab, padded(P0_BEFORE), padded(P0_AFTER))
    lab.probe("p0", FOLLOWS)
    lab.commit({DEMO: None, MOVED: padded(P0_AFTER)}, tag="v1.1.0")
    lab.commit({MOVED: padded(P0_BEFORE)}, tag="v1.2.0")
    found = one(lab, pin, patch, "v1.2.0")
    assert (found.verdict.word, found.evidence.text.state) == ("carry", "moves")


def test_moved_and_one_of_two_hunks_merged(lab: HistoryProject) -> None:
    pin, patch = p0(lab, padded(LONG_BEFORE), padded(LONG_AFTER))
    lab.probe("p0", FOLLOWS)
    lab.commit({DEMO: None, MOVED: padded(LONG_BEFORE.replace(b"b = 1", b"b = 2"))}, tag="v1.1.0")
    found = one(lab, pin, patch, "v1.1.0")
    assert found.verdict.word == "partial"
    assert [hunk.state for hunk in found.evidence.text.hunks] == ["carries", "present"]


def test_merged_earlier_patch_takes_nothing_from_a_later_one_on_the_same_lines(lab: HistoryProject) -> None:
    pin, first = p0(lab)
    second = lab.patch("p1", lab.after(pin, first), {DEMO: P0_AFTER.replace(b"b = 3", b"b = 3 + 0")})
    lab.probe("p1", RUNS_F.replace("value == 4", f"b'3 + 0' in tree.read({DEMO!r})"))
    lab.commit({DEMO: P0_AFTER}, tag="v1.1.0")
    report = lab.judge(pin, [first, second], "v1.1.0")
    assert [j.verdict.word for j in report.evaluations] == ["merged", "carry"]


def test_two_patches_squashed_into_one_commit_are_both_merged(lab: HistoryProject) -> None:
    pin, first = p0(lab, LONG_BEFORE, LONG_BEFORE.replace(b"a = 1", b"a = 3"))
    both = LONG_BEFORE.replace(b"a = 1", b"a = 3").replace(b"x7 = 0", b"x7 = 7")
    second = lab.patch("p1", lab.after(pin, first), {DEMO: both}, "Overlay-Probe: none [it changes nothing]")
    lab.commit({DEMO: both + b"\n\nmore = 1\n"}, "squashed (#7)", tag="v1.1.0")
    report = lab.judge(pin, [first, second], "v1.1.0")
    assert [j.verdict.word for j in report.evaluations] == ["merged", "merged"]


def test_still_applies_cleanly_although_the_defect_went_elsewhere(lab: HistoryProject) -> None:
    pin, patch = p0(lab)
    lab.commit({DEMO: P0_BEFORE + b"\n\ndef f(f=f):\n    return f() + 1\n"}, tag="v1.1.0")
    assert git_applies(lab, "v1.1.0", patch)
    found = one(lab, pin, patch, "v1.1.0")
    assert (found.verdict.word, found.evidence.text.state) == ("merged", "carries")
    assert any("what applies is not what is needed" in line for line in found.verdict.contradictions)


def test_merged_and_reverted_is_carried(lab: HistoryProject) -> None:
    pin, patch = p0(lab)
    lab.commit({DEMO: P0_AFTER}, tag="v1.1.0")
    lab.commit({DEMO: P0_BEFORE}, tag="v1.2.0")
    report = lab.judge(pin, [patch], "v1.1.0", "v1.2.0", history=False)
    assert [j.verdict.word for j in report.evaluations] == ["merged", "carry"]


def test_merged_text_whose_defect_is_still_there_is_said(lab: HistoryProject) -> None:
    pin, patch = p0(lab)
    lab.commit({DEMO: P0_AFTER + b"\n\ndef f():\n    return 0\n"}, tag="v1.1.0")
    found = one(lab, pin, patch, "v1.1.0")
    assert (found.verdict.word, found.evidence.text.state) == ("rework", "merged")
    assert found.verdict.contradictions


# --- without a probe ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trailers", "retirable"),
    [((), False), (("Overlay-Probe: none [docs only]",), True), (("Overlay-Probe: none",), False)],
)
def test_text_alone_retires_only_a_patch_that_says_it_has_no_probe(
    lab: HistoryProject, trailers: tuple[str, ...], retirable: bool
) -> None:
    pin = lab.commit({DEMO: P0_BEFORE}, tag="v1.0.0")
    patch = lab.patch("p0", pin, {DEMO: P0_AFTER}, *trailers)
    fix = lab.commit({DEMO: P0_AFTER}, "fix f (#9)", tag="v1.1.0")
    lab.commit({"python/sglang/n.py": b"b\n"}, tag="v1.2.0")
    found = one(lab, pin, patch, "v1.2.0")
    assert (found.verdict.word, found.verdict.retirable) == ("merged", retirable)
    if retirable:
        assert found.evidence.history is not None
        assert (found.evidence.history.method, found.evidence.history.commit) == ("pickaxe", fix)


# --- files created, deleted, moved by the patch itself ------------------------------------------------------


def test_created_and_deleted_files(lab: HistoryProject) -> None:
    pin = lab.commit({DEMO: P0_BEFORE, "python/sglang/old.py": b"old = 1\n"}, tag="v1.0.0")
    patch = lab.patch("p0", pin, {"python/sglang/new.py": b"new = 1\n", "python/sglang/old.py": None})
    lab.commit({"python/sglang/new.py": b"new = 1\n"}, tag="v1.1.0")
    lab.commit({"python/sglang/old.py": None}, tag="v1.2.0")
    lab.commit({"python/sglang/new.py": b"new = 2\n"}, tag="v1.3.0")
    report = lab.judge(pin, [patch], "v1.0.0", "v1.1.0", "v1.2.0", "v1.3.0", history=False)
    assert [j.evidence.text.state for j in report.evaluations] == ["carries", "partial", "merged", "conflict"]


def test_crlf_and_bytes_that_are_no_text_survive(lab: HistoryProject) -> None:
    before = b"a = 1\r\n\xff\xfe = 2\r\n" + b"# x\r\n" * 8 + b"last\r\n"
    pin = lab.commit({DEMO: before}, tag="v1.0.0")
    patch = lab.patch("p0", pin, {DEMO: before.replace(b"last", b"end")})
    lab.commit({DEMO: b"# first\r\n" + before}, tag="v1.1.0")
    report = lab.judge(pin, [patch], "v1.1.0", history=False)
    changed = report.merge("v1.1.0").changed[DEMO]
    assert changed is not None
    assert changed.data == b"# first\r\n" + before.replace(b"last", b"end")


# --- every case in which a plain method lies ----------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_right_where_plain_methods_lie(lab: HistoryProject, case: Case) -> None:
    pin, patch, target = case.make(lab)
    assert one(lab, pin, patch, target).verdict.word == case.right
