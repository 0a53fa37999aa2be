"""The definitions of a source file: which one a line is in, and where the one of a name stands.

Python is read by its syntax, one top-level statement at a time (a file of 10,000 lines is then not parsed for
one function of it). Where that fails, and for C and its kin, a definition begins at a line that begins at the
margin, as git prints it behind ``@@``. Nothing of the file is run.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Literal

from builder.patch.hunks import split_lines

Kind = Literal["function", "class", "value", "module"]
MODULE = ""
_FILES_KEPT = 256

_MARGIN = re.compile(rb"[^\s#)\]}]")
_LONG_STRING = re.compile(rb"\"\"\"|'''")
_GOES_ON = re.compile(rb"(else|elif|except|finally)\b")
_DEFINES = re.compile(rb"(?:async[ \t]+def|def|class)[ \t]+(\w+)")
_ASSIGNS = re.compile(rb"(\w+)[ \t]*(?::[^=]*)?=(?!=)")
_BRACED = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hip", ".hpp", ".rs", ".js", ".ts", ".go", ".java")
_BRANCHES = (b"if", b"try", b"for", b"while", b"with", b"match")
_HEADING = re.compile(rb"[A-Za-z_$]")
_HEADING_NAME = re.compile(rb"([\w:~$]+)\s*\(|(?:class|struct|enum|namespace)\s+(\w+)")


@dataclass(frozen=True, slots=True)
class Definition:
    """A function, a class or an assigned name; :data:`MODULE` is what lies in none.

    Args:
        name: qualified by what it lies in, such as ``Scheduler.run``.
        index: which of those of the name in the file, from 0.
        kind: what it is.
        start, end: its first line (of its decorators) and last, from 1.
        inner: first and last lines of the definitions right in it.
    """

    name: str
    index: int
    kind: Kind
    start: int
    end: int
    inner: tuple[tuple[int, int], ...] = ()

    @property
    def key(self) -> tuple[str, int]:
        """By what the same definition is found in another version of the file."""
        return self.name, self.index

    def __str__(self) -> str:
        return self.name or "the module"


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A statement at the margin and the lines that belong to it, from 1."""

    start: int
    end: int
    name: str | None
    kind: Kind


