"""HTTP to registries: one pool of connections, authorization, redirects, limits, bounded retries.

urllib3 directly: importing requests on top of it would double what a build that finds everything locked
spends on Python's start.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlencode, urljoin, urlsplit

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationParseError,
    NameResolutionError,
    NewConnectionError,
    ProtocolError,
    ProxyError,
    ProxySchemeUnknown,
    ReadTimeoutError,
    SSLError,
)
from urllib3.response import BaseHTTPResponse

from builder import __version__
from builder.errors import OverlayError, Unavailable
from builder.oci.reference import DEFAULT_REGISTRY
from builder.oci.registry.auth import Authorizer, Scopes, TokenRequest
from builder.oci.registry.credentials import Login, config_files, find_login
from builder.oci.registry.retry import Attempts, RetryPolicy, TransientError, parse_retry_after

SMALL_ANSWER = 1 << 20  # bytes: tokens, errors, empty answers
LONGEST_MESSAGE = 64 << 10  # bytes read of an answer that is an error
CHUNK = 1 << 20
WRITE_BLOCK = 256 << 10
MOST_REDIRECTS = 5
# A registry that is down or not there at all is not worth the full number of tries.
CONNECT_ATTEMPTS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
USER_AGENT = f"sglang-overlay/{__version__}"
DOCKER_HUB_HOST = "registry-1.docker.io"

_LOOPBACK = re.compile(r"(?:localhost|127(?:\.[0-9]+){3}|\[::1\])(?::[0-9]+)?")
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (NameResolutionError, "its name was not found"),
    (NewConnectionError, "no connection"),
    (ConnectTimeoutError, "no connection within the time limit"),
    (ReadTimeoutError, "no answer within the time limit"),
    (ProxyError, "the proxy failed"),
    (ProtocolError, "the connection broke"),
)

Warn = Callable[[str], None]


@dataclass(frozen=True)
class NetworkSettings:
    """How registries are spoken to.

    Args:
        retry: bounds of retries.
        connect_timeout: seconds until a connection stands.
        read_timeout: seconds of silence that end a connection.
        slowest: bytes a second; a body slower than this for ``patience`` seconds is broken off and resumed.
        patience: seconds, see ``slowest``.
        store_timeout: seconds a registry may take to store what was sent: it reads all of it again.
        upload_chunk: bytes held in memory and sent at once when a blob is streamed.
        insecure: registries (``host:port``) to reach over http; those on loopback always are.
        login_files: where logins are looked for.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    connect_timeout: float = 10.0
    read_timeout: float = 60.0
    slowest: int = 1024
    patience: float = 60.0
    store_timeout: float = 900.0
    upload_chunk: int = 8 << 20
    insecure: frozenset[str] = frozenset()
    login_files: tuple[Path, ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> NetworkSettings:
        """The defaults, changed by ``OVERLAY_RETRY_*`` and ``OVERLAY_INSECURE_REGISTRIES`` (a,b,…)."""
        insecure = environment.get("OVERLAY_INSECURE_REGISTRIES", "")
        return cls(
            retry=RetryPolicy.from_environment(environment),
            insecure=frozenset(name.strip().lower() for name in insecure.split(",") if name.strip()),
            login_files=tuple(config_files(environment)),
        )


@dataclass(frozen=True)
class StreamBody:
    """A body that can be sent once: its chunks, and their size in bytes together."""

    chunks: Iterable[bytes]
    size: int


@dataclass(frozen=True)
class Request:
    """A request to a registry.

    Args:
        method: of HTTP.
        target: a path on the registry, or an address that it gave.
        scopes: what the request needs leave for.
        expect: statuses that the caller deals with; any other is an error.
        headers: beside those that every request has.
        body: what is sent.
        limit: most bytes of an answer that is read whole.
        read_timeout: seconds until the answer begins, where the settings' are too few.
    """

    method: str
    target: str
    scopes: Scopes
    expect: frozenset[int]
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | StreamBody | None = None
    limit: int = SMALL_ANSWER
    read_timeout: float | None = None

    def __str__(self) -> str:
        return f"{self.method} {shown(self.target)}"


@dataclass(frozen=True)
class Reply:
    """An answer, read whole. ``url`` is where it came from in the end."""

    status: int
    headers: Mapping[str, str]
    data: bytes
    url: str


class Transport:
    """HTTP to one registry. Safe to use from several threads.

    Args:
        registry: as in a reference: ``docker.io``, ``localhost:5000``.
        settings: limits and retries.
        connections: shared by all registries of a run.
        warn: hears what a person should know though the work goes on.
    """

    def __init__(
        self, registry: str, settings: NetworkSettings, connections: Connections, warn: Warn
    ) -> None:
        self.registry = registry
        self.settings = settings
        self.warn = warn
        self._connections = connections
        plain = _LOOPBACK.fullmatch(registry) or registry in settings.insecure
        host = DOCKER_HUB_HOST if registry == DEFAULT_REGISTRY else registry
        self.base = f"{'http' if plain else 'https'}://{host}"
        self._authorizer = Authorizer(registry, self._login(warn), self._ask_for_token, warn)

    def attempts(self, what: str, where: str) -> Attempts:
        """A counter of failures for one piece of work."""
        return Attempts(self.settings.retry, what, where)

    def request(self, request: Request) -> Reply:
        """Send a request that may be repeated, and again until it is answered; read the answer whole.

        Raises:
            Unavailable: no answer within the bounded retries, or one that is not expected.
        """
        attempts = self.attempts(str(request), self.registry)
        while True:
            try:
                return self.request_once(request)
            except TransientError as failure:
                attempts.failed(failure)

    def request_once(self, request: Request) -> Reply:
        """Like :meth:`request`, but one try: what may be tried again is a :class:`TransientError`."""
        with self.open(request) as response:
            data = self._read(response, request.limit, str(request))
            return Reply(response.status, response.headers, data, response.url or "")

    @contextmanager
    def open(self, request: Request) -> Iterator[BaseHTTPResponse]:
        """One try at a request whose answer is read as a stream with :meth:`chunks`.

        Raises:
            TransientError: another try may help.
            Unavailable: denied, or an answer that is not expected.
        """
        response = self._authorized(request)
        try:
            if response.status not in request.expect:
                raise self._unexpected(response, str(request))
            yield response
        finally:
            # A body not read to its end would hold the connection: only then is it closed.
            if response.length_remaining:
                response.close()
            response.release_conn()

    def chunks(self, response: BaseHTTPResponse) -> Iterator[bytes]:
        """The body as it comes. A broken, silent or crawling connection is a :class:`TransientError`."""
        pace = _Pace(self.settings.slowest, self.settings.patience)
        while True:
            started = time.monotonic()
            try:
                chunk = response.read1(CHUNK, decode_content=False)
            except HTTPError as error:
                raise self._transient(error) from None
            if not chunk:
                return
            pace.read(len(chunk), time.monotonic() - started)
            yield chunk

    # --- one try ------------------------------------------------------------------------------------------

    def _authorized(self, request: Request) -> BaseHTTPResponse:
        sent = self._authorizer.header(request.scopes)
        response = self._follow(request, sent)
        if not self._is_refusal(response, sent):
            self._authorizer.accepted(request.scopes)
            return response
        detail = self._drop(response)
        challenges = response.headers.getlist("WWW-Authenticate")
        with self._authorizer.negotiating:
            for header in self._authorizer.after_refusal(request.scopes, challenges, sent):
                if isinstance(request.body, StreamBody):
                    raise TransientError("its leave ran out; there is a new one")
                response = self._follow(request, header)
                if not self._is_refusal(response, header):
                    self._authorizer.accepted(request.scopes)
                    return response
                detail = self._drop(response)
        raise self._authorizer.denied(str(request), self.registry, request.scopes, detail)

    def _is_refusal(self, response: BaseHTTPResponse, sent: str | None) -> bool:
        if not same_origin(response.url or self.base, self.base):
            return False
        return response.status == 401 or (response.status == 403 and sent is not None)

    def _follow(self, request: Request, authorization: str | None) -> BaseHTTPResponse:
        url = self.base + request.target if request.target.startswith("/") else request.target
        for _ in range(MOST_REDIRECTS + 1):
            headers = {"User-Agent": USER_AGENT, **request.headers}
            if authorization and same_origin(url, self.base):
                headers["Authorization"] = authorization
            response = self._send(
                request.method, url, headers, request.body, read_timeout=request.read_timeout
            )
            if response.status not in REDIRECTS:
                return response
            self._drop(response)
            if request.method not in ("GET", "HEAD") and response.status not in (307, 308):
                raise self._strange(
                    f"it answered {request.method} with a redirect of status {response.status}"
                )
            if isinstance(request.body, StreamBody):
                raise self._strange("it redirects an upload that it opened itself")
            url = self.next_address(url, response.headers.get("Location"))
        raise self._strange(f"it redirects more than {MOST_REDIRECTS} times")

    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | StreamBody | None,
        *,
        read_timeout: float | None = None,
    ) -> BaseHTTPResponse:
        try:
            response = self._connections.open(method, url, headers, body, read_timeout=read_timeout)
        except SSLError as error:
            raise Unavailable(
                f"no secure connection to {urlsplit(url).netloc}",
                where=self.registry,
                found=_tls_reason(error),
                hint="set SSL_CERT_FILE to the certificates that vouch for it; "
                "a registry without TLS is named in OVERLAY_INSECURE_REGISTRIES",
            ) from None
        except ProxySchemeUnknown:
            raise Unavailable(
                "the proxy that the environment names is neither http nor https",
                where=urlsplit(url).netloc,
                hint="name another in HTTPS_PROXY, or this registry in NO_PROXY",
            ) from None
        except HTTPError as error:
            raise self._transient(error, url) from None
        if response.status in TRANSIENT:
            reason = f"{urlsplit(url).netloc} answered {response.status} {self._drop(response)}".strip()
            raise TransientError(reason, retry_after=parse_retry_after(response.headers.get("Retry-After")))
        # The pool fills in the address it asked only for its own redirects.
        response.url = url
        return response

    # --- addresses ----------------------------------------------------------------------------------------

    def next_address(self, url: str, location: str | None) -> str:
        """Where an answer's ``Location`` leads, if a registry may lead there.

        A registry behind a proxy that speaks TLS for it may name itself with ``http``: its own scheme stands.

        Raises:
            Unavailable: there is none, or it leads from https to http, out of HTTP, or to what only this
                machine or its neighbours can reach, where the registry is not such a place itself.
        """
        new, old = split_address(url, location or ""), urlsplit(url)
        if new is None:
            raise self._strange("it answered with no usable Location")
        if new.scheme == "http" and old.scheme == "https" and new.hostname == old.hostname:
            new = new._replace(scheme="https", netloc=old.netloc)
        if new.scheme not in ("https", old.scheme) or not new.hostname or new.username is not None:
            raise self._strange(f"it redirects to {new.scheme}://{new.hostname}")
        if self._leads_inside(new.hostname):
            raise self._strange(f"it leads to {new.hostname}, an address of this machine or its network link")
        return new.geturl()

    def _leads_inside(self, host: str) -> bool:
        """Whether a registry elsewhere, over http, sends us to this machine or its network link."""
        own = urlsplit(self.base)
        if own.scheme != "http" or host == own.hostname:
            return False
        return is_local(host) and not is_local(own.hostname or "")

    # --- answers ------------------------------------------------------------------------------------------

    def _read(self, response: BaseHTTPResponse, limit: int, what: str) -> bytes:
        data = bytearray()
        for chunk in self.chunks(response):
            data += chunk
            if len(data) > limit:
                raise self._strange(f"its answer to {what} is longer than {limit} bytes")
        promised = response.headers.get("Content-Length", "")
        if response.status != 204 and response.length_remaining:
            raise TransientError(f"the answer ended after {len(data)} of {promised} bytes")
        return bytes(data)

    def _drop(self, response: BaseHTTPResponse) -> str:
        """What an answer that nobody wants says, in a few words; its connection is free again."""
        return registry_message(self._rest(response))

    def _rest(self, response: BaseHTTPResponse) -> bytes:
        data = bytearray()
        try:
            for chunk in self.chunks(response):
                data += chunk
                if len(data) > LONGEST_MESSAGE:
                    break
        except TransientError:
            data.clear()  # the status said what matters; the rest of a broken answer does not
        if response.length_remaining:
            response.close()
        response.release_conn()
        return bytes(data)

    def _unexpected(self, response: BaseHTTPResponse, what: str) -> Unavailable:
        data = self._rest(response)
        return Unavailable(
            f"{what} failed: {response.status} {registry_message(data)}".strip(),
            where=self.registry,
            hint="the registry refuses this request; it will not help to repeat it",
            facts={"status": response.status, "codes": registry_codes(data)},
        )

    def _strange(self, what: str) -> Unavailable:
        return Unavailable(
            f"the registry behaves in a way that is not safe to follow: {what}",
            where=self.registry,
            hint="check that this address is a registry, and what stands in front of it",
        )

    def _transient(self, error: HTTPError, url: str | None = None) -> TransientError:
        # urllib3's own texts hold whole addresses, and those can hold signatures.
        reason = next((text for kind, text in _REASONS if isinstance(error, kind)), "the connection failed")
        cause = error.__cause__ or error.__context__
        if isinstance(cause, OSError) and cause.strerror:
            reason += f" ({cause.strerror.lower()})"
        unreachable = isinstance(error, NewConnectionError | ConnectTimeoutError | LocationParseError)
        if unreachable and url and not same_origin(url, self.base):
            _, host, port = _origin(url)
            reason = f"it sent us to {host}:{port}, where there is {reason}"
            if host == urlsplit(self.base).hostname:
                reason += f"; its Location leaves out the port {_origin(self.base)[2]}"
        return TransientError(reason, attempts=CONNECT_ATTEMPTS if unreachable else None)

    # --- who we are ---------------------------------------------------------------------------------------

    def _login(self, warn: Warn) -> Callable[[], Login | None]:
        return lambda: find_login(self.registry, list(self.settings.login_files), warn)

    def _ask_for_token(self, request: TokenRequest) -> Mapping[str, object] | None:
        realm = split_address("", request.realm)
        if realm is None:
            raise self._strange("it names no usable address to ask for a token")
        if realm.scheme != "https" and not (realm.scheme == "http" and self.base.startswith("http:")):
            raise self._strange(
                f"it wants a login sent to {realm.scheme}://{realm.hostname}, which is not https"
            )
        if self._leads_inside(realm.hostname or ""):
            raise self._strange(f"it wants a login sent to {realm.hostname}, an address of this machine")
        headers = {"User-Agent": USER_AGENT}
        if request.is_form:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            response = self._send("POST", request.realm, headers, urlencode(request.query).encode())
        else:
            if request.login:
                headers["Authorization"] = request.login.basic
            joint = "&" if realm.query else "?"
            url = f"{request.realm}{joint}{urlencode(request.query)}" if request.query else request.realm
            response = self._send("GET", url, headers, None)
        if response.status in (400, 401, 403):
            self._drop(response)
            return None
        if response.status != 200:
            raise self._unexpected(response, f"asking {realm.hostname} for a token")
        data = self._read(response, SMALL_ANSWER, "the request for a token")
        response.release_conn()
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._strange(f"the token server {realm.hostname} answered without JSON")
        return answer


