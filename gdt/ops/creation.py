"""Creating arrays: from the host, and by rule, each device making only its own shards."""

from __future__ import annotations

import math
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
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Shards
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
    "arange",
    "asarray",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "identity",
    "linspace",
    "ones",
    "ones_like",
    "tri",
    "tril",
    "triu",
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
        In several processes every one passes the whole value, and DistributedError tells where they
        differ; of the parts that processes have, `gdt.pack` makes an array.
    copy: None copies host memory, as True does; False lets the array share it where its layout
        allows, and then the caller must not write to it.

    >>> gdt.asarray([1, 2, 3]).dtype
    dtype('int64')
    """
    if isinstance(value, DistributedArray):
        moved = value if layout is None else relayout(value, layout)
        if dtype is not None and moved.dtype != checked_dtype(dtype, "asarray"):
            moved = moved.astype(dtype)
        return moved.copy() if copy else moved
    if layout is None and dtype is None and copy is not False:
        return as_operand(value, checked_layout(None, 0, "asarray").mesh, "asarray", "value")
    refuse_mask(value, "asarray", "value")
    wanted = None if dtype is None else checked_dtype(dtype, "asarray")
    mesh = layout.mesh if isinstance(layout, Layout) else get_default_mesh()
    try:
        whole = as_array(value, mesh, wanted)
    except (ValueError, TypeError) as e:
        raise error(ShapeError, "asarray", f"the value is no array: {e}") from None
    if whole.dtype.kind not in "biufc":
        raise error(DtypeError, "asarray", f"the value has dtype {whole.dtype}, which is no number")
    checked = checked_layout(layout, whole.ndim, "asarray")
    is_constant = isinstance(value, NUMBERS)
    return distribute(
        whole, checked, copy=copy is not False, given="asarray", is_constant=is_constant
    )


# ---------------------------------------------------------------- from indices


def shard_starts(array_type: ArrayType, grid: Sequence[int], dim: int) -> np.ndarray:
    """Global index along `dim` at which each shard of a block begins, shaped as its mesh axes; of
    shards that are all padding beyond the axis."""
    mesh, axes = array_type.mesh, array_type.layout.dims[dim]
    shard = np.zeros((1,) * mesh.ndim, np.int64)
    for a in axes:
        along = np.arange(mesh.box[a]) + grid[a] * mesh.box[a]
        shard = shard * mesh.sizes[a] + along.reshape(
            [-1 if k == a else 1 for k in range(mesh.ndim)]
        )
    return shard * array_type.local_shape[dim]


def _indices(array_type: ArrayType, grid: Sequence[int]) -> list[np.ndarray]:
    """For every array axis the global index of each element of a block, broadcastable to the block;
    padding repeats the last index."""
    found = []
    for d, (size, chunk) in enumerate(zip(array_type.shape, array_type.local_shape, strict=True)):
        start = shard_starts(array_type, grid, d)
        along = np.arange(chunk).reshape([-1 if k == d else 1 for k in range(array_type.ndim)])
        index = start.reshape(start.shape + (1,) * array_type.ndim) + along
        found.append(np.minimum(index, size - 1))
    return found


def made(
    array_type: ArrayType, make: Callable[[Any, Sequence[int]], Block], value: Any = None
) -> DistributedArray:
    """An array from `make(backend, grid)`: the block at that grid coordinate, in the layout of
    `kind` with nothing partial. value: what all elements are, for processes to compare."""
    resolved, backend = (
        array_type.with_layout(array_type.layout.resolved),
        backend_of(array_type.mesh),
    )
    blocks = []
    for i, grid in enumerate(array_type.mesh.blocks):
        with backend.on(array_type.mesh, i):
            blocks.append(make(backend, grid))
    (pended,) = run_routes([route(resolved, array_type.layout)], [blocks])
    if array_type.mesh.num_processes > 1:
        noted(lambda: note_made("", array_type, value))
    ran("constant", lambda: [pended], [], [pended])
    return DistributedArray(array_type, tuple(pended))


def from_indices(array_type: ArrayType, values: Callable[..., Any]) -> DistributedArray:
    """An array of `values(xp, *indices)`: a function of the global index along every axis."""
    resolved = array_type.with_layout(array_type.layout.resolved)

    def make(backend: Any, grid: Sequence[int]) -> Block:
        block = backend.empty(resolved.block_shape, array_type.dtype, resolved.memory_order)
        indices = [backend.asarray(i) for i in _indices(resolved, grid)]
        block[...] = values(backend.xp, *indices)
        return block

    return made(array_type, make)


def _kind(shape: Shape, dtype: Any, layout: Layout | None, name: str) -> ArrayType:
    sizes = checked_shape(shape, name)
    return ArrayType.of(sizes, checked_dtype(dtype, name), checked_layout(layout, len(sizes), name))


# ---------------------------------------------------------------- of one value


@public
def full(
    shape: Shape, fill_value: Any, dtype: Any = None, *, layout: Layout | None = None
) -> DistributedArray:
    """An array of that shape with every element `fill_value`, or an array broadcast to the shape.

    >>> gdt.full((2,), 7).tolist()
    [7, 7]
    """
    if isinstance(fill_value, DistributedArray) or np.ndim(fill_value):
        values = broadcast_to(asarray(fill_value, dtype), shape)
        return values if layout is None else relayout(values, layout)
    if not isinstance(fill_value, int | float | complex | np.generic | np.ndarray):
        raise error(ArgumentError, "full", f"fill_value is {shown_value(fill_value)}, no number")
    dtype = np.asarray(fill_value).dtype if dtype is None else dtype
    return _constant(_kind(shape, dtype, layout, "full"), fill_value)


def _constant(array_type: ArrayType, value: Any) -> DistributedArray:
    def make(backend: Any, grid: Sequence[int]) -> Block:
        block = backend.empty(array_type.block_shape, array_type.dtype, array_type.memory_order)
        block[...] = value
        return block

    return made(array_type, make, np.asarray(value))


@public
def zeros(shape: Shape, dtype: Any = float, *, layout: Layout | None = None) -> DistributedArray:
    """Zeros of that shape; float64 unless said otherwise, as in NumPy.

    >>> gdt.zeros(2).tolist()
    [0.0, 0.0]
    """
    return _constant(_kind(shape, dtype, layout, "zeros"), 0)


@public
def ones(shape: Shape, dtype: Any = float, *, layout: Layout | None = None) -> DistributedArray:
    """Ones of that shape; float64 unless said otherwise, as in NumPy.

    >>> gdt.ones((1, 2), dtype=int).tolist()
    [[1, 1]]
    """
    return _constant(_kind(shape, dtype, layout, "ones"), 1)


@public
def empty(shape: Shape, dtype: Any = float, *, layout: Layout | None = None) -> DistributedArray:
    """An array of that shape with unset elements: whatever recycled memory holds.

    >>> gdt.empty((2, 3)).shape
    (2, 3)
    """
    kind = _kind(shape, dtype, layout, "empty")
    if kind.dtype.kind == "b":  # a byte of recycled memory need not be a bool
        return _constant(kind, False)
    return made(
        kind, lambda backend, grid: backend.empty(kind.block_shape, kind.dtype, kind.memory_order)
    )


@public
def full_like(
    x: Any, fill_value: Any, dtype: Any = None, *, layout: Layout | None = None
) -> DistributedArray:
    """`full` in the shape, dtype and layout of `x`, with nothing partial.

    >>> gdt.full_like(gdt.zeros(2), 7).tolist()
    [7.0, 7.0]
    """
    return full(layout=_layout_like(x, layout), **_type_like(x, dtype), fill_value=fill_value)


@public
def zeros_like(x: Any, dtype: Any = None, *, layout: Layout | None = None) -> DistributedArray:
    """Zeros in the shape, dtype and layout of `x`, with nothing partial.

    >>> gdt.zeros_like(gdt.ones(2)).tolist()
    [0.0, 0.0]
    """
    return full_like(x, 0, dtype, layout=layout)


@public
def ones_like(x: Any, dtype: Any = None, *, layout: Layout | None = None) -> DistributedArray:
    """Ones in the shape, dtype and layout of `x`, with nothing partial.

    >>> gdt.ones_like(gdt.zeros(2)).tolist()
    [1.0, 1.0]
    """
    return full_like(x, 1, dtype, layout=layout)


@public
def empty_like(x: Any, dtype: Any = None, *, layout: Layout | None = None) -> DistributedArray:
    """`empty` in the shape, dtype and layout of `x`, with nothing partial.

    >>> gdt.empty_like(gdt.ones((2, 3))).shape
    (2, 3)
    """
    return empty(layout=_layout_like(x, layout), **_type_like(x, dtype))


def _type_like(x: Any, dtype: Any) -> dict[str, Any]:
    like = x if isinstance(x, DistributedArray) else np.asarray(x)
    return {"shape": like.shape, "dtype": like.dtype if dtype is None else dtype}


def _layout_like(x: Any, layout: Layout | None) -> Layout | None:
    return x.layout.resolved if layout is None and isinstance(x, DistributedArray) else layout


# ---------------------------------------------------------------- ranges


@public
def arange(
    start: Number,
    stop: Number | None = None,
    step: Number = 1,
    dtype: Any = None,
    *,
    layout: Layout | None = None,
) -> DistributedArray:
    """Evenly spaced numbers from `start` (0 if only one is given) up to, not including, `stop`.

    Values and dtype are NumPy's. Raises ShapeError for a step of 0 or bounds that are not finite,
    DtypeError for complex numbers.

    >>> gdt.arange(6, layout=gdt.Layout(["x"], gdt.create_mesh([("x", 2)]))).tolist()
    [0, 1, 2, 3, 4, 5]
    """
    bounds = (0, start) if stop is None else (start, stop)
    given = [_real_number(n, "arange") for n in (*bounds, step)]
    count = _count(*given)
    if dtype is None:
        dtype = np.arange(*(type(n)(i) for n, i in zip(given, (0, 0, 1), strict=True))).dtype
    kind = _kind(count, dtype, layout, "arange")
    if kind.dtype.kind == "b" and count > 2:
        raise error(DtypeError, "arange", f"a range of {count} elements is not of dtype bool")
    unit = np.result_type(kind.dtype, np.float32) if kind.dtype == np.float16 else kind.dtype
    # NumPy's steps are the difference of the first two elements, as they are in the dtype.
    first = np.asarray(given[0]).astype(kind.dtype)[()]
    second = np.asarray(given[0] + given[2]).astype(kind.dtype)[()] if count > 1 else first

    def values(xp: Any, i: Any) -> Any:
        if kind.dtype.kind == "b":
            return xp.where(i == 0, first, second)
        with np.errstate(over="ignore"):
            delta = unit.type(second) - unit.type(first)
        return xp.where(i == 1, second, (unit.type(first) + i.astype(unit) * delta))

    return from_indices(kind, values)


def _real_number(n: Any, name: str) -> Any:
    if isinstance(n, DistributedArray) and n.shape == ():
        n = n.numpy()[()]
    if isinstance(n, np.ndarray) and n.shape == ():
        n = n[()]
    if not isinstance(n, int | float | np.integer | np.floating | np.bool_):
        raise error(DtypeError, name, f"{n!r} is not a real number")
    return n


def _count(start: Any, stop: Any, step: Any) -> int:
    whole = all(isinstance(n, int | np.integer) for n in (start, stop, step))
    if step == 0:
        raise error(ShapeError, "arange", "the step is 0")
    if whole:
        return max(0, -((int(start) - int(stop)) // int(step)))
    length = (float(stop) - float(start)) / float(step)
    if not math.isfinite(length):
        raise error(ShapeError, "arange", f"no finite range from {start} to {stop} by {step}")
    return max(0, math.ceil(length))


@public
def linspace(
    start: Number,
    stop: Number,
    num: int = 50,
    endpoint: bool = True,
    dtype: Any = None,
    *,
    layout: Layout | None = None,
) -> DistributedArray:
    """`num` evenly spaced numbers from `start` to `stop`, which is the last one if `endpoint`.

    Values and dtype are NumPy's, for numbers `start` and `stop`.

    >>> gdt.linspace(0, 1, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if np.ndim(start) or np.ndim(stop):
        raise error(ShapeError, "linspace", "start and stop are numbers, not arrays of them")
    unit = np.result_type(np.asarray(start), np.asarray(stop), float(num))
    kind = _kind(num, unit if dtype is None else dtype, layout, "linspace")
    first, last = unit.type(start), unit.type(stop)
    parts = num - 1 if endpoint else num
    step = (last - first) / parts if parts > 0 else None

    def values(xp: Any, i: Any) -> Any:
        y = i.astype(unit)
        if step is None or step == 0:  # nothing to divide by, or a quotient that underflows
            y = (y if step is None else y / parts) * (last - first)
        else:
            y = y * step
        y = y + first
        if endpoint and num > 1:
            y = xp.where(i == num - 1, last, y)
        return xp.floor(y) if kind.dtype.kind in "iu" else y

    return from_indices(kind, values)


# ---------------------------------------------------------------- matrices


@public
def eye(
    n: int, m: int | None = None, k: int = 0, dtype: Any = float, *, layout: Layout | None = None
) -> DistributedArray:
    """An n x m matrix (square for None) with ones on the k-th diagonal above the main one.

    >>> gdt.eye(2, 3, k=1).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    kind = _kind((n, n if m is None else m), dtype, layout, "eye")
    return from_indices(kind, lambda xp, i, j: j - i == k)


@public
def identity(n: int, dtype: Any = float, *, layout: Layout | None = None) -> DistributedArray:
    """The n x n identity matrix.

    >>> gdt.identity(2, dtype=int).tolist()
    [[1, 0], [0, 1]]
    """
    return eye(n, dtype=dtype, layout=layout)


@public
def tri(
    n: int, m: int | None = None, k: int = 0, dtype: Any = float, *, layout: Layout | None = None
) -> DistributedArray:
    """An n x m matrix with ones on and below the k-th diagonal above the main one.

    >>> gdt.tri(2, 3, dtype=int).tolist()
    [[1, 0, 0], [1, 1, 0]]
    """
    kind = _kind((n, n if m is None else m), dtype, layout, "tri")
    return from_indices(kind, lambda xp, i, j: j - i <= k)


def _prepare_triangle(array_type: ArrayType, *, k: int = 0) -> dict[str, Any]:
    if array_type.ndim < 2:
        raise error(
            ShapeError,
            "tril, triu",
            f"rank {array_type.ndim} is not a matrix",
            operands={"x": array_type},
        )
    return {"k": int(k)}


def _diagonals(xp: Any, x: Block, shards: Shards) -> Block:
    """For every element of the last two axes, how far it is right of the main diagonal."""
    ones = (1,) * (x.ndim - shards.start["i"].ndim)
    rows, columns = (shards.start[f].reshape(shards.start[f].shape + ones) for f in ("i", "j"))
    return columns + xp.arange(x.shape[-1]) - (rows + xp.arange(x.shape[-2])[:, None])


@op("... i j -> ... i j", linear="x", prepare=_prepare_triangle)
def tril(xp: Any, x: Block, /, k: int = 0, *, shards: Shards = FROM_ENGINE) -> Block:
    """The lower triangle of matrices: zeros above the k-th diagonal above the main one.

    >>> gdt.tril([[1, 2], [3, 4]]).tolist()
    [[1, 0], [3, 4]]
    """
    return xp.where(_diagonals(xp, x, shards) <= k, x, xp.zeros((), x.dtype))


@op("... i j -> ... i j", linear="x", prepare=_prepare_triangle)
def triu(xp: Any, x: Block, /, k: int = 0, *, shards: Shards = FROM_ENGINE) -> Block:
    """The upper triangle of matrices: zeros below the k-th diagonal above the main one.

    >>> gdt.triu([[1, 2], [3, 4]]).tolist()
    [[1, 2], [0, 4]]
    """
    return xp.where(_diagonals(xp, x, shards) >= k, x, xp.zeros((), x.dtype))


tril.vjp(lambda g, out, x, k=0: tril(g, k=k))
triu.vjp(lambda g, out, x, k=0: triu(g, k=k))
