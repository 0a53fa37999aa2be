"""Evidence by text: a series merged into a target, patch after patch, as git's own three-way merge has it.

For patch *n* the merge's base is the pin with the patches before *n*, "theirs" is that with *n*, and "ours"
is the target with what of the patches before *n* could be carried. So a merged earlier patch takes nothing
from a later one, a block that stands twice is known by what surrounds it, and a squash-merged patch merges to
nothing. Files that are the same in base and ours need no merge; all others go through git, those of
independent patches in one process. The same is then asked for each hunk alone.

What merges to nothing is there; what conflicts or merges is not therefore missing: hunks that stand in the
target already (:mod:`builder.retire.already_there`) are put into the merge's base, and only the others are
merged again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from builder.errors import Unavailable
from builder.patch.apply import AppliedSeries, FileChange, PatchReport, try_series
from builder.patch.definitions import Definition, Outline, outline_of
from builder.patch.diff import FileDiff, Hunk
from builder.patch.hunks import (
    Lines,
    PlacedHunk,
    apply_hunks,
    no_place,
    numbered_lines,
    place_hunks,
    places_of,
    split_lines,
)
from builder.patch.series import Series
from builder.retire.already_there import doubts_of, proved, standing_of, went_on
from builder.retire.dependents import uses_of
from builder.retire.evidence import HunkEvidence, HunkState, Place, Standing, TextEvidence, TextState
from builder.retire.moved_code import find_elsewhere, joined, telling
from builder.retire.moved_functions import Sought, find_functions
from builder.retire.windows import FilePair, Outcome, Window
from builder.source.files import SourceFile
from builder.source.git import GitError
from builder.source.merge_tree import Merged, Scratch, ThreeWay
from builder.source.upstream import Upstream

Versions = Mapping[str, SourceFile | None]

_OF_PROBLEMS: Mapping[str, HunkState] = {"already": "present", "ambiguous": "ambiguous"}


@dataclass(frozen=True)
class Step:
    """One patch on the target.

    Args:
        name: the patch.
        evidence: what became of it.
        before, after: the files it concerns, in the target, before and after it was carried; None where there
            is none. Equal when nothing was carried.
        conflicts: the files as git leaves them, with conflict markers.
        there: the patch's base with those of its hunks that are known to stand in the target; empty without.
    """

    name: str
    evidence: TextEvidence
    before: Versions
    after: Versions
    conflicts: Versions = field(default_factory=dict)
    there: Versions = field(default_factory=dict)


@dataclass(frozen=True)
class MergedSeries:
    """A series on a target.

    Args:
        applied: the series on its pin.
        steps: one for each patch, in order.
        changed: every file of the target that carrying the series changes; None for one that it deletes.
    """

    applied: AppliedSeries
    steps: tuple[Step, ...]
    changed: Versions

    @property
    def evidence(self) -> dict[str, TextEvidence]:
        return {step.name: step.evidence for step in self.steps}


def merge_series(
    series: Series,
    pin: Upstream,
    target: Upstream,
    scratch: Scratch,
    *,
    drop: Sequence[str] = (),
    skip: Collection[str] = (),
) -> MergedSeries:
    """Merge a series, cut for ``pin``, into ``target``.

    Args:
        series: the patches, all of them.
        pin: the tree that they apply to.
        target: the pristine tree that they are merged into.
        scratch: where git works.
        drop: patterns of files that are left out of every patch.
        skip: patches that are not carried; their evidence is there all the same.

    Raises:
        Unavailable: git fails, or a partial clone has to fetch a file and cannot.
    """
    sources = pin.files(series.paths)
    applied = try_series(series, sources, drop=drop)
    touched = list(applied.before)
    there = target.files(touched)
    missing = [path for path in touched if path in sources and path not in there]
    renames = find_renames(pin, target, missing, scratch) if missing else {}
    there |= target.files(sorted(set(renames.values())))
    ours: dict[str, SourceFile | None] = {path: there.get(path) for path in [*touched, *renames.values()]}
    pristine = dict(ours)
    merger = _Merger(ours, renames, scratch, skip)
    for wave in _waves(applied.reports, renames):
        merger.merge(wave)
    steps = merger.finish([report.patch.name for report in applied.reports])
    uses = uses_of(applied, pin, target)
    steps = tuple(
        replace(step, evidence=replace(step.evidence, uses=uses.get(step.name, {})))
        for step in _with_places(steps, applied, pin, target)
    )
    changed = {path: source for path, source in merger.ours.items() if source != pristine.get(path)}
    return MergedSeries(applied, steps, changed)


def _with_places(
    steps: Sequence[Step], applied: AppliedSeries, pin: Upstream, target: Upstream
) -> tuple[Step, ...]:
    """The steps, with where the lines went that hunks remove and that are not where they were."""
    open_: dict[tuple[str, str, int], list[bytes]] = {}
    sought: dict[tuple[str, str, int], list[Sought]] = {}
    lost = _LostFunctions(steps, target)
    for step, report in zip(steps, applied.reports, strict=True):
        if _is_open(step.evidence):
            for hunk in step.evidence.hunks:
                if _is_open(hunk):
                    key = step.name, hunk.path, hunk.number
                    open_[key] = telling(_removed(report, hunk))
                    sought[key] = list(lost.of(report, hunk))
    wanted: dict[str, list[bytes]] = {}
    for (_, path, _), lines in open_.items():
        wanted.setdefault(path, []).extend(lines)
    series = [line for report in applied.reports for line in telling(_removed(report))]
    places = find_elsewhere(wanted, pin, target, series=series)

    def placed(name: str, hunk: HunkEvidence) -> HunkEvidence:
        lines = open_.get((name, hunk.path, hunk.number), ())
        at = [places[hunk.path, line] for line in lines if (hunk.path, line) in places]
        was = applied.before.get(hunk.path)
        left = [place for place in at if was is None or not _is_same(hunk.path, was, place, lines)]
        return replace(hunk, went_to=joined(left)) if left else hunk

    functions = find_functions(dict.fromkeys(one for many in sought.values() for one in many), target)

    def moved(name: str, hunk: HunkEvidence) -> HunkEvidence:
        at = [
            place
            for one in sought.get((name, hunk.path, hunk.number), ())
            for place in functions.get(one, ())
        ]
        return replace(hunk, went_to=tuple(dict.fromkeys([*at, *hunk.went_to]))) if at else hunk

    found = []
    for step in steps:
        hunks = tuple(moved(step.name, placed(step.name, hunk)) for hunk in step.evidence.hunks)
        found.append(replace(step, evidence=replace(step.evidence, hunks=hunks)))
    return tuple(found)


class _LostFunctions:
    """The functions that hunks change and that their files in the target do not have under their names."""

    def __init__(self, steps: Sequence[Step], target: Upstream) -> None:
        hunks = [hunk for step in steps if _is_open(step.evidence) for hunk in step.evidence.hunks]
        self._now = target.files(sorted({hunk.moved_to or hunk.path for hunk in hunks if _is_open(hunk)}))

    def of(self, report: PatchReport, found: HunkEvidence) -> Iterator[Sought]:
        """Those that a hunk, or all of a file's, changes."""
        path = found.moved_to or found.path
        now = self._now.get(path)
        for change, diff in _with_diffs(report):
            if found.path in (change.path, change.old_path) and change.pre and change.post:
                was, post = (
                    outline_of(change.old_path, change.pre.data),
                    outline_of(change.path, change.post.data),
                )
                pairs = list(zip(diff.hunks, change.hunks, strict=True))
                for hunk, place in pairs[found.number - 1 : found.number] if found.number else pairs:
                    for changed in _changed_functions(was, hunk, place):
                        if now is None or outline_of(path, now.data).named(changed.name) is None:
                            patched = post.named(changed.name)
                            texts = (was.text(changed), *([post.text(patched)] if patched else []))
                            yield Sought(change.old_path, changed.name, texts)


