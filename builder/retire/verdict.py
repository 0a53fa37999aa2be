"""One verdict from all the evidence on a patch. Behaviour beats text, and what contradicts is always said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from builder.printable import counted
from builder.probe.harness import Answer
from builder.retire.evidence import Behaviour, Dependency, Evidence, TextEvidence
from builder.soundness.check import Flaw

Word = Literal["merged", "fixed-by-dependency", "obsolete", "carry", "rework", "partial", "unknown"]

RETIRABLE: frozenset[Word] = frozenset({"merged", "fixed-by-dependency", "obsolete"})
TAKEN_BY_UPSTREAM: frozenset[Word] = frozenset({"merged", "fixed-by-dependency"})
"""What a patch does is done there all the same, so that patches on top of it lose nothing."""
NEEDS_A_PERSON: frozenset[Word] = frozenset({"rework", "unknown"})

NOT_ON_TEXT_ALONE = "it has no probe and does not say why: not retired on text alone"

MEANINGS: dict[Word, str] = {
    "merged": "upstream has it, in these or other words",
    "fixed-by-dependency": "the defect went with another version of a dependency",
    "obsolete": "the place that it fixes is there, and does nothing of the kind",
    "carry": "the defect is there and the patch fixes it",
    "partial": "upstream has a part of it; the rest is still needed",
    "rework": "the defect is there and the patch does not apply, or does not fix it",
    "unknown": "nobody can tell: the probe does not answer, or finds nothing where the patch still applies",
}


@dataclass(frozen=True)
class Verdict:
    """What is to become of a patch.

    Args:
        word: the verdict.
        why: one sentence.
        contradictions: where two kinds of evidence do not agree.
        retirable: it may be taken out of the series.
    """

    word: Word
    why: str
    contradictions: tuple[str, ...] = ()
    retirable: bool = False

    @property
    def is_text_alone(self) -> bool:
        """Whether upstream seems to have the patch, and nothing but its text says so."""
        return self.word in RETIRABLE and not self.retirable


def decide(
    text: TextEvidence,
    behaviour: Behaviour | None,
    dependencies: tuple[Dependency, ...] = (),
    *,
    rolled_back: Answer | None = None,
    without_probe: bool = False,
    accepted: bool = False,
) -> Verdict:
    """Weigh the evidence.

    Args:
        text: what merging says.
        behaviour: what the probe says; None for a patch without one.
        dependencies: the distributions that the probe's answer on the target hangs on.
        rolled_back: what the probe says of the target with those at the pin's versions; None when not asked.
        without_probe: the patch says itself that it has no probe (``Overlay-Probe: none [reason]``).
        accepted: a person takes the text for proof where there is no probe.
    """
    if behaviour is None:
        return _by_text(text, without_probe, accepted)
    word, why = _by_behaviour(text, behaviour, dependencies, rolled_back)
    return Verdict(word, why, tuple(_contradictions(word, text, behaviour)), retirable=word in RETIRABLE)


def with_clashes(verdict: Verdict, clashes: Sequence[str]) -> Verdict:
    """The verdict of a patch that is still needed, with what it requires and the target does not ask for."""
    if not clashes or verdict.retirable:
        return verdict
    return replace(verdict, contradictions=(*verdict.contradictions, *clashes))


def with_flaws(verdict: Verdict, text: TextEvidence, flaws: Sequence[Flaw]) -> Verdict:
    """The verdict of a patch that merges, where the merged files would not run.

    Args:
        verdict: what the other evidence says.
        text: what merging says.
        flaws: what the patch breaks.
    """
    if not flaws or verdict.retirable:
        return verdict
    more = f", and {len(flaws) - 1} more" if len(flaws) > 1 else ""
    why = f"merged, it would not run: {flaws[0]}{more}"
    if text.state == "partial":
        return replace(verdict, word="partial", why=f"{text}; {why}")
    return replace(verdict, word="rework", why=why)


def with_landed(verdict: Verdict, evidence: Evidence) -> Verdict:
    """The verdict, held against the commits of the patch's own pull requests.

    Without a probe, text that seems to be there is not enough where upstream says that it took it back.
    """
    said = []
    for landed in evidence.landed:
        if landed.reverted_by is not None and verdict.word == "merged":
            said.append(f"{landed}, and the patch seems to be there all the same")
        elif landed.stands and evidence.text.carried:
            said.append(f"{landed}, and the lines before it stand there")
        elif landed.stands and verdict.word in ("rework", "partial"):
            said.append(f"{landed}, and the patch is not there as it is")
    if not said:
        return verdict
    taken_back = evidence.behaviour is None and any(one.reverted_by for one in evidence.landed)
    verdict = replace(verdict, contradictions=(*verdict.contradictions, *said))
    if not taken_back or verdict.word != "merged":
        return verdict
    return replace(verdict, word="rework", retirable=False, why=f"it was taken back upstream; {verdict.why}")


def _by_text(text: TextEvidence, without_probe: bool, accepted: bool) -> Verdict:
    said = "its text is accepted" if accepted else "it has no probe" if without_probe else NOT_ON_TEXT_ALONE
    if text.state == "merged" and text.doubts:
        return Verdict("rework", f"{text.how}, but {text.doubts[0]}; {said}")
    if text.state == "merged":
        return Verdict("merged", f"{text.how}; {said}", retirable=without_probe or accepted)
    if text.hints:
        there = "; ".join(map(str, text.hints[:2]))
        return Verdict("rework", f"{text}, but a part seems to be there: {there}; {said}")
    if text.state == "partial":
        return Verdict("partial", f"{text}; {said}")
    if text.carried:
        return Verdict("carry", f"it merges; {said}")
    if text.state == "gone":
        return Verdict("rework", f"the files it changes are not there{_went_to(text)}; {said}")
    return Verdict("rework", f"{text}{_went_to(text)}; {said}")


def _went_to(text: TextEvidence) -> str:
    """Where the code that a patch changes seems to have gone."""
    return f"; what it changes stands at {'; '.join(map(str, text.went_to[:2]))}" if text.went_to else ""


def _by_behaviour(
    text: TextEvidence,
    behaviour: Behaviour,
    dependencies: tuple[Dependency, ...],
    rolled_back: Answer | None,
) -> tuple[Word, str]:
    state, evidence = behaviour.pristine.state, behaviour.pristine.evidence
    if state == "unknown":
        return "unknown", f"the probe cannot tell: {evidence}{_applies_at(text) or _went_to(text)}"
    if state == "absent":
        return _absent(text, behaviour.pristine)
    if state == "fixed":
        return _fixed(text, evidence, dependencies, rolled_back)
    carried = behaviour.carried
    if carried is None:
        return "rework", f"{_how_not(text)}; {evidence}"
    if carried.state != "fixed":
        return "rework", f"patched, the probe says {carried.state}: {carried.evidence}"
    if text.state == "partial":
        return "partial", f"{text}, and the rest fixes it: {carried.evidence}"
    return "carry", evidence


def _applies_at(text: TextEvidence) -> str:
    """Where hunks still apply: what a probe did not find under its name is there, maybe under another."""
    places = dict.fromkeys(
        f"{h.moved_to or h.path}:{h.line}" for h in text.hunks if h.state == "carries" and h.line
    )
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return f"; its hunks still apply at {', '.join(list(places)[:3])}{more}" if places else ""


def _absent(text: TextEvidence, answer: Answer) -> tuple[Word, str]:
    """Nothing to fix in the place that the probe looked at; only so if no hunk finds something to fix."""
    applies = sum(hunk.state == "carries" for hunk in text.hunks)
    if applies:
        hunks = f"{applies} of {counted(len(text.hunks), 'hunk')}"
        apply = "applies" if applies == 1 else "apply"
        return "unknown", f"the probe sees nothing to fix, where {hunks} still {apply}: {answer.evidence}"
    return "obsolete", f"{answer.evidence} ({answer.site})" if answer.site else answer.evidence


def _how_not(text: TextEvidence) -> str:
    if text.state == "merged":
        return f"{text.how}, and the defect is there"
    if text.state == "gone":
        return f"the files it changes are not there, and the defect is elsewhere{_went_to(text)}"
    return f"it does not merge ({text}{_went_to(text)})"


def _fixed(
    text: TextEvidence, evidence: str, dependencies: tuple[Dependency, ...], rolled_back: Answer | None
) -> tuple[Word, str]:
    changed = [dependency for dependency in dependencies if dependency.changed]
    if (
        changed
        and text.state != "merged"
        and (rolled_back is None or rolled_back.state in ("defect", "unknown"))
    ):
        hangs = ", ".join(map(str, changed))
        proof = "re-opens if that goes back"
        if rolled_back is not None and rolled_back.state == "defect":
            proof += f" (the probe, asked: {rolled_back.evidence})"
        return "fixed-by-dependency", f"{hangs}; {proof}; {evidence}"
    return "merged", evidence if text.state == "merged" else f"in other words: {evidence}"


def _contradictions(word: Word, text: TextEvidence, behaviour: Behaviour) -> list[str]:
    found = []
    pristine = behaviour.pristine.state
    if pristine in ("fixed", "absent") and text.carried:
        found.append(f"text says {text}, but the probe finds no defect: what applies is not what is needed")
    if pristine in ("fixed", "absent") and text.state == "conflict":
        found.append(f"text says {text}, but the probe says {pristine}: not to be reworked")
    if pristine == "defect" and text.state == "merged":
        found.append("text says merged, but the probe says defect: something else keeps it from working")
    if pristine == "defect" and text.carried and behaviour.carried and behaviour.carried.state != "fixed":
        found.append(f"text says {text}, but with the patch the probe says {behaviour.carried.state}")
    if pristine == "unknown":
        found.append(f"text says {text}; the probe does not say anything")
    if behaviour.pin.state != "defect":
        found.append(
            f"the probe says {behaviour.pin.state} of the pin itself, where the patch should be needed: "
            f"{behaviour.pin.evidence}"
        )
    return found
