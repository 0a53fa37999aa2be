"""A rendered Dockerfile as instructions, for the embedded engine: FROM, COPY, ENV and LABEL, nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from builder.errors import InvalidInput

_CHOWN = re.compile(r"--chown=(\d{1,10}):(\d{1,10})\Z")
_PAIR = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_.-]*)=("(?:[^"\\]|\\.)*"|[^\s"\\$]*)(?=\s|\Z)')


@dataclass(frozen=True)
class Copy:
    """``COPY --chown=UID:GID ["source", …, "destination"]``; owner 0:0 where there is no ``--chown``."""

    sources: tuple[str, ...]
    destination: str
    uid: int
    gid: int
    line: int


@dataclass(frozen=True)
class Recipe:
    """What a Dockerfile without RUN asks for."""

    base: str
    copies: tuple[Copy, ...]
    environment: dict[str, str]
    labels: dict[str, str]


def parse_dockerfile(text: str) -> Recipe:
    """Read a rendered Dockerfile.

    Raises:
        InvalidInput: naming the line, where it uses what only a Docker Engine can do.
    """
    base: str | None = None
    copies: list[Copy] = []
    environment: dict[str, str] = {}
    labels: dict[str, str] = {}
    for number, line in instructions(text):
        word, _, rest = line.partition(" ")
        match word.upper():
            case "FROM" if base is None and re.fullmatch(r"\S+", rest.strip()):
                base = rest.strip()
            case "COPY" if base is not None:
                copies.append(_copy(rest.strip(), number))
            case "ENV" if base is not None:
                environment |= _pairs(rest, number, word)
            case "LABEL" if base is not None:
                labels |= _pairs(rest, number, word)
            case _:
                raise _unsupported(number, line)
    if base is None:
        raise InvalidInput("Dockerfile has no FROM", where="Dockerfile")
    return Recipe(base, tuple(copies), environment, labels)


def instructions(text: str) -> Iterator[tuple[int, str]]:
    """Line numbers and instructions: comments and blank lines left out, continued lines joined."""
    held, start = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not held):
            continue
        start = start or number
        if line.rstrip().endswith("\\"):
            held += line.rstrip()[:-1] + " "
            continue
        yield start, (held + line).strip()
        held, start = "", 0
    if held:
        yield start, held.strip()


def _unsupported(number: int, line: str) -> InvalidInput:
    return InvalidInput(
        "the embedded engine does not do this instruction",
        where=f"Dockerfile, line {number}",
        expected="one FROM with a digest, then COPY, ENV and LABEL",
        found=line[:120],
        hint="use a Docker Engine: --engine docker",
    )


def _copy(rest: str, number: int) -> Copy:
    words, bracket, array = rest.partition("[")
    uid = gid = 0
    for flag in words.split():
        match = _CHOWN.match(flag)
        if match is None:
            raise _unsupported(number, f"COPY {flag}")
        uid, gid = int(match[1]), int(match[2])
    try:
        names = json.loads(bracket + array)
    except json.JSONDecodeError as error:
        raise _unsupported(number, f"COPY {rest}") from error
    if not isinstance(names, list) or len(names) < 2 or not all(isinstance(name, str) for name in names):
        raise _unsupported(number, f"COPY {rest}")
    *sources, destination = names
    if not destination.startswith("/") or (len(sources) > 1 and not destination.endswith("/")):
        raise InvalidInput(
            "COPY needs an absolute destination, with a / at its end for several files",
            where=f"Dockerfile, line {number}",
            found=destination,
        )
    return Copy(tuple(sources), destination, uid, gid, number)


def _pairs(rest: str, number: int, word: str) -> dict[str, str]:
    """``name="value"`` pairs; only the quoting that :func:`builder.build.template.quoted` writes."""
    found: dict[str, str] = {}
    position = 0
    while position < len(rest.rstrip()):
        match = _PAIR.match(rest, position)
        if match is None:
            raise _unsupported(number, f"{word} {rest}")
        value = match[2]
        if value.startswith('"'):
            if re.search(r"(?<!\\)(?:\\\\)*\$", value):
                raise _unsupported(number, f"{word} {rest}")
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        found[match[1]] = value
        position = match.end()
    if not found:
        raise _unsupported(number, f"{word} {rest}")
    return found