def _is_open(evidence: TextEvidence | HunkEvidence) -> bool:
    return evidence.state in ("conflict", "gone")


def _changed_functions(was: Outline, hunk: Hunk, place: PlacedHunk) -> Iterator[Definition]:
    lines = {old for line, old, _ in numbered_lines(hunk, place, 0) if line[:1] != b" "}
    around = dict.fromkeys(was.enclosing(line) for line in sorted(lines))
    return (definition for definition in around if definition.kind == "function")


def _removed(report: PatchReport, found: HunkEvidence | None = None) -> list[bytes]:
    """The lines that a hunk removes; those of all of the file's where the whole file is meant; or all."""
    return [
        line[1:]
        for diff in report.patch.files
        if found is None or found.path in (diff.path, diff.old_path)
        for hunk in (diff.hunks[found.number - 1 : found.number] if found and found.number else diff.hunks)
        for line in hunk.lines
        if line[:1] == b"-"
    ]


def _is_same(path: str, was: SourceFile, place: Place, lines: Sequence[bytes]) -> bool:
    """Whether a place is where the lines stood before: the file and the definition are the same."""
    outline = outline_of(path, was.data)
    numbers = [n for n, line in enumerate(outline.lines, 1) if line.strip() in lines]
    return place.path == path and place.definition in {str(outline.enclosing(n)) for n in numbers}


