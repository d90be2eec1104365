"""Polynomials as arrays of coefficients that need linear algebra: fits and roots."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.errors import ArgumentError, DtypeError, ShapeError, error
from gdt.functions.grids import vander
from gdt.linalg.decompositions import eigvals
from gdt.linalg.operands import as_floats
from gdt.linalg.solving import inv, lstsq
from gdt.ops.creation import zeros
from gdt.ops.elementwise import sqrt
from gdt.ops.joining import concat
from gdt.ops.masks import flatnonzero
from gdt.ops.matrices import eye
from gdt.ops.products.op import matmul, outer
from gdt.ops.reductions import sum_
from gdt.ops.shapes import expand_dims
from gdt.sharding.dtypes import limits_of
from gdt.sharding.layout import Layout

__all__ = ["polyfit", "roots"]


@public
def polyfit(
    x: Any,
    y: Any,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: Any = None,
    cov: bool | str = False,
) -> Any:
    """Fit a polynomial of degree `deg` to points by least squares: its coefficients, the highest
    power first.

    x: (m,); y: (m,), or (m, k) for k polynomials, whose coefficients are (deg + 1, k). w: weights
    of the residuals, (m,). rcond: singular values below it, relative to the largest one, count as
    0; m times the machine epsilon by default. full: whether the squared residuals, the rank, the
    singular values and `rcond` are returned too. cov: whether the covariances of the coefficients
    are; `"unscaled"` for weights that are inverse standard deviations. Split points stay split.
    Unlike NumPy's, a fit of deficient rank is no warning.

    Raises ArgumentError for a degree below 0, and for covariances of too few points; DtypeError for
    other ranks or lengths, as NumPy does.

    >>> gdt.polyfit([0.0, 1.0, 2.0], [1.0, 3.0, 5.0], 1).round(6).tolist()
    [2.0, 1.0]
    """
    x, y = as_floats("polyfit", x=x, y=y)
    count = deg + 1
    if deg < 0:
        raise error(ArgumentError, f"deg is {deg}, and no degree")
    if x.ndim != 1 or not x.size or y.ndim not in (1, 2) or y.shape[0] != x.shape[0]:
        problem = "x is no vector of points, or y has not one value, or row, for each of them"
        raise error(DtypeError, problem, operands={"x": x.type, "y": y.type})
    rcond = x.shape[0] * limits_of(x.dtype).eps if rcond is None else rcond
    powers, values = vander(x, count), y
    if w is not None:
        _, w = as_operands("polyfit", x=x, w=w)
        if w.shape != x.shape:
            problem = "w has not one weight for each point"
            raise error(DtypeError, problem, operands={"x": x.type, "w": w.type})
        powers = powers * expand_dims(w, 1)
        values = values * (w if y.ndim == 1 else expand_dims(w, 1))
    scale = sqrt(sum_(powers * powers, axis=0))
    powers = powers / scale
    coefficients, residuals, rank, s = lstsq(powers, values, rcond)
    coefficients = coefficients / (scale if y.ndim == 1 else expand_dims(scale, 1))
    if full:
        return coefficients, residuals, rank, s, rcond
    if not cov:
        return coefficients
    covariances = inv(matmul(powers.T, powers)) / outer(scale, scale)
    if cov != "unscaled":
        if x.shape[0] <= count:
            problem = f"{x.shape[0]} points do not suffice for covariances of degree {deg}"
            raise error(ArgumentError, problem, operands={"x": x.type})
        variances = residuals / (x.shape[0] - count)
        if y.ndim == 2:
            covariances = expand_dims(covariances, 2)
        covariances = covariances * variances
    elif y.ndim == 2:
        covariances = expand_dims(covariances, 2)
    return coefficients, covariances


@public
def roots(p: Any) -> DistributedArray:
    """The zeros of the polynomial with coefficients `p`, the highest power first: the eigenvalues
    of its companion matrix, complex. Reads where the zeros at both ends of `p` end.

    Raises ShapeError for coefficients that are no vector.

    >>> gdt.roots([1.0, -3.0, 2.0]).round(3).tolist()
    [(2+0j), (1+0j)]
    """
    (p,) = as_floats("roots", p=p)
    if p.ndim != 1:
        problem = f"p has rank {p.ndim}: coefficients are a vector"
        raise error(ShapeError, problem, operands={"p": p.type})
    places = flatnonzero(p)
    dtype = np.result_type(p.dtype, np.complex64)
    if not places.size:
        return zeros(0, dtype, layout=Layout.replicated(p.mesh, 1))
    first, last = int(places[0]), int(places[-1])
    at_zero = zeros(p.shape[0] - last - 1, dtype, layout=Layout.replicated(p.mesh, 1))
    p = p[first : last + 1]
    if p.shape[0] == 1:
        return at_zero
    below = eye(p.shape[0] - 2, p.shape[0] - 1, dtype=p.dtype, layout=Layout.replicated(p.mesh, 2))
    companion = concat([expand_dims(-p[1:] / p[0], 0), below])
    return concat([eigvals(companion), at_zero])
