"""What `fit` adds to a step, and how long batches take beside it.

    python -m bench.fit

The networks of `bench.workloads` on 8 devices, data parallel; their rows are shuffled, and placed
batch by batch. Three loops take turns, an epoch each: one that calls a step recorded by
`gdt.function` and reads the losses at its end, `Trainer.fit`, and one that takes batches alone. A
row shows the median milliseconds of the processor for a batch, and the median ratio to the recorded
loop. The losses of `fit` must be those of that loop, bit by bit.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is loaded

import sys
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

import gdt
from bench.launch import launch
from bench.workloads import BATCHES, WORKLOADS, Workload
from gdt import Layout, nn

ROUNDS, REPEATED = 15, 12  # an epoch has the rows of a workload that many times


def runs(workload: Workload) -> dict[str, Callable[[], list[float]]]:
    """Return functions that run an epoch and return its losses."""
    mesh = gdt.create_mesh({"batch": 8})
    rows = [np.concatenate(arrays * REPEATED) for arrays in zip(*workload.batches(), strict=True)]
    layouts = Layout(["batch", None], mesh), Layout(["batch"], mesh)

    def place(*arrays: np.ndarray) -> Any:
        return tuple(gdt.asarray(x, layout=y) for x, y in zip(arrays, layouts, strict=True))

    def batches() -> gdt.data.Batches[Any]:
        return gdt.data.Batches(*rows, batch_size=workload.batch, seed=0, place=place)

    def training() -> tuple[nn.Module, gdt.optim.Optimizer, gdt.data.Batches[Any]]:
        *hidden, last = pairwise(workload.sizes)
        with gdt.default_mesh(mesh):
            layers = [nn.Dense(*sizes, activation="relu", key=i) for i, sizes in enumerate(hidden)]
            model = nn.Sequential(*layers, nn.Dense(*last, key=len(hidden)))
        return model, gdt.optim.Adam(workload.learning_rate), batches()

    model, optimizer, looped = training()

    @gdt.function
    def step(x: Any, y: Any) -> Any:
        loss = lambda model: nn.losses.sparse_softmax_cross_entropy(y, model(x))
        value, gradients = gdt.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    def loop() -> list[float]:
        values = [step(*batch) for batch in looped]
        return [float(value) for value in values]

    fitted = training()
    trainer = gdt.Trainer(*fitted[:2], "sparse_softmax_cross_entropy")

    def fit() -> list[float]:
        history = trainer.fit(fitted[2], show=False)
        return [step["loss"] for step in history.steps]

    alone = batches()

    def batches_alone() -> list[float]:
        for _ in alone:
            pass
        return []

    return {"recorded loop": loop, "fit": fit, "batches alone": batches_alone}


def milliseconds(run: Callable[[], list[float]]) -> tuple[float, list[float]]:
    """Return the time of the processor for a batch, and the losses."""
    begin = time.process_time()
    losses = run()
    return (time.process_time() - begin) * 1e3 / (BATCHES * REPEATED), losses


def main() -> None:
    """Measure and print both workloads."""
    for workload in WORKLOADS.values():
        by_name = runs(workload)
        rounds = []
        for _ in range(ROUNDS + 1):  # the first makes plans, and records
            results = {name: milliseconds(run) for name, run in by_name.items()}
            if results["fit"][1] != results["recorded loop"][1]:
                sys.exit(f"{workload.name}: the losses of fit are not those of the loop")
            rounds.append({name: time for name, (time, _) in results.items()})
        for name in by_name:
            pairs = [(row[name], row["recorded loop"]) for row in rounds[1:]]
            ratio = median(a / b for a, b in pairs)
            print(f"{workload.name:6}{name:14} {median(a for a, _ in pairs):7.3f} ms  {ratio:.3f}")


if __name__ == "__main__":
    launch(main)
