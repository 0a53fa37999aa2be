"""Does a target have a hunk already, where a merge does not say so? By its lines, or by the syntax.

Merging compares neighbourhoods: where upstream took a patch and a neighbour line changed since, it conflicts,
or puts the lines in a second time. Here each hunk is looked for in the definitions that it changes, in the
target as it is released, and a proof is taken only where the pin does not have the same already.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from builder.patch.apply import FileChange
from builder.patch.definitions import MODULE, Definition, Outline, outline_of
from builder.patch.diff import Hunk
from builder.patch.hunks import PlacedHunk, find_lines, numbered_lines
from builder.retire.evidence import Proof, Standing
from builder.retire.normal_form import normal_form, steps_between
from builder.source.files import SourceFile

REACH = 6
"""How many lines, blank ones not counted, a change may lie from the neighbour that vouches for its place."""

_SLACK = 8
_SHORTEST = 4  # bytes of a line that says enough
_WORD = re.compile(rb"\w")
_COMMON = re.compile(
    rb"(pass|else:|try:|finally:|return|return None|return True|return False|continue|break|raise|None,?"
    rb"|True,?|False,?|self,|import|\"\"\"|''')\Z"
)


@dataclass(frozen=True)
class FileSides:
    """One file in the three trees: the pin without and with the patch, and the target.

    Args:
        path: in the target.
        base, theirs, target: their outlines.
    """

    path: str
    base: Outline
    theirs: Outline
    target: Outline


def standing_of(
    change: FileChange, hunks: Sequence[Hunk], target: SourceFile | None, path: str
) -> dict[int, Standing]:
    """What a target has of each hunk of a file, by the hunk's number; those it has nothing of are left out.

    Args:
        change: the file before and after the patch, and where its hunks landed.
        hunks: of the same file.
        target: the file as it is in the target, with nothing carried into it; None where there is none.
        path: its path there.
    """
    if change.pre is None or change.post is None or target is None or b"\0" in target.data:
        return {}
    sides = _sides(change, target, path)
    found: dict[int, Standing] = {}
    shift = 0
    for number, (hunk, place) in enumerate(zip(hunks, change.hunks, strict=True), 1):
        standing = _hunk(sides, list(_parts(sides, hunk, place, shift)))
        if standing is not None:
            found[number] = standing
        shift += hunk.new_count - hunk.old_count
    return found


def doubts_of(
    change: FileChange, hunks: Sequence[Hunk], target: SourceFile | None, path: str
) -> dict[int, Standing]:
    """Why hunks whose lines a target has may not be there all the same, by the hunk's number.

    A definition that the target has more often than the patched pin may be another one, and one that is equal
    to the pin's but for the names of its locals does what the pin does.

    Args:
        change, hunks, target, path: as for :func:`standing_of`.
    """
    if change.pre is None or change.post is None or target is None or change.post.data == target.data:
        return {}
    sides = _sides(change, target, path)
    found: dict[int, Standing] = {}
    shift = 0
    for number, (hunk, place) in enumerate(zip(hunks, change.hunks, strict=True), 1):
        for part in _parts(sides, hunk, place, shift):
            if not part.imports and (doubt := _doubt(sides, part)) is not None:
                found.setdefault(number, doubt)
        shift += hunk.new_count - hunk.old_count
    return found


def _sides(change: FileChange, target: SourceFile, path: str) -> FileSides:
    before, after = change.pre, change.post
    return FileSides(
        path,
        outline_of(change.old_path, before.data if before else b""),
        outline_of(change.path, after.data if after else b""),
        outline_of(path, target.data),
    )


def _doubt(sides: FileSides, part: _Part) -> Standing | None:
    definition = part.theirs or part.base
    if definition is None or definition.name == MODULE:
        return None
    name = definition.name
    there = sides.target.named(name)
    if there is None:
        return None
    spans = ((there.start, there.end),)
    times = sides.target.times(name)
    if times > max(sides.theirs.times(name), sides.base.times(name), 1):
        return Standing("doubt", name, sides.path, spans, f"it is defined {times} times there")
    if part.base is None or part.theirs is None or there.kind != "function":
        return None
    before, after = sides.base.text(part.base), sides.theirs.text(part.theirs)
    steps = steps_between(before, after)
    was, wanted, found = (normal_form(text, steps) for text in (before, after, sides.target.text(there)))
    if found is None or found != was or found == wanted:
        return None
    return Standing("doubt", name, sides.path, spans, f"it does what the pin's does, {steps}")


# --- a hunk and the definitions that it changes -------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """What a hunk changes in one definition.

    Args:
        base, theirs: the definition without and with the patch; None where there is none.
        removed, added: numbers of the lines, in the pin without and with the patch.
        imports: they are imports at the margin.
    """

    base: Definition | None
    theirs: Definition | None
    removed: tuple[int, ...]
    added: tuple[int, ...]
    imports: bool = False


def _parts(sides: FileSides, hunk: Hunk, place: PlacedHunk, shift: int) -> Iterator[_Part]:
    """A hunk's changed lines by the innermost definition, imports apart and blank ones left out."""
    removed: dict[tuple[str, int, bool], list[int]] = {}
    added: dict[tuple[str, int, bool], list[int]] = {}
    for line, old, new in numbered_lines(hunk, place, shift):
        sign, blank = line[:1], not line[1:].strip()
        if sign == b"-" and not blank:
            removed.setdefault(_key(sides.base, old), []).append(old)
        elif sign == b"+" and not blank:
            added.setdefault(_key(sides.theirs, new), []).append(new)
    for key in dict.fromkeys([*added, *removed]):
        name, index, imports = key
        base, theirs = sides.base.named(name, index), sides.theirs.named(name, index)
        yield _Part(base, theirs, tuple(removed.get(key, ())), tuple(added.get(key, ())), imports)


