"""Arrays with their axes in another order, and with the elements along an axis flipped, rolled or
shifted.

A whole axis is copied; along a split axis, devices exchange the elements that change their device
(`gdt.ops.blocks.intervals`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.array.views import view_step
from gdt.errors import ArgumentError, ShapeError, error
from gdt.ops.axes import checked_axes, checked_axis, distinct_axes
from gdt.ops.blocks.intervals import fill_of, move_intervals
from gdt.ops.indexing import getitem_
from gdt.ops.movement import alias
from gdt.ops.shapes import in_layout_of, raveled, reshape, reshape_, transpose_
from gdt.sharding.recut import Piece

__all__ = [
    "atleast_1d",
    "atleast_2d",
    "flip",
    "moveaxis",
    "ravel",
    "roll",
    "shift",
    "swapaxes",
]


Axis = int | Sequence[int] | None


@public
def flip(x: Any, axis: Axis = None) -> DistributedArray:
    """`x` with the order of elements reversed along `axis` (None: along all axes).

    >>> gdt.flip(gdt.asarray([[1, 2], [3, 4]]), axis=1).tolist()
    [[2, 1], [4, 3]]
    """
    (x,) = as_operands("flip", x=x)
    flipped = distinct_axes(x.type, axis)
    turned = slice(None, None, -1)
    return getitem_(x, tuple(turned if d in flipped else slice(None) for d in range(x.ndim)))


@public
def roll(x: Any, shift: int | Sequence[int], axis: Axis = None) -> DistributedArray:
    """`x` with its elements moved by `shift` places along `axis`; what leaves at the end comes in
    again at the start. None rolls the flattened array.

    >>> gdt.roll(gdt.arange(5), 2).tolist()
    [3, 4, 0, 1, 2]
    """
    (x,) = as_operands("roll", x=x)
    if type(shift) is not int and np.asarray(shift).dtype.kind not in "iu":
        raise error(ArgumentError, f"shift is {shift!r}, not ints", operands={"x": x.type})
    if axis is None:
        flat = roll(reshape(x, (x.size,)), int(np.sum(shift)), 0)
        return reshape(flat, x.shape)
    if type(shift) is int and type(axis) is int:
        pairs = [(shift, axis)]
    else:
        shifts, axes = np.broadcast_arrays(shift, axis)
        pairs = list(zip(shifts.ravel().tolist(), axes.ravel().tolist(), strict=True))
    moved = x
    for by, a in pairs:
        dim = checked_axis(x.type, a)
        size = x.shape[dim]
        at = by % size if size else 0
        if at:
            pieces = [Piece(0, 0, at, size - at), Piece(0, size - at, 0, at)]
            moved = move_intervals([moved], dim, pieces, size)
    return alias(x) if moved is x else moved


@public
def shift(x: Any, n: int, axis: int = -1, fill: Any = 0) -> DistributedArray:
    """`x` with its elements moved by `n` places along `axis`: what leaves at one end is lost, and
    `fill` comes in at the other.

    n: negative towards the start; any size. fill: a number that the dtype of `x` can hold. Of a
    split axis, elements that change their device are sent, and no others. Raises ArgumentError for
    an `n` that is no int, DtypeError for a `fill` that does not fit, ShapeError for one of several.

    >>> gdt.shift(gdt.arange(5), 2).tolist(), gdt.shift(gdt.arange(5), -1, fill=9).tolist()
    ([0, 0, 0, 1, 2], [1, 2, 3, 4, 9])
    """
    (x,) = as_operands("shift", x=x)
    if isinstance(n, bool) or not isinstance(n, int | np.integer):
        raise error(ArgumentError, f"n is {n!r}, not an int", operands={"x": x.type})
    dim, number = checked_axis(x.type, axis), fill_of(x.type, fill)
    if not n:
        return alias(x)
    size = x.shape[dim]
    by = max(-size, min(int(n), size))
    piece = Piece(0, max(0, -by), max(0, by), size - abs(by))
    return move_intervals([x], dim, [piece], size, number)


@public
def moveaxis(
    x: Any, source: int | Sequence[int], destination: int | Sequence[int]
) -> DistributedArray:
    """Move the axes `source` of `x` to the positions `destination`; the others keep their order.

    >>> gdt.moveaxis(gdt.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    (x,) = as_operands("moveaxis", x=x)
    places = [checked_axes(x.type, axes) for axes in (source, destination)]
    if len(places[0]) != len(places[1]) or any(len(set(p)) < len(p) for p in places):
        raise error(
            ShapeError,
            f"source {source} and destination {destination} do not name the same number of axes, "
            "each once",
            operands={"x": x.type},
        )
    order = [d for d in range(x.ndim) if d not in places[0]]
    for to, d in sorted(zip(places[1], places[0], strict=True)):
        order.insert(to, d)
    return transpose_(x, axes=tuple(order))


@public
def swapaxes(x: Any, axis1: int, axis2: int) -> DistributedArray:
    """`x` with two axes exchanged.

    >>> gdt.swapaxes(gdt.ones((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    (x,) = as_operands("swapaxes", x=x)
    order = list(range(x.ndim))
    a, b = checked_axes(x.type, (axis1, axis2))
    order[a], order[b] = b, a
    return transpose_(x, axes=tuple(order))


@public
def ravel(x: Any, order: str = "C") -> DistributedArray:
    """The elements in row-major order, as an array of rank 1; a view, as in NumPy, of an array in C
    order. order: as of `gdt.reshape`.

    >>> gdt.ravel(gdt.asarray([[1, 2], [3, 4]])).tolist()
    [1, 2, 3, 4]
    """
    return raveled(x, shape=(-1,)) if order == "C" else reshape_(x, (-1,), order=order)


def _flat_if_contiguous(x: np.ndarray, _: None) -> np.ndarray:
    if not x.flags.c_contiguous:
        raise ValueError("its elements have to be copied")
    return x.reshape(-1)


view_step(
    "ravel",
    lambda x, _: reshape(x, (x.size,)),
    lambda x, _, value: in_layout_of(reshape(value, x.shape), x),
    _flat_if_contiguous,
    may_copy=True,
)


@public
def atleast_1d(*arrays: Any) -> DistributedArray | tuple[DistributedArray, ...]:
    """Return an array of rank 1 for a scalar, and any other array as it is; of several, a tuple.

    >>> gdt.atleast_1d(3.0).shape
    (1,)
    """
    return _each("atleast_1d", arrays, lambda x: x if x.ndim else reshape_(x, (1,)))


@public
def atleast_2d(*arrays: Any) -> DistributedArray | tuple[DistributedArray, ...]:
    """Put axes of length 1 in front of an array until it has rank 2; of several, return a tuple.

    >>> gdt.atleast_2d([1, 2, 3]).shape
    (1, 3)
    """
    return _each("atleast_2d", arrays, lambda x: x if x.ndim > 1 else reshape_(x, (1, x.size)))


def _each(
    name: str, arrays: Sequence[Any], function: Callable[[DistributedArray], DistributedArray]
) -> DistributedArray | tuple[DistributedArray, ...]:
    """Return the results of `function` for every array: one array for one, a tuple for several."""
    if not arrays:
        raise error(ArgumentError, "got no arrays")
    operands = as_operands(name, **{f"x{i}": a for i, a in enumerate(arrays)})
    results = tuple(map(function, operands))
    return results[0] if len(results) == 1 else results
