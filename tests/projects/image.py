"""A whole world in miniature: an upstream with one file, an overlay with one patch, a base with one Python.

Everything of it is real (git, an OCI layout, the ``overlay`` command), and a build takes half a second, so
that what a hostile base, a damaged cache or a full disk does can be tried one by one.
"""

from __future__ import annotations

import atexit
import functools
import gzip
import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import ROOT, Overlay, clean_environment, console_script
from tests.projects.history import DEMO, P0_AFTER, P0_BEFORE
from tests.projects.trees import plain_git

NAME = "demo"
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
TREE = "srv/sglang/python"
PACKAGES = "usr/local/lib/python3.12/dist-packages"

PROBE = f"""
from builder.probe.harness import defect, fixed

def probe(tree):
    found = {{}}
    exec(tree.read({DEMO!r}), found)
    value = found["f"]()
    return fixed(f"f() is {{value}}") if value == 4 else defect(f"f() is {{value}}")
"""

SYSTEM: Mapping[str, bytes] = {
    "usr/bin/python3.12": b"#!/bin/false\n",
    "usr/bin/python3": b"#!/bin/false\n",
    "usr/lib/python3.12/os.py": b"# the file by which Python knows its library\n",
    f"{PACKAGES}/__editable__.sglang-0.5.20.pth": f"/{TREE}\n".encode(),
    f"{PACKAGES}/sglang-0.5.20.dist-info/METADATA": b"Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.20\n",
    f"{PACKAGES}/sglang-0.5.20.dist-info/direct_url.json": b"{}",
    f"{TREE}/sglang/__init__.py": b"",
}

Write = Callable[[tarfile.TarFile], None]


@dataclass
class ImageProject:
    """An overlay's root, its upstream, and layouts for bases; ``overlay`` runs the command in it."""

    directory: Path
    overlay: Overlay
    commit: str
    upstream: Path

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def cache(self) -> Path:
        return self.directory / "cache"

    @property
    def lock(self) -> Path:
        return self.root / "overlays" / f"{NAME}.lock"

    @property
    def spec(self) -> Path:
        return self.root / "overlays" / f"{NAME}.yaml"

    @classmethod
    def create(cls, directory: Path) -> ImageProject:
        """A world of its own, on an upstream and from a cache that all worlds of this process start with."""
        first = _first_world()
        (directory / "home").mkdir()
        for name in ("root", "cache"):
            shutil.copytree(first.directory / name, directory / name)
        return cls(directory, _command(directory), first.commit, first.upstream)

    @classmethod
    def create_apart(cls, directory: Path) -> ImageProject:
        """A world with an upstream of its own, which its cache does not hold; probes have answered."""
        first = _first_world()
        (directory / "home").mkdir()
        for name in ("root", "upstream", "cache/probes", "cache/series.git"):
            shutil.copytree(first.directory / name, directory / name)
        world = cls(directory, _command(directory), first.commit, directory / "upstream")
        world.write_spec()
        return world

    @classmethod
    def create_cold(cls, directory: Path) -> ImageProject:
        """A world with an upstream of its own and an empty cache."""
        upstream = directory / "upstream"
        (upstream / DEMO).parent.mkdir(parents=True)
        (upstream / DEMO).write_bytes(P0_BEFORE)
        (upstream / "python/sglang/__init__.py").write_bytes(b"")
        plain_git("init", "--quiet", cwd=upstream)
        plain_git("config", "uploadpack.allowAnySHA1InWant", "true", cwd=upstream)
        plain_git("config", "uploadpack.allowFilter", "true", cwd=upstream)
        plain_git("add", ".", cwd=upstream)
        plain_git("commit", "--quiet", "-m", "root", cwd=upstream)
        commit = plain_git("rev-parse", "HEAD", cwd=upstream).decode().strip()
        (directory / "home").mkdir()
        root = directory / "root"
        for below in ("overlays", "patches/one", "patches/probes"):
            (root / below).mkdir(parents=True)
        (root / "Dockerfile.in").write_bytes((ROOT / "Dockerfile.in").read_bytes())
        (root / "patches/one/series").write_text("p0.patch\n")
        (root / "patches/one/p0.patch").write_bytes(patch())
        (root / "patches/probes/p0.py").write_text(PROBE)
        world = cls(directory, _command(directory), commit, upstream)
        world.write_spec()
        return world

    def write_spec(self, *, roots: str = "auto", more: str = "") -> None:
        self.spec.write_text(
            f"name: {NAME}\nversion: '1'\ndate: 2026-01-31\nsummary: a demo\n"
            f"upstream: {{repository: {self.upstream}, release: v1, commit: {self.commit}}}\n"
            f"base: {{image: registry.example/base, roots: {{python/sglang: {roots}}}}}\n"
            f"patches: {{series: one}}\n{more}"
        )

    def base(self, name: str = "base", *, demo: bytes = P0_BEFORE) -> Layout:
        """A new layout with a sound base image in it, tagged ``latest``."""
        layout = Layout.create(self.directory / name)
        layout.put_image([layer(SYSTEM), layer({f"{TREE}/sglang/demo.py": demo})])
        return layout

    def build(self, base: str, *more: object, to: str = "out") -> tuple[object, ...]:
        """The words of a build into a layout."""
        return ("build", NAME, "--base", base, "--output", f"oci:{self.directory / to}:new", *more)


