"""Draws by position: uniform and normal numbers, and bools; and what draws of other distributions
share."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

import numpy as np

from gdt.arguments import checked, shown_value
from gdt.array.array import DistributedArray
from gdt.array.placing import checked_layout
from gdt.backend.cupy import on_gpu
from gdt.comm.notes import note_draw
from gdt.engine.planned import BlockPlan, planned_op
from gdt.errors import ArgumentError, DtypeError, RangeError, ShapeError, error, frame_of_user
from gdt.ops.comparison import less, where
from gdt.ops.creation import asarray
from gdt.ops.elementwise import astype, checked_dtype, subtract
from gdt.ops.movement import relayout
from gdt.ops.shapes import Shape, broadcast_to, checked_shape
from gdt.random.distributions import COUNTS
from gdt.random.generator import Key, operands_of
from gdt.random.kernels import draw_block, draw_block_of
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Layout

Block = Any
F = TypeVar("F", bound=Callable[..., Any])

# ---------------------------------------------------------------- draws


@planned_op(action="draw")
def _draw(
    key: ArrayType,
    stream: Any,
    /,
    *,
    sampler: str,
    array_type: ArrayType,
    options: tuple[tuple[str, Any], ...],
) -> BlockPlan:
    """The elements of an array; options: arguments of the sampler."""

    def draw(block: int, *scalars: Any) -> Block:
        scalars = tuple(map(of_rank_0, scalars))
        if block == 0:
            note_draw(array_type, *scalars)
        return draw_block(sampler, array_type, block, dict(options), *scalars)

    blocks = range(len(array_type.mesh.blocks))
    return BlockPlan([None, None], array_type, [partial(draw, block) for block in blocks])


@planned_op(action="draw")
def _draw_of(
    key: ArrayType,
    stream: Any,
    first: Any,
    second: Any,
    /,
    *,
    sampler: str,
    array_type: ArrayType,
) -> BlockPlan:
    """The elements of an array of a distribution with parameters: numbers, or arrays of its
    shape."""

    def draw(block: int, key: Any, stream: Any, *parameters: Any) -> Block:
        key, stream = of_rank_0(key), of_rank_0(stream)
        if block == 0:
            note_draw(array_type, key, stream)
        return draw_block_of(sampler, array_type, block, key, stream, *parameters)

    blocks = range(len(array_type.mesh.blocks))
    layouts = [None if p is None else array_type.layout for p in (first, second)]
    return BlockPlan([None, None, *layouts], array_type, [partial(draw, b) for b in blocks])


_draw_of.vjp(None, None, None, None)


def drawn_of(
    sampler: str,
    shape: Shape,
    dtype: Any,
    layout: Layout | None,
    key: Key,
    first: Any,
    second: Any = 0.0,
    name: str = "",
) -> DistributedArray:
    """A draw of a distribution with parameters, which broadcast to the shape, in the wanted layout.

    name: the public function, for errors; the sampler if not given.
    """
    sizes = checked_shape(shape, name or sampler)
    layout = checked_layout(layout, len(sizes), name or sampler)
    dtype = drawn_dtype(dtype, name or sampler, is_count=sampler in COUNTS)
    array_type = ArrayType.of(sizes, dtype, layout.resolved)
    parameters = [_parameter(p, array_type, name or sampler) for p in (first, second)]
    operands = (*operands_of(key, array_type.mesh), *parameters)
    out: DistributedArray = _draw_of(*operands, sampler=sampler, array_type=array_type)
    return in_layout(out, layout)


def drawn_dtype(dtype: Any, name: str, *, is_count: bool) -> np.dtype[Any]:
    """`dtype`, or DtypeError if a draw does not have it: counts are integers too."""
    drawable: np.dtype[Any] = checked_dtype(dtype, name)
    if kind_of(drawable) not in ("iuf" if is_count else "f"):
        problem = f"cannot draw {drawable}"
        remedy = "It draws integers and floats." if is_count else "It draws floats."
        raise error(DtypeError, name, problem, remedy=remedy)
    return drawable


def _parameter(value: Any, array_type: ArrayType, name: str) -> Any:
    """A parameter as a float, or as a float64 array of the shape of the draw."""
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return float(value)
    x = asarray(value, layout=None)
    if x.mesh is not array_type.mesh:
        x = relayout(x, Layout.replicated(array_type.mesh, x.ndim))
    try:
        shape = np.broadcast_shapes(x.shape, array_type.shape)
    except ValueError:
        shape = ()
    if shape != array_type.shape:
        problem = (
            f"a parameter of shape {list(x.shape)} does not broadcast to {list(array_type.shape)}"
        )
        raise error(ShapeError, name, problem)
    return broadcast_to(astype(x, np.float64), shape)


# ---------------------------------------------------------------- parameters


def _of_host(name: str, label: str, value: Any) -> np.ndarray | None:
    """A parameter as float64 numbers; None for an array on devices, at which nothing looks."""
    if isinstance(value, DistributedArray) or on_gpu(value):
        return None
    try:
        return np.asarray(value, float)
    except (TypeError, ValueError):
        problem = f"{label} is {shown_value(value)}, which is no number"
        raise error(ArgumentError, name, problem) from None


def check_range(
    name: str, least: float = 0.0, most: float = math.inf, *, above: bool = False, **values: Any
) -> None:
    """Raise ArgumentError for parameters of the host that hold a number below `least`, or not above
    it, or above `most`; or a NaN."""
    for label, value in values.items():
        numbers = _of_host(name, label, value)
        if numbers is None:
            continue
        inside = ((numbers > least) if above else (numbers >= least)) & (numbers <= most)
        if not inside.all():
            verb = "holds" if numbers.ndim else "is"
            wrong = numbers[~inside].flat[0] if numbers.ndim else value
            limits = f"{'above' if above else 'at least'} {least:g}"
            limits += f" and at most {most:g}" if most < math.inf else ""
            raise error(ArgumentError, name, f"{label} {verb} {wrong}, not {limits}")


def of_rank_0(value: Any) -> Any:
    """The block of an array of rank 0 without its mesh axes; a Python number as it is."""
    return value if isinstance(value, int) else value.reshape(())


def drawn(
    sampler: str, shape: Shape, dtype: Any, layout: Layout | None, key: Key, options: Any
) -> DistributedArray:
    """A draw, in the wanted layout with nothing partial."""
    sizes = checked_shape(shape, sampler)
    layout = checked_layout(layout, len(sizes), sampler)
    array_type = ArrayType.of(sizes, checked_dtype(dtype, sampler), layout.resolved)
    if "dtype" in options:
        options = {**options, "dtype": array_type.dtype}
    return _draw(
        *operands_of(key, array_type.mesh),
        sampler=sampler,
        array_type=array_type,
        options=tuple(options.items()),
    )


def in_layout(x: DistributedArray, layout: Layout | None) -> DistributedArray:
    return x if layout is None or x.layout is layout else relayout(x, layout)


def _shape_first(function: F) -> F:
    """Make a draw refuse a float as its shape, as in NumPy's order, in which it stands last, and
    warn where a shape of 0 may be NumPy's first argument."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 1:
            _check_order(function.__name__, *args)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def _check_order(name: str, first: Any, *others: Any) -> None:
    numpys = f"gdt.random.default_rng(seed).{name} has NumPy's order."
    if type(first) is float:
        problem = f"the first argument is the shape, not {first!r}"
        remedy = f"Write {name}(shape, {first!r}, {shown_value(others[0])}); {numpys}"
        raise error(ArgumentError, name, problem, remedy=remedy)
    if type(first) is not int or first != 0 or len(others) < 2:
        return
    width, size = others[:2]  # in NumPy's order
    if type(size) is int and size > 1 and not _is(width, 0):
        problem = f"the shape stands first: {name}(0, ...) has no elements"
        text = f"{problem}. {numpys} Write (0,) for no elements."
        warnings.warn(text, stacklevel=frame_of_user()[1])


