"""Sliding windows, under the name that NumPy has for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public_of
from gdt.array.views import shown, view_step
from gdt.errors import ArgumentError, ShapeError, error
from gdt.functions.differences import along
from gdt.ops.axes import checked_axes
from gdt.ops.indexing import getitem
from gdt.ops.joining import stack


@public_of("lib.stride_tricks")
def sliding_window_view(
    x: Any, window_shape: int | Sequence[int], axis: int | Sequence[int] | None = None
) -> DistributedArray:
    """The windows of `x` along `axis` (None: all axes), each along a new last axis; a read-only
    view, which shows what is written to `x`, in memory of its own.

    window_shape: the length of the windows along each of the axes. A split axis stays split, and
    devices exchange edges. Raises ShapeError for windows longer than their axis, ArgumentError for
    another number of lengths.

    >>> gdt.lib.stride_tricks.sliding_window_view(gdt.arange(4), 3).tolist()
    [[0, 1, 2], [1, 2, 3]]
    """
    (x,) = as_operands("sliding_window_view", x=x)
    out = _windows(x, window_shape, axis)
    windows = [n if isinstance(n, int) or n is None else tuple(n) for n in (window_shape, axis)]
    return out if out is x else shown(x, out, (("sliding_window_view", tuple(windows)),))


def _windows(
    x: DistributedArray, window_shape: int | Sequence[int], axis: int | Sequence[int] | None
) -> DistributedArray:
    one = isinstance(window_shape, int | np.integer)
    lengths = (int(window_shape),) if one else tuple(window_shape)  # type: ignore[arg-type]
    axes = checked_axes(x.type, axis)
    if len(axes) != len(lengths):
        problem = f"{len(lengths)} lengths of windows do not fit {len(axes)} axes"
        raise error(ArgumentError, problem, operands={"x": x.type})
    windows = x
    for at, length in zip(axes, lengths, strict=True):
        size = windows.shape[at]
        if not 0 <= length <= size:
            problem = f"a window of {length} does not fit axis {at} of {size} elements"
            raise error(ShapeError, problem, operands={"x": x.type})
        number = size - length + 1
        shifted = [
            getitem(windows, along(windows.ndim, at, slice(i, i + number))) for i in range(length)
        ]
        if not shifted:
            raise error(ShapeError, "a window of 0 elements")
        windows = stack(shifted, axis=-1)
    return windows


view_step(
    "sliding_window_view",
    lambda x, windows: _windows(x, *windows),
    None,
    lambda x, windows: np.lib.stride_tricks.sliding_window_view(x, *windows),
)