class Outline:
    """The definitions of one file; parsed as far as it is asked."""

    def __init__(self, path: str, data: bytes) -> None:
        self.lines = split_lines(data)
        self._python = path.endswith((".py", ".pyi"))
        self._braced = path.endswith(_BRACED)
        self._known: dict[_Chunk, tuple[Definition, ...]] = {}
        self._numbered: dict[str, list[Definition]] = {}

    def enclosing(self, line: int) -> Definition:
        """The innermost definition that a line (from 1) lies in; a class for a line between its methods."""
        at = bisect_right(self._starts, line) - 1
        if at < 0 or line > self._chunks[at].end:
            return self.module
        while at and line <= self._chunks[at - 1].end:
            at -= 1  # several statements in one line: the first
        chunk = self._chunks[at]
        first = dict.fromkeys(found.name.split(".")[0] for found in self._read(chunk))
        inside = [d for name in first for d in self._of(name) if d.start <= line <= d.end]
        return max(inside, key=lambda found: (found.start, -found.end), default=self.module)

    def named(self, name: str, index: int = 0) -> Definition | None:
        """The definition of a qualified name, or the next one of that name."""
        if name == MODULE:
            return self.module
        found = [found for found in self._of(name.split(".")[0]) if found.name == name]
        return found[index] if index < len(found) else None

    def all(self) -> Iterator[Definition]:
        """Every definition, in the order of the file's lines."""
        return (found for chunk in self._chunks for found in self._read(chunk))

    def times(self, name: str) -> int:
        """How often a definition is there: most of a qualified name and of those it lies in."""
        parts = name.split(".")
        found = [found.name for found in self._of(parts[0])]
        return max(found.count(".".join(parts[:depth])) for depth in range(1, len(parts) + 1))

    def rows(self, definition: Definition) -> list[int]:
        """The definition's own lines, from 1, blank ones and a class's or module's functions left out."""
        apart = definition.inner if definition.kind in ("class", "module") else ()
        inner = {n for start, end in apart for n in range(start, end + 1)}
        return [
            n
            for n in range(definition.start, definition.end + 1)
            if n not in inner and self.lines[n - 1].strip()
        ]

    def text(self, definition: Definition) -> bytes:
        """Its source, line by line."""
        return b"".join(self.lines[definition.start - 1 : definition.end])

    @cached_property
    def module(self) -> Definition:
        """The whole file, as the definition of what lies in none."""
        inner = tuple((c.start, c.end) for c in self._chunks if c.name is not None and c.kind != "value")
        return Definition(MODULE, 0, "module", 1, len(self.lines), inner)

    @cached_property
    def imports(self) -> dict[int, frozenset[str]]:
        """The lines of imports at the margin, from 1, with the names that their statement binds."""
        found: dict[int, frozenset[str]] = {}
        for chunk in self._chunks if self._python else ():
            if self.lines[chunk.start - 1].startswith((b"import ", b"from ")):
                tree = self._tree(chunk)
                nodes = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)] if tree else []
                names = frozenset(f"{a.name} as {a.asname or a.name}" for n in nodes for a in n.names)
                found |= dict.fromkeys(range(chunk.start, chunk.end + 1), names)
        return found

    # --- inside -------------------------------------------------------------------------------------------

    @cached_property
    def _chunks(self) -> list[_Chunk]:
        if self._python:
            chunks = list(self._at_margin())
            if all(self._is_whole(chunk) for chunk in chunks):
                return chunks
            return self._from_syntax()
        return list(self._headings()) if self._braced else []

    @cached_property
    def _starts(self) -> list[int]:
        return [chunk.start for chunk in self._chunks]

    @cached_property
    def _branches(self) -> list[_Chunk]:
        """Those without a name that may define something."""
        return [
            chunk
            for chunk in self._chunks
            if chunk.name is None and self.lines[chunk.start - 1].startswith(_BRANCHES)
        ]

    @cached_property
    def _named(self) -> dict[str, list[_Chunk]]:
        found: dict[str, list[_Chunk]] = {}
        for chunk in self._chunks:
            if chunk.name is not None:
                found.setdefault(chunk.name, []).append(chunk)
        return found

    def _at_margin(self) -> Iterator[_Chunk]:
        starts: list[int] = []
        decorated = False
        quote: bytes | None = None
        for number, line in enumerate(self.lines, 1):
            inside = quote is not None
            quote = _open_quote(line, quote)
            if inside or not _MARGIN.match(line) or _GOES_ON.match(line):
                continue
            if not decorated:
                starts.append(number)
            decorated = line.startswith(b"@")
        for start, after in pairwise([*starts, len(self.lines) + 1]):
            yield self._chunk(start, self._without_blanks(start, after - 1))

    def _without_blanks(self, start: int, end: int) -> int:
        """The last line of a statement: blank lines and comments at the margin behind it are not of it."""
        while end > start and (not self.lines[end - 1].strip() or self.lines[end - 1].startswith(b"#")):
            end -= 1
        return end

    def _chunk(self, start: int, end: int) -> _Chunk:
        for line in self.lines[start - 1 : end]:
            if line.startswith(b"@"):
                continue
            if match := _DEFINES.match(line):
                return _Chunk(
                    start, end, match[1].decode(), "class" if line.startswith(b"class") else "function"
                )
            if match := _ASSIGNS.match(line):
                return _Chunk(start, end, match[1].decode("utf-8", "replace"), "value")
            if self.lines[start - 1].startswith(b"@"):
                continue
            break
        return _Chunk(start, end, None, "module")

    def _is_whole(self, chunk: _Chunk) -> bool:
        """Whether a statement ends where the next seems to begin: text at the margin may be a string's."""
        text = b"".join(self.lines[chunk.start - 1 : chunk.end])
        return not (text.count(b'"""') % 2 or text.count(b"'''") % 2)

    def _tree(self, chunk: _Chunk) -> ast.Module | None:
        return parse_source(b"".join(self.lines[chunk.start - 1 : chunk.end]))

    def _from_syntax(self) -> list[_Chunk]:
        """The chunks by parsing all of it; by headings where it does not parse."""
        tree = parse_source(b"".join(self.lines))
        if tree is None:
            return list(self._headings())
        return [self._chunk(first_line(node), node.end_lineno or node.lineno) for node in tree.body]

    def _headings(self) -> Iterator[_Chunk]:
        starts = [n for n, line in enumerate(self.lines, 1) if _HEADING.match(line)]
        for start, after in pairwise([*starts, len(self.lines) + 1]):
            match = _HEADING_NAME.search(self.lines[start - 1])
            name = (match[1] or match[2]).decode("utf-8", "replace") if match else None
            yield _Chunk(start, self._without_blanks(start, after - 1), name, "function")

    def _of(self, first: str) -> list[Definition]:
        """The definition of a name at the margin and those in it, or all where the name is defined twice."""
        if first not in self._numbered:
            seen: dict[str, int] = {}
            self._numbered[first] = rows = []
            chunks: Sequence[_Chunk] = self._named.get(first, ())
            if self._branches:
                chunks = sorted([*self._branches, *chunks], key=lambda chunk: chunk.start)
            for chunk in chunks:
                for found in self._read(chunk):
                    if found.name.split(".")[0] == first:
                        index = seen.get(found.name, 0)
                        rows.append(replace(found, index=index) if index else found)
                        seen[found.name] = index + 1
        return self._numbered[first]

    def _read(self, chunk: _Chunk) -> tuple[Definition, ...]:
        """The definitions in a statement at the margin, without their number in the file."""
        if chunk not in self._known:
            self._known[chunk] = tuple(self._definitions(chunk))
        return self._known[chunk]

    def _definitions(self, chunk: _Chunk) -> Iterator[Definition]:
        if chunk.name is None and not self.lines[chunk.start - 1].startswith(_BRANCHES):
            return
        tree = self._tree(chunk) if self._python and chunk.kind != "value" else None
        if tree is not None:
            yield from _of_body(tree.body, "", chunk.start - 1)
        elif chunk.name is not None:
            yield Definition(chunk.name, 0, chunk.kind, chunk.start, chunk.end)


