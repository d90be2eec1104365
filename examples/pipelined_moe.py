"""A small GPT of pipelined blocks and experts, which learns on 8 virtual devices how series go on.

Series count up by a step of their own, modulo the size of the vocabulary. The model is written
once; the mesh and a LayoutMap say whether blocks are split over stages, and experts over the
devices that split the batch. The losses are those of one device.

    python -m examples.pipelined_moe [--steps 200] [--scheme "stages x experts"]
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np

import gdt
from examples.reporting import console, launch
from gdt import nn

VOCABULARY, POSITIONS, SIZE, HEADS, LAYERS = 16, 8, 32, 4, 4
EXPERTS, ROWS, MICRO_BATCHES, BALANCE = 8, 64, 4, 0.01


class Block(nn.Module):
    """Attention and a mixture of experts, each after a norm, and added to what came in.

    It takes and returns a dict: `x` (rows, positions, size), and the balance loss of each row so
    far, so that a pipeline hands on both.
    """

    def __init__(self, key: int) -> None:
        self.attention_norm, self.norm = nn.RMSNorm(SIZE), nn.RMSNorm(SIZE)
        self.attention = nn.MultiHeadAttention(HEADS, SIZE, causal=True, key=key)
        self.experts = nn.MoE(EXPERTS, 2 * SIZE, size=SIZE, key=key + 1)

    def __call__(self, state: dict[str, Any]) -> dict[str, Any]:
        x = state["x"] + self.attention(self.attention_norm(state["x"]))
        y, routing = self.experts(self.norm(x), routing=True)
        return {"x": x + y, "balance": state["balance"] + routing.balance}


class Head(nn.Module):
    """The loss of each row: of the numbers that follow, and of the balance of experts."""

    def __init__(self, table: nn.Embedding) -> None:
        self.norm, self.table = nn.RMSNorm(SIZE), table

    def __call__(
        self, state: dict[str, Any], targets: gdt.DistributedArray
    ) -> gdt.DistributedArray:
        logits = self.table.logits(self.norm(state["x"]))
        losses = nn.losses.sparse_softmax_cross_entropy(targets, logits, reduction="none")
        return gdt.mean(losses, axis=-1) + BALANCE * state["balance"]


class GPT(nn.Module):
    """The losses of rows, which the last stage of a pipeline computes."""

    def __init__(self, repeats: int = 1) -> None:
        self.table = nn.Embedding(VOCABULARY, SIZE, key=1)
        self.positions = nn.Embedding(POSITIONS, SIZE, key=2)
        blocks, head = [Block(10 * n + 10) for n in range(LAYERS)], Head(self.table)
        self.pipeline = nn.Pipelined(blocks, "stage", MICRO_BATCHES, repeats=repeats, head=head)

    def __call__(
        self, ids: gdt.DistributedArray, targets: gdt.DistributedArray
    ) -> gdt.DistributedArray:
        x = self.table(ids) + self.positions.weight
        rows = gdt.Layout(ids.layout.sharding_specs[:1], ids.mesh)
        state = {"x": x, "balance": gdt.zeros(len(ids), "float32", layout=rows)}
        return self.pipeline(state, targets)


class Scheme(NamedTuple):
    """A mesh, the axis that splits experts, the one over which arrays are kept split (FSDP), and
    how often micro-batches go round the stages."""

    mesh: list[tuple[str, int]]
    expert: str | None = None
    data: str | None = None
    repeats: int = 1


SCHEMES = {
    "one device": Scheme([("stage", 1), ("data", 1)]),
    "stages": Scheme([("stage", 4), ("data", 2)]),
    "experts": Scheme([("stage", 1), ("data", 8)], "data"),
    "stages x experts": Scheme([("stage", 2), ("data", 4)], "data"),
    "stages twice round, FSDP": Scheme([("data", 4), ("stage", 2)], None, "data", repeats=2),
    "stages x data x experts": Scheme([("stage", 2), ("data", 2), ("expert", 2)], "expert"),
}


def series(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return a batch of series, and of what follows each of their numbers."""
    first, step = rng.integers(0, VOCABULARY, (2, ROWS, 1))
    numbers = (first + step * np.arange(POSITIONS + 1)) % VOCABULARY
    return numbers[:, :-1], numbers[:, 1:]


def train(name: str, steps: int, blocks: int | None = None) -> list[float]:
    """Train under a scheme; return the losses."""
    scheme = SCHEMES[name]
    mesh = gdt.create_mesh(scheme.mesh, device_type="CPU", blocks=blocks)
    with gdt.default_mesh(mesh):
        model = GPT(scheme.repeats)
    layouts = nn.layout_maps.transformer(
        mesh, model=None, data=scheme.data, stage="stage", expert=scheme.expert
    )
    layouts.apply(model)
    optimizer = gdt.optim.Adam(3e-3).init(model)
    axes = tuple(axis for axis in mesh.axis_names if axis != "stage")
    rows, rng = gdt.Layout([axes, None], mesh), np.random.default_rng(0)

    @gdt.function
    def step(ids: gdt.DistributedArray, targets: gdt.DistributedArray) -> gdt.DistributedArray:
        def loss(model: GPT) -> gdt.DistributedArray:
            return gdt.mean(model(ids, targets))

        value, gradients = gdt.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    batches = [[gdt.asarray(a, layout=rows) for a in series(rng)] for _ in range(steps)]
    return [float(step(*batch)) for batch in batches]


def main() -> None:
    """Read the command line, and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--scheme", choices=SCHEMES, help="one scheme alone")
    arguments = parser.parse_args()
    for name in [arguments.scheme] if arguments.scheme else SCHEMES:
        losses = train(name, arguments.steps)
        console.print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}")


if __name__ == "__main__":
    launch(main)
