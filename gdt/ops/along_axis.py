"""Elements of each row at indices of its own: `take_along_axis`, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Shards
from gdt.errors import ShapeError, error
from gdt.ops.axes import dim_names
from gdt.ops.lookup import (
    along_axis_or_flat,
    carrier_of,
    checked_indices,
    locate,
    scatter_add,
    strides_of,
)
from gdt.ops.movement import made_whole, relayout
from gdt.ops.reductions import unbroadcast
from gdt.ops.taking import neutral_number, rows_at
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.rule import RuleSpec

__all__ = [
    "add_along_axis",
    "take_along_axis",
    "take_along_axis_in_range",
]


Block = Any


def _along_rule(x: ArrayType, indices: ArrayType, *, axis: int) -> RuleSpec:
    both = _broadcast_dims(x, indices, axis)
    return RuleSpec(f"{_along(x, both, axis, 'n')}, {_along(indices, both, axis, 'm')} -> "
                    f"{_along(None, both, axis, 'm')}", both)  # fmt: skip


def _broadcast_dims(x: ArrayType, indices: ArrayType, axis: int) -> dict[str, int]:
    """Names and sizes of the dims other than `axis`."""
    pairs = zip(dim_names("d", x.ndim), x.shape, indices.shape, strict=True)
    return {d: b if a == 1 else a for i, (d, a, b) in enumerate(pairs) if i != axis}


def _along(array_type: ArrayType | None, dims: dict[str, int], axis: int, name: str) -> str:
    term: list[str] = []
    for d in dim_names("d", len(dims) + 1):
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
    return out if mask is None else xp.where(mask, out, neutral_number(xp, out.dtype))


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
    x, axis = along_axis_or_flat(x, axis)
    fits = x.ndim == indices.ndim and all(
        i == axis or n == m or 1 in (n, m)
        for i, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True))
    )
    if not fits:
        raise error(
            ShapeError,
            f"x and indices do not have the same rank and sizes that broadcast beside axis {axis}",
            operands={"x": x.type, "indices": indices.type},
        )
    indices = checked_indices(x.type, indices, axis, "take_along_axis")
    if x.ndim == 1:  # what differs from row to row is an index like any other
        return rows_at(x, indices, 0)
    if indices.size * x.layout.num_shards(axis) >= x.size:
        x, indices = _beside(x, indices, axis)
    return take_along_axis_in_range(x, indices, axis=axis)


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
