"""The step of examples/parallel_gpt.py in all its schemes, beside PyTorch's on one array.

    make test-torch CASES=16      # an environment with both libraries
    .venv-torch/bin/python -m bench.gpt

One core of the host computes both, in turn: a row shows the median milliseconds of a step of a
scheme, recorded by `gdt.function` and as it is written, and the median ratio to PyTorch's.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is loaded

from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import gdt
from bench.layers import Run, libraries, milliseconds
from examples.parallel_gpt import (
    BATCH,
    GPT,
    HEADS,
    LAYERS,
    SCHEMES,
    SIZE,
    TOKENS,
    VOCABULARY,
    Scheme,
)

ROUNDS = 15
RNG = np.random.default_rng(0)
BATCHES = [RNG.integers(0, VOCABULARY, (BATCH, TOKENS)) for _ in range(2)]  # tokens, and the next


class Block(nn.Module):
    """The example's block in PyTorch's words."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.projections, self.output = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)
        self.up, self.down = nn.Linear(SIZE, 4 * SIZE), nn.Linear(4 * SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projections = self.projections(self.norm1(x)).unflatten(-1, (3, HEADS, SIZE // HEADS))
        q, k, v = projections.permute(2, 0, 3, 1, 4)  # each (batch, heads, tokens, head size)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(y.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Other(nn.Module):
    """The example's GPT in PyTorch's words."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(TOKENS, SIZE)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(SIZE)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.blocks(self.table(tokens) + self.positions.weight)
        return self.norm(x) @ self.table.weight.T


def other_step() -> Run:
    """Return PyTorch's step."""
    model, (x, y) = Other(), [torch.tensor(batch) for batch in BATCHES]
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step() -> float:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def own_steps(scheme: Scheme) -> tuple[Run, Run]:
    """Return the step of a scheme, recorded and as it is written."""
    mesh = gdt.create_mesh(scheme.dims)
    with gdt.default_mesh(mesh):
        model = GPT()
    scheme.layouts(mesh).apply(model)
    model.blocks = [scheme.wrap(block) for block in model.blocks]
    optimizer, layout = gdt.optim.Adam(1e-3).init(model), gdt.Layout(scheme.batch, mesh)
    x, y = [gdt.asarray(batch, layout=layout) for batch in BATCHES]

    def loss_of(model: GPT) -> Any:
        return gdt.nn.losses.sparse_softmax_cross_entropy(y, model(x))

    def step() -> Any:
        loss, gradients = gdt.value_and_grad(loss_of)(model)
        optimizer.update(model, gradients)
        return loss

    recorded = gdt.function(step)
    return lambda: float(recorded()), lambda: float(step())


def main() -> None:
    """Measure and print the steps of all schemes."""
    torch.set_num_threads(1)
    print(libraries())
    runs = {"PyTorch": other_step()}
    for scheme in SCHEMES:
        recorded, written = own_steps(scheme)
        runs |= {f"{scheme.name}, recorded": recorded, scheme.name: written}
    for run in runs.values():
        for _ in range(4):  # which makes plans, and records
            run()
    rounds = [{name: milliseconds(run) for name, run in runs.items()} for _ in range(ROUNDS)]
    for name in runs:
        time = median(times[name] for times in rounds)
        ratio = median(times[name] / times["PyTorch"] for times in rounds)
        print(f"{name:36} {time:7.2f} ms  ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