class _Pace:
    """Breaks off a body that crawls: ``slowest`` bytes a second over ``patience`` seconds of reading."""

    def __init__(self, slowest: int, patience: float) -> None:
        self._slowest = slowest
        self._patience = patience
        self._bytes = 0
        self._seconds = 0.0

    def read(self, size: int, seconds: float) -> None:
        self._bytes += size
        self._seconds += seconds
        if self._seconds < self._patience:
            return
        if self._bytes < self._slowest * self._seconds:
            raise TransientError(f"only {self._bytes} bytes came in {self._seconds:.0f} s")
        self._bytes, self._seconds = 0, 0.0


class Connections:
    """The connections of a whole run, by host. Proxies are those of the environment; loopback has none.

    What costs time to set up (TLS trust, a proxy) is set up when it is first wanted.
    """

    def __init__(self, settings: NetworkSettings) -> None:
        self._connect_timeout = settings.connect_timeout
        self._timeout = self._timeout_of(settings.read_timeout)
        self._pools: dict[tuple[str, str | None], urllib3.PoolManager] = {}

    def open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | StreamBody | None,
        *,
        read_timeout: float | None = None,
    ) -> BaseHTTPResponse:
        """One request, no redirect followed, nothing tried again; urllib3's errors as they are."""
        parts = urlsplit(url)
        key = parts.scheme, proxy_for(parts.scheme, parts.netloc)
        if key not in self._pools:
            self._pools[key] = self._pool(*key)
        sent = dict(headers)
        # Bytes go out in blocks too, so that the time limit of a write is one block's, not the whole body's.
        content: BytesIO | Iterable[bytes] | None = None
        if isinstance(body, StreamBody):
            content, sent["Content-Length"] = body.chunks, str(body.size)
        elif body is not None:
            content, sent["Content-Length"] = BytesIO(body), str(len(body))
        return self._pools[key].urlopen(
            method,
            url,
            body=content,
            headers=sent,
            timeout=self._timeout if read_timeout is None else self._timeout_of(read_timeout),
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )

    def _timeout_of(self, read_timeout: float) -> urllib3.Timeout:
        return urllib3.Timeout(connect=self._connect_timeout, read=read_timeout)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.clear()

    def _pool(self, scheme: str, proxy: str | None) -> urllib3.PoolManager:
        context = trust() if scheme == "https" else None
        if proxy is None:
            return urllib3.PoolManager(num_pools=16, maxsize=8, blocksize=WRITE_BLOCK, ssl_context=context)
        login = urlsplit(proxy)
        basic = f"{unquote(login.username)}:{unquote(login.password or '')}" if login.username else None
        return urllib3.ProxyManager(
            proxy,
            proxy_headers=urllib3.make_headers(proxy_basic_auth=basic),
            num_pools=16,
            maxsize=8,
            blocksize=WRITE_BLOCK,
            ssl_context=context,
        )


