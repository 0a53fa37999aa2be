"""How many requests a hybrid (attention and linear-attention) model serves from how much memory.

Beside the KV cache of its attention layers, such a model keeps a recurrent state for each request, in a pool
that is allocated at start. The laws are those of SGLang 0.5.17 to 0.5.23, for one rank
(``mem_cache/kv_cache_configurator.py``, ``mem_cache/memory_pool.py``). With

- p bytes a state (all linear-attention layers of the rank),
- r slots that a running request holds (:attr:`Holding.slots_per_request`),
- D draft tokens of speculative decoding (0 without), each of which needs an intermediate state,

a pool of K slots serves K // r requests; K + 1 states are allocated, since slot 0 pads batches; and the
intermediate states of n requests are another (n + 1) · D. So p(1 + D) is spent before the first request, and
each request takes p(r + D). Memory is split before that: of the memory M for attention KV and state together,
M · ratio / (1 + ratio) goes to the state pool, unless the number of slots is given.

Pure functions of numbers: bytes are integers, and nothing is rounded but downwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

DEFAULT_RATIO = Fraction(9, 10)
"""SGLang's ``--mamba-full-memory-ratio`` where none is given."""

SPARE_SLOTS = 1
"""Slots beside those that requests hold: caching a prefix takes its slot before it gives the old one back."""

_HELD = 3
_BUFFERS = {"extra_buffer": 2, "extra_buffer_lazy": 1, "no_buffer": 0}


@dataclass(frozen=True)
class Holding:
    """What decides how many state slots a running request holds.

    Args:
        strategy: ``--mamba-radix-cache-strategy``: extra_buffer, extra_buffer_lazy or no_buffer.
        overlap: whether the overlap scheduler runs (not ``--disable-overlap-schedule`` or ``--pp-size``).
        radix_cache: whether prefixes are cached (not ``--disable-radix-cache``).
        skip_decode_lock: ``SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK``.
    """

    strategy: str = "extra_buffer"
    overlap: bool = True
    radix_cache: bool = True
    skip_decode_lock: bool = False

    def __post_init__(self) -> None:
        if self.strategy not in _BUFFERS:
            raise ValueError(f"no such strategy: {self.strategy}; there are {', '.join(_BUFFERS)}")
        if self.strategy == "extra_buffer_lazy" and not self.overlap:
            raise ValueError("extra_buffer_lazy needs the overlap scheduler")

    @property
    def slots_per_request(self) -> int:
        """r: 5 by default (3, and 2 overlap buffers), 4 when lazy, 3 without, 1 without prefix cache."""
        if not self.radix_cache:
            return 1
        if self.strategy == "no_buffer":
            return _HELD
        buffers = _BUFFERS[self.strategy] if self.overlap else 1
        return _HELD + buffers - int(self.skip_decode_lock)


@dataclass(frozen=True)
class StatePool:
    """The state pool of a hybrid model on one rank.

    Args:
        state_bytes: p, bytes of one state.
        slots_per_request: r, see :class:`Holding`.
        draft_tokens: D, ``--speculative-num-draft-tokens``; 0 without speculative decoding.
    """

    state_bytes: int
    slots_per_request: int = 5
    draft_tokens: int = 0

    def __post_init__(self) -> None:
        if self.state_bytes <= 0 or self.slots_per_request <= 0 or self.draft_tokens < 0:
            raise ValueError("a state has bytes, a request has slots, and draft tokens are not negative")

    @property
    def fixed_bytes(self) -> int:
        """Spent before the first request: p(1 + D)."""
        return self.state_bytes * (1 + self.draft_tokens)

    @property
    def request_bytes(self) -> int:
        """Taken by each running request: p(r + D)."""
        return self.state_bytes * (self.slots_per_request + self.draft_tokens)

    def requests_of(self, slots: int) -> int:
        """How many requests run in this many slots."""
        return max(slots, 0) // self.slots_per_request

    def slots_for(self, requests: int) -> int:
        """The slots to ask for (``--max-mamba-cache-size``), with one to spare."""
        return requests * self.slots_per_request + SPARE_SLOTS

    def bytes_for(self, requests: int) -> int:
        """Bytes of the pools that serve this many requests, with the slot to spare."""
        return self.allocated(self.slots_for(requests), requests)

    def allocated(self, slots: int, requests: int) -> int:
        """Bytes of the pools with this many slots and running requests: each has a padding entry."""
        return (slots + 1 + (requests + 1) * self.draft_tokens) * self.state_bytes

    def slots_within(self, budget: int) -> int:
        """K: the slots that SGLang makes of ``budget`` bytes; at most 0 where it refuses to start."""
        return (budget - self.fixed_bytes) * self.slots_per_request // self.request_bytes

    def requests_within(self, budget: int) -> int:
        """How many requests are served of ``budget`` bytes."""
        return self.requests_of(self.slots_within(budget))


def state_budget(memory: int, ratio: Fraction = DEFAULT_RATIO) -> int:
    """Bytes for the state pool out of the memory for attention KV and state together.

    Args:
        memory: bytes that are free after weights and the slack of ``--mem-fraction-static``.
        ratio: ``--mamba-full-memory-ratio``, state to attention KV.
    """
    return int(memory * ratio / (1 + ratio))
