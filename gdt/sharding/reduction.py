"""The four reductions that can be partial: their ufuncs and their identities.

A NaN stays a NaN in all of them; NumPy's maximum and minimum carry it through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.sharding.dtypes import kind_of

UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
"""NumPy's ufunc of each reduction; arrays of other backends bring their own under its name."""

IDEMPOTENT = ("max", "min")
"""Reductions whose result does not change when a value takes part twice."""


def reducer(xp: Any, reduction: str) -> Callable[[Any, tuple[int, ...]], Any]:
    """Return a function `(x, axes)` that reduces `x` over `axes` in its dtype.

    The reduced axes keep the length 1. xp: the array namespace of `x`, NumPy or CuPy.
    """
    if xp is not np and reduction in IDEMPOTENT:  # CuPy's `maximum` and `minimum` have no `reduce`
        return lambda x, axes: getattr(x, reduction)(axis=axes, keepdims=True)
    ufunc = getattr(xp, UFUNCS[reduction].__name__)
    return lambda x, axes: ufunc.reduce(x, axis=axes, dtype=x.dtype, keepdims=True)


def combiner(xp: Any, reduction: str) -> Callable[[Any, tuple[int, ...]], Any]:
    """Return a function `(x, axes)` that reduces `x`, as `reducer` does, over those of `axes` whose
    length is not 1 already: the sum of -0.0 alone would be 0.0."""
    reduce = reducer(xp, reduction)

    def combine(x: Any, axes: tuple[int, ...]) -> Any:
        long = tuple([a for a in axes if x.shape[a] != 1])
        return reduce(x, long) if long else x

    return combine


def identity(reduction: str, dtype: np.dtype) -> Any:
    """Return the value that leaves every other value of `dtype` unchanged in `reduction`.

    For sums of floats that is -0.0, since 0.0 + -0.0 is 0.0.

    >>> [float(identity("sum", np.dtype(float))), int(identity("max", np.dtype("int8")))]
    [-0.0, -128]
    """
    if reduction == "sum":
        return {"f": -0.0, "c": complex(-0.0, -0.0)}.get(kind_of(dtype), 0)
    if reduction == "prod":
        return 1
    lowest = reduction == "max"
    if dtype.kind == "b":
        return not lowest
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if lowest else np.iinfo(dtype).max
    return -np.inf if lowest else np.inf
