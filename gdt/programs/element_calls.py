"""Element-wise calls: what an instruction computes for each element of a block, if its ops have a
formula, or a function of slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from gdt.backend.cupy import BlockDevice, PlacedFunction, on_gpu
from gdt.engine.launcher import KernelBody
from gdt.engine.loops import ChosenBody
from gdt.engine.rounded import expression_in_float32, rounded_number
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
from gdt.fusion.cuda import is_of_kernels, kernel_formula
from gdt.fusion.loop import CompiledOp, are_compiled
from gdt.fusion.op_formula import OpFormula, code_of, formula_of
from gdt.programs.aliases import blocks_of
from gdt.programs.instruction import Instruction

Block = Any
Shape = tuple[int, ...]


class Argument(NamedTuple):
    """An operand of a call: the block of a register, reshaped unless `shape` is None."""

    register: int
    shape: Shape | None


class ElementCall(NamedTuple):
    """An instruction that computes each element of a block from the same element of its operands.

    run: its function of NumPy's arrays and numbers, None if slices do not run it. formula: its
    formula, None if it has none. arguments: an `Argument` or a number each. output: the register of
    the output. shape, dtype: of each block of the output. device: the GPU, None on the host; a GPU
    computes with bfloat16 in float32.
    """

    instruction: Instruction
    run: Callable[..., Block] | None
    formula: OpFormula | None
    arguments: tuple[Any, ...]
    output: int
    shape: Shape
    dtype: str
    device: BlockDevice | None


class LoopInput(NamedTuple):
    """An input of a loop: the value of a register, reshaped unless `shape` is None.

    dtype: that of the block; of a number, the dtype that the loop gets it in."""

    register: int
    shape: Shape | None
    dtype: str


def element_call(k: Instruction, values: Sequence[Any], constants: Set[int]) -> ElementCall | None:
    """The element-wise call that an instruction makes; None if it makes no such call."""
    if not is_pure(k) or not k.inputs:
        return None
    blocks = blocks_of(values[k.outputs[0]])
    first = blocks[0]
    device = k.function.device if isinstance(k.function, PlacedFunction) else None
    is_block = on_gpu if device else is_on_host
    if device and device.backend.runner is None:
        return None
    if not is_block(first) or any(b.shape != first.shape for b in blocks):
        return None
    parts = parts_of(k, len(blocks))
    if device:
        parts = [None if part is None else expression_in_float32(part) for part in parts]
    found = [normalized(part) for part in parts]
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
        if value is not None:  # the function that rounds a number
            if register not in constants or not isinstance(held, int | float):
                return None
            held = value(held)
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
    if formula and device and not is_of_kernels(formula, kinds_of(operands, values), dtype):
        return None
    return ElementCall(k, run, formula, tuple(operands), k.outputs[0], first.shape, dtype, device)


def kinds_of(arguments: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """The dtypes of operands, and the types of numbers."""
    held = [blocks_of(values[a.register])[0] if isinstance(a, Argument) else a for a in arguments]
    return [getattr(x, "dtype", type(x)) for x in held]


def is_pure(k: Instruction) -> bool:
    """Whether all that an instruction does is to make the value of one register."""
    return not (k.donated or k.is_effect or k.communicates) and len(k.outputs) == 1


def is_on_host(block: Any) -> bool:
    """Whether a block is an array of NumPy."""
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


def parts_of(k: Instruction, count: int) -> Sequence[Expression | None]:
    """The expression of each block of an instruction's output."""
    function = k.function.function if isinstance(k.function, PlacedFunction) else k.function
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


def normalized(part: Expression | None) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]] | None:
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
        elif isinstance(function, KernelBody) and function.is_refused:
            function = function.body
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
    value: (number, None or shape, None) or (None, None, value); (number, None, function) of a
    number that is rounded. None for other expressions."""
    if isinstance(part, CallExpression) and part.function.value is rounded_number:
        (number,) = part.arguments
        return (number.number, None, rounded_number) if isinstance(number, Operand) else None
    block = part.block if isinstance(part, Reshaped) else part
    operand = block.sequence if isinstance(block, Item) else block
    if isinstance(operand, Operand):
        return operand.number, part.shape if isinstance(part, Reshaped) else None, None
    return (None, None, part.value) if isinstance(part, Value) else None
