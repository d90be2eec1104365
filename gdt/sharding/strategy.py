"""Strategies: the legal ways to run an op on shards, their prices, and the choice of one.

A strategy says for every mesh axis whether it splits a factor, passes partial sums on, or holds
whole operands. The engine takes the one of the lowest price, in bytes that all devices together
send: those that move the operands now, and those that reducing its partial results will take later.
What is later cannot be known, so five rules stand for it.

- **Moves make a partial result cost something.** Where operands have to move, or a partial sum
  passes through, the results that stay partial cost what a reduce-scatter of them sends. So weights
  are gathered, and not activations summed, where weights are the smaller.
- **Where nothing moves, a new partial sum is free.** It is often the last of its kind (the gradient
  of a weight), and those that are resolved together are one collective. (Of large matrices it is
  scattered at once where it would fill the devices: `gdt.ops.products.panels`.)
- **The second reader resolves.** The first op that reads a partial sum may pass it on. For the next
  one passing it on costs twice as much, an all-reduce, and resolving it half, since the value is
  remembered and serves all readers after it.
- **Indices stay split.** A table that is looked up by indices gives a result that is split as they
  are, mostly along a batch. Where indices are gathered, that split is lost, at the price of an
  all-gather of the result; so the table is gathered, unless it is larger than the result.
- **Of equals** the strategy is taken that moves the smaller operands, then the one whose results
  stay split, then the first: factors in the order of the rule, whole operands last.

An op is never split along a mesh axis along which no operand is split, and an explicit relayout is
always obeyed. Cotangents follow their values (`gdt.autodiff.alignment`). What no rule of one op can
know, say which of two small arrays many later ops will want whole, a program says with
`gdt.relayout`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.routes import route_bytes
from gdt.sharding.rule import Dim, Rule, out_shapes


class OpStrategy(NamedTuple):
    """One legal way to run an op on shards.

    axes: the mesh axes that split each factor.
    target_layouts: the layout to which each operand must be moved; None for a Python scalar.
    output_layouts: the layout of each output.
    nbytes: the bytes that moving the operands sends, of all devices together.
    """

    axes: dict[str, Axes]
    target_layouts: tuple[Layout | None, ...]
    output_layouts: tuple[Layout, ...]
    nbytes: int

    def passed(self) -> list[int]:
        """Return the positions of the operands whose partial reductions pass through the op."""
        targets = enumerate(self.target_layouts)
        return [n for n, layout in targets if layout is not None and any(layout.reductions)]


class Price(NamedTuple):
    """The price of a strategy; the least is chosen, by the first field in which two differ.

    nbytes: the bytes that moving the operands sends now, and those that `later` says.
    moved: the sizes in bytes of the operands that change their layout.
    partial: the number of partial reductions of the outputs that cost something later.
    order: the position of the strategy among those that are considered.
    later: the bytes that reducing the partial outputs will send, and, where indices are gathered,
        gathering the outputs.
    """

    nbytes: int
    moved: int
    partial: int
    order: int
    later: int


def choose(
    rule: Rule,
    types: Sequence[ArrayType | None],
    sizes: Mapping[str, int],
    reread: Set[int] = frozenset(),
) -> OpStrategy:
    """Return the strategy of the least price; the module's docstring says what has a price.

    reread: the positions of operands whose partial reductions another op has passed on already.
    """
    strategies = []
    for price, strategy in considered(rule, types, sizes, reread):
        strategies.append((price, strategy))
        if not (reread or price.nbytes or price.moved or price.partial):
            break  # nothing is cheaper than what is free, but to resolve what is read again
    return min(strategies, key=itemgetter(0))[1]


def considered(
    rule: Rule,
    types: Sequence[ArrayType | None],
    sizes: Mapping[str, int],
    reread: Set[int] = frozenset(),
) -> Iterator[tuple[Price, OpStrategy]]:
    """Yield the strategies among which `choose` chooses, with their prices.

    An op is never split along a mesh axis along which no operand is split.
    """
    mesh = next(t.mesh for t in types if t is not None)
    options = [_options(rule, types, sizes, a) for a in range(mesh.ndim)]
    for order, strategy in enumerate(_strategies(rule, types, sizes, options)):
        pairs = zip(strategy.target_layouts, types, strict=True)
        moves = [t.nbytes for w, t in pairs if w is not None and t and w is not t.layout]
        passed_operands = strategy.passed()
        later = _reduction_nbytes(rule, types, sizes, strategy) if moves or passed_operands else 0
        if not reread.isdisjoint(passed_operands):
            later *= 2
        shared_nbytes = sum(
            _resolution_nbytes(types[n]) // 2 for n in reread - set(passed_operands)
        )
        partial = sum(r is not None for o in strategy.output_layouts for r in o.reductions)
        partial = partial if later else 0
        later += _unsplit_nbytes(rule, types, sizes, strategy) if moves else 0
        nbytes = strategy.nbytes - shared_nbytes + later
        yield Price(nbytes, sum(moves), partial, order, later), strategy


def _resolution_nbytes(array_type: ArrayType | None) -> int:
    """Return the bytes that resolving an array's partial reductions sends."""
    return route_bytes(array_type, array_type.layout.resolved) if array_type else 0


