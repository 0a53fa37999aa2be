"""How the probe's process and ours speak: frames of a length and bytes, over two pipes."""

from __future__ import annotations

import os
import select
import struct
import time

SUPPORT = "support"
"""The package, and the directory beside probes, of modules that several probes import."""

FRAME_LIMIT = 64 << 20
"""Bytes: the largest frame that is taken."""

_LENGTH = struct.Struct(">I")


class ChannelClosedError(Exception):
    """The other side is gone."""


class NoFrameError(Exception):
    """What the other side sent is not a frame."""


class ChannelTimeoutError(Exception):
    """The other side said nothing in time."""


class Channel:
    """Frames over a pair of file descriptors.

    Args:
        incoming: the descriptor to read from.
        outgoing: the descriptor to write to.
    """

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def send(self, data: bytes, *, deadline: float | None = None) -> None:
        """Write one frame.

        Args:
            data: the frame.
            deadline: a time of :func:`time.monotonic` after which to give up on a side that does not read.

        Raises:
            ChannelClosedError: the other side no longer reads.
            ChannelTimeoutError: the deadline passed.
        """
        rest = memoryview(_LENGTH.pack(len(data)) + data)
        try:
            while rest:
                if deadline is not None:
                    left = deadline - time.monotonic()
                    if left <= 0 or not select.select([], [self._outgoing], [], left)[1]:
                        raise ChannelTimeoutError
                # A pipe that can be written takes this much without waiting (POSIX, PIPE_BUF).
                piece = rest if deadline is None else rest[: select.PIPE_BUF]
                rest = rest[os.write(self._outgoing, piece) :]
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

    def receive(self, *, deadline: float | None = None, limit: int = FRAME_LIMIT) -> bytes:
        """Read one frame.

        Args:
            deadline: a time of :func:`time.monotonic` after which to give up.
            limit: bytes; a longer frame is refused.

        Raises:
            ChannelClosedError: the other side is gone.
            NoFrameError: the frame is too long.
            ChannelTimeoutError: the deadline passed.
        """
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, deadline))
        if length > limit:
            raise NoFrameError(f"a frame of {length} bytes, of at most {limit}")
        return self._exactly(length, deadline)

    def _exactly(self, count: int, deadline: float | None) -> bytes:
        parts: list[bytes] = []
        while count:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self._incoming], [], [], left)[0]:
                    raise ChannelTimeoutError
            part = os.read(self._incoming, min(count, 1 << 16))
            if not part:
                raise ChannelClosedError("the other side is gone")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
