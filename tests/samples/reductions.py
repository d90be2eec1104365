"""Samples of reductions, scans, extrema and moments."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.testing import Sample

rng = np.random.default_rng(0)
MATRIX = rng.standard_normal((5, 3))
CUBE = rng.standard_normal((2, 5, 3))
TIES = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [-1.0, -4.0, 0.5], [3.0, 3.0, 1.0]])
ZEROS = MATRIX.copy()
ZEROS[1, 1] = ZEROS[3, 2] = ZEROS[4, 2] = 0.0
NAN = MATRIX.copy()
NAN[1, 1] = NAN[3, 1] = NAN[4, 2] = np.nan
INFINITE = MATRIX.copy()
INFINITE[1] = -np.inf
INFINITE[2, 0], INFINITE[3, 1], INFINITE[4, 2] = -np.inf, np.inf, np.nan
COMPLEX = (MATRIX + 1j * MATRIX[::-1]).astype(np.complex64)
BOOL = MATRIX > 0
SMALL = np.array([[100, -100, 7], [50, 90, -3], [0, 0, 2], [120, 1, -8], [3, 100, 0]], np.int8)
UNSIGNED = np.array([200, 3, 250, 0, 9], np.uint8)
HALF = (MATRIX * 8).astype(np.float16)
SINGLE = MATRIX.astype(np.float32)


def numpy(name: str) -> Callable[..., Any]:
    """NumPy's function of that name, on operands in double precision where they are less."""
    function = getattr(np, name)

    def expected(x: np.ndarray, **static: Any) -> Any:
        if x.dtype not in (np.float16, np.float32):
            return function(x, **static)
        out = function(x.astype(float), **static)
        return out.astype(function(x, **static).dtype)

    return expected


def no_variance(x: np.ndarray, axis: int | None) -> np.ndarray:
    """NaN, without NumPy's warning of a mean of nothing."""
    return np.full(x.sum(axis).shape, np.nan)


GAPS = NAN.copy()
GAPS[:, 2] = np.nan


