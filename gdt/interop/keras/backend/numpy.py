"""Keras' functions that are NumPy's, with Keras' rules of dtypes.

Most are made of gdt's by a decorator, which makes arrays of the first arguments, in the dtype that
Keras' rule gives, and passes the others on: `in_floats(gdt.sin)` is a function of one array, which
becomes floating-point numbers first.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any

import numpy as np
from keras.src.backend import config
from keras.src.backend.common import standardize_dtype
from keras.src.backend.common.backend_utils import vectorize_impl
from keras.src.backend.common.dtypes import INT_TYPES, result_type

import gdt
from gdt.array.array import DistributedArray
from gdt.interop.keras.backend.variables import convert_to_tensor

Function = Callable[..., Any]
Axis = int | Sequence[int] | None

# ---------------------------------------------------------------- rules of dtypes

NUMBERS = (int, float)
"""Types whose values stay as they are: they are weak in promotion, in gdt as in Keras."""


@lru_cache(maxsize=4096)
def _promotion(floatx: str, *dtypes: Any) -> str:
    return result_type(*dtypes)  # type: ignore[no-any-return]


def promotion(*xs: Any) -> str:
    """Return the dtype to which arrays, numbers and names of dtypes promote by Keras' rules."""
    dtypes: list[Any] = [x if type(x) is str else getattr(x, "dtype", type(x)) for x in xs]
    return _promotion(config.floatx(), *dtypes)


def promoted(*xs: Any, floating: bool = False) -> list[Any]:
    """Return arrays of the dtype to which `xs` promote, `floating`: with a weak float. A number
    beside an array stays a number."""
    xs = tuple([x if type(x) in NUMBERS else convert_to_tensor(x) for x in xs])
    if builtins.all(type(x) in NUMBERS for x in xs):
        xs = tuple([convert_to_tensor(x) for x in xs])
    dtype = promotion(*xs, *[0.0] * floating)
    return [x if type(x) in NUMBERS else convert_to_tensor(x, dtype) for x in xs]


def promoted_arrays(xs: Any) -> list[DistributedArray]:
    """Return arrays of the dtype to which the elements of a sequence promote."""
    dtype = promotion(*xs) if len(xs) else None
    return [convert_to_tensor(x, dtype) for x in xs]


def floats(x: Any) -> DistributedArray:
    """Return an array of floating-point numbers, in the place of integers those of `floatx`."""
    x = convert_to_tensor(x)
    return x if x.dtype.kind == "c" else convert_to_tensor(x, promotion(x, 0.0))


def summed(x: DistributedArray) -> str:
    """Return the dtype of the sum of an array: of integers 32 bits at least, as in JAX."""
    return _summed(x.dtype)


@lru_cache
def _summed(dtype: np.dtype) -> str:
    name: str = standardize_dtype(dtype)
    if name in ("bool", "int8", "int16"):
        return "int32"
    return "uint32" if name in ("uint8", "uint16") else name


def of_one(function: Function, dtype: str | None = None) -> Function:
    """Make a function of one array; `dtype`: that of the result."""

    @wraps(function)
    def call(x: Any, *args: Any, **static: Any) -> Any:
        out = function(convert_to_tensor(x), *args, **static)
        return out if dtype is None else gdt.astype(out, dtype)

    return call


def in_floats(function: Function) -> Function:
    """Make a function of one array of floating-point numbers."""
    return wraps(function)(lambda x, *args, **static: function(floats(x), *args, **static))


def of_two(function: Function, floating: bool = False) -> Function:
    """Make a function of two arrays or numbers, which promote; `floating`: with a weak float."""

    @wraps(function)
    def call(x1: Any, x2: Any) -> Any:
        return function(*promoted(x1, x2, floating=floating))

    return call


def of_arrays(function: Function, floating: bool = False) -> Function:
    """Make a function of two arrays, which promote; `floating`: with a weak float."""

    @wraps(function)
    def call(x1: Any, x2: Any, *args: Any, **static: Any) -> Any:
        x1, x2 = convert_to_tensor(x1), convert_to_tensor(x2)
        return function(*promoted(x1, x2, floating=floating), *args, **static)

    return call


def compared(function: Function) -> Function:
    """Make a comparison: of two arrays that promote, or of an array and a number as it is."""

    @wraps(function)
    def call(x1: Any, x2: Any) -> Any:
        if type(x1) in NUMBERS or type(x2) in NUMBERS:
            return function(*[x if type(x) in NUMBERS else convert_to_tensor(x) for x in (x1, x2)])
        return function(*promoted(x1, x2))

    return call


