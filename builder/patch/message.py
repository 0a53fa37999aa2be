"""The head of a patch file, its mail: author, date, subject and text, read leniently and written in one way.

Written heads are those of ``git format-patch --zero-commit --keep-subject --no-encode-email-headers``
(docs/formats.md): four fields, three more where the message is not ASCII, and the text.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, replace

from builder.errors import InvalidInput
from builder.patch.encoded_words import decode_words

ZERO_COMMIT = b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
_MIME = (
    b"MIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: 8bit\n"
)  # fmt: skip
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WIDTH = 78
_FIELD = re.compile(rb"([A-Za-z][A-Za-z0-9-]*):[ \t]*(.*)\Z")
_AUTHOR = re.compile(rb"(?P<name>[^<>\n]*?)\s*<(?P<mail>[^<>\s]*)>\Z")
_TRAILER = re.compile(rb"[A-Za-z][A-Za-z0-9-]*:(?: |$)")


@dataclass(frozen=True)
class Head:
    """What a patch says of itself.

    Args:
        author: ``Name <address>``.
        date: as in RFC 2822, ``Sun, 29 Nov 2026 00:00:00 +0000``.
        subject: one line.
        text: the rest of the message, trailers included; no blank lines around it.
    """

    author: bytes
    date: bytes
    subject: bytes
    text: bytes

    def trailers(self) -> list[tuple[str, str]]:
        """``(key, value)`` of the last paragraph, if it consists of trailers alone."""
        _, block = _split_trailers(self.text)
        pairs: list[tuple[str, list[str]]] = []
        for line in block.decode("utf-8", "surrogateescape").split("\n"):
            if line[:1] in (" ", "\t") and pairs:
                pairs[-1][1].append(line.strip())
            elif line:
                key, _, value = line.partition(":")
                pairs.append((key, [value.strip()]))
        return [(key, " ".join(lines)) for key, lines in pairs]

    def with_trailer(self, key: str, value: str) -> Head:
        """The same head with a trailer more, at the end."""
        body, block = _split_trailers(self.text)
        line = f"{key}: {value}".encode("utf-8", "surrogateescape")
        block = block + b"\n" + line if block else line
        return replace(self, text=body + b"\n\n" + block if body else block)

    def without_trailer(self, key: str) -> Head:
        """The same head without any trailer of this name."""
        body, block = _split_trailers(self.text)
        prefix = key.lower().encode() + b":"
        block = b"\n".join(line for line in block.split(b"\n") if not line.lower().startswith(prefix))
        return replace(self, text=b"\n\n".join(part for part in (body, block) if part))


def read_head(data: bytes) -> Head:
    """The head of what stands before a diff: a mail, or any text with or without mail fields.

    Args:
        data: everything before the diff, line endings LF.

    Returns:
        What is there; fields that are missing are empty.
    """
    head, blank, body = data.partition(b"\n\n")
    fields = _read_fields(head)
    if not fields.keys() & {b"from", b"subject", b"date"}:
        fields, body = {}, head + blank + body
    subject = b" ".join(_decoded(fields.get(b"subject", b"")).split())
    text = _clean(_before_rule(body))
    author = _unquoted(b" ".join(_decoded(fields.get(b"from", b"")).split()))
    return Head(
        author, _clean_date(fields.get(b"date", b"")), re.sub(rb"\A\[PATCH[^]]*\] *", b"", subject), text
    )


def read_commit(data: bytes) -> Head:
    """The head that a commit object's bytes stand for (``git cat-file commit``)."""
    fields, _, message = data.partition(b"\n\n")
    line = next(line for line in fields.split(b"\n") if line.startswith(b"author "))
    match = re.match(rb"author (.*) (-?\d+) ([+-]\d{4})\Z", line)
    if match is None:
        raise InvalidInput(
            "commit has an author line that cannot be read", found=line.decode(errors="replace")
        )
    first, _, rest = message.strip(b"\n").partition(b"\n\n")
    subject = b" ".join(first.split())
    return Head(match[1].strip(), _date(int(match[2]), match[3].decode()), subject, _clean(rest))


def write_head(head: Head) -> bytes:
    """The head's bytes up to and without the line ``---``."""
    message = head.subject + head.text
    mime = b"" if message.isascii() else _MIME
    fields = ZERO_COMMIT + _author_field(head.author) + b"Date: " + head.date + b"\n"
    fields += _wrapped(b"Subject: ", head.subject) + mime + b"\n"
    return fields + (head.text + b"\n" if head.text else b"")


def commit_message(head: Head) -> bytes:
    """The message of the commit that stands for a patch."""
    return head.subject + b"\n" + (b"\n" + head.text + b"\n" if head.text else b"")


def split_author(author: bytes) -> tuple[bytes, bytes]:
    """Name and address of ``Name <address>``.

    Raises:
        InvalidInput: it is of another form.
    """
    match = _AUTHOR.match(author)
    if match is None:
        raise InvalidInput(
            "not an author",
            expected="Name <address>",
            found=author.decode(errors="replace"),
            hint="give one with --author 'Name <address>'",
        )
    return match["name"], match["mail"]


