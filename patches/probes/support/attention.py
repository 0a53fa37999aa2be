"""Sparse latent attention on a few numbers: what a kernel is given, and what must come out. Stdlib only."""

from __future__ import annotations

import math
import operator
import random
from dataclasses import dataclass

from support.tilelang import DTYPES, Dtype, Tensor

from builder.probe.harness import CannotTell

TOLERANCE = 1e-6
"""Of a result's largest number; nothing is rounded, so that only the order of sums differs."""


@dataclass(frozen=True)
class Case:
    """A few tokens, small enough to be computed by hand.

    Args:
        heads: query heads.
        latent: columns of a row that are summed up.
        tail: further columns that count for the scores alone.
        topk: indices a token; some are -1 and stand for nothing.
        tokens: queries.
        rows: rows of the cache.
    """

    heads: int
    latent: int
    tail: int
    topk: int
    tokens: int = 2
    rows: int = 96
    scale: float = 0.25

    @property
    def width(self) -> int:
        return self.latent + self.tail

    def tensors(self, dtype: Dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, cache and indices, the same each time."""
        source = random.Random(self.heads)  # noqa: S311 - numbers that are alike, not secrets
        q = [source.uniform(-1, 1) for _ in range(self.tokens * self.heads * self.width)]
        kv = [source.uniform(-1, 1) for _ in range(self.rows * self.width)]
        chosen: list[float] = [
            max(source.randrange(-self.rows // 4, self.rows), -1) for _ in range(self.tokens * self.topk)
        ]
        return (
            Tensor((self.tokens, self.heads, self.width), dtype, q),
            Tensor((self.rows, 1, self.width), dtype, kv),
            Tensor((self.tokens, 1, self.topk), DTYPES["int32"], chosen),
        )

    def wrong(self, q: Tensor, kv: Tensor, indices: Tensor, out: Tensor) -> str:
        """The first heads of a token that come out wrong; empty where none does.

        Raises:
            CannotTell: what came out has no numbers, or not one for each column of each head.
        """
        if out.data is None or len(out.data) != self.tokens * self.heads * self.latent:
            raise CannotTell(f"what the kernel gives back has the shape {list(out.shape)}, or no numbers")
        for token in range(self.tokens):
            wanted = self._token(token, q, kv, indices)
            start = token * self.heads
            bad = [
                head
                for head, row in enumerate(wanted)
                if not _close(row, _row(out, start + head, self.latent))
            ]
            if bad:
                return (
                    f"{len(bad)} of {self.heads} heads come out wrong, the first is {bad[0]} of token {token}"
                )
        return ""

    def _token(self, token: int, q: Tensor, kv: Tensor, indices: Tensor) -> list[list[float]]:
        chosen = [int(index) for index in _row(indices, token, self.topk) if index >= 0]
        rows = [_row(kv, index, self.width) for index in chosen]
        columns = list(zip(*(row[: self.latent] for row in rows), strict=True))
        out = []
        for head in range(self.heads):
            query = _row(q, token * self.heads + head, self.width)
            scores = [self.scale * sum(map(operator.mul, query, row)) for row in rows]
            weights = [math.exp(score) for score in scores]
            total = sum(weights)
            out.append([sum(map(operator.mul, weights, column)) / total for column in columns])
        return out


def _row(tensor: Tensor, number: int, width: int) -> list[float]:
    return (tensor.data or [])[number * width : (number + 1) * width]


def _close(wanted: list[float], found: list[float]) -> bool:
    limit = TOLERANCE * max(map(abs, wanted))
    return all(abs(a - b) <= limit for a, b in zip(wanted, found, strict=True))  # NaN is close to nothing
