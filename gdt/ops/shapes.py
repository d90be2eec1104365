"""Ops that change an array's shape and none of its values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import methodcaller
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.array.views import view_step
from gdt.backend import backend_of
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Plan
from gdt.engine.planned import plan_of_blocks
from gdt.errors import ArgumentError, CopyError, DtypeError, ShapeError, error
from gdt.ops.axes import checked_axes, distinct_axes
from gdt.ops.blocks.flattened import plan_flattened
from gdt.ops.movement import relayout_
from gdt.ops.reductions import unbroadcast
from gdt.sharding.array_type import ArrayType
from gdt.sharding.rule import RuleSpec

__all__ = ["expand_dims", "squeeze"]


Block = Any
Shape = int | Sequence[int]

MOST_ELEMENTS = 1 << 59  # NumPy counts bytes in 63 bits, and an element has up to 16
MOST_AXES = 60  # NumPy's 64, less those of a mesh


def checked_shape(shape: Shape, name: str) -> tuple[int, ...]:
    """`shape` as a tuple of ints; ShapeError for one below 0, DtypeError for what is no integer."""
    sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    _check_integers(sizes, name)
    for n in sizes:
        if n < 0:
            raise error(ShapeError, name, f"{n!r} in shape {list(sizes)} is no size")
    if math.prod(int(n) for n in sizes if n) > MOST_ELEMENTS or len(sizes) > MOST_AXES:
        problem = f"shape {list(sizes)} is more than {MOST_ELEMENTS:,} elements or {MOST_AXES} axes"
        raise error(ShapeError, name, problem)
    return tuple(int(n) for n in sizes)


def _check_integers(sizes: Sequence[Any], name: str) -> None:
    for n in sizes:
        if isinstance(n, bool) or not isinstance(n, int | np.integer):
            raise error(DtypeError, name, f"{n!r} in shape {list(sizes)} is no integer")


# ---------------------------------------------------------------- reshape


def _prepare_reshape(array_type: ArrayType, *, shape: Shape) -> dict[str, Any]:
    sizes: list[Any] = list(shape) if isinstance(shape, Iterable) else [shape]
    _check_integers(sizes, "reshape")
    total = math.prod(array_type.shape)
    if sizes.count(-1) == 1:
        product = math.prod(n for n in sizes if n != -1)
        if product > 0 and total % product == 0:
            sizes[sizes.index(-1)] = total // product
    if any(n < 0 for n in sizes) or math.prod(sizes) != total:
        raise error(
            ShapeError,
            f"{total} elements do not fit shape {list(sizes)}",
            operands={"x": array_type},
        )
    return {"shape": tuple(int(n) for n in sizes)}


def _reshape_rule(array_type: ArrayType, *, shape: tuple[int, ...]) -> RuleSpec:
    """Groups of dims with equal products, e.g. (8, 4, 3) -> (32, 3) is `a b c -> (a b) c`."""
    left: list[str] = []
    right: list[str] = []
    sizes: dict[str, int] = {}
    whole: set[str] = set()

    def factor(size: int, *, local: bool = False) -> str:
        name = f"f{len(sizes)}"
        sizes[name] = size
        if local:
            whole.add(name)
        return name

    for a, b in _groups(array_type.shape, shape):
        if a == b:
            names = [factor(n) for n in a]
            left += names
            right += names
            continue
        points = sorted({math.prod(d[: i + 1]) for d in (a, b) for i in range(len(d))})
        if 0 not in points and all(q % p == 0 for p, q in pairwise(points)):
            cuts = [1, *points]
            names = {q: factor(q // p) for p, q in zip(cuts, points, strict=False)}
            left += _compound(a, names, points)
            right += _compound(b, names, points)
            continue
        # Dims that share no boundaries: only a common factor of the first ones can stay split.
        common = math.gcd(a[0], b[0])
        major = factor(common)
        for dims, terms in ((a, left), (b, right)):
            rest = factor(dims[0] // common if common else dims[0], local=True)
            terms += [f"({major} {rest})", *(factor(n, local=True) for n in dims[1:])]
    return RuleSpec(f"{' '.join(left)} -> {' '.join(right)}", sizes, frozenset(whole))


def _compound(dims: Sequence[int], names: Any, points: Sequence[int]) -> list[str]:
    terms, start = [], 1
    for n in dims:
        parts = [names[q] for q in points if start < q <= start * n]
        terms.append(f"({' '.join(parts)})" if len(parts) != 1 else parts[0])
        start *= n
    return [t if t != "()" else "1" for t in terms]


def _groups(have: Sequence[int], want: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Cut both shapes into the shortest runs with equal products; runs of 1s join their
    neighbour."""
    if 0 in have:
        return (
            [(list(have), list(want))] if list(have) != list(want) else [([n], [n]) for n in have]
        )
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(have) or j < len(want):
        a = [have[i]] if i < len(have) else []
        b = [want[j]] if j < len(want) else []
        i, j = i + len(a), j + len(b)
        while math.prod(a) != math.prod(b):
            if math.prod(a) < math.prod(b):
                a.append(have[i])
                i += 1
            else:
                b.append(want[j])
                j += 1
        groups.append((a, b))
    return groups


