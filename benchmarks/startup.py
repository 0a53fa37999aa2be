"""How long a command takes that does next to nothing."""

from __future__ import annotations

from benchmarks.measure import Series, repeat
from benchmarks.stage import Stage


def measure_startup(stage: Stage, runs: int) -> list[Series]:
    commands = {"overlay --help": ["--help"], "overlay list": ["list"]}
    return [
        repeat(name, runs, lambda _, words=words: stage.overlay(*words))  # type: ignore[misc]
        for name, words in commands.items()
    ]
