"""Tensors of which only the rows are known, and an account of what logits take: for probes of indexers."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from builder.probe.harness import CannotTell


class Rows:
    """A tensor as a list of rows, of which only the first dimension is real; a row is a value."""

    def __init__(self, rows: Iterable[Any], *tail: int, dtype: str = "int32") -> None:
        self.rows = list(rows)
        self.tail, self.dtype = tail, dtype
        self.device = SimpleNamespace(type="cuda", index=0)
        self.is_cuda = True

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.tail)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Any) -> Rows:
        if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], int):
            key = slice(key[0], key[0] + 1)
        if not isinstance(key, slice):
            raise CannotTell(f"a tensor is read at {key!r}")
        return Rows(self.rows[key], *self.tail, dtype=self.dtype)

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(key, slice) or not isinstance(value, Rows):
            raise CannotTell(f"a tensor is written at {key!r}")
        if len(self.rows[key]) != len(value.rows):
            raise ValueError(f"{len(value.rows)} rows are written to {len(self.rows[key])}")
        self.rows[key] = value.rows

    def contiguous(self) -> Rows:
        return self

    def view(self, *_: Any) -> Rows:
        return self

    def to(self, *_: Any, **__: Any) -> Rows:
        return self

    def unsqueeze(self, dim: int) -> Rows:
        return self

    def squeeze(self, dim: int = -1) -> Rows:
        return Rows(self.rows, *self.tail[:-1], dtype=self.dtype) if len(self.tail) > 1 else self

    def expand(self, rows: int, *_: int) -> Rows:
        return Rows(self.rows[:1] * rows, *self.tail, dtype=self.dtype)

    def reshape(self, *_: Any) -> Rows:
        return self

    def dim(self) -> int:
        return self.ndim

    def item(self) -> Any:
        return self.rows[0]


class Memory:
    """What logits take: now, at most, and in how many calls."""

    def __init__(self) -> None:
        self.live = self.peak = self.calls = 0


class Logits(Rows):
    """Scores of rows against columns, ``each`` bytes, on account of a memory until nobody holds them."""

    def __init__(self, memory: Memory, rows: Iterable[Any], columns: int, each: int = 4) -> None:
        super().__init__(rows, columns, dtype="float32")
        self.memory, self.bytes = memory, each * len(self.rows) * columns
        memory.live += self.bytes
        memory.peak = max(memory.peak, memory.live)
        memory.calls += 1

    def __del__(self) -> None:
        self.memory.live -= self.bytes
