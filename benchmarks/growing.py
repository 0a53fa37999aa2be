"""How cost grows: with a patch's hunks in one file, with one-file patches, with patches on one file.

Each row is a whole process, in processor seconds and peak memory, net of a run of size 1: the median of the
runs at each of four sizes. The exponent is that between the last two sizes; linear is 1.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Sample, measure
from benchmarks.section import Promise, Section, at_most
from benchmarks.stage import Stage

MOST = 1.25
"""The largest exponent, of processor seconds and of memory."""

STEP = 10
"""Lines from one hunk to the next."""

RUNS = 3
_NOISE = (0.05, 4e6)  # net seconds and bytes below which a process's start is what is measured

_MAIL = (
    "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
    "From: T <t@example.org>\nDate: Tue, 01 Dec 2026 00:00:00 +0000\nSubject: {name}\n\nWhy.\n\n"
    "Upstream-Status: Pending\n---\n\n"
)


@dataclass(frozen=True)
class Axis:
    """What grows.

    Args:
        says: what it is, and the command.
        sizes: four or more.
        write: makes the upstream's two versions and the series of a size in a root; the command's words.
    """

    says: str
    sizes: tuple[int, ...]
    write: Callable[[Root, int], Sequence[str]]


@dataclass(frozen=True)
class Root:
    """A directory with one overlay whose upstream is a git repository beside it."""

    directory: Path

    @property
    def upstream(self) -> Path:
        return self.directory / "upstream"

    @property
    def series(self) -> Path:
        return self.directory / "root" / "patches" / "demo"

    def write(self, pin: dict[str, str], target: dict[str, str], patches: dict[str, str]) -> str:
        """Make all of it, as ``pin``, ``target`` and the patches' diffs say; the target's commit."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.upstream.mkdir(parents=True)
        self._git("init", "--quiet")
        commit, later = self._commit(pin), self._commit(target)
        (self.series.parent / "probes").mkdir(parents=True)
        self.series.mkdir()
        root = self.directory / "root"
        (root / "overlays").mkdir()
        (root / "Dockerfile.in").write_text("FROM {{ base }}\n")
        (self.series / "series").write_text("".join(f"{name}.patch\n" for name in patches))
        for name, diff in patches.items():
            (self.series / f"{name}.patch").write_text(_MAIL.format(name=name) + diff)
        (root / "overlays" / "demo.yaml").write_text(
            "name: demo\nversion: '1'\ndate: 2026-12-01\nsummary: a made-up series\n"
            f"upstream: {{repository: {self.upstream}, release: v1.0.0, commit: {commit}}}\n"
            "base: {image: registry.example/sglang}\npatches: {series: demo}\n"
        )
        return later

    def _commit(self, files: dict[str, str]) -> str:
        for path, text in files.items():
            file = self.upstream / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        self._git("add", "--all")
        self._git(
            "-c", "user.name=T", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", "a release"
        )
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *words: str) -> str:
        run = subprocess.run(["git", *words], cwd=self.upstream, check=True, capture_output=True, text=True)
        return run.stdout


def _lines(count: int) -> list[str]:
    return [f"value_{number} = {number * 7}\n" for number in range(count)]


def _hunk(lines: Sequence[str], at: int, by: str, shift: int = 0) -> str:
    """A hunk that puts one line in another's place, with three lines of context."""
    before, after = lines[at - 3 : at], lines[at + 1 : at + 4]
    body = [*(f" {line}" for line in before), f"-{lines[at]}", f"+{by}", *(f" {line}" for line in after)]
    return f"@@ -{at - 2},7 +{at - 2},7 @@\n" + "".join(body)


def _head(path: str) -> str:
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"


def many_hunks(root: Root, size: int) -> Sequence[str]:
    """One patch of ``size`` hunks in one file, a third of them each merged, in conflict and still open."""
    path = "python/sglang/large.py"
    lines = _lines(size * STEP + STEP)
    target = list(lines)
    hunks = []
    for number in range(size):
        at, by = number * STEP + 5, f"patched_{number} = {number}\n"
        hunks.append(_hunk(lines, at, by))
        if number % 3:
            target[at] = by if number % 3 == 1 else f"other_{number} = {number}\n"
    diff = _head(path) + "".join(hunks)
    later = root.write({path: "".join(lines)}, {path: "".join(["import os\n", *target])}, {"large": diff})
    return ["diff", "demo", "--upstream", f"{root.upstream}@{later}"]


