"""Registries that want to know who asks: passwords, tokens and TLS, all of a real ``docker-registry``."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from tests import services
from tests.integration.conftest import needed_program

USER, PASSWORD = "alice", "pass-of-alice"
# bcrypt of PASSWORD, with the fewest rounds: it guards nothing.
HTPASSWD = f"{USER}:$2b$04$.VaeAmngWjTCCaNcoxOdGuCutieywvMUMJ9xXUdeg6f5XrxKMGskO\n"
IDENTITY_TOKEN = "identity-of-alice"
SERVICE, ISSUER = "registry.test", "issuer.test"


@contextmanager
def running_registry(directory: Path, **sections: object) -> Iterator[str]:
    """A private ``docker-registry`` with further sections of its configuration, as ``host:port``."""
    program = needed_program("docker-registry")
    directory.mkdir(parents=True)
    port = services.free_port()
    http = {"addr": f"127.0.0.1:{port}", **dict(sections.pop("http", {}))}  # type: ignore[call-overload]
    configuration = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(directory / "data")}, "delete": {"enabled": True}},
        "http": http,
        **sections,
    }
    path = directory / "config.yml"
    path.write_text(json.dumps(configuration))  # JSON is YAML
    log = directory / "docker-registry.log"
    with services.daemon([program, "serve", str(path)], log, {"OTEL_TRACES_EXPORTER": "none"}):
        deadline = time.monotonic() + services.START_TIMEOUT
        while not _listens(port):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield f"127.0.0.1:{port}"


def _listens(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def password_registry(directory: Path) -> Iterator[str]:
    """Everything needs :data:`USER` and :data:`PASSWORD`."""
    directory.mkdir()
    users = directory / "htpasswd"
    users.write_text(HTPASSWD)
    auth = {"htpasswd": {"realm": "private", "path": str(users)}}
    with running_registry(directory / "registry", auth=auth) as address:
        yield address


@contextmanager
def token_registry(directory: Path) -> Iterator[TokenServer]:
    """Repositories under ``public/`` may be read by everybody, those under ``alice/`` are hers alone."""
    directory.mkdir()
    certificate, key = make_certificate(directory, "issuer")
    with TokenServer(certificate, key) as tokens:
        token = {
            "realm": tokens.realm,
            "service": SERVICE,
            "issuer": ISSUER,
            "rootcertbundle": str(certificate),
        }
        with running_registry(directory / "registry", auth={"token": token}) as address:
            tokens.registry = address
            yield tokens


def make_certificate(directory: Path, name: str, *, address: str = "127.0.0.1") -> tuple[Path, Path]:
    """A self-signed certificate and its key."""
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    command = [needed_program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{address}"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@dataclass(frozen=True)
class Asked:
    """A request to the token server."""

    method: str
    scopes: tuple[str, ...]
    login: str | None
    granted: tuple[str, ...]


@dataclass(frozen=True)
class Grant:
    """An entry of a token's ``access``."""

    type: str
    name: str
    actions: tuple[str, ...]


@dataclass
class TokenServer:
    """Gives out tokens that the registry checks by the certificate; remembers what it was asked.

    ``open`` are repositories that everybody may read and write, ``closed`` public ones that nobody may read.
    Where ``logins_are_worthless`` a login gets a token too, with which the registry allows nothing.
    """

    certificate: Path
    key: Path
    registry: str = ""
    life: int = 300
    asked: list[Asked] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    logins_are_worthless: bool = False

    @property
    def realm(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/token"

    def __enter__(self) -> TokenServer:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _token_handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(
        self, method: str, query: list[tuple[str, str]], authorization: str | None
    ) -> tuple[int, Mapping[str, object]]:
        if self.failures:
            return self.failures.pop(0), {"errors": [{"code": "TOOMANYREQUESTS", "message": "later"}]}
        values = dict(query)
        scopes = tuple(scope for name, value in query if name == "scope" for scope in value.split())
        known, login = self._who(values, authorization)
        if not known:
            self.asked.append(Asked(method, scopes, login, ()))
            return 401, {"errors": [{"code": "UNAUTHORIZED", "message": "wrong password"}]}
        access = [grant for scope in scopes if (grant := self.grant(scope, login))]
        granted = tuple(f"{grant.name}:{','.join(grant.actions)}" for grant in access)
        self.asked.append(Asked(method, scopes, login, granted))
        token = self._sign(access)
        name = "access_token" if method == "POST" else "token"
        return 200, {name: token, "expires_in": self.life}

    @staticmethod
    def _who(values: Mapping[str, str], authorization: str | None) -> tuple[bool, str | None]:
        if values.get("grant_type") == "refresh_token":
            return values.get("refresh_token") == IDENTITY_TOKEN, USER
        if authorization is None:
            return True, None
        user, _, password = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        return password == PASSWORD, user

    def grant(self, scope: str, login: str | None) -> Grant | None:
        """What of ``scope`` this login gets: its own all, of a public one its reading, else nothing."""
        if login and self.logins_are_worthless:
            return None
        kind, name, actions = scope.split(":")
        wanted = tuple(actions.split(","))
        if name in self.open or (login == USER and name.startswith(f"{USER}/")):
            return Grant(kind, name, wanted)
        readable = name.startswith("public/") and name not in self.closed and "pull" in wanted
        return Grant(kind, name, ("pull",)) if readable else None

    def _sign(self, access: list[Grant]) -> str:
        """A JSON Web Token (RFC 7519) signed with RS256, the certificate in its header."""
        pem = self.certificate.read_text()
        der = "".join(line for line in pem.splitlines() if "-----" not in line)
        now = int(time.time())
        head = {"typ": "JWT", "alg": "RS256", "x5c": [der]}
        body = {
            "iss": ISSUER,
            "aud": SERVICE,
            "sub": "",
            "jti": os.urandom(8).hex(),
            "iat": now,
            "nbf": now - 600,
            "exp": now + self.life,
            "access": [asdict(grant) for grant in access],
        }
        signed = ".".join(_base64url(json.dumps(part).encode()) for part in (head, body))
        command = [needed_program("openssl"), "dgst", "-sha256", "-sign", str(self.key)]
        signature = subprocess.run(command, input=signed.encode(), capture_output=True, check=True).stdout
        return f"{signed}.{_base64url(signature)}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _token_handler(server: TokenServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(parse_qsl(urlsplit(self.path).query))

        def do_POST(self) -> None:
            self._reply(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))

        def _reply(self, query: list[tuple[str, str]]) -> None:
            status, answer = server.answer(self.command, query, self.headers.get("Authorization"))
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *values: object) -> None:
            """The server keeps its own record."""

    return Handler
