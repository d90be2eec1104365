"""Reductions of NumPy's dtypes as those that NCCL has, with NumPy's results.

NCCL has no bool, 16-bit integers or complex numbers, and its max and min lose NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Block = Any

LOGICAL = {"sum": "max", "prod": "min", "max": "max", "min": "min"}  # of bools, as numbers


class Encoding(NamedTuple):
    """The way in which NCCL reduces a dtype: encode it as another dtype, reduce that, decode."""

    encode: Callable[[Block], Block]
    reduction: str
    decode: Callable[[Block], Block]


def encoding(xp: Any, dtype: np.dtype, reduction: str) -> Encoding | None:
    """The encoding with which NCCL reduces blocks of `dtype` as NumPy does; None if it cannot."""
    if dtype.kind == "b":
        return Encoding(lambda x: x.view(np.uint8), LOGICAL[reduction], lambda x: x.view(np.bool_))
    if dtype.kind == "c":
        parts = np.dtype(f"f{dtype.itemsize // 2}")
        if reduction != "sum":
            return None
        return Encoding(lambda x: x.view(parts), "sum", lambda x: x.view(dtype))
    if dtype.kind in "iu":
        # Sums and products that wrap around do so in the same way when they are narrowed later.
        wide = np.dtype(f"{dtype.kind}4") if dtype.itemsize == 2 else dtype
        return Encoding(
            lambda x: x.astype(wide, copy=False), reduction, lambda x: x.astype(dtype, copy=False)
        )
    if reduction in ("sum", "prod"):
        return Encoding(lambda x: x, reduction, lambda x: x)
    wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    return Encoding(
        lambda x: ordered(xp, x.astype(wide, copy=False), reduction),
        reduction,
        lambda x: unordered(xp, x, wide).astype(dtype, copy=False),
    )


def ordered(xp: Any, x: Block, reduction: str) -> Block:
    """Floating-point numbers as integers of the same order, NaN as the largest of a maximum and
    the smallest of a minimum: NCCL's max and min lose NaN."""
    kind = np.dtype(f"i{x.dtype.itemsize}")
    limits = np.iinfo(kind)
    bits = x.view(kind)
    bits = xp.where(bits < 0, bits ^ kind.type(limits.max), bits)
    first = kind.type(limits.max if reduction == "max" else limits.min)
    return xp.where(xp.isnan(x), first, bits)


def unordered(xp: Any, bits: Block, dtype: np.dtype) -> Block:
    """The inverse of `ordered`: the largest and the smallest integer have the bits of a NaN."""
    highest = bits.dtype.type(np.iinfo(bits.dtype).max)
    return xp.where(bits < 0, bits ^ highest, bits).view(dtype)