def _reduction_nbytes(
    rule: Rule, types: Sequence[ArrayType | None], sizes: Mapping[str, int], strategy: OpStrategy
) -> int:
    """Return the bytes that all devices send to reduce the partial outputs of a strategy so that
    each device has one shard: those of a reduce-scatter, half of those of an all-reduce."""
    dtype = _dtype_of_outputs(types)
    nbytes = 0
    for shape, layout in zip(out_shapes(rule, sizes), strategy.output_layouts, strict=True):
        sizes_of = layout.mesh.sizes
        p = math.prod(sizes_of[a] for a, r in enumerate(layout.reductions) if r is not None)
        if p > 1:
            local = ArrayType.of(shape, dtype, layout).local_nbytes
            nbytes += layout.mesh.size * (p - 1) * local // p
    return nbytes


def _unsplit_nbytes(
    rule: Rule, types: Sequence[ArrayType | None], sizes: Mapping[str, int], strategy: OpStrategy
) -> int:
    """Return the bytes of gathering the outputs along the mesh axes along which the strategy
    gathers indices: operands of integers, among others of floating-point numbers."""
    dtype = _dtype_of_outputs(types)
    nbytes = 0
    for target, array_type in zip(strategy.target_layouts, types, strict=True):
        if target is None or array_type is None or array_type.dtype.kind not in "iu":
            continue
        unsplit_axes = set(itertools.chain(*array_type.layout.dims)).difference(*target.dims)
        if unsplit_axes and kind_of(dtype) in "fc":
            p = math.prod(array_type.mesh.sizes[a] for a in unsplit_axes)
            nbytes += (p - 1) * dtype.itemsize * sum(map(math.prod, out_shapes(rule, sizes)))
    return nbytes


def _dtype_of_outputs(types: Sequence[ArrayType | None]) -> np.dtype[Any]:
    """Return the dtype that the outputs have for all that is known here: the body decides it; where
    some operands are integers, those are mostly indices."""
    dtypes = [t.dtype for t in types if t is not None]
    return max(dtypes, key=lambda d: (kind_of(d) in "fc", d.itemsize))


def legal_strategies(
    rule: Rule, types: Sequence[ArrayType | None], sizes: Mapping[str, int]
) -> Iterator[OpStrategy]:
    """Return every strategy that the rule allows, whatever the layouts of the operands are."""
    mesh = next(t.mesh for t in types if t is not None)
    arrays = {i for i, t in enumerate(types) if t is not None}
    options: list[Option] = [f for f in rule.factors if f not in rule.whole]
    options += [s for s in rule.linear if s <= arrays]
    return _strategies(rule, types, sizes, [[*options, None]] * mesh.ndim)


# What one mesh axis does in a strategy: it splits a factor (str), it holds the partial sums of
# some operands (frozenset), or it holds whole operands (None).
Option = str | frozenset[int] | None


def _options(
    rule: Rule, types: Sequence[ArrayType | None], sizes: Mapping[str, int], axis: int
) -> list[Option]:
    """Return the options of mesh axis `axis`, which depend on its uses by the operands."""
    options: dict[Option, None] = {}  # a set in order of insertion
    for n, (term, array_type) in enumerate(zip(rule.ins, types, strict=True)):
        if array_type is None:
            continue
        for dim, axes, size in zip(term, array_type.layout.dims, array_type.shape, strict=True):
            if axis in axes:
                options.update(
                    (f, None)
                    for f in dim
                    if f not in rule.whole and (len(dim) > 1 or sizes[f] == size)
                )
        if array_type.layout.reductions[axis] == "sum":
            options.update(
                (s, None) for s in rule.linear if n in s and all(types[i] is not None for i in s)
            )
    return [*options, None]


