"""The bytes of arrays as elements of another dtype: the method `view` of arrays.

Complex numbers viewed as their parts, and parts as complex numbers, have gradients, and partial
sums pass; the bits of other elements have neither.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.array.views import shown, view_step
from gdt.engine.op import op
from gdt.errors import GradientError, ShapeError, error
from gdt.ops.elementwise import checked_dtype, conj, imag, real
from gdt.ops.movement import alias
from gdt.ops.shapes import in_layout_of, reshape
from gdt.sharding.array_type import ArrayType
from gdt.sharding.rule import RuleSpec

Block = Any


def _is_of_parts(number: np.dtype, part: np.dtype) -> bool:
    """Whether a dtype is complex, and another one that of its parts."""
    return number.kind == "c" and part == np.empty(0, number).real.dtype


@op("... -> ...", view="x")
def viewed(xp: Any, x: Block, /, dtype: np.dtype) -> Block:
    """Elements as those of a dtype of as many bytes.

    >>> x = gdt.asarray([1, -1], dtype="int8")
    >>> gdt.ops.reinterpreting.viewed(x, dtype=gdt.ones(1, "uint8").dtype).tolist()
    [1, 255]
    """
    return x.view(dtype)


def _in_parts_rule(array_type: ArrayType, *, dtype: np.dtype) -> RuleSpec:
    count = array_type.dtype.itemsize // dtype.itemsize
    is_linear = _is_of_parts(array_type.dtype, dtype)
    return RuleSpec("... i -> ... i j", {"j": count}, frozenset("j"), is_linear)


@op(_in_parts_rule, view="x", linear="x")
def viewed_in_parts(xp: Any, x: Block, /, dtype: np.dtype) -> Block:
    """Each element (..., i) as the j smaller ones of its bytes: (..., i, j).

    >>> x = gdt.asarray([1 + 2j])
    >>> gdt.ops.reinterpreting.viewed_in_parts(x, dtype=x.real.dtype).tolist()
    [[1.0, 2.0]]
    """
    return xp.ascontiguousarray(x)[..., None].view(dtype)


def _together_rule(array_type: ArrayType, *, dtype: np.dtype) -> RuleSpec:
    is_linear = _is_of_parts(dtype, array_type.dtype)
    return RuleSpec("... i j -> ... i", whole=frozenset("j"), linear=is_linear)


@op(_together_rule, view="x", linear="x")
def viewed_together(xp: Any, x: Block, /, dtype: np.dtype) -> Block:
    """The elements (..., i, j) of a row, together as one of as many bytes: (..., i).

    >>> x = gdt.asarray([[1.0, 2.0]])
    >>> gdt.ops.reinterpreting.viewed_together(x, dtype=gdt.ones(1, complex).dtype).tolist()
    [(1+2j)]
    """
    return xp.ascontiguousarray(x).view(dtype)[..., 0]


def _bits_vjp(g: Any, out: Any, x: Any, *, dtype: np.dtype) -> NoReturn:
    problem = f"the bits of {x.dtype} numbers have no gradient as {dtype} numbers"
    remedy = "gdt.stop_gradient(x).view(dtype) counts as a constant."
    raise error(GradientError, "view", problem, operands={"x": x.type}, remedy=remedy)


def _in_parts_vjp(g: Any, out: Any, x: Any, *, dtype: np.dtype) -> DistributedArray:
    if not _is_of_parts(x.dtype, dtype):
        _bits_vjp(g, out, x, dtype=dtype)
    return conj(viewed_together(g, dtype=x.dtype))


def _together_vjp(g: Any, out: Any, x: Any, *, dtype: np.dtype) -> DistributedArray:
    if not _is_of_parts(dtype, x.dtype):
        _bits_vjp(g, out, x, dtype=dtype)
    return viewed_in_parts(conj(g), dtype=x.dtype)


viewed.vjp(_bits_vjp)
viewed_in_parts.vjp(_in_parts_vjp)
viewed_together.vjp(_together_vjp)


@public
def view(x: Any, dtype: Any = None) -> DistributedArray:
    """The bytes of `x` as elements of another dtype, as NumPy's `ndarray.view`, which show what is
    written to `x` and write to it.

    dtype: None gives another array of the same elements. Smaller elements make the last axis
    longer, larger ones shorter; where the last axis is split and its new length is not a multiple
    of the shards, devices exchange the edges of shards.

    Raises DtypeError for a dtype that gdt lacks, ShapeError (a ValueError) for an array of rank 0,
    or a last axis whose bytes are no whole number of elements. Gradients go through complex numbers
    viewed as their parts, and parts as complex numbers; through other floating-point numbers they
    raise GradientError.

    >>> gdt.asarray([1.0, -2.0], dtype="float32").view("int32").tolist()
    [1065353216, -1073741824]
    >>> gdt.asarray([1 + 2j, 3 + 4j]).view(float).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    (x,) = as_operands("view", x=x)
    target = x.dtype if dtype is None else checked_dtype(dtype, "view")
    return shown(x, _viewed(x, target), (("view", target),))


def _viewed(x: DistributedArray, target: np.dtype) -> DistributedArray:
    dtype = x.type.dtype
    have, want = dtype.itemsize, target.itemsize
    if target == dtype:
        return alias(x)
    if have == want:
        return viewed(x, dtype=target)
    if not x.ndim or x.shape[-1] * have % want:
        bytes_there = f"a last axis of {x.shape[-1] * have} bytes" if x.ndim else "rank 0"
        problem = f"{bytes_there} cannot be viewed as {target}, whose elements have {want} bytes"
        remedy = "x.astype(dtype) converts values." if x.ndim else "Write x.reshape(1).view(dtype)."
        raise error(ShapeError, "view", problem, operands={"x": x.type}, remedy=remedy)
    rows, length = x.shape[:-1], x.shape[-1] * have // want
    if have > want:
        return reshape(viewed_in_parts(x, dtype=target), (*rows, length))
    return viewed_together(reshape(x, (*rows, length, want // have)), dtype=target)


view_step(
    "view",
    _viewed,
    lambda x, dtype, value: in_layout_of(_viewed(value, x.dtype), x),
    lambda x, dtype: x.view(dtype),
    may_copy=True,
)


def _with_part(x: DistributedArray, part: int, value: DistributedArray) -> DistributedArray:
    """`x`, which is complex or the value itself, with `value` as its real parts (0) or its
    imaginary ones (1)."""
    if x.dtype == value.dtype:
        return in_layout_of(value, x)
    pairs = viewed_in_parts(reshape(x, (*x.shape, 1)), dtype=value.dtype)  # (..., 1, 2)
    pairs = pairs.at[..., 0, part].set(value)
    return in_layout_of(reshape(viewed_together(pairs, dtype=x.dtype), x.shape), x)


view_step(
    "real", lambda x, _: real(x), lambda x, _, value: _with_part(x, 0, value), lambda x, _: x.real
)
view_step(
    "imag", lambda x, _: imag(x), lambda x, _, value: _with_part(x, 1, value), lambda x, _: x.imag
)
