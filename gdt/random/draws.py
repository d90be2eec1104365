"""Draws, and functions that draw from distributions.

A distribution is a formula of numbers that a `Draw` samples:

    @distribution(scale="[0, inf]")
    def exponential(draw: Draw, scale: Any = 1.0) -> DistributedArray:
        return draw.standard("exponential") * scale

`distribution` makes the function of it, `exponential(shape, scale, dtype, *, key, layout)`: checks
its arguments, and returns the numbers in this dtype and layout.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from inspect import Parameter, Signature
from typing import Any, NamedTuple

import numpy as np

from gdt.arguments import checked, shown_value
from gdt.array.array import DistributedArray
from gdt.array.placing import checked_layout
from gdt.backend import backend_of
from gdt.backend.cupy import on_gpu
from gdt.comm.notes import note_draw
from gdt.engine.planned import BlockPlan, planned_op
from gdt.errors import ArgumentError, DtypeError, ShapeError, error, frame_of_user
from gdt.ops.comparison import where
from gdt.ops.creation import asarray
from gdt.ops.elementwise import astype, checked_dtype
from gdt.ops.movement import relayout
from gdt.ops.shapes import Shape, broadcast_to, checked_shape
from gdt.random.generator import Counted, Generator, Key, operands_of, split
from gdt.random.kernels import draw_block
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Layout

Block = Any
Formula = Callable[..., DistributedArray]
DrawFunction = Callable[..., DistributedArray]

# ---------------------------------------------------------------- the op


@planned_op(action="draw")
def _draw(
    key: ArrayType,
    stream: Any,
    /,
    *parameters: Any,
    sampler: str,
    array_type: ArrayType,
    options: tuple[tuple[str, Any], ...],
) -> BlockPlan:
    """The elements of an array. parameters: numbers, or arrays of the shape of the draw; options:
    other arguments of the sampler."""

    def draw(block: int, key: Any, stream: Any, *parameters: Any) -> Block:
        key, stream = of_rank_0(key), of_rank_0(stream)
        if block == 0:
            note_draw(array_type, key, stream)
        return draw_block(sampler, array_type, block, dict(options), key, stream, *parameters)

    blocks = range(len(array_type.mesh.blocks))
    layouts = [None if p is None else array_type.layout for p in parameters]
    return BlockPlan([None, None, *layouts], array_type, [partial(draw, b) for b in blocks])


_draw.vjp(None, None, None, None)


def of_rank_0(value: Any) -> Any:
    """The block of an array of rank 0 without its mesh axes; a Python number as it is."""
    return value if isinstance(value, int) else value.reshape(())


def counted_draw(array_type: ArrayType, key: Key) -> Counted:
    """Count a draw of an array that is made later: take the next stream of a generator, and let
    processes compare what they draw."""
    if isinstance(key, DistributedArray):  # the user may write to it before the array is made
        key = key.copy()
    counted = Counted(*operands_of(key, array_type.mesh))
    mesh = array_type.mesh
    with backend_of(mesh).on(mesh, 0):
        numbers = [n if isinstance(n, int) else of_rank_0(n.blocks[0]) for n in counted]
        note_draw(array_type, *numbers)
    return counted


# ---------------------------------------------------------------- draws


class Draw(NamedTuple):
    """A draw that a caller asks for: numbers of this shape and dtype, in this layout, by this key.

    name: the function that was called, for errors. layout: nothing of it is partial.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    key: Key
    layout: Layout

    @classmethod
    def of(
        cls,
        name: str,
        shape: Shape,
        dtype: Any,
        key: Key,
        layout: Layout | None,
        event_ndim: int = 0,
    ) -> Draw:
        """Check what a caller asks for; event_ndim: the axes that `layout` has behind `shape`."""
        sizes = checked_shape(shape, name)
        target = checked_layout(layout, len(sizes) + event_ndim, name)
        return cls(name, sizes, checked_dtype(dtype, name), key, target.resolved)

    @property
    def array_type(self) -> ArrayType:
        """The type of the array that is drawn."""
        return ArrayType.of(self.shape, self.dtype, self.layout)

    def split(self, count: int) -> list[Draw]:
        """Several draws like this one, independent of each other."""
        is_counted = self.key is None or isinstance(self.key, Generator)
        keys = [self.key] * count if is_counted else split(self.key, count)
        return [self._replace(key=key) for key in keys]

    def sampled(self, sampler: str, *parameters: Any, **options: Any) -> DistributedArray:
        """Numbers of a sampler: a function of `gdt.random.bits` or `gdt.random.distributions`.

        parameters: those of one of `distributions.SAMPLERS`, numbers or arrays that broadcast to
        the shape. options: the arguments of any other one.
        """
        array_type = self.array_type
        own = [_parameter(p, array_type, self.name) for p in parameters]
        operands = (*operands_of(self.key, self.layout.mesh), *own)
        return _draw(
            *operands, sampler=sampler, array_type=array_type, options=tuple(options.items())
        )

    def standard(self, name: str) -> DistributedArray:
        """Floats of a standard distribution: "uniform", "normal", "exponential", ..."""
        return self.sampled(name, dtype=self.dtype)

    def words(self) -> DistributedArray:
        """Words of 64 random bits."""
        return self._replace(dtype=np.dtype(np.uint64)).sampled("bits64")

    def floats(self) -> Draw:
        """This draw in float64."""
        return self._replace(dtype=np.dtype(float))


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
        raise other_shapes(name, array_type.shape, {"a parameter": x})
    return broadcast_to(astype(x, np.float64), shape)


