"""Diffs as values: what ``git diff`` writes, read without losing a byte.

unidiff parses the hunks. What it passes over (git's extended headers with quoted paths, a hunk whose
counts are wrong, text left between two hunks, a file of which only the headers are left) is read and judged
here, with the line it stands on: a part of a patch is never passed over in silence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from builder.errors import InvalidInput

Kind = Literal["modify", "create", "delete", "rename", "copy"]

MAX_DIFF_BYTES = 16 << 20
NULL_BLOB = "0" * 40
MAX_NAME_BYTES = 255
"""What Linux's file systems take as one name."""
MAX_PATH_BYTES = 3072
"""Linux takes 4,096 bytes; the rest is for the place where the tree is put."""
MAX_DEPTH = 200
FULL_CONTEXT = 3
"""Lines of context that git gives on each side of a change."""

_INDEX = re.compile(rb"index ([0-9a-f]{4,64})\.\.([0-9a-f]{4,64})(?: ([0-7]{6}))?\Z")
HUNK_HEADER = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}
_MAIL = re.compile(rb"From [0-9a-f]{40} ")
_EPOCH = re.compile(rb"\t(19(?:69-12-31|70-01-01) \d\d:\d\d:\d\d)(?:\.0+)? ([+-]\d{4})\s*\Z")
_DAMAGED_OPENING = re.compile(rb"[^A-Za-z0-9\n]{1,8}diff --git ")
GIT_HEADERS = (
    b"index ", b"old mode ", b"new mode ", b"deleted file mode ", b"new file mode ", b"similarity index ",
    b"dissimilarity index ", b"rename from ", b"rename to ", b"copy from ", b"copy to ", b"--- ", b"+++ ",
    b"Binary files ", b"GIT binary patch",
)  # fmt: skip
EMPTY_BLOB = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
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
        InvalidInput: with patch, line and both counts where a hunk's counts are wrong; where a file's part
            changes nothing, or something in it is neither header nor hunk.
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
    in_header = False
    while number < len(lines):
        line = lines[number]
        if line.startswith(b"@@ ") and (match := HUNK_HEADER.match(line)):
            number += 1 + body_length(lines, number + 1, match)
            in_header = False
            continue
        if _MAIL.match(line):
            raise InvalidInput(
                "patch holds more than one mail",
                where=f"{where}, line {first_line + number}",
                expected="one patch a file",
                hint="overlay patch import makes a patch of each, or one of all of them with --squash",
            )
        check_opening(line, where, first_line + number)
        if line.startswith(b"diff --git "):
            starts.append(number)
            in_header = True
        elif (
            line.startswith(b"--- ")
            and lines[number + 1 : number + 2]
            and lines[number + 1].startswith(b"+++ ")
        ):
            # The names of the file whose header this is, else a file of its own, as diff -u writes it.
            if not in_header:
                starts.append(number)
            in_header = False
            number += 1
        elif not line.startswith(GIT_HEADERS):
            in_header = False
        number += 1
    if starts and starts[0] == 0:
        yield from zip(starts, [*starts[1:], len(lines)], strict=True)


def check_opening(line: bytes, where: str, number: int) -> None:
    """Refuse a line that was ``diff --git`` once, and has something before it now.

    Args:
        line: a line that belongs to no hunk.
        where: name of the patch, for the error.
        number: the line's number, from 1.

    Raises:
        InvalidInput: naming it; what follows would be taken for a part of another file, or for prose.
    """
    if is_damaged_opening(line):
        raise InvalidInput(
            "the line that begins a file's part is damaged",
            where=f"{where}, line {number}",
            expected="diff --git a/PATH b/PATH, at the line's beginning",
            found=shown(line),
            hint="take out what stands before it, or get the patch again",
        )


def is_damaged_opening(line: bytes) -> bool:
    """Whether a line was ``diff --git`` once, and has something before it now."""
    return _DAMAGED_OPENING.match(line) is not None


