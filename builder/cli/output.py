"""How results, progress and errors are shown: for people on a terminal, plain when piped, JSON when asked."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from builder.errors import OverlayError

json_option = click.option("--json", "as_json", is_flag=True, help="Print the same facts as JSON.")

_COLORS = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}


def colors_wanted(stream: Any) -> bool:
    """Whether ``stream`` is a terminal of a person who did not say no (``NO_COLOR``, ``TERM=dumb``)."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, color: str, stream: Any = None) -> str:
    """``text`` in a color, where ``stream`` (standard output) shows colors."""
    return f"\x1b[{_COLORS[color]}m{text}\x1b[0m" if colors_wanted(stream or sys.stdout) else text


def print_json(value: object) -> None:
    """Print a value as JSON for programs."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False, default=str))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns under a header; the last column is not padded, and cut at the terminal's edge."""
    widths = [max(len(row[n]) for row in [header, *rows]) for n in range(len(header))]
    edge = _terminal_width()
    for number, row in enumerate([header, *rows]):
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
        line = "  ".join([*cells, row[-1]]).rstrip()
        if edge and len(line) > edge:
            line = line[: edge - 1] + "…"
        click.echo(paint(line, "bold") if number == 0 else line)


def _terminal_width() -> int | None:
    """Columns of the terminal; None when standard output is no terminal, where nothing is cut."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns


class Progress:
    """Says on standard error what takes time, if that is a terminal; silent otherwise.

    Call it with a text for a step; :meth:`bytes_of` gives a counter for a transfer.
    """

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._shown = ""

    def __call__(self, text: str) -> None:
        self._show(text)

    def transfer(self, text: str, total: int) -> Transfer:
        """A counter of bytes for one transfer of ``total`` bytes."""
        return Transfer(self, text, total)

    def _show(self, text: str) -> None:
        if self._live:
            blank = " " * max(0, len(self._shown) - len(text))
            sys.stderr.write(f"\r{text}{blank}")
            sys.stderr.flush()
            self._shown = text

    def close(self) -> None:
        """Clear the line, so that what is printed next starts on a clean one."""
        if self._live and self._shown:
            sys.stderr.write("\r" + " " * len(self._shown) + "\r")
            sys.stderr.flush()
            self._shown = ""


class Transfer:
    """Counts bytes of one transfer and shows a bar, at most ten times a second."""

    def __init__(self, progress: Progress, text: str, total: int) -> None:
        self._progress = progress
        self._text = text
        self._total = total
        self._done = 0
        self._last = 0.0

    def __call__(self, count: int) -> None:
        from time import monotonic

        self._done += count
        if monotonic() - self._last < 0.1 and self._done < self._total:
            return
        self._last = monotonic()
        share = min(1.0, self._done / self._total) if self._total else 1.0
        bar = "#" * int(share * 24)
        self._progress(f"{self._text} [{bar:<24}] {self._done / 1e6:,.1f} of {self._total / 1e6:,.1f} MB")


def warn(text: str) -> None:
    """Say something that a person should know although the work goes on."""
    click.echo(paint("warning: ", "yellow", sys.stderr) + text, err=True)


def report_error(error: OverlayError) -> None:
    """Render an error: as JSON on standard output where ``--json`` was asked for, and always for people."""
    if "--json" in sys.argv:
        print_json({"error": error.as_json()})
    print_error(error)


def print_error(error: OverlayError) -> None:
    """Show an error to people, on standard error."""
    lines = [paint("error: ", "red", sys.stderr) + error.what]
    for label, value in (("at", error.where), ("expected", error.expected), ("found", error.found)):
        if value:
            lines.append(f"  {label + ':':<10}{value}")
    if error.details:
        lines += ["", *(f"  {line}" for line in error.details.splitlines()), ""]
    if error.hint:
        lines.append(f"  {'try:':<10}{error.hint}")
    click.echo("\n".join(lines), err=True)
