"""Ask several probes about several trees, and judge a series by what they say."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import InvalidInput, ProbeFailed
from builder.probe.cached import Memory, RecordedReads
from builder.probe.harness import Answer, Tree
from builder.probe.run import MEMORY, TIMEOUT, Prober, read_probe


@dataclass(frozen=True)
class Matrix:
    """What each probe says about each tree.

    Args:
        probes: names of the probes, in order.
        trees: names of the trees, in order.
        answers: by probe and tree.
    """

    probes: tuple[str, ...]
    trees: tuple[str, ...]
    answers: Mapping[tuple[str, str], Answer]

    def as_json(self) -> dict[str, Any]:
        """For ``--json``: every answer with its evidence."""
        return {
            "trees": list(self.trees),
            "probes": [
                {
                    "name": probe,
                    "answers": {tree: answer_json(self.answers[probe, tree]) for tree in self.trees},
                }
                for probe in self.probes
            ],
        }


def answer_json(answer: Answer) -> dict[str, Any]:
    """An answer's facts."""
    facts: dict[str, Any] = {"state": answer.state, "evidence": answer.evidence}
    facts |= {"pins": list(answer.pins)} if answer.pins else {}
    return facts | ({"site": answer.site} if answer.site else {})


def find_probes(directory: Path, only: Sequence[str] = ()) -> list[Path]:
    """The probes of ``patches/probes``, sorted by name.

    Args:
        directory: where they are.
        only: names to take; none means all.

    Raises:
        InvalidInput: there is no probe of such a name.
    """
    there = {path.stem: path for path in sorted(directory.glob("*.py")) if not path.name.startswith("_")}
    for name in only:
        if name not in there:
            from difflib import get_close_matches

            near = get_close_matches(name, there, n=1)
            raise InvalidInput(
                "there is no probe of this name",
                where=str(directory),
                found=name,
                hint=f"did you mean {near[0]}?" if near else f"there are: {', '.join(there) or 'none'}",
            )
    return [path for name, path in there.items() if not only or name in only]


@dataclass(frozen=True)
class Inquiry:
    """One probe to be asked about one tree.

    Args:
        probe: file ``NAME.py``.
        tree: the tree.
        about: what the tree is, where it is one of many that are alike: what was read of it is then kept
            for it alone, and does not push out what was read of others.
    """

    probe: Path
    tree: Tree
    about: str = ""


def ask_all(
    probes: Sequence[Path],
    trees: Mapping[str, Tree],
    *,
    timeout: float = TIMEOUT,
    memory: int = MEMORY,
    remembered: Path | None = None,
) -> Matrix:
    """Run every probe on every tree.

    Args:
        probes: files ``NAME.py``.
        trees: by the name they are shown under.
        timeout, memory, remembered: as :func:`ask_each` takes them.

    Raises:
        InvalidInput: a probe cannot be read.
    """
    pairs = [(probe, name) for name in trees for probe in probes]
    inquiries = [Inquiry(probe, trees[name]) for probe, name in pairs]
    answers = ask_each(inquiries, timeout=timeout, memory=memory, remembered=remembered)
    answered = {(probe.stem, name): answer for (probe, name), answer in zip(pairs, answers, strict=True)}
    return Matrix(tuple(probe.stem for probe in probes), tuple(trees), answered)


def ask_each(
    inquiries: Sequence[Inquiry],
    *,
    timeout: float = TIMEOUT,
    memory: int = MEMORY,
    remembered: Path | None = None,
) -> list[Answer]:
    """Ask all of these; as many at a time as there are processors.

    Args:
        inquiries: probes and trees.
        timeout: seconds for one probe on one tree.
        memory: bytes of address space for one probe.
        remembered: directory in which answers are kept; ``None`` to ask anew and keep nothing.

    Returns:
        The answers, in the same order.

    Raises:
        InvalidInput: a probe cannot be read.
    """
    waiting = iter(enumerate(inquiries))
    answers: dict[int, Answer] = {}

    def work(_: int) -> None:
        with Prober(timeout=timeout, memory=memory) as prober:
            for number, inquiry in waiting:  # of one iterator, each thread gets others
                known = None if remembered is None else Memory(remembered, inquiry.about)
                answers[number] = _ask(prober, inquiry, known)

    workers = max(1, min(len(inquiries), os.cpu_count() or 1))
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    return [answers[number] for number in range(len(inquiries))]


def _ask(prober: Prober, inquiry: Inquiry, known: Memory | None) -> Answer:
    """The remembered answer, else a fresh one."""
    probe, tree = inquiry.probe, inquiry.tree
    fingerprint = getattr(tree, "fingerprint", None)
    if known is None or fingerprint is None:
        return prober.ask(probe, tree)
    source = read_probe(probe)
    if answer := known.get(source, fingerprint):
        return answer
    if answer := known.recognize(source, tree):
        known.put(source, fingerprint, answer)
        return answer
    reads = RecordedReads(tree)
    answer = prober.ask(probe, reads)
    known.put(source, fingerprint, answer, reads.trace)
    return answer


def probe_series(
    names: Sequence[str],
    directory: Path,
    before: Tree,
    after: Tree,
    *,
    remembered: Path | None = None,
    see: str,
) -> dict[str, str]:
    """Judge the patches of a series: each finds its defect in ``before``, and it is gone in ``after``.

    Args:
        names: the patches.
        directory: ``patches/probes``.
        before: the pristine tree.
        after: the tree with the whole series in it.
        remembered: directory in which answers are kept; ``None`` to ask anew and keep nothing.
        see: the command that shows the answers of both trees.

    Returns:
        ``defect->fixed`` by patch; ``none`` for a patch without a probe.

    Raises:
        ProbeFailed: naming every patch whose probe says something else, with the evidence.
    """
    probes = [path for name in names if (path := directory / f"{name}.py").is_file()]
    matrix = ask_all(probes, {"pristine": before, "patched": after}, remembered=remembered)
    failed = []
    for name in matrix.probes:
        was, now = matrix.answers[name, "pristine"], matrix.answers[name, "patched"]
        if (was.state, now.state) != ("defect", "fixed"):
            failed.append((name, was, now))
    if failed:
        raise _failure(failed, see)
    return {name: "defect->fixed" if name in matrix.probes else "none" for name in names}


def _failure(failed: Sequence[tuple[str, Answer, Answer]], see: str) -> ProbeFailed:
    name, was, now = failed[0]
    lines = []
    for patch, *answers in failed:
        for tree, answer in zip(("pristine", "patched"), answers, strict=True):
            lines.append(f"{patch}: {tree} tree: {answer.state}: {answer.evidence}")
    if was.state in ("fixed", "absent"):
        hint = "this upstream does not need the patch: take it out of the overlay (patches.except)"
    else:
        hint = f"see both answers: {see} --only {name} (overlay help probes)"
    return ProbeFailed(
        f"{len(failed)} patches do not do what their probes ask for; nothing was written"
        if len(failed) > 1
        else "a patch does not do what its probe asks for; nothing was written",
        where=f"patches/probes/{name}.py",
        expected="defect in the pristine tree, fixed in the patched one",
        found=f"{was.state}, then {now.state}",
        hint=hint,
        details="\n".join(lines),
        facts={
            "probes": [
                {"patch": patch, "pristine": answer_json(before), "patched": answer_json(after)}
                for patch, before, after in failed
            ]
        },
    )