def of_sequence(function: Function) -> Function:
    """Make a function of a sequence of arrays, which promote."""
    return wraps(function)(
        lambda xs, *args, **static: function(promoted_arrays(xs), *args, **static)
    )


def with_real(function: Function) -> Function:
    """Make a statistic: of integers in float32, with a result of Keras' dtype."""

    @wraps(function)
    def call(x: Any, *args: Any, **static: Any) -> Any:
        x = convert_to_tensor(x)
        dtype = standardize_dtype(x.dtype) if x.dtype.kind == "c" else promotion(x, 0.0)
        if x.dtype.kind in "biu":
            x = convert_to_tensor(x, promotion(x, "float32"))
        return convert_to_tensor(function(x, *args, **static), dtype)

    return call


def accumulated(function: Function) -> Function:
    """Make a cumulative sum or product."""

    @wraps(function)
    def call(x: Any, axis: int | None = None, dtype: Any = None) -> DistributedArray:
        x = convert_to_tensor(x)
        dtype = result_type(dtype or x.dtype)
        return function(x, axis=axis, dtype="int32" if dtype == "bool" else dtype)  # type: ignore[no-any-return]

    return call


def reduced(function: Function) -> Function:
    """Make a sum or product."""

    @wraps(function)
    def call(
        x: Any, axis: Axis = None, keepdims: bool = False, dtype: Any = None
    ) -> DistributedArray:
        x = convert_to_tensor(x)
        if dtype is None and x.dtype.kind in "biu":
            dtype = summed(x)
        return function(x, axis=axis, keepdims=keepdims, dtype=dtype)  # type: ignore[no-any-return]

    return call


def window(function: Function) -> Function:
    """Make a window function of a length, in `floatx`."""
    return wraps(function)(
        lambda x, *args: gdt.astype(function(int(x), *map(float, args)), config.floatx())
    )


# ---------------------------------------------------------------- element by element

absolute = abs = of_one(gdt.absolute)
conjugate = conj = of_one(gdt.conjugate)
copy = of_one(gdt.copy)
imag, real = of_one(gdt.imag), of_one(gdt.real)
isfinite, isinf, isnan = of_one(gdt.isfinite), of_one(gdt.isinf), of_one(gdt.isnan)
isneginf, isposinf, isreal = of_one(gdt.isneginf), of_one(gdt.isposinf), of_one(gdt.isreal)
logical_not = of_one(gdt.logical_not)
bitwise_invert = bitwise_not = of_one(gdt.bitwise_invert)
negative, sign, signbit = of_one(gdt.negative), of_one(gdt.sign), of_one(gdt.signbit)
reciprocal = of_one(gdt.reciprocal)
round = of_one(gdt.round)

angle = in_floats(gdt.angle)
arccos, arccosh = in_floats(gdt.arccos), in_floats(gdt.arccosh)
arcsin, arcsinh = in_floats(gdt.arcsin), in_floats(gdt.arcsinh)
arctan, arctanh = in_floats(gdt.arctan), in_floats(gdt.arctanh)
cbrt, ceil, floor = in_floats(gdt.cbrt), in_floats(gdt.ceil), in_floats(gdt.floor)
cos, cosh = in_floats(gdt.cos), in_floats(gdt.cosh)
deg2rad, rad2deg = in_floats(gdt.deg2rad), in_floats(gdt.rad2deg)
exp, exp2, expm1 = in_floats(gdt.exp), in_floats(gdt.exp2), in_floats(gdt.expm1)
fabs, i0 = in_floats(gdt.fabs), in_floats(gdt.i0)
log, log10 = in_floats(gdt.log), in_floats(gdt.log10)
log1p, log2 = in_floats(gdt.log1p), in_floats(gdt.log2)
sin, sinc, sinh = in_floats(gdt.sin), in_floats(gdt.sinc), in_floats(gdt.sinh)
sqrt, tan, tanh = in_floats(gdt.sqrt), in_floats(gdt.tan), in_floats(gdt.tanh)

