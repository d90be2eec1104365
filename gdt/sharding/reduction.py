"""The reductions that an array may wait for: how two values combine, and what changes nothing.

A NaN stays a NaN in all of them; NumPy's maximum and minimum carry it through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
"""NumPy's ufunc of each reduction; arrays of other backends bring their own under its name."""

IDEMPOTENT = ("max", "min")
"""Reductions in which a value that is there twice counts as it does once."""


def reducer(xp: Any, reduction: str) -> Callable[[Any, tuple[int, ...]], Any]:
    """A function `(x, axes)` that reduces `x` over axes, which stay with length 1, in its dtype."""
    if xp is not np and reduction in IDEMPOTENT:  # CuPy's `maximum` and `minimum` have no `reduce`
        return lambda x, axes: getattr(x, reduction)(axis=axes, keepdims=True)
    ufunc = getattr(xp, UFUNCS[reduction].__name__)
    return lambda x, axes: ufunc.reduce(x, axis=axes, dtype=x.dtype, keepdims=True)


def identity(reduction: str, dtype: np.dtype) -> Any:
    """The value that changes nothing in a reduction: of sums of floats -0.0, since 0.0 makes 0.0 of
    -0.0.

    >>> [float(identity("sum", np.dtype(float))), int(identity("max", np.dtype("int8")))]
    [-0.0, -128]
    """
    if reduction == "sum":
        return {"f": -0.0, "c": complex(-0.0, -0.0)}.get(dtype.kind, 0)
    if reduction == "prod":
        return 1
    lowest = reduction == "max"
    if dtype.kind == "b":
        return not lowest
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if lowest else np.iinfo(dtype).max
    return -np.inf if lowest else np.inf
