"""Polynomials as arrays of coefficients, the highest power first."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.errors import ArgumentError, ShapeError, error
from gdt.functions.assembling import with_rank
from gdt.functions.editing import trim_zeros
from gdt.ops.creation import zeros_like
from gdt.ops.elementwise import add, astype, subtract
from gdt.ops.joining import concat
from gdt.ops.padding import pad
from gdt.sharding.dtypes import promoted

__all__ = ["poly", "polyadd", "polyder", "polydiv", "polyint", "polymul", "polysub", "polyval"]


def _coefficients(name: str, **polynomials: Any) -> list[DistributedArray]:
    operands = [with_rank(p, 1) for p in as_operands(name, **polynomials)]
    for key, p in zip(polynomials, operands, strict=True):
        if p.ndim != 1:
            problem = f"{key} has rank {p.ndim}: coefficients are a vector"
            raise error(ShapeError, problem, operands={key: p.type})
    return operands


@public
def polyval(p: Any, x: Any) -> DistributedArray:
    """The values of the polynomial with coefficients `p` at `x`, by Horner's scheme.

    >>> gdt.polyval([3, 0, 1], [0, 1, 5]).tolist()
    [1, 4, 76]
    """
    (p,) = _coefficients("polyval", p=p)
    _, x = as_operands("polyval", p=p, x=x)
    value = zeros_like(x)
    for i in range(p.shape[0]):
        value = value * x + p[i]
    return value


def _aligned(name: str, p: Any, q: Any) -> list[DistributedArray]:
    """Two polynomials with as many coefficients."""
    both = _coefficients(name, p=p, q=q)
    count = max(x.shape[0] for x in both)
    return [pad(x, (count - x.shape[0], 0)) if x.shape[0] < count else x for x in both]


@public
def polyadd(p: Any, q: Any) -> DistributedArray:
    """The sum of two polynomials.

    >>> gdt.polyadd([1, 2], [9, 5, 4]).tolist()
    [9, 6, 6]
    """
    return add(*_aligned("polyadd", p, q))


@public
def polysub(p: Any, q: Any) -> DistributedArray:
    """The difference of two polynomials.

    >>> gdt.polysub([2, 10, -2], [3, 10, -4]).tolist()
    [-1, 0, 2]
    """
    return subtract(*_aligned("polysub", p, q))


def _product(p: DistributedArray, q: DistributedArray) -> DistributedArray:
    """The product of two polynomials: one shifted sum for each coefficient of the shorter one."""
    if p.shape[0] < q.shape[0]:
        p, q = q, p
    count = q.shape[0]
    terms = [pad(p * q[i], (i, count - 1 - i)) for i in range(count)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


@public
def polymul(p: Any, q: Any) -> DistributedArray:
    """The product of two polynomials. Reads where the leading zeros of both end.

    >>> gdt.polymul([1, 2, 3], [9, 5, 1]).tolist()
    [9, 23, 38, 17, 3]
    """
    trimmed = [trim_zeros(x, "f") for x in _coefficients("polymul", p=p, q=q)]
    return _product(*[x if x.shape[0] else pad(x, (0, 1)) for x in trimmed])


@public
def polydiv(u: Any, v: Any) -> tuple[DistributedArray, DistributedArray]:
    """The quotient and the remainder of two polynomials. Reads where the leading zeros of the
    remainder end.

    >>> [x.tolist() for x in gdt.polydiv([3.0, 5.0, 2.0], [2.0, 1.0])]
    [[1.5, 1.75], [0.25]]
    """
    u, v = _coefficients("polydiv", u=u, v=v)
    u, v = (x if x.dtype.kind in "fc" else astype(x, np.float64) for x in (u, v))
    rest, v = (astype(x, promoted(u.dtype, v.dtype)) for x in (u, v))
    count, places = v.shape[0], rest.shape[0] - v.shape[0] + 1
    factors = []
    for i in range(places):
        factors.append(rest[i : i + 1] / v[0])
        rest = rest.at[i : i + count].subtract(factors[-1] * v)
    quotient = concat(factors) if factors else zeros_like(rest, shape=(1,))
    is_small = (abs(rest) <= 1e-8).numpy()  # NumPy's allclose(rest, 0)
    start = min(
        int(np.argmin(is_small)) if not is_small.all() else rest.shape[0], rest.shape[0] - 1
    )
    return quotient, rest[start:]


@public
def polyder(p: Any, m: int = 1) -> DistributedArray:
    """The `m`-th derivative of a polynomial.

    >>> gdt.polyder([1, 1, 1, 1]).tolist()
    [3, 2, 1]
    """
    (p,) = _coefficients("polyder", p=p)
    if m < 0:
        raise error(ArgumentError, f"m is {m}, and no count")
    for _ in range(m):
        count = p.shape[0]
        p = p[:-1] * np.arange(count - 1, 0, -1)
    return p


@public
def polyint(p: Any, m: int = 1, k: Any = None) -> DistributedArray:
    """The `m`-th antiderivative of a polynomial.

    k: the constants of integration, one number or one for each of the `m` steps; 0 if None.

    >>> gdt.polyint([3, 2, 1]).tolist()
    [1.0, 1.0, 1.0, 0.0]
    """
    (p,) = _coefficients("polyint", p=p)
    if m < 0:
        raise error(ArgumentError, f"m is {m}, and no count")
    constants = [0.0] * m if k is None else [k] * m if np.ndim(k) == 0 else list(k)
    if len(constants) < m:
        raise error(ShapeError, f"{len(constants)} constants are fewer than m = {m}")
    for constant in constants[:m]:
        p = p / np.arange(p.shape[0], 0, -1)
        p = concat([p, with_rank(as_operands("polyint", p=p, k=constant)[1], 1)])
    return p


@public
def poly(seq_of_zeros: Any) -> DistributedArray:
    """The coefficients of the polynomial with these zeros, which are a vector.

    >>> gdt.poly([1, 2]).tolist()
    [1.0, -3.0, 2.0]
    """
    (zeros,) = _coefficients("poly", seq_of_zeros=seq_of_zeros)
    zeros = astype(zeros, promoted(zeros.dtype, np.float64))
    result = astype(zeros_like(zeros, shape=(1,)) + 1, zeros.dtype)
    for i in range(zeros.shape[0]):
        result = pad(result, (0, 1)) - pad(result * zeros[i], (1, 0))
    return result
