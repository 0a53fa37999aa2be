"""One process at a time: the kernel's lock (flock) on a directory or a file, gone with its process."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from builder.errors import Unavailable

TIMEOUT = 900.0  # seconds: longer than what is done under a lock may take
_PATIENCE = 1.0  # seconds until it is said what is waited for


@dataclass
class _Place:
    """What this process has of one place: threads take turns, and one that has it may take it again."""

    turn: threading.RLock = field(default_factory=threading.RLock)
    depth: int = 0


_places: dict[tuple[int, int], _Place] = {}


@contextmanager
def exclusive(
    place: Path | int,
    *,
    name: str = "",
    timeout: float = TIMEOUT,
    waiting: Callable[[str], None] = lambda _: None,
) -> Iterator[None]:
    """Have a place to oneself. A thread that has it already may take it again.

    Args:
        place: a directory, which is locked itself so that no file is left in it; or a file, made if need be;
            or the descriptor of an open directory.
        name: what it is called, where ``place`` is a descriptor.
        timeout: seconds to wait for another process.
        waiting: told once, with a message, when it takes more than a second.

    Raises:
        Unavailable: another process had it all the time.
        OSError: it cannot be opened.
    """
    descriptor = os.dup(place) if isinstance(place, int) else _open(place)
    name = name or str(place)
    try:
        facts = os.fstat(descriptor)
        mine = _places.setdefault((facts.st_dev, facts.st_ino), _Place())
        deadline = time.monotonic() + timeout
        if not mine.turn.acquire(timeout=timeout):
            raise _held(name)
        try:
            if mine.depth == 0:
                _take(descriptor, name, deadline, waiting)
            mine.depth += 1
            try:
                yield
            finally:
                mine.depth -= 1
        finally:
            mine.turn.release()
    finally:
        os.close(descriptor)


def _open(place: Path) -> int:
    if place.is_dir():
        return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)


def _take(descriptor: int, name: str, deadline: float, waiting: Callable[[str], None]) -> None:
    started = time.monotonic()
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            now = time.monotonic()
            if now > deadline:
                raise _held(name) from None
            if not told and now - started > _PATIENCE:
                told = True
                waiting(f"waiting for another process that works in {name}")
            time.sleep(0.02)
        else:
            return


def _held(name: str) -> Unavailable:
    return Unavailable("another process works in the same place", where=name, hint="wait for it, or end it")