def _open_quote(line: bytes, quote: bytes | None) -> bytes | None:
    """The kind of long string that is open behind a line, where ``quote`` was open before it."""
    for mark in _LONG_STRING.findall(line) if b'"""' in line or b"'''" in line else ():
        if quote is None:
            quote = mark
        elif mark == quote:
            quote = None
    return quote


def parse_source(text: bytes) -> ast.Module | None:
    """The syntax of Python source; None where it has none, or needs more stack than there is.

    Args:
        text: whole statements; where the first is indented, all are.
    """
    whole = b"if 1:\n" + text if text[:1] in (b" ", b"\t") else text
    try:
        return ast.parse(whole)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def first_line(node: ast.stmt) -> int:
    """The line that a statement begins on, its decorators included."""
    decorators: Sequence[ast.expr] = getattr(node, "decorator_list", ())
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _of_body(body: Sequence[ast.stmt], within: str, above: int) -> Iterator[Definition]:
    for node in _statements(body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{within}.{node.name}" if within else node.name
            kind: Kind = "class" if isinstance(node, ast.ClassDef) else "function"
            inner = tuple(
                (first_line(child) + above, (child.end_lineno or child.lineno) + above)
                for child in _statements(node.body)
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            )
            start, end = first_line(node) + above, (node.end_lineno or node.lineno) + above
            yield Definition(name, 0, kind, start, end, inner)
            if kind == "class":  # what a function defines is its own affair, and no other's to name
                yield from _of_body(node.body, name, above)


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, and those in their branches: a definition below ``if`` or ``try`` is of the same scope."""
    for node in body:
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, field, ()))
        for handler in getattr(node, "handlers", ()):
            yield from _statements(handler.body)
        for case in getattr(node, "cases", ()):
            yield from _statements(case.body)


@lru_cache(maxsize=_FILES_KEPT)
def outline_of(path: str, data: bytes) -> Outline:
    """The outline of a file, kept for the next question about it."""
    return Outline(path, data)
