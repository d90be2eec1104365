"""Changed copies of an array, by the elements that an index names: `x.at[index].set(value)`; and
its elements in one row, which an index reads and writes: `x.flat`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from gdt.array.operators import ArrayMethods
from gdt.array.registry import FUNCTIONS
from gdt.errors import IndexRangeError, IndexTypeError, error

ArrayT = TypeVar("ArrayT", bound=ArrayMethods)  # DistributedArray, whose module imports this one


class IndexedUpdates(Generic[ArrayT]):
    """The value of `x.at`: `x.at[index]` has a method for each way to change the elements that the
    index names.

    >>> x = gdt.zeros(3)
    >>> x.at[[0, 0, 2]].add(1.0).tolist(), x.tolist()
    ([2.0, 0.0, 1.0], [0.0, 0.0, 0.0])
    """

    __slots__ = ("array",)

    def __init__(self, array: ArrayT) -> None:
        self.array = array

    def __getitem__(self, index: Any) -> IndexedElements[ArrayT]:
        return IndexedElements(self.array, index)


class IndexedElements(Generic[ArrayT]):
    """The elements of an array that an index names: each method but `get` returns the whole array,
    with these elements changed. Follows `jax.numpy.ndarray.at`."""

    __slots__ = ("array", "index")

    def __init__(self, array: ArrayT, index: Any) -> None:
        self.array, self.index = array, index

    def get(self) -> ArrayT:
        """The elements: `x[index]`."""
        return self.array[self.index]

    def _updated(self, value: Any, how: str) -> ArrayT:
        return self.array._updated(value, self.index, how)

    def set(self, value: Any) -> ArrayT:
        """The array with `value` there; of several values for an element the last."""
        return self._updated(value, "set")

    def add(self, value: Any) -> ArrayT:
        """The array with `value` added there."""
        return self._updated(value, "add")

    def subtract(self, value: Any) -> ArrayT:
        """The array with `value` subtracted there."""
        return self._updated(value, "subtract")

    def multiply(self, value: Any) -> ArrayT:
        """The array multiplied by `value` there."""
        return self._updated(value, "multiply")

    def divide(self, value: Any) -> ArrayT:
        """The array divided by `value` there."""
        return self._updated(value, "divide")

    def min(self, value: Any) -> ArrayT:
        """The array with the smaller of an element and `value` there."""
        return self._updated(value, "min")

    def max(self, value: Any) -> ArrayT:
        """The array with the larger of an element and `value` there."""
        return self._updated(value, "max")


class FlatIterator(Generic[ArrayT]):
    """The value of `x.flat`: the elements of `x` in row-major order, read and written.

    `x.flat[i]` reads one element where it is; a slice, a mask or an index array is taken of
    `x.reshape(-1)`. What is written through it gives `x` new blocks, as `x[i] = value` does; fewer
    values than elements repeat, and none change nothing. Follows `numpy.flatiter`, but that a loop
    begins at the start.

    >>> x = gdt.asarray([[1, 2], [3, 4]])
    >>> x.flat[2:] = [0, 9]
    >>> int(x.flat[3]), [int(v) for v in x.flat]
    (9, [1, 2, 0, 9])
    """

    __slots__ = ("base",)

    def __init__(self, base: ArrayT) -> None:
        self.base = base

    def __len__(self) -> int:
        return int(self.base.size)  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[ArrayT]:
        return iter(self.copy())  # type: ignore[arg-type]

    def copy(self) -> ArrayT:
        """The elements as an array of rank 1."""
        return self.base.flatten()

    def __getitem__(self, index: Any) -> ArrayT:
        place = self._place(index)
        return self.copy()[index] if place is None else self.base[place]

    def __setitem__(self, index: Any, value: Any) -> None:
        base: Any = self.base
        if index is Ellipsis or (isinstance(index, slice) and index == slice(None)):
            if np.size(value):
                base[...] = np.resize(value, base.shape)
            return
        place = self._place(index)
        if place is not None:
            base[place] = value
            return
        if isinstance(index, slice):
            index = FUNCTIONS["arange"](*index.indices(len(self)), device=base.mesh)
        elif np.dtype(getattr(index, "dtype", np.asarray(index).dtype)) == bool:
            shape = np.shape(index)
            if shape != (len(self),):
                problem = f"a mask of shape {list(shape)} cannot choose from {len(self)} elements"
                raise error(IndexRangeError, "flat", problem, operands={"x": base.type})
            index = np.flatnonzero(index)
        base.put(index, value)

    def _place(self, index: Any) -> tuple[int, ...] | None:
        """The indices along all axes of an element that an int names; None for another index, and
        for one out of range. Raises IndexTypeError for an index that vectors have, and `flat` not.
        """
        size, shape = len(self), self.base.shape  # type: ignore[attr-defined]
        if index is None or isinstance(index, tuple | bool | np.bool_):
            problem, remedy = f"{index!r} is no index", "Use ints, slices, index arrays, or masks."
            raise error(IndexTypeError, "flat", problem, remedy=remedy)
        if not isinstance(index, int | np.integer) or not -size <= index < size:
            return None
        return tuple(int(i) for i in np.unravel_index(index % size, shape))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.copy(), dtype, copy=copy)
