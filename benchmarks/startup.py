"""How long a command takes that does next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.measure import Sample, Series, repeat
from benchmarks.stage import Stage


def measure_startup(stage: Stage, runs: int) -> list[Series]:
    commands = {"overlay --help": ["--help"], "overlay list": ["list"]}
    return [repeat(name, runs, _run(stage, words)) for name, words in commands.items()]


def _run(stage: Stage, words: Sequence[str]) -> Callable[[int], Sample]:
    return lambda _: stage.overlay(*words)
