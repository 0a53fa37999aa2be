"""Retries are bounded, spread, and do as the server asks."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import InvalidInput, Unavailable
from builder.oci.registry.retry import Attempts, RetryPolicy, TransientError, parse_retry_after


def test_a_server_says_when_in_seconds_or_by_date() -> None:
    assert parse_retry_after("7") == 7.0
    assert parse_retry_after(" 0 ") == 0.0
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    assert 98 < (parse_retry_after(later) or 0) <= 100
    assert parse_retry_after("Sun, 06 Nov 1994 08:49:37 GMT") == 0.0


@given(st.text(max_size=40))
def test_what_says_nothing_usable_is_ignored(text: str) -> None:
    seconds = parse_retry_after(text)
    assert seconds is None or seconds >= 0


def test_nothing_said_is_nothing_asked() -> None:
    for text in (None, "", "soon", "-3", "1.5"):
        assert parse_retry_after(text) is None


def test_a_time_beyond_all_bounds_is_a_time() -> None:
    attempts = Attempts(RetryPolicy(), "x", "y")
    with pytest.raises(Unavailable, match="429"):
        attempts.failed(TransientError("429", retry_after=parse_retry_after("9" * 400)))


@given(st.integers(1, 200))
def test_waits_grow_vary_and_have_an_end(failures: int) -> None:
    policy = RetryPolicy(first_wait=0.5, longest_wait=30.0)
    wait = policy.wait(failures)
    longest = min(0.5 * 2 ** min(failures - 1, 30), 30.0)
    assert longest / 2 <= wait <= longest


def fail(attempts: Attempts, times: int, failure: TransientError) -> None:
    for _ in range(times):
        attempts.failed(failure)


def test_tries_are_counted_and_the_last_failure_is_told() -> None:
    attempts = Attempts(RetryPolicy(attempts=3, first_wait=0), "the download of x", "registry.test")
    fail(attempts, 2, TransientError("the connection broke"))
    with pytest.raises(Unavailable, match="the download of x failed: it answered 503") as ended:
        attempts.failed(TransientError("it answered 503"))
    assert ended.value.exit_code == 8
    assert ended.value.where == "registry.test"
    assert ended.value.facts == {"attempts": 3}
    assert "again" in str(ended.value.hint)


def test_getting_on_gives_the_tries_back() -> None:
    attempts = Attempts(RetryPolicy(attempts=3, first_wait=0), "x", "y")
    for _ in range(5):
        fail(attempts, 2, TransientError("broke"))
        attempts.succeeded()


def test_some_failures_are_worth_fewer_tries() -> None:
    attempts = Attempts(RetryPolicy(attempts=10, first_wait=0), "x", "y")
    attempts.failed(TransientError("refused", attempts=2))
    with pytest.raises(Unavailable):
        attempts.failed(TransientError("refused", attempts=2))


def test_the_servers_time_is_waited_if_it_is_short_enough() -> None:
    attempts = Attempts(RetryPolicy(attempts=10, first_wait=100, longest_wait=5), "x", "y")
    started = time.monotonic()
    attempts.failed(TransientError("429", retry_after=0.05))
    assert 0.05 <= time.monotonic() - started < 2
    with pytest.raises(Unavailable) as ended:
        attempts.failed(TransientError("429", retry_after=6))
    assert "6 s" in str(ended.value.hint)


def test_the_environment_changes_the_policy() -> None:
    policy = RetryPolicy.from_environment({"OVERLAY_RETRY_ATTEMPTS": "2", "OVERLAY_RETRY_WAIT": "0.1"})
    assert (policy.attempts, policy.first_wait) == (2, 0.1)
    assert RetryPolicy.from_environment({}) == RetryPolicy()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("OVERLAY_RETRY_ATTEMPTS", "0"),
        ("OVERLAY_RETRY_ATTEMPTS", "many"),
        ("OVERLAY_RETRY_WAIT", "-1"),
        ("OVERLAY_RETRY_WAIT", "nan"),
        ("OVERLAY_RETRY_WAIT", "1e9"),
    ],
)
def test_a_policy_out_of_range_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        RetryPolicy.from_environment({name: text})
    assert refused.value.where == name
