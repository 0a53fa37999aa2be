"""Several small jobs of one image side by side, as far as the place takes it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Event, Thread

MOMENT = 1.0  # seconds

Check = Callable[[], None]
Task = Callable[[Check], None]


class OthersFailedError(Exception):
    """A task ends because another of its run failed; that other's error is the one that is raised."""


def run_parallel(tasks: Sequence[Task], workers: int) -> None:
    """Run all tasks, ``workers`` at a time; the first error ends the rest, and is raised.

    Threads that are at work then end at their next check; they are waited for a moment, and not longer: one
    that hears nothing of its registry ends with the process.

    Args:
        tasks: started in this order. Each is given a function to call now and then, which raises when the
            task is to end.
        workers: how many at a time; 1 runs them in this thread.
    """
    run = _Run(tasks)
    if workers == 1:
        for task in tasks:
            task(run.check)
        return
    threads = [Thread(target=run.work, daemon=True) for _ in range(min(workers, len(tasks)))]
    for thread in threads:
        thread.start()
    try:
        run.wait()
    except Exception:
        run.stop.set()
        until = time.monotonic() + MOMENT
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        raise
    finally:
        run.stop.set()  # a signal waits for nobody


class _Run:
    """The tasks that wait, and what became of the others: None, or an error."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._count = len(tasks)
        self.waiting = deque(tasks)
        self.results: SimpleQueue[BaseException | None] = SimpleQueue()
        self.stop = Event()

    def check(self) -> None:
        if self.stop.is_set():
            raise OthersFailedError

    def wait(self) -> None:
        """Hear of every task; the first error is raised."""
        for _ in range(self._count):
            if (error := self.results.get()) is not None:
                raise error

    def work(self) -> None:
        """One lane."""
        while (task := self._next()) is not None:
            try:
                task(self.check)
            except OthersFailedError:
                return
            except BaseException as error:  # raised again where the results are read, whatever it is
                self.results.put(error)
                self.stop.set()  # after it: whoever stops for it must not be heard first
            else:
                self.results.put(None)

    def _next(self) -> Task | None:
        try:
            return None if self.stop.is_set() else self.waiting.popleft()
        except IndexError:
            return None
