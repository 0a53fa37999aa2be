"""A registry in this process (OCI distribution-spec 1.1): for tests of the client that need no service.

It answers as ``docker-registry`` does: the tests of ``tests/contracts/registry.py`` run against both. What
registries do wrong is switched on by a test: :meth:`MemoryRegistry.fail`.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

INDEX = "application/vnd.oci.image.index.v1+json"
_ROUTE = re.compile(
    r"/v2/(?P<name>.+)/(?P<kind>blobs/uploads|blobs|manifests|tags|referrers)/(?P<what>[^/]*)\Z"
)
_RANGE = re.compile(r"bytes=(\d+)-(\d*)\Z")


@dataclass
class Answer:
    """What is sent: a status, headers, and a body, of which ``sent`` bytes go out before the line is cut."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    sent: int | None = None


@dataclass(frozen=True)
class Asked:
    """A request, as it came in."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


Proceed = Callable[[], Answer]
Change = Callable[[Asked, Proceed], Answer]


@dataclass
class _Fault:
    method: str
    path: str
    change: Change
    left: int


@dataclass
class _Repository:
    blobs: set[str] = field(default_factory=set)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


class MemoryRegistry:
    """Serves on a free port of loopback while it is entered.

    Args:
        has_referrers: it knows the referrers API. ``docker-registry`` 2.8 does not.
    """

    def __init__(self, *, has_referrers: bool = False) -> None:
        self.has_referrers = has_referrers
        self.seen: list[Asked] = []
        self._blobs: dict[str, bytes] = {}
        self._repositories: dict[str, _Repository] = {}
        self._uploads: dict[str, bytearray] = {}
        self._faults: list[_Fault] = []
        self._lock = threading.RLock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True

    def __enter__(self) -> MemoryRegistry:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def fail(self, method: str, path: str, change: Change, *, times: int = 1) -> None:
        """Change what is answered to the next requests of this method whose path contains ``path``.

        ``change`` is given the request, and a function that does what it asks for and gives the right answer.
        """
        self._faults.append(_Fault(method, path, change, times))

    def count(self, method: str, path: str = "") -> int:
        return sum(asked.method == method and path in asked.path for asked in self.seen)

    # --- what the handler calls ---------------------------------------------------------------------------

    def answer(self, asked: Asked) -> Answer:
        with self._lock:
            self.seen.append(asked)
            for fault in self._faults:
                if fault.left and fault.method == asked.method and fault.path in asked.path:
                    fault.left -= 1
                    return fault.change(asked, lambda: self._right_answer(asked))
            return self._right_answer(asked)

    def _right_answer(self, asked: Asked) -> Answer:
        url = urlsplit(asked.path)
        if url.path == "/v2/":
            return Answer(200, b"{}")
        route = _ROUTE.match(url.path)
        if route is None:
            return Answer(404, b"404 page not found\n", {"Content-Type": "text/plain; charset=utf-8"})
        name, what = route["name"], unquote(route["what"])
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if route["kind"] == "blobs/uploads":
            return self._upload(asked, name, what, query)
        if route["kind"] == "blobs":
            return self._blob(asked, name, what)
        if route["kind"] == "manifests":
            return self._manifest(asked, name, what)
        return self._tags(name, query) if route["kind"] == "tags" else self._referrers(name, what)

    def _repository(self, name: str) -> _Repository:
        return self._repositories.get(name, _Repository())

    # --- blobs --------------------------------------------------------------------------------------------

    def _blob(self, asked: Asked, name: str, digest: str) -> Answer:
        if digest not in self._repository(name).blobs:
            return _refused(404, "BLOB_UNKNOWN", "blob unknown to registry")
        data = self._blobs[digest]
        headers = {"Docker-Content-Digest": digest, "Content-Type": "application/octet-stream"}
        wanted = _RANGE.match(asked.headers.get("Range", ""))
        if asked.method == "HEAD" or wanted is None:
            return Answer(200, data, headers)
        start, end = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
        if start >= len(data):
            return Answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        return Answer(206, data[start : end + 1], headers)

    def _upload(self, asked: Asked, name: str, session: str, query: Mapping[str, str]) -> Answer:
        if asked.method == "POST":
            return self._open_upload(name, query)
        held = self._uploads.get(session)
        if held is None:
            return _refused(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")
        if asked.method == "PATCH":
            return self._take_piece(asked, name, session, held)
        if asked.method == "PUT":
            return self._close_upload(asked, name, session, query)
        if asked.method == "DELETE":
            del self._uploads[session]
        return Answer(204, b"", _where(name, session, len(held)))

    def _open_upload(self, name: str, query: Mapping[str, str]) -> Answer:
        repository = self._repositories.setdefault(name, _Repository())
        digest = query.get("mount", "")
        if digest in self._repository(query.get("from", "")).blobs:
            repository.blobs.add(digest)
            return Answer(201, b"", _stored(f"/v2/{name}/blobs/{digest}", digest))
        session = uuid.uuid4().hex
        self._uploads[session] = bytearray()
        return Answer(202, b"", _where(name, session, 0))

    def _take_piece(self, asked: Asked, name: str, session: str, held: bytearray) -> Answer:
        held += asked.body
        return Answer(202, b"", _where(name, session, len(held)))

    def _close_upload(self, asked: Asked, name: str, session: str, query: Mapping[str, str]) -> Answer:
        data = bytes(self._uploads[session]) + asked.body
        digest = query.get("digest", "")
        if _digest(data) != digest:
            return _refused(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
        del self._uploads[session]
        self._blobs[digest] = data
        self._repositories[name].blobs.add(digest)
        return Answer(201, b"", _stored(f"/v2/{name}/blobs/{digest}", digest))

    # --- manifests ----------------------------------------------------------------------------------------

    def _manifest(self, asked: Asked, name: str, reference: str) -> Answer:
        if asked.method == "PUT":
            return self._put_manifest(asked, name, reference)
        repository = self._repository(name)
        digest = repository.tags.get(reference, reference)
        if digest not in repository.manifests:
            return _refused(404, "MANIFEST_UNKNOWN", "manifest unknown")
        media_type, data = repository.manifests[digest]
        return Answer(200, data, {"Content-Type": media_type, "Docker-Content-Digest": digest})

    def _put_manifest(self, asked: Asked, name: str, reference: str) -> Answer:
        digest, manifest = _digest(asked.body), json.loads(asked.body)
        if ":" in reference and reference != digest:
            return _refused(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
        repository = self._repositories.setdefault(name, _Repository())
        named = [*manifest.get("layers", ()), *filter(None, [manifest.get("config")])]
        missing = [one["digest"] for one in named if one["digest"] not in repository.blobs]
        children = [one["digest"] for one in manifest.get("manifests", ())]
        missing += [child for child in children if child not in repository.manifests]
        if missing:
            return _refused(404, "MANIFEST_BLOB_UNKNOWN", "blob unknown to registry")
        repository.manifests[digest] = asked.headers["Content-Type"], asked.body
        if ":" not in reference:
            repository.tags[reference] = digest
        headers = _stored(f"/v2/{name}/manifests/{digest}", digest)
        if self.has_referrers and "subject" in manifest:
            headers["OCI-Subject"] = manifest["subject"]["digest"]
        return Answer(201, b"", headers)

    def _tags(self, name: str, query: Mapping[str, str]) -> Answer:
        if name not in self._repositories:
            return _refused(404, "NAME_UNKNOWN", "repository name not known to registry")
        tags = sorted(tag for tag in self._repositories[name].tags if tag > query.get("last", ""))
        most = int(query.get("n", len(tags)))
        headers = {"Content-Type": "application/json"}
        if len(tags) > most:
            headers["Link"] = f'</v2/{name}/tags/list?last={tags[most - 1]}&n={most}>; rel="next"'
        return Answer(200, json.dumps({"name": name, "tags": tags[:most]}).encode(), headers)

    def _referrers(self, name: str, subject: str) -> Answer:
        if not self.has_referrers:
            return Answer(404, b"404 page not found\n", {"Content-Type": "text/plain; charset=utf-8"})
        found = []
        for digest, (media_type, data) in self._repository(name).manifests.items():
            manifest = json.loads(data)
            if manifest.get("subject", {}).get("digest") == subject:
                kind = manifest.get("artifactType") or manifest["config"]["mediaType"]
                entry = {"mediaType": media_type, "digest": digest, "size": len(data), "artifactType": kind}
                found.append(entry)
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": found}
        return Answer(200, json.dumps(index).encode(), {"Content-Type": INDEX})


# --- what a test switches on --------------------------------------------------------------------------------


def status(code: int, body: bytes = b"", **headers: str) -> Change:
    """Answer with this status and do nothing; ``Retry_After`` is the header ``Retry-After``."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda asked, proceed: Answer(code, body, named)


