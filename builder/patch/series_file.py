"""The file ``series`` as people wrote it: names with the comments that belong to them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.patch.series import read_series_file

_ALLOWED = re.compile(
    r"#\s*lint:\s*allow\s+(?P<rule>[a-z-]+)(?:\s+in\s+(?P<patch>[^\s:]+))?\s*:\s*(?P<why>\S.*)\Z"
)


@dataclass(frozen=True)
class Suppression:
    """A lint rule that a series is excused from, and why: ``# lint: allow RULE [in PATCH]: reason``."""

    rule: str
    patch: str | None
    reason: str
    line: int


@dataclass(frozen=True)
class SeriesFile:
    """The file, line by line.

    Args:
        lines: every line, without its newline.
        names: the patches, in order.
    """

    lines: tuple[str, ...]
    names: tuple[str, ...]

    def data(self) -> bytes:
        return "".join(f"{line}\n" for line in self.lines).encode()

    def with_names(self, names: Sequence[str]) -> SeriesFile:
        """The same file with these patches in this order; comments stay before the patch they were at."""
        blocks: dict[str, list[str]] = {}
        held: list[str] = []
        top: list[str] | None = None
        for line in self.lines:
            name = _name(line)
            if name is None:
                held.append(line)
                continue
            if top is None:
                # What stands above the first patch speaks of the whole series.
                top, held = held, []
            blocks[name] = [*held, _quilts(line, name)]
            held = []
        body = [line for name in names for line in blocks.get(name, [f"{name}.patch"])]
        return SeriesFile((*(top or []), *body, *held), tuple(names))

    def suppressions(self) -> list[Suppression]:
        """What the series is excused from."""
        found = ((number, _ALLOWED.match(line.strip())) for number, line in enumerate(self.lines, 1))
        return [Suppression(m["rule"], m["patch"], m["why"], number) for number, m in found if m]


def read_series_lines(directory: Path) -> SeriesFile:
    """Read ``directory/series``.

    Raises:
        InvalidInput: as :func:`builder.patch.series.read_series_file` does.
    """
    names = read_series_file(directory)
    return SeriesFile(tuple((directory / "series").read_bytes().decode().splitlines()), tuple(names))


def _quilts(line: str, name: str) -> str:
    """The line with the file's name, which is what quilt asks for."""
    return line if f"{name}.patch" in line.split("#", 1)[0] else line.replace(name, f"{name}.patch", 1)


def _name(line: str) -> str | None:
    words = line.split("#", 1)[0].split()
    return words[0].removesuffix(".patch") if words else None
