"""Draws of several numbers that depend on each other."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.backend.cupy import on_gpu
from gdt.errors import ArgumentError, ShapeError, error, frame_of_user
from gdt.linalg import cholesky, eigh, svd
from gdt.ops.creation import asarray
from gdt.ops.elementwise import sqrt
from gdt.ops.exponential import exp
from gdt.ops.extrema import max_
from gdt.ops.joining import stack
from gdt.ops.products.op import matmul
from gdt.ops.reductions import sum_
from gdt.random.draws import Draw, distribution, in_layout
from gdt.sharding.layout import Layout


def _of_vectors(draw: Draw, values: Any) -> Draw:
    """Return a draw of the numbers of vectors, each as long as `values`."""
    if np.ndim(values) != 1 or not np.shape(values)[0]:
        problem = f"a parameter of shape {list(np.shape(values))} is no vector of 1 or more numbers"
        raise error(ShapeError, draw.name, problem)
    return draw._replace(shape=(*draw.shape, np.shape(values)[0]))


def _on_mesh(values: Any, layout: Layout) -> DistributedArray:
    """Return a parameter as a replicated float64 array on the mesh of a layout."""
    whole = Layout.replicated(layout.mesh, np.ndim(values))
    x = asarray(values, layout=whole)
    return x.astype(np.float64)


@distribution(event_ndim=1)
def multivariate_normal(
    draw: Draw,
    mean: Any,
    cov: Any,
    *,
    check_valid: str = "warn",
    tol: float = 1e-8,
    method: str = "svd",
) -> DistributedArray:
    """Draw normal vectors, (*shape, n), from their mean, (n,), and covariance matrix, (n, n).

    cov: symmetric and positive semidefinite. check_valid: what happens to another matrix of the
        host: "warn", "raise" or "ignore"; a distributed one is not fetched for that. tol: how far
        symmetric elements may differ, and eigenvalues be below 0. method: the factors of the
        matrix, "svd", "eigh" or "cholesky"; the last one is the fastest, and takes no singular
        matrix.

    The numbers are the same in every layout up to rounding, as a product of matrices is. Raises
    ShapeError for other shapes, ArgumentError for other words and, if asked to, for a matrix that
    is no covariance, and LinAlgError for one of the host that has no Cholesky factor.

    >>> gdt.random.multivariate_normal(5, [0.0, 1.0], [[2.0, 1.0], [1.0, 2.0]], key=0).shape
    (5, 2)
    """
    draw = _of_vectors(draw, mean)
    n = draw.shape[-1]
    if np.shape(cov) != (n, n):
        problem = f"cov of shape {list(np.shape(cov))} does not fit {n} means"
        raise error(ShapeError, problem)
    for label, word, words in (
        ("check_valid", check_valid, ("warn", "raise", "ignore")),
        ("method", method, ("svd", "eigh", "cholesky")),
    ):
        if word not in words:
            problem = f"{label} is {word!r}, none of {', '.join(words)}"
            raise error(ArgumentError, problem)
    if check_valid != "ignore" and method != "cholesky":
        _check_covariance(cov, tol, check_valid == "raise")
    z = draw.floats().standard("normal")
    return matmul(z, _factor(_on_mesh(cov, draw.layout), method)) + _on_mesh(mean, draw.layout)


def _check_covariance(cov: Any, tol: float, is_error: bool) -> None:
    if isinstance(cov, DistributedArray) or on_gpu(cov):
        return
    matrix = np.asarray(cov, float)
    is_symmetric = np.allclose(matrix, matrix.T, rtol=tol, atol=tol)
    if is_symmetric and (np.linalg.eigvalsh(matrix) >= -tol).all():
        return
    problem = "covariance is not symmetric positive-semidefinite"
    if is_error:
        raise error(ArgumentError, problem)
    warnings.warn(f"multivariate_normal: {problem}", RuntimeWarning, stacklevel=frame_of_user()[1])


def _factor(cov: DistributedArray, method: str) -> DistributedArray:
    """Return a matrix f for which f.mT @ f is the covariance."""
    factor: DistributedArray
    if method == "cholesky":
        factor = cholesky(cov).mT
    elif method == "eigh":
        eigenvalues, vectors = eigh(cov)
        factor = sqrt(abs(eigenvalues))[:, None] * vectors.mT
    else:
        _, s, vh = svd(cov)
        factor = sqrt(s)[:, None] * vh
    return factor


@distribution(event_ndim=1)
def dirichlet(draw: Draw, alpha: Any) -> DistributedArray:
    """Draw vectors of k probabilities, (*shape, k), from the Dirichlet distribution.

    alpha: its parameters, (k,), all above 0.

    Raises ShapeError where `alpha` is no vector, ArgumentError for a parameter that is not above 0.

    >>> gdt.random.dirichlet(5, [1.0, 2.0, 3.0], key=0).sum(axis=1).round(6).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    draw = _of_vectors(draw, alpha)
    if not isinstance(alpha, DistributedArray) and not (np.asarray(alpha) > 0).all():
        raise error(ArgumentError, f"alpha is {alpha}, and not all above 0")
    x = draw.floats().sampled("log_gamma", _on_mesh(alpha, draw.layout))
    x = exp(x - max_(x, axis=-1, keepdims=True))
    return x / sum_(x, axis=-1, keepdims=True)


@distribution(dtype=int, event_ndim=1, n="[0, inf]")
def multinomial(draw: Draw, n: Any, pvals: Any) -> DistributedArray:
    """Draw how often each of k outcomes occurs in `n` trials: (*shape, k).

    n: a number, or an array that broadcasts to the shape. pvals: the probabilities of the outcomes,
    (k,), of which the last is not read: it is what the others leave of 1. Each count is a binomial
    draw among the trials that the counts before it have left.

    Raises ArgumentError for an `n` below 0, and for probabilities below 0 or that add up to more
    than 1.

    >>> gdt.random.multinomial(3, 10, [0.2, 0.3, 0.5], key=0).sum(axis=1).tolist()
    [10, 10, 10]
    """
    draw = _of_vectors(draw, pvals)
    chances = np.asarray(pvals, float)
    if not ((chances >= 0).all() and chances[:-1].sum() <= 1 + 1e-12):
        problem = f"pvals are {pvals}: one is below 0, or their sum is more than 1"
        raise error(ArgumentError, problem)
    count_layout = Layout.of(draw.layout.mesh, draw.layout.dims[:-1])
    one = Draw("multinomial", draw.shape[:-1], np.dtype(int), draw.key, count_layout)
    trials, probability, counts = n, 1.0, []  # trials and probability that are left
    for p, own in zip(chances[:-1].tolist(), one.split(len(chances)), strict=False):
        share = min(1.0, p / probability) if probability > 0 else 0.0
        counts.append(own.sampled("binomial", trials, share))
        trials, probability = trials - counts[-1], probability - p
    if not counts:
        trials = one.sampled("binomial", n, 1.0)
    return in_layout(stack([*counts, trials], axis=-1), draw.layout)
