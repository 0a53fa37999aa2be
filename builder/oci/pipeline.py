"""Work on a stream in threads of its own: hashing and inflating let Python run on beside them."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_DEPTH = 4  # pieces that may wait between two threads


class _Stopped(Exception):
    """The reader of a stream has gone."""


@contextmanager
def read_ahead(pieces: Iterator[bytes]) -> Iterator[Iterator[bytes]]:
    """``pieces``, drawn by a thread a few ahead of their reader; an error comes through in its place."""
    waiting: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=_DEPTH)
    gone = threading.Event()

    def put(item: bytes | BaseException | None) -> None:
        while not gone.is_set():
            with suppress(queue.Full):
                return waiting.put(item, timeout=0.1)
        raise _Stopped

    def draw() -> None:
        with suppress(_Stopped):
            try:
                for piece in pieces:
                    put(piece)
            except _Stopped:
                raise
            except BaseException as error:  # it belongs to the reader
                put(error)
            else:
                put(None)

    def drawn() -> Iterator[bytes]:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    thread = threading.Thread(target=draw, name="read-ahead", daemon=True)
    thread.start()
    try:
        yield drawn()
    finally:
        gone.set()
        thread.join()


class StreamHash:
    """The sha256 of pieces that pass through :meth:`pieces`, made by a thread while they are used."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._sha256 = hashlib.sha256()
        self._queue: queue.Queue[bytes | None] = queue.Queue(maxsize=_DEPTH)
        self._thread = threading.Thread(target=self._run, name="stream-hash", daemon=True)

    def __enter__(self) -> StreamHash:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (piece := self._queue.get()) is not None:
            self._sha256.update(piece)

    def pieces(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self._queue.put(piece)
            yield piece

    @property
    def digest(self) -> str:
        """``sha256:<hex>`` of all pieces, once the ``with`` block is left."""
        return "sha256:" + self._sha256.hexdigest()
