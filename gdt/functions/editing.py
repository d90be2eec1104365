"""Arrays with elements left out, put in or repeated: resize, trim_zeros, delete, insert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_elements, as_operands
from gdt.array.placing import distribute
from gdt.array.registry import public
from gdt.errors import DtypeError, IndexRangeError, IndexTypeError, ShapeError, error
from gdt.functions.assembling import with_rank
from gdt.functions.repeating import tile
from gdt.ops.axes import checked_axes
from gdt.ops.blocks.intervals import move_intervals
from gdt.ops.comparison import logical_not, not_equal
from gdt.ops.creation import ones, zeros_like
from gdt.ops.extrema import argmax
from gdt.ops.joining import concat
from gdt.ops.lookup import along_axis_or_flat, checked_indices
from gdt.ops.masks import compress
from gdt.ops.padding import pad
from gdt.ops.rearranging import flip, moveaxis
from gdt.ops.reductions import any_
from gdt.ops.rows import scatter_rows
from gdt.ops.shapes import Shape, broadcast_to, checked_shape, reshape
from gdt.ops.taking import rows_at
from gdt.sharding.layout import Layout
from gdt.sharding.recut import Piece

__all__ = [
    "delete",
    "insert",
    "resize",
    "trim_zeros",
]


@public
def resize(x: Any, new_shape: Shape) -> DistributedArray:
    """An array of `new_shape` filled with the elements of `x`, over and over; zeros if it has none.

    >>> gdt.resize([1, 2, 3], (2, 2)).tolist()
    [[1, 2], [3, 1]]
    """
    (x,) = as_operands("resize", x=x)
    shape = checked_shape(new_shape, "resize")
    size = int(np.prod(shape, dtype=np.int64))
    flat = reshape(x, -1)
    if not x.size:
        flat = pad(flat, (0, size))
    elif size > x.size:
        flat = tile(flat, -(-size // x.size))
    return reshape(flat[:size], shape)


@public
def trim_zeros(
    x: Any, trim: str = "fb", axis: int | Sequence[int] | None = None
) -> DistributedArray:
    """`x` without the zeros at its ends along `axis` (None: all axes). The host reads where they
    end.

    trim: "f" for the front, "b" for the back, "fb" for both.

    >>> gdt.trim_zeros([0, 1, 2, 0]).tolist()
    [1, 2]
    """
    (x,) = as_operands("trim_zeros", x=x)
    places = set(trim.lower())
    if not places or places - {"f", "b"}:
        raise error(DtypeError, f"trim is {trim!r}, not 'f', 'b' or 'fb'")
    index = [slice(None)] * x.ndim
    for a in checked_axes(x.type, axis):
        others = tuple(d for d in range(x.ndim) if d != a)
        flags = any_(not_equal(x, 0), axis=others)
        n = x.shape[a]
        is_zero = not x.size or not bool(any_(flags))
        start = 0 if is_zero else int(argmax(flags))
        stop = 0 if is_zero else n - int(argmax(flip(flags)))
        index[a] = slice(start if "f" in places else 0, stop if "b" in places else n)
        if is_zero and places == {"f"}:
            index[a] = slice(n, n)
    return x[tuple(index)]


@public
def delete(x: Any, obj: Any, axis: int | None = None) -> DistributedArray:
    """`x` without the slices `obj` along `axis` (None: of the flattened array).

    obj: an int, a slice, integers, or a mask. Raises IndexRangeError for one that is out of range.
    A split axis stays split, and no device holds more than its share. Which places a split `obj`
    names only its values tell, so no step that `gdt.function` records calls it with one.

    >>> gdt.delete([1, 2, 3, 4], [0, 2]).tolist()
    [2, 4]
    """
    (x,) = as_operands("delete", x=x)
    x, at = along_axis_or_flat(x, axis)
    size = x.shape[at]
    if isinstance(obj, DistributedArray) and obj.ndim:
        return compress(_kept(obj, x, at), x, axis=at)
    keep = np.ones(size, bool)
    keep[_places(obj, size, "delete", x)] = False
    return _joined_rows([x], np.flatnonzero(keep), at, "delete")


def _kept(obj: DistributedArray, x: DistributedArray, axis: int) -> DistributedArray:
    """A mask, split as `axis`, of the places that `obj`, a mask or integers, does not name."""
    size = x.shape[axis]
    if obj.dtype.kind == "b":
        _check_mask(obj.shape, size, "delete", x)
        return logical_not(obj)
    at = checked_indices(x.type, reshape(obj, obj.size), axis, "delete")
    all_kept = ones(size, bool, layout=Layout.of(x.mesh, (x.layout.dims[axis],)))
    return scatter_rows(all_kept, at, zeros_like(at, bool), axis=0, how="set")


MOST_PIECES = 64  # intervals that are moved as such; rows of more of them are looked up


def _joined_rows(
    arrays: Sequence[DistributedArray], rows: np.ndarray, axis: int, name: str
) -> DistributedArray:
    """The slices at `rows` along an axis along which the arrays are joined; every row is taken once
    at most. The result stays split, and one collective moves what is not where it belongs, or two:
    however many rows there are."""
    pieces = _pieces([a.shape[axis] for a in arrays], rows)
    if pieces is not None:
        return move_intervals(arrays, axis, pieces, len(rows))
    whole = concat(arrays, axis=axis) if len(arrays) > 1 else arrays[0]
    layout = Layout.of(whole.mesh, (whole.layout.dims[axis],))
    places = distribute(rows, layout, giver=name, is_constant=True)
    del rows
    return rows_at(whole, places, axis)


def _pieces(sizes: Sequence[int], rows: np.ndarray) -> list[Piece] | None:
    """The intervals of `rows`, if they are few, of arrays of these sizes that are joined."""
    ends = np.cumsum(sizes)
    is_start = np.diff(rows, prepend=-2) != 1
    for end in ends:
        is_start |= rows == end
    if np.count_nonzero(is_start) > MOST_PIECES:
        return None
    starts = np.flatnonzero(is_start).tolist()
    sources = np.searchsorted(ends, rows[starts], side="right").tolist()
    lengths = np.diff([*starts, len(rows)]).tolist()
    firsts = [int(rows[i]) - int(ends[k]) + sizes[k] for i, k in zip(starts, sources, strict=True)]
    return [Piece(*piece) for piece in zip(sources, firsts, starts, lengths, strict=True)]


def _places(obj: Any, size: int, name: str, x: DistributedArray) -> np.ndarray:
    """The indices along an axis of `size` that an int, a slice, integers or a mask name."""
    if isinstance(obj, slice):
        return np.arange(size)[obj]
    places = obj.numpy() if isinstance(obj, DistributedArray) else np.asarray(obj)
    if places.dtype.kind == "b":
        _check_mask(places.shape, size, name, x)
        return np.flatnonzero(places)
    if not places.size:
        return np.zeros(0, np.int64)
    if places.dtype.kind not in "iu":
        raise error(IndexTypeError, f"{obj!r} names no indices", operands={"x": x.type})
    limit = size + (name == "insert")
    if ((places < -size) | (places >= limit)).any():
        problem = f"an index of {places.tolist()} is out of range for an axis of length {size}"
        raise error(IndexRangeError, problem, operands={"x": x.type})
    return np.where(places < 0, places + size, places)


def _check_mask(shape: tuple[int, ...], size: int, name: str, x: DistributedArray) -> None:
    if shape != (size,):
        problem = f"a mask of shape {list(shape)} does not fit an axis of length {size}"
        raise error(ShapeError, name, problem, operands={"x": x.type})


@public
def insert(x: Any, obj: Any, values: Any, axis: int | None = None) -> DistributedArray:
    """`x` with `values` before the indices `obj` along `axis` (None: of the flattened array).

    obj: an int, a slice, integers or a mask: indices in `x` before anything is inserted. values:
        broadcast to the slices that are inserted, and cast to the dtype of `x`; RangeError (an
        OverflowError) and DtypeError are raised for Python numbers that it cannot hold.

    >>> gdt.insert([1, 2, 3], [1, 3], [8, 9]).tolist()
    [1, 8, 2, 3, 9]
    """
    x, _ = as_operands("insert", x=x, values=values)
    values = as_elements("insert", x, x.dtype, "values", values)
    x, at = along_axis_or_flat(x, axis)
    size = x.shape[at]
    places = _places(obj, size, "insert", x)
    if places.size == 1:
        if places.ndim == 0:  # as NumPy has it: the first axis of `values` is that of the slices
            values = moveaxis(with_rank(values, x.ndim), 0, at)
        count = values.shape[at - x.ndim] if values.ndim >= x.ndim - at else 1
        places = np.repeat(places.reshape(-1), count)
    values = broadcast_to(values, (*x.shape[:at], places.size, *x.shape[at + 1 :]))
    return _joined_rows([x, values], _order_of_insertion(size, places), at, "insert")


def _order_of_insertion(size: int, places: np.ndarray) -> np.ndarray:
    """The order of `size` elements and the inserted ones behind them, each before its place."""
    return np.argsort(np.concatenate([np.arange(size) + 0.5, places]), kind="stable")