def raw_date(date: bytes) -> str:
    """``seconds zone`` of an RFC 2822 date, as git has it.

    Raises:
        InvalidInput: it is no such date.
    """
    from email.utils import parsedate_to_datetime

    try:
        moment = parsedate_to_datetime(date.decode("ascii", "replace"))
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            "not a date of RFC 2822",
            expected="such as: Sun, 29 Nov 2026 00:00:00 +0000",
            found=date.decode(errors="replace"),
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return f"{int(moment.timestamp())} {moment:%z}"


def _date(seconds: int, zone: str) -> bytes:
    """RFC 2822 as git writes it: English names, no zero before the day."""
    minutes = (int(zone[1:3]) * 60 + int(zone[3:5])) * (-1 if zone[0] == "-" else 1)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone(datetime.timedelta(minutes=minutes)))
    day = _DAYS[moment.weekday()]
    month = _MONTHS[moment.month - 1]
    return f"{day}, {moment.day} {month} {moment.year} {moment:%H:%M:%S} {zone}".encode()


def date_of(moment: datetime.date) -> bytes:
    """Midnight UTC of a day, in RFC 2822."""
    midnight = datetime.datetime(moment.year, moment.month, moment.day, tzinfo=datetime.UTC)
    return _date(int(midnight.timestamp()), "+0000")


def _clean_date(date: bytes) -> bytes:
    """The date as git writes it; as it is where it cannot be read (lint says so)."""
    try:
        seconds, zone = raw_date(date).split(" ")
    except InvalidInput:
        return date.strip()
    return _date(int(seconds), zone)


def _read_fields(head: bytes) -> dict[bytes, bytes]:
    fields: dict[bytes, list[bytes]] = {}
    last = None
    for line in head.split(b"\n"):
        if line[:1] in (b" ", b"\t") and last:
            fields[last].append(line.strip())
        elif match := _FIELD.match(line):
            last = match[1].lower()
            fields[last] = [match[2].strip()]
    return {key: b" ".join(lines) for key, lines in fields.items()}


def _decoded(value: bytes) -> bytes:
    """A field with its RFC 2047 words decoded, in UTF-8."""
    return decode_words(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _before_rule(body: bytes) -> bytes:
    return re.split(rb"^---[ \t]*$", body, maxsplit=1, flags=re.MULTILINE)[0]


def _clean(text: bytes) -> bytes:
    """What ``git commit`` leaves of a text: no blanks at line ends, no two blank lines in a row."""
    lines = [line.rstrip(b" \t\r\f\v") for line in text.split(b"\n")]
    kept = [line for n, line in enumerate(lines) if line or (n and lines[n - 1])]
    # A rule would end the message when it is read again.
    kept = [b" " + line if re.match(rb"---\s*\Z", line) else line for line in kept]
    return b"\n".join(kept).strip(b"\n")


def _split_trailers(text: bytes) -> tuple[bytes, bytes]:
    """The text before its last paragraph, and that paragraph if it consists of trailers."""
    before, blank, block = text.rpartition(b"\n\n")
    lines = block.split(b"\n")
    if not block or lines[0][:1] in (b" ", b"\t"):
        return text, b""
    if all(_TRAILER.match(line) or line[:1] in (b" ", b"\t") for line in lines):
        return (before if blank else b""), block
    return text, b""


def _unquoted(author: bytes) -> bytes:
    """``"A. Writer" <a@example.org>`` without what RFC 822 makes of a name with a dot in it."""
    match = re.match(rb'"((?:[^"\\]|\\.)*)"(?= )', author)
    return re.sub(rb"\\(.)", rb"\1", match[1]) + author[match.end() :] if match else author


def _author_field(author: bytes) -> bytes:
    name, space, mail = author.rpartition(b" ")
    if re.search(rb'[()<>\[\]:;@\\,."]', name):
        name = b'"' + re.sub(rb'(["\\])', rb"\\\1", name) + b'"'
    line = _wrapped(b"From: ", name if space else author).removesuffix(b"\n")
    if not space:
        return line + b"\n"
    used = _columns(line.rpartition(b"\n")[2])
    return line + (b" " if used + 1 + _columns(mail) <= _WIDTH else b"\n ") + mail + b"\n"


def _wrapped(field: bytes, value: bytes) -> bytes:
    """A header field, folded between words where it is longer than 78 columns."""
    lines = [field]
    used = _columns(field)
    for number, word in enumerate(value.split(b" ")):
        width = _columns(word)
        if number and used + 1 + width > _WIDTH:
            lines.append(b" " + word)
            used = 1 + width
        else:
            lines[-1] += (b" " if number else b"") + word
            used += width + (1 if number else 0)
    return b"\n".join(lines) + b"\n"


def _columns(text: bytes) -> int:
    return len(text.decode("utf-8", "replace"))