def check_head(lines: Sequence[bytes], where: str) -> None:
    """Refuse a part of a diff among the lines before it: its first line was damaged, and it would be prose.

    Args:
        lines: all before the diff: a mail's head and message, or any text.
        where: name of the patch, for errors.

    Raises:
        InvalidInput: a damaged opening has a git header behind it, or a hunk stands where no message is.
    """
    is_mail = bool(lines) and lines[0].startswith((b"From ", b"From: ", b"Subject: ", b"Date: "))
    rule = next((n for n, line in enumerate(lines) if is_mail and line.rstrip() == b"---"), -1)
    for number, line in enumerate(lines):
        if number + 1 < len(lines) and lines[number + 1].startswith(GIT_HEADERS):
            check_opening(line, where, number + 1)
        if number > rule and HUNK_HEADER.match(line):
            raise InvalidInput(
                "a hunk stands before the first file",
                where=f"{where}, line {number + 1}",
                expected="diff --git a/PATH b/PATH, or --- and +++ with the file's name, before it",
                found=shown(line),
            )


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
        if sign is None or _is_next_file(lines, number):
            break
        if is_signature(lines, number) and (old, new) != (1, 0):
            break
        old -= sign in b" -"
        new -= sign in b" +"
        number += 1
        if number < len(lines) and lines[number].startswith(b"\\ "):
            number += 1
    return number - start


def _is_next_file(lines: Sequence[bytes], at: int) -> bool:
    """Whether a file's part without ``diff --git`` begins here: no hunk line can follow its two names."""
    names = (b"--- ", b"+++ ", b"@@ -")
    return len(lines) >= at + 3 and all(map(bytes.startswith, lines[at : at + 3], names))


def is_signature(lines: Sequence[bytes], at: int) -> bool:
    """Whether a mail's signature begins here: ``-- ``, and behind it no line that a diff could have."""
    if at >= len(lines) or lines[at].rstrip(b"\r\n") not in (b"-- ", b"--"):
        return False
    rest = next((line for line in lines[at + 1 : at + 4] if line.strip()), b"")
    return not rest.startswith((b" ", b"+", b"-", b"@", b"\\", b"diff ", *GIT_HEADERS))


def check_signature(lines: Sequence[bytes], where: str, first_line: int) -> None:
    """Nothing of a diff may stand behind a mail's signature: it would be lost.

    Args:
        lines: the signature and all that follows it.
        where: name of the patch, for errors.
        first_line: the line of the patch file that they begin on.

    Raises:
        InvalidInput: with the first line that belongs to a diff.
    """
    for number, line in enumerate(lines[1:], first_line + 1):
        if line.startswith((b"diff --git ", b"@@ ", *GIT_HEADERS)):
            raise InvalidInput(
                "a part of the diff stands behind a mail's signature",
                where=f"{where}, line {number}",
                expected="the end of the patch behind the line --",
                found=shown(line),
            )


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
    header_end = next((n for n, line in enumerate(lines) if HUNK_HEADER.match(line)), len(lines))
    header = [line.rstrip(b"\n") for line in lines[:header_end]]
    without_hunks = _read_header(header, where, first_line)
    if without_hunks.binary:
        _check_binary(header, where, first_line)
    else:
        _check_header(header, where, first_line, has_hunks=header_end < len(lines))
    if header_end == len(lines):
        _check_changes(without_hunks, header, where)
        return without_hunks
    hunks = _parse_hunks(lines[header_end:], where, first_line + header_end)
    if without_hunks.kind == "modify" and len(hunks) == 1:
        # As diff -N writes a file that is not there: with the time zero, and without a line.
        if not hunks[0].old and _is_epoch(header[-2]):
            without_hunks = replace(without_hunks, kind="create")
        elif not hunks[0].new and _is_epoch(header[-1]):
            without_hunks = replace(without_hunks, kind="delete")
    kept = {"create": [hunk.old for hunk in hunks], "delete": [hunk.new for hunk in hunks]}
    if any(kept.get(without_hunks.kind, ())):
        raise InvalidInput(
            "a file that is made, or deleted, has lines that are kept",
            where=f"{where}, line {first_line}",
            expected="only added lines in a new file, and only removed ones in a deleted file",
            found=f"{without_hunks.kind} {without_hunks.path}",
        )
    return replace(without_hunks, hunks=hunks)


