"""README's figures: those of the last run of the benchmarks, between two marks that ``make bench`` writes."""

from __future__ import annotations

import json
from pathlib import Path

BEGIN = "<!-- figures of the last `make bench` -->"
END = "<!-- end of figures -->"


def figures(results: Path) -> str:
    """What README says of a run; nothing where there was none."""
    if not results.exists():
        return ""
    said = json.loads(results.read_text())
    machine = said["machine"]
    rows = [f"| {promise['says']} | {promise['found']} |" for promise in said["promises"]]
    head = f"On {machine['processor']}, {machine['cores']} cores, in one run:"
    return "\n".join([head, "", "| | |", "|---|---|", *rows])


def put_figures(readme: Path, results: Path) -> None:
    """Write the run's figures into README."""
    before, _, after = _parts(readme.read_text())
    readme.write_text(f"{before}{BEGIN}\n{figures(results)}\n{END}{after}")


def read_figures(readme: Path) -> str:
    """The figures that stand in README."""
    return _parts(readme.read_text())[1].strip("\n")


def _parts(text: str) -> tuple[str, str, str]:
    before, begin, rest = text.partition(BEGIN)
    inside, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"README.md has no place for figures: {BEGIN} … {END}")
    return before, inside, after
