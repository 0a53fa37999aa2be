"""Judge every patch of a series on every target: gather the evidence, and decide."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any

from builder.errors import InvalidInput
from builder.patch.patch import Patch
from builder.patch.requirements import requirements_of
from builder.patch.series import Series
from builder.printable import counted
from builder.probe.harness import Answer, Tree
from builder.probe.named_trees import pristine_tree
from builder.probe.trees import GitTree, MappingTree
from builder.project.releases import release_order
from builder.retire.cached import Found, KeptEvidence, ProbeAnswer
from builder.retire.dependency import Pin, clashes, compare_pins, read_pins, with_pins
from builder.retire.dependents import hanging_on
from builder.retire.earlier import with_earlier
from builder.retire.evidence import Behaviour, Dependency, Evidence, History, Landed, TextEvidence
from builder.retire.history import Range, bisect, by_releases, commits_between, pickaxe
from builder.retire.probed import CachedProber
from builder.retire.pull_requests import Log, landed, requests_of
from builder.retire.text import MergedSeries, merge_series
from builder.retire.verdict import Verdict, decide, with_clashes, with_flaws, with_landed
from builder.soundness.check import Checker, Soundness
from builder.soundness.series import without
from builder.source.files import SourceFile
from builder.source.git import GitStore
from builder.source.merge_tree import Scratch, open_scratch
from builder.source.revision import Target
from builder.source.upstream import Upstream


@dataclass(frozen=True)
class Subject:
    """What is judged: a series and the tree that it was cut for.

    Args:
        name, version: of the overlay.
        release: of the pin.
        commit: of the pin in the upstream's repository; None where nobody knows it.
        pin: the pinned sources.
        series: the patches.
        drop: patterns of files that are left out of every patch.
        repository: the upstream's address; empty where nobody knows it.
    """

    name: str
    version: str
    release: str
    commit: str | None
    pin: Upstream
    series: Series
    drop: tuple[str, ...] = ()
    repository: str = ""


@dataclass(frozen=True)
class Evaluation:
    """One patch on one target."""

    patch: str
    target: str
    verdict: Verdict
    evidence: Evidence

    def as_json(self) -> dict[str, Any]:
        """The same facts for programs."""
        return {
            "patch": self.patch,
            "target": self.target,
            "verdict": self.verdict.word,
            "why": self.verdict.why,
            "retirable": self.verdict.retirable,
            "contradictions": list(self.verdict.contradictions),
            "evidence": self.evidence.as_json(),
        }


@dataclass(frozen=True)
class Report:
    """Every patch of a subject on every target."""

    subject: Subject
    targets: tuple[Target, ...]
    evaluations: tuple[Evaluation, ...]

    def of(self, patch: str, target: str) -> Evaluation:
        """The evaluation of one patch on one target."""
        return next(j for j in self.evaluations if (j.patch, j.target) == (patch, target))

    def on(self, target: str) -> list[Evaluation]:
        """The evaluations on one target, in the series' order."""
        return [evaluation for evaluation in self.evaluations if evaluation.target == target]

    def merge(self, target: str) -> MergedSeries:
        """The series merged into a target, for who carries it there."""
        (found,) = (one for one in self.targets if one.name == target)
        with open_scratch() as scratch:
            return _merged(self.subject, found, scratch)

    def as_json(self) -> dict[str, Any]:
        """The same facts for programs."""
        return {
            "overlay": self.subject.name,
            "version": self.subject.version,
            "pin": self.subject.release,
            "series": self.subject.series.name,
            "patchset": self.subject.series.digest,
            "targets": [
                {"name": target.name, "source": target.upstream.kind, "commit": target.upstream.main.commit}
                for target in self.targets
            ],
            "judgements": [evaluation.as_json() for evaluation in self.evaluations],
        }


