"""Moving index intervals along one axis: what slicing, concat, flip, roll and pad are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.comm.recut import RecutRunner
from gdt.engine.plan import EXACT
from gdt.engine.planned import BlockPlan, planned_op
from gdt.errors import DtypeError, ShapeError, error
from gdt.observe import Collective
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.recut import Margins, Piece, Recut
from gdt.sharding.routes import route_bytes

Pieces = tuple[Piece, ...]


def resized(
    array_type: ArrayType, dim: int, size: int, axes: Axes, margins: Margins = ()
) -> ArrayType:
    """The type `array_type` with axis `dim` of another size, split over the mesh axes `axes`, and
    with margins along other axes."""
    shape = [*array_type.shape]
    shape[dim] = size
    for axis, before, after in margins:
        shape[axis] += before + after
    return ArrayType.of(tuple(shape), array_type.dtype, _split(array_type.layout, dim, axes))


def _split(layout: Layout, dim: int, axes: Axes) -> Layout:
    dims = (*layout.dims[:dim], axes, *layout.dims[dim + 1 :])
    return Layout.of(layout.mesh, dims, layout.reductions)


@lru_cache(maxsize=1 << 12)
def _recut(have: tuple[ArrayType, ...], how: Movement, axes: Axes) -> Recut:
    want = resized(have[0], how.dim, how.size, axes, how.margins)
    return Recut(have, want, how.dim, how.pieces, how.fill, margins=how.margins)


def _cheapest(types: Sequence[ArrayType], how: Movement) -> Layout:
    """The layout of one of the arrays in which to meet: the one that sends the fewest bytes. A
    result that stays partial costs what a reduce-scatter of it sends (`gdt.sharding.strategy`)."""

    def price(layout: Layout) -> tuple[int, bool]:
        common_types = tuple([t.with_layout(layout) for t in types])
        recut = _recut(common_types, how, layout.dims[how.dim])
        later = route_bytes(recut.want, recut.want.layout.resolved) // 2
        now = sum(route_bytes(t, layout) for t in types) + recut.nbytes
        return now + later, layout is not layout.resolved

    partial = how.fill == 0  # the only value that can be filled into a partial reduction
    return min(dict.fromkeys(t.layout if partial else t.layout.resolved for t in types), key=price)


@dataclass(frozen=True, eq=False)
class Movement:
    """Intervals of axis `dim` of some arrays that become an axis of `size` elements; see
    `move_intervals`. `movement_of` makes them: equal means identical, which keys of plans are
    compared by, so that no call hashes the pieces."""

    dim: int
    pieces: Pieces
    size: int
    fill: Any
    axes: Axes | None
    margins: Margins


EXACT.add(Movement)


@lru_cache(maxsize=1 << 12)
def movement_of(
    dim: int,
    pieces: Pieces,
    size: int,
    fill: Any,
    axes: Axes | None,
    margins: Margins = (),
    /,
) -> Movement:
    """The one movement of these facts. fill: 0, or bytes."""
    return Movement(dim, pieces, size, fill, axes, margins)


def _index_of_view(array_type: ArrayType, how: Movement) -> tuple[slice, ...] | None:
    """The index in a block of the only interval of a movement along an axis that is whole and stays
    whole; None for any other movement."""
    if how.axes is not None or len(how.pieces) != 1 or array_type.layout.dims[how.dim]:
        return None
    if how.margins:
        return None
    (_, at, _, count, step, stride) = how.pieces[0]
    if count != how.size or stride != 1:
        return None
    return (slice(None),) * (array_type.mesh.ndim + how.dim) + (interval(at, count, step),)


def interval(at: int, count: int, step: int) -> slice:
    """The slice of the indices `at + i * step` for i in `range(count)`."""
    stop = at + step * count
    return slice(at, stop if stop >= 0 else None, step)


@lru_cache(maxsize=1 << 12)
def plan_movement(types: tuple[ArrayType, ...], how: Movement) -> BlockPlan:
    """The plan of a movement of arrays of these types: their layouts, the type of the result, and a
    function of their blocks."""
    dim, size, axes = how.dim, how.size, how.axes
    index = _index_of_view(types[0], how) if len(types) == 1 else None
    if index is not None:
        blocks = len(types[0].mesh.blocks)
        return BlockPlan([None], resized(types[0], dim, size, ()), [itemgetter(index)] * blocks)
    layout = _cheapest(types, how)
    target_axes = layout.dims[dim] if axes is None else axes
    recut = _recut(tuple([t.with_layout(layout) for t in types]), how, target_axes)
    run, collectives = RecutRunner(recut), tuple[Collective, ...]()
    if recut.nbytes:
        involved = dict.fromkeys((*layout.dims[dim], *target_axes))
        names = tuple([recut.mesh.axis_names[a] for a in involved])
        collectives = (Collective("exchange", names, recut.nbytes, 1),)
    if recut.mesh.divided:
        return BlockPlan([layout] * len(types), recut.want, (), run, collectives)
    return BlockPlan([layout] * len(types), recut.want, [run.inside_block], None, collectives)


@planned_op(view="types")
def _move_intervals(*types: ArrayType, how: Movement) -> BlockPlan:
    return plan_movement(types, how)


def _vjp(g: Any, out: Any, *arrays: Any, how: Movement) -> tuple[Any, ...]:
    for axis, before, _ in how.margins:
        size = arrays[0].shape[axis]
        g = move_intervals([g], axis, [Piece(0, before, 0, size)], size)
    return tuple(
        moved_back(g, a.type, how.dim, [p for p in how.pieces if p.source == n])
        for n, a in enumerate(arrays)
    )


def moved_back(
    g: DistributedArray, array_type: ArrayType, dim: int, pieces: Sequence[Piece]
) -> DistributedArray:
    """The cotangent of an array of that type, from the cotangent of the array that these pieces of
    it make."""
    axes = _free_axes(g.layout, array_type.layout, dim)
    return move_intervals(
        [g], dim, [p.transposed() for p in pieces], array_type.shape[dim], axes=axes
    )


def _free_axes(g: Layout, like: Layout, dim: int) -> Axes | None:
    """The mesh axes over which to split axis `dim` of a cotangent `g`: those of `like`. None if `g`
    splits that axis already, or uses one of these mesh axes."""
    mesh_axes = g.split_axes | {a for a, p in enumerate(g.reductions) if p}
    return None if g.dims[dim] or mesh_axes & {*like.dims[dim]} else like.dims[dim]


_move_intervals.vjp(joint=_vjp)


def move_intervals(
    arrays: Sequence[DistributedArray],
    dim: int,
    pieces: Sequence[Piece],
    size: int,
    fill: Any = 0,
    *,
    axes: Axes | None = None,
    margins: Margins = (),
) -> DistributedArray:
    """An array whose axis `dim` has `size` elements made of intervals of that axis of the arrays.

    The arrays live on one mesh, have one dtype and agree in all other axes; they are brought to the
    layout of the one that makes that cheapest, and the result has it too, with axis `dim` split
    over the mesh axes `axes` if they are given. Indices that no piece covers become `fill`: 0, or
    the bytes of a number of that dtype; so do the margins along other axes that are not split. No
    source index may be used by two pieces (its gradient would be lost): give the array twice.
    """
    intervals = tuple([p for p in pieces if p.count > 0])
    return _move_intervals(*arrays, how=movement_of(dim, intervals, size, fill, axes, margins))


def fill_of(array_type: ArrayType, value: Any) -> Any:
    """Return the `fill` of `move_intervals` that puts the number `value` into arrays of a type;
    raise DtypeError where their dtype cannot hold it, ShapeError for several numbers."""
    constant, dtype = np.asarray(value), array_type.dtype
    if constant.ndim:
        problem = f"the constant has shape {list(constant.shape)}, and is one number"
        raise error(ShapeError, problem, operands={"x": array_type})
    with np.errstate(all="ignore"):
        fill = constant.astype(dtype) if constant.dtype.kind != "c" or dtype.kind == "c" else None
    if fill is None or (dtype.kind in "biu" and fill != constant):
        problem = f"an array of {dtype} cannot hold the constant {value!r}"
        raise error(DtypeError, problem, operands={"x": array_type})
    bits = fill.tobytes()  # not the number: -0.0 is equal to 0.0, and a NaN to nothing
    return bits if any(bits) else 0
