"""Epilogues: a product of matrices and the element-wise ops after it, as one launch on a GPU.

A kernel of matrix products holds each element of its result in a register before it stores it. It
may then add a bias and take `relu`, or the gradient of that, without the reads and writes of the
ops that would follow. The kernel rounds where each of these ops does, so the bits are theirs. Where
it does not run (`gdt.matmul_backend`, a result that lies in another order), the instructions do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Set
from functools import cache, partial
from typing import Any, NamedTuple

from gdt.backend.cupy import BlockDevice
from gdt.engine.launcher import KernelBody
from gdt.fusion.op_formula import code_of
from gdt.ops.products.contraction import Epilogue, contract_with_kernels
from gdt.programs.aliases import blocks_of, nbytes_of
from gdt.programs.element_calls import Argument, element_call
from gdt.programs.fused_function import Run
from gdt.programs.instruction import Instruction
from gdt.programs.joint_launches import placed_kernel

Shape = tuple[int, ...]

SUM = "x + y"
ACTIVATIONS = {
    "x if (x > 0.0) | (x != x) else 0.0": "relu",
    "x * (full_like(x, 1.0) if y > 0.0 else 0.0)": "relu_backward",
}
"""By the formula of an op, the activation of the kernels that computes it."""


class Product(NamedTuple):
    """A product of two matrices: the number of its instruction, its kernel, and its device."""

    at: int
    body: KernelBody
    device: BlockDevice


class ElementOp(NamedTuple):
    """An element-wise op: its formula, its operands by register with their shapes, its result."""

    text: str
    operands: list[tuple[int, Shape]]
    output: int
    shape: Shape


class Tail(NamedTuple):
    """The ops after the product of a register: the activation, and the registers that are read."""

    product: int
    bias: int | None = None
    activation: str = "none"
    aux: int | None = None


def with_epilogues(
    instructions: Sequence[Instruction],
    outputs: Sequence[int],
    values: Sequence[Any],
    constants: Set[int],
    program: Callable[[Sequence[Instruction], Sequence[int], Sequence[int]], Run],
) -> list[Instruction]:
    """The instructions, with one in the place of each product and of what alone reads it, where an
    epilogue computes that. The arguments are those of `gdt.programs.fusing.fused`."""
    products = {
        k.outputs[0]: found
        for at, k in enumerate(instructions)
        if (found := _product(at, k)) and k.outputs[0] not in outputs
    }
    if not products:
        return [*instructions]
    results: list[Instruction | None] = [*instructions]
    readers = Counter(r for k in instructions for r in {*k.inputs})
    for at, k in enumerate(instructions):
        tail = None if products.keys().isdisjoint(k.inputs) else _tail(k, values, constants)
        product = products.get(tail.product) if tail else None
        if tail is None or product is None or readers[tail.product] > 1:
            continue
        if any(other.donated for other in instructions[product.at : at]):
            continue  # the operands of the product may be overwritten by then
        results[product.at] = None
        results[at] = _together(instructions[product.at], k, product, tail, values, program)
    return [k for k in results if k is not None]


def _product(at: int, k: Instruction) -> Product | None:
    """The product that instruction number `at` is; None if it is none."""
    body, device = placed_kernel(k)
    if device is None or body is None or len(k.inputs) != 2:
        return None
    if body.declared is not contract_with_kernels or not body.runs_kernel:
        return None
    return Product(at, body, device)


def _element_op(k: Instruction, values: Sequence[Any], constants: Set[int]) -> ElementOp | None:
    """The op of an instruction, if it computes on blocks of one dtype on a GPU."""
    call = element_call(k, values, constants)
    if call is None or call.formula is None or call.device is None:
        return None
    operands = []
    for argument in call.arguments:
        if not isinstance(argument, Argument):
            return None
        block = blocks_of(values[argument.register])[0]
        if code_of(block.dtype) != call.dtype:
            return None
        operands.append((argument.register, argument.shape or block.shape))
    return ElementOp(call.formula.text, operands, call.output, call.shape)


def _tail(k: Instruction, values: Sequence[Any], constants: Set[int]) -> Tail | None:
    """The tail that an instruction is of its first operand: a sum with a row, an activation, or
    both. None if no epilogue computes that."""
    parts = k.fused or (k,)
    if len(parts) > 2 or len(k.outputs) > 1:
        return None
    ops = [op for part in parts if (op := _element_op(part, values, constants))]
    if len(ops) < len(parts):
        return None
    first, last = ops[0], ops[-1]
    tail = Tail(first.operands[0][0])
    if first.text == SUM:
        # The operand of the result's shape is the product, the other one is a row.
        whole, (bias, row) = sorted(first.operands, key=lambda operand: operand[1] != first.shape)
        tail = Tail(whole[0], bias)
        if not _is_row(row, first.shape):
            return None
    if first.text != SUM or len(ops) > 1:
        activation, others = ACTIVATIONS.get(last.text), [r for r, _ in last.operands[1:]]
        is_next = last.operands[0][0] == (first.output if len(ops) > 1 else tail.product)
        if activation is None or not is_next or {s for _, s in last.operands} != {last.shape}:
            return None
        tail = Tail(tail.product, tail.bias, activation, *others)
    read = {tail.bias, tail.aux} - {None}
    return tail if read <= {*k.inputs} - {tail.product} else None


def _is_row(shape: Shape, whole: Shape) -> bool:
    """Whether a block of `shape` has the last axes of `whole`, and is the same along the others."""
    padded = (1,) * (len(whole) - len(shape)) + shape
    ones = next((i for i, size in enumerate(padded) if size > 1), len(padded) - 1)
    return ones > 0 and padded[ones:] == whole[ones:]


def _together(
    first: Instruction,
    k: Instruction,
    product: Product,
    tail: Tail,
    values: Sequence[Any],
    program: Callable[[Sequence[Instruction], Sequence[int], Sequence[int]], Run],
) -> Instruction:
    """One instruction in the place of a product, `first`, and its tail `k`."""
    others = [r for r in (tail.bias, tail.aux) if r is not None]
    registers = [*dict.fromkeys([*first.inputs, *others])]
    places = [
        None if r is None else registers.index(r) for r in (*first.inputs, tail.bias, tail.aux)
    ]
    out = blocks_of(values[k.outputs[0]])[0]
    shape, dtype, body = out.shape, out.dtype, product.body
    one_by_one = cache(partial(program, [first, k], registers, k.outputs))

    def run(*operands: Any) -> Sequence[Any]:
        x, w, bias, aux = [None if n is None else operands[n] for n in places]
        epilogue = Epilogue(tail.activation, bias, aux)
        made = body.together(x, w, out=body.launcher.empty(shape, dtype), epilogue=epilogue)
        return one_by_one()(*operands) if made is None else [made]

    device = product.device
    return Instruction(
        "fused", device.backend.placed(device.mesh, device.block, run), tuple(registers),
        k.outputs, True, line=first.line, fused=(first, *(k.fused or (k,))),
        nbytes=(
            nbytes_of([*first.inputs, *first.outputs, *k.inputs, *k.outputs], values),
            nbytes_of([*registers, *k.outputs], values),
        ),
    )  # fmt: skip
