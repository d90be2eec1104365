"""Strategies: the legal ways to run an op on shards, their prices, and the choice of one.

A strategy says for every mesh axis whether it splits a factor, passes partial sums on, or holds
whole operands. The engine takes the one of the lowest price, in bytes that all devices together
send: those that move the operands now, and those that reducing its partial results will take later.
What is later cannot be known, so eight rules stand for it.

- **Moves make a partial result cost something.** Where operands have to move, or a partial sum
  passes through, the results that stay partial cost what a reduce-scatter of them sends. So weights
  are gathered, and not activations summed, where weights are the smaller.
- **Where nothing moves, a new partial sum is free.** It is often the last of its kind (the gradient
  of a weight), and those that are resolved together are one collective. (Of large matrices it is
  scattered at once where it would fill the devices: `gdt.ops.products.panels`.) What indices take
  along a split axis is the exception. A vector of them mostly puts the axis in another order, and
  to exchange it for another axis sends less than to scatter the sum; tokens take rows of a table,
  which is gathered where it is smaller than the sum.
- **The second reader resolves.** The first op that reads a partial sum may pass it on. For the next
  one passing it on costs twice as much, an all-reduce, and resolving it half, since the value is
  remembered and serves all readers after it.
- **What is not free is compared with exchanges.** Where operands suggest no strategy that is free,
  each mesh axis that the largest operand uses may split another factor, also one that no operand
  splits, if no device has to hold more of that operand. Then new partial sums of products are not
  free either. They are compared, too, where nothing moves: if no device has to hold more of any
  operand, since weights that are split are to stay so, or for a product `x @ w` at least twice as
  large as its operands, such as the scores of attention. (Gradients, `g @ w.T` and `x.T @ g`,
  stay sums: those of weights wait for others.) Partial sums are scattered so for products, and
  where all of two operands are partial; what has a dim of length 1 broadcasts against arrays that
  lie as before, and stays whole.
- **Statistics are reduced at once.** Where shards of a reduced factor are merged (`moments`,
  `logsumexp`), that costs two all-reduces of an array of the size of the output.
- **A small operand decides nothing for a large one.** Cutting an operand that all devices have
  whole, as one that is eight times smaller is split, has a price; gathering that costs less.
- **Indices stay split.** A table that is looked up by indices gives a result that is split as they
  are, mostly along a batch. Where indices are gathered, that split is lost, at the price of an
  all-gather of the result; so the table is gathered, unless it is larger than the result.
- **Of equals** the strategy is taken that moves the smaller operands, then the one whose results
  stay split, then the first: factors in the order of the rule, whole operands last.

An op is never split along a mesh axis along which no operand is split, and an explicit relayout is
always obeyed. Cotangents follow their values (`gdt.autodiff.alignment`), and later ops find what an
op has moved (`gdt.engine.forms`). What no rule of one op can know, say which of two small arrays
many later ops will want whole, a program says with `gdt.relayout`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from operator import itemgetter

from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.prices import (
    OpStrategy,
    Price,
    output_types,
    price_of,
    price_with_sums,
    taken_dims,
)
from gdt.sharding.routes import route_bytes
from gdt.sharding.rule import Dim, Rule


def choose(
    rule: Rule,
    types: Sequence[ArrayType | None],
    sizes: Mapping[str, int],
    reread: Set[int] = frozenset(),
) -> OpStrategy:
    """Return the strategy of the least price; the module's docstring says what has a price.

    reread: the positions of operands whose partial reductions another op has passed on already.
    """
    priced: list[tuple[Price, OpStrategy]] = []
    for price, strategy in _priced(rule, types, sizes, reread):
        priced.append((price, strategy))
        if not (reread or price.nbytes or price.moved or price.partial):
            break  # nothing is cheaper than what is free, but to resolve what is read again
    if not reread:
        priced = _with_exchanges(rule, types, sizes, priced)
    return min(priced, key=itemgetter(0))[1]


def considered(
    rule: Rule, types: Sequence[ArrayType | None], sizes: Mapping[str, int]
) -> list[tuple[Price, OpStrategy]]:
    """Return the strategies among which `choose` chooses, with their prices."""
    return _with_exchanges(rule, types, sizes, list(_priced(rule, types, sizes)))


def with_output(
    rule: Rule, types: Sequence[ArrayType | None], sizes: Mapping[str, int], layout: Layout
) -> Iterator[tuple[Price, OpStrategy]]:
    """Yield the strategies in which the mesh axes that split `layout` split the output so, and
    others do what operands suggest, with their prices."""
    options = [_options(rule, types, sizes, a) for a in range(layout.mesh.ndim)]
    for dim, axes in zip(rule.outs[0], layout.dims, strict=True):
        for a in axes:
            options[a] = [next((f for f in dim if f not in rule.whole), None)]
    for strategy in _strategies(rule, types, sizes, options):
        yield price_of(rule, types, sizes, strategy, frozenset(), 0), strategy


def _priced(
    rule: Rule,
    types: Sequence[ArrayType | None],
    sizes: Mapping[str, int],
    reread: Set[int] = frozenset(),
) -> Iterator[tuple[Price, OpStrategy]]:
    """Yield the strategies that operands suggest, with their prices.

    An op is never split along a mesh axis along which no operand is split.
    """
    mesh = next(t.mesh for t in types if t is not None)
    options = [_options(rule, types, sizes, a) for a in range(mesh.ndim)]
    for order, strategy in enumerate(_strategies(rule, types, sizes, options)):
        yield price_of(rule, types, sizes, strategy, reread, order), strategy


def _with_exchanges(
    rule: Rule,
    types: Sequence[ArrayType | None],
    sizes: Mapping[str, int],
    priced: list[tuple[Price, OpStrategy]],
) -> list[tuple[Price, OpStrategy]]:
    """Return the strategies; where the best is not free, with those in which one mesh axis splits
    another factor than operands suggest, if one of them costs less. Of a product new partial sums
    are not free then."""
    owes = len(rule.linear) > 1
    owed = [(price_with_sums(rule, types, sizes, p, s) if owes else p, s) for p, s in priced]
    own, best = min(priced, key=itemgetter(0))
    least = next(price.nbytes for price, strategy in owed if strategy is best)
    is_kept = taken_dims(rule, types) > 1 and not all(price.moved for price, _ in priced)
    if not least or is_kept:
        return priced
    known = [strategy.axes for _, strategy in priced]
    now = [None if t is None else t.layout for t in types]
    largest = max([t for t in types if t is not None], key=lambda t: t.nbytes)
    inner = rule.ins[0][-1] if rule.ins[0] else ()
    is_inner = owes and not {*inner}.isdisjoint(rule.reduced(0)) and rule.ins[1][-1] != inner
    grows = is_inner and output_types(rule, types, sizes, best)[0].nbytes >= 2 * largest.nbytes
    held = [t if t is largest else None for t in types] if own.nbytes or grows else types
    most = max(_held(held, now), _held(held, best.target_layouts))
    exchanges: list[tuple[Price, OpStrategy]] = []
    for options in _exchanges(rule, types, sizes, best):
        for strategy in _strategies(rule, types, sizes, options):
            if strategy.axes not in known and _held(held, strategy.target_layouts) <= most:
                order = len(owed) + len(exchanges)
                price = price_of(rule, types, sizes, strategy, frozenset(), order)
                if owes:
                    price = price_with_sums(rule, types, sizes, price, strategy)
                exchanges.append((price, strategy))
    is_worth = any(price.nbytes < least for price, _ in exchanges)
    return [*owed, *exchanges] if is_worth else priced


def _exchanges(
    rule: Rule, types: Sequence[ArrayType | None], sizes: Mapping[str, int], best: OpStrategy
) -> Iterator[list[list[Option]]]:
    """Yield the options of strategies that differ from the `best` in the factor that one mesh axis
    splits, of those axes that the largest operand uses."""
    arrays = [t for t in types if t is not None]
    largest = max(arrays, key=lambda t: t.nbytes)
    if 1 in largest.shape:  # it broadcasts against what lies as before
        return
    mesh_sizes = largest.mesh.sizes
    chosen: list[list[Option]] = [
        [next((f for f, axes in best.axes.items() if a in axes), None)]
        for a in range(len(mesh_sizes))
    ]
    for a, size in enumerate(mesh_sizes):
        is_sum = all(t.layout.reductions[a] for t in arrays) or len(rule.linear) > 1
        is_scattered = is_sum and len(arrays) > 1 and largest.layout.reductions[a]
        if a in largest.layout.split_axes or is_scattered:
            others = [f for f in rule.factors if f not in rule.whole and sizes[f] >= size]
            options: list[Option] = [f for f in others if [f] != chosen[a]]
            yield [*chosen[:a], options, *chosen[a + 1 :]]


def _held(types: Sequence[ArrayType | None], layouts: Sequence[Layout | None]) -> float:
    """Return the bytes that a device holds of operands in these layouts, without padding."""
    pairs = zip(types, layouts, strict=True)
    return sum(
        t.nbytes / math.prod(w.shard_counts) for t, w in pairs if t is not None and w is not None
    )


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
                if factor in dim and order:
                    orders[(*order, *(a for a in axes if a not in order))] = None
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
