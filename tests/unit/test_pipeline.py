"""Streams worked on by threads arrive whole, in order, with their errors, and leave no thread behind."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator

import pytest

from builder.oci.pipeline import StreamHash, read_ahead

PIECES = [bytes([n]) * n for n in range(200)]


def test_pieces_come_in_order_and_all_of_them() -> None:
    with read_ahead(iter(PIECES)) as ahead:
        assert list(ahead) == PIECES


def test_an_error_comes_in_its_place() -> None:
    def failing() -> Iterator[bytes]:
        yield b"first"
        raise LookupError("second")

    with read_ahead(failing()) as ahead:
        assert next(ahead) == b"first"
        with pytest.raises(LookupError, match="second"):
            next(ahead)


def test_a_reader_that_leaves_early_stops_the_stream() -> None:
    drawn = []

    def endless() -> Iterator[bytes]:
        while True:
            drawn.append(1)
            yield b"x"

    before = threading.active_count()
    with read_ahead(endless()) as ahead:
        next(ahead)
    seen = len(drawn)
    assert threading.active_count() == before
    assert len(drawn) == seen < 20


def test_a_reader_that_fails_leaves_no_thread() -> None:
    before = threading.active_count()

    def read_one_and_fail() -> None:
        with read_ahead(iter(PIECES)) as ahead, StreamHash(ahead) as hashed:
            next(hashed.pieces())
            raise LookupError

    with pytest.raises(LookupError):
        read_one_and_fail()
    assert threading.active_count() == before


def test_hash_is_of_what_passed() -> None:
    with StreamHash(iter(PIECES)) as hashed:
        assert list(hashed.pieces()) == PIECES
    assert hashed.digest == "sha256:" + hashlib.sha256(b"".join(PIECES)).hexdigest()
