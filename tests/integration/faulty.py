"""A proxy in front of a real registry that fails as real ones do: when told to, where told to, so often.

    with FaultyProxy("127.0.0.1:5000") as proxy:
        proxy.fail("GET", "/blobs/", reset_answer(after=1000), times=2)
        ...                       # use proxy.address as the registry
        assert proxy.count("GET", "/blobs/") == 3

Requests that no fault is for go through unchanged. Bodies are held in memory: it is for small images.
"""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import urlsplit


@dataclass
class Answer:
    """What the registry answered."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


@dataclass
class Exchange:
    """One request at the proxy, and what can be done with it."""

    method: str
    path: str
    headers: Message
    handler: BaseHTTPRequestHandler
    upstream: str
    _body: bytes | None = None

    @property
    def length(self) -> int:
        return int(self.headers.get("Content-Length", "0"))

    def body(self) -> bytes:
        if self._body is None:
            self._body = self.handler.rfile.read(self.length)
        return self._body

    def ask(self, *, without: frozenset[str] = frozenset()) -> Answer:
        """The registry's own answer."""
        connection = http.client.HTTPConnection(self.upstream, timeout=30)
        headers = {key: value for key, value in self.headers.items() if key.lower() not in without}
        connection.request(self.method, self.path, self.body() or None, headers)
        response = connection.getresponse()
        answer = Answer(response.status, response.getheaders(), response.read())
        connection.close()
        return answer

    def send_head(self, status: int, headers: list[tuple[str, str]], length: int | None) -> None:
        self.handler.send_response_only(status)
        for key, value in headers:
            if key.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.handler.send_header(key, value)
        kept = [value for key, value in headers if key.lower() == "content-length"]
        if self.method == "HEAD":
            length = int(kept[0]) if kept else None
        if length is not None and status != 204:
            self.handler.send_header("Content-Length", str(length))
        self.handler.end_headers()

    def send(self, answer: Answer) -> None:
        self.send_head(answer.status, answer.headers, len(answer.body))
        if self.method != "HEAD":
            self.handler.wfile.write(answer.body)

    def reset(self) -> None:
        """Cut the client off with a TCP reset."""
        self.handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.end()

    def end(self) -> None:
        """Close the connection to the client."""
        self.handler.close_connection = True
        self.handler.wfile.flush()
        self.handler.connection.close()


Action = Callable[[Exchange], None]


def answer_with(status: int, body: bytes = b"", **headers: str) -> Action:
    """Not the registry's answer but this one. ``Retry_After="1"`` is the header ``Retry-After``."""

    def act(exchange: Exchange) -> None:
        exchange.body()
        named = [(key.replace("_", "-"), value) for key, value in headers.items()]
        exchange.send(Answer(status, named, body))

    return act


def reset_at_once(exchange: Exchange) -> None:
    """Cut the connection instead of answering; the registry never hears of it."""
    exchange.reset()


def reset_request(after: int) -> Action:
    """Pass on so many bytes of the request's body, then cut both connections."""

    def act(exchange: Exchange) -> None:
        host, _, port = exchange.upstream.partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as upstream:
            head = f"{exchange.method} {exchange.path} HTTP/1.1\r\n"
            head += "".join(f"{key}: {value}\r\n" for key, value in exchange.headers.items())
            upstream.sendall(head.encode() + b"\r\n")
            upstream.sendall(exchange.handler.rfile.read(min(after, exchange.length)))
            time.sleep(0.05)  # let the registry take it in, as it would have by the time a line goes down
        exchange.reset()

    return act


def reset_answer(after: int) -> Action:
    """Ask the registry, send so many bytes of its answer's body, then reset."""

    def act(exchange: Exchange) -> None:
        answer = exchange.ask()
        exchange.send_head(answer.status, answer.headers, len(answer.body))
        exchange.handler.wfile.write(answer.body[:after])
        exchange.handler.wfile.flush()
        time.sleep(0.02)  # a reset discards what the client has not read yet
        exchange.reset()

    return act


def truncate_answer(after: int) -> Action:
    """Like :func:`reset_answer`, but with an orderly end."""

    def act(exchange: Exchange) -> None:
        answer = exchange.ask()
        exchange.send_head(answer.status, answer.headers, len(answer.body))
        exchange.handler.wfile.write(answer.body[:after])
        exchange.end()

    return act


def lose_answer(exchange: Exchange) -> None:
    """Let the registry do it, then reset instead of telling."""
    exchange.ask()
    exchange.reset()


def wrong_bytes(exchange: Exchange) -> None:
    """One byte in the middle of the answer's body is another; everything else is right."""
    answer = exchange.ask()
    middle = len(answer.body) // 2
    changed = bytes([answer.body[middle] ^ 1])
    exchange.send(
        Answer(answer.status, answer.headers, answer.body[:middle] + changed + answer.body[middle + 1 :])
    )