def moments_of_numbers(x: np.ndarray, axes: Any, keepdims: bool = False) -> Any:
    """NumPy's mean and variance of what is no NaN, and how many that is."""
    wide = x.astype(complex if x.dtype.kind == "c" else float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mean, variance = (f(wide, axes, keepdims=keepdims) for f in (np.nanmean, np.nanvar))
    count = (~np.isnan(x)).sum(axes, keepdims=keepdims)
    real = x.real.dtype
    return mean.astype(x.dtype), variance.astype(real), count.astype(max(real, np.dtype("f4")))


def numbers(ufunc: str, flag: Callable[[np.ndarray], np.ndarray], worst: float) -> list[Sample]:
    """The extreme of what is no NaN or else the worst number, and a flag of which it is."""

    def expected(x: np.ndarray, axis: Any, keepdims: bool = False) -> Any:
        extreme = getattr(np, ufunc).reduce(x, axis=axis, keepdims=keepdims)
        return np.where(np.isnan(extreme), x.dtype.type(worst), extreme), flag(extreme)

    return [
        Sample((x,), static, expected, grad=x is MATRIX, exact=True)
        for x in (MATRIX, GAPS, INFINITE, TIES, HALF)
        for static in ({"axis": 0}, {"axis": None}, {"axis": -1, "keepdims": True})
    ]


def reduced(
    name: str, *operands: np.ndarray, exact: bool = False, grad: bool = True
) -> list[Sample]:
    """A function of NumPy over one axis, several, all, none and with kept dims."""
    statics: list[dict[str, Any]] = [
        {"axis": 0},
        {"axis": None},
        {"axis": -1, "keepdims": True},
    ]
    samples = [
        Sample((x,), static, numpy(name), grad and bool(np.isfinite(x).all()), exact)
        for x in (MATRIX, *operands)
        for static in statics[: x.ndim + 1]
    ]
    samples.append(Sample((CUBE,), {"axis": (0, -1)}, numpy(name), grad, exact))
    samples.append(Sample((CUBE,), {"axis": (), "keepdims": True}, numpy(name), grad, exact))
    return samples


def logsumexp(x: np.ndarray, axis: Any = None, keepdims: bool = False) -> np.ndarray:
    with np.errstate(all="ignore"):
        top = x.max(axis=axis, keepdims=True)
        finite = np.where(np.isfinite(top), top, 0)
        out = np.log(np.exp(x - finite).sum(axis=axis, keepdims=True)) + finite
    return out if keepdims else out.squeeze(axis)


def moments(x: np.ndarray, axes: Any, keepdims: bool = False) -> tuple[np.ndarray, np.ndarray]:
    wide = x.astype(np.complex128 if x.dtype.kind == "c" else float)
    mean, variance = wide.mean(axes, keepdims=keepdims), wide.var(axes, keepdims=keepdims)
    if x.dtype.kind == "f":
        return mean.astype(x.dtype), variance.astype(x.dtype)
    if x.dtype.kind == "c":
        return mean.astype(x.dtype), variance.astype(np.finfo(x.dtype).dtype)
    return mean, variance


def arg(name: str, *operands: np.ndarray) -> list[Sample]:
    return [
        Sample((x,), static, numpy(name), grad=False, exact=True)
        for x in (MATRIX, TIES, NAN, SMALL, BOOL, UNSIGNED, SINGLE, *operands)
        for static in ({"axis": 0}, {"axis": None}, {"axis": -1, "keepdims": True})
    ] + [
        Sample((x,), {"axis": 0}, numpy(name), grad=False, exact=True)
        for x in (np.full((5,), -np.inf), np.array(3.0))
    ]


def scans(name: str) -> list[Sample]:
    function = numpy(name)
    return [
        Sample((MATRIX,), {"axis": 0}, function),
        Sample((CUBE,), {"axis": -2}, function),
        Sample((MATRIX,), {"axis": None}, function),
        Sample((SMALL,), {"axis": 0}, function, exact=True),
        Sample((BOOL,), {"axis": -1}, function, exact=True),
        Sample((SINGLE,), {"axis": 0, "dtype": "float64"}, getattr(np, name)),
        Sample((COMPLEX,), {"axis": 0}, function),
        Sample((np.zeros((0, 3)),), {"axis": 0}, function, grad=False),
        Sample((np.ones((1,)),), {"axis": 0}, function),
    ]


EMPTY = np.zeros((0, 3), np.float32)

SAMPLES: dict[str, list[Sample]] = {
    "sum": [
        *reduced("sum", SMALL, BOOL, UNSIGNED, HALF, SINGLE, COMPLEX, NAN),
        Sample((SMALL,), {"axis": 0, "dtype": np.int8}, np.sum, exact=True),
        Sample((SINGLE,), {"axis": 0, "dtype": "float64"}, np.sum),
        Sample((EMPTY,), {"axis": 0}, np.sum),
        Sample((EMPTY,), {"axis": 1}, np.sum),
        Sample((np.float64(3.0) * np.ones(()),), {}, np.sum),
    ],
    "mean": [
        *reduced("mean", SMALL, BOOL, UNSIGNED, HALF, SINGLE, COMPLEX, NAN),
        Sample((SINGLE,), {"axis": 0, "dtype": "float64"}, np.mean),
        Sample((BOOL,), {"dtype": "float32"}, np.mean),
        Sample((SINGLE * 5,), {"axis": 0, "dtype": "int64"}, np.mean),
        Sample((np.ones((3, 0)),), {"axis": 0}, np.mean),
        Sample((np.float64(3.0) * np.ones(()),), {}, np.mean),
    ],
    "prod": [
        *reduced("prod", SMALL, BOOL, UNSIGNED, SINGLE, COMPLEX, NAN),
        Sample((EMPTY,), {"axis": 0}, np.prod),
    ],
    "max": [
        *reduced("max", SMALL, BOOL, UNSIGNED, HALF, exact=True),
        *reduced("max", TIES, NAN, COMPLEX, INFINITE, exact=True, grad=False),
        Sample((np.zeros((3, 0)),), {"axis": 0}, np.max, grad=False),
    ],
    "min": [
        *reduced("min", SMALL, BOOL, UNSIGNED, HALF, exact=True),
        *reduced("min", NAN, exact=True, grad=False),
    ],
    "argmax": arg("argmax"),
    "argmin": arg("argmin"),
    "any": [
        *reduced("any", BOOL, SMALL, NAN, COMPLEX, np.zeros((5, 3)), grad=False, exact=True),
        Sample((EMPTY,), {"axis": 0}, np.any, grad=False),
    ],
    "all": [
        *reduced("all", BOOL, SMALL, NAN, ZEROS, np.ones((5, 3)), grad=False, exact=True),
        Sample((EMPTY,), {"axis": 0}, np.all, grad=False),
    ],
    "count_nonzero": reduced(
        "count_nonzero", BOOL, SMALL, NAN, ZEROS, UNSIGNED, grad=False, exact=True
    ),
    "moments": [
        Sample((x,), static, moments)
        for x in (MATRIX, SINGLE, HALF, SMALL, BOOL)
        for static in ({"axes": 0}, {"axes": (0, 1)}, {"axes": -1, "keepdims": True})
    ]
    + [
        Sample((CUBE,), {"axes": (0, 2)}, moments),
        Sample((COMPLEX,), {"axes": 0}, moments, grad=False),
        Sample((MATRIX[:1],), {"axes": 0}, moments),
    ],
    "moments_of_numbers": [
        Sample((x,), static, moments_of_numbers, grad=x is MATRIX or x is CUBE)
        for x in (MATRIX, GAPS, GAPS.astype(np.float32), HALF, COMPLEX, CUBE)
        for static in ({"axes": 0}, {"axes": None}, {"axes": -1, "keepdims": True})
    ],
    "largest_number": numbers("fmax", lambda extreme: ~np.isnan(extreme), -np.inf),
    "smallest_number": numbers("fmin", np.isnan, np.inf),
    "at_numbers": [
        Sample(
            (x, y),
            {"otherwise": otherwise},
            lambda x, y, otherwise: np.where(np.isnan(x), otherwise, y),
            exact=True,
            grad=x is MATRIX,
        )
        for x, y in ((NAN, NAN), (NAN, MATRIX), (MATRIX, MATRIX * 2), (MATRIX, MATRIX[0]))
        for otherwise in (2.0, -np.inf)
    ],
    "var": [
        *reduced("var", SMALL, BOOL, HALF, SINGLE, COMPLEX, NAN),
        Sample((MATRIX,), {"axis": 0, "ddof": 1}, np.var),
        Sample((MATRIX,), {"axis": None, "correction": 1.5}, np.var),
        *[
            Sample((MATRIX[:0],), {"axis": a}, no_variance, grad=False, warns=True)
            for a in (0, 1, None)
        ],
    ],
    "std": [
        *[s for s in reduced("std", SMALL, BOOL, HALF, SINGLE, COMPLEX) if s.static["axis"] != ()],
        Sample((MATRIX,), {"axis": 0, "ddof": 1}, np.std),
    ],
    "logsumexp": [
        Sample((MATRIX,), {"axis": 0}, logsumexp),
        Sample((MATRIX,), {}, logsumexp),
        Sample((CUBE,), {"axis": (0, -1), "keepdims": True}, logsumexp),
        Sample((MATRIX * 1000,), {"axis": 1}, logsumexp),
        Sample((INFINITE,), {"axis": 1}, logsumexp, grad=False),
        Sample((INFINITE,), {"axis": 0}, logsumexp, grad=False),
        Sample((SINGLE,), {"axis": -1}, logsumexp),
        Sample((BOOL,), {"axis": 0}, lambda x, axis: logsumexp(x.astype(float), axis)),
        Sample((np.zeros((3, 0)),), {"axis": 1}, lambda x, axis: np.full(3, -np.inf), grad=False),
    ],
    "logsumexp_of_floats": [Sample((CUBE,), {"axis": (0, -1), "keepdims": True}, logsumexp)],
    "cumsum": scans("cumsum"),
    "cumprod": scans("cumprod"),
    "cumsum_of_whole": [
        Sample((MATRIX,), {"axis": 0}, np.cumsum),
        Sample(
            (MATRIX,),
            {"axis": -1, "reverse": True},
            lambda x, axis, reverse: x[:, ::-1].cumsum(1)[:, ::-1],
        ),
    ],
    "cumprod_of_whole": [
        Sample((MATRIX,), {"axis": 0}, np.cumprod),
        Sample(
            (MATRIX,),
            {"axis": -1, "reverse": True},
            lambda x, axis, reverse: x[:, ::-1].cumprod(1)[:, ::-1],
        ),
    ],
}
