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
from functools import cached_property, partial
from itertools import groupby
from types import ModuleType
from typing import Any

import numpy as np

from gdt.backend import NUMPY, threads
from gdt.backend.cupy import BlockDevice, on_gpu
from gdt.engine.loops import ChosenBody
from gdt.engine.source import (
    CallExpression,
    Expression,
    Item,
    Operand,
    Reshaped,
    Tuple,
    Value,
)
from gdt.engine.threads import ThreadedBody
from gdt.fusion.cuda import FUNCTIONS, MOST_INPUTS, FusedKernel, is_of_kernels, kernel_formula
from gdt.fusion.formula import ElementGraph, Node
from gdt.fusion.llvm import GraphCall
from gdt.fusion.loop import (
    SMALLEST,
    CompiledOp,
    FusedLoop,
    are_compiled,
    arranged,
    empty,
    is_plain,
)
from gdt.fusion.op_formula import OpFormula, code_of, formula_of
from gdt.programs.aliases import blocks_of
from gdt.programs.instruction import Instruction
from gdt.programs.slices import Argument, ElementCall, LoopInput, Slices

Block = Any
Shape = tuple[int, ...]
Run = Callable[..., Sequence[Any]]

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
    calls = [_element_call(k, values, constants) for k in instructions]
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


# ---------------------------------------------------------------- what an instruction computes


def _element_call(k: Instruction, values: Sequence[Any], constants: Set[int]) -> ElementCall | None:
    """The element-wise call that an instruction makes; None if it makes no such call."""
    if k.donated or k.is_effect or k.communicates or len(k.outputs) != 1 or not k.inputs:
        return None
    blocks = blocks_of(values[k.outputs[0]])
    first = blocks[0]
    device = getattr(k.function, "device", None)
    is_block = on_gpu if device else _is_on_host
    if device and device.backend.runner is None:
        return None
    if not is_block(first) or any(b.shape != first.shape for b in blocks):
        return None
    found = [_normalized(part) for part in _parts(k, len(blocks))]
    if not found or found[0] is None:
        return None
    function, arguments, keywords = found[0]
    static = dict(keywords)
    if device:
        run, formula = None, kernel_formula(function, static, device.backend.xp)
    else:
        run, formula = _on_host(function, static)
    # The statics of functions that are no such calls may be arrays, which do not compare as one.
    if (
        not (formula or run)
        or any(a is None for a in arguments)
        or any(f != found[0] for f in found)
    ):
        return None
    operands = []
    for number, shape, value in arguments:
        if number is None:
            is_namespace = isinstance(value, ModuleType) or (device and value is device.backend.xp)
            operands += [] if is_namespace else [value]
            continue
        register = k.inputs[number]
        held = values[register]
        # A number that is drawn anew is none of a kernel's, so that CUDA graphs can have the step.
        if (
            isinstance(held, int | float)
            and shape is None
            and (register in constants or not device)
        ):
            operands.append(held if register in constants else Argument(register, None))
        elif all(map(is_block, blocks_of(held))):
            operands.append(Argument(register, shape))
        else:
            return None
    dtype = code_of(first.dtype)
    kinds = [_kind(a, values) for a in operands]
    if formula and device and not is_of_kernels(formula, kinds, dtype):
        return None
    return ElementCall(k, run, formula, tuple(operands), k.outputs[0], first.shape, dtype, device)


def _kind(argument: Any, values: Sequence[Any]) -> Any:
    """The dtype of an operand, or the type of a number."""
    if not isinstance(argument, Argument):
        return type(argument)
    block = blocks_of(values[argument.register])[0]
    return getattr(block, "dtype", type(block))


def _is_on_host(block: Any) -> bool:
    return isinstance(block, np.ndarray)


def _on_host(
    function: Any, static: dict[str, Any]
) -> tuple[Callable[..., Block] | None, OpFormula | None]:
    """A function as one of NumPy's arrays and numbers, None where slices do not run it; and its
    formula."""
    formula = formula_of(function, static)
    is_ufunc = isinstance(function, np.ufunc) and not static
    is_known = is_ufunc or hasattr(function, "replacement")
    if formula is None and (are_compiled() or not is_known):
        return None, None
    if not is_ufunc and not isinstance(function, CompiledOp):
        function = partial(function, np, **static)
    return function, formula


