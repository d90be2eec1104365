"""The step of examples/parallel_gpt.py in all its schemes, beside PyTorch's and JAX's.

    make peers test FULL=torch CASES=16      # an environment with gdt and PyTorch, and one with JAX
    .venv-torch/bin/python -m bench.gpt [SCHEME ...]

PyTorch has one array on one thread, and JAX 8 host devices with a part of the batch each. All take
turns, a step each, from the same weights: a row shows the median milliseconds that the processor
takes for a step of a scheme, recorded by `gdt.function` and as it is written, the median ratio to
PyTorch's, and the last loss, which must be PyTorch's to 1e-5.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is loaded

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import gdt
from bench.launch import launch
from bench.layers import libraries
from bench.report import Contender, Running
from bench.workloads import ADAM_EPSILON
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

WARM_ROUNDS, ROUNDS = 4, 15  # the first make plans, and record
LOSS_TOLERANCE = 1e-5
RNG = np.random.default_rng(0)
BATCHES = [RNG.integers(0, VOCABULARY, (BATCH, TOKENS)) for _ in range(2)]  # tokens, and the next


class Step(NamedTuple):
    """What a step took of the processor, in milliseconds, and its loss."""

    time: float
    loss: float


Take = Callable[[], Step]


def timed(step: Callable[[], float]) -> Take:
    """Return a function that takes a step of this process."""

    def take() -> Step:
        begin = time.process_time()
        loss = step()
        return Step((time.process_time() - begin) * 1e3, loss)

    return take


# ---------------------------------------------------------------- PyTorch


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


RENAMED = {"scale": "weight", "offset": "bias", "attention.output_": "output."} | {
    f"attention.{part}_": "projections." for part in ("query", "key", "value")
}


def weights_of_other(weights: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Return weights by PyTorch's names, whose matrices are (results, features)."""
    tables = {"table.weight", "positions.weight"}
    arrays: dict[str, list[np.ndarray]] = {}  # those of queries, keys and values are joined
    for name, x in weights.items():
        other = name
        for ours, theirs in RENAMED.items():
            other = other.replace(ours, theirs)
        arrays.setdefault(other, []).append(x if name in tables else x.T)
    return {name: torch.tensor(np.concatenate(xs)) for name, xs in arrays.items()}


def other_step(weights: dict[str, np.ndarray]) -> Take:
    """Return PyTorch's step."""
    model, (x, y) = Other(), [torch.tensor(batch) for batch in BATCHES]
    model.load_state_dict(weights_of_other(weights))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, eps=ADAM_EPSILON)

    def step() -> float:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    return timed(step)


# ---------------------------------------------------------------- JAX


def jax_step(weights: dict[str, np.ndarray]) -> Take | None:
    """Return JAX's step; None without its environment."""
    contender = Contender("JAX jit", "data, 8 devices", ".venv-jax", "bench.peers.jax_gpt", "data")
    if not contender.present:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.npz"
        tokens, targets = BATCHES
        np.savez(path, tokens=tokens, targets=targets, heads=HEADS, **weights)
        running = Running(contender, str(path))

    def take() -> Step:
        running.run_round()
        return Step(running.medians[-1], running.losses[-1])

    return take


# ---------------------------------------------------------------- gdt


def own_step(scheme: Scheme, is_recorded: bool) -> Take:
    """Return the step of a scheme, recorded or as it is written."""
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

    run = gdt.function(step) if is_recorded else step
    return timed(lambda: float(run()))


# ---------------------------------------------------------------- the table


def main() -> None:
    """Measure and print the steps of the schemes that the command names, or of all."""
    torch.set_num_threads(1)
    by_name = {scheme.name: scheme for scheme in SCHEMES}
    names = sys.argv[1:] or [*by_name]
    if unknown := [name for name in names if name not in by_name]:
        sys.exit(f"No scheme is named {', '.join(unknown)}; the schemes are {', '.join(by_name)}.")
    print(libraries())
    weights = {name: x.numpy() for name, x in GPT().named_parameters()}
    steps = {"PyTorch": other_step(weights)}
    if (jax := jax_step(weights)) is not None:
        steps["JAX jit, data, 8 devices"] = jax
    for name in names:
        steps[f"{name}, recorded"] = own_step(by_name[name], is_recorded=True)
        steps[name] = own_step(by_name[name], is_recorded=False)
    rounds = [{name: take() for name, take in steps.items()} for _ in range(WARM_ROUNDS + ROUNDS)]
    last = rounds[-1]
    for name in steps:
        pairs = [(row[name].time, row["PyTorch"].time) for row in rounds[WARM_ROUNDS:]]
        milliseconds, ratio = median(a for a, _ in pairs), median(a / b for a, b in pairs)
        print(f"{name:36} {milliseconds:7.2f} ms  ratio {ratio:.2f}  loss {last[name].loss:.6f}")
    others = [k for k in steps if abs(last[k].loss - last["PyTorch"].loss) > LOSS_TOLERANCE]
    if others:
        sys.exit(f"Other losses than PyTorch's: {', '.join(others)}")


if __name__ == "__main__":
    launch(main)
