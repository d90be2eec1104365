"""Bodies of update ops: a formula over short runs of elements, whose arrays stay in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gdt.backend.numpy import order_in_memory

Block = Any

RUN = 64 * 1024
"""Elements that a formula takes at once. Shorter runs lose more to calls than they gain (measured
on 0.9 M parameters)."""

SMALL = 4096
"""Elements of a block below which finding its order in memory costs more than it gains."""


def in_runs(
    xp: Any, formula: Callable[..., Sequence[Block]], blocks: Sequence[Block], out: Sequence[Any]
) -> Any:
    """Write the results of an element-wise formula of blocks of one shape to `out`, which may be
    some of them; return them as the body of an op does."""
    for run in runs(xp, *blocks, *out):
        results = formula(*run[: len(blocks)])
        for new, result in zip(run[len(blocks) :], results, strict=True):
            new[...] = result
    return tuple(out) if len(out) > 1 else out[0]


def runs(xp: Any, *blocks: Block) -> Iterable[Sequence[Block]]:
    """Return views of the same elements of blocks of one shape, of all or run by run where that is
    a gain."""
    like = blocks[0]
    if xp is not np or like.size < SMALL:
        return [blocks]
    order = order_in_memory(like)
    if order is not None and all(b.strides == like.strides for b in blocks):
        blocks = tuple([b.transpose(order) for b in blocks])
    if like.size <= RUN or not all(b.flags.c_contiguous for b in blocks):
        return [blocks]
    flat = [b.reshape(-1) for b in blocks]
    return ([b[start : start + RUN] for b in flat] for start in range(0, like.size, RUN))
