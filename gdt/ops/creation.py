"""Creating arrays: from the host, and by rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array import DistributedArray, checked_layout, place
from gdt.errors import DtypeError, ShapeError, error
from gdt.layout import ArrayType, Layout
from gdt.op import as_operand, public
from gdt.backend import backend_of
from gdt.ops.movement import relayout
from gdt.ops.shapes import Shape, checked_shape


@public
def asarray(
    value: Any, dtype: Any = None, *, layout: Layout | None = None, copy: bool | None = None
) -> DistributedArray:
    """An array on a mesh from a NumPy array, a number, nested lists, or another distributed array.

    layout: how to split it; replicated on the default mesh if not given. A distributed array keeps its
        own layout.
    copy: None copies host memory, as True does; False lets the array share it where its layout allows,
        and then the caller must not write to it.

    >>> gdt.asarray([1, 2, 3]).dtype
    dtype('int64')
    """
    if isinstance(value, DistributedArray):
        moved = value if layout is None else relayout(value, layout)
        moved = moved if dtype is None or moved.dtype == np.dtype(dtype) else moved.astype(dtype)
        return moved.copy() if copy else moved
    if layout is None and dtype is None and copy is not False:
        return as_operand(value, checked_layout(None, 0, "asarray").mesh, "asarray", "value")
    try:
        whole = np.asarray(value, dtype)
    except (ValueError, TypeError) as e:
        raise error(ShapeError, "asarray", f"the value is no array: {e}") from None
    if whole.dtype.kind not in "biufc":
        raise error(DtypeError, "asarray", f"the value has dtype {whole.dtype}, which is no number")
    return place(whole, checked_layout(layout, whole.ndim, "asarray"), copy=copy is not False)


@public
def full(shape: Shape, fill_value: Any, dtype: Any = None, *, layout: Layout | None = None) -> DistributedArray:
    """An array of that shape with every element `fill_value`.

    >>> gdt.full((2,), 7).tolist()
    [7, 7]
    """
    sizes = checked_shape(shape, "full")
    layout = checked_layout(layout, len(sizes), "full")
    kind = ArrayType.of(sizes, np.dtype(dtype) if dtype is not None else np.asarray(fill_value).dtype, layout)
    blocks = []
    for grid in layout.mesh.blocks:
        block = backend_of(layout.mesh).empty(kind.block_shape, kind.dtype)
        held = all(not (p in ("sum", "prod") and c) for p, c in zip(layout.pending, grid, strict=True))
        block[...] = fill_value if held else 0 if "sum" in layout.pending else 1
        blocks.append(block)
    return DistributedArray(kind, tuple(blocks))


@public
def zeros(shape: Shape, dtype: Any = float, *, layout: Layout | None = None) -> DistributedArray:
    """Zeros of that shape; float64 unless said otherwise, as in NumPy."""
    return full(shape, 0, dtype, layout=layout)


@public
def ones(shape: Shape, dtype: Any = float, *, layout: Layout | None = None) -> DistributedArray:
    """Ones of that shape; float64 unless said otherwise, as in NumPy."""
    return full(shape, 1, dtype, layout=layout)


@public
def full_like(x: DistributedArray, fill_value: Any, dtype: Any = None, *, layout: Layout | None = None) -> DistributedArray:
    """`full` in the shape, dtype and layout of `x`."""
    return full(x.shape, fill_value, dtype or x.dtype, layout=layout or x.layout.resolved)


@public
def zeros_like(x: DistributedArray, dtype: Any = None, *, layout: Layout | None = None) -> DistributedArray:
    """Zeros in the shape, dtype and layout of `x`."""
    return full_like(x, 0, dtype, layout=layout)


@public
def ones_like(x: DistributedArray, dtype: Any = None, *, layout: Layout | None = None) -> DistributedArray:
    """Ones in the shape, dtype and layout of `x`."""
    return full_like(x, 1, dtype, layout=layout)
