"""The programs of `bench.programs` in PyTorch, on one tensor: eager, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from bench.programs.program import Operand, Program, in_tree
from bench.programs.worker import Prepare, Run, serve

NAMESPACE = SimpleNamespace(
    **vars(torch)
    | {
        "astype": torch.Tensor.to,
        "max": torch.amax,  # torch.max returns indices too
        "std": partial(torch.std, correction=0),
    }
)


def contender(transform: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Prepare:
    """Return what prepares a program whose function is transformed first."""

    def prepare(program: Program, size: int) -> Run:
        torch.compiler.reset()  # the code of the programs before, of which torch keeps eight

        def run(*arrays: Any) -> Any:
            return program.run(NAMESPACE, *arrays)

        operands = [in_tree(tensor, tree) for tree in program.operands(size)]
        step = transform(run)
        if not program.has_gradient:
            return lambda: step(*operands)
        return partial(value_and_grad, step, *operands)

    return prepare


def tensor(operand: Operand) -> torch.Tensor:
    return torch.from_numpy(operand.values)


def value_and_grad(
    step: Callable[..., Any], parameters: dict[str, torch.Tensor], *data: torch.Tensor
) -> Any:
    """Return `((value, others), gradients)`."""
    leaves = {name: x.detach().requires_grad_() for name, x in parameters.items()}
    value, others = step(leaves, *data)
    gradients = torch.autograd.grad(value, list(leaves.values()))
    detached = in_tree(torch.Tensor.detach, (value, others))
    return detached, dict(zip(leaves, gradients, strict=True))


CONTENDERS = {
    "eager": contender(lambda run: run),
    "compile": contender(partial(torch.compile, dynamic=False)),
}

if __name__ == "__main__":
    serve(CONTENDERS, {"torch": torch.__version__})