def _key(outline: Outline, line: int) -> tuple[str, int, bool]:
    definition = outline.enclosing(line)
    return definition.name, definition.index, line in outline.imports


def _hunk(sides: FileSides, parts: Sequence[_Part]) -> Standing | None:
    """The hunk's standing: as weak as its weakest part, and None where a part is not there at all."""
    found = [(part, _part(sides, part)) for part in parts]
    known = [(part, standing) for part, standing in found if standing is not None]
    if not known:
        return None
    proved = [standing for _, standing in known if standing.proof in ("lines", "syntax")]
    if len(known) < len(found):
        hints = [standing for standing in proved or [s for _, s in known] if standing.proof != "no code"]
        return _weakened(hints[0], "only a part of the hunk") if hints else None
    hint = next((standing for _, standing in known if standing.proof == "hint"), None)
    if hint is not None:
        return hint
    if not proved:
        return known[0][1]
    proof: Proof = "lines" if any(standing.proof == "lines" for standing in proved) else "syntax"
    names = ", ".join(dict.fromkeys(standing.definition for standing in proved))
    said = "; ".join(dict.fromkeys(standing.said for standing in proved))
    lines = sorted({span for standing in proved for span in standing.lines})
    return Standing(proof, names, sides.path, tuple(lines), said)


def _weakened(standing: Standing, why: str) -> Standing:
    return Standing("hint", standing.definition, standing.path, standing.lines, f"{why}: {standing.said}")


def _part(sides: FileSides, part: _Part) -> Standing | None:
    """What the target has of a part; None where it has nothing, or nothing can be said."""
    definition = part.theirs or part.base
    if definition is None:
        return None
    target = sides.target.named(*definition.key)
    if part.theirs is None:
        # a whole definition is removed: that it is not there proves nothing, but says nothing against it
        return (
            None if target is not None else Standing("no code", definition.name, sides.path, (), "it is gone")
        )
    if target is None:
        return None
    if part.imports:
        return _imports(sides, part)
    return _by_syntax(sides, part, target) or _by_lines(sides, part, target)


# --- by the syntax ------------------------------------------------------------------------------------------


def _by_syntax(sides: FileSides, part: _Part, target: Definition) -> Standing | None:
    theirs = part.theirs
    if theirs is None or theirs.name == MODULE or not sides.path.endswith((".py", ".pyi")):
        return None
    alone = theirs.kind == "class" and part.base is not None
    before = sides.base.text(part.base) if part.base is not None else None
    after, there = sides.theirs.text(theirs), sides.target.text(target)
    steps = steps_between(before, after)
    wanted = normal_form(after, steps, alone=alone)
    if wanted is None:
        return None
    name, span = str(theirs), ((target.start, target.end),)
    if before is not None and normal_form(before, steps, alone=alone) == wanted:
        return Standing("no code", name, sides.path, span, "the hunk changes no code there")
    if normal_form(there, steps, alone=alone) != wanted:
        return None
    whose = "right in the class" if alone else "it"
    return Standing("syntax", name, sides.path, span, f"{whose} is equal to the patched one, {steps}")


