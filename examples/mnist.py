"""Handwritten digits: a multilayer perceptron trained data parallel with Adam.

Follows the TensorFlow guide "Distributed training with Core APIs and DTensor"
(tensorflow.org/guide/core/distribution): 784-700-500-10, Xavier weights, batches of 128.

    python -m examples.mnist [--data-dir MNIST] [--output outputs] [--full]
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

import gdt
from examples import datasets
from examples.reporting import Run, console, launch, only_run_in, options, plot, table
from gdt import UNSHARDED, Layout, Mesh, nn
from gdt.data import Batches

SIZES, BATCH, SAMPLE = [784, 700, 500, 10], 128, 5000

Split = tuple[np.ndarray, np.ndarray]


class MLP(nn.Module):
    """Dense layers with ReLU between them."""

    def __init__(self, sizes: Sequence[int], weight_layout: Layout) -> None:
        shapes = list(pairwise(sizes))
        activations = ["relu"] * (len(shapes) - 1) + [None]
        self.layers = [
            nn.Dense(*shape, weight_layout, activation, key=number)
            for number, (shape, activation) in enumerate(zip(shapes, activations, strict=True))
        ]

    def __call__(self, x: gdt.DistributedArray) -> gdt.DistributedArray:
        for layer in self.layers:
            x = layer(x)
        return x


def load(data_dir: Path | None, full: bool = False) -> tuple[Split, Split]:
    """Return training and test images (n, 784) in [0, 1], and labels (n,).

    full: whether to return all images; else 5,000 of each. The test images are then a random
    sample, since the first half of the test set is harder.
    """
    (x, y), (x_test, y_test) = (datasets.mnist(split, data_dir) for split in ("train", "test"))
    if not full:
        sample = np.random.default_rng(0).permutation(len(x_test))[:SAMPLE]
        x, y, x_test, y_test = x[:SAMPLE], y[:SAMPLE], x_test[sample], y_test[sample]
    return (pixels(x), y), (pixels(x_test), y_test)


def pixels(images: np.ndarray) -> np.ndarray:
    """Return uint8 images (n, 28, 28) as float32 rows (n, 784) in [0, 1]."""
    return images.reshape(len(images), -1).astype(np.float32) / 255


def train(mesh: Mesh, data: tuple[Split, Split], epochs: int = 3) -> Run:
    """Train data parallel: every device has the whole weights and a part of each batch."""
    began = time.perf_counter()

    def place(x: np.ndarray, y: np.ndarray) -> tuple[gdt.DistributedArray, gdt.DistributedArray]:
        return (
            gdt.asarray(x, layout=Layout.batch_sharded(mesh, "batch", rank=2)),
            gdt.asarray(y, layout=Layout.batch_sharded(mesh, "batch", rank=1)),
        )

    model = MLP(SIZES, Layout([UNSHARDED, UNSHARDED], mesh))
    trainer = gdt.training.Trainer(
        model,
        gdt.optim.Adam(learning_rate=1e-3),
        nn.losses.sparse_softmax_cross_entropy,
        {"accuracy": gdt.metrics.accuracy},
    )
    history = trainer.fit(
        Batches(*data[0], batch_size=BATCH, seed=0, place=place),
        epochs,
        validation=Batches(*data[1], batch_size=1000, place=place),
        title="MNIST, data parallel",
        console=console,
    )
    return Run("MNIST data parallel", mesh, history, model, time.perf_counter() - began)


def run(data_dir: Path | None, output: Path, full: bool = False) -> list[Run]:
    """Train data parallel on 8 devices, and draw loss and accuracy."""
    runs = [train(gdt.create_mesh([("batch", 8)]), load(data_dir, full))]
    plot(runs, output / "mnist.png")
    return runs


def main() -> None:
    """Read the command line, train, and print the table of results."""
    arguments = options(__doc__, "mnist")
    with only_run_in(arguments.output):
        console.print(table(run(arguments.mnist_dir, arguments.output, arguments.full)))


if __name__ == "__main__":
    launch(main)
