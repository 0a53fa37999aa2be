"""One Python file by its bytes: does it compile, which names does nothing define, what has it to offer."""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from builder.soundness.attributes import Use, read_uses
from builder.soundness.interface import Interface, read_interface

if TYPE_CHECKING:
    from builder.soundness.names import Undefined

LARGEST = 2 << 20
"""Bytes of a file that is looked at."""

GRAMMAR_TIMEOUT = 30.0
"""Seconds within which a file that does not parse must be read with the newest grammar."""

_NEWEST_GRAMMAR = "import sys, libcst; libcst.parse_module(sys.stdin.buffer.read())"
# Filters of warnings are the process's own, and files are looked at in several threads.
_QUIET = threading.Lock()
_T = TypeVar("_T")


@dataclass(frozen=True)
class Broken:
    """Why a file does not compile.

    Args:
        line: from 1; None where none is to blame.
        message: Python's own.
        text: the line.
        is_newer: a newer Python's grammar takes it.
    """

    line: int | None
    message: str
    text: str
    is_newer: bool


class PythonFile:
    """A Python file; what is asked of it is found out once.

    Args:
        name: its last component; ``__init__.py`` makes a package.
        data: its bytes.
    """

    def __init__(self, name: str, data: bytes) -> None:
        self._name = name
        self._data = data

    @cached_property
    def broken(self) -> Broken | None:
        """Why it does not compile; None if it does, or is too large or deep to be looked at."""
        if len(self._data) > LARGEST:
            return None
        try:
            _quietly(lambda: compile(self._data, self._name, "exec", dont_inherit=True))
        except SyntaxError as error:
            is_newer = not isinstance(error, IndentationError) and self._needs_newer_grammar()
            return Broken(error.lineno, error.msg, (error.text or "").strip()[:120], is_newer)
        except ValueError as error:
            return Broken(None, str(error), "", is_newer=False)
        except (RecursionError, MemoryError):
            return None  # as deep as this process is: another one may take it
        return None

    def _needs_newer_grammar(self) -> bool:
        """Whether it is only this Python's grammar that does not take it."""
        if self._parse() is not None:
            return False  # it parses: then it is what it says that is wrong
        # In a process of its own: what is nested deeply enough ends it.
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", _NEWEST_GRAMMAR],
                input=self._data,
                capture_output=True,
                check=False,
                timeout=GRAMMAR_TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def _parse(self) -> ast.Module | None:
        """Its syntax tree, which is a hundred times as large as the file: it is not kept."""
        if len(self._data) > LARGEST:
            return None
        try:
            return _quietly(lambda: ast.parse(self._data))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    @cached_property
    def interface(self) -> Interface | None:
        """What it has and imports; None where that cannot be read."""
        return _interface_of(self._parse(), self._data)

    @cached_property
    def undefined(self) -> tuple[Undefined, ...] | None:
        """The names that nothing in it defines, by line; None where that cannot be told."""
        from builder.soundness.names import undefined_names

        tree = self._parse()
        interface = self.__dict__.setdefault("interface", _interface_of(tree, self._data))
        self.__dict__.setdefault("uses", _uses_of(tree))
        if tree is None or interface is None:
            return None
        try:
            return tuple(undefined_names(tree, self._name))
        except RecursionError:
            return None

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """The attributes that it takes from modules; none where that cannot be read."""
        return _uses_of(self._parse())

    def text_of(self, line: int) -> str:
        """A line of it, without the blanks around."""
        lines = self._lines
        return lines[line - 1].decode("utf-8", "replace").strip() if 0 < line <= len(lines) else ""

    @cached_property
    def _lines(self) -> list[bytes]:
        return self._data.split(b"\n")


def _quietly(work: Callable[[], _T]) -> _T:
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return work()


def _interface_of(tree: ast.Module | None, data: bytes) -> Interface | None:
    try:
        return None if tree is None else read_interface(tree, data)
    except RecursionError:
        return None


def _uses_of(tree: ast.Module | None) -> tuple[Use, ...]:
    return () if tree is None else read_uses(tree)