def trust() -> ssl.SSLContext:
    """Whom to trust: ``SSL_CERT_FILE`` where set, else the system's list, else certifi's."""
    context = ssl.create_default_context()
    named = os.environ.get("SSL_CERT_FILE") or os.environ.get("REQUESTS_CA_BUNDLE")
    if named:
        try:
            context.load_verify_locations(named)
        except (OSError, ssl.SSLError):
            raise Unavailable(
                "the file of trusted certificates cannot be read",
                where=named,
                hint="repair or unset SSL_CERT_FILE",
            ) from None
    elif not context.get_ca_certs() and not ssl.get_default_verify_paths().capath:
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def proxy_for(scheme: str, host: str) -> str | None:
    """The proxy that the environment names for this host, if any."""
    if _LOOPBACK.fullmatch(host) or not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    if proxy_bypass(host):
        return None
    return proxies.get(scheme) or proxies.get("all")


def split_address(base: str, location: str) -> SplitResult | None:
    """An address that a registry gave, relative to ``base``; None where it is not one that can be asked."""
    try:
        parts = urlsplit(urljoin(base, location))
        usable = parts.port != 0 and bool(parts.hostname)
    except ValueError:  # a bracket that is not closed, a port beyond 65535
        return None
    text = parts.geturl()
    clean = text.isascii() and text.isprintable() and " " not in text
    return parts if location and usable and clean else None


