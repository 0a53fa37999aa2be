"""The measurements as ``docs/benchmarks.md`` for people and ``docs/benchmarks.json`` for machines."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.builds import Build
from benchmarks.measure import Series
from benchmarks.section import Promise, Section

MIB = 1 << 20


@dataclass(frozen=True)
class Machine:
    """What the figures were measured on."""

    processor: str
    cores: int
    memory_bytes: int
    system: str
    python: str
    git: str
    docker: str


def this_machine(docker_version: str) -> Machine:
    processor = next(
        (line.partition(": ")[2] for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    system = next((line[13:-1] for line in _lines("/etc/os-release") if line.startswith("PRETTY_NAME")), "")
    git = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    cores = len(os.sched_getaffinity(0))
    return Machine(processor, cores, pages, system, platform.python_version(), git, docker_version)


def promises(builds: Sequence[Build], startup: Sequence[Series]) -> list[Promise]:
    """What must hold, with the ratios and sizes of this run."""
    ours = {build.situation: build for build in builds if build.tool == "overlay"}
    theirs = [build for build in builds if not build.tool.startswith("overlay")]
    locked, unlocked, again = ours["locked"], ours["unlocked"], ours["in the engine, again"]
    never_pulled = _fastest(theirs, "never pulled")
    built_again = _fastest(theirs, "in the engine, again")
    peak = max(locked.series.peak_bytes, unlocked.series.peak_bytes)
    found = [
        _ratio("locked base, against the faster docker build that never pulled it", never_pulled, locked, 20),
        _ratio("unlocked base, against the same", never_pulled, unlocked, 1),
        _ratio("base in the engine, the same again, against the faster docker build", built_again, again, 1),
        _most("bytes of base layers read, locked", locked.bytes.base_read, 0),
        _most("bytes uploaded, locked", locked.bytes.uploaded, MIB),
        _most("peak memory in bytes", peak, 150_000_000),
    ]
    limits = {"overlay --help": 0.15, "overlay list": 0.25}
    return found + [_seconds(series, limits[series.name]) for series in startup]


def write(
    directory: Path,
    machine: Machine,
    base_size: int,
    builds: Sequence[Build],
    startup: Sequence[Series],
    sections: Sequence[Section],
) -> list[Promise]:
    """Write both files; the promises, for the caller to judge."""
    kept = promises(builds, startup) + [promise for section in sections for promise in section.promises]
    data = {
        "machine": asdict(machine),
        "base_bytes": base_size,
        "builds": [
            {"situation": b.situation, "tool": b.tool, **b.series.as_json(), **asdict(b.bytes)}
            for b in builds
        ],
        "startup": [series.as_json() for series in startup],
        "sections": {section.title: section.data for section in sections},
        "promises": [asdict(promise) for promise in kept],
    }
    (directory / "benchmarks.json").write_text(json.dumps(data, indent=2) + "\n")
    (directory / "benchmarks.md").write_text(_page(machine, base_size, builds, startup, sections, kept))
    return kept


def _page(
    machine: Machine,
    base_size: int,
    builds: Sequence[Build],
    startup: Sequence[Series],
    sections: Sequence[Section],
    kept: Sequence[Promise],
) -> str:
    runs = len(builds[0].series.samples)
    return "\n".join(
        [
            "# Benchmarks",
            "",
            "Written by `make bench`; the figures of one run, whole processes, medians.",
            "",
            f"{machine.processor}, {machine.cores} cores, {machine.memory_bytes / 1e9:.0f} GB, "
            f"{machine.system}; Python {machine.python}, git {machine.git}, Docker Engine {machine.docker}.",
            "",
            "## The main job",
            "",
            f"An overlay on a base of {base_size / 1e9:.2f} GB (SGLang's sources and random filler, gzip) "
            f"in a registry on loopback, pushed to a new repository of it. {runs} runs each, "
            f"{3 * runs} in turns where it says *again*, one of the classic builder that never pulled.",
            "",
            *_table(
                ["base", "tool", "median s", "fastest to slowest s", "base layers read", "uploaded"],
                [_build_row(build) for build in builds],
            ),
            "",
            "*never pulled*: the engine does not have the base. *locked*: the base's digest is in the "
            "overlay's lock. *unlocked*: this is the first build on it, and its layers are read once. "
            "*again*: the same was built before, and every tool has its cache. Else overlay applies, checks "
            "and bakes the series, and docker is given `--no-cache`: it copies the finished files (overlay's "
            "own, with the same labels), which somebody has made for it, or applies the patches itself (*RUN "
            "git apply*).",
            "",
            *(line for section in sections for line in _section(section)),
            "## Starting",
            "",
            *_table(
                ["command", "median s", "fastest to slowest s", "peak MB"],
                [
                    [f"`{s.name}`", f"{s.seconds:.3f}", _range(s), f"{s.peak_bytes / 1e6:.0f}"]
                    for s in startup
                ],
            ),
            "",
            "## What must hold",
            "",
            *_table(
                ["", "bound", "found", "holds"],
                [[p.says, p.bound, p.found, "yes" if p.kept else "**no**"] for p in kept],
            ),
            "",
        ]
    )


def _section(section: Section) -> list[str]:
    return [f"## {section.title}", "", section.says, "", *_table(section.head, section.rows), ""]


def _build_row(build: Build) -> list[str]:
    return [
        build.situation,
        build.tool,
        f"{build.series.seconds:.2f}",
        _range(build.series),
        f"{build.bytes.base_read:,}",
        f"{build.bytes.uploaded:,}",
    ]


def _range(series: Series) -> str:
    return f"{series.fastest:.2f} to {series.slowest:.2f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _fastest(builds: Iterable[Build], situation: str) -> Build:
    return min((b for b in builds if b.situation == situation), key=lambda build: build.series.seconds)


def _ratio(says: str, theirs: Build, ours: Build, times: float) -> Promise:
    ratio = theirs.series.seconds / ours.series.seconds
    return Promise(
        says,
        f"≥ {times} times faster",
        f"{ratio:.2f} times" if ratio < 10 else f"{ratio:.1f} times",
        ratio >= times,
    )


def _most(says: str, found: int, bound: int) -> Promise:
    return Promise(says, f"≤ {bound:,}", f"{found:,}", found <= bound)


def _seconds(series: Series, bound: float) -> Promise:
    return Promise(f"`{series.name}`", f"< {bound} s", f"{series.seconds:.3f} s", series.seconds < bound)


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []
