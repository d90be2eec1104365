"""A differential fuzz: gdt's functions against NumPy's, on random arguments in random layouts.

`python -m tests.fuzz --calls 50000` reports every call whose result differs beyond rounding, and
exits with 1 if there is one. Every call is drawn from a seed of its own: `--first SEED --calls 1`
repeats it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

import gdt
from gdt.array.registry import ALIASES, FUNCTIONS
from gdt.engine.ufunc import Ufunc
from gdt.sharding.mesh import Mesh
from gdt.state.trees import leaves

from .replays import any_values
from .seeds import main

SIZES = ((2,), (3,), (8,), (2, 2), (2, 3), (2, 4), (2, 2, 2))
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "complex64", "complex128",
)  # fmt: skip
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0)


def _words(text: str) -> list[str]:
    return text.split()


UNARY = _words("""
abs negative positive sqrt square exp expm1 log log1p log2 log10 sin cos tan arcsin arccos arctan
sinh cosh tanh arcsinh floor ceil trunc rint sign signbit isnan isinf isfinite conj real imag
reciprocal invert logical_not cbrt exp2 degrees radians fabs spacing sinc nan_to_num angle
bitwise_count isposinf isneginf iscomplex isreal fix
""")
BINARY = _words("""
add subtract multiply divide floor_divide remainder fmod maximum minimum fmax fmin hypot arctan2
copysign nextafter logaddexp logaddexp2 heaviside equal not_equal less less_equal greater
greater_equal logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor gcd lcm
float_power
""")
REDUCTIONS = _words("""
sum prod mean max min any all argmax argmin count_nonzero var std ptp nansum nanprod nanmean nanmax
nanmin nanvar nanstd
""")
MASKED = _words("""
sum prod mean max min any all var std nansum nanprod nanmean nanmax nanmin nanvar nanstd
""")  # reductions with `where`
BEGUN = _words("sum prod max min nansum nanprod nanmax nanmin")
TYPED = _words("sum prod mean var std nansum nanprod nanmean nanvar nanstd")
SCANS = _words("cumsum cumprod nancumsum nancumprod")
MOVEMENTS = _words("""
flip roll diff transpose ravel tile repeat pad atleast_2d atleast_3d fliplr rot90 concatenate stack
vstack hstack append delete insert gradient trapezoid unwrap reshape sliced taken masked outer kron
diag cov convolve correlate histogram bincount interp ediff1d trim_zeros packbits where select
choose
""")


SHARDED = (1, 2, 3, 5, 8, 9, 17)
Call = tuple[tuple[Any, ...], dict[str, Any]]  # arguments by position and by name


class Draw(NamedTuple):
    """Random numbers, and the mesh that arrays are placed on."""

    rng: np.random.Generator
    mesh: Mesh

    def array(self, shape: tuple[int, ...] | None = None, kinds: str = "biufc") -> np.ndarray:
        """A random array, with special values among those of floating-point dtypes."""
        rng = self.rng
        if shape is None:
            rank = int(rng.choice([0, 1, 1, 2, 2, 3]))
            shape = tuple(int(rng.choice([0, 1, 2, 3, 5, 8, 9, 17])) for _ in range(rank))
        dtype = np.dtype(str(rng.choice([d for d in DTYPES if np.dtype(d).kind in kinds])))
        if dtype.kind == "b":
            return rng.random(shape) < 0.5
        if dtype.kind in "iu":
            low = 0 if dtype.kind == "u" else -9
            return rng.integers(low, 10, shape).astype(dtype)
        values = rng.standard_normal(shape) * 3
        if dtype.kind == "c":
            values = values + 1j * rng.standard_normal(shape)
        elif rng.random() < 0.3:
            values = np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, shape), values)
        return np.asarray(values).astype(dtype)

    def placed(self, value: Any) -> Any:
        """The array in a random layout, which may hold a partial sum."""
        if isinstance(value, list):
            return [self.placed(v) for v in value]
        if not isinstance(value, np.ndarray):
            return value
        names = [*self.mesh.axis_names]
        self.rng.shuffle(names)
        specs: list[Any] = [None] * value.ndim
        for name in names:
            if value.ndim and self.rng.random() < 0.7:
                at = int(self.rng.integers(value.ndim))
                specs[at] = (*(specs[at] or ()), name)
        return gdt.asarray(value, layout=gdt.Layout(specs, self.mesh))

    def axis(self, x: np.ndarray) -> int:
        return int(self.rng.integers(-x.ndim, x.ndim))


Drawn = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def _named(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return attrgetter(name)(np), FUNCTIONS[ALIASES.get(name, name)]


def _of_reduction(name: str, draw: Draw) -> Drawn:
    x = draw.array(kinds="biuf" if "arg" in name or "nan" in name or name == "ptp" else "biufc")
    static: dict[str, Any] = {}
    if x.ndim and draw.rng.random() < 0.7:
        static["axis"] = draw.axis(x)
    if draw.rng.random() < 0.4:
        static["keepdims"] = True
    if "axis" not in static and "arg" in name:
        static.pop("keepdims", None)
    if name in MASKED and draw.rng.random() < 0.25:
        static["where"] = draw.array(x.shape, "b")
    if name in BEGUN and (draw.rng.random() < 0.2 or "where" in static):
        static["initial"] = int(draw.rng.integers(0, 5))
    is_lossy = x.dtype.kind == "c" and name in ("var", "std")  # which gdt refuses
    if name in TYPED and not is_lossy and draw.rng.random() < 0.25:
        wide = ["float64", "complex128"] if "mean" in name or "sum" in name else ["float64"]
        static["dtype"] = str(draw.rng.choice(["float32", *wide]))
    args: tuple[Any, ...] = (x,)
    if name in TYPED and "axis" in static and draw.rng.random() < 0.5:
        args = (x, static.pop("axis"), static.pop("dtype", None))  # by position
    if name != "count_nonzero":
        static |= _out_of(draw, name, args, static)
    return *_named(name), args, static


def _out_of(draw: Draw, name: str, args: tuple[Any, ...], static: dict[str, Any]) -> dict[str, Any]:
    """Now and then an array to write into, of the shape of NumPy's result and of a dtype."""
    if draw.rng.random() >= 0.2:
        return {}
    try:
        result = attrgetter(name)(np)(*args, **static)
    except Exception:
        return {}
    if isinstance(result, tuple):
        return {}
    dtype = result.dtype if draw.rng.random() < 0.7 else draw.array((0,)).dtype
    if name in ("argmax", "argmin"):
        dtype = result.dtype  # the only one that NumPy takes
    if not np.can_cast(result.dtype, dtype, "same_kind") and not isinstance(_named(name)[1], Ufunc):
        return {}  # NumPy casts some results as it likes
    return {"out": np.ones(np.shape(result), dtype)}


