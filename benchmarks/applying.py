"""How long a series takes to apply, by its length: overlay, ``git am``, ``quilt push -a`` and ``patch``.

The sources and patches are made up: 3,000 files of 100 lines, and patches of four edits in four files. Every
tool starts from the same tree and must end with the same one. overlay applies twice, in memory and by git to
a temporary index, and compares.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import FailedError, Sample, Series, measure, repeat
from benchmarks.section import Section, at_least

FILES = 3000
LINES = 100
EDITS = 4
LENGTHS = (10, 100, 1000)
DRIVER = Path(__file__).with_name("apply_driver.py")


@dataclass(frozen=True)
class Ground:
    """A pristine tree in a git repository, a series, and what the tree must be afterwards."""

    directory: Path
    series: Path
    after: dict[str, list[str]]

    @property
    def pristine(self) -> Path:
        return self.directory / "pristine"

    def work_tree(self, name: str) -> Path:
        """A fresh copy of the pristine repository."""
        place = self.directory / name
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.pristine, place)
        return place

    def check(self, tree: Path, tool: str) -> None:
        for path, lines in self.after.items():
            if (tree / path).read_text() != "".join(f"{line}\n" for line in lines):
                raise FailedError(f"{tool} made something else of {path}")


def measure_applying(directory: Path, runs: int) -> Section:
    """All tools at all lengths; the longest series once."""
    rows, data, found = [], {}, {}
    sources = {f"python/sglang/m{n // 50:02}/f{n:04}.py": _source(n) for n in range(FILES)}
    for length in LENGTHS:
        ground = _prepare(directory / str(length), sources, length)
        times = runs if length < max(LENGTHS) else 1
        series = {tool: run(ground, times) for tool, run in TOOLS.items()}
        rows.append([f"{length:,}", *(f"{one.seconds:.2f}" for one in series.values())])
        data[str(length)] = {tool: one.as_json() for tool, one in series.items()}
        found[length] = series["git am"].seconds / series["overlay"].seconds
        shutil.rmtree(ground.directory)
    return Section(
        "Applying a series",
        f"Patches of {EDITS} edits on {FILES:,} files, whole processes, median seconds ({runs} runs; the "
        "longest series once). Each ends with the same files. overlay applies twice, in memory and by git, "
        "and compares.",
        ["patches", *TOOLS],
        rows,
        data,
        [
            at_least(f"{length:,} patches against git am", ratio, 1)
            for length, ratio in found.items()
            if length >= 100
        ],
    )


# --- the tools ----------------------------------------------------------------------------------------------


def _overlay(ground: Ground, runs: int) -> Series:
    def once(number: int) -> Sample:
        store = ground.directory / f"store-{number}"
        out = ground.directory / f"out-{number}"
        command = [sys.executable, str(DRIVER), *map(str, (ground.series, ground.pristine, store, out))]
        sample = measure(command, _environment(), DRIVER.parent.parent)
        ground.check(out, "overlay")
        return sample

    return repeat("overlay", runs, once)


def _in_tree(
    tool: str, prepare: Callable[[Path, Ground], None], script: str
) -> Callable[[Ground, int], Series]:
    def run(ground: Ground, runs: int) -> Series:
        def once(number: int) -> Sample:
            tree = ground.work_tree(f"tree-{number}")
            prepare(tree, ground)
            environment = _environment() | {"SERIES": str(ground.series)}
            sample = measure(["/bin/sh", "-euc", script], environment, tree)
            ground.check(tree, tool)
            shutil.rmtree(tree)
            return sample

        return repeat(tool, runs, once)

    return run


def _nothing(tree: Path, ground: Ground) -> None:
    return None


def _for_quilt(tree: Path, ground: Ground) -> None:
    shutil.copytree(ground.series, tree / "patches")


TOOLS: dict[str, Callable[[Ground, int], Series]] = {
    "overlay": _overlay,
    "git am": _in_tree(
        "git am", _nothing, 'sed "s,^,$SERIES/," "$SERIES/series" | xargs cat | git am --quiet'
    ),
    "quilt push -a": _in_tree("quilt push -a", _for_quilt, "quilt push -a -q >/dev/null"),
    "patch": _in_tree(
        "patch",
        _nothing,
        'while read -r name; do patch --silent -p1 < "$SERIES/$name"; done < "$SERIES/series"',
    ),
}


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "QUILT"))}
    return kept | {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@example.org",
        "QUILT_PATCHES": "patches",
    }


# --- sources and patches ------------------------------------------------------------------------------------


def _source(number: int) -> list[str]:
    return [f"x{line} = {number} + {line}" for line in range(LINES)]


def _prepare(directory: Path, sources: dict[str, list[str]], length: int) -> Ground:
    pristine, series = directory / "pristine", directory / "series" / "made-up"
    pristine.mkdir(parents=True)
    series.mkdir(parents=True)
    for path, lines in sources.items():
        (pristine / path).parent.mkdir(parents=True, exist_ok=True)
        (pristine / path).write_text("".join(f"{line}\n" for line in lines))
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message=release"]):
        subprocess.run(["git", *command], cwd=pristine, env=_environment(), check=True)
    chance = random.Random(length)
    texts = {path: list(lines) for path, lines in sources.items()}
    names: list[str] = []
    touched: set[str] = set()
    for number in range(length):
        name = f"edit-{number:04}.patch"
        paths = sorted(chance.sample(sorted(texts), EDITS))
        touched |= set(paths)
        diffs = [_edit(path, texts[path], chance, number) for path in paths]
        (series / name).write_text(_HEAD.format(number=number) + "".join(diffs))
        names.append(name)
    (series / "series").write_text("".join(f"{name}\n" for name in names))
    return Ground(directory, series, {path: texts[path] for path in touched})


_HEAD = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: A <a@example.org>
Date: Tue, 14 Nov 2023 22:13:20 +0000
Subject: m: edit {number}

Made up.

Upstream-Status: Pending
---
"""


def _edit(path: str, lines: list[str], chance: random.Random, number: int) -> str:
    """One changed line as a diff; ``lines`` is changed too."""
    place = chance.randrange(LINES)
    first, last = max(0, place - 3), min(LINES, place + 4)
    new = f"x{place} = {number} * {chance.randrange(1000)}"
    shown = [f" {line}" for line in lines[first:place]] + [f"-{lines[place]}", f"+{new}"]
    shown += [f" {line}" for line in lines[place + 1 : last]]
    lines[place] = new
    head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
    count = last - first
    return (
        head + f"@@ -{first + 1},{count} +{first + 1},{count} @@\n" + "".join(f"{line}\n" for line in shown)
    )
