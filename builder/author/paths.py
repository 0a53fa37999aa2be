"""Paths of other people's patches: which leading parts to take off, and what to put there instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from builder.errors import InvalidInput
from builder.patch.apply import quoted_path
from builder.patch.diff import unquote_path
from builder.patch.repair import hunk_spans, split

_NULL = b"/dev/null"
_INSTALLED = re.compile(r"(?:^|.*/)(?:site-packages|dist-packages)/(?=[A-Za-z_])")
_PREFIXES: dict[str, Callable[[str], str]] = {
    "": lambda path: path,
    "…/python/sglang/ is python/sglang/": lambda path: _from(path, "python/sglang/"),
    "site-packages/sglang/ is python/sglang/": lambda path: _installed(path),
    "sglang/ is python/sglang/": lambda path: "python/" + path if path.startswith("sglang/") else path,
    "srt/ is python/sglang/srt/": lambda path: "python/sglang/" + path if path.startswith("srt/") else path,
}


@dataclass(frozen=True)
class Reading:
    """How a patch's paths are meant.

    Args:
        strip: leading components to take off (``patch -pN``).
        prefix: what is put in their place, in words; empty where nothing is.
    """

    strip: int
    prefix: str

    def path(self, written: str) -> str:
        """The path in the release for a path of the patch."""
        parts = written.lstrip("/").split("/")
        return _PREFIXES[self.prefix]("/".join(parts[self.strip :]))

    def __str__(self) -> str:
        return ", ".join(part for part in (f"-p{self.strip}", self.prefix) if part)


ORDINARY = Reading(1, "")


def find_reading(diff: bytes, known: Collection[str], where: str, strip: int | None = None) -> Reading:
    """The reading under which most of the patch's files are there.

    Args:
        diff: the diff as written.
        known: every path of the release, and those that the series makes.
        where: name of the patch, for errors.
        strip: the strip level, where the source says so.

    Raises:
        InvalidInput: under no reading is one of its files, or a new file's directory, there.
    """
    old, new = _written(diff)
    directories = {directory for path in known for directory in _above(path)}
    levels = [strip] if strip is not None else [1, 0, 2, 3, 4, 5, 6, 7, 8]
    best, score = None, 0
    # What only takes leading parts off is likelier than what also puts others there.
    for prefix in _PREFIXES:
        for level in levels:
            reading = Reading(level, prefix)
            there = sum(reading.path(path) in known for path in old)
            homes = directories if reading == ORDINARY else directories - {""}
            near = sum(not homes.isdisjoint(_above(reading.path(path))) for path in new)
            here = there * 1000 + near
            if here > score:
                best, score = reading, here
    if best is None:
        raise InvalidInput(
            "no file of the patch is in the release, whatever is taken off its paths",
            where=where,
            found=", ".join(sorted({*old, *new})[:5]),
            hint="is it a patch for this release, and for SGLang? name the level with --strip N",
        )
    return best


def _above(path: str) -> list[str]:
    """Every directory that a path is in; the root is the empty one."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts))]


def rewrite(diff: bytes, reading: Reading) -> bytes:
    """The diff with its paths as ``a/…`` and ``b/…`` of the release."""
    if reading == ORDINARY:
        return diff
    lines = split(diff)
    inside = {number for span in hunk_spans(lines) for number in range(span.header, span.end)}
    out: list[bytes] = []
    for number, line in enumerate(lines):
        out.append(line if number in inside else _header(line.rstrip(b"\n"), reading) + b"\n")
    return b"".join(out)


def _header(line: bytes, reading: Reading) -> bytes:
    for key, side in ((b"--- ", b"a/"), (b"+++ ", b"b/")):
        if line.startswith(key):
            name, tab, stamp = line[len(key) :].partition(b"\t")
            return line if name == _NULL else key + _quoted(side, name, reading) + tab + stamp
    for key in (b"rename from ", b"rename to ", b"copy from ", b"copy to "):
        if line.startswith(key):
            # These are written without a/ and b/.
            bare = Reading(max(reading.strip - 1, 0), reading.prefix)
            return key + _quoted(b"", line[len(key) :], bare)
    if line.startswith(b"diff --git "):
        old, new = _both(line)
        return b"diff --git " + _quoted(b"a/", old, reading) + b" " + _quoted(b"b/", new, reading)
    return line


def _quoted(side: bytes, written: bytes, reading: Reading) -> bytes:
    return quoted_path(side + reading.path(unquote_path(written)).encode("utf-8", "surrogateescape"))


def _both(line: bytes) -> tuple[bytes, bytes]:
    """The two paths of a ``diff --git`` line; where blanks make that unclear, the middle one divides."""
    rest = line[len(b"diff --git ") :]
    if match := re.fullmatch(rb'("(?:[^"\\]|\\.)*"|\S+) ("(?:[^"\\]|\\.)*"|\S+)', rest):
        return match[1], match[2]
    half = len(rest) // 2
    return rest[:half], rest[half + 1 :]


def _written(diff: bytes) -> tuple[set[str], set[str]]:
    """Paths of files that must be there, and of files that are made."""
    lines = split(diff)
    inside = {number for span in hunk_spans(lines) for number in range(span.header, span.end)}
    headers = [line.rstrip(b"\n") for number, line in enumerate(lines) if number not in inside]
    old: set[str] = set()
    new: set[str] = set()
    for number, line in enumerate(headers):
        name = line[4:].split(b"\t")[0]
        if line.startswith(b"--- ") and name != _NULL:
            old.add(unquote_path(name))
        elif line.startswith(b"+++ ") and name != _NULL and headers[number - 1].startswith(b"--- /dev/null"):
            new.add(unquote_path(name))
        elif line.startswith((b"rename from ", b"copy from ")):
            old.add("a/" + unquote_path(line.partition(b" from ")[2]))  # written without a/
        elif line.startswith(b"diff --git ") and not _has_names(headers[number + 1 :]):
            created = any(h.startswith(b"new file mode") for h in _section(headers[number + 1 :]))
            (new if created else old).add(unquote_path(_both(line)[0]))
    return old, new


def _section(headers: Sequence[bytes]) -> list[bytes]:
    end = next((n for n, line in enumerate(headers) if line.startswith(b"diff --git ")), len(headers))
    return list(headers[:end])


def _has_names(headers: Sequence[bytes]) -> bool:
    return any(line.startswith((b"--- ", b"rename from ", b"copy from ")) for line in _section(headers))


def _from(path: str, part: str) -> str:
    at = path.find(part)
    return path[at:] if at > 0 and path[at - 1] == "/" else path


def _installed(path: str) -> str:
    match = _INSTALLED.match(path)
    if match is None:
        return path
    rest = path[match.end() :]
    return f"python/{rest}" if rest.startswith("sglang/") else f"site-packages/{rest}"
