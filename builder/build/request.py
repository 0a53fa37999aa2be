"""What is to be built, and of what: values alone, light to import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.oci.model import Format, Platform
from builder.project.lock import Lock
from builder.project.project import Root


@dataclass(frozen=True)
class Sources:
    """Where the pinned sources come from (see :func:`builder.source.upstream.resolve_upstream`)."""

    kind: str = "auto"
    url: str | None = None
    wheel: Path | None = None


@dataclass(frozen=True)
class Request:
    """What is to be built, and of what.

    Args:
        root: where overlays are.
        name: of the overlay.
        base: the base as the command line names it; None for the spec's.
        platforms: of the base's index.
        sources: where the pinned source comes from.
        cache: the user's cache.
        lock: the overlay's.
        is_locked: whether an input that is not what the lock says is an error.
        format: which media types the images get.
        anew: whether all that the cache keeps of such a build is found out again.
    """

    root: Root
    name: str
    base: str | None
    platforms: Sequence[Platform]
    sources: Sources
    cache: Path
    lock: Lock
    is_locked: bool = False
    format: Format = "base"
    anew: bool = False