def find_renames(pin: Upstream, target: Upstream, missing: Sequence[str], scratch: Scratch) -> dict[str, str]:
    """Where files of the pin that the target lacks have gone, as git sees it (half of the lines or more)."""
    trees = scratch.whole([pin.main, target.main])
    try:
        out = trees.git(
            "diff-tree", "-r", "-z", "-M50%", "-l0", "--diff-filter=R", "--name-status",
            pin.main.commit, target.main.commit, "--", *sorted({path.partition("/")[0] for path in missing}),
        )  # fmt: skip
    except GitError as error:
        raise Unavailable("git cannot compare the two trees", found=error.stderr) from error
    fields = [os.fsdecode(field) for field in out.split(b"\0")[:-1]]
    moved = dict(zip(fields[1::3], fields[2::3], strict=True))
    return {path: moved[path] for path in missing if path in moved}


def _waves(reports: Sequence[PatchReport], renames: Mapping[str, str]) -> list[list[PatchReport]]:
    """The patches in batches: those of one batch share no file, and come after all that they share one
    with."""
    waves: list[list[PatchReport]] = []
    level: dict[str, int] = {}
    for report in reports:
        paths = {path for diff in report.patch.files for path in (diff.old_path, diff.new_path)}
        paths |= {renames[path] for path in paths if path in renames}
        number = max((level.get(path, 0) for path in paths), default=0)
        level |= dict.fromkeys(paths, number + 1)
        if number == len(waves):
            waves.append([])
        waves[number].append(report)
    return waves


@dataclass(frozen=True)
class _Question:
    """A patch whose files the target changed: what git is asked, over which files, and what stands there.

    ``standings`` are by file and number of the hunk; ``there`` is the base with those that are proved.
    """

    report: PatchReport
    asked: ThreeWay
    paths: tuple[str, ...]
    standings: Mapping[tuple[str, int], Standing] = field(default_factory=dict)
    there: Versions = field(default_factory=dict)


@dataclass(frozen=True)
class _HunkQuestion:
    """One hunk of a file that the target changed; ``merged`` where the whole file's merge was the same."""

    path: str
    number: int
    hunk: Hunk
    place: PlacedHunk
    pre: SourceFile
    ours: SourceFile
    moved_to: str | None
    merged: Window | None


