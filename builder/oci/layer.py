"""The one layer a build adds: a tar whose bytes depend on nothing but what is asked for.

The tar is POSIX.1-2001 (pax), written here header by header: a library's choices between ustar prefixes,
GNU and pax records, or of a default owner, would otherwise be part of the image's digest.

The layer is gzip (RFC 1952) with nothing left open: Huffman-coded literals (:mod:`builder.oci.deflate`),
or *stored* blocks (RFC 1951, 3.2.4) where there is too much for that. What zlib, zlib-ng and their
versions write differs. A plain tar would be as stable, and Docker Engine 20.10, podman and skopeo read it in
both families of media types; but skopeo compresses a plain layer when it copies an image into a layout, which
changes the image's digest, and passes on what is gzip already.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from builder.errors import InvalidInput
from builder.oci.deflate import deflate_literals
from builder.oci.model import (
    DOCKER_LAYER_GZIP,
    DOCKER_MANIFEST,
    OCI_LAYER_GZIP,
    OCI_MANIFEST,
    Descriptor,
    sha256_digest,
)

WHITEOUT_PREFIX = ".wh."
OPAQUE_MARKER = ".wh..wh..opq"

_LAYER_OF = {OCI_MANIFEST: OCI_LAYER_GZIP, DOCKER_MANIFEST: DOCKER_LAYER_GZIP}

_BLOCK = 512
_RECORD = 10240  # what POSIX calls the default blocking factor of 20
_STORED_MAX = 0xFFFF
_MAX_OCTAL_ID = 0o7777777
_MAX_OCTAL_SIZE = 0o77777777777
# RFC 1952: deflate, no flags, no time, no extra flags, unknown operating system.
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


@dataclass(frozen=True)
class LayerFile:
    """A regular file: ``path`` from the image's root, permission bits, numeric owner."""

    path: str
    data: bytes = field(repr=False)
    mode: int = 0o644
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True)
class LayerDirectory:
    """A directory. One that the base has must carry the base's mode, owner and time (seconds since 1970).

    A layer that leaves parents out is not neutral: overlay2 unpacks each layer alone and makes missing
    parents ``root:root 0755``, which then hide the base's. So parents are written as the base has them.
    """

    path: str
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime: int | None = None


@dataclass(frozen=True)
class LayerLink:
    """A symbolic link to ``target``, which is kept as it is."""

    path: str
    target: str
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True)
class Whiteout:
    """Removes ``path`` of the layers below (image-spec 1.1, ``layer.md``, *Whiteouts*)."""

    path: str


LayerEntry = LayerFile | LayerDirectory | LayerLink | Whiteout


@dataclass(frozen=True)
class Layer:
    """A layer's blob, its descriptor, and the digest of its tar (``diff_id``)."""

    descriptor: Descriptor
    diff_id: str
    data: bytes = field(repr=False)


def layer_media_type(manifest_media_type: str) -> str:
    """The gzip layer's media type in the family of a manifest; :class:`InvalidInput` for anything else."""
    if manifest_media_type not in _LAYER_OF:
        raise InvalidInput(
            "not the media type of an image manifest",
            expected=" or ".join(_LAYER_OF),
            found=manifest_media_type,
        )
    return _LAYER_OF[manifest_media_type]


def build_layer(entries: Iterable[LayerEntry], *, mtime: int, media_type: str) -> Layer:
    """A layer of ``entries``, the same bytes on every machine and in any order of ``entries``.

    Args:
        entries: files, directories, links and whiteouts, each path once.
        mtime: modification time of everything that names none, in seconds since 1970.
        media_type: of the layer, as :func:`layer_media_type` gives it.

    Raises:
        InvalidInput: a path leaves the root, comes twice, lies below a file, or looks like a whiteout.
    """
    tar = b"".join(tar_stream(entries, mtime=mtime))
    data = gzip_literals(tar)
    return Layer(Descriptor(media_type, sha256_digest(data), len(data)), sha256_digest(tar), data)


