"""Python's own protocols of arrays: elements as Python's numbers, and arrays as sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.errors import ArgumentError, DtypeError, IndexRangeError, ShapeError, error
from gdt.observe import OBSERVERS
from gdt.sharding import processes


class PythonProtocols:
    """The methods of a `DistributedArray` that Python calls, or that return Python's numbers."""

    __slots__ = ()

    @checked
    def item(self: Any, *index: Any) -> Any:
        """One element as a Python scalar; without `index`, the only one.

        index: an int for each axis, one by one or in a tuple, or one int for the place of the
            element in row-major order. Raises ArgumentError (a TypeError and a ValueError) for an
            array of several elements without `index`, IndexRangeError for an index that it lacks.
        """
        if len(index) == 1 and isinstance(index[0], tuple):
            (index,) = index
        if index:
            return self[index if len(index) > 1 else _unravelled(index[0], self)].item()
        if self.size != 1:
            problem = f"an array of {self.size} elements is no scalar"
            raise error(ArgumentError, problem, operands={"x": self.type})
        for observer in OBSERVERS.get():
            observer.on_item(self)
        return self.numpy().reshape(()).item()

    @checked
    def tolist(self: Any) -> Any:
        """The global array as nested lists of Python scalars."""
        for observer in OBSERVERS.get():
            observer.on_item(self)
        return self.numpy().tolist()

    @checked
    def tobytes(self: Any) -> bytes:
        """The bytes of the global array, row-major."""
        return bytes(self)

    @checked
    def tofile(self: Any, fid: Any, sep: str = "", format: str = "%s") -> None:
        """Write the elements into a file, row-major, as NumPy's arrays do; `gdt.fromfile` reads
        them. Of several processes the first one writes."""
        values = self.numpy()
        if processes.current().index == 0:
            values.tofile(fid, sep, format)

    def __float__(self: Any) -> float:
        return float(self.item())

    def __int__(self: Any) -> int:
        return int(self.item())

    def __complex__(self: Any) -> complex:
        return complex(self.item())

    def __index__(self: Any) -> int:
        if self.dtype.kind not in "iu" or self.ndim:
            raise error(
                DtypeError,
                "index",
                "only an integer of rank 0 is an index",
                operands={"x": self.type},
            )
        return int(self.item())

    def __bool__(self: Any) -> bool:
        if self.size != 1:
            raise error(
                ShapeError,
                "bool",
                f"the truth of an array of {self.size} elements is ambiguous",
                operands={"x": self.type},
                remedy="Use gdt.any(x) or gdt.all(x).",
            )
        return bool(self.item())

    def __len__(self: Any) -> int:
        if not self.shape:
            raise error(
                DtypeError, "len", "an array of rank 0 has no length", operands={"x": self.type}
            )
        return int(self.shape[0])

    def __iter__(self: Any) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __contains__(self: Any, value: object) -> bool:
        return bool((self == value).any())

    def __round__(self: Any, decimals: int | None = None) -> Any:
        """`round(x, 2)` is `gdt.round`; `round(x)` of rank 0 an int, as Python's numbers have
        it."""
        if decimals is None and self.ndim == 0:
            return round(self.item())
        return self.round(decimals or 0)

    def __format__(self: Any, spec: str) -> str:
        if self.ndim and spec:
            problem, remedy = f"{spec!r} is a format of one number", "Set gdt.printoptions instead."
            raise error(DtypeError, "format", problem, operands={"x": self.type}, remedy=remedy)
        return format(self.numpy().item(), spec) if spec else str(self)

    def __bytes__(self: Any) -> bytes:
        value: np.ndarray = self.numpy()
        return value.tobytes()


def _unravelled(index: int, x: Any) -> tuple[int, ...]:
    if not -x.size <= index < x.size:
        raise error(IndexRangeError, f"index {index} is out of range for {x.size} elements")
    return tuple(int(i) for i in np.unravel_index(index % x.size, x.shape))
