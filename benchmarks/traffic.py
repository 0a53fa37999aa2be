"""What a registry was asked for, from its own access log, so that measuring does not slow anything down."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

# The combined log format: …"GET /v2/name/blobs/sha256:… HTTP/1.1" 200 1234 …
_LINE = re.compile(r'"(?P<method>[A-Z]+) (?P<path>\S+) HTTP/[0-9.]+" (?P<status>\d{3}) (?P<size>\d+)')
_BLOB = re.compile(r"/blobs/(?P<digest>sha256:[0-9a-f]{64})$")
_UPLOADED = re.compile(r"[?&]digest=(?P<digest>sha256(?::|%3A)[0-9a-f]{64})")


@dataclass
class Traffic:
    """Requests of one span of time.

    Args:
        read: bytes of blobs sent to the client, by digest.
        uploaded: digests of blobs whose bytes the client sent (a mounted blob is not one of them).
        requests: how many requests of any kind.
    """

    read: dict[str, int] = field(default_factory=dict)
    uploaded: list[str] = field(default_factory=list)
    requests: int = 0

    def read_of(self, digests: set[str]) -> int:
        return sum(size for digest, size in self.read.items() if digest in digests)


@contextmanager
def traffic(log: Path) -> Iterator[Traffic]:
    """What is written to ``log`` while the block runs; filled in when it ends."""
    start = log.stat().st_size
    seen = Traffic()
    yield seen
    with log.open("rb") as file:
        file.seek(start)
        for line in file.read().decode(errors="replace").splitlines():
            _count(seen, line)


def _count(seen: Traffic, line: str) -> None:
    found = _LINE.search(line)
    if found is None:
        return
    seen.requests += 1
    method, path, status = found["method"], found["path"], int(found["status"])
    blob, upload = _BLOB.search(path), _UPLOADED.search(path)
    if method == "GET" and blob and status in (200, 206):
        digest = blob["digest"]
        seen.read[digest] = seen.read.get(digest, 0) + int(found["size"])
    # A blob is stored by the PUT that ends its upload, or by a POST that carries it whole.
    if upload and status == 201 and method in ("PUT", "POST"):
        seen.uploaded.append(upload["digest"].replace("%3A", ":"))
