"""Deflate (RFC 1951) whose bytes depend on nothing but the input.

Compressors look for matches, and zlib, zlib-ng, isal and their versions find different ones: the format
leaves it open. Here every byte is a literal, and only the Huffman codes are fitted to the input. That
leaves nothing open, needs no loop of Python's over the bytes, and makes source text 40 percent smaller.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache

_BLOCK = 32 << 10  # bytes coded by one set of codes
_END = 256  # the symbol that ends a block
_LITERALS = 257
_LONGEST_CODE = 15
_LONGEST_LENGTH_CODE = 7
# The order in which the lengths of the codes for code lengths are written (RFC 1951, 3.2.7).
_LENGTH_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
# No distance is ever used. Two codes of one bit are a complete set, which every reader accepts.
_DISTANCES = (1, 1)


def deflate_literals(data: bytes) -> Iterator[bytes]:
    """``data`` as one deflate stream, in pieces."""
    last = max(0, len(data) - 1) // _BLOCK * _BLOCK  # the last block carries the final bit
    rest = ""
    for start in range(0, last, _BLOCK):
        coded, rest = _coded(rest, data[start : start + _BLOCK])
        yield coded
    yield _packed(rest + _block(data[last:], "1"))


@lru_cache(maxsize=256)
def _coded(before: str, data: bytes) -> tuple[bytes, str]:
    """A block after the bits that its forerunner left over: whole bytes, and the bits left over now.

    Images of one series begin with the same files: their blocks are coded once in a run.
    """
    bits = before + _block(data, "0")
    whole = len(bits) // 8 * 8
    return _packed(bits[:whole]), bits[whole:]


def _packed(bits: str) -> bytes:
    """Bits in the order of the stream as bytes, the first bit lowest; the last byte is filled with zeros."""
    return int(bits[::-1] or "0", 2).to_bytes((len(bits) + 7) // 8, "little")


def _block(data: bytes, final: str) -> str:
    """One block with codes of its own, as bits in the order of the stream."""
    lengths = _code_lengths(Counter(data) + Counter((_END,)), _LONGEST_CODE)
    codes = _codes(lengths)
    written = [*(lengths.get(symbol, 0) for symbol in range(_LITERALS)), *_DISTANCES]
    length_lengths = _code_lengths(Counter(written), _LONGEST_LENGTH_CODE)
    length_codes = _codes(length_lengths)
    order = [length_lengths.get(length, 0) for length in _LENGTH_ORDER]
    while not order[-1]:
        order.pop()
    head = [final, "01", _number(0, 5), _number(len(_DISTANCES) - 1, 5), _number(len(order) - 4, 4)]
    head += [_number(length, 3) for length in order]
    head += [length_codes[length] for length in written]
    table = [codes.get(byte, "") for byte in range(256)]
    return "".join(head) + "".join(map(table.__getitem__, data)) + codes[_END]


def _number(value: int, width: int) -> str:
    """A number, its lowest bit first."""
    return format(value, f"0{width}b")[::-1]


def _code_lengths(counts: Mapping[int, int], longest: int) -> dict[int, int]:
    """Bits for each symbol by Huffman's algorithm; counts are evened out until none is above ``longest``."""
    evened = dict(counts)
    while True:
        lengths = _huffman(evened)
        if max(lengths.values()) <= longest:
            return lengths
        evened = {symbol: (count + 1) // 2 for symbol, count in evened.items()}


def _huffman(counts: Mapping[int, int]) -> dict[int, int]:
    """Bits for each symbol; of equal counts, the lower symbol and the older node come first."""
    heap: list[tuple[int, int, tuple[int, ...]]] = [
        (counts[symbol], number, (symbol,)) for number, symbol in enumerate(sorted(counts))
    ]
    heapq.heapify(heap)
    lengths = dict.fromkeys(counts, 0 if len(heap) > 1 else 1)
    number = len(heap)
    while len(heap) > 1:
        first, second = heapq.heappop(heap), heapq.heappop(heap)
        symbols = first[2] + second[2]
        for symbol in symbols:
            lengths[symbol] += 1
        heapq.heappush(heap, (first[0] + second[0], number, symbols))
        number += 1
    return lengths


def _codes(lengths: Mapping[int, int]) -> dict[int, str]:
    """The canonical codes of these lengths (RFC 1951, 3.2.2), as bits in the order of the stream."""
    codes: dict[int, str] = {}
    code, before = 0, 0
    for length, symbol in sorted((length, symbol) for symbol, length in lengths.items()):
        code <<= length - before
        codes[symbol] = format(code, f"0{length}b")
        code, before = code + 1, length
    return codes
