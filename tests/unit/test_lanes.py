"""Tasks side by side: all of them, or the first error."""

from __future__ import annotations

import threading

import pytest

from builder.oci.parallel import Check, OthersFailedError, run_parallel


@pytest.mark.parametrize("workers", [1, 3, 50])
def test_every_task_runs_once(workers: int) -> None:
    done: list[int] = []
    tasks = [lambda check, number=number: done.append(number) for number in range(20)]
    run_parallel(tasks, workers)
    assert sorted(done) == list(range(20))


def test_nothing_to_do() -> None:
    run_parallel([], 4)


def test_one_lane_keeps_the_order_and_the_thread() -> None:
    threads = []
    run_parallel([lambda check: threads.append(threading.current_thread())] * 3, 1)
    assert threads == [threading.current_thread()] * 3


def test_tasks_are_at_work_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=20)

    def meet(check: Check) -> None:
        meeting.wait()

    run_parallel([meet] * 3, 3)


def test_the_first_error_is_raised_and_ends_the_others() -> None:
    at_work, ended = threading.Event(), threading.Event()
    started: list[str] = []

    def long_one(check: Check) -> None:
        at_work.set()
        try:
            while True:
                check()
        except OthersFailedError:
            ended.set()
            raise

    def failing(check: Check) -> None:
        at_work.wait(20)
        raise LookupError("the first")

    with pytest.raises(LookupError, match="the first"):
        run_parallel([long_one, failing, lambda check: started.append("too late")], 2)
    assert ended.wait(20)
    assert not started


def test_a_stop_in_a_task_is_raised_too() -> None:
    def stopped(check: Check) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_parallel([stopped], 2)


def test_who_stops_for_an_error_is_never_heard_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads change places at the worst of moments: between the error and the stop that it causes."""
    ended = threading.Event()
    set_event = threading.Event.set

    def set_and_wait(event: threading.Event) -> None:
        set_event(event)
        if event not in (ended, begun):
            ended.wait(5)

    begun = threading.Event()

    def busy(check: Check) -> None:
        begun.set()
        try:
            while True:
                check()
        finally:
            ended.set()

    def failing(check: Check) -> None:
        begun.wait(20)
        raise LookupError("the reason")

    monkeypatch.setattr(threading.Event, "set", set_and_wait)
    with pytest.raises(LookupError, match="the reason"):
        run_parallel([busy, failing], 2)
