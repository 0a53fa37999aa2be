"""Several small jobs of one image side by side, as far as the place takes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Event, Thread

Check = Callable[[], None]
Task = Callable[[Check], None]


class OthersFailedError(Exception):
    """A task ends because another of its run failed; that other's error is the one that is raised."""


def side_by_side(tasks: Sequence[Task], lanes: int) -> None:
    """Run all tasks, ``lanes`` at a time; the first error ends the rest, and is raised.

    Threads that are at work then are not waited for: they end at their next check, or with the process.

    Args:
        tasks: started in this order. Each is given a function to call now and then, which raises when the
            task is to end.
        lanes: how many at a time; 1 runs them in this thread.
    """
    run = _Run(tasks)
    if lanes == 1:
        for task in tasks:
            task(run.check)
        return
    for _ in range(min(lanes, len(tasks))):
        Thread(target=run.work, daemon=True).start()
    try:
        for _ in tasks:
            if (error := run.results.get()) is not None:
                raise error
    finally:
        run.stop.set()


class _Run:
    """The tasks that wait, and what became of the others: None, or an error."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.waiting = deque(tasks)
        self.results: SimpleQueue[BaseException | None] = SimpleQueue()
        self.stop = Event()

    def check(self) -> None:
        if self.stop.is_set():
            raise OthersFailedError

    def work(self) -> None:
        """One lane."""
        while (task := self._next()) is not None:
            try:
                task(self.check)
            except BaseException as error:  # raised again where the results are read, whatever it is
                self.stop.set()
                self.results.put(error)
            else:
                self.results.put(None)

    def _next(self) -> Task | None:
        try:
            return None if self.stop.is_set() else self.waiting.popleft()
        except IndexError:
            return None
