"""Whether a bytecode file would run in the place of its source (PEP 552; importlib)."""

from __future__ import annotations

import _imp  # the keyed hash that PEP 552 takes of sources; importlib.util has it for our own Python only
from enum import StrEnum

HEADER_BYTES = 16


class Standing(StrEnum):
    """What Python makes of a bytecode file beside a source."""

    IGNORED = "ignored"  # it compiles the source anew
    TRUSTED = "trusted"  # it runs the bytecode: the source's time and size, or hash, are the ones named in it
    UNCHECKED = "unchecked"  # it runs the bytecode, whatever the source is


def standing_of(bytecode: bytes, source: bytes, source_mtime: int) -> Standing:
    """What Python makes of a bytecode file, given that its magic number is Python's own.

    Args:
        bytecode: the file, or at least its first 16 bytes.
        source: all of the source file.
        source_mtime: its modification time, in seconds since 1970.
    """
    if len(bytecode) < HEADER_BYTES:
        return Standing.IGNORED
    flags = int.from_bytes(bytecode[4:8], "little")
    if flags & ~0b11:
        return Standing.IGNORED
    if flags & 0b01:
        right = bytecode[8:16] == _imp.source_hash(int.from_bytes(bytecode[:4], "little"), source)
        if flags & 0b10:
            return Standing.TRUSTED if right else Standing.IGNORED
        return Standing.UNCHECKED
    named = (int.from_bytes(bytecode[8:12], "little"), int.from_bytes(bytecode[12:16], "little"))
    actual = (source_mtime & 0xFFFFFFFF, len(source) & 0xFFFFFFFF)
    return Standing.TRUSTED if named == actual else Standing.IGNORED
