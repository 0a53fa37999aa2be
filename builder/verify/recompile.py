"""Whether bytecode is what compiling its source gives, without running or unmarshalling any of it here.

Another Python may write one code object in several ways: which objects it names twice (``FLAG_REF``) depends
on what else the process holds. So the marshalled forms are read as data, and compared by what they say.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from builder.verify.bytecode import HEADER_BYTES

_TIMEOUT = 600  # seconds for all files of one package
_NAME = re.compile(r"(?P<stem>.+)\.cpython-3(?P<minor>\d{1,2})(\.opt-(?P<level>[12]))?\.pyc\Z")
_DEEPEST = 200
_COMPILE = """
import base64, importlib.util, json, marshal, sys, warnings
warnings.simplefilter("ignore")
answers = []
for path, level, source in json.load(sys.stdin):
    try:
        code = compile(base64.b64decode(source), path, "exec", dont_inherit=True, optimize=level)
        answers.append(base64.b64encode(marshal.dumps(code)).decode())
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        answers.append(None)
json.dump([base64.b64encode(importlib.util.MAGIC_NUMBER).decode(), answers], sys.stdout)
"""


@dataclass(frozen=True)
class Compiled:
    """A bytecode file and the source beside it.

    Args:
        path: of the source, from ``/``.
        source: its bytes.
        name: of the bytecode file, such as ``module.cpython-312.pyc``.
        data: its bytes.
    """

    path: str
    source: bytes = field(repr=False)
    name: str
    data: bytes = field(repr=False)


def source_name(bytecode: str) -> str | None:
    """The name of the source that a file in ``__pycache__`` is of (PEP 3147); None for no bytecode."""
    match = re.fullmatch(r"(.+?)(\.[^.]+(\.opt-[^.]+)?)?\.pyc", bytecode)
    return f"{match[1]}.py" if match else None


def is_recompiled(files: Sequence[Compiled]) -> list[bool | None]:
    """Of each file whether recompiling its source gives it; None where there is no such Python here."""
    matches = [_NAME.fullmatch(one.name) for one in files]
    answers: list[bool | None] = [False] * len(files)
    for minor in sorted({match["minor"] for match in matches if match}):
        numbers = [number for number, match in enumerate(matches) if match and match["minor"] == minor]
        levels = [int(match["level"] or 0) for number in numbers if (match := matches[number])]
        made = _compile(minor, [files[number] for number in numbers], levels)
        for place, number in enumerate(numbers):
            data = files[number].data
            if made is None:
                answers[number] = None
            elif data[:4] != made.magic:
                answers[number] = None  # of a development version of this Python
            else:
                ours = made.code[place]
                answers[number] = ours is not None and _same(ours, data[HEADER_BYTES:], int(minor))
    return answers


@dataclass(frozen=True)
class _Made:
    magic: bytes
    code: tuple[bytes | None, ...]


def _compile(minor: str, files: Sequence[Compiled], levels: Sequence[int]) -> _Made | None:
    """What a Python makes of sources, in a process of its own: what is nested deeply enough ends it."""
    is_own = sys.version_info[:2] == (3, int(minor))
    program = sys.executable if is_own else shutil.which(f"python3.{minor}")
    if program is None:
        return None
    asked = [
        [one.path, level, base64.b64encode(one.source).decode()]
        for one, level in zip(files, levels, strict=True)
    ]
    try:
        done = subprocess.run(
            [program, "-I", "-S", "-c", _COMPILE],
            input=json.dumps(asked).encode(),
            capture_output=True,
            check=False,
            timeout=_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        if len(files) == 1:
            return None
        halves = [slice(len(files) // 2), slice(len(files) // 2, None)]
        parts = [_compile(minor, files[half], levels[half]) for half in halves]
        known = next((part.magic for part in parts if part), None)
        if known is None:
            return None
        code: list[bytes | None] = []
        for part, half in zip(parts, halves, strict=True):
            code += part.code if part else [None] * len(files[half])
        return _Made(known, tuple(code))
    magic, answers = json.loads(done.stdout)
    return _Made(
        base64.b64decode(magic), tuple(None if one is None else base64.b64decode(one) for one in answers)
    )


def _same(ours: bytes, theirs: bytes, minor: int) -> bool:
    if ours == theirs:
        return True
    known: dict[object, int] = {}
    try:
        return _Reader(ours, minor, known).whole() == _Reader(theirs, minor, known).whole()
    except _UnreadableError:
        return False


class _UnreadableError(Exception):
    """Not what marshal writes of a module."""


_REF = 0x80
_CONSTANTS = b"NFTS."
_FIXED: Mapping[int, int] = {ord("i"): 4, ord("I"): 8, ord("g"): 8, ord("y"): 16}
_TEXTS = b"tuaAzZ"


class _Reader:
    """Reads marshalled data; each distinct value becomes a number, so that no repetition makes it large.

    Args:
        data: what marshal wrote.
        minor: of the Python that wrote it.
        known: numbers of values, shared by those that are compared.
    """

    def __init__(self, data: bytes, minor: int, known: dict[object, int]) -> None:
        self._data = data
        self._minor = minor
        self._known = known
        self._place = 0
        self._refs: list[int | None] = []

    def whole(self) -> int:
        value = self._object(0)
        if self._place != len(self._data):
            raise _UnreadableError
        return value

    def _number(self, value: object) -> int:
        return self._known.setdefault(value, len(self._known))

    def _take(self, count: int) -> bytes:
        piece = self._data[self._place : self._place + count]
        if count < 0 or len(piece) != count:
            raise _UnreadableError
        self._place += count
        return piece

    def _long(self) -> int:
        return int.from_bytes(self._take(4), "little", signed=True)

    def _object(self, depth: int) -> int:
        if depth > _DEEPEST:
            raise _UnreadableError
        first = self._take(1)[0]
        kind = first & ~_REF
        if kind == ord("r"):
            return self._referred(self._long())
        slot = len(self._refs)
        if first & _REF:
            self._refs.append(None)  # marshal numbers a value when it begins
        number = self._number(self._value(kind, depth + 1))
        if first & _REF:
            self._refs[slot] = number
        return number

    def _referred(self, place: int) -> int:
        found = self._refs[place] if 0 <= place < len(self._refs) else None
        if found is None:
            raise _UnreadableError
        return found

    def _value(self, kind: int, depth: int) -> tuple[object, ...]:
        name = chr(kind)
        if kind in _CONSTANTS:
            return (name,)
        if kind in _FIXED:
            return (name, self._take(_FIXED[kind]))
        if name == "l":
            digits = self._long()  # of 15 bits each; negative for a negative number
            return (name, digits, self._take(2 * abs(digits)))
        if name == "s":
            return (name, self._take(self._long()))
        if kind in _TEXTS:
            return ("text", self._take(self._take(1)[0] if name in "zZ" else self._long()))
        if name in "()[<>":
            count = self._take(1)[0] if name == ")" else self._long()
            items = self._items(count, depth)
            return ("tuple" if name in "()" else name, tuple(sorted(items) if name in "<>" else items))
        if name == ":" and self._minor >= 14:
            return (name, self._items(3, depth))
        if name == "c":
            return self._code(depth)
        raise _UnreadableError

    def _items(self, count: int, depth: int) -> tuple[int, ...]:
        if not 0 <= count <= len(self._data):
            raise _UnreadableError
        return tuple(self._object(depth) for _ in range(count))

    def _code(self, depth: int) -> tuple[object, ...]:
        """A code object, but for the name of its file, which importing sets."""
        is_new = self._minor >= 11
        numbers: Iterable[bytes] = [self._take(4) for _ in range(5 if is_new else 6)]
        before = self._items(5 if is_new else 6, depth)  # up to the file's name
        self._object(depth)
        names = self._items(2 if is_new else 1, depth)
        line = self._take(4)
        tables = self._items(2 if is_new else 1, depth)
        return ("code", *numbers, *before, *names, line, *tables)
