"""Matrix products of the host that run in one thread of BLAS.

The threads of OpenBLAS wait for each other actively. Where a core is busy with something else, one
of them waits until another one's turn comes: a product of 80 us then takes 15 ms and more. So what
gains little by threads gets none. How many threads compute a product must not depend on what else
the machine does, as its bits depend on it: the size alone decides.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

Block = Any

SMALLEST = 1 << 20
"""The multiplications from which on OpenBLAS computes a product in several threads."""

LARGEST = 1 << 24
"""The multiplications, times the bytes of an element, up to which a product runs in one thread: up
to 0.1 ms. Two threads of an idle machine with AVX-512 took 1.2 to 1.4 times as long for 2 to 3
million multiplications of float32, 0.65 times as long for 3.7 million (79 us), and as little for
more."""

EXCHANGES = ("openblas_set_num_threads_local", "openblas_set_num_threads_local64_")


def _exchange() -> Callable[[int], int]:
    """Return OpenBLAS's function that sets the number of threads and returns the one of before, for
    0.1 us; for any other BLAS a function that does nothing."""
    try:  # a library's symbols are found through what is linked with it
        library = ctypes.PyDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]
    except (AttributeError, OSError):
        return lambda count: count
    for name in EXCHANGES:
        if hasattr(library, name):
            return library[name]
    return lambda count: count


exchange_threads = _exchange()


def is_small(rows: int, inner: int, columns: int) -> bool:
    """Return whether a product of these sizes may be one that `multiply` runs in one thread."""
    return SMALLEST <= rows * inner * columns <= LARGEST // np.float32().itemsize


def multiply(xp: Any, x: Block, w: Block, out: Block = None) -> Block:
    """Return `xp.matmul(x, w, out)` of stacks of matrices, computed by one thread of the host if
    each product is small."""
    rows, inner = x.shape[-2:]
    if xp is not np or rows * inner * w.shape[-1] * x.itemsize > LARGEST:
        return xp.matmul(x, w, out=out)
    before = exchange_threads(1)
    try:
        return np.matmul(x, w, out)
    finally:
        if before > 1:  # else another thread does so, which multiplies as well
            exchange_threads(before)
