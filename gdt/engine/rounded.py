"""Plans of bfloat16: computed in float32, stored in bfloat16.

An op on bfloat16 runs the plan that it has for float32, within two casts: the blocks of its
operands are widened before, and those of its results rounded after. So every rule, body and merge
of coordinates adds up in float32, and none of them knows of bfloat16. What moves between devices
before the op is bfloat16. Ops that do no arithmetic (`computes=False`, and those that return views)
take the blocks as they are.

So do kernels of GPUs that are declared to (`takes_bfloat16=True`): they read bfloat16, add up in
float32, and write bfloat16 where nothing else is done with a result, so that no cast takes a pass
over memory. Where one refuses, `gdt.engine.launcher` widens the blocks.

Which results are rounded says `Declaration.rounds`. Where all are, Python floats are rounded first:
a weak number takes the dtype of the arrays that it meets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.backend import backend_of
from gdt.backend.numpy import order_in_memory
from gdt.backend.protocol import Backend
from gdt.engine.declaration import Declaration
from gdt.engine.one_block import mover
from gdt.engine.plan import Block, Phase, Plan, Results
from gdt.engine.source import (
    CallExpression,
    Expression,
    Operand,
    Value,
    called,
    compiled,
    replaced_operands,
)
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import BFLOAT16, FLOAT32, Dtype

Cast = Callable[[Any], Any] | None  # None leaves a block or a number as it is


class Rounded(Phase):
    """The phase of the plan of a call on bfloat16, all its life long: it runs `wide`, the plan of
    that call on float32, or for a kernel on bfloat16, with operands that have moved already.

    rounds: see `Declaration.rounds`.
    """

    def __init__(self, op: Declaration, plan: Plan, wide: Plan, rounds: tuple[bool, ...]) -> None:
        self.op, self.plan, self.wide, self.rounds = op, plan, wide, rounds
        self.mesh = next(t.mesh for t in plan.types if t is not None)
        self.backend = backend_of(self.mesh)
        plan.sends |= wide.sends
        plan.noted, wide.noted = wide.noted, None
        self.widens = not runs_on_bfloat16(op, plan)
        self.widening = [self._widening(t) for t in plan.types]
        self.rounding: list[Cast] = []  # of the outputs, from the first run on

    def _widening(self, array_type: ArrayType | None) -> Cast:
        if array_type is None:
            return rounded_number if self.rounds == (True,) and not self.op.rounded else None
        return self._cast(FLOAT32) if array_type.dtype == BFLOAT16 and self.widens else None

    def _rounding(self, n: int) -> Cast:
        """The cast of output `n`, if it is a floating-point number that is still to be rounded."""
        rounds = self.rounds[n if len(self.rounds) > 1 else 0]
        return self._cast(BFLOAT16) if rounds and self.wide.outs[n].dtype.kind == "f" else None

    def _cast(self, dtype: Dtype) -> BlockCast:
        return BlockCast(dtype, self.backend)

    def run(self, operands: Sequence[Any], free: Sequence[Sequence[bool]]) -> Results:
        """See `Phase.run`. Of donated operands the wide plan may overwrite those that were
        widened."""
        wide_operands = [
            x if cast is None else self._on_each(cast, x)
            for cast, x in zip(self.widening, operands, strict=True)
        ]
        blocks = len(self.mesh.blocks)
        wide_free = [
            free[n] if free and self.widening[d] is None else [bool(free)] * blocks
            for n, d in enumerate(self.op.donated)
        ]
        wide_results = self.wide.run(wide_operands, wide_free)
        if not self.plan.outs:
            self._begin()
        pairs = zip(self.rounding, wide_results, strict=True)
        return tuple(x if cast is None else self._on_each(cast, x) for cast, x in pairs)

    def _begin(self) -> None:
        """Set the casts of the outputs, their types and the fast path, after the first run."""
        plan, wide = self.plan, self.wide
        self.rounding = [self._rounding(n) for n in range(len(wide.outs))]
        plan.outs = tuple(
            t if cast is None else ArrayType.of(t.shape, BFLOAT16, t.layout)
            for t, cast in zip(wide.outs, self.rounding, strict=True)
        )
        if wide.fast is not None:
            plan.set_fast(self.backend.placed(self.mesh, 0, self._fast()))

    def _on_each(self, cast: Callable[[Any], Any], blocks: Any) -> Any:
        """Cast the blocks of an array on their devices, or a number."""
        if not isinstance(blocks, tuple | list):
            return cast(blocks)
        return tuple(
            self.backend.placed(self.mesh, i, cast)(block) for i, block in enumerate(blocks)
        )

    def _fast(self) -> Callable[..., Any]:
        """The fast path: of the only blocks of the operands, moves included."""
        operands: list[Expression] = []
        for n, (route, cast) in enumerate(zip(self.plan.routes, self.widening, strict=True)):
            operand: Expression = Operand(n)
            for function in (mover(route), cast):
                if function is not None:
                    operand = called(function, [operand])
            operands.append(operand)
        results = called(self.wide.fast, operands, name=self.op.name)  # type: ignore[arg-type]
        if len(self.rounding) > 1 and any(self.rounding):
            results = called(self._rounded_outputs, [results])
        elif self.rounding[0] is not None:
            results = called(self.rounding[0], [results])
        return compiled(results, len(operands))

    def _rounded_outputs(self, outputs: tuple[Block, ...]) -> tuple[Block, ...]:
        pairs = zip(self.rounding, outputs, strict=True)
        return tuple([x if cast is None else cast(x) for cast, x in pairs])


class BlockCast:
    """The cast of a block, a large one into recycled memory."""

    def __init__(self, dtype: Dtype, backend: Backend) -> None:
        self.dtype, self.empty, self.size = dtype, backend.empty, backend.recycled_size

    def __call__(self, block: Block) -> Block:
        """The block as `dtype`."""
        if block.size * self.dtype.itemsize < self.size:
            return block.astype(self.dtype)
        out = self.empty(block.shape, self.dtype, order_in_memory(block))
        np.copyto(out, block, casting="unsafe")
        return out


def expression_in_float32(part: Expression) -> Expression:
    """The expression of the plan for float32 in one that `Rounded` has made, without casts of
    blocks; any other as it is. Numbers are rounded as before."""
    inner = part
    if _casts(inner):
        (inner,) = inner.arguments  # type: ignore[union-attr]
    if not isinstance(inner, CallExpression) or inner.keywords:
        return part
    if inner is part and not any(map(_casts, inner.arguments)):
        return part
    operands = [a.arguments[0] if _casts(a) else a for a in inner.arguments]  # type: ignore[union-attr]
    function = getattr(inner.function.value, "function", inner.function.value)  # if it is placed
    wide = getattr(function, "expression", None)
    if wide is None:
        return CallExpression(Value(inner.function.name, function), operands)
    return replaced_operands(wide, operands) or part


def _casts(part: Expression) -> bool:
    return isinstance(part, CallExpression) and isinstance(part.function.value, BlockCast)


def runs_on_bfloat16(op: Declaration, plan: Plan) -> bool:
    """Whether the op has a kernel for operands of bfloat16 where the plan runs."""
    mesh = next(t.mesh for t in plan.types if t is not None)
    return op.takes_bfloat16 and backend_of(mesh).runner is not None


def rounded_number(x: Any) -> Any:
    """Return a Python float, or an array of one number that a program has in the memory of a
    device, rounded to bfloat16; any other number as it is."""
    if type(x) is float:
        return float(BFLOAT16.type(x))
    dtype = getattr(x, "dtype", None)
    return x.astype(BFLOAT16).astype(dtype) if dtype is not None and dtype.kind == "f" else x
