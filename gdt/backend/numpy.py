"""The host backend: NumPy, with recycled buffers."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from sys import getrefcount
from typing import Any

import numpy as np

from gdt.observe import report_synchronization

HERE = nullcontext()
CACHE_LINE = 64  # bytes
NEWEST = 4  # buffers of a size, of which one is mostly free
TIMED_RUNS = 5
Order = tuple[int, ...] | None  # axes in the order of memory, slowest first; None: as in the shape


def _references_of_a_listed_object() -> int:
    """Return the reference count of an object that only one list holds; it differs between versions
    of CPython."""
    objects = [object()]
    return getrefcount(objects[0])


ONE_REFERENCE = _references_of_a_listed_object()


class BufferPool:
    """A pool that recycles the memory of large blocks.

    Fresh pages from the operating system cost as much as the arithmetic that fills them. A buffer
    is free again when only the pool refers to it: arrays keep the buffer that they view alive.
    Sizes are rounded up to one of eight in each power of two, so that blocks of ever new sizes
    share buffers, which are at most an eighth larger than the blocks.
    """

    def __init__(self, smallest: int = 1 << 15, capacity: int = 1 << 30) -> None:
        self.smallest, self.capacity = smallest, capacity
        self.buffers: dict[int, list[np.ndarray]] = {}
        self.nbytes = 0
        self._own: set[int] = set()  # identities of all buffers
        self.lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype, order: Order = None) -> np.ndarray:
        """Return an uninitialised array.

        A large one, of `smallest` bytes or more, lies in recycled memory, with its axes in `order`.
        """
        nbytes, rounded, strides = _measures(shape, dtype.itemsize, order)
        if nbytes < self.smallest:
            return np.empty(shape, dtype)
        with self.lock:  # else two threads could take the same free buffer
            return np.ndarray(shape, dtype, self._buffer(rounded), 0, strides)

    def _buffer(self, nbytes: int) -> np.ndarray:
        """Return a free buffer of `nbytes` bytes, or fresh memory."""
        sized = self.buffers.setdefault(nbytes, [])
        for indices in _search_order(len(sized)):
            for i in indices:
                if getrefcount(sized[i]) == ONE_REFERENCE:
                    buffer = sized.pop(i)
                    sized.append(buffer)  # so that the oldest come first
                    return buffer
        if self.nbytes + nbytes > self.capacity:
            self.trim()
        buffer = _aligned(nbytes)
        if self.nbytes + nbytes <= self.capacity:
            # Its base is no array, so that NumPy lets views refer to this one.
            buffer = np.frombuffer(buffer.data, np.uint8)
            sized.append(buffer)
            self._own.add(id(buffer))
            self.nbytes += nbytes
        return buffer

    def owns(self, buffer: object) -> bool:
        """Return whether `buffer` is a buffer of this pool."""
        return id(buffer) in self._own

    def limit(self, capacity: int) -> int:
        """Keep at most so many bytes from now on; return how many it were before."""
        with self.lock:
            before, self.capacity = self.capacity, capacity
            if self.nbytes > capacity:
                self.trim()
            if self.nbytes > capacity:  # what is in use is freed with the arrays
                self.buffers.clear()
                self._own.clear()
                self.nbytes = 0
        return before

    def free(self) -> int:
        """Free the memory of all buffers that only the pool refers to; return its bytes."""
        with self.lock:
            before = self.nbytes
            self.trim()
            return before - self.nbytes

    def trim(self) -> None:
        """As `free`, by a thread that holds the pool's lock."""
        for sized in self.buffers.values():
            in_use = [getrefcount(sized[i]) > ONE_REFERENCE for i in range(len(sized))]
            sized[:] = itertools.compress(sized, in_use)
        self._own = {id(buffer) for sized in self.buffers.values() for buffer in sized}
        self.nbytes = sum(n * len(sized) for n, sized in self.buffers.items())


