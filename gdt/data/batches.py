"""Batches of rows of arrays, shuffled in the same way on every machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from gdt.arguments import checked_class
from gdt.data.files import Files, is_path, mapped_file
from gdt.errors import ArgumentError, ShapeError, error
from gdt.observe import met_host
from gdt.random.bits import key_from_seed, permutation
from gdt.state import Counter

HostArray: TypeAlias = npt.NDArray[Any]
Batch = TypeVar("Batch")
TAKEN_OUTSIDE = "Take it outside of the step, and pass its arrays as arguments."


@checked_class(eager=True)
class Batches(Generic[Batch]):
    """Batches of rows of arrays; each iteration is one epoch.

    arrays: one or more arrays of n rows. Each may be an array (also a memory-mapped one, which is
        read batch by batch), the path of a `.npy` file, or a list of such paths, whose rows follow
        one another; files are never read as a whole.
    batch_size: the number of rows of a batch. The last batch may have fewer.
    drop_remainder: whether to leave out a last batch with fewer rows.
    seed: shuffles the rows of every epoch differently, by `gdt.random.bits.permutation` with the
        number of the epoch as its stream; None keeps their order.
    place: a function of the arrays of a batch, whose result the iterator yields; by default the
        tuple of them. It may put a batch on a mesh:
        `place=lambda x, y: (gdt.asarray(x, layout=split), gdt.asarray(y, ...))`.

    The attribute `epoch` is the number of the next epoch; set it to continue a training. `key` is
    what the order of rows is drawn from, an int, or None.

    Raises ShapeError if the arrays differ in their rows, or if there would be no batch;
    ArgumentError for a batch size below 1.

    Batches are taken outside of recorded steps (`gdt.function`), and are their arguments.

    >>> batches = Batches(np.arange(5), np.arange(5) * 10, batch_size=2)
    >>> len(batches), [x.tolist() for x, y in batches]
    (3, [[0, 1], [2, 3], [4]])
    >>> shuffled = Batches(np.arange(5), batch_size=5, seed=0)
    >>> [x.tolist() for (x,) in shuffled], [x.tolist() for (x,) in shuffled]
    ([[4, 0, 3, 1, 2]], [[1, 3, 0, 4, 2]])
    """

    epoch = Counter()

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
        self.place: Callable[..., Batch] = place
        self.epoch = 0
        self.key = None if seed is None else int(key_from_seed(np, seed))

    def __len__(self) -> int:
        rows = len(self.arrays[0])
        return rows // self.batch_size if self.drop_remainder else -(-rows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        met_host("begin an epoch of batches", TAKEN_OUTSIDE)
        epoch, self.epoch = self.epoch, self.epoch + 1
        return Epoch(self, epoch)

    def order(self, epoch: int) -> npt.NDArray[np.int64] | None:
        """Return the rows of an epoch in their order; None where it is that of the arrays.

        >>> import numpy as np
        >>> gdt.data.Batches(np.arange(4), batch_size=2).order(0)
        """
        if self.key is None:
            return None
        rows: npt.NDArray[np.int64] = permutation(np, len(self.arrays[0]), self.key, epoch)
        return rows


class Epoch(Iterator[Batch]):
    """One pass over `batches`: epoch number `number`."""

    def __init__(self, batches: Batches[Batch], number: int) -> None:
        self.batches, self.number = batches, number
        self.order, self._next = batches.order(number), 0

    def __next__(self) -> Batch:
        met_host("take the next batch", TAKEN_OUTSIDE)  # first: a refused step takes none
        if self._next >= len(self.batches):  # more, at a position in longer data
            raise StopIteration
        start = self._next * self.batches.batch_size
        self._next += 1
        rows: Any = slice(start, start + self.batches.batch_size)
        if self.order is not None:
            rows = self.order[rows]
        return self.batches.place(*(array[rows] for array in self.batches.arrays))

    def get_state(self) -> dict[str, int | None]:
        """Return the number of the epoch, how many of its batches were taken, of how many rows, and
        the key of the order of rows, None where that is of the arrays."""
        return {
            "epoch": self.number,
            "next": self._next,
            "batch_size": self.batches.batch_size,
            "key": self.batches.key,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to the position that `get_state` returned; this epoch and those after it have the
        order of rows that it belongs to.

        Raises ArgumentError for a position inside an epoch of batches of another size."""
        size, count = state.get("batch_size", self.batches.batch_size), state["next"]
        is_inside = 0 < count * size < len(self.batches.arrays[0])
        if is_inside and size != self.batches.batch_size:
            raise error(
                ArgumentError,
                "Batches",
                f"the position is after {count} batches of {size} rows, and batches have "
                f"{self.batches.batch_size} rows",
                remedy="Go on with the same batch_size, or from the end of an epoch.",
            )
        self.number, self._next = state["epoch"], state["next"]
        self.batches.epoch = self.number + 1
        self.batches.key = state.get("key", self.batches.key)
        self.order = self.batches.order(self.number)


def _array(value: Any) -> HostArray:
    """Return `value` as a NumPy array, or as `Files`, which are read like one."""
    if is_path(value):
        return mapped_file(value)
    if isinstance(value, list | tuple) and value and all(map(is_path, value)):
        return Files(value)  # type: ignore[return-value]
    try:
        return np.asarray(value)
    except ValueError as cause:
        raise error(ShapeError, f"an argument is no array: {cause}") from None


def _check(arrays: tuple[HostArray, ...], batch_size: int, drop_remainder: bool) -> None:
    """Raise ShapeError or ArgumentError unless the arrays make at least one batch."""
    operands = {
        f"array {number}": f"{array.dtype}{list(array.shape)}"
        for number, array in enumerate(arrays)
    }
    if not arrays or any(array.ndim == 0 for array in arrays):
        raise error(ShapeError, "needs arrays with rows", operands=operands)
    rows = len(arrays[0])
    if any(len(array) != rows for array in arrays):
        raise error(ShapeError, "arrays differ in their rows", operands=operands)
    if batch_size < 1:
        raise error(ArgumentError, f"batch_size is {batch_size}", remedy="Pass 1 or more.")
    if rows == 0 or (drop_remainder and rows < batch_size):
        raise error(
            ShapeError,
            f"{rows} rows make no batch of {batch_size}",
            operands=operands,
            remedy="Pass a smaller batch_size, or drop_remainder=False.",
        )
