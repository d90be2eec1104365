"""Ints, slices, `...` and None as an index of the global array, in any layout.

Such an index is read once for every type of array, into a `Cut`. Axes that are not split give
views, an axis that an int drops sends only the one row, any other keeps how it is split.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from operator import itemgetter
from types import NoneType
from typing import Any, NamedTuple

from gdt.array.array import DistributedArray
from gdt.backend import backend_of
from gdt.engine.composite import Composite, ShortWay
from gdt.errors import ArgumentError, DtypeError, IndexRangeError, error
from gdt.ops.intervals import Movement, inside_block, interval, moved, moved_back, resized
from gdt.ops.shapes import reshape
from gdt.sharding.array_type import ArrayType
from gdt.sharding.recut import Piece
from gdt.sharding.rule import choose

Key = tuple[Any, ...]  # ints, None, `...` and, for slices, tuples of their bounds

BOUNDS = frozenset({int, NoneType})


def key_of(index: Any) -> Key | None:
    """An index as a key; None if it holds anything but ints, slices of ints, `...` and None.

    Types are compared, and not values: 1.0 and True are equal to 1 and mean something else.
    """
    key: list[Any] = []
    for item in index if type(index) is tuple else (index,):
        kind = type(item)
        if kind is slice:
            start, stop, step = item.start, item.stop, item.step
            if not (type(start) in BOUNDS and type(stop) in BOUNDS and type(step) in BOUNDS):
                return None
            key.append((start, stop, step))
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
    """What an int or a slice takes of axis `axis` of an array of type `kind`."""
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
    array_type: ArrayType, items: Sequence[Any], used: Sequence[int]
) -> list[tuple[Any, int]]:
    """The parts of an index, of which each covers so many axes, beside the first axis of each;
    slices stand for `...` and for axes that are not mentioned."""
    dots = [n for n, i in enumerate(items) if i is Ellipsis]
    if len(dots) > 1:
        problem = "an index has one `...` at most"
        raise error(IndexRangeError, "getitem", problem, operands={"x": array_type})
    covered = sum(used)
    if covered > array_type.ndim:
        problem = f"{covered} indices are too many for rank {array_type.ndim}"
        raise error(IndexRangeError, "getitem", problem, operands={"x": array_type})
    at = dots[0] if dots else len(items)
    rest = [(slice(None), 1)] * (array_type.ndim - covered)
    pairs = list(zip(items, used, strict=True))
    pairs[at : at + len(dots)] = rest
    placed, axis = [], 0
    for item, count in pairs:
        placed.append((item, axis))
        axis += count
    return placed


# ---------------------------------------------------------------- cutting


class CutStep(NamedTuple):
    """One axis of an array of type `kind` is cut to an interval."""

    kind: ArrayType
    how: Movement


class Cut:
    """What is done to an array of one type: axes are cut to intervals, one after the other; then
    axes of length 1 come and go. One entry for every axis, and a None for every new axis."""

    def __init__(self, array_type: ArrayType, entries: tuple[Interval | None, ...]) -> None:
        intervals = [e for e in entries if e is not None]
        self.entries, self.steps = entries, list[CutStep]()
        self.shape = tuple([e.length if e else 1 for e in entries if e is None or not e.drops])
        # Whole axes first, so that less is sent along the others.
        for dim in sorted(range(array_type.ndim), key=lambda d: bool(array_type.layout.dims[d])):
            start, count, step, drops = intervals[dim]
            if not drops and (start, count, step) == (0, array_type.shape[dim], 1):
                continue
            split = array_type.layout.dims[dim]
            axes = () if drops and split else None
            pieces = (Piece(0, start, 0, count, step),) if count else ()
            self.steps.append(CutStep(array_type, Movement(dim, pieces, count, axes=axes)))
            array_type = resized(array_type, dim, count, split if axes is None else axes)
        self.kind = array_type  # before axes come and go
        self.is_whole = not self.steps and self.shape == array_type.shape


cut_of = lru_cache(maxsize=1 << 12)(Cut)  # one object for equal ones, which programs go by


@lru_cache(maxsize=1 << 12)
def cut_of_key(array_type: ArrayType, key: Key) -> Cut:
    """What an index does to an array of that type; IndexRangeError for one that does not fit."""
    items = [slice(*i) if type(i) is tuple else i for i in key]
    used = [0 if i is None or i is Ellipsis else 1 for i in items]
    pairs = with_all_axes(array_type, items, used)
    return cut_of(
        array_type, tuple([i if i is None else read_interval(array_type, i, a) for i, a in pairs])
    )


def cut(x: DistributedArray, how: Cut) -> DistributedArray:
    """`x`, whose type is that of the cut, as it is cut; itself if it stays whole."""
    out: DistributedArray = x if how.is_whole else _cut(x, how=how)
    return out


@partial(Composite, is_shown=False)
def _cut(x: DistributedArray, *, how: Cut) -> DistributedArray:
    for step in how.steps:
        x = moved([x], step.how)
    out: DistributedArray = x if x.shape == how.shape else reshape(x, how.shape)
    return out


@_cut.short
def _inside_block(array_type: ArrayType, how: Cut) -> ShortWay | None:
    out = None if array_type.mesh.divided else _reshaped(how.kind, how.shape)
    if out is None:
        return None
    run = _as_one_index(how, out) or _as_steps(how, out)
    return (
        None if run is None else (out, backend_of(array_type.mesh).placed(array_type.mesh, 0, run))
    )


@lru_cache(maxsize=1 << 12)
def _reshaped(array_type: ArrayType, shape: tuple[int, ...]) -> ArrayType | None:
    """The type of `reshape(x, shape)`; None if `x`, of type `kind`, is moved for it."""
    if array_type.shape == shape:
        return array_type
    rule, sizes, _ = reshape.declaration.bound_rule((array_type,), {"shape": shape})
    strategy = choose(rule, (array_type,), sizes)
    (target,), (layout,) = strategy.target_layouts, strategy.output_layouts
    return ArrayType.of(shape, array_type.dtype, layout) if target is array_type.layout else None


def _as_one_index(how: Cut, out: ArrayType) -> Any:
    """A function that indexes a block, where that is all; else None."""
    if any(step.kind.layout.dims[step.how.dim] for step in how.steps):
        return None
    mesh_ndim = how.kind.mesh.ndim
    index: list[Any] = [slice(None)] * mesh_ndim
    sizes = iter(how.kind.block_shape)
    shape = [next(sizes) for _ in range(mesh_ndim)]
    cut_dims = {step.how.dim for step in how.steps}
    dim = 0
    for entry in how.entries:
        if entry is None:
            index.append(None)
            shape.append(1)
            continue
        size = next(sizes)
        if entry.drops:
            index.append(entry.start)
        else:
            taken = interval(entry.start, entry.length, entry.step)
            index.append(taken if dim in cut_dims else slice(None))
            shape.append(size)
        dim += 1
    return itemgetter(tuple(index)) if tuple(shape) == out.block_shape else None


def _as_steps(how: Cut, out: ArrayType) -> Any:
    """A function that does the steps one by one to a block; None if one takes several blocks."""
    found = [inside_block(step.kind, step.how) for step in how.steps]
    functions = [short[1] for short in found if short is not None]
    if len(functions) < len(found):
        return None
    shape = out.block_shape

    def run(block: Any) -> Any:
        for function in functions:
            block = function(block)
        return block if block.shape == shape else block.reshape(shape)

    return run


def _vjp(g: Any, out: Any, x: Any, *, how: Cut) -> DistributedArray:
    if how.shape != how.kind.shape:
        g = reshape(g, how.kind.shape)
    for step in reversed(how.steps):
        g = moved_back(g, step.kind, step.how.dim, step.how.pieces)
    back: DistributedArray = g
    return back


_cut.vjp(_vjp)