def _strategies(
    rule: Rule,
    types: Sequence[ArrayType | None],
    sizes: Mapping[str, int],
    options: Sequence[list[Option]],
) -> Iterator[OpStrategy]:
    """Yield the legal strategies in which each mesh axis takes one of its `options`."""
    for combination in itertools.product(*options):
        axes_of: dict[str, list[int]] = {}  # the mesh axes that split each factor
        for axis, option in enumerate(combination):
            if isinstance(option, str):
                axes_of.setdefault(option, []).append(axis)
        orders = [_orders(rule, types, f, axes) for f, axes in axes_of.items()]
        for ordered in itertools.product(*orders):
            factor_axes = dict(zip(axes_of, ordered, strict=True))
            strategy = _strategy(rule, types, sizes, factor_axes, combination)
            if strategy is not None:
                yield strategy


def _orders(
    rule: Rule, types: Sequence[ArrayType | None], factor: str, axes: Sequence[int]
) -> list[Axes]:
    """Return the orders in which the mesh axes `axes` may split `factor`: those that operands have
    now, and that of the mesh."""
    orders: dict[Axes, None] = {}  # a set in order of insertion
    if len(axes) > 1:
        for term, array_type in zip(rule.ins, types, strict=True):
            layout_dims = array_type.layout.dims if array_type is not None else ()
            for dim, dim_axes in zip(term, layout_dims, strict=False):
                order = tuple(a for a in dim_axes if a in axes)
                if factor in dim and len(order) == len(axes):
                    orders[order] = None
    orders[tuple(axes)] = None
    return list(orders)


def _strategy(
    rule: Rule,
    types: Sequence[ArrayType | None],
    sizes: Mapping[str, int],
    factor_axes: dict[str, Axes],
    combination: Sequence[Option],
) -> OpStrategy | None:
    """Return the strategy that splits each factor along its mesh axes `factor_axes`, or None where
    the shards of a dim of several factors would cut across them."""
    mesh = next(t.mesh for t in types if t is not None)
    axes_of = partial(_axes_of, mesh, sizes, factor_axes)
    target_layouts: list[Layout | None] = []
    for n, (term, array_type) in enumerate(zip(rule.ins, types, strict=True)):
        if array_type is None:
            target_layouts.append(None)
            continue
        # A dim of length 1 that broadcasts is whole.
        dims = _all_or_none(
            () if len(dim) == 1 and sizes[dim[0]] != size else axes_of(dim)
            for dim, size in zip(term, array_type.shape, strict=True)
        )
        if dims is None:
            return None
        reductions = tuple(
            "sum" if isinstance(o, frozenset) and n in o else None for o in combination
        )
        target_layouts.append(Layout.of(mesh, dims, reductions))
    output_layouts = []
    for n, term in enumerate(rule.outs):
        dims = _all_or_none(map(axes_of, term))
        if dims is None:
            return None
        reductions = _output_reductions(rule, n, factor_axes, combination)
        output_layouts.append(Layout.of(mesh, dims, reductions))
    nbytes = sum(
        route_bytes(t, layout)
        for t, layout in zip(types, target_layouts, strict=True)
        if t is not None and layout is not None
    )
    return OpStrategy(factor_axes, tuple(target_layouts), tuple(output_layouts), nbytes)


def _axes_of(
    mesh: Mesh, sizes: Mapping[str, int], factor_axes: Mapping[str, Axes], dim: Dim
) -> Axes | None:
    """Return the mesh axes that split `dim`, or None if its shards would cut across factors.

    A factor of `(a b)` may be split only where every factor before it is split into single indices,
    and only evenly."""
    if len(dim) > 1:
        all_single = True
        for f in dim:
            shards = math.prod(mesh.sizes[a] for a in factor_axes.get(f, ()))
            if shards > 1 and (not all_single or sizes[f] % shards):
                return None
            all_single = all_single and shards == sizes[f]
    return tuple(a for f in dim for a in factor_axes.get(f, ()))


def _all_or_none(dims: Iterable[Axes | None]) -> tuple[Axes, ...] | None:
    """Return the mesh axes of all dims, or None if one of them is None."""
    all_axes = []
    for axes in dims:
        if axes is None:
            return None
        all_axes.append(axes)
    return tuple(all_axes)


def _output_reductions(
    rule: Rule, output: int, factor_axes: Mapping[str, Axes], combination: Sequence[Option]
) -> tuple[str | None, ...]:
    """Return the partial reduction of output number `output` over each mesh axis: the sums that
    pass through the op, and the reductions of its split factors that the output lacks."""
    reductions: list[str | None] = [
        "sum" if isinstance(o, frozenset) else None for o in combination
    ]
    if not rule.merges:
        for f in rule.reduced(output):
            for a in factor_axes.get(f, ()):
                reductions[a] = rule.reduce
    return tuple(reductions)
