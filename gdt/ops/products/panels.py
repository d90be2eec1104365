"""Products of large matrices in panels, so that no device holds an operand or a partial sum whole.

Where the rule of a product gathers an operand, every device sends a slice of its shard at a time:
the slices of all shards are a panel, about as large as one shard. Panels of a factor that is summed
over give products that are added up, those of any other factor give parts of the result. If both
operands are gathered along the factor that is summed over, as on meshes of two axes, their panels
hold the same indices (SUMMA, van de Geijn and Watts 1997). The bytes are those of the gather.

Where the factor that is summed over is split, every device has a part of every sum. A product of
matrices that would hold more than `MOST_HELD` shares of such parts, and `SUMMED` bytes, is computed
in panels of its rows (or columns, where there are few rows): each is reduced and scattered at once,
and the result is split. The bytes are those of the reduce-scatter, half of those of an all-reduce.
Where memory allows a partial sum, whoever reads it says whether it is needed whole, as after a
tensor parallel layer: split, it would be gathered again by one op after the other.
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
from gdt.engine.first_run import plan_of
from gdt.engine.op import Op
from gdt.engine.plan import Plan
from gdt.engine.planned import BlockPlan, plan_of_blocks
from gdt.observe import Collective
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import promoted
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.prices import OpStrategy
from gdt.sharding.routes import Transition, route, transition_between
from gdt.sharding.rule import Rule, Term, out_shapes
from gdt.sharding.strategy import choose

Block = Any
Blocks = Sequence[Block]
Gathers = Mapping[int, Transition]  # by the position of the operand

GATHERED = 1 << 22
"""The bytes from which on a gathered operand takes panels. Below, memory is no concern, and one
collective is faster than several."""

SUMMED = 1 << 30
"""The bytes from which on a partial sum takes panels: about a hundredth of the memory of a device.
Eight texts in a layer of a model of 175 billion numbers take less."""

MOST_HELD = 3
"""The shares that a partial sum may take on a device: a share is what a device has of the operands,
or of the result if that is larger."""


class FactorPanels(NamedTuple):
    """The cut of a factor into panels, each of the same interval of every `cell` indices.

    size: how many indices of the factor a device holds after a gather, or before a reduce-scatter.
    copies: into how many shards the factor is then still split. gathers: of the operands that are
    gathered in panels. number: how many panels there are. scattered: the mesh axes over which every
    panel of the product is reduced and scattered.
    """

    factor: str
    size: int
    copies: int
    gathers: Gathers
    cell: int
    number: int
    scattered: Axes = ()

    def indices(self, length: int, low: int, high: int) -> np.ndarray:
        """The indices below `length`, whole cells, from `low` to `high` in their cells."""
        return np.add.outer(np.arange(0, length, self.cell), np.arange(low, high)).reshape(-1)


def _cut(
    rule: Rule, sizes: Mapping[str, int], strategy: OpStrategy, gathers: Gathers
) -> FactorPanels | None:
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
            return FactorPanels(dim[0], size, copies, members, cell, number)
    return None


def _scattering(rule: Rule, sizes: Mapping[str, int], out: ArrayType) -> FactorPanels | None:
    """Return how a product with partial sums is cut along the first of its dims that is long enough
    for panels of equal shards; None if there is none."""
    mesh, axes = out.mesh, tuple([a for a, r in enumerate(out.layout.reductions) if r])
    number = math.prod(mesh.sizes[a] for a in axes)
    for (factor, *others), split, size in zip(
        rule.outs[0], out.layout.dims, out.local_shape, strict=True
    ):
        copies, cell = math.prod(mesh.sizes[a] for a in split), -(-size // number)
        is_even = size % number == 0 and size * copies == sizes[factor]
        if not others and cell >= number > 1 and (is_even or copies == 1):
            return FactorPanels(factor, size, copies, {}, cell, number, axes)
    return None


class Panel(NamedTuple):
    """One panel of a product; indices are those of the factor, one array for every block.

    places: where the panel lies on a device, in the operands that have it whole. shares: by operand
    that is gathered, what it takes of a shard. valid: what a gather makes that is no padding; None
    for all. gathers: of the shares. plan: of the product of the panels of both operands. scatters:
    the transitions of the product. targets: where the product of the panel lies in the result.
    """

    places: list[Block]
    shares: Mapping[int, list[Block]]
    valid: list[Block] | None
    gathers: Gathers
    plan: Plan
    scatters: tuple[Transition, ...]
    targets: list[Block]


class PanelProduct:
    """A product of two operands, panel by panel: a function of the blocks of both.

    plan: that of the rule, for operands of these types.
    """

    def __init__(
        self, product: Op[..., Any], plan: Plan, types: tuple[ArrayType, ...],
        static: dict[str, Any], strategy: OpStrategy, cut: FactorPanels,
    ) -> None:  # fmt: skip
        self.product, self.plan, self.types, self.static = product, plan, types, static
        self.strategy, self.cut = strategy, cut
        self.moved = moved = [t for t in plan.moved if t is not None]
        rule, sizes, _ = product.declaration.bound_rule(tuple(moved), static)
        self.dims = [_dim_of(cut.factor, term) for term in (*rule.ins, rule.outs[0])]
        dtype = promoted(*[t.dtype for t in moved])
        product_type = ArrayType.of(out_shapes(rule, sizes)[0], dtype, strategy.output_layouts[0])
        self.product_type = product_type
        self.out = _scattered(product_type, self.dims[-1], cut.scattered)
        self.mesh, self.backend = self.out.mesh, backend_of(self.out.mesh)
        bounds = [cut.cell * k // cut.number for k in range(cut.number + 1)]
        self.panels = [self._panel(low, high) for low, high in pairwise(bounds)]

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The gathers and the scatters of all panels."""
        names = self.mesh.axis_names
        return tuple(
            [
                Collective(
                    t.collective,
                    tuple([names[a] for a in t.axes]),
                    t.nbytes,
                    1,
                    t.reduction or None,
                )
                for panel in self.panels
                for t in (*panel.gathers.values(), *panel.scatters)
            ]
        )

    def _panel(self, low: int, high: int) -> Panel:
        """The panel of the indices from `low` to `high` of every cell."""
        cut = self.cut
        places = cut.indices(-(-cut.size // cut.cell) * cut.cell, low, high)
        is_valid = places < cut.size
        if cut.scattered:  # to shards of one length: those beyond the end repeat the last index
            places, is_valid = np.minimum(places, cut.size - 1), np.ones_like(places, bool)
        gathers, shares, types = {}, {}, []
        for n, (moved, dim) in enumerate(zip(self.moved, self.dims, strict=False)):
            if dim is not None and n in cut.gathers:
                have, axes = cut.gathers[n].have, cut.gathers[n].axes
                shares[n] = self._on_devices(cut.indices(have.local_shape[dim], low, high))
                share = _resized(have, dim, len(places) * cut.copies)
                gathers[n] = transition_between("gather", share, moved.layout, axes, dim)
            types.append(_resized(moved, dim, int(is_valid.sum()) * cut.copies))
        on_device = self._on_devices(places[is_valid])
        product = _resized(self.product_type, self.dims[-1], len(places) * cut.copies)
        return Panel(
            on_device,
            shares,
            None if is_valid.all() else self._on_devices(np.flatnonzero(is_valid)),
            gathers,
            self._plan_of(tuple(types)),
            route(product, self.out.layout) if cut.scattered else (),
            self._on_devices(np.arange(low, high)) if cut.scattered else on_device,
        )

    def _plan_of(self, types: tuple[ArrayType, ...]) -> Plan:
        """The plan of the product of panels of these types, which are where they are needed."""
        declaration = self.product.declaration
        rule, sizes, static = declaration.bound_rule(types, self.static)
        strategy = self.strategy._replace(nbytes=0)
        rounds = declaration.rounds(types, static)
        if rounds is not None and not self.cut.scattered:
            rounds = (False,)  # the sum is
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
            (parts,) = panel.plan.run(blocks)
            del blocks
            for transition in panel.scatters:
                parts = run_transition(transition, parts)
            out = self._joined(out, parts, panel.targets)
            del parts  # whose memory the next product takes
        return self._by_block(lambda i, block: block.astype(self.out.dtype, copy=False), out)

    def _operand(self, panel: Panel, n: int, blocks: Blocks) -> Blocks:
        """The part of an operand that belongs to a panel."""
        if n not in panel.gathers:
            return self._taken(blocks, self.dims[n], panel.places)
        shares = self._taken(blocks, self.dims[n], panel.shares[n])
        whole = run_transition(panel.gathers[n], shares)
        return whole if panel.valid is None else self._taken(whole, self.dims[n], panel.valid)

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


def _scattered(array_type: ArrayType, dim: int | None, axes: Axes) -> ArrayType:
    """The type of a partial sum after its reduction over the mesh axes `axes`, which then split
    `dim` too; as it is for no axes."""
    if dim is None or not axes:
        return array_type
    dims = list(array_type.layout.dims)
    dims[dim] = (*dims[dim], *axes)
    reductions = tuple(None if a in axes else r for a, r in enumerate(array_type.layout.reductions))
    return array_type.with_layout(Layout.of(array_type.mesh, tuple(dims), reductions))


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
    return _planned(PanelProduct(product, plan, types, bound, strategy, cut))


def reduced_in_panels(product: Op[..., Any], plan: Plan, x: ArrayType, w: ArrayType) -> Plan | None:
    """Return the plan of a product of a matrix or more and the matrix `w` that gathers a large
    operand, or reduces large partial sums, in panels; None where `plan` does neither."""
    gathering = in_panels(product, plan, x, w)
    dtype, rows = promoted(x.dtype, w.dtype), math.prod(x.shape[:-1])
    nbytes = rows * w.shape[-1] * dtype.itemsize
    if gathering is not None or nbytes < SUMMED or plan.passes:
        return gathering
    rule, sizes, _ = product.declaration.bound_rule((x, w), {})
    strategy = choose(rule, (x, w), sizes)
    out = ArrayType.of(out_shapes(rule, sizes)[0], dtype, strategy.output_layouts[0])
    share = max(x.nbytes + w.nbytes, nbytes) // out.mesh.size
    if not any(out.layout.reductions) or out.local_nbytes < max(SUMMED, MOST_HELD * share + 1):
        return None
    cut = _scattering(rule, sizes, out)
    return cut and _planned(PanelProduct(product, plan, (x, w), {}, strategy, cut))


def _planned(run: PanelProduct) -> Plan:
    """The plan of a call that is computed in panels; on the only block of a mesh, all at once."""
    cut, mesh, xp = run.cut, run.mesh, run.backend.xp
    layouts = [
        cut.gathers[n].have.layout if n in cut.gathers else t.layout
        for n, t in enumerate(run.moved)
    ]
    if mesh.divided:
        block_plan = BlockPlan(layouts, run.out, (), run)
        return plan_of_blocks(run.types, block_plan, run.product.name, run.static)

    def whole(*blocks: Block) -> Block:
        """The product in the only block, where nothing is sent."""
        moved = list(blocks)
        for n, (_, axes, dim, *_, want, _) in cut.gathers.items():
            moved[n] = local.gather(moved[n], mesh.ndim, axes, dim, want.local_shape[dim])
        ((block,),) = run.plan.run([[block] for block in moved])
        counts = tuple([mesh.sizes[a] for a in cut.scattered])
        return local.split(xp, block, mesh.ndim, cut.scattered, counts, run.dims[-1] or 0)

    block_plan = BlockPlan(layouts, run.out, [whole], None, run.collectives)
    return plan_of_blocks(run.types, block_plan, run.product.name, run.static)
