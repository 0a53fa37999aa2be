"""What probes said, kept in the user's cache: an answer follows from the probe and the tree alone.

More closely: from the probe and what the tree said to its questions. So an answer is kept twice. One entry is
named after everything it follows from (the probe's bytes, the machinery's, Python's version, the tree's
contents): it is true or never looked at. The other holds the questions and the hashes of what was said; on a
tree that says the same to all of them, the probe would do the same, and need not run. An edited patch thereby
has only those probes run that read the files it changes.

An entry holds a checksum over its name and content: what is damaged, altered or another's is asked anew. An
answer is not kept where a limit of time or memory ended the probe: a slow machine can be its reason.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from builder.locking import exclusive
from builder.probe.harness import Answer, Tree
from builder.project.cache import Store
from builder.project.program import source_digest

MOST_TRACES = 16
"""Of one probe: the last ones."""

Question = tuple[str, ...]
"""What a probe asks a tree: the method's name and its arguments."""


class RecordedReads:
    """A tree that notes what it was asked, and the hash of what it said.

    Args:
        tree: the tree that answers.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.trace: dict[Question, str] = {}

    def read(self, path: str) -> bytes:
        try:
            data = self._tree.read(path)
        except KeyError:
            self.trace["read", path] = _NOTHING
            raise
        self.trace["read", path] = _hash(data)
        return data

    def __contains__(self, path: str) -> bool:
        found = path in self._tree
        self.trace["contains", path] = str(found)
        return found

    def paths(self, prefix: str = "") -> list[str]:
        found = list(self._tree.paths(prefix))
        self.trace["paths", prefix] = _hash_of(found)
        return found

    def grep(self, text: bytes, prefix: str = "") -> list[str]:
        found = self._tree.grep(text, prefix)
        self.trace["grep", text.decode("latin-1"), prefix] = _hash_of(found)
        return found


def _says(tree: Tree, question: Question) -> str:
    """What a tree says to a question, as :class:`RecordedReads` notes it."""
    reads = RecordedReads(tree)
    match question:
        case ("read", path):
            try:
                reads.read(path)
            except KeyError:
                return _NOTHING
        case ("contains", path):
            return str(path in reads)
        case ("paths", prefix):
            reads.paths(prefix)
        case ("grep", text, prefix):
            reads.grep(text.encode("latin-1"), prefix)
        case _:
            raise ValueError(f"no question: {question}")
    return reads.trace[question]


_NOTHING = "no such file"


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _hash_of(paths: Iterable[str]) -> str:
    return _hash("\0".join(paths).encode("utf-8", "surrogateescape"))


class Memory:
    """Answers by probe and tree.

    Args:
        directory: where they are kept; made when the first is written.
        about: names trees whose traces are kept apart from those of all others (one of each probe's mutants).
    """

    def __init__(self, directory: Path, about: str = "") -> None:
        self._kept = Store(directory)
        self._traces_of = f"traces {about}" if about else "traces"
        self._most = 1 if about else MOST_TRACES

    def _key(self, probe: bytes, fingerprint: str) -> str:
        # probes import some of these modules, the others run them
        parts = (source_digest("probe"), _hash(probe), fingerprint)
        return _hash("\n".join(parts).encode())

    def get(self, probe: bytes, fingerprint: str) -> Answer | None:
        """The answer, if it is known for a tree of these contents.

        Args:
            probe: the probe's bytes.
            fingerprint: of the tree (see :mod:`builder.probe.trees`).
        """
        kept = self._read(probe, fingerprint)
        return _answer(kept[0]) if kept else None

    def recognize(self, probe: bytes, tree: Tree) -> Answer | None:
        """The answer, if the probe was given one by a tree that said the same to all of its questions.

        Args:
            probe: the probe's bytes.
            tree: asked the same questions.
        """
        for known, *trace in self._read(probe, self._traces_of):
            if all(_says(tree, tuple(question)) == said for question, said in trace):
                return _answer(known)
        return None

    def put(self, probe: bytes, fingerprint: str, answer: Answer, trace: Mapping[Question, str] = {}) -> None:
        """Keep an answer, whole or not at all.

        Args:
            probe: the probe's bytes.
            fingerprint: of the tree.
            answer: what the probe said.
            trace: what it asked, and what it was told; nothing where that is known already.
        """
        if answer.was_ended:
            return
        known = [answer.state, answer.evidence, list(answer.pins), answer.site]
        self._put(probe, fingerprint, [known])
        if trace:
            newest = [known, *([list(question), said] for question, said in trace.items())]
            with exclusive(self._kept.directory):  # probes are asked at the same time
                kept = [newest, *self._read(probe, self._traces_of)][: self._most]
                self._put(probe, self._traces_of, kept)

    def _read(self, probe: bytes, fingerprint: str) -> list[Any]:
        """What an entry says; nothing where there is none."""
        data = self._kept.get(self._key(probe, fingerprint))
        found: list[Any] = [] if data is None else json.loads(data)
        return found

    def _put(self, probe: bytes, fingerprint: str, value: list[Any]) -> None:
        self._kept.put(self._key(probe, fingerprint), json.dumps(value).encode())


def _answer(known: list[Any]) -> Answer:
    state, evidence, pins, site = known
    return Answer(state, evidence, tuple(pins), site)
