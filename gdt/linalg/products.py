"""Products and parts of matrices, with the names of `numpy.linalg`."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public_of
from gdt.errors import LinAlgError, ShapeError, error
from gdt.functions import vectors
from gdt.linalg.operands import check_matrices
from gdt.linalg.solving import inv
from gdt.ops.matrices import eye
from gdt.ops.products import op
from gdt.ops.reductions import sum_
from gdt.ops.shapes import broadcast_to
from gdt.sharding.layout import Layout


@public_of("linalg")
def matmul(x: Any, w: Any) -> DistributedArray:
    """`gdt.matmul`.

    >>> gdt.linalg.matmul([[1.0, 2.0]], [[3.0], [4.0]]).tolist()
    [[11.0]]
    """
    return op.matmul(x, w)


@public_of("linalg")
def tensordot(x: Any, w: Any, axes: Any = 2) -> DistributedArray:
    """`gdt.tensordot`.

    >>> gdt.linalg.tensordot([1.0, 2.0], [3.0, 4.0], axes=1).tolist()
    11.0
    """
    return op.tensordot(x, w, axes)


@public_of("linalg")
def vecdot(x: Any, w: Any, axis: int = -1) -> DistributedArray:
    """`gdt.vecdot`.

    >>> gdt.linalg.vecdot([1.0, 2.0], [3.0, 4.0]).tolist()
    11.0
    """
    return vectors.vecdot(x, w, axis=axis)


@public_of("linalg")
def cross(x: Any, w: Any, axis: int = -1) -> DistributedArray:
    """`gdt.cross` of vectors of 3 elements.

    >>> gdt.linalg.cross([1, 0, 0], [0, 1, 0]).tolist()
    [0, 0, 1]
    """
    return vectors.cross(x, w, axis=axis)


@public_of("linalg")
def matrix_transpose(x: Any) -> DistributedArray:
    """`gdt.matrix_transpose`.

    >>> gdt.linalg.matrix_transpose([[1, 2], [3, 4]]).tolist()
    [[1, 3], [2, 4]]
    """
    return vectors.matrix_transpose(x)


@public_of("linalg")
def outer(x: Any, w: Any) -> DistributedArray:
    """`gdt.outer` of vectors; raises ShapeError for other ranks than 1.

    >>> gdt.linalg.outer([1, 2], [3, 4]).tolist()
    [[3, 4], [6, 8]]
    """
    x, w = as_operands("linalg.outer", x=x, w=w)
    if x.ndim != 1 or w.ndim != 1:
        problem = f"operands of rank {x.ndim} and {w.ndim} are no vectors"
        raise error(ShapeError, problem, operands={"x": x.type, "w": w.type})
    return op.outer(x, w)


@public_of("linalg")
def diagonal(x: Any, offset: int = 0) -> DistributedArray:
    """The diagonals of matrices: `gdt.diagonal` of the last two axes.

    >>> gdt.linalg.diagonal([[1, 2], [3, 4]]).tolist()
    [1, 4]
    """
    return op.diagonal(x, offset, -2, -1)


@public_of("linalg")
def trace(x: Any, offset: int = 0, dtype: Any = None) -> DistributedArray:
    """The sums of the diagonals of matrices, in their last two axes.

    offset, dtype: the diagonal, as in `gdt.linalg.diagonal`, and the dtype of the sum.

    >>> gdt.linalg.trace([[1, 2], [3, 4]]).tolist()
    5
    """
    return sum_(diagonal(x, offset), axis=-1, dtype=dtype)


@public_of("linalg")
def matrix_power(x: Any, n: int) -> DistributedArray:
    """The products of square matrices with themselves, n times; of their inverses if n is negative.

    Raises LinAlgError for matrices that are not square, or singular if n is negative.

    >>> gdt.linalg.matrix_power([[1, 1], [0, 1]], 5).tolist()
    [[1, 5], [0, 1]]
    """
    (x,) = as_operands("linalg.matrix_power", x=x)
    check_matrices("matrix_power", "x", x, square=True)
    n = index(n)
    if n < 0:
        x, n = inv(x), -n
    if n == 0:
        identity = eye(x.shape[-1], dtype=x.dtype, layout=Layout.replicated(x.mesh, 2))
        return broadcast_to(identity, x.shape)
    while n % 2 == 0:
        x, n = op.matmul(x, x), n // 2
    result = x
    while n := n // 2:
        x = op.matmul(x, x)
        result = op.matmul(result, x) if n % 2 else result
    return result


@public_of("linalg")
def multi_dot(arrays: Sequence[Any]) -> DistributedArray:
    """The product of two or more matrices, in the order that multiplies the fewest numbers.

    arrays: matrices; the first and the last may be vectors. Raises ShapeError for fewer than two,
    and for shapes that do not fit.

    >>> gdt.linalg.multi_dot([[1.0, 2.0], [[1.0, 0.0], [0.0, 1.0]], [3.0, 4.0]]).tolist()
    11.0
    """
    if len(arrays) < 2:
        problem = f"{len(arrays)} arrays, where a product has two or more"
        raise error(ShapeError, problem)
    operands = as_operands("linalg.multi_dot", **{f"arrays_{i}": a for i, a in enumerate(arrays)})
    for i, a in enumerate(operands):
        if a.ndim != 2 and not (a.ndim == 1 and i in (0, len(operands) - 1)):
            problem = f"array {i} has rank {a.ndim}, which is no matrix"
            raise error(LinAlgError, problem, operands={"array": a.type})
    sizes = [1 if operands[0].ndim == 1 else operands[0].shape[0]]
    sizes += [a.shape[0] if a.ndim == 1 else a.shape[-2] for a in operands[1:]]
    sizes.append(1 if operands[-1].ndim == 1 else operands[-1].shape[-1])
    return _product(operands, _cuts(sizes), 0, len(operands) - 1)


def _cuts(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """For each range (first, last) of matrices, the number of the one behind which their product is
    cut in two; matrix i has the shape (sizes[i], sizes[i + 1]).

    Source: Cormen et al., "Introduction to Algorithms", section 15.2."""
    count = len(sizes) - 1
    costs = {(i, i): 0 for i in range(count)}
    cuts = {}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            choices = [
                (
                    costs[first, cut]
                    + costs[cut + 1, last]
                    + sizes[first] * sizes[cut + 1] * sizes[last + 1],
                    cut,
                )
                for cut in range(first, last)
            ]
            costs[first, last], cuts[first, last] = min(choices)
    return cuts


def _product(
    operands: Sequence[DistributedArray], cuts: dict[tuple[int, int], int], first: int, last: int
) -> DistributedArray:
    if first == last:
        return operands[first]
    cut = cuts[first, last]
    left = _product(operands, cuts, first, cut)
    return op.matmul(left, _product(operands, cuts, cut + 1, last))
