"""The sentiment of movie reviews: one program, trained data parallel, model parallel and spatially
parallel.

Only the layouts of a `Scheme` depend on devices; model and training do not. Each scheme continues
the training of the one before from its checkpoint. Follows the TensorFlow tutorial "Distributed
training with DTensors" (tensorflow.org/tutorials/distribute/dtensor_ml_tutorial).

    python -m examples.imdb [--data-dir aclImdb] [--output outputs]
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

import gdt
from examples import datasets
from examples.reporting import Run, console, launch, only_run_in, options, plot, table
from gdt import UNSHARDED, Layout, nn
from gdt.data import Batches

TOKENS, HIDDEN, CLASSES, BATCH, HELD_OUT = 1200, 48, 2, 64, 5000


class MLP(nn.Module):
    """A dense layer with ReLU, batch normalisation, and a dense layer."""

    def __init__(self, hidden: Layout, output: Layout) -> None:
        self.dense1 = nn.Dense(TOKENS, HIDDEN, hidden, activation="relu", key=1)
        self.norm = nn.BatchNorm(HIDDEN, hidden.delete([0]), affine=False, momentum=0.9)
        self.dense2 = nn.Dense(HIDDEN, CLASSES, output, key=2)

    def __call__(self, x: gdt.DistributedArray) -> gdt.DistributedArray:
        return self.dense2(self.norm(self.dense1(x)))


class Scheme(NamedTuple):
    """A mesh, and the sharding specs of the input and of the two weights."""

    name: str
    mesh: list[tuple[str, int]]
    x: list[str]
    hidden: list[str]
    output: list[str]


SCHEMES = [
    Scheme(
        "data parallel",
        mesh=[("batch", 8)],
        x=["batch", UNSHARDED],
        hidden=[UNSHARDED, UNSHARDED],
        output=[UNSHARDED, UNSHARDED],
    ),
    Scheme(
        "model parallel",
        mesh=[("batch", 4), ("model", 2)],
        x=["batch", UNSHARDED],
        hidden=[UNSHARDED, "model"],
        output=["model", UNSHARDED],
    ),
    Scheme(
        "spatially parallel",
        mesh=[("batch", 2), ("feature", 2), ("model", 2)],
        x=["batch", "feature"],
        hidden=["feature", "model"],
        output=["model", UNSHARDED],
    ),
]


def load(data_dir: Path | None) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Return training and held-out reviews: tf-idf of the 1,200 commonest words (n, 1200), and
    labels (n,)."""
    texts, labels = datasets.imdb(data_dir)
    vectorizer = TfidfVectorizer(max_features=TOKENS, dtype=np.float32)
    train = vectorizer.fit_transform(texts[:-HELD_OUT]).toarray()
    test = vectorizer.transform(texts[-HELD_OUT:]).toarray()
    return (train, labels[:-HELD_OUT]), (test, labels[-HELD_OUT:])


def train(
    scheme: Scheme,
    data: Sequence[tuple[np.ndarray, ...]],
    checkpoints: Path,
    epochs: int = 2,
    blocks: int | None = None,
) -> Run:
    """Train on the mesh and layouts of a scheme, from the newest checkpoint if there is one."""
    began, mesh = time.perf_counter(), gdt.create_mesh(scheme.mesh, blocks=blocks)

    def place(x: np.ndarray, y: np.ndarray) -> tuple[gdt.DistributedArray, gdt.DistributedArray]:
        split = Layout(scheme.x, mesh)
        return gdt.asarray(x, layout=split), gdt.asarray(y, layout=split.delete([1]))

    model = MLP(Layout(scheme.hidden, mesh), Layout(scheme.output, mesh))
    manager = gdt.CheckpointManager(model, checkpoints, max_to_keep=3)
    manager.restore_or_initialize()
    trainer = gdt.training.Trainer(
        model,
        gdt.optim.SGD(learning_rate=0.02),
        nn.losses.sparse_softmax_cross_entropy,
        {"accuracy": gdt.metrics.accuracy},
    )
    history = trainer.fit(
        Batches(*data[0], batch_size=BATCH, seed=len(manager.checkpoints), place=place),
        epochs,
        validation=Batches(*data[1], batch_size=1000, place=place),
        callbacks=[lambda epoch, results: manager.save()],
        title=f"IMDB, {scheme.name}",
        console=console,
    )
    return Run(f"IMDB {scheme.name}", mesh, history, model, time.perf_counter() - began)


def run(data_dir: Path | None, output: Path) -> list[Run]:
    """Train under every scheme, one continuing the other, and draw loss and accuracy."""
    checkpoints = output / "imdb-checkpoints"
    if gdt.distributed.process_index() == 0:
        shutil.rmtree(checkpoints, ignore_errors=True)
    gdt.distributed.barrier()
    with console.status("Reading the reviews and counting their words"):
        data = load(data_dir)
    runs = [train(scheme, data, checkpoints) for scheme in SCHEMES]
    plot(runs, output / "imdb.png")
    return runs


def main() -> None:
    """Read the command line, train, and print the table of results."""
    arguments = options(__doc__, "imdb")
    with only_run_in(arguments.output):
        console.print(table(run(arguments.imdb_dir, arguments.output)))


if __name__ == "__main__":
    launch(main)