def is_local(host: str) -> bool:
    """Whether a host is this machine, or an address that holds on its own network link only.

    Names are looked up, since anybody's name may lead to such an address; what cannot be looked up, cannot be
    connected to either.
    """
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)}
    except (OSError, UnicodeError):
        return False
    return any(_is_local_address(ipaddress.ip_address(text.partition("%")[0])) for text in found)


def _is_local_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.is_loopback or address.is_link_local or address.is_unspecified


def same_origin(one: str, other: str) -> bool:
    """Whether two addresses share scheme, host and port (RFC 6454)."""
    return _origin(one) == _origin(other)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def shown(target: str) -> str:
    """An address for people: what follows ``/v2/``, without the query, which can hold signatures."""
    parts = urlsplit(target)
    path = parts.path.removeprefix("/v2/") or "/v2/"
    return path if target.startswith("/") else f"{parts.hostname}/{path.lstrip('/')}"


def registry_codes(data: bytes) -> list[str]:
    """The codes of a registry's error answer, such as ``MANIFEST_UNKNOWN`` (distribution-spec)."""
    return [str(error.get("code", "")) for error in _errors(data)]


def error_codes(error: OverlayError) -> frozenset[str]:
    """The codes with which a registry refused a request; none of any other error."""
    codes = error.facts.get("codes")
    return frozenset(map(str, codes)) if isinstance(codes, list) else frozenset()


def _errors(data: bytes) -> list[dict[str, Any]]:
    """The errors of an answer; nothing of an answer that is not one."""
    try:
        errors = json.loads(data)["errors"]
        return [error for error in errors if isinstance(error, dict)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def registry_message(data: bytes) -> str:
    """The codes and messages of a registry's error answer; nothing of an answer that is not one."""
    texts = [f"{error.get('code', '')} {error.get('message', '')}".strip() for error in _errors(data)]
    plain = "".join(c if c.isprintable() else " " for c in "; ".join(texts))
    return f"({plain[:300]})" if plain else ""


def _tls_reason(error: Exception) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        cause = (
            cause.__cause__
            or cause.__context__
            or next(iter(a for a in cause.args if isinstance(a, Exception)), None)
        )
    return "the TLS handshake failed"
