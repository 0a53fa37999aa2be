"""Where code went: lines that a patch removes, found at one other place of the target."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from builder.patch.definitions import outline_of
from builder.retire.already_there import is_telling
from builder.retire.evidence import Place
from builder.source.git import GitError, GitStore
from builder.source.upstream import Mount, Upstream

SHORTEST = 16
"""Bytes of a line that is looked for in a whole tree; shorter ones stand in many places by chance."""

LONGEST = 500
_NO_CODE = (b"import ", b"from ", b"#", b"//")
MOST_LINES = 2000
SOURCES = (".py", ".pyi", ".cu", ".cuh", ".h", ".hpp", ".hip", ".c", ".cc", ".cpp")


def is_complete(*trees: Upstream) -> bool:
    """Whether every file of the trees is at hand: a partial clone would fetch them one by one."""
    return not any(mount.partial for tree in trees for mount in tree.mounts)


def find_elsewhere(
    wanted: Mapping[str, Collection[bytes]],
    pin: Upstream,
    target: Upstream,
    *,
    series: Collection[bytes],
) -> dict[tuple[str, bytes], Place]:
    """The one other place of each line in the target's sources, where there is exactly one.

    A line counts that stands once in the pin. It is looked for in the package of its file, such as
    ``python/sglang/srt``. Trees of which files are not at hand are not searched.

    Args:
        wanted: lines without their indentation, by the file that they are removed from.
        pin, target: the trees.
        series: all lines that may be wanted on any target: files are then read once for all.

    Returns:
        Places by file and line.
    """
    if not any(wanted.values()) or not is_complete(pin, target):
        return {}
    search = _search_for(frozenset(sorted(series)[:MOST_LINES]))
    places = {}
    for package in {package_of(path) for path, lines in wanted.items() if lines}:
        was, now = (_standing(tree.main, search, package) for tree in (pin, target))
        for path, lines in wanted.items():
            for line in lines if package_of(path) == package else ():
                if len(was.get(line, ())) == 1 and len(at := now.get(line, [])) == 1:
                    places[path, line] = at[0]
    data = target.files(sorted({where for where, _ in places.values()}))
    return {
        key: Place(where, str(outline_of(where, data[where].data).enclosing(number)), ((number, number),))
        for key, (where, number) in places.items()
    }


def package_of(path: str) -> str:
    """The directory in which code of a file is looked for."""
    return "/".join(path.split("/")[:-1][:3]) + "/"


def _standing(mount: Mount, search: _Search, below: str) -> dict[bytes, list[tuple[str, int]]]:
    """Where the lines that are searched for stand in a tree: path and number."""
    entries = mount.store.entries(mount.commit)
    blobs = {p: e.blob for p, e in entries.items() if p.startswith(below) and p.endswith(SOURCES)}
    hits = search.hits(mount.store, blobs.values())
    found: dict[bytes, list[tuple[str, int]]] = {}
    for path, blob in blobs.items():
        for line, number in hits[blob]:
            found.setdefault(line, []).append((path, number))
    return found


class _Search:
    """Where lines stand in files, remembered by the file's content: releases have most files in common."""

    def __init__(self, lines: frozenset[bytes]) -> None:
        self._lines = lines
        self._known: dict[str, tuple[tuple[bytes, int], ...]] = {}

    def hits(self, store: GitStore, blobs: Collection[str]) -> dict[str, tuple[tuple[bytes, int], ...]]:
        """Line and number of each hit, by blob; leading and trailing blanks do not count."""
        for oid, data in store.blobs(set(blobs) - self._known.keys()).items():
            texts = list(map(bytes.strip, data.split(b"\n")))
            here = self._lines.intersection(texts)
            self._known[oid] = tuple((t, n) for n, t in enumerate(texts, 1) if t in here) if here else ()
        return {oid: self._known[oid] for oid in blobs}


@lru_cache(maxsize=4)
def _search_for(lines: frozenset[bytes]) -> _Search:
    return _Search(lines)


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


@lru_cache(maxsize=32)
def grep(
    store: Path, commit: str, wanted: tuple[bytes, ...], *, words: bool = False
) -> tuple[tuple[str, int, bytes], ...]:
    """The lines of a tree's files that hold one of some texts: path, number and line, by ``git grep``.

    Args:
        store: a repository that has all files of the tree.
        commit: the tree's object id.
        wanted: texts without a newline.
        words: they are whole words there.
    """
    arguments = [word for text in wanted for word in ("-e", os.fsdecode(text))]
    options = ["-n", "-I", "-F", "-z", "--no-color", *(["--word-regexp"] if words else [])]
    try:
        out = GitStore(store).git("grep", *options, *arguments, commit, "--")
    except GitError as error:
        if error.code == 1:
            return ()  # nothing found
        raise
    rows = (row.split(b"\0", 2) for row in out.split(b"\n"))
    return tuple((os.fsdecode(r[0]).partition(":")[2], int(r[1]), r[2]) for r in rows if len(r) == 3)


def telling(lines: Sequence[bytes]) -> list[bytes]:
    """The lines that are long enough to be looked for, without indentation; imports and comments are not code
    that goes elsewhere."""
    bares = (line.strip() for line in lines)
    return [
        bare
        for bare in bares
        if SHORTEST <= len(bare) <= LONGEST and is_telling(bare) and not bare.startswith(_NO_CODE)
    ]
