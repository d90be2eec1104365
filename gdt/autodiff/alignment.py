"""Cotangents that lie as their values do.

The gradient of a mean is a constant that every device has whole, and the cotangent of what tensor
parallel layers share is a partial sum. An op that chooses for itself would go on with copies, or
with sums, in the layout of the next weight that is split, and the whole pass before with it. So the
backward pass cuts a cotangent as its value is cut, over mesh axes along which it holds copies, for
nothing, or a partial sum, for half of what resolving it costs.

And the pass knows where it ends. The cotangent of what was looked up in a source is added up to the
gradient of the table, which is reduced anyway. It may stay a partial sum, at no price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from operator import itemgetter
from typing import Any

from gdt.array.array import DistributedArray
from gdt.engine.op import Op
from gdt.ops.movement import relayout
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.strategy import considered


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


def for_table(
    g: Any, op: Any, args: Sequence[Any], static: Mapping[str, Any], position: int
) -> Any:
    """Return the cotangent `g` of the output of `op(*args, **static)`, where operand number
    `position` has been looked up in a table.

    If the op is a product, and would gather the other operand for the cotangent of this one, `g`
    returns in the layout in which that cotangent sends less, as a partial sum.
    """
    if not isinstance(op, Op) or len(args) != 2:
        return g
    other = args[1 - position]
    if type(other) is not DistributedArray or g.mesh is not other.mesh:
        return g
    rule, sizes, _ = op.declaration.bound_rule((args[0].type, args[1].type), dict(static))
    if rule.linear != (frozenset({0}), frozenset({1})):
        return g
    terms = (rule.outs[0], rule.ins[1 - position])
    rule = rule._replace(ins=terms, outs=(rule.ins[position],))
    strategies = considered(rule, (g.type, other.type), sizes)
    _, usual = min(strategies, key=itemgetter(0))
    _, partial = min(strategies, key=lambda pair: pair[0].nbytes - pair[0].later)
    target, unmoved = partial.target_layouts
    if target is None or unmoved is not other.layout or usual.target_layouts[1] is other.layout:
        return g
    return relayout(g, target)


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
    own_axes = have.split_axes
    # A reduce-scatter of a partial cotangent sends its bytes once; if the cotangent stays partial,
    # so are those of the operands, whose bytes all-reduces send twice.
    if g.nbytes > 2 * sum(x.nbytes for x in operands if id(x) in dependent):
        own_axes |= {a for a, r in enumerate(have.reductions) if r is not None}
    dims = tuple(
        _extended(old, new, own_axes) if _is_needed(d, out, operands, have) else old
        for d, (old, new) in enumerate(zip(have.dims, want.dims, strict=True))
    )
    return relayout(g, have.split_as(dims))


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
