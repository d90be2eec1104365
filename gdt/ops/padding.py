"""Padding: constants, copies of elements, statistics and ramps, which are NumPy's modes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operand, as_operands
from gdt.array.registry import FUNCTIONS, public
from gdt.engine.plan import value_key
from gdt.errors import ArgumentError, ShapeError, error
from gdt.ops.blocks.intervals import fill_of, move_intervals
from gdt.ops.elementwise import astype
from gdt.ops.indexing import getitem
from gdt.ops.joining import concat
from gdt.ops.movement import alias
from gdt.ops.rounding import floor, round_
from gdt.ops.shapes import broadcast_to
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import promoted
from gdt.sharding.recut import Margins, Piece

__all__ = ["pad"]


STATISTICS = ("maximum", "minimum", "mean", "median")
COPYING = ("edge", "reflect", "symmetric", "wrap")  # modes that repeat elements of the array
MODES = ("constant", *COPYING, *STATISTICS, "linear_ramp", "empty")

Widths = int | Sequence[int] | Sequence[Sequence[int]]


@public
def pad(
    x: Any,
    pad_width: Widths,
    mode: str = "constant",
    *,
    constant_values: Any = 0,
    stat_length: Any = None,
    end_values: Any = 0,
    reflect_type: str = "even",
) -> DistributedArray:
    """`x` with elements added before and after along every axis; split axes stay split.

    pad_width: one width, `(before, after)`, or one such pair for every axis.
    mode: `"constant"`, `"edge"`, `"reflect"`, `"symmetric"`, `"wrap"`, `"maximum"`, `"minimum"`,
        `"mean"`, `"median"`, `"linear_ramp"` or `"empty"`, as in NumPy; the last one adds zeros.
    constant_values: as `pad_width`, numbers that the array's dtype can hold.
    stat_length: as `pad_width`, of how many elements at each end the four statistics are; None for
        all of them.
    end_values: as `pad_width`, the numbers to which ramps go.
    reflect_type: `"odd"` reflects at the values of the edges too: twice these less the elements.

    Raises ShapeError for widths that do not fit, ArgumentError for an unknown mode and for widths
    that are below 0 or no integers, DtypeError for a constant that the dtype of `x` cannot hold.

    >>> gdt.pad(gdt.asarray([1, 2, 3]), (1, 2), constant_values=(7, 0)).tolist()
    [7, 1, 2, 3, 0, 0]
    >>> gdt.pad(gdt.asarray([1, 2, 3]), 2, mode="reflect").tolist()
    [3, 2, 1, 2, 3, 2, 1]
    """
    (x,) = as_operands("pad", x=x)
    result = x
    widths = _pairs(result.type, pad_width, "pad_width")
    numbers = np.asarray(pad_width)
    if numbers.size and (numbers.dtype.kind not in "iu" or (numbers < 0).any()):
        raise error(
            ArgumentError,
            f"pad_width {pad_width} holds what is no width",
            operands={"x": result.type},
            remedy="Widths are ints of at least 0; use a slice to make an array smaller.",
        )
    if mode == "constant":
        values = _pairs(result.type, constant_values, "constant_values")
        result = _with_constants(x, widths, values)
        return alias(x) if result is x else result
    if mode == "empty":
        return pad(x, pad_width)
    if mode not in MODES:
        problem, remedy = f"unknown mode {mode!r}", f"Use one of {', '.join(MODES)}."
        raise error(ArgumentError, problem, operands={"x": result.type}, remedy=remedy)
    if reflect_type not in ("even", "odd"):
        raise error(ArgumentError, f"reflect_type {reflect_type!r} is neither even nor odd")
    lengths = _pairs(result.type, stat_length, "stat_length")
    ends = _pairs(result.type, end_values, "end_values")
    for dim, (before, after) in enumerate(widths):
        if not before and not after:
            continue
        if mode in STATISTICS:
            result = _with_statistics(result, dim, before, after, mode, lengths[dim])
        elif mode == "linear_ramp":
            result = _with_ramps(result, dim, before, after, ends[dim])
        elif reflect_type == "odd" and mode in ("reflect", "symmetric") and result.shape[dim] > 1:
            result = _odd(result, dim, before, after, mode)
        else:
            result = _copying(result, dim, before, after, mode)
    return alias(x) if result is x else result


def _pairs(array_type: ArrayType, values: Any, name: str) -> list[tuple[Any, Any]]:
    """One pair per axis, from a number, a pair, or a list of pairs."""
    try:
        array = np.broadcast_to(np.asarray(values), (array_type.ndim, 2))
    except ValueError:
        raise error(
            ShapeError,
            f"{name} {values} is no pair for every axis of rank {array_type.ndim}",
            operands={"x": array_type},
        ) from None
    return [(before, after) for before, after in array.tolist()]


def _with_constants(
    x: DistributedArray,
    widths: Sequence[tuple[int, int]],
    values: Sequence[tuple[Any, Any]],
) -> DistributedArray:
    """`x` between constants; `x` itself where all widths are 0."""
    dims = [dim for dim, pair in enumerate(widths) if any(pair)]
    fills = {
        value_key(value): value
        for dim in (dims if len(dims) > 1 else ())
        for width, value in zip(widths[dim], values[dim], strict=True)
        if width
    }
    if len(fills) == 1:
        return _around(x, dims, widths, *fills.values())
    result = x
    for dim, ((before, after), (first, last)) in enumerate(zip(widths, values, strict=True)):
        ends = [*map(value_key, (first, last))]
        if before and after and ends[0] != ends[1]:
            result = _constant(_constant(result, dim, before, 0, first), dim, 0, after, last)
        elif before or after:
            result = _constant(result, dim, before, after, first if before else last)
    return result


def _around(
    x: DistributedArray, dims: Sequence[int], widths: Sequence[tuple[int, int]], value: Any
) -> DistributedArray:
    """`x` with one value added along several axes. Those that are not split are margins of what
    moves along another, so that all of them take one pass over memory."""
    *split, last = [dim for dim in dims if x.layout.dims[dim]] or dims[:1]
    for dim in split:
        x = _constant(x, dim, *widths[dim], value)
    margins = tuple([(dim, *widths[dim]) for dim in dims if dim not in (*split, last)])
    return _constant(x, last, *widths[last], value, margins)


def _constant(
    x: DistributedArray, dim: int, before: int, after: int, value: Any, margins: Margins = ()
) -> DistributedArray:
    fill, size = fill_of(x.type, value), x.shape[dim]
    piece = Piece(0, 0, before, size)
    return move_intervals([x], dim, [piece], before + size + after, fill, margins=margins)


def _copying(x: DistributedArray, dim: int, before: int, after: int, mode: Any) -> DistributedArray:
    _check_elements(x, dim, mode)
    size = x.shape[dim]
    source = np.pad(np.arange(size), (before, after), mode=mode)
    pieces = list(_runs(source))
    return move_intervals([x] * len(pieces), dim, pieces, size + before + after)


def _between(x: DistributedArray, dim: int, start: int, stop: int | None) -> DistributedArray:
    return getitem(x, (*[slice(None)] * dim, slice(start, stop)))


def _check_elements(x: DistributedArray, dim: int, mode: str) -> None:
    if not x.shape[dim]:
        problem = f"axis {dim} of size 0 has no elements for mode {mode!r}"
        raise error(ShapeError, problem, operands={"x": x.type})


def _with_statistics(
    x: DistributedArray, dim: int, before: int, after: int, mode: str, lengths: tuple[Any, Any]
) -> DistributedArray:
    """`x` between statistics of its first and of its last elements along an axis."""
    _check_elements(x, dim, mode)
    size, parts = x.shape[dim], [x]
    for is_first, width, length in ((True, before, lengths[0]), (False, after, lengths[1])):
        if length is not None and (isinstance(length, float) or length < 1):
            raise error(ShapeError, f"stat_length {length!r} is no number of elements")
        if not width:
            continue
        count = size if length is None else min(length, size)
        edge = _between(x, dim, 0 if is_first else size - count, count if is_first else size)
        function = FUNCTIONS[{"maximum": "max", "minimum": "min"}.get(mode, mode)]
        number = function(edge, axis=dim, keepdims=True).resolve()  # so that `x` stays split
        if x.dtype.kind in "iu" and mode in ("mean", "median"):
            number = round_(number)
        shape = (*x.shape[:dim], width, *x.shape[dim + 1 :])
        border = broadcast_to(astype(number, x.dtype), shape)
        parts = [border, *parts] if is_first else [*parts, border]
    return concat(parts, dim)


def _with_ramps(
    x: DistributedArray, dim: int, before: int, after: int, ends: tuple[Any, Any]
) -> DistributedArray:
    """`x` between numbers that go linearly from `ends` to its first and last elements."""
    _check_elements(x, dim, "linear_ramp")
    size, parts = x.shape[dim], [x]
    for is_first, width, end in ((True, before, ends[0]), (False, after, ends[1])):
        if not width:
            continue
        edge = _between(x, dim, 0 if is_first else size - 1, 1 if is_first else size)
        edge = astype(edge, promoted(x.dtype, np.float64))
        steps = np.arange(float(width)).reshape(-1, *[1] * (x.ndim - dim - 1))
        steps = steps if is_first else steps[::-1]
        share = as_operand(steps, edge.mesh, "pad", "steps", is_constant=True)
        ramp = end + (edge - end) / width * share
        border = astype(floor(ramp) if x.dtype.kind in "iu" else ramp, x.dtype)
        parts = [border, *parts] if is_first else [*parts, border]
    return concat(parts, dim)


def _odd(x: DistributedArray, dim: int, before: int, after: int, mode: str) -> DistributedArray:
    """`x` between its reflections at the points of its first and last elements."""
    step = x.shape[dim] - (mode == "reflect")
    while before or after:
        size, first, last = x.shape[dim], min(before, step), min(after, step)
        reflected = _copying(x, dim, first, last, mode)
        edges = _copying(x, dim, first, last, "edge")
        border = astype(2 * edges - reflected, x.dtype)
        x = concat(
            [_between(border, dim, 0, first), x, _between(border, dim, first + size, None)], dim
        )
        before, after = before - first, after - last
    return x


def _runs(source: np.ndarray) -> Iterator[Piece]:
    """The indices `source` as pieces, each a run that goes up or down by 1, with a number of its
    own."""
    number, start = 0, 0
    while start < len(source):
        stop = start + 1
        step = int(source[stop] - source[start]) if stop < len(source) else 1
        while step in (1, -1) and stop < len(source) and source[stop] - source[stop - 1] == step:
            stop += 1
        count = stop - start
        yield Piece(number, int(source[start]), start, count, step if count > 1 else 1)
        number, start = number + 1, stop