def other_shapes(name: str, shape: tuple[int, ...], parameters: Mapping[str, Any]) -> ShapeError:
    """The error of parameters that do not broadcast to the shape of a draw."""
    shapes = " and ".join(f"{k} of shape {list(np.shape(v))}" for k, v in parameters.items())
    verb = "does" if len(parameters) == 1 else "do"
    return error(ShapeError, name, f"{shapes} {verb} not broadcast to {list(shape)}")


def in_layout(x: DistributedArray, layout: Layout | None) -> DistributedArray:
    return x if layout is None or x.layout is layout else relayout(x, layout)


def scaled(x: DistributedArray, loc: Any, scale: Any) -> DistributedArray:
    """loc + scale * x."""
    y = x if is_number(scale, 1) else x * scale
    return y if is_number(loc, 0) else y + loc


def is_number(value: Any, number: int) -> bool:
    return isinstance(value, int | float) and value == number


# ---------------------------------------------------------------- domains of parameters


class Domain(NamedTuple):
    """The domain of a parameter: `Domain.of("(0, 1]")`."""

    least: float
    most: float
    excludes_least: bool
    excludes_most: bool

    @classmethod
    def of(cls, text: str) -> Domain:
        """Return the domain of a text such as "(0, 1]"."""
        least, most = map(float, text[1:-1].split(","))
        return cls(least, most, text[0] == "(", text[-1] == ")")

    def contains(self, x: Any) -> Any:
        """Whether each element lies in the domain; of a NaN it is false."""
        inside = x > self.least if self.excludes_least else x >= self.least
        if self.most == math.inf and not self.excludes_most:
            return inside
        return inside & (x < self.most if self.excludes_most else x <= self.most)

    def limited(self, name: str, label: str, value: Any) -> Any:
        """A parameter, with NaN for what a distributed one holds outside of the domain.

        Raises ArgumentError for a parameter of the host that holds a number outside, or a NaN."""
        if isinstance(value, DistributedArray):
            return where(self.contains(value), value, np.nan)
        numbers = host_numbers(name, label, value)
        if numbers is not None and not (inside := self.contains(numbers)).all():
            verb = "holds" if numbers.ndim else "is"
            wrong = numbers[~inside].flat[0] if numbers.ndim else value
            raise error(ArgumentError, name, f"{label} {verb} {wrong}, not {self}")
        return value

    def __str__(self) -> str:
        lower = f"{'above' if self.excludes_least else 'at least'} {self.least:g}"
        if self.most == math.inf:
            return lower
        return f"{lower} and {'below' if self.excludes_most else 'at most'} {self.most:g}"


def host_numbers(name: str, label: str, value: Any) -> np.ndarray | None:
    """A parameter as float64 numbers; None for an array on devices, at which nothing looks."""
    if isinstance(value, DistributedArray) or on_gpu(value):
        return None
    try:
        return np.asarray(value, float)
    except (TypeError, ValueError):
        problem = f"{label} is {shown_value(value)}, which is no number"
        raise error(ArgumentError, name, problem) from None


