"""Changed copies of an array, by the elements that an index names: `x.at[index].set(value)`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from gdt.array.registry import FUNCTIONS

ArrayT = TypeVar("ArrayT")  # DistributedArray, whose module imports this one


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
        elements: ArrayT = FUNCTIONS["getitem"](self.array, self.index)
        return elements

    def _updated(self, value: Any, how: str) -> ArrayT:
        array: ArrayT = FUNCTIONS["update_at"](self.array, value, self.index, how)
        return array

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
