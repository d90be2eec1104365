"""Cotangents that lie as their values do.

The gradient of a mean is a constant that every device has whole, and the cotangent of what tensor
parallel layers share is a partial sum. An op that chooses for itself would go on with copies, or
with sums, in the layout of the next weight that is split, and the whole pass before with it. So the
backward pass cuts a cotangent as its value is cut, over mesh axes along which it holds copies, for
nothing, or a partial sum, for half of what resolving it costs.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from gdt.array.array import DistributedArray
from gdt.engine.op import Op
from gdt.ops.movement import relayout
from gdt.sharding.layout import Axes, Layout


def aligned(g: Any, op: Any, out: Any, args: Sequence[Any], dependent: Set[int]) -> Any:
    """Return the cotangent `g` of the output of `op(*args)`, cut as the output `out` is cut.

    g, out: tuples of an op with several outputs. dependent: the identities of the arrays that
    depend on the sources.

    Left as they are: cotangents of an op of one array, which goes on with them in any layout; of
    one that passes them on, such as `add`, since the gradient of a bias needs no sum of a constant;
    copies for operands that are all cut as the output is, with which the next op cuts them itself;
    and sums of which smaller cotangents are made, such as that of a table.
    """
    linear = op.declaration.linear if isinstance(op, Op) else ()
    arrays = [a for a in args if type(a) is DistributedArray]
    if len(arrays) < 2 or any(len(part) > 1 for part in linear):
        return g
    if type(out) is tuple:
        pairs = zip(g, out, strict=True)
        return tuple([c if c is None else _cut(c, o, arrays, dependent) for c, o in pairs])
    return _cut(g, out, arrays, dependent)


def _cut(
    g: DistributedArray,
    out: DistributedArray,
    operands: Sequence[DistributedArray],
    dependent: Set[int],
) -> DistributedArray:
    """Return `g` cut as `out` along the dims that other mesh axes do not cut otherwise."""
    have, want = g.type.layout, out.type.layout
    if have.dims == want.dims or have.mesh is not want.mesh or g.ndim != out.ndim:
        return g
    own_axes = {a for axes in have.dims for a in axes}
    if g.nbytes > 2 * sum(x.nbytes for x in operands if id(x) in dependent):
        own_axes.update(a for a, r in enumerate(have.reductions) if r is not None)
    dims = tuple(
        _extended(old, new, own_axes) if _is_needed(d, out, operands, have) else old
        for d, (old, new) in enumerate(zip(have.dims, want.dims, strict=True))
    )
    split = {a for axes in dims for a in axes}
    reductions = tuple(None if a in split else r for a, r in enumerate(have.reductions))
    return relayout(g, Layout.of(have.mesh, dims, reductions))


def _extended(old: Axes, new: Axes, own_axes: Set[int]) -> Axes:
    """Return the mesh axes `new` if they begin with `old` and go on with none of `own_axes`, else
    `old`."""
    return new if new[: len(old)] == old and own_axes.isdisjoint(new[len(old) :]) else old


def _is_needed(
    dim: int, out: DistributedArray, operands: Sequence[DistributedArray], have: Layout
) -> bool:
    """Return whether the op that uses the cotangent may not cut its dim `dim` by itself: of a sum,
    or where an operand is not cut along that dim as the output is."""
    axes = out.type.layout.dims[dim]
    if any(have.reductions[a] for a in axes):
        return True
    return any(
        x.ndim <= dim or x.shape[dim] != out.shape[dim] or x.type.layout.dims[dim] != axes
        for x in operands
    )
