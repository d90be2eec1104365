"""`x[...]`: NumPy's indexing of the global array, in any layout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.dlpack import imported
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.array.views import ELEMENT, shown
from gdt.backend.cupy import on_gpu
from gdt.errors import IndexRangeError, IndexTypeError, ShapeError, error
from gdt.ops.comparison import where
from gdt.ops.lookup import checked_indices
from gdt.ops.masks import masked, nonzero
from gdt.ops.movement import alias
from gdt.ops.shapes import reshape, transpose
from gdt.ops.slicing import (
    BasicIndex,
    Interval,
    _cut,
    _view,
    cut,
    cut_of,
    cut_of_key,
    key_of,
    read_interval,
    with_all_axes,
)
from gdt.ops.taking import rows_at
from gdt.sharding.array_type import ArrayType

__all__: list[str] = []  # `getitem_` is public as `getitem`, see gdt/functions/builtin_names.py


Entry = Interval | DistributedArray | None  # what one axis is indexed with; None makes a new axis


@public
def getitem_(x: Any, index: Any) -> DistributedArray:
    """`x[index]` with NumPy's meaning; every form of `index` that NumPy has.

    - Ints, slices, `...` and None: a view; axes stay split as they are, and an axis that an int
      drops sends only the one row. Ints for all axes take an element, a value of its own.
    - Arrays of integers: `gdt.take`; several of them select element by element.
    - Boolean masks: the size of the result depends on the mask's values, so the devices' counts of
      true elements are gathered, and a step that `gdt.function` records cannot do so; `gdt.where`
      and sums over `x * mask` need no counts.

    Raises IndexRangeError for an index outside its axis, or too many of them; IndexTypeError (an
    IndexError too) for a value that is no index.

    >>> x = gdt.asarray([[1, 2, 3], [4, 5, 6]])
    >>> x[1].tolist(), x[:, ::-2].tolist(), x[..., [0, 0, 2]].tolist()
    ([4, 5, 6], [[3, 1], [6, 4]], [[1, 1, 3], [4, 4, 6]])
    >>> x[x > 4].tolist()
    [5, 6]
    >>> x[0][1:] = 0
    >>> x.tolist()
    [[1, 0, 0], [4, 5, 6]]
    """
    (x,) = as_operands("getitem", x=x)
    if key_of(index) is not None:
        return _getitem(x, index)
    out, region = _indexed(x, index)
    if region is None:
        return out
    if out.ndim or _has_dots(index):
        return shown(x, out, (("getitem", region.entries),))
    out._shared = ELEMENT
    return out


def _getitem(x: DistributedArray, index: Any) -> DistributedArray:
    """`x[index]`; without a look at the arguments, which takes longer, for an index of ints, slices
    of ints, `...` and None."""
    key = key_of(index)
    if key is None:
        return getitem_(x, index)
    how = cut_of_key(x.type, key)
    if how.out.shape or Ellipsis in key:
        return _view(x, how=how)
    out = _cut(x, how=how)
    out._shared = ELEMENT
    return out


DistributedArray.__getitem__ = _getitem  # without a frame between


def getitem(x: Any, index: Any) -> DistributedArray:
    """`getitem_`, for functions that write to no array: the result is no view."""
    key = key_of(index)
    if key is not None and type(x) is DistributedArray:
        how = cut_of_key(x.type, key)
        return alias(x) if how.is_whole else _cut(x, how=how)
    (x,) = as_operands("getitem", x=x)
    return _indexed(x, index)[0]


def _has_dots(index: Any) -> bool:
    return any(item is Ellipsis for item in (index if isinstance(index, tuple) else (index,)))


def _indexed(x: DistributedArray, index: Any) -> tuple[DistributedArray, BasicIndex | None]:
    """`x[index]`, and the cut of an index that is one and nothing else."""
    if isinstance(index, DistributedArray) and _is_mask(index) and index.ndim and index.size:
        _check_mask(x.type, index, 0)
        return masked(*as_operands("getitem", x=x, mask=index)), None
    x, index = with_axes_for_truths(x, index)
    how, arrays, first = read_index(x.type, index)
    out = cut(x, how)
    if not arrays:
        return alias(out) if out is x else out, how
    indexed = IndexedAxes(out, arrays, first)
    return indexed.in_place(rows_at(indexed.merged(out), indexed.indices, axis=indexed.at)), None


def read_index(
    array_type: ArrayType, index: Any
) -> tuple[BasicIndex, dict[int, DistributedArray], bool]:
    """The parts of an index: the cut that its ints, slices and Nones make, the arrays of integers
    by the axis of the result of the cut that they index, and whether their axes go in front."""
    listed = [_item(array_type, i) for i in (index if isinstance(index, tuple) else (index,))]
    entries = _entries(array_type, listed)
    whole = [
        Interval(0, array_type.shape[axis], 1) if isinstance(e, DistributedArray) else e
        for e, axis in entries
    ]
    items = [e for e, _ in entries if not (isinstance(e, Interval) and e.drops)]
    arrays = {dim: e for dim, e in enumerate(items) if isinstance(e, DistributedArray)}
    first = bool(arrays) and _stands_first(listed)
    return cut_of(array_type, tuple(whole)), arrays, first


def with_axes_for_truths(x: DistributedArray, index: Any) -> tuple[DistributedArray, Any]:
    """Give a mask of rank 0 an axis of its own, of length 1, from which it takes all or nothing."""
    items = index if isinstance(index, tuple) else (index,)
    if not any(map(_is_truth, items)):
        return x, index
    counts = [0 if _is_truth(item) else _axes_used(_item(x.type, item)) for item in items]
    new_axes: list[Any] = []
    for item, count in zip(items, counts, strict=True):
        new_axes += [None] if _is_truth(item) else [...] if item is ... else [slice(None)] * count
    index_items = [np.arange(int(bool(i)), dtype=np.int64) if _is_truth(i) else i for i in items]
    return getitem(x, tuple(new_axes)), tuple(index_items)


def _is_truth(item: Any) -> bool:
    """Whether part of an index is a single truth value."""
    if isinstance(item, bool | np.bool_):
        return True
    return isinstance(item, np.ndarray | DistributedArray) and item.shape == () and _is_mask(item)


def _stands_first(items: Sequence[Any]) -> bool:
    """Whether arrays and ints are separated by other items, be it a `...` that stands for no axis:
    then NumPy puts their axes first."""
    separators = (type(None), type(...), slice)
    points = [i for i, item in enumerate(items) if not isinstance(item, separators)]
    return points[-1] - points[0] >= len(points)


class IndexedAxes:
    """The axes `arrays` of an array, which integer arrays index that broadcast against each other,
    as one axis.

    at: the place of that axis. indices: the index along it. first: whether NumPy puts the axes of
    the index in front of a result.
    """

    def __init__(
        self, x: DistributedArray, arrays: Mapping[int, DistributedArray], first: bool
    ) -> None:
        self.dims, self.shape = list(arrays), x.shape
        self.at = self.dims[0]
        self.rest = [d for d in range(x.ndim) if d not in arrays]
        if len(arrays) == 1:
            self.indices = arrays[self.at]
        else:
            self.at = sum(d < self.dims[0] for d in self.rest)
            self.indices = _flat_index(list(arrays.values()), [x.shape[d] for d in self.dims])
        self.first = first and self.at > 0

    @property
    def _order(self) -> list[int]:
        """The axes in an order in which the indexed ones are neighbours."""
        return [*self.rest[: self.at], *self.dims, *self.rest[self.at :]]

    def merged(self, x: DistributedArray) -> DistributedArray:
        """The array with the indexed axes as one axis, `at`."""
        if len(self.dims) == 1:
            return x
        x = transpose(x, tuple(self._order))
        stop = self.at + len(self.dims)
        size = math.prod(x.shape[self.at : stop])
        return reshape(x, (*x.shape[: self.at], size, *x.shape[stop:]))

    def parted(self, x: DistributedArray) -> DistributedArray:
        """The inverse of `merged`."""
        if len(self.dims) == 1:
            return x
        order = self._order
        x = reshape(x, tuple([self.shape[d] for d in order]))
        return transpose(x, tuple(np.argsort(order).tolist()))

    def in_place(self, rows: DistributedArray) -> DistributedArray:
        """The result of taking along the axis `at`, with its axes where NumPy has them."""
        if not self.first:
            return rows
        points = range(self.at, self.at + self.indices.ndim)
        others = [d for d in range(rows.ndim) if d not in points]
        return transpose(rows, (*points, *others))

    def from_place(self, values: DistributedArray) -> DistributedArray:
        """The inverse of `in_place`."""
        if not self.first:
            return values
        points, rank = range(self.indices.ndim), values.ndim
        others = range(self.indices.ndim, rank)
        order = [*others[: self.at], *points, *others[self.at :]]
        return transpose(values, tuple(order))


def _flat_index(arrays: Sequence[DistributedArray], sizes: Sequence[int]) -> DistributedArray:
    """Indices along the axes of these sizes as one index along all of them."""
    flat: Any = 0
    for array, size in zip(arrays, sizes, strict=True):
        wide = array.astype(np.int64)
        try:
            flat = flat * size + where(wide < 0, wide + size, wide)
        except ShapeError:
            shapes = ", ".join(str(list(a.shape)) for a in arrays)
            raise error(
                IndexRangeError, f"index arrays of shapes {shapes} do not broadcast"
            ) from None
    result: DistributedArray = flat
    return result


# ---------------------------------------------------------------- reading an index


def _entries(array_type: ArrayType, items: Sequence[Any]) -> list[tuple[Entry, int]]:
    """One entry for every axis, and a None for every new axis, each beside its axis."""
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
    if hasattr(item, "__dlpack__") and not isinstance(item, np.ndarray) and not on_gpu(item):
        item = imported(item, "getitem")
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
        IndexTypeError,
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
    _check_mask(array_type, item, axis)
    if isinstance(item, DistributedArray):
        return list(nonzero(item))
    return [
        checked_indices(array_type, indices, axis + i, "getitem")
        for i, indices in enumerate(np.nonzero(item))
    ]


def _check_mask(array_type: ArrayType, mask: Any, axis: int) -> None:
    """Raise IndexRangeError unless a mask has the sizes of the axes from `axis` on that it covers;
    a size of 0 fits any axis, as in NumPy."""
    covered = array_type.shape[axis : axis + mask.ndim]
    if len(covered) < mask.ndim or any(
        n not in (size, 0) for n, size in zip(mask.shape, covered, strict=True)
    ):
        raise error(
            IndexRangeError,
            f"a mask of shape {list(mask.shape)} does not fit axes of {list(covered)}",
            operands={"x": array_type},
        )