add, subtract, multiply = of_two(gdt.add), of_two(gdt.subtract), of_two(gdt.multiply)
power, floor_divide = of_two(gdt.power), of_two(gdt.floor_divide)
maximum, minimum = of_two(gdt.maximum), of_two(gdt.minimum)
fmax, fmin = of_two(gdt.fmax), of_two(gdt.fmin)
divide = true_divide = of_two(gdt.divide, floating=True)

bitwise_and, bitwise_or = of_arrays(gdt.bitwise_and), of_arrays(gdt.bitwise_or)
bitwise_xor = of_arrays(gdt.bitwise_xor)
bitwise_left_shift = left_shift = of_two(gdt.left_shift)
bitwise_right_shift = right_shift = of_two(gdt.right_shift)
gcd, lcm = of_arrays(gdt.gcd), of_arrays(gdt.lcm)
arctan2, heaviside = of_arrays(gdt.arctan2, True), of_arrays(gdt.heaviside, True)
hypot, nextafter = of_arrays(gdt.hypot, True), of_arrays(gdt.nextafter, True)
logaddexp, logaddexp2 = of_arrays(gdt.logaddexp, True), of_arrays(gdt.logaddexp2, True)

equal, not_equal = compared(gdt.equal), compared(gdt.not_equal)
greater, greater_equal = compared(gdt.greater), compared(gdt.greater_equal)
less, less_equal = compared(gdt.less), compared(gdt.less_equal)
logical_and, logical_or = compared(gdt.logical_and), compared(gdt.logical_or)
logical_xor = compared(gdt.logical_xor)
allclose, isclose = of_arrays(gdt.allclose), of_arrays(gdt.isclose)


def mod(x1: Any, x2: Any) -> DistributedArray:
    """Return remainders with the sign of the divisor; those of bools are int32."""
    return gdt.mod(*_no_bools(x1, x2))


def fmod(x1: Any, x2: Any) -> DistributedArray:
    """Return remainders with the sign of the dividend; those of bools are int32."""
    return gdt.fmod(*_no_bools(x1, x2))


def _no_bools(*xs: Any) -> list[DistributedArray]:
    xs = tuple(promoted_arrays(xs))
    return [gdt.astype(x, "int32") if x.dtype == bool else x for x in xs]


def square(x: Any) -> DistributedArray:
    """Return x * x; of bools in int32."""
    return gdt.square(*_no_bools(x))


def trunc(x: Any) -> DistributedArray:
    """Return the integers towards 0, in the dtype of `x`."""
    x = convert_to_tensor(x)
    return x if x.dtype.kind in "biu" else gdt.trunc(x)


def divide_no_nan(x1: Any, x2: Any) -> DistributedArray:
    """Return x1 / x2, and 0 where x2 is 0, there with gradients of 0."""
    x1, x2 = (convert_to_tensor(x) for x in (x1, x2))
    x1, x2 = promoted(x1, x2, floating=True)
    is_zero = x2 == 0
    divisor = gdt.where(is_zero, 1, x2)
    if builtins.any(x1.layout.reductions):  # a product leaves it a sum over devices, as of losses
        return gdt.multiply(x1, gdt.where(is_zero, 0, 1 / divisor))
    return gdt.where(is_zero, 0, x1 / divisor)


def ldexp(x1: Any, x2: Any) -> DistributedArray:
    """Return x1 * 2 ** x2."""
    x1, x2 = convert_to_tensor(x1), convert_to_tensor(x2)
    if standardize_dtype(x2.dtype) not in INT_TYPES:
        raise TypeError(f"ldexp exponent must be an integer type. Received: x2 dtype={x2.dtype}")
    dtype = promotion(x1, x2, 0.0)
    return gdt.astype(gdt.ldexp(gdt.astype(x1, dtype), gdt.astype(x2, "int32")), dtype)


def clip(x: Any, x_min: Any, x_max: Any) -> DistributedArray:
    """Return the elements within bounds, in the dtype of `x`; bools as int32."""
    (x,) = _no_bools(x)
    bounds = [
        b if b is None or type(b) in NUMBERS else convert_to_tensor(b) for b in (x_min, x_max)
    ]
    if x.dtype.kind in "iu" and builtins.any(type(b) is float for b in bounds):
        bounds = [convert_to_tensor(b) for b in bounds]
    return gdt.astype(gdt.clip(x, *bounds), x.dtype)