@checked
@_shape_first
def uniform(
    shape: Shape = (),
    low: Any = 0.0,
    high: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Uniform numbers in [low, high); rounding may give `high` itself if it is not 1, as in NumPy.

    low, high: numbers, or arrays that broadcast to the shape. dtype: bfloat16, float16, float32 or
        float64.

    Raises ArgumentError for a `high` below `low`, RangeError (an OverflowError) for a difference
    that is infinite; of distributed arrays, which are not fetched for that, such elements give NaN.
    Raises ArgumentError for a float as shape, and warns, as `gdt.random.normal` does.

    >>> gdt.random.uniform(2, key=0).round(3).tolist()
    [0.399, 0.736]
    """
    x = drawn("uniform", shape, dtype, layout, key, {"dtype": dtype})
    if not (_is(high, 1) and _is(low, 0)):
        x = like_draw(x, x * _width(low, high) + low, "uniform", low=low, high=high)
    return in_layout(x, layout)


def _width(low: Any, high: Any) -> Any:
    """The difference of the bounds."""
    ends = [_of_host("uniform", label, end) for label, end in (("low", low), ("high", high))]
    if ends[0] is None or ends[1] is None:
        return or_nan(subtract(high, low))
    with np.errstate(over="ignore", invalid="ignore"):
        width: np.ndarray = ends[1] - ends[0]
    if not np.isfinite(width).all():
        problem = "high - low is not finite"
        raise error(RangeError, "uniform", problem, operands={"low": low, "high": high})
    if (width < 0).any():
        problem = "high is below low"
        raise error(ArgumentError, "uniform", problem, operands={"low": low, "high": high})
    return width if width.ndim else high - low


def or_nan(scale: Any) -> Any:
    """A distributed scale with NaN for what is below 0; any other scale as it is."""
    return where(less(scale, 0), np.nan, scale) if isinstance(scale, DistributedArray) else scale


@checked
@_shape_first
def normal(
    shape: Shape = (),
    mean: Any = 0.0,
    std: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Normal numbers of that mean and standard deviation.

    mean, std: numbers, or arrays that broadcast to the shape. dtype: bfloat16, float16, float32 or
        float64.

    Raises ArgumentError for a `std` below 0; elements of a distributed array, which is not fetched
    for that, give NaN. Raises it too for a float as shape, as in NumPy's order (loc, scale, size),
    which `gdt.random.default_rng` has; and warns of no elements where 0 may be NumPy's loc.

    >>> gdt.random.normal(3, key=0).round(3).tolist()
    [1.276, -0.72, -0.07]
    """
    check_range("normal", std=std)
    x = drawn("normal", shape, dtype, layout, key, {"dtype": dtype})
    return in_layout(scaled(x, mean, std, "normal"), layout)


@checked
def truncated_normal(
    shape: Shape = (),
    mean: Any = 0.0,
    std: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Normal numbers given that they are within two standard deviations of the mean.

    `std` is that of the normal before it is cut off; the numbers' own is 0.8796 of it. Raises
    the errors of `gdt.random.normal`.

    >>> bool(gdt.all(abs(gdt.random.truncated_normal(100, key=0)) <= 2))
    True
    """
    check_range("truncated_normal", std=std)
    x = drawn("truncated_normal", shape, dtype, layout, key, {"dtype": dtype})
    return in_layout(scaled(x, mean, std, "truncated_normal"), layout)


def _is(value: Any, number: int) -> bool:
    return isinstance(value, int | float) and value == number


def scaled(x: DistributedArray, mean: Any, std: Any, sampler: str) -> DistributedArray:
    y = x if _is(std, 1) else x * or_nan(std)
    return like_draw(x, y if _is(mean, 0) else y + mean, sampler, mean=mean, std=std)


def like_draw(
    x: DistributedArray, y: DistributedArray, sampler: str, **parameters: Any
) -> DistributedArray:
    """The numbers that were made of a draw `x` with these arguments, in its dtype; ShapeError if
    they are of another shape."""
    if y.shape != x.shape:
        raise other_shapes(x, sampler, **parameters)
    return astype(y, x.dtype)


def other_shapes(x: DistributedArray, sampler: str, **parameters: Any) -> ShapeError:
    """The error of arguments that do not broadcast to the shape of a draw."""
    shapes = " and ".join(f"{k} of shape {list(np.shape(v))}" for k, v in parameters.items())
    return error(ShapeError, sampler, f"{shapes} do not broadcast to {list(x.shape)}")


@checked
def bernoulli(
    shape: Shape = (), p: Any = 0.5, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """Booleans that are true with probability `p`: a number, or an array that broadcasts to the
    shape.

    Raises ArgumentError for a `p` outside [0, 1]; of a distributed array, which is not fetched for
    that, such elements count as 0 or 1.

    >>> gdt.random.bernoulli(4, 0.5, key=3).tolist()
    [False, True, False, False]
    """
    check_range("bernoulli", most=1.0, p=p)
    if isinstance(p, int | float):
        truths = drawn("bernoulli", shape, bool, layout, key, {"p": float(p)})
    else:
        probabilities = (
            astype(p, np.float64) if isinstance(p, DistributedArray) else np.asarray(p, float)
        )
        bits = drawn("bits32", shape, np.uint32, layout, key, {})
        truths = less(bits, probabilities * 2.0**32)
        if truths.shape != bits.shape:
            problem = f"p of shape {list(np.shape(p))} does not broadcast to {list(bits.shape)}"
            raise error(ShapeError, "bernoulli", problem)
        truths = in_layout(truths, bits.layout)
    return in_layout(truths, layout)
