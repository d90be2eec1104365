"""Plans with donated operands: the outputs are written into the memory of the operands where that
is free, see `gdt.engine.updates`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gdt.engine.blocks import PlanBlocks
from gdt.engine.launcher import KernelBody
from gdt.engine.plan import Block, Phase, Plan, Results
from gdt.engine.source import (
    Choice,
    Expression,
    Operand,
    Tuple,
    Value,
    as_tuple,
    called,
    compiled,
)


class Update(Phase):
    """The phase of a plan with donated operands.

    update: where the only block of each donated operand stays where it is: the function of the
        operands' blocks and of flags, which say for each donated operand whether it may be
        overwritten, to the blocks that take their place. scratch: the operand that this function
        may use up if one flag more says so, or -1. kernel_bodies: on a backend with kernels those
        of every block, of donated operands that stay where they are.
    """

    def __init__(self, plan: Plan, blocks: PlanBlocks) -> None:
        self.plan, self.blocks, self.op = plan, blocks, blocks.op
        places = range(len(blocks.mesh.blocks))
        self.bodies = [blocks.body(i) for i in places]
        self.befores = [[blocks.before(n, i) for n in range(len(blocks.moved))] for i in places]

    def begin(self, results: Results) -> None:
        """Take up the phase after the first run: compile the update of the only block."""
        mesh, backend = self.blocks.mesh, self.blocks.backend
        if self.plan.moves:
            return
        self.kernel_bodies = tuple([b for b in self.bodies if isinstance(b, KernelBody)])
        if len(mesh.blocks) == 1:
            self.update = backend.placed(mesh, 0, self._update())

    def run(self, operands: Sequence[Any], free: Sequence[Sequence[bool]]) -> Results:
        """See `Phase.run`."""
        results, blocks = [], self.blocks
        for i, (body, befores) in enumerate(zip(self.bodies, self.befores, strict=True)):
            xs = blocks.at(operands, i)
            mine = [f[i] for f in free] or [False] * len(self.op.donated)
            with blocks.backend.on(blocks.mesh, i):
                pairs = zip(xs, befores, strict=True)
                ready = [x if before is None else before(x) for x, before in pairs]
                results.append(as_tuple(body(*ready, out=self._targets(xs, mine))))
        return tuple(zip(*results, strict=True))

    def _targets(self, xs: Sequence[Block], free: Sequence[bool]) -> tuple[Block, ...]:
        """The memory that the body writes: that of a donated operand where it is free, else new."""
        empty, order = self.blocks.backend.empty, self.blocks.moved[0].memory_order  # type: ignore[union-attr]
        pairs = zip(xs, free, strict=False)
        return tuple([x if mine else empty(x.shape, x.dtype, order) for x, mine in pairs])

    def _update(self) -> Callable[..., tuple[Block, ...]]:
        """Compile the update of the only block."""
        moved, scratch = self.blocks.moved, self.op.scratch
        if scratch >= 0 and self.blocks.backend.runner is None and moved[scratch] is moved[0]:
            self.scratch = scratch
        flags = len(self.op.donated) + (self.scratch >= 0)
        expression = self._expression()
        run: Callable[..., tuple[Block, ...]] = compiled(expression, len(moved) + flags)

        def update(xs: Sequence[Block], free: Sequence[bool]) -> tuple[Block, ...]:
            return run(*xs, *free, *[False] * (flags - len(free)))

        update.expression = expression  # type: ignore[attr-defined]
        return update

    def _expression(self) -> Expression:
        """The expression of the updated blocks. Its operands are the blocks of the op's operands,
        then the flags."""
        count, donated = len(self.blocks.moved), self.op.donated
        arguments = [
            Operand(n) if before is None else called(before, [Operand(n)])
            for n, before in enumerate(self.befores[0])
        ]
        targets = [
            Choice(Operand(count + n), Operand(d), self._like(d)) for n, d in enumerate(donated)
        ]
        keywords: dict[str, Expression] = {"out": Tuple(targets)}
        if self.scratch >= 0:
            flag, scratch = Operand(count + len(donated)), Operand(self.scratch)
            keywords["scratch"] = Choice(flag, scratch, Value("none", None))
        call = called(self.bodies[0], arguments, keywords, self.op.name)
        return call if len(donated) > 1 else Tuple([call])

    def _like(self, n: int) -> Expression:
        """An expression for new memory of the shape and dtype of operand `n`."""
        t: Any = self.blocks.moved[n]
        facts = {"shape": t.block_shape, "dtype": t.dtype, "order": t.memory_order}
        empty = self.blocks.backend.empty
        return called(empty, [Value(n, f) for n, f in facts.items()], name="empty")
