"""Samples of element-wise functions: broadcasting, dtypes, special values, uneven and empty."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.testing import Sample

rng = np.random.default_rng(7)


def draw(*shape: int, low: float = -2.0, high: float = 2.0, dtype: str = "float64") -> np.ndarray:
    """Numbers without ties or zeros."""
    return rng.uniform(low, high, shape).astype(dtype)


def ints(*shape: int, low: int = -9, high: int = 9, dtype: str = "int64") -> np.ndarray:
    return rng.integers(low, high, shape).astype(dtype)


def bools(*shape: int) -> np.ndarray:
    return rng.random(shape) < 0.5


def signed(*shape: int, dtype: str = "float64") -> np.ndarray:
    """Numbers whose size is between 0.5 and 2: fit to divide by."""
    return (draw(*shape, low=0.5) * rng.choice([-1.0, 1.0], shape)).astype(dtype)


def quiet(f: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's function without its warnings."""

    def g(*args: Any, **static: Any) -> Any:
        with np.errstate(all="ignore"):
            return f(*args, **static)

    return g


# Without -0.0, which a partial sum of it and 0.0 does not keep.
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, 3.0, 1.0, -1.0, 1e30, -1e-30])
COMPLEX = draw(4, 3) + 1j * draw(4, 3)


def unary(
    f: Callable[..., Any],
    low: float = -2.0,
    high: float = 2.0,
    *,
    whole: bool = True,
    numbers: bool = True,
    special: bool = True,
) -> list[Sample]:
    """Samples of one operand between `low` and `high`: uneven, rank 0, empty, float32 and float16;
    integers; complex numbers; special values."""
    e = quiet(f)
    floats = [draw(*shape, low=low, high=high) for shape in ((9, 6), (), (0, 3))]
    single, half = (draw(5, 3, low=low, high=high, dtype=d) for d in ("float32", "float16"))
    found = [Sample((x,), expect=e) for x in (*floats, single)]
    found.append(Sample((half,), expect=e, grad=False))
    if whole:
        found.append(
            Sample((ints(7, low=max(1, math.ceil(low)), high=4, dtype="uint8"),), expect=e)
        )
    if numbers:
        found.append(Sample((COMPLEX,), expect=e))
    if special:
        found.append(Sample((SPECIAL,), expect=e, grad=False, warns=True))
    return found


def binary(
    f: Callable[..., Any], x: Callable[..., np.ndarray] = draw, y: Callable[..., np.ndarray] = draw
) -> list[Sample]:
    """Samples of two floating-point operands: equal shapes, broadcasting on either side and on
    both, scalars on either side, mixed dtypes, empty."""
    pairs: list[tuple[Any, Any]] = [
        (x(8, 6), y(8, 6)),
        (x(5), y(7, 5)),
        (x(5, 1), y(3)),
        (x(9), y()),
        (x(4, 3), 1.5),
        (0.75, y(4, 3)),
        (x(5, dtype="float32"), y(3, 5)),
        (x(4, 3, dtype="float32"), 0.75),
        (x(1, 4), y(0, 1)),
    ]
    return [Sample(p, expect=quiet(f)) for p in pairs]


def whole_binary(f: Callable[..., Any], low: int = -9, high: int = 9) -> list[Sample]:
    """Samples of integers of several widths, with NumPy's promotion."""
    pairs: list[tuple[Any, Any]] = [
        (ints(9, low=low), ints(9, low=low, high=high)),
        (ints(7, dtype="int8", low=low), ints(7, dtype="int32", low=low, high=high)),
        (ints(5, 3, low=1, high=20, dtype="uint8"), ints(3, low=1, high=high, dtype="uint8")),
        (7, ints(9, low=max(1, low), high=high)),
    ]
    return [Sample(p, expect=quiet(f), exact=True) for p in pairs]


def special_binary(f: Callable[..., Any]) -> list[Sample]:
    """Every pair of special values, and complex numbers apart from that."""
    return [
        Sample((SPECIAL[:, None] + np.zeros(9), SPECIAL), expect=quiet(f), grad=False, warns=True)
    ]


