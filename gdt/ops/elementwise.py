"""Element-wise arithmetic, complex parts and casts, as NumPy's ufuncs do them.

Operands promote and broadcast as in NumPy: Python scalars are weak (`float32 * 0.5` is float32),
NumPy scalars and arrays are not. Gradients of complex functions follow JAX: no conjugation on the
way back.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import FUNCTIONS, public
from gdt.array.views import view_step
from gdt.engine.op import Op, op
from gdt.engine.plan import Memory
from gdt.engine.ufunc import Binary, Unary, ufunc
from gdt.errors import DtypeError, error
from gdt.fusion.elementary import ELEMENTARY
from gdt.fusion.op_formula import has_close_formula, has_formula, same_dtypes, ufunc_formula
from gdt.ops.movement import alias
from gdt.ops.reductions import unbroadcast
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import FLOAT32, castable, is_half, kind_of
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.rule import RuleSpec

__all__ = [
    "add",
    "astype",
    "cbrt",
    "conj",
    "divide",
    "floor_divide",
    "hypot",
    "multiply",
    "negative",
    "positive",
    "reciprocal",
    "remainder",
    "sqrt",
    "square",
    "subtract",
]


Block = Any

F = TypeVar("F", bound=Callable[..., Any])

UNARY, BINARY, TERNARY = "... -> ...", "..., ... -> ...", "..., ..., ... -> ..."


PROMOTED = "Dtypes promote as in NumPy."
FLOATING = "Integers give floating-point numbers, of the size that NumPy gives them."
REAL = "Raises DtypeError for complex numbers."
BOOL = "The result is bool."
INTEGERS = "Raises DtypeError for any dtype but integers and bools."


def documented(summary: str, facts: str, calls: Sequence[tuple[str, object]]) -> str:
    """A docstring: a sentence, a paragraph of facts, and examples as pairs of a call and its
    value."""
    examples = [f">>> gdt.{call}.tolist()\n{value!r}" for call, value in calls]
    return "\n".join([summary, "", *textwrap.wrap(facts, 92), "", *examples])


def _itself(x: Any) -> Any:
    return x


def unary(
    name: str,
    summary: str,
    *calls: tuple[str, object],
    dtypes: str = FLOATING,
    linear: str = "",
    rule: Any = UNARY,
    numpy_name: str = "",
    of: Callable[[Any], Any] = _itself,
    formula: str = "",
    kinds: str = "f",
) -> Unary:
    """Declare an element-wise function of one operand that NumPy has as a ufunc, or of `of(x)`.

    dtypes: what its docstring says of dtypes and their errors. linear: see `gdt.op`. formula: what
    it computes for one element (`gdt.fusion.formula`), for dtypes of these kinds. numpy_name: the
    name that NumPy has for it, if it is another.
    """
    function = numpy_name or name
    facts = f"Element-wise: the result has the shape of `x`, and is split alike. {dtypes}"

    def body(xp: Any, x: Block, /, *, out: Memory | None = None) -> Block:
        return getattr(xp, function)(x, out=out)

    def body_of(xp: Any, x: Block, /, *, out: Memory | None = None) -> Block:
        return getattr(xp, function)(of(x), out=out)

    if formula:
        has_formula(formula, ufunc_formula(function, formula, kinds).dtypes)(body_of)
    body.__dict__["ufunc"] = function
    if function in ELEMENTARY:
        has_close_formula(f"{function}(x)")(body)
    own_body = body if of is _itself else body_of
    return ufunc(rule, linear=linear)(named(own_body, name, documented(summary, facts, calls)))


def binary(
    name: str,
    summary: str,
    *calls: tuple[str, object],
    dtypes: str = PROMOTED,
    linear: str = "",
    rule: Any = BINARY,
    of: Callable[[Any], Any] = _itself,
    formula: str = "",
    kinds: str = "f",
) -> Binary:
    """Declare an element-wise function of two operands that NumPy has as a ufunc, or of `of(x)` and
    `of(y)`.

    dtypes: what its docstring says of dtypes and their errors. linear: see `gdt.op`. formula,
    kinds: as of `unary`.
    """
    facts = f"{dtypes} The operands broadcast; raises ShapeError if their shapes do not."

    def body(xp: Any, x: Block, y: Block, /, *, out: Memory | None = None) -> Block:
        return getattr(xp, name)(x, y, out=out)

    def body_of(xp: Any, x: Block, y: Block, /, *, out: Memory | None = None) -> Block:
        return getattr(xp, name)(of(x), of(y), out=out)

    if formula:
        has_formula(formula, ufunc_formula(name, formula, kinds).dtypes)(body_of)
    body.__dict__["ufunc"] = name
    own_body = body if of is _itself else body_of
    return ufunc(rule, linear=linear)(named(own_body, name, documented(summary, facts, calls)))


def named(body: F, name: str, doc: str) -> F:
    """A body that a function has made, with the name and the docstring of its op."""
    body.__name__, body.__doc__, body.__module__ = name, doc, __name__
    return body


def like(g: DistributedArray, x: DistributedArray) -> DistributedArray:
    """A cotangent summed to the shape of `x` and cast to its dtype: the transpose of broadcasting
    and of promotion."""
    g = unbroadcast(g, x)
    if g.dtype == x.dtype:
        return g
    if g.dtype.kind == "c" and x.dtype.kind != "c":
        g = real(g)
    return astype(g, x.dtype)


def zero(g: Any, out: Any, x: DistributedArray, **static: Any) -> DistributedArray:
    """The gradient of a step function."""
    return FUNCTIONS["zeros_like"](x)


# ---------------------------------------------------------------- casts


def _prepare_cast(array_type: ArrayType, *, dtype: Any) -> dict[str, Any]:
    return {"dtype": checked_dtype(dtype, "astype")}


def checked_dtype(dtype: Any, name: str) -> np.dtype[Any]:
    """`dtype` as a NumPy dtype of numbers in the host's byte order; DtypeError otherwise."""
    try:
        number_type: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        remedy = "Write layout=..., by name." if isinstance(dtype, Layout) else None
        raise error(DtypeError, name, f"{dtype!r} is not a dtype", remedy=remedy) from None
    if kind_of(number_type) not in "biufc":
        is_bytes = number_type.kind == "V"  # as which zarr compares elements
        remedy = (
            "Write gdt.store(x, dataset) for zarr's and HDF5's data sets." if is_bytes else None
        )
        raise error(DtypeError, name, f"dtype {number_type} is no number", remedy=remedy)
    return number_type if number_type.isnative else number_type.newbyteorder("=")


