"""Objects that are indexed to make arrays and indices: `gdt.r_[1:3, 7]`, `gdt.mgrid[:2, :3]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import index_exp, s_

from gdt.array.array import DistributedArray
from gdt.ops.creation import asarray
from gdt.ops.joining import concat
from gdt.ops.shapes import reshape

__all__ = ["c_", "index_exp", "mgrid", "ogrid", "r_", "s_"]


class Indexed:
    """An object whose items a function of the index makes."""

    def __init__(self, item: Callable[[Any], Any], text: str) -> None:
        self.item, self.__doc__ = item, text

    def __getitem__(self, index: Any) -> Any:
        return self.item(index)


def _parts(index: Any) -> list[DistributedArray]:
    """The parts of an index as arrays: slices as the numbers that they count."""
    items = index if isinstance(index, tuple) else (index,)
    return [i if isinstance(i, DistributedArray) else asarray(np.r_[i]) for i in items]


def _rows(index: Any) -> DistributedArray:
    parts = [x if x.ndim else reshape(x, (1,)) for x in _parts(index)]
    return concat(parts) if len(parts) > 1 else parts[0]


def _columns(index: Any) -> DistributedArray:
    parts = [x if x.ndim > 1 else reshape(x, (-1, 1)) for x in _parts(index)]
    return concat(parts, axis=-1) if len(parts) > 1 else parts[0]


r_ = Indexed(
    _rows,
    """Arrays, numbers and slices end to end along the first axis, as `numpy.r_`.

    >>> gdt.r_[1:3, 7].tolist()
    [1, 2, 7]
    """,
)
c_ = Indexed(
    _columns,
    """Arrays, numbers and slices as columns side by side, as `numpy.c_`.

    >>> gdt.c_[gdt.arange(2), gdt.ones(2)].tolist()
    [[0.0, 1.0], [1.0, 1.0]]
    """,
)
mgrid = Indexed(
    lambda index: asarray(np.mgrid[index]),
    """Dense grids, as `numpy.mgrid`.

    >>> gdt.mgrid[:2, :2].tolist()
    [[[0, 0], [1, 1]], [[0, 1], [0, 1]]]
    """,
)
ogrid = Indexed(
    lambda index: (
        tuple([asarray(part) for part in np.ogrid[index]])
        if isinstance(index, tuple)
        else asarray(np.ogrid[index])
    ),
    """Open grids, as `numpy.ogrid`.

    >>> [part.tolist() for part in gdt.ogrid[:2, :2]]
    [[[0], [1]], [[0, 1]]]
    """,
)
