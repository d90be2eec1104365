"""Threads of the host: how many compute a block, and calls that run in them at the same time.

NumPy and compiled loops release Python's lock while they compute.
"""

from __future__ import annotations

import contextvars
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gdt.settings import host_thread_count, host_threads

SMALLEST = 1 << 19
"""Elements that a thread computes at least, of an op that adds two arrays of float32: of fewer no
more is gained than it takes to wake a thread and wait for it, some 30 us."""


def count_for(size: float) -> int:
    """Return the number of threads that compute a block of `size` elements."""
    return max(1, min(host_thread_count(), int(size // SMALLEST)))


def parts_of(length: int, count: int) -> list[slice]:
    """Return `count` slices of an axis, one for each thread, of about the same length."""
    edges = [length * i // count for i in range(count + 1)]
    return list(itertools.starmap(slice, itertools.pairwise(edges)))


def in_turns(run: Callable[[slice], Any], count: int) -> list[Any]:
    """Return the results of `run` in `count` threads, of which each gets a slice: every thread's
    own of a list that all of them take turns in."""
    if count == 1:
        return [run(slice(None))]
    return together([partial(run, slice(i, None, count)) for i in range(count)])


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return the results of the calls, which run at the same time, one of them in this thread.

    They see the context variables of this thread, as `np.errstate`. Where some raise, the exception
    of the first of them is raised once all have ended."""
    cells: list[list[Callable[[], Any]]] = [
        [partial(contextvars.copy_context().run, _alone, call)] for call in calls
    ]
    workers = [_idle_worker() for _ in cells[1:]]
    for worker, cell in zip(workers, cells[1:], strict=True):
        worker.begin(cell)
    try:
        first = _emptied(cells[0])
    finally:
        ends = [worker.end() for worker in workers]  # no thread may go on writing into these blocks
        _IDLE.extend(workers)
    for _, problem in ends:
        if problem is not None:
            raise problem
    return [first, *[result for result, _ in ends]]


def _alone(call: Callable[[], Any]) -> Any:
    """Return the result of a call, which gets no threads of its own: it would wait for them in one
    that they need."""
    with host_threads(1):
        return call()


def _emptied(cell: list[Callable[[], Any]]) -> Any:
    """Return the result of the call in a cell, to which nothing refers when the result is known:
    blocks to which only their array refers can be overwritten."""
    return cell.pop()()


class _Worker:
    """A thread that runs one call after another.

    Two locks hand calls over in 15 us; a `ThreadPoolExecutor` takes three times as long."""

    def __init__(self) -> None:
        self._begun, self._ended = threading.Lock(), threading.Lock()
        self._begun.acquire()
        self._ended.acquire()
        self._cell: list[Callable[[], Any]]
        self._end: tuple[Any, BaseException | None]
        threading.Thread(target=self._work, name="gdt-host", daemon=True).start()

    def begin(self, cell: list[Callable[[], Any]]) -> None:
        """Run the call in a cell."""
        self._cell = cell
        self._begun.release()

    def end(self) -> tuple[Any, BaseException | None]:
        """Wait for the call; return its result and its exception."""
        self._ended.acquire()
        end = self._end
        del self._end
        return end

    def _work(self) -> None:
        while True:
            self._begun.acquire()
            try:
                self._end = _emptied(self._cell), None
            except BaseException as problem:
                self._end = None, problem
            self._ended.release()


_IDLE: list[_Worker] = []


def _idle_worker() -> _Worker:
    try:
        return _IDLE.pop()
    except IndexError:
        return _Worker()


os.register_at_fork(after_in_child=_IDLE.clear)  # a child has none of the threads
