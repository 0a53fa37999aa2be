"""The state-cache calculator keeps SGLang's laws, as published boot logs show them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.launch.state_pool import Holding, StatePool, state_budget

GIB, MIB = 1 << 30, 1 << 20

pools = st.builds(
    StatePool, st.integers(1, 1 << 34), st.integers(1, 6), st.one_of(st.just(0), st.integers(1, 32))
)


@pytest.mark.parametrize(
    ("slots", "served", "source"),
    [
        (10, 2, "sgl-project/sglang#36889, before"),
        (40, 8, "sgl-project/sglang#36889, after"),
        (64, 12, "MiaAI-Lab/Qwen3.8-27B-SGLang-DGX-Spark#7"),
        (47, 9, "sgl-project/sglang#38846"),
    ],
)
def test_published_boot_logs_at_five_slots_a_request(slots: int, served: int, source: str) -> None:
    assert StatePool(state_bytes=64 * MIB, slots_per_request=5).requests_of(slots) == served


@pytest.mark.parametrize(
    ("holding", "slots"),
    [
        (Holding("extra_buffer"), 5),
        (Holding("extra_buffer_lazy"), 4),
        (Holding("no_buffer"), 3),
        (Holding("extra_buffer", overlap=False), 4),
        (Holding("extra_buffer", radix_cache=False), 1),
        (Holding("extra_buffer", skip_decode_lock=True), 4),
        (Holding("extra_buffer_lazy", skip_decode_lock=True), 3),
        (Holding("no_buffer", skip_decode_lock=True), 3),
    ],
)
def test_slots_of_a_request_by_strategy(holding: Holding, slots: int) -> None:
    assert holding.slots_per_request == slots


def test_lazy_buffers_without_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        Holding("extra_buffer_lazy", overlap=False)


def test_unknown_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match="no such strategy"):
        Holding("extra")


def test_measured_intermediate_cache_of_one_request() -> None:
    # sgl-project/sglang#37066: 12 draft tokens, 71.7 MiB a slot, one request: 1.69 GB of intermediate states.
    pool = StatePool(state_bytes=int(71.7 * MIB), slots_per_request=4, draft_tokens=12)
    intermediate = (1 + 1) * pool.draft_tokens * pool.state_bytes
    assert intermediate / GIB == pytest.approx(1.69, abs=0.02)
    assert pool.fixed_bytes + pool.request_bytes == intermediate + (4 + 1) * pool.state_bytes


def test_eight_asked_four_served() -> None:
    pool = StatePool(64 * MIB, 5, 16)
    budget = state_budget(16 * GIB)
    assert (pool.slots_within(budget), pool.requests_within(budget)) == (24, 4)
    assert pool.slots_for(8) == 41
    assert pool.bytes_for(8) == (17 + 8 * 21 + 1) * 64 * MIB


def test_too_little_memory_gives_no_slots() -> None:
    pool = StatePool(128 * MIB, 5, 16)
    assert pool.slots_within(state_budget(4 * GIB)) <= 0
    assert pool.requests_within(state_budget(4 * GIB)) == 0


@given(pools, st.integers(0, 300))
def test_the_bytes_for_requests_serve_exactly_those(pool: StatePool, requests: int) -> None:
    needed = pool.bytes_for(requests) - pool.state_bytes  # without the spare slot
    assert pool.requests_within(needed) == requests
    assert pool.requests_within(needed - 1) == max(requests - 1, 0)


@given(pools, st.integers(0, 1 << 40))
def test_what_is_allocated_fits_the_budget(pool: StatePool, budget: int) -> None:
    slots = pool.slots_within(budget)
    if slots >= 0:
        states = slots + 1 + (pool.requests_of(slots) + 1) * pool.draft_tokens
        assert states * pool.state_bytes <= budget


@given(pools, st.integers(1, 1 << 42))
def test_more_memory_never_serves_fewer(pool: StatePool, memory: int) -> None:
    assert pool.requests_within(state_budget(memory)) <= pool.requests_within(state_budget(2 * memory))


def test_ratio_is_state_to_attention() -> None:
    assert state_budget(19, Fraction(9, 10)) == 9
