"""Fusion: consecutive element-wise instructions of a program as one loop over their elements.

A chain of element-wise ops reads and writes memory once for each op, though memory takes longer
than their arithmetic. `fused` finds instructions that compute blocks of one shape from each other
with nothing in between, and puts one instruction in their place: a `FusedFunction`, whose loop
reads each operand once and writes only what is read elsewhere. What an op computes for one element
is its formula (`gdt.fusion`); ops without one are left as they are.

The fused instruction has the bits of those that it replaces. Where a value is infinite or NaN
though its operands are finite, it runs them one by one, which gives their warnings. On a GPU, which
gives none, it is a launch of one kernel (`gdt.fusion.cuda`), for blocks of any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from gdt.fusion.cuda import FUNCTIONS, MOST_INPUTS, FusedKernel
from gdt.fusion.formula import GIVEN, ElementGraph, Node
from gdt.fusion.llvm import GraphCall
from gdt.fusion.loop import SMALLEST, FusedLoop, are_compiled, is_known
from gdt.fusion.op_formula import code_of
from gdt.programs.aliases import blocks_of
from gdt.programs.element_calls import Argument, ElementCall, LoopInput, element_call, kind_of
from gdt.programs.fused_function import FusedFunction, Run, fused_kernel
from gdt.programs.instruction import Instruction
from gdt.programs.slices import Slices

Shape = tuple[int, ...]

FLOAT32_MAX = float(np.finfo(np.float32).max)


def fused(
    instructions: Sequence[Instruction],
    outputs: Sequence[int],
    values: Sequence[Any],
    constants: Set[int],
    program: Callable[[Sequence[Instruction], Sequence[int], Sequence[int]], Run],
) -> list[Instruction]:
    """The instructions of a program, with fused ones in the place of those that can be fused.

    outputs: the registers that the program returns. values: what each register held when the
    program was recorded. constants: the registers that are the same in every run. program: makes a
    function of instructions, of the registers that it takes and of those that it returns.
    """
    calls = [element_call(k, values, constants) for k in instructions]
    readers: dict[int, set[int]] = {}
    for at, k in enumerate(instructions):
        for r in k.inputs:
            readers.setdefault(r, set()).add(at)
    result: list[Instruction] = []
    for is_run, group in groupby(enumerate(calls), lambda pair: pair[1] is not None):
        numbers = [at for at, _ in group]
        if not is_run:
            result += [instructions[at] for at in numbers]
            continue
        for part in _alike(numbers, calls):
            own = {*part}
            returned = [
                r
                for at in part
                for r in instructions[at].outputs
                if r in outputs or not readers.get(r, set()) <= own
            ]
            chosen = [call for at in part if (call := calls[at]) is not None]
            segment = _segment(chosen, returned, values, program)
            result += [segment] if segment else [instructions[at] for at in part]
    return result


def _alike(numbers: Sequence[int], calls: Sequence[ElementCall | None]) -> Iterator[list[int]]:
    """Consecutive calls in groups of one shape and device, ordered so that each runs after its
    operands.

    Of the calls whose operands are computed, those of the smallest shape come first: they are
    operands of larger ones, whose group would else be cut in two.
    """
    waiting = {at: call for at in numbers if (call := calls[at]) is not None}
    while waiting:
        missing = {call.output for call in waiting.values()}
        ready = [c for c in waiting.values() if missing.isdisjoint(c.instruction.inputs)]
        first = min(ready, key=lambda c: math.prod(c.shape))
        group = []
        for at, call in waiting.items():
            is_alike = (call.shape, call.device) == (first.shape, first.device)
            if is_alike and missing.isdisjoint(call.instruction.inputs):
                group.append(at)
                missing.remove(call.output)
        for at in group:
            del waiting[at]
        yield group


def _segment(
    calls: Sequence[ElementCall],
    returned: Sequence[int],
    values: Sequence[Any],
    program: Callable[..., Run],
) -> Instruction | None:
    """One instruction in the place of calls; None if they cannot be fused, or would not be faster.

    returned: the registers of the calls that others read."""
    shape, device = calls[0].shape, calls[0].device
    if not returned or (not device and (len(calls) < 2 or math.prod(shape) < SMALLEST)):
        return None
    functions = FUNCTIONS if device else frozenset()
    is_loop = are_compiled() or device
    written = _GraphWriter(values, functions) if is_loop else Slices(values)
    for call in calls:
        if not written.write(call):
            return None
    shapes = [i.shape or _shape(values[i.register]) for i in written.inputs]
    if all(math.prod(s) == 1 for s in shapes) and not device:
        return None
    registers = list(dict.fromkeys(i.register for i in written.inputs))
    instructions = [call.instruction for call in calls]
    segment: Any
    if device and isinstance(written, _GraphWriter):
        # A body of one op, such as that of gelu, may be a dozen launches by itself.
        if len(written.inputs) > MOST_INPUTS or written.operation_count < 2:
            return None
        results = [written.nodes[r] for r in returned]
        dtypes = [i.dtype for i in written.inputs]
        kernel = FusedKernel(written.graph, dtypes, results, device.backend)
        segment = fused_kernel(kernel, registers, written.inputs, shape, device)
    else:
        made = [blocks_of(values[r])[0].dtype for r in returned]
        one_by_one = partial(program, instructions, registers, returned)
        run = written.finished(returned)
        segment = FusedFunction(run, registers, written.inputs, shape, made, one_by_one)
    apart = [r for k in instructions for r in (*k.inputs, *k.outputs)]
    return Instruction(
        "fused", segment, tuple(registers), tuple(returned), True, line=instructions[0].line,
        fused=tuple(instructions),
        nbytes=(_nbytes(apart, values), _nbytes([*registers, *returned], values)),
    )  # fmt: skip


def _nbytes(registers: Sequence[int], values: Sequence[Any]) -> int:
    """The bytes of the blocks of some registers."""
    return sum(getattr(b, "nbytes", 0) for r in registers for b in blocks_of(values[r]))


def _shape(value: Any) -> Shape:
    block = blocks_of(value)[0]
    return getattr(block, "shape", ())


class _GraphWriter:
    """A writer of calls into one graph.

    nodes: the value of each output register. inputs: of the graph. absorbed: the operands of
    formulas that do not propagate: an infinity or NaN there may not show in any result, so they
    are checked themselves. calls: the ops that may make infinities or NaN. parameters: of the loop,
    with their dtypes.
    """

    def __init__(self, values: Sequence[Any], functions: Set[str]) -> None:
        self.values, self.graph = values, ElementGraph(functions)
        self.nodes: dict[int, Node] = {}
        self.inputs: list[LoopInput] = []
        self.absorbed: set[Node] = set()
        self.calls: list[GraphCall] = []
        self.parameters: list[tuple[Any, str]] = []

    def write(self, call: ElementCall) -> bool:
        """Add a call; return whether its formula takes operands of these dtypes and shapes."""
        graph, formula = self.graph, call.formula
        kinds = [kind_of(a, self.values) for a in call.arguments]
        dtypes = None if formula is None else formula.dtypes(kinds, call.dtype)
        if formula is None or dtypes is None:
            return False
        names: dict[str, Node] = {}
        operands: list[Node] = []
        for name, argument, dtype in zip("xyz", call.arguments, dtypes, strict=False):
            if self._overflows(argument, dtype):
                return False
            operands.append(self._operand(argument, dtype))
            names[name] = graph.cast(operands[-1], dtype)
        if not formula.propagates:
            self.absorbed.update(names.values())
        result = graph.cast(graph.write(formula.text, **names), call.dtype)
        self.nodes[call.output] = result
        if self.can_be_odd(result):
            self.calls.append(GraphCall(result, tuple(operands), formula.is_exact))
        return True

    def _overflows(self, argument: Any, dtype: str) -> bool:
        """Whether an operand is a number beyond its dtype: NumPy compares integers with one, and
        warns of others."""
        if isinstance(argument, Argument):
            return False
        if dtype[0] in "iu":
            return not np.iinfo(dtype).min <= argument <= np.iinfo(dtype).max
        return dtype == "f4" and FLOAT32_MAX < abs(argument) < math.inf

    def finished(self, returned: Sequence[int]) -> FusedLoop:
        """The loop that computes the outputs of these registers."""
        results = [self.nodes[r] for r in returned]
        checked = sorted({n for n in (*results, *self.absorbed) if self.can_be_odd(n)})
        dtypes = [i.dtype for i in self.inputs]
        return FusedLoop(self.graph, dtypes, results, checked, self.calls, self.parameters)

    @property
    def operation_count(self) -> int:
        """The number of values that are computed."""
        return sum(o not in GIVEN for o in self.graph.operations)

    def can_be_odd(self, node: Node) -> bool:
        """Whether a value is computed, and may be infinite or NaN."""
        kind = self.graph.operations[node]
        return self.graph.dtypes[node][0] == "f" and kind not in GIVEN

    def _operand(self, argument: Any, dtype: str) -> Node:
        """The value of an argument, of a call or an input of the graph, in its own dtype; of a
        number in this one."""
        graph = self.graph
        if not isinstance(argument, Argument):
            if graph.functions or not math.isfinite(argument) or is_known(argument):
                return graph.constant(argument, dtype)
            # Not compiled into the loop, since it may be another number in each recording.
            parameter = np.dtype(dtype).type(argument).item(), dtype
            if parameter not in self.parameters:
                self.parameters.append(parameter)
            return graph.add("parameter", dtype, self.parameters.index(parameter))
        register, shape = argument
        if register in self.nodes:
            return self.nodes[register]
        block = blocks_of(self.values[register])[0]
        own = code_of(block.dtype) if hasattr(block, "dtype") else dtype
        key = LoopInput(register, shape, own)
        if key not in self.inputs:
            self.inputs.append(key)
        return graph.add("input", own, self.inputs.index(key))
