"""Diffs as values: what ``git diff`` writes, read without losing a byte.

unidiff parses the hunks. What it passes over (git's extended headers with quoted paths, a hunk whose
counts are wrong, text left between two hunks) is read and judged here, with the line it stands on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from builder.errors import InvalidInput

Kind = Literal["modify", "create", "delete", "rename", "copy"]

MAX_DIFF_BYTES = 16 << 20
NULL_BLOB = "0" * 40

_INDEX = re.compile(rb"index ([0-9a-f]{4,64})\.\.([0-9a-f]{4,64})(?: ([0-7]{6}))?\Z")
HUNK_HEADER = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}
_MAIL = re.compile(rb"From [0-9a-f]{40} ")
_MODES = frozenset({"100644", "100755", "120000"})


@dataclass(frozen=True)
class Hunk:
    """One hunk: where it says it starts (lines count from 1) and its lines, prefix included.

    Args:
        old_start, old_count: line and number of lines in the pre-image.
        new_start, new_count: the same in the post-image.
        section: what stands behind the second ``@@``.
        lines: ``b" context\\n"``, ``b"-removed\\n"``, ``b"+added\\n"``; a last line of a file without a
            newline has none here either.
        patch_line: the line of the patch file its header stands on, from 1.
    """

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    section: bytes
    lines: tuple[bytes, ...]
    patch_line: int

    @property
    def old(self) -> list[bytes]:
        """The lines it expects in the pre-image (context and removed)."""
        return [line[1:] for line in self.lines if line[:1] != b"+"]

    @property
    def new(self) -> list[bytes]:
        """The lines it leaves in the post-image (context and added)."""
        return [line[1:] for line in self.lines if line[:1] != b"-"]

    @property
    def leading_context(self) -> int:
        """Number of context lines before the first change."""
        return next((n for n, line in enumerate(self.lines) if line[:1] != b" "), len(self.lines))

    @property
    def trailing_context(self) -> int:
        """Number of context lines after the last change."""
        return next((n for n, line in enumerate(reversed(self.lines)) if line[:1] != b" "), len(self.lines))


@dataclass(frozen=True)
class FileDiff:
    """What a patch does to one file.

    Args:
        kind: what happens to the file.
        old_path, new_path: paths from the repository's root; equal unless renamed or copied.
        old_mode, new_mode: ``100644``, ``100755`` or ``120000``; None where the diff does not say.
        old_blob, new_blob: blob ids of the index line as written (may be abbreviated); None without one.
        hunks: in the order of the patch.
        binary: a binary change, with or without its data.
        patch_line: the line of the patch file it starts on, from 1.
    """

    kind: Kind
    old_path: str
    new_path: str
    old_mode: str | None
    new_mode: str | None
    old_blob: str | None
    new_blob: str | None
    hunks: tuple[Hunk, ...]
    binary: bool
    patch_line: int

    @property
    def path(self) -> str:
        """The path people know the file by: the new one, unless it is deleted."""
        return self.old_path if self.kind == "delete" else self.new_path


def parse_diff(data: bytes, *, where: str, first_line: int = 1) -> tuple[FileDiff, ...]:
    """Read the diff part of a patch.

    Args:
        data: from the first ``diff --git`` (or ``---``) line on.
        where: name of the patch, for errors.
        first_line: the line of the patch file on which ``data`` begins.

    Raises:
        InvalidInput: with patch, line and both counts where a hunk's counts are wrong.
    """
    if len(data) > MAX_DIFF_BYTES:
        raise InvalidInput(
            "patch is too large",
            where=where,
            expected=f"at most {MAX_DIFF_BYTES} bytes",
            found=f"{len(data)} bytes",
        )
    lines = data.split(b"\n")
    tail = lines.pop()
    lines = [line + b"\n" for line in lines] + ([tail] if tail else [])
    sections = list(_sections(lines, where, first_line))
    if not sections:
        raise InvalidInput(
            "patch has no diff", where=where, hint="write it with: git format-patch --full-index"
        )
    return tuple(_file_diff(lines[start:end], where, first_line + start) for start, end in sections)


def unquote_path(raw: bytes) -> str:
    """A path as git writes it in a diff, C-quoted or plain, as text (``os.fsdecode``'s surrogates)."""
    if raw.startswith(b'"') and raw.endswith(b'"') and len(raw) >= 2:
        raw = re.sub(rb'\\([abtnvfr"\\]|[0-3][0-7]{2})', _unescape, raw[1:-1])
    return raw.decode("utf-8", "surrogateescape")


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match.group(1)
    return bytes([_ESCAPES[code] if code in _ESCAPES else int(code, 8)])


def _sections(lines: list[bytes], where: str, first_line: int) -> Iterator[tuple[int, int]]:
    """Where each file's part begins and ends; hunk bodies are stepped over by their counts."""
    starts: list[int] = []
    number = 0
    has_git_headers = any(line.startswith(b"diff --git ") for line in lines)
    while number < len(lines):
        line = lines[number]
        if line.startswith(b"@@ ") and (match := HUNK_HEADER.match(line)):
            number += 1 + body_length(lines, number + 1, match)
            continue
        if _MAIL.match(line):
            raise InvalidInput(
                "patch holds more than one mail",
                where=f"{where}, line {first_line + number}",
                expected="one patch a file",
                hint="overlay patch import makes a patch of each, or one of all of them with --squash",
            )
        plain = line.startswith(b"--- ") and number + 1 < len(lines) and lines[number + 1].startswith(b"+++ ")
        if line.startswith(b"diff --git ") or (plain and not has_git_headers):
            starts.append(number)
        number += 1
    if starts and starts[0] == 0:
        yield from zip(starts, [*starts[1:], len(lines)], strict=True)


def hunk_counts(match: re.Match[bytes]) -> tuple[int, int, int, int]:
    """Start and number of lines, old and new, of a matched :data:`HUNK_HEADER`."""
    old_start, old_count, new_start, new_count = match.groups()
    return (
        int(old_start),
        1 if old_count is None else int(old_count),
        int(new_start),
        1 if new_count is None else int(new_count),
    )


def body_length(lines: Sequence[bytes], start: int, match: re.Match[bytes]) -> int:
    """How many lines belong to the hunk by its own counts, as far as there are such lines."""
    _, old, _, new = hunk_counts(match)
    number = start
    while number < len(lines) and (old > 0 or new > 0):
        sign = _sign(lines[number])
        if sign is None:
            break
        old -= sign in b" -"
        new -= sign in b" +"
        number += 1
        if number < len(lines) and lines[number].startswith(b"\\ "):
            number += 1
    return number - start


def _sign(line: bytes) -> bytes | None:
    """A hunk line's first character; an empty line is context whose lone space an editor removed."""
    if line in (b"\n", b"\r\n"):
        return b" "
    return line[:1] if line[:1] in (b" ", b"+", b"-") else None


def _file_diff(lines: list[bytes], where: str, first_line: int) -> FileDiff:
    if lines[0].endswith(b"\r\n"):
        raise InvalidInput(
            "patch has CRLF line endings",
            where=f"{where}, line {first_line}",
            expected="LF endings in the patch's own headers",
            found="CRLF",
            hint="something changed them: restore the file, and mark *.patch -text in .gitattributes",
        )
    header_end = next((n for n, line in enumerate(lines) if line.startswith(b"@@ ")), len(lines))
    header = [line.rstrip(b"\n") for line in lines[:header_end]]
    without_hunks = _read_header(header, where, first_line)
    if header_end == len(lines):
        return without_hunks
    return replace(without_hunks, hunks=_parse_hunks(lines[header_end:], where, first_line + header_end))


def _read_header(header: list[bytes], where: str, first_line: int) -> FileDiff:
    """What git's extended header lines say of a file (git-diff(1), "generating patch text"); no hunks yet."""
    said: dict[str, bytes] = {}
    old_blob: str | None = None
    new_blob: str | None = None
    keys = (
        b"old mode ", b"new mode ", b"deleted file mode ", b"new file mode ",
        b"rename from ", b"rename to ", b"copy from ", b"copy to ", b"--- ", b"+++ ",
    )  # fmt: skip
    for line in header:
        if match := _INDEX.match(line):
            old_blob, new_blob = match[1].decode(), match[2].decode()
            if match[3]:
                said.setdefault("old mode", match[3])
                said.setdefault("new mode", match[3])
        for prefix in keys:
            if line.startswith(prefix):
                said[prefix.decode().strip()] = line[len(prefix) :]
    kind, old, new = _kind_and_paths(header[0], said, where, first_line)
    return FileDiff(
        kind=kind,
        old_path=old,
        new_path=new,
        old_mode=_mode(said.get("deleted file mode", said.get("old mode")), where, first_line),
        new_mode=_mode(said.get("new file mode", said.get("new mode")), where, first_line),
        old_blob=old_blob,
        new_blob=new_blob,
        hunks=(),
        binary=any(line.startswith((b"GIT binary patch", b"Binary files ")) for line in header),
        patch_line=first_line,
    )


def _mode(said: bytes | None, where: str, line: int) -> str | None:
    """A mode of a regular file or a link, if one is said."""
    if said is None:
        return None
    mode = said.decode(errors="replace")
    if mode not in _MODES:
        raise InvalidInput(
            "patch has a file mode that is no regular file's",
            where=f"{where}, line {line}",
            expected=", ".join(sorted(_MODES)),
            found=mode,
        )
    return mode


def _kind_and_paths(first: bytes, said: dict[str, bytes], where: str, line: int) -> tuple[Kind, str, str]:
    old: str | None
    new: str | None
    old, new = _header_paths(first)
    for key, is_old in (("---", True), ("+++", False)):
        if key in said and (name := said[key].split(b"\t")[0]) != b"/dev/null":
            path = _strip_prefix(unquote_path(name), where, line)
            old, new = (path, new) if is_old else (old, path)
    kind: Kind = "modify"
    if "new file mode" in said or said.get("---", b"").split(b"\t")[0] == b"/dev/null":
        kind, old = "create", new
    elif "deleted file mode" in said or said.get("+++", b"").split(b"\t")[0] == b"/dev/null":
        kind, new = "delete", old
    elif "rename from" in said and "rename to" in said:
        kind, old, new = "rename", unquote_path(said["rename from"]), unquote_path(said["rename to"])
    elif "copy from" in said and "copy to" in said:
        kind, old, new = "copy", unquote_path(said["copy from"]), unquote_path(said["copy to"])
    for checked in (old, new):
        check_path(checked, where=f"{where}, line {line}")
    return kind, old or "", new or ""


def check_path(path: str | None, *, where: str) -> None:
    """Refuse a path that is empty, absolute, or leaves the tree.

    Raises:
        InvalidInput: with the path and what is wrong with it.
    """
    parts = (path or "").split("/")
    bad = not path or path.startswith("/") or "\0" in path or "\n" in path
    if bad or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
        raise InvalidInput(
            "patch names a path outside the tree",
            where=where,
            expected="a path below the repository's root, with a/ and b/ prefixes",
            found=repr(path or ""),
            hint="write the patch with: git format-patch --full-index (not --no-prefix)",
        )


def _strip_prefix(path: str, where: str, line: int) -> str:
    _, slash, rest = path.partition("/")
    if not slash:
        check_path(None, where=f"{where}, line {line}: {path!r}")
    return rest


def _header_paths(first: bytes) -> tuple[str | None, str | None]:
    """The paths of a ``diff --git`` line; only certain where both are the same file."""
    if not first.startswith(b"diff --git "):
        return None, None
    rest = first[len(b"diff --git ") :]
    if rest.startswith(b'"') and (match := re.match(rb'("(?:[^"\\]|\\.)*") (.*)\Z', rest)):
        return unquote_path(match[1]).partition("/")[2], unquote_path(match[2]).partition("/")[2]
    half = len(rest) // 2
    if (
        rest[half : half + 1] == b" "
        and rest[:half].partition(b"/")[2] == rest[half + 1 :].partition(b"/")[2]
    ):
        path = unquote_path(rest[:half]).partition("/")[2]
        return path, path
    return None, None


def _parse_hunks(lines: list[bytes], where: str, first_line: int) -> tuple[Hunk, ...]:
    from unidiff.errors import UnidiffParseError
    from unidiff.patch import PatchSet

    body = b"".join(lines)
    if not body.endswith(b"\n"):
        body += b"\n"
    text = "--- a/f\n+++ b/f\n" + body.decode("latin-1")
    try:
        (parsed,) = PatchSet(text)
    except (UnidiffParseError, ValueError) as error:
        raise _diagnosed(lines, where, first_line) or InvalidInput(
            "patch has hunks that cannot be read", where=f"{where}, line {first_line}", found=str(error)
        ) from error
    hunks = []
    position = 0
    for hunk in parsed:
        body_lines = _joined(hunk)
        match = HUNK_HEADER.match(lines[position])
        section = lines[position][match.end() :].strip() if match else b""
        counts = (hunk.source_start, hunk.source_length, hunk.target_start, hunk.target_length)
        hunks.append(Hunk(*counts, section, tuple(body_lines), first_line + position))
        position += 1 + len(hunk)
        if position < len(lines) and not lines[position].startswith(b"@@ "):
            break
    _check_rest(lines, position, where, first_line)
    return tuple(hunks)


def _joined(hunk: Iterable[Any]) -> Iterator[bytes]:
    """A unidiff hunk's lines; a ``\\ No newline`` marker takes the newline from the line before it."""
    held: bytes | None = None
    for line in hunk:
        if line.line_type == "\\":
            held = held.removesuffix(b"\n") if held is not None else None
            continue
        if held is not None:
            yield held
        held = line.line_type.encode("latin-1") + line.value.encode("latin-1")
    if held is not None:
        yield held


def _check_rest(lines: list[bytes], position: int, where: str, first_line: int) -> None:
    """Only a mail signature or blank lines may follow the last hunk: lines it does not count are lost."""
    rest = lines[position:]
    if rest and rest[0].rstrip(b"\r\n") in (b"--", b"-- "):
        return
    if any(line.strip() for line in rest):
        raise _diagnosed(lines, where, first_line) or InvalidInput(
            "patch has text that belongs to no hunk",
            where=f"{where}, line {first_line + position}",
            found=rest[0].decode("utf-8", "replace").rstrip(),
        )


def _wanted(match: re.Match[bytes]) -> tuple[int, int]:
    _, old, _, new = hunk_counts(match)
    return old, new


def _diagnosed(lines: list[bytes], where: str, first_line: int) -> InvalidInput | None:
    """The first hunk whose header counts differ from its lines, as an error naming both counts."""
    number = 0
    for match_number, match in enumerate((m for line in lines if (m := HUNK_HEADER.match(line))), 1):
        while not HUNK_HEADER.match(lines[number]):
            number += 1
        header, start = number, number + 1
        number = start
        old = new = 0
        while number < len(lines) and not lines[number].startswith((b"@@ ", b"diff --git ")):
            if (old, new) == _wanted(match) and lines[number].rstrip(b"\r\n") in (b"-- ", b"--"):
                break
            sign = _sign(lines[number])
            if sign is None and not lines[number].startswith(b"\\"):
                break
            old += sign in (b" ", b"-")
            new += sign in (b" ", b"+")
            number += 1
        want_old, want_new = _wanted(match)
        if (old, new) != (want_old, want_new):
            return InvalidInput(
                "hunk's counts do not match its lines",
                where=f"{where}, hunk {match_number}, line {first_line + header}",
                expected=f"{want_old} old and {want_new} new lines, by its header",
                found=f"{old} old and {new} new lines",
                hint="overlay patch refresh writes the counts anew, after showing the change",
                facts={"line": first_line + header, "hunk": match_number},
            )
    return None
