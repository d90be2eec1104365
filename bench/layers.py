"""Attention, convolution and an LSTM, with gradients, beside PyTorch's, on one core of the host.

    make test FULL=torch CASES=16      # an environment with both libraries
    .venv-torch/bin/python -m bench.layers

Both take turns; a row shows the median milliseconds of a run of each, and the median ratio. PyTorch
has its default format, in which channels come first. The first line names the BLAS and the
processor that its kernels are for: the times of convolution depend on it.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is loaded

import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
import torch
from torch.nn import functional

import gdt
from gdt.benchmark.machine import machine

Run = Callable[[], object]
ROUNDS = 9


def attention(causal: bool) -> tuple[Run, Run]:
    """Return gdt's and PyTorch's attention of 4 sequences of 1,024 positions with 8 heads."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(4, 8, 1024, 64)).astype(np.float32) for _ in range(3)]
    own, others = [gdt.asarray(x) for x in arrays], tensors(arrays)
    product = functional.scaled_dot_product_attention
    gradient = gdt.grad(lambda a: gdt.sum(gdt.attention(*a, causal=causal)))
    return (
        lambda: gradient(own),
        lambda: product(*others, is_causal=causal).sum().backward(),
    )


def convolution(size: int, channels: int, results: int) -> tuple[Run, Run]:
    """Return gdt's and PyTorch's convolution of 128 square images with a kernel of 3 x 3."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, size, size, channels)).astype(np.float32)
    kernel = rng.normal(size=(3, 3, channels, results)).astype(np.float32)
    own = [gdt.asarray(x), gdt.asarray(kernel)]
    first = [np.moveaxis(x, -1, 1), np.moveaxis(kernel, (-1, -2), (0, 1))]
    others = tensors([np.ascontiguousarray(a) for a in first])
    gradient = gdt.grad(lambda a: gdt.sum(gdt.convolution(*a, padding="same") ** 2))
    return (
        lambda: gradient(own),
        lambda: (functional.conv2d(*others, padding=1) ** 2).sum().backward(),
    )


def lstm() -> tuple[Run, Run]:
    """Return gdt's recorded step and PyTorch's of an LSTM of 128 units: 32 sequences of 100 steps
    with 64 features, gradients of the parameters."""
    x = np.random.default_rng(0).normal(size=(32, 100, 64)).astype(np.float32)
    layer, own = gdt.nn.LSTM(128, 64, sequences=True), gdt.asarray(x)
    other_layer, other = torch.nn.LSTM(64, 128, batch_first=True), torch.tensor(x)
    gradient = gdt.function(gdt.grad(lambda layer, x: gdt.sum(layer(x) ** 2)))

    def run_other() -> None:
        other_layer.zero_grad()
        (other_layer(other)[0] ** 2).sum().backward()

    return lambda: gradient(layer, own), run_other


def tensors(arrays: list[np.ndarray]) -> list[torch.Tensor]:
    """Return arrays as tensors with gradients."""
    return [torch.tensor(x, requires_grad=True) for x in arrays]


def milliseconds(run: Run) -> float:
    """Return the time of the processor for a run."""
    begin = time.process_time()
    run()
    return (time.process_time() - begin) * 1e3


def libraries() -> str:
    """Return the processor, and for which instructions the kernels of both libraries are."""
    properties, vectors = machine(), torch.backends.cpu.get_cpu_capability()
    return f"{properties['cpu']}; gdt: {properties['blas']}; PyTorch: {vectors}"


def cases() -> Iterator[tuple[str, tuple[Run, Run]]]:
    """Yield the names and runs of all rows: the convolutions are those of examples/spatial_cnn."""
    for causal in (False, True):
        yield f"attention{', causal' if causal else ''}", attention(causal)
    for sizes in ((28, 1, 16), (14, 16, 16), (14, 16, 32), (7, 32, 32)):
        yield f"convolution {sizes[0]}x{sizes[0]}, {sizes[1]} -> {sizes[2]}", convolution(*sizes)
    yield "LSTM, recorded", lstm()


def main() -> None:
    """Measure and print all rows."""
    torch.set_num_threads(1)
    print(libraries())
    for name, (own, other) in cases():
        own(), other()
        pairs = [(milliseconds(own), milliseconds(other)) for _ in range(ROUNDS)]
        times = [median(column) for column in zip(*pairs, strict=True)]
        ratio = median(a / b for a, b in pairs)
        print(f"{name:28} gdt {times[0]:7.2f}  PyTorch {times[1]:7.2f}  ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
