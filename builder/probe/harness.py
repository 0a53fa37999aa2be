"""What a probe is written with. Standard library only: probes run in a process of their own.

A probe is a file ``patches/probes/NAME.py`` with one function::

    from builder.probe.harness import Answer, Tree

    def probe(tree: Tree) -> Answer: ...
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

State = Literal["defect", "fixed", "absent", "unknown"]


@dataclass(frozen=True)
class Answer:
    """What a probe found.

    Args:
        state: ``defect``, ``fixed``, ``absent`` (the site is not there) or ``unknown`` (cannot tell).
        evidence: one line with figures that says why.
        pins: distributions whose pinned version the answer hangs on (``flashinfer-python``).
    """

    state: State
    evidence: str
    pins: tuple[str, ...] = ()


class Tree(Protocol):
    """A source tree, by paths relative to the repository's root (``python/sglang/...``)."""

    def read(self, path: str) -> bytes:
        """The file's bytes; :class:`KeyError` when it is not there."""
        ...

    def __contains__(self, path: str) -> bool: ...

    def paths(self, prefix: str = "") -> Iterable[str]:
        """Every path that starts with ``prefix``, sorted."""
        ...

    def grep(self, text: bytes, prefix: str = "") -> list[str]:
        """The paths below ``prefix`` whose bytes contain ``text``, sorted."""
        ...
