"""Create arrays from values of the host, or from a shape and a function of indices.

Where a function or one number gives the elements, each device makes only its own shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.arguments import shown_value
from gdt.array.array import DistributedArray
from gdt.array.operands import NUMBERS, as_operand, refuse_mask
from gdt.array.placing import checked_layout, distribute
from gdt.array.registry import public
from gdt.backend import as_array, backend_of
from gdt.comm.messages import note_made
from gdt.comm.relayout import run_routes
from gdt.errors import ArgumentError, DtypeError, ShapeError, error
from gdt.observe import noted, ran
from gdt.ops.elementwise import checked_dtype
from gdt.ops.movement import relayout
from gdt.ops.shapes import Shape, broadcast_to, checked_shape
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import get_default_mesh
from gdt.sharding.routes import route

__all__ = [
    "asarray",
    "empty",
    "empty_like",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]


Block = Any
Number = int | float | complex | np.generic

# ---------------------------------------------------------------- from the host


@public
def asarray(
    value: Any, dtype: Any = None, *, layout: Layout | None = None, copy: bool | None = None
) -> DistributedArray:
    """An array on a mesh from a NumPy array, a number, nested lists, or another distributed array.

    layout: how to split it; replicated on the default mesh if not given. A distributed array keeps
        its own layout.
        With several processes, every process passes the whole value, and DistributedError tells
        where the values differ. `gdt.pack` makes an array from parts that the processes have.
    copy: None and True copy host memory. False lets the array share that memory where the layout
        allows; then the caller must not write to it.

    Raises ShapeError for lists that are no array, DtypeError for elements that are no numbers and
    for masked arrays, LayoutError for a layout of another rank.

    >>> gdt.asarray([1, 2, 3]).dtype
    dtype('int64')
    """
    if isinstance(value, DistributedArray):
        x = value if layout is None else relayout(value, layout)
        if dtype is not None and x.dtype != checked_dtype(dtype, "asarray"):
            x = x.astype(dtype)
        return x.copy() if copy else x
    if layout is None and dtype is None and copy is not False:
        return as_operand(value, checked_layout(None, 0, "asarray").mesh, "asarray", "value")
    refuse_mask(value, "asarray", "value")
    target = None if dtype is None else checked_dtype(dtype, "asarray")
    mesh = layout.mesh if isinstance(layout, Layout) else get_default_mesh()
    try:
        whole = as_array(value, mesh, target)
    except (ValueError, TypeError) as e:
        raise error(ShapeError, "asarray", f"the value is no array: {e}") from None
    if whole.dtype.kind not in "biufc":
        raise error(DtypeError, "asarray", f"the value has dtype {whole.dtype}, which is no number")
    target_layout = checked_layout(layout, whole.ndim, "asarray")
    is_constant = isinstance(value, NUMBERS)
    return distribute(
        whole, target_layout, copy=copy is not False, given="asarray", is_constant=is_constant
    )


# ---------------------------------------------------------------- from indices


def shard_starts(array_type: ArrayType, grid: Sequence[int], dim: int) -> np.ndarray:
    """The global index along `dim` at which each shard of the block at `grid` begins, shaped as the
    block's mesh axes. Shards of padding alone begin beyond the end of the axis."""
    mesh, axes = array_type.mesh, array_type.layout.dims[dim]
    shard = np.zeros((1,) * mesh.ndim, np.int64)
    for a in axes:
        coordinates = np.arange(mesh.box[a]) + grid[a] * mesh.box[a]
        shard = shard * mesh.sizes[a] + coordinates.reshape(
            [-1 if k == a else 1 for k in range(mesh.ndim)]
        )
    return shard * array_type.local_shape[dim]


def _indices(array_type: ArrayType, grid: Sequence[int]) -> list[np.ndarray]:
    """The global indices of a block's elements along every axis; padding repeats the last index.

    The array for axis d has length 1 along all other axes but the mesh axes, so that the arrays
    broadcast to the block.
    """
    indices = []
    for d, (size, chunk) in enumerate(zip(array_type.shape, array_type.local_shape, strict=True)):
        start = shard_starts(array_type, grid, d)
        offsets = np.arange(chunk).reshape([-1 if k == d else 1 for k in range(array_type.ndim)])
        index = start.reshape(start.shape + (1,) * array_type.ndim) + offsets
        indices.append(np.minimum(index, size - 1))  # (mesh axes..., 1, ..., chunk, ..., 1)
    return indices


def from_blocks(
    array_type: ArrayType, make: Callable[[Any, Sequence[int]], Block], value: Any = None
) -> DistributedArray:
    """Make an array of `array_type` block by block.

    make: `make(backend, grid)` returns the block at grid coordinate `grid`, in the resolved layout
        of `array_type`.
    value: the number that all elements equal, if there is one; processes compare it.
    """
    resolved, backend = (
        array_type.with_layout(array_type.layout.resolved),
        backend_of(array_type.mesh),
    )
    blocks = []
    for i, grid in enumerate(array_type.mesh.blocks):
        with backend.on(array_type.mesh, i):
            blocks.append(make(backend, grid))
    (partial,) = run_routes([route(resolved, array_type.layout)], [blocks])
    if array_type.mesh.num_processes > 1:
        noted(lambda: note_made("", array_type, value))
    ran("constant", lambda: [partial], [], [partial])
    return DistributedArray(array_type, tuple(partial))


def from_indices(array_type: ArrayType, values: Callable[..., Any]) -> DistributedArray:
    """Make an array of `values(xp, *indices)`, a function of the global index along every axis."""
    resolved = array_type.with_layout(array_type.layout.resolved)

    def make(backend: Any, grid: Sequence[int]) -> Block:
        block = backend.empty(resolved.block_shape, array_type.dtype, resolved.memory_order)
        indices = [backend.asarray(i) for i in _indices(resolved, grid)]
        block[...] = values(backend.xp, *indices)
        return block

    return from_blocks(array_type, make)


