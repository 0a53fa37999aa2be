"""Whole processes, measured: wall time, and the peak of memory over the process and all it waited for."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LAUNCH = Path(__file__).with_name("launch.py")


class FailedError(Exception):
    """A measured command failed; a figure for it would be a lie."""


@dataclass(frozen=True)
class Sample:
    """One run.

    Args:
        seconds: wall time from before the start until it was reaped.
        peak_bytes: largest resident set of the process, or of any process that it waited for.
        out: its standard output.
        processor_seconds: of the process and of all it waited for.
    """

    seconds: float
    peak_bytes: int
    out: str
    processor_seconds: float


@dataclass(frozen=True)
class Series:
    """Several runs of the same thing."""

    name: str
    samples: tuple[Sample, ...]

    @property
    def seconds(self) -> float:
        return statistics.median(sample.seconds for sample in self.samples)

    @property
    def fastest(self) -> float:
        return min(sample.seconds for sample in self.samples)

    @property
    def slowest(self) -> float:
        return max(sample.seconds for sample in self.samples)

    @property
    def peak_bytes(self) -> int:
        return max(sample.peak_bytes for sample in self.samples)

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "seconds": [round(sample.seconds, 4) for sample in self.samples],
            "median_seconds": round(self.seconds, 4),
            "peak_bytes": self.peak_bytes,
        }


def measure(command: Sequence[str], environment: Mapping[str, str], directory: Path) -> Sample:
    """Run ``command`` once; its first word is the program's path.

    Raises:
        FailedError: it did not exit with 0.
    """
    read, write = os.pipe()
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(LAUNCH), str(write), *command],
        env=environment,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[write],
        check=False,
    )
    os.close(write)
    out = done.stdout.decode(errors="replace")
    with os.fdopen(read) as report:
        words = report.read().split()
    if len(words) != 4 or words[0] != "0":
        raise FailedError(f"{' '.join(command)}: exit {words[:1]}\n{out}")
    return Sample(float(words[1]), int(words[2]) * 1024, out, float(words[3]))


def repeat(name: str, runs: int, once: Callable[[int], Sample]) -> Series:
    """``once`` by its number, ``runs`` times; what it must prepare first is its own affair, and not timed."""
    return Series(name, tuple(once(number) for number in range(runs)))


def together(samples: Sequence[Sample]) -> Sample:
    """Commands that do one job one after the other, as one sample."""
    return Sample(
        sum(sample.seconds for sample in samples),
        max(sample.peak_bytes for sample in samples),
        "".join(sample.out for sample in samples),
        sum(sample.processor_seconds for sample in samples),
    )