# ---------------------------------------------------------------- functions of distributions


def distribution(
    *, dtype: Any = float, event_ndim: int = 0, **intervals: str
) -> Callable[[Formula], DrawFunction]:
    """Make the function that draws from a distribution out of its formula. A decorator.

    The formula takes a `Draw` and the parameters of the distribution, and returns numbers of any
    dtype and layout. The function takes the shape, these parameters, `dtype`, and by keyword `key`
    and `layout`. The shape has the default () if all parameters have one.

    dtype: the default; of integers, floats are drawn too. event_ndim: 0 for numbers, 1 for vectors.
    intervals: where parameters lie, `scale="[0, inf]"`.
    """
    ranges = {label: Domain.of(text) for label, text in intervals.items()}
    kinds = "f" if dtype is float else "iuf"

    def decorate(formula: Formula) -> DrawFunction:
        name, signature = formula.__name__, _signature(formula, dtype)
        names = [p.name for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
        defaults = defaults_of(signature)

        @wraps(formula)
        def function(*args: Any, **kwargs: Any) -> DistributedArray:
            if len(args) > 1:
                _check_order(name, "shape" in defaults, *args)
            values = defaults | by_name(names, args, kwargs)
            shape, dtype, key, layout = map(values.pop, ("shape", "dtype", "key", "layout"))
            for label, interval in ranges.items():
                values[label] = interval.limited(name, label, values[label])
            draw = Draw.of(name, shape, dtype, key, layout, event_ndim)
            if kind_of(draw.dtype) not in kinds:
                remedy = "It draws floats." if kinds == "f" else "It draws integers and floats."
                raise error(DtypeError, name, f"cannot draw {draw.dtype}", remedy=remedy)
            numbers = formula(draw, **values)
            if numbers.shape[: numbers.ndim - event_ndim] != draw.shape:
                raise other_shapes(name, draw.shape, values)
            numbers = numbers if numbers.dtype == draw.dtype else astype(numbers, draw.dtype)
            return in_layout(numbers, layout)

        function.__signature__ = signature  # type: ignore[attr-defined]
        function.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return checked(function)

    return decorate


def _signature(formula: Formula, dtype: Any) -> Signature:
    """The signature of the function that draws by a formula."""
    own = inspect.signature(formula, eval_str=True)
    parameters = [*own.parameters.values()][1:]
    positional = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    is_optional = all(p.default is not p.empty for p in positional)
    either, keyword = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
    return own.replace(
        parameters=[
            Parameter(
                "shape", either, default=() if is_optional else Parameter.empty, annotation=Shape
            ),
            *positional,
            Parameter("dtype", either, default=dtype, annotation=Any),
            *[p for p in parameters if p.kind is keyword],
            Parameter("key", keyword, default=None, annotation=Key),
            Parameter("layout", keyword, default=None, annotation=Layout | None),
        ]
    )


def defaults_of(signature: Signature) -> dict[str, Any]:
    parameters = signature.parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def by_name(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names: `Signature.bind` takes ten times as long.

    Raises TypeError for too many, and for one that is given twice.
    """
    if len(args) > len(names) or not kwargs.keys().isdisjoint(names[: len(args)]):
        raise TypeError("arguments that do not fit the signature")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _check_order(name: str, is_optional: bool, first: Any, *others: Any) -> None:
    """Refuse a float as the shape, as in NumPy's order, in which it stands last, and warn where a
    shape of 0 may be NumPy's `loc`.

    is_optional: whether all parameters have defaults, as those of NumPy's `normal(0, 1, 5)`.
    """
    numpys = f"gdt.random.default_rng(seed).{name} has NumPy's order."
    if type(first) is float:
        problem = f"the first argument is the shape, not {first!r}"
        remedy = f"Write {name}(shape, {first!r}, {shown_value(others[0])}); {numpys}"
        raise error(ArgumentError, name, problem, remedy=remedy)
    if not is_optional or type(first) is not int or first != 0 or len(others) < 2:
        return
    width, size = others[:2]  # in NumPy's order
    if type(size) is int and size > 1 and not is_number(width, 0):
        problem = f"the shape stands first: {name}(0, ...) has no elements"
        text = f"{problem}. {numpys} Write (0,) for no elements."
        warnings.warn(text, stacklevel=frame_of_user()[1])