def _is_epoch(name: bytes) -> bool:
    """Whether a ``---`` or ``+++`` line dates its file to the beginning of 1970, in any time zone."""
    match = _EPOCH.search(name)
    if match is None:
        return False
    try:
        return datetime.strptime(match[1].decode(), "%Y-%m-%d %H:%M:%S").replace(
            tzinfo=UTC
        ).timestamp() == _offset(match[2])
    except ValueError:
        return False


def _offset(zone: bytes) -> int:
    seconds = int(zone[1:3]) * 3600 + int(zone[3:5]) * 60
    return -seconds if zone[:1] == b"-" else seconds


def _check_header(header: list[bytes], where: str, first_line: int, *, has_hunks: bool) -> None:
    """A file's part has git's own lines, then ``---`` and ``+++``, then hunks; or git's own lines alone."""
    ended = False
    for number, line in enumerate(header[1:], 1):
        at = f"{where}, line {first_line + number}"
        if line.startswith(b"@@"):
            raise InvalidInput(
                "hunk's first line cannot be read",
                where=at,
                expected="@@ -LINE,COUNT +LINE,COUNT @@",
                found=shown(line),
            )
        if is_signature(header, number) and not has_hunks:
            check_signature(header[number:], where, first_line + number)
            return
        ended = ended or not line.strip()
        if line.strip() and (ended or not line.startswith(GIT_HEADERS)):
            raise InvalidInput("patch has text that belongs to no hunk", where=at, found=shown(line))
    names = [line[:4] for line in header if line.startswith((b"--- ", b"+++ "))]
    if has_hunks and (ended or names != [b"--- ", b"+++ "] or header[-2][:4] != b"--- "):
        raise InvalidInput(
            "hunks do not follow the names of their file",
            where=f"{where}, line {first_line}",
            expected="--- a/PATH, +++ b/PATH, and then the first hunk",
            found=shown(header[-1]),
        )


def _check_binary(header: list[bytes], where: str, first_line: int) -> None:
    """A binary change says so in one line, or has its data behind that line."""
    at = next((n for n, line in enumerate(header) if line.startswith(b"GIT binary patch")), None)
    if at is not None and not (
        header[at + 1 : at + 2] and header[at + 1].startswith((b"literal ", b"delta "))
    ):
        raise InvalidInput(
            "binary change has no data",
            where=f"{where}, line {first_line + at}",
            expected="literal SIZE or delta SIZE, and the data",
            hint="get the patch again: git diff --binary writes the data",
        )


def _check_changes(diff: FileDiff, header: list[bytes], where: str) -> None:
    """A file's part without hunks must be one that git writes without: else its hunks are lost."""
    mode = diff.old_mode != diff.new_mode and None not in (diff.old_mode, diff.new_mode)
    whole = diff.binary or diff.kind != "modify" or mode
    blobs = {"create": (diff.new_blob,), "delete": (diff.old_blob,)}.get(diff.kind)
    if blobs is None:
        same = diff.old_blob == diff.new_blob
    else:
        same = all(blob is None or EMPTY_BLOB.startswith(blob) for blob in blobs)
    named = any(line.startswith((b"--- ", b"+++ ")) for line in header[1:])
    if diff.binary or (whole and same and not named):
        return
    raise InvalidInput(
        "a file's part of the patch has no hunk: what it changed is lost",
        where=f"{where}, line {diff.patch_line}",
        expected="hunks; or a change of mode, a rename, a copy, an empty file",
        found=f"only the headers of {diff.path}",
        hint="get the patch again, or take the headers out",
        facts={"line": diff.patch_line},
    )


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
            "patch has a file mode that is not a regular file's",
            where=f"{where}, line {line}",
            expected=", ".join(sorted(_MODES)),
            found=mode,
        )
    return mode


def _kind_and_paths(first: bytes, said: dict[str, bytes], where: str, line: int) -> tuple[Kind, str, str]:
    old: str | None
    new: str | None
    fates = [key for key in ("new file mode", "deleted file mode", "rename to", "copy to") if key in said]
    if len(fates) > 1:
        raise InvalidInput(
            "a file's part of the patch says two things of one file",
            where=f"{where}, line {line}",
            expected="a new file, a deleted one, a rename or a copy",
            found=" and ".join(fates),
        )
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
    _check_names(kind, (old, new), _header_paths(first), said, f"{where}, line {line}")
    return kind, old or "", new or ""


