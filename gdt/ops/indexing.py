"""`x[...]`: NumPy's indexing of the global array, in any layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gdt.array import FUNCTIONS, DistributedArray
from gdt.errors import DtypeError, IndexRangeError, ShapeError, error
from gdt.layout import ArrayType
from gdt.op import as_operands, public
from gdt.ops.intervals import move_intervals
from gdt.ops.lookup import checked_indices
from gdt.ops.shapes import reshape, transpose
from gdt.ops.taking import take_in_range
from gdt.policy import on_implicit_fetch
from gdt.recut import Piece


class Interval(NamedTuple):
    """Elements `start, start + step, ...` of an axis; an int takes one and drops the axis."""

    start: int
    length: int
    step: int
    drops: bool = False


Entry = Interval | DistributedArray | None  # what one axis is indexed with; None makes a new axis


@public
def getitem(x: Any, index: Any) -> DistributedArray:
    """`x[index]` with NumPy's meaning; every form of `index` that NumPy has.

    - Ints, slices, `...` and None: axes stay split as they are; an axis that an int drops sends
      only the one row. Axes that are not split give views.
    - Arrays of integers: `gdt.take`; several of them select element by element.
    - Boolean masks: the size of the result depends on the mask's values, so the mask is fetched to
      the host (see `gdt.implicit_fetch`), and its true positions are taken. `gdt.where` and sums
      over `x * mask` need no fetch.

    Raises IndexRangeError for an index outside its axis, or too many of them.

    >>> x = gdt.asarray([[1, 2, 3], [4, 5, 6]])
    >>> x[1].tolist(), x[:, ::-2].tolist(), x[..., [0, 0, 2]].tolist()
    ([4, 5, 6], [[3, 1], [6, 4]], [[1, 1, 3], [4, 4, 6]])
    >>> x[x > 4].tolist()
    [5, 6]
    """
    (x,) = as_operands("getitem", x=x)
    entries = _entries(x, index)
    out = _basic(x, [e for e in entries if e is not None])
    shape, arrays, dim = [], {}, 0
    for entry in entries:
        if entry is None:
            shape.append(1)
            continue
        if isinstance(entry, DistributedArray):
            arrays[len(shape)] = entry
        if not (isinstance(entry, Interval) and entry.drops):
            shape.append(out.shape[dim])
        dim += 1
    if tuple(shape) != out.shape:
        out = reshape(out, tuple(shape))
    return _advanced(out, arrays, _stands_first(entries)) if arrays else out


def _basic(x: DistributedArray, entries: Sequence[Entry]) -> DistributedArray:
    """Cut every axis to its interval; whole axes first, so that less is sent along the others."""
    for dim in sorted(range(x.ndim), key=lambda d: bool(x.layout.dims[d])):
        entry = entries[dim]
        if not isinstance(entry, Interval):
            continue
        start, count, step, drops = entry
        if drops or (start, count, step) != (0, x.shape[dim], 1):
            piece = Piece(0, start, 0, count, step)
            whole = () if drops and x.layout.dims[dim] else None
            x = move_intervals([x], dim, [piece], count, axes=whole)
    return x


def _stands_first(entries: Sequence[Entry]) -> bool:
    """Whether arrays and ints are separated by other entries: then NumPy puts their axes first."""
    points = [
        i
        for i, e in enumerate(entries)
        if isinstance(e, DistributedArray) or (isinstance(e, Interval) and e.drops)
    ]
    return points[-1] - points[0] >= len(points)


def _advanced(
    x: DistributedArray, arrays: dict[int, DistributedArray], first: bool
) -> DistributedArray:
    """Index the axes `arrays` of `x` with integer arrays that broadcast against each other."""
    dims = list(arrays)
    at = dims[0]
    if len(arrays) == 1:
        indices = arrays[at]
    else:
        # The indexed axes become one axis, and so do their indices.
        rest = [d for d in range(x.ndim) if d not in arrays]
        at = sum(d < dims[0] for d in rest)
        sizes = [x.shape[d] for d in dims]
        x = transpose(x, (*rest[:at], *dims, *rest[at:]))
        x = reshape(x, (*x.shape[:at], math.prod(sizes), *x.shape[at + len(dims) :]))
        indices = _flat_index(list(arrays.values()), sizes)
    out: DistributedArray = take_in_range(x, indices, axis=at)
    if first and at:
        points = range(at, at + indices.ndim)
        others = [d for d in range(out.ndim) if d not in points]
        out = transpose(out, (*points, *others))
    return out


def _flat_index(arrays: Sequence[DistributedArray], sizes: Sequence[int]) -> DistributedArray:
    """Indices along the axes of these sizes as one index along all of them."""
    where = FUNCTIONS["where"]
    flat: Any = 0
    for array, size in zip(arrays, sizes, strict=True):
        wide = array.astype(np.int64)
        try:
            flat = flat * size + where(wide < 0, wide + size, wide)
        except ShapeError:
            shapes = ", ".join(str(list(a.shape)) for a in arrays)
            raise error(
                IndexRangeError, "getitem", f"index arrays of shapes {shapes} do not broadcast"
            ) from None
    result: DistributedArray = flat
    return result


# ---------------------------------------------------------------- reading an index


def _entries(x: DistributedArray, index: Any) -> list[Entry]:
    """One entry per axis of `x`, and a None for every new axis."""
    given = list(index) if isinstance(index, tuple) else [index]
    items = [_item(x.type, i) for i in given]
    used = sum(_axes_used(i) for i in items)
    dots = [n for n, i in enumerate(items) if i is Ellipsis]
    if len(dots) > 1:
        raise error(
            IndexRangeError, "getitem", "an index has one `...` at most", operands={"x": x.type}
        )
    if used > x.ndim:
        raise error(
            IndexRangeError,
            "getitem",
            f"{used} indices are too many for rank {x.ndim}",
            operands={"x": x.type},
        )
    at = dots[0] if dots else len(items)
    items[at : at + len(dots)] = [slice(None)] * (x.ndim - used)
    entries: list[Entry] = []
    axis = 0
    for item in items:
        if item is None:
            entries.append(None)
            continue
        entries += _read(x, item, axis)
        axis += _axes_used(item)
    return entries


def _item(kind: ArrayType, item: Any) -> Any:
    """One part of an index: an int, a slice, `...`, None, or an array of integers or bools."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, DistributedArray) and (item.ndim or item.dtype.kind != "b"):
        return item
    if isinstance(item, int | np.integer) and not isinstance(item, bool):
        return int(item)
    if isinstance(item, list | tuple | np.ndarray | np.bool_ | bool):
        array = np.asarray(item)
        array = (
            array.astype(np.int64)
            if array.size == 0 and not isinstance(item, np.ndarray)
            else array
        )
        if array.dtype.kind in "iu" or (array.dtype.kind == "b" and array.ndim):
            return array
    raise error(
        DtypeError,
        "getitem",
        f"{item!r} is no index",
        operands={"x": kind},
        remedy="Use ints, slices, `...`, None, arrays of integers, or masks of rank 1 or more.",
    )


