"""Samples of functions of ops: NumPy's names that need no rule of their own.

Their ops are tested in every layout by `tests/ops/test_ops.py`, so a few rich samples each, in few
layouts, are enough: see `tests/functions/test_compositions.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gdt
from gdt.testing import Sample

rng = np.random.default_rng(3)
VECTOR = rng.standard_normal(11)
MATRIX = rng.standard_normal((5, 3))
CUBE = rng.standard_normal((3, 5, 2))
SINGLE = MATRIX.astype(np.float32)
COMPLEX = MATRIX + 1j * MATRIX[::-1]
INTEGERS = rng.integers(-9, 9, (5, 3))
SMALL = rng.integers(0, 5, 13).astype(np.int8)
POSITIVE = rng.integers(1, 30, (5, 3))
TRUTHS = rng.random((5, 3)) < 0.5
BYTES = rng.integers(0, 255, (3, 5)).astype(np.uint8)
NAN = MATRIX.copy()
NAN[1, 1] = NAN[3, 1] = NAN[4, 2] = NAN[0, 0] = np.nan
INFINITE = NAN.copy()
INFINITE[0, 1], INFINITE[2, 2] = np.inf, -np.inf
NO_NUMBER = NAN.copy()
NO_NUMBER[:, 1] = np.nan
EMPTY = np.zeros((0, 3))
WEIGHTS = rng.random(5) + 0.5
POINTS = np.cumsum(rng.random(5) + 0.5)

RULES = ("auto", "doane", "fd", "rice", "scott", "sqrt", "sturges")

Samples = list[Sample]


def calls(
    function: Callable[..., Any], *args: tuple[Any, ...], grad: bool = True, **static: Any
) -> Samples:
    """Samples of NumPy's function with these operands, and these keyword arguments."""
    return [_sample(function, a, static, grad) for a in args]


def _sample(
    function: Callable[..., Any], args: tuple[Any, ...], static: dict[str, Any], grad: bool
) -> Sample:
    def expected(*operands: Any, **keywords: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*operands, **keywords)

    numbers = [np.asarray(a) for a in args if isinstance(a, np.ndarray | float)]
    finite = all(n.dtype.kind not in "fc" or np.isfinite(n).all() for n in numbers)
    return Sample(args, static, expected, grad=grad and finite, warns=True)


def _nan(name: str, *, axes: bool = True) -> Samples:
    function = getattr(np, name)
    some = [(NAN,), (INFINITE,), (MATRIX,), (INTEGERS,)]
    found = calls(function, *some) + calls(function, *some, axis=0)
    if axes:
        found += calls(function, (NAN,), axis=-1, keepdims=True)
        found += calls(function, (CUBE,), axis=(0, 2))
    return found


def _triangle(x: Any, k: int) -> Any:
    """The upper triangle of a matrix: NumPy's of NumPy's arrays."""
    return np.triu(x, k) if isinstance(x, np.ndarray) else gdt.triu(x, k)


STEP = np.array([-2.0, 0.0, 3.0, 0.5, -0.0])
NUMBERS = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.0, -1.5])

