"""The two lists beside a probe: edits of the fixed source that it must see, and edits that must not fool it.

``NAME.mutants.yaml`` and ``NAME.variants.yaml`` lie beside ``NAME.py``; ``docs/probes.md`` teaches both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from builder.errors import InvalidInput
from builder.probe.harness import Tree
from builder.probe.trees import MappingTree

MAX_LIST_BYTES = 256 << 10
MAX_EDITS = 200
"""Entries of one list."""

COSTS = {
    "advice": "a warning or a hint to the user is lost, nothing else",
    "speed": "the result is the same, later",
    "start": "the module does not import, which build and lint see without a probe",
}
"""Why a mutant may be called ``fixed``."""


@dataclass(frozen=True)
class Edit:
    """One place of one file.

    Args:
        file: path from the repository's root.
        old: what stands there once; empty to make the file.
        new: what stands there instead, or the new file.
    """

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Entry:
    """One mutant or variant.

    Args:
        name: in a few words, one of its kind.
        edits: what is changed in the fixed source.
        on: the series that it is for; empty for every series with the patch.
        breaks: a mutant's: the promise of the patch that does not hold any more.
        costs: a mutant's that may be called ``fixed``: one of :data:`COSTS`, else empty.
        why: the reason for that.
    """

    name: str
    edits: tuple[Edit, ...]
    on: tuple[str, ...] = ()
    breaks: str = ""
    costs: str = ""
    why: str = ""


@dataclass(frozen=True)
class Excuse:
    """A hunk of the patch that may be reverted unseen.

    Args:
        hunk: a text that stands in the changed lines of this hunk alone.
        costs, why: as in :class:`Entry`.
        on: as in :class:`Entry`.
    """

    hunk: str
    costs: str
    why: str
    on: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lists:
    """What lies beside one probe; empty where there is no such file."""

    mutants: tuple[Entry, ...] = ()
    hunks: tuple[Excuse, ...] = ()
    variants: tuple[Entry, ...] = ()


def lists_of(probe: Path) -> tuple[Path, Path]:
    """The two files beside ``NAME.py``, which need not be there: mutants, variants."""
    return probe.with_suffix(".mutants.yaml"), probe.with_suffix(".variants.yaml")


def read_lists(probe: Path) -> Lists:
    """Read what lies beside a probe.

    Args:
        probe: ``patches/probes/NAME.py``.

    Raises:
        InvalidInput: naming the file and the entry, what was expected, and the nearest known key.
    """
    mutants_file, variants_file = lists_of(probe)
    mutants = _read(mutants_file, ("mutants", "hunks"))
    variants = _read(variants_file, ("variants",))
    lists = Lists(
        _entries(mutants_file, "mutants", mutants),
        tuple(_excuse(mutants_file, facts) for facts in mutants.get("hunks", ())),
        _entries(variants_file, "variants", variants),
    )
    for file, entries in ((mutants_file, lists.mutants), (variants_file, lists.variants)):
        names = [entry.name for entry in entries]
        for name in sorted({name for name in names if names.count(name) > 1}):
            raise InvalidInput("two entries have one name", where=str(file), found=name)
    return lists


def edited(tree: Tree, edits: Iterable[Edit]) -> MappingTree:
    """The tree with these edits.

    Args:
        tree: the fixed source.
        edits: in their order; several may be of one file.

    Raises:
        InvalidInput: a text is not there, or more than once, or a file to be made is.
    """
    made: dict[str, bytes | None] = {}
    for edit in edits:
        there = made.get(edit.file) if edit.file in made else _text_of(tree, edit.file)
        if not edit.old:
            if there is not None:
                raise InvalidInput(
                    "a file to be made is already there", where=edit.file, expected="old: what to replace"
                )
            made[edit.file] = edit.new.encode()
            continue
        count = (there or b"").count(edit.old.encode())
        if there is None or count != 1:
            raise InvalidInput(
                "an edit does not fit",
                where=edit.file,
                expected="its text once in the patched source",
                found="no such file" if there is None else f"{count} times: {_brief(edit.old)}",
            )
        made[edit.file] = there.replace(edit.old.encode(), edit.new.encode())
    return MappingTree(made, under=tree)


def _brief(text: str) -> str:
    lines = text.strip().splitlines() or [""]
    return repr(lines[0][:80]) + (f" and {len(lines) - 1} more lines" if len(lines) > 1 else "")


def _text_of(tree: Tree, path: str) -> bytes | None:
    try:
        return tree.read(path)
    except KeyError:
        return None


# --- reading ----------------------------------------------------------------------------------------


_Kinds = tuple[type, ...]
_TEXT: _Kinds = (str,)
_LIST: _Kinds = (list,)
_NAMES: _Kinds = (str, list)
_IN_WORDS = {_TEXT: "a text", _LIST: "a list", _NAMES: "a text, or a list of texts"}


def _read(path: Path, kinds: Sequence[str]) -> dict[str, Any]:
    """What a file says, its lists by their names; nothing where there is no such file."""
    import yaml

    if not path.is_file():
        return {}
    with path.open("rb") as stream:
        data = stream.read(MAX_LIST_BYTES + 1)
    if len(data) > MAX_LIST_BYTES:
        raise InvalidInput("list is too large", where=str(path), expected=f"at most {MAX_LIST_BYTES} bytes")
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # all is text: the key ``on`` would be a truth
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(data, Loader=loader)):
            raise InvalidInput(
                "list refers to another part of itself",
                where=str(path),
                expected="values without anchors and aliases",
            )
        value = yaml.load(data, Loader=loader)  # noqa: S506 - it makes texts, lists and mappings
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        found = str(getattr(error, "problem", None) or error)
        raise InvalidInput("list is not YAML", where=f"{path}{line}", found=found) from error
    where = str(path)
    _check_keys(value, {"file": _TEXT} | dict.fromkeys(kinds, _LIST), (), where)
    for kind in kinds:
        entries = value.get(kind, [])
        if len(entries) > MAX_EDITS or not all(isinstance(entry, dict) for entry in entries):
            raise InvalidInput(
                "list is not valid",
                where=f"{path}: {kind}",
                expected=f"at most {MAX_EDITS} entries of keys with values",
            )
    return dict(value)


_ENTRY_KEYS = {
    "mutants": {"name": _TEXT, "breaks": _TEXT, "on": _NAMES, "edits": _LIST, "costs": _TEXT, "why": _TEXT},
    "variants": {"name": _TEXT, "on": _NAMES, "edits": _LIST},
}


def _entries(path: Path, kind: str, whole: Mapping[str, Any]) -> tuple[Entry, ...]:
    return tuple(_entry(path, kind, facts, whole.get("file")) for facts in whole.get(kind, ()))


def _entry(path: Path, kind: str, facts: Mapping[str, Any], file: str | None) -> Entry:
    where = f"{path}: {kind}: {facts.get('name', '(without a name)')}"
    required = ("name", "edits", *(["breaks"] if kind == "mutants" else []))
    _check_keys(facts, _ENTRY_KEYS[kind], required, where)
    costs, why = _costs(facts, where) if "costs" in facts or "why" in facts else ("", "")
    edits = tuple(_edit(edit, where, file) for edit in facts["edits"])
    if not 1 <= len(edits) <= MAX_EDITS:
        raise InvalidInput("entry has no edits", where=where, expected=f"1 to {MAX_EDITS}")
    return Entry(facts["name"], edits, _on(facts, where), facts.get("breaks", ""), costs, why)


def _edit(facts: Any, where: str, usual: str | None) -> Edit:
    known = {"file": _TEXT, "old": _TEXT, "new": _TEXT}
    _check_keys(facts, known, ("new",) if usual else ("file", "new"), f"{where}: edits")
    file, old, new = facts.get("file", usual), facts.get("old", ""), facts["new"]
    if any(part in ("", ".", "..") for part in file.split("/")) or "\0" in file or "\\" in file:
        raise InvalidInput(
            "not a file of the tree",
            where=f"{where}: file",
            expected="a path from the repository's root, such as python/sglang/srt/x.py",
            found=repr(file),
        )
    if old == new:
        raise InvalidInput("edit changes nothing", where=f"{where}: {file}", found=_brief(old))
    return Edit(file, old, new)


def _excuse(path: Path, facts: Mapping[str, Any]) -> Excuse:
    where = f"{path}: hunks: {_brief(str(facts.get('hunk', '')))}"
    known = {"hunk": _TEXT, "costs": _TEXT, "why": _TEXT, "on": _NAMES}
    _check_keys(facts, known, ("hunk", "costs", "why"), where)
    return Excuse(facts["hunk"], *_costs(facts, where), _on(facts, where))


def _costs(facts: Mapping[str, Any], where: str) -> tuple[str, str]:
    costs, why = facts.get("costs", ""), facts.get("why", "")
    if costs not in COSTS or not why.strip():
        raise InvalidInput(
            "a mutant that may be called fixed needs costs and why",
            where=where,
            expected=f"costs: {' | '.join(COSTS)}, and a reason",
            found=f"costs: {costs or '(nothing)'}, why: {why or '(nothing)'}",
        )
    return costs, why


def _on(facts: Mapping[str, Any], where: str) -> tuple[str, ...]:
    value = facts.get("on", [])
    names = [value] if isinstance(value, str) else value
    if not all(isinstance(name, str) for name in names):
        raise InvalidInput("value is not valid", where=f"{where}: on", expected="names of series")
    return tuple(names)


def _check_keys(facts: Any, known: Mapping[str, _Kinds], required: Sequence[str], where: str) -> None:
    """Refuse what is not a mapping, an unknown key (with the nearest), a missing one, and a wrong kind."""
    if not isinstance(facts, dict):
        raise InvalidInput("list is not valid", where=where, expected=f"keys: {', '.join(known)}")
    for key in facts:
        if key not in known:
            near = get_close_matches(str(key), known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
            raise InvalidInput("unknown key in list", where=where, found=str(key), hint=hint)
    for key in required:
        if key not in facts:
            raise InvalidInput("key is missing in list", where=where, expected=key)
    for key, value in facts.items():
        if not isinstance(value, known[key]):
            raise InvalidInput(
                "value is not valid",
                where=f"{where}: {key}",
                expected=_IN_WORDS[known[key]],
                found=str(value),
            )
