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
from gdt.array.output import into
from gdt.array.registry import public
from gdt.backend.numpy import order_in_memory
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Shards
from gdt.errors import ArgumentError, DtypeError, error
from gdt.ops.axes import checked_axis, dim_names
from gdt.ops.lookup import (
    along_axis_or_flat,
    carrier_of,
    checked_indices,
    from_the_front,
    locate,
    scatter_add,
    strides_of,
)
from gdt.ops.movement import relayout
from gdt.ops.rows import gather_rows
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Layout
from gdt.sharding.routes import route_bytes
from gdt.sharding.rule import RuleSpec
from gdt.sharding.strategy import choose

__all__ = [
    "add_at",
    "one_hot",
    "take",
    "take_in_range",
]


Block = Any


# ---------------------------------------------------------------- take


def _take_rule(x: ArrayType, indices: ArrayType, *, axis: int) -> str:
    dims, points = dim_names("d", x.ndim), dim_names("i", indices.ndim)
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
    return xp.where(mask, out, neutral_number(xp, out.dtype))


def neutral_number(xp: Any, dtype: np.dtype) -> Block:
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
    dims, points = dim_names("d", g.ndim - indices.ndim + 1), dim_names("i", indices.ndim)
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
    lambda g, out, x, indices, *, axis: add_at(g, indices, carrier_of(x, axis), axis=axis),
    None,
    reads="indices",
)
add_at.vjp(
    lambda c, out, g, indices, carrier, *, axis: take_in_range(c, indices, axis=axis), None, None
)


@public
def take(
    x: Any,
    indices: Any,
    axis: int | None = None,
    out: DistributedArray | None = None,
    mode: str = "raise",
) -> DistributedArray:
    """The elements of `x` at integer `indices` along `axis` (None: of the flattened array).

    x: (..., n, ...), indices: any shape, result: `indices.shape` in the place of axis n. Negative
    indices count from the end. A split axis is not gathered: each device takes what it holds, and
    the result is a partial sum.
    mode: "raise", "wrap" or "clip": what becomes of an index out of range; "raise" raises
    IndexRangeError, but on a GPU such an index takes the nearest element.

    >>> gdt.take(gdt.asarray([[1, 2], [3, 4], [5, 6]]), [2, 0], axis=0).tolist()
    [[5, 6], [1, 2]]
    """
    if mode != "raise":
        indices = _in_range(x, indices, axis, mode)
    taken = take_at("take", x, indices, axis)
    return taken if out is None else into(out, "take", taken)


def _in_range(x: Any, indices: Any, axis: int | None, mode: str) -> Any:
    """The indices, of which those out of range are counted on from the other end, or are made that
    of the first or the last element."""
    if mode not in ("wrap", "clip"):
        raise error(ArgumentError, f"mode is {mode!r}, none of 'raise', 'wrap' and 'clip'")
    shape = np.shape(x)
    size = math.prod(shape) if axis is None or not shape else shape[axis]
    if not isinstance(indices, DistributedArray):
        indices = np.asarray(indices)
    if indices.dtype.kind not in "iu" or not size:
        return indices  # `take` says what is wrong with them
    return indices % size if mode == "wrap" else indices.clip(0, size - 1)


def take_at(
    name: str, x: Any, indices: Any, axis: int | None, *, negative: bool = True
) -> DistributedArray:
    """`take` for the function called `name`. negative: whether indices may count from the end."""
    mesh_of = {"indices": indices} if isinstance(indices, DistributedArray) else {}
    x = as_operands(name, x=x, **mesh_of)[0]
    x, axis = along_axis_or_flat(x, axis, takes_rank_0=True)
    indices = checked_indices(x.type, indices, axis, name, negative=negative)
    if not any(indices.layout.dims):  # the rows are not split either: tokens of an embedding
        return take_in_range(x, indices, axis=axis)
    return rows_at(x, indices, axis)


def rows_at(x: DistributedArray, indices: DistributedArray, axis: int) -> DistributedArray:
    """The slices of `x` at `indices`, in range, along `axis`, in the way that suits their number.

    Devices look few indices up in what they hold, and leave a partial sum. Of many, of which each
    has its share, they send each other the rows; and where the other axes of `x` are split as the
    indices are, `x` is split along its rows first, if that sends less than to gather either.
    """
    if (layout := _in_rows(x.type, indices.type, axis)) is not None:
        x = relayout(x, layout)
    if _are_many(x.type, indices.type, axis):
        result = gather_rows(x, indices, axis=axis)
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


@lru_cache(maxsize=1 << 12)
def _in_rows(x: ArrayType, indices: ArrayType, axis: int) -> Layout | None:
    """Return the layout of `x` in which devices send each other its rows, where `x` is split along
    other axes than `axis` over the mesh axes that split the indices; None where that sends no less
    than what `take_in_range` moves."""
    have, mesh = x.layout, x.mesh
    axes = tuple(a for of in indices.layout.dims for a in of)
    if not axes or have.dims[axis] or not have.split_axes.issuperset(axes):
        return None
    if not x.shape[axis] or any(have.reductions) or any(indices.layout.reductions):
        return None
    dims = [tuple(a for a in of if a not in axes) for of in have.dims]
    dims[axis] = axes
    in_rows = Layout.of(mesh, tuple(dims))
    taken = math.prod(indices.shape) * x.nbytes // x.shape[axis]  # bytes of the result
    copies = math.prod(n for a, n in enumerate(mesh.sizes) if a not in in_rows.split_axes)
    sent = route_bytes(x, in_rows) + copies * taken
    rule, sizes, _ = take_in_range.declaration.bound_rule((x, indices), {"axis": axis})
    return in_rows if sent < choose(rule, (x, indices), sizes).nbytes else None


# ---------------------------------------------------------------- one-hot


def _prepare_one_hot(
    array_type: ArrayType, *, depth: int, axis: int = -1, dtype: Any = float
) -> dict[str, Any]:
    if array_type.dtype.kind not in "iu":
        raise error(
            DtypeError,
            f"indices have dtype {array_type.dtype}",
            operands={"indices": array_type},
        )
    if isinstance(depth, bool) or not isinstance(depth, int | np.integer) or depth < 0:
        raise error(ArgumentError, f"depth is {depth!r}; it is an int of at least 0")
    rank = array_type.ndim + 1
    return {
        "depth": int(depth),
        "axis": checked_axis(array_type, axis, rank) - rank,
        "dtype": np.dtype(dtype).newbyteorder("="),
    }


def _one_hot_rule(array_type: ArrayType, *, depth: int, axis: int, dtype: Any) -> RuleSpec:
    dims = dim_names("d", array_type.ndim)
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
