"""Joint launches: a loss and its gradient, as one launch on a GPU.

The kernel of the cross-entropy reads a row of logits for its loss, and another reads the row once
more for its gradient. Where a step computes both, and has the cotangent of the loss before the
loss, the first kernel writes the gradient too while the row is in shared memory. It computes both
as apart, to the bit. Ops declare it: see `Op.kernel`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from gdt.backend.cupy import BlockDevice, PlacedFunction
from gdt.engine.declaration import INJECTED
from gdt.engine.launcher import KernelBody
from gdt.programs.aliases import blocks_of, nbytes_of
from gdt.programs.fused_function import Run
from gdt.programs.instruction import Instruction


def joined(
    instructions: Sequence[Instruction],
    values: Sequence[Any],
    program: Callable[[Sequence[Instruction], Sequence[int], Sequence[int]], Run],
) -> list[Instruction]:
    """The instructions, with one in the place of each loss and its gradient. The arguments are
    those of `gdt.programs.fusing.fused`."""
    results: list[Instruction | None] = [*instructions]
    made_at = {r: at for at, k in enumerate(instructions) for r in k.outputs}
    for at, gradient in enumerate(instructions):
        body, device = placed_kernel(gradient)
        if body is None or device is None or body.joined is None or len(gradient.outputs) != 1:
            continue
        cotangent, *read = gradient.inputs
        first = max((made_at.get(r, -1) for r in read), default=-1)
        loss = results[first] if first >= 0 else None
        if loss is None or loss.fused or read != [*loss.inputs, *loss.outputs[1:]]:
            continue
        loss_body, _ = placed_kernel(loss)
        is_joint = loss_body is not None and _is_of(loss_body, body)
        if loss_body is not None and is_joint and made_at.get(cotangent, -1) < first:
            results[first] = _together(loss, gradient, loss_body, device, values, program)
            results[at] = None
    return [k for k in results if k is not None]


def placed_kernel(k: Instruction) -> tuple[KernelBody | None, BlockDevice | None]:
    """The kernel that an instruction runs on the block of one GPU, and where."""
    function = k.function
    device = function.device if isinstance(function, PlacedFunction) else None
    while isinstance(function, PlacedFunction):
        function = function.function
    return function if isinstance(function, KernelBody) else None, device


def _is_of(loss: KernelBody, gradient: KernelBody) -> bool:
    """Whether a gradient is of that loss, with its options, and both kernels run."""
    options = [
        {name: value for name, value in body.static.items() if name not in INJECTED}
        for body in (loss, gradient)
    ]
    is_of = loss.declared is gradient.joined and options[0] == options[1]
    return is_of and loss.runs_kernel and gradient.runs_kernel


def _together(
    loss: Instruction,
    gradient: Instruction,
    body: KernelBody,
    device: BlockDevice,
    values: Sequence[Any],
    program: Callable[[Sequence[Instruction], Sequence[int], Sequence[int]], Run],
) -> Instruction:
    """One instruction in the place of a loss and its gradient."""
    registers = [*dict.fromkeys([*loss.inputs, gradient.inputs[0]])]
    outputs = (*loss.outputs, *gradient.outputs)
    at = [registers.index(r) for r in (*loss.inputs, gradient.inputs[0])]
    (block,) = blocks_of(values[gradient.outputs[0]])
    shape, dtype = block.shape, block.dtype
    one_by_one = cache(partial(program, [loss, gradient], registers, outputs))

    def run(*operands: Any) -> Sequence[Any]:
        *xs, cotangent = [operands[n] for n in at]
        out = body.launcher.empty(shape, dtype)
        made: Sequence[Any] | None = body.together(*xs, joined=cotangent, out=out)
        return one_by_one()(*operands) if made is None else made

    return Instruction(
        "fused", device.backend.placed(device.mesh, device.block, run), tuple(registers), outputs,
        True, line=loss.line, fused=(loss, gradient),
        nbytes=(
            nbytes_of([*loss.inputs, *loss.outputs, *gradient.inputs, *gradient.outputs], values),
            nbytes_of([*registers, *outputs], values),
        ),
    )  # fmt: skip