class _Merger:
    """The target while the series goes in."""

    def __init__(
        self,
        ours: dict[str, SourceFile | None],
        renames: Mapping[str, str],
        scratch: Scratch,
        skip: Collection[str],
    ) -> None:
        self.ours = ours
        self._pristine = dict(ours)
        self._renames = renames
        self._scratch = scratch
        self._skip = skip
        self._steps: dict[str, Step] = {}
        self._open: list[tuple[_Question, Merged]] = []

    def merge(self, wave: Sequence[PatchReport]) -> None:
        """Merge patches that share no file."""
        questions = []
        for report in wave:
            if report.problems:
                self._steps[report.patch.name] = self._by_place(report)
                continue
            question = self._question(report)
            if question.asked.ours == question.asked.base:
                self._unchanged(question)
            elif question.asked.ours == question.asked.theirs:
                self._there(question)
            else:
                questions.append(question)
        judged = [
            (question, merged)
            for question, merged in zip(
                questions, self._scratch.merge([question.asked for question in questions]), strict=True
            )
            if not self._is_there(question, merged)
        ]
        looked = [(self._with_standings(question), merged) for question, merged in judged]
        again = iter(self._scratch.merge([question.asked for question, _ in looked if question.there]))
        for question, merged in looked:
            rest = next(again) if question.there else merged
            if not self._is_there(question, rest):
                self._judged(question, rest)

    def finish(self, names: Sequence[str]) -> tuple[Step, ...]:
        """Ask about single hunks where the whole patch left that open; the steps, in order."""
        asked = [(q.report.patch.name, hunk) for q, m in self._open for hunk in self._hunk_questions(q, m)]
        found: dict[str, list[HunkEvidence]] = {}
        answers = _ask_hunks(self._scratch, [hunk for _, hunk in asked])
        for (name, _), answer in zip(asked, answers, strict=True):
            found.setdefault(name, []).append(answer)
        for question, merged in self._open:
            name = question.report.patch.name
            hunks = [_with_standing(hunk, question.standings) for hunk in found.get(name, ())]
            hunks += self._whole_files(question, merged)
            self._steps[name] = self._with_hunks(question, merged, hunks)
        return tuple(self._steps[name] for name in names)

    # --- one patch ----------------------------------------------------------------------------------------

    def _question(self, report: PatchReport) -> _Question:
        base: dict[str, SourceFile] = {}
        theirs: dict[str, SourceFile] = {}
        for change in report.files:
            if change.pre is not None:
                base.setdefault(change.old_path, change.pre)
                theirs.setdefault(change.old_path, change.pre)
            if change.kind in ("delete", "rename"):
                theirs.pop(change.old_path, None)
            if change.post is not None:
                theirs[change.path] = change.post
        names = [*base, *theirs, *(self._renames[path] for path in base if path in self._renames)]
        paths = tuple(dict.fromkeys(names))
        return _Question(report, ThreeWay(base, self._present(paths), theirs), paths)

    def _present(self, paths: Sequence[str]) -> dict[str, SourceFile]:
        return {path: source for path in paths if (source := self.ours.get(path)) is not None}

    def _unchanged(self, question: _Question) -> None:
        """The target has the files as the patch expects them: it carries as it is."""
        hunks = [
            HunkEvidence(change.path, number, "carries", place.landed)
            for change in question.report.files
            for number, place in enumerate(change.hunks, 1)
        ] or [HunkEvidence(change.path, 0, "carries") for change in question.report.files]
        self._carry(question, TextEvidence("carries", tuple(hunks)), question.asked.theirs)

    def _there(self, question: _Question) -> None:
        """The target has the files as the patch leaves them."""
        hunks = tuple(
            replace(hunk, standing=question.standings.get((hunk.path, hunk.number)))
            for hunk in _all_hunks(question.report, "present")
        )
        self._keep(question, TextEvidence("merged", self._doubted(question, hunks)), question.there)

    def _doubted(self, question: _Question, hunks: Sequence[HunkEvidence]) -> tuple[HunkEvidence, ...]:
        """The hunks of a patch that is merged, each with why it may not be what counts."""
        doubts: dict[tuple[str, int], Standing] = {}
        for change, diff in _with_diffs(question.report):
            path = self._now(change.old_path, self._pristine)
            found = doubts_of(change, diff.hunks, self._pristine.get(path), path)
            doubts |= {(change.path, number): doubt for number, doubt in found.items()}
        return tuple(
            replace(hunk, standing=doubts.get((hunk.path, hunk.number), hunk.standing)) for hunk in hunks
        )

    def _is_there(self, question: _Question, merged: Merged) -> bool:
        """Whether nothing is left of a patch when it is merged; then that is noted."""
        if merged.conflicts or merged.files != question.asked.ours:
            return False
        self._there(question)
        return True

    def _with_standings(self, question: _Question) -> _Question:
        """The question over the hunks that the target does not have for certain, where there are others."""
        standings: dict[tuple[str, int], Standing] = {}
        there: dict[str, SourceFile] = {}
        for change, diff in _with_diffs(question.report):
            path = self._now(change.old_path, self._pristine)
            found = standing_of(change, diff.hunks, self._pristine.get(path), path)
            standings |= {(change.path, number): standing for number, standing in found.items()}
            if (numbers := proved(found)) and change.pre is not None:
                hunks = [
                    (h, p)
                    for n, (h, p) in enumerate(zip(diff.hunks, change.hunks, strict=True), 1)
                    if n in numbers
                ]
                data = apply_hunks([h for h, _ in hunks], [p for _, p in hunks], split_lines(change.pre.data))
                there[change.old_path] = SourceFile(change.pre.mode, data)
        if not there:
            return replace(question, standings=standings)
        base = dict(question.asked.base) | there
        return replace(question, asked=replace(question.asked, base=base), standings=standings, there=base)

    def _judged(self, question: _Question, merged: Merged) -> None:
        # The next wave needs the files now; the hunks can wait for the others.
        before = {path: self.ours.get(path) for path in question.paths}
        self._open.append((question, merged))
        self._steps[question.report.patch.name] = Step(
            question.report.patch.name, TextEvidence("conflict", ()), before, before
        )
        if not merged.conflicts and question.report.patch.name not in self._skip:
            self.ours |= {path: merged.files.get(path) for path in question.paths}

    def _carry(self, question: _Question, evidence: TextEvidence, files: Mapping[str, SourceFile]) -> None:
        before = {path: self.ours.get(path) for path in question.paths}
        after = {path: files.get(path) for path in question.paths}
        name = question.report.patch.name
        self._steps[name] = Step(name, evidence, before, before if name in self._skip else after)
        if name not in self._skip:
            self.ours |= after

    def _keep(self, question: _Question, evidence: TextEvidence, there: Versions) -> None:
        name = question.report.patch.name
        before = {path: self.ours.get(path) for path in question.paths}
        self._steps[name] = Step(name, evidence, before, before, there=there)

    # --- its hunks ----------------------------------------------------------------------------------------

    def _hunk_questions(self, question: _Question, merged: Merged) -> list[_HunkQuestion]:
        before = self._steps[question.report.patch.name].before
        asked = []
        for change, diff in _with_diffs(question.report):
            path = self._now(change.old_path, before)
            ours = before.get(path)
            if change.pre is None or ours is None:
                continue
            moved = path if path != change.old_path else None
            whole = None if moved or len(diff.hunks) > 1 else _whole_window(question.asked, merged, change)
            asked += [
                _HunkQuestion(change.path, number, hunk, place, change.pre, ours, moved, whole)
                for number, (hunk, place) in enumerate(zip(diff.hunks, change.hunks, strict=True), 1)
            ]
        return asked

    def _now(self, path: str, before: Versions) -> str:
        return path if before.get(path) is not None else self._renames.get(path, path)

    def _whole_files(self, question: _Question, merged: Merged) -> list[HunkEvidence]:
        """Files that have no hunk to ask about: created, deleted, moved or gone ones."""
        before = self._steps[question.report.patch.name].before
        found = []
        for change, diff in _with_diffs(question.report):
            ours = before.get(self._now(change.old_path, before))
            if change.pre is not None and ours is not None and diff.hunks:
                continue
            if change.pre is not None and ours is None:
                state: HunkState = "present" if change.kind == "delete" else "gone"
            elif change.path in merged.conflicts:
                state = "conflict"
            else:
                state = "present" if before.get(change.path) == change.post else "carries"
            found.append(HunkEvidence(change.path, 0, state))
        return found

    def _with_hunks(self, question: _Question, merged: Merged, hunks: list[HunkEvidence]) -> Step:
        name = question.report.patch.name
        before = self._steps[name].before
        moved = {old: new for old, new in self._renames.items() if old in question.asked.base}
        left = [hunk for hunk in hunks if hunk.state != "present" and not _is_no_code(hunk)]
        if not left and any(hunk.state == "present" for hunk in hunks):
            evidence = TextEvidence("merged", self._doubted(question, hunks), moved)
            return Step(name, evidence, before, before, there=question.there)
        if merged.conflicts:
            gone = all(hunk.state == "gone" for hunk in hunks)
            on = all(hunk.state != "carries" for hunk in hunks) and all(
                went_on(change, diff.hunks, self._pristine.get(path), path)
                for change, diff in _with_diffs(question.report)
                for path in [self._now(change.old_path, self._pristine)]
            )
            evidence = TextEvidence("gone" if gone else "conflict", tuple(hunks), moved, went_on=on)
            files = {path: merged.files.get(path) for path in merged.conflicts}
            return Step(name, evidence, before, before, files, question.there)
        state: TextState = "moves" if moved else "carries"
        if any(hunk.state == "present" for hunk in hunks):
            state = "partial"
        after = {path: merged.files.get(path) for path in question.paths}
        evidence = TextEvidence(state, tuple(hunks), moved, merged_lines=True)
        kept = before if name in self._skip else after
        return Step(name, evidence, before, kept, there=question.there)

    # --- a patch that its own pin does not take -----------------------------------------------------------

    def _by_place(self, report: PatchReport) -> Step:
        """Without a base there is no three-way merge: only where each hunk's lines are found."""
        hunks = [hunk for diff in report.patch.files for hunk in self._placed(diff)]
        states = {hunk.state for hunk in hunks}
        state: TextState = "conflict"
        if states == {"gone"}:
            state = "gone"
        elif states == {"present"}:
            state = "merged"
        note = "the patch does not apply to its pin, so this is by the place of its lines alone"
        paths = [path for diff in report.patch.files for path in (diff.old_path, diff.new_path)]
        before = {path: self.ours.get(path) for path in paths}
        return Step(report.patch.name, TextEvidence(state, tuple(hunks), note=note), before, before)

    def _placed(self, diff: FileDiff) -> list[HunkEvidence]:
        ours = self.ours.get(diff.old_path)
        if diff.kind == "create":
            wanted = b"".join(line for hunk in diff.hunks for line in hunk.new)
            there = self.ours.get(diff.new_path)
            if there is None:
                return [HunkEvidence(diff.path, 0, "carries")]
            return [HunkEvidence(diff.path, 0, "present" if there.data == wanted else "conflict")]
        if ours is None:
            return [HunkEvidence(diff.path, 0, "present" if diff.kind == "delete" else "gone")]
        found = []
        for number, hunk in enumerate(diff.hunks, 1):
            placed, problems = place_hunks(replace(diff, hunks=(hunk,)), ours)
            if placed:
                found.append(HunkEvidence(diff.path, number, "carries", placed[0].landed))
                continue
            problem = problems[0]
            state = _OF_PROBLEMS.get(problem.kind, "conflict")
            found.append(
                HunkEvidence(diff.path, number, state, places=problem.places, details=problem.details)
            )
        return found or [HunkEvidence(diff.path, 0, "conflict")]


