"""Convolutions of blocks on GPUs: by cuDNN, where its frontend is installed and takes them, and
else as `blocks` computes them, with gdt's matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gdt.cuda.cudnn import ALIGNMENT, MOST_AXES, TENSORS, ConvolutionPlan, ConvolutionWindows
from gdt.cuda.runner import address, dtype_name
from gdt.engine.launcher import Launcher
from gdt.errors import KernelError
from gdt.nn.functions.convolution.windows import WindowSteps
from gdt.ops.products.contraction import KernelProducts
from gdt.settings import MATMUL_PRECISION

Block = Any


class KernelNamespace:
    """The namespace of a backend, with gdt's kernels for matrix products, which CUDA graphs may
    hold: CuPy captures none of cuBLAS's."""

    def __init__(self, launcher: Launcher) -> None:
        self._xp, self.matmul = launcher.xp, KernelProducts(launcher).matmul

    def __getattr__(self, name: str) -> Any:
        return getattr(self._xp, name)


def computed(
    launcher: Launcher,
    compute: Callable[..., Block],
    ways: tuple[Callable[..., Any], Callable[..., Any]],
    *operands: Any,
) -> Block:
    """Return compute(way, xp, *operands) with the first way, by cuDNN, or else with the second.

    ways: functions of a launcher, and of a namespace, before what `compute` passes to them.
    """
    by_cudnn, by_products = ways
    refusal = f"cuDNN refuses in {MATMUL_PRECISION.get()}"
    if refusal not in launcher.kept:
        try:
            return compute(partial(by_cudnn, launcher), launcher.xp, *operands)
        except KernelError:
            launcher.kept[refusal] = True
    xp = KernelNamespace(launcher)
    return compute(partial(by_products, xp), xp, *operands)


def convolve(launcher: Launcher, x: Block, kernel: Block, out: Block, how: WindowSteps) -> None:
    """Write the convolution of images with one kernel into `out`, (..., results..., channels)."""
    _run(
        launcher,
        "fprop",
        {"images": x, "kernel": _by_result(launcher, kernel), "results": out},
        how,
    )


def input_gradient(
    launcher: Launcher, g: Block, kernel: Block, out: Block, how: WindowSteps
) -> None:
    """Write the gradient in images to `out`, whose windows have the results that `g` belongs to."""
    _run(
        launcher,
        "dgrad",
        {"images": out, "kernel": _by_result(launcher, kernel), "results": g},
        how,
    )


def kernel_gradient(
    launcher: Launcher, x: Block, g: Block, shape: Sequence[int], how: WindowSteps
) -> Block:
    """Return the gradient in a kernel of that shape, summed over all images."""
    out = launcher.empty((shape[-1], *shape[:-1]), dtype_name(x.dtype))
    _run(launcher, "wgrad", {"images": x, "kernel": out, "results": g}, how)
    return launcher.xp.moveaxis(out, 0, -1)


def _by_result(launcher: Launcher, kernel: Block) -> Block:
    """Return a kernel (taps..., channels, results) as (results, taps..., channels)."""
    return launcher.contiguous(launcher.xp.moveaxis(kernel, -1, 0))


def _aligned(launcher: Launcher, x: Block) -> Block:
    """Return a block as cuDNN takes it: without gaps, at an address that its plans are for."""
    x = launcher.contiguous(x)
    return x.copy() if address(x) % ALIGNMENT else x


def _run(launcher: Launcher, operation: str, blocks: dict[str, Block], how: WindowSteps) -> None:
    """Run an operation of cuDNN; blocks are by the names of `TENSORS`. Raises KernelError for what
    cuDNN does not take."""
    cudnn, rank = launcher.runner.cudnn, len(how.taps)
    dtypes = sorted({dtype_name(block.dtype) for block in blocks.values()})
    if dtypes not in (["float16"], ["float32"]):
        raise launcher.refused(f"cuDNN is not asked for {', '.join(dtypes)}")
    if rank > MOST_AXES:
        raise launcher.refused(f"cuDNN takes no images of {rank} axes")
    if not all(block.size for block in blocks.values()):
        raise launcher.refused("there is nothing to compute")
    own = {name: _aligned(launcher, block) for name, block in blocks.items()}
    sizes = {
        name: (math.prod(block.shape[: -rank - 1]), *block.shape[-rank - 1 :])
        for name, block in own.items()
    }
    windows = ConvolutionWindows(how.strides, how.dilation, how.padding or ((0, 0),) * rank)
    precision = MATMUL_PRECISION.get()
    plan = launcher.keep(
        f"conv_{operation} in {precision}",
        lambda: ConvolutionPlan(
            cudnn, operation, dtypes[0], sizes, windows,
            tensor_cores=dtypes[0] == "float16" or precision == "tensorfloat32",
        ),
    )  # fmt: skip
    workspace = launcher.empty((plan.workspace,), "uint8")
    plan.run({name: address(block) for name, block in own.items()}, address(workspace))
    launcher.launched.append(f"cudnn.conv_{operation}")
    _, output = TENSORS[operation]
    if own[output] is not blocks[output]:
        blocks[output][...] = own[output]
