"""Products of arrays: matmul, dot, tensordot, outer and their relatives.

All of them are contractions: a product of two arrays whose axes are labelled, summed over the
labels that the result lacks. A label may be split in any way; one that is summed over leaves a
partial sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.output import into, writes_out
from gdt.array.registry import public
from gdt.array.views import shown, view_step
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Labels, Memory
from gdt.errors import ShapeError, error
from gdt.ops.along_axis import take_along_axis_in_range
from gdt.ops.axes import checked_axes
from gdt.ops.elementwise import conj, like, multiply
from gdt.ops.indexing import getitem
from gdt.ops.lookup import checked_indices
from gdt.ops.products.contraction import (
    contract,
    contract_on_host,
    contract_with_kernels,
    matrix_product,
)
from gdt.ops.products.panels import in_panels
from gdt.ops.reductions import sum_
from gdt.ops.shapes import broadcast_to, reshape, transpose
from gdt.sharding.array_type import ArrayType

__all__ = [
    "contraction",
    "dot",
    "inner",
    "matmul",
    "outer",
    "tensordot",
    "trace",
    "vdot",
]


Block = Any
Term = tuple[str | None, ...]  # one label per axis; None for an axis of length 1 that broadcasts
Terms = tuple[Term, Term, Term]


def _contraction_rule(x: ArrayType, w: ArrayType, *, terms: Terms) -> str:
    left, right, out = (" ".join(n or "1" for n in term) for term in terms)
    return f"{left}, {right} -> {out}"


@op(_contraction_rule, linear="x, w")
def contraction(
    xp: Any,
    x: Block,
    w: Block,
    /,
    terms: Terms,
    *,
    labels: Labels = FROM_ENGINE,
    out: Memory | None = None,
) -> Block:
    """Product of two arrays, summed over the labels that the result lacks.

    terms: labels of the axes of x, of w and of the result, each once per term; None is an axis of
    length 1 that broadcasts. Split labels: as in `gdt.matrix_product`. Raises ShapeError for a
    label of two sizes.

    >>> x, w = gdt.ones((2, 3)), gdt.ones((4, 3))
    >>> gdt.contraction(x, w, terms=(("i", "k"), ("j", "k"), ("j", "i"))).shape
    (4, 2)
    """
    return contract(xp, x, w, labels, out)


contraction.kernel(contract_with_kernels, has_library=True, takes_bfloat16=True)
contraction.specialize(contract_on_host)
contraction.alternative(partial(in_panels, contraction))


def _cotangent(
    g: DistributedArray, other: DistributedArray, x: DistributedArray, terms: Terms
) -> DistributedArray:
    """The cotangent of the operand `x`; `terms` are the labels of g, of other and of x."""
    labels = {*terms[0], *terms[1]}
    product_labels = tuple(n for n in terms[2] if n is not None and n in labels)
    product = contraction(g, other, terms=(terms[0], terms[1], product_labels))
    sizes = [s if n in product_labels else 1 for n, s in zip(terms[2], x.shape, strict=True)]
    cotangent = reshape(product, tuple(sizes))
    return like(cotangent if cotangent.shape == x.shape else broadcast_to(cotangent, x.shape), x)


contraction.vjp(
    lambda g, out, x, w, *, terms: _cotangent(g, w, x, (terms[2], terms[1], terms[0])),
    lambda g, out, x, w, *, terms: _cotangent(g, x, w, (terms[2], terms[0], terms[1])),
    reads=("w", "x"),
)


def contract_labels(
    x: DistributedArray, w: DistributedArray, left: Term, right: Term, out: Term
) -> DistributedArray:
    """`contraction` of two operands, of which an axis of length 1 broadcasts against the axis of
    the other operand with the same label."""
    terms = _broadcast(left, right, x.type.shape, w.type.shape)
    return contraction(x, w, terms=(*terms, out))


@lru_cache(maxsize=1 << 10)
def _broadcast(
    left: Term, right: Term, x_shape: tuple[int, ...], w_shape: tuple[int, ...]
) -> tuple[Term, Term]:
    """The labels of two operands, with None for every axis of length 1 that broadcasts."""
    pairs = [*zip(left, x_shape, strict=True), *zip(right, w_shape, strict=True)]
    sizes: dict[str | None, int] = {}
    for label, size in pairs:
        sizes[label] = size if size != 1 else sizes.get(label, 1)
    labels = tuple([n if size == sizes[n] else None for n, size in pairs])
    return labels[: len(left)], labels[len(left) :]


# ---------------------------------------------------------------- matmul


_product = matrix_product.__call__  # a call of the object takes longer than one of its method


@public
def matmul(x: Any, w: Any, out: DistributedArray | None = None) -> DistributedArray:
    """Matrix product: `x @ w`.

    x: (..., i, k), w: (..., k, j), result: (..., i, j); the leading axes broadcast. A vector x is
    one row, a vector w one column, and the result lacks that axis. dtypes promote as in NumPy.
    Split leading axes, i or j: no communication. Split k: each device sums its part, and the result
    stays a partial sum until its value is needed. Where an operand has to be gathered and is large,
    it is gathered in panels (SUMMA), so that no device holds it whole. A partial sum that would
    take more than three shares of the data, and 1 GiB of a device, is scattered panel by panel:
    rows of it are split.

    Raises ShapeError for scalars, and for shapes that do not fit. Source: NumPy's `matmul`.

    >>> mesh = gdt.create_mesh([("data", 4)])
    >>> x = gdt.ones((8, 4), layout=gdt.Layout(["data", gdt.UNSHARDED], mesh))
    >>> (x @ gdt.ones((4, 2), layout=gdt.Layout.replicated(mesh, 2))).layout.sharding_specs
    ['data', 'unsharded']
    """
    if out is not None:
        return into(out, "matmul", matmul(x, w))
    if type(x) is not DistributedArray or type(w) is not DistributedArray:
        x, w = as_operands("matmul", x=x, w=w)
    x_shape, w_shape = x.type.shape, w.type.shape
    x_rank, w_rank = len(x_shape), len(w_shape)
    if w_rank == 2 and x_rank > 1 and x_shape[-1] == w_shape[0]:
        return _product(x, w)
    if not x_rank or not w_rank:
        raise _misfit("matmul", "an operand is a scalar", x.type, w.type, "Use x * w.")
    inner = w_shape[0] if w_rank == 1 else w_shape[-2]
    if x_shape[-1] != inner:
        raise _misfit(
            "matmul", f"factor 'k' is {x_shape[-1]} in x but {inner} in w", x.type, w.type
        )
    batch = [f"b{i}" for i in range(max(x_rank, w_rank) - 2, 0, -1)]
    left = (*batch[len(batch) - max(x_rank - 2, 0) :], *(("i", "k") if x_rank > 1 else ("k",)))
    right = (*batch[len(batch) - max(w_rank - 2, 0) :], *(("k", "j") if w_rank > 1 else ("k",)))
    _check_batch(x, w)
    result = (*batch, *(n for n in ("i", "j") if n in left + right))
    return contract_labels(x, w, left, right, result)


def _check_batch(x: DistributedArray, w: DistributedArray) -> None:
    try:
        np.broadcast_shapes(x.shape[:-2], w.shape[:-2])
    except ValueError:
        raise _misfit("matmul", "the leading axes do not broadcast", x.type, w.type) from None


def _misfit(
    name: str, problem: str, x: ArrayType, w: ArrayType, remedy: str | None = None
) -> ShapeError:
    rule = "... i k, ... k j -> ... i j" if name == "matmul" else None
    operands = {"x": x, "w": w}
    return error(ShapeError, problem, operands=operands, rule=rule, remedy=remedy)


# ---------------------------------------------------------------- tensordot and its special cases


@public
def tensordot(
    x: Any, w: Any, axes: int | tuple[int | Sequence[int], int | Sequence[int]] = 2
) -> DistributedArray:
    """Product of x and w, summed over pairs of axes.

    axes: the axes of x and those of w, pair by pair; or a count: the last ones of x and the first
    ones of w. The result has the other axes of x, then those of w. Raises ShapeError for axes that
    do not pair, or whose lengths differ. Source: NumPy's `tensordot`.

    >>> gdt.tensordot(gdt.ones((2, 3)), gdt.ones((3, 4)), axes=1).tolist()
    [[3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 3.0]]
    """
    x, w = as_operands("tensordot", x=x, w=w)
    # The cache compares by ==, and True == 1 is no axis: only ints, and pairs of ints, go there.
    pair = type(axes) is tuple and [type(i) for i in axes] == [int, int]
    terms_of = _cached_terms if pair or type(axes) is int else _terms
    return contraction(x, w, terms=terms_of(x.type, w.type, axes))


def _terms(x: ArrayType, w: ArrayType, axes: Any) -> Terms:
    """Labels of the axes of x, of w and of the result. Axes that are summed over share a label."""
    if isinstance(axes, int | np.integer):
        if not 0 <= axes <= min(x.ndim, w.ndim):
            raise _misfit("tensordot", f"the operands do not have {axes} axes to sum over", x, w)
        pairs = [list(range(x.ndim - axes, x.ndim)), list(range(axes))]
    else:
        pairs = [checked_axes(a, numbers) for a, numbers in zip((x, w), axes, strict=True)]
    if len(pairs[0]) != len(pairs[1]) or any(len(set(p)) < len(p) for p in pairs):
        raise _misfit("tensordot", f"axes {axes} do not name as many axes of x as of w", x, w)
    for i, j in zip(*pairs, strict=True):
        if x.shape[i] != w.shape[j]:
            problem = f"axis {i} of x is {x.shape[i]} but axis {j} of w is {w.shape[j]}"
            raise _misfit("tensordot", problem, x, w)
    left, right = [f"x{i}" for i in range(x.ndim)], [f"w{i}" for i in range(w.ndim)]
    for i, j in zip(*pairs, strict=True):
        right[j] = left[i]
    both = {*left} & {*right}
    out = tuple(n for n in (*left, *right) if n not in both)
    return tuple(left), tuple(right), out


_cached_terms = lru_cache(maxsize=1 << 10)(_terms)


@public
@writes_out
def dot(x: Any, w: Any, out: DistributedArray | None = None) -> DistributedArray:
    """Product of x and w, summed over the last axis of x and the last but one of w.

    x: (..., k), w: (..., k, j) or (k,), result: (..., ..., j); a scalar multiplies the other
    operand. Raises ShapeError for axes of different lengths. Source: NumPy's `dot`.

    >>> float(gdt.dot([1.0, 2.0], [3.0, 4.0]))
    11.0
    """
    x, w = as_operands("dot", x=x, w=w)
    if not x.ndim or not w.ndim:
        return multiply(x, w)
    return tensordot(x, w, (-1, max(w.ndim - 2, 0)))


@public
def inner(x: Any, w: Any) -> DistributedArray:
    """Product of x and w, summed over the last axis of both.

    x: (..., k), w: (..., k); the result has the other axes of x, then those of w. A scalar
    multiplies the other operand. Raises ShapeError for axes of different lengths.

    >>> gdt.inner([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0]).tolist()
    [3.0, 7.0]
    """
    x, w = as_operands("inner", x=x, w=w)
    if not x.ndim or not w.ndim:
        return multiply(x, w)
    return tensordot(x, w, (-1, -1))


@public
def vdot(x: Any, w: Any) -> DistributedArray:
    """Scalar product of the flattened arrays, with the complex conjugate of x; rank 0.

    Raises ShapeError for operands of different sizes.

    >>> float(gdt.vdot([[1.0, 2.0]], [[3.0], [4.0]]))
    11.0
    """
    x, w = as_operands("vdot", x=x, w=w)
    if x.dtype.kind == "c":
        x = conj(x)
    return tensordot(reshape(x, (x.size,)), reshape(w, (w.size,)), 1)


@public
@writes_out
def outer(x: Any, w: Any, out: DistributedArray | None = None) -> DistributedArray:
    """Product of every element of x with every element of w: (x.size, w.size).

    Operands are flattened; dtypes promote as in NumPy.

    >>> gdt.outer([1, 2], [3, 4]).tolist()
    [[3, 4], [6, 8]]
    """
    x, w = as_operands("outer", x=x, w=w)
    return multiply(reshape(x, (x.size, 1)), reshape(w, (1, w.size)))


# ---------------------------------------------------------------- diagonals


def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> DistributedArray:
    """`diagonal_`, for functions that write to no array."""
    (x,) = as_operands("diagonal", x=x)
    rows, columns = checked_axes(x.type, (axis1, axis2))
    if rows == columns:
        raise error(ShapeError, f"axis {axis1} is named twice", operands={"x": x.type})
    first, start = max(0, -offset), max(0, offset)
    length = max(0, min(x.shape[rows] - first, x.shape[columns] - start))
    x = getitem(x, (*[slice(None)] * rows, slice(first, first + length)))
    columns_of_rows = np.arange(start, start + length).reshape(
        [length if d == rows else 1 for d in range(x.ndim)]
    )
    indices = checked_indices(x.type, columns_of_rows, columns, "diagonal", is_constant=True)
    elements = take_along_axis_in_range(x, indices, axis=columns)
    order = [d for d in range(x.ndim) if d not in (rows, columns)]
    last = transpose(elements, (*order, columns, rows))  # (..., 1, length)
    return reshape(last, tuple(x.shape[d] for d in (*order, rows)))  # (..., length)


@public
def diagonal_(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> DistributedArray:
    """The elements `x[..., i, ..., i + offset, ...]` of two axes, as a new last axis; a read-only
    view.

    The new axis is split as `axis1` is; over a split `axis2` the result is a partial sum. Raises
    AxisError for axes that x does not have, ShapeError if both are one axis.

    >>> gdt.diagonal(gdt.asarray([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    (x,) = as_operands("diagonal", x=x)
    out = diagonal(x, offset, axis1, axis2)
    return shown(x, out, (("diagonal", (offset, axis1, axis2)),))


view_step(
    "diagonal", lambda x, places: diagonal(x, *places), None, lambda x, places: x.diagonal(*places)
)


@public
@writes_out
def trace(
    x: Any,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: Any = None,
    out: DistributedArray | None = None,
) -> DistributedArray:
    """Sum of a diagonal. Arguments and errors are those of `gdt.diagonal`.

    >>> float(gdt.trace(gdt.asarray([[1.0, 2.0], [3.0, 4.0]])))
    5.0
    """
    return sum_(diagonal(x, offset, axis1, axis2), axis=-1, dtype=dtype)
