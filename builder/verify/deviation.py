"""One thing about an image or container that is not as it should be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Deviation:
    """One thing that is not as it should be.

    Args:
        kind: ``file``, ``package``, ``mode``, ``removed``, ``bytecode``, ``shadow``, ``undeclared``,
            ``config``, ``manifest``, ``label``, ``annotation``, ``base``, ``lock`` or ``signature``.
        where: the file, variable, setting, label or layer.
        what: what is wrong with it.
    """

    kind: str
    where: str
    what: str
    expected: str | None = None
    found: str | None = None

    def __str__(self) -> str:
        values = f": expected {self.expected}, found {self.found}" if self.expected and self.found else ""
        values = values or (f": expected {self.expected}" if self.expected else "")
        values = values or (f": {self.found}" if self.found else "")
        return one_line(f"{self.where}: {self.what}{values}")


def one_line(text: str) -> str:
    """What an image says must not look like a line of ours."""
    return text.replace("\n", "\\n").replace("\r", "\\r")
