"""Arguments that NumPy's functions have beyond the common ones, in split and in whole arrays."""

from __future__ import annotations

import inspect
import itertools
import operator
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.preprocessing import StandardScaler

import gdt
from gdt import DistributedArray
from gdt.state.trees import leaves
from gdt.testing import meshes, tolerance

FOLDED, APART = meshes([(2, 2)], modes=["folded", "apart"])
X = np.random.default_rng(3).standard_normal((5, 6))
HOLES = np.where(X > 1, np.nan, X)
EMPTY = np.full((2, 3), np.nan)
MASK = X > -0.5
WEIGHTS = np.abs(X)
Z = X + 1j * X[::-1].round(1)
TIES = np.array([2 + 1j, 2 + 3j, 1, 2 + 3j])
WAVE = np.concatenate([X.ravel(), X.ravel() + 3])
ROW = np.arange(5.0)
ONES = np.ones((5, 6))


def placed(value: Any, mesh: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(placed(v, mesh) for v in value)
    if not isinstance(value, np.ndarray):
        return value
    axes = [*mesh.axis_names, *[None] * value.ndim][: value.ndim]
    return gdt.asarray(value, layout=gdt.Layout(axes, mesh))


CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *[("take", (X, [7, -9, 1]), {"axis": axis, "mode": mode})
      for mode in ("wrap", "clip") for axis in (0, 1, None)],
    ("take", (X, np.array([[7], [-9]])), {"mode": "clip"}),
    *[(name, (X, q), {"weights": w, "axis": axis, "method": "inverted_cdf"})
      for name, q in (("quantile", [0, 0.3, 1.0]), ("percentile", 30.0), ("nanquantile", 0.5),
                      ("nanpercentile", [0, 99]))
      for w, axis in ((WEIGHTS, None), (WEIGHTS, 1), (WEIGHTS[:, 0], 0))
      if w.ndim == 2 or "nan" not in name],  # of which NumPy has an IndexError
    ("nanquantile", (HOLES, [0.2, 1.0]), {"weights": WEIGHTS, "axis": 0, "method": "inverted_cdf"}),
    ("quantile", (HOLES, [0.2, 1.0]), {"weights": WEIGHTS, "axis": 0, "method": "inverted_cdf"}),
    ("quantile", (X, 0), {"weights": 1.0 * MASK, "axis": 0, "method": "inverted_cdf"}),
    *[(name, (HOLES,), {"where": MASK, "axis": 0})
      for name in ("nansum", "nanprod", "nanmean", "nanvar", "nanstd")],
    *[(name, (HOLES,), {"where": MASK, "initial": 0.25, "axis": 1, "keepdims": True})
      for name in ("nansum", "nanprod", "nanmax", "nanmin")],
    *[(name, (X.astype("f4") / 3,), {"where": MASK, "dtype": "f8", "axis": 1})
      for name in ("sum", "prod", "mean", "nanmean", "std")],
    ("nanmax", (EMPTY,), {"initial": 0.5, "axis": 0}),
    ("nanvar", (HOLES,), {"mean": np.nanmean(HOLES, 0, keepdims=True), "axis": 0}),
    *[(name, ([X, X.astype("float32")],), {"dtype": "float32"})
      for name in ("concatenate", "stack", "hstack", "vstack")],
    ("concatenate", ([X, X],), {"dtype": int, "casting": "unsafe", "axis": 1}),
    ("stack", ([X, X],), {"dtype": int, "casting": "unsafe", "axis": -1}),
    ("linspace", (0.0, 2.0, 5), {"retstep": True}),
    ("linspace", (0.0, 2.0, 1), {"retstep": True}),
    ("linspace", (ROW, ROW[::-1] * 2, 4), {"retstep": True, "axis": -1}),
    ("linspace", (X, 3, 4), {"endpoint": False, "axis": 1}),
    ("linspace", (ROW, 9, 4), {"dtype": int}),
    ("linspace", (ROW.astype("f4"), ROW.astype("i1"), 3), {"retstep": True}),
    ("linspace", (ROW.astype("u2"), ROW.astype("f4"), 0), {"retstep": True}),
    ("linspace", (ROW, ROW, 0), {}), ("linspace", (ROW, ROW + 1, 1), {}),
    ("logspace", (ROW, 2, 4), {"axis": 1}),
    ("trace", (np.ones((3, 3), bool),), {"dtype": np.int8}),
    ("histogram", (WAVE,), {"bins": "stone"}), ("histogram", (WAVE, "stone", (-1, 2)), {}),
    *[(name, (ROW + 1,), {"k": k}) for name in ("tril", "triu") for k in (-1, 0, 2)],
    *[(name, (value,), {}) for name in ("argmax", "argmin") for value in (TIES, Z)],
    *[(name, (Z,), {"axis": axis}) for name in ("argmax", "argmin", "median") for axis in (0, 1)],
    ("median", (Z,), {"keepdims": True}), ("median", (np.where(X > 1, np.nan, Z),), {"axis": 0}),
    ("argmax", (np.where(X > 1, np.nan, Z),), {}),
    ("nanargmax", (np.asarray(3.0),), {"axis": 0}), ("nanargmin", (np.asarray(3.0),), {"axis": -1}),
    ("cross", (X[:, :3], X[:, 3:]), {"axisa": 1, "axisb": -1, "axisc": 0}),
    ("vecmat", (MASK[0, :5], MASK), {}), ("matvec", (MASK, MASK[0]), {}),
    ("cross", (X[:3], X[:3]), {"axis": 0}),
    ("cross", (X[:3, :5], X[:, :3]), {"axisa": 0, "axisb": 1}),
    *[(name, (X.astype(given),), {"dtype": dtype}) for name in ("cov", "corrcoef")
      for given, dtype in (("f4", "f4"), ("f8", "f2"), ("f4", "c8"), ("f8", None))],
    ("cov", (X, X[::-1]), {"dtype": "f4"}),
    *[("choose", (MASK.astype(int), [ONES.astype(dtype), number]), {})
      for dtype, number in (("i2", 7), ("f4", 7), ("i1", 0.5), ("u1", True), ("f4", 2j))],
    ("choose", (MASK.astype(int), [7, 0.5]), {}), ("choose", (MASK.astype(int), ROW[:2]), {}),
    ("unwrap", (np.array([0, 3, 1, -2], "i1"),), {"period": 4}),
    ("insert", (ONES.astype("i1"), 1, 2.5), {}), ("ediff1d", (ONES.astype("i1"), [7], 8), {}),
]  # fmt: skip