def cut(after: int) -> Change:
    """End the connection after so many bytes of the body."""

    def change(asked: Asked, proceed: Proceed) -> Answer:
        answer = proceed()
        answer.sent = after
        return answer

    return change


def with_headers(**headers: str) -> Change:
    def change(asked: Asked, proceed: Proceed) -> Answer:
        answer = proceed()
        answer.headers |= {name.replace("_", "-"): value for name, value in headers.items()}
        return answer

    return change


def with_body(data: bytes, code: int = 200) -> Change:
    """Answer with these bytes, under the headers of the right answer but its range."""

    def change(asked: Asked, proceed: Proceed) -> Answer:
        answer = proceed()
        headers = {name: value for name, value in answer.headers.items() if name != "Content-Range"}
        return Answer(code, data, headers)

    return change


# --- HTTP ---------------------------------------------------------------------------------------------------


def _handler(registry: MemoryRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self._body()
            answer = registry.answer(Asked(self.command, self.path, dict(self.headers), body))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.status != 204:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body[: answer.sent])
            if answer.sent is not None:
                self.close_connection = True

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def log_message(self, *_: Any) -> None:
            pass

    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
        setattr(Handler, f"do_{method}", Handler._serve)
    return Handler


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _stored(location: str, digest: str) -> dict[str, str]:
    return {"Location": location, "Docker-Content-Digest": digest}


def _where(name: str, session: str, held: int) -> dict[str, str]:
    """Where an upload goes on, and what it holds; an empty one says ``0-0``, as docker-registry does."""
    return {"Location": f"/v2/{name}/blobs/uploads/{session}", "Range": f"0-{max(held - 1, 0)}"}


def _refused(code: int, name: str, message: str) -> Answer:
    body = json.dumps({"errors": [{"code": name, "message": message}]}).encode()
    return Answer(code, body, {"Content-Type": "application/json; charset=utf-8"})
