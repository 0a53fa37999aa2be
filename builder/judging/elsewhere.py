"""Where code went: lines that a patch removes, found at one other place of the target."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from builder.gitstore import GitError, GitStore
from builder.judging.evidence import Place
from builder.judging.outline import outline_of
from builder.judging.standing import is_telling
from builder.upstream import Upstream

SHORTEST = 16
"""Bytes of a line that is looked for in a whole tree; shorter ones stand in many places by chance."""

LONGEST = 500
MOST_LINES = 200
MOST_BYTES = 96 << 20
_SOURCES = (".py", ".pyi", ".cu", ".cuh", ".h", ".hpp", ".hip", ".c", ".cc", ".cpp")


class ChangedSources:
    """The sources of a target that the pin does not have under the same name with the same content.

    Files that a partial clone would have to fetch are not looked at.

    Args:
        pin, target: the trees.
    """

    def __init__(self, pin: Upstream, target: Upstream) -> None:
        self.pin, self.target = pin, target

    @property
    def complete(self) -> bool:
        """Whether every file of both trees is at hand."""
        return not (self.pin.main.partial or self.target.main.partial)

    def files(self) -> list[tuple[str, bytes]]:
        """Path and content of each; at most :data:`MOST_BYTES`."""
        return self._files

    @cached_property
    def _files(self) -> list[tuple[str, bytes]]:
        if not self.complete:
            return []
        was = self.pin.main.store.entries(self.pin.main.commit)
        now = self.target.main.store.entries(self.target.main.commit)
        changed = {p: e.blob for p, e in now.items() if was.get(p) != e and p.endswith(_SOURCES)}
        blobs = self.target.main.store.blobs(changed.values())
        found, size = [], 0
        for path, blob in changed.items():
            size += len(blobs[blob])
            if size > MOST_BYTES:
                break
            found.append((path, blobs[blob]))
        return found


def find_elsewhere(
    wanted: Mapping[str, Collection[bytes]], changed: ChangedSources
) -> dict[tuple[str, bytes], Place]:
    """The one other place of each line in the target's sources, where there is exactly one.

    A line counts that stands once in the pin; it is looked for in the files that changed since.

    Args:
        wanted: lines without their indentation, by the file that they are removed from.
        changed: what the target has that the pin has not.

    Returns:
        Places by file and line.
    """
    lines = sorted({line for some in wanted.values() for line in some if len(line) >= SHORTEST})[:MOST_LINES]
    if not lines or not changed.complete:
        return {}
    pin = changed.pin.main
    once = _only_once(pin.store.path, pin.commit, tuple(lines))
    lines = [line for line in lines if line in once]
    if not lines:
        return {}
    found: dict[bytes, list[Place]] = {}
    for path, data in changed.files():
        for line in lines:
            if line in data:
                found.setdefault(line, []).extend(_places(path, data, line))
    return {
        (path, line): found[line][0]
        for path, some in wanted.items()
        for line in some
        if len(found.get(line, ())) == 1
    }


def _places(path: str, data: bytes, line: bytes) -> Iterator[Place]:
    outline = outline_of(path, data)
    for number, text in enumerate(outline.lines, 1):
        if text.strip() == line:
            yield Place(path, str(outline.enclosing(number)), ((number, number),))


def joined(places: Sequence[Place]) -> tuple[Place, ...]:
    """Places in one definition as one."""
    rows: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for place in places:
        rows.setdefault((place.path, place.definition), []).extend(place.lines)
    found = []
    for (path, definition), spans in rows.items():
        merged: list[tuple[int, int]] = []
        for start, end in sorted(set(spans)):
            if merged and start <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        found.append(Place(path, definition, tuple(merged)))
    return tuple(found)


def _only_once(store: Path, commit: str, lines: tuple[bytes, ...]) -> set[bytes]:
    """The lines that stand once in a tree, leading and trailing blanks apart."""
    counted = Counter(text.strip() for _, text in grep(store, commit, lines))
    return {line for line in lines if counted[line] == 1}


@lru_cache(maxsize=32)
def grep(
    store: Path, commit: str, wanted: tuple[bytes, ...], *, words: bool = False
) -> tuple[tuple[str, bytes], ...]:
    """The lines of a tree's files that hold one of some texts: path and line, by ``git grep``; remembered.

    Args:
        store: a repository that has all files of the tree.
        commit: the tree's object id.
        wanted: texts without a newline.
        words: they are whole words there.
    """
    arguments = [word for text in wanted for word in ("-e", os.fsdecode(text))]
    options = ["-I", "-F", "-z", "--no-color", *(["--word-regexp"] if words else [])]
    try:
        out = GitStore(store).git("grep", *options, *arguments, commit, "--")
    except GitError as error:
        if error.code == 1:
            return ()  # nothing found
        raise
    rows = (row.partition(b"\0") for row in out.split(b"\n"))
    return tuple((os.fsdecode(name).partition(":")[2], text) for name, mark, text in rows if mark)


def telling(lines: Sequence[bytes]) -> list[bytes]:
    """The lines that are long enough to be looked for, without their indentation."""
    return [bare for line in lines if SHORTEST <= len(bare := line.strip()) <= LONGEST and is_telling(bare)]
