"""The kernels of `bench.gpu.kernels` in PyTorch: eager, and compiled to Triton's kernels.

The program reads cases from standard input, as JSON, and prints a line of JSON for each: seconds by
mode, or the failure. On a machine without a GPU everything runs on the CPU, as a test of the
program.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDS, RUNS = 7, 10
LEAD_BYTES, FILLS_MAX = 256 << 20, 512
UPDATES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True),
}
# PyTorch has these in a library of its own, for which it compiles nothing.
LIBRARY = ("matmul", "attention", "attention and gradient")

Run = Callable[[], Any]


def seconds(run: Run) -> float:
    """Return the median of the GPU's times, or of the clock's where there is no GPU."""
    for _ in range(3):
        run()
    return median(device_seconds(run) if DEVICE == "cuda" else clock_seconds(run))


def clock_seconds(run: Run) -> list[float]:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return times


def device_seconds(run: Run) -> list[float]:
    """As gdt.backend.timing does: the GPU fills memory until the host has launched all runs."""
    lead, fills, times = torch.empty(LEAD_BYTES, dtype=torch.uint8, device=DEVICE), 1, []
    while len(times) < ROUNDS:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(fills):
            lead.zero_()
        begin.record()
        for _ in range(RUNS):
            run()
        is_ahead = not begin.query()
        end.record()
        end.synchronize()
        if not is_ahead and fills < FILLS_MAX:
            fills *= 2
            continue
        if not is_ahead:
            raise RuntimeError("the host is slower than the device: its time would be measured")
        times.append(begin.elapsed_time(end) / 1e3 / RUNS)
    return times


def function_of(kernel: str) -> Callable[..., Any]:
    """Return the kernel's formula as a function of tensors."""

    attention = functional.scaled_dot_product_attention

    def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> Any:
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        return torch.autograd.grad(loss, logits)

    def attention_gradient(*tensors: torch.Tensor) -> Any:
        *operands, g = tensors
        return torch.autograd.grad(attention(*operands), operands, g)

    def moments(x: torch.Tensor) -> Any:
        return torch.var_mean(x, dim=0, correction=0)

    def apply(x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> Any:
        return (x - mean) * rstd

    def gradient(x: torch.Tensor, dy: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> Any:
        normal = (x - mean) * rstd
        return rstd * (dy - dy.mean(0) - normal * (dy * normal).mean(0))

    return {
        "matmul": torch.matmul,
        "attention": attention,
        "attention and gradient": attention_gradient,
        "batch norm: moments": moments,
        "batch norm: apply": apply,
        "batch norm: gradient": gradient,
        "cross-entropy and gradient": cross_entropy,
        "sum of rows": lambda x: x.sum(1),
    }[kernel]


def operands(kernel: str, dtype: str, shape: list[int]) -> list[torch.Tensor]:
    element = getattr(torch, {"tf32": "float32"}.get(dtype, dtype))
    draw = lambda *sizes: torch.randn(*sizes, device=DEVICE).to(element)
    if kernel == "matmul":
        m, n, k = shape
        return [draw(m, k), draw(k, n)]
    if kernel.startswith("attention"):
        is_gradient = kernel.endswith("gradient")
        inputs = [draw(1, *shape).requires_grad_(is_gradient) for _ in range(3)]
        return [*inputs, draw(1, *shape)] if is_gradient else inputs
    if kernel == "cross-entropy and gradient":
        labels = torch.arange(shape[0], device=DEVICE) % shape[1]
        return [draw(*shape).requires_grad_(), labels]
    rows = [draw(*shape)]
    if kernel.startswith("batch norm"):
        rows += [draw(*shape)] if kernel.endswith("gradient") else []
        rows += [] if kernel.endswith("moments") else [draw(shape[1]), draw(shape[1])]
    return rows


def prepared(case: dict[str, Any]) -> dict[str, Run]:
    """Return the runs to time, by mode."""
    kernel, dtype, shape = case["kernel"], case["dtype"], case["shape"]
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    if kernel in UPDATES:
        parameter = torch.randn(*shape, device=DEVICE, requires_grad=True)
        parameter.grad = torch.randn_like(parameter)
        return {"PyTorch": UPDATES[kernel]([parameter]).step}
    if kernel in ("uniform", "normal"):
        out = torch.empty(*shape, device=DEVICE)
        return {"PyTorch": out.uniform_ if kernel == "uniform" else out.normal_}
    function, tensors = function_of(kernel), operands(kernel, dtype, shape)
    runs: dict[str, Run] = {"PyTorch": lambda: function(*tensors)}
    if kernel not in (*LIBRARY, "cross-entropy and gradient"):
        compiled = torch.compile(function)
        runs["torch.compile (Triton)"] = lambda: compiled(*tensors)
    if kernel == "cross-entropy and gradient":
        loss = torch.compile(lambda x, y: functional.cross_entropy(x, y, reduction="sum"))
        runs["torch.compile (Triton)"] = lambda: torch.autograd.grad(loss(*tensors), tensors[0])
    return runs


def main() -> None:
    for case in json.load(sys.stdin):
        answer = {"name": case["name"]}
        try:
            runs = prepared(case).items()
            answer["seconds"] = {strategy: seconds(run) for strategy, run in runs}
        except Exception as problem:  # the other cases are measured all the same
            answer["failure"] = f"{type(problem).__name__}: {str(problem)[-500:]}"
        print(json.dumps(answer), flush=True)
        torch._dynamo.reset()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
