"""A part of the report: a title, what was measured and how, and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Promise:
    """A bound from the project's goals, and the figure that keeps or breaks it."""

    says: str
    bound: str
    found: str
    kept: bool


@dataclass(frozen=True)
class Section:
    """What one module measured.

    Args:
        title: of the part.
        says: what was measured, and how.
        head, rows: of its table.
        data: the same for machines.
        promises: what of it must hold.
    """

    title: str
    says: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    data: Mapping[str, object]
    promises: Sequence[Promise] = field(default_factory=tuple)


def at_least(says: str, found: float, bound: float) -> Promise:
    """A ratio that must be reached."""
    return Promise(says, f"≥ {bound:g} times", f"{found:.1f} times as fast", found >= bound)


def at_most(says: str, found: float, bound: float, unit: str) -> Promise:
    """A figure that must not be passed."""
    return Promise(says, f"≤ {bound:,g} {unit}", f"{found:,.2f} {unit}", found <= bound)
