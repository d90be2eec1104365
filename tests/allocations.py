"""The memory of the host that a block of code allocates."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

from gdt.backend import NUMPY


class Allocations:
    """What was allocated: at most `peak` bytes at once."""

    peak = 0


@contextmanager
def allocations() -> Iterator[Allocations]:
    """Count what is allocated in this `with` block, which begins with an empty pool: memory that
    earlier code has left in it would be taken again, and not seen."""
    NUMPY.pool.trim()
    counted = Allocations()
    tracemalloc.start()
    try:
        yield counted
    finally:
        counted.peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
