"""Where a function went that a target no longer has under its name: the one with the same body, or the same
signature and most of the body, elsewhere in its package."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache

from builder.patch.definitions import Definition, Outline, outline_of, parse_source
from builder.retire.evidence import Place
from builder.retire.moved_code import grep, is_complete, package_of
from builder.retire.normal_form import Steps, normal_form
from builder.source.upstream import Upstream

MOST_FUNCTIONS = 30
"""Of a series on one target that are looked for."""

MOST_FILES = 12
"""Those that hold most of a function's words are read."""

MOST_OF_THE_BODY = 0.6
"""Share of the statements' lines that must be the same where only the signature is equal."""

_WORDS = 8
_SHORTEST = 3  # lines; shorter functions are alike by chance
_SHORTEST_WORD = 6
_WORD = re.compile(rb"[A-Za-z_]\w+")
_LARGEST = 2 << 20


@dataclass(frozen=True)
class Sought:
    """A function that is not there under its name.

    Args:
        path: the file that had it.
        name: qualified, such as ``MessageQueue.wait``.
        texts: its source without and with the patch.
    """

    path: str
    name: str
    texts: tuple[bytes, ...]


def find_functions(wanted: Collection[Sought], target: Upstream) -> dict[Sought, tuple[Place, ...]]:
    """Where functions of a target are that do what the sought ones did, or the greater part of it.

    Args:
        wanted: the functions; the first :data:`MOST_FUNCTIONS` are looked for.
        target: the tree; one of which files are not at hand is not searched.

    Returns:
        At most two places each: those with the same body, else one with the same parameters and most of it.
    """
    if not is_complete(target):
        return {}
    found = {one: tuple(_places(one, target)) for one in list(wanted)[:MOST_FUNCTIONS]}
    return {one: places for one, places in found.items() if places}


def _places(sought: Sought, target: Upstream) -> Iterator[Place]:
    files = target.files(_candidates(sought, target))
    forms = {normal_form(text, Steps(), named=False) for text in sought.texts} - {None}
    alike: list[tuple[float, Place]] = []
    equal: list[Place] = []
    for path, source in files.items():
        if len(source.data) > _LARGEST:
            continue
        outline = outline_of(path, source.data)
        for definition in _functions(outline):
            text = outline.text(definition)
            place = Place(path, definition.name, ((definition.start, definition.end),), "the same body")
            if normal_form(text, Steps(), named=False) in forms:
                equal.append(place)
            elif not equal and (share := max(_likeness(old, text) for old in sought.texts)):
                like = f"the same parameters and {share:.0%} of the body"
                alike.append((share, Place(path, definition.name, place.lines, like)))
    best = sorted(alike, key=lambda found: -found[0])[:1]
    yield from equal[:2] or (place for _, place in best)


def _candidates(sought: Sought, target: Upstream) -> list[str]:
    """The Python files of the package that hold most of the function's longest words."""
    own = sought.name.rpartition(".")[2].encode()
    words = {word for word in _WORD.findall(sought.texts[0]) if len(word) >= _SHORTEST_WORD and word != own}
    longest = tuple(sorted(words, key=lambda word: (-len(word), word))[:_WORDS])
    if not longest or sought.texts[0].count(b"\n") < _SHORTEST:
        return []
    hits: dict[str, set[bytes]] = {}
    for path, _, line in grep(target.main.store.path, target.main.commit, longest):
        if path.startswith(package_of(sought.path)) and path.endswith(".py"):
            hits.setdefault(path, set()).update(word for word in longest if word in line)
    enough = [path for path, held in hits.items() if 2 * len(held) >= len(longest)]
    return sorted(enough, key=lambda path: (-len(hits[path]), path))[:MOST_FILES]


@lru_cache(maxsize=256)
def _functions(outline: Outline) -> tuple[Definition, ...]:
    return tuple(definition for definition in outline.all() if definition.kind == "function")


def _likeness(old: bytes, new: bytes) -> float:
    """The share of the body's statements that two functions have in common; 0 where that is not most of them,
    or the parameters are others."""
    was, now = _shape(old), _shape(new)
    if was is None or now is None or was[0] != now[0]:
        return 0.0
    common = sum((was[1] & now[1]).values())
    share = common / max(was[1].total(), now[1].total(), 1)
    return share if share >= MOST_OF_THE_BODY else 0.0


@lru_cache(maxsize=4096)
def _shape(text: bytes) -> tuple[tuple[str, ...], Counter[str]] | None:
    """A function's parameters and how often it has each line of its body, formatting and comments apart."""
    tree = parse_source(text)
    node = (
        next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)), None)
        if tree
        else None
    )
    if node is None:
        return None
    arguments = [argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)]
    try:
        lines = [line.strip() for statement in node.body for line in ast.unparse(statement).splitlines()]
    except RecursionError:
        return None
    return tuple(arguments), Counter(lines)
