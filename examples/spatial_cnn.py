"""Handwritten digits: a residual convolutional network on images that are split into tiles.

The images are split along height and width over a 2 x 4 mesh, or the batch over eight devices;
layers exchange the rows and columns at the edges of tiles, and the accuracy is the same. 28,410
parameters, Adam with a linear decay from 0.004, batches of 128, three epochs.

    python -m examples.spatial_cnn [--data-dir MNIST] [--full]

With --full, all 60,000 digits in tiles and unsplit: of the 10,000 test digits 0.993 are recognised
by both, after 243 s and 113 s of one core (AMD EPYC, AVX2 products).
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import gdt
from examples.mnist import Split, load
from examples.reporting import console, launch, options
from gdt import Layout, Mesh, nn
from gdt.data import Batches
from gdt.training import History

BATCH = 128


def convolution(channels: int, key: int) -> list[nn.Module]:
    """Return a convolution and its normalisation."""
    layer = nn.Conv2D(channels, 3, padding="same", use_bias=False, key=key)
    return [layer, nn.BatchNorm(channels, momentum=0.9, epsilon=1e-3)]


def model() -> nn.Sequential:
    """Return the network of images (n, 28, 28, 1)."""
    relu = lambda: nn.Activation("relu")
    residual = lambda c, key: nn.Residual(
        nn.Sequential(*convolution(c, key), relu(), *convolution(c, key + 1))
    )
    return nn.Sequential(
        *convolution(16, 1), relu(), nn.MaxPool(2),
        residual(16, 2), relu(),
        *convolution(32, 4), relu(), nn.MaxPool(2),
        residual(32, 5), relu(),
        nn.GlobalAveragePool(), nn.Dense(10, key=7),
    )  # fmt: skip


SCHEMES: dict[str, tuple[list[tuple[str, int]], list[str | None]]] = {
    "tiles of images": ([("height", 2), ("width", 4)], [None, "height", "width", None]),
    "data parallel": ([("batch", 8)], ["batch", None, None, None]),
    "unsplit": ([("batch", 1)], [None] * 4),
}


def train(scheme: str, data: tuple[Split, Split], epochs: int = 3) -> History:
    """Train with the batches of a scheme in its layout."""
    dims, specs = SCHEMES[scheme]
    mesh, (train_set, test_set) = gdt.create_mesh(dims), data

    def batches(split: Split, rows: int, seed: int | None = None) -> Batches[tuple[object, ...]]:
        return Batches(
            images(split[0]), split[1], batch_size=rows, seed=seed, place=placed(mesh, specs)
        )

    steps = epochs * -(-len(train_set[0]) // BATCH)
    with gdt.default_mesh(mesh):
        network = model()
    trainer = gdt.Trainer(
        network,
        gdt.optim.Adam(gdt.optim.linear_decay(4e-3, steps)),
        "sparse_softmax_cross_entropy",
        ["accuracy"],
    )
    return trainer.fit(
        batches(train_set, BATCH, seed=0),
        epochs,
        validation=batches(test_set, 1000),
        title=f"MNIST, {scheme}",
        console=console,
    )


def placed(mesh: Mesh, specs: list[str | None]) -> object:
    """Return the function that puts images and labels on the mesh."""

    def place(x: np.ndarray, y: np.ndarray) -> tuple[gdt.DistributedArray, gdt.DistributedArray]:
        layout = Layout(specs, mesh)
        return gdt.asarray(x, layout=layout), gdt.asarray(y, layout=Layout(specs[:1], mesh))

    return place


def images(rows: np.ndarray) -> np.ndarray:
    """Return rows of pixels (n, 784) as images (n, 28, 28, 1)."""
    return rows.reshape(len(rows), 28, 28, 1)


def run(data_dir: Path | None, full: bool = False) -> dict[str, History]:
    """Train in tiles and data parallel, with all digits in tiles and unsplit; print accuracies."""
    data, histories = load(data_dir, full), {}
    for scheme in ("tiles of images", "unsplit" if full else "data parallel"):
        began = time.perf_counter()
        histories[scheme] = train(scheme, data)
        accuracy = histories[scheme]["val_accuracy"][-1]
        console.print(f"{scheme}: {accuracy:.4f} in {time.perf_counter() - began:.0f} s")
    return histories


def main() -> None:
    """Read the command line and train."""
    arguments = options(__doc__, "mnist")
    run(arguments.mnist_dir, arguments.full)


if __name__ == "__main__":
    launch(main)