def nan_to_num(
    x: Any, nan: float = 0.0, posinf: Any = None, neginf: Any = None
) -> DistributedArray:
    """Return finite numbers in the place of NaN and infinities."""
    return gdt.nan_to_num(convert_to_tensor(x), nan=nan, posinf=posinf, neginf=neginf)


def where(condition: Any, x1: Any = None, x2: Any = None) -> Any:
    """Return elements of x1 where the condition holds, else of x2; without them its indices."""
    condition = convert_to_tensor(condition)
    if x1 is None or x2 is None:
        return nonzero(condition)
    if type(x1) in NUMBERS and type(x2) in NUMBERS:
        x1, x2 = promoted(x1, x2)
    return gdt.where(gdt.astype(condition, bool), *promoted(x1, x2))


def select(condlist: Any, choicelist: Any, default: Any = 0) -> DistributedArray:
    """Return elements of the choice whose condition is the first that holds."""
    choices = promoted(*choicelist, default)
    conditions = [convert_to_tensor(c) for c in condlist]
    return gdt.select(conditions, choices[:-1], choices[-1])


# ---------------------------------------------------------------- products

dot, inner, outer = of_arrays(gdt.dot), of_arrays(gdt.inner), of_arrays(gdt.outer)
kron, vdot = of_arrays(gdt.kron), of_arrays(gdt.vdot)


def cross(
    x1: Any, x2: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> DistributedArray:
    """Return cross products of vectors; those of two elements have a third of 0, and the product of
    two such is that of its elements which is not 0."""
    axisa, axisb, axisc = (axisa, axisb, axisc) if axis is None else (axis,) * 3
    x1, x2 = promoted_arrays((x1, x2))
    x1, x2 = gdt.moveaxis(x1, axisa, -1), gdt.moveaxis(x2, axisb, -1)
    if x1.shape[-1] == x2.shape[-1] == 2:
        return x1[..., 0] * x2[..., 1] - x1[..., 1] * x2[..., 0]
    x1, x2 = (_with_third(x) if x.shape[-1] == 2 else x for x in (x1, x2))
    return gdt.moveaxis(gdt.cross(x1, x2), -1, axisc)


def _with_third(x: DistributedArray) -> DistributedArray:
    return gdt.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)])


def matmul(x1: Any, x2: Any) -> DistributedArray:
    """Return matrix products; of int8 in int32."""
    x1, x2 = convert_to_tensor(x1), convert_to_tensor(x2)
    is_int8 = x1.dtype.char == x2.dtype.char == "b"
    dtype = "int32" if is_int8 else promotion(x1, x2)
    return gdt.matmul(convert_to_tensor(x1, dtype), convert_to_tensor(x2, dtype))


def tensordot(x1: Any, x2: Any, axes: Any = 2) -> DistributedArray:
    """Return sums of products over axes of both arrays."""
    x1, x2 = promoted_arrays((x1, x2))
    return gdt.tensordot(x1, x2, axes=axes)


def einsum(subscripts: str, *operands: Any, **kwargs: Any) -> DistributedArray:
    """Return the sum of products that the subscripts name; of int8 in int32."""
    arrays = [convert_to_tensor(x) for x in operands]
    is_int8 = builtins.all(x.dtype == np.int8 for x in arrays)
    dtype = "int32" if is_int8 else promotion(*arrays)
    return gdt.einsum(subscripts, *[gdt.astype(x, dtype) for x in arrays], **kwargs)


def correlate(x1: Any, x2: Any, mode: str = "valid") -> DistributedArray:
    """Return the cross-correlation of two vectors, of floating-point numbers."""
    x1, x2 = _wide(x1, x2)
    return gdt.correlate(x1, x2, mode)


def _wide(*xs: Any) -> list[DistributedArray]:
    """Return arrays of float32, or of the dtype of floating-point numbers to which they promote."""
    arrays = promoted_arrays(xs)
    return arrays if arrays[0].dtype.kind in "fV" else [gdt.astype(x, "float32") for x in arrays]


def corrcoef(x: Any) -> DistributedArray:
    """Return correlation coefficients of the rows."""
    x = floats(x)
    return gdt.astype(gdt.corrcoef(x), x.dtype)


def slogdet(x: Any) -> tuple[DistributedArray, ...]:
    """Return the signs and logarithms of determinants."""
    return tuple(gdt.linalg.slogdet(convert_to_tensor(x)))


# ---------------------------------------------------------------- reductions

