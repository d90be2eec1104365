"""Ints, slices, `...` and None as an index of the global array, in any layout.

Such an index is read once for every type of array, into a `Cut`. Axes that are not split give
views, an axis that an int drops sends only the one row, any other keeps how it is split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from operator import itemgetter
from types import NoneType
from typing import Any, NamedTuple

from gdt.array.array import DistributedArray
from gdt.engine.plan import EXACT
from gdt.engine.planned import BlockPlan, on_each_block, planned_op
from gdt.engine.source import reshaped
from gdt.errors import ArgumentError, DtypeError, IndexRangeError, error
from gdt.ops.blocks.intervals import (
    Movement,
    interval,
    moved_back,
    movement_of,
    plan_movement,
    resized,
)
from gdt.ops.shapes import reshape
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.recut import Piece

Key = tuple[Any, ...]  # ints, None, `...` and, for slices, tuples of their bounds

BOUNDS = frozenset({int, NoneType})
WHOLE = (None, None, None)  # of a slice


def key_of(index: Any) -> Key | None:
    """An index as a key; None if it holds anything but ints, slices of ints, `...` and None.

    Types are compared, and not values: 1.0 and True are equal to 1 and mean something else.
    """
    if type(index) is int:
        return (index,)
    key: list[Any] = []
    for item in index if type(index) is tuple else (index,):
        kind = type(item)
        if kind is slice:
            start, stop, step = item.start, item.stop, item.step
            if start is stop is step is None:
                key.append(WHOLE)
            elif type(start) in BOUNDS and type(stop) in BOUNDS and type(step) in BOUNDS:
                key.append((start, stop, step))
            else:
                return None
        elif kind is int or item is None or item is Ellipsis:
            key.append(item)
        else:
            return None
    return tuple(key)


class Interval(NamedTuple):
    """Elements `start, start + step, ...` of an axis; an int takes one and drops the axis."""

    start: int
    length: int
    step: int
    drops: bool = False


def read_interval(array_type: ArrayType, item: int | slice, axis: int) -> Interval:
    """The interval of axis `axis` that an int or a slice names; IndexRangeError for an int out of
    range."""
    size = array_type.shape[axis]
    if isinstance(item, int):
        if not -size <= item < size:
            raise error(
                IndexRangeError,
                "getitem",
                f"index {item} is out of range for axis {axis} of size {size}",
                operands={"x": array_type},
            )
        return Interval(item % size, 1, 1, drops=True)
    try:
        start, stop, step = item.indices(size)
    except (TypeError, ValueError) as e:
        problem = f"{item!r} is no slice: {e}"
        wrong = ArgumentError if isinstance(e, ValueError) else DtypeError  # as NumPy's
        raise error(wrong, "getitem", problem, operands={"x": array_type}) from None
    length = len(range(start, stop, step))
    return Interval(start, length, step) if length else Interval(0, 0, 1)


def with_all_axes(
    array_type: ArrayType, items: Sequence[Any], counts: Sequence[int]
) -> list[tuple[Any, int]]:
    """Pairs of an item of an index and the first axis that it covers; slices stand for `...` and
    for axes that are not mentioned.

    counts: the number of axes that each item covers.
    """
    dots = [n for n, i in enumerate(items) if i is Ellipsis]
    if len(dots) > 1:
        problem = "an index has one `...` at most"
        raise error(IndexRangeError, "getitem", problem, operands={"x": array_type})
    covered = sum(counts)
    if covered > array_type.ndim:
        problem = f"{covered} indices are too many for rank {array_type.ndim}"
        raise error(IndexRangeError, "getitem", problem, operands={"x": array_type})
    at = dots[0] if dots else len(items)
    rest = [(slice(None), 1)] * (array_type.ndim - covered)
    pairs = list(zip(items, counts, strict=True))
    pairs[at : at + len(dots)] = rest
    positions, axis = [], 0
    for item, count in pairs:
        positions.append((item, axis))
        axis += count
    return positions


# ---------------------------------------------------------------- cutting


class CutStep(NamedTuple):
    """The cut of one axis of an array of type `array_type` to an interval."""

    array_type: ArrayType
    how: Movement


class BasicIndex:
    """An index of an array of one type: axes are cut to intervals, one after the other; then axes
    of length 1 come and go. One entry for every axis, and a None for every new axis.

    whole: the type before axes come and go. out: the type of the result.
    """

    def __init__(self, array_type: ArrayType, entries: tuple[Interval | None, ...]) -> None:
        intervals = [e for e in entries if e is not None]
        self.entries, self.steps = entries, list[CutStep]()
        have = array_type
        # Whole axes first, so that less is sent along the others.
        for dim in sorted(range(have.ndim), key=lambda d: bool(have.layout.dims[d])):
            start, count, step, drops = intervals[dim]
            if not drops and (start, count, step) == (0, array_type.shape[dim], 1):
                continue
            split_axes = array_type.layout.dims[dim]
            axes = () if drops and split_axes else None
            pieces = (Piece(0, start, 0, count, step),) if count else ()
            movement = movement_of(dim, pieces, count, 0, axes)
            self.steps.append(CutStep(array_type, movement))
            array_type = resized(array_type, dim, count, split_axes if axes is None else axes)
        self.whole, self.out = array_type, _with_axes(array_type, entries)
        self.is_whole = not self.steps and self.out is array_type

    def __repr__(self) -> str:
        """The entries, which processes compare."""
        return f"Cut{self.entries}"


def _with_axes(array_type: ArrayType, entries: Sequence[Interval | None]) -> ArrayType:
    """The type of an array once axes of length 1 have come and gone."""
    axes = iter(zip(array_type.shape, array_type.layout.dims, strict=True))
    pairs = [(1, ()) if e is None else next(axes) for e in entries]
    axes_left = [pair for pair, e in zip(pairs, entries, strict=True) if e is None or not e.drops]
    layout = array_type.layout
    dims = tuple([dim_axes for _, dim_axes in axes_left])
    return ArrayType.of(
        tuple([size for size, _ in axes_left]),
        array_type.dtype,
        Layout.of(layout.mesh, dims, layout.reductions),
    )


EXACT.add(BasicIndex)
cut_of = lru_cache(maxsize=1 << 12)(BasicIndex)  # one object for equal ones, which plans go by


@lru_cache(maxsize=1 << 12)
def cut_of_key(array_type: ArrayType, key: Key) -> BasicIndex:
    """The cut that an index makes of an array of that type; IndexRangeError if it does not fit."""
    items = [slice(*i) if type(i) is tuple else i for i in key]
    counts = [0 if i is None or i is Ellipsis else 1 for i in items]
    pairs = with_all_axes(array_type, items, counts)
    return cut_of(
        array_type, tuple([i if i is None else read_interval(array_type, i, a) for i, a in pairs])
    )


def cut(x: DistributedArray, how: BasicIndex) -> DistributedArray:
    """The cut of `x`, an array of the cut's type; `x` itself if it stays whole."""
    return x if how.is_whole else _cut(x, how=how)


