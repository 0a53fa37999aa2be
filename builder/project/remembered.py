"""Answers that stay true, kept in the cache: keys of what was found to be in order."""

from __future__ import annotations

from builder.project.cache import Store

MAX_KEYS = 20_000


class Remembered:
    """A set of keys in one entry; each names everything that its answer depends on.

    Args:
        store: where it is kept.
        name: of the entry.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._known = set((store.get(name) or b"").decode("ascii").split())
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
            self._store.put(self._name, "".join(f"{key}\n" for key in sorted(kept)).encode())
