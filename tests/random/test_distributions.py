"""Draws of distributions: their distributions, their bits in every layout, and wrong parameters.

Draws with a key are the same in every run, so a test that has passed does not fail by chance. A
p-value below `LEAST_P` would come about once in a thousand such tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import gdt
from gdt.errors import ArgumentError, AxisError, DtypeError, LinAlgError, RangeError, ShapeError
from gdt.random import distributions
from gdt.random.elementary import exp, log, log1p, log_factorial
from gdt.testing import choices, meshes

COUNT, LEAST_P = 20_000, 1e-3
MESHES = meshes()

CONTINUOUS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "random": ((), stats.uniform()),
    "standard_normal": ((), stats.norm()),
    "exponential": ((2.0,), stats.expon(scale=2)),
    "laplace": ((1.0, 2.0), stats.laplace(1, 2)),
    "logistic": ((1.0, 2.0), stats.logistic(1, 2)),
    "gumbel": ((1.0, 2.0), stats.gumbel_r(1, 2)),
    "lognormal": ((0.5, 0.5), stats.lognorm(0.5, scale=np.exp(0.5))),
    "rayleigh": ((2.0,), stats.rayleigh(scale=2)),
    "weibull": ((2.5,), stats.weibull_min(2.5)),
    "pareto": ((3.0,), stats.lomax(3)),
    "standard_cauchy": ((), stats.cauchy()),
    "triangular": ((-1.0, 1.0, 3.0), stats.triang(0.5, -1, 4)),
    "gamma": ((2.5, 2.0), stats.gamma(2.5, scale=2)),
    "standard_gamma": ((0.1,), stats.gamma(0.1)),
    "chisquare": ((3,), stats.chi2(3)),
    "f": ((3, 4), stats.f(3, 4)),
    "standard_t": ((5,), stats.t(5)),
    "beta": ((0.5, 3.0), stats.beta(0.5, 3)),
    "noncentral_chisquare": ((0.7, 3.0), stats.ncx2(0.7, 3)),
    "noncentral_f": ((3, 4, 2.0), stats.ncf(3, 4, 2)),
    "power": ((2.5,), stats.powerlaw(2.5)),
    "wald": ((3.0, 2.0), stats.invgauss(1.5, scale=2)),
}
DISCRETE: list[tuple[str, tuple[Any, ...], Any]] = [
    ("poisson", (3.0,), stats.poisson(3)),
    ("poisson", (40.0,), stats.poisson(40)),
    ("poisson", (1e9,), stats.poisson(1e9)),
    ("binomial", (20, 0.8), stats.binom(20, 0.8)),
    ("binomial", (1000, 0.3), stats.binom(1000, 0.3)),
    ("geometric", (0.2,), stats.geom(0.2)),
    ("negative_binomial", (3, 0.4), stats.nbinom(3, 0.4)),
    ("logseries", (0.9,), stats.logser(0.9)),
    ("zipf", (2.5,), stats.zipf(2.5)),
    ("zipf", (4.0,), stats.zipf(4)),
    ("choice", (), stats.randint(0, 5)),
]
SEVERAL: dict[str, tuple[Any, ...]] = {
    "multivariate_normal": ([1.0, 2.0], [[2.0, 1.0], [1.0, 3.0]]),
    "dirichlet": ([1.0, 2.0, 0.3],),
    "multinomial": (30, [0.2, 0.3, 0.5]),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_draws_have_their_distribution(name: str) -> None:
    """Kolmogorov-Smirnov."""
    args, distribution = CONTINUOUS[name]
    x = getattr(gdt.random, name)(COUNT, *args, key=1).numpy()
    assert stats.kstest(x, distribution.cdf).pvalue > LEAST_P


def counted(x: np.ndarray, distribution: Any) -> float:
    """The p-value of the chi-square test of counts, in about 30 classes."""
    low, high = distribution.ppf([0.001, 0.999]).astype(int)
    bounds = np.unique(np.linspace(low, high, 30).astype(int))
    expected = len(x) * np.diff([0, *distribution.cdf(bounds), 1])
    observed, _ = np.histogram(x, [-np.inf, *(bounds + 0.5), np.inf])
    often = expected > 5
    square = ((observed - expected)[often] ** 2 / expected[often]).sum()
    return float(stats.chi2.sf(square, often.sum() - 1))


@pytest.mark.parametrize(("name", "args", "distribution"), DISCRETE, ids=[d[0] for d in DISCRETE])
def test_counts_have_their_distribution(
    name: str, args: tuple[Any, ...], distribution: Any
) -> None:
    if name == "choice":
        x = gdt.random.choice(5, COUNT, key=1)
    else:
        x = getattr(gdt.random, name)(COUNT, *args, key=1)
    assert x.dtype == np.int64
    assert counted(x.numpy(), distribution) > LEAST_P


def test_moments_of_several_numbers() -> None:
    mean, cov = SEVERAL["multivariate_normal"]
    x = gdt.random.multivariate_normal(COUNT, mean, cov, key=1).numpy()
    assert np.abs(x.mean(0) - mean).max() < 5 * (3 / COUNT) ** 0.5
    assert np.abs(np.cov(x.T) - cov).max() < 5 * 3 * (2 / COUNT) ** 0.5
    alpha = np.asarray(SEVERAL["dirichlet"][0])
    x = gdt.random.dirichlet(COUNT, alpha, key=1).numpy()
    for column, a in zip(x.T, alpha, strict=True):
        assert stats.kstest(column, stats.beta(a, alpha.sum() - a).cdf).pvalue > LEAST_P
    n, p = SEVERAL["multinomial"]
    x = gdt.random.multinomial(COUNT, n, p, key=1).numpy()
    assert (x.sum(1) == n).all()
    for column, chance in zip(x.T, p, strict=True):
        assert counted(column, stats.binom(n, chance)) > LEAST_P


def test_choices_have_their_chances() -> None:
    p = np.array([0.1, 0.0, 0.3, 0.6])
    x = gdt.random.choice(4, COUNT, p=p, key=1).numpy()
    assert not (x == 1).any()
    deviation = np.sqrt(p * (1 - p) / COUNT)
    assert (np.abs(np.bincount(x, minlength=4) / COUNT - p) <= 5 * deviation).all()
    firsts = [int(gdt.random.choice(4, 2, replace=False, p=p, key=k)[0]) for k in range(300)]
    assert (np.abs(np.bincount(firsts, minlength=4) / 300 - p) <= 5 * np.sqrt(p / 300)).all()
    x = gdt.asarray(np.arange(12.0).reshape(4, 3))
    assert sorted(gdt.random.choice(x, 4, replace=False, key=2)[:, 0].tolist()) == [0, 3, 6, 9]
    rows = gdt.random.permuted(x, axis=1, key=1).numpy()
    assert (np.sort(rows, 1) == x.numpy()).all() and (rows != x.numpy()).any()
    other, layout = x.copy(), gdt.Layout(["a", None], MESHES[0])
    for axis, y in enumerate((other, gdt.asarray(x.numpy(), layout=layout))):
        before = y.layout
        gdt.random.shuffle(y, axis, key=5)
        assert y.layout is before
        assert y.tolist() == gdt.random.permutation(x, axis, key=5).tolist() != x.tolist()
        assert (np.sort(y, axis) == np.sort(x, axis)).all()
    assert gdt.random.permutation(x, key=5, layout=layout).layout is layout
    assert sorted(gdt.random.permuted(x, key=1).ravel().tolist()) == list(range(12))
    assert (
        stats.chisquare(
            np.bincount([int(gdt.random.permuted([0, 1, 2], key=k)[0]) for k in range(300)])
        ).pvalue
        > LEAST_P
    )


DRAWS = {**{n: a for n, (a, _) in CONTINUOUS.items()}, **{n: a for n, a, _ in DISCRETE}, **SEVERAL}


@pytest.mark.parametrize("name", sorted(DRAWS.keys() - {"choice"}))
def test_every_layout_gives_the_same_bits(name: str) -> None:
    draw, args = getattr(gdt.random, name), DRAWS[name]
    expected = draw((7, 3), *args, key=3)
    for mesh in MESHES:
        for (layout,) in choices(mesh, [expected.ndim], limit=2, seed=5):
            x = draw((7, 3), *args, key=3, layout=layout)
            assert x.layout is layout
            if name == "multivariate_normal":  # a product of matrices rounds as its blocks are cut
                np.testing.assert_allclose(x.numpy(), expected.numpy(), rtol=1e-14, atol=1e-14)
            else:
                assert x.numpy().tobytes() == expected.numpy().tobytes(), layout


LARGE, CHANCES = np.linspace(1, 60, 21).reshape(7, 3), np.array([0.2, 0.4, 0.9])
ARRAYS: dict[str, list[np.ndarray]] = {
    "gamma": [np.round(LARGE), CHANCES], "beta": [np.round(LARGE), CHANCES],
    "poisson": [np.round(LARGE)], "binomial": [np.round(LARGE), CHANCES], "geometric": [CHANCES],
    "zipf": [1.0 + CHANCES], "logseries": [CHANCES], "wald": [LARGE, CHANCES],
    "noncentral_f": [LARGE, 1.0 + CHANCES, CHANCES],
    "negative_binomial": [np.round(LARGE), CHANCES],
}  # fmt: skip


FACTORS = [np.linspace(0.4, 1.1, 21).reshape(7, 3), np.array([1.0, 0.7, 0.5]), 0.8]
"""Of the parameters of all distributions, but those that take numbers alone."""
SPREAD = {
    name: [p * f for p, f in zip(args, FACTORS, strict=False)]
    for name, args in {**DRAWS, "normal": (1.0, 2.0), "uniform": (-3.0, 5.0)}.items()
    if args and name not in {*SEVERAL, *ARRAYS, "triangular", "truncated_normal"}
}


@pytest.mark.parametrize(("name", "args"), [*ARRAYS.items(), *SPREAD.items()])
def test_parameters_may_be_arrays_in_any_layout(name: str, args: list[Any]) -> None:
    """An element depends on its place and its own parameters alone."""
    draw = getattr(gdt.random, name)
    for options in ({"dtype": "float32"}, {}):
        expected = draw((7, 3), *args, key=2, **options)
        assert expected.dtype == options.get("dtype", expected.dtype)
        for i in ((4, 1), (0, 2), (6, 0)):
            own = [float(np.broadcast_to(a, (7, 3))[i]) for a in args]
            alone = draw((7, 3), *own, key=2, **options).numpy()
            rtol = 1e-6 if options else 1e-14
            np.testing.assert_allclose(alone[i], expected.numpy()[i], rtol=rtol)
    for mesh in MESHES:
        ranks = [2, *[np.ndim(a) for a in args]]
        layouts = next(iter(choices(mesh, ranks, limit=1, seed=7)))
        placed = [gdt.asarray(a, layout=w) for a, w in zip(args, layouts[1:], strict=True)]
        x = draw((7, 3), *placed, key=2, layout=layouts[0].resolved)
        assert x.numpy().tobytes() == expected.numpy().tobytes()


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_orders_and_choices_are_along_their_axis(axis: int) -> None:
    """What stands together along the other axes stays together, but in `permuted`."""
    x = np.arange(60).reshape(3, 4, 5)
    n = x.shape[axis]
    rest = lambda y: np.moveaxis(np.asarray(y), axis, 0).reshape(np.shape(y)[axis], -1)
    rows = {tuple(row): i for i, row in enumerate(rest(x).tolist())}
    chances = gdt.asarray(np.arange(n) * 3.0)  # of which the first is 0; divided by their sum
    for mesh in MESHES[:3]:
        layout = gdt.Layout([mesh.axis_names[0], None, None], mesh)
        y = gdt.asarray(x, layout=layout)
        for result, count, again in (
            (gdt.random.permutation(y, axis, key=3), n, False),
            (gdt.random.choice(y, n - 1, False, axis=axis, key=3), n - 1, False),
            (gdt.random.choice(y, n - 1, False, chances, axis, key=3), n - 1, False),
            (gdt.random.choice(y, 11, axis=axis, key=3), 11, True),
            (gdt.random.choice(y, 11, True, chances, axis=axis, key=3), 11, True),
        ):
            found = [rows[tuple(row)] for row in rest(result).tolist()]
            assert len(found) == count and (again or len(set(found)) == count)
            assert found != sorted(found) or count == 2
        assert 0 not in found
        lines = rest(gdt.random.permuted(y, axis, key=3))
        assert (np.sort(lines, 0) == np.sort(rest(x), 0)).all()
        orders = {tuple(np.argsort(line).tolist()) for line in lines.T}
        assert len(orders) > 3, "each line has an order of its own"
        other, host = gdt.asarray(x, layout=layout), gdt.random.default_rng(3)
        host.shuffle(other, axis)
        same = gdt.random.default_rng(3).permutation(x, axis).tolist()
        assert other.tolist() == same and sorted(other.ravel().tolist()) == list(range(60))
    two = gdt.random.choice(x, (2, 3), axis=axis, key=3)
    shape = [*x.shape[: axis % 3], 2, 3, *x.shape[axis % 3 + 1 :]]
    assert list(two.shape) == shape


def test_parameters_that_are_none_give_nan_or_minus_one() -> None:
    wrong = gdt.asarray([2.0, -1.0, np.nan])
    for name, args in (("normal", (0.0, wrong)), ("uniform", (0, wrong)), ("laplace", (0, wrong)),
                       ("exponential", (wrong,)), ("pareto", (wrong,))):  # fmt: skip
        draw = getattr(gdt.random, name)(3, *args, key=1)
        assert np.isnan(draw.numpy()).tolist() == [False, True, True], name
    assert gdt.random.poisson(3, wrong, key=1).tolist()[1:] == [-1, -1]
    assert gdt.random.binomial(3, wrong, 0.5, key=1).tolist()[1:] == [-1, -1]
    assert np.isnan(gdt.random.gamma(3, wrong, key=1).numpy()).tolist() == [False, True, True]
    assert gdt.random.gamma(3, 0.0, key=1).tolist() == [0.0, 0.0, 0.0]
    assert gdt.random.poisson(2, 0.0, key=1).tolist() == [0, 0]
    assert gdt.random.binomial(2, 5, 1.0, key=1).tolist() == [5, 5]


@pytest.mark.parametrize(("name", "args"), [*ARRAYS.items(), *SPREAD.items()])
def test_elements_of_arrays_that_are_no_parameters_are_nan_or_minus_one(
    name: str, args: list[Any]
) -> None:
    """Where a number is an error; the other elements are drawn as ever."""
    draw, parts = getattr(gdt.random, name), [np.broadcast_to(a, (7, 3))[2] * 1.0 for a in args]
    good, refused = draw(3, *parts, key=1).numpy(), 0
    for position, value in itertools.product(range(len(parts)), (np.nan, -1.0, 0.0, 2.0)):
        numbers = [value if i == position else float(a[1]) for i, a in enumerate(parts)]
        wrong = [gdt.asarray(a) for a in parts]
        wrong[position] = gdt.asarray(np.where([False, True, False], value, parts[position]))
        found = draw(3, *wrong, key=1).numpy()
        np.testing.assert_allclose(found[[0, 2]], good[[0, 2]], rtol=1e-14)
        try:
            draw(3, *numbers, key=1)
        except (ArgumentError, RangeError):
            refused += 1
            assert found[1] == -1 if found.dtype.kind == "i" else np.isnan(found[1]), (value, name)
    assert refused > 1
    assert gdt.random.bernoulli(2, gdt.asarray([2.0, -1.0]), key=1).tolist() == [True, False]


def test_scales_have_gradients() -> None:
    scale = gdt.asarray(2.0)
    draw = lambda s: gdt.sum(gdt.random.laplace(5, 1.0, s, key=1))
    expected = float(draw(1.0)) - 5.0
    assert np.isclose(float(gdt.grad(draw)(scale)), expected)


def test_elementary_functions_are_within_two_ulps() -> None:
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-700, 700, COUNT))
    assert np.abs(log(x) / np.log(x) - 1).max() < 2**-51
    y = rng.uniform(-700, 709, COUNT)
    assert np.abs(exp(y, np) / np.exp(y) - 1).max() < 2**-51
    small = -np.exp(rng.uniform(-80, -1, COUNT))
    assert np.abs(log1p(small, np) / np.log1p(small) - 1).max() < 2**-50
    k = np.arange(2000.0)
    expected = np.cumsum(np.log(np.maximum(k, 1)))
    assert np.abs(log_factorial(k, np) - expected).max() < 1e-8


def test_an_attempt_takes_words_of_its_own() -> None:
    index = np.arange(64, dtype=np.uint64)
    key = np.zeros((), np.uint64)
    words = [distributions._words(np, index, key, stream) for stream in (0, 1, distributions.BOOST)]
    assert len(np.unique(np.concatenate([w for pair in words for w in pair]))) == 6 * 64


def test_integers_of_more_than_half_of_all_words() -> None:
    for low, high in ((-(2**62), 2**63 - 1), (-(2**63), 2**62), (-1, 2**63 - 1), (0, 2**62 + 1)):
        x = gdt.random.integers(low, high, COUNT, key=1).numpy().astype(float)
        assert stats.kstest((x - low) / (high - low), "uniform").pvalue > LEAST_P


def test_integers_between_arrays() -> None:
    low, high = np.array([-5, 0, 2**62, -(2**63)]), np.array([5, 3, 2**62 + 1, 2**63 - 1])
    expected = gdt.random.integers(low, high, (COUNT, 4), key=1)
    columns = expected.numpy().T
    assert ((low <= expected.numpy()) & (expected.numpy() < high)).all()
    for column, start, count in zip(columns, low, (10, 3), strict=False):
        assert counted(column - start, stats.randint(0, count)) > LEAST_P
    assert stats.kstest(columns[3] / 2.0**64 + 0.5, "uniform").pvalue > LEAST_P
    for mesh in MESHES:
        layouts = next(iter(choices(mesh, [2, 1, 1], limit=1, seed=7)))
        placed = [gdt.asarray(a, layout=w) for a, w in zip((low, high), layouts[1:], strict=True)]
        x = gdt.random.integers(*placed, (COUNT, 4), key=1, layout=layouts[0].resolved)
        assert x.numpy().tobytes() == expected.numpy().tobytes()
    assert gdt.random.integers(gdt.asarray([0, 3, 9]), 3, 3, key=1).tolist()[1:] == [-1, -1]
    rng = gdt.random.default_rng(1)
    assert rng.integers([7, 9], endpoint=True).shape == (2,)
    assert rng.integers([3, 4], [3, 4], dtype="uint8", endpoint=True).tolist() == [3, 4]
    most = np.array([2**64 - 1], np.uint64)
    assert rng.integers(0, most[0], dtype="uint64", endpoint=True).shape == ()
    assert int(rng.integers(most - np.uint64(1), most, 64, "uint64", endpoint=True).max()) == most
    assert len(set(rng.integers(0, most, 64, "uint64", endpoint=True).tolist())) == 64
    assert rng.integers([], []).shape == (0,)
    same = gdt.random.integers(np.array(3), np.array(9), 5, key=1)
    assert same.tolist() == gdt.random.integers(3, 9, 5, key=1).tolist()


@pytest.mark.parametrize("method", ["svd", "eigh", "cholesky"])
def test_covariances_have_factors_by_every_method(method: str) -> None:
    mean, cov = SEVERAL["multivariate_normal"]
    rng = gdt.random.default_rng(1)
    x = rng.multivariate_normal(mean, cov, COUNT, method=method).numpy()
    assert np.abs(x.mean(0) - mean).max() < 5 * (3 / COUNT) ** 0.5
    assert np.abs(np.cov(x.T) - cov).max() < 5 * 3 * (2 / COUNT) ** 0.5
    for wrong in ([[1.0, 0.5], [0.0, 1.0]], [[1.0, 2.0], [2.0, 1.0]]):
        if method == "cholesky":  # which reads the lower triangle, as NumPy's does
            continue
        with pytest.warns(RuntimeWarning, match="not symmetric positive-semidefinite"):
            rng.multivariate_normal(mean, wrong, method=method)
        with pytest.raises(ValueError, match="not symmetric positive-semidefinite"):
            rng.multivariate_normal(mean, wrong, check_valid="raise", method=method)
        rng.multivariate_normal(mean, wrong, check_valid="ignore", method=method)


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: gdt.random.gamma(2, -1.0), ArgumentError, "gamma: a is -1.0, not at least 0"),
    (lambda: gdt.random.beta(2, 0, 1), ArgumentError, "beta: a is 0, not above 0"),
    (lambda: gdt.random.exponential(2, float("nan")), ArgumentError, "scale is nan"),
    (lambda: gdt.random.exponential(2, "a"), ArgumentError, "scale is 'a', which is no number"),
    (lambda: gdt.random.poisson(3, [1.0, 2.0]), ShapeError, r"does not broadcast to \[3\]"),
    (
        lambda: gdt.random.binomial(3, 5, 1.5),
        ArgumentError,
        "p is 1.5, not at least 0 and at most 1",
    ),
    (lambda: gdt.random.gamma(3, 2.0, dtype=int), DtypeError, "gamma: cannot draw int64"),
    (lambda: gdt.random.exponential(3, dtype=int), DtypeError, "cannot draw int64"),
    (lambda: gdt.random.poisson(3, 2.0, dtype=complex), DtypeError, "cannot draw complex128"),
    (lambda: gdt.random.triangular(3, 2.0, 1.0, 3.0), ArgumentError, "not in this order"),
    (lambda: gdt.random.triangular(3, [0.0, 1.0, 2.0], 3.0, 4.0), ShapeError, "they are numbers"),
    (lambda: gdt.random.dirichlet(3, [1.0, 2.0], int), DtypeError, "dirichlet: cannot draw int64"),
    (lambda: gdt.random.dirichlet(3, []), ShapeError, "no vector of 1 or more numbers"),
    (lambda: gdt.random.multinomial(3, 9, []), ShapeError, "no vector of 1 or more numbers"),
    (lambda: gdt.random.multinomial(3, 9, [1.0], bool), DtypeError, "cannot draw bool"),
    (lambda: gdt.random.choice(3, 5, replace=False), ArgumentError, "5 of 3 elements without"),
    (lambda: gdt.random.choice(0, 5), ArgumentError, "5 of 0 elements"),
    (lambda: gdt.random.choice(2, 5, p=[0.5, 0.6]), ArgumentError, "p adds up to 1.1"),
    (lambda: gdt.random.choice(2, 5, p=[1.0]), ShapeError, r"p has shape \[1\], for 2 elements"),
    (
        lambda: gdt.random.choice(2, 2, replace=False, p=[1.0, 0.0]),
        ArgumentError,
        "2 elements without replacement, but 1 chances",
    ),
    (lambda: gdt.random.shuffle([1, 2]), DtypeError, "shuffle: x is a list"),
    (lambda: gdt.random.permuted([1], axis=3), AxisError, "axis 3 is out of range for rank 1"),
    (lambda: gdt.random.multinomial(2, 3, [0.5, 0.7, 0.1]), ArgumentError, "more than 1"),
    (lambda: gdt.random.dirichlet(2, [1.0, -1.0]), ArgumentError, "not all above 0"),
    (lambda: gdt.random.dirichlet(2, 1.0), ShapeError, "is no vector"),
    (lambda: gdt.random.multivariate_normal(2, [1.0], [[1.0, 2.0]]), ShapeError, "cov of shape"),
    (
        lambda: gdt.random.multivariate_normal(2, [1.0], [[1.0]], method="qr"),
        ArgumentError,
        "method is 'qr', none of svd, eigh, cholesky",
    ),
    (
        lambda: gdt.random.multivariate_normal(2, [1.0], [[-1.0]], method="cholesky"),
        LinAlgError,
        "Matrix is not positive definite",
    ),
    (lambda: gdt.random.integers([1, 5], [3, 5], 2), ShapeError, r"no integer lies in \[5, 5\)"),
    (lambda: gdt.random.integers([1.0], 3, 1), ArgumentError, "low is a list, not integers"),
    (lambda: gdt.random.integers([1, 5], 300, 2, "uint8"), DtypeError, "uint8 holds 0..255"),
    (lambda: gdt.random.integers([1, 5], 9, 3), ShapeError, r"shape \[2\] and high of shape \[\]"),
    (lambda: gdt.random.logseries(2, 1.0), ArgumentError, "p is 1.0, not at least 0 and below 1"),
    (lambda: gdt.random.zipf(2, 1.0), ArgumentError, "a is 1.0, not above 1"),
    (lambda: gdt.random.standard_t(2, 0), ArgumentError, "standard_t: df is 0, not above 0"),
    (lambda: gdt.random.rayleigh(2, dtype=int), DtypeError, "rayleigh: cannot draw int64"),
    (lambda: gdt.random.lognormal(-2), ShapeError, "lognormal: -2 in shape"),
    (
        lambda: gdt.random.laplace((), [1.0, 2.0]),
        ShapeError,
        r"laplace: loc of shape \[2\] and scale of shape \[\] do not broadcast to \[\]",
    ),
    (
        lambda: gdt.random.gumbel(0.0, 1, 3),
        ArgumentError,
        "gumbel: the first argument is the shape",
    ),
    (lambda: gdt.random.gamma(2), ArgumentError, "gamma: missing a required argument: 'a'"),
    (lambda: gdt.random.gamma(2, 1, 1, float, 5), ArgumentError, "too many positional arguments"),
    (lambda: gdt.random.gamma(2, 1, a=2), ArgumentError, "multiple values for argument 'a'"),
    (lambda: gdt.random.gamma(2, 1, size=2), ArgumentError, "unexpected keyword argument 'size'"),
    (lambda: gdt.random.default_rng(0).gamma(), ArgumentError, "missing a required .* 'shape'"),
    (lambda: gdt.random.default_rng(0).vonmises, AttributeError, "write gdt.asarray"),
    (lambda: gdt.random.hypergeometric, AttributeError, "gdt lacks it"),
]


@pytest.mark.parametrize(("call", "kind", "text"), WRONG, ids=range(len(WRONG)))
def test_errors_name_what_is_wrong(
    call: Callable[[], Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        call()
