"""A split axis as a matrix of rows and columns, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from gdt.fft.local import resized
from gdt.ops.movement import relayout
from gdt.ops.shapes import reshape
from gdt.sharding.layout import Layout

MOST_WASTE = 1.25
"""The most memory that a matrix of rows and columns may take, the padding of its shards included,
relative to the memory of its elements."""

Step = Callable[[Any], Any]
"""A part of a transform, of an array or of several."""


@lru_cache(maxsize=1 << 10)
def rows_of_length(n: int, shards: int) -> int:
    """Return the number of rows of a matrix of `n` elements whose rows, and whose columns, can be
    split over the shards with little padding; 0 if `n` has no such divisor.

    Of several divisors the one with the least padding is taken, then the largest, with which there
    are about as many rows as columns."""
    best, rows = (MOST_WASTE, 0), 0
    for divisor in range(shards, math.isqrt(n) + 1):
        if n % divisor == 0:
            lengths = (divisor, n // divisor)
            waste = math.prod(-(-length // shards) * shards / length for length in lengths)
            if (waste, -divisor) <= best:
                best, rows = (waste, -divisor), divisor
    return rows


def as_matrix(rows: int, columns: int, shards: int) -> list[Step]:
    """Return the steps that reshape the last axis, split over `shards` shards, to (rows, columns)
    with the rows split over them. Shards then hold whole rows: a row of which two shards of the
    axis hold a part moves to one of them."""
    height = -(-rows // shards) * shards
    return [
        lambda x: resized(x, -1, height * columns),
        lambda x: reshape(x, (*x.shape[:-1], height, columns)),
        lambda x: resized(x, -2, rows),
    ]


def as_vector(n: int, layout: Layout) -> list[Step]:
    """Return the inverse steps: they reshape the last two axes, of which the first is split, to one
    axis, and take its first `n` elements.

    layout: that of the result, with as many shards along its last axis as the rows have."""
    shards = layout.num_shards(len(layout.dims) - 1)
    return [
        lambda x: resized(x, -2, -(-x.shape[-2] // shards) * shards),
        lambda x: reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1])),
        lambda x: resized(x, -1, n),
        lambda x: relayout(x, layout),
    ]