sum, prod = reduced(gdt.sum), reduced(gdt.prod)
nansum, nanprod = reduced(gdt.nansum), reduced(gdt.nanprod)
cumsum, cumprod = accumulated(gdt.cumsum), accumulated(gdt.cumprod)
nancumsum, nancumprod = accumulated(gdt.nancumsum), accumulated(gdt.nancumprod)
all, any = of_one(gdt.all), of_one(gdt.any)
amax, amin, ptp = of_one(gdt.amax), of_one(gdt.amin), of_one(gdt.ptp)
nanmax, nanmin = of_one(gdt.nanmax), of_one(gdt.nanmin)
count_nonzero = of_one(gdt.count_nonzero, "int32")
std, var = with_real(gdt.std), with_real(gdt.var)
nanstd, nanvar = with_real(gdt.nanstd), with_real(gdt.nanvar)
nanmean, mean = with_real(gdt.nanmean), with_real(gdt.mean)
median, nanmedian = with_real(gdt.median), with_real(gdt.nanmedian)


def max(x: Any, axis: Axis = None, keepdims: bool = False, initial: Any = None) -> DistributedArray:
    """Return the maximum along axes, with the element `initial`."""
    return gdt.max(convert_to_tensor(x), axis=axis, keepdims=keepdims, initial=initial)


def min(x: Any, axis: Axis = None, keepdims: bool = False, initial: Any = None) -> DistributedArray:
    """Return the minimum along axes, with the element `initial`."""
    return gdt.min(convert_to_tensor(x), axis=axis, keepdims=keepdims, initial=initial)


def _quantile(function: Function) -> Function:
    @wraps(function)
    def call(
        x: Any, q: Any, axis: Axis = None, method: str = "linear", keepdims: bool = False
    ) -> DistributedArray:
        x = floats(x)
        q = convert_to_tensor(q) if isinstance(q, DistributedArray) or hasattr(q, "value") else q
        out = function(x, q, axis=axis, method=method, keepdims=keepdims)
        return gdt.astype(out, x.dtype)

    return call


quantile, percentile = _quantile(gdt.quantile), _quantile(gdt.percentile)
nanquantile, nanpercentile = _quantile(gdt.nanquantile), _quantile(gdt.nanpercentile)


def average(x: Any, axis: Axis = None, weights: Any = None) -> DistributedArray:
    """Return the average along axes, weighted."""
    if weights is None:
        return gdt.average(floats(x), axis=axis)  # type: ignore[no-any-return]
    x, weights = promoted(convert_to_tensor(x), convert_to_tensor(weights), floating=True)
    return gdt.average(x, axis=axis, weights=weights)  # type: ignore[no-any-return]


def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> DistributedArray:
    """Return the sums of diagonals."""
    x = convert_to_tensor(x)
    return gdt.trace(x, offset=offset, axis1=axis1, axis2=axis2, dtype=summed(x))


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> DistributedArray:
    """Return integrals by the trapezoidal rule."""
    y = floats(y)
    x = None if x is None else convert_to_tensor(x)
    return gdt.astype(gdt.trapezoid(y, x, dx=dx, axis=axis), y.dtype)


# ---------------------------------------------------------------- order


def _ranked(x: Any) -> DistributedArray:
    """Return an array in which -0.0 is less than 0.0, as it is for `argmax` of JAX."""
    x = convert_to_tensor(x)
    if x.dtype.kind not in "fV" or x.ndim == 0:
        return x
    x = gdt.astype(x, promotion(x, "float32"))
    return gdt.where((x == 0.0) & gdt.signbit(x), -float(np.finfo(x.dtype).tiny), x)


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> DistributedArray:
    """Return the indices of the maxima, int32."""
    return gdt.astype(gdt.argmax(_ranked(x), axis=axis, keepdims=keepdims), "int32")


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> DistributedArray:
    """Return the indices of the minima, int32."""
    return gdt.astype(gdt.argmin(_ranked(x), axis=axis, keepdims=keepdims), "int32")


def _without_nan(function: Function, fill: float) -> Function:
    @wraps(function)
    def call(x: Any, axis: int | None = None, keepdims: bool = False) -> DistributedArray:
        x = convert_to_tensor(x)
        if x.dtype.kind not in "fV":
            return function(x, axis, keepdims)  # type: ignore[no-any-return]
        is_nan = gdt.isnan(x)
        index = function(gdt.where(is_nan, fill, x), axis, keepdims)
        return gdt.where(gdt.all(is_nan, axis=axis, keepdims=keepdims), -1, index)

    return call


