"""Handwritten digits without labels: principal components and k-means, with NumPy's functions.

The digits are rows that are split over eight devices. The components come from the covariance of
all rows, k-means moves its centres in the coordinates of the first of them; only sums over the
devices are sent.

    python -m examples.clusters [--data-dir MNIST]
"""

from __future__ import annotations

import numpy as np

import gdt
from examples.mnist import load
from examples.reporting import console, launch, options
from gdt import DistributedArray, Layout

COMPONENTS, CENTRES, STEPS = 20, 10, 30


def principal_components(x: DistributedArray, count: int) -> tuple[DistributedArray, np.ndarray]:
    """Return rows in the coordinates of their first components, and the variance of each."""
    centred = x - gdt.mean(x, axis=0)
    covariance = (centred.mT @ centred).numpy() / len(x)  # (features, features)
    variances, vectors = np.linalg.eigh(covariance)
    largest = np.argsort(variances)[::-1][:count]
    return centred @ vectors[:, largest], variances[largest] / variances.sum()


def k_means(
    x: DistributedArray, count: int, steps: int, seed: int = 0
) -> tuple[DistributedArray, DistributedArray, float]:
    """Return centres, the number of the nearest one for each row, and the mean squared distance."""
    start = np.random.default_rng(seed).permutation(len(x))[:count]
    centres = gdt.asarray(x.numpy()[start], layout=Layout.replicated(x.mesh, 2))
    for _ in range(steps):
        # |x - c|^2 without |x|^2, which is the same for all centres: (rows, centres)
        distances = gdt.sum(centres**2, axis=1) - 2 * (x @ centres.mT)
        nearest = gdt.argmin(distances, axis=1)
        members = gdt.one_hot(nearest, count).astype(x.dtype)
        counts = gdt.sum(members, axis=0)
        means = (members.mT @ x) / gdt.maximum(counts, 1)[:, None]
        centres = gdt.where((counts > 0)[:, None], means, centres)
    error = gdt.mean(gdt.min(distances, axis=1) + gdt.sum(x**2, axis=1))
    return centres, nearest, float(error)


def purity(nearest: np.ndarray, labels: np.ndarray) -> float:
    """Return the fraction of rows whose label is the commonest one of their centre."""
    table = np.zeros((CENTRES, 10), int)
    np.add.at(table, (nearest, labels), 1)
    return float(table.max(axis=1).sum() / len(labels))


def run(pixels: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return the variances of the components, the error of k-means, and the purity."""
    mesh = gdt.create_mesh([("rows", 8)])
    x = gdt.asarray(pixels, layout=Layout(["rows", None], mesh))
    coordinates, variances = principal_components(x, COMPONENTS)
    _, nearest, error = k_means(coordinates, CENTRES, STEPS)
    return variances, error, purity(nearest.numpy(), labels)


def main() -> None:
    """Read the command line, and print what was found."""
    arguments = options(__doc__, "mnist")
    (pixels, labels), _ = load(arguments.mnist_dir, arguments.full)
    variances, error, fraction = run(pixels, labels)
    console.print(f"{COMPONENTS} components hold {variances.sum():.3f} of the variance")
    console.print(f"{CENTRES} centres: mean squared distance {error:.2f}, purity {fraction:.3f}")


if __name__ == "__main__":
    launch(main)