LONG = rng.standard_normal(37)
GRID, LADDER = np.linspace(-1.5, 2.0, 6), np.linspace(-1.5, 2.0, 37)
COMPOSED: dict[str, Samples] = {
    "bincount": calls(np.bincount, (SMALL,), (SMALL.astype(int), LONG[:13]), grad=False)
    + calls(np.bincount, (SMALL,), minlength=9)
    + calls(np.bincount, (SMALL,), (SMALL.astype(int), LONG[:13]), minlength=9000, grad=False),
    "sort_complex": calls(np.sort_complex, (VECTOR,), (SMALL,), (COMPLEX[:, 0],), grad=False),
    "convolve": calls(np.convolve, (LONG, WEIGHTS), (WEIGHTS, LONG), (SMALL, SMALL[:3]))
    + calls(np.convolve, (LONG, VECTOR), (VECTOR, VECTOR[:1]), mode="same")
    + calls(np.convolve, (LONG, VECTOR * 1j), mode="valid"),
    "correlate": calls(np.correlate, (LONG, WEIGHTS), (WEIGHTS, LONG), (SMALL, SMALL[:4]))
    + calls(np.correlate, (LONG, VECTOR), (VECTOR, LONG), mode="same")
    + calls(np.correlate, (LONG * 1j, COMPLEX[:, 0]), (COMPLEX[:, 0], LONG * 1j), mode="full"),
    "histogram": calls(np.histogram, (LONG,), (SMALL,), (MATRIX, 4), (MATRIX, GRID), grad=False)
    + calls(np.histogram, (np.full(3, 7.0),), grad=False)
    + calls(np.histogram, (MATRIX,), range=(-1, 1), bins=3, density=True, grad=False)
    + calls(
        np.histogram,
        *((LONG, rule) for rule in ("sqrt", "scott", "auto", "fd", "doane")),
        grad=False,
    )
    + calls(np.histogram, (VECTOR,), bins=3, weights=LONG[:11], grad=False),
    "histogram2d": calls(np.histogram2d, (LONG, LONG[::-1].copy(), 4), grad=False)
    + calls(np.histogram2d, (LONG, LONG[::-1].copy(), [3, GRID]), density=True, grad=False),
    "histogram_bin_edges": calls(
        np.histogram_bin_edges, (LONG, 5), (LONG, "rice"), (SMALL, "rice"), grad=False
    )
    + calls(np.histogram_bin_edges, *((LONG, r) for r in RULES), range=(-0.5, 0.25), grad=False),
    "histogramdd": calls(np.histogramdd, (MATRIX, 3), (MATRIX, [2, 3, GRID]), grad=False),
    "interp": calls(np.interp, (LONG, GRID, WEIGHTS[[0, 1, 2, 3, 4, 0]]))
    + calls(np.interp, (LONG[:9], LADDER, LONG))
    + calls(np.interp, (NUMBERS, LADDER.round(1), LONG), (NUMBERS, [0.0], [2.0]), grad=False)
    + calls(np.interp, (NUMBERS, [0.0, 1.0, 1.0], [5.0, np.inf, 7.0]), grad=False)
    + calls(np.interp, (LONG, GRID, GRID * 2), left=-7.0, right=9.0)
    + calls(np.interp, (LONG * 3, GRID[::-1].copy(), GRID * (1 + 2j)), period=3.0, grad=False),
    "angle": calls(np.angle, (COMPLEX,), (MATRIX,), grad=False)
    + calls(np.angle, (COMPLEX,), deg=True, grad=False),
    "append": calls(np.append, (MATRIX, INTEGERS), (VECTOR, 3.0))
    + calls(np.append, (MATRIX, SINGLE), axis=0),
    "array_equiv": calls(
        np.array_equiv,
        (MATRIX, MATRIX),
        (MATRIX, MATRIX[0]),
        (VECTOR, MATRIX),
        (np.ones((2, 3)), np.ones(3)),
    ),
    "atleast_3d": calls(np.atleast_3d, (VECTOR,), (MATRIX,), (CUBE,), (2.0,)),
    "average": calls(np.average, (MATRIX,), (INTEGERS,))
    + calls(np.average, (MATRIX,), axis=0, weights=WEIGHTS)
    + calls(np.average, (CUBE,), axis=1, returned=True, weights=WEIGHTS)
    + calls(np.average, (MATRIX,), weights=POSITIVE, keepdims=True),
    "column_stack": calls(np.column_stack, ([MATRIX, WEIGHTS, INTEGERS],)),
    "corrcoef": calls(np.corrcoef, (MATRIX,), (VECTOR,), (MATRIX, MATRIX[::-1] * 2), grad=False)
    + calls(np.corrcoef, (COMPLEX,), rowvar=False, grad=False),
    "cov": calls(np.cov, (MATRIX,), (VECTOR,), (MATRIX, MATRIX[::-1]), (INTEGERS,), (COMPLEX,))
    + calls(np.cov, (MATRIX,), rowvar=False, bias=True)
    + calls(np.cov, (MATRIX,), rowvar=False, bias=True, ddof=2)
    + calls(np.cov, (MATRIX,), rowvar=False, fweights=POSITIVE[:, 0], aweights=WEIGHTS),
    "cumulative_prod": calls(np.cumulative_prod, (VECTOR,), (SMALL,))
    + calls(np.cumulative_prod, (MATRIX,), axis=0, include_initial=True),
    "cumulative_sum": calls(np.cumulative_sum, (VECTOR,), (SMALL,))
    + calls(np.cumulative_sum, (MATRIX,), axis=0, include_initial=True)
    + calls(np.cumulative_sum, (SMALL,), dtype="int8", grad=False),
    "delete": calls(np.delete, (MATRIX, 1))
    + calls(
        np.delete,
        (MATRIX, [0, -1, 2]),
        (MATRIX, slice(None, None, 2)),
        (MATRIX, slice(9, 9)),
        axis=0,
    )
    + calls(np.delete, (CUBE, -1), axis=2)
    + calls(np.delete, (np.sin(np.arange(211.0)), slice(1, None, 3)))
    + calls(np.delete, (MATRIX, np.array([0, 3, -1])), (LONG, LONG > 0), axis=0, grad=False),
    "diag": calls(np.diag, (VECTOR,), (MATRIX,))
    + calls(np.diag, (VECTOR[:4],), (MATRIX,), k=1)
    + calls(np.diag, (VECTOR[:4],), (MATRIX,), k=-2),
    "diag_indices_from": calls(np.diag_indices_from, (MATRIX[:3],)),
    "diagflat": calls(np.diagflat, (MATRIX[:2],)),
    "diff": calls(np.diff, (MATRIX,), (INTEGERS,), (TRUTHS,))
    + calls(np.diff, (MATRIX,), n=2, axis=0)
    + calls(np.diff, (MATRIX,), axis=0, prepend=0.0, append=MATRIX[:2])
    + calls(np.diff, (VECTOR,), n=20),
    "divmod": calls(np.divmod, (INTEGERS, 4), (MATRIX, 0.75), grad=False),
    "dsplit": calls(np.dsplit, (CUBE, 2)),
    "hsplit": calls(np.hsplit, (MATRIX, 3), (VECTOR, [2, 7])),
    "vsplit": calls(np.vsplit, (MATRIX, [1, 4])),
    "dstack": calls(np.dstack, ([MATRIX, MATRIX],), ([VECTOR, VECTOR],)),
    "ediff1d": calls(np.ediff1d, (MATRIX,), (INTEGERS,))
    + calls(np.ediff1d, (VECTOR,), to_begin=1.0, to_end=VECTOR[:2]),
    "fix": calls(np.fix, (MATRIX * 4,), grad=False),
    "fliplr": calls(np.fliplr, (MATRIX,)),
    "flipud": calls(np.flipud, (MATRIX,), (VECTOR,)),
    "float_power": calls(np.float_power, (POSITIVE, 2), (POSITIVE * 1.0, MATRIX)),
    "gradient": calls(np.gradient, (MATRIX,), (VECTOR,), (INTEGERS,), (VECTOR, 0.5))
    + calls(np.gradient, (MATRIX, POINTS), axis=0)
    + calls(np.gradient, (MATRIX, POINTS), axis=0, edge_order=2)
    + calls(np.gradient, (VECTOR,), edge_order=2, axis=np.int64(0)),
    "hstack": calls(np.hstack, ([MATRIX, INTEGERS],), ([VECTOR, SMALL],)),
    "insert": calls(
        np.insert, (MATRIX, 1, 9.0), (VECTOR, [1, 3], 5.0), (VECTOR, [2, 2, -1], VECTOR[:3])
    )
    + calls(np.insert, (np.sin(np.arange(99.0)), slice(None), np.cos(np.arange(99.0))))
    + calls(np.insert, (MATRIX, 2, VECTOR[:3]), (MATRIX, [0, 5], MATRIX[:2]), axis=0)
    + calls(np.insert, (MATRIX, 1, WEIGHTS), (MATRIX, [1], WEIGHTS[:, None]), axis=1),
    "iscomplex": calls(np.iscomplex, (COMPLEX,), (MATRIX,)),
    "isreal": calls(np.isreal, (COMPLEX,), (MATRIX,)),
    "isneginf": calls(np.isneginf, (NUMBERS,), (INTEGERS,)),
    "isposinf": calls(np.isposinf, (NUMBERS,), (INTEGERS,)),
    "ix": calls(np.ix_, (np.array([0, 2]), np.array([True, False, True]))),
    "kron": calls(np.kron, (MATRIX, MATRIX[:2]), (VECTOR, MATRIX), (2.0, VECTOR)),
    "matrix_transpose": calls(np.matrix_transpose, (CUBE,)),
    "matvec": calls(np.matvec, (CUBE, CUBE[0, 0]), (MATRIX, MATRIX[0])),
    "vecmat": calls(np.vecmat, (WEIGHTS, CUBE), (COMPLEX[:, 0], COMPLEX)),
    "meshgrid": calls(np.meshgrid, (VECTOR, WEIGHTS, SMALL), (VECTOR,))
    + calls(np.meshgrid, (VECTOR, WEIGHTS), indexing="ij", sparse=True),
    "nan_to_num": calls(
        np.nan_to_num,
        (NUMBERS,),
        (INTEGERS,),
        (MATRIX,),
        (NUMBERS.astype(complex),),
        (NUMBERS.astype("float32"),),
    )
    + calls(np.nan_to_num, (NUMBERS,), nan=7.0, posinf=8.0, neginf=9.0),
    "nanargmax": calls(np.nanargmax, (NAN,), (INTEGERS,), (INFINITE,))
    + calls(np.nanargmax, (NAN,), axis=0),
    "nanargmin": calls(np.nanargmin, (NAN,), (INTEGERS,), (INFINITE,))
    + calls(np.nanargmin, (NAN,), axis=1),
    "nancumprod": _nan("nancumprod", axes=False),
    "nancumsum": _nan("nancumsum", axes=False),
    "nanmax": _nan("nanmax"),
    "nanmin": _nan("nanmin"),
    "nanmean": _nan("nanmean"),
    "nanprod": _nan("nanprod"),
    "nansum": _nan("nansum"),
    "nanstd": _nan("nanstd"),
    "nanvar": _nan("nanvar")
    + calls(np.nanvar, (NAN,), axis=0, ddof=1)
    + calls(np.nanvar, (COMPLEX,)),
    "packbits": calls(np.packbits, (TRUTHS,), (SMALL,))
    + calls(np.packbits, (BYTES,), axis=0, bitorder="little"),
    "piecewise": [
        Sample(
            (MATRIX, [MATRIX < 0, MATRIX > 1]),
            {"funclist": [lambda x: x * x, 7.0, lambda x: -x]},
            np.piecewise,
            grad=False,
        )
    ],
    "poly": calls(np.poly, (VECTOR[:4],)),
    "polyadd": calls(np.polyadd, (VECTOR, WEIGHTS)),
    "polysub": calls(np.polysub, (WEIGHTS, VECTOR)),
    "polyder": calls(np.polyder, (VECTOR,), (VECTOR, 2), (SMALL,)),
    "polydiv": calls(np.polydiv, (VECTOR, WEIGHTS), (WEIGHTS, VECTOR), (SMALL, POSITIVE[0])),
    "polyfit": calls(np.polyfit, (POINTS, WEIGHTS, 2), (POINTS, MATRIX, 1), (VECTOR, VECTOR**2, 3))
    + calls(np.polyfit, (POINTS, WEIGHTS, 1), (POINTS, MATRIX, 2), cov=True, grad=False)
    + calls(np.polyfit, (POINTS, WEIGHTS, 1), cov="unscaled", w=WEIGHTS, grad=False),
    "roots": calls(np.roots, (np.array([0.0, 1, 0, 1, 0]),), (WEIGHTS,), grad=False),
    "polyint": calls(np.polyint, (VECTOR,), (VECTOR, 2, [1.0, 2.0])),
    "polymul": calls(np.polymul, (VECTOR, WEIGHTS), (np.array([0, 0, 1]), SMALL)),
    "polyval": calls(np.polyval, (WEIGHTS, MATRIX), (SMALL[:3], INTEGERS)),
    "ptp": calls(np.ptp, (MATRIX,), (INTEGERS,)) + calls(np.ptp, (MATRIX,), axis=0),
    "ravel_multi_index": calls(np.ravel_multi_index, ((SMALL, SMALL[::-1]), (5, 6)))
    + calls(np.ravel_multi_index, ((SMALL, SMALL[::-1]), (3, 4)), mode="wrap", order="F")
    + calls(np.ravel_multi_index, ((SMALL, SMALL[::-1]), (3, 4)), mode=("clip", "wrap")),
    "real_if_close": calls(np.real_if_close, (COMPLEX,), (MATRIX + 0j,), grad=False),
    "resize": calls(np.resize, (MATRIX, (4, 7)), (VECTOR, (2, 3)), (EMPTY, (2, 2))),
    "rollaxis": calls(np.rollaxis, (CUBE, 2), (CUBE, 0, 3), (CUBE, -1, 1)),
    "rot90": [s for k in range(-1, 4) for s in calls(np.rot90, (MATRIX,), k=k)]
    + calls(np.rot90, (CUBE,), axes=(2, 0)),
    "select": calls(
        np.select, ([TRUTHS, MATRIX > 0], [MATRIX, INTEGERS]), ([TRUTHS], [SINGLE], 3.0)
    ),
    "choose": calls(np.choose, (SMALL % 2, [VECTOR[0], np.arange(13)]))
    + calls(np.choose, (SMALL - 1, [SMALL, SMALL * 2, SMALL * 3]), mode="wrap")
    + calls(np.choose, (SMALL - 1, [SMALL, SMALL * 2, SMALL * 3]), mode="clip"),
    "sinc": calls(np.sinc, (MATRIX,), (INTEGERS,)) + calls(np.sinc, (TRUTHS,), grad=False),
    "trapezoid": calls(np.trapezoid, (MATRIX,), (INTEGERS,))
    + calls(np.trapezoid, (MATRIX, POINTS), axis=0)
    + calls(np.trapezoid, (MATRIX, MATRIX * 2), dx=2.0),
    "tril_indices_from": calls(np.tril_indices_from, (MATRIX,)),
    "triu_indices_from": calls(np.triu_indices_from, (MATRIX, 1)),
    "trim_zeros": calls(
        np.trim_zeros,
        (np.array([0, 0, 1, 0, 2, 0]),),
        (np.zeros(4),),
        (np.array([0.0, 1.0]), "b"),
        grad=False,
    ),
    "unpackbits": calls(np.unpackbits, (BYTES,))
    + calls(np.unpackbits, (BYTES,), axis=0, count=20, bitorder="little")
    + calls(np.unpackbits, (BYTES,), axis=1, count=50),
    "unravel_index": calls(np.unravel_index, (SMALL, (2, 3)))
    + calls(np.unravel_index, (SMALL, (2, 3)), order="F"),
    "unstack": calls(np.unstack, (MATRIX,)) + calls(np.unstack, (CUBE,), axis=1),
    "unwrap": calls(np.unwrap, (VECTOR * 4,))
    + calls(np.unwrap, (MATRIX * 9,), axis=0, period=3.0, discont=9.0)
    + calls(np.unwrap, (SMALL.astype(int),), period=3),
    "vander": calls(np.vander, (WEIGHTS,), (SMALL.astype(int),), (WEIGHTS, 3))
    + calls(np.vander, (WEIGHTS,), increasing=True),
    "vstack": calls(np.vstack, ([MATRIX, INTEGERS[0], MATRIX],), ([VECTOR, VECTOR],)),
    "block": calls(np.block, ([[MATRIX, MATRIX], [INTEGERS, MATRIX]],), ([VECTOR, 1.0],)),
}

