"""What was seen last, in the overlay's lock: a daily job speaks once a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from builder.project.lock import Lock
from builder.retire.evaluate import Evaluation, Report
from builder.retire.verdict import NEEDS_A_PERSON

SECTION = "verdicts"


@dataclass(frozen=True)
class Change:
    """A verdict that is another than the one that the lock remembers; ``was`` is None for a new one."""

    evaluation: Evaluation
    was: str | None

    def as_json(self) -> dict[str, str | None]:
        """For ``--json``."""
        found = self.evaluation
        return {"patch": found.patch, "target": found.target, "was": self.was, "now": found.verdict.word}


def changes(report: Report, lock: Lock) -> list[Change]:
    """The verdicts that differ from the lock's. That a new target still needs a patch is no news.

    Args:
        report: what was found now.
        lock: the overlay's lock.
    """
    seen = _remembered(lock)
    found = []
    for evaluation in report.evaluations:
        was = seen.get(evaluation.target, {}).get(evaluation.patch)
        if was != evaluation.verdict.word and not (was is None and evaluation.verdict.word == "carry"):
            found.append(Change(evaluation, was))
    return found


def exit_code(found: list[Change]) -> int:
    """3 when a patch has come to need a person, else 4 when one can newly be retired, else 0."""
    if any(change.evaluation.verdict.word in NEEDS_A_PERSON for change in found):
        return 3
    if any(change.evaluation.verdict.retirable for change in found):
        return 4
    return 0


def remember(report: Report, lock: Lock) -> Lock:
    """The lock with these verdicts in it; those on other targets stay."""
    seen: dict[str, Mapping[str, str]] = dict(_remembered(lock))
    for target in report.targets:
        seen[target.name] = {found.patch: found.verdict.word for found in report.on(target.name)}
    return replace(lock, sections=dict(lock.sections) | {SECTION: seen})


def _remembered(lock: Lock) -> Mapping[str, Mapping[str, str]]:
    section: Any = lock.sections.get(SECTION, {})
    if not isinstance(section, dict):
        return {}
    return {name: rows for name, rows in section.items() if isinstance(rows, dict)}
