"""What people have: mailboxes, bare diffs, quilt directories, ranges of commits; each as patches."""

from __future__ import annotations

import binascii
import hashlib
import quopri
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder.errors import InvalidInput
from builder.patch.diff import (
    GIT_HEADERS,
    MAX_DIFF_BYTES,
    check_counts,
    check_head,
    check_opening,
    check_signature,
    is_signature,
    shown,
)
from builder.patch.message import Head, read_head
from builder.patch.repair import Repair, diff_start, hunk_spans, put_back_blanks, recount, repair_text, split
from builder.source.git import GitError, run_git

_MAIL = re.compile(rb"^From [0-9a-f]{40} \w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\r?$", re.MULTILINE)
_ENCODING = re.compile(
    rb"^Content-Transfer-Encoding:[ \t]*(quoted-printable|base64)[ \t]*$", re.MULTILINE | re.IGNORECASE
)
_DEP3 = {"description", "subject", "author", "from", "date"}


@dataclass(frozen=True)
class InputPatch:
    """One patch as it was found.

    Args:
        head: what it says of itself; fields that are missing are empty.
        diff: its diff, with right counts and LF in its own lines.
        original: the bytes it was found as.
        name: what its file is called; empty where it is one of several in a file.
        crlf: whether every line ended in CRLF.
        strip: leading components to take off its paths, where the source says so.
        repairs: what was wrong with its text.
        commit: the commit it was made of, where there is one.
        repository: where that commit is, with its history; None where only the text is at hand.
    """

    head: Head
    diff: bytes
    original: bytes
    name: str = ""
    crlf: bool = False
    strip: int | None = None
    repairs: tuple[Repair, ...] = ()
    commit: str | None = None
    repository: Path | None = None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.original).hexdigest()


def read_input_patches(data: bytes, name: str) -> list[InputPatch]:
    """The patches of a mailbox, or the one of a bare diff.

    Args:
        data: the file.
        name: what it is called, for errors and names.

    Raises:
        InvalidInput: there is no diff in it, or it is too large.
    """
    if len(data) > MAX_DIFF_BYTES:
        raise InvalidInput(
            "input is too large", where=name, expected=f"at most {MAX_DIFF_BYTES} bytes", found=str(len(data))
        )
    starts = [match.start() for match in _MAIL.finditer(data)]
    cuts = starts if len(starts) > 1 else [0]
    parts = [data[a:b] for a, b in zip(cuts, [*cuts[1:], len(data)], strict=True)]
    # What stands before the first mail of a mailbox is not ours.
    input_patches = [
        input_patch
        for part in parts
        if (input_patch := _input_patch(part, name if len(parts) == 1 else "")) is not None
    ]
    if not input_patches:
        raise InvalidInput(
            "there is no diff in it", where=name, hint="write one with: git format-patch, or git diff"
        )
    return input_patches


def read_quilt(directory: Path) -> list[InputPatch]:
    """The patches of a quilt directory, in the order of its ``series``, with their strip levels.

    Raises:
        InvalidInput: there is no series, a patch is missing or lies outside the directory.
    """
    listing = directory / "series"
    if not listing.is_file():
        raise InvalidInput(
            "directory has no series", where=str(directory), hint="name the patch files one by one"
        )
    input_patches: list[InputPatch] = []
    for line in listing.read_bytes().decode("utf-8", "replace").splitlines():
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        path = _patch_file(directory, words[0])
        strip = next((int(word[2:]) for word in words[1:] if re.match(r"-p\d\Z", word)), None)
        found = read_input_patches(path.read_bytes(), path.name)
        input_patches += [replace(input_patch, name=path.name, strip=strip) for input_patch in found]
    return input_patches


def read_range(repository: Path, commits: str) -> list[InputPatch]:
    """The commits of ``BASE..HEAD`` of a git repository, oldest first.

    Raises:
        InvalidInput: there is no such repository or range, or it has merges or nothing in it.
    """
    if commits.startswith("-") or ".." not in commits:
        raise InvalidInput("not a range of commits", found=commits, expected="BASE..HEAD")
    # The repository's own configuration must neither run a program nor change what comes out.
    options = (
        "--stdout", "--full-index", "--keep-subject", "--no-signature", "--no-encode-email-headers",
        "--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/", "--unified=3",
        "--no-attach", "--no-signoff", "--no-cover-letter", "--no-base", "--no-thread", "--encoding=UTF-8",
        "--no-notes", "--no-relative",
    )  # fmt: skip
    try:
        data = run_git(["format-patch", *options, "--end-of-options", commits], cwd=repository)
    except (GitError, FileNotFoundError, NotADirectoryError) as error:
        raise InvalidInput(
            "the range cannot be read", where=f"{repository} {commits}", found=str(error)
        ) from error
    if not data:
        raise InvalidInput("there are no commits in the range", where=f"{repository} {commits}")
    return [
        replace(input_patch, name="", repository=repository)
        for input_patch in read_input_patches(data, commits)
    ]


