"""Draws of several numbers that depend on each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.array.placing import checked_layout
from gdt.errors import ArgumentError, ShapeError, error
from gdt.linalg import svd
from gdt.ops.creation import asarray
from gdt.ops.elementwise import sqrt
from gdt.ops.exponential import exp
from gdt.ops.extrema import max_
from gdt.ops.joining import stack
from gdt.ops.products.op import matmul
from gdt.ops.reductions import sum_
from gdt.ops.shapes import Shape, checked_shape
from gdt.random.counts import binomial
from gdt.random.draws import drawn_of, in_layout, normal
from gdt.random.generator import Key
from gdt.random.variates import keys_of
from gdt.sharding.layout import Layout


def _rows(name: str, shape: Shape, layout: Layout | None, values: Any) -> tuple[Any, Layout]:
    """The shape and the layout of a draw of `shape` vectors as long as the vector `values`."""
    sizes = checked_shape(shape, name)
    if np.ndim(values) != 1:
        problem = f"a parameter of shape {list(np.shape(values))} is no vector"
        raise error(ShapeError, name, problem)
    sizes = (*sizes, np.shape(values)[0])
    return sizes, checked_layout(layout, len(sizes), name)


def _on_mesh(values: Any, layout: Layout) -> DistributedArray:
    """A parameter as a replicated float64 array on the mesh of a layout."""
    whole = Layout.replicated(layout.mesh, np.ndim(values))
    x: DistributedArray = asarray(values, layout=whole)
    return x.astype(np.float64)


@checked
def multivariate_normal(
    shape: Shape,
    mean: Any,
    cov: Any,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Normal vectors of that mean, (n,), and covariance matrix, (n, n): (*shape, n).

    cov: symmetric and positive semidefinite, which is not checked. The numbers are the same in
    every layout up to rounding: they are a product of matrices. Raises ShapeError for other shapes.

    >>> gdt.random.multivariate_normal(5, [0.0, 1.0], [[2.0, 1.0], [1.0, 2.0]], key=0).shape
    (5, 2)
    """
    sizes, target = _rows("multivariate_normal", shape, layout, mean)
    if np.shape(cov) != (sizes[-1], sizes[-1]):
        problem = f"cov of shape {list(np.shape(cov))} does not fit {sizes[-1]} means"
        raise error(ShapeError, "multivariate_normal", problem)
    z = normal(sizes, key=key, layout=target)
    _, s, vh = svd(_on_mesh(cov, target))
    x = matmul(z, sqrt(s)[:, None] * vh) + _on_mesh(mean, target)
    return in_layout(x.astype(dtype), layout)


@checked
def dirichlet(
    shape: Shape, alpha: Any, dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """Vectors of probabilities, (*shape, k), of the parameters `alpha`, (k,).

    Raises ShapeError where `alpha` is no vector, ArgumentError for a parameter that is not above 0.

    >>> gdt.random.dirichlet(5, [1.0, 2.0, 3.0], key=0).sum(axis=1).round(6).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    sizes, target = _rows("dirichlet", shape, layout, alpha)
    if not isinstance(alpha, DistributedArray) and not (np.asarray(alpha) > 0).all():
        raise error(ArgumentError, "dirichlet", f"alpha {alpha} holds what is not above 0")
    x = drawn_of("log_gamma", sizes, float, target, key, _on_mesh(alpha, target), name="dirichlet")
    x = exp(x - max_(x, axis=-1, keepdims=True))
    return in_layout((x / sum_(x, axis=-1, keepdims=True)).astype(dtype), layout)


@checked
def multinomial(
    shape: Shape,
    n: Any,
    pvals: Any,
    dtype: Any = int,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Counts of k outcomes in `n` trials: (*shape, k).

    n: a number, or an array that broadcasts to the shape. pvals: the outcomes' probabilities, a
    vector of k numbers; the last one is what remains to 1. The counts are binomial, one after the
    other.

    Raises ArgumentError for an `n` below 0, and for probabilities below 0 or that add up to more
    than 1.

    >>> gdt.random.multinomial(3, 10, [0.2, 0.3, 0.5], key=0).sum(axis=1).tolist()
    [10, 10, 10]
    """
    sizes, target = _rows("multinomial", shape, layout, pvals)
    chances = np.asarray(pvals, float)
    if not ((chances >= 0).all() and chances[:-1].sum() <= 1 + 1e-12):
        problem = f"pvals {pvals} hold what is no probability, or add up to more than 1"
        raise error(ArgumentError, "multinomial", problem)
    rows = Layout.of(target.mesh, target.dims[:-1])
    rest, remaining, counts = 1.0, n, []
    for p, own in zip(chances[:-1].tolist(), keys_of(key, len(chances)), strict=False):
        share = min(1.0, p / rest) if rest > 0 else 0.0
        count = binomial(sizes[:-1], remaining, share, key=own, layout=rows)
        counts.append(count)
        remaining, rest = remaining - count, rest - p
    if not counts:
        remaining = binomial(sizes[:-1], n, 1.0, key=key, layout=rows)
    return in_layout(stack([*counts, remaining], axis=-1).astype(dtype), target)
