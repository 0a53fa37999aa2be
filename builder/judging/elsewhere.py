"""Where code went: lines that a patch removes, found at one other place of the target."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
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


def find_elsewhere(
    wanted: Mapping[str, Collection[bytes]], pin: Upstream, target: Upstream
) -> dict[tuple[str, bytes], Place]:
    """The one other place of each line in the target's sources, where there is exactly one.

    A line counts that stands once in the pin; it is looked for in the files that changed since. Files that a
    partial clone would have to fetch are not searched.

    Args:
        wanted: lines without their indentation, by the file that they are removed from.
        pin, target: the trees; both from stores that have all of their files.

    Returns:
        Places by file and line.
    """
    lines = sorted({line for some in wanted.values() for line in some if len(line) >= SHORTEST})[:MOST_LINES]
    if not lines or pin.main.partial or target.main.partial:
        return {}
    once = _only_once(pin.main.store.path, pin.main.commit, tuple(lines))
    lines = [line for line in lines if line in once]
    if not lines:
        return {}
    found: dict[bytes, list[Place]] = {}
    for path, data in _changed(pin, target):
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


@lru_cache(maxsize=16)
def _only_once(store: Path, commit: str, lines: tuple[bytes, ...]) -> frozenset[bytes]:
    """The lines that stand once in a tree, leading and trailing blanks apart."""
    counted = dict.fromkeys(lines, 0)
    for _, text in grep(GitStore(store), commit, lines):
        if text.strip() in counted:
            counted[text.strip()] += 1
    return frozenset(line for line, count in counted.items() if count == 1)


def grep(store: GitStore, commit: str, wanted: Sequence[bytes], *options: str) -> Iterator[tuple[str, bytes]]:
    """The lines of a tree's files that hold one of some texts: path and line, by ``git grep``.

    Args:
        store: has all files of the tree.
        commit: its object id.
        wanted: texts without a newline.
        options: such as ``--word-regexp``.
    """
    arguments = [word for text in wanted for word in ("-e", os.fsdecode(text))]
    try:
        out = store.git("grep", "-I", "-F", "-z", "--no-color", *options, *arguments, commit, "--")
    except GitError as error:
        if error.code == 1:
            return  # nothing found
        raise
    for row in out.split(b"\n"):
        name, mark, text = row.partition(b"\0")
        if mark:
            yield os.fsdecode(name).partition(":")[2], text


def _changed(pin: Upstream, target: Upstream) -> Iterator[tuple[str, bytes]]:
    """The target's sources that the pin does not have under this name with this content."""
    was = pin.main.store.entries(pin.main.commit)
    now = target.main.store.entries(target.main.commit)
    changed = {
        path: entry.blob for path, entry in now.items() if was.get(path) != entry and path.endswith(_SOURCES)
    }
    blobs = target.main.store.blobs(changed.values())
    size = 0
    for path, blob in changed.items():
        size += len(blobs[blob])
        if size > MOST_BYTES:
            return
        yield path, blobs[blob]


def telling(lines: Sequence[bytes]) -> list[bytes]:
    """The lines that are long enough to be looked for, without their indentation."""
    return [bare for line in lines if SHORTEST <= len(bare := line.strip()) <= LONGEST and is_telling(bare)]
