"""Trainings in which processes die, stop or do different things at random moments.

`python -m tests.processes.soak --seconds 120`. Four processes, over sockets and over MPI, train
the models of the examples, recorded or as written. Of every training it is known how it must end:
none may go on in silence, and none may hang. Prints a count of each, and fails if there is one.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gdt
from gdt import Layout
from gdt.nn.losses import sparse_softmax_cross_entropy

from .forks import Forked
from .kills import TIMEOUT, WAYS, kill, started
from .programs import examples

sys.modules["numba"] = None  # type: ignore[assignment]  # compiling takes longer than a training
imdb, mnist = examples("imdb", "mnist")

COUNT, STEPS, ROWS = 4, 6, 32
SECONDS = 60.0  # after which a training without an event hangs
RNG = np.random.default_rng(0)
DATA = {
    "imdb": (RNG.random((STEPS, ROWS, imdb.TOKENS), "f"), RNG.integers(0, 2, (STEPS, ROWS))),
    "mnist": (RNG.random((STEPS, ROWS, 784), "f"), RNG.integers(0, 10, (STEPS, ROWS))),
}


def model_of(name: str, mesh: gdt.Mesh) -> gdt.nn.Module:
    whole = Layout([None, None], mesh)
    return imdb.MLP(whole, whole) if name == "imdb" else mnist.MLP([784, 32, 10], whole)


def in_another_order(x: gdt.DistributedArray) -> gdt.DistributedArray:
    return gdt.tanh(gdt.exp(x) * 0.0)


def in_order(x: gdt.DistributedArray) -> gdt.DistributedArray:
    return gdt.exp(gdt.tanh(x) * 0.0) - 1.0


def raise_error(*_: Any) -> None:
    raise ValueError("no such file")


class Difference(NamedTuple):
    """What one process does differently in one step: to the images, or to the training."""

    images: Callable[[gdt.DistributedArray], gdt.DistributedArray] = lambda x: x
    is_swapped: bool = False  # two operands of one type
    apart: Callable[[gdt.optim.Optimizer], Any] = lambda optimizer: None
    steps: int = 0  # more than the others take
    saved: int = 0  # more in the tree that is saved


# The kinds of what processes may do differently.
DIFFERENCES = {
    "order": Difference(lambda x: x + in_another_order(x)),
    "scalar": Difference(lambda x: x * 1.0000001),
    "rate": Difference(apart=lambda optimizer: setattr(optimizer, "learning_rate", 0.0123)),
    "seed": Difference(apart=lambda _: gdt.random.seed(77)),
    "op": Difference(gdt.tanh),
    "operand": Difference(is_swapped=True),
    "layout": Difference(lambda x: gdt.relayout(x, [None, "batch"])),
    "dtype": Difference(lambda x: x.astype("float64")),
    "shape": Difference(lambda x: x[: ROWS - 1]),
    "steps": Difference(steps=1),
    "exception": Difference(apart=raise_error),
    "exit": Difference(apart=lambda _: os._exit(0)),
    "tree": Difference(saved=1),
}
NOTHING = Difference()


class Trial(NamedTuple):
    """A training, and what happens in it: to which process, in which step."""

    over: str
    model: str
    event: str
    victim: int
    step: int
    is_recorded: bool


def train(trial: Trial, folder: str) -> None:
    """A process of a training. It prints where all of its threads are when it gets SIGUSR1."""
    faulthandler.register(signal.SIGUSR1)
    gdt.distributed.initialize(timeout=TIMEOUT if trial.event == "stop" else 30.0)
    mesh = gdt.create_mesh([("batch", 8)])
    model, optimizer = model_of(trial.model, mesh), gdt.optim.Adam(1e-3)
    is_victim = gdt.distributed.process_index() == trial.victim
    images, labels = DATA[trial.model]

    def step(x: gdt.DistributedArray, y: gdt.DistributedArray) -> gdt.DistributedArray:
        loss = lambda m: sparse_softmax_cross_entropy(y, m(x + in_order(x)))
        value, gradients = gdt.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    run = gdt.function(step) if trial.is_recorded else step
    differing = DIFFERENCES.get(trial.event, NOTHING) if is_victim else NOTHING
    endless = trial.event in ("kill", "stop")
    number = 0
    while number < STEPS + differing.steps or endless:
        now = differing if number == trial.step else NOTHING
        now.apart(optimizer)
        noise = gdt.random.normal((ROWS, 1), layout=Layout(["batch", None], mesh)) * 1e-3
        x = gdt.asarray(images[number % STEPS], layout=Layout(["batch", None], mesh))
        y = gdt.asarray(labels[number % STEPS], layout=Layout(["batch"], mesh))
        x = now.images(x + noise.astype("float32"))
        half = x * 0.5
        x = half - x if now.is_swapped else x - half
        if x.dtype != np.float32 or x.shape[0] != ROWS:
            x = gdt.zeros((ROWS, images.shape[2]), "float32", layout=Layout(["batch", None], mesh))
        value = run(x, y)
        if number % 2:
            gdt.checkpoint.save(
                Path(folder) / "model.safetensors",
                {"model": model, "optimizer": optimizer, "step": number + now.saved},
            )
        float(value)
        if number == 1:
            print("ready", flush=True)
        number += 1
    gdt.distributed.barrier("end")


def outcome(trial: Trial, processes: Forked) -> str:
    """How a training has ended: well, in silence, with a hang, or otherwise than it must."""
    if trial.event in ("kill", "stop"):
        kind = signal.SIGKILL if trial.event == "kill" else signal.SIGSTOP
        seconds = kill(processes, trial.victim, kind, trial.step * 0.05)
    else:
        seconds = processes.wait(SECONDS)
    if seconds is None:
        return "hang"
    others = [i for i in range(COUNT) if i != trial.victim]
    texts, codes = [processes.text(i) for i in others], [processes.codes[i] for i in others]
    if trial.event == "nothing":
        return "well" if not any(processes.codes) else "false alarm"
    if 0 in codes:
        return "silent"
    error = "CheckpointError" if trial.event == "tree" else "DistributedError"
    name = "process " if trial.event == "tree" else f"process {trial.victim} (host"
    named = sum(error in text and name in text for text in texts)
    return "well" if named == len(others) else "unnamed"


def trials(seed: int) -> Any:
    """Trials without end: every event in turn, over sockets and MPI, in random places."""
    rng = random.Random(seed)
    while True:
        for event in rng.sample([*DIFFERENCES, "kill", "stop", "nothing"], len(DIFFERENCES) + 3):
            for over in (WAYS[0], WAYS[2]):
                model = rng.choice(["imdb", "mnist"])
                step = (
                    rng.randrange(STEPS // 2) * 2 + 1 if event == "tree" else rng.randrange(STEPS)
                )
                yield Trial(over, model, event, rng.randrange(COUNT), step, rng.random() < 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    events: Counter[str] = Counter()
    end = time.monotonic() + options.seconds
    for trial in trials(options.seed):
        if time.monotonic() > end:
            break
        with tempfile.TemporaryDirectory() as folder:
            run = lambda trial=trial, folder=folder: train(trial, folder)
            processes = started(trial.over, COUNT, run)
            try:
                found = outcome(trial, processes)
                for i in processes.are_running():
                    os.kill(processes.pids[i], signal.SIGUSR1)
                    time.sleep(0.2)
                texts = [processes.text(i) for i in range(COUNT)]
            finally:
                processes.end()
        counts[found] += 1
        events[trial.event] += 1
        if found != "well":
            print(f"{found}: {trial}, {processes.codes}", *texts, sep="\n", file=sys.stderr)
    print(f"{counts.total()} trainings: {dict(counts)}; {dict(events)}")
    sys.exit(counts.total() != counts["well"])


if __name__ == "__main__":
    main()