def judge(
    subject: Subject,
    targets: Sequence[Target],
    probes: Path,
    cache: Path,
    *,
    known: Sequence[str] = (),
    accept_text: Collection[str] = (),
    timeout: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Judge a series on targets, which are worked on side by side as far as there are processors.

    Args:
        subject: the series and its pin.
        targets: pristine trees.
        probes: ``patches/probes``.
        cache: the cache's directory; answers of probes are kept there.
        known: the releases there are, to say which were not asked.
        accept_text: patches without a probe that a person retires on text alone.
        timeout: seconds for one probe on one tree; None for the usual bound.
        say: told what takes time.

    Raises:
        Unavailable: git fails, or a partial clone has to fetch a file and cannot.
    """
    checker = Checker(cache)
    kept = KeptEvidence(cache / "evidence", subject.series, subject.drop, subject.pin, probes)
    pin = _Pin(subject, probes, cache, timeout)
    bench = _Bench(subject, probes, cache, pin, kept, frozenset(accept_text), timeout, checker)
    say(
        f"judging {counted(len(subject.series.patches), 'patch', 'patches')} "
        f"on {counted(len(targets), 'target')}"
    )
    bench.find_side_by_side(targets, say)
    with ThreadPoolExecutor(max(1, min(len(targets), os.cpu_count() or 1))) as pool:
        columns = list(pool.map(bench.judge, targets))
    checker.save()
    evaluations = bench.read_together([evaluation for column in columns for evaluation in column])
    return Report(subject, tuple(targets), _with_releases(evaluations, subject, known))


def _merged(subject: Subject, target: Target, scratch: Scratch) -> MergedSeries:
    return merge_series(subject.series, subject.pin, target.upstream, scratch, drop=subject.drop)


class _Pin:
    """What is asked of the pin, once, when the first target wants it."""

    def __init__(self, subject: Subject, probes: Path, cache: Path, timeout: float | None) -> None:
        self._subject = subject
        self._witness = partial(CachedProber, probes, cache, timeout=timeout)
        self._lock = Lock()

    def answer(self, name: str) -> Answer:
        """What a patch's probe says of the pin."""
        with self._lock:
            return self._answers[name]

    def versions(self) -> dict[str, Pin]:
        """The versions of other packages that the pin asks for."""
        with self._lock:
            return self._versions

    @cached_property
    def _answers(self) -> dict[str, Answer]:
        names = [patch.name for patch in self._subject.series.patches]
        with self._witness() as prober:
            return {name: prober.ask(name, self._tree) for name in names if prober.has_probe(name)}

    @cached_property
    def _versions(self) -> dict[str, Pin]:
        return read_pins(self._tree)

    @cached_property
    def _tree(self) -> GitTree:
        return pristine_tree(self._subject.pin)


@dataclass(frozen=True)
class _Bench:
    """What is the same for every target."""

    subject: Subject
    probes: Path
    cache: Path
    pin: _Pin
    kept: KeptEvidence
    accept_text: frozenset[str]
    timeout: float | None
    checker: Checker

    def find_side_by_side(self, targets: Sequence[Target], say: Callable[[str], None]) -> None:
        """Have processes find what is not remembered yet: reading sources keeps one processor of Python busy.

        They leave what they found where it is remembered. What one of them could not find is found again by
        who waits for it, which meets the error and says it; that it ended early is said here.
        """
        waiting = [target for target in targets if self.kept.get(target.upstream) is None]
        workers = min(len(waiting), os.cpu_count() or 1)
        if workers < 2:
            return
        for patch in self.subject.series.patches:
            if (self.probes / f"{patch.name}.py").is_file():
                self.pin.answer(patch.name)  # once, not once a process
        children = [self._fork([waiting[n] for n in range(first, len(waiting), workers)])
                    for first in range(workers)]  # fmt: skip
        for child in children:
            if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
                say(f"a process ended early ({code}), and its targets are judged again")

    def _fork(self, targets: Sequence[Target]) -> int:
        """A process that finds what it can on these targets and ends; its id."""
        child = os.fork()
        if child:
            return child
        try:
            for target in targets:
                with ExitStack() as stack:
                    prober = stack.enter_context(CachedProber(self.probes, self.cache, timeout=self.timeout))
                    _Case(self, target, prober, stack).find()
            self.checker.save()
        except BaseException:
            os._exit(1)
        os._exit(0)

    def judge(self, target: Target) -> list[Evaluation]:
        """Every patch on one target."""
        with ExitStack() as stack:
            prober = stack.enter_context(CachedProber(self.probes, self.cache, timeout=self.timeout))
            case = _Case(self, target, prober, stack)
            found = case.find()
            return [case.judge(patch, found[patch.name]) for patch in self.subject.series.patches]

    def read_together(self, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
        """The evaluations, where there is no probe with what earlier releases say of later ones."""
        texts: dict[str, dict[str, TextEvidence]] = {}
        for evaluation in evaluations:
            texts.setdefault(evaluation.target, {})[evaluation.patch] = evaluation.evidence.text
        texts = with_earlier(texts)
        return with_hangs(
            [
                self._again(evaluation, texts[evaluation.target][evaluation.patch])
                for evaluation in evaluations
            ]
        )

    def _again(self, evaluation: Evaluation, text: TextEvidence) -> Evaluation:
        if text == evaluation.evidence.text or evaluation.evidence.behaviour is not None:
            return evaluation
        patch = next(patch for patch in self.subject.series.patches if patch.name == evaluation.patch)
        accepted = patch.name in self.accept_text
        verdict = decide(text, None, without_probe=says_no_probe(patch), accepted=accepted)
        verdict = with_flaws(verdict, text, evaluation.evidence.flaws)
        verdict = with_clashes(verdict, evaluation.evidence.clashes)
        verdict = _with_deadline(verdict, patch, evaluation.target)
        evidence = replace(evaluation.evidence, text=text)
        return replace(evaluation, verdict=with_landed(verdict, evidence), evidence=evidence)


@dataclass(frozen=True)
class _Case:
    """One target while its patches are judged."""

    bench: _Bench
    target: Target
    prober: CachedProber
    stack: ExitStack

    def find(self) -> dict[str, Found]:
        """What the sources say of every patch; as far as it is not remembered, it is asked."""
        patches, kept = self.bench.subject.series.patches, self.bench.kept
        known = kept.get(self.target.upstream) or {}
        found = {patch.name: self._found(patch, known.get(patch.name)) for patch in patches}
        if not known or any(found[n] != known.get(n) and found[n].is_certain for n in found):
            kept.put(self.target.upstream, found)
        return found

    def _found(self, patch: Patch, known: Found | None) -> Found:
        if known is not None and known.asked is not None:
            return known
        text = known.text if known else self._merged.evidence[patch.name]
        asked = self._ask(patch.name, text)
        needless = asked.behaviour is not None and asked.behaviour.pristine.state in ("fixed", "absent")
        if known is not None:
            return Found(text, known.flaws, known.notes, asked)
        sound = self._soundness(patch) if text.carried and not needless else Soundness()
        return Found(text, without(sound.flaws, patch.allows), sound.notes, asked)

    def judge(self, patch: Patch, found: Found) -> Evaluation:
        """The verdict on one patch."""
        text, asked = found.text, found.asked or ProbeAnswer()
        verdict = decide(
            text,
            asked.behaviour,
            asked.dependencies,
            rolled_back=asked.rolled_back,
            without_probe=says_no_probe(patch),
            accepted=patch.name in self.bench.accept_text,
        )
        verdict = with_flaws(verdict, text, found.flaws)
        verdict = _with_deadline(verdict, patch, self.target.name)
        history = self._history(patch, asked.behaviour) if verdict.retirable else None
        landed_there = self._landed(patch)
        excluded = self._clashes(patch)
        evidence = Evidence(
            text,
            asked.behaviour,
            asked.dependencies,
            history,
            landed_there,
            found.flaws,
            excluded,
            found.notes,
        )
        verdict = with_landed(with_clashes(verdict, excluded), evidence)
        return Evaluation(patch.name, self.target.name, verdict, evidence)

    @cached_property
    def _tree(self) -> GitTree:
        return pristine_tree(self.target.upstream)

    @cached_property
    def _merged(self) -> MergedSeries:
        return _merged(self.bench.subject, self.target, self.stack.enter_context(open_scratch()))

    def _clashes(self, patch: Patch) -> tuple[str, ...]:
        """What the patch requires and the target's own pins exclude."""
        requirements = requirements_of((patch,))
        return tuple(clashes(requirements, read_pins(self._tree))) if requirements else ()

    def _soundness(self, patch: Patch) -> Soundness:
        """What the patch breaks in the target with those before it."""
        state: dict[str, SourceFile | None] = {}
        for step in self._merged.steps:
            if step.name == patch.name:
                before, after = {**state, **step.before}, {**state, **step.after}
                return self.bench.checker.check(before, after, self._tree)
            state |= step.after
        return Soundness()

    def _ask(self, name: str, text: TextEvidence) -> ProbeAnswer:
        """What the patch's probe says of the pin, the target, and the target with the patch."""
        if not self.prober.has_probe(name):
            return ProbeAnswer()
        pristine = self.prober.ask(name, self._tree)
        carried = None
        if text.carried and pristine.state not in ("fixed", "absent"):
            carried = self.prober.ask(name, self._carried)
        behaviour = Behaviour(self.bench.pin.answer(name), pristine, carried)
        if not pristine.pins:
            return ProbeAnswer(behaviour)
        dependencies = compare_pins(pristine.pins, self.bench.pin.versions(), read_pins(self._tree))
        return ProbeAnswer(behaviour, dependencies, self._rolled_back(name, behaviour, dependencies))

    @cached_property
    def _carried(self) -> Tree:
        changed = {path: None if file is None else file.data for path, file in self._merged.changed.items()}
        return MappingTree(changed, under=self._tree)

    def _rolled_back(
        self, name: str, behaviour: Behaviour, dependencies: tuple[Dependency, ...]
    ) -> Answer | None:
        """What the probe would say if the dependencies went back to the pin's versions."""
        changed = [d for d in dependencies if d.changed and d.pinned is not None and d.target is not None]
        if behaviour.pristine.state != "fixed" or not changed:
            return None
        return self.prober.ask(name, with_pins(self._tree, changed))

    def _history(self, patch: Patch, behaviour: Behaviour | None) -> History | None:
        span = self._span
        if span is None or not span.commits:
            return None
        if behaviour is None:
            # Without the files of every commit there is nothing to search in.
            return pickaxe(span, patch) if self.target.fetch is None else None
        return bisect(span, lambda commit: self._has_changed(patch.name, span, commit))

    @cached_property
    def _span(self) -> Range | None:
        """The commits since the pin; None where there is no repository, or it does not have the pin."""
        if self.target.repository is None:
            return None
        for pin in (
            self.bench.subject.commit,
            self.bench.subject.pin.main.commit,
            self.bench.subject.release,
        ):
            if pin is not None:
                try:
                    return commits_between(self.target.repository, pin, self.target.revision)
                except InvalidInput:
                    continue  # the history begins elsewhere: then there is no such evidence
        return None

    @cached_property
    def _log(self) -> Log | None:
        """The target's commits; None where there is no repository."""
        if self.target.repository is None:
            return None
        inner = self.target.repository / ".git"
        return Log(GitStore(inner if inner.exists() else self.target.repository), self.target.revision)

    def _landed(self, patch: Patch) -> tuple[Landed, ...]:
        numbers = requests_of(patch, self.bench.subject.repository)
        return landed(self._log, numbers) if numbers and self._log is not None else ()

    def _has_changed(self, name: str, span: Range, commit: str) -> bool | None:
        fetch = self.target.fetch
        tree = pristine_tree(fetch(commit)) if fetch else GitTree(span.repository.path, commit)
        state = self.prober.ask(name, tree).state
        return None if state == "unknown" else state != "defect"


def with_hangs(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """The evaluations, where a patch uses what only another adds that is not there: that one needs a person.

    Args:
        evaluations: target after target, each in the series' order.
    """
    out: dict[tuple[str, str], str] = {}
    found = []
    for evaluation in evaluations:
        here = {patch: why for (target, patch), why in out.items() if target == evaluation.target}
        text, verdict = evaluation.evidence.text, evaluation.verdict
        is_carried = verdict.word in ("carry", "partial") or bool(evaluation.evidence.flaws)
        hangs = hanging_on(text.uses, here) if is_carried else ()
        if hangs:
            said = [f"{other} ({why}): only that adds {', '.join(names)}" for other, why, names in hangs]
            verdict = replace(verdict, word="rework", why=f"hangs on {'; '.join(said)}; {verdict.why}")
            evaluation = replace(evaluation, verdict=verdict)
        if verdict.retirable:
            out[evaluation.target, evaluation.patch] = f"{verdict.word}, left out"
        elif hangs or (not text.carried and text.state != "merged"):
            out[evaluation.target, evaluation.patch] = "hangs itself" if hangs else str(text)
        found.append(evaluation)
    return found


def check_accept_text(names: Iterable[str], series: Sequence[Series], probes: Path) -> None:
    """Refuse names that ``--accept-text`` means nothing for.

    Args:
        names: patches that are to be retired on text alone.
        series: those that are judged.
        probes: ``patches/probes``.

    Raises:
        InvalidInput: no series has such a patch, or it has a probe, which decides.
    """
    there = {patch.name: patch for one in series for patch in one.patches}
    for name in names:
        if name not in there:
            from difflib import get_close_matches

            near = get_close_matches(name, there, n=1)
            raise InvalidInput(
                "there is no patch of this name to accept",
                where="--accept-text",
                found=name,
                hint=f"did you mean {near[0]}?" if near else f"there are: {', '.join(there)}",
            )
        if (probes / f"{name}.py").is_file():
            raise InvalidInput(
                "the patch has a probe, and that decides",
                where="--accept-text",
                found=name,
                hint=f"leave out --accept-text {name}; the verdict says what its probe found",
            )


def says_no_probe(patch: Patch) -> bool:
    """Whether a patch says itself that it has no probe, and why: ``Overlay-Probe: none [reason]``."""
    return any(value.split(" ", 1)[0] == "none" and "[" in value for value in patch.values("Overlay-Probe"))


def _with_deadline(verdict: Verdict, patch: Patch, target: str) -> Verdict:
    """The verdict, with what ``Overlay-Drop-After`` expected where it is another."""
    late = [
        release
        for release in patch.values("Overlay-Drop-After")
        if release_order(release) < release_order(target)
    ]
    if verdict.retirable or not late:
        return verdict
    said = f"it was expected to go after {late[0]} (Overlay-Drop-After), and the target needs it"
    return replace(verdict, contradictions=(*verdict.contradictions, said))


def _with_releases(
    evaluations: Sequence[Evaluation], subject: Subject, known: Sequence[str]
) -> tuple[Evaluation, ...]:
    """The evaluations with the first release that needs the patch no more, where no commit was found."""
    asked: dict[str, list[tuple[str, bool]]] = {}
    for evaluation in evaluations:
        if evaluation.target in known:
            asked.setdefault(evaluation.patch, []).append((evaluation.target, evaluation.verdict.retirable))
    found = []
    for evaluation in evaluations:
        evidence = evaluation.evidence
        if evaluation.verdict.retirable and evidence.history is None and evaluation.target in known:
            rows = asked[evaluation.patch]
            behaviour = evidence.behaviour
            if behaviour is not None and subject.release not in dict(rows):
                rows = [(subject.release, behaviour.pin.state in ("fixed", "absent")), *rows]
            history = by_releases(rows, subject.release, known)
            evaluation = replace(evaluation, evidence=replace(evidence, history=history))
        found.append(evaluation)
    return tuple(found)
