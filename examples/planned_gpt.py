"""A GPT is planned for 64 made-up devices, and its small twin trains on 8 virtual ones.

`make_step` is written once: the plan says where arrays and rows lie, which blocks are run again in
the backward pass, and in how many micro-batches. The plan that is the fastest on 64 devices is put
on 8, whose mesh has the same axes.

    python -m examples.planned_gpt [--steps 60]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

import gdt
from examples.parallel_gpt import GPT, Size
from examples.reporting import console, launch
from gdt import nn
from gdt.prediction import ParallelPlan, RankedPlans

LARGE = Size(layers=24, width=4096, heads=32, vocabulary=32_768, tokens=2_048, batch=128)
SMALL = Size(layers=2, width=64, heads=4, vocabulary=64, tokens=16, batch=32)
# Eight devices a host; 200 GB/s between those of a host, and 5 GB/s between hosts.
MACHINE = gdt.Machine(
    flops={"float32": 1e14}, bandwidth=1e12, memory=48e9, name="made-up devices",
    links={"host": gdt.Link(200e9, 5e-6), "network": gdt.Link(5e9, 2e-5)},
)  # fmt: skip


def make_step(plan: ParallelPlan, size: Size) -> Callable[[], gdt.DistributedArray]:
    """Return the training step of a GPT under a plan: series count up by a step of their own."""
    with gdt.default_mesh(plan.mesh):
        model = plan.apply(GPT(size))
    optimizer = gdt.optim.Adam(3e-3).init(model)
    first, step = np.random.default_rng(0).integers(0, size.vocabulary, (2, size.batch, 1))
    series = (first + step * np.arange(size.tokens + 1)) % size.vocabulary
    layout = plan.batch_layout(2)
    tokens, targets = (gdt.asarray(x, layout=layout) for x in (series[:, :-1], series[:, 1:]))

    def loss(model: GPT, tokens: Any, targets: Any) -> gdt.DistributedArray:
        return nn.losses.sparse_softmax_cross_entropy(targets, model(tokens))

    loss_and_gradients = plan.value_and_grad(loss)

    def training_step() -> gdt.DistributedArray:
        value, gradients = loss_and_gradients(model, tokens, targets)
        optimizer.update(model, gradients)
        return value

    return training_step


def planned() -> RankedPlans:
    """Return the plans of the large GPT on 64 devices."""
    return gdt.plan(lambda plan: make_step(plan, LARGE), 64, machine=MACHINE, time_limit=8)


def train(plan: ParallelPlan, steps: int) -> list[float]:
    """Train the small GPT under a plan on 8 virtual devices; return the losses."""
    axes = plan.mesh.axis_names
    sizes = {1: [8], 2: [2, 4], 3: [2, 2, 2]}[len(axes)]
    mesh = gdt.create_mesh([*zip(axes, sizes, strict=True)], device_type="CPU")
    step = make_step(plan.on(mesh), SMALL)
    return [float(step()) for _ in range(steps)]


def main() -> None:
    """Read the command line, plan, and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    plans = planned()
    console.print(str(plans), soft_wrap=True)
    losses = train(plans[0], arguments.steps)
    console.print(f"the small GPT on 8 devices: loss {losses[0]:.4f} -> {losses[-1]:.4f}")


if __name__ == "__main__":
    launch(main)
