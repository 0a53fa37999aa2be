"""Try a probe: on mutants of the fixed source, none of which may be called ``fixed``, and on variants.

Mutants are the entries of ``NAME.mutants.yaml``, and the patch without one of its hunks, for each of them.
Variants are the entries of ``NAME.variants.yaml``, and the definitions that the patch touches in other words
(:mod:`builder.probe.variants`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from builder.errors import InvalidInput
from builder.patch.apply import AppliedSeries, try_series
from builder.patch.diff import FileDiff, Hunk
from builder.patch.patch import Patch
from builder.patch.series import Series
from builder.probe.evaluate import Inquiry, answer_json, ask_each
from builder.probe.harness import Answer, Tree
from builder.probe.lists import Entry, Excuse, Lists, edited, read_lists
from builder.probe.named_trees import patched_tree
from builder.probe.trees import MappingTree
from builder.probe.variants import REWRITINGS, Touched, rewritten, touched_names
from builder.source.files import Sources

ENOUGH = 0.9
"""The share of a probe's variants that must be called ``fixed``."""

Kind = Literal["mutant", "variant"]


@dataclass(frozen=True)
class Case:
    """One tree that a probe is tried on.

    Args:
        probe: ``patches/probes/NAME.py``.
        kind: what it is.
        name: of the list's entry, or of what was made of the patch.
        tree: the patched tree with the edit.
        breaks: the promise that a mutant breaks.
        costs, why: of a mutant that may be called ``fixed`` (:data:`builder.probe.lists.COSTS`).
        listed: whether a list has it; else it was made of the patch.
    """

    probe: Path
    kind: Kind
    name: str
    tree: Tree
    breaks: str = ""
    costs: str = ""
    why: str = ""
    listed: bool = False


@dataclass(frozen=True)
class Outcome:
    """A case and what the probe said."""

    case: Case
    answer: Answer

    @property
    def wrong(self) -> str:
        """What is wrong with the answer; empty where it is right, or one of few that may be ``unknown``."""
        state, case = self.answer.state, self.case
        if case.kind == "variant":
            return f"is called {state}" if state in ("defect", "absent") else ""
        if case.costs:
            return "" if state == "fixed" else f"is excused, and yet called {state}"
        return "is called fixed" if state == "fixed" else ""

    def as_json(self) -> dict[str, Any]:
        """The facts of the case and the answer."""
        case = self.case
        facts = {"kind": case.kind, "name": case.name, "breaks": case.breaks} | answer_json(self.answer)
        facts |= {"costs": case.costs, "why": case.why, "wrong": self.wrong}
        return {key: value for key, value in facts.items() if value}


@dataclass(frozen=True)
class Trial:
    """What one probe said of all its mutants and variants on one series.

    Args:
        patch: the patch and the probe.
        series: the series' name.
        outcomes: in the order of the lists.
        unfit: what could not be tried, and why.
    """

    patch: str
    series: str
    outcomes: tuple[Outcome, ...]
    unfit: tuple[str, ...]

    def of(self, kind: Kind) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.case.kind == kind]

    @property
    def share(self) -> float:
        """Of its variants, those called ``fixed``; 1 without variants."""
        variants = self.of("variant")
        return sum(o.answer.state == "fixed" for o in variants) / len(variants) if variants else 1.0

    @property
    def complaints(self) -> dict[str, list[str]]:
        """What must not be, by lint's rule; nothing for a probe that can be believed."""
        found: dict[str, list[str]] = {"mutants": [f"cannot be tried: {what}" for what in self.unfit]}
        for outcome in self.outcomes:
            case = outcome.case
            if outcome.wrong:
                promise = f", though it breaks: {case.breaks}" if case.breaks else ""
                said = f"{case.kind} '{case.name}' {outcome.wrong}{promise} ({outcome.answer.evidence})"
                found.setdefault(f"{case.kind}s", []).append(said)
        if self.share < ENOUGH:
            lost = [o for o in self.of("variant") if o.answer.state != "fixed"]
            names = "; ".join(f"'{o.case.name}': {o.answer.state}: {o.answer.evidence}" for o in lost)
            few = f"only {self.share:.0%} of the variants are called fixed, not {ENOUGH:.0%}: {names}"
            found.setdefault("variants", []).append(few)
        return {rule: complaints for rule, complaints in found.items() if complaints}

    @property
    def summary(self) -> str:
        """One line of figures."""
        mutants, variants = self.of("mutant"), self.of("variant")
        judged = [o for o in mutants if not o.case.costs]
        through = sum(o.answer.state == "fixed" for o in judged)
        good = sum(o.answer.state == "fixed" for o in variants)
        apart = f", {len(mutants) - len(judged)} apart" if len(judged) < len(mutants) else ""
        return f"{through} of {len(judged)} mutants fixed{apart}, {good} of {len(variants)} variants fixed"

    def as_json(self) -> dict[str, Any]:
        """Every outcome with its evidence, and what is wrong."""
        return {
            "probe": self.patch,
            "series": self.series,
            "outcomes": [outcome.as_json() for outcome in self.outcomes],
            "complaints": self.complaints,
        }