def _of_ufunc(name: str, draw: Draw, args: tuple[Any, ...]) -> Drawn:
    """A call of an element-wise function with a mask, a dtype, a rule of casting or an output."""
    static: dict[str, Any] = {}
    if isinstance(_named(name)[1], Ufunc):
        if draw.rng.random() < 0.15:
            static["dtype"] = str(draw.rng.choice(["float32", "float64", "int64", "bool"]))
        if draw.rng.random() < 0.1:
            static["casting"] = str(draw.rng.choice(["no", "safe", "same_kind", "unsafe"]))
        static |= _out_of(draw, name, args, static)
        if "out" in static and draw.rng.random() < 0.5:
            static["where"] = draw.array(static["out"].shape, "b")
    return *_named(name), args, static


def _of_movement(name: str, draw: Draw) -> Drawn:
    rng, x = draw.rng, draw.array()
    axis = draw.axis(x) if x.ndim else None
    n = x.shape[axis] if axis is not None else 0
    vector = draw.array((int(rng.integers(1, 20)),), "iuf")
    longer = draw.array((int(rng.integers(9, 20)),), "iuf")
    joined = [x, draw.array(x.shape)]
    index = rng.integers(0, max(n, 1), int(rng.integers(0, 6)))
    counts = rng.integers(0, 4, x.size if axis is None else n) if rng.random() < 0.5 else 3
    functions: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "flip": ((x,), {"axis": axis}),
        "roll": ((x, int(rng.integers(-20, 20))), {"axis": axis}),
        "diff": ((x,), {"axis": axis, "n": int(rng.integers(0, 3))}),
        "tile": ((x, int(rng.integers(0, 4))), {}),
        "repeat": ((x, counts), {"axis": axis}),
        "pad": ((x, int(rng.integers(0, 4))), {}),
        "concatenate": ((joined,), {"axis": axis}), "stack": ((joined,), {}),
        "vstack": ((joined,), {}), "hstack": ((joined,), {}),
        "append": (tuple(joined), {"axis": axis}),
        "delete": ((x, index), {"axis": axis}), "insert": ((x, index, 3), {"axis": axis}),
        "gradient": ((draw.array((9, 5), "f"),), {}), "trapezoid": ((x,), {}),
        "unwrap": ((draw.array((9, 5), "f"),), {}),
        "outer": ((vector, vector[:3]), {}), "kron": ((vector, vector[:3]), {}),
        "diag": ((vector,), {"k": int(rng.integers(-3, 3))}),
        "cov": ((draw.array((4, 9), "iu"),), {}),
        "convolve": ((longer, draw.array((int(rng.integers(1, 9)),), "iu")),
                     {"mode": str(rng.choice(["full", "same", "valid"]))}),
        "correlate": ((longer, draw.array((int(rng.integers(1, 9)),), "iu")),
                      {"mode": str(rng.choice(["full", "same", "valid"]))}),
        "histogram": ((draw.array(None, "iu"), np.arange(-3, 8, 2)), {}),
        "bincount": ((np.abs(vector.astype(np.int64) % 11),), {"minlength": 3}),
        "interp": ((x.real.astype(float), np.arange(4.0), np.arange(4.0) ** 2), {}),
        "trim_zeros": ((draw.array((9,), "iu") % 2,), {}),
        "packbits": ((draw.array(None, "b"),), {}),
        "where": ((draw.array(x.shape, "b"), x, draw.array(x.shape)), {}),
        "select": (([draw.array(x.shape, "b")], [x]), {}),
        "choose": ((draw.array(x.shape, "b").astype(int), joined), {}),
    }  # fmt: skip
    if name == "reshape":
        return *_named(name), (x, (-1)), {}
    if name == "sliced":
        items = [slice(*sorted(rng.integers(-9, 9, 2).tolist()), int(rng.choice([1, 2, 3])))
                 if rng.random() < 0.6 else slice(None, None, int(rng.choice([1, -1, -2])))
                 for _ in range(x.ndim)]  # fmt: skip
        key = tuple(items)
        return (lambda x: x[key]), (lambda x: x[key]), (x,), {}
    if name == "taken":
        return (lambda x, i: x[i]), (lambda x, i: x[i]), (
            draw.array((9, 5)), rng.integers(-9, 9, int(rng.integers(0, 12)))), {}  # fmt: skip
    if name == "masked":
        return (lambda x, m: x[m]), (lambda x, m: x[m]), (x, draw.array(x.shape, "b")), {}
    args, static = functions.get(name, ((x,), {}))
    static = {k: v for k, v in static.items() if v is not None or k != "axis"}
    return *_named(name), args, static


