"""`x[...]`: NumPy's indexing of the global array, in any layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import FUNCTIONS, public
from gdt.errors import DtypeError, IndexRangeError, ShapeError, error
from gdt.ops.lookup import checked_indices
from gdt.ops.shapes import reshape, transpose
from gdt.ops.slicing import (
    Interval,
    _cut,
    cut,
    cut_of,
    cut_of_key,
    key_of,
    read_interval,
    with_all_axes,
)
from gdt.ops.taking import take_in_range
from gdt.settings import on_implicit_fetch
from gdt.sharding.array_type import ArrayType

__all__ = ["getitem"]


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
    key = key_of(index)
    if key is not None and type(x) is DistributedArray:
        how = cut_of_key(x.type, key)
        return x if how.is_whole else _cut(x, how=how)
    (x,) = as_operands("getitem", x=x)
    x, index = _with_axes_for_truths(x, index)
    entries = _entries(x.type, index)
    whole = [
        Interval(0, x.shape[axis], 1) if isinstance(e, DistributedArray) else e
        for e, axis in entries
    ]
    out = cut(x, cut_of(x.type, tuple(whole)))
    items = [e for e, _ in entries if not (isinstance(e, Interval) and e.drops)]
    arrays = {dim: e for dim, e in enumerate(items) if isinstance(e, DistributedArray)}
    return _advanced(out, arrays, _stands_first([e for e, _ in entries])) if arrays else out


def _with_axes_for_truths(x: DistributedArray, index: Any) -> tuple[DistributedArray, Any]:
    """Give a mask of rank 0 an axis of its own, of length 1, from which it takes all or nothing."""
    items = index if isinstance(index, tuple) else (index,)
    if not any(map(_is_truth, items)):
        return x, index
    used = [0 if _is_truth(item) else _axes_used(_item(x.type, item)) for item in items]
    new_axes: list[Any] = []
    for item, count in zip(items, used, strict=True):
        new_axes += [None] if _is_truth(item) else [...] if item is ... else [slice(None)] * count
    chosen = [np.arange(int(bool(i)), dtype=np.int64) if _is_truth(i) else i for i in items]
    return getitem(x, tuple(new_axes)), tuple(chosen)


def _is_truth(item: Any) -> bool:
    """Whether part of an index is a single truth value."""
    if isinstance(item, bool | np.bool_):
        return True
    return isinstance(item, np.ndarray | DistributedArray) and item.shape == () and _is_mask(item)


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


def _entries(array_type: ArrayType, index: Any) -> list[tuple[Entry, int]]:
    """One entry for every axis, and a None for every new axis, each beside its axis."""
    items = [_item(array_type, i) for i in (index if isinstance(index, tuple) else (index,))]
    entries: list[tuple[Entry, int]] = []
    for item, axis in with_all_axes(array_type, items, [_axes_used(i) for i in items]):
        if isinstance(item, int | slice):
            entries.append((read_interval(array_type, item, axis), axis))
        elif item is None:
            entries.append((None, axis))
        else:
            arrays = _index_arrays(array_type, item, axis)
            entries += [(array, axis + i) for i, array in enumerate(arrays)]
    return entries


def _item(array_type: ArrayType, item: Any) -> Any:
    """One part of an index: an int, a slice, `...`, None, or an array of integers or bools."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, DistributedArray):
        return item
    if isinstance(item, int | np.integer) and not isinstance(item, bool):
        return int(item)
    if isinstance(item, list | tuple | np.ndarray):
        array = np.asarray(item)
        array = (
            array.astype(np.int64)
            if array.size == 0 and not isinstance(item, np.ndarray)
            else array
        )
        if array.dtype.kind in "iub":
            return array
    raise error(
        DtypeError,
        "getitem",
        f"{item!r} is no index",
        operands={"x": array_type},
        remedy="Use ints, slices, `...`, None, arrays of integers, or masks.",
    )


def _axes_used(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return int(item.ndim) if _is_mask(item) else 1


def _is_mask(item: Any) -> bool:
    return isinstance(item, np.ndarray | DistributedArray) and item.dtype.kind == "b"


def _index_arrays(array_type: ArrayType, item: Any, axis: int) -> list[DistributedArray]:
    """The indices along axis `axis`, or along all axes that a mask covers."""
    if not _is_mask(item):
        return [checked_indices(array_type, item, axis, "getitem")]
    covered = array_type.shape[axis : axis + item.ndim]
    if item.shape != covered:
        raise error(
            IndexRangeError,
            "getitem",
            f"a mask of shape {list(item.shape)} does not fit axes of {list(covered)}",
            operands={"x": array_type},
        )
    if isinstance(item, DistributedArray):
        on_implicit_fetch(item.type)
        item = item.numpy()
    return [
        checked_indices(array_type, indices, axis + i, "getitem")
        for i, indices in enumerate(np.nonzero(item))
    ]
