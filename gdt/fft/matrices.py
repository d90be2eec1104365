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
    """Return the number of rows of a matrix that holds `n` elements, and of which rows and columns
    fill the shards with little padding; 0 if `n` has no such divisor.

    Of divisors with equal padding, the largest makes rows and columns about as many."""
    best, rows = (MOST_WASTE, 0), 0
    for divisor in range(shards, math.isqrt(n) + 1):
        if n % divisor == 0:
            lengths = (divisor, n // divisor)
            waste = math.prod(-(-length // shards) * shards / length for length in lengths)
            if (waste, -divisor) <= best:
                best, rows = (waste, -divisor), divisor
    return rows


def as_matrix(rows: int, columns: int, shards: int) -> list[Step]:
    """Return the steps that reshape the last axis to (rows, columns), with the rows split over as
    many shards as that axis. Of a row on the border of two shards, one shard gets the elements of
    the other."""
    height = -(-rows // shards) * shards
    return [
        lambda x: resized(x, -1, height * columns),
        lambda x: reshape(x, (*x.shape[:-1], height, columns)),
        lambda x: resized(x, -2, rows),
    ]


def as_vector(n: int, layout: Layout) -> list[Step]:
    """Return the steps that reshape the last two axes to one and take its first n elements, in a
    layout that splits that axis as it splits the first of the two."""
    shards = layout.num_shards(len(layout.dims) - 1)
    return [
        lambda x: resized(x, -2, -(-x.shape[-2] // shards) * shards),
        lambda x: reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1])),
        lambda x: resized(x, -1, n),
        lambda x: relayout(x, layout),
    ]