def _whole_window(asked: ThreeWay, merged: Merged, change: FileChange) -> Window | None:
    """What a merge says of a file of which a patch changes one hunk; None where it is not that alone."""
    path = change.path
    base, ours, theirs = (side.get(path) for side in (asked.base, asked.ours, asked.theirs))
    if base is None or ours is None or theirs is None or path not in merged.files:
        return None
    if (base, theirs) != (change.pre, change.post) or len({base.mode, ours.mode, theirs.mode}) > 1:
        return None
    lines, result = split_lines(ours.data), split_lines(merged.files[path].data)
    outcome: Outcome = "conflict" if path in merged.conflicts else "clean"
    return Window(outcome, 0, len(lines), (), lines, result)


def _with_diffs(report: PatchReport) -> list[tuple[FileChange, FileDiff]]:
    diffs = {(diff.old_path, diff.path): diff for diff in report.patch.files}
    return [(change, diffs[change.old_path, change.path]) for change in report.files]


def _with_standing(hunk: HunkEvidence, standings: Mapping[tuple[str, int], Standing]) -> HunkEvidence:
    """The hunk with what stands of it in the target; where that is proved, it is there."""
    standing = standings.get((hunk.path, hunk.number))
    if standing is None or hunk.state == "present":
        return hunk
    if standing.proof in ("lines", "syntax"):
        return HunkEvidence(hunk.path, hunk.number, "present", moved_to=hunk.moved_to, standing=standing)
    return replace(hunk, standing=standing)


