"""A root of one's own: an upstream in a git repository, an overlay that pins it, a series to work on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from builder.cli import cli
from builder.errors import OverlayError
from builder.patch.canonical import Draft, write_patches
from builder.patch.message import Head
from builder.source.files import SourceFile
from tests.projects.trees import plain, plain_git

DEMO = "def f():\n    a = 1\n\n    b = 2\n    return a + b\n"
FILES = {
    "python/sglang/demo.py": plain(DEMO),
    "python/sglang/other.py": plain("import os\n\nX = 1\n"),
    "python/sglang/sub/deep.py": plain("Y = 1\n"),
    "python/sglang/run.sh": plain("#!/bin/sh\necho 1\n", "100755"),
}
DATE = b"Sun, 29 Nov 2026 00:00:00 +0000"


@dataclass(frozen=True)
class Ran:
    """What a command ended in."""

    code: int
    out: str
    error: OverlayError | None


class SeriesProject:
    """One root, its upstream and its cache."""

    def __init__(self, directory: Path, files: Mapping[str, SourceFile] = FILES) -> None:
        self.directory = directory
        self.upstream = directory / "upstream"
        self.root = directory / "root"
        self.series = self.root / "patches" / "demo"
        self.cache = directory / "cache"
        self.files = dict(files)
        self._make_upstream()
        self._make_root()

    def _make_upstream(self) -> None:
        self.upstream.mkdir()
        self.git("init", "--quiet")
        for key in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
            self.git("config", key, "true")
        self.git("config", "core.autocrlf", "false")
        for path, file in self.files.items():
            target = self.upstream / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.data)
            target.chmod(0o755 if file.mode == "100755" else 0o644)
        self.git("add", "-A")
        self.git("commit", "--quiet", "--allow-empty", "-m", "release")
        self.commit = self.git("rev-parse", "HEAD").decode().strip()

    def _make_root(self) -> None:
        (self.root / "overlays").mkdir(parents=True)
        self.series.mkdir(parents=True)
        (self.root / "patches" / "probes").mkdir()
        (self.root / "Dockerfile.in").write_text("FROM x\n")
        (self.series / "series").write_text("# the demo series\n")
        (self.root / "overlays" / "demo.yaml").write_text(
            '# the demo\nname: demo\nversion: "3"\nsummary: a demo\ndate: 2026-11-29\nupstream:\n'
            f"  repository: {self.upstream}\n  release: v1.0.0\n  commit: {self.commit}\n"
            "base:\n  image: localhost/demo\npatches:\n  series: demo\n"
        )

    def git(self, *arguments: str | Path, cwd: Path | None = None, stdin: bytes = b"") -> bytes:
        """Plain git, in the upstream unless another place is named."""
        return plain_git(*arguments, cwd=cwd or self.upstream, stdin=stdin)

    def __call__(self, *arguments: object) -> Ran:
        """Run ``overlay`` in this process."""
        words = [str(argument) for argument in arguments]
        environment = {
            "OVERLAY_ROOT": str(self.root),
            "OVERLAY_CACHE": str(self.cache),
            "XDG_STATE_HOME": str(self.directory / "state"),
            "HOME": str(self.directory / "home"),
            "NO_COLOR": "1",
        }
        result = CliRunner(env=environment).invoke(cli, words)
        error = result.exception
        if error is not None and not isinstance(error, (OverlayError, SystemExit)):
            raise error
        if isinstance(error, OverlayError):
            return Ran(error.exit_code, result.output, error)
        return Ran(result.exit_code, result.output, None)

    def path(self, name: str) -> Path:
        return self.series / f"{name}.patch"

    def add(
        self, name: str, *edits: tuple[str, str, str], trailers: str = "Upstream-Status: Pending"
    ) -> Path:
        """A canonical patch more: ``(path, old, new)`` replacements on what the ones before it left."""
        before = dict(self.files)
        after = dict(before)
        for path, old, new in edits:
            file = after.get(path, plain(""))
            assert old.encode() in file.data
            after[path] = SourceFile(file.mode, file.data.replace(old.encode(), new.encode(), 1))
        touched = {path for path, _, _ in edits}
        head = Head(
            b"A. Writer <writer@example.org>", DATE, f"demo: {name}".encode(), f"Why.\n\n{trailers}".encode()
        )
        draft = Draft(
            name,
            head,
            {path: file for path, file in before.items() if path in touched},
            {path: file for path, file in after.items() if path in touched},
        )
        self.put(name, *write_patches([draft]))
        self.files = after
        return self.path(name)

    def put(self, name: str, data: bytes) -> Path:
        """A patch of any bytes, at the end of the series."""
        self.path(name).write_bytes(data)
        with (self.series / "series").open("a") as file:
            file.write(f"{name}.patch\n")
        return self.path(name)

    def names(self) -> list[str]:
        lines = (self.series / "series").read_text().splitlines()
        return [line.removesuffix(".patch") for line in lines if line and not line.startswith("#")]

    def bytes(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.series.iterdir()}


@pytest.fixture
def workshop(tmp_path: Path) -> SeriesProject:
    (tmp_path / "home").mkdir()
    return SeriesProject(tmp_path)


def rules(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    return [finding["rule"] for finding in findings]


def absent(name: str) -> bool:
    return not any((Path(directory) / name).exists() for directory in os.get_exec_path())
