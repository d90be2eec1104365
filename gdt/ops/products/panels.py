"""Products of large operands that are gathered in panels, so that no device holds one whole.

Where the rule of a product gathers an operand, every device sends a slice of its shard at a time:
the slices of all shards are a panel, about as large as one shard. Panels of a factor that is summed
over give products that are added up, those of any other factor give parts of the result. If both
operands are gathered along the factor that is summed over, as on meshes of two axes, their panels
hold the same indices (SUMMA, van de Geijn and Watts 1997). The bytes are those of the gather.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gdt.backend import backend_of
from gdt.comm import local
from gdt.comm.relayout import run_transition
from gdt.engine.builder import plan_of
from gdt.engine.op import Op
from gdt.engine.plan import Plan
from gdt.engine.planned import BlockPlan, plan_of_blocks
from gdt.observe import Collective
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import promoted
from gdt.sharding.routes import Transition, transition_between
from gdt.sharding.rule import Rule, Term, out_shapes
from gdt.sharding.strategy import Strategy, choose

Block = Any
Blocks = Sequence[Block]
Gathers = Mapping[int, Transition]  # by the position of the operand

GATHERED = 1 << 22
"""The bytes from which on a gathered operand takes panels. Below, memory is no concern, and one
collective is faster than several."""


class Cut(NamedTuple):
    """The cut of a factor into panels, each of the same interval of every `cell` indices.

    size: how many indices of the factor a device holds after a gather. copies: into how many
    shards the factor is then still split. gathers: of the operands that are gathered in panels.
    number: how many panels there are.
    """

    factor: str
    size: int
    copies: int
    gathers: Gathers
    cell: int
    number: int

    def indices(self, length: int, low: int, high: int) -> np.ndarray:
        """The indices below `length`, whole cells, from `low` to `high` in their cells."""
        return np.add.outer(np.arange(0, length, self.cell), np.arange(low, high)).reshape(-1)


def _cut(rule: Rule, sizes: Mapping[str, int], strategy: Strategy, gathers: Gathers) -> Cut | None:
    """Return how the largest operand that is gathered is cut, and with it the other one if the
    shards of both line up; None where its shards are too short."""
    lead = max(gathers, key=lambda n: gathers[n].want.local_nbytes)
    dim, mesh = rule.ins[lead][gathers[lead].dim], gathers[lead].want.mesh
    size = gathers[lead].want.local_shape[gathers[lead].dim]
    copies = math.prod(mesh.sizes[a] for a in strategy.axes.get(dim[0], ()))
    both = {n: t for n, t in gathers.items() if rule.ins[n][t.dim] == dim}
    for members in (both, {lead: gathers[lead]}):
        chunks = [t.have.local_shape[t.dim] for t in members.values()]
        is_even = not any(size % chunk for chunk in chunks) and size * copies == sizes[dim[0]]
        cell, number = math.gcd(*chunks), max(-(-size // chunk) for chunk in chunks)
        if cell >= number > 1 and (is_even or (copies == len(members) == 1)):
            return Cut(dim[0], size, copies, members, cell, number)
    return None


class Panel(NamedTuple):
    """One panel of a product; indices are those of the factor, one array for every block.

    places: where the panel lies on a device. shares: by operand that is gathered, what it takes of
    a shard. valid: what a gather makes that is no padding; None for all. gathers: of the shares.
    plan: of the product of the panels of both operands.
    """

    places: list[Block]
    shares: Mapping[int, list[Block]]
    valid: list[Block] | None
    gathers: Gathers
    plan: Plan


class PanelProduct:
    """A product of two operands, panel by panel: a function of the blocks of both."""

    def __init__(
        self, product: Op[..., Any], moved: Sequence[ArrayType], static: dict[str, Any],
        strategy: Strategy, cut: Cut,
    ) -> None:  # fmt: skip
        self.product, self.moved, self.static = product, moved, static
        self.strategy, self.cut = strategy, cut
        rule, sizes, _ = product.declaration.bound_rule(tuple(moved), static)
        self.dims = [_dim_of(cut.factor, term) for term in (*rule.ins, rule.outs[0])]
        dtype = promoted(*[t.dtype for t in moved])
        self.out = ArrayType.of(out_shapes(rule, sizes)[0], dtype, strategy.output_layouts[0])
        self.mesh, self.backend = self.out.mesh, backend_of(self.out.mesh)
        bounds = [cut.cell * k // cut.number for k in range(cut.number + 1)]
        self.panels = [self._panel(low, high) for low, high in pairwise(bounds)]

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The gathers of all panels."""
        gathers = [t for panel in self.panels for t in panel.gathers.values()]
        names = self.mesh.axis_names
        return tuple(
            [
                Collective("all_gather", tuple([names[a] for a in t.axes]), t.nbytes, 1)
                for t in gathers
            ]
        )

    def _panel(self, low: int, high: int) -> Panel:
        """The panel of the indices from `low` to `high` of every cell."""
        cut = self.cut
        places = cut.indices(-(-cut.size // cut.cell) * cut.cell, low, high)
        is_valid = places < cut.size
        gathers, shares, types = {}, {}, []
        for n, (moved, dim) in enumerate(zip(self.moved, self.dims, strict=False)):
            if dim is not None and n in cut.gathers:
                have, axes = cut.gathers[n].have, cut.gathers[n].axes
                shares[n] = self._on_devices(cut.indices(have.local_shape[dim], low, high))
                share = _resized(have, dim, len(places) * cut.copies)
                gathers[n] = transition_between("gather", share, moved.layout, axes, dim)
            types.append(_resized(moved, dim, int(is_valid.sum()) * cut.copies))
        return Panel(
            self._on_devices(places[is_valid]),
            shares,
            None if is_valid.all() else self._on_devices(np.flatnonzero(is_valid)),
            gathers,
            self._plan(tuple(types)),
        )

    def _plan(self, types: tuple[ArrayType, ...]) -> Plan:
        """The plan of the product of panels of these types, which are where they are needed."""
        declaration = self.product.declaration
        rule, sizes, static = declaration.bound_rule(types, self.static)
        strategy = self.strategy._replace(nbytes=0)
        rounds = None if declaration.rounds(types, static) is None else (False,)  # the sum is
        return plan_of(declaration, types, rule, sizes, static, strategy, rounds)

    def _on_devices(self, indices: np.ndarray) -> list[Block]:
        return self._by_block(lambda i: self.backend.asarray(indices))

    def _by_block(self, function: Callable[..., Any], *lists: Sequence[Any]) -> list[Any]:
        """`function(i, *items)` for every block i of this process, on its device."""
        results = []
        for i, *items in zip(range(len(self.mesh.blocks)), *lists, strict=True):
            with self.backend.on(self.mesh, i):
                results.append(function(i, *items))
        return results

    def __call__(self, *operands: Blocks) -> list[Block]:
        """The blocks of the product."""
        out: list[Block] = []
        for panel in self.panels:
            blocks = [self._operand(panel, n, blocks) for n, blocks in enumerate(operands)]
            (parts,) = panel.plan.execute(blocks)
            del blocks
            out = self._joined(out, parts, panel.places)
        return self._by_block(lambda i, block: block.astype(self.out.dtype, copy=False), out)

    def _operand(self, panel: Panel, n: int, blocks: Blocks) -> Blocks:
        """The part of an operand that belongs to a panel."""
        if n not in panel.gathers:
            return self._taken(blocks, self.dims[n], panel.places)
        shares = self._taken(blocks, self.dims[n], panel.shares[n])
        gathered = run_transition(panel.gathers[n], shares)
        return gathered if panel.valid is None else self._taken(gathered, self.dims[n], panel.valid)

    def _taken(self, blocks: Blocks, dim: int | None, indices: list[Block]) -> Blocks:
        if dim is None:
            return blocks
        axis, xp = self.mesh.ndim + dim, self.backend.xp
        return self._by_block(lambda i, block, at: xp.take(block, at, axis=axis), blocks, indices)

    def _joined(self, out: list[Block], parts: Blocks, places: list[Block]) -> list[Block]:
        """Add the products of panels up; or put them where they belong, if the result has the
        factor."""
        dim, dtype, xp = self.dims[-1], self.out.dtype, self.backend.xp
        if dim is None:
            # Sums of many products of half precision are those of single precision, rounded once.
            wide = np.dtype("f4") if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype
            if not out:
                return self._by_block(lambda i, part: part.astype(wide, copy=False), parts)
            return self._by_block(lambda i, block, part: xp.add(block, part, out=block), out, parts)
        if not out:
            empty, order = self.backend.empty, self.out.memory_order
            out = self._by_block(lambda i: empty(self.out.block_shape, dtype, order))
        before = (slice(None),) * (self.mesh.ndim + dim)

        def put(i: int, block: Block, part: Block, at: Block) -> None:
            block[(*before, at)] = part

        self._by_block(put, out, parts, places)
        return out


def _dim_of(factor: str, term: Term) -> int | None:
    return term.index((factor,)) if (factor,) in term else None


def _resized(array_type: ArrayType, dim: int | None, size: int) -> ArrayType:
    if dim is None:
        return array_type
    shape = (*array_type.shape[:dim], size, *array_type.shape[dim + 1 :])
    return ArrayType.of(shape, array_type.dtype, array_type.layout)


def in_panels(product: Op[..., Any], plan: Plan, *types: ArrayType, **static: Any) -> Plan | None:
    """Return the plan of a product that gathers a large operand in panels; None where `plan`, that
    of the rule, gathers none."""
    gathers = {
        n: route[-1] for n, route in enumerate(plan.routes) if route and route[-1].kind == "gather"
    }
    largest = max([t.want.local_nbytes for t in gathers.values()], default=0)
    if largest < GATHERED or plan.passes:
        return None
    rule, sizes, bound = product.declaration.bound_rule(types, static)
    strategy = choose(rule, types, sizes)
    cut = _cut(rule, sizes, strategy, gathers)
    if cut is None:
        return None
    moved = [t for t in plan.moved if t is not None]
    run = PanelProduct(product, moved, bound, strategy, cut)
    layouts = [
        cut.gathers[n].have.layout if n in cut.gathers else t.layout for n, t in enumerate(moved)
    ]
    if run.mesh.divided:
        return plan_of_blocks(types, BlockPlan(layouts, run.out, (), run), product.name, static)

    def whole(*blocks: Block) -> Block:
        """The product in the only block, where nothing is sent."""
        moved = list(blocks)
        for n, (_, axes, dim, *_, want, _) in cut.gathers.items():
            moved[n] = local.gather(moved[n], run.mesh.ndim, axes, dim, want.local_shape[dim])
        ((product_block,),) = plan.execute([[block] for block in moved])
        return product_block

    planned = BlockPlan(layouts, run.out, [whole], None, run.collectives)
    return plan_of_blocks(types, planned, product.name, static)
