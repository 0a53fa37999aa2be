"""When to try again, how long to wait first, and when to stop."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from builder.errors import InvalidInput, Unavailable


@dataclass(frozen=True)
class RetryPolicy:
    """How often a request is tried, and how long is waited between.

    Args:
        attempts: tries in all, at least 1.
        first_wait: seconds before the second try; doubled each time, with up to half taken off by chance so
            that many clients don't come back at once.
        longest_wait: seconds; no wait of ours is longer, and a server that asks for more ends it.
    """

    attempts: int = 6
    first_wait: float = 0.5
    longest_wait: float = 60.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> RetryPolicy:
        """The defaults, changed by ``OVERLAY_RETRY_ATTEMPTS`` and ``OVERLAY_RETRY_WAIT`` (seconds).

        Raises:
            InvalidInput: one of them is not a number in range.
        """
        return cls(
            attempts=int(_number(environment, "OVERLAY_RETRY_ATTEMPTS", cls.attempts, lowest=1)),
            first_wait=_number(environment, "OVERLAY_RETRY_WAIT", cls.first_wait, lowest=0),
        )

    def wait(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        longest = min(self.first_wait * 2.0 ** min(failures - 1, 30), self.longest_wait)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 (spreads load, keeps no secret)


class TransientError(Exception):
    """A failure that another try may not meet; the text says which and holds no secret.

    Args:
        reason: what happened, in a few words.
        retry_after: seconds the server asked to wait, if it did.
        attempts: tries that make sense for this kind of failure, if fewer than the policy's.
    """

    def __init__(self, reason: str, *, retry_after: float | None = None, attempts: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.attempts = attempts


class Attempts:
    """Counts the failures of one piece of work; waits after each, or ends it.

    Args:
        policy: the bounds.
        what: the work, for the error: ``GET manifests/v0.5.20``.
        where: the registry or repository.
    """

    def __init__(self, policy: RetryPolicy, what: str, where: str) -> None:
        self._policy = policy
        self._what = what
        self._where = where
        self._failures = 0

    def succeeded(self) -> None:
        """Work went on since the last failure: count from the start again."""
        self._failures = 0

    def failed(self, failure: TransientError) -> None:
        """Wait before the next try.

        Raises:
            Unavailable: there have been enough tries, or the server asks for a wait that is too long.
        """
        self._failures += 1
        allowed = min(self._policy.attempts, failure.attempts or self._policy.attempts)
        if self._failures >= allowed:
            ask = "" if failure.attempts is None else "is the name right, and the network there? "
            raise self._ended(failure, f"tried {self._failures} times; {ask}run the same command again later")
        asked = failure.retry_after
        if asked is not None and asked > self._policy.longest_wait:
            raise self._ended(
                failure, f"it asks to wait {asked:.0f} s; run the same command again after that"
            )
        time.sleep(self._policy.wait(self._failures) if asked is None else asked)

    def _ended(self, failure: TransientError, hint: str) -> Unavailable:
        return Unavailable(
            f"{self._what} failed: {failure.reason}",
            where=self._where,
            hint=f"{hint}: it goes on from what is done",
            facts={"attempts": self._failures},
        )


def parse_retry_after(text: str | None) -> float | None:
    """Seconds from a ``Retry-After`` header (RFC 9110: seconds or a date); ``None`` where it says nothing."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def _number(environment: Mapping[str, str], name: str, default: float, *, lowest: float) -> float:
    text = environment.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not lowest <= value <= 1000:
        raise InvalidInput(
            f"{name} is not usable", where=name, expected=f"a number from {lowest:g} to 1000", found=text
        )
    return value
