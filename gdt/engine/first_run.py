"""The first phase of a plan: from a rule, and the strategy that was chosen, to the first run, which
checks what the rule promises, and learns the dtypes of the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gdt.arguments import misfit_value
from gdt.engine.blocks import PlanBlocks
from gdt.engine.declaration import Declaration, wide_types
from gdt.engine.donated import Update
from gdt.engine.many_blocks import ManyBlocks
from gdt.engine.one_block import OneBlock
from gdt.engine.plan import Phase, Plan, Results
from gdt.engine.rounded import Rounded, runs_on_bfloat16
from gdt.errors import DtypeError, GdtError, ShapeError, error
from gdt.sharding.array_type import ArrayType
from gdt.sharding.prices import OpStrategy
from gdt.sharding.rule import Rule


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
    computed = plan
    if rounds is not None:
        computed = Plan(plan.moved, strategy.target_layouts)  # of operands that have moved
        if not runs_on_bfloat16(op, computed):
            computed.moved = wide_types(plan.moved)
        plan.phase = Rounded(op, plan, computed, rounds)
    blocks = PlanBlocks(
        op, rule, sizes, strategy.axes, strategy.output_layouts, computed.moved, static, rounds
    )
    then: ManyBlocks | OneBlock | Update
    if op.donated:
        then = Update(computed, blocks)
    else:
        then = ManyBlocks(blocks) if blocks.mesh.divided else OneBlock(computed, blocks)
        plan.note(blocks.mesh, op.name, static)  # optimizers note their steps by themselves
    computed.phase = Unrun(computed, then)
    return plan


class Unrun(Phase):
    """The phase of a plan before its first run; `then` follows it."""

    def __init__(self, plan: Plan, then: OneBlock | ManyBlocks | Update) -> None:
        self.plan, self.then = plan, then
        self.blocks, self.op = then.blocks, then.blocks.op

    def run(self, operands: Sequence[Any], free: Sequence[Sequence[bool]]) -> Results:
        """Run the plan once: check the promised shapes, and set the types of the outputs."""
        try:
            results = self.then.run(operands, free)
        except TypeError as e:
            raise self._type_error(e) from e
        self._check_promised(results)
        self.plan.outs = tuple(
            ArrayType.of(s, b[0].dtype, w)
            for s, b, w in zip(self.blocks.shapes, results, self.blocks.layouts, strict=True)
        )
        self.then.begin(results)
        self.plan.phase = self.then
        return results

    def _check_promised(self, results: Results) -> None:
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

    def _described(self) -> dict[str, object]:
        types = enumerate(self.plan.types)
        return {self.op.operand_name(i): "Python scalar" if t is None else t for i, t in types}

    def _type_error(self, cause: TypeError) -> Exception:
        if isinstance(cause, GdtError):
            return cause
        misfit = misfit_value(self.op.body, self.op.name, self.blocks.static)
        if misfit is not None:
            return misfit
        problem = str(cause).splitlines()[0]
        if "not supported for the input types" in problem:  # NumPy's, of ufuncs without a loop
            dtypes = [str(t.dtype) for t in self.plan.types if t is not None]
            problem = f"does not take {', '.join(dtypes)}"
        return error(DtypeError, self.op.name, problem, operands=self._described())
