"""Arguments that NumPy's functions have beyond the common ones, in split and in whole arrays."""

from __future__ import annotations

import operator
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
        (lambda: gdt.quantile(x, 0.5, weights=X), "weights go with the method 'inverted_cdf'"),
        (lambda: gdt.quantile(x, 0.5, 0, method="inverted_cdf", weights=X[0]), "do not fit axis 0"),
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
