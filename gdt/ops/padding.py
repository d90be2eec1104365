"""Padding: NumPy's modes that copy elements, and constants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.engine.plan import value_key
from gdt.errors import ArgumentError, DtypeError, ShapeError, error
from gdt.ops.intervals import move_intervals
from gdt.ops.movement import alias
from gdt.sharding.array_type import ArrayType
from gdt.sharding.recut import Piece

__all__ = ["pad"]


COPYING = ("edge", "reflect", "symmetric", "wrap")  # modes that repeat elements of the array

Widths = int | Sequence[int] | Sequence[Sequence[int]]


@public
def pad(
    x: Any, pad_width: Widths, mode: str = "constant", *, constant_values: Any = 0
) -> DistributedArray:
    """`x` with elements added before and after along every axis; split axes stay split.

    pad_width: one width, `(before, after)`, or one such pair for every axis.
    mode: `"constant"`, `"edge"`, `"reflect"`, `"symmetric"` or `"wrap"`, as in NumPy.
    constant_values: as `pad_width`, numbers that the array's dtype can hold.

    Raises ShapeError for widths that do not fit, ArgumentError for an unknown mode, DtypeError for
    a constant that the dtype of `x` cannot hold.

    >>> gdt.pad(gdt.asarray([1, 2, 3]), (1, 2), constant_values=(7, 0)).tolist()
    [7, 1, 2, 3, 0, 0]
    >>> gdt.pad(gdt.asarray([1, 2, 3]), 2, mode="reflect").tolist()
    [3, 2, 1, 2, 3, 2, 1]
    """
    (x,) = as_operands("pad", x=x)
    padded: DistributedArray = x
    widths = _pairs(padded.type, pad_width, "pad_width")
    if any(isinstance(n, float) or n < 0 for pair in widths for n in pair):
        raise error(
            ShapeError,
            "pad",
            f"pad_width {pad_width} holds what is no width",
            operands={"x": padded.type},
            remedy="Widths are ints of at least 0; use a slice to make an array smaller.",
        )
    if mode == "constant":
        values = _pairs(padded.type, constant_values, "constant_values")
        for dim, ((before, after), (first, last)) in enumerate(zip(widths, values, strict=True)):
            ends = [*map(value_key, (first, last))]
            if before and after and ends[0] != ends[1]:
                padded = _constant(_constant(padded, dim, before, 0, first), dim, 0, after, last)
            elif before or after:
                padded = _constant(padded, dim, before, after, first if before else last)
        return alias(x) if padded is x else padded
    if mode not in COPYING:
        raise error(
            ArgumentError,
            "pad",
            f"unknown mode {mode!r}",
            operands={"x": padded.type},
            remedy=f"Use one of {', '.join(('constant', *COPYING))}.",
        )
    for dim, (before, after) in enumerate(widths):
        if before or after:
            padded = _copying(padded, dim, before, after, mode)
    return alias(x) if padded is x else padded


def _pairs(array_type: ArrayType, values: Any, name: str) -> list[tuple[Any, Any]]:
    """One pair per axis, from a number, a pair, or a list of pairs."""
    try:
        array = np.broadcast_to(np.asarray(values), (array_type.ndim, 2))
    except ValueError:
        raise error(
            ShapeError,
            "pad",
            f"{name} {values} is no pair for every axis of rank {array_type.ndim}",
            operands={"x": array_type},
        ) from None
    return [(before, after) for before, after in array.tolist()]


def _constant(
    x: DistributedArray, dim: int, before: int, after: int, value: Any
) -> DistributedArray:
    constant = np.asarray(value)
    with np.errstate(all="ignore"):
        fill = (
            constant.astype(x.dtype) if constant.dtype.kind != "c" or x.dtype.kind == "c" else None
        )
    if fill is None or (x.dtype.kind in "biu" and fill != constant):
        raise error(
            DtypeError, "pad", f"an array of {x.dtype} cannot hold the constant {value!r}",
            operands={"x": x.type},
        )  # fmt: skip
    size = x.shape[dim]
    piece = Piece(0, 0, before, size)
    bits = fill.tobytes()  # not the number: -0.0 is equal to 0.0, and a NaN to nothing
    return move_intervals([x], dim, [piece], before + size + after, bits if any(bits) else 0)


def _copying(x: DistributedArray, dim: int, before: int, after: int, mode: Any) -> DistributedArray:
    size = x.shape[dim]
    if size == 0:
        raise error(
            ShapeError,
            "pad",
            f"axis {dim} of size 0 has no elements for mode {mode!r}",
            operands={"x": x.type},
        )
    source = np.pad(np.arange(size), (before, after), mode=mode)
    pieces = list(_runs(source))
    return move_intervals([x] * len(pieces), dim, pieces, size + before + after)


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
