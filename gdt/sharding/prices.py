"""Prices of strategies: what moving the operands sends now, and what stands for what comes later;
see `gdt.sharding.strategy`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.routes import route_bytes
from gdt.sharding.rule import Rule, out_shapes


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


def price_of(
    rule: Rule,
    types: Sequence[ArrayType | None],
    sizes: Mapping[str, int],
    strategy: OpStrategy,
    reread: Set[int],
    order: int,
) -> Price:
    """Return the price of the strategy at position `order` among those that are considered."""
    pairs = zip(strategy.target_layouts, types, strict=True)
    moves = [t.nbytes for w, t in pairs if w is not None and t and w is not t.layout]
    passed_operands = strategy.passed()
    is_free = not (moves or passed_operands or taken_dims(rule, types))
    later = 0 if is_free else _reduction_nbytes(rule, types, sizes, strategy)
    if not reread.isdisjoint(passed_operands):
        later *= 2
    shared_nbytes = sum(_resolution_nbytes(types[n]) // 2 for n in reread - set(passed_operands))
    partial = sum(r is not None for o in strategy.output_layouts for r in o.reductions)
    partial = partial if later else 0
    later += _unsplit_nbytes(rule, types, sizes, strategy) if moves else 0
    later += _cut_nbytes(rule, types, strategy) if moves else 0
    merged_nbytes = _merged_nbytes(rule, types, sizes, strategy) if rule.merges else 0
    nbytes = strategy.nbytes + merged_nbytes - shared_nbytes + later
    return Price(nbytes, sum(moves), partial, order, later)


def price_with_sums(
    rule: Rule,
    types: Sequence[ArrayType | None],
    sizes: Mapping[str, int],
    price: Price,
    strategy: OpStrategy,
) -> Price:
    """Return the price of a strategy of which new partial sums are not free."""
    later = max(price.later, _reduction_nbytes(rule, types, sizes, strategy))
    return price._replace(nbytes=price.nbytes - price.later + later, later=later)


def output_types(
    rule: Rule, types: Sequence[ArrayType | None], sizes: Mapping[str, int], strategy: OpStrategy
) -> list[ArrayType]:
    """Return the types of the outputs of a strategy, with the dtype that they have for all that is
    known here."""
    dtype = _dtype_of_outputs(types)
    pairs = zip(out_shapes(rule, sizes), strategy.output_layouts, strict=True)
    return [ArrayType.of(shape, dtype, layout) for shape, layout in pairs]


def taken_dims(rule: Rule, types: Sequence[ArrayType | None]) -> int:
    """Return the rank of the indices by which an op takes elements along an axis; 0 of others."""
    if len(types) != 2 or rule.linear != (frozenset({0}),) or not rule.reduced(0):
        return 0
    indices = types[1]
    return 0 if indices is None or indices.dtype.kind not in "iu" else indices.ndim


def _resolution_nbytes(array_type: ArrayType | None) -> int:
    """Return the bytes that resolving an array's partial reductions sends."""
    return route_bytes(array_type, array_type.layout.resolved) if array_type else 0


def _reduction_nbytes(
    rule: Rule, types: Sequence[ArrayType | None], sizes: Mapping[str, int], strategy: OpStrategy
) -> int:
    """Return the bytes that all devices send to reduce the partial outputs of a strategy so that
    each device has one shard: those of a reduce-scatter, half of those of an all-reduce."""
    return sum(map(scattering_nbytes, output_types(rule, types, sizes, strategy)))


def scattering_nbytes(array_type: ArrayType) -> int:
    """Return the bytes that reduce-scatters of an array's partial sums send."""
    mesh, reductions = array_type.mesh, array_type.layout.reductions
    p = math.prod(n for n, r in zip(mesh.sizes, reductions, strict=True) if r)
    return mesh.size * (p - 1) * array_type.local_nbytes // p


def _merged_nbytes(
    rule: Rule, types: Sequence[ArrayType | None], sizes: Mapping[str, int], strategy: OpStrategy
) -> int:
    """Return the bytes that merging the statistics of shards sends: mostly two all-reduces of
    arrays of the size of the first output."""
    axes = [a for f in rule.reduced(0) for a in strategy.axes.get(f, ())]
    out = output_types(rule, types, sizes, strategy)[0]
    p = math.prod(out.mesh.sizes[a] for a in axes)
    return 2 * (out.mesh.size // p) * 2 * (p - 1) * out.local_nbytes


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


def _cut_nbytes(rule: Rule, types: Sequence[ArrayType | None], strategy: OpStrategy) -> int:
    """Return a price for cutting an operand that every device has whole as a small one is split:
    the share `1 / SMALL` of gathering it again."""
    nbytes = 0
    for factor, axes in strategy.axes.items():
        if all(factor in rule.reduced(n) for n in range(len(rule.outs))):
            continue
        for a in axes:
            split, whole = 0, 0
            for term, t in zip(rule.ins, types, strict=True):
                if t is None or not any(factor in dim for dim in term):
                    continue
                if a in t.layout.split_axes or t.layout.reductions[a]:
                    split = max(split, t.nbytes)
                else:
                    whole = max(whole, t.nbytes)
            if split * SMALL < whole:
                nbytes += (strategy.output_layouts[0].mesh.sizes[a] - 1) * whole // SMALL
    return nbytes


SMALL = 8
"""An operand is small beside one of this many times as many bytes."""


def _dtype_of_outputs(types: Sequence[ArrayType | None]) -> np.dtype[Any]:
    """Return the dtype that the outputs have for all that is known here: the body decides it; where
    some operands are integers, those are mostly indices."""
    dtypes = [t.dtype for t in types if t is not None]
    return max(dtypes, key=lambda d: (kind_of(d) in "fc", d.itemsize))
