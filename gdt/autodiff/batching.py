"""A function of single elements, called for every element along an axis: `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operand
from gdt.autodiff.tape import Tree
from gdt.errors import ArgumentError, DtypeError, ShapeError, error, type_text
from gdt.ops.axes import checked_axis
from gdt.ops.creation import asarray, ones
from gdt.ops.joining import stack
from gdt.ops.movement import made_whole, relayout
from gdt.ops.rearranging import moveaxis
from gdt.sharding.default_mesh import get_default_mesh
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.mesh import Mesh
from gdt.state.trees import is_container, leaves, mapped, with_values

__all__ = ["vmap"]


@partial(checked, eager=True)
def vmap(f: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """Return a function like `f` of arrays with one more axis: `f` is called for every slice along
    it, and what it returns is stacked.

    in_axes: the axis of the arguments; None for arguments of which every call gets the whole. A
        tuple has an entry for each argument, and an entry for a tree may be a tree of axes.
        Arguments that are passed by name are mapped along their first axis.
    out_axes: the axis of the results along which they are stacked, or a tree of such axes.

    The n calls run one after the other, each on all devices, so that they take n times the time of
    one; a function that `gdt.function` recorded of them has n times the ops. An axis that is split
    is made whole first: another axis of the argument is split in its place, by an all-to-all, or
    every device gets all of it, where no axis is long enough. The axis of the results is then split
    as it was. It composes with `gdt.grad`, both ways. Follows `jax.vmap`; but values may be read
    on the host, and of no slices `f` is called once, with ones, for the shapes of its results.

    Raises ArgumentError for axes that do not fit the arguments, ShapeError where their lengths
    differ or results differ in shape.

    >>> x, y = gdt.asarray([[1.0, 2.0], [3.0, 4.0]]), gdt.asarray([1.0, -1.0])
    >>> gdt.vmap(gdt.vdot, in_axes=(0, None))(x, y).tolist()
    [-1.0, -1.0]
    >>> loss = lambda w, x: gdt.sum(w * x) ** 2
    >>> gdt.vmap(gdt.grad(loss), in_axes=(None, 0))(y, x).tolist()  # for each example
    [[-2.0, -4.0], [-6.0, -8.0]]
    """

    def wrapped(*args: Any, **kwargs: Any) -> Tree:
        axes = in_axes if isinstance(in_axes, tuple | list) else (in_axes,) * len(args)
        if len(axes) != len(args):
            problem = f"in_axes has {len(axes)} entries for {len(args)} arguments"
            raise error(ArgumentError, problem)
        slices = _Slices((args, kwargs))
        pick = slices.of(((*args,), kwargs), ((*axes,), 0))
        count = slices.count()
        calls = [f(*a, **k) for a, k in map(pick, range(count) if count else [-1])]
        return _stacked(calls, out_axes, slices, count)

    return wrapped


class _Slices:
    """The slices of the mapped arguments of a call.

    lengths: the length of the mapped axis of each argument, with what errors call the argument.
    mesh, split: the mesh of the arguments, and the mesh axes that split the first of these axes
    that is split.
    """

    def __init__(self, arguments: Tree) -> None:
        arrays = [x for x in leaves(arguments) if isinstance(x, DistributedArray)]
        self.mesh: Mesh = arrays[0].mesh if arrays else get_default_mesh()
        self.split: Axes = ()
        self.lengths: dict[str, int] = {}

    def of(self, tree: Tree, axes: Tree) -> Callable[[int], Tree]:
        """Return a function from the number of a slice to the tree of these slices."""
        template = _paired(self._cut, tree, axes, "in_axes")
        return lambda i: mapped(lambda leaf: leaf(i), template)

    def _cut(self, leaf: Any, axis: int | None) -> Callable[[int], Any]:
        if axis is None:
            return lambda i: leaf
        if isinstance(leaf, np.ndarray):
            leaf = as_operand(leaf, self.mesh, "vmap", "x")
        if not isinstance(leaf, DistributedArray):
            problem = f"in_axes maps an argument that is {type_text(leaf)}, and no array"
            remedy = "Give it None in in_axes."
            raise error(ArgumentError, problem, remedy=remedy)
        x = leaf.resolve()
        at = checked_axis(x.type, axis)
        self.lengths[f"argument {len(self.lengths)}"] = x.shape[at]
        self.split = self.split or x.layout.dims[at]
        front = moveaxis(x, at, 0)
        whole = made_whole(front, 0)
        if whole is None:
            whole = relayout(front, Layout.of(x.mesh, ((), *front.layout.dims[1:])))
        rest = Layout.of(x.mesh, whole.layout.dims[1:])
        return lambda i: whole[i] if i >= 0 else ones(whole.shape[1:], x.dtype, layout=rest)

    def count(self) -> int:
        """Return the number of slices."""
        if not self.lengths:
            problem = "in_axes maps no argument"
            raise error(ArgumentError, problem, remedy="One axis at least is no None.")
        if len(set(self.lengths.values())) > 1:
            problem = f"the mapped axes differ in length: {self.lengths}"
            raise error(ShapeError, problem)
        return next(iter(self.lengths.values()))


def _stacked(calls: Sequence[Tree], out_axes: Tree, slices: _Slices, count: int) -> Tree:
    """Return what the calls have returned, stacked; without the elements of the call that was made
    for its shapes where there are no slices."""
    rows = [[*leaves(value)] for value in calls]
    if len({len(row) for row in rows}) > 1:
        raise error(ShapeError, "the function returns other trees for other slices")
    columns = iter(zip(*rows, strict=True))

    def stacked(_: object, axis: int | None) -> DistributedArray:
        if axis is None:
            problem = "out_axes is None: the results of all slices are stacked"
            raise error(ArgumentError, problem, remedy="Take one of the results.")
        result = stack([asarray(x, device=slices.mesh) for x in next(columns)], axis)
        at = axis % result.ndim
        if not count:
            result = result[(slice(None),) * at + (slice(0, 0),)]
        dims = [tuple([a for a in of if a not in slices.split]) for of in result.layout.dims]
        dims[at] = slices.split
        return relayout(result, Layout.of(result.mesh, tuple(dims)))

    return _paired(stacked, calls[0], out_axes, "out_axes")


def _paired(function: Callable[[Any, int | None], Any], tree: Tree, axes: Tree, name: str) -> Tree:
    """Return the tree of `function(leaf, axis)`; an axis in the place of a tree holds for all of
    its leaves."""
    if axes is None or (isinstance(axes, int) and not isinstance(axes, bool)):
        return mapped(lambda leaf: function(leaf, axes), tree)
    if not is_container(axes):
        problem = f"{name} holds {axes!r}, and neither axes nor None"
        raise error(DtypeError, problem)
    is_same = is_container(tree) and isinstance(axes, dict) == isinstance(tree, dict)
    keys = list(tree) if is_same and isinstance(tree, dict) else [*range(len(axes))]
    if not is_same or len(tree) != len(axes) or (isinstance(axes, dict) and {*axes} != {*tree}):
        problem = f"{name} has a {type(axes).__name__} of {len(axes)} in the place of "
        raise error(ArgumentError, f"{problem}{type_text(tree)}")
    return with_values(tree, [_paired(function, tree[k], axes[k], name) for k in keys])
