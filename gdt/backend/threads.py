"""Threads of the host: how many compute a block, and calls that run in them at the same time.

NumPy and compiled loops release Python's lock while they compute.
"""

from __future__ import annotations

import contextvars
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

from gdt.settings import host_thread_count, host_threads

SMALLEST = 1 << 19
"""Elements that a thread computes at least: fewer are done before the other threads have begun."""


def count_for(size: int) -> int:
    """Return the number of threads that compute a block of `size` elements."""
    return max(1, min(host_thread_count(), size // SMALLEST))


def parts_of(length: int, count: int) -> list[slice]:
    """Return `count` slices of an axis, one for each thread, of about the same length."""
    edges = [length * i // count for i in range(count + 1)]
    return list(itertools.starmap(slice, itertools.pairwise(edges)))


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return the results of the calls, which run at the same time, one of them in this thread.

    They see the context variables of this thread, as `np.errstate`. Where some raise, the exception
    of the first of them is raised once all have ended."""
    cells: list[list[Callable[[], Any]]] = [
        [partial(contextvars.copy_context().run, _alone, call)] for call in calls
    ]
    futures = [_pool().submit(_emptied, cell) for cell in cells[1:]]
    try:
        first = _emptied(cells[0])
    finally:
        for future in futures:
            future.exception()  # waits: no thread may go on writing into these blocks
    return [first, *[future.result() for future in futures]]


def _alone(call: Callable[[], Any]) -> Any:
    """Return the result of a call, which gets no threads of its own: it would wait for them in one
    that they need."""
    with host_threads(1):
        return call()


def _emptied(cell: list[Callable[[], Any]]) -> Any:
    """Return the result of the call in a cell, to which nothing refers when the result is known:
    blocks to which only their array refers can be overwritten."""
    return cell.pop()()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), "gdt-host")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of the threads
