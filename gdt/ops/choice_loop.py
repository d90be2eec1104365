"""`numpy.where` of large blocks in one pass without branches, which processors would have to guess:
a seventh of NumPy's time where the condition is in no order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gdt.backend import NUMPY
from gdt.engine import threads
from gdt.engine.loops import loop, vectors

Block = Any
Body = Callable[..., Any]

SMALLEST = 1 << 17
"""The fewest elements for which the loop is worth importing numba."""
LOOPS = {4: "f", 8: "d"}
"""By the bytes of an element: the character of the floats that are as wide."""


def where_loop(body: Body, condition: Block, x: Block, y: Block, /) -> Body | None:
    """`gdt.where` of large blocks."""
    is_large = isinstance(condition, np.ndarray) and condition.size >= SMALLEST
    if not is_large or _loop(condition, x, y) is None:
        return None

    def where(condition: Block, x: Block, y: Block) -> Block:
        out = chosen(condition, x, y)
        return body(condition, x, y) if out is None else out

    return where


def chosen(condition: Block, x: Block, y: Block) -> Block | None:
    """Return `np.where(condition, x, y)`; None where NumPy computes it: for conditions of another
    dtype, elements that are not of 4 or 8 bytes, blocks that broadcast or that lie in memory in
    other orders.

    x, y: blocks of the condition's shape, of which one may be a number.
    """
    choose, dtype = _loop(condition, x, y), np.result_type(x, y)
    if choose is None:
        return None
    out = NUMPY.empty(condition.shape, dtype)
    elements = vectors(condition, *[v for v in (x, y) if np.ndim(v)], out)
    if elements is None or not all(v.flags.aligned for v in elements):
        return None
    mask, *rest, target = elements
    word = f"u{dtype.itemsize}"
    x, y = [
        rest.pop(0).view(word) if np.ndim(v) else np.full(1, v, dtype).view(word) for v in (x, y)
    ]
    parts = threads.parts_of(mask.size, threads.count_for(mask.size))
    calls = [
        partial(
            choose, mask[p], *[v if v.size == 1 else v[p] for v in (x, y)], target.view(word)[p]
        )
        for p in parts
    ]
    threads.together(calls)
    return out


def _loop(condition: Block, x: Block, y: Block) -> Any:
    """Return the loop for blocks of these shapes and dtypes; None if there is none."""
    blocks, dtype = [block for block in (x, y) if np.ndim(block)], np.result_type(x, y)
    is_alike = all(b.shape == condition.shape and b.dtype == dtype for b in blocks)
    if not blocks or not is_alike or condition.dtype != bool or dtype.kind not in "iufc":
        return None
    return _choose[LOOPS[dtype.itemsize]] if dtype.itemsize in LOOPS else None


@loop("bools, keys, keys, words")
def _choose(condition: Block, x: Block, y: Block, out: Block) -> None:
    """Write elements of x where the condition is true, and of y elsewhere; each may be one number.
    Both are read for every element, so that several are chosen at once."""
    if x.size == 1:
        number = x[0]
        for i in range(out.size):
            other = y[i]
            out[i] = number if condition[i] else other
    elif y.size == 1:
        number = y[0]
        for i in range(out.size):
            one = x[i]
            out[i] = one if condition[i] else number
    else:
        for i in range(out.size):
            one, other = x[i], y[i]
            out[i] = one if condition[i] else other