@lru_cache(maxsize=4096)
def _search_order(length: int) -> tuple[range, range]:
    """Return the indices at which a list of buffers is searched for a free one, in order.

    The newest come first: what was used last is still in the cache. The oldest come next: of the
    buffers between, most hold what a forward pass computed for the backward pass.
    """
    newest = range(length - 1, max(length - 1 - NEWEST, -1), -1)
    return newest, range(length - len(newest))


def _aligned(nbytes: int) -> np.ndarray:
    """Allocate memory that begins a cache line, so that no vector of an array crosses a line."""
    memory = np.empty(nbytes + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + nbytes]


@lru_cache(maxsize=4096)
def _measures(
    shape: tuple[int, ...], itemsize: int, order: Order
) -> tuple[int, int, tuple[int, ...] | None]:
    """Return the bytes of an array, those of a buffer for it, and its strides in bytes where its
    axes lie in another order than those of the shape."""
    nbytes = math.prod(shape) * itemsize
    unit = 1 << max(nbytes.bit_length() - 4, 0)
    return nbytes, -(-nbytes // unit) * unit, order and strides_of(shape, itemsize, order)


def strides_of(shape: tuple[int, ...], itemsize: int, order: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides in bytes of an array without gaps whose axes lie in `order`."""
    strides, step = [0] * len(shape), itemsize
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def order_in_memory(array: np.ndarray) -> Order:
    """Return the axes of an array in the order of memory, slowest first; None for C order."""
    return None if array.flags.c_contiguous else axes_in_memory(array)


def axes_in_memory(array: Any) -> tuple[int, ...]:
    """Return the axes of an array of NumPy or CuPy, sorted by stride, largest first."""
    return _farthest_first(array.strides)


@lru_cache(maxsize=4096)
def _farthest_first(strides: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(strides)), key=lambda a: -abs(strides[a])))


def in_own_byte_order(array: np.ndarray) -> np.ndarray:
    """Return the array in the host's byte order; a copy if it has the other."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


class NumpyBackend:
    """The backend of the host: NumPy, and a pool of buffers."""

    xp: Any = np
    runner: Any = None
    flags: Any = None
    most_joined = math.inf
    overlaps = False

    def __init__(self) -> None:
        self.pool = BufferPool()
        self.empty, self.owns = self.pool.empty, self.pool.owns
        self.recycled_size: float = self.pool.smallest

    def asarray(
        self, value: Any, dtype: Any = None, *, copy: bool = False, order: Order = None
    ) -> np.ndarray:
        """Return `value` as an array in the host's byte order; such an array is copied if `copy`.

        order: the order of the copy's axes in memory, as in `empty`.
        """
        array = in_own_byte_order(np.asarray(value, dtype))
        if not copy:
            return array
        result = self.empty(array.shape, array.dtype, order)
        result[...] = array
        return result

    def free_memory(self) -> int:
        """Free the memory that is kept for blocks to come; return its bytes."""
        return self.pool.free()

    def seconds(self, run: Callable[[], Any]) -> float:
        """Return the seconds of one `run`: the shortest of a few."""
        times = []
        for _ in range(TIMED_RUNS):
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        return min(times)

    def upload(self, value: np.ndarray) -> np.ndarray:
        """Return `value`: kernels of the host read it where it is."""
        return value

    def to_host(self, block: Any) -> np.ndarray:
        """Return a block as a NumPy array, without copying it."""
        report_synchronization("copying to the host")
        return np.asarray(block)

    def synchronize(self) -> None:
        """Report the synchronization; NumPy has finished all work already."""
        report_synchronization("synchronize")

    def on(self, mesh: Any, block: int) -> AbstractContextManager[object]:
        """Return a context that does nothing: the host is one device."""
        return HERE

    def placed(self, mesh: Any, block: int, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`: the host is one device."""
        return function

    def copying_ahead(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: arrays are on the host already."""
        return nullcontext()

    def overlapping(self, mesh: Any) -> AbstractContextManager[list[Any]]:
        """Return a context that does nothing: the host does not overlap."""
        return nullcontext([])

    def join(self, mesh: Any, events: Sequence[Any], *, is_read: bool = True) -> None:
        """Do nothing: the host has finished all work already."""