def complex_binary(f: Callable[..., Any]) -> list[Sample]:
    real = signed(4, 3)
    pairs = [(COMPLEX, COMPLEX[::-1].copy()), (COMPLEX, real), (real, COMPLEX), (COMPLEX, 1 - 2j)]
    return [Sample(p, expect=quiet(f), grad=False) for p in pairs]


def bool_binary(f: Callable[..., Any]) -> list[Sample]:
    return [
        Sample((bools(7), bools(7)), expect=f, exact=True),
        Sample((bools(5, 1), bools(3)), expect=f, exact=True),
        Sample((bools(6), True), expect=f, exact=True),
    ]


def comparisons(f: Callable[..., Any]) -> list[Sample]:
    tied = ints(9, 4).astype(float)
    return [
        Sample((tied, ints(4)), expect=f, exact=True),
        Sample((ints(7, dtype="uint8", low=0), ints(7)), expect=f, exact=True),
        Sample((bools(5), bools(5)), expect=f, exact=True),
        Sample((draw(4, 3), 0.5), expect=f, exact=True),
        Sample((2, ints(5, dtype="int8")), expect=f, exact=True),
        Sample((ints(5, dtype="int8"), 300), expect=f, exact=True),
        *special_binary(f),
        Sample((COMPLEX, COMPLEX[::-1].copy()), expect=f, exact=True),
    ]


def logic(f: Callable[..., Any]) -> list[Sample]:
    return [
        *bool_binary(f),
        Sample((ints(7, low=-1, high=2), ints(7, low=-1, high=2)), expect=f, exact=True),
        Sample((SPECIAL, bools(9)), expect=f, exact=True),
        Sample((COMPLEX, 0.0), expect=f, exact=True),
    ]


def bits(f: Callable[..., Any]) -> list[Sample]:
    return [*bool_binary(f), *whole_binary(f)]


def tests_of_numbers(f: Callable[..., Any]) -> list[Sample]:
    return [
        Sample((np.tile(SPECIAL, (3, 1)),), expect=f, exact=True),
        Sample((SPECIAL.astype("float32"),), expect=quiet(f), exact=True),
        Sample((ints(7),), expect=f, exact=True),
        Sample((draw(0, 2),), expect=f, exact=True),
    ]


def real_only(f: Callable[..., Any], least: float = -np.inf, **static: Any) -> list[Sample]:
    """Samples of an activation function."""
    edges = np.array([-1000.0, -40.0, -1e-8, 0.0, 1e-8, 40.0, 1000.0, np.inf, least, np.nan])
    return [
        Sample((draw(8, 6),), static, expect=quiet(f)),
        Sample((draw(9, 5, low=-6, high=6),), static, expect=quiet(f)),
        Sample((draw(5, 7, dtype="float32"),), static, expect=quiet(f)),
        Sample((draw(300, 130, dtype="float32"),), static, expect=quiet(f), grad=False),
        Sample((draw(3, 5, dtype="float16"),), static, expect=quiet(f), grad=False),
        Sample((draw(),), static, expect=quiet(f)),
        Sample((draw(0, 3),), static, expect=quiet(f)),
        Sample((ints(7),), static, expect=quiet(f)),
        Sample((ints(7, low=0, dtype="uint8"),), static, expect=quiet(f)),
        Sample((edges,), static, expect=quiet(f), grad=False),
    ]


# ---------------------------------------------------------------- references


def floating(x: np.ndarray) -> np.ndarray:
    return x if x.dtype.kind == "f" else x.astype(np.result_type(x.dtype, np.float16))


def in_float64(f: Callable[..., Any]) -> Callable[..., Any]:
    """A reference computed in float64 and rounded to the dtype of the result."""

    def g(x: np.ndarray, **static: Any) -> np.ndarray:
        x = floating(x)
        return np.asarray(f(x.astype(np.float64), **static)).astype(x.dtype)

    return g


np_erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.where(
        x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x)))
    )


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def gelu(x: np.ndarray, approximate: bool = False) -> np.ndarray:
    if approximate:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np_erf(x / math.sqrt(2)))