def parent_directories(paths: Iterable[str]) -> list[str]:
    """Every directory above ``paths``, without the root, parents first."""
    parents: set[str] = set()
    for path in paths:
        parts = _clean(path).split("/")
        parents.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    return sorted(parents, key=_by_component)


def tar_stream(entries: Iterable[LayerEntry], *, mtime: int) -> Iterator[bytes]:
    """The uncompressed tar of ``entries``, sorted, as chunks; arguments and errors as :func:`build_layer`."""
    ordered = _in_order(entries)
    written = 0
    for path, entry in ordered:
        for chunk in _tar_entry(path, entry, mtime):
            written += len(chunk)
            yield chunk
    yield tar_end(written)


def tar_end(written: int) -> bytes:
    """The end of a tar that holds ``written`` bytes: two zero blocks, then zeros up to a whole record."""
    return bytes(2 * _BLOCK + -(written + 2 * _BLOCK) % _RECORD)


def gzip_literals(data: bytes) -> bytes:
    """``data`` as one gzip member, its bytes depending on nothing else."""
    trailer = struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)
    return b"".join([_GZIP_HEADER, *deflate_literals(data), trailer])


def gzip_stored(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """``chunks`` as one gzip member of stored blocks, the same however the input was cut."""
    crc, size, held = 0, 0, b""
    yield _GZIP_HEADER
    for chunk in chunks:
        crc, size = zlib.crc32(chunk, crc), size + len(chunk)
        held += chunk
        blocks = max(0, len(held) - 1) // _STORED_MAX  # the last block is kept: it carries the final bit
        view = memoryview(held)
        for start in range(0, blocks * _STORED_MAX, _STORED_MAX):
            yield _stored_block(view[start : start + _STORED_MAX], final=0)
        held = held[blocks * _STORED_MAX :]
    yield _stored_block(held, final=1)
    yield struct.pack("<II", crc, size & 0xFFFFFFFF)


def _stored_block(data: bytes | memoryview, *, final: int) -> bytes:
    return struct.pack("<BHH", final, len(data), len(data) ^ 0xFFFF) + data


def _by_component(path: str) -> list[str]:
    return path.split("/")


def _clean(path: str) -> str:
    """``path`` without leading slashes; only names that every unpacker puts at the same place."""
    parts = path.lstrip("/").split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise InvalidInput(
            "a layer cannot hold this path",
            where=repr(path),
            expected="a path from the image's root, without empty, '.' or '..' parts",
        )
    return "/".join(parts)


def _in_order(entries: Iterable[LayerEntry]) -> Sequence[tuple[str, LayerEntry]]:
    """Entries by path, parents first; everything that two unpackers could read differently is refused."""
    by_path: dict[str, LayerEntry] = {}
    for entry in entries:
        path = _clean(entry.path)
        if any(part.startswith(WHITEOUT_PREFIX) for part in path.split("/")):
            raise InvalidInput("a layer's path must not look like a whiteout", where=path)
        if path in by_path:
            raise InvalidInput("a path comes twice in one layer", where=path)
        by_path[path] = entry
    for parent in parent_directories(by_path):
        if parent in by_path and not isinstance(by_path[parent], LayerDirectory):
            raise InvalidInput(
                "a path of the layer lies below something that is not a directory", where=parent
            )
    return [(path, by_path[path]) for path in sorted(by_path, key=_by_component)]


def _tar_entry(path: str, entry: LayerEntry, mtime: int) -> Iterator[bytes]:
    match entry:
        case LayerFile(data=data, mode=mode, uid=uid, gid=gid):
            yield tar_header(path, kind=b"0", mode=mode, uid=uid, gid=gid, mtime=mtime, size=len(data))
            yield data
            yield tar_padding(len(data))
        case LayerDirectory(mode=mode, uid=uid, gid=gid):
            time = mtime if entry.mtime is None else entry.mtime
            yield tar_header(path + "/", kind=b"5", mode=mode, uid=uid, gid=gid, mtime=time)
        case LayerLink(target=target, uid=uid, gid=gid):
            yield tar_header(path, kind=b"2", mode=0o777, uid=uid, gid=gid, mtime=mtime, link=target)
        case Whiteout():
            directory, slash, name = path.rpartition("/")
            yield tar_header(
                f"{directory}{slash}{WHITEOUT_PREFIX}{name}", kind=b"0", mode=0, uid=0, gid=0, mtime=mtime
            )


def tar_padding(size: int) -> bytes:
    """Zeros that fill the last block of a file of ``size`` bytes."""
    return bytes(-size % _BLOCK)


def tar_header(
    path: str, *, kind: bytes, mode: int, uid: int, gid: int, mtime: int, size: int = 0, link: str = ""
) -> bytes:
    """The header blocks of one entry: ustar, preceded by a pax record for each value that ustar cannot hold.

    Args:
        path: as it is written; a directory's ends with ``/``.
        kind: the type flag (``0`` file, ``2`` symbolic link, ``5`` directory).
        mode: permission bits; other bits are an error.
        uid: numeric owner; ``gid``: numeric group.
        mtime: seconds since 1970.
        size: bytes of content that follow.
        link: target of a symbolic link.
    """
    if not 0 <= mode <= 0o7777 or min(uid, gid, mtime, size) < 0:
        raise InvalidInput(
            "an entry's mode, owner, time or size is out of range",
            where=path,
            found=f"mode {mode:o}, owner {uid}:{gid}, time {mtime}, size {size}",
        )
    name, target = _utf8(path), _utf8(link)
    records = b""
    if len(name) > 100 or not name.isascii():
        records += _pax_record(b"path", name)
    if len(target) > 100 or not target.isascii():
        records += _pax_record(b"linkpath", target)
    for key, number, most in (
        (b"uid", uid, _MAX_OCTAL_ID),
        (b"gid", gid, _MAX_OCTAL_ID),
        (b"size", size, _MAX_OCTAL_SIZE),
        (b"mtime", mtime, _MAX_OCTAL_SIZE),
    ):
        if number > most:
            records += _pax_record(key, b"%d" % number)
    fields = (
        mode,
        min(uid, _MAX_OCTAL_ID),
        min(gid, _MAX_OCTAL_ID),
        min(size, _MAX_OCTAL_SIZE),
        min(mtime, _MAX_OCTAL_SIZE),
    )
    header = _ustar(_ascii(name), kind, fields, _ascii(target))
    if not records:
        return header
    pax = _ustar(
        b"PaxHeaders.0/" + _ascii(name.rstrip(b"/").rpartition(b"/")[2])[:80],
        b"x",
        (0o644, 0, 0, len(records), 0),
        b"",
    )
    return pax + records + tar_padding(len(records)) + header


def _ustar(name: bytes, kind: bytes, fields: tuple[int, int, int, int, int], link: bytes) -> bytes:
    mode, uid, gid, size, mtime = fields
    start = struct.pack(
        "100s8s8s8s12s12s",
        name[:100],
        b"%07o\0" % mode,
        b"%07o\0" % uid,
        b"%07o\0" % gid,
        b"%011o\0" % size,
        b"%011o\0" % mtime,
    )
    rest = kind + struct.pack("100s8s", link[:100], b"ustar\x0000")
    total = sum(start) + 8 * ord(" ") + sum(rest)
    return (start + b"%06o\0 " % total + rest).ljust(_BLOCK, b"\0")


def _pax_record(key: bytes, value: bytes) -> bytes:
    """``LENGTH KEY=VALUE\\n`` where LENGTH counts itself."""
    body = b" " + key + b"=" + value + b"\n"
    length = len(body)
    while length != len(body) + len(b"%d" % length):
        length = len(body) + len(b"%d" % length)
    return b"%d" % length + body


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInput("a path in a layer must be UTF-8", where=repr(text)) from None


def _ascii(name: bytes) -> bytes:
    """What the ustar field shows of a name whose pax record counts."""
    return bytes(byte if byte < 0x80 else ord("_") for byte in name)