def _is_no_code(hunk: HunkEvidence) -> bool:
    return hunk.standing is not None and hunk.standing.proof == "no code"


def _all_hunks(report: PatchReport, state: HunkState) -> list[HunkEvidence]:
    return [
        HunkEvidence(change.path, number, state)
        for change, diff in _with_diffs(report)
        for number in ([hunk for hunk, _ in enumerate(diff.hunks, 1)] or [0])
    ]


def _ask_hunks(scratch: Scratch, questions: Sequence[_HunkQuestion]) -> list[HunkEvidence]:
    """What each hunk alone becomes.

    Git merges the lines around those at which the target changed something, all in one merge under names of
    their own. What is known is not asked.
    """
    lines: dict[int, Lines] = {}  # by identity: the hunks of a file have it in common
    for question in questions:
        for path, source in (
            (question.path, question.pre),
            (question.moved_to or question.path, question.ours),
        ):
            if id(source) not in lines:
                lines[id(source)] = outline_of(path, source.data).lines
    open_ = [question for question in questions if question.merged is None]
    sources = {(id(q.pre), id(q.ours)): (q.pre, q.ours) for q in open_}
    spans = scratch.differences(list(sources.values()))
    pairs = {
        key: FilePair(lines[key[0]], lines[key[1]], found) for key, found in zip(sources, spans, strict=True)
    }
    windows = [
        question.merged or pairs[id(question.pre), id(question.ours)].window(question.hunk, question.place)
        for question in questions
    ]
    return [
        _hunk_evidence(question, lines[id(question.ours)], window)
        for question, window in zip(questions, _merged(scratch, windows), strict=True)
    ]