def _check_names(
    kind: Kind,
    paths: tuple[str | None, str | None],
    header: tuple[str | None, str | None],
    said: dict[str, bytes],
    where: str,
) -> None:
    """All lines that name a file must name the same: git refuses others, and which is meant is a guess."""
    written = [said[key].split(b"\t")[0] for key in ("---", "+++") if key in said]
    names = {unquote_path(name).partition("/")[2] for name in written if name != b"/dev/null"}
    names |= {path for path in header if path is not None and kind in ("modify", "create", "delete")}
    moves = ("rename from", "rename to", "copy from", "copy to")
    names |= {unquote_path(said[key]) for key in moves if key in said}
    if other := sorted(names - set(paths)) or (kind == "modify" and paths[0] != paths[1] and sorted(names)):
        raise InvalidInput(
            "a file's part of the patch names two files",
            where=where,
            expected=paths[1],
            found=", ".join(other),
            hint="write one path in all of its header lines, or name the change as a rename",
        )


def check_path(path: str | None, *, where: str) -> None:
    """Refuse a path that is empty, absolute, leaves the tree, or is one that no file system takes.

    Raises:
        InvalidInput: with the path and what is wrong with it.
    """
    parts = (path or "").split("/")
    longest = max(len(os.fsencode(part)) for part in parts)
    if longest > MAX_NAME_BYTES or len(os.fsencode(path or "")) > MAX_PATH_BYTES or len(parts) > MAX_DEPTH:
        raise InvalidInput(
            "patch names a path that is too long",
            where=where,
            expected=f"at most {MAX_NAME_BYTES} bytes a name, {MAX_PATH_BYTES} in all, {MAX_DEPTH} names",
            found=f"{longest} bytes in one name, {len(os.fsencode(path or ''))} in all, {len(parts)} names: "
            f"{(path or '')[:100]!r}…",
        )
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

    end = _checked_end(lines, where, first_line)
    body = b"".join(lines[:end])
    if not body.endswith(b"\n"):
        body += b"\n"
    text = "--- a/f\n+++ b/f\n" + body.decode("latin-1")
    try:
        (parsed,) = PatchSet(text)
    except (UnidiffParseError, ValueError) as error:
        raise InvalidInput(
            "patch has hunks that cannot be read", where=f"{where}, line {first_line}", found=str(error)
        ) from error
    hunks = []
    position = 0
    for hunk in parsed:
        body_lines = tuple(_joined(hunk))
        match = HUNK_HEADER.match(lines[position])
        section = lines[position][match.end() :].strip() if match else b""
        counts = (hunk.source_start, hunk.source_length, hunk.target_start, hunk.target_length)
        hunks.append(Hunk(*counts, section, body_lines, first_line + position))
        position += 1 + len(hunk)
    return tuple(hunks)


def _checked_end(lines: list[bytes], where: str, first_line: int) -> int:
    """How many lines the hunks are that stand one after the other, each with the lines it counts."""
    number = 0
    count = 0
    while number < len(lines) and (match := HUNK_HEADER.match(lines[number])):
        count += 1
        check_counts(lines, number, where, count, first_line)
        end = number + 1 + body_length(lines, number + 1, match)
        body = lines[number + 1 : end]
        if not any(line[:1] in (b"+", b"-") for line in body):
            raise InvalidInput(
                "hunk changes nothing: it has no removed and no added line",
                where=f"{where}, hunk {count}, line {first_line + number}",
                facts={"line": first_line + number},
            )
        number = end
    _check_rest(lines, number, where, first_line)
    return number


def check_counts(lines: Sequence[bytes], header: int, where: str, number: int, first_line: int = 1) -> None:
    """A hunk must have the lines that it counts, and no line behind it that looks like one more.

    Args:
        lines: of the patch.
        header: the index of the hunk's first line.
        where: name of the patch, for errors.
        number: of the hunk in its file, from 1.
        first_line: the line of the patch file that ``lines`` begin on.

    Raises:
        InvalidInput: naming both counts, and whether the patch is cut off.
    """
    match = HUNK_HEADER.match(lines[header])
    if match is None:
        return
    end = header + 1 + body_length(lines, header + 1, match)
    if count_lines(lines[header + 1 : end]) != _wanted(match) or _is_surplus(lines, end):
        raise _miscounted(lines, header, match, where, first_line, number)