def try_probes(
    probes: Path,
    series: Series,
    sources: Sources,
    pristine: Tree,
    *,
    drop: Sequence[str] = (),
    only: Sequence[str] = (),
    listed: bool = True,
    remembered: Path | None = None,
) -> list[Trial]:
    """Try the probe of every patch of a series.

    Args:
        probes: ``patches/probes``.
        series, sources, drop: as :func:`builder.patch.apply.try_series` takes them; every patch must apply.
        pristine: the release that the series was cut for.
        only: names of patches; none means all that have a probe.
        listed: whether to ask about the lists' entries, too; that they fit is looked at in any case.
        remembered: directory in which answers are kept; ``None`` to ask anew and keep nothing.

    Raises:
        InvalidInput: a list cannot be read.
    """
    applied = try_series(series, sources, drop=drop)
    cases: list[tuple[str, Case]] = []
    unfit: dict[str, list[str]] = {}
    for patch in series.patches:
        probe = probes / f"{patch.name}.py"
        if probe.is_file() and (not only or patch.name in only):
            maker = _Maker(probe, patch, applied, sources, pristine, tuple(drop), read_lists(probe))
            cases += [(patch.name, case) for case in maker.cases() if listed or not case.listed]
            unfit[patch.name] = maker.unfit
    inquiries = [
        Inquiry(case.probe, case.tree, f"{series.name} {case.kind} {case.name}") for _, case in cases
    ]
    answers = ask_each(inquiries, remembered=remembered)
    outcomes = [(name, Outcome(case, answer)) for (name, case), answer in zip(cases, answers, strict=True)]
    return [
        Trial(name, series.name, tuple(o for n, o in outcomes if n == name), tuple(problems))
        for name, problems in unfit.items()
    ]


@dataclass
class _Maker:
    """Makes the cases of one probe on one series, and notes what cannot be made."""

    probe: Path
    patch: Patch
    applied: AppliedSeries
    sources: Sources
    pristine: Tree
    drop: tuple[str, ...]
    lists: Lists

    def __post_init__(self) -> None:
        self.unfit: list[str] = []
        self._fixed = patched_tree(self.pristine, self.applied)

    def cases(self) -> Iterator[Case]:
        for entry in self.lists.mutants:
            yield from self._edited("mutant", entry)
        yield from self._reverted()
        for entry in self.lists.variants:
            yield from self._edited("variant", entry)
        yield from self._rewritten()

    def _edited(self, kind: Kind, entry: Entry) -> Iterator[Case]:
        if entry.on and self.applied.series.name not in entry.on:
            return
        try:
            tree = edited(self._fixed, entry.edits)
        except InvalidInput as error:
            self.unfit.append(f"{kind} '{entry.name}': {error.what}: {error.where}: {error.found}")
            return
        yield Case(self.probe, kind, entry.name, tree, entry.breaks, entry.costs, entry.why, True)

    # every hunk reverted alone

    def _reverted(self) -> Iterator[Case]:
        excuses = [e for e in self.lists.hunks if not e.on or self.applied.series.name in e.on]
        hunks = [(file, hunk) for file in self.patch.files for hunk in file.hunks]
        found = {excuse: [h for _, h in hunks if _holds(h, excuse.hunk)] for excuse in excuses}
        for text, number in ((e.hunk, len(those)) for e, those in found.items() if len(those) != 1):
            self.unfit.append(f"the excused hunk with {text!r}: {number} hunks have that, not one")
        for file, hunk in hunks:
            excuse = next((e for e, those in found.items() if those == [hunk]), None)
            yield from self._without(file, hunk, excuse)

    def _without(self, file: FileDiff, hunk: Hunk, excuse: Excuse | None) -> Iterator[Case]:
        at = f"{file.path.rpartition('/')[2]}, line {hunk.new_start}"
        name = f"without the hunk of {at}: {_first_change(hunk)}"
        rest = tuple(_without_hunk(f, hunk) if f is file else f for f in self.patch.files)
        patch = replace(self.patch, files=tuple(f for f in rest if f is not None))
        series = self.applied.series
        patches = tuple(patch if p.name == patch.name else p for p in series.patches)
        applied = try_series(Series(series.name, patches), self.sources, drop=self.drop)
        if applied.failed:
            failed = ", ".join(report.patch.name for report in applied.failed)
            self.unfit.append(f"{name}: {failed} does not apply")
            return
        costs, why = (excuse.costs, excuse.why) if excuse else ("", "")
        tree = patched_tree(self.pristine, applied)
        yield Case(self.probe, "mutant", name, tree, costs=costs, why=why)

    # the patch's own definitions in other words

    def _rewritten(self) -> Iterator[Case]:
        (report,) = (r for r in self.applied.reports if r.patch.name == self.patch.name)
        files = []
        for change in report.files:
            last = self.applied.after.get(change.path)
            if change.post is None or last is None or not change.path.endswith(".py"):
                continue
            try:
                names = touched_names(change.pre.data if change.pre else None, change.post.data)
                files.append(Touched(change.path, last.data.decode(), names))
            except (SyntaxError, ValueError) as error:
                self.unfit.append(f"{change.path} does not parse: {error}")
                return
        for kind in REWRITINGS:
            made: dict[str, bytes | None] = dict(rewritten(kind, files))
            if made:
                yield Case(self.probe, "variant", kind, MappingTree(made, under=self._fixed))


def _without_hunk(file: FileDiff, hunk: Hunk) -> FileDiff | None:
    """What is left of a file's diff; None where nothing is, as for a new file."""
    hunks = tuple(other for other in file.hunks if other is not hunk)
    return replace(file, hunks=hunks) if hunks else None


def _holds(hunk: Hunk, text: str) -> bool:
    changed = [line[1:] for line in hunk.lines if line[:1] in (b"+", b"-")]
    return text.encode() in b"".join(changed)


def _first_change(hunk: Hunk) -> str:
    """The first line of code that a hunk adds, else the first that it adds or removes."""
    changed = [line for line in hunk.lines if line[:1] in (b"+", b"-")]
    added = [line for line in changed if line[:1] == b"+" and not line[1:].strip().startswith((b"#", b"\n"))]
    return (added or changed)[0][1:].decode(errors="replace").strip()[:60]