def many_patches(root: Root, size: int) -> Sequence[str]:
    """``size`` patches of one file each, of which lint asks everything."""
    lines = _lines(30)
    files = {f"python/sglang/part{n % 50:02}/module{n:05}.py": "".join(lines) for n in range(size)}
    patches = {
        f"p{number:05}": _head(path) + _hunk(lines, 12, f"patched_{number} = {number}\n")
        for number, path in enumerate(files)
    }
    root.write(files, {"python/sglang/later.py": "LATER = 1\n"}, patches)
    _run(root, ["patch", "export", "demo"])
    return ["patch", "lint", "demo"]


def patches_on_one_file(root: Root, size: int) -> Sequence[str]:
    """``size`` patches on one file, each of which lint compiles it after."""
    path = "python/sglang/large.py"
    lines = _lines(100 * STEP + STEP)
    patches = {
        f"p{n:05}": _head(path) + _hunk(lines, n * STEP + 5, f"patched_{n} = {n}\n") for n in range(size)
    }
    root.write({path: "".join(lines)}, {"python/sglang/later.py": "LATER = 1\n"}, patches)
    _run(root, ["patch", "export", "demo"])
    return ["patch", "lint", "demo"]


AXES = (
    Axis("hunks of one patch in one file: `diff`", (100, 300, 1000, 3000), many_hunks),
    Axis("patches of one file each: `patch lint`", (30, 100, 300, 1000), many_patches),
    Axis("patches on one file of 1,000 lines: `patch lint`", (10, 30, 60, 100), patches_on_one_file),
)


def measure_growing(stage: Stage, runs: int = RUNS) -> Section:
    """Every axis at all its sizes."""
    rows, data = [], {}
    promises: list[Promise] = []
    for axis in AXES:
        root = Root(stage.directory / "growing")
        empty = _medians(root, axis.write(root, 1), runs)
        found = {size: _medians(root, axis.write(root, size), runs) for size in axis.sizes}
        exponents = [_exponent(axis.sizes, empty, found, which) for which in (0, 1)]
        figures = [f"{seconds:.2f} s, {peak / 1e6:.0f} MB" for seconds, peak in found.values()]
        sizes = " / ".join(f"{size:,}" for size in axis.sizes)
        rows.append([axis.says, sizes, " / ".join(figures), *(f"{exponent:.2f}" for exponent in exponents)])
        data[axis.says] = {"empty": empty, **{str(size): figure for size, figure in found.items()}}
        promises += [
            at_most(f"exponent of {what}: {axis.says}", exponent, MOST, "")
            for what, exponent in zip(("processor time", "memory"), exponents, strict=True)
        ]
    return Section(
        "Growth",
        "Processor seconds and peak memory of whole processes with an empty cache, medians; exponents are "
        "between the last two sizes, net of a run of size 1: 1 is linear.",
        ["what grows", "sizes", "figures", "exponent, time", "exponent, memory"],
        rows,
        data,
        promises,
    )


def _medians(root: Root, words: Sequence[str], runs: int) -> tuple[float, float]:
    """Processor seconds and peak bytes."""
    samples = [_run(root, words) for _ in range(runs)]
    return (
        statistics.median(sample.processor_seconds for sample in samples),
        statistics.median(sample.peak_bytes for sample in samples),
    )


def _run(root: Root, words: Sequence[str]) -> Sample:
    cache = root.directory / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    here = root.directory / "root"
    program = str(Path(sys.executable).parent / "overlay")
    environment = os.environ | {"OVERLAY_CACHE": str(cache), "OVERLAY_ROOT": str(here), "NO_COLOR": "1"}
    return measure([program, *words], environment, here)


def _exponent(
    sizes: Sequence[int], empty: tuple[float, float], found: dict[int, tuple[float, float]], which: int
) -> float:
    """Between the last two sizes, of the figure of this number; 0 where both are lost in the noise."""
    low, high = (found[size][which] - empty[which] for size in sizes[-2:])
    if high < _NOISE[which]:
        return 0.0
    return math.log(high / max(low, _NOISE[which])) / math.log(sizes[-1] / sizes[-2])
