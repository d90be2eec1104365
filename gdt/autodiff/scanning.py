"""A function that is called for one element after the other, and hands a value on: `scan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operand
from gdt.autodiff.checkpointed import Checkpointed
from gdt.autodiff.tape import Tree
from gdt.engine.custom_vjp import custom_vjp
from gdt.errors import ArgumentError, DtypeError, ShapeError, error, type_text
from gdt.ops.creation import ones, zeros_like
from gdt.ops.indexing import getitem
from gdt.ops.joining import stack
from gdt.ops.movement import made_whole, relayout
from gdt.sharding.array_type import ArrayType
from gdt.sharding.default_mesh import get_default_mesh
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.state.trees import is_container, leaves, mapped, with_values

__all__ = ["scan"]


@checked
def scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any = None,
    length: int | None = None,
    *,
    reverse: bool = False,
    checkpoint: bool = True,
) -> tuple[Any, Any]:
    """Call `carry, y = body(carry, x)` for one element `x` of `xs` after the other; return the last
    carry, and all y, stacked.

    carry: an array, or a tree of arrays; `body` returns one of the same shapes and dtypes. xs: an
        array, or a tree of arrays, cut along their first axes; None for a body that gets None.
    length: the number of calls, which `xs` says if there is one. reverse: whether the last element
        comes first; each y lies where its x does.
    checkpoint: whether a tape keeps of each call the carry and x alone, and the backward pass calls
        `body` again; see `gdt.checkpointed`, which says what such a body may not do.

    A first axis that is split is made whole before: another axis is split in its place, or every
    device gets all of it. Calls run one after the other as they are written; a step that
    `gdt.function` records holds the ops of each of them. Follows `jax.lax.scan`.

    Raises ArgumentError for lengths that differ and where `body` returns no pair, ShapeError or
    DtypeError where it returns another carry.

    >>> total, sums = gdt.scan(lambda c, x: (c + x, c + x), gdt.asarray(0), gdt.arange(4))
    >>> int(total), sums.tolist()
    (6, [0, 1, 3, 6])
    >>> power = lambda x: gdt.scan(lambda c, _: (c * x, None), gdt.asarray(1.0), length=3)[0]
    >>> float(gdt.grad(power)(gdt.asarray(2.0)))
    12.0
    """
    mesh = next((x.mesh for x in leaves((carry, xs)) if isinstance(x, DistributedArray)), None)
    placed = partial(_array, mesh or get_default_mesh())
    carry = mapped(partial(placed, "carry"), carry)
    xs = None if xs is None else mapped(partial(placed, "xs"), xs)
    count = _count(xs, length)
    types = _types(carry)
    call = Checkpointed(partial(_call, body, types)) if checkpoint else partial(_call, body, types)
    if not count:
        _, y = _call(body, types, carry, None if xs is None else mapped(_one, xs))
        return carry, mapped(lambda leaf: leaf if leaf is None else stack([leaf])[:0], y)
    arrays = [] if xs is None else [*leaves(xs)]
    columns = [*zip(*map(slices, arrays), strict=True)] if arrays else [()] * count
    ys: list[Any] = [None] * count
    for i in reversed(range(count)) if reverse else range(count):
        carry, ys[i] = call(carry, None if xs is None else _rebuilt(xs, columns[i]))
    return carry, _stacked(ys)


def _array(mesh: Mesh, name: str, leaf: Any) -> DistributedArray:
    if isinstance(leaf, DistributedArray):
        return leaf
    if isinstance(leaf, np.ndarray | np.generic | int | float | complex):
        return as_operand(leaf, mesh, "scan", name)
    problem = f"{name} holds {type_text(leaf)}, which is no array"
    raise error(DtypeError, problem)


def _count(xs: Tree, length: int | None) -> int:
    """Return the number of calls."""
    arrays = [] if xs is None else [*leaves(xs)]
    for x in arrays:
        if not x.ndim:
            raise error(ShapeError, "xs holds a scalar", operands={"x": x.type})
    sizes = {f"element {i} of xs": x.shape[0] for i, x in enumerate(arrays)}
    if length is not None:
        sizes["length"] = length
    if not sizes:
        remedy = "Pass length=, or arrays in xs."
        raise error(ArgumentError, "nothing says how often to call body", remedy=remedy)
    if len({*sizes.values()}) > 1 or min(sizes.values()) < 0:
        raise error(ArgumentError, f"the numbers of calls do not fit: {sizes}")
    return int(next(iter(sizes.values())))


def _types(carry: Tree) -> list[ArrayType]:
    return [x.type for x in leaves(carry)]


def _call(
    body: Callable[[Any, Any], Any], types: Sequence[ArrayType], carry: Tree, x: Tree
) -> tuple[Tree, Tree]:
    """Return what a call of `body` returns, if its carry has these types, layouts apart."""
    returned = body(carry, x)
    if not isinstance(returned, tuple) or len(returned) != 2:
        problem = f"body returns {type_text(returned)}, not the pair (carry, y)"
        raise error(ArgumentError, problem)
    new = [*leaves(returned[0])]
    if len(new) != len(types) or not all(isinstance(leaf, DistributedArray) for leaf in new):
        problem = f"body returns a carry of {len(new)} values, and got one of {len(types)} arrays"
        raise error(ArgumentError, problem, remedy="It has arrays in the same places.")
    for i, (leaf, old) in enumerate(zip(new, types, strict=True)):
        if (leaf.shape, leaf.dtype) != (old.shape, old.dtype):
            raise error(
                ShapeError if leaf.shape != old.shape else DtypeError,
                f"body returns another array in place {i} of the carry than it gets",
                operands={"carry": old, "returned": leaf.type},
            )
    return returned


def _one(leaf: DistributedArray) -> DistributedArray:
    """Return an array of ones in the place of an element of `xs`, which has none."""
    layout = Layout.of(leaf.mesh, ((),) * (leaf.ndim - 1))
    return ones(leaf.shape[1:], leaf.dtype, layout=layout)


def _rebuilt(tree: Tree, values: Sequence[DistributedArray]) -> Tree:
    remaining = iter(values)
    return mapped(lambda _: next(remaining), tree)


def _stacked(ys: Sequence[Tree]) -> Tree:
    """Return the trees as one tree of stacked arrays; None where they hold None."""
    first = ys[0]
    if is_container(first):
        keys = first.keys() if hasattr(first, "keys") else range(len(first))
        if any(not is_container(y) or len(y) != len(first) for y in ys):
            raise error(ArgumentError, "body returns other trees y for other elements")
        return with_values(first, [_stacked([y[k] for y in ys]) for k in keys])
    if all(y is None for y in ys):
        return None
    if not all(isinstance(y, DistributedArray) for y in ys):
        kinds = ", ".join(dict.fromkeys(map(type_text, ys)))
        problem = f"body returns a y that holds {kinds}, and not an array in every call"
        raise error(ArgumentError, problem)
    return stack(list(ys))


# ---------------------------------------------------------------- slices


def slices(x: DistributedArray, axis: int = 0) -> tuple[DistributedArray, ...]:
    """Return the slices of an array along an axis, whose cotangents are stacked once; of a split
    axis the mesh axes split another one, or none."""
    whole = made_whole(x, axis)
    if whole is None:
        dims = x.layout.dims
        whole = relayout(x, Layout.of(x.mesh, (*dims[:axis], (), *dims[axis + 1 :])))
    return _slices(whole, axis=axis)


@custom_vjp
def _slices(x: DistributedArray, *, axis: int) -> tuple[DistributedArray, ...]:
    before = (slice(None),) * axis
    return tuple([getitem(x, (*before, i)) for i in range(x.shape[axis])])


def _restacked(g: Any, out: Any, x: DistributedArray, *, axis: int) -> DistributedArray:
    cotangents = [zeros_like(part) if c is None else c for c, part in zip(g, out, strict=True)]
    return stack(cotangents, axis)


_slices.vjp(_restacked, reads="")