@pytest.mark.parametrize("mesh", [FOLDED, APART], ids=["folded", "apart"])
@pytest.mark.parametrize("call", CALLS, ids=lambda c: f"{c[0]}-{','.join(c[2])}")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_arguments_of_numpy(call: tuple[str, Any, Any], mesh: Any) -> None:
    name, args, options = call
    options = {k: placed(v, mesh) if k == "weights" else v for k, v in options.items()}
    want = getattr(np, name)(*args, **call[2])
    got = getattr(gdt, name)(*placed(args, mesh), **options)
    for g, w in zip(leaves([got]), leaves([want]), strict=True):
        assert getattr(g, "dtype", float) == np.asarray(w).dtype and np.shape(g) == np.shape(w)
        value = g.numpy() if isinstance(g, DistributedArray) else g
        bound = max(1e-12, tolerance([np.asarray(w).dtype], 6))
        np.testing.assert_allclose(value, w, rtol=bound, atol=bound)


# ---------------------------------------------------------------- arguments together

FLOATS = np.random.default_rng(5).standard_normal(23)
INTEGERS = np.random.default_rng(6).integers(-9, 10, 17)
POSITIVE = np.abs(INTEGERS[:5]) + 1
CUBE = np.random.default_rng(7).standard_normal((4, 3, 5))
DATES = np.sort(FLOATS)[:7]
RULES = ["auto", "doane", "fd", "rice", "scott", "sqrt", "sturges"]
METHODS = ["inverted_cdf", "averaged_inverted_cdf", "closest_observation", "linear", "hazen",
           "interpolated_inverted_cdf", "weibull", "median_unbiased", "normal_unbiased", "lower",
           "higher", "midpoint", "nearest"]  # fmt: skip
