"""One pass over a layer's tar, as a stream: POSIX ustar and pax, GNU long names, big numbers, sparse files.

Written for layers of ten gigabytes (nothing is held but one chunk and one header) and for layers that nobody
has vouched for: sizes, names and counts are bounded, and what container engines refuse to unpack is refused.
Paths come out as bytes, relative to the root, without ``.`` parts; one that leaves the root is an error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from builder.errors import ImageMismatch

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_MOST = (1 << 63) - 1  # what sizes, owners and times are to a system
_NAME_BYTES = 255  # Linux's NAME_MAX
# name mode uid gid size mtime checksum type link (the rest only matters for the prefix)
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s6s82x155s")
_EXTENDED = frozenset({b"x", b"g", b"L", b"K"})
# All that is kept of pax headers, so that a tar of nothing else cannot fill the memory.
_PAX_KEYS = frozenset(
    {b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime"}
    | {b"GNU.sparse." + key for key in (b"name", b"realsize", b"size", b"major", b"numblocks", b"map")}
)
_REGULAR = frozenset({b"0", b"\0", b"7", b"S"})


class Kind(StrEnum):
    """What an entry of a layer is."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"
    DEVICE = "device"
    FIFO = "fifo"


_KINDS = {
    b"1": Kind.HARDLINK,
    b"2": Kind.SYMLINK,
    b"3": Kind.DEVICE,
    b"4": Kind.DEVICE,
    b"5": Kind.DIRECTORY,
    b"6": Kind.FIFO,
}


@dataclass(frozen=True)
class Limits:
    """What a layer may hold at most.

    ``entries``; bytes of one ``path``, of one ``extended`` header, of all that is ``unpacked``, and of the
    names of directories and links that are ``held`` in memory.
    """

    entries: int = 5_000_000
    path: int = 4096
    extended: int = 1 << 20
    unpacked: int = 256 << 30
    held: int = 128 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """One entry; ``link`` is a symbolic link's target as it stands, or the path that a hard link names.

    ``sparse`` files are not stored byte by byte; their content is not read.
    """

    path: bytes
    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    link: bytes
    sparse: bool


Consume = Callable[[Member], "Callable[[bytes], object] | None"]


def walk_tar(pieces: Iterator[bytes], consume: Consume, *, where: str, limits: Limits) -> None:
    """Read a tar to the end of its stream.

    Args:
        pieces: the uncompressed tar.
        consume: called for each entry in turn; for a regular file it may return a function that then takes
            the file's content in pieces, and an empty one at its end.
        where: what to call the layer in errors.
        limits: what is refused as too large.

    Raises:
        ImageMismatch: not a tar, cut short, too large, or an entry that cannot be unpacked safely.
    """
    _Walk(pieces, where, limits).run(consume)