nanargmax, nanargmin = _without_nan(argmax, -np.inf), _without_nan(argmin, np.inf)
sort, argsort = of_one(gdt.sort), of_one(gdt.argsort, "int32")
argpartition = of_one(gdt.argpartition, "int32")


def searchsorted(sorted_sequence: Any, values: Any, side: str = "left") -> DistributedArray:
    """Return where values belong in a sorted vector, int32."""
    sorted_sequence, values = promoted_arrays((sorted_sequence, values))
    if sorted_sequence.ndim != 1:
        raise ValueError(
            "`searchsorted` only supports 1-D sorted sequences. You can use "
            "`keras.ops.vectorized_map` to extend it to N-D sequences. Received: "
            f"sorted_sequence.shape={sorted_sequence.shape}"
        )
    return gdt.astype(gdt.searchsorted(sorted_sequence, values, side=side), "int32")


def digitize(x: Any, bins: Any) -> DistributedArray:
    """Return the numbers of the bins of the elements, int32."""
    return gdt.astype(gdt.digitize(convert_to_tensor(x), convert_to_tensor(bins)), "int32")


def bincount(
    x: Any, weights: Any = None, minlength: int = 0, sparse: bool = False
) -> DistributedArray:
    """Return how often each number stands in a vector, or in each row of a matrix."""
    if sparse:
        raise ValueError("`sparse=True` is not supported: gdt has dense arrays alone.")
    x = convert_to_tensor(x)
    weights = None if weights is None else convert_to_tensor(weights)
    dtype = "int32" if weights is None else promotion(x, weights)
    if x.ndim == 1:
        return gdt.astype(gdt.bincount(x, weights, minlength), dtype)
    length = builtins.max(int(gdt.max(x)) + 1, minlength)
    rows = [(row, None if weights is None else weights[i]) for i, row in enumerate(x)]
    return gdt.astype(gdt.stack([gdt.bincount(row, w, length) for row, w in rows]), dtype)


def histogram(x: Any, bins: Any = 10, range: Any = None) -> tuple[DistributedArray, ...]:
    """Return how many elements each bin has, and the edges of the bins."""
    bins = bins if isinstance(bins, int) else convert_to_tensor(bins)
    return gdt.histogram(convert_to_tensor(x), bins=bins, range=range)


def isin(x1: Any, x2: Any, assume_unique: bool = False, invert: bool = False) -> DistributedArray:
    """Return which elements of x1 are in x2."""
    x1, x2 = promoted_arrays((x1, x2))
    return gdt.isin(x1, x2, assume_unique=assume_unique, invert=invert)


def nonzero(x: Any) -> tuple[DistributedArray, ...]:
    """Return the indices of the elements that are not 0, int32."""
    return tuple(gdt.astype(i, "int32") for i in gdt.nonzero(convert_to_tensor(x)))


def unique(
    x: Any,
    sorted: bool = True,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """Return the unique elements, sorted, cut or filled to `size`, with what is asked for."""
    wanted = {"index": return_index, "inverse": return_inverse, "counts": return_counts}
    options = {f"return_{name}": value for name, value in wanted.items()}
    x = convert_to_tensor(x)
    out = gdt.unique(x, axis=axis, equal_nan=False, **options)
    results = list(out) if builtins.any(wanted.values()) else [out]
    names = ["values", *[name for name, value in wanted.items() if value]]
    if size is not None:
        fills = {"values": fill_value or 0, "counts": 0, "index": 1}
        for i, name in enumerate(names):
            if name in fills:
                at = axis or 0 if name == "values" else 0
                results[i] = _resized(results[i], size, at, fills[name])
    results[1:] = [gdt.astype(r, "int32") for r in results[1:]]
    return results[0] if len(results) == 1 else tuple(results)


def _resized(x: DistributedArray, size: int, axis: int, fill: Any) -> DistributedArray:
    count = x.shape[axis]
    if count >= size:
        return gdt.split(x, [size], axis=axis)[0]
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - count)
    return gdt.pad(x, widths, constant_values=fill)


# ---------------------------------------------------------------- creation


def zeros(shape: Any, dtype: Any = None) -> DistributedArray:
    """Return zeros, of `floatx` by default."""
    return gdt.zeros(shape, dtype or config.floatx())


