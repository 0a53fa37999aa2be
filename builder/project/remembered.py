"""Answers that stay true, kept in the cache: keys of what was found to be in order."""

from __future__ import annotations

from pathlib import Path

from builder.project.whole_file import write_cached

MAX_KEYS = 20_000


class Remembered:
    """A set of keys in a file; each names everything that its answer depends on.

    Args:
        path: where they are kept, one a line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = set(path.read_bytes().decode("ascii", "replace").split()) if path.is_file() else set()
        self._new: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._known or key in self._new

    def add(self, key: str) -> None:
        """Remember a key, once :meth:`save` is called."""
        self._new.add(key)

    def save(self) -> None:
        """Write what is new; when there is too much, only that is kept."""
        new = self._new - self._known
        if new:
            kept = new | self._known if len(self._known) < MAX_KEYS else new
            write_cached(self._path, "".join(f"{key}\n" for key in sorted(kept)).encode())
