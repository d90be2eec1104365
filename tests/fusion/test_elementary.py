"""Elementary functions of loops: their accuracy beside float64, and the values that are special."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.fusion import llvm
from gdt.fusion.loop import SMALLEST_OP

pytestmark = pytest.mark.skipif(bool(llvm.problem()), reason=llvm.problem() or "compiled")

ERF = np.vectorize(math.erf)
# The error in units in the last place; activations lose some of them by subtraction, and where
# they are a difference of numbers of about 1 their error is one of those.
ACCURACY: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "exp": (np.exp, 2, 0),
    "expm1": (np.expm1, 2, 0),
    "log": (np.log, 2, 0),
    "log1p": (np.log1p, 2, 0),
    "tanh": (np.tanh, 2, 0),
    "erf": (ERF, 2, 0),
    "sin": (np.sin, 2, 0),
    "cos": (np.cos, 2, 0),
    "sigmoid": (lambda x: np.exp(-np.logaddexp(0, -x)), 4, 0),
    "softplus": (lambda x: np.logaddexp(0, x), 4, 0),
    "silu": (lambda x: x * np.exp(-np.logaddexp(0, -x)), 5, 1e-42),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), 2, 0),
    "gelu": (lambda x: 0.5 * x * (1 + ERF(x * math.sqrt(0.5))), 4, 1e-6),
}
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38]
EDGES = [88.7, 88.8, 89.5, -87.4, -103.9, -104.1, 0.625, 0.99, 3.9, 4.1, 1e-4, 2e-4, -0.999999, -1]


def numbers() -> np.ndarray:
    """Numbers of all magnitudes, and many near 0, where results are."""
    rng = np.random.default_rng(5)
    return np.concatenate(
        [
            rng.integers(0, 1 << 32, 60_000, np.uint32).view(np.float32),
            rng.normal(0, 3, 40_000).astype(np.float32),
            np.array(SPECIAL + EDGES, np.float32),
        ]
    )


def long_numbers() -> np.ndarray:
    """As `numbers`, of float64."""
    rng = np.random.default_rng(9)
    return np.concatenate(
        [
            rng.integers(0, 1 << 64, 60_000, np.uint64).view(np.float64),
            rng.normal(0, 3, 30_000),
            rng.uniform(-745, 710, 10_000),
            rng.normal(1, 1e-3, 10_000),
            np.array([*SPECIAL, *EDGES, 709.7, 709.8, -744.9, -745.2, -746, 1e-170, 5e-324, 0.25]),
        ]
    )


HAS_FLOAT64 = sorted({*ACCURACY} - {"erf", "gelu"})
# Of NumPy's long numbers, with 64 bits in x87's format, float64 takes 53.
is_longer = np.finfo(np.longdouble).nmant > 60
CASES = [(name, "f4") for name in ACCURACY] + [(n, "f8") for n in HAS_FLOAT64 if is_longer]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_functions_are_as_accurate_as_they_say(name: str, dtype: str) -> None:
    exact, ulps, absolute = ACCURACY[name]
    x = numbers() if dtype == "f4" else long_numbers()
    with np.errstate(all="ignore"):
        result = getattr(gdt, name)(x).numpy()
        want = exact(x.astype(np.float64 if dtype == "f4" else np.longdouble))
        rounded = want.astype(dtype)
    assert result.dtype == rounded.dtype
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(result[~finite], rounded[~finite])
    if dtype == "f8" and name in ("sin", "cos"):
        finite &= np.abs(x) < 1e15  # the reduction of long numbers is not exact beyond
    error = np.abs(result[finite] - want[finite])
    bound = np.maximum(ulps * np.spacing(np.abs(rounded[finite])), absolute)
    worst = int(np.argmax(error / bound))
    assert (error <= bound).all(), (x[finite][worst], result[finite][worst], want[finite][worst])
    zeros = rounded == 0
    if name not in ("cos", "softplus", "sigmoid", "elu"):
        np.testing.assert_array_equal(np.signbit(result[zeros]), np.signbit(rounded[zeros]))


def test_powers_are_accurate_and_have_the_special_values_of_ieee_754() -> None:
    rng = np.random.default_rng(6)
    special = np.array([*SPECIAL, 1, -1, 2, -2, 0.5, 3, -3, 2.5, 1e7, 1e8], np.float32)
    x = np.concatenate([np.repeat(special, len(special)), rng.uniform(-4, 4, 20_000)])
    y = np.concatenate([np.tile(special, len(special)), rng.integers(-9, 9, 20_000)])
    x = np.concatenate([x, rng.uniform(0, 4, 20_000)]).astype(np.float32)
    y = np.concatenate([y, rng.uniform(-30, 30, 20_000)]).astype(np.float32)
    with np.errstate(all="ignore"):
        result = gdt.power(x, y).numpy()
        want = np.power(x.astype(np.float64), y.astype(np.float64))
        rounded = want.astype(np.float32)
    finite = np.isfinite(rounded) & (rounded != 0)
    np.testing.assert_array_equal(result[~finite], rounded[~finite])
    error = np.abs(result[finite] - want[finite])
    assert (error <= 2 * np.spacing(np.abs(rounded[finite]))).all()


@pytest.mark.parametrize("exponent", [2, 3, 4, -1, 0, 1, 5])
def test_small_whole_powers_are_products(exponent: int) -> None:
    x = np.random.default_rng(7).normal(0, 2, 2 * SMALLEST_OP).astype(np.float32)
    result = (gdt.asarray(x) ** exponent).numpy()
    want = x.astype(np.float64) ** exponent
    assert (np.abs(result - want) <= 2 * np.spacing(np.abs(result))).all()
    if exponent == 2:
        np.testing.assert_array_equal(result, x * x)


def test_great_angles_are_numpys() -> None:
    x = np.linspace(-1e9, 1e9, 3 * SMALLEST_OP, dtype=np.float32)
    for name in ("sin", "cos"):
        result, want = getattr(gdt, name)(x).numpy(), getattr(np, name)(x)
        far = np.abs(x) > 30000
        np.testing.assert_array_equal(result[far], want[far])


def test_warnings_are_numpys_and_only_for_elements_that_are_finite() -> None:
    x = np.full(2 * SMALLEST_OP, 2, np.float32)
    calls = {"log": (0.0, "divide by zero"), "exp": (200.0, "overflow"), "sin": (math.inf, "")}
    for name, (bad, message) in calls.items():
        odd = x.copy()
        odd[17] = bad
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = getattr(gdt, name)(odd).numpy()
        assert [message in str(w.message) for w in caught] == [True] * bool(message)
        np.testing.assert_array_equal(np.isfinite(result), np.arange(x.size) != 17)
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        odd[17] = -1.0
        gdt.log(odd)


def test_blocks_in_any_order_of_memory_give_the_same_elements() -> None:
    x = np.random.default_rng(8).normal(size=(130, 140)).astype(np.float32)
    frozen = x.copy()
    frozen.flags.writeable = False
    unaligned = np.frombuffer(b"." + x.tobytes(), np.float32, offset=1).reshape(x.shape)
    want = gdt.exp(x).numpy()
    for count in (1, 3):
        with gdt.host_threads(count):
            for view in (x.T.copy().T, frozen, unaligned, np.repeat(x, 2, axis=1)[:, ::2]):
                np.testing.assert_array_equal(gdt.exp(view).numpy(), want)
            np.testing.assert_array_equal(gdt.exp(x[::-1]).numpy(), want[::-1])
            np.testing.assert_array_equal(gdt.exp(x.T).numpy(), want.T)
