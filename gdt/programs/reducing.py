"""Chains with reductions: sums, largest and smallest numbers of rows, with the element-wise calls
before and after, and sums of columns or of all elements that end a chain.

A chain has one `Grid`: rows of one length, in which blocks are read (`gdt.fusion.reducing`). An
operand is whole, or has an element for each row, or those of one row, or one in all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gdt.engine.source import CallExpression, Value
from gdt.fusion.loop import are_compiled, narrowed, packed
from gdt.fusion.op_formula import OpFormula, code_of, formula_of
from gdt.fusion.reducing import SUMS, Grid, ReducingLoop, add_sums, in_c_order, large_grid
from gdt.fusion.row_text import GraphCall
from gdt.programs.aliases import blocks_of
from gdt.programs.element_calls import (
    Argument,
    ElementCall,
    LoopInput,
    is_on_host,
    is_pure,
    normalized,
    parts_of,
)
from gdt.programs.fused_function import FusedFunction, Run
from gdt.programs.graph_writer import GraphWriter
from gdt.programs.instruction import Instruction

Block = Any
Shape = tuple[int, ...]


MOST_KEPT = 1 << 18  # bytes of a thread's stack, of which some systems have 512 KiB


class ReductionCall(NamedTuple):
    """An instruction that computes with reductions of rows, or a sum.

    text: the formula. grid: of the operands. finish, formula: the function of the result that is
    called at the end, if there is one, and its formula. output: the register of the output. shape:
    of each block of the operands. is_row: whether it makes an element for each row. device: None,
    the host.
    """

    instruction: Instruction
    text: str
    grid: Grid
    arguments: tuple[Argument, ...]
    finish: Callable[[Block], Block] | None
    formula: OpFormula | None
    output: int
    shape: Shape
    is_row: bool
    device: None = None


def reduction_call(k: Instruction, values: Sequence[Any]) -> ReductionCall | None:
    """The call with reductions that an instruction makes; None if it makes none that a loop
    computes."""
    if not is_pure(k) or not k.inputs or not are_compiled():
        return None
    outs = blocks_of(values[k.outputs[0]])
    blocks = [b for r in k.inputs for b in blocks_of(values[r])]
    if not all(map(is_on_host, (*outs, *blocks))):
        return None
    if len({(b.shape, b.dtype) for b in blocks}) > 1 or any(
        o.dtype != blocks[0].dtype for o in outs
    ):
        return None
    parts = [_taken_apart(part) for part in parts_of(k, len(outs))]
    if not parts or parts[0] is None or any(part != parts[0] for part in parts):
        return None
    (text, name), static, operands, finish, keywords = parts[0]
    block, dtype, axes = blocks[0], static.get("dtype"), static["axis"]
    shapes = {block.shape if shape is None else shape for _, shape, _ in operands}
    seen = shapes.pop()
    grid = large_grid(seen, tuple(range(-len(seen), 0)) if axes is None else axes, name)
    if shapes or grid is None:
        return None
    if block.dtype.char not in "fd" or (dtype is not None and dtype != block.dtype):
        return None
    call = None if finish is None else partial(finish, np, **dict(keywords))
    formula = None if finish is None else formula_of(finish, dict(keywords))
    arguments = tuple([Argument(k.inputs[number], shape) for number, shape, _ in operands])
    output = k.outputs[0]
    return ReductionCall(
        k, text, grid, arguments, call, formula, output, block.shape, outs[0].size == grid.rows
    )


def _taken_apart(part: Any) -> Any:
    """The formula and the name of the reduction that an expression calls, its statics, its operands
    as `element_calls.normalized` gives them, the function that finishes it or None, and the statics
    of that."""
    finish, keywords = None, ()
    if isinstance(part, CallExpression) and len(part.arguments) == 2:
        inner = part.arguments[1]
        if isinstance(inner, CallExpression) and isinstance(part.arguments[0], Value):
            found = normalized(part._replace(arguments=[]))
            if found is None or not hasattr(found[0], "formula"):
                return None
            finish, _, keywords = found
            part = inner
    found = normalized(part)
    formula = getattr(found[0], "of_rows", None) if found else None
    if found is None or formula is None:
        return None
    operands = [a for a in found[1] if a is None or a[0] is not None]
    if not operands or None in operands:
        return None
    return formula, dict(found[2]), operands, finish, keywords


# ---------------------------------------------------------------- shapes


def rows_shape(shape: Shape, grid: Grid) -> tuple[int, Shape] | None:
    """The number of axes of a shape that stand before the rows of a grid, and the shape of what has
    one element for each row; None if no axes are a row."""
    length = 1
    for axis in range(len(shape) - 1, -1, -1):
        length *= shape[axis]
        if length == grid.length and grid.rows * grid.length == grid.size:
            return axis, (*shape[:axis], *[1] * (len(shape) - axis))
    return None


def kind_in(shape: Shape, seen: Shape, grid: Grid) -> tuple[str, Shape] | None:
    """The kind of an operand of shape `seen` that broadcasts to `shape`, see `ReducingLoop`, and
    the shape that it is broadcast to, where it is small; None if it is of no kind."""
    size, found = math.prod(seen), rows_shape(shape, grid)
    if size in (1, grid.size):
        return "one" if size == 1 else "whole", seen
    if found is None or len(seen) > len(shape):
        return None
    axis, of_rows = found
    padded = (1,) * (len(shape) - len(seen)) + seen
    if math.prod(padded[axis:]) == 1:
        return "row", of_rows
    of_columns = (*[1] * axis, *shape[axis:])
    return ("column", of_columns) if math.prod(padded[:axis]) == 1 else None


class Group:
    """Calls that are one chain: on blocks of one shape, on one device.

    rows: the registers of what has one element for each row of the grid.
    """

    def __init__(self, first: ElementCall | ReductionCall, values: Sequence[Any]) -> None:
        self.shape, self.device, self.values = first.shape, first.device, values
        self.grid: Grid | None = None
        self.rows: set[int] = set()

    def takes(self, call: ElementCall | ReductionCall) -> bool:
        """Whether a call becomes part of the chain, whose calls make its operands."""
        if call.device != self.device:
            return False
        if isinstance(call, ReductionCall):
            own = self.grid or call.grid
            if call.shape != self.shape or any(a.register in self.rows for a in call.arguments):
                return False
            if (own.rows, own.length) != (call.grid.rows, call.grid.length):
                return False
            self.grid = own if own.reduced == "columns" else call.grid
            if call.is_row and call.grid.reduced == "rows":
                self.rows.add(call.output)
            return True
        arguments = [a for a in call.arguments if isinstance(a, Argument)]
        of_rows = [a for a in arguments if a.register in self.rows]
        if call.shape == self.shape:
            found = rows_shape(self.shape, self.grid) if self.grid else None
            return all(found and self._seen(a) == found[1] for a in of_rows)
        if not of_rows or any(self._seen(a) not in (call.shape, ()) for a in arguments):
            return False
        self.rows.add(call.output)
        return True

    def ends(self, call: ElementCall | ReductionCall) -> bool:
        """Whether the result of a call of the chain is known at its end only."""
        return isinstance(call, ReductionCall) and call.grid.reduced in SUMS

    def _seen(self, argument: Argument) -> Shape:
        block = blocks_of(self.values[argument.register])[0]
        return getattr(block, "shape", ()) if argument.shape is None else argument.shape


# ---------------------------------------------------------------- the loop of a chain


class ReducingWriter(GraphWriter):
    """A writer of the calls of a chain with reductions.

    ends: by register, the sums that are known at the end.
    of_rows, of_elements: the operands of calls that compute an element for each row, and of others.
    reduced: those of calls with reductions.
    """

    def __init__(self, values: Sequence[Any], shape: Shape, grid: Grid) -> None:
        super().__init__(values, frozenset())
        self.shape, self.grid = shape, grid
        self.ends: dict[int, ReductionCall] = {}
        self.of_rows, self.of_elements = set[Argument](), set[Argument]()
        self.reduced = set[Argument]()

    def write(self, call: Any) -> bool:
        """Add a call; return whether the loop can compute it."""
        if not isinstance(call, ReductionCall):
            places = self.of_rows if call.shape != self.shape else self.of_elements
            is_written = super().write(call)
            for argument in call.arguments:
                if isinstance(argument, Argument):
                    places.add(argument)
            return is_written
        graph = self.graph
        dtype = code_of(blocks_of(self.values[call.output])[0].dtype)
        operands = [self._operand(a, dtype) for a in call.arguments]
        self.reduced.update(call.arguments)
        if call.grid.reduced in SUMS:
            self.ends[call.output] = call
            node = add_sums(graph, operands[0], call.grid.reduced)
        else:
            node = graph.write(call.text, **dict(zip("xyz", operands, strict=False)))
            if call.text != "sum(x)":  # in which infinities and NaN show
                self.absorbed.update(operands)
            if not call.is_row:
                self.calls.append(GraphCall(node, tuple(operands), is_exact=True))
            if call.formula is not None:
                total, node = node, graph.write(call.formula.text, x=node)
                self.calls.append(GraphCall(node, (total,), is_exact=True))
        self.nodes[call.output] = node
        return True

    def kinds(self) -> list[tuple[str, Shape]] | None:
        """The kind of each input and the shape that it is broadcast to; None if one has none, or
        lies in another order of memory."""
        found = []
        for i in self.inputs:
            blocks = blocks_of(self.values[i.register])
            seen = i.shape
            if seen is None:  # a view that repeats an element is read as that, where it always is
                is_array = isinstance(blocks[0], np.ndarray)
                shapes = {narrowed(b).shape for b in blocks} if is_array else {()}
                seen = shapes.pop() if len(shapes) == 1 else blocks[0].shape
            kind = kind_in(self.shape, seen, self.grid)
            argument = Argument(i.register, i.shape)
            # An op that reduces such a view, or another order of memory, leaves it to NumPy.
            if argument in self.reduced and any(in_c_order(b) is None for b in blocks):
                return None
            if argument in self.of_rows and math.prod(seen) == self.grid.rows:
                if argument in self.of_elements and (kind is None or kind[0] != "row"):
                    return None
                kind = "row", seen
            if kind is None or any(in_c_order(narrowed(np.asarray(b))) is None for b in blocks):
                return None
            found.append(kind)
        return found

    def function(
        self, registers: Sequence[int], returned: Sequence[int], one_by_one: Callable[[], Run]
    ) -> ReducingFunction | None:
        """The function of the chain; None if an operand is of no kind, or if it keeps too much."""
        kinds = self.kinds()
        if kinds is None:
            return None
        outputs, made = [], []
        for register in returned:
            block = blocks_of(self.values[register])[0]
            kind = "whole" if block.size == self.grid.size else "row"
            end = self.ends.get(register)
            outputs.append((self.nodes[register], kind if end is None else end.grid.reduced))
            made.append((block.shape, block.dtype, None if end is None else end.finish))
        results = [n for n, kind in outputs if kind not in SUMS]
        checked = {n for n in (*results, *self.absorbed) if self.can_be_odd(n)}
        inputs = [(i.dtype, kind) for i, (kind, _) in zip(self.inputs, kinds, strict=True)]
        loop = ReducingLoop(
            self.graph, inputs, outputs, sorted(checked), self.calls, packed(self.parameters)
        )  # fmt: skip
        if loop.kept_nbytes > MOST_KEPT:
            return None
        broadcast = [
            (shape, Argument(i.register, i.shape) in self.reduced)
            for i, (_, shape) in zip(self.inputs, kinds, strict=True)
        ]
        return ReducingFunction(
            loop, self.grid, registers, self.inputs, broadcast, made, one_by_one
        )


class ReducingFunction(FusedFunction):
    """The function of a chain with reductions.

    broadcast: for each input its shape, and whether it is reduced as it is. outputs: the shape of
    each, its dtype, and the function that finishes it, or None.
    """

    def __init__(
        self,
        loop: ReducingLoop,
        grid: Grid,
        registers: Sequence[int],
        inputs: Sequence[LoopInput],
        broadcast: Sequence[tuple[Shape, bool]],
        outputs: Sequence[tuple[Shape, np.dtype, Callable[[Block], Block] | None]],
        one_by_one: Callable[[], Run],
    ) -> None:
        self.loop, self.grid, self.broadcast, self.outputs = loop, grid, broadcast, outputs
        self.inputs = [(registers.index(i.register), i.shape, i.dtype) for i in inputs]
        self.one_by_one, self.shapes = one_by_one, None

    @property
    def seconds(self) -> float:
        """The time that the compilation of the loop has taken."""
        return self.loop.seconds

    def _of_all(self, rows: Sequence[Sequence[Any]]) -> list[list[Block]] | None:
        arrays = [self._arrays(row) for row in rows]
        of_all = [own for own in arrays if own is not None]
        shapes, dtypes, finish = zip(*self.outputs, strict=True)
        found = len(of_all) == len(arrays) and self.loop(self.grid, of_all, shapes, dtypes)
        if not found:
            return None
        return [
            [out if f is None else f(out) for out, f in zip(outs, finish, strict=True)]
            for outs in found
        ]

    def _arrays(self, blocks: Sequence[Any]) -> list[Block] | None:
        """The parts of blocks that the loop reads, of every value; None if a block lies in another
        order."""
        arrays = []
        for (place, shape, dtype), (wanted, is_reduced) in zip(
            self.inputs, self.broadcast, strict=True
        ):
            x = blocks[place]
            x = x if isinstance(x, np.ndarray) else np.full((), x, dtype)
            x = in_c_order(x if is_reduced or shape is not None else narrowed(x))
            if x is None or x.size > math.prod(wanted):
                return None
            x = x if shape is None else x.reshape(shape)
            arrays.append(x if x.size == math.prod(wanted) else _broadcast(x, wanted))
        return arrays


def _broadcast(block: Block, shape: Shape) -> Block:
    return np.ascontiguousarray(np.broadcast_to(block, shape))
