"""The host backend: NumPy, with recycled buffers."""

from __future__ import annotations

import itertools
import math
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.observe import report_synchronization

HERE = nullcontext()
CACHE_LINE = 64  # bytes
Order = tuple[int, ...] | None  # of axes in memory, slowest first; None: as they are


def _references_of_a_listed_object() -> int:
    """What `sys.getrefcount` says of an object that only one list holds; versions of CPython
    differ."""
    held = [object()]
    return sys.getrefcount(held[0])


ONE_REFERENCE = _references_of_a_listed_object()


class BufferPool:
    """Recycles the memory of large blocks.

    Fresh pages from the operating system cost as much as the arithmetic that fills them. A buffer
    is free again when only the pool refers to it: arrays keep the buffer that they view alive.
    Sizes are rounded up to one of eight in each power of two, so that blocks of ever new sizes
    share buffers, which are at most an eighth larger than the blocks.
    """

    def __init__(self, smallest: int = 1 << 15, capacity: int = 1 << 30) -> None:
        self.smallest, self.capacity = smallest, capacity
        self.buffers: dict[int, list[np.ndarray]] = {}
        self.held = 0
        self._own: set[int] = set()  # identities of all buffers
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype, order: Order = None) -> np.ndarray:
        """An uninitialised array; if it is large, in recycled memory, and its axes in `order`,
        slowest first."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < self.smallest:
            return np.empty(shape, dtype)
        with self._lock:  # else two threads could take the same free buffer
            return np.ndarray(
                shape,
                dtype,
                self._buffer(nbytes),
                0,
                order and _strides(shape, dtype.itemsize, order),
            )

    def _buffer(self, nbytes: int) -> np.ndarray:
        unit = 1 << max(nbytes.bit_length() - 4, 0)
        nbytes = -(-nbytes // unit) * unit
        sized = self.buffers.setdefault(nbytes, [])
        for i in range(len(sized) - 1, -1, -1):
            if sys.getrefcount(sized[i]) == ONE_REFERENCE:
                # Newest first: what was used last is still in the cache.
                sized.append(sized.pop(i))
                return sized[-1]
        if self.held + nbytes > self.capacity:
            self.trim()
        buffer = _aligned(nbytes)
        if self.held + nbytes <= self.capacity:
            # Its base is no array, so that NumPy lets views refer to this one.
            buffer = np.frombuffer(buffer.data, np.uint8)
            sized.append(buffer)
            self._own.add(id(buffer))
            self.held += nbytes
        return buffer

    def owns(self, buffer: object) -> bool:
        """Whether `buffer` is one of the pool's."""
        return id(buffer) in self._own

    def trim(self) -> None:
        """Give the memory of all free buffers back."""
        for sized in self.buffers.values():
            used = [sys.getrefcount(sized[i]) > ONE_REFERENCE for i in range(len(sized))]
            sized[:] = itertools.compress(sized, used)
        self._own = {id(buffer) for sized in self.buffers.values() for buffer in sized}
        self.held = sum(n * len(sized) for n, sized in self.buffers.items())


def _aligned(nbytes: int) -> np.ndarray:
    """Fresh memory that begins a cache line, so that no vector of an array crosses one."""
    memory = np.empty(nbytes + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + nbytes]


@lru_cache(maxsize=4096)
def _strides(shape: tuple[int, ...], itemsize: int, order: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes between neighbours along each axis of memory without gaps, `order` slowest first."""
    strides, step = [0] * len(shape), itemsize
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def order_in_memory(array: np.ndarray) -> Order:
    """The axes of an array as they lie in memory, slowest first; None if that is their order."""
    return None if array.flags.c_contiguous else axes_in_memory(array)


def axes_in_memory(array: Any) -> tuple[int, ...]:
    """The axes of an array of NumPy or CuPy by their distance in memory, farthest first."""
    return _farthest_first(array.strides)


@lru_cache(maxsize=4096)
def _farthest_first(strides: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(strides)), key=lambda a: -abs(strides[a])))


def in_own_byte_order(array: np.ndarray) -> np.ndarray:
    """The array, as it is unless its bytes are in the order of other machines."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


class NumpyBackend:
    """NumPy on the host."""

    xp: Any = np
    runner: Any = None
    flags: Any = None

    def __init__(self) -> None:
        self.pool = BufferPool()
        self.empty, self.owns = self.pool.empty, self.pool.owns
        self.recycled_size: float = self.pool.smallest

    def asarray(
        self, value: Any, dtype: Any = None, *, copy: bool = False, order: Order = None
    ) -> np.ndarray:
        """`value` as an array of this backend, in the host's byte order; not copied if it is one,
        unless `copy`, which is in an `order` as that of `empty`."""
        array = in_own_byte_order(np.asarray(value, dtype))
        if not copy:
            return array
        copied = self.empty(array.shape, array.dtype, order)
        copied[...] = array
        return copied

    def upload(self, value: np.ndarray) -> np.ndarray:
        """`value`, which is in the host's memory."""
        return value

    def to_host(self, block: Any) -> np.ndarray:
        """A block as a NumPy array, not copied if it is one."""
        report_synchronization("copying to the host")
        return np.asarray(block)

    def synchronize(self) -> None:
        """Wait until all work has ended; NumPy works at once."""
        report_synchronization("synchronize")

    def on(self, mesh: Any, block: int) -> AbstractContextManager[object]:
        """Nothing: the host is one device."""
        return HERE

    def placed(self, mesh: Any, block: int, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` as it is."""
        return function

    def overlapping(self, mesh: Any) -> AbstractContextManager[object]:
        """Nothing: what the host is asked, it does at once."""
        return HERE

    def join(self, mesh: Any) -> None:
        """Nothing to wait for."""