class _Walk:
    def __init__(self, pieces: Iterator[bytes], where: str, limits: Limits) -> None:
        self._pieces = iter(pieces)
        self._where = where
        self._limits = limits
        self._piece = b""
        self._at = 0
        self._last = b""  # the last path, to say where in the tar something is wrong

    def run(self, consume: Consume) -> None:
        entries = 0
        shared: dict[bytes, bytes] = {}
        own: dict[bytes, bytes] = {}
        while header := self._next_header():
            entries += 1
            if entries > self._limits.entries:
                raise self._refused("has too many entries", f"at most {self._limits.entries}", None)
            fields = _HEADER.unpack_from(header)
            kind = fields[7]
            if kind not in _EXTENDED:
                self._entry(fields, header, {**shared, **own} if own or shared else own, consume)
                own = {}
                continue
            data = self._extended(self._number(fields[4]))
            if kind == b"g":
                shared.update(self._pax(data))
            elif kind == b"x":
                own.update(self._pax(data))
            else:
                own[b"path" if kind == b"L" else b"linkpath"] = data.rstrip(b"\0")
        for piece in self._pieces:  # whatever follows the end counts for the digests
            del piece

    def _entry(
        self, fields: tuple[bytes, ...], header: bytes, pax: dict[bytes, bytes], consume: Consume
    ) -> None:
        name, mode, uid, gid, size, mtime, _, kind, link, magic, prefix = fields
        path = name.partition(b"\0")[0]
        # GNU tar's own format keeps times where POSIX keeps the prefix; its magic ends with a blank.
        if magic == b"ustar\0" and prefix[0]:
            path = prefix.partition(b"\0")[0] + b"/" + path
        target = link.partition(b"\0")[0]
        stored = self._number(size)
        if pax:
            path = pax.get(b"GNU.sparse.name", pax.get(b"path", path))
            target = pax.get(b"linkpath", target)
            stored = self._decimal(pax, b"size", stored)
        # Version 7 tars mark a directory by the slash alone.
        is_file = kind in _REGULAR and not (kind == b"\0" and path.endswith(b"/"))
        what = Kind.FILE if is_file else Kind.DIRECTORY if kind == b"\0" else _KINDS.get(kind)
        if what is None:
            raise self._refused("holds an entry of an unknown kind", None, f"{kind!r} for {_shown(path)}")
        sparse = kind == b"S" or any(key.startswith(b"GNU.sparse.") for key in pax)
        real = stored
        if kind == b"S":
            real = self._number(header[483:495])
            self._skip_sparse_map(header[482:483])
        elif sparse:
            real = self._decimal(pax, b"GNU.sparse.realsize", self._decimal(pax, b"GNU.sparse.size", stored))
        self._last = path
        member = Member(
            path=self._inside(path),
            kind=what,
            mode=self._number(mode) & 0o7777,
            uid=self._decimal(pax, b"uid", self._number(uid)),
            gid=self._decimal(pax, b"gid", self._number(gid)),
            size=real if is_file else 0,
            mtime=self._decimal(pax, b"mtime", self._number(mtime)),
            link=self._target(what, target),
            sparse=sparse,
        )
        write = consume(member)
        if is_file:  # links, directories and devices have no content, whatever their size says
            self._content(stored, None if sparse else write)

    def _content(self, size: int, write: Callable[[bytes], object] | None) -> None:
        left = size
        while left:
            piece = self._some(left)
            left -= len(piece)
            if write is not None:
                write(piece)
        if write is not None:
            write(b"")
        self._skip(-size % _BLOCK)

    def _skip_sparse_map(self, more: bytes) -> None:
        """The further blocks of an old GNU sparse map; each says whether another follows."""
        blocks = 0
        while more != b"\0":
            blocks += 1
            if blocks * _BLOCK > self._limits.extended:
                raise self._refused("holds a sparse map that is too long", None, None)
            more = self._exactly(_BLOCK)[504:505]

    def _next_header(self) -> bytes | None:
        """The next header block; None at a zero block, or where the stream ends between entries."""
        header = self._piece[self._at : self._at + _BLOCK]
        if len(header) == _BLOCK:
            self._at += _BLOCK
        elif not header and not self._refill():
            return None
        else:
            header = self._exactly(_BLOCK)
        if header == _ZEROS:
            return None
        try:
            declared = int(header[148:156].strip(b" \0"), 8)
        except ValueError:
            declared = -1
        if declared != sum(header) - sum(header[148:156]) + 256:
            raise self._refused("is not a tar, or damaged", "a header with a valid checksum", None)
        return header

    def _refill(self) -> bool:
        for piece in self._pieces:
            if piece:
                self._piece, self._at = piece, 0
                return True
        return False

    def _some(self, most: int) -> bytes:
        """The next bytes, as many as lie ready, at most ``most``."""
        if self._at >= len(self._piece) and not self._refill():
            raise self._refused("ends early", None, None)
        start = self._at
        self._at = min(len(self._piece), start + most)
        return self._piece if self._at - start == len(self._piece) else self._piece[start : self._at]

    def _exactly(self, size: int) -> bytes:
        data = self._some(size)
        if len(data) == size:
            return data
        pieces, left = [data], size - len(data)
        while left:
            pieces.append(self._some(left))
            left -= len(pieces[-1])
        return b"".join(pieces)

    def _skip(self, size: int) -> None:
        ready = len(self._piece) - self._at
        while size > ready:
            size -= ready
            if not self._refill():
                raise self._refused("ends early", None, None)
            ready = len(self._piece)
        self._at += size

    def _extended(self, size: int) -> bytes:
        if size > self._limits.extended:
            raise self._refused(
                "holds an extended header that is too long",
                f"at most {self._limits.extended} bytes",
                f"{size}",
            )
        data = self._exactly(size) if size else b""
        self._skip(-size % _BLOCK)
        return data

    def _pax(self, data: bytes) -> dict[bytes, bytes]:
        """Records ``LENGTH KEY=VALUE\\n``."""
        records: dict[bytes, bytes] = {}
        at = 0
        while at < len(data) and data[at : at + 1] != b"\0":
            digits = data[at : at + 20].partition(b" ")[0]
            end = at + int(digits) if digits.isdigit() else at
            key, equals, value = data[at + len(digits) + 1 : end - 1].partition(b"=")
            if end > len(data) or data[end - 1 : end] != b"\n" or not key or not equals:
                raise self._refused("holds a pax header that cannot be read", None, repr(data[at : at + 40]))
            if key in _PAX_KEYS:
                records[key] = value
            at = end
        return records

    def _number(self, field: bytes) -> int:
        """A header's number: octal digits, or base 256 where the first bit is set."""
        if field[0] & 0x80:
            if field[0] & 0x40:
                raise self._refused("holds a negative number", None, repr(field))
            number = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
            if number > _MOST:
                raise self._refused("holds a number that is too large", f"at most {_MOST}", str(number))
            return number
        digits = field.lstrip(b" \0").partition(b"\0")[0].rstrip(b" ")
        if digits.translate(None, b"01234567"):
            raise self._refused("holds a number that cannot be read", "octal digits", repr(field))
        return int(digits or b"0", 8)

    def _decimal(self, pax: dict[bytes, bytes], key: bytes, otherwise: int) -> int:
        """A pax record's number; of times the whole seconds."""
        value = pax.get(key)
        if not value:
            return otherwise
        whole = value.partition(b".")[0]
        if not whole.isdigit() or len(whole) > 20 or int(whole) > _MOST:
            if key == b"mtime":  # before 1970, or nonsense: of no use here, and no danger
                return 0
            raise self._refused(
                "holds a number that cannot be read", f"{key.decode()} in decimal", repr(value)
            )
        return int(whole)

    def _inside(self, path: bytes) -> bytes:
        """``path`` relative to the root; only what stays below it."""
        if len(path) > self._limits.path or b"\0" in path:
            raise self._refused(
                "holds a path that is not a path", f"at most {self._limits.path} bytes, no NUL", _shown(path)
            )
        if len(path) > _NAME_BYTES and max(map(len, path.split(b"/"))) > _NAME_BYTES:
            raise self._refused(
                "holds a name that no file system takes", f"at most {_NAME_BYTES} bytes", _shown(path)
            )
        if b"//" not in path and b"./" not in path and not path.startswith(b"/") and not path.endswith(b"."):
            return path.rstrip(b"/")
        parts: list[bytes] = []
        for part in path.split(b"/"):
            if part == b"..":
                if not parts:
                    raise self._refused("holds a path outside its root", None, _shown(path))
                parts.pop()
            elif part not in (b"", b"."):
                parts.append(part)
        return b"/".join(parts)

    def _target(self, kind: Kind, target: bytes) -> bytes:
        if kind is Kind.HARDLINK:
            return self._inside(target)
        if kind is not Kind.SYMLINK:
            return b""
        if len(target) > self._limits.path or b"\0" in target:
            raise self._refused(
                "holds a link to what is not a path", f"at most {self._limits.path} bytes", _shown(target)
            )
        return target

    def _refused(self, what: str, expected: str | None, found: str | None) -> ImageMismatch:
        after = f", after {_shown(self._last)}" if self._last else ""
        return ImageMismatch(f"a layer {what}", where=self._where + after, expected=expected, found=found)


def _shown(path: bytes) -> str:
    return path[:200].decode("utf-8", "backslashreplace")
