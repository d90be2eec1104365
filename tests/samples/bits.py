"""Samples of NumPy's ufuncs of angles, neighbours, divisors and bits."""

from __future__ import annotations

import numpy as np

from gdt.testing import Sample

from .elementwise import SPECIAL, draw, ints, quiet, signed, special_binary, unary

NUMBERS = signed(9, 6)
ZEROS = np.array([[0.5, 0.0, -0.0, 3.0], [-2.5, 1e-3, 40.0, -1.0]])
HALVES = np.array([0, -0.0, 1, -1, 3, -3, 65504, -65504, np.inf, -np.inf, np.nan], "float16")


def real(f: np.ufunc, *, grad: bool = True) -> list[Sample]:
    """Samples of a function of one real number."""
    return [
        Sample((NUMBERS,), expect=quiet(f), grad=grad),
        Sample((draw(5, dtype="float32"),), expect=quiet(f), grad=grad),
        Sample((SPECIAL,), expect=quiet(f), grad=False, warns=True),
    ]


def pairs(f: np.ufunc, *, grad: bool = True) -> list[Sample]:
    """Samples of a function of two real numbers."""
    found: list[tuple[object, object]] = [
        (signed(5, 6), signed(6)), (signed(7), 0.75), (draw(3, 1, dtype="float32"), signed(4)),
    ]  # fmt: skip
    samples = [Sample(pair, expect=quiet(f), grad=grad) for pair in found]
    return samples + special_binary(quiet(f))


def whole(f: np.ufunc) -> list[Sample]:
    """Samples of a function of two integers."""
    found: list[tuple[object, object]] = [
        (ints(9), ints(9, low=1)), (ints(5, 3, dtype="int8"), ints(3, low=2, dtype="int16")),
        (12, ints(7, low=1)),
    ]  # fmt: skip
    return [Sample(pair, expect=quiet(f), exact=True) for pair in found]


SAMPLES: dict[str, list[Sample]] = {
    **{f.__name__: unary(f, numbers=False)[2:] for f in (np.degrees, np.radians, np.fabs)},
    "i0": [Sample((x,), expect=np.i0, grad=False) for x in (NUMBERS, ints(5), ZEROS)],
    "spacing": [
        *real(np.spacing, grad=False),
        Sample((HALVES,), expect=quiet(np.spacing), grad=False, exact=True, warns=True),
        Sample((ints(4, dtype="int8"),), expect=np.spacing, grad=False, exact=True),
    ],
    "bitwise_count": [Sample((ints(9, 4),), expect=np.bitwise_count, exact=True)],
    **{f.__name__: pairs(f) for f in (np.fmax, np.fmin, np.logaddexp2)},
    "heaviside": [
        *pairs(np.heaviside),
        Sample((np.repeat(ZEROS, 2, 0), draw(4)), expect=np.heaviside, grad=False),
    ],
    "fmod": [*pairs(np.fmod), *whole(np.fmod)],
    "nextafter": pairs(np.nextafter, grad=False),
    **{f.__name__: whole(f) for f in (np.gcd, np.lcm)},
    "ldexp": [Sample((NUMBERS, ints(6)), expect=np.ldexp), Sample((2.0, ints(3)), expect=np.ldexp)],
    "frexp": [
        Sample((NUMBERS,), expect=lambda x: tuple(np.frexp(x)), grad=False),
        Sample((ZEROS.astype("float32"),), expect=lambda x: tuple(np.frexp(x)), grad=False),
    ],
    "modf": [
        Sample((NUMBERS * 3,), expect=lambda x: tuple(np.modf(x)), grad=False),
        Sample((ZEROS,), expect=lambda x: tuple(np.modf(x)), grad=False),
    ],
}