# --- imports ------------------------------------------------------------------------------------------------


def _imports(sides: FileSides, part: _Part) -> Standing | None:
    """An import is there where the target binds its name; which only counts beside code that is there."""
    before = {name for names in sides.base.imports.values() for name in names}
    wanted = {name for line in part.added for name in sides.theirs.imports[line]} - before
    there: dict[str, int] = {}
    for line, names in sides.target.imports.items():
        for name in names:
            there.setdefault(name, line)
    if not wanted <= set(there):
        return None
    spans = tuple(sorted({(there[name], there[name]) for name in wanted}))
    return Standing("no code", "the imports", sides.path, spans, "what it imports is imported, imports apart")


# --- by the lines -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """A definition's lines that have something on them, with their numbers in the file."""

    numbers: tuple[int, ...]
    texts: tuple[bytes, ...]

    @classmethod
    def of(cls, outline: Outline, definition: Definition | None) -> _Rows:
        numbers = tuple(outline.rows(definition)) if definition is not None else ()
        return cls(numbers, tuple(outline.lines[n - 1].rstrip() for n in numbers))


def _by_lines(sides: FileSides, part: _Part, target: Definition) -> Standing | None:
    theirs = _Rows.of(sides.theirs, part.theirs)
    base, there = _Rows.of(sides.base, part.base), _Rows.of(sides.target, target)
    counts = Counter(base.texts), Counter(theirs.texts), Counter(there.texts)
    added = [sides.theirs.lines[n - 1].rstrip() for n in part.added]
    telling = [text for text in added if is_telling(text)]
    if not telling or any(counts[2][text] < counts[1][text] for text in telling):
        return None
    if not any(counts[1][text] > counts[0][text] for text in telling):
        return None  # the lines only moved within it, or the pin has them as often
    places = _Search(base, theirs, there, part.added, has_ends=target.name != MODULE).places()
    removed = [sides.base.lines[n - 1].rstrip() for n in part.removed]
    left = [text for text in removed if is_telling(text) and counts[2][text] > counts[1][text]]
    name = str(part.theirs)
    if places is None or left:
        at = [n for n, text in zip(there.numbers, there.texts, strict=True) if text in telling]
        why = "but a line that the patch removes is left" if left else "but not between the same neighbours"
        return Standing("hint", name, sides.path, _spans(at), f"the added lines stand there, {why}")
    lines = [there.numbers[n] for n in places]
    said = "the added lines stand there between the same neighbours, and no removed one is left"
    return Standing("lines", name, sides.path, _spans(lines), said)


def is_telling(text: bytes) -> bool:
    """Whether a line says enough for one that is equal to be taken for it."""
    bare = text.strip()
    return len(bare) >= _SHORTEST and _WORD.search(bare) is not None and not _COMMON.match(bare)


class _Search:
    """Looks for runs of added lines in the target's definition, between neighbours that all versions have."""

    def __init__(
        self, base: _Rows, theirs: _Rows, there: _Rows, added: Sequence[int], *, has_ends: bool
    ) -> None:
        self._has_ends = has_ends
        self._base, self._theirs, self._there = base, theirs, there
        wanted = set(added)
        self._added = [n for n, number in enumerate(theirs.numbers) if number in wanted]
        once = [
            {text for text, count in Counter(rows.texts).items() if count == 1}
            for rows in (base, theirs, there)
        ]
        self._neighbours = {text for text in set.intersection(*once) if is_telling(text)}

    def places(self) -> list[int] | None:
        """The rows of the target that the added lines are; None where one run is not surely there."""
        found: list[int] = []
        for first, last in _spans(self._added):
            place = self._place(first, last)
            if place is None or (found and place <= found[-1]):
                return None
            found += range(place, place + last - first + 1)
        return found

    def _place(self, first: int, last: int) -> int | None:
        run = self._theirs.texts[first : last + 1]
        above, below = self._neighbour(first, -1), self._neighbour(last, 1)
        if above is None or below is None:
            return None
        near, was = _within(self._there, above[0], below[0]), _within(self._base, above[0], below[0])
        length = last - first + 1
        if near is None or near[1] - near[0] - length > above[1] + below[1] + _SLACK:
            return None
        fits = _runs(self._there, run, near)
        if len(fits) != 1 or (was is not None and _runs(self._base, run, was)):
            return None  # it is not there, nobody can say where, or the pin has it there already
        return fits[0]

    def _neighbour(self, row: int, step: int) -> tuple[bytes | None, int] | None:
        """The nearest telling line beside a run, or the definition's end (None); and how far it is."""
        rows = self._theirs.texts
        for distance in range(1, REACH + 1):
            at = row + step * distance
            if not 0 <= at < len(rows):
                return (None, distance) if self._has_ends else None
            if at not in self._added and rows[at] in self._neighbours:
                return rows[at], distance
        return None