def widened_half(x: Any) -> Any:
    """An array or a block in the dtype in which its elements are added up: float32 for
    floating-point numbers of 16 bits."""
    return x.astype(FLOAT32) if is_half(x.dtype) else x


def cast_into(xp: Any, x: Block, out: Block) -> Block:
    xp.copyto(out, x, casting="unsafe")
    return out


@op(UNARY, prepare=_prepare_cast, computes=False)
def cast(xp: Any, x: Block, /, dtype: Any, *, out: Memory | None = None) -> Block:
    """The values as another dtype: what `astype` runs where rounding may lose something."""
    return x.astype(dtype) if out is None else cast_into(xp, x, out)


@op(UNARY, linear="x", prepare=_prepare_cast, computes=False)
def widen(xp: Any, x: Block, /, dtype: Any, *, out: Memory | None = None) -> Block:
    """The values as a dtype of at least their precision: what `astype` runs where it is linear."""
    return x.astype(dtype) if out is None else cast_into(xp, x, out)


def _cast_vjp(g: Any, out: Any, x: Any, *, dtype: Any) -> Any:
    return like(g, x)


for _cast_op in (cast, widen):
    has_formula(lambda dtype: "x", same_dtypes)(_cast_op)
cast.vjp(_cast_vjp, reads="")
widen.vjp(_cast_vjp, reads="")


