"""Plans on a mesh of one block: a body, the combination of coordinates inside the block, and the
merge of statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from gdt.comm import local
from gdt.comm.relayout import run_transition, transitions_inside
from gdt.engine.blocks import PlanBlocks
from gdt.engine.loops import ChosenBody
from gdt.engine.merging import Merge
from gdt.engine.plan import Block, Phase, Plan, Results
from gdt.engine.source import (
    Buffer,
    Expression,
    NewMemory,
    Operand,
    Unpacked,
    Value,
    as_tuple,
    called,
    compiled,
    in_turn,
    reshaped,
)
from gdt.engine.threads import in_threads
from gdt.observe import OBSERVERS
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.reduction import combiner
from gdt.sharding.routes import Transition

Mover = Callable[[Block], Block] | None  # None leaves a block as it is


class OneBlock(Phase):
    """The phase of a plan inside the only block of a mesh, where nothing is sent; everything that
    shapes decide is decided before the first run."""

    def __init__(self, plan: Plan, blocks: PlanBlocks) -> None:
        self.plan, self.blocks, self.merge = plan, blocks, Merge(blocks)
        self.folded, self.folds = folded(blocks)
        self.body = in_threads(self.folded.body(0), self.folded)
        self.function = self._function([None] * len(blocks.moved))

    def begin(self, results: Results) -> None:
        """Take up the phase after the first run, which has had these results: set the plan's fast
        path, where a large result is written into recycled memory."""
        buffer, stay = self.blocks.buffer(results[0][0]), [None] * len(self.blocks.moved)
        if buffer or isinstance(self.body, ChosenBody):
            self.function = self._function(stay, buffer)
        movers = [mover(r) for r in self.plan.routes]
        fast = self._function(movers, buffer) if any(movers) else self.function
        self.plan.set_fast(self.blocks.backend.placed(self.blocks.mesh, 0, fast))

    def run(self, operands: Sequence[Any], free: Sequence[Sequence[bool]]) -> Results:
        """See `Phase.run`."""
        xs = self.blocks.at(operands, 0)
        with self.blocks.backend.on(self.blocks.mesh, 0):
            if self.merge.axes and self.merge.reductions is None:
                # Where coordinates are folded together, a body may return less than those of
                # separate devices do.
                with np.errstate(all="ignore"):  # the real run warns
                    apart = block_function(self.blocks, self.blocks.body(0), 0)(*xs)
                    self.merge.find_reductions(apart)
            return tuple([(block,) for block in as_tuple(self.function(*xs))])

    def _function(
        self, movers: Sequence[Mover], buffer: Buffer | None = None
    ) -> Callable[..., Any]:
        """The function from the operands' only blocks to the outputs' (one or a tuple).

        movers: the function that moves each operand first. buffer: recycled memory, for a body that
            takes it.
        """
        arguments = [
            self._prepared(n, transitions)
            for n, transitions in enumerate(zip(movers, self.folds, strict=True))
        ]
        keywords = {"out": self._memory(buffer, arguments)} if buffer else {}
        body = called(self.body, arguments, keywords, self.blocks.op.name)
        if self.blocks.op.merge is not None:
            return self._merging(body)
        return self._compiled(combined(body, self.folded))

    def _compiled(self, expression: Expression) -> Callable[..., Any]:
        return compiled(expression, len(self.blocks.moved))

    def _prepared(self, n: int, transitions: Sequence[Mover]) -> Expression:
        """The expression of operand `n` after its transitions, as the body takes it."""
        operand: Expression = Operand(n)
        for transition in (*transitions, self.folded.before(n, 0)):
            if transition is not None:
                operand = called(transition, [operand])
        return operand

    def _memory(self, buffer: Buffer, arguments: Sequence[Expression]) -> Expression:
        """The expression of the memory for a body's result. It lies as the first operand of its
        shape does, as NumPy has it: through memory that lies otherwise, an element-wise function of
        a transposed view would take several times longer."""
        empty = self.folded.backend.empty
        for n, argument in enumerate(arguments):
            array_type = self.folded.moved[n]
            is_alike = array_type is not None and array_type.block_shape == buffer.shape
            if (
                is_alike
                and isinstance(argument, Operand)
                and "labels" not in self.folded.op.injected
            ):
                return NewMemory(empty, buffer, like=argument)
        return NewMemory(empty, buffer)

    def _merging(self, body: Expression) -> Callable[..., Any]:
        """`body`, then the merge of its statistics, which is reported as separate devices do it."""
        merge, finish, is_folded = self.merge, self.blocks.finish, not self.folded.merged_axes()
        alone = body if finish is None else called(finish, [Unpacked(called(as_tuple, [body]))])
        if not merge.axes:
            return self._compiled(alone)
        run = self._compiled(alone if is_folded else body)

        def merged(*xs: Block) -> Any:
            if OBSERVERS.get():
                merge.report(merge.reductions or ())
            if is_folded:
                return run(*xs)
            outs = merge.inside(as_tuple(run(*xs)))
            return outs if len(outs) > 1 else outs[0]

        if is_folded:  # for a program, which runs where nobody observes
            merged.expression = alone  # type: ignore[attr-defined]
        return merged


def combined(body: Expression, blocks: PlanBlocks) -> Expression:
    """`body`, then the combination of the coordinates of a block, and `finish`."""
    overs, finish = blocks.overs, blocks.finish
    if len(overs) == 1:
        if overs[0]:
            combine = combiner(blocks.backend.xp, blocks.op.reduce)
            body = called(combine, [body, Value("axes", overs[0])])
        return body if finish is None else called(finish, [body])
    if any(overs):
        body = called(partial(_combined, blocks), [Unpacked(body)])
    return body if finish is None else called(finish, [Unpacked(body)])


def _combined(blocks: PlanBlocks, *outs: Block) -> tuple[Block, ...]:
    """The outputs of a body, combined over the coordinates of their block where the rule reduces a
    factor."""
    if not any(blocks.overs):
        return outs
    combine = combiner(blocks.backend.xp, blocks.op.reduce)
    pairs = zip(outs, blocks.overs, strict=True)
    return tuple([combine(x, axes) if axes else x for x, axes in pairs])


def block_function(
    blocks: PlanBlocks, body: Callable[..., Any], block: int
) -> Callable[..., tuple[Block, ...]]:
    """The function that takes the operands' blocks at one grid coordinate to the body's results,
    which are statistics, or combined over the block's coordinates and finished."""
    befores = enumerate(blocks.before(n, block) for n in range(len(blocks.moved)))
    preparations = [(n, before) for n, before in befores if before is not None]

    def run(*xs: Block, **out: Any) -> tuple[Block, ...]:
        ready = list(xs)
        for n, before in preparations:
            ready[n] = before(ready[n])
        outs = as_tuple(body(*ready, **out))
        if blocks.op.merge is not None:
            return outs
        outs, finish = _combined(blocks, *outs), blocks.finish
        return outs if finish is None else as_tuple(finish(*outs))

    return run


