"""Building plans: from a rule, and the way to run it that was chosen, to functions of blocks."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gdt.arguments import misfit_value
from gdt.engine.blocks import PlanBlocks
from gdt.engine.composition import Buffer, after_preparing, as_tuple
from gdt.engine.declaration import Declaration, wide_types
from gdt.engine.launcher import KernelBody
from gdt.engine.merging import Merge
from gdt.engine.plan import Block, Execute, Labels, Plan
from gdt.engine.rounded import RoundedPlan
from gdt.engine.single_block import SingleBlock, combined, mover
from gdt.engine.source import (
    Choice,
    Expression,
    Item,
    NewMemory,
    Operand,
    Tuple,
    Value,
    called,
    compiled,
    compiled_on_blocks,
)
from gdt.engine.specialization import ChosenBody
from gdt.engine.threads import in_threads
from gdt.errors import DtypeError, GdtError, ShapeError, error
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.reduction import combiner
from gdt.sharding.rule import Rule
from gdt.sharding.strategy import OpStrategy


class PlanBuilder:
    """Builds the functions that a plan runs, from the rule of an op and the strategy chosen."""

    def __init__(
        self,
        op: Declaration,
        plan: Plan,
        rule: Rule,
        sizes: Mapping[str, int],
        axes: Mapping[str, Axes],
        layouts: Sequence[Layout],
        static: Mapping[str, Any],
    ) -> None:
        self.op, self.plan, self.static = op, plan, dict(static)
        self.named = dict(static)  # as the call names them
        self.blocks = PlanBlocks(op, rule, sizes, axes, layouts, plan.moved)
        self.mesh, self.backend = self.blocks.mesh, self.blocks.backend
        self.buffer: Buffer | None = None
        self.finish = self._finish()
        self.merge = Merge(self.blocks, self.finish)
        self.kernel_bodies: dict[object, KernelBody] = {}  # by block, or "folded"
        self.chosen_bodies: dict[object, ChosenBody] = {}
        self.bodies: dict[int, tuple[Any, list[Any]]] = {}  # with what prepares each operand

    # ---- assembling

    def build(self) -> None:
        """Set the plan's `execute`; the first run sets its output types and its fast path."""
        op, blocks = self.op, self.blocks
        if "block_shape" in op.injected:
            self.static["block_shape"] = blocks.block_shape(0, reduced=False)
        if "labels" in op.injected:
            self.static["labels"] = Labels(blocks.labels(), blocks.product_order())
        self.alone = not self.mesh.divided and not op.donated
        if self.alone:
            # Inside one block nothing is sent, and the body is called as directly as can be.
            self.single = SingleBlock(blocks, self.static, self._body, self.merge)
            self.inner = self.single.function([None] * len(blocks.moved))
        else:
            self.runs = [self._run(i) for i in range(len(self.mesh.blocks))]
        self.plan.execute = self._with_note(self._first_run)

    def _run(self, block: int) -> Callable[..., tuple[Block, ...]]:
        """Make the function that takes the operands' blocks at one grid coordinate to the body's
        results, combined over the block's coordinates where the rule reduces a factor."""
        op, blocks, finish = self.op, self.blocks, self.finish
        befores = [blocks.before(n, block) for n in range(len(blocks.moved))]
        extra = {"shards": blocks.shards(block)} if "shards" in op.injected else {}
        body = in_threads(self._body({**self.static, **extra}, block), blocks)
        self.bodies[block] = body, befores
        if any(befores):
            body = after_preparing(befores, body)
        combine = combiner(self.backend.xp, op.reduce)

        if op.merge is not None or not (blocks.reduces() or finish):
            return lambda *xs, **out: as_tuple(body(*xs, **out))

        def run(*xs: Block, **out: Any) -> tuple[Block, ...]:
            outs = as_tuple(body(*xs, **out))
            pairs = zip(outs, blocks.overs, strict=True)
            outs = tuple([combine(x, axes) if axes else x for x, axes in pairs])
            return outs if finish is None else as_tuple(finish(*outs))

        return run

    def _body(self, static: Mapping[str, Any], where: object) -> Callable[..., Any]:
        """The op's body; on a backend with kernels its kernel, where that applies; on the host
        its specialized body."""
        op = self.op
        if self.backend.runner is None or op.kernel is None:
            ufunc = getattr(op.body, "ufunc", None)  # which is all that the body calls
            if ufunc is not None:
                return getattr(self.backend.xp, ufunc)  # type: ignore[no-any-return]
            if op.specialization is not None and self.backend.xp is np:
                if where not in self.chosen_bodies:
                    self.chosen_bodies[where] = ChosenBody(op.specialization, op.body, static)
                return self.chosen_bodies[where]
            return partial(op.body, self.backend.xp, **static)
        if where not in self.kernel_bodies:
            self.kernel_bodies[where] = KernelBody(
                op.name, self.mesh.ndim, self.backend, op.kernel, op.body, static,
                selectable=op.has_library,
            )  # fmt: skip
        return self.kernel_bodies[where]

    def _finish(self) -> Callable[..., Any] | None:
        """The op's `finish` with the statics that it names, and the number of elements reduced."""
        if self.op.finish is None:
            return None
        reduced = math.prod(self.blocks.sizes[f] for f in self.blocks.rule.reduced(0))
        names = inspect.signature(self.op.finish).parameters
        arguments = {**self.static, "count": reduced}
        arguments = {k: v for k, v in arguments.items() if k in names}
        return partial(self.op.finish, self.backend.xp, **arguments)

    def _update(self) -> Callable[..., tuple[Block, ...]]:
        """Make the function that takes the operands' blocks, and for each donated operand whether
        it may be overwritten, to the outputs' blocks."""
        scratch, moved = self.op.scratch, self.blocks.moved
        if scratch >= 0 and self.backend.runner is None and moved[scratch] is moved[0]:
            self.plan.scratch = scratch
        flags = len(self.op.donated) + (self.plan.scratch >= 0)
        expression = self._update_expression()
        run = compiled(expression, len(moved) + flags)

        def update(xs: Sequence[Block], free: Sequence[bool]) -> tuple[Block, ...]:
            outputs: tuple[Block, ...] = run(*xs, *free, *[False] * (flags - len(free)))
            return outputs

        update.expression = expression  # type: ignore[attr-defined]
        return update

    def _update_expression(self) -> Expression:
        """The expression of the updated blocks. Its operands are the blocks of the op's operands,
        then a flag for each donated operand and for `scratch`: whether it may be overwritten."""
        op, blocks, count = self.op, self.blocks, len(self.blocks.moved)
        befores = [blocks.before(n, 0) for n in range(count)]
        arguments = [
            Operand(n) if before is None else called(before, [Operand(n)])
            for n, before in enumerate(befores)
        ]
        targets = [
            Choice(Operand(count + n), Operand(d), self._like(d)) for n, d in enumerate(op.donated)
        ]
        keywords: dict[str, Expression] = {"out": Tuple(targets)}
        if self.plan.scratch >= 0:
            flag = Operand(count + len(op.donated))
            scratch = Operand(self.plan.scratch)
            keywords["scratch"] = Choice(flag, scratch, Value("none", None))
        extra = {"shards": blocks.shards(0)} if "shards" in op.injected else {}
        call = called(self._body({**self.static, **extra}, 0), arguments, keywords, op.name)
        return call if len(op.donated) > 1 else Tuple([call])

    def _like(self, n: int) -> Expression:
        """An expression for new memory of the shape and dtype of operand `n`."""
        t: Any = self.blocks.moved[n]
        facts = {"shape": t.block_shape, "dtype": t.dtype, "order": t.memory_order}
        return called(self.backend.empty, [Value(n, f) for n, f in facts.items()], name="empty")

    # ---- running

    def _with_note(self, run: Execute) -> Execute:
        """As `Plan.noted`. Updates are not noted, since optimizers note their steps."""
        if self.op.donated:
            return run
        return self.plan.noted(run, self.mesh, self.op.name, self.named)

    def _execute(
        self, operands: Sequence[Any], owned: Sequence[Sequence[bool]] = ()
    ) -> tuple[Sequence[Block], ...]:
        """Run the plan on the blocks of the moved operands; return the blocks of every output."""
        if self.alone:
            with self.backend.on(self.mesh, 0):
                return tuple((block,) for block in as_tuple(self.inner(*self._at(operands, 0))))
        results = []
        for i, run in enumerate(self.runs):
            xs = self._at(operands, i)
            with self.backend.on(self.mesh, i):
                results.append(run(*xs, **self._out(xs, i, owned)))
        if self.op.merge is not None:
            results = self.merge.merged(results)
        return tuple(zip(*results, strict=True))

    def _at(self, operands: Sequence[Any], i: int) -> list[Any]:
        """Block number `i` of every operand, and Python scalars as they are; a program may have
        them in the memory of every device."""
        types = self.blocks.moved
        return [
            o[i] if t is not None or type(o) is tuple else o
            for o, t in zip(operands, types, strict=True)
        ]

    def _out(self, xs: Sequence[Block], i: int, owned: Sequence[Sequence[bool]]) -> dict[str, Any]:
        """Memory for a body that writes into memory of its caller: the memory of donated operands,
        or recycled memory for large blocks."""
        if self.op.donated:
            free = [o[i] for o in owned] or [False] * len(self.op.donated)
            return {"out": self._targets(xs, free)}
        return {"out": self.backend.empty(*self.buffer)} if self.buffer else {}

    def _targets(self, xs: Sequence[Block], free: Sequence[bool]) -> tuple[Block, ...]:
        """The memory that an update writes to: the donated operand's where it is free, else new."""
        order = self.blocks.moved[0].memory_order  # type: ignore[union-attr]
        empty = self.backend.empty
        if len(free) == 1:
            return (xs[0] if free[0] else empty(xs[0].shape, xs[0].dtype, order),)
        pairs = zip(xs, free, strict=False)
        return tuple([x if mine else empty(x.shape, x.dtype, order) for x, mine in pairs])

    # ---- the first run

    def _first_run(
        self, operands: Sequence[Any], owned: Sequence[Sequence[bool]] = ()
    ) -> tuple[Sequence[Block], ...]:
        """Run the plan once: check the promised shapes, set the output types and the fast path."""
        try:
            if self.alone and self.op.merge is not None:
                self.merge.gathered = self._gathered_apart(operands)
            results = self._execute(operands, owned)
        except TypeError as e:
            raise self._type_error(e) from e
        self._check_promised(results)
        self.plan.outs = tuple(
            ArrayType.of(s, b[0].dtype, w)
            for s, b, w in zip(self.blocks.shapes, results, self.blocks.layouts, strict=True)
        )
        self._recycle(results)
        self.plan.execute = self._with_note(self._execute)
        self._set_fast_path()
        return results

    def _second_run(self, operands: Sequence[Any]) -> tuple[Sequence[Block], ...]:
        """Run the plan on several blocks of the host as one function from then on: compiling it
        takes longer than a run."""
        count = len(self.blocks.moved)
        outputs_of_blocks = [self._block_expression(i) for i in range(len(self.mesh.blocks))]
        execute = compiled_on_blocks(outputs_of_blocks, count, len(self.blocks.shapes))
        self.plan.execute = self._with_note(execute)
        return execute(operands)  # type: ignore[no-any-return]

    def _block_expression(self, block: int) -> Expression:
        """The expression of the outputs' blocks at one grid coordinate."""
        (body, befores), arguments = self.bodies[block], list[Expression]()
        for n, (array_type, before) in enumerate(zip(self.blocks.moved, befores, strict=True)):
            operand = Operand(n) if array_type is None else Item(Operand(n), block)
            arguments.append(operand if before is None else called(before, [operand]))
        keywords = {}
        if self.buffer:
            keywords["out"] = NewMemory(self.backend.empty, self.buffer)
        call = called(body, arguments, keywords, self.op.name)
        return combined(call, self.blocks, self.finish)

    def _gathered_apart(self, operands: Sequence[Any]) -> tuple[int, int]:
        """`Merge.size` of a block in which every coordinate stands for itself, as those of separate
        devices do: where coordinates are folded together, a body may return less."""
        xs = self._at(operands, 0)
        with np.errstate(all="ignore"), self.backend.on(self.mesh, 0):  # the real run warns
            return self.merge.size(self._run(0)(*xs))

    def _check_promised(self, results: Sequence[Sequence[Block]]) -> None:
        """Raise ShapeError for blocks that are not what the rule promises."""
        for n, blocks in enumerate(results):
            promised = self.blocks.block_shape(n, reduced=True)
            for b in blocks:
                if b.shape != promised or b.dtype != blocks[0].dtype:
                    raise error(
                        ShapeError,
                        self.op.name,
                        f"the rule promises blocks of {promised}, the body returned "
                        f"{b.dtype}{b.shape}",
                        operands=self._described(),
                        rule=self.blocks.rule.text,
                    )

    def _recycle(self, results: Sequence[Sequence[Block]]) -> None:
        """Let later calls pass recycled memory to a body that takes it, if its blocks are large."""
        op, first = self.op, results[0][0]
        if "out" in op.injected and not op.donated and len(results) == 1:
            shape = self.blocks.block_shape(0, reduced="labels" in op.injected)
            if first.nbytes >= self.backend.recycled_size:
                labels = self.static.get("labels")  # of a contraction, which relies on the order
                order = labels.order if labels else self.plan.outs[0].memory_order
                self.buffer = Buffer(shape, first.dtype, order)

    def _set_fast_path(self) -> None:
        """Compile the plan's fast path: `fast`, or `fast_update` for donated operands; on several
        blocks of the host, let the second run compile one."""
        plan = self.plan
        if self.alone:
            if self.buffer or self.chosen_bodies:
                self.inner = self.single.function([None] * len(self.blocks.moved), self.buffer)
            movers = [mover(r) for r in plan.routes]
            fast = self.single.function(movers, self.buffer) if any(movers) else self.inner
            plan.set_fast(self.backend.placed(self.mesh, 0, fast))
        elif not self.op.donated and self.op.merge is None and self.backend.xp is np:
            plan.execute = self._with_note(self._second_run)
        elif self.op.donated and not plan.moves:
            plan.kernel_bodies = tuple(self.kernel_bodies.values())
            if len(self.mesh.blocks) == 1:
                plan.fast_update = self.backend.placed(self.mesh, 0, self._update())

    # ---- errors

    def _described(self) -> dict[str, object]:
        names = [self.op.operand_name(i) for i in range(len(self.plan.types))]
        return {
            n: t if t is not None else "Python scalar"
            for n, t in zip(names, self.plan.types, strict=True)
        }

    def _type_error(self, cause: TypeError) -> Exception:
        if isinstance(cause, GdtError):
            return cause
        misfit = misfit_value(self.op.body, self.op.name, self.static)
        if misfit is not None:
            return misfit
        problem = str(cause).splitlines()[0]
        if "not supported for the input types" in problem:  # NumPy's, of ufuncs without a loop
            dtypes = [str(t.dtype) for t in self.plan.types if t is not None]
            problem = f"does not take {', '.join(dtypes)}"
        return error(DtypeError, self.op.name, problem, operands=self._described())


def plan_of(
    op: Declaration,
    types: tuple[ArrayType | None, ...],
    rule: Rule,
    sizes: Mapping[str, int],
    static: Mapping[str, Any],
    strategy: OpStrategy,
    rounds: tuple[bool, ...] | None = None,
) -> Plan:
    """The plan that runs an op by one of the strategies that its rule allows.

    rounds: `Declaration.rounds` of the call.
    """
    plan = Plan(types, strategy.target_layouts)
    if rounds is None:
        PlanBuilder(op, plan, rule, sizes, strategy.axes, strategy.output_layouts, static).build()
        return plan
    wide = Plan(plan.moved, strategy.target_layouts)  # of operands that have moved
    wide.moved = wide_types(plan.moved)
    PlanBuilder(op, wide, rule, sizes, strategy.axes, strategy.output_layouts, static).build()
    return RoundedPlan(op, plan, wide, rounds).plan
