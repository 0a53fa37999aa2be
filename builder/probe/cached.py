"""What probes said, kept in the user's cache: an answer follows from the probe and the tree alone.

More closely: from the probe and what the tree said to its questions. So an answer is kept twice. One entry is
named after everything it follows from (the probe's bytes, the machinery's, Python's version, the tree's
contents): it is true or never looked at. The other holds the questions and the hashes of what was said; on a
tree that says the same to all of them, the probe would do the same, and need not run. An edited patch thereby
has only those probes run that read the files it changes.

``unknown`` is not kept: a slow machine can be its reason.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast, get_args

from builder.probe.harness import Answer, State, Tree
from builder.project.program import source_digest
from builder.project.whole_file import write_cached

MOST_TRACES = 16
"""Of one probe: the last ones."""

Question = tuple[str, ...]
"""What a probe asks a tree: the method's name and its arguments."""

_STATES = frozenset(get_args(State)) - {"unknown"}


class Heard:
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
    """What a tree says to a question, as :class:`Heard` notes it."""
    heard = Heard(tree)
    match question:
        case ("read", path):
            try:
                heard.read(path)
            except KeyError:
                return _NOTHING
        case ("contains", path):
            return str(path in heard)
        case ("paths", prefix):
            heard.paths(prefix)
        case ("grep", text, prefix):
            heard.grep(text.encode("latin-1"), prefix)
        case _:
            raise ValueError(f"no question: {question}")
    return heard.trace[question]


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
        self._directory = directory
        self._traces_of = f"traces {about}" if about else "traces"
        self._most = 1 if about else MOST_TRACES

    def _path(self, probe: bytes, fingerprint: str) -> Path:
        # probes import some of these modules, the others run them
        parts = (source_digest("probe"), _hash(probe), fingerprint)
        return self._directory / _hash("\n".join(parts).encode())

    def get(self, probe: bytes, fingerprint: str) -> Answer | None:
        """The answer, if it is known for a tree of these contents.

        Args:
            probe: the probe's bytes.
            fingerprint: of the tree (see :mod:`builder.probe.trees`).
        """
        return _answer(_read(self._path(probe, fingerprint)))

    def recognize(self, probe: bytes, tree: Tree) -> Answer | None:
        """The answer, if the probe was given one by a tree that said the same to all of its questions.

        Args:
            probe: the probe's bytes.
            tree: asked the same questions.
        """
        for known in self._traces(probe):
            answer = _answer(known)
            if answer and all(_says(tree, question) == said for question, said in _trace(known)):
                return answer
        return None

    def put(self, probe: bytes, fingerprint: str, answer: Answer, trace: Mapping[Question, str] = {}) -> None:
        """Keep an answer, whole or not at all.

        Args:
            probe: the probe's bytes.
            fingerprint: of the tree.
            answer: what the probe said.
            trace: what it asked, and what it was told; nothing where that is known already.
        """
        if answer.state == "unknown":
            return
        facts = {"state": answer.state, "evidence": answer.evidence, "pins": list(answer.pins)}
        facts["site"] = answer.site
        write_cached(self._path(probe, fingerprint), json.dumps(facts).encode())
        if trace:
            newest = facts | {"trace": [[list(question), said] for question, said in trace.items()]}
            kept = [newest, *self._traces(probe)][: self._most]
            write_cached(self._path(probe, self._traces_of), json.dumps(kept).encode())

    def _traces(self, probe: bytes) -> list[object]:
        found = _read(self._path(probe, self._traces_of))
        return found if isinstance(found, list) else []


def _read(path: Path) -> object:
    """What an entry says; None where there is none, or what is there was not written by this tool."""
    try:
        value: object = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value


def _answer(facts: object) -> Answer | None:
    match facts:
        case {"state": str(state), "evidence": str(evidence), "pins": [*pins], "site": str(site)}:
            if state in _STATES:
                return Answer(cast("State", state), evidence, tuple(str(pin) for pin in pins), site)
    return None


def _trace(facts: object) -> Iterator[tuple[Question, str]]:
    """The questions of an entry and what was said; what is none of that cannot be said by any tree."""
    match facts:
        case {"trace": [_, *_] as pairs}:
            for pair in pairs:
                match pair:
                    case [["read" | "contains" | "paths" as what, str(name)], str(said)]:
                        yield (what, name), said
                    case [["grep", str(text), str(prefix)], str(said)]:
                        yield ("grep", text, prefix), said
                    case _:
                        yield ("contains", ""), "never"
        case _:
            yield ("contains", ""), "never"
