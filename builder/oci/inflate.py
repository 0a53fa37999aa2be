"""A layer's blob as the tar in it: plain, gzip (RFC 1952, any members) or zstd (RFC 8878, any frames)."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import IO, cast

from builder.errors import ImageMismatch
from builder.oci.model import (
    DOCKER_LAYER,
    DOCKER_LAYER_GZIP,
    DOCKER_LAYER_ZSTD,
    OCI_LAYER,
    OCI_LAYER_GZIP,
    OCI_LAYER_ZSTD,
    Descriptor,
)

LAYER_TYPES = frozenset(
    {OCI_LAYER, OCI_LAYER_GZIP, OCI_LAYER_ZSTD, DOCKER_LAYER, DOCKER_LAYER_GZIP, DOCKER_LAYER_ZSTD}
)

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_GZIP_WINDOW = 31  # zlib's way to say: gzip header and trailer, largest window
_PIECE = 1 << 20
_FED = 64 << 10
_MAX_ZSTD_WINDOW = 128 << 20  # what the zstd command accepts without --long


def inflate(chunks: Iterator[bytes], descriptor: Descriptor, *, limit: int) -> Iterator[bytes]:
    """The uncompressed tar of a layer, in pieces of at most 1 MiB for compressed layers.

    As in container engines, the first bytes decide how the layer is compressed; the media type must be one of
    a layer, but need not name the same compression.

    Args:
        chunks: the blob. It is read to its end, so that whoever checks its digest sees all of it.
        descriptor: of the layer.
        limit: most bytes that the tar may have.

    Raises:
        ImageMismatch: not a layer, damaged, cut short, or larger than ``limit``.
    """
    if descriptor.media_type not in LAYER_TYPES:
        raise ImageMismatch(
            "not a layer that can be read",
            where=f"layer {descriptor.digest}",
            expected="a tar, plain or compressed by gzip or zstd",
            found=descriptor.media_type or "no media type",
        )
    head, chunks = _peek(chunks)
    if head.startswith(_GZIP_MAGIC):
        pieces = _gunzip(chunks)
    elif head.startswith(_ZSTD_MAGIC) or int.from_bytes(head[:4], "little") in _ZSTD_SKIPPABLE:
        pieces = _unzstd(chunks)
    else:
        pieces = chunks
    return _bounded(pieces, descriptor, limit)


def _bounded(pieces: Iterator[bytes], descriptor: Descriptor, limit: int) -> Iterator[bytes]:
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            if size > limit:
                raise ImageMismatch(
                    "a layer is larger than allowed when unpacked",
                    where=f"layer {descriptor.digest}",
                    expected=f"at most {limit} bytes",
                )
            yield piece
    except _DamagedError as error:
        raise ImageMismatch(
            "a layer cannot be decompressed", where=f"layer {descriptor.digest}", found=str(error)
        ) from error


class _DamagedError(Exception):
    """Compressed data is not what its format asks for."""


def _peek(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first four bytes at least (where there are as many), and all chunks."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= 4:
            break
    return head[:4], itertools.chain([head] if head else [], chunks)


def _zlib() -> ModuleType:
    """isal where it is installed: two to three times as fast as zlib, with the same interface."""
    try:
        return importlib.import_module("isal.isal_zlib")
    except ImportError:
        return importlib.import_module("zlib")


def _cut(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same in small pieces: what is left of one is copied for every member that ends in it."""
    for chunk in chunks:
        for start in range(0, len(chunk), _FED):
            yield chunk[start : start + _FED]


def _gunzip(chunks: Iterator[bytes]) -> Iterator[bytes]:
    zlib = _zlib()
    member = zlib.decompressobj(_GZIP_WINDOW)
    try:
        for data in _cut(chunks):
            more = True
            while more:
                if member.eof:
                    member = zlib.decompressobj(_GZIP_WINDOW)
                piece = member.decompress(data, _PIECE)
                data = member.unused_data if member.eof else member.unconsumed_tail
                # A full piece may have left output behind that no input stands for any more.
                more = bool(data) or (len(piece) == _PIECE and not member.eof)
                if piece:
                    yield piece
    except zlib.error as error:
        raise _DamagedError(f"gzip: {error}") from error
    if not member.eof:
        raise _DamagedError("gzip: the data ends early")


class _Readable:
    """Chunks with the one method of a file that zstandard asks for."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int) -> bytes:
        if not self._rest:
            self._rest = next(self._chunks, b"")
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def _unzstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW)
    # A reader and not a decompressobj: it gives bounded pieces, where 4 bytes of zstd can stand for 128 KiB.
    # It says nothing of a last frame cut short, which shows as a tar that ends early or as a wrong diff ID.
    reader = decompressor.stream_reader(cast(IO[bytes], _Readable(chunks)), read_across_frames=True)
    try:
        while piece := reader.read(_PIECE):
            yield piece
    except zstandard.ZstdError as error:
        raise _DamagedError(f"zstd: {error}") from error