def type_of_shape(shape: Shape, dtype: Any, layout: Layout | None, name: str) -> ArrayType:
    """The type of the array that the public function `name` makes of `shape`, `dtype` and `layout`.

    Raises ShapeError, DtypeError or LayoutError for an argument that does not fit.
    """
    sizes = checked_shape(shape, name)
    return ArrayType.of(sizes, checked_dtype(dtype, name), checked_layout(layout, len(sizes), name))


# ---------------------------------------------------------------- of one value


@public
def full(
    shape: Shape, fill_value: Any, dtype: Any = None, *, layout: Layout | None = None
) -> DistributedArray:
    """An array of that shape filled with a number, or with an array that broadcasts to the shape.

    The dtype is that of `fill_value` unless given. Raises ShapeError for an invalid shape or one to
    which `fill_value` does not broadcast, and ArgumentError for a value that is no number.

    >>> gdt.full((2,), 7).tolist()
    [7, 7]
    """
    if isinstance(fill_value, DistributedArray) or np.ndim(fill_value):
        values = broadcast_to(asarray(fill_value, dtype), shape)
        return values if layout is None else relayout(values, layout)
    if not isinstance(fill_value, int | float | complex | np.generic | np.ndarray):
        raise error(ArgumentError, "full", f"fill_value is {shown_value(fill_value)}, no number")
    dtype = np.asarray(fill_value).dtype if dtype is None else dtype
    return _constant(type_of_shape(shape, dtype, layout, "full"), fill_value)


def _constant(array_type: ArrayType, value: Any) -> DistributedArray:
    def make(backend: Any, grid: Sequence[int]) -> Block:
        block = backend.empty(array_type.block_shape, array_type.dtype, array_type.memory_order)
        block[...] = value
        return block

    return from_blocks(array_type, make, np.asarray(value))


@public
def zeros(shape: Shape, dtype: Any = float, *, layout: Layout | None = None) -> DistributedArray:
    """Zeros of that shape; float64 if no dtype is given, replicated if no layout is.

    Raises ShapeError for an invalid shape, DtypeError for a dtype that is no number.

    >>> gdt.zeros(2).tolist()
    [0.0, 0.0]
    """
    return _constant(type_of_shape(shape, dtype, layout, "zeros"), 0)


@public
def ones(shape: Shape, dtype: Any = float, *, layout: Layout | None = None) -> DistributedArray:
    """Ones of that shape; float64 if no dtype is given, replicated if no layout is.

    Raises ShapeError for an invalid shape, DtypeError for a dtype that is no number.

    >>> gdt.ones((1, 2), dtype=int).tolist()
    [[1, 1]]
    """
    return _constant(type_of_shape(shape, dtype, layout, "ones"), 1)


@public
def empty(shape: Shape, dtype: Any = float, *, layout: Layout | None = None) -> DistributedArray:
    """An array of that shape whose elements are not set: they hold whatever the memory held.

    Raises ShapeError for an invalid shape, DtypeError for a dtype that is no number.

    >>> gdt.empty((2, 3)).shape
    (2, 3)
    """
    array_type = type_of_shape(shape, dtype, layout, "empty")
    if array_type.dtype.kind == "b":  # a byte of recycled memory need not be a bool
        return _constant(array_type, False)
    return from_blocks(
        array_type,
        lambda backend, grid: backend.empty(
            array_type.block_shape, array_type.dtype, array_type.memory_order
        ),
    )


@public
def full_like(
    x: Any, fill_value: Any, dtype: Any = None, *, layout: Layout | None = None
) -> DistributedArray:
    """An array filled with `fill_value`, in the shape, dtype and resolved layout of `x`.

    dtype, layout: in place of those of `x`. Raises the errors of `gdt.full`.

    >>> gdt.full_like(gdt.zeros(2), 7).tolist()
    [7.0, 7.0]
    """
    return full(layout=_layout_like(x, layout), **_type_like(x, dtype), fill_value=fill_value)


@public
def zeros_like(x: Any, dtype: Any = None, *, layout: Layout | None = None) -> DistributedArray:
    """Zeros in the shape, dtype and resolved layout of `x`.

    dtype, layout: in place of those of `x`.

    >>> gdt.zeros_like(gdt.ones(2)).tolist()
    [0.0, 0.0]
    """
    return full_like(x, 0, dtype, layout=layout)


@public
def ones_like(x: Any, dtype: Any = None, *, layout: Layout | None = None) -> DistributedArray:
    """Ones in the shape, dtype and resolved layout of `x`.

    dtype, layout: in place of those of `x`.

    >>> gdt.ones_like(gdt.zeros(2)).tolist()
    [1.0, 1.0]
    """
    return full_like(x, 1, dtype, layout=layout)


@public
def empty_like(x: Any, dtype: Any = None, *, layout: Layout | None = None) -> DistributedArray:
    """An array whose elements are not set, in the shape, dtype and resolved layout of `x`.

    dtype, layout: in place of those of `x`.

    >>> gdt.empty_like(gdt.ones((2, 3))).shape
    (2, 3)
    """
    return empty(layout=_layout_like(x, layout), **_type_like(x, dtype))


def _type_like(x: Any, dtype: Any) -> dict[str, Any]:
    like = x if isinstance(x, DistributedArray) else np.asarray(x)
    return {"shape": like.shape, "dtype": like.dtype if dtype is None else dtype}


def _layout_like(x: Any, layout: Layout | None) -> Layout | None:
    return x.layout.resolved if layout is None and isinstance(x, DistributedArray) else layout
