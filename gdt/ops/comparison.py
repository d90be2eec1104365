"""Comparison, logic, bits, and what chooses between values: where, clip, maximum, minimum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.output import into
from gdt.array.registry import FUNCTIONS, public
from gdt.engine.op import Op, declared, op
from gdt.engine.plan import Memory
from gdt.errors import ArgumentError, ShapeError, error
from gdt.fusion.loop import SMALLEST_OP, CompiledOp, are_compiled
from gdt.fusion.op_formula import OpFormula, float_dtypes, has_formula, same_dtypes
from gdt.ops.elementwise import (
    BOOL,
    INTEGERS,
    PROMOTED,
    REAL,
    TERNARY,
    astype,
    binary,
    like,
    positive,
    unary,
    zero,
)
from gdt.ops.shapes import broadcast_to

__all__ = [
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "clip",
    "equal",
    "greater",
    "greater_equal",
    "invert",
    "isfinite",
    "isinf",
    "isnan",
    "left_shift",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "not_equal",
    "right_shift",
    "signbit",
    "where",
]


Block = Any
Body = Callable[..., Any]

# ---------------------------------------------------------------- comparison

equal = binary(
    "equal", "x == y; NaN equals nothing.", ("equal([1, 2], 2)", [False, True]), dtypes=BOOL,
    formula="x == y", kinds="fiu",
)  # fmt: skip
not_equal = binary(
    "not_equal", "x != y.", ("not_equal([1, 2], 2)", [True, False]), dtypes=BOOL,
    formula="x != y", kinds="fiu",
)  # fmt: skip
less = binary(
    "less", "x < y.", ("less([1, 2], 2)", [True, False]), dtypes=BOOL,
    formula="x < y", kinds="fiu",
)  # fmt: skip
less_equal = binary(
    "less_equal", "x <= y.", ("less_equal([1, 2], 2)", [True, True]), dtypes=BOOL,
    formula="x <= y", kinds="fiu",
)  # fmt: skip
greater = binary(
    "greater", "x > y.", ("greater([1, 2], 1)", [False, True]), dtypes=BOOL,
    formula="x > y", kinds="fiu",
)  # fmt: skip
greater_equal = binary(
    "greater_equal", "x >= y.", ("greater_equal([1, 2], 2)", [False, True]), dtypes=BOOL,
    formula="x >= y", kinds="fiu",
)  # fmt: skip

isnan = unary(
    "isnan",
    "Whether each element is NaN.",
    ("isnan([1.0, float('nan')])", [False, True]),
    dtypes=BOOL,
    formula="x != x",
)
isinf = unary(
    "isinf", "Whether x is inf or -inf.",
    ("isinf([1.0, float('inf')])", [False, True]), dtypes=BOOL,
    formula="abs(x) == inf",
)  # fmt: skip
isfinite = unary(
    "isfinite",
    "Whether x is neither infinite nor NaN.",
    ("isfinite([1.0, float('inf')])", [True, False]),
    dtypes=BOOL,
    formula="abs(x) < inf",
)
signbit = unary(
    "signbit",
    "Whether the sign bit is set.",
    ("signbit([-0.0, 0.0])", [True, False]),
    dtypes=f"{BOOL} {REAL}",
)

# ---------------------------------------------------------------- logic and bits


def _truth(x: Any) -> Any:
    """`x` as logical functions take it: a complex number as whether it is not 0, since CuPy's
    functions take real numbers alone."""
    if isinstance(x, complex):
        return x != 0
    return x != 0 if getattr(x, "dtype", None) is not None and x.dtype.kind == "c" else x


logical_and = binary(
    "logical_and",
    "Whether x and y are both true (not 0).",
    ("logical_and([1, 0], 2)", [True, False]),
    of=_truth,
    dtypes=BOOL,
    formula="x & y",
    kinds="b",
)
logical_or = binary(
    "logical_or",
    "Whether x or y is true (not 0).",
    ("logical_or([1, 0], 0)", [True, False]),
    of=_truth,
    dtypes=BOOL,
    formula="x | y",
    kinds="b",
)
logical_xor = binary(
    "logical_xor",
    "Whether one of x and y is true, not both.",
    ("logical_xor([1, 0], 1)", [False, True]),
    of=_truth,
    dtypes=BOOL,
    formula="x ^ y",
    kinds="b",
)
logical_not = unary(
    "logical_not", "Whether x is 0.",
    ("logical_not([1, 0])", [False, True]), of=_truth, dtypes=BOOL,
    formula="~x", kinds="b",
)  # fmt: skip

bitwise_and = binary(
    "bitwise_and", "x & y, bit by bit.", ("bitwise_and(6, 3)", 2), dtypes=f"{PROMOTED} {INTEGERS}",
    formula="x & y", kinds="biu",
)  # fmt: skip
bitwise_or = binary(
    "bitwise_or", "x | y, bit by bit.", ("bitwise_or(6, 3)", 7), dtypes=f"{PROMOTED} {INTEGERS}",
    formula="x | y", kinds="biu",
)  # fmt: skip
bitwise_xor = binary(
    "bitwise_xor", "x ^ y, bit by bit.", ("bitwise_xor(6, 3)", 5), dtypes=f"{PROMOTED} {INTEGERS}",
    formula="x ^ y", kinds="biu",
)  # fmt: skip
invert = unary(
    "invert",
    "~x: every bit the other way; `not x` for bools.",
    ("invert([0, True])", [-1, -2]),
    dtypes=f"The dtype is that of `x`. {INTEGERS}",
    formula="~x",
    kinds="biu",
)
left_shift = binary(
    "left_shift", "x << y: x * 2 ** y.", ("left_shift(3, 2)", 12), dtypes=f"{PROMOTED} {INTEGERS}"
)
right_shift = binary(
    "right_shift",
    "x >> y: the largest integers not above x / 2 ** y.",
    ("right_shift(12, 2)", 3),
    dtypes=f"{PROMOTED} {INTEGERS}",
)

# ---------------------------------------------------------------- choice


class Where(Op[[Any, Any, Any], DistributedArray]):
    """The op `where`, which of a condition alone gives its places."""

    if TYPE_CHECKING:

        @overload
        def __call__(self, condition: Any, /) -> tuple[DistributedArray, ...]: ...
        @overload
        def __call__(self, condition: Any, x: Any, y: Any, /) -> DistributedArray: ...
        def __call__(self, *args: Any) -> Any: ...

    def _convert(self, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        if len(args) + len(static) == 1 and static.keys() <= {"condition"}:
            return FUNCTIONS["nonzero"](*args, *static.values())
        return super()._convert(args, static)


def _where(xp: Any, condition: Block, x: Block, y: Block, /) -> Block:
    """x where the condition is true (not 0), else y; of a condition alone `gdt.nonzero`.

    The three operands broadcast; raises ShapeError if their shapes do not. The dtypes of x and y
    promote as in NumPy. No gradient flows to the condition.

    >>> gdt.where([True, False], [1.0, 2.0], 0).tolist()
    [1.0, 0.0]
    >>> [places.tolist() for places in gdt.where([True, False, True])]
    [[0, 2]]
    """
    return xp.where(condition, x, y)


def _where_dtypes(kinds: Sequence[Any], result: str | None) -> Sequence[str] | None:
    chosen = same_dtypes(kinds[1:], result)
    return ["b1", *chosen] if chosen and kinds[0] == np.dtype(bool) else None


_CHOSEN = "y if x else z"
has_formula(_CHOSEN, _where_dtypes, replaces=1)(_where)
where = declared(Where(_where, TERNARY, linear="x + y"))
where.vjp(
    None,
    lambda g, out, condition, x, y: like(where(condition, g, 0), x),
    lambda g, out, condition, x, y: like(where(condition, 0, g), y),
    reads="condition",
)


_CHOICE = CompiledOp("where", OpFormula(_CHOSEN, _where_dtypes), np.where)


def chosen(condition: Block, x: Any, y: Any) -> Block:
    """`numpy.where`, of large blocks in one loop: NumPy's takes ten times as long where the
    condition is in no order, since processors have to guess."""
    kinds = [v.dtype if isinstance(v, np.ndarray) else type(v) for v in (condition, x, y)]
    is_large = condition.size >= SMALLEST_OP and are_compiled()
    if is_large and _where_dtypes(kinds, None) is not None:
        return _CHOICE(condition, x, y)
    return np.where(condition, x, y)


def only_where(
    name: str, x: Any, mask: Any, otherwise: Any
) -> tuple[DistributedArray, DistributedArray]:
    """`x` with `otherwise` where the mask is false, and the mask in the shape of `x`."""
    x, mask = as_operands(name, x=x, where=mask)
    if mask.dtype.kind != "b":
        problem = f"where is {mask.dtype}, not bool"
        raise error(ArgumentError, name, problem, operands={"x": x.type})
    try:
        mask = broadcast_to(mask, x.shape)
    except ShapeError:
        problem = f"where of shape {list(mask.shape)} does not fit"
        raise error(ShapeError, name, problem, operands={"x": x.type}) from None
    return astype(where(mask, x, otherwise), x.dtype), mask


@op(TERNARY, linear="g")
def maximum_gradient(
    xp: Any, g: Block, x: Block, y: Block, /, *, out: Memory | None = None
) -> Block:
    """g where x > y, half of g where x equals y, else 0: the gradient of maximum(x, y) in x."""
    twice = xp.add(xp.greater(x, y), xp.greater_equal(x, y), dtype=g.dtype)
    twice *= 0.5
    return xp.multiply(g, twice, out=out)


has_formula("""
half = full_like(x, 0.5)
x * ((half if y > z else 0.0) + (half if y >= z else 0.0))
""")(maximum_gradient)
maximum_gradient.vjp(
    lambda c, out, g, x, y: like(maximum_gradient(c, x, y), g),
    lambda c, out, g, x, y: zero(c, out, x),
    lambda c, out, g, x, y: zero(c, out, y),
)

maximum = binary(
    "maximum",
    "The larger of x and y; NaN if one is.",
    ("maximum([1, 5], 3)", [3, 5]),
    dtypes=f"{PROMOTED} Where x and y are equal, each gets half of the gradient.",
    formula="maximum(x, y)",
    kinds="fiu",
)
maximum.vjp(
    lambda g, out, x, y: like(maximum_gradient(g, x, y), x),
    lambda g, out, x, y: like(maximum_gradient(g, y, x), y),
    reads="x y",
)

minimum = binary(
    "minimum",
    "The smaller of x and y; NaN if one is.",
    ("minimum([1, 5], 3)", [1, 3]),
    dtypes=f"{PROMOTED} Where x and y are equal, each gets half of the gradient.",
    formula="minimum(x, y)",
    kinds="fiu",
)
minimum.vjp(
    lambda g, out, x, y: like(maximum_gradient(g, y, x), x),
    lambda g, out, x, y: like(maximum_gradient(g, x, y), y),
    reads="x y",
)


@op(TERNARY)
def clip_between(
    xp: Any, x: Block, low: Block, high: Block, /, *, out: Memory | None = None
) -> Block:
    """minimum(maximum(x, low), high): `clip` with both bounds."""
    return xp.clip(x, low, high, out=out)


def _below(g: Any, x: Any, low: Any, high: Any) -> Any:
    """The part of the gradient that the upper bound lets through."""
    return maximum_gradient(g, high, _larger(x, low))


def _larger(x: Any, low: Any) -> Any:
    if isinstance(x, DistributedArray) or isinstance(low, DistributedArray):
        return maximum(x, low)
    return x if x > low else low


def _clip_dtypes(kinds: Sequence[Any], result: str | None) -> Sequence[str] | None:
    """For bounds that are numbers. Where an element is a zero and a bound the other zero, NumPy
    gives the bound if that is an array, and else the element."""
    are_numbers = not any(isinstance(kind, np.dtype) for kind in kinds[1:])
    return float_dtypes(kinds, result) if are_numbers else None


has_formula("clip(x, y, z)", _clip_dtypes)(clip_between)
clip_between.vjp(
    lambda g, out, x, low, high: like(maximum_gradient(_below(g, x, low, high), x, low), x),
    lambda g, out, x, low, high: like(maximum_gradient(_below(g, x, low, high), low, x), low),
    lambda g, out, x, low, high: like(maximum_gradient(g, _larger(x, low), high), high),
)


@public
def clip(
    x: Any, min: Any = None, max: Any = None, out: DistributedArray | None = None
) -> DistributedArray:
    """x limited to [min, max]; a bound is an array, a number, or None for no bound.

    Where the bounds cross, the result is `max`. NaN stays NaN. The gradient where x equals a
    bound is split as in `maximum`. Raises ShapeError if `x` and the bounds do not broadcast.

    >>> gdt.clip([-2.0, 0.5, 2.0], -1, 1).tolist()
    [-1.0, 0.5, 1.0]
    """
    if out is not None:
        return into(out, "clip", clip(x, min, max))
    if min is not None and max is not None:
        return clip_between(x, min, max)
    (x,) = as_operands("clip", x=x)
    if x.dtype.kind in "iu" and int in (type(min), type(max)):
        # The bound may be a number that the dtype does not hold, if it limits nothing.
        limits = np.iinfo(x.dtype)
        return clip_between(
            x, int(limits.min) if min is None else min, int(limits.max) if max is None else max
        )
    if min is not None:
        return maximum(x, min)
    return positive(x) if max is None else minimum(x, max)
