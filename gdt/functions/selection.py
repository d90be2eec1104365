"""Choosing between arrays by conditions and indices: select, choose, piecewise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import SCALARS, as_elements, as_operands
from gdt.array.output import writes_out
from gdt.array.registry import public
from gdt.errors import ArgumentError, DtypeError, IndexRangeError, ShapeError, error
from gdt.functions.repeating import broadcast_arrays
from gdt.ops.comparison import equal, greater_equal, less, logical_not, logical_or, where
from gdt.ops.elementwise import astype
from gdt.ops.reductions import any_
from gdt.ops.shapes import broadcast_to
from gdt.sharding.dtypes import kind_of, promoted

__all__ = ["choose", "piecewise", "select"]

Arrays = Sequence[Any]


def _of_one_dtype(op: str, values: Arrays, arrays: Arrays) -> list[DistributedArray]:
    """Values, given also as arrays, in the dtype to which they promote. Python numbers are weak, as
    in NumPy (NEP 50)."""
    weak = [type(v) in SCALARS for v in values]
    dtype = promoted(*[v if w else x.dtype for v, w, x in zip(values, weak, arrays, strict=True)])
    return [
        as_elements(op, x, dtype, f"choice {i}", v if w else x)
        for i, (v, w, x) in enumerate(zip(values, weak, arrays, strict=True))
    ]


@public
def select(condlist: Arrays, choicelist: Arrays, default: Any = 0) -> DistributedArray:
    """Element by element that of `choicelist` whose condition is the first true one, or `default`.

    Python numbers take the dtype of the arrays. Raises ShapeError for lists of different lengths,
    DtypeError for a condition that is not bool, RangeError (an OverflowError) for a Python integer
    that the dtype of the arrays cannot hold.

    >>> x = gdt.arange(5)
    >>> gdt.select([x < 2, x > 3], [x, x * 10], -1).tolist()
    [0, 1, -1, -1, 40]
    """
    if len(condlist) != len(choicelist) or not condlist:
        problem = f"{len(condlist)} conditions do not fit {len(choicelist)} choices"
        raise error(ShapeError, problem)
    count = len(condlist)
    arrays = {f"condition {i}": c for i, c in enumerate(condlist)}
    arrays |= {f"choice {i}": c for i, c in enumerate(choicelist)}
    operands = as_operands("select", **arrays, default=default)
    conditions = operands[:count]
    for i, condition in enumerate(conditions):
        if condition.dtype.kind != "b":
            problem = f"condition {i} is {condition.dtype}, not bool"
            raise error(DtypeError, problem, operands={"condition": condition.type})
    *choices, result = _of_one_dtype("select", [*choicelist, default], operands[count:])
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        result = where(condition, choice, result)
    shape = np.broadcast_shapes(*[c.shape for c in operands])
    return result if result.shape == shape else broadcast_to(result, shape)


@public
@writes_out
def choose(
    a: Any, choices: Arrays, out: DistributedArray | None = None, mode: str = "raise"
) -> DistributedArray:
    """Element by element that of `choices` that the integers `a` name.

    choices: arrays, and Python numbers, which take the dtype of the arrays. mode: "raise", "wrap"
        or "clip": what becomes of integers that name none; "raise" reads one truth value, and
        raises IndexRangeError (an IndexError).
    Raises RangeError (an OverflowError) for a Python integer that the dtype of the arrays cannot
    hold.

    >>> gdt.choose([0, 1, 0], [[1, 2, 3], [10, 20, 30]]).tolist()
    [1, 20, 3]
    """
    operands = {f"choice {i}": c for i, c in enumerate(choices)}
    a, *arrays = as_operands("choose", a=a, **operands)
    if a.dtype.kind not in "biu":
        raise error(DtypeError, f"the indices are {a.dtype}", operands={"a": a.type})
    if not arrays:
        raise error(ShapeError, "there is nothing to choose from")
    a, count = astype(a, np.int64), len(arrays)
    if mode == "wrap":
        a = a % count
    elif mode == "clip":
        a = a.clip(0, count - 1)
    elif mode != "raise":
        raise error(ArgumentError, f"unknown mode {mode!r}")
    elif a.size and bool(any_(logical_or(less(a, 0), greater_equal(a, count)))):
        raise error(IndexRangeError, f"an index is out of range for {count} choices")
    arrays = _of_one_dtype("choose", list(operands.values()), arrays)
    a, *arrays, result = broadcast_arrays(a, *arrays)
    for i, choice in enumerate(arrays):
        result = where(equal(a, i), choice, result)
    return result


@public
def piecewise(
    x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any
) -> DistributedArray:
    """Element by element the last function of `funclist` whose condition is true, of `x`.

    funclist: functions `f(x, *args, **kw)`, of all of `x`, and numbers; with one more than there
        are conditions, the last one is taken where no condition holds, else 0.
    Raises ShapeError for lists that do not fit, and for numbers that the dtype of `x` cannot hold
    RangeError (an OverflowError) or DtypeError.

    >>> gdt.piecewise([-1.0, 2.0], [gdt.asarray([True, False])], [lambda x: -x, 5.0]).tolist()
    [1.0, 5.0]
    """
    (x,) = as_operands("piecewise", x=x)
    if not isinstance(condlist, list | tuple):
        is_rows = np.ndim(condlist) > x.ndim
        condlist = list(condlist) if is_rows else [condlist]
    elif condlist and isinstance(condlist[0], bool | np.bool_) and x.ndim:
        condlist = [condlist]
    operands = {f"condition {i}": c for i, c in enumerate(condlist)}
    _, *conditions = as_operands("piecewise", x=x, **operands)
    conditions = [astype(c, bool) for c in conditions]
    count = len(conditions)
    if len(funclist) == count + 1:
        none = logical_not(conditions[0])
        for condition in conditions[1:]:
            none = none & logical_not(condition)
        conditions.append(none)
    elif len(funclist) != count:
        problem = f"{count} conditions need {count} or {count + 1} functions, not {len(funclist)}"
        raise error(ShapeError, problem)
    result = x * 0 if kind_of(x.dtype) in "iufc" else astype(x, x.dtype) & False
    for condition, function in zip(conditions, funclist, strict=True):
        value = function(x, *args, **kw) if callable(function) else function
        value = as_elements("piecewise", x, x.dtype, "a value", value)
        result = where(condition, value, result)
    return result