def mover(transitions: Sequence[Transition]) -> Mover:
    """A route inside the only block of a mesh."""
    if not transitions:
        return None
    transitions = transitions_inside(transitions)

    def move(x: Block) -> Block:
        for transition in transitions:
            (x,) = run_transition(transition, [x])
        return x

    return move if transitions else None


def folded(blocks: PlanBlocks) -> tuple[PlanBlocks, list[Mover]]:
    """Fold the mesh axes of each factor that every output lacks into its dim: inside one block such
    a factor need not stay split, and has no padding. Return the blocks with such dims, and the
    functions that make them from the blocks of the moved operands."""
    unchanged: tuple[PlanBlocks, list[Mover]] = blocks, [None] * len(blocks.moved)
    gone = _foldable(blocks)
    folds: list[Mover] = [None] * len(blocks.moved)
    types = list(blocks.moved)
    for n, (array_type, term) in enumerate(zip(blocks.moved, blocks.rule.ins, strict=True)):
        for d, dim in enumerate(term):
            if array_type is None or not gone & set(dim) or not array_type.layout.dims[d]:
                continue
            now = types[n]
            if len(dim) > 1 or now is None:
                return unchanged
            types[n], fold = _fold(array_type, now, d)
            folds[n] = in_turn(folds[n], fold)
    if not any(folds):
        return unchanged
    axes = {f: a for f, a in blocks.axes.items() if f not in gone}
    whole = PlanBlocks(
        blocks.op,
        blocks.rule,
        blocks.sizes,
        axes,
        blocks.layouts,
        types,
        blocks.static,
        blocks.rounds,
    )
    return whole, folds


def _foldable(blocks: PlanBlocks) -> set[str]:
    """The split factors that every output lacks; for a contraction, which joins mesh axes and dims
    by itself, those whose shards have padding."""
    rule, mesh = blocks.rule, blocks.mesh
    alone = {t[0] for term in rule.ins for t in term if len(t) == 1}
    return {
        f
        for f in alone
        if (axes := blocks.axes.get(f))
        and all(f in rule.reduced(n) for n in range(len(rule.outs)))
        and (
            "labels" not in blocks.op.injected
            or blocks.sizes[f] % math.prod(mesh.sizes[a] for a in axes)
        )
    }


def _fold(array_type: ArrayType, now: ArrayType, d: int) -> tuple[ArrayType, Mover]:
    """The type of an operand, folded as far as `now`, once dim `d` is whole; and the function that
    folds its block: a view of a large block, which lies in memory as the whole array does."""
    axes, mesh_ndim = array_type.layout.dims[d], array_type.mesh.ndim
    order, shape = local.gathered(now.block_shape, mesh_ndim, axes, d)
    whole = (*now.layout.dims[:d], (), *now.layout.dims[d + 1 :])
    whole_type = array_type.with_layout(Layout.of(array_type.mesh, whole, now.layout.reductions))
    long = [i for i in order if now.block_shape[i] > 1]
    are_neighbours = long == sorted(long)  # the mesh axes and the dim
    fold = partial(reshaped, shape) if are_neighbours else partial(_merged, order, shape)
    if d not in array_type.uneven:
        return whole_type, fold
    elements = (*[slice(None)] * (mesh_ndim + d), slice(array_type.shape[d]))
    return whole_type, in_turn(fold, itemgetter(elements))


def _merged(order: tuple[int, ...], shape: tuple[int, ...], x: Block) -> Block:
    return x.transpose(order).reshape(shape)