def _patch_file(directory: Path, name: str) -> Path:
    for candidate in (name, f"{name}.patch"):
        path = directory / candidate
        if path.is_file() and path.resolve().is_relative_to(directory.resolve()):
            return path
    raise InvalidInput(
        "the series names a patch that is not there", where=str(directory / "series"), found=name
    )


def _input_patch(data: bytes, name: str) -> InputPatch | None:
    """One patch; None where a part has no diff, as a cover letter."""
    text, repairs = repair_text(_decoded_mail(data))
    text, lost = put_back_blanks(text)
    text, miscounts = recount(text)
    lines = split(text)
    start = diff_start(lines)
    check_head(lines[: start + 1], name or "patch")
    if start == len(lines):
        return None
    head = _with_dep3(read_head(b"".join(line for line in lines[:start] if not _is_index_line(line))))
    first = lines[0].split(b" ")
    commit = first[1].decode() if _MAIL.match(lines[0]) and set(first[1]) != {ord("0")} else None
    return InputPatch(
        head, _only_diff(lines, start, name), data, name,
        crlf=any(repair.rule == "line-endings" for repair in repairs), repairs=(*repairs, *lost, *miscounts),
        commit=commit,
    )  # fmt: skip


def _decoded_mail(data: bytes) -> bytes:
    """A mail without its transfer encoding, in which a diff could not be seen; anything else as it is."""
    head, blank, body = data.replace(b"\r\n", b"\n").partition(b"\n\n")
    found = _ENCODING.search(head)
    if found is None or not blank or b"\ndiff --git " in head:
        return data
    try:
        plain = quopri.decodestring(body) if found[1].lower() != b"base64" else binascii.a2b_base64(body)
    except binascii.Error:
        return data
    return head[: found.start()] + b"Content-Transfer-Encoding: 8bit" + head[found.end() :] + blank + plain


def _is_index_line(line: bytes) -> bool:
    return line.startswith((b"Index: ", b"=====", b"diff -", b"Only in "))


def _only_diff(lines: Sequence[bytes], start: int, name: str) -> bytes:
    """The diff without what other tools put between files; lines that look like lost content are refused."""
    where = name or "patch"
    kept: list[bytes] = []
    spans = hunk_spans(lines)
    for span in spans:
        check_counts(lines, span.header, where, span.number)
    inside = {n for span in spans for n in range(span.header, span.end)}
    in_header = is_binary = False
    for number in range(start, len(lines)):
        line = lines[number]
        if number not in inside:
            check_opening(line, where, number + 1)
            if is_signature(lines, number):
                check_signature(lines[number:], where, number + 1)
                break
        is_header = line.startswith((b"diff --git ", *GIT_HEADERS))
        in_header = number not in inside and (in_header or is_header)
        is_binary = line.startswith(b"GIT binary patch") or (is_binary and not is_header)
        if number in inside or is_header or is_binary or not line.strip():
            kept.append(line)
        elif in_header or not _is_index_line(line):
            raise InvalidInput(
                "patch has text that belongs to no hunk",
                where=f"{where}, line {number + 1}",
                found=shown(line),
            )
    return b"".join(kept)


def _with_dep3(head: Head) -> Head:
    """A DEP-3 header (``Description:``, ``Author:``, ``Forwarded:`` …) as a mail's fields and trailers."""
    if head.subject or not re.match(rb"(?i)(description|subject|author|from|origin):", head.text):
        return head
    block, _, rest = head.text.partition(b"\n\n")
    fields: list[tuple[str, list[bytes]]] = []
    for line in block.split(b"\n"):
        match = re.match(rb"([A-Za-z-]+):[ \t]*(.*)", line)
        if line[:1] in (b" ", b"\t") and fields:
            fields[-1][1].append(line.strip())
        elif match:
            fields.append((match[1].decode(), [match[2].strip()]))
        else:
            return head
    said = {key.lower(): lines for key, lines in fields}
    description = said.get("description") or said.get("subject") or [b""]
    body = b"\n".join(b"" if line == b"." else line for line in description[1:])
    author = b" ".join(said.get("author") or said.get("from") or [])
    trailers = b"\n".join(
        key.encode() + b": " + b" ".join(lines) for key, lines in fields if key.lower() not in _DEP3
    )
    text = b"\n\n".join(part.strip(b"\n") for part in (body, rest, trailers) if part.strip())
    return Head(author or head.author, head.date, description[0], text)