def _parts(k: Instruction, count: int) -> Sequence[Expression | None]:
    """The expression of each block of an instruction's output."""
    function = getattr(k.function, "placed", k.function)
    expression = getattr(function, "expression", None)
    if expression is None:
        plain = [Operand(n) for n in range(len(k.inputs))]
        return [CallExpression(Value(k.name, function), plain)] if count == 1 else []
    while isinstance(expression, Tuple) and count > 1:
        if len(expression.parts) == count:
            return expression.parts
        if len(expression.parts) != 1:
            return []
        expression = expression.parts[0]
    return [expression] if count == 1 else []


def _normalized(part: Expression | None) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]] | None:
    """The function that an expression calls, its arguments, and its keywords but for `out`; None
    for an expression of another kind. Arguments: see `_argument`."""
    if not isinstance(part, CallExpression):
        return None
    function, arguments = part.function.value, [*part.arguments]
    keywords = {name: value for name, value in part.keywords.items() if name != "out"}
    while True:
        if isinstance(function, ThreadedBody):
            function = function.body
        elif isinstance(function, ChosenBody):
            function = function.chosen or function.body
        elif isinstance(function, partial):
            arguments = [*[Value("given", a) for a in function.args], *arguments]
            keywords |= {name: Value(name, value) for name, value in function.keywords.items()}
            function = function.func
        else:
            break
    if not all(isinstance(value, Value) for value in keywords.values()):
        return None
    named = tuple([(name, value.value) for name, value in sorted(keywords.items())])  # type: ignore[union-attr]
    return function, tuple(map(_argument, arguments)), named


def _argument(part: Expression) -> tuple[int | None, Shape | None, Any] | None:
    """An argument of a call as the number of an operand, the shape to which it is reshaped, and a
    value: (number, None or shape, None) or (None, None, value). None for other expressions."""
    block = part.block if isinstance(part, Reshaped) else part
    operand = block.sequence if isinstance(block, Item) else block
    if isinstance(operand, Operand):
        return operand.number, part.shape if isinstance(part, Reshaped) else None, None
    return (None, None, part.value) if isinstance(part, Value) else None


# ---------------------------------------------------------------- segments