Options = dict[str, list[Any]]
NONE: list[Any] = [None]
COMBINED: list[tuple[str, list[tuple[Any, ...]], Options]] = [
    ("histogram", [(FLOATS,), (INTEGERS,), (X,), (INTEGERS.astype("u1"),), (FLOATS * 1e-3,)],
     {"bins": [*RULES, 1, 4, [-1.0, 0.0, 0.5], np.arange(-9, 9, 3)],
      "range": [None, (-0.5, 1.5), (-3, 4), (0.0, 0.0)], "density": [False, True]}),
    ("histogram", [(FLOATS,), (INTEGERS[:, None] + np.arange(2),)],
     {"bins": [3, [-2, 0, 0.5, 5]], "range": [None, (-1, 2)], "density": [False, True],
      "weights": [FLOATS, FLOATS * (1 + 2j), np.arange(34).reshape(17, 2)]}),
    ("histogram_bin_edges", [(FLOATS,), (INTEGERS,), (X * 100,)],
     {"bins": [*RULES, 5], "range": [None, (-0.5, 1.5), (-3, 4)]}),
    ("histogram2d", [(FLOATS, FLOATS[::-1] * 2), (FLOATS, INTEGERS.repeat(2)[:23])],
     {"bins": [3, [2, 4], [3, [-1.0, 0.0, 2.0]], [-2.0, 0.0, 1.0]],
      "range": [None, [[-1, 1], [-2, 3]]], "density": [False, True], "weights": [None, FLOATS]}),
    ("histogramdd", [(X[:, :3],)],
     {"bins": [2, [2, 3, 4], [2, [-1.0, 0.0, 2.0], 3]], "density": [False, True],
      "range": [None, [(-1, 1), (-2, 3), (0, 1)], [None, (-2, 3), None]],
      "weights": [None, ROW]}),
    ("pad", [(FLOATS, 3), (INTEGERS, (2, 5)), (X, ((1, 2), (4, 0))), (X, (3, 2)), (CUBE, 2),
             (INTEGERS.astype("i1"), (30, 25))],
     {"mode": ["edge", "wrap", "empty"]}),
    ("pad", [(FLOATS, 3), (INTEGERS, (2, 5)), (X, ((1, 2), (9, 0))), (CUBE, 2)],
     {"mode": ["constant"], "constant_values": [0, 7, (-2, 3), -4]}),
    ("pad", [(FLOATS, 3), (INTEGERS, (2, 5)), (X, ((1, 2), (9, 0))), (-INTEGERS, (7, 4))],
     {"mode": ["linear_ramp"], "end_values": [0, 7, (-2, 3), -8.5]}),
    ("pad", [(FLOATS, 3), (INTEGERS, (2, 5)), (X, ((1, 2), (9, 0))), (INTEGERS.astype("u1"), 1)],
     {"mode": ["mean", "minimum", "maximum", "median"],
      "stat_length": [None, 1, 2, (3, 2), 40]}),
    ("pad", [(FLOATS, 3), (INTEGERS, (60, 5)), (X, ((1, 2), (19, 0))), (CUBE, 9), (ROW[:1], 2)],
     {"mode": ["reflect", "symmetric"], "reflect_type": ["even", "odd"]}),
    ("interp", [(FLOATS * 2, DATES, ROW[[0, 1, 4, 2, 3, 0, 1]]), (X, DATES, DATES * 1j)],
     {"left": [None, -7.0], "right": [None, 9.0], "period": [None, 1.5, -2.0]}),
    ("cov", [(X,), (CUBE[0], CUBE[1]), (FLOATS,), (X[:, :5] * 1j,)],
     {"rowvar": [True, False], "bias": [False, True], "ddof": [None, 0, 2]}),
    ("cov", [(X[:, :5],), (CUBE[0], CUBE[1])],
     {"rowvar": [True], "bias": [False, True], "ddof": [None, 0, 2],
      "fweights": [None, POSITIVE], "aweights": [None, np.abs(FLOATS[:5])]}),
    ("corrcoef", [(X,), (CUBE[0], CUBE[1]), (X[:, :5] * 1j + X[:, 1:],)],
     {"rowvar": [True, False]}),
    ("average", [(CUBE,), (CUBE.astype("f4"),), (np.round(CUBE).astype(int),)],
     {"axis": [None, 0, -1, (0, 2), (2, 0)], "returned": [False, True], "keepdims": [False, True],
      "weights": [None, np.abs(CUBE)]}),
    ("average", [(CUBE,)], {"axis": [1, -2], "weights": [ROW[1:4]], "returned": [False, True],
                            "keepdims": [False, True]}),
    ("average", [(CUBE,), (CUBE[:3],)],
     {"axis": [(0, 1), (1, 0), (-3, 2)],
      "weights": [CUBE[:, :, 0], CUBE[:, :, 0].T, CUBE[:3, :, 0]]}),
    ("quantile", [(CUBE, 0.3), (CUBE[:3], [0.6])],
     {"axis": [(0, 1), (1, 0)], "method": ["inverted_cdf"],
      "weights": [np.abs(CUBE[:, :, 0]), np.abs(CUBE[:, :, 0].T), np.abs(CUBE[:3, :, 0])]}),
    ("gradient", [(X,), (CUBE,), (np.round(X).astype(int),), (X, 0.5), (X.astype("f4"),)],
     {"axis": [None, 0, -1, (0, 1), (1, 0)], "edge_order": [1, 2]}),
    ("gradient", [(X, DATES[:5], 2.0), (X, 0.5, DATES[:6])], {"edge_order": [1, 2]}),
    ("trapezoid", [(CUBE,), (np.round(CUBE).astype(int),)],
     {"axis": [0, 1, -1], "dx": [1.0, 0.3], "x": [None, CUBE * 2]}),
    ("trapezoid", [(CUBE,)], {"axis": [0, -3], "x": [DATES[:4]]}),
    ("diff", [(X,), (np.round(X).astype(int),), (X > 0,)],
     {"n": [0, 1, 2, 4], "axis": [0, 1, -1], "prepend": [np._NoValue, 0, 2],
      "append": [np._NoValue, 1]}),
    ("ediff1d", [(X,), (INTEGERS,)], {"to_end": [None, 3, [1, 2]], "to_begin": [None, -1, [5, 6]]}),
    ("unwrap", [(X * 9,), (INTEGERS,), (CUBE * 5,)],
     {"discont": [None, 2.0, 9.0], "axis": [0, -1], "period": [2 * np.pi, 3, 4.5]}),
    *[(name, [(X, 0.3), (X, [0.0, 0.5, 1.0]), (CUBE, [[0.2], [0.9]]), (INTEGERS[None], 0.4)],
      {"axis": [None, 0, -1], "method": METHODS, "keepdims": [False, True]})
     for name in ("quantile", "nanquantile")],
    *[(name, [(X, 30), (CUBE, [20, 99.5])],
      {"axis": [None, 0, (0, 1)], "method": METHODS, "keepdims": [False, True]})
     for name in ("percentile", "nanpercentile")],
    *[(name, [(X,), (HOLES,), (CUBE,), (np.round(X).astype(int),)],
      {"axis": [None, 0, -1, (0, 1)], "keepdims": [False, True]})
     for name in ("median", "nanmedian")],
    *[(name, [(X,), (HOLES,), (np.round(X).astype(int),), (Z,), (X.astype("f4"),)],
      {"axis": [None, 0, -1], "ddof": [0, 1, 2.5], "keepdims": [False, True],
       "where": [True, MASK]}) for name in ("var", "std", "nanvar", "nanstd")],
    *[(name, [(X.astype("f4"),), (np.round(X * 40).astype("i1"),), (CUBE[0, :, :3],)],
      {"axis": [None, 0, -1], "dtype": [None, "f8"], "keepdims": [False, True],
       "where": [True, MASK[:, :1], np.arange(3) > 0]})
     for name in ("mean", "sum", "prod", "nanmean")],
    ("nan_to_num", [(HOLES,), (np.array([np.nan, np.inf, -np.inf, 1.0], "f4"),),
                    (np.array([complex(np.nan, np.inf), -np.inf]),), (INTEGERS,)],
     {"nan": [0.0, -3.0], "posinf": [None, 8.0], "neginf": [None, -9.0]}),
    ("unique", [(INTEGERS,), (np.array([1.0, np.nan, np.nan, 1.0, -0.0, 0.0]),), (X > 0,)],
     {"return_index": [False, True], "return_inverse": [False, True],
      "return_counts": [False, True], "equal_nan": [True, False]}),
    ("unique", [(INTEGERS[:16].reshape(8, 2) % 2,), (INTEGERS[:15].reshape(3, 5) % 3,)],
     {"axis": [0, 1, -1, None], "return_index": [False, True], "return_inverse": [False, True],
      "return_counts": [False, True]}),
    ("isin", [(INTEGERS, [1, 3, -4]), (np.unique(INTEGERS), np.arange(0, 9, 2)), (X, [X[0, 0]])],
     {"assume_unique": [False, True], "invert": [False, True]}),
    ("intersect1d", [(INTEGERS, np.arange(-3, 5)), (INTEGERS * 1.0, INTEGERS[:4])],
     {"return_indices": [False, True]}),
    ("searchsorted", [(np.sort(INTEGERS), np.arange(-12, 12)), (np.sort(FLOATS), X)],
     {"side": ["left", "right"]}),
    ("searchsorted", [(INTEGERS, np.arange(-12, 12))],
     {"side": ["left", "right"], "sorter": [np.argsort(INTEGERS, kind="stable")]}),
    ("digitize", [(X, np.array([-1.0, 0.0, 1.0])), (INTEGERS, np.array([6, 2, 0, -3]))],
     {"right": [False, True]}),
    ("bincount", [(INTEGERS + 9,), ((INTEGERS + 9).astype("u1"),)],
     {"weights": [None, FLOATS[:17], INTEGERS], "minlength": [0, 3, 30]}),
    ("polyfit", [(FLOATS, FLOATS**3 + 1, 2), (ROW, X, 1), (FLOATS, FLOATS * 2, 0),
                 (ROW, X[:, 0], 4)],
     {"w": [None], "cov": [False, True, "unscaled"]}),
    ("polyfit", [(ROW, X, 2), (ROW, X[:, 0], 1)],
     {"w": [None, np.abs(FLOATS[:5])], "full": [False, True], "rcond": [None, 1e-3]}),
    ("vander", [(ROW,), (INTEGERS[:4],)], {"N": [None, 0, 1, 6], "increasing": [False, True]}),
    ("meshgrid", [(ROW, FLOATS[:3]), (ROW, FLOATS[:3], INTEGERS[:2]), (ROW,)],
     {"indexing": ["xy", "ij"], "sparse": [False, True]}),
    ("rot90", [(X,), (CUBE,)], {"k": [-3, -1, 0, 2, 5], "axes": [(0, 1), (1, 0), (-1, 0)]}),
    ("roll", [(CUBE, 2), (CUBE, -7), (CUBE, (1, -2))], {"axis": [None, 0, -1, (0, 1), (2, 2)]}),
    ("packbits", [(X > 0,), (CUBE > 0,), (INTEGERS,)],
     {"axis": [None, 0, -1], "bitorder": ["big", "little"]}),
    ("unpackbits", [(INTEGERS.astype("u1"),), (INTEGERS[:16].reshape(4, 4).astype("u1"),)],
     {"axis": [None, 0, -1], "count": [None, 5, -3, 0, 70], "bitorder": ["big", "little"]}),
    ("repeat", [(X, 2), (X, np.arange(5)), (X, np.arange(6)), (FLOATS[:6], [3])],
     {"axis": [None, 0, -1]}),
    ("trim_zeros", [(np.array([0, 0, 3, 0, 1, 0.0]),), (np.zeros(3),)],
     {"trim": ["fb", "f", "b", "B"]}),
    ("cross", [(CUBE[:, :, 0], CUBE[:, :, 1])], {"axis": [None, 1, -1]}),
    ("tensordot", [(CUBE, CUBE), (CUBE, CUBE[::-1])], {"axes": [3, ([0], [0]), ([0, 1], [0, 1])]}),
    ("round", [(X * 1000,), (INTEGERS * 100,), (Z,), (X.astype("f4"),)],
     {"decimals": [-3, -1, 0, 2]}),
    ("clip", [(X,), (INTEGERS,)],
     {"min": [None, -1, 0.5], "max": [None, 1, 0.25]}),
    ("ptp", [(CUBE,), (INTEGERS,)], {"axis": [None, 0, -1], "keepdims": [False, True]}),
    ("count_nonzero", [(CUBE > 0,), (INTEGERS,)],
     {"axis": [None, 0, -1], "keepdims": [False, True]}),
    ("array_equal", [(HOLES, HOLES), (X, X), (X, X[0]), (Z * np.nan, Z * np.nan)],
     {"equal_nan": [False, True]}),
    ("allclose", [(X, X + 1e-3), (HOLES, HOLES), (X * 1e9, X * 1e9 + 1)],
     {"rtol": [1e-5, 1e-2, 0.0], "atol": [1e-8, 1e-2, 2.0], "equal_nan": [False, True]}),
    ("sort", [(X,), (CUBE,), (INTEGERS,)], {"axis": [None, 0, -1], "stable": [None, True]}),
    ("argsort", [(np.round(X).astype(int),), (CUBE,)], {"axis": [None, 0, -1], "stable": [True]}),
    *[(name, [(X,), (INTEGERS,), (CUBE.astype("f4"),)],
      {"axis": [None, 0, -1], "dtype": [None, "float64", "complex128"]})
     for name in ("cumsum", "cumprod", "nancumsum", "nancumprod")],
    *[(name, [(INTEGERS,), (X[0],)], {"axis": [None, 0], "include_initial": [False, True],
                                      "dtype": [None, "float32"]})
      for name in ("cumulative_sum", "cumulative_prod")],
    ("full_like", [(X, 3), (INTEGERS, 2.5)], {"dtype": [None, "float32"], "shape": [None, (2, 7)]}),
    ("linspace", [(1, 9), (-2.5, 3)], {"num": [0, 1, 2, 7], "endpoint": [True, False],
                                       "retstep": [False, True], "dtype": [None, int, "f4"]}),
    ("geomspace", [(1, 1000), (-2.0, -32.0)], {"num": [1, 2, 7], "endpoint": [True, False]}),
    ("eye", [(4,), (3, 5)], {"k": [-2, 0, 4], "dtype": [float, "i2"]}),
    ("tri", [(4,), (3, 5)], {"k": [-2, 0, 4], "dtype": [float, "i2"]}),
    ("diagonal", [(CUBE,), (CUBE[:3],)], {"offset": [-1, 0, 2], "axis1": [0, 1], "axis2": [2, -2]}),
    ("trace", [(CUBE,), (np.round(CUBE).astype("i1"),)],
     {"offset": [-1, 0, 2], "axis1": [0, 1], "axis2": [2], "dtype": [None, "f4"]}),
    ("insert", [(X, 2, 7.0), (X, [0, 3], 1.5), (FLOATS, [1, 1, 9], [1, 2, 3]), (X, -1, 3)],
     {"axis": [None, 0, -1]}),
    ("delete", [(X, 2), (X, [0, -1]), (X, slice(1, 4, 2)), (X, [])], {"axis": [None, 0, -1]}),
    ("partition", [(X, 2), (CUBE, 1)], {"axis": [-1, 0]}),
    ("logspace", [(0, 2), (0.5, -1)],
     {"num": [1, 5], "endpoint": [True, False], "base": [10.0, 2]}),
    ("convolve", [(FLOATS, ROW), (ROW, FLOATS), (INTEGERS, [1, -2])],
     {"mode": ["full", "same", "valid"]}),
    ("apply_over_axes", [(np.sum, CUBE)], {"axes": [0, (0, 2), [1, -1]]}),
    ("heaviside", [(X, 0.5), (np.round(X), 0.25)], {"dtype": [None, "f4"]}),
    ("frombuffer", [(b"\1\2\3\4\5\6\7\10",)], {"dtype": ["u1", "<i2"], "count": [-1, 2],
                                             "offset": [0, 2]}),
    ("ravel", [(X,), (CUBE,)], {"order": ["C", "F", "A", "K"]}),
    ("reshape", [(CUBE, (5, -1)), (X, (6, 5))], {"order": ["C", "F", "A"]}),
    *[(f"{name}.reduce", [(CUBE > 0,), (INTEGERS,), (np.round(CUBE * 3).astype("i2"),)],
      {"axis": [None, 0, -1, (0, 2)], "keepdims": [False, True], "initial": [np._NoValue, 3],
       "where": [np._NoValue, True]})
     for name in ("maximum", "minimum")],
    *[(f"{name}.reduce", [(CUBE > 0,), (INTEGERS,), (np.round(CUBE * 3).astype("i2"),)],
      {"axis": [None, 0, -1, (0, 2)], "keepdims": [False, True]})
     for name in ("bitwise_xor", "bitwise_and", "gcd")],
    *[(f"{name}.reduce", [(np.zeros((0, 3), "i4"),), (np.zeros((2, 0), bool),)],
      {"axis": [0, 1], "keepdims": [False, True]})
     for name in ("bitwise_xor", "bitwise_or", "gcd", "logical_xor", "maximum")],
    *[(name, [(np.asarray(3.0), *others)], {"axis": [None, 0, -1, 1]})
      for name, *others in (
          ("sort",), ("argsort",), ("cumsum",), ("nancumprod",), ("median",), ("quantile", 0.5),
          ("take", 0), ("repeat", 2), ("argmax",), ("flip",), ("roll", 1), ("delete", 0),
          ("append", 4.0), ("nanargmax",),
      )],
    *[(f"{name}.reduce", [(CUBE,), (X.astype("f4"),)],
      {"axis": [0, -1, 1], "keepdims": [False, True]})
     for name in ("subtract", "hypot", "fmin", "divide", "logical_and", "logaddexp")],
    *[(f"{name}.accumulate", [(CUBE,), (np.round(X * 3).astype(int),)], {"axis": [0, -1, 1]})
     for name in ("maximum", "subtract", "logical_or", "hypot")],
    *[(f"{name}.{method}", [(CUBE,), (np.round(X * 3).astype("i2"),)],
      {"axis": [0, -1, 1], "dtype": [None, "f8"]})
     for name in ("add", "multiply") for method in ("accumulate", "reduce")],
    *[(f"{name}.reduceat", [(X, [0, 3, 1]), (X, np.array([4])), (np.round(X).astype(int), [2, 2])],
      {"axis": [0, -1]}) for name in ("add", "maximum", "subtract")],
    *[(f"{name}.outer", [(X, ROW), (INTEGERS, INTEGERS[:3]), (ROW, X.astype("f4"))],
      {"dtype": [None, "f8"]}) for name in ("add", "maximum", "arctan2", "less")],
    *[(f"fft.{name}", [(X,), (CUBE,), (Z,), (FLOATS,), (X.astype("f4"),)],
      {"n": [None, 1, 4, 7, 12], "axis": [0, -1], "norm": [None, "backward", "ortho", "forward"]})
     for name in ("fft", "ifft", "hfft", "irfft")],
    *[(f"fft.{name}", [(X,), (CUBE,), (FLOATS,), (X.astype("f4"),)],
      {"n": [None, 1, 4, 7, 12], "axis": [0, -1], "norm": [None, "ortho", "forward"]})
     for name in ("rfft", "ihfft")],
    *[(f"fft.{name}", [(CUBE,), (CUBE[:, :2].astype("f4"),)],
      {"s": [None, (4, 5), (2, 9)], "axes": [(0, 1), (-1, 0), (2, 1)], "norm": [None, "ortho"]})
     for name in ("fft2", "ifft2", "fftn", "ifftn", "rfft2", "irfft2", "rfftn", "irfftn")],
    *[(f"fft.{name}", [(CUBE,), (X,)], {"axes": [None, 0, -1, (0, 1)]})
     for name in ("fftshift", "ifftshift")],
    *[(f"fft.{name}", [(1,), (8,), (9,)], {"d": [1.0, 0.25]}) for name in ("fftfreq", "rfftfreq")],
    ("linalg.norm", [(X,), (Z,), (np.round(X).astype(int),)],
     {"ord": [None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf, 0], "axis": [None, (0, 1), (1, 0)],
      "keepdims": [False, True]}),
    ("linalg.norm", [(CUBE,), (X,)],
     {"ord": [None, 0, 1, -1, 2, 3.5, np.inf, -np.inf], "axis": [0, -1],
      "keepdims": [False, True]}),
    ("linalg.matrix_norm", [(CUBE,), (X,)],
     {"ord": ["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf], "keepdims": [False, True]}),
    ("linalg.vector_norm", [(CUBE,), (X,)],
     {"ord": [2, 0, 1, 0.5, np.inf, -np.inf], "axis": [None, 0, -1, (0, 1)],
      "keepdims": [False, True]}),
    ("linalg.cond", [(X[:, :5] + 3 * np.eye(5),), (CUBE[:, :, :3],)],
     {"p": [None, 2, -2, 1, "fro", np.inf]}),
    ("linalg.pinv", [(X,), (CUBE,), (np.outer(ROW, ROW),)],
     {"rcond": [None, 0.5], "hermitian": [False]}),
    ("linalg.matrix_rank", [(X,), (CUBE,), (np.outer(ROW, ROW),)], {"tol": [None, 1.0, 3.0]}),
    ("linalg.lstsq", [(X[:, :3], ROW), (X, X[:, :2]), (X.T, CUBE[0, 0].repeat(2)[:6])],
     {"rcond": [None, 1e-3, -1]}),
    *[("linalg." + name, [(X[:, :5] + X[:, :5].T,), (CUBE[:, :, :3],)], {"UPLO": ["L", "U"]})
      for name in ("eigvalsh",)],
    ("linalg.svd", [(X,), (CUBE,)], {"compute_uv": [False]}),
    ("linalg.cholesky", [(X @ X.T,), (Z @ Z.conj().T + np.eye(5),)], {"upper": [False, True]}),
    ("linalg.vecdot", [(CUBE, CUBE[::-1]), (Z, Z[::-1])], {"axis": [0, -1]}),
    ("linalg.diagonal", [(CUBE,)], {"offset": [-1, 0, 2]}),
    ("linalg.trace", [(CUBE,)], {"offset": [-1, 0, 2], "dtype": [None, "f4"]}),
    ("linalg.tensorinv", [(np.eye(24).reshape(6, 4, 8, 3) + 1,)], {"ind": [2]}),
    ("linalg.tensorsolve", [(np.eye(24).reshape(6, 4, 2, 3, 4) + 1, np.ones((6, 4)))],
     {"axes": [None]}),
    ("linalg.matrix_power", [(X[:, :5], 3), (CUBE[:, :, :3], -1), (X[:, :5], 0)], {}),
    ("linalg.multi_dot", [([X, X.T, ROW],), ([ROW, X, X.T],)], {}),
]  # fmt: skip


def combinations(calls: list[tuple[Any, ...]], options: Options, most: int) -> list[Any]:
    """Return some combinations of arguments, in which each value of each option is more than once
    where `most` allows."""
    everything = [
        (args, dict(zip(options, values, strict=True)))
        for args in calls
        for values in itertools.product(*options.values())
    ]
    random.Random(0).shuffle(everything)
    return everything[:most]


@pytest.mark.parametrize("mesh", [FOLDED, APART], ids=["folded", "apart"])
@pytest.mark.parametrize("number", range(len(COMBINED)), ids=lambda n: COMBINED[n][0])
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.RankWarning")
def test_arguments_together_are_numpys(number: int, mesh: Any) -> None:
    """Where NumPy has an error, gdt has one too."""
    name, calls, options = COMBINED[number]
    function = operator.attrgetter(name)(gdt)
    for args, values in combinations(calls, options, 20)[mesh is APART :: 2]:
        given = {k: v for k, v in values.items() if v is not np._NoValue}
        here = {k: placed(v, mesh) if k in ("weights", "x") else v for k, v in given.items()}
        call = f"{name}(<{' '.join(str(np.shape(a)) for a in leaves(args))}>, {given})"
        try:
            want = operator.attrgetter(name)(np)(*args, **given)
        except (TypeError, ValueError, IndexError):
            with pytest.raises((TypeError, ValueError, IndexError)):
                function(*placed(args, mesh), **here)
                pytest.fail(f"no error of {call}")
            continue
        got = function(*placed(args, mesh), **here)
        for g, w in zip(leaves([got]), leaves([want]), strict=True):
            assert np.shape(g) == np.shape(w), call
            assert getattr(g, "dtype", np.asarray(g).dtype) == np.asarray(w).dtype, call
            if given.get("mode") == "empty":
                continue
            scale = np.abs(np.nan_to_num(w, posinf=0, neginf=0)).max(initial=1e-3)
            bound = 1e-5 if np.asarray(w).dtype.char in "fF" else 1e-11
            value = g.numpy() if isinstance(g, DistributedArray) else g
            np.testing.assert_allclose(value, w, rtol=bound, atol=bound * scale, err_msg=call)


def test_results_are_joined_into_an_array() -> None:
    x, out = placed(X, FOLDED), placed(np.zeros((10, 6), np.float32), FOLDED)
    assert gdt.concat([x, x], out=out) is out and np.concatenate([x, x], out=out) is out
    np.testing.assert_array_equal(out.numpy(), np.concatenate([X, X]).astype("float32"))
    with pytest.raises(TypeError, match="float64 is not cast to int64 under the rule 'same_kind'"):
        gdt.stack([x, x], dtype=int)
    with pytest.raises(TypeError, match="float64 is not cast to complex128 under the rule 'no'"):
        gdt.hstack([x, x * 1j], casting="no")
    with pytest.raises(TypeError, match="a result of float64 cannot be written as int64"):
        gdt.concat([x, x], out=gdt.zeros((10, 6), dtype=int))
    with pytest.raises(TypeError, match="float64 is not cast to float32 under the rule 'safe'"):
        x.astype("float32", casting="safe")
    assert x.astype("int8", "C", "unsafe").dtype == np.int8


WARNED: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("All-NaN slice encountered", lambda xp, x: xp.nanmax(x, axis=0)),
    ("All-NaN slice encountered", lambda xp, x: xp.nanmin(x)),
    ("All-NaN slice encountered", lambda xp, x: xp.nanmedian(x, axis=1)),
    ("All-NaN slice encountered", lambda xp, x: xp.nanquantile(x, 0.5)),
    ("All-NaN slice encountered", lambda xp, x: xp.nanpercentile(x, 50, axis=0)),
    ("Mean of empty slice", lambda xp, x: xp.nanmean(x, axis=0)),
    ("Mean of empty slice", lambda xp, x: xp.mean(x, where=x > 0)),
    ("Mean of empty slice", lambda xp, x: xp.mean(x[:0, :0])),
    ("Degrees of freedom <= 0 for slice", lambda xp, x: xp.nanvar(x, axis=1)),
    ("Degrees of freedom <= 0 for slice", lambda xp, x: xp.nanstd(xp.ones_like(x), ddof=6)),
    ("Degrees of freedom <= 0 for slice", lambda xp, x: xp.var(xp.ones_like(x), ddof=6)),
    ("Degrees of freedom <= 0 for slice", lambda xp, x: xp.std(x[:0], axis=0)),
    ("Degrees of freedom <= 0 for slice", lambda xp, x: xp.var(x, mean=1.0, ddof=7)),
    ("Degrees of freedom <= 0 for slice", lambda xp, x: xp.cov(xp.ones_like(x), ddof=4)),
    ("Degrees of freedom <= 0 for slice",
     lambda xp, x: xp.cov(xp.ones_like(x), fweights=[1, 1, 1], ddof=4)),
]  # fmt: skip


@pytest.mark.parametrize("mesh", [FOLDED, APART], ids=["folded", "apart"])
@pytest.mark.parametrize("warned", WARNED, ids=lambda w: w[0].split()[0])
def test_a_warning_of_numpy_is_given_once_of_the_line_of_the_user(
    warned: tuple[str, Any], mesh: Any
) -> None:
    message, call = warned
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = call(gdt, placed(EMPTY, mesh))
    with pytest.warns(RuntimeWarning, match=message), np.errstate(all="ignore"):
        want = call(np, EMPTY)
    if "x[:0, :0]" not in inspect.getsource(call):  # of which each block warns
        assert [(str(w.message), w.filename) for w in caught] == [(message, __file__)]
    assert {(str(w.message), w.filename) for w in caught} == {(message, __file__)}
    np.testing.assert_array_equal(got.numpy(), want)


def test_a_recorded_step_leaves_out_nan() -> None:
    step = gdt.function(lambda x: (gdt.nanmax(x, axis=0), gdt.nanmean(x, axis=0), gdt.nanstd(x)))
    for n in range(4):
        x = np.where(n / 2 < X, np.nan, X)
        for got, f in zip(step(placed(x, APART)), (np.nanmax, np.nanmean, np.nanstd), strict=True):
            np.testing.assert_allclose(got.numpy(), f(x, axis=0) if got.ndim else f(x), rtol=1e-12)


def test_wrong_arguments_are_named() -> None:
    x, small, truths = placed(X, FOLDED), placed(ONES.astype("i1"), FOLDED), placed(MASK, FOLDED)
    for call, message in (
        (lambda: gdt.cov(x, dtype=int), "cov: a variance is no int64"),
        (lambda: gdt.corrcoef(x * 1j, dtype="f4"), "the imaginary parts are lost"),
        (lambda: gdt.nanstd(small, dtype="i2"), "nanvar: a variance is no int16"),
        (lambda: gdt.choose(truths, [small, 300]), "300 out of bounds for int8"),
        (lambda: gdt.select([truths], [small], -200), "-200 out of bounds for int8"),
        (lambda: gdt.piecewise(small, [truths], [300]), "300 out of bounds for int8"),
        (lambda: gdt.piecewise(x, [truths], [1j]), "a value is 1j, which cannot be an element"),
        (lambda: gdt.insert(small, 1, [1, 300]), "300 out of bounds for int8"),
        (lambda: gdt.insert(x, 1, 1j), "values is 1j, which cannot be an element of float64"),
        (lambda: gdt.ediff1d(small, to_end=2.5), "to_end of float64 does not fit"),
        (lambda: gdt.nan_to_num(x, nan=1j), "a complex number takes no place of a float64"),
        (lambda: gdt.take(x, 1, mode="stop"), "mode is 'stop'"),
        (lambda: gdt.polyfit(ROW, X[:, 0], 4, cov=True), "5 points do not suffice for covar"),
        (lambda: gdt.polyfit(X, X, 1), "x is no vector of points"),
        (lambda: gdt.quantile(x, 0.5, weights=X), "weights go with the method 'inverted_cdf'"),
        (lambda: gdt.quantile(x, 0.5, 0, method="inverted_cdf", weights=X[0]), "do not fit axis 0"),
        (lambda: gdt.quantile(x, 0.5j), "q is 0.5j"),
        (lambda: gdt.loadtxt(["1"], skip=1), "skip"),
    ):
        with pytest.raises((TypeError, ValueError, OverflowError), match=message):
            call()


def test_tables_of_text_take_the_arguments_of_numpy() -> None:
    lines = ["a b c", "1 2 3", "4 5 6"]
    options: dict[str, Any] = {"skiprows": 1, "usecols": (0, 2)}
    assert gdt.loadtxt(lines, **options).tolist() == [[1.0, 3.0], [4.0, 6.0]]
    assert gdt.genfromtxt(lines, skip_header=1, max_rows=1).tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("other", [None, "a", b"a"])
@pytest.mark.parametrize("compare", [operator.eq, operator.ne])
def test_no_element_is_what_is_no_number(compare: Callable[..., Any], other: Any) -> None:
    x = placed(X, FOLDED)
    got = compare(x, other)
    assert got.dtype == bool and got.layout is x.layout
    assert got.tolist() == np.full(X.shape, compare is operator.ne).tolist()


def test_vectors_have_no_transpose_of_matrices() -> None:
    assert not hasattr(gdt.ones(3), "mT") and hasattr(gdt.ones((3, 2)), "mT")
    with pytest.raises(ValueError, match="mT: rank 1 is not a matrix"):
        gdt.ones(3).mT  # noqa: B018


def test_gradients_of_triangles_of_rows() -> None:
    weights = np.arange(25.0).reshape(5, 5)
    gradient = gdt.grad(lambda x: gdt.sum(gdt.tril(x) * weights))(placed(ROW, FOLDED))
    assert gradient.tolist() == np.tril(weights).sum(0).tolist()


@pytest.mark.parametrize("mesh", [FOLDED, APART], ids=["folded", "apart"])
def test_objects_that_are_indexed_make_arrays(mesh: Any) -> None:
    row, x = placed(ROW, mesh), placed(X, mesh)
    for got, want in (
        (gdt.r_[row, 7, 1:3], np.r_[ROW, 7, 1:3]), (gdt.r_[x, x], np.r_[X, X]),
        (gdt.c_[row, x], np.c_[ROW, X]), (gdt.c_[row], np.c_[ROW]), (gdt.r_[0:1:5j], np.r_[0:1:5j]),
        (gdt.mgrid[:2, 1:4], np.mgrid[:2, 1:4]), (gdt.mgrid[0:1:3j], np.mgrid[0:1:3j]),
        *zip(gdt.ogrid[:2, 1:4], np.ogrid[:2, 1:4], strict=True), (gdt.ogrid[:3], np.ogrid[:3]),
    ):  # fmt: skip
        assert isinstance(got, DistributedArray) and got.dtype == want.dtype
        assert got.tolist() == want.tolist()
    assert x[gdt.s_[1:3, ::2]].tolist() == X[1:3, ::2].tolist()
    assert gdt.index_exp[1] == (1,) and gdt.double is np.float64 and gdt.half is np.float16
    assert [*gdt.ndindex(1, 2)] == [(0, 0), (0, 1)]


def test_elements_are_written_into_a_file(tmp_path: Any) -> None:
    placed(X, APART).tofile(tmp_path / "x")
    assert gdt.fromfile(tmp_path / "x").tolist() == X.ravel().tolist()


@pytest.mark.parametrize("mesh", [FOLDED, APART], ids=["folded", "apart"])
def test_text_of_an_array(mesh: Any) -> None:
    x, options = placed(X, mesh), {"precision": 2, "separator": ",", "threshold": 4, "edgeitems": 1}
    assert gdt.array2string(x, **options) == np.array2string(X, **options)  # type: ignore[arg-type, call-overload]
    assert np.array2string(x, 40, formatter={"float": "{:.1f}".format}) == np.array2string(
        X, 40, formatter={"float": "{:.1f}".format}
    )


def test_numpys_own_code_takes_arrays() -> None:
    shuffled = np.random.default_rng(0).permutation(gdt.asarray(ROW))
    assert np.asarray(shuffled).tolist() == np.random.default_rng(0).permutation(ROW).tolist()


@pytest.mark.filterwarnings("ignore::UserWarning")  # of scikit-learn, about threads
def test_scikit_learn_without_dispatch_fetches_arrays() -> None:
    x = placed(X, FOLDED)
    scaled = StandardScaler().fit_transform(x)
    np.testing.assert_allclose(scaled, (X - X.mean(0)) / X.std(0))
    found = [KMeans(2, n_init=1, random_state=0).fit(value).labels_ for value in (x, X)]
    assert found[0].tolist() == found[1].tolist()


@pytest.mark.parametrize("mesh", [FOLDED, APART], ids=["folded", "apart"])
@pytest.mark.parametrize("dtypes", ["fd", "df", "ff", "lf", "Fd", "fD"])
def test_least_squares_are_computed_in_the_common_dtype(dtypes: str, mesh: Any) -> None:
    x, y = X[:, :2].astype(dtypes[0]), X[:, 2].astype(dtypes[1])
    got, want = gdt.linalg.lstsq(placed(x, mesh), placed(y, mesh)), np.linalg.lstsq(x, y)
    bound = 1e-5 if dtypes == "ff" else 1e-13
    for g, w in zip(got, want, strict=True):
        assert g.dtype == np.asarray(w).dtype
        np.testing.assert_allclose(g.numpy(), w, rtol=bound, atol=bound)
