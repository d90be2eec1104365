"""The rows of `gdt.explain`: one for each op that ran, with the strategies that it could choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gdt.array.array import DistributedArray
from gdt.debug.observers import Move, moves_of
from gdt.engine.op import Op
from gdt.engine.planned import PlannedOp
from gdt.observe import Collective, Observer
from gdt.prediction.pricing import OpPricer, PredictedOp
from gdt.programs.fused_function import FusedFunction
from gdt.programs.instruction import Instruction
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.prices import OpStrategy
from gdt.sharding.strategy import considered


class ConsideredStrategy(NamedTuple):
    """A way to run an op that was considered.

    how: the factors of the op's rule that it splits, and over which mesh axes.
    results: the layouts of the results.
    bytes: the bytes that moving the operands sends.
    later: the bytes that are added to its price for reducing partial results later, or for results
        whole because indices are; a strategy that moves nothing makes them for nothing.
    """

    how: str
    results: tuple[Layout, ...]
    bytes: int
    later: int

    def __str__(self) -> str:
        later = f" + {self.later:,} later" if self.later else ""
        return f"{self.how}: {self.bytes:,}{later}"


def considered_for(
    op: Any, args: Sequence[Any], static: Mapping[str, Any]
) -> tuple[ConsideredStrategy, ...]:
    """Return the strategies for a call of `op`, the one of the lowest price first."""
    if not isinstance(op, Op) or isinstance(op, PlannedOp):
        return ()
    types = op.types_of(args)
    rule, sizes, _ = op.declaration.bound_rule(types, dict(static))
    by_price = sorted(considered(rule, types, sizes), key=lambda pair: pair[0])
    return tuple(
        ConsideredStrategy(_how(s, op), s.output_layouts, s.nbytes, price.later)
        for price, s in by_price
    )


def _how(strategy: OpStrategy, op: Op[..., Any]) -> str:
    """Return the text of a strategy, such as `i over data, sums of x pass`."""
    names = strategy.output_layouts[0].mesh.axis_names
    parts = [f"{f} over {', '.join(names[a] for a in axes)}" for f, axes in strategy.axes.items()]
    operands = [op.declaration.operand_name(n) for n in strategy.passed()]
    if operands:
        parts.append(f"sums of {' and '.join(operands)} pass")
    return ", ".join(parts) or "whole operands"


class ExplainRow(NamedTuple):
    """One op that ran.

    op: its name.
    operands, results: the types of its arrays, and the classes of its Python scalars.
    moves: the operands that were moved to another layout.
    collectives: the collectives that ran for the op.
    within: the names of the composites, gradients and resolutions of partial reductions around it,
        outermost first.
    fetched: the bytes that were gathered to the host; such a row is called `fetch`, and is no op.
    strategies: the ways to run the op that were considered, the one that ran first; empty where
        they were not asked for, and for what has no rule.
    predicted: what it takes on a device of a machine; None where no machine was given.
    kernel: the CUDA kernels that it launched, or "body" and why there were none; empty where the
        device or the op has no kernels.
    """

    op: str
    operands: tuple[Any, ...]
    results: tuple[Any, ...]
    moves: tuple[Move, ...]
    collectives: tuple[Collective, ...]
    within: tuple[str, ...]
    kernel: str = ""
    fetched: int | None = None
    strategies: tuple[ConsideredStrategy, ...] = ()
    predicted: PredictedOp | None = None

    @property
    def bytes(self) -> int:
        """The bytes that all devices together sent for the op."""
        return sum(c.bytes for c in self.collectives)


class FusedRow(NamedTuple):
    """A chain of element-wise ops that replays of a recorded step compute as one loop, or on a GPU
    as one kernel.

    ops: their names. line: the user's line of the first. before, bytes: the bytes that the ops
    would read and write one by one, and those that the loop does. seconds: what it has taken to
    compile it in this process, less where it was on disk; 0 before it runs.
    """

    ops: tuple[str, ...]
    line: str
    before: int
    bytes: int
    seconds: float

    @classmethod
    def of(cls, k: Instruction) -> FusedRow:
        """The row of a fused instruction."""
        seconds = k.function.seconds if isinstance(k.function, FusedFunction) else 0.0
        return cls(tuple([f.name for f in k.fused]), k.line, *k.nbytes, seconds)

    def __str__(self) -> str:
        where = f", from {self.line}" if self.line else ""
        compiled = f"; compiled in {1000 * self.seconds:.0f} ms" if self.seconds else ""
        return (
            f"one loop{where}: {', '.join(self.ops)}; "
            f"{self.bytes:,} bytes read and written, not {self.before:,}{compiled}"
        )


class RowRecorder(Observer):
    """The observer of `gdt.explain`, which collects its rows.

    strategies: whether it collects the strategies that were considered for each op. pricer: of what
    each op takes on a machine; an observer that is told before this one.
    """

    def __init__(self, strategies: bool = False, pricer: OpPricer | None = None) -> None:
        self._wants_strategies, self._pricer = strategies, pricer
        self.rows: list[ExplainRow] = []
        self._moves: list[Move] = []
        self._collectives: list[Collective] = []
        self._kernel = ""
        self._entered: list[tuple[str, int]] = []  # names, with the number of rows at their entry

    def on_move(self, op: str, types: tuple[Any, ...], target_layouts: tuple[Any, ...]) -> None:
        self._moves += moves_of(op, types, target_layouts)

    def on_collective(self, collective: Collective) -> None:
        self._collectives.append(collective)

    def on_kernel(self, kernels: str, reason: str) -> None:
        self._kernel = f"body: {reason}" if reason else kernels

    def on_op(self, op: Any, args: tuple[Any, ...], static: dict[str, Any], out: Any) -> None:
        strategies = considered_for(op, args, static) if self._wants_strategies else ()
        self._add(op.name, args, out, strategies)

    def on_fetch(self, array_type: ArrayType, nbytes: int) -> None:
        within = tuple(n for n, _ in self._entered)
        row = ExplainRow("fetch", (array_type,), (), (), (), within, fetched=nbytes)
        self.rows.append(row)

    def on_enter(self, name: str) -> None:
        self._entered.append((name, len(self.rows)))

    def on_leave(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        entered, start = self._entered.pop()
        while entered != name:  # an exception has left it without `on_leave`
            entered, start = self._entered.pop()
        if self._collectives or self._moves or len(self.rows) == start:
            self._add(name, args, out)

    def _add(
        self,
        name: str,
        args: Sequence[Any],
        out: Any,
        strategies: tuple[ConsideredStrategy, ...] = (),
    ) -> None:
        """Add a row with the moves and collectives since the last one."""
        results = out if isinstance(out, tuple | list) else (out,)
        row = ExplainRow(
            name,
            tuple(_type_of(a) for a in args),
            tuple(_type_of(r) for r in results),
            tuple(self._moves),
            tuple(self._collectives),
            tuple(n for n, _ in self._entered),
            self._kernel,
            strategies=strategies,
            predicted=None if self._pricer is None else self._pricer.price_since_last(),
        )
        self.rows.append(row)
        self._moves, self._collectives, self._kernel = [], [], ""


def _type_of(value: Any) -> Any:
    """Return the ArrayType of an array, or the class of a Python scalar."""
    return value.type if isinstance(value, DistributedArray) else type(value)
