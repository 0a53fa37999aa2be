"""What is fuzzed: each reader of foreign input, with examples to start from and words of its language."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zstandard

from builder.author.inputs import read_input_patches
from builder.author.lint.text import lint_patch
from builder.errors import OverlayError
from builder.oci.inflate import inflate
from builder.oci.layer_index import index_layer, read_files
from builder.oci.model import OCI_LAYER, Descriptor
from builder.oci.registry.auth import parse_challenges
from builder.oci.rootfs import RootFS
from builder.oci.settings import settings_of
from builder.oci.tarwalk import Limits
from builder.patch.message import read_head, write_head
from builder.patch.patch import parse_patch
from builder.project.spec import read_spec
from builder.record.documents import make_documents
from builder.record.manifest import read_manifest
from builder.verify.config import expected_settings
from builder.verify.read_record import expected_labels, final_files
from builder.verify.vouched import check_trees
from tests.conftest import ROOT
from tests.fuzz.mutations import Change, change_json, change_lines, change_tar, change_words, change_yaml
from tests.projects.image import digest_of, patch

_LIMITS = Limits(entries=10_000, unpacked=16 << 20, held=4 << 20)


@dataclass(frozen=True)
class Target:
    """A reader that may answer, or raise one of overlay's own errors, and nothing else.

    Args:
        read: takes an input to its end.
        seeds: sound inputs.
        words: what its language is made of.
        change: knows its structure.
        prepare: makes an input of what the fuzzer wrote (checksums that would hide everything else).
    """

    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...]
    change: Change
    prepare: Callable[[bytes], bytes] = bytes


def _read_patch(data: bytes) -> None:
    head = read_head(data.partition(b"\n---\n")[0])
    write_head(head)
    head.trailers()
    for read in (
        lambda: parse_patch("p", data),
        lambda: list(lint_patch("p", "patches/one/p.patch", data)),
        lambda: read_input_patches(data, "p"),
    ):
        try:
            read()
        except OverlayError:
            continue


def _read_spec(data: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="overlay-fuzz-") as directory:
        path = Path(directory) / "demo.yaml"
        path.write_bytes(data)
        read_spec(path)


def _read_layer(data: bytes) -> None:
    layer = Descriptor(OCI_LAYER, digest_of(data), len(data))
    diff_id = digest_of(b"".join(inflate(iter([data]), layer, limit=_LIMITS.unpacked)))
    with tempfile.TemporaryDirectory(prefix="overlay-fuzz-") as directory:
        chunks = iter([data[at : at + 1000] for at in range(0, len(data), 1000)])
        index = index_layer(chunks, layer, cache_dir=Path(directory), diff_id=diff_id, limits=_LIMITS)
        try:
            root = RootFS([index])
            for path in ("", "a", "a/b", "usr/lib/x", "../etc"):
                root.lookup(path)
                root.listdir(path)
            read_files(iter([data]), layer, ["a", "usr/lib/x"], limits=_LIMITS)
        finally:
            index.close()


def _checksums(data: bytes) -> bytes:
    """A tar whose headers have right checksums, in whatever is wrong with them."""
    tar = bytearray(data if data[:1] not in (b"\x1f", b"\x28") else b"")
    for at in range(0, len(tar) - 511, 512):
        if tar[at + 257 : at + 262] == b"ustar":
            tar[at + 148 : at + 156] = b" " * 8
            tar[at + 148 : at + 156] = b"%06o\0 " % sum(tar[at : at + 512])
    return bytes(tar) or data


def _tars() -> tuple[bytes, ...]:
    found = []
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=form) as tar:
            for name, kind, link in (
                ("usr", tarfile.DIRTYPE, ""),
                ("usr/lib/x", tarfile.REGTYPE, ""),
                ("a", tarfile.SYMTYPE, "usr/lib"),
                ("a/b", tarfile.REGTYPE, ""),
                ("h", tarfile.LNKTYPE, "usr/lib/x"),
                ("usr/.wh.gone", tarfile.REGTYPE, ""),
                ("d", tarfile.CHRTYPE, ""),
                ("long/" * 40 + "ü", tarfile.REGTYPE, ""),
            ):
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = kind, link
                entry.size = 3 if kind == tarfile.REGTYPE else 0
                tar.addfile(entry, io.BytesIO(b"abc") if entry.size else None)
        found.append(out.getvalue()[:10240])
    return (*found, gzip.compress(found[0], mtime=0), zstandard.compress(found[1]))


def _read_challenges(data: bytes) -> None:
    headers = data.decode("latin-1").split("\n")
    found = parse_challenges(headers)
    assert found == [one for header in headers for one in parse_challenges([header])]


_BLOB = {"blob": "1" * 40, "sha256": "2" * 64}
_CHANGED = {
    "path": "python/sglang/a.py", "old_path": None, "image_path": "/opt/sglang/a.py", "kind": "modify",
    "mode": "0644", "pre": _BLOB, "post": _BLOB, "hunks": [{"declared": 1, "landed": 2}],
}  # fmt: skip
_MANIFEST = json.dumps(
    {
        "schema_version": 1, "tool": "overlay 1", "patched_tree": "0" * 40, "patchset": "sha256:0",
        "overlay": {"name": "demo", "version": "1", "summary": "x"},
        "base": {"ref": "r/b", "index": None, "digest": "sha256:0", "platform": "linux/amd64",
                 "notes": ["x"]},
        "upstream": {"repository": "r", "release": "v1", "commit": None, "tree": "0" * 40},
        "roots": [{"path": "python/sglang", "image_path": "/opt/sglang", "distribution": None,
                   "version": None}],
        "hardware": ["12.0"],
        "requires": [{"name": "cuda", "specifier": ">=13", "by": "spec", "found": "13.0"}],
        "patches": [
            {
                "name": "p0", "sha256": "3" * 64, "patch_id": "4" * 40, "subject": "s", "status": "Pending",
                "bugs": ["https://example.org/1"], "probe": "none", "dropped": [{"path": "t", "rule": "t*"}],
                "files": [
                    _CHANGED,
                    _CHANGED | {"path": "python/sglang/b.py", "kind": "create", "pre": None},
                    _CHANGED | {"path": "python/sglang/c.py", "kind": "delete", "post": None, "mode": None},
                    _CHANGED | {"path": "python/d.py", "kind": "rename", "old_path": "python/sglang/a.py"},
                ],
            }
        ],
        "bytecode": ["/opt/sglang/a.pyc"], "environment": {"A": "b"},
        "entrypoint": {
            "entrypoint": ["python3"], "command": [], "user": "", "working_dir": "/", "python": None,
            "searched": ["/opt"], "declared": {"Labels": {"a": "b"}},
        },
        "skipped": [{"name": "p1", "sha256": "3" * 64, "subject": "s", "dropped": []}],
    }
).encode()  # fmt: skip


def _read_manifest(data: bytes) -> None:
    manifest = read_manifest(data, where="x")
    assert read_manifest(manifest.as_bytes(), where="x") == manifest
    list(check_trees(manifest))
    final_files(manifest)
    expected_labels(manifest)
    expected_settings(manifest, settings_of(b"{}"))
    make_documents(manifest, digest_of(data), created=0, patches={}, key=None)


TARGETS = {
    "patch": Target(
        _read_patch,
        (
            patch(),
            patch() * 2,
            *(p.read_bytes()[:6000] for p in sorted(ROOT.glob("patches/v0.5.20/*.patch"))[:3]),
        ),
        (
            b"=?utf-8?q?",
            b"?=",
            b"Upstream-Status: ",
            b"Date: ",
            b"\n---\n",
            b"\n@@ -1,2 +1,2 @@\n",
            b"\n-- \n",
            b"diff --git a/x b/x\n",
            b"--- a/x\n",
            b"+++ b/x\n",
            b"\r\n",
            b"\n ",
            b"rename from x\n",
            b"\xff",
            b'"\\303',
            b"Content-Transfer-Encoding: base64\n",
            b"GIT binary patch\n",
            b"index 0..1\n",
            b"+99999999999999999999",
            b"Overlay-Requires: cuda>=13\n",
            b"Last-Update: 2026-02-30\n",
            b"From: \n",
            b"https://[x",
        ),
        change_lines,
    ),
    "spec": Target(
        _read_spec,
        tuple(
            re.sub(rb"(?m)^name: .*", b"name: demo", path.read_bytes(), count=1)
            for path in sorted(ROOT.glob("overlays/*.yaml"))[:2]
        ),
        (
            b"!!binary x",
            b"!!float .nan",
            b"&a ",
            b"*a",
            b"? ",
            b"- ",
            b"{",
            b"}",
            b"[",
            b"]",
            b": ",
            b"\n",
            b"---\n",
            b"<<: ",
            b"2026-13-45",
            b"0x",
            b"|\n",
            b"'",
            b'"\\ud800"',
            b"\t",
            b"\xef\xbb\xbf",
            b"%YAML 9.9\n",
            b"sglang==",
            b"date: ",
            b"~",
            b"null",
            b"99999999999999999999999",
        ),
        change_yaml,
    ),
    "layer": Target(
        _read_layer,
        _tars(),
        (
            b"\xff" * 12,
            b"\x80" + b"\0" * 3 + b"\xff" * 8,
            b"ustar\0",
            b"ustar  \0",
            b"../",
            b"/",
            b"\0" * 512,
            b"x",
            b"g",
            b"L",
            b"S",
            b"20 path=",
            b"30 GNU.sparse.realsize=",
            b"25 size=99999999999999999999\n",
            b".wh..wh..opq",
            b"\x1f\x8b",
            b"\x28\xb5\x2f\xfd",
            b"7777777777777\0",
        ),
        change_tar,
        _checksums,
    ),
    "manifest": Target(
        _read_manifest,
        (_MANIFEST,),
        (
            b"null",
            b"[]",
            b"{}",
            b'"\\ud800"',
            b"1e999",
            b"NaN",
            b"[" * 300,
            b'"',
            b",",
            b":",
            b"9" * 5000,
            b"\xff",
            b'"skipped":',
        ),
        change_json,
    ),
    "www-authenticate": Target(
        _read_challenges,
        (
            b'Bearer realm="https://auth/token",service="r",scope="repository:a/b:pull"',
            b'Basic realm="x", Bearer realm="y"\nBasic',
        ),
        (
            b"Bearer ",
            b"Basic ",
            b"realm=",
            b'"',
            b"\\",
            b",",
            b"=",
            b" ",
            b"\t",
            b"\n",
            b"a" * 300,
            b"\xff",
            b"\\\\" * 100,
        ),
        change_words,
    ),
}
