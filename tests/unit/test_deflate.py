"""Deflate that every reader reads, and that is the same on every machine."""

from __future__ import annotations

import hashlib
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isal import isal_zlib

from builder.oci.deflate import deflate_literals
from tests.examples import examples

SAMPLES = {
    "nothing": b"",
    "one byte": b"x",
    "one byte repeated": b"x" * 300_000,
    "all bytes": bytes(range(256)) * 3,
    "noise over several blocks": random.Random(1).randbytes(400_000),
    "a block to the byte": b"ab" * (64 << 10),
    "this file": Path(__file__).read_bytes(),
    # Counts that grow like Fibonacci's numbers make the deepest of trees, deeper than deflate allows.
    "the deepest tree": b"".join(
        bytes([n]) * c for n, c in enumerate([1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89] * 2)
    ),
    "very unequal counts": b"".join(bytes([n]) * (1 << n) for n in range(17)),
}


@pytest.mark.parametrize("what", SAMPLES)
def test_two_readers_read_back_what_went_in(what: str) -> None:
    packed = b"".join(deflate_literals(SAMPLES[what]))
    assert zlib.decompress(packed, wbits=-15) == SAMPLES[what]
    assert isal_zlib.decompress(packed, wbits=-15) == SAMPLES[what]


@settings(deadline=None, max_examples=examples(20))
@given(st.binary(max_size=2000), st.integers(0, 3))
def test_every_input_reads_back(data: bytes, blocks: int) -> None:
    data = bytes(32 << 10) * blocks + data
    assert zlib.decompress(b"".join(deflate_literals(data)), wbits=-15) == data


def test_bytes_stay_what_they_were() -> None:
    """Another digest here changes the digest of every image: that is a new format, not a clean-up."""
    text = b"".join(b"def function_%d(x):\n    return x * %d\n" % (n, n) for n in range(10_000))
    packed = b"".join(deflate_literals(text))
    assert len(packed) < 0.65 * len(text)
    assert (
        hashlib.sha256(packed).hexdigest()
        == "3483a4aeb048753c7bf9fb1df43cbf8a88e26863dfb153f41cd95f625b2619ca"
    )
