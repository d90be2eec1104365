"""`x.at[index].set(v)` and its relatives, and `x[index] = v`: arrays with some elements changed.

A value is sent only to the devices that own the elements that it replaces.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.array.operands import as_elements, as_operand
from gdt.array.operators import is_array_like
from gdt.array.registry import public
from gdt.array.views import (
    all_observers,
    check_writable,
    outdate,
    partial_of,
    rebind,
    shares_base,
    view_step,
    views_of,
)
from gdt.backend import NUMPY, backend_of
from gdt.comm.agreement import HISTORIES
from gdt.engine.ownership import has_own_block
from gdt.engine.planned import BlockPlan, planned_op
from gdt.engine.whole_arrays import are_unwatched, array_of_whole, whole_of
from gdt.errors import ArgumentError, DtypeError, ShapeError, error, type_text
from gdt.ops.blocks.intervals import interval, move_intervals
from gdt.ops.comparison import maximum, minimum, where
from gdt.ops.creation import ones_like, zeros
from gdt.ops.elementwise import add, astype, divide, multiply, subtract
from gdt.ops.indexing import IndexedAxes, read_index, with_axes_for_truths
from gdt.ops.movement import alias, relayout
from gdt.ops.rearranging import flip
from gdt.ops.reductions import unbroadcast
from gdt.ops.rows import scatter_rows
from gdt.ops.shapes import broadcast_to, reshape
from gdt.ops.slicing import BasicIndex, Interval, cut, cut_of, cut_of_key, key_of
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import castable, kind_of
from gdt.sharding.layout import Layout
from gdt.sharding.recut import Piece

__all__ = ["update_at"]

Block = Any
Entries = tuple[Interval | None, ...]  # of a basic index: None is a new axis
Extent = tuple[int, int, int]  # start, count and positive step of the elements of an axis
Copies = list[tuple[tuple[slice, ...], tuple[slice, ...]]]  # parts of a block and of a value's

OPERATIONS = {
    "add": add, "subtract": subtract, "multiply": multiply, "divide": divide,
    "min": minimum, "max": maximum,
}  # fmt: skip


@public
def update_at(x: Any, value: Any, index: Any, how: str = "set") -> DistributedArray:
    """`x` with the elements that `index` names set to `value`, or combined with it: what
    `x.at[index].set(value)` and its relatives return. The result has the shape, dtype and layout of
    `x`.

    value: an array, number or list that broadcasts to the shape of `x[index]`; it is cast to the
    dtype of `x`. index: any index of `x[index]`.
    how: `set`, `add`, `subtract`, `multiply`, `divide`, `min` or `max`. Where an index names an
    element more than once, `set` leaves the last value there, and the others combine all values.

    Raises IndexRangeError for an index out of range, ShapeError for a value that does not
    broadcast, DtypeError for a value whose kind of dtype does not fit that of `x` (as `x += value`
    in NumPy), RangeError (an OverflowError) for a Python integer that the dtype of `x` cannot hold,
    ArgumentError for an unknown `how`.

    >>> gdt.update_at(gdt.zeros(4), [5.0, 6.0], slice(1, 3)).tolist()
    [0.0, 5.0, 6.0, 0.0]
    """
    if how != "set" and how not in OPERATIONS:
        names = ", ".join(["set", *OPERATIONS])
        raise error(ArgumentError, f"how is {how!r}", remedy=f"It is one of {names}.")
    if not isinstance(x, DistributedArray):
        mesh = value.mesh if isinstance(value, DistributedArray) else None
        x = as_operand(x, mesh or zeros(()).mesh, "update_at", "x")
    if are_unwatched(x):
        updated = _updated_in_numpy(x, value, index, how)
        if updated is not None:
            return updated
    value = _cast_value(x, value, how)
    key = key_of(index)
    if key is not None:
        return _update_cut(x, cut_of_key(x.type, key), value, how)
    mask = _whole_mask(x, index, value)
    if mask is not None:
        return _like(where(mask, _combined(x, value, how), x), x)
    wide, index = with_axes_for_truths(x, index)
    region, arrays, first = read_index(wide.type, index)
    if not arrays:
        return _like(_update_cut(wide, region, value, how), x)
    part = cut(wide, region)
    part = _update_rows(part, IndexedAxes(part, arrays, first), value, how)
    out = part if region.is_whole else _update_cut(wide, region, part, "set")
    return _like(out, x)


METHODS_AT = {
    "add": np.add.at, "subtract": np.subtract.at, "multiply": np.multiply.at,
    "min": np.minimum.at, "max": np.maximum.at,
}  # fmt: skip


def _updated_in_numpy(
    x: DistributedArray, value: Any, index: Any, how: str
) -> DistributedArray | None:
    """`update_at` in NumPy, of an array that is one block of the host: `set` by ints and slices,
    any `how` by an array of integers. None for other calls, and for those that NumPy refuses, which
    `update_at` explains."""
    if isinstance(index, DistributedArray) and index.dtype.kind in "iu":
        if not index.type.is_of_numpy:
            return None
        index = whole_of(index)
    elif how != "set" or key_of(index) is None:
        return None
    if type(value) in (int, float) and (how == "set" or x.dtype.kind in KINDS[type(value)]):
        elements: Any = np.asarray(value, x.dtype)
    elif isinstance(value, DistributedArray) and value.type.is_of_numpy and value.dtype == x.dtype:
        elements = whole_of(value)
    else:
        return None
    out = NUMPY.asarray(whole_of(x), copy=True)
    try:
        if how == "set":
            out[index] = elements
        else:
            METHODS_AT[how](out, index, elements)
    except (IndexError, ValueError, KeyError, TypeError):
        return None
    return array_of_whole(out, x.layout)


def _like(out: DistributedArray, x: DistributedArray) -> DistributedArray:
    """The result in the shape and layout of `x`."""
    if out.shape != x.shape:
        out = reshape(out, x.shape)
    return out if out.layout is x.layout.resolved else relayout(out, x.layout.resolved)


def _cast_value(x: DistributedArray, value: Any, how: str) -> DistributedArray:
    """`value` as an array of the dtype of `x`; DtypeError if it does not fit."""
    if not is_array_like(value):
        raise error(DtypeError, f"value is {type_text(value)}", operands={"x": x.type})
    if how == "divide" and kind_of(x.dtype) not in "fc":
        raise error(DtypeError, f"a quotient cannot stay {x.dtype}", operands={"x": x.type})
    if how == "set" or x.dtype.kind in KINDS.get(type(value), ()):
        return as_elements("update_at", x, x.dtype, "value", value)
    if not isinstance(value, DistributedArray):
        value = as_operand(value, x.mesh, "update_at", "value")
    if not castable(value.dtype, x.dtype, "same_kind"):
        raise error(
            DtypeError,
            f"a value of {value.dtype} cannot be combined with elements that stay {x.dtype}",
            operands={"x": x.type, "value": value.type},
            remedy="Cast x, or value, with astype.",
        )
    return astype(value, x.dtype)


KINDS = {bool: "biufc", int: "iufc", float: "fc", complex: "c"}
"""The kinds of dtypes that a Python number does not change when it is combined with them."""


def _combined(x: DistributedArray, value: DistributedArray, how: str) -> DistributedArray:
    """`value` combined with elements `x` of the same dtype, as `how` says."""
    return value if how == "set" else OPERATIONS[how](x, value)


def _whole_mask(x: DistributedArray, index: Any, value: DistributedArray) -> Any:
    """The index as a mask that broadcasts against `x`. None if it is no mask, or if the number of
    elements that it takes has to be known, since `value` has an axis for them."""
    if not isinstance(index, np.ndarray | DistributedArray) or index.dtype.kind != "b":
        return None
    rest = x.ndim - index.ndim
    is_simple = index.shape == x.shape[: index.ndim] and index.ndim and value.ndim <= rest
    if not is_simple:
        return None
    _check_broadcasts(value, x.shape[index.ndim :], x)
    if isinstance(index, np.ndarray):
        index = as_operand(index, x.mesh, "update_at", "index")
    return reshape(index, (*index.shape, *(1,) * rest))


def _check_broadcasts(
    value: DistributedArray, shape: tuple[int, ...], x: DistributedArray
) -> DistributedArray:
    """`value` without the leading axes of length 1 that it has beyond the rank of `shape`;
    ShapeError if it does not broadcast to `shape`."""
    extra = value.ndim - len(shape)
    if extra > 0 and all(n == 1 for n in value.shape[:extra]):
        value = reshape(value, value.shape[extra:])
    pairs = zip(value.shape[::-1], shape[::-1], strict=False)
    if value.ndim > len(shape) or any(n not in (1, m) for n, m in pairs):
        raise error(
            ShapeError,
            f"a value of shape {list(value.shape)} does not broadcast to the shape {list(shape)} "
            "of what the index names",
            operands={"x": x.type, "value": value.type},
        )
    return value


# ---------------------------------------------------------------- ints and slices


def _update_cut(
    x: DistributedArray, region: BasicIndex, value: DistributedArray, how: str
) -> DistributedArray:
    """`x` with the elements of a region set to `value`, or combined with it."""
    value = _check_broadcasts(value, region.out.shape, x)
    if not math.prod(region.out.shape):
        return alias(x.resolve())
    if how != "set":
        value = _combined(cut(x, region), value, how)
    value, extents = _in_region(x, region, value)
    return _overwrite(x, value, extents=extents)


def _in_region(
    x: DistributedArray, region: BasicIndex, value: DistributedArray
) -> tuple[DistributedArray, tuple[Extent, ...]]:
    """The value of a region as `_overwrite` takes it, split as `x` is, and the extents of the
    region along the axes of `x`."""
    value = reshape(value, (1,) * (region.out.ndim - value.ndim) + value.shape)
    shape, axis = [], 0
    for entry in region.entries:  # the axes of x: those that ints drop come back
        if entry is None:
            axis += 1
        elif entry.drops:
            shape.append(1)
        else:
            shape.append(value.shape[axis])
            axis += 1
    value = _to_owners(reshape(value, tuple(shape)), x, _intervals(region))
    return value, tuple([_extent(e) for e in _intervals(region)])


def _intervals(region: BasicIndex) -> list[Interval]:
    return [entry for entry in region.entries if entry is not None]


def _extent(interval: Interval) -> Extent:
    start, count, step, _ = interval
    return (start, count, step) if step > 0 else (start + (count - 1) * step, count, -step)


def _is_all(extent: Extent, size: int) -> bool:
    return extent[1:] == (size, 1)


def _to_owners(
    value: DistributedArray, x: DistributedArray, intervals: Sequence[Interval]
) -> DistributedArray:
    """The value split as `x` is, in ascending order along each axis.

    Along a split axis of which a part is written, the result is as long as `x`, with its elements
    in their places; along other axes it is as long as the interval, or 1."""
    dims = x.layout.dims
    if any(value.layout.dims) or any(value.layout.reductions):
        value_dims = tuple([of if n > 1 else () for of, n in zip(dims, value.shape, strict=True)])
        value = relayout(value, Layout.of(x.mesh, value_dims))
    for dim, (start, count, step, _) in enumerate(intervals):
        size = x.shape[dim]
        if value.shape[dim] != count or _is_all(_extent(intervals[dim]), size):
            if step < 0 and value.shape[dim] > 1:
                value = flip(value, axis=dim)
            continue
        if step < 0:
            piece = Piece(0, count - 1, start + (count - 1) * step, count, -1, -step)
        else:
            piece = Piece(0, 0, start, count, 1, step)
        if dims[dim]:
            value = move_intervals([value], dim, [piece], size, axes=dims[dim])
        elif step < 0:
            value = flip(value, axis=dim)
    return value


def write_at(x: DistributedArray, value: Any, index: Any) -> bool:
    """Do `x[index] = value` in the blocks of `x` itself, if nobody else refers to them; return
    whether that is done. Errors are those of `update_at`."""
    key = key_of(index)
    if key is None or x.base is not None or not _is_unobserved(x):
        return False
    region = cut_of_key(x.type, key)
    if type(value) in KINDS and x.mesh.device_kind == "cpu":
        return _filled(x, region, value)
    value = _check_broadcasts(_cast_value(x, value, "set"), region.out.shape, x)
    return _written(x, region, value)


@checked
def __setitem__(x: DistributedArray, index: Any, value: Any) -> None:
    """`x[index] = value` for every index of `x[index]`; views of `x` show it.

    A gradient with respect to an array that is written while a tape records is an error. A recorded
    step may write to its arguments, to its state and to arrays that it has made, and to no others.
    """
    check_writable(x)
    if shares_base(x, value) and x[index]._shared == value._shared:
        return  # `x[1:3] += y` has written to a view, and then assigns that view to `x[1:3]`
    if not write_at(x, value, index):
        rebind(x, update_at(x, value, index))


DistributedArray.__setitem__ = __setitem__


def _is_unobserved(x: DistributedArray) -> bool:
    """Whether a write to the blocks of an array would be seen by no observer and no other array,
    and would change its value alone: it is no pending sum."""
    return not (
        HISTORIES or all_observers() or any(x.layout.reductions) or partial_of(x) is not None
    )


def _written(x: DistributedArray, region: BasicIndex, value: DistributedArray) -> bool:
    """Write a value into a region of the blocks of an array; return whether they may be written."""
    if not math.prod(region.out.shape):
        return True
    value, extents = _in_region(x, region, value)
    functions, layout = _writers(x.type, value.type, extents)
    blocks = relayout(value, layout).blocks
    if not _has_own_blocks(x):
        return False
    for function, block, value_block in zip(functions, x.blocks, blocks, strict=True):
        function(block, value_block)
    return True


def _has_own_blocks(x: DistributedArray) -> bool:
    """Whether nobody else refers to the blocks of an array; its views cease to."""
    for view in views_of(x):
        outdate(view)
    return all(has_own_block(x, i) for i in range(len(x.blocks)))


def _filled(x: DistributedArray, region: BasicIndex, value: complex) -> bool:
    """Write a number into a region of the blocks of an array of the host; return whether they may
    be written."""
    try:
        number = np.asarray(value, x.dtype)
    except (TypeError, ValueError, OverflowError):  # `update_at` raises with a better text
        return False
    if not math.prod(region.out.shape):
        return True
    if not _has_own_blocks(x):
        return False
    for block, targets in zip(x.blocks, _targets(x.type, region), strict=True):
        for target in targets:
            block[target] = number
    return True


@lru_cache(maxsize=1 << 12)
def _targets(x: ArrayType, region: BasicIndex) -> list[list[tuple[slice, ...]]]:
    """The parts of each block of an array that lie in a region."""
    number = ArrayType.of((1,) * x.ndim, x.dtype, Layout.replicated(x.mesh, x.ndim))
    extents = tuple([_extent(e) for e in _intervals(region)])
    return [[target for target, _ in copies] for copies in _plan(x, number, extents)[2]]


@lru_cache(maxsize=1 << 12)
def _writers(
    x: ArrayType, value: ArrayType, extents: tuple[Extent, ...]
) -> tuple[list[Callable[[Block, Block], None]], Layout]:
    """For each block of an array the function that writes into it, and the layout of the value that
    they take."""
    layouts, _, copies = _plan(x, value, extents)
    backend = backend_of(x.mesh)
    functions = [backend.placed(x.mesh, i, partial(_write, c)) for i, c in enumerate(copies)]
    return functions, layouts[1]


def _write(copies: Copies, x: Block, value: Block) -> None:
    for target, source in copies:
        x[target] = value[source]


@planned_op()
def _overwrite(x: ArrayType, value: ArrayType, /, *, extents: tuple[Extent, ...]) -> BlockPlan:
    """`x` with the elements that `extents` give for each axis set to those of `value`.

    Along each axis `value` has length 1, or the number of elements that are written, or the size of
    `x`; its elements are then at the indices of those that they replace.
    """
    layouts, target, copies = _plan(x, value, extents)
    backend = backend_of(x.mesh)
    return BlockPlan(layouts, target, [partial(_copied, backend, target, c) for c in copies])


def _plan(
    x: ArrayType, value: ArrayType, extents: tuple[Extent, ...]
) -> tuple[tuple[Layout, Layout], ArrayType, list[Copies]]:
    """The layouts that an array and the value must have, the type of the result, and for each block
    the parts that are copied."""
    layout = x.layout.resolved
    dims = tuple([of if n > 1 else () for of, n in zip(layout.dims, value.shape, strict=True)])
    target, source = x.with_layout(layout), value.with_layout(Layout.of(x.mesh, dims))
    first = x.mesh.all_blocks.index(x.mesh.blocks[0])
    copies = [_copies(target, source, extents, first + i) for i in range(len(x.mesh.blocks))]
    return (layout, source.layout), target, copies


def _copied(backend: Any, array_type: ArrayType, copies: Copies, x: Block, value: Block) -> Block:
    out = backend.asarray(x, copy=True, order=array_type.memory_order)
    _write(copies, out, value)
    return out


def _copies(x: ArrayType, value: ArrayType, extents: Sequence[Extent], number: int) -> Copies:
    """The parts of block `number` that are written, each with the part of the block of `value` that
    goes there. A block that holds several coordinates has a part for each along split axes."""
    mesh, every = x.mesh, slice(None)
    partial_dims = [d for d, extent in enumerate(extents) if not _is_all(extent, x.shape[d])]
    involved = sorted({a for d in partial_dims for a in x.layout.dims[d]})
    of_value = {a for dim_axes in value.layout.dims for a in dim_axes}
    copies: Copies = []
    for inside in itertools.product(*(range(mesh.box[a]) for a in involved)):
        place = dict(zip(involved, inside, strict=True))
        coordinate = [
            mesh.all_blocks[number][a] * mesh.box[a] + place.get(a, 0) for a in range(mesh.ndim)
        ]
        at = [slice(place[a], place[a] + 1) if a in place else every for a in range(mesh.ndim)]
        target_slices = list(at)
        source_slices = [s if a in of_value else every for a, s in enumerate(at)]
        for d, extent in enumerate(extents):
            along = (every, every)
            if d in partial_dims:
                shard = x.extent(d, x.layout.shard_index(coordinate, d))
                along = _along(extent, shard, expanded=value.shape[d] == x.shape[d])
                if value.shape[d] == 1:
                    along = (along[0], every)
            target_slices.append(along[0])
            source_slices.append(along[1])
        copies.append((tuple(target_slices), tuple(source_slices)))
    return copies


def _along(extent: Extent, shard: tuple[int, int], *, expanded: bool) -> tuple[slice, slice]:
    """The part of a shard that is written along an axis, and the part of the value.

    shard: where it begins and ends. expanded: whether the value is as long as the array."""
    (start, count, step), (low, high) = extent, shard
    begin = max(0, -((start - low) // step))
    end = max(begin, min(count, -((start - high) // step)))
    first = start + begin * step - low
    target = slice(first, max(first + (end - begin - 1) * step + 1, first), step)
    return target, target if expanded else slice(begin, end)


def _overwrite_vjp(
    g: Any, out: Any, x: Any, value: Any, *, extents: tuple[Extent, ...]
) -> tuple[Any, ...]:
    nothing = zeros((1,) * x.ndim, x.dtype, layout=Layout.replicated(x.mesh, x.ndim))
    of_x = _overwrite(g, nothing.astype(g.dtype), extents=extents)
    intervals = [
        Interval(0, n, 1) if m == n and n > 1 else Interval(*extent)
        for extent, n, m in zip(extents, x.shape, value.shape, strict=True)
    ]
    return of_x, unbroadcast(cut(g, cut_of(g.type, tuple(intervals))), value)


_overwrite.vjp(joint=_overwrite_vjp)


def _taken(x: DistributedArray, entries: Entries) -> DistributedArray:
    out = cut(x, cut_of(x.type, entries))
    return alias(out) if out is x else out


def _put(x: DistributedArray, entries: Entries, value: DistributedArray) -> DistributedArray:
    return _like(_update_cut(x, cut_of(x.type, entries), value, "set"), x)


def _of_numpy(x: np.ndarray, entries: Entries) -> np.ndarray:
    return x[tuple([e if e is None else e.start if e.drops else interval(*e[:3]) for e in entries])]


def _write_region(x: DistributedArray, entries: Entries, value: DistributedArray) -> bool:
    return _is_unobserved(x) and _written(x, cut_of(x.type, entries), value)


view_step("getitem", _taken, _put, _of_numpy, _write_region)


# ---------------------------------------------------------------- arrays of integers


def _update_rows(
    x: DistributedArray, indexed: IndexedAxes, value: DistributedArray, how: str
) -> DistributedArray:
    """`x` with the rows that index arrays name set to `value`, or combined with it."""
    at, indices, joined_axes = indexed.at, indexed.indices, indexed.merged(x)
    before, after = joined_axes.shape[:at], joined_axes.shape[at + 1 :]
    others = (*indices.shape, *before, *after) if indexed.first else None
    shape = others or (*before, *indices.shape, *after)
    value = indexed.from_place(broadcast_to(_check_broadcasts(value, shape, x), shape))
    if not value.size:
        return alias(x.resolve())
    count = math.prod(indices.shape)
    indices = reshape(indices, (count,))
    value = reshape(value, (*before, count, *after))
    if how == "subtract":
        out = scatter_rows(joined_axes, indices, -value, axis=at, how="add")
    elif how == "divide":
        out = joined_axes / scatter_rows(
            ones_like(joined_axes), indices, value, axis=at, how="multiply"
        )
    else:
        out = scatter_rows(joined_axes, indices, value, axis=at, how=how)
    return indexed.parted(out)