@op(_reshape_rule, linear="x", prepare=_prepare_reshape, view="x", extended="copy, order")
def reshape(
    xp: Any,
    x: Block,
    /,
    shape: Shape,
    order: str = "C",
    *,
    copy: bool | None = None,
    block_shape: Any = FROM_ENGINE,
) -> Block:
    """The elements in row-major order in another shape; one size may be -1. A view, as in NumPy, of
    an array in C order.

    copy: True gives an array of its own; False raises CopyError where the result does not share
    the memory of `x`. order: "C", or "F" for the elements in the order in which the first index
    changes fastest.

    Local where the split axes stay whole groups; else devices send each other the elements that the
    boundaries of shards separate, and the result is split along its first axis that is long enough.

    >>> x = gdt.arange(6)
    >>> gdt.reshape(x, (2, -1))[0] = 9
    >>> x.tolist()
    [9, 9, 9, 3, 4, 5]
    """
    return x.reshape(block_shape)


@reshape.extend
def _reshape_in_order(
    x: DistributedArray, shape: Shape, *, copy: bool | None = None, order: str | None = None
) -> DistributedArray:
    if order not in (None, "C", "F", "A", "K"):
        raise error(ArgumentError, f"order is {order!r}, neither 'C' nor 'F'")
    (x,) = as_operands("reshape", x=x)
    reshaped, transposed = (reshape, transpose) if copy else (reshape_, transpose_)
    if order == "F":
        sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        result = transposed(reshaped(transposed(x), sizes[::-1]))
    else:
        result = reshaped(x, shape)
    if copy is False and not _shares_memory(result, x):
        raise error(
            CopyError,
            "the elements cannot be had without a copy",
            operands={"x": x.type},
            remedy="Let them be copied: copy=None.",
        )
    return result


def _shares_memory(out: DistributedArray, x: DistributedArray) -> bool:
    """Whether every block of `out` may be a view of one of `x`."""
    share = backend_of(x.mesh).xp.may_share_memory
    pairs = zip(out.blocks, x.blocks, strict=True)
    return all(a.size == 0 or share(a, b) for a, b in pairs)


@reshape.alternative
def _(plan: Plan, x: ArrayType, *, shape: tuple[int, ...]) -> Plan | None:
    (steps,) = plan.routes
    if not any(step.kind == "gather" for step in steps):
        return None
    flattened = plan_flattened(x, shape)
    if flattened is None or flattened.nbytes >= sum(step.nbytes for step in steps):
        return None
    return plan_of_blocks((x,), flattened.plan, "reshape", {"shape": shape})


@reshape.specialize
def _(
    body: Callable[..., Block], x: Block, /, shape: Shape, block_shape: tuple[int, ...]
) -> Callable[[Block], Block]:
    return methodcaller("reshape", block_shape)


reshape.vjp(lambda g, out, x, *, shape: reshape(g, x.shape), reads="")


reshape_ = public(reshape.shows(lambda x, out, *, shape: ("reshape", out.shape)))
_reshaped = reshape_.__call__  # a call of the object takes longer than one of its method
raveled = reshape.shows(lambda x, out, *, shape: ("ravel", None)).__call__


def _put_reshaped(x: DistributedArray, shape: Any, value: Any) -> DistributedArray:
    return in_layout_of(reshape(value, x.shape), x)