class FusedFunction:
    """The function of a fused instruction.

    run: computes all elements, see `FusedLoop.run`. registers: those whose values the function
    takes. inputs: what `run` takes of these values. shape: of each block that it makes. dtypes: of
    its outputs. one_by_one: makes `run_one_by_one`. nbytes: the bytes that the instructions
    which it replaces read and write, and the bytes that the loop does.
    """

    nbytes = 0, 0

    def __init__(
        self,
        run: Callable[[Shape, Sequence[Block], Sequence[Block]], bool],
        registers: Sequence[int],
        inputs: Sequence[LoopInput],
        shape: Shape,
        dtypes: Sequence[np.dtype],
        one_by_one: Callable[[], Run],
    ) -> None:
        self.run, self.shape, self.dtypes = run, shape, dtypes
        self.one_by_one = one_by_one
        self.inputs = [(registers.index(i.register), i.shape, i.dtype) for i in inputs]
        # The compiled loop and its numbers, from the first run on, if it reads the values as they
        # are: for small blocks, all that `_outs` does takes longer than the loop.
        self.prepared: tuple[Callable[..., int], Any] | None = None
        self.is_plain = [i.register for i in inputs] == [*registers]

    def __call__(self, *values: Any) -> Sequence[Any]:
        """The values of the output registers: of each a block, or a tuple of blocks."""
        count = max([len(v) for v in values if type(v) is tuple], default=0)
        if not count:
            outs = self._outs(values)
            return self.run_one_by_one(*values) if outs is None else outs
        results = []
        for block in range(count):
            outs = self._outs([v[block] if type(v) is tuple else v for v in values])
            if outs is None:
                return self.run_one_by_one(*values)
            results.append(outs)
        return [*zip(*results, strict=True)]

    @cached_property
    def run_one_by_one(self) -> Run:
        """The function that runs the instructions that it replaces, made when it is first needed:
        most never give a value of which NumPy would warn."""
        return self.one_by_one()

    def _outs(self, blocks: Sequence[Any]) -> list[Block] | None:
        """The blocks of all outputs; None if the instructions have to run one by one."""
        if self.prepared is not None and all(map(is_plain, blocks)):
            function, numbers = self.prepared
            outs = [NUMPY.empty(self.shape, dtype) for dtype in self.dtypes]
            if not function(*blocks, *outs, numbers):
                return outs
            self.prepared, self.is_plain = None, False  # from now on it looks for what is odd
        arrays = []
        for place, shape, dtype in self.inputs:
            x = blocks[place]
            if not isinstance(x, np.ndarray):
                x = np.full((), x, dtype)
            arrays.append(x if shape is None else x.reshape(shape))
        found = arranged(self.shape, arrays)
        if found is None:
            return None
        nested, arrays, order = found
        outs = [empty(self.shape, dtype, order) for dtype in self.dtypes]
        targets = outs if order is None else [o.transpose(order) for o in outs]
        if self.run(nested, arrays, targets):
            return None
        if self.is_plain and math.prod(self.shape) < 2 * threads.SMALLEST:  # for one thread
            self._prepare(nested, blocks, arrays)
        return outs

    def _prepare(self, shape: Shape, blocks: Sequence[Any], arrays: Sequence[Block]) -> None:
        """Keep the compiled loop for later calls, if it reads the blocks as they are."""
        self.is_plain = False
        same = all(b.size == a.size for b, a in zip(blocks, arrays, strict=True) if is_plain(b))
        if isinstance(self.run, FusedLoop) and shape == self.shape and same:
            self.prepared = self.run.prepared(shape, *[a.shape for a in arrays])


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
        segment = written.kernel(returned, registers, shape, device)
    else:
        dtypes = [blocks_of(values[r])[0].dtype for r in returned]
        one_by_one = partial(program, instructions, registers, returned)
        run = written.finished(returned)
        segment = FusedFunction(run, registers, written.inputs, shape, dtypes, one_by_one)
    apart = [r for k in instructions for r in (*k.inputs, *k.outputs)]
    segment.nbytes = _nbytes(apart, values), _nbytes([*registers, *returned], values)
    return Instruction(
        "fused", segment, tuple(registers), tuple(returned), True, line=instructions[0].line,
        fused=tuple(instructions),
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
    are checked themselves. calls: the ops that may make infinities or NaN.
    """

    def __init__(self, values: Sequence[Any], functions: Set[str]) -> None:
        self.values, self.graph = values, ElementGraph(functions)
        self.nodes: dict[int, Node] = {}
        self.inputs: list[LoopInput] = []
        self.absorbed: set[Node] = set()
        self.calls: list[GraphCall] = []

    def write(self, call: ElementCall) -> bool:
        """Add a call; return whether its formula takes operands of these dtypes and shapes."""
        graph, formula = self.graph, call.formula
        kinds = [_kind(a, self.values) for a in call.arguments]
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
        return FusedLoop(self.graph, [i.dtype for i in self.inputs], results, checked, self.calls)

    @property
    def operation_count(self) -> int:
        """The number of values that are computed."""
        return sum(o not in ("input", "constant") for o in self.graph.operations)

    def kernel(
        self, returned: Sequence[int], registers: Sequence[int], shape: Shape, device: BlockDevice
    ) -> Callable[..., Sequence[Any]]:
        """The function of the values of `registers` that launches one kernel for the blocks of the
        registers `returned`."""
        results = [self.nodes[r] for r in returned]
        kernel = FusedKernel(self.graph, [i.dtype for i in self.inputs], results, device.backend)
        inputs = [(registers.index(i.register), i.shape) for i in self.inputs]

        def run(*values: Any) -> Sequence[Any]:
            blocks = [values[n] if s is None else values[n].reshape(s) for n, s in inputs]
            return kernel(shape, blocks)

        return device.backend.placed(device.mesh, device.block, run)

    def can_be_odd(self, node: Node) -> bool:
        """Whether a value is computed, and may be infinite or NaN."""
        kind = self.graph.operations[node]
        return self.graph.dtypes[node][0] == "f" and kind not in ("input", "constant")

    def _operand(self, argument: Any, dtype: str) -> Node:
        """The value of an argument, of a call or an input of the graph, in its own dtype; of a
        number in this one."""
        graph = self.graph
        if not isinstance(argument, Argument):
            return graph.constant(argument, dtype)
        register, shape = argument
        if register in self.nodes:
            return self.nodes[register]
        block = blocks_of(self.values[register])[0]
        own = code_of(block.dtype) if hasattr(block, "dtype") else dtype
        key = LoopInput(register, shape, own)
        if key not in self.inputs:
            self.inputs.append(key)
        return graph.add("input", own, self.inputs.index(key))
