"""One verdict from all the evidence: the table of ``decide``, and what other evidence does to its answer."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from builder.probe.harness import Answer, State
from builder.retire.evaluate import Evaluation, with_hangs
from builder.retire.evidence import (
    Behaviour,
    Dependency,
    Evidence,
    HunkEvidence,
    HunkState,
    Place,
    Proof,
    Standing,
    TextEvidence,
    TextState,
)
from builder.retire.verdict import NOT_ON_TEXT_ALONE, RETIRABLE, Word, decide, with_clashes

TEXTS: tuple[TextState, ...] = ("merged", "carries", "moves", "partial", "conflict", "gone")
STATES: tuple[State, ...] = ("defect", "fixed", "absent", "unknown")
HUNKS: dict[TextState, tuple[HunkState, ...]] = {
    "merged": ("present", "present"),
    "carries": ("carries", "carries"),
    "moves": ("carries", "carries"),
    "partial": ("present", "carries"),
    "conflict": ("present", "conflict"),
    "gone": ("gone", "gone"),
}
CHANGED = Dependency("kernels", "==1", "==2", "pyproject.toml")
SAME = Dependency("kernels", "==1", "==1", "pyproject.toml")


def text(state: TextState, *, proof: Proof | None = None, went_to: bool = False) -> TextEvidence:
    standing = None if proof is None else Standing(proof, "f", "a.py", ((3, 4),), "it stands there")
    places = (Place("b.py", "g", ((7, 9),)),) if went_to else ()
    hunks = tuple(
        HunkEvidence("a.py", number, hunk, line=number * 10, standing=standing, went_to=places)
        for number, hunk in enumerate(HUNKS[state], 1)
    )
    return TextEvidence(state, hunks)


def says(state: State, site: str = "") -> Answer:
    return Answer(state, f"it is {state}", (), site)


def behaviour(pristine: State, carried: State | None = None, pin: State = "defect") -> Behaviour:
    return Behaviour(says(pin), says(pristine), None if carried is None else says(carried))


# --- with a probe -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "pristine", "carried", "word"),
    [
        # What the probe says of the target comes first, whatever merging says.
        *((state, "unknown", None, "unknown") for state in TEXTS),
        *((state, "fixed", None, "merged") for state in TEXTS),
        ("merged", "absent", None, "obsolete"),
        ("gone", "absent", None, "obsolete"),
        ("conflict", "absent", None, "obsolete"),
        ("carries", "absent", "absent", "unknown"),
        ("moves", "absent", "absent", "unknown"),
        ("partial", "absent", "absent", "unknown"),
        # The defect is there: what the patch does to it.
        ("merged", "defect", None, "rework"),
        ("conflict", "defect", None, "rework"),
        ("gone", "defect", None, "rework"),
        ("carries", "defect", "fixed", "carry"),
        ("moves", "defect", "fixed", "carry"),
        ("partial", "defect", "fixed", "partial"),
        *(
            (state, "defect", carried, "rework")
            for state in ("carries", "moves", "partial")
            for carried in ("defect", "absent", "unknown")
        ),
    ],
)
def test_the_word(state: TextState, pristine: State, carried: State | None, word: Word) -> None:
    verdict = decide(text(state), behaviour(pristine, carried))
    assert verdict.word == word
    assert verdict.retirable == (word in RETIRABLE)
    assert verdict.why


def test_only_a_probe_that_finds_no_defect_retires() -> None:
    for state, pristine, carried in itertools.product(TEXTS, STATES, (None, *STATES)):
        verdict = decide(text(state), behaviour(pristine, carried))
        assert not verdict.retirable or pristine in ("fixed", "absent")


@pytest.mark.parametrize(
    ("state", "pristine", "carried", "said"),
    [
        ("carries", "fixed", "fixed", "what applies is not what is needed"),
        ("partial", "absent", "absent", "what applies is not what is needed"),
        ("conflict", "fixed", None, "not to be reworked"),
        ("conflict", "absent", None, "not to be reworked"),
        ("merged", "defect", None, "something else keeps it from working"),
        ("carries", "defect", "defect", "with the patch the probe says defect"),
        ("carries", "unknown", None, "the probe does not say anything"),
        ("merged", "fixed", None, ""),
        ("merged", "absent", None, ""),
        ("gone", "fixed", None, ""),
        ("carries", "defect", "fixed", ""),
        ("conflict", "defect", None, ""),
    ],
)
def test_what_contradicts(state: TextState, pristine: State, carried: State | None, said: str) -> None:
    contradictions = decide(text(state), behaviour(pristine, carried)).contradictions
    assert len(contradictions) == bool(said)
    assert said in "".join(contradictions)


@pytest.mark.parametrize("pin", STATES)
def test_a_pin_that_does_not_need_the_patch_is_said(pin: State) -> None:
    verdict = decide(text("carries"), behaviour("defect", "fixed", pin))
    assert verdict.word == "carry"
    if pin == "defect":
        assert verdict.contradictions == ()
    else:
        (said,) = verdict.contradictions
        assert f"the probe says {pin} of the pin itself" in said
        assert f"it is {pin}" in said


@pytest.mark.parametrize(
    ("state", "dependency", "rolled_back", "word"),
    [
        ("conflict", CHANGED, None, "fixed-by-dependency"),
        ("conflict", CHANGED, "defect", "fixed-by-dependency"),
        ("conflict", CHANGED, "unknown", "fixed-by-dependency"),
        ("carries", CHANGED, "defect", "fixed-by-dependency"),
        # With the old versions it would be right as well: the change of them is not why.
        ("conflict", CHANGED, "fixed", "merged"),
        ("conflict", CHANGED, "absent", "merged"),
        ("conflict", SAME, None, "merged"),
        # Upstream has the patch itself: whatever else changed did not do it.
        ("merged", CHANGED, None, "merged"),
        ("merged", CHANGED, "defect", "merged"),
    ],
)
def test_whose_work_it_is(
    state: TextState, dependency: Dependency, rolled_back: State | None, word: Word
) -> None:
    asked = None if rolled_back is None else says(rolled_back)
    verdict = decide(text(state), behaviour("fixed"), (dependency,), rolled_back=asked)
    assert (verdict.word, verdict.retirable) == (word, True)
    assert ("kernels ==1 -> ==2" in verdict.why) == (word == "fixed-by-dependency")
    assert ("re-opens" in verdict.why) == (word == "fixed-by-dependency")
    assert ("the probe, asked" in verdict.why) == (word == "fixed-by-dependency" and rolled_back == "defect")


def test_places_are_said() -> None:
    assert "its hunks still apply at a.py:10, a.py:20" in decide(text("carries"), behaviour("unknown")).why
    assert "b.py:7-9, in g" in decide(text("gone", went_to=True), behaviour("unknown")).why
    assert "b.py:7-9, in g" in decide(text("gone", went_to=True), behaviour("defect")).why
    assert "b.py:7-9, in g" in decide(text("conflict", went_to=True), None).why
    assert decide(text("gone"), Behaviour(says("defect"), says("absent", "a.py:f"), None)).why.endswith(
        "(a.py:f)"
    )


# --- without one --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "proof", "word"),
    [
        ("merged", None, "merged"),
        ("merged", "lines", "merged"),
        ("merged", "doubt", "rework"),
        ("carries", None, "carry"),
        ("carries", "hint", "rework"),
        ("moves", None, "carry"),
        ("partial", None, "partial"),
        ("partial", "hint", "rework"),
        ("conflict", None, "rework"),
        ("conflict", "hint", "rework"),
        ("gone", None, "rework"),
    ],
)
@pytest.mark.parametrize(("without_probe", "accepted"), [(False, False), (True, False), (False, True)])
def test_text_alone(
    state: TextState, proof: Proof | None, word: Word, without_probe: bool, accepted: bool
) -> None:
    verdict = decide(text(state, proof=proof), None, without_probe=without_probe, accepted=accepted)
    assert verdict.word == word
    assert verdict.retirable == (word == "merged" and (without_probe or accepted))
    assert verdict.is_text_alone == (word == "merged" and not verdict.retirable)
    assert verdict.contradictions == ()
    expected = (
        "its text is accepted" if accepted else "it has no probe" if without_probe else NOT_ON_TEXT_ALONE
    )
    assert verdict.why.endswith(expected)


# --- what comes on top --------------------------------------------------------------------------------------


def test_a_clash_is_said_of_a_patch_that_stays() -> None:
    stays = decide(text("carries"), behaviour("defect", "fixed"))
    goes = decide(text("merged"), behaviour("fixed"))
    assert with_clashes(stays, ["cuda"]).contradictions == ("cuda",)
    assert with_clashes(stays, []) == stays
    assert with_clashes(goes, ["cuda"]) == goes


def test_evidence_is_kept_as_it_was_weighed() -> None:
    found = Evidence(text("carries"), behaviour("defect", "fixed"))
    assert found.as_json()["text"]["state"] == "carries"


# --- patches that hang on others ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "word"),
    [
        # Upstream has its text: what it adds is there, retired or not.
        (Evaluation("a", "t", decide(text("merged"), None), Evidence(text("merged"))), "carry"),
        (Evaluation("a", "t", decide(text("carries"), None), Evidence(text("carries"))), "carry"),
        # It is not there, and cannot be brought.
        (Evaluation("a", "t", decide(text("conflict"), None), Evidence(text("conflict"))), "rework"),
        (Evaluation("a", "t", decide(text("gone"), None), Evidence(text("gone"))), "rework"),
        # It is left out: nobody adds the name any more.
        (
            Evaluation("a", "t", decide(text("conflict"), behaviour("fixed")), Evidence(text("conflict"))),
            "rework",
        ),
        # Of another target: it says nothing of this one.
        (Evaluation("a", "u", decide(text("conflict"), None), Evidence(text("conflict"))), "carry"),
    ],
)
def test_a_patch_that_uses_what_another_adds(other: Evaluation, word: Word) -> None:
    uses = replace(text("carries"), uses={"a": ("helper",)})
    own = Evaluation("b", "t", decide(uses, behaviour("defect", "fixed")), Evidence(uses))
    found = with_hangs([other, own])
    assert found[0] == other
    assert found[1].verdict.word == word
    assert ("only that adds helper" in found[1].verdict.why) == (word == "rework")