def other_body(body: bytes) -> Action:
    """The registry's head with this body."""

    def act(exchange: Exchange) -> None:
        answer = exchange.ask()
        exchange.send(Answer(answer.status, answer.headers, body))

    return act


def crawl(piece: int, pause: float) -> Action:
    """The registry's answer in pieces of so many bytes, with a pause of so many seconds after each."""

    def act(exchange: Exchange) -> None:
        answer = exchange.ask()
        exchange.send_head(answer.status, answer.headers, len(answer.body))
        for start in range(0, len(answer.body), piece):
            exchange.handler.wfile.write(answer.body[start : start + piece])
            time.sleep(pause)

    return act


def silence(seconds: float) -> Action:
    """No answer for so many seconds, then a closed connection."""

    def act(exchange: Exchange) -> None:
        exchange.body()
        time.sleep(seconds)
        exchange.end()

    return act


def ignore_range(exchange: Exchange) -> None:
    """The whole blob, whatever part was asked for."""
    exchange.send(exchange.ask(without=frozenset({"range"})))


class Keeper:
    """Makes the registry one that keeps what it got of a broken request, as the specification hopes.

    (docker-registry 2.8 gives such an upload up.) :meth:`cut` passes on a part of a piece as a whole one, and
    cuts the line; :meth:`status` tells of it when the client asks how far the upload came.
    """

    def __init__(self, after: int) -> None:
        self._after = after
        self._location = ""

    def cut(self, exchange: Exchange) -> None:
        start = int(exchange.headers["Content-Range"].partition("-")[0])
        exchange._body = exchange.handler.rfile.read(self._after)
        for name, value in (
            ("Content-Range", f"{start}-{start + self._after - 1}"),
            ("Content-Length", str(self._after)),
        ):
            exchange.headers.replace_header(name, value)
        answer = exchange.ask()
        assert answer.status == 202, answer
        self._location = dict(answer.headers)["Location"]
        exchange.reset()

    def status(self, exchange: Exchange) -> None:
        parts = urlsplit(self._location)
        exchange.path = f"{parts.path}?{parts.query}"
        exchange.send(exchange.ask())


def change_headers(**changes: str | None) -> Action:
    """The registry's answer with these headers set, or left out (``None``)."""
    named = {key.replace("_", "-").lower(): value for key, value in changes.items()}

    def act(exchange: Exchange) -> None:
        answer = exchange.ask()
        kept = [(key, value) for key, value in answer.headers if key.lower() not in named]
        added = [(key, value) for key, value in named.items() if value is not None]
        exchange.send(Answer(answer.status, kept + added, answer.body))

    return act


@dataclass
class Fault:
    method: str
    path: re.Pattern[str]
    action: Action
    left: int


@dataclass(frozen=True)
class Seen:
    """A request that reached the proxy."""

    method: str
    path: str
    headers: Mapping[str, str]
    faulty: bool
    length: int


@dataclass
class FaultyProxy:
    """The proxy; it runs while the ``with`` block does.

    Args:
        upstream: ``host:port`` of the real registry.
    """

    upstream: str
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, method: str, path: str, action: Action, *, times: int = 1) -> None:
        """Meet the next ``times`` requests of this method and path (a pattern in it) with ``action``."""
        self.faults.append(Fault(method, re.compile(path), action, times))

    def count(self, method: str, path: str = "") -> int:
        """How many such requests came."""
        return len(self.requests(method, path))

    def requests(self, method: str, path: str = "") -> list[Seen]:
        return [seen for seen in self.seen if seen.method == method and re.search(path, seen.path)]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FaultyProxy:
        self._server = _Server(("127.0.0.1", 0), _handler_for(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, exchange: Exchange) -> Action | None:
        """The fault for this request, if one is left; the request is written down."""
        with self._lock:
            fault = next((f for f in self.faults if self._meets(f, exchange)), None)
            if fault:
                fault.left -= 1
            self.seen.append(
                Seen(
                    exchange.method,
                    exchange.path,
                    dict(exchange.headers.items()),
                    fault is not None,
                    exchange.length,
                )
            )
            return fault.action if fault else None

    @staticmethod
    def _meets(fault: Fault, exchange: Exchange) -> bool:
        return fault.left > 0 and fault.method == exchange.method and bool(fault.path.search(exchange.path))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up in the middle is what this proxy is for."""


def _handler_for(proxy: FaultyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            with proxy._lock:
                proxy.connections += 1

        def serve(self) -> None:
            exchange = Exchange(self.command, self.path, self.headers, self, proxy.upstream)
            action = proxy.take(exchange)
            if action:
                action(exchange)
            else:
                exchange.send(exchange.ask())

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = serve  # noqa: N815

        def log_message(self, format: str, *values: object) -> None:
            """The proxy keeps its own record."""

    return Handler
