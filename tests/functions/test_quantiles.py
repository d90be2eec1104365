"""Quantiles of split vectors and of infinite elements, and their dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gdt
from gdt.comm.transport import transport_of
from gdt.functions.quantiles import METHODS
from gdt.ops import order_statistics
from tests.allocations import allocations

INF = np.inf


@pytest.mark.parametrize(
    "values",
    [[-INF, 1, INF], [1, INF, INF], [INF, INF], [1, INF], [-INF, 1], [-INF, -INF, 3], [INF],
     [0, 1, 2, INF, INF], [-INF, -INF, 1, 2]],
)  # fmt: skip
@pytest.mark.parametrize("blocks", [1, 2])
def test_medians_of_infinite_elements_are_numpys(values: list[float], blocks: int) -> None:
    mesh = gdt.create_mesh([("x", 2)], blocks=blocks)
    x = gdt.asarray(np.array(values), layout=gdt.Layout(["x"], mesh))
    expected = np.median(values)
    assert float(gdt.median(x)) == float(gdt.nanmedian(x)) == expected
    assert gdt.quantile(x, [0.0, 1.0]).tolist() == [min(values), max(values)]


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("q", [0.25, 1, [0.25, 1.0], [0, 1], np.float32(0.25), np.float64(0.25)])
def test_dtypes_of_quantiles_are_numpys(dtype: str, q: Any) -> None:
    values = np.array([1, 0, 3, 1, 2]).astype(dtype)
    x = gdt.asarray(values)
    for name in ("quantile", "nanquantile", "percentile"):
        for method in ("linear", "lower", "midpoint"):
            try:
                expected = getattr(np, name)(values, q, method=method)
            except TypeError:
                with pytest.raises(TypeError, match="nothing lies between bools"):
                    getattr(gdt, name)(x, q, method=method)
                continue
            result = getattr(gdt, name)(x, q, method=method)
            assert result.dtype == expected.dtype, (name, method)
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-3)
    for name in ("median", "nanmedian"):
        assert getattr(gdt, name)(x).dtype == getattr(np, name)(values).dtype


@pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "float32"])
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:Mean of empty slice")
def test_quantiles_of_nothing_are_numpys(dtype: str) -> None:
    layout = gdt.Layout([None, "x"], gdt.create_mesh([("x", 2)]))
    calls = {"median": (), "nanmedian": (), "nanquantile": (0.5,), "nanpercentile": (20,)}
    for shape in ((0, 3), (2, 0), (0, 0)):
        values = np.zeros(shape, dtype)
        x = gdt.asarray(values, layout=layout)
        for axis in (None, 0, 1, (0, 1)):
            keywords = {"axis": axis, "keepdims": axis == 0}
            for name, arguments in calls.items():
                expected = getattr(np, name)(values, *arguments, **keywords)
                result = getattr(gdt, name)(x, *arguments, **keywords)
                assert result.dtype == expected.dtype, (name, shape, axis)
                np.testing.assert_array_equal(result.numpy(), expected)
        for library, operand in ((np, values), (gdt, x)):
            with pytest.raises(IndexError):
                library.quantile(operand, 0.5, method="lower")
            with pytest.raises(ValueError, match="repeated"):
                library.median(operand, axis=(0, 0))
    assert gdt.nanquantile(x, [0.2, 0.5], axis=0).shape == (2, 0)


@pytest.mark.parametrize("blocks", [1, 2])
def test_numbers_have_quantiles_by_every_method(blocks: int) -> None:
    random = np.random.default_rng(4)
    values = np.where(random.random((7, 9)) < 0.3, np.nan, random.standard_normal((7, 9)))
    mesh = gdt.create_mesh([("x", 2)], blocks=blocks)
    for method in METHODS:
        for whole, axis in ((values, 0), (values, None), (values[0], 0)):
            layout = gdt.Layout.batch_sharded(mesh, "x", whole.ndim)
            result = gdt.nanquantile(
                gdt.asarray(whole, layout=layout), LEVELS[1], axis, method=method
            )
            expected = np.nanquantile(whole, LEVELS[1], axis, method=method)
            np.testing.assert_allclose(result.numpy(), expected, err_msg=method)


@pytest.mark.parametrize("q", [[], [[0.0, 0.5], [0.25, 1.0]]])
def test_levels_of_any_rank_are_the_first_axes(q: Any) -> None:
    values = np.arange(12.0).reshape(3, 4)
    x = gdt.asarray(values, layout=gdt.Layout(["x", None], gdt.create_mesh([("x", 2)])))
    for axis, keepdims in ((0, False), (1, True), (None, False)):
        for name in ("quantile", "nanquantile"):
            result = getattr(gdt, name)(x, q, axis=axis, keepdims=keepdims)
            expected = getattr(np, name)(values, q, axis=axis, keepdims=keepdims)
            assert result.dtype == expected.dtype
            np.testing.assert_allclose(result.numpy(), expected)


LEVELS = [0.5, [0.0, 0.1, 0.1001, 1.0], np.linspace(0, 1, 23)]
VECTORS = {
    "normal": lambda random, n: random.normal(size=n),
    "equal": lambda random, n: random.integers(0, 3, n).astype("f4"),
    "constant": lambda random, n: np.zeros(n),
    "ascending": lambda random, n: np.arange(n, dtype=float),
    "NaN": lambda random, n: np.where(random.random(n) < 0.1, np.nan, random.normal(size=n)),
    "integers": lambda random, n: random.integers(-9, 9, n),
}


@pytest.mark.parametrize("blocks", [1, 6])
@pytest.mark.parametrize("kind", VECTORS)
def test_quantiles_of_split_vectors_take_no_sort(
    blocks: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_statistics, "FEW", 8)
    monkeypatch.setattr(order_statistics, "SAMPLES", 64)
    mesh = gdt.create_mesh([("a", 2), ("b", 3)], blocks=blocks)
    for n in (1, 97, 3001):
        values = VECTORS[kind](np.random.default_rng(n), n)
        for split in ("a", ("b", "a")):
            x = gdt.asarray(values, layout=gdt.Layout([split], mesh))
            for q in LEVELS:
                want = np.quantile(values, q, method="hazen")
                np.testing.assert_allclose(gdt.quantile(x, q, method="hazen"), want, rtol=1e-6)
                want = np.nanquantile(values, q)
                np.testing.assert_allclose(gdt.nanquantile(x, q), want, rtol=1e-6)


@pytest.mark.parametrize("function", [gdt.median, gdt.nanmedian])
def test_gradients_of_quantiles_go_where_a_sort_finds_them(function: Any) -> None:
    values = np.array([3.0, 1.0, 1.0, 2.0, 1.0, 7.0])  # the third and the fourth in order
    mesh = gdt.create_mesh([("x", 3)], blocks=3)
    x = gdt.asarray(values, layout=gdt.Layout(["x"], mesh))
    assert gdt.grad(function)(x).tolist() == [0, 0, 0, 0.5, 0.5, 0]


def test_a_median_takes_little_memory_and_sends_little() -> None:
    mesh = gdt.create_mesh([("x", 8)], blocks=8)
    x = gdt.random.normal((1 << 20,), layout=gdt.Layout(["x"], mesh), key=0)
    gdt.median(x)
    with (
        gdt.testing.peak_memory([x]) as memory,
        gdt.count_collectives() as counter,
        allocations() as allocated,
    ):
        median = gdt.median(x)
    assert memory.peak < 1.01 * x.nbytes / 8 and allocated.peak < 0.4 * x.nbytes
    assert counter.bytes < 0.23 * x.nbytes  # two rounds of samples, and what is left
    assert float(median) == np.median(x.numpy())


@pytest.mark.parametrize("n", [1000, 1 << 14, 1 << 15, 1 << 18])
def test_reports_of_quantiles_count_what_is_sent(n: int) -> None:
    mesh = gdt.create_mesh([("x", 8)], blocks=8)
    x = gdt.random.normal((n,), layout=gdt.Layout(["x"], mesh), key=0)
    sent = transport_of(mesh).bytes
    for function in (gdt.median, gdt.nanmedian, lambda x: gdt.quantile(x, [0.1, 0.5, 0.9])):
        before = sent.total()
        with gdt.count_collectives() as counter:
            function(x).resolve()
        assert counter.bytes == pytest.approx(sent.total() - before, rel=0.03)


@pytest.mark.parametrize("levels", [3, 20])
def test_recorded_steps_take_quantiles_and_their_gradients(levels: int) -> None:
    mesh = gdt.create_mesh([("x", 2)])
    vector = gdt.random.normal((60,), layout=gdt.Layout(["x"], mesh), key=0)
    matrix = gdt.random.normal((6, 5), layout=gdt.Layout(["x", None], mesh), key=1)
    q = np.linspace(0, 1, levels).tolist()
    total = gdt.value_and_grad(lambda x, y: gdt.sum(gdt.quantile(x, q)) + gdt.median(y, axis=1)[0])
    step = gdt.function(total)
    for scale in (1.0, -2.0):
        x, y = vector * scale, matrix * scale
        got, expected = step(x, y), total(x, y)
        assert float(got[0]) == float(expected[0])
        assert got[1].tolist() == expected[1].tolist()


@pytest.mark.parametrize("weights", [[1, -1, 1, 1], [0] * 4, [np.nan, 1, 1, 1], [INF, 1, 1, 1]])
@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
def test_weights_that_choose_no_element_are_refused(name: str, weights: list[float]) -> None:
    mesh = gdt.create_mesh([("x", 2)])
    values = np.array([3.0, 1.0, 2.0, 4.0])
    options: dict[str, Any] = {"weights": np.array(weights, float), "method": "inverted_cdf"}
    with np.errstate(invalid="ignore"), pytest.raises(ValueError, match=r"negative|NaN"):
        getattr(np, name)(values, 0.5, **options)
    with pytest.raises(ValueError, match=f"{name}: weights are negative, infinite or NaN, or"):
        getattr(gdt, name)(gdt.asarray(values, layout=gdt.Layout(["x"], mesh)), 0.5, **options)


def test_weights_of_elements_that_are_left_out_do_not_count() -> None:
    x = gdt.asarray([[np.nan, np.nan], [1.0, np.nan]])
    options: dict[str, Any] = {"axis": 1, "weights": np.ones((2, 2)), "method": "inverted_cdf"}
    with pytest.warns(RuntimeWarning, match="All-NaN"):
        medians = gdt.nanquantile(x, 0.5, **options)
    assert np.array_equal(medians.numpy(), [np.nan, 1.0], equal_nan=True)


def test_a_recorded_step_takes_weighted_quantiles() -> None:
    step = gdt.function(lambda x, w: gdt.quantile(x, 0.5, weights=w, method="inverted_cdf"))
    x, w = gdt.asarray([3.0, 1.0, 2.0]), gdt.asarray([1.0, 0.0, 0.0])
    assert [float(step(x, w)) for _ in range(3)] == [3.0] * 3
