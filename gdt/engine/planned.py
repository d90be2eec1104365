"""Ops that move blocks, or make them of nothing: declared with a planner in place of a rule.

    @planned_op()
    def _copy(x, /):
        return BlockPlan((None,), (x,), [np.copy] * len(x.mesh.blocks))

The planner gets the types of the operands (None for a Python scalar) and the statics, and says to
which layouts the operands are moved first, what the outputs' types are, and which functions of
blocks make them. All else is as with any op: plans are kept, observers told, programs recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from gdt.array.array import DistributedArray
from gdt.backend import backend_of
from gdt.engine.declaration import wide_types
from gdt.engine.one_block import mover
from gdt.engine.op import Op
from gdt.engine.plan import Block, Phase, Plan, Results
from gdt.engine.rounded import Rounded
from gdt.engine.source import Operand, called, compiled
from gdt.errors import DeviceError
from gdt.observe import OBSERVERS, Collective
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh


class BlockPlan(NamedTuple):
    """The plan of a call, as the planner of an op without a rule returns it.

    layouts: the layout to which each operand is moved first; None leaves an operand as it is.
    out: the type of the output.
    functions: for every block of this process, a function that takes the operands' blocks there
        (and Python scalars as they are) and returns the output's block.
    together: for blocks that send data to each other, one function of the lists of all blocks.
    collectives: the collectives that `together` runs, unless it tells observers by itself.

    On a mesh of one block `functions` is the fast path; `together`, if there is one too, runs where
    an observer watches moves.
    """

    layouts: Sequence[Layout | None]
    out: ArrayType
    functions: Sequence[Callable[..., Any]] = ()
    together: Callable[..., Any] | None = None
    collectives: tuple[Collective, ...] = ()


class PlannedOp(Op[..., DistributedArray]):
    """An op with a planner in place of a rule; see `planned_op`."""

    def __init__(
        self,
        planner: Callable[..., BlockPlan],
        view: str = "",
        computes: bool = False,
        action: str = "op",
    ) -> None:
        super().__init__(planner, "", view=view, computes=computes, takes_namespace=False)
        self.planner, self.action = planner, action

    def __reduce__(self) -> str:
        """By name, as functions are."""
        return self.planner.__name__

    def plan(self, args: Sequence[Any], static: dict[str, Any]) -> Plan:
        """Make the plan of a call with these operands and statics."""
        types = self.types_of(args)
        rounds = self.declaration.rounds(types, static)
        described = (self.name, static, self.action)
        if rounds is None:
            return plan_of_blocks(types, self.planner(*types, **static), *described)
        planned = self.planner(*wide_types(types), **static)
        plan = Plan(types, tuple(planned.layouts))
        plan.passes = ()
        wide = plan_of_blocks(wide_types(plan.moved), planned, *described)
        plan.phase = Rounded(self.declaration, plan, wide, rounds)
        return plan


def planned_op(
    *, view: str = "", computes: bool = False, action: str = "op"
) -> Callable[[Callable[..., BlockPlan]], PlannedOp]:
    """Declare an op by its planner: a decorator of `(*types, **statics) -> BlockPlan`.

    The planner's positional parameters are the operands, the keyword-only ones the statics.

    view: operands whose memory the output may share. computes: whether elements are compared or
    computed with, which is done in float32 for those of bfloat16. action: what processes say that
    they have done differently, one of `gdt.comm.differences.DIFFERENCES`.
    """
    return lambda planner: PlannedOp(planner, view, computes, action)


def plan_of_blocks(
    types: tuple[ArrayType | None, ...],
    planned: BlockPlan,
    name: str,
    static: Mapping[str, Any],
    action: str = "op",
) -> Plan:
    """The plan of a call of the op `name` with operands of these types, and these statics, that a
    `BlockPlan` describes."""
    plan, mesh = Plan(types, tuple(planned.layouts)), planned.out.mesh
    plan.sends = plan.moves or planned.together is not None or bool(planned.collectives)
    plan.outs = (planned.out,)
    plan.passes = ()  # whether to resolve an operand is the planner's decision
    plan.phase = Planned(planned)
    plan.note(mesh, name, static, action)
    if planned.functions and not mesh.divided:
        (function,) = planned.functions
        if any(plan.routes):
            movers = enumerate(map(mover, plan.routes))
            arguments = [Operand(n) if m is None else called(m, [Operand(n)]) for n, m in movers]
            function = compiled(called(function, arguments), len(types))
        plan.set_fast(backend_of(mesh).placed(mesh, 0, function))
    return plan


class Planned(Phase):
    """The phase of the plan that a `BlockPlan` describes, all its life long."""

    def __init__(self, planned: BlockPlan) -> None:
        self.function = planned.together or on_each_block(planned.out.mesh, planned.functions)
        self.collectives = planned.collectives
        if planned.out.mesh.device_kind == "abstract" and planned.collectives:
            self.function = partial(_without_values, planned.out, self.function)

    def run(self, operands: Sequence[Any], free: Sequence[Sequence[bool]]) -> Results:
        """See `Phase.run`."""
        for collective in self.collectives:
            for observer in OBSERVERS.get():
                observer.on_collective(collective)
        return (self.function(*operands),)


def _without_values(
    out: ArrayType, function: Callable[..., Any], *operands: Any
) -> Sequence[Block]:
    """Return the blocks that a function makes on abstract devices. Where what devices send each
    other depends on values, as in a sort, these are new blocks: the planner has said their type,
    and what is sent if values lie in random order."""
    try:
        blocks: Sequence[Block] = function(*operands)
    except DeviceError:
        blocks = [backend_of(out.mesh).empty(out.block_shape, out.dtype)]
    return blocks


def on_each_block(
    mesh: Mesh, functions: Sequence[Callable[..., Block]]
) -> Callable[..., list[Block]]:
    """One function of the lists of all blocks, of a function for every block of this process."""
    device_functions = [
        backend_of(mesh).placed(mesh, i, function) for i, function in enumerate(functions)
    ]

    def run(*operands: Any) -> list[Block]:
        return [
            function(*[o[i] if isinstance(o, tuple | list) else o for o in operands])
            for i, function in enumerate(device_functions)
        ]

    return run
