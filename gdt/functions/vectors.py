"""Products of vectors along an axis, and transposes of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.output import writes_out
from gdt.array.registry import public
from gdt.errors import ShapeError, error
from gdt.ops.axes import checked_axis
from gdt.ops.elementwise import conj
from gdt.ops.products.op import contract_labels
from gdt.ops.rearranging import moveaxis, roll

__all__ = ["cross", "matrix_transpose", "vecdot"]


def _checked_lengths(x: DistributedArray, w: DistributedArray, axis: int) -> None:
    lengths = [a.shape[checked_axis(a.type, axis)] for a in (x, w)]
    if lengths[0] != lengths[1]:
        problem = f"axis {axis} is {lengths[0]} in x but {lengths[1]} in w"
        raise error(ShapeError, problem, operands={"x": x.type, "w": w.type})


@public
@writes_out
def vecdot(
    x: Any, w: Any, out: DistributedArray | None = None, *, axis: int = -1
) -> DistributedArray:
    """Scalar products of vectors along an axis, with the complex conjugate of `x`.

    x, w: arrays that broadcast, of one length along `axis`; result: without that axis. Over a split
    axis each device sums its part, and the result stays a partial sum until it is needed.

    Raises AxisError for an axis that an operand does not have, ShapeError for other lengths.

    >>> gdt.vecdot([[1.0, 2.0], [3.0, 4.0]], [1.0, 10.0]).tolist()
    [21.0, 43.0]
    """
    x, w = as_operands("vecdot", x=x, w=w)
    _checked_lengths(x, w, axis)
    if axis not in (-1,):
        x, w = moveaxis(x, axis, -1), moveaxis(w, axis, -1)
    np.broadcast_shapes(x.shape, w.shape)
    batch = [f"b{i}" for i in range(max(x.ndim, w.ndim) - 1, 0, -1)]
    left, right = ((*batch[len(batch) - a.ndim + 1 :], "k") for a in (x, w))
    return contract_labels(conj(x) if x.dtype.kind == "c" else x, w, left, right, tuple(batch))


@public
def cross(
    x: Any, w: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> DistributedArray:
    """Cross products of vectors of 3 elements along an axis.

    x, w: arrays that broadcast; result: their shape. axisa, axisb, axisc: the axes of the vectors
    in x, in w and in the result; axis: all three of them. Raises AxisError for an axis that an
    operand does not have, ShapeError for vectors of another length.

    >>> gdt.cross([1, 0, 0], [0, 1, 0]).tolist()
    [0, 0, 1]
    """
    x, w = as_operands("cross", x=x, w=w)
    axes = (axisa, axisb, axisc) if axis is None else (axis, axis, axis)
    for label, a, at in (("x", x, axes[0]), ("w", w, axes[1])):
        if a.shape[checked_axis(a.type, at)] != 3:
            problem = f"axis {at} of {label} is not of length 3"
            raise error(ShapeError, problem, operands={"x": x.type, "w": w.type})
    if len({*axes}) > 1:
        x, w = moveaxis(x, axes[0], -1), moveaxis(w, axes[1], -1)
        return moveaxis(cross(x, w), -1, axes[2])
    at = axes[0]
    return roll(x, -1, at) * roll(w, -2, at) - roll(x, -2, at) * roll(w, -1, at)


@public
def matrix_transpose(x: Any) -> DistributedArray:
    """The transposes of matrices: `x` with its last two axes swapped.

    Raises ShapeError for a rank below 2.

    >>> gdt.matrix_transpose([[1, 2], [3, 4]]).tolist()
    [[1, 3], [2, 4]]
    """
    (x,) = as_operands("matrix_transpose", x=x)
    return x.mT
