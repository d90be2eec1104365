"""Element-wise calls of a program as the values of one graph."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from functools import partial
from typing import Any

import numpy as np

from gdt.fusion.formula import GIVEN, ElementGraph, Node
from gdt.fusion.loop import FusedLoop, is_known, packed
from gdt.fusion.op_formula import FLOAT16, OPERANDS, code_of, computed_dtypes
from gdt.fusion.row_text import GraphCall
from gdt.programs.aliases import blocks_of
from gdt.programs.element_calls import Argument, ElementCall, LoopInput, kinds_of

HALVES = ("f2", "b1")  # the results of ops on arrays of float16
FLOAT16_MAX = float(np.finfo(np.float16).max)
FLOAT32_MAX = float(np.finfo(np.float32).max)


class GraphWriter:
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
        kinds = kinds_of(call.arguments, self.values)
        if formula is None:
            return False
        find = partial(computed_dtypes, formula) if call.device else formula.dtypes
        dtypes, arguments = find(kinds, call.dtype), call.arguments
        if FLOAT16 in kinds and call.dtype in HALVES:
            arguments = _in_float16(arguments)
        if dtypes is None or arguments is None:
            return False
        names: dict[str, Node] = {}
        operands: list[Node] = []
        for name, argument, dtype in zip(OPERANDS, arguments, dtypes, strict=False):
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
        parameters = packed(self.parameters)
        return FusedLoop(self.graph, dtypes, results, checked, self.calls, parameters)

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


def _in_float16(arguments: Sequence[Any]) -> tuple[Any, ...] | None:
    """Operands with numbers rounded as NumPy does that meet arrays of float16; None if float16 has
    no number so large."""
    numbers = [a for a in arguments if not isinstance(a, Argument)]
    if any(abs(number) > FLOAT16_MAX for number in numbers):
        return None
    return tuple([a if isinstance(a, Argument) else np.float16(a).item() for a in arguments])
