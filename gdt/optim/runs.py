"""The runs of elements in which the bodies of update ops pass over their operands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from gdt.backend import NUMPY
from gdt.backend.numpy import order_in_memory

Block = Any

RUN = 64 * 1024
"""Elements that a body updates at once, so that its temporary stays in the cache. Shorter runs lose
more to calls than they gain (measured on 0.9 M parameters)."""

SMALL = 4096
"""Elements of a block below which finding its order in memory costs more than it gains."""


def runs(xp: Any, *blocks: Block) -> Iterable[Sequence[Block]]:
    """Cut blocks of one shape into short runs of elements, where that is a gain.

    Returns an iterable of (temporary, *views): views of the blocks, and memory of their shape.
    """
    like = blocks[0]
    if xp is not np or like.size < SMALL:
        return [(xp.empty_like(like), *blocks)]
    order = order_in_memory(like)
    if order is not None and all(b.strides == like.strides for b in blocks):
        blocks = tuple([b.transpose(order) for b in blocks])
        like = blocks[0]
    if like.size <= RUN or not all(b.flags.c_contiguous for b in blocks):
        return [(NUMPY.empty(like.shape, like.dtype), *blocks)]
    return _short_runs(blocks)


def _short_runs(blocks: Sequence[Block]) -> Iterator[Sequence[Block]]:
    """Yield a temporary and the views of each run of contiguous blocks."""
    flat = [b.reshape(-1) for b in blocks]
    scratch = NUMPY.empty((RUN,), flat[0].dtype)
    for start in range(0, flat[0].size, RUN):
        pieces = [b[start : start + RUN] for b in flat]
        yield scratch[: pieces[0].size], *pieces


def write_squares(xp: Any, g: Block, out: Block) -> None:
    """Write |g|^2 to `out`."""
    xp.multiply(g, g if g.dtype.kind == "f" else xp.conj(g), out=out)
