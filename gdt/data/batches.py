"""Batches of arrays that share their first axis, shuffled the same way on every machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from gdt.arguments import checked_class
from gdt.errors import ArgumentError, ShapeError, error
from gdt.random.bits import key_from_seed, permutation

HostArray: TypeAlias = npt.NDArray[Any]
Batch = TypeVar("Batch")


@checked_class(eager=True)
class Batches(Generic[Batch]):
    """Tuples of equal slices of arrays; each `iter` is the next epoch.

    arrays: at least one, all with n rows. A batch holds `batch_size` rows of each; the last one may
    hold fewer, or is left out with `drop_remainder`.
    seed: shuffles every epoch anew, by `gdt.random.bits.permutation` with the epoch as its stream;
    None keeps the order. `epoch` counts the epochs begun, and may be set to continue a training.
    place: called with the arrays of a batch, its result is what the iterator yields. It is where a
    batch goes to a mesh: `place=lambda x, y: (gdt.asarray(x, layout=split), gdt.asarray(y, ...))`.

    Error: ShapeError if rows differ, or if there would be no batch.

    >>> batches = Batches(np.arange(5), np.arange(5) * 10, batch_size=2)
    >>> len(batches), [x.tolist() for x, y in batches]
    (3, [[0, 1], [2, 3], [4]])
    >>> shuffled = Batches(np.arange(5), batch_size=5, seed=0)
    >>> [x.tolist() for (x,) in shuffled], [x.tolist() for (x,) in shuffled]
    ([[4, 0, 3, 1, 2]], [[1, 3, 0, 4, 2]])
    """

    @overload
    def __init__(
        self: Batches[tuple[HostArray, ...]],
        *arrays: npt.ArrayLike,
        batch_size: int,
        seed: int | None = None,
        drop_remainder: bool = False,
    ) -> None: ...

    @overload
    def __init__(
        self,
        *arrays: npt.ArrayLike,
        batch_size: int,
        seed: int | None = None,
        drop_remainder: bool = False,
        place: Callable[..., Batch],
    ) -> None: ...

    def __init__(
        self,
        *arrays: npt.ArrayLike,
        batch_size: int,
        seed: int | None = None,
        drop_remainder: bool = False,
        place: Callable[..., Any] = lambda *arrays: arrays,
    ) -> None:
        self.arrays = tuple(map(_array, arrays))
        _check(self.arrays, batch_size, drop_remainder)
        self.batch_size = batch_size
        self.drop_remainder = drop_remainder
        self.place = place
        self.epoch = 0
        self._key = None if seed is None else key_from_seed(np, seed)

    def __len__(self) -> int:
        rows = len(self.arrays[0])
        return rows // self.batch_size if self.drop_remainder else -(-rows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        if self._key is None:
            return self._in_order()
        return self._shuffled(permutation(np, len(self.arrays[0]), self._key, epoch))

    def _in_order(self) -> Iterator[Batch]:
        for rows in self._slices():
            yield self.place(*(array[rows] for array in self.arrays))

    def _shuffled(self, order: npt.NDArray[np.int64]) -> Iterator[Batch]:
        for rows in self._slices():
            yield self.place(*(array[order[rows]] for array in self.arrays))

    def _slices(self) -> Iterator[slice]:
        for number in range(len(self)):
            yield slice(number * self.batch_size, (number + 1) * self.batch_size)


def _array(given: npt.ArrayLike) -> HostArray:
    try:
        return np.asarray(given)
    except ValueError as cause:
        raise error(ShapeError, "Batches", f"an argument is no array: {cause}") from None


def _check(arrays: tuple[HostArray, ...], batch_size: int, drop_remainder: bool) -> None:
    operands = {
        f"array {number}": f"{array.dtype}{list(array.shape)}"
        for number, array in enumerate(arrays)
    }
    if not arrays or any(array.ndim == 0 for array in arrays):
        raise error(ShapeError, "Batches", "needs arrays with rows", operands=operands)
    rows = len(arrays[0])
    if any(len(array) != rows for array in arrays):
        raise error(ShapeError, "Batches", "arrays differ in their rows", operands=operands)
    if batch_size < 1:
        raise error(
            ArgumentError, "Batches", f"batch_size is {batch_size}", remedy="Pass 1 or more."
        )
    if rows == 0 or (drop_remainder and rows < batch_size):
        raise error(
            ShapeError,
            "Batches",
            f"{rows} rows make no batch of {batch_size}",
            operands=operands,
            remedy="Pass a smaller batch_size, or drop_remainder=False.",
        )