@public
def astype(
    x: Any,
    dtype: Any,
    *,
    copy: bool = True,
    casting: str = "unsafe",
    device: Mesh | None = None,
) -> DistributedArray:
    """The values as `dtype`, cast as NumPy does it.

    copy: False returns `x` itself if it has that dtype. True returns another array, which then has
        the same memory until one of them is written to.
    casting: which casts are allowed; see `gdt.can_cast`.
    device: the mesh of the result, if it is another one than that of `x`.

    Raises DtypeError for a dtype that is no number, and for a cast that `casting` forbids. A
    partial sum of floating-point numbers stays partial if the dtype is wider.

    >>> gdt.astype(gdt.asarray([1.5, -1.5]), "int8").tolist()
    [1, -1]
    """
    if not isinstance(x, DistributedArray):
        (x,) = as_operands("astype", x=x)
    if device is not None:
        x = x.to_device(device)
    find = _known_cast if type(dtype) in (type, str) else _cast  # types and their names, mostly
    run, target = find(x.type.dtype, dtype)
    if casting != "unsafe" and not castable(x.type.dtype, target, casting):
        problem = f"{x.dtype} is not cast to {target} under the rule {casting!r}"
        raise error(DtypeError, problem, operands={"x": x.type})
    if run is None:
        return alias(x) if copy else x
    return run(x, dtype=target)


def _cast(
    have: np.dtype[Any], dtype: Any
) -> tuple[Op[..., DistributedArray] | None, np.dtype[Any]]:
    """The op that casts, None between equal dtypes; and the dtype of its result."""
    target = checked_dtype(dtype, "astype")
    if have == target:
        return None, target
    wider = kind_of(have) in "fc" and castable(have, target, "safe")
    return (widen if wider else cast), target


_known_cast = lru_cache(maxsize=256)(_cast)


# ---------------------------------------------------------------- arithmetic

add = binary(
    "add", "x + y.", ("add([1, 2], 0.5)", [1.5, 2.5]), linear="x + y",
    formula="x + y", kinds="fiu",
)  # fmt: skip
add.vjp(lambda g, out, x, y: like(g, x), lambda g, out, x, y: like(g, y), reads="")

subtract = binary(
    "subtract",
    "x - y.",
    ("subtract([1, 2], 3)", [-2, -1]),
    linear="x + y",
    dtypes=f"{PROMOTED} Raises DtypeError for bools.",
    formula="x - y",
    kinds="fiu",
)
subtract.vjp(lambda g, out, x, y: like(g, x), lambda g, out, x, y: like(-g, y), reads="")

multiply = binary(
    "multiply", "x * y.", ("multiply([1, 2], [3, 4])", [3, 8]), linear="x, y",
    formula="x * y", kinds="fiu",
)  # fmt: skip
multiply.vjp(
    lambda g, out, x, y: like(g * y, x), lambda g, out, x, y: like(g * x, y), reads=("y", "x")
)


def _divide_rule(x: ArrayType | None, y: ArrayType | None) -> RuleSpec:
    # Parts of small integers may have wrapped around: they are added up before they are widened.
    # Parts divided by 0 are infinities of both signs, and no sum: an array may hold a 0.
    exact = x is None or kind_of(x.dtype) in "fc" or x.dtype.itemsize == 8
    return RuleSpec(BINARY, linear=exact and y is None)


divide = binary(
    "divide",
    "x / y, never an integer.",
    ("divide(1, 4)", 0.25),
    linear="x",
    rule=_divide_rule,
    formula="x / y",
    dtypes="Integers give float64. A division by 0 is infinite or NaN, with NumPy's warning.",
)
divide.vjp(
    lambda g, out, x, y: like(g / y, x),
    lambda g, out, x, y: like(-g * out / y, y),
    reads=("y", "out y"),
)

floor_divide = binary(
    "floor_divide",
    "The largest integers not above x / y.",
    ("floor_divide([7, -7], 2)", [3, -4]),
    dtypes=f"{PROMOTED} Integers divided by 0 give 0. {REAL}",
)
floor_divide.vjp(lambda g, out, x, y: zero(g, out, x), lambda g, out, x, y: zero(g, out, y))

