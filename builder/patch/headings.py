"""The definitions of a file, which git prints behind the second ``@@`` of a hunk, and what lies in each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# git's two ways to find a heading: a line that begins with a letter, and a Python class or function.
_PLAIN = re.compile(rb"[A-Za-z_$]")
_PYTHON = re.compile(rb"[ \t]*(?:class|(?:async[ \t]+)?def)[ \t]")
_DEFINITION = re.compile(rb"(?:(class)|(?:async[ \t]+)?def)[ \t]+(\w+)")
_ASSIGNMENT = re.compile(rb"([A-Za-z_]\w*)[ \t]*(?::[^=]*)?=(?!=)")
_NAMELESS = re.compile(rb"(?:else|try|finally|except)\b")
_CLOSING = (b")", b"]", b"}", b"#")
# git cuts a heading at 80 bytes, GNU diff at 40, and both then take blanks off its end.
_CUT_AT = 38


class Headings:
    """The headings of a file, line by line.

    Args:
        lines: the file's lines.
    """

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._printed: list[tuple[int, int]] = []
        self._around: list[tuple[int, ...]] = []
        self._read()

    def _read(self) -> None:
        plain = python = -1
        around: tuple[int, ...] = ()
        for number, line in enumerate(self._lines):
            self._printed.append((plain, python))
            if is_statement(line):
                depth = indentation(line)
                around = tuple(head for head in around if indentation(self._lines[head]) < depth)
            self._around.append(around)
            in_python, in_plain = _PYTHON.match(line), _PLAIN.match(line)
            plain, python = number if in_plain else plain, number if in_python else python
            if in_python or in_plain:
                around = (*around, number)

    def heads_of(self, number: int) -> set[int]:
        """Lines (indexes) of the headings that speak for a line: those git prints, and what it lies in."""
        return {*self._printed[number], *self._around[number]} - {-1}

    def named(self, heading: bytes) -> list[int]:
        """Every line (index) that may be the one a section heading was printed from."""
        if not heading or _NAMELESS.match(heading):
            return []
        return [
            number
            for number, line in enumerate(self._lines)
            if (_PLAIN.match(line) or _PYTHON.match(line)) and _is_named(heading, line.strip())
        ]

    def place(self, number: int) -> str:
        """The definition that a line (index) lies in, for people: ``A.forward``; empty at the top level."""
        names = (
            _name_of(self._lines[head].strip()) for head in self._around[min(number, len(self._around) - 1)]
        )
        return ".".join(name.decode("utf-8", "replace")[:60] for name in names)


def indentation(line: bytes) -> int:
    """Columns before a line's first character; tabs go to multiples of eight."""
    text = line.expandtabs()
    return len(text) - len(text.lstrip())


def is_statement(line: bytes) -> bool:
    """Whether a line's indentation says where it belongs: no blank line, comment or closing bracket."""
    text = line.strip()
    return bool(text) and not text.startswith(_CLOSING)


def leaves(lines: Iterable[bytes], depth: int) -> bool:
    """Whether one of the lines is outside of a definition whose own line is indented by ``depth``."""
    return any(is_statement(line) and indentation(line) <= depth for line in lines)


def _is_named(heading: bytes, line: bytes) -> bool:
    if (len(heading) >= _CUT_AT and line.startswith(heading)) or line == heading:
        return True
    wanted = _key(heading)
    return wanted is not None and wanted == _key(line)


def _key(text: bytes) -> tuple[bytes, bytes] | None:
    """What a heading names, whatever its signature, bases or value are; None where only its text says it."""
    if match := _DEFINITION.match(text):
        return match[1] or b"def", match[2]
    if match := _ASSIGNMENT.match(text):
        return b"=", match[1]
    return None


def _name_of(text: bytes) -> bytes:
    key = _key(text)
    return key[1] if key else text
