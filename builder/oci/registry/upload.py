"""Uploading one blob (distribution-spec 1.1, "Pushing blobs"): at once, or in pieces that can be resumed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from builder.errors import ImageMismatch, OverlayError, Unavailable
from builder.oci.model import Descriptor, Progress
from builder.oci.registry.auth import Scopes
from builder.oci.registry.retry import TransientError
from builder.oci.registry.transport import Reply, Request, StreamBody, Transport, registry_message

LARGEST_CHUNK = 256 << 20  # bytes: what a registry may ask us to hold in memory (OCI-Chunk-Min-Length)
SMALLEST_CHUNK = 1 << 20  # bytes: a registry that takes less than this at once is sent a blob whole
TOO_LARGE = 413

_RANGE = re.compile(r"(?:bytes=)?0-([0-9]+)")
_BINARY = {"Content-Type": "application/octet-stream"}


class SessionLostError(Exception):
    """The upload cannot be continued where it stopped; it has to start again. The text says why."""


class PiecesRefusedError(SessionLostError):
    """The registry took no further piece although nothing had gone wrong: it wants a blob as one."""


class PieceTooLargeError(SessionLostError):
    """The registry takes less at once than it was sent."""


class UploadSession:
    """One upload session of a registry.

    Args:
        transport: the registry.
        scopes: leave to write the repository.
        opened: the registry's answer that opened the session (202 with ``Location``).
        piece: bytes to send at once, unless the registry asks for more (``OCI-Chunk-Min-Length``).
    """

    def __init__(self, transport: Transport, scopes: Scopes, opened: Reply, piece: int) -> None:
        self._transport = transport
        self._scopes = scopes
        self._location = transport.next_address(opened.url, opened.headers.get("Location"))
        smallest = opened.headers.get("OCI-Chunk-Min-Length", "")
        self.smallest = int(smallest) if smallest.isdecimal() else 0
        self.chunk = max(piece, self.smallest)
        if self.chunk > LARGEST_CHUNK:
            raise Unavailable(
                "the registry wants larger pieces than fit in memory",
                where=transport.registry,
                expected=f"at most {LARGEST_CHUNK} bytes",
                found=f"{self.chunk} bytes",
            )

    def send(self, chunk: bytes, start: int) -> None:
        """Send the piece of the blob that begins at byte ``start``, in as many tries as are allowed.

        Raises:
            PieceTooLargeError: the registry refuses so many bytes at once, or with 416 the first of them.
            SessionLostError: it does not hold what came before, or has forgotten the session.
        """
        attempts = self._transport.attempts("the upload of a blob", self._transport.registry)
        sent = 0
        refusal: type[SessionLostError] = PiecesRefusedError if start else PieceTooLargeError
        while sent < len(chunk):
            try:
                piece = chunk[sent:]
                first = start + sent
                self._patch(piece, {"Content-Range": f"{first}-{first + len(piece) - 1}"}, refusal)
            except TransientError as failure:
                attempts.failed(failure)
                refusal = SessionLostError
                sent = self._stored() - start
                if not 0 <= sent <= len(chunk):
                    raise SessionLostError("it holds other bytes than were sent") from None
            else:
                return

    def finish(self, descriptor: Descriptor, data: bytes | StreamBody = b"") -> None:
        """Close the session with the blob's digest, and its last or only bytes.

        Raises:
            PieceTooLargeError: the registry refuses so many bytes at once.
            SessionLostError: the session is gone, or holds other bytes.
            TransientError: it is not known whether the blob was stored.
        """
        joint = "&" if urlsplit(self._location).query else "?"
        reply = self._once(
            "PUT",
            f"{self._location}{joint}digest={descriptor.digest}",
            frozenset({200, 201, 202, 204, 400, 404, TOO_LARGE, 416}),
            body=data,
            headers=_BINARY,
            read_timeout=self._transport.settings.store_timeout,
        )
        if reply.status in (200, 202):  # not what the specification has for a stored blob
            raise TransientError(f"it answered {reply.status}, which does not say that the blob is stored")
        if reply.status not in (201, 204):
            raise _refused(reply, SessionLostError)

    def cancel(self) -> None:
        """Tell the registry to forget the session. One that does not listen forgets it by itself, later."""
        try:
            self._once("DELETE", self._location, frozenset({200, 202, 204, 400, 404, 405}))
        except (TransientError, OverlayError):
            return  # only tidying: the failure that led here is the one to report

    def _patch(self, body: bytes, headers: Mapping[str, str], refusal: type[SessionLostError]) -> None:
        reply = self._once(
            "PATCH",
            self._location,
            frozenset({201, 202, 204, 400, 404, TOO_LARGE, 416}),
            body=body,
            headers={**_BINARY, **headers},
        )
        if reply.status not in (201, 202, 204):
            # Only 416 speaks of bytes: of their number, where it is about the first.
            is_about_size = refusal is not PieceTooLargeError or reply.status == 416
            raise _refused(reply, refusal if is_about_size else SessionLostError)
        self._moved(reply)

    def _stored(self) -> int:
        """How many bytes the registry holds of this session."""
        expect = frozenset({200, 202, 204, 400, 404, 416})
        reply = self._transport.request(Request("GET", self._location, self._scopes, expect))
        match = _RANGE.fullmatch(reply.headers.get("Range", ""))
        if reply.status not in (202, 204) or match is None:
            raise SessionLostError("it does not say how much it holds")
        self._moved(reply)
        # "0-0" is what an empty session says too; if it did hold one byte, the next piece is refused.
        return int(match[1]) + 1 if match[1] != "0" else 0

    def _moved(self, reply: Reply) -> None:
        if location := reply.headers.get("Location"):
            self._location = self._transport.next_address(reply.url, location)

    def _once(
        self,
        method: str,
        url: str,
        expect: frozenset[int],
        *,
        body: bytes | StreamBody | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = None,
    ) -> Reply:
        return self._transport.request_once(
            Request(method, url, self._scopes, expect, headers or {}, body, read_timeout=read_timeout)
        )


def _refused(reply: Reply, error: type[SessionLostError]) -> SessionLostError:
    """The error of an answer that refuses bytes; 413 is always about how many they are."""
    kind = PieceTooLargeError if reply.status == TOO_LARGE else error
    return kind(f"it answered {reply.status} {registry_message(reply.data)}".strip())


def send_whole(
    session: UploadSession, chunks: Iterable[bytes], descriptor: Descriptor, progress: Progress
) -> None:
    """Upload a stream through ``session`` in one ``PUT``, for registries that take no pieces.

    Raises:
        SessionLostError, TransientError, ImageMismatch: as :func:`send_stream`.
    """

    def counted() -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            progress(len(chunk))

    session.finish(descriptor, StreamBody(counted(), descriptor.size))


def send_stream(
    session: UploadSession, chunks: Iterable[bytes], descriptor: Descriptor, progress: Progress
) -> None:
    """Upload a stream through ``session`` in pieces of its size, holding one piece in memory.

    Raises:
        SessionLostError: as :meth:`UploadSession.send`.
        ImageMismatch: from ``chunks``, when the source's bytes are wrong.
    """
    sent = 0
    last = b""
    for piece in _pieces(chunks, session.chunk):
        if sent + len(piece) == descriptor.size and not sent:
            last = piece  # small: one request instead of two
            break
        session.send(piece, sent)
        sent += len(piece)
        progress(len(piece))
    if sent + len(last) != descriptor.size:
        raise ImageMismatch("a blob ended early", where=descriptor.digest)
    session.finish(descriptor, last)
    progress(len(last))


def _pieces(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of ``size``; the last is shorter, or the only one and empty."""
    held: list[bytes | memoryview] = []
    missing = size
    empty = True
    for chunk in chunks:
        rest = memoryview(chunk)
        while len(rest) >= missing:
            piece = b"".join([*held, rest[:missing]])
            rest = rest[missing:]
            held, missing, empty = [], size, False  # let go of before the piece is sent: memory stays flat
            yield piece
        held.append(rest)
        missing -= len(rest)
    if missing < size or empty:
        yield b"".join(held)