def ones(shape: Any, dtype: Any = None) -> DistributedArray:
    """Return ones, of `floatx` by default."""
    return gdt.ones(shape, dtype or config.floatx())


empty = zeros


def full(shape: Any, fill_value: Any, dtype: Any = None) -> DistributedArray:
    """Return an array of one value, of `floatx` by default."""
    value = convert_to_tensor(fill_value, dtype or config.floatx())
    return gdt.broadcast_to(value, shape)


empty_like = zeros_like = of_one(gdt.zeros_like)
ones_like = of_one(gdt.ones_like)


def full_like(x: Any, fill_value: Any, dtype: Any = None) -> DistributedArray:
    """Return an array of the shape and layout of `x` of one value."""
    x = convert_to_tensor(x)
    value = convert_to_tensor(fill_value, dtype or x.dtype)
    return gdt.where(True, value, gdt.zeros_like(x, dtype=value.dtype))


def array(x: Any, dtype: Any = None) -> DistributedArray:
    """Return an array."""
    return convert_to_tensor(x, dtype=dtype)


def view(x: Any, dtype: Any = None) -> DistributedArray:
    """Return the same bits as elements of another dtype."""
    return convert_to_tensor(x).view(dtype)


def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None) -> DistributedArray:
    """Return numbers from `start` to `stop`."""
    given = [n for n in (start, stop, step) if n is not None]
    dtype = dtype or promotion(*given)
    start, stop = (0, start) if stop is None else (start, stop)
    bounds = [_number(n) for n in (start, stop, 1 if step is None else step)]
    return gdt.astype(gdt.arange(*bounds), dtype)


def _number(x: Any) -> Any:
    """Return the Python number of an array, a variable or a NumPy scalar of rank 0."""
    return x if isinstance(x, int | float) else convert_to_tensor(x).item()


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """Return evenly spaced numbers."""
    dtype = dtype or promotion(start, stop, 0.0)
    start, stop = _bounds(start, stop)
    return gdt.linspace(start, stop, int(num), endpoint, retstep, dtype, axis)


def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10,
    dtype: Any = None,
    axis: int = 0,
) -> DistributedArray:
    """Return powers of `base` with evenly spaced exponents."""
    dtype = dtype or promotion(start, stop, 0.0)
    start, stop = _bounds(start, stop)
    return gdt.logspace(start, stop, int(num), endpoint, base, dtype, axis)


def geomspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    dtype: Any = None,
    axis: int = 0,
) -> DistributedArray:
    """Return numbers of which each is the same multiple of the one before."""
    start, stop = _bounds(start, stop)
    return gdt.geomspace(start, stop, int(num), endpoint, dtype or config.floatx(), axis)


def _bounds(*xs: Any) -> list[Any]:
    return [x if type(x) in NUMBERS else convert_to_tensor(x) for x in xs]


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> DistributedArray:
    """Return a matrix with ones on a diagonal."""
    return gdt.eye(N, M, k, dtype or config.floatx())


def identity(n: int, dtype: Any = None) -> DistributedArray:
    """Return the identity matrix."""
    return gdt.identity(n, dtype or config.floatx())


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> DistributedArray:
    """Return a matrix with ones on and below a diagonal."""
    return gdt.tri(N, M, k, dtype or config.floatx())


def vander(x: Any, N: int | None = None, increasing: bool = False) -> DistributedArray:
    """Return the matrix of powers of the elements."""
    x = convert_to_tensor(x)
    powers = gdt.vander(convert_to_tensor(x, promotion(x, 0.0)), N=N, increasing=increasing)
    return gdt.astype(powers, result_type(x.dtype))


bartlett, blackman = window(gdt.bartlett), window(gdt.blackman)
hamming, hanning, kaiser = window(gdt.hamming), window(gdt.hanning), window(gdt.kaiser)

# ---------------------------------------------------------------- shapes

