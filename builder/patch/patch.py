"""One patch file: a git mailbox message with trailers, and the diff it carries (docs/formats.md)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from builder.errors import InvalidInput
from builder.patch.diff import FileDiff, check_head, parse_diff
from builder.patch.encoded_words import decode_words

STATUSES = {
    "Pending": "not sent upstream yet",
    "Submitted": "sent; [URL] of the pull request",
    "Backport": "taken from a later upstream; [URL or commit]",
    "Denied": "upstream said no; [URL]",
    "Inappropriate": "not meant for upstream; [reason]",
    "Inactive-Upstream": "upstream does not answer; [reason]",
}

_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]{0,99}\Z")
_TRAILER = re.compile(r"([A-Za-z][A-Za-z0-9-]*): ?(.*)\Z")
_DIFF_START = re.compile(rb"^diff --git |^--- [^\n]+\n\+\+\+ [^\n]+\n@@ ", re.MULTILINE)
_HUNK_START = re.compile(rb"^@@ -\d", re.MULTILINE)
_RULE = re.compile(rb"^---[ \t\r]*$", re.MULTILINE)
_MAIL_HEAD = re.compile(rb"From [0-9a-f]{40} |From: |Date: |Subject: ")
FEATURES = ("growing-state-pool",)
"""Words of ``Overlay-Provides``."""

FLAWS = ("does-not-compile", "undefined-name", "unresolved-import", "missing-attribute", "data-file")
"""What a patch may be allowed to break (see :mod:`builder.soundness`)."""

_ALLOWED = re.compile(r"(?P<kind>[a-z-]+)\s+(?P<name>\S+)\s+\[\s*(?P<reason>\S.*)\]\Z")
_STATUS = re.compile(r"(?P<word>[A-Za-z-]+)(?:\s+\[(?P<reason>.+)\])?\Z")


@dataclass(frozen=True)
class Status:
    """Where a patch stands upstream (Yocto's ``Upstream-Status`` vocabulary).

    Args:
        word: one of :data:`STATUSES`.
        reason: what stands in brackets; None without.
    """

    word: str
    reason: str | None

    def __str__(self) -> str:
        return self.word if self.reason is None else f"{self.word} [{self.reason}]"


@dataclass(frozen=True)
class Patch:
    """A patch as read from its file.

    Args:
        name: its name in the series, without ``.patch``.
        data: the file's bytes as they are.
        author, date, subject: the mail's header fields, decoded; empty where the mail has none.
        message: the text between header and trailers.
        trailers: ``(key, value)`` in the order of the file.
        files: what it does to each file.
    """

    name: str
    data: bytes
    author: str
    date: str
    subject: str
    message: str
    trailers: tuple[tuple[str, str], ...]
    files: tuple[FileDiff, ...]
    diff_offset: int

    @cached_property
    def sha256(self) -> str:
        """Hex SHA-256 of the file."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def diff(self) -> bytes:
        """The diff part of the file."""
        return self.data[self.diff_offset :]

    def values(self, key: str) -> tuple[str, ...]:
        """Every value of a trailer, in order."""
        return tuple(value for name, value in self.trailers if name.lower() == key.lower())

    @property
    def status(self) -> Status:
        """The ``Upstream-Status`` trailer; it was checked when the patch was read."""
        return read_status(self.values("Upstream-Status")[0], where=self.name)

    @property
    def bugs(self) -> tuple[str, ...]:
        """Issue URLs."""
        return self.values("Bug")

    @property
    def depends(self) -> tuple[str, ...]:
        """Names of the patches that must come before."""
        return tuple(
            name for value in self.values("Overlay-Depends") for name in re.split(r"[,\s]+", value) if name
        )

    @property
    def hardware(self) -> tuple[str, ...]:
        """Compute capabilities it was written for, such as ``12.1``."""
        return tuple(word for value in self.values("Overlay-Hardware") for word in value.split())

    @property
    def provides(self) -> tuple[str, ...]:
        """Of :data:`FEATURES`, what a server that runs with it does, for ``overlay launch`` to count on."""
        return self.values("Overlay-Provides")

    @property
    def allows(self) -> frozenset[tuple[str, str]]:
        """What it may break, and says why: kind and name of each (see :func:`read_suppressions`)."""
        return read_suppressions(self.values("Overlay-Allow"))


def read_suppressions(values: Iterable[str]) -> frozenset[tuple[str, str]]:
    """The pairs of kind and name of ``Overlay-Allow: KIND NAME [reason]``; without a reason there is none."""
    found = (_ALLOWED.match(value) for value in values)
    return frozenset((match["kind"], match["name"]) for match in found if match)


def check_patch_name(name: str, *, where: str) -> None:
    """Raise :class:`InvalidInput` unless ``name`` can name a patch (and its file, and its probe)."""
    if not _NAME.match(name) or ".." in name:
        raise InvalidInput(
            "not a patch name",
            where=where,
            expected="lower-case letters, digits and . _ + -, at most 100",
            found=repr(name),
        )


def read_status(text: str, *, where: str) -> Status:
    """Read an ``Upstream-Status`` value.

    Raises:
        InvalidInput: the word is not of the vocabulary, with the nearest one.
    """
    match = _STATUS.match(text.strip())
    if match is None or match["word"] not in STATUSES:
        from difflib import get_close_matches

        word = match["word"] if match else text
        near = get_close_matches(word.capitalize(), STATUSES, n=1, cutoff=0.5)
        raise InvalidInput(
            "Upstream-Status is not of the vocabulary",
            where=where,
            expected=", ".join(STATUSES),
            found=text,
            hint=f"did you mean {near[0]}?" if near else None,
        )
    return Status(match["word"], match["reason"])


@lru_cache(maxsize=256)  # overlays of one run share their series
def parse_patch(name: str, data: bytes) -> Patch:
    """Read a patch file.

    Args:
        name: its name in the series, without ``.patch``.
        data: its bytes.

    Raises:
        InvalidInput: it is not a mailbox patch, has no or a wrong ``Upstream-Status``, or its diff is broken.
    """
    where = f"{name}.patch"
    offset = _diff_offset(data)
    if offset is None:
        check_head(data.split(b"\n"), where)
        raise InvalidInput(
            "patch has no diff", where=where, hint="write it with: git format-patch --full-index"
        )
    check_head(data[:offset].split(b"\n"), where)
    headers, text = _split_message(data[:offset])
    message, trailers = _split_trailers(text)
    first_line = data.count(b"\n", 0, offset) + 1
    patch = Patch(
        name=name,
        data=data,
        author=headers.get("from", ""),
        date=headers.get("date", ""),
        subject=re.sub(r"\A\[PATCH[^]]*\]\s*", "", headers.get("subject", "")),
        message=message,
        trailers=trailers,
        files=parse_diff(data[offset:], where=where, first_line=first_line),
        diff_offset=offset,
    )
    if not patch.values("Upstream-Status"):
        raise InvalidInput(
            "patch has no Upstream-Status trailer",
            where=where,
            expected="a line such as: Upstream-Status: Pending",
            hint="add it to the end of the message, before the line ---",
        )
    read_status(patch.values("Upstream-Status")[0], where=where)
    return patch


def _diff_offset(data: bytes) -> int | None:
    """Where the diff begins: at the first ``diff --git``, else at the first ``---``/``+++`` pair.

    What looks like one in a mail's text, before the line ``---``, is text, unless hunks follow it.
    """
    first = _DIFF_START.search(data)
    rule = _RULE.search(data) if _MAIL_HEAD.match(data) else None
    in_text = first and rule and not _HUNK_START.search(data, first.start(), rule.start())
    if first and rule and in_text and first.start() < rule.start():
        first = _DIFF_START.search(data, rule.end()) or first
    return first.start() if first else None


def _split_message(data: bytes) -> tuple[dict[str, str], str]:
    """The mail's header fields (lower-case keys) and its text up to the line ``---``."""
    text = data.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
    headers: dict[str, list[str]] = {}
    head, blank, body = text.partition("\n\n")
    if re.match(r"(From [0-9a-f]{40} |From: |Date: |Subject: )", head):
        field = None
        for line in head.split("\n"):
            if line[:1] in (" ", "\t") and field:
                headers[field].append(line.strip())
            elif match := re.match(r"([A-Za-z-]+):\s*(.*)\Z", line):
                field = match[1].lower()
                headers[field] = [match[2]]
    else:
        body = text if not blank else head + blank + body
    message = re.split(r"^---\s*$", body, maxsplit=1, flags=re.MULTILINE)[0]
    return {key: decode_words(" ".join(lines)) for key, lines in headers.items()}, message.strip("\n")


def _split_trailers(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The message and its trailers: the last paragraph in which every line is ``Key: value`` or folded."""
    paragraphs = text.rstrip().rsplit("\n\n", 1)
    block = paragraphs[-1]
    trailers: list[tuple[str, list[str]]] = []
    for line in block.split("\n"):
        if line[:1] in (" ", "\t") and trailers:
            trailers[-1][1].append(line.strip())
        elif match := _TRAILER.match(line):
            trailers.append((match[1], [match[2].strip()]))
        else:
            return text, ()
    pairs = tuple((key, " ".join(lines)) for key, lines in trailers)
    return (paragraphs[0] if len(paragraphs) == 2 else ""), pairs
