"""Encoded words of mail headers (RFC 2047), read in one pass over the header, however many there are."""

from __future__ import annotations

import binascii
import re

_WORD = re.compile(r"=\?([A-Za-z0-9_.:-]{1,40})(?:\*[A-Za-z0-9-]*)?\?([BbQq])\?([!->@-~]*)\?=")
# What mail is written in; Python knows codecs beside these that take quadratic time, or are not text.
_CHARSET = re.compile(
    r"(?:utf-?8|us-ascii|ascii|(?:iso-?8859|windows|cp|koi8|iso-2022|euc|shift|gb|big5|hz)[a-z0-9_-]*)\Z",
    re.IGNORECASE,
)


def decode_words(value: str) -> str:
    """A header field's value with its encoded words as text.

    A word that is not of RFC 2047, or in no charset of mail, stays as it stands. Bytes of neighbours in one
    charset are put together before they are decoded: some mailers cut a character in two.

    Args:
        value: the field, unfolded; bytes that are not UTF-8 as ``surrogateescape`` has them.
    """
    if "=?" not in value:
        return value
    texts: list[str] = []
    waiting: list[tuple[str, bytes, str]] = []  # neighbours: charset, bytes, and the word as it stands
    end = 0
    for word in _WORD.finditer(value):
        between = value[end : word.start()]
        charset = word[1].lower()
        data = _content(word[2], word[3]) if _CHARSET.match(charset) else None
        if between.strip(" \t") or data is None or not waiting:
            texts += [_joined(waiting), between]
            waiting = []
        elif waiting[-1][0] != charset:
            texts.append(_joined(waiting))
            waiting = []
        if data is None:
            texts.append(word[0])
        else:
            waiting.append((charset, data, word[0]))
        end = word.end()
    return "".join([*texts, _joined(waiting), value[end:]])


def _content(encoding: str, text: str) -> bytes | None:
    """What an encoded word stands for; None where it cannot be read."""
    if encoding in "Qq":
        return binascii.a2b_qp(text.encode("ascii"), header=True)
    try:
        return binascii.a2b_base64(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4))
    except binascii.Error:
        return None


def _joined(words: list[tuple[str, bytes, str]]) -> str:
    """Neighbouring words of one charset as text; as they stand where their bytes are none of it."""
    if not words:
        return ""
    try:
        return b"".join(data for _, data, _ in words).decode(words[0][0])
    except (LookupError, UnicodeDecodeError):
        return " ".join(word for _, _, word in words)
