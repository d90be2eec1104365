"""Taking elements by integer indices, and the sums that are its gradients.

An axis that indices point into may be split: each device looks up what it holds, and the result is
a partial sum; no table is gathered. The gradient adds into a table that is split as the table was.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.backend.numpy import order_in_memory
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Shards
from gdt.errors import ArgumentError, AxisError, DtypeError, ShapeError, error
from gdt.ops.lookup import (
    carrier_of,
    checked_axis,
    checked_indices,
    from_the_front,
    locate,
    scatter_add,
    strides_of,
)
from gdt.ops.movement import made_whole, relayout
from gdt.ops.reductions import unbroadcast
from gdt.ops.rows import gather_rows
from gdt.ops.shapes import reshape
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Layout
from gdt.sharding.rule import RuleSpec

__all__ = [
    "add_along_axis",
    "add_at",
    "one_hot",
    "take",
    "take_along_axis",
    "take_along_axis_in_range",
    "take_in_range",
]


Block = Any


# ---------------------------------------------------------------- take


def _names(letter: str, count: int) -> list[str]:
    return [f"{letter}{i}" for i in range(count)]


def _take_rule(x: ArrayType, indices: ArrayType, *, axis: int) -> str:
    dims, points = _names("d", x.ndim), _names("i", indices.ndim)
    operand = [*dims[:axis], "n", *dims[axis + 1 :]]
    out = [*dims[:axis], *points, *dims[axis + 1 :]]
    return f"{' '.join(operand)}, {' '.join(points)} -> {' '.join(out)}"


@op(_take_rule, linear="x", fill={"x": None})
def take_in_range(
    xp: Any, x: Block, indices: Block, /, axis: int, *, shards: Shards = FROM_ENGINE
) -> Block:
    """`gdt.take` with indices that are in range; they are not checked.

    axis: counted from the front.

    >>> gdt.take_in_range(gdt.asarray([5.0, 6.0, 7.0]), gdt.asarray([2, -3]), axis=0).tolist()
    [7.0, 5.0]
    """
    mesh_ndim = shards.start["n"].ndim
    at = mesh_ndim + axis
    if "n" not in shards.split and indices.shape[:mesh_ndim] == (1,) * mesh_ndim:
        row = from_the_front(xp, indices, shards.size["n"])
        return _rows(xp, x, row.reshape(row.shape[mesh_ndim:]), at)  # the same ones of every shard
    coordinates, row, mask = locate(xp, indices, shards, x.shape[at])
    if coordinates:
        # The mesh axes that split the table go in front of its rows, and become one with them.
        counts = [x.shape[a] for a in coordinates]
        for place, step in zip(
            coordinates.values(), strides_of([*counts, x.shape[at]]), strict=False
        ):
            row = row + place * step
        others = [d for d in range(at) if d not in coordinates]
        flat = [1 if d in coordinates else n for d, n in enumerate(x.shape)]
        flat[at] *= int(np.prod(counts))
        x = x.transpose(*others, *coordinates, *range(at, x.ndim)).reshape(flat)
    rows = xp.take(x, row, axis=at)  # (mesh axes of x, ..., mesh axes of indices, i, ...)
    pairs = [d for k in range(mesh_ndim) for d in (k, at + k)]
    rest = [d for d in range(rows.ndim) if d not in pairs]
    shape = [x.shape[k] * indices.shape[k] for k in range(mesh_ndim)]
    out = rows.transpose(*pairs, *rest).reshape(*shape, *(rows.shape[d] for d in rest))
    if mask is None:
        return out
    mask = mask.reshape(
        *mask.shape[:mesh_ndim], *(1,) * axis, *mask.shape[mesh_ndim:], *(1,) * (x.ndim - at - 1)
    )
    return xp.where(mask, out, _nothing(xp, out.dtype))


def _nothing(xp: Any, dtype: np.dtype) -> Block:
    """The number that a device adds to an element that another device holds: -0.0, since 0.0 would
    change -0.0."""
    zero: Any = {"f": -0.0, "c": complex(-0.0, -0.0)}.get(kind_of(dtype), 0)
    return xp.full((), zero, dtype)


def _rows(xp: Any, x: Block, row: Block, at: int) -> Block:
    """`x.take(row, axis=at)`; on the host in the order of memory that `x` has."""
    order = order_in_memory(x) if xp is np else None
    if order is None:
        return x.take(row, axis=at)
    rows = x.transpose(order).take(row, axis=order.index(at))
    # The axis `at` has become those of `row`: none, one, or several.
    places = [(a, i) for a in order for i in range(row.ndim if a == at else 1)]
    return rows.transpose([places.index(place) for place in sorted(places)])


def _add_at_rule(g: ArrayType, indices: ArrayType, carrier: ArrayType, *, axis: int) -> str:
    dims, points = _names("d", g.ndim - indices.ndim + 1), _names("i", indices.ndim)
    operand = [*dims[:axis], *points, *dims[axis + 1 :]]
    out = [*dims[:axis], "n", *dims[axis + 1 :]]
    return f"{' '.join(operand)}, {' '.join(points)}, n -> {' '.join(out)}"


@op(_add_at_rule, linear="g", fill={"carrier": None}, rounded="g")
def add_at(
    xp: Any, g: Block, indices: Block, carrier: Block, /, axis: int, *, shards: Shards = FROM_ENGINE
) -> Block:
    """Zeros to which each slice of `g` is added at its index along `axis`: the gradient of `take`.

    g: as `take` returns; indices: in range; carrier: (n,), an array of any values as long as the
    result's axis, which is split as it is. Indices that are split leave a partial sum.

    >>> zeros = gdt.zeros(3)
    >>> gdt.add_at(gdt.asarray([1.0, 2.0, 4.0]), gdt.asarray([2, 0, 2]), zeros, axis=0).tolist()
    [2.0, 0.0, 5.0]
    """
    mesh_ndim, chunk = shards.start["n"].ndim, carrier.shape[-1]
    at, stop = mesh_ndim + axis, mesh_ndim + axis + indices.ndim - mesh_ndim
    is_split = [
        indices.shape[k] > 1 for k in range(mesh_ndim)
    ]  # these coordinates are summed right here
    mesh = [
        1 if is_split[k] else max(g.shape[k], shards.start["n"].shape[k]) for k in range(mesh_ndim)
    ]
    shape = [*mesh, *g.shape[mesh_ndim:at], chunk, *g.shape[stop:]]
    strides = strides_of(shape)
    where = locate(xp, indices, shards, chunk)
    rows = where.offset * strides[at]
    for k, place in where.coordinates.items():
        rows = rows + place * strides[k]
    aligned = (
        *indices.shape[:mesh_ndim],
        *(1,) * axis,
        *indices.shape[mesh_ndim:],
        *(1,) * (g.ndim - stop),
    )
    mask = None if where.mask is None else where.mask.reshape(aligned)
    steps = [0 if is_split[k] else strides[k] for k in range(mesh_ndim)]
    steps += [*strides[mesh_ndim:at], *[0] * (stop - at), *strides[at + 1 :]]
    return scatter_add(xp, g, rows.reshape(aligned), mask, steps, shape)


take_in_range.vjp(
    lambda g, out, x, indices, *, axis: add_at(g, indices, carrier_of(x, axis), axis=axis), None
)
add_at.vjp(
    lambda c, out, g, indices, carrier, *, axis: take_in_range(c, indices, axis=axis), None, None
)


@public
def take(x: Any, indices: Any, axis: int | None = None) -> DistributedArray:
    """The elements of `x` at integer `indices` along `axis` (None: of the flattened array).

    x: (..., n, ...), indices: any shape, result: `indices.shape` in the place of axis n. Negative
    indices count from the end. A split axis is not gathered: each device takes what it holds, and
    the result is a partial sum.
    Raises IndexRangeError for an index out of range; on a GPU such an index takes the nearest
    element.

    >>> gdt.take(gdt.asarray([[1, 2], [3, 4], [5, 6]]), [2, 0], axis=0).tolist()
    [[5, 6], [1, 2]]
    """
    mesh_of = {"indices": indices} if isinstance(indices, DistributedArray) else {}
    x = as_operands("take", x=x, **mesh_of)[0]
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    axis = checked_axis(x.type, axis, "take")
    indices = checked_indices(x.type, indices, axis, "take")
    if not any(indices.layout.dims):  # the rows are not split either: tokens of an embedding
        result: DistributedArray = take_in_range(x, indices, axis=axis)
        return result
    return rows_at(x, indices, axis)


def rows_at(x: DistributedArray, indices: DistributedArray, axis: int) -> DistributedArray:
    """The slices of `x` at `indices`, in range, along `axis`, in the way that suits their number.

    Devices look few indices up in what they hold, and leave a partial sum. Of many, of which each
    has its share, they send each other the rows.
    """
    if _are_many(x.type, indices.type, axis):
        result: DistributedArray = gather_rows(x, indices, axis=axis)
    else:
        result = take_in_range(x, indices, axis=axis)
    return result


LARGE = 1 << 16  # bytes of a result from which it is worth another exchange to keep it split


@lru_cache(maxsize=1 << 12)
def _are_many(x: ArrayType, indices: ArrayType, axis: int) -> bool:
    """Whether each device sends its share of the indices to those that hold the rows."""
    axes = {*x.layout.dims[axis]}
    split_axes = {a for of in indices.layout.dims for a in of}
    if not axes or not indices.ndim or any(indices.layout.reductions) or split_axes - axes:
        return False
    count, size = math.prod(indices.shape), x.shape[axis]
    is_large = count * x.nbytes >= LARGE * size
    return bool(split_axes) or (is_large and count * x.layout.shard_counts[axis] >= size)


# ---------------------------------------------------------------- take along an axis


def _along_rule(x: ArrayType, indices: ArrayType, *, axis: int) -> RuleSpec:
    both = _broadcast_dims(x, indices, axis)
    return RuleSpec(f"{_along(x, both, axis, 'n')}, {_along(indices, both, axis, 'm')} -> "
                    f"{_along(None, both, axis, 'm')}", both)  # fmt: skip


def _broadcast_dims(x: ArrayType, indices: ArrayType, axis: int) -> dict[str, int]:
    """Names and sizes of the dims other than `axis`."""
    pairs = zip(_names("d", x.ndim), x.shape, indices.shape, strict=True)
    return {d: b if a == 1 else a for i, (d, a, b) in enumerate(pairs) if i != axis}


def _along(array_type: ArrayType | None, dims: dict[str, int], axis: int, name: str) -> str:
    term: list[str] = []
    for d in _names("d", len(dims) + 1):
        whole = array_type is None or d not in dims or array_type.shape[len(term)] == dims[d]
        term.append(name if d not in dims else d if whole else "1")
    return " ".join(term)


@op(_along_rule, linear="x", fill={"x": None})
def take_along_axis_in_range(
    xp: Any, x: Block, indices: Block, /, axis: int, *, shards: Shards = FROM_ENGINE
) -> Block:
    """`gdt.take_along_axis` with indices that are in range; they are not checked.

    axis: counted from the front.

    >>> x, at = gdt.asarray([[1, 2], [3, 4]]), gdt.asarray([[1], [-2]])
    >>> gdt.take_along_axis_in_range(x, at, axis=1).tolist()
    [[2], [3]]
    """
    mesh_ndim = shards.start["n"].ndim
    at = mesh_ndim + axis
    coordinates, offset, mask = locate(xp, indices, shards, x.shape[at])
    index: list[Any] = []
    for d, count in enumerate(x.shape):
        grid = xp.arange(count).reshape((count,) + (1,) * (x.ndim - 1 - d))
        index.append(offset if d == at else coordinates.get(d, grid))
    out = x[tuple(index)]
    return out if mask is None else xp.where(mask, out, _nothing(xp, out.dtype))


def _add_along_rule(g: ArrayType, indices: ArrayType, carrier: ArrayType, *, axis: int) -> RuleSpec:
    both = _broadcast_dims(g, indices, axis)
    terms = [_along(g, both, axis, "m"), _along(indices, both, axis, "m"), "n"]
    return RuleSpec(f"{', '.join(terms)} -> {_along(None, both, axis, 'n')}", both)


@op(_add_along_rule, linear="g", fill={"carrier": None}, rounded="g")
def add_along_axis(
    xp: Any, g: Block, indices: Block, carrier: Block, /, axis: int, *, shards: Shards = FROM_ENGINE
) -> Block:
    """Zeros to which each element of `g` is added at its index along `axis`: the gradient of
    `take_along_axis`.

    g: as `take_along_axis` returns; indices: in range, broadcast against it; carrier: (n,), an
    array of any values as long as the result's axis, which is split as it is.

    >>> g, at = gdt.asarray([[1.0, 2.0], [4.0, 8.0]]), gdt.asarray([[0, 0], [2, 1]])
    >>> gdt.add_along_axis(g, at, gdt.zeros(3), axis=1).tolist()
    [[3.0, 0.0, 0.0], [0.0, 8.0, 4.0]]
    """
    start, chunk = shards.start["n"].shape, carrier.shape[-1]
    mesh_ndim = len(start)
    at = mesh_ndim + axis
    where = locate(xp, indices, shards, chunk)
    shape = list(np.broadcast_shapes(g.shape, indices.shape))
    g = xp.broadcast_to(g, shape)
    summed = [shards.start["m"].shape[k] > 1 for k in range(mesh_ndim)]  # summed right here
    shape = [
        1 if d < mesh_ndim and summed[d] else max(n, start[d]) if d < mesh_ndim else n
        for d, n in enumerate(shape)
    ]
    shape[at] = chunk
    strides = strides_of(shape)
    rows = where.offset * strides[at]
    for k, place in where.coordinates.items():
        rows = rows + place * strides[k]
    steps = [0 if d == at or (d < mesh_ndim and summed[d]) else s for d, s in enumerate(strides)]
    return scatter_add(xp, g, rows, where.mask, steps, shape)


take_along_axis_in_range.vjp(
    lambda g, out, x, indices, *, axis: unbroadcast(
        add_along_axis(g, indices, carrier_of(x, axis), axis=axis), x
    ),
    None,
)
add_along_axis.vjp(
    lambda c, out, g, indices, carrier, *, axis: unbroadcast(
        take_along_axis_in_range(c, indices, axis=axis), g
    ),
    None,
    None,
)


@public
def take_along_axis(x: Any, indices: Any, axis: int | None = -1) -> DistributedArray:
    """Along `axis`, the elements of `x` at `indices`, which differ from row to row.

    x: (..., n, ...), indices: (..., m, ...), result: (..., m, ...); the other axes broadcast. None:
    of the flattened arrays. A split axis is not gathered: another axis is split in its place, by an
    all-to-all, if one is long enough and elements are many; else the result is a partial sum.
    Raises IndexRangeError for an index out of range, as `take` does.

    >>> gdt.take_along_axis(gdt.asarray([[1, 2], [3, 4]]), [[1], [0]], axis=1).tolist()
    [[2], [3]]
    """
    x, indices = as_operands("take_along_axis", x=x, indices=indices)
    if axis is None:
        x, indices, axis = reshape(x, (x.size,)), reshape(indices, (indices.size,)), 0
    axis = checked_axis(x.type, axis, "take_along_axis")
    fits = x.ndim == indices.ndim and all(
        i == axis or n == m or 1 in (n, m)
        for i, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True))
    )
    if not fits:
        raise error(
            ShapeError,
            "take_along_axis",
            f"x and indices do not have the same rank and sizes that broadcast beside axis {axis}",
            operands={"x": x.type, "indices": indices.type},
        )
    indices = checked_indices(x.type, indices, axis, "take_along_axis")
    if x.ndim == 1:  # what differs from row to row is an index like any other
        return rows_at(x, indices, 0)
    if indices.size * x.layout.num_shards(axis) >= x.size:
        x, indices = _beside(x, indices, axis)
    result: DistributedArray = take_along_axis_in_range(x, indices, axis=axis)
    return result


def _beside(
    x: DistributedArray, indices: DistributedArray, axis: int
) -> tuple[DistributedArray, DistributedArray]:
    """Both arrays with the mesh axes that split `axis` of `x` moved to another axis, if that is
    long enough."""
    whole = made_whole(x, axis)
    if whole is None or whole is x:
        return x, indices
    dims = [axes if n > 1 else () for axes, n in zip(whole.layout.dims, indices.shape, strict=True)]
    return whole, relayout(indices, Layout.of(indices.mesh, tuple(dims)))


# ---------------------------------------------------------------- one-hot


def _prepare_one_hot(
    array_type: ArrayType, *, depth: int, axis: int = -1, dtype: Any = float
) -> dict[str, Any]:
    if array_type.dtype.kind not in "iu":
        raise error(
            DtypeError,
            "one_hot",
            f"indices have dtype {array_type.dtype}",
            operands={"indices": array_type},
        )
    if isinstance(depth, bool) or not isinstance(depth, int | np.integer) or depth < 0:
        raise error(ArgumentError, "one_hot", f"depth is {depth!r}; it is an int of at least 0")
    rank = array_type.ndim + 1
    if not isinstance(axis, int | np.integer) or not -rank <= axis < rank:
        raise error(
            AxisError,
            "one_hot",
            f"axis {axis} is out of range for rank {rank}",
            operands={"indices": array_type},
        )
    return {
        "depth": int(depth),
        "axis": int(axis) % rank - rank,
        "dtype": np.dtype(dtype).newbyteorder("="),
    }


def _one_hot_rule(array_type: ArrayType, *, depth: int, axis: int, dtype: Any) -> RuleSpec:
    dims = _names("d", array_type.ndim)
    at = axis + array_type.ndim + 1
    return RuleSpec(f"{' '.join(dims)} -> {' '.join([*dims[:at], 'n', *dims[at:]])}", {"n": depth})


@op(_one_hot_rule, prepare=_prepare_one_hot)
def one_hot(xp: Any, indices: Block, /, depth: int, axis: int = -1, dtype: Any = float) -> Block:
    """1 where the position along the new axis `axis` is the index, 0 elsewhere.

    indices: integers, (...); result: (..., depth) for the default axis. An index outside
    `0 <= i < depth` gives zeros. Follows `tf.one_hot`; the dtype is float64 unless said otherwise.

    >>> gdt.one_hot(gdt.asarray([1, 0]), 3, dtype="float32").tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    places = xp.arange(depth).reshape((depth,) + (1,) * (-axis - 1))
    return (xp.expand_dims(indices, axis) == places).astype(dtype)