def _with_axis(draw: Draw, kinds: str = "biufc", **static: Any) -> Call:
    """An array of rank 1 or more, and one of its axes."""
    shape = tuple(int(draw.rng.choice(SHARDED)) for _ in range(int(draw.rng.integers(1, 4))))
    x = draw.array(shape, kinds)
    return (x,), {"axis": draw.axis(x), **static}


def _without_infinities(draw: Draw, kinds: str, **static: Any) -> Call:
    """As `_with_axis`: NumPy's quantiles beside an infinite element are NaN, gdt's infinite."""
    (x,), static = _with_axis(draw, kinds, **static)
    return (np.where(np.isinf(x), 1, x).astype(x.dtype),), static


def _order(draw: Draw) -> tuple[int, ...]:
    return tuple(draw.rng.permutation(3).tolist())


def _square(draw: Draw) -> np.ndarray:
    """A matrix far from singular."""
    n = int(draw.rng.integers(1, 10))
    return draw.rng.standard_normal((n, n)) + 4 * np.eye(n)


def _set(draw: Draw) -> np.ndarray:
    return draw.array((int(draw.rng.choice(SHARDED)),), "iu")


def _matrices(draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    n, k, m = (int(draw.rng.choice(SHARDED)) for _ in range(3))
    return draw.array((n, k), "iuf"), draw.array((k, m), "iuf")


def _index_of(draw: Draw, shape: tuple[int, ...], size: int) -> np.ndarray:
    return draw.rng.integers(-size, size, shape)


def _along(draw: Draw) -> Call:
    x, n = draw.array((9, 5)), int(draw.rng.integers(1, 12))
    axis = int(draw.rng.integers(-2, 2))
    shape = (n, 5) if axis % 2 == 0 else (9, n)
    return (x, _index_of(draw, shape, x.shape[axis])), {"axis": axis}


def _transform(draw: Draw, kinds: str = "fc") -> Call:
    (x,), static = _with_axis(draw, kinds)
    x = np.where(np.isfinite(x), x, 1).astype(x.dtype)
    if draw.rng.random() < 0.4:
        static["n"] = int(draw.rng.integers(2, 20))
    return (x if x.shape[static["axis"]] > 1 else np.ones((3, 4)),), static


def _bins(draw: Draw) -> np.ndarray:
    return np.unique(draw.rng.integers(-9, 10, int(draw.rng.integers(1, 9)))).astype(float)


OTHERS: dict[str, Callable[[Draw], Call]] = {
    "sort": _with_axis,
    "argsort": lambda draw: _with_axis(draw, stable=True),
    "median": lambda draw: _with_axis(draw, "biuf"),
    "nanmedian": lambda draw: _with_axis(draw, "iuf"),
    "quantile": lambda draw: _without_infinities(draw, "iuf", q=float(draw.rng.random())),
    "percentile": lambda draw: _without_infinities(
        draw, "iuf", q=draw.rng.integers(0, 101, 3).tolist()
    ),
    "linspace": lambda draw: (
        (draw.array((5,), "iuf"), draw.array((5,), "if"), int(draw.rng.integers(0, 9))),
        {"endpoint": bool(draw.rng.integers(2)), "retstep": True, "axis": -1},
    ),
    "average": lambda draw: _with_axis(draw, "iuf"),
    "argwhere": lambda draw: ((draw.array(),), {}),
    "flatnonzero": lambda draw: ((draw.array(),), {}),
    "unique": lambda draw: ((draw.array(None, "biu"),), {}),
    "isin": lambda draw: ((draw.array(None, "iu"), _set(draw)), {}),
    "union1d": lambda draw: ((_set(draw), _set(draw)), {}),
    "intersect1d": lambda draw: ((_set(draw), _set(draw)), {}),
    "setdiff1d": lambda draw: ((_set(draw), _set(draw)), {}),
    "setxor1d": lambda draw: ((_set(draw), _set(draw)), {}),
    "searchsorted": lambda draw: ((_bins(draw), draw.array(None, "iuf")), {}),
    "digitize": lambda draw: ((draw.array(None, "iu"), _bins(draw)), {}),
    "take": lambda draw: (
        (draw.array((9, 5)), _index_of(draw, (2, 4), int(draw.rng.choice([5, 20])))),
        {"axis": 1, "mode": str(draw.rng.choice(["raise", "wrap", "clip"]))},
    ),
    "take_along_axis": _along,
    "compress": lambda draw: ((draw.array((9,), "b"), draw.array((9, 5))), {"axis": 0}),
    "extract": lambda draw: ((draw.array((9, 5), "b"), draw.array((9, 5))), {}),
    "matmul": lambda draw: (_matrices(draw), {}),
    "dot": lambda draw: (_matrices(draw), {}),
    "inner": lambda draw: ((draw.array((9, 5), "iuf"), draw.array((3, 5), "iuf")), {}),
    "tensordot": lambda draw: (_matrices(draw), {"axes": 1}),
    "vecdot": lambda draw: ((draw.array((9, 5), "iuc"), draw.array((5,), "iuc")), {}),
    "cross": lambda draw: ((draw.array((9, 3), "iu"), draw.array((9, 3), "iu")), {}),
    "trace": lambda draw: ((draw.array((9, 5)),), {"offset": int(draw.rng.integers(-4, 4))}),
    "diagonal": lambda draw: ((draw.array((9, 5)),), {"offset": int(draw.rng.integers(-4, 4))}),
    "tril": lambda draw: ((draw.array((9, 5)),), {"k": int(draw.rng.integers(-4, 4))}),
    "triu": lambda draw: ((draw.array((3, 9, 5)),), {"k": int(draw.rng.integers(-4, 4))}),
    "swapaxes": lambda draw: ((draw.array((2, 9, 5)), *_order(draw)[:2]), {}),
    "moveaxis": lambda draw: ((draw.array((2, 9, 5)), _order(draw), _order(draw)), {}),
    "clip": lambda draw: ((draw.array(None, "if"), -2, 3), {}),
    "round": lambda draw: ((draw.array(None, "f"),), {"decimals": int(draw.rng.integers(3))}),
    "column_stack": lambda draw: (([draw.array((9,)), draw.array((9, 2))],), {}),
    "dstack": lambda draw: (([draw.array((9, 2)), draw.array((9, 2))],), {}),
    "ptp": lambda draw: _with_axis(draw, "iuf"),
    "corrcoef": lambda draw: ((draw.array((4, 9), "iu") + np.eye(4, 9),), {}),
    "vander": lambda draw: ((draw.array((5,), "i"), 4), {}),
    "polyval": lambda draw: ((draw.array((4,), "i"), draw.array(None, "i")), {}),
    "unpackbits": lambda draw: ((draw.array((9,), "b").view("uint8"),), {}),
    "nanargmax": lambda draw: _with_axis(draw, "iu"),
    "nanpercentile": lambda draw: _without_infinities(draw, "iuf", q=30.0),
    "fft.fft": _transform, "fft.ifft": _transform, "fft.irfft": _transform,
    "fft.hfft": _transform,
    "fft.rfft": lambda draw: _transform(draw, "f"),
    "fft.fftshift": lambda draw: ((draw.array((9, 5)),), {}),
    "linalg.inv": lambda draw: ((_square(draw),), {}),
    "linalg.det": lambda draw: ((_square(draw),), {}),
    "linalg.norm": lambda draw: _with_axis(draw, "iuf"),
    "linalg.matrix_power": lambda draw: ((_square(draw), int(draw.rng.integers(-2, 4))), {}),
    "linalg.cholesky": lambda draw: ((draw.rng.standard_normal((9, 9)) / 9 + 9 * np.eye(9),), {}),
}  # fmt: skip
"""The rest, by name: draws of arguments."""


def drawn(seed: int) -> tuple[str, Draw, Drawn]:
    """The call of a seed: its name, its draw, and the functions with their arguments."""
    rng = np.random.default_rng(seed)
    sizes = SIZES[int(rng.integers(len(SIZES)))]
    names = [(f"a{i}", n) for i, n in enumerate(sizes)]
    blocks = int(rng.choice([1, int(np.prod(sizes))]))
    draw = Draw(rng, gdt.create_mesh(names, device_type="CPU", blocks=blocks))
    group = rng.choice(6, p=[0.15, 0.2, 0.15, 0.05, 0.2, 0.25])
    names_of = (UNARY, BINARY, REDUCTIONS, SCANS, MOVEMENTS, [*OTHERS])[group]
    name = str(rng.choice(names_of))
    if group == 0:
        return name, draw, _of_ufunc(name, draw, (draw.array(),))
    if group == 1:
        x = draw.array()
        other: Any = draw.array(x.shape[int(rng.integers(0, x.ndim + 1)) :])
        if rng.random() < 0.3:
            other = int(rng.integers(0, 5)) if rng.random() < 0.5 else 1.5
        return name, draw, _of_ufunc(name, draw, (x, other))
    if group in (2, 3):
        call = _of_reduction(name, draw)
        if group == 3:
            call[3].pop("keepdims", None)
            call[3].pop("out", None)
        return name, draw, call
    if group == 4:
        return name, draw, _of_movement(name, draw)
    return name, draw, (*_named(name), *OTHERS[name](draw))


@any_values()
def check(seed: int) -> tuple[str, str]:
    """The name of the function that the seed calls, and how its result differs; "" if it does
    not."""
    name, draw, (expect, function, args, static) = drawn(seed)
    placed = tuple(draw.placed(a) for a in args)
    on_host = {k: v.copy() if k == "out" else v for k, v in static.items()}
    static = {k: draw.placed(v) for k, v in static.items()}
    try:
        want = expect(*args, **on_host)
    except Exception as e:
        try:
            function(*placed, **static)
        except Exception:
            return name, ""
        return (name, "") if name in LENIENT else (name, f"NumPy raises {type(e).__name__}: {e}")
    try:
        got = function(*placed, **static)
        for g, w in zip(leaves([got]), leaves([want]), strict=True):
            value = g.numpy() if isinstance(g, gdt.DistributedArray) else g
            _assert_alike(value, np.asarray(w), args, is_product="prod" in name)
        if "out" in static:
            assert got is static["out"], "not the array to write into"
    except Exception as e:
        shown = [f"{a.dtype}{list(a.shape)}" if isinstance(a, np.ndarray) else a for a in args]
        layouts = [getattr(p, "layout", None) for p in placed]
        return name, f"{type(e).__name__}: {e}\n  {shown} {static} {layouts}"
    return name, ""


LENIENT = {
    *_words("""
bitwise_count reciprocal ediff1d trim_zeros atleast_2d fliplr rot90 kron float_power select choose
unwrap trapezoid max min nanmax nanmin diff
""")
}
"""Functions that take some arguments that NumPy refuses."""


def _assert_alike(got: Any, want: np.ndarray, args: Any, *, is_product: bool) -> None:
    got = np.asarray(got)
    assert got.shape == want.shape, f"shape {got.shape}, not {want.shape}"
    assert got.dtype == want.dtype, f"dtype {got.dtype}, not {want.dtype}"
    if want.dtype.kind in "biu":
        assert np.array_equal(got, want), f"{got} is not {want}"
        return
    dtypes = [a.dtype for a in leaves([args]) if isinstance(a, np.ndarray)]
    coarse = max(float(np.finfo(d).eps) for d in (*dtypes, want.dtype) if d.kind in "fc")
    scale = float(np.max(np.abs(want[np.isfinite(want)]), initial=1.0))
    with np.errstate(all="ignore"):
        near = np.isclose(got, want, rtol=1000 * coarse, atol=1000 * coarse * scale, equal_nan=True)
        if is_product:  # which of its factors overflow together depends on their order
            largest = np.finfo(want.dtype).max / 1000
            near |= ~(abs(got) < largest) & ~(abs(want) < largest)
    assert near.all(), f"{got[~near][:5]} is not {want[~near][:5]}"


if __name__ == "__main__":
    sys.exit(main(check, __doc__, "calls", 50_000))