def in_layout_of(value: DistributedArray, x: DistributedArray) -> DistributedArray:
    """The value as it lies when `x` takes it."""
    layout = x.layout.resolved
    return value if value.layout is layout else relayout_(value, layout)


view_step(
    "reshape", reshape, _put_reshaped, lambda x, shape: x.reshape(shape, copy=False), may_copy=True
)


@public
def expand_dims(x: DistributedArray, axis: int | Sequence[int]) -> DistributedArray:
    """Insert axes of length 1 at the positions `axis` of the result; a view, split as before.

    axis: an int or a tuple of ints. Raises AxisError for a position that the result does not have,
    ShapeError for one that is named twice.

    >>> gdt.expand_dims(gdt.ones(3), 0).shape
    (1, 3)
    """
    if type(axis) is int:
        sizes = [*(x.type if type(x) is DistributedArray else x).shape]
        if -len(sizes) - 1 <= axis <= len(sizes):
            sizes.insert(axis % (len(sizes) + 1), 1)
            return _reshaped(x, shape=tuple(sizes))
    axes = (axis,) if isinstance(axis, int | np.integer) else tuple(axis)
    rank = x.ndim + len(axes)
    places = distinct_axes(x.type, axes, rank)
    old = iter(x.shape)
    return reshape_(x, shape=tuple([1 if i in places else next(old) for i in range(rank)]))


@public
def squeeze(x: DistributedArray, axis: int | Sequence[int] | None = None) -> DistributedArray:
    """Remove axes of length 1: those that `axis` names, or all of them for None; a view.

    Raises AxisError for an axis that `x` does not have, ShapeError for one of another length. Of an
    array of rank 0, axes 0 and -1 are none.

    >>> gdt.squeeze(gdt.ones((1, 3))).shape
    (3,)
    """
    if type(axis) is int:
        sizes = [*(x.type if type(x) is DistributedArray else x).shape]
        if -len(sizes) <= axis < len(sizes) and sizes.pop(axis) == 1:
            return _reshaped(x, shape=tuple(sizes))
    if axis is None or (not x.ndim and type(axis) is int and axis in (0, -1)):
        places = [i for i, n in enumerate(x.shape) if n == 1]
    else:
        places = checked_axes(x.type, axis)
        for a in places:
            if x.shape[a] != 1:
                problem = f"axis {a} is no axis of length 1"
                raise error(ShapeError, problem, operands={"x": x.type})
    return reshape_(x, shape=tuple([n for i, n in enumerate(x.shape) if i not in places]))


# ---------------------------------------------------------------- transpose, broadcast


def _prepare_transpose(
    array_type: ArrayType, *, axes: Sequence[int] | None = None
) -> dict[str, Any]:
    order = tuple(range(array_type.ndim))[::-1] if axes is None else tuple(axes)
    whole = all(isinstance(a, int | np.integer) and not isinstance(a, bool) for a in order)
    if (
        not whole
        or any(not -array_type.ndim <= a < array_type.ndim for a in order)
        or sorted(a % array_type.ndim for a in order) != list(range(array_type.ndim))
    ):
        raise error(
            ShapeError,
            f"{order} is no order of {array_type.ndim} axes",
            operands={"x": array_type},
        )
    return {"axes": tuple(a % array_type.ndim - array_type.ndim for a in order)}


def _transpose_rule(array_type: ArrayType, *, axes: tuple[int, ...]) -> str:
    names = [f"d{i}" for i in range(array_type.ndim)]
    return f"{' '.join(names)} -> {' '.join(names[a] for a in axes)}"


@op(_transpose_rule, linear="x", prepare=_prepare_transpose, view="x")
def transpose(xp: Any, x: Block, /, axes: Sequence[int] | None = None) -> Block:
    """The array with its axes in another order (None: reversed); a view, split as before.

    >>> x = gdt.zeros((2, 3))
    >>> gdt.transpose(x)[2] = 1
    >>> x.tolist()
    [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    """
    mesh_ndim = x.ndim - len(axes)  # type: ignore[arg-type]
    return x.transpose(*range(mesh_ndim), *(a + x.ndim for a in axes))  # type: ignore[union-attr]