def _command(directory: Path) -> Overlay:
    environment = clean_environment(directory / "home") | {"OVERLAY_CACHE": str(directory / "cache")}
    return Overlay(console_script(), directory / "root", environment)


@functools.cache
def _first_world() -> ImageProject:
    """Its cache holds the pinned sources, what git makes of the series and the probe's answers; no base."""
    directory = Path(tempfile.mkdtemp(prefix="overlay-world-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    world = ImageProject.create_cold(directory)
    world.overlay("build", NAME, "--base", world.base().reference, "--dry-run").check()
    shutil.rmtree(world.cache / "layers")
    assert not list((world.root / "overlays").glob("*.lock"))
    return world


def patch(before: bytes = P0_BEFORE, after: bytes = P0_AFTER, path: str = DEMO) -> bytes:
    """A mailbox patch in the form that this project keeps, made without its code."""
    import difflib

    lines = difflib.unified_diff(
        before.decode().splitlines(keepends=True),
        after.decode().splitlines(keepends=True),
        f"a/{path}",
        f"b/{path}",
    )
    head = (
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: T <t@example.org>\n"
        "Date: Sat, 31 Jan 2026 00:00:00 +0000\nSubject: b is three\n\nIt was two.\n\n"
        f"Upstream-Status: Pending\n---\n\n"
        f"diff --git a/{path} b/{path}\nindex {blob(before)}..{blob(after)} 100644\n"
    )
    return (head + "".join(lines)).encode()


def blob(data: bytes) -> str:
    """git's name of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def layer(contents: Mapping[str, bytes] | Write) -> tuple[bytes, str]:
    """A gzip layer (its blob, its diff ID) of files, or of what a function adds to the tar."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        if callable(contents):
            contents(tar)
        else:
            for path, data in contents.items():
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode = len(data), 0o755 if path.startswith("usr/bin/") else 0o644
                tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(out.getvalue(), mtime=0), digest_of(out.getvalue())


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Layout:
    """An OCI layout, written without overlay's code; every part of an image can be made wrong."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> Layout:
        (path / "blobs/sha256").mkdir(parents=True)
        (path / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        layout = cls(path)
        layout.tag([])
        return layout

    def tag(self, entries: Sequence[Mapping[str, Any]]) -> None:
        (self.path / "index.json").write_text(
            json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": list(entries)})
        )

    def put(self, data: bytes, media_type: str) -> dict[str, Any]:
        digest = digest_of(data)
        (self.path / "blobs" / digest.replace(":", "/")).write_bytes(data)
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def put_image(
        self,
        layers: Sequence[tuple[bytes, str]],
        *,
        config: Mapping[str, Any] | None = None,
        manifest: Mapping[str, Any] | None = None,
        layer_type: str = LAYER,
    ) -> str:
        """An image, tagged ``latest`` alone; ``config`` and ``manifest`` replace keys of what is right."""
        right_config: dict[str, Any] = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [diff_id for _, diff_id in layers]},
            "history": [{"created_by": "test"} for _ in layers],
        }
        right: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.put(json.dumps(right_config | dict(config or {})).encode(), CONFIG),
            "layers": [self.put(data, layer_type) for data, _ in layers],
        }
        entry = self.put(json.dumps(right | dict(manifest or {})).encode(), MANIFEST)
        self.tag([{**entry, "annotations": {"org.opencontainers.image.ref.name": "latest"}}])
        return str(entry["digest"])

    def put_index(self, children: Sequence[tuple[str, Mapping[str, str]]]) -> str:
        """An index over images of the layout, each with its platform."""
        entries = [
            {"mediaType": MANIFEST, "digest": digest, "size": self.blob(digest).stat().st_size, "platform": p}
            for digest, p in children
        ]
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}
        entry = self.put(json.dumps(index).encode(), INDEX)
        self.tag([{**entry, "annotations": {"org.opencontainers.image.ref.name": "latest"}}])
        return str(entry["digest"])

    def blob(self, digest: str) -> Path:
        return self.path / "blobs" / digest.replace(":", "/")

    def entry(self) -> str:
        """The digest that is tagged."""
        (entry,) = json.loads((self.path / "index.json").read_text())["manifests"]
        return str(entry["digest"])

    @property
    def reference(self) -> str:
        """As ``--base`` takes it."""
        return f"oci:{self.path}@{self.entry()}"