def count_lines(body: Iterable[bytes]) -> tuple[int, int]:
    """How many old and new lines a hunk's body has."""
    signs = [_sign(line) for line in body]
    return sum(s in (b" ", b"-") for s in signs), sum(s in (b" ", b"+") for s in signs)


def _is_surplus(lines: Sequence[bytes], at: int) -> bool:
    """Whether a line behind a hunk looks like one more of it."""
    if (
        at >= len(lines)
        or is_signature(lines, at)
        or _is_next_file(lines, at)
        or is_damaged_opening(lines[at])
    ):
        return False
    return bool(lines[at].strip()) and _sign(lines[at]) is not None


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
    if is_signature(rest, 0):
        check_signature(rest, where, first_line + position)
        return
    for number, line in enumerate(rest):
        if line.strip():
            raise InvalidInput(
                "patch has text that belongs to no hunk",
                where=f"{where}, line {first_line + position + number}",
                found=shown(line),
            )


def shown(line: bytes) -> str:
    """A line of a patch, for an error."""
    return line.decode("utf-8", "replace").rstrip()[:200]


def _wanted(match: re.Match[bytes]) -> tuple[int, int]:
    _, old, _, new = hunk_counts(match)
    return old, new


def lost_blanks(lines: Sequence[bytes], header: int, match: re.Match[bytes]) -> int:
    """How many blank context lines a mailer or an editor cut off a hunk, the last of its file; 0 for none.

    It is the last hunk, it lacks as many old lines as new ones, and its context is begun and not complete.

    Args:
        lines: of the patch.
        header: the index of the hunk's first line.
        match: that line, matched.
    """
    end = header + 1 + body_length(lines, header + 1, match)
    body = lines[header + 1 : end]
    after = next((n for n in range(end, len(lines)) if lines[n].strip()), None)
    rest = b"" if after is None else lines[after]
    if rest and not (
        rest.startswith(b"diff --git ") or is_signature(lines, end) or _is_next_file(lines, end)
    ):
        return 0
    (old, new), (has_old, has_new) = _wanted(match), count_lines(body)
    context = next((n for n, line in enumerate(reversed(body)) if _sign(line) != b" "), 0)
    lost = old - has_old
    return lost if lost == new - has_new and lost > 0 < context and lost + context <= FULL_CONTEXT else 0


def _miscounted(
    lines: Sequence[bytes], header: int, match: re.Match[bytes], where: str, first_line: int, count: int
) -> InvalidInput:
    """A hunk whose lines are not those it counts, as an error naming both counts."""
    start = header + 1
    end = start + body_length(lines, start, match)
    old, new = _wanted(match)
    facts: dict[str, object] = {"line": first_line + header, "hunk": count}
    at = f"{where}, hunk {count}, line {first_line + header}"
    if lost := lost_blanks(lines, header, match):
        return InvalidInput(
            "the last context line of the hunk is missing"
            if lost == 1
            else f"the last {lost} context lines of the hunk are missing",
            where=at,
            expected="a blank line of context (one space) at the end",
            found="the end: a mailer or an editor cut blank lines off it",
            hint="overlay patch refresh, or overlay patch import, puts it back and sees whether it fits",
            facts=facts | {"lost_blank_lines": lost},
        )
    while _is_surplus(lines, end):
        end += 1
    has_old, has_new = count_lines(lines[start:end])
    is_cut = has_old < old or has_new < new
    return InvalidInput(
        "hunk has fewer lines than it counts: the patch is cut off"
        if is_cut
        else "hunk's counts do not match its lines",
        where=at,
        expected=f"{old} old and {new} new lines, by its header",
        found=f"{has_old} old and {has_new} new lines",
        hint="get the whole patch again; where lines were taken out on purpose, write the hunk's counts anew"
        if is_cut
        else "overlay patch refresh writes the counts anew, after showing the change",
        facts=facts,
    )
