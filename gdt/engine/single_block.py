"""The short way: what a plan runs where the mesh has one block, inside which nothing is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from gdt.comm import local
from gdt.comm.relayout import run_transition, transitions_inside
from gdt.engine.blocks import PlanBlocks
from gdt.engine.composition import Buffer, as_tuple, in_turn
from gdt.engine.merging import Merge
from gdt.engine.plan import Block
from gdt.engine.source import (
    Expression,
    NewMemory,
    Operand,
    Unpacked,
    Value,
    called,
    compiled,
    reshaped,
)
from gdt.engine.threads import in_threads
from gdt.observe import OBSERVERS
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.reduction import combiner
from gdt.sharding.routes import Transition

Mover = Callable[[Block], Block] | None  # None leaves a block as it is


class SingleBlock:
    """The functions that run an op inside the only block of a mesh.

    body_of: `(static, where) -> body`, see `PlanBuilder._body`.
    """

    def __init__(
        self,
        blocks: PlanBlocks,
        static: Mapping[str, Any],
        body_of: Callable[[Mapping[str, Any], object], Callable[..., Any]],
        merge: Merge,
    ) -> None:
        self.op, self.blocks, self.merge = blocks.op, blocks, merge
        self.folded, self.folds = folded(blocks)
        body_statics = dict(static)
        if "block_shape" in self.op.injected:
            body_statics["block_shape"] = self.folded.block_shape(0, reduced=False)
        if "shards" in self.op.injected:
            body_statics["shards"] = self.folded.shards(0)
        self.body = in_threads(body_of(body_statics, "folded"), self.folded)

    def function(self, movers: Sequence[Mover], buffer: Buffer | None = None) -> Callable[..., Any]:
        """The function from the operands' only blocks to the outputs' (one or a tuple);
        everything that shapes decide is decided now.

        movers: the function that moves each operand first. buffer: recycled memory, for a body that
            takes it.
        """
        arguments = [
            self._prepared(n, transitions)
            for n, transitions in enumerate(zip(movers, self.folds, strict=True))
        ]
        keywords = {"out": self._memory(buffer, arguments)} if buffer else {}
        body = called(self.body, arguments, keywords, self.op.name)
        if self.op.merge is not None:
            return self._merging(body)
        return self._compiled(combined(body, self.folded, self.merge.finish))

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
            if is_alike and isinstance(argument, Operand) and "labels" not in self.op.injected:
                return NewMemory(empty, buffer, like=argument)
        return NewMemory(empty, buffer)

    def _merging(self, body: Expression) -> Callable[..., Any]:
        """`body`, then the merge of its statistics, which is reported as separate devices do it."""
        merge, axes = self.merge, self.folded.merged_axes()
        finish = merge.finish
        alone = body if finish is None else called(finish, [Unpacked(called(as_tuple, [body]))])
        if not merge.axes:
            return self._compiled(alone)
        run = self._compiled(body if axes else alone)

        def merged(*xs: Block) -> Any:
            if OBSERVERS.get():
                merge.report(*merge.gathered)
            if not axes:
                return run(*xs)
            outs = merge.inside(as_tuple(run(*xs)), axes)
            return outs if len(outs) > 1 else outs[0]

        if not axes:  # for a program, which runs where nobody observes
            merged.expression = alone  # type: ignore[attr-defined]
        return merged


def combined(body: Expression, blocks: PlanBlocks, finish: Callable[..., Any] | None) -> Expression:
    """`body`, then the combination of the coordinates of a block, and `finish`."""
    combine, overs = combiner(blocks.backend.xp, blocks.op.reduce), blocks.overs
    if len(overs) == 1:
        if overs[0]:
            body = called(combine, [body, Value("axes", overs[0])])
        return body if finish is None else called(finish, [body])

    def combine_all(*outs: Block) -> tuple[Block, ...]:
        return tuple([combine(x, o) if o else x for x, o in zip(outs, overs, strict=True)])

    if any(overs):
        body = called(combine_all, [Unpacked(body)])
    return body if finish is None else called(finish, [Unpacked(body)])


def mover(transitions: Sequence[Transition]) -> Mover:
    """A route inside the only block of a mesh."""
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
    return PlanBlocks(blocks.op, blocks.rule, blocks.sizes, axes, blocks.layouts, types), folds


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
