"""Changes that know what they change: a value of a document, a field or member of a tar, a line, a number.

Each takes hypothesis's ``draw`` and an input, and gives another input, most of which is still sound.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import yaml
from hypothesis import strategies as st

Change = Callable[[st.DrawFn, bytes], bytes]

NUMBERS = (b"0", b"-1", b"1", b"00", b"2147483648", b"18446744073709551616", b"9" * 30, b"1e9", b"0x10")
TEXTS = (
    "",
    "x",
    "\ud800",
    "\u202e",
    "\0",
    "a/" * 700,
    "../x",
    "/x",
    "y" * 5000,
    "sha256:" + "0" * 64,
    "0" * 40,
)
VALUES: tuple[Any, ...] = (None, True, 0, -1, 1 << 70, 1.5, float("inf"), *TEXTS, [], {}, ["x"], {"x": "y"})


def change_tokens(pattern: bytes) -> Change:
    """Cut, double, swap or replace a piece of a text.

    Args:
        pattern: a regular expression of one piece.
    """
    piece = re.compile(pattern)

    def change(draw: st.DrawFn, data: bytes) -> bytes:
        pieces = piece.findall(data)
        if not pieces:
            return data
        places = st.integers(0, len(pieces) - 1)
        at, other = draw(places), draw(places)
        match draw(st.sampled_from(("cut", "double", "swap", "copy", "number"))):
            case "cut":
                del pieces[at]
            case "double":
                pieces.insert(at, pieces[at])
            case "swap":
                pieces[at], pieces[other] = pieces[other], pieces[at]
            case "copy":
                pieces[at] = pieces[other]
            case "number":
                numbers = list(re.finditer(rb"\d+", pieces[at]))
                if numbers:
                    start, end = draw(st.sampled_from(numbers)).span()
                    pieces[at] = pieces[at][:start] + draw(st.sampled_from(NUMBERS)) + pieces[at][end:]
        return b"".join(pieces)

    return change


def change_document(load: Callable[[bytes], Any], dump: Callable[[Any], bytes]) -> Change:
    """Replace, remove, repeat, rename or wrap one value of a document; one that is none any more is left."""

    def change(draw: st.DrawFn, data: bytes) -> bytes:
        try:
            document = load(data)
        except (ValueError, yaml.YAMLError, RecursionError):
            return data
        places = list(_places(document))
        if not places:
            return data
        within, key = draw(st.sampled_from(places))
        match draw(st.sampled_from(("replace", "remove", "other", "wrap", "key"))):
            case "replace":
                within[key] = draw(st.sampled_from(VALUES))
            case "remove":
                del within[key]
            case "other":
                source, name = draw(st.sampled_from(places))
                within[key] = copy.deepcopy(source[name])
            case "wrap":
                within[key] = [within[key]]
            case "key":
                if isinstance(within, dict):
                    within[draw(st.sampled_from(("x", "", "name", "path", *TEXTS)))] = within.pop(key)
                else:
                    within.append(copy.deepcopy(within[key]))
        try:
            return dump(document)
        except (ValueError, yaml.YAMLError, RecursionError):
            return data

    return change


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Where each value of a document is: what holds it, and under which key."""
    keys: Sequence[Any] = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        yield value, key
        yield from _places(value[key])


change_json = change_document(json.loads, lambda value: json.dumps(value).encode())
change_yaml = change_document(
    yaml.safe_load, lambda value: yaml.safe_dump(value, sort_keys=False).encode("utf-8", "surrogatepass")
)
change_lines = change_tokens(rb"[^\n]*\n|[^\n]+")
change_words = change_tokens(rb'"(?:[^"\\]|\\.)*"|[^\s,="]+|[\s,="]')

_BLOCK = 512
_FIELDS = {
    "name": (0, 100), "mode": (100, 8), "uid": (108, 8), "gid": (116, 8), "size": (124, 12),
    "time": (136, 12), "type": (156, 1), "link": (157, 100), "magic": (257, 8), "prefix": (345, 155),
}  # fmt: skip
_CONTENTS = (
    b"", b"\0", b" ", b"7" * 12, b"-1", b"8", b"0", b"\x80" + b"\xff" * 11, b"\xff" * 12,
    b"\x80" + b"\0" * 11, b"0000000000\0", b"00000000777", b"/", b"..", b"a/../..", b"usr", b"usr/",
    b"usr/lib/x", b"usr/.wh.lib", b"usr/.wh..wh..opq", b".wh.", b"a" * 100, b"\xff\xfe", b"h",
    b"ustar\0", b"ustar  \0",
)  # fmt: skip
_TYPES = b"0\0" + b"123456" + b"7gxLKSVDMNAX?"


def change_tar(draw: st.DrawFn, data: bytes) -> bytes:
    """Write over one field of a header, or cut, double or move a member."""
    heads = [at for at in range(0, len(data) - _BLOCK + 1, _BLOCK) if data[at + 257 : at + 262] == b"ustar"]
    if not heads:
        return data
    number = draw(st.integers(0, len(heads) - 1))
    at, end = heads[number], [*heads[1:], len(data)][number]
    member = data[at:end]
    match draw(st.sampled_from(("field", "type", "type", "cut", "double", "move"))):
        case "field":
            start, size = _FIELDS[draw(st.sampled_from(sorted(_FIELDS)))]
            content = draw(st.sampled_from(_CONTENTS))[:size].ljust(size, b"\0")
            return data[: at + start] + content + data[at + start + size :]
        case "type":
            kind = bytes([draw(st.sampled_from(_TYPES))])
            return data[: at + 156] + kind + data[at + 157 :]
        case "cut":
            return data[:at] + data[end:]
        case "double":
            return data[:end] + member + data[end:]
    other = draw(st.sampled_from(heads))
    rest = data[:at] + data[end:]
    return rest[:other] + member + rest[other:]