remainder = binary(
    "remainder",
    "x - y * floor(x / y), with the sign of y.",
    ("remainder([7, -7], 3)", [1, 2]),
    dtypes=f"{PROMOTED} Integers divided by 0 give 0. {REAL}",
)
remainder.vjp(
    lambda g, out, x, y: like(g, x), lambda g, out, x, y: like(-g * floor_divide(x, y), y)
)

negative = unary(
    "negative",
    "-x.",
    ("negative([1, -2])", [-1, 2]),
    linear="x",
    dtypes="The dtype is that of `x`. Raises DtypeError for bools.",
    formula="-x",
    kinds="fiu",
)
negative.vjp(lambda g, out, x: -g, reads="")

positive = unary(
    "positive",
    "+x: the same values.",
    ("positive([1, -2])", [1, -2]),
    linear="x",
    dtypes="The dtype is that of `x`. Raises DtypeError for bools.",
)
positive.vjp(lambda g, out, x: g, reads="")

square = unary(
    "square",
    "x * x.",
    ("square([1, -2])", [1, 4]),
    dtypes="The dtype is that of `x`, int8 for bools.",
    formula="x * x",
    kinds="fiu",
)
square.vjp(lambda g, out, x: g * (2 * x), reads="x")

sqrt = unary(
    "sqrt", "The non-negative square root; NaN below 0.", ("sqrt([1, 4])", [1.0, 2.0]),
    formula="sqrt(x)",
)  # fmt: skip
sqrt.vjp(lambda g, out, x: g * 0.5 / out, reads="out")

cbrt = unary("cbrt", "The real cube root.", ("cbrt(-8.0)", -2.0), dtypes=f"{FLOATING} {REAL}")
cbrt.vjp(lambda g, out, x: g / (3 * out * out))

reciprocal = unary(
    "reciprocal",
    "1 / x, an integer for integers.",
    ("reciprocal(4.0)", 0.25),
    dtypes="The dtype is that of `x`: that of an integer is 0 but for 1 and -1.",
    formula="1.0 / x",
)
reciprocal.vjp(lambda g, out, x: -g * out * out, reads="out")

hypot = binary(
    "hypot",
    "sqrt(x * x + y * y), without overflow.",
    ("hypot(3.0, 4.0)", 5.0),
    dtypes=f"{FLOATING} {REAL}",
)
hypot.vjp(
    lambda g, out, x, y: like(g * x / (out + (out == 0)), x),  # 0 where x and y are 0
    lambda g, out, x, y: like(g * y / (out + (out == 0)), y),
)

# ---------------------------------------------------------------- complex parts


@op(UNARY, linear="x", view="x")
def real(xp: Any, x: Block, /) -> Block:
    """The real part; a view, as in NumPy.

    >>> x = gdt.asarray([1 + 2j])
    >>> gdt.real(x)[0] = 5
    >>> x.tolist()
    [(5+2j)]
    """
    return x.real


real.specialize(lambda body, x, /: attrgetter("real"))
real.vjp(lambda g, out, x: astype(g, x.dtype))


@op(UNARY, linear="x", view="x")
def imag(xp: Any, x: Block, /) -> Block:
    """The imaginary part, a view, as in NumPy; zeros, which are read-only, if `x` is real.

    >>> gdt.imag([1 + 2j]).tolist()
    [2.0]
    """
    return x.imag


imag.specialize(lambda body, x, /: attrgetter("imag"))
imag.vjp(lambda g, out, x: g * -1j if x.dtype.kind == "c" else zero(g, out, x))


real_ = public(real.shows(lambda x, out: ("real", None)))
imag_ = public(
    imag.shows(lambda x, out: ("imag" if x.dtype.kind == "c" else "imag of real numbers", None))
)
view_step("imag of real numbers", lambda x, _: imag(x), None, lambda x, _: x.imag)

conj = unary(
    "conj",
    "The complex conjugate.",
    ("conj([1 + 2j])", [(1 - 2j)]),
    linear="x",
    dtypes="The dtype is that of `x`.",
)
conj.vjp(lambda g, out, x: conj(g))
