"""A whole series: what it breaks, which patch does, and what is allowed to be broken."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from builder.errors import PatchConflict
from builder.patch.apply import AppliedSeries
from builder.printable import counted
from builder.probe.harness import Tree
from builder.soundness.check import Checker, Flaw, Soundness, Versions
from builder.source.files import SourceFile

ALLOW = "Overlay-Allow"


@dataclass(frozen=True)
class Change:
    """What one patch of a series does.

    Args:
        name: the patch.
        before, after: its files; None where there is none.
        allows: what it may break, by kind and name.
    """

    name: str
    before: Versions
    after: Versions
    allows: frozenset[tuple[str, str]] = frozenset()


def changes_of(applied: AppliedSeries) -> list[Change]:
    """The patches of a series that apply, as changes."""
    changes = []
    for report in applied.reports:
        if report.problems:
            continue
        before: dict[str, SourceFile | None] = {}
        after: dict[str, SourceFile | None] = {}
        for change in report.files:
            before.setdefault(change.old_path, change.pre)
            before.setdefault(change.path, None if change.kind != "modify" else change.pre)
            if change.kind in ("delete", "rename"):
                after[change.old_path] = None
            if change.kind != "delete":
                after[change.path] = change.post
        changes.append(Change(report.patch.name, before, after, report.patch.allows))
    return changes


def check_each(
    changes: Sequence[Change], under: Tree, checker: Checker
) -> Iterator[tuple[Change, Soundness]]:
    """What each patch breaks in the tree with those before it.

    Args:
        changes: the patches, in order.
        under: the tree without any of them.
        checker: of this run.
    """
    state: dict[str, SourceFile | None] = {}
    for change in changes:
        before, after = {**state, **change.before}, {**state, **change.before, **change.after}
        yield change, checker.check(before, after, under)
        state = after


def check_whole(
    changes: Sequence[Change], under: Tree, checker: Checker
) -> tuple[list[tuple[str, Flaw]], tuple[str, ...]]:
    """What a series as a whole breaks, each with the patch after which it is so; and notes.

    Args:
        changes, under, checker: as for :func:`check_each`.
    """
    before: dict[str, SourceFile | None] = {}
    states: list[dict[str, SourceFile | None]] = []
    for change in changes:
        before = {**change.before, **before}
        states.append({**(states[-1] if states else {}), **change.before, **change.after})
    if not states:
        return [], ()
    sound = checker.check(before, states[-1], under)
    allowed = frozenset(pair for change in changes for pair in change.allows)
    flaws = without(sound.flaws, allowed)
    blamed = []
    for flaw in flaws:
        known = (flaw.kind, flaw.path, flaw.name)
        guilty = next(
            change.name
            for change, state in zip(changes, states, strict=True)
            if known in {(f.kind, f.path, f.name) for f in checker.check(before, before | state, under).flaws}
        )
        blamed.append((guilty, flaw))
    return blamed, sound.notes


def check_written(
    applied: AppliedSeries, names: Collection[str], under: Tree, checker: Checker, *, hint: str
) -> tuple[str, ...]:
    """Patches that are about to be written must break nothing.

    Args:
        applied: the series with them.
        names: theirs; what another patch of the series breaks is a note.
        under, checker: as for :func:`check_each`.
        hint: how it is repaired.

    Returns:
        Notes, and what the patches are allowed to break.

    Raises:
        PatchConflict: one of them breaks something.
    """
    blamed, notes = check_whole(changes_of(applied), under, checker)
    if ours := [(patch, flaw) for patch, flaw in blamed if patch in names]:
        patch, flaw = ours[0]
        raise unsound_error(ours, where=f"{patch}, {flaw.place} when patched", hint=hint)
    others = (f"{patch}: {flaw.kind}: {flaw}" for patch, flaw in blamed)
    allowed = (
        f"{report.patch.name}: may break {name}: {ALLOW}: {kind}"
        for report in applied.reports
        for kind, name in sorted(report.patch.allows if report.patch.name in names else ())
    )
    return (*notes, *others, *allowed)


def without(flaws: Sequence[Flaw], allowed: frozenset[tuple[str, str]]) -> tuple[Flaw, ...]:
    """The flaws that are not allowed."""
    return tuple(flaw for flaw in flaws if (flaw.kind, flaw.name) not in allowed)


def unsound_error(
    blamed: Sequence[tuple[str, Flaw]], *, where: str, hint: str, facts: Mapping[str, object] | None = None
) -> PatchConflict:
    """The error for a series that breaks something; it names all of it.

    Args:
        blamed: each flaw with its patch.
        where: the patch and place of the first.
        hint: how it is repaired.
        facts: for programs, beside the findings.
    """
    _, first = blamed[0]
    return PatchConflict(
        f"the patched files would not run: {counted(len(blamed), 'finding')}; nothing was written",
        where=where,
        expected="files that compile, and names and imports that are there, as without the series",
        found=str(first.what),
        hint=f"{hint}; where it is right all the same, the patch says so: "
        f"{ALLOW}: {first.kind} {first.name} [reason]",
        details="\n".join(f"{patch}: {flaw.kind}: {flaw}" for patch, flaw in blamed),
        facts={"findings": [{"patch": patch, **vars(flaw)} for patch, flaw in blamed], **(facts or {})},
    )


def check_series(applied: AppliedSeries, under: Tree, checker: Checker) -> tuple[str, ...]:
    """A series on its pin must break nothing.

    Args:
        applied: the series.
        under: the pin.
        checker: of this run.

    Returns:
        What could not be looked at, or was broken before.

    Raises:
        PatchConflict: it breaks something.
    """
    blamed, notes = check_whole(changes_of(applied), under, checker)
    if blamed:
        patch, flaw = blamed[0]
        where = f"patches/{applied.series.name}/{patch}.patch, {flaw.place} when patched"
        raise unsound_error(blamed, where=where, hint=f"repair it: overlay patch edit {applied.series.name}")
    return notes
