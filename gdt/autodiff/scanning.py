"""A function that is called for one element after the other, and hands a value on: `scan`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial, update_wrapper
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
        array, or a tree of arrays, cut along their first axes. None, in trees too, stays None.
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
    carry, xs = mapped(partial(placed, "carry"), carry), mapped(partial(placed, "xs"), xs)
    count, types = _count(xs, length), {path: x.type for path, x in _places(carry)}
    call: Callable[[Tree, Tree], tuple[Tree, Tree]] = partial(_call, body, types)
    if not count:
        _, y = call(carry, mapped(_one, xs))
        return carry, mapped(lambda leaf: leaf if leaf is None else stack([leaf])[:0], y)
    if checkpoint:  # whose errors have the name of the body
        call = Checkpointed(update_wrapper(call, body, assigned=["__name__"], updated=()))
    arrays = [x for _, x in _places(xs)]
    columns = [*zip(*map(slices, arrays), strict=True)] if arrays else [()] * count
    ys: list[Any] = [None] * count
    for i in reversed(range(count)) if reverse else range(count):
        carry, ys[i] = call(carry, _rebuilt(xs, columns[i]))
    return carry, _stacked(ys)


def _array(mesh: Mesh, name: str, leaf: Any) -> DistributedArray | None:
    if leaf is None or isinstance(leaf, DistributedArray):
        return leaf
    if isinstance(leaf, np.ndarray | np.generic | int | float | complex):
        return as_operand(leaf, mesh, "scan", name)
    problem = f"{name} holds {type_text(leaf)}, which is no array"
    raise error(DtypeError, problem)


def _keys(container: Any) -> Collection[Any]:
    return container.keys() if hasattr(container, "keys") else range(len(container))


def _places(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a tree, but for None, each after its indices as text."""
    if is_container(tree):
        for key in _keys(tree):
            yield from _places(tree[key], f"{path}[{key!r}]")
    elif tree is not None:
        yield path, tree


def _count(xs: Tree, length: int | None) -> int:
    """Return the number of calls."""
    sizes = {}
    for path, x in _places(xs):
        if not x.ndim:
            raise error(ShapeError, "xs holds a scalar", operands={f"xs{path}": x.type})
        sizes[f"xs{path}"] = x.shape[0]
    if length is not None:
        if not isinstance(length, int | np.integer):
            raise error(ArgumentError, f"length is {length!r}, not an int")
        sizes["length"] = length
    if not sizes:
        remedy = "Pass length=, or arrays in xs."
        raise error(ArgumentError, "nothing says how often to call body", remedy=remedy)
    if len({*sizes.values()}) > 1 or min(sizes.values()) < 0:
        raise error(ArgumentError, f"the numbers of calls do not fit: {sizes}")
    return int(next(iter(sizes.values())))


def _call(
    body: Callable[[Any, Any], Any], types: Mapping[str, ArrayType], carry: Tree, x: Tree
) -> tuple[Tree, Tree]:
    """Return what a call of `body` returns, if its carry has these types, layouts apart."""
    returned = body(carry, x)
    if not isinstance(returned, tuple) or len(returned) != 2:
        problem = f"body returns {type_text(returned)}, not the pair (carry, y)"
        raise error(ArgumentError, problem)
    new = dict(_places(returned[0]))
    if new.keys() != types.keys():
        names = [", ".join(f"carry{path}" for path in tree) or "no array" for tree in (new, types)]
        problem = f"body returns {names[0]}, and gets {names[1]}"
        raise error(ArgumentError, problem, remedy="Return a carry with arrays in the same places.")
    for path, leaf in new.items():
        if not isinstance(leaf, DistributedArray):
            raise error(ArgumentError, f"body returns {type_text(leaf)} as carry{path}")
        old = types[path]
        if (leaf.shape, leaf.dtype) != (old.shape, old.dtype):
            raise error(
                ShapeError if leaf.shape != old.shape else DtypeError,
                f"body returns another array as carry{path} than it gets",
                operands={"carry": old, "returned": leaf.type},
            )
    return returned


def _one(leaf: DistributedArray | None) -> DistributedArray | None:
    """Return an array of ones in the place of an element of `xs`, which has none."""
    if leaf is None:
        return None
    layout = Layout.replicated(leaf.mesh, leaf.ndim - 1)
    return ones(leaf.shape[1:], leaf.dtype, layout=layout)


def _rebuilt(tree: Tree, values: Sequence[DistributedArray]) -> Tree:
    remaining = iter(values)
    return mapped(lambda leaf: leaf if leaf is None else next(remaining), tree)


def _stacked(ys: Sequence[Tree]) -> Tree:
    """Return the trees as one tree of stacked arrays; None where they hold None."""
    first = ys[0]
    if is_container(first):
        keys = _keys(first)
        if any(not is_container(y) or {*_keys(y)} != {*keys} for y in ys):
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