def _axes_used(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return int(item.ndim) if _is_mask(item) else 1


def _is_mask(item: Any) -> bool:
    return isinstance(item, np.ndarray | DistributedArray) and item.dtype.kind == "b"


def _read(x: DistributedArray, item: Any, axis: int) -> list[Entry]:
    """The entries of axis `axis`, or of those that a mask covers."""
    size = x.shape[axis]
    if isinstance(item, slice):
        try:
            start, stop, step = item.indices(size)
        except (TypeError, ValueError) as e:
            raise error(
                DtypeError, "getitem", f"{item!r} is no slice: {e}", operands={"x": x.type}
            ) from None
        return [Interval(start, len(range(start, stop, step)), step)]
    if isinstance(item, int):
        if not -size <= item < size:
            raise error(
                IndexRangeError,
                "getitem",
                f"index {item} is out of range for axis {axis} of size {size}",
                operands={"x": x.type},
            )
        return [Interval(item % size, 1, 1, drops=True)]
    if not _is_mask(item):
        return [checked_indices(x, item, axis, "getitem")]
    covered = x.shape[axis : axis + item.ndim]
    if item.shape != covered:
        raise error(
            IndexRangeError,
            "getitem",
            f"a mask of shape {list(item.shape)} does not fit axes of {list(covered)}",
            operands={"x": x.type},
        )
    if isinstance(item, DistributedArray):
        on_implicit_fetch(item.type)
        item = item.numpy()
    return [
        checked_indices(x, found, axis + i, "getitem") for i, found in enumerate(np.nonzero(item))
    ]
