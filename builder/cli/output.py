"""How results, progress and errors are shown: for people on a terminal, plain when piped, JSON when asked."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from builder.errors import OverlayError, Unavailable, UsageError
from builder.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

json_option = click.option("--json", "as_json", is_flag=True, help="Print the same facts as JSON.")

_NOT_SHOWN = re.compile(r"[^\n\x20-\x7e]")
_SGR = re.compile(r"\x1b\[[0-9;]*m")
_COLORS = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}


def colors_wanted(stream: Any) -> bool:
    """Whether ``stream`` is a terminal of a person who did not say no (``NO_COLOR``, ``TERM=dumb``)."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, color: str, stream: Any = None) -> str:
    """``text`` in a color, where ``stream`` (standard output) shows colors."""
    return f"\x1b[{_COLORS[color]}m{text}\x1b[0m" if colors_wanted(stream or sys.stdout) else text


def print_json(value: object) -> None:
    """Print a value as JSON for programs: always UTF-8, whatever the locale."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    click.echo(_NOT_SHOWN.sub(_as_json_escape, text).encode())


def _as_json_escape(found: re.Match[str]) -> str:
    """JSON's own way to write characters that would not be seen, or would steer a terminal."""
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def print_line(text: str = "", *, err: bool = False) -> None:
    """Print text for people: all that this program prints, but for files, scripts and JSON, which are exact.

    Args:
        text: one line or more, painted or not; what is foreign in it is written out (:func:`printable`).
        err: on standard error.
    """
    stream = sys.stderr if err else sys.stdout
    click.echo(printable(text, colors=colors_wanted(stream)), err=err)


def print_fact(label: str, value: object) -> None:
    """Print one labelled fact on one line, whatever is in it: it may come from an image."""
    print_line(f"{label:<10}" + str(value).replace("\n", "\\n"))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns under a header; the last column is not padded, and cut at the terminal's edge."""
    lines = [
        [printable(cell, colors=colors_wanted(sys.stdout)).replace("\n", "\\n") for cell in row]
        for row in [header, *rows]
    ]
    widths = [max(_width(row[n]) for row in lines) for n in range(len(header))]
    edge = _terminal_width()
    for number, row in enumerate(lines):
        cells = [
            cell + " " * (width - _width(cell)) for cell, width in zip(row[:-1], widths[:-1], strict=True)
        ]
        start = "".join(f"{cell}  " for cell in cells)
        room = (edge or 0) - _width(start)
        last = (
            row[-1]
            if not edge or _width(row[-1]) <= room
            else _SGR.sub("", row[-1])[: max(room - 1, 0)] + "…"
        )
        line = (start + last).rstrip()
        print_line(paint(line, "bold") if number == 0 else line)


def _width(text: str) -> int:
    """Columns that a text takes, its colors aside."""
    return len(_SGR.sub("", text))


def _terminal_width() -> int | None:
    """Columns of the terminal; None when standard output is not a terminal, where nothing is cut."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns


class Progress:
    """Says on standard error what takes time, if that is a terminal; silent otherwise.

    Call it with a text for a step; :meth:`transfer` gives a counter for a transfer. Both may be called from
    several threads.
    """

    def __init__(self) -> None:
        self._bars: Bars | None = None
        self._step: TaskID | None = None

    def __call__(self, text: str) -> None:
        if bars := self._shown():
            if self._step is not None:
                bars.remove_task(self._step)
            self._step = bars.add_task(printable(text), total=None, size="")

    def transfer(self, text: str, total: int) -> Callable[[int], None]:
        """A counter of bytes for one transfer of ``total`` bytes; its bar goes when all are counted."""
        bars = self._shown()
        if bars is None:
            return _uncounted
        task = bars.add_task(printable(text), total=total, size="")
        done = 0

        def count(size: int) -> None:
            nonlocal done
            done += size
            shown = f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB"
            bars.update(task, completed=done, size=shown, visible=done < total)

        return count

    def _shown(self) -> Bars | None:
        """The bars, made when the first is asked for: rich takes longer to import than a short command."""
        if self._bars is None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, SpinnerColumn, TextColumn
            from rich.progress import Progress as Bars

            texts = [TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[size]")]
            columns = (SpinnerColumn(), texts[0], BarColumn(bar_width=24), texts[1])
            self._bars = Bars(*columns, console=Console(stderr=True), transient=True)
            self._bars.start()
        return self._bars

    def close(self) -> None:
        """Clear the lines, so that what is printed next starts on a clean one."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def _uncounted(_: int) -> None:
    return None


def warn(text: str) -> None:
    """Say something that a person should know although the work goes on."""
    print_line(paint("warning: ", "yellow", sys.stderr) + text, err=True)


def report_error(error: OverlayError) -> None:
    """Render an error: as JSON on standard output where ``--json`` was asked for, and always for people."""
    print_error(error)
    _print_json_error(error.as_json())


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
    print_line("\n".join(lines), err=True)


def report_usage(error: click.ClickException) -> None:
    """Render what click says of a command line."""
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "overlay"
    said = UsageError(error.format_message(), where=path, hint=f"{path} --help")
    text = io.StringIO()
    error.show(text)
    print_line(text.getvalue().rstrip("\n"), err=True)
    _print_json_error(said.as_json())


def report_stop(code: int) -> None:
    """Say that a signal ended the command."""
    print_line("stopped", err=True)
    _print_json_error({"kind": "stopped", "exit_code": code, "what": "stopped by a signal"})


def _print_json_error(facts: dict[str, object]) -> None:
    if "--json" in sys.argv:
        print_json({"error": facts})


def open_streams() -> None:
    """Make standard input, output and error usable: open, and able to write any text.

    A closed one is opened on the null device; whatever file is opened next would else get its number, and
    what is printed would land in it. Characters that the locale does not have are written as escapes.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def finish_output(code: int) -> int:
    """Bring out what still waits to be printed; the exit code, which tells of it when that fails."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return code or 141
    except OSError as error:
        _drop_output()
        report_error(Unavailable("what was to be printed cannot be written", found=error.strerror))
        return code or Unavailable.exit_code
    return code


def _drop_output() -> None:
    """Send what could not be written nowhere, so that Python does not try it again when it ends."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