def _merged(scratch: Scratch, windows: Sequence[Window]) -> list[Window]:
    """The windows, with what git says where that is open."""
    asked = {str(number): window for number, window in enumerate(windows) if window.outcome == "open"}
    if not asked:
        return list(windows)
    base, ours, theirs = (
        {name: SourceFile("100644", b"".join(getattr(window, side))) for name, window in asked.items()}
        for side in ("base", "ours", "theirs")
    )
    (merged,) = scratch.merge([ThreeWay(base, ours, theirs)])
    conflicts = set(merged.conflicts)
    return [
        replace(
            window,
            outcome="conflict" if str(number) in conflicts else "clean",
            theirs=split_lines(merged.files[str(number)].data),
        )
        if window.outcome == "open"
        else window
        for number, window in enumerate(windows)
    ]


def _hunk_evidence(question: _HunkQuestion, lines: Lines, window: Window) -> HunkEvidence:
    path, number, moved = question.path, question.number, question.moved_to
    clean = window.outcome == "clean"
    if clean and window.theirs == window.ours:
        return HunkEvidence(path, number, "present", moved_to=moved)
    fits = tuple(place + 1 for place in places_of(question.hunk, lines))
    if clean:
        line = _first_difference(lines, window) + 1 - question.hunk.leading_context
        line = next((fit for fit in fits if abs(fit - line) <= question.hunk.old_count), max(line, 1))
        others = tuple(fit for fit in fits if fit != line)
        return HunkEvidence(path, number, "carries", line, others, moved)
    if len(fits) > 1:
        return HunkEvidence(path, number, "ambiguous", places=fits, moved_to=moved)
    details = "" if fits else no_place(path, number, question.hunk, lines).details
    return HunkEvidence(path, number, "conflict", places=fits, moved_to=moved, details=details)


def _first_difference(lines: Lines, window: Window) -> int:
    """The first line (from 0) that is another one when the target has a window's lines."""
    after = (lines[number] for number in range(window.end, len(lines)))
    here = (lines[number] for number in range(window.start, len(lines)))
    pairs = enumerate(zip(here, chain(window.theirs, after), strict=False), window.start)
    shorter = min(len(lines), len(lines) + len(window.theirs) - (window.end - window.start))
    return next((number for number, (was, now) in pairs if was != now), shorter)