def gelu_slope(x: np.ndarray, approximate: bool = False) -> np.ndarray:
    if approximate:
        c = math.sqrt(2 / math.pi)
        t = np.tanh(c * (x + 0.044715 * x**3))
        return 0.5 * (1 + t) + 0.5 * x * (1 - t**2) * c * (1 + 3 * 0.044715 * x**2)
    return 0.5 * (1 + np_erf(x / math.sqrt(2))) + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def maximum_gradient(g: Any, x: Any, y: Any) -> Any:
    return g * np.where(np.equal(x, y), 0.5, np.greater(x, y)).astype(g.dtype)


def leaky_relu(x: np.ndarray, negative_slope: float = 0.2) -> np.ndarray:
    return np.where(x > 0, x, negative_slope * x)


def elu(x: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def cast(x: np.ndarray, dtype: Any) -> np.ndarray:
    return x.astype(dtype)


# ---------------------------------------------------------------- samples

positive = draw(9, 4, low=0.5, high=3)
tied = np.array([1.0, 2.0, 2.0, 3.0, np.nan])

SAMPLES: dict[str, list[Sample]] = {
    # arithmetic
    "add": binary(np.add) + whole_binary(np.add) + complex_binary(np.add) + bool_binary(np.add),
    "subtract": binary(np.subtract) + whole_binary(np.subtract) + complex_binary(np.subtract),
    "multiply": [
        *binary(np.multiply),
        *whole_binary(np.multiply),
        *complex_binary(np.multiply),
        *bool_binary(np.multiply),
    ],
    "divide": [
        *binary(np.divide, draw, signed),
        *complex_binary(np.divide),
        Sample((ints(7), ints(7, low=1)), expect=np.divide),
        Sample((ints(7, dtype="int8"), 4), expect=np.divide),
    ],
    "floor_divide": [
        *binary(np.floor_divide, draw, signed),
        *whole_binary(np.floor_divide, low=1),
        Sample((ints(9, low=-9), np.array(-4)), expect=np.floor_divide, exact=True),
    ],
    "remainder": [
        *binary(np.remainder, draw, signed),
        *whole_binary(np.remainder, low=1),
        Sample((ints(9, low=-9), np.array(-4)), expect=np.remainder, exact=True),
    ],
    "power": [
        *binary(np.power, lambda *s, **k: draw(*s, low=0.5, **k)),
        *whole_binary(np.power, low=0, high=5),
        *complex_binary(np.power),
        *[Sample((signed(7, 3), y), expect=np.power) for y in (2, 3, -1, 2.0, 1, 0)],
        Sample((signed(5, dtype="float32"), 2), expect=np.power),
        Sample((positive, 0.5), expect=np.power),
        Sample((ints(5, dtype="int8"), 2), expect=np.power, exact=True),
        Sample((bools(5), 2), expect=np.power, exact=True),
        Sample((2, ints(5, low=0, high=5)), expect=np.power, exact=True),
        Sample((np.array([0.0, 1.0, 2.0]), np.array([2.0, 0.0, 3.0])), expect=np.power, grad=False),
        Sample((ints(9, low=-2, high=3), ints(9, low=0, high=5)), expect=np.power, exact=True),
        *special_binary(np.power),
    ],
    "negative": unary(np.negative),
    "copy": unary(np.copy),
    "positive": unary(np.positive),
    "square": unary(np.square),
    "sqrt": unary(np.sqrt, 0.5, 3),
    "cbrt": unary(np.cbrt, 0.5, 3, numbers=False),
    "reciprocal": unary(np.reciprocal, 0.5, 3),
    "hypot": binary(np.hypot, signed, signed) + special_binary(np.hypot),
    # signs and rounding
    "sign": unary(np.sign),
    "abs": [*unary(np.abs), Sample((np.array([-1.5, 0.0, 2.0]),), expect=np.abs, grad=False)],
    "copysign": binary(np.copysign) + special_binary(np.copysign),
    "floor": unary(np.floor, numbers=False),
    "ceil": unary(np.ceil, numbers=False),
    "trunc": unary(np.trunc, numbers=False),
    "rint": unary(np.rint, numbers=False),
    "round": [
        *unary(np.round, numbers=False),
        Sample((draw(9, 2),), {"decimals": 1}, expect=np.round),
        Sample((ints(9, low=-99, high=99),), {"decimals": -1}, expect=np.round),
    ],
    # complex parts and casts
    "real": [Sample((x,), expect=np.real) for x in (COMPLEX, draw(5, 2), ints(3))],
    "imag": [Sample((x,), expect=np.imag) for x in (COMPLEX, draw(5, 2), ints(3))],
    "conj": [Sample((x,), expect=np.conj) for x in (COMPLEX, draw(5, 2), ints(3))],
    "astype": [
        *[
            Sample((draw(7, 3, dtype=a),), {"dtype": b}, expect=cast)
            for a in ("float64", "float32")
            for b in ("float64", "complex128")
        ],
        *[
            Sample((draw(7, 3),), {"dtype": b}, expect=cast, grad=False)
            for b in ("float32", "float16", "int8")
        ],
        Sample((ints(9),), {"dtype": bool}, expect=cast, exact=True),
        Sample((ints(9, dtype="int8"),), {"dtype": "int64"}, expect=cast, exact=True),
        Sample((bools(9),), {"dtype": np.float32}, expect=cast, exact=True),
        Sample((draw(300, 130, dtype="float32"),), {"dtype": float}, expect=cast, grad=False),
    ],
    "cast": [
        Sample((draw(9, 3),), {"dtype": "int32"}, expect=cast),
        Sample((ints(9),), {"dtype": "uint8"}, expect=cast),
    ],
    "widen": [Sample((draw(9, 3, dtype="float32"),), {"dtype": "float64"}, expect=cast)],
    # exponentials, logarithms, angles
    "exp": unary(np.exp),
    "expm1": unary(np.expm1),
    "exp2": unary(np.exp2, numbers=False),
    "log": unary(np.log, 0.5, 3),
    "log1p": unary(np.log1p, -0.5, 3),
    "log2": unary(np.log2, 0.5, 3),
    "log10": unary(np.log10, 0.5, 3),
    "logaddexp": [
        *binary(np.logaddexp),
        Sample((np.array([1000.0, -1000.0]), 0.0), expect=np.logaddexp),
    ],
    "sin": unary(np.sin),
    "cos": unary(np.cos),
    "tan": unary(np.tan, -1, 1),
    "asin": unary(np.arcsin, -0.9, 0.9, whole=False),
    "acos": unary(np.arccos, -0.9, 0.9, whole=False),
    "atan": unary(np.arctan),
    "atan2": binary(np.arctan2, signed, signed) + special_binary(np.arctan2),
    "sinh": unary(np.sinh),
    "cosh": unary(np.cosh),
    "tanh": unary(np.tanh),
    "asinh": unary(np.arcsinh),
    "acosh": unary(np.arccosh, 1.5, 3),
    "atanh": unary(np.arctanh, -0.9, 0.9, whole=False),
    "tanh_gradient": binary(lambda g, y: g * (1 - y * y)),
    # comparison and logic
    **{
        f.__name__: comparisons(f)
        for f in (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
    },
    **{f.__name__: tests_of_numbers(f) for f in (np.isnan, np.isinf, np.isfinite)},
    "signbit": [Sample((SPECIAL,), expect=np.signbit, exact=True)],
    **{f.__name__: logic(f) for f in (np.logical_and, np.logical_or, np.logical_xor)},
    "logical_not": [Sample((x,), expect=np.logical_not) for x in (bools(7), SPECIAL, ints(5))],
    **{f.__name__: bits(f) for f in (np.bitwise_and, np.bitwise_or, np.bitwise_xor)},
    "invert": [Sample((x,), expect=np.invert) for x in (bools(7), ints(5), ints(5, dtype="int8"))],
    "left_shift": whole_binary(np.left_shift, low=0, high=5),
    "right_shift": whole_binary(np.right_shift, low=0, high=5),
    # choice
    "where": [
        Sample((bools(7, 5), draw(7, 5), draw(7, 5)), expect=np.where),
        Sample((bools(5), draw(7, 1), draw(5)), expect=np.where),
        Sample((bools(7, 1), draw(7, 3), 0.0), expect=np.where),
        Sample((bools(7), 1.0, draw(7, dtype="float32")), expect=np.where),
        Sample((ints(7, low=-1, high=2), ints(7), draw(7)), expect=np.where),
        Sample((True, draw(4), draw(4)), expect=np.where),
        Sample((SPECIAL, bools(9), bools(9)), expect=np.where, exact=True),
        Sample((bools(0, 2), draw(0, 2), draw(2)), expect=np.where),
        Sample((bools(4, 3), COMPLEX, draw(3)), expect=np.where, grad=False),
    ],
    "maximum": [
        *binary(np.maximum),
        *whole_binary(np.maximum),
        *bool_binary(np.maximum),
        *special_binary(np.maximum),
        *complex_binary(np.maximum),
    ],
    "minimum": [
        *binary(np.minimum),
        *whole_binary(np.minimum),
        *bool_binary(np.minimum),
        *special_binary(np.minimum),
    ],
    "maximum_gradient": [
        Sample((draw(5, 3), draw(5, 3), draw(3)), expect=maximum_gradient),
        Sample((draw(5), tied, tied[::-1].copy()), expect=maximum_gradient, grad=False),
        Sample((draw(7, dtype="float32"), draw(7), 0.0), expect=maximum_gradient),
    ],
    "clip": [
        Sample((draw(9, 3), -1.0, 1.0), expect=np.clip),
        Sample((draw(9, 3), draw(3, low=-1, high=0), draw(9, 1, low=0.1, high=1)), expect=np.clip),
        Sample((draw(9), draw(9), draw(9)), expect=np.clip),
        Sample((draw(9),), {"min": -1}, expect=np.clip),
        Sample((draw(9),), {"max": 1}, expect=np.clip),
        Sample((draw(9), None, 0.5), expect=np.clip),
        Sample((ints(9, dtype="int8"), -3, 4), expect=np.clip, exact=True),
        Sample((SPECIAL, -1.0, 1.0), expect=np.clip, grad=False),
        Sample((draw(9), 1.0, -1.0), expect=np.clip),
        Sample((draw(5, dtype="float32"), -1, 1), expect=np.clip),
    ],
    "clip_between": [
        Sample((draw(9, 3), draw(3), 1.0), expect=np.clip),
        Sample((SPECIAL, -0.0, 1.0), expect=np.clip, grad=False),
    ],
    # activation functions
    "relu": real_only(lambda x: np.maximum(x, 0)),
    "relu_gradient": [
        Sample((draw(7, 3), draw(7, 3)), expect=lambda g, y: g * (y > 0)),
        Sample((draw(7, dtype="float32"), draw(7)), expect=lambda g, y: g * (y > 0)),
    ],
    "leaky_relu": [
        *real_only(in_float64(leaky_relu)),
        *real_only(in_float64(leaky_relu), negative_slope=1.5),
    ],
    "elu": [*real_only(in_float64(elu)), *real_only(in_float64(elu), alpha=0.5)],
    "sigmoid": real_only(in_float64(sigmoid)),
    "sigmoid_gradient": binary(lambda g, y: g * y * (1 - y)),
    "softplus": real_only(in_float64(lambda x: np.logaddexp(x, 0))),
    "silu": real_only(in_float64(silu), least=-1e30),  # NaN at -inf, as x * sigmoid(x) is
    "silu_slope": [
        Sample((draw(9, 4),), expect=lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x)))),
        Sample(
            (np.array([-np.inf, -1e5, 1e5, np.inf]),), expect=lambda x: 1.0 * (x > 0), grad=False
        ),
    ],
    "erf": real_only(in_float64(np_erf)),
    "gelu": [
        *real_only(in_float64(gelu), least=-1e30),
        *real_only(in_float64(gelu), least=-1e30, approximate=True),
    ],
    "gelu_slope": [
        Sample((draw(9, 4),), expect=gelu_slope),
        Sample((draw(9, 4),), {"approximate": True}, expect=gelu_slope),
        Sample(
            (np.array([-np.inf, -1e5, 1e5, np.inf]),), expect=lambda x: 1.0 * (x > 0), grad=False
        ),
    ],
}