# Functions of shapes and numbers alone: NumPy's value for the same arguments.
CREATIONS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "bartlett": [((7,), {}), ((1,), {}), ((0,), {})],
    "blackman": [((7,), {})],
    "broadcast_shapes": [(((2, 1), (3,), (4, 1, 1)), {})],
    "diag_indices": [((3,), {}), ((2, 3), {})],
    "fromfunction": [((lambda i, j: i * 2 + j, (3, 4)), {"dtype": int})],
    "geomspace": [
        ((1, 1000, 4), {}),
        ((-2, -32, 5), {"endpoint": False}),
        ((3, 3, 1), {}),
        (([1, -2.0], [8, -64.0], 4), {"axis": -1}),
        ((2, [4, 8.0], 3), {"endpoint": False}),
    ],
    "hamming": [((8,), {})],
    "hanning": [((8,), {}), ((1,), {})],
    "indices": [(((2, 3),), {}), (((2, 3),), {"sparse": True}), (((4,),), {"dtype": "float32"})],
    "kaiser": [((9, 5.0), {}), ((1, 2.0), {}), ((0, 2.0), {})],
    "logspace": [((0, 3, 7), {}), ((1, 2, 5), {"base": 2, "endpoint": False, "dtype": "float32"})],
    "mask_indices": [((3, _triangle, 1), {})],
    "ndim": [(([[1, 2]],), {})],
    "shape": [(([[1, 2]],), {})],
    "size": [(([[1, 2]],), {}), (([[1, 2]], 1), {})],
    "tril_indices": [((4,), {}), ((3, 1, 5), {})],
    "triu_indices": [((4,), {}), ((3, -1, 5), {})],
}