@transpose.specialize
def _(body: Callable[..., Block], x: Block, /, axes: tuple[int, ...]) -> Callable[[Block], Block]:
    mesh_axes = range(x.ndim - len(axes))
    return methodcaller("transpose", (*mesh_axes, *(a + x.ndim for a in axes)))


def _transpose_vjp(g: Any, out: Any, x: Any, *, axes: Sequence[int] | None = None) -> Any:
    if axes is None:
        return transpose(g)
    return transpose(g, tuple(int(i) for i in np.argsort([a % x.ndim for a in axes])))


transpose.vjp(_transpose_vjp, reads="")


def _transposition(
    x: ArrayType, out: ArrayType, *, axes: Sequence[int] | None = None
) -> tuple[str, tuple[int, ...] | None]:
    return "transpose", None if axes is None else tuple([int(a) % x.ndim for a in axes])


transpose_ = public(transpose.shows(_transposition))


def _put_transposed(x: DistributedArray, axes: Any, value: Any) -> DistributedArray:
    return in_layout_of(_transpose_vjp(value, None, x, axes=axes), x)


view_step("transpose", transpose, _put_transposed, lambda x, axes: x.transpose(axes))


def _prepare_broadcast(array_type: ArrayType, *, shape: Shape) -> dict[str, Any]:
    sizes = checked_shape(shape, "broadcast_to")
    tail = sizes[len(sizes) - array_type.ndim :]
    if len(sizes) < array_type.ndim or any(
        n not in (1, m) for n, m in zip(array_type.shape, tail, strict=True)
    ):
        raise error(
            ShapeError,
            f"the shape does not broadcast to {list(sizes)}",
            operands={"x": array_type},
        )
    return {"shape": sizes}


def _broadcast_rule(array_type: ArrayType, *, shape: tuple[int, ...]) -> RuleSpec:
    names = [f"d{i}" for i in range(len(shape))]
    mesh_ndim = len(shape) - array_type.ndim
    have = [
        "1" if n != m else d
        for n, m, d in zip(array_type.shape, shape[mesh_ndim:], names[mesh_ndim:], strict=True)
    ]
    return RuleSpec(f"{' '.join(have)} -> {' '.join(names)}", dict(zip(names, shape, strict=True)))


@op(_broadcast_rule, linear="x", prepare=_prepare_broadcast, view="x")
def broadcast_to(xp: Any, x: Block, /, shape: Shape, *, block_shape: Any = FROM_ENGINE) -> Block:
    """The array repeated along new axes and axes of length 1 until it has `shape`; a read-only
    view, which takes no memory.

    Raises ShapeError where the shape does not broadcast.

    >>> gdt.broadcast_to(gdt.arange(2), (2, 2)).tolist()
    [[0, 1], [0, 1]]
    """
    new_axes = len(block_shape) - x.ndim
    mesh_ndim = len(block_shape) - len(shape)  # type: ignore[arg-type]
    x = x.reshape(x.shape[:mesh_ndim] + (1,) * new_axes + x.shape[mesh_ndim:])
    return xp.broadcast_to(x, block_shape)


@broadcast_to.specialize
def _(
    body: Callable[..., Block], x: Block, /, shape: tuple[int, ...], block_shape: tuple[int, ...]
) -> Callable[[Block], Block] | None:
    mesh_ndim = len(block_shape) - len(shape)
    new_axes = (1,) * (len(block_shape) - x.ndim)
    aligned = np.empty(x.shape[:mesh_ndim] + new_axes + x.shape[mesh_ndim:], x.dtype)
    strides = [0 if n == 1 else s for n, s in zip(aligned.shape, aligned.strides, strict=True)]

    def repeat(x: Block) -> Block:
        if not x.flags.c_contiguous:
            return body(x)
        repeated = np.ndarray(block_shape, x.dtype, x, 0, strides)  # faster than broadcast_to
        repeated.flags.writeable = False
        return repeated

    return repeat if x.size else None


def _broadcast_vjp(g: Any, out: Any, x: Any, *, shape: Shape) -> Any:
    return unbroadcast(g, x)


broadcast_to.vjp(_broadcast_vjp, reads="")


broadcast_to_ = public(broadcast_to.shows(lambda x, out, *, shape: ("broadcast_to", out.shape)))
view_step("broadcast_to", broadcast_to, None, np.broadcast_to)