broadcast_to, expand_dims = of_one(gdt.broadcast_to), of_one(gdt.expand_dims)
diag, diagflat, diagonal = of_one(gdt.diag), of_one(gdt.diagflat), of_one(gdt.diagonal)
diff = of_one(gdt.diff)
flip, fliplr, flipud = of_one(gdt.flip), of_one(gdt.fliplr), of_one(gdt.flipud)
hsplit, vsplit, dsplit = of_one(gdt.hsplit), of_one(gdt.vsplit), of_one(gdt.dsplit)
moveaxis, swapaxes = of_one(gdt.moveaxis), of_one(gdt.swapaxes)
ravel, reshape, roll = of_one(gdt.ravel), of_one(gdt.reshape), of_one(gdt.roll)
squeeze, transpose, tile = of_one(gdt.squeeze), of_one(gdt.transpose), of_one(gdt.tile)
tril, triu = of_one(gdt.tril), of_one(gdt.triu)
append = of_arrays(gdt.append)
concatenate, stack = of_sequence(gdt.concat), of_sequence(gdt.stack)
hstack, vstack = of_sequence(gdt.hstack), of_sequence(gdt.vstack)
dstack = of_sequence(gdt.dstack)


def ndim(x: Any) -> int:
    """Return the number of axes."""
    return convert_to_tensor(x).ndim


def size(x: Any) -> int:
    """Return the number of elements."""
    return convert_to_tensor(x).size


def rot90(array: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> DistributedArray:
    """Return the array turned by 90 degrees k times, from the first of the axes to the second."""
    array = convert_to_tensor(array)
    if array.ndim < 2:
        raise ValueError(
            f"Input array must have at least 2 dimensions. Received: array.ndim={array.ndim}"
        )
    if len(axes) != 2 or axes[0] == axes[1]:
        raise ValueError(f"Invalid axes: {axes}. Axes must be a tuple of two different dimensions.")
    return gdt.rot90(array, k=k, axes=axes)


def meshgrid(*x: Any, indexing: str = "xy") -> list[DistributedArray]:
    """Return the coordinates of a grid."""
    return list(gdt.meshgrid(*[convert_to_tensor(a) for a in x], indexing=indexing))


def pad(
    x: Any, pad_width: Any, mode: str = "constant", constant_values: Any = None
) -> DistributedArray:
    """Return the array with elements around it."""
    if constant_values is not None and mode != "constant":
        raise ValueError(
            "Argument `constant_values` can only be provided when `mode == 'constant'`. "
            f"Received: mode={mode}"
        )
    x = convert_to_tensor(x)
    return gdt.pad(x, pad_width, mode=mode, constant_values=constant_values or 0)


def repeat(x: Any, repeats: Any, axis: int | None = None) -> DistributedArray:
    """Return the elements repeated along an axis."""
    repeats = repeats if isinstance(repeats, int) else convert_to_tensor(repeats)
    return gdt.repeat(convert_to_tensor(x), repeats, axis=axis)


def split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[DistributedArray]:
    """Return parts of the array along an axis."""
    return gdt.split(convert_to_tensor(x), _cuts(indices_or_sections), axis=axis)


def array_split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[DistributedArray]:
    """Return parts of the array along an axis, whose lengths may differ by one."""
    return gdt.array_split(convert_to_tensor(x), _cuts(indices_or_sections), axis=axis)


def _cuts(indices_or_sections: Any) -> Any:
    if isinstance(indices_or_sections, int):
        return indices_or_sections
    return [int(i) for i in indices_or_sections]


def take(x: Any, indices: Any, axis: int | None = None) -> DistributedArray:
    """Return the elements at indices along an axis."""
    x, indices = convert_to_tensor(x), _indices(indices)
    return gdt.take(x, indices, axis=axis)


def take_along_axis(x: Any, indices: Any, axis: int | None = None) -> DistributedArray:
    """Return the elements at indices along an axis, of the same place along the others."""
    return gdt.take_along_axis(convert_to_tensor(x), _indices(indices), axis=axis)


def _indices(indices: Any) -> DistributedArray:
    indices = convert_to_tensor(indices)
    return indices if indices.dtype.kind in "iu" else gdt.astype(indices, "int32")


def unravel_index(indices: Any, shape: Sequence[int]) -> tuple[DistributedArray, ...]:
    """Return the index along each axis of elements of a flat array."""
    indices = convert_to_tensor(indices)
    dtype = result_type(indices.dtype)
    return tuple(gdt.astype(i, dtype) for i in gdt.unravel_index(indices, shape))


def vectorize(pyfunc: Function, *, excluded: Any = None, signature: str | None = None) -> Function:
    """Return a function of arrays that calls `pyfunc` for their elements."""
    return vectorize_impl(pyfunc, gdt.vmap, excluded=excluded, signature=signature)  # type: ignore[no-any-return]