@planned_op(view="x")
def _cut(x: ArrayType, /, *, how: BasicIndex) -> BlockPlan:
    mesh, out = x.mesh, how.out
    index = _as_one_index(how)
    if index is not None:
        return BlockPlan([None], out, [index] * len(mesh.blocks))
    steps = [plan_movement((step.array_type,), step.how) for step in how.steps]
    collectives = tuple([c for step in steps for c in step.collectives])
    reshape = partial(reshaped, out.block_shape)
    if not mesh.divided:
        return BlockPlan(
            [None], out, [_in_turn([*[s.functions[0] for s in steps], reshape])], None, collectives
        )
    on_lists = [s.together or on_each_block(mesh, s.functions) for s in steps]
    last = on_each_block(mesh, [reshape] * len(mesh.blocks))
    return BlockPlan([None], out, (), _in_turn([*on_lists, last]), collectives)


def _in_turn(functions: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        for function in functions:
            value = function(value)
        return value

    return run


def _as_one_index(how: BasicIndex) -> Callable[[Any], Any] | None:
    """A function that indexes a block, if that is all that the cut takes; else None."""
    if any(step.array_type.layout.dims[step.how.dim] for step in how.steps):
        return None
    mesh_ndim = how.whole.mesh.ndim
    index: list[Any] = [slice(None)] * mesh_ndim
    cut_dims, dim = {step.how.dim for step in how.steps}, 0
    for entry in how.entries:
        if entry is None:
            index.append(None)
            continue
        if entry.drops:
            index.append(entry.start)
        elif dim in cut_dims:
            index.append(interval(entry.start, entry.length, entry.step))
        else:
            index.append(slice(None))
        dim += 1
    return itemgetter(tuple(index))


def _vjp(g: Any, out: Any, x: Any, *, how: BasicIndex) -> DistributedArray:
    if how.out.shape != how.whole.shape:
        g = reshape(g, how.whole.shape)
    for step in reversed(how.steps):
        g = moved_back(g, step.array_type, step.how.dim, step.how.pieces)
    return g


_cut.vjp(_vjp, reads="")
_view = _cut.shows(lambda x, out, *, how: ("getitem", how.entries)).__call__
