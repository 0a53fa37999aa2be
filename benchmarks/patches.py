"""``python -m benchmarks.patches``: how long patch authoring takes, whole processes, beside plain git.

A made-up series of 100 patches (four edits each, on 120 of 400 files of 300 lines) is exported by
``overlay patch export`` and written by ``git format-patch`` from the same commits; and the whole repository
is linted. The result is ``docs/benchmarks-patches.json`` and a table on standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Sample, Series, measure, repeat
from tests.conftest import ROOT, copy_project

PATCHES = 100
EDITS = 4
FILES = 400
TOUCHED = 120
LINES = 300
FORMAT_PATCH = (
    "format-patch", "--quiet", "--zero-commit", "--full-index", "--no-signature", "--keep-subject",
    "--no-encode-email-headers",
)  # fmt: skip
LIMITS = {"overlay patch export, 100 patches": 1.0, "overlay patch lint, this repository": 1.0}


@dataclass(frozen=True)
class Ground:
    """A root with the made-up series, and the git repository it was written from."""

    root: Path
    repository: Path
    cache: Path
    base: str

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.repository, env=environment(self.cache), capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    def overlay(self, *arguments: str) -> Sample:
        """The console script, whole process, in the made-up root."""
        program = str(Path(sys.executable).parent / "overlay")
        return measure([program, *arguments], environment(self.cache), self.root)

    def format_patch(self, target: Path) -> Sample:
        program = str(shutil.which("git"))
        command = [program, *FORMAT_PATCH, "--output-directory", str(target), f"{self.base}..HEAD"]
        return measure(command, environment(self.cache), self.repository)


def environment(cache: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "OVERLAY_"))}
    return kept | {
        "OVERLAY_CACHE": str(cache), "XDG_STATE_HOME": str(cache / "state"), "NO_COLOR": "1",
        "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_AUTHOR_DATE": "1700000000 +0000",
        "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.org",
        "GIT_COMMITTER_DATE": "1700000000 +0000",
    }  # fmt: skip


def prepare(directory: Path) -> Ground:
    """Make the sources, the commits, and the series that format-patch writes of them."""
    repository, root, cache = directory / "upstream", directory / "root", directory / "cache"
    chance = random.Random(20)
    repository.mkdir()
    cache.mkdir()
    ground = Ground(root, repository, cache, "")
    ground.git("init", "--quiet")
    for key in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
        ground.git("config", key, "true")
    texts = {f"python/sglang/m{n // 20:02}/f{n:03}.py": source(n) for n in range(FILES)}
    for path, lines in texts.items():
        write(repository / path, lines)
    ground.git("add", "--all")
    ground.git("commit", "--quiet", "--message", "release")
    ground = Ground(root, repository, cache, ground.git("rev-parse", "HEAD"))
    paths = chance.sample(sorted(texts), TOUCHED)
    for number in range(PATCHES):
        for path in chance.sample(paths, EDITS):
            line = chance.randrange(LINES)
            texts[path][line] = f"x{line} = {number} * {chance.randrange(1000)}"
            write(repository / path, texts[path])
        ground.git(
            "commit", "--quiet", "--all", "--message", f"m: edit {number:03}\n\nUpstream-Status: Pending"
        )
    make_root(ground)
    return ground


def source(number: int) -> list[str]:
    return [f"x{line} = {number} + {line}" if line % 7 else "" for line in range(LINES)]


def write(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def make_root(ground: Ground) -> None:
    series = ground.root / "patches" / "made-up"
    series.mkdir(parents=True)
    ground.format_patch(series)
    names = []
    for path in sorted(series.glob("*.patch")):
        # format-patch numbers its files; a series has its order in the list.
        names.append(path.stem[5:].lower() + ".patch")
        path.rename(series / names[-1])
    (series / "series").write_text("".join(f"{name}\n" for name in names))
    (ground.root / "overlays").mkdir()
    (ground.root / "Dockerfile.in").write_text("FROM x\n")
    (ground.root / "overlays" / "made-up.yaml").write_text(
        'name: made-up\nversion: "1"\nsummary: a made-up series\ndate: 2026-11-29\nupstream:\n'
        f"  repository: {ground.repository}\n  release: v1.0.0\n  commit: {ground.base}\n"
        "base:\n  image: localhost/made-up\npatches:\n  series: made-up\n"
    )


def measure_patches(directory: Path, runs: int) -> list[Series]:
    """Every figure; export and format-patch take turns, so that neither has the quieter machine.

    Args:
        directory: an empty one.
        runs: of each command.
    """
    ground = prepare(directory)
    before = {path.name: path.read_bytes() for path in (ground.root / "patches/made-up").iterdir()}
    ground.overlay("patch", "export", "made-up")  # fetches the release
    exports, formats = [], []
    for number in range(runs):
        exports.append(ground.overlay("patch", "export", "made-up"))
        formats.append(ground.format_patch(directory / f"out-{number}"))
    after = {path.name: path.read_bytes() for path in (ground.root / "patches/made-up").iterdir()}
    if before != after:
        raise SystemExit("export changed patches that git format-patch wrote: its time means nothing")
    return [
        Series("overlay patch export, 100 patches", tuple(exports)),
        Series("git format-patch, the same 100 commits", tuple(formats)),
        *lint_times(directory, runs),
    ]


def lint_times(directory: Path, runs: int) -> list[Series]:
    """Lint of a copy of this repository: the first time, and when what compiles is known."""
    project = directory / "project"
    copy_project(project)
    ground = Ground(project, project, directory / "lint-cache", "")
    first = ground.overlay("patch", "lint")
    again = repeat("overlay patch lint, this repository", runs, lambda _: ground.overlay("patch", "lint"))
    return [Series("the same with an empty cache (releases are fetched)", (first,)), again]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.patches", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each command")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks-patches.json")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="overlay-bench-") as temporary:
        series = measure_patches(Path(temporary), options.runs)
    options.output.write_text(json.dumps([each.as_json() for each in series], indent=2) + "\n")
    kept = True
    for each in series:
        limit = LIMITS.get(each.name)
        holds = limit is None or each.seconds < limit
        kept = kept and holds
        bound = "" if limit is None else f"  (< {limit} s: {'holds' if holds else 'BROKEN'})"
        print(f"{each.seconds:6.3f} s  {each.fastest:.3f} to {each.slowest:.3f}  {each.name}{bound}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