def _runs(rows: _Rows, run: Sequence[bytes], between: tuple[int, int]) -> list[int]:
    """Where a run of lines stands between two rows."""
    starts = range(between[0] + 1, between[1] - len(run) + 1)
    return [n for n in starts if rows.texts[n : n + len(run)] == run]


def _within(rows: _Rows, above: bytes | None, below: bytes | None) -> tuple[int, int] | None:
    """The rows of two neighbours, None for the definition's ends; None where they are not in this order."""
    if any(text is not None and text not in rows.texts for text in (above, below)):
        return None
    start = -1 if above is None else rows.texts.index(above)
    end = len(rows.texts) if below is None else rows.texts.index(below)
    return (start, end) if start < end else None


def _spans(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Numbers in order as first and last of each run."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return tuple(found)


def proved(standings: Mapping[int, Standing]) -> set[int]:
    """The hunks that are there for certain."""
    return {number for number, standing in standings.items() if standing.proof in ("lines", "syntax")}


# --- what has gone on since it was merged -------------------------------------------------------------------


def went_on(change: FileChange, hunks: Sequence[Hunk], target: SourceFile | None, path: str) -> bool:
    """Whether what a patch changes in a file is not as before it, also where it is not as after it.

    True says that nothing of the pre-image stands there: no hunk fits, no removed line is left in its
    definition, and none is equal to the pin's. Of lines that are only added, one must be left: where all are
    gone, that may be because they were taken back.

    Args:
        change, hunks, target, path: as for :func:`standing_of`.
    """
    if change.kind != "modify" or change.pre is None or change.post is None or target is None:
        return False
    sides = _sides(change, target, path)
    shift = 0
    for hunk, place in zip(hunks, change.hunks, strict=True):
        if find_lines(sides.target.lines, hunk.old):
            return False
        parts = list(_parts(sides, hunk, place, shift))
        if not all(_part_went_on(sides, part) for part in parts if not part.imports):
            return False
        shift += hunk.new_count - hunk.old_count
    return True


def _part_went_on(sides: FileSides, part: _Part) -> bool:
    key = (part.theirs or part.base or sides.target.module).key
    found = sides.target.named(*key)
    definition = found or sides.target.module
    if found is None:
        # where it went nobody knows: then none of its lines may be left anywhere in the file
        counted = Counter(line.strip() for line in sides.target.lines)
    else:
        counted = Counter(sides.target.lines[n - 1].strip() for n in sides.target.rows(found))
    theirs, base = _Rows.of(sides.theirs, part.theirs), _Rows.of(sides.base, part.base)
    after = Counter(text.strip() for text in theirs.texts)
    removed = [text for n in part.removed if is_telling(text := sides.base.lines[n - 1].strip())]
    if any(counted[text] > after[text] for text in removed) or (found is None and not removed):
        return False
    if not removed and not _one_is_left(sides, part, base, after, counted):
        return False
    if found is not None and part.base is not None and part.base.name != MODULE:
        steps = steps_between(sides.base.text(part.base), sides.target.text(definition))
        was = normal_form(sides.base.text(part.base), steps)
        return was is None or was != normal_form(sides.target.text(definition), steps)
    return True


def _one_is_left(
    sides: FileSides, part: _Part, base: _Rows, after: Counter[bytes], counted: Counter[bytes]
) -> bool:
    before = Counter(text.strip() for text in base.texts)
    added = {text for n in part.added if is_telling(text := sides.theirs.lines[n - 1].strip())}
    return any(after[text] > before[text] and counted[text] >= after[text] for text in added)
