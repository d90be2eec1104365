"""Run by check_wheel.py where only the wheel is installed: the package is whole and trains.

Usage: python wheel_step.py REPOSITORY
"""

import sys
from importlib.resources import files
from pathlib import Path

import numpy as np

import gdt
from gdt.benchmark.commit import commit_of
from gdt.cuda.sources import read_source, source_folder

STEPS, ROWS, WORDS, HIDDEN, CLASSES = 20, 64, 100, 16, 2


def check_kernel_sources(repository: Path) -> int:
    """Every kernel source of the repository is in the wheel, byte for byte, and gdt finds it;
    returns how many."""
    packaged = Path(str(files("gdt") / "kernel_sources"))
    assert source_folder() == packaged
    sources = [
        path for path in (repository / "kernels").iterdir() if path.suffix in (".cu", ".cuh")
    ]
    for source in sources:
        assert (packaged / source.name).read_bytes() == source.read_bytes(), source.name
        assert read_source(source.name) == source.read_text(), source.name
    return len(sources)


def check_commit(repository: Path) -> None:
    """The package knows the commit that it was built of."""
    package = Path(str(files("gdt")))
    assert package != repository / "gdt"
    assert commit_of(package) == commit_of(repository / "gdt")


class Network(gdt.nn.Module):
    """Dense, ReLU, batch normalisation, dense, split over the mesh axis "model"."""

    def __init__(self, mesh: gdt.Mesh) -> None:
        columns, rows = gdt.Layout([None, "model"], mesh), gdt.Layout(["model", None], mesh)
        self.dense1 = gdt.nn.Dense(WORDS, HIDDEN, columns, activation="relu", key=1)
        self.norm = gdt.nn.BatchNorm(HIDDEN, columns.delete([0]))
        self.dense2 = gdt.nn.Dense(HIDDEN, CLASSES, rows, key=2)

    def __call__(self, x: gdt.DistributedArray) -> gdt.DistributedArray:
        return self.dense2(self.norm(self.dense1(x)))


def train(mesh: gdt.Mesh) -> list[float]:
    """Losses of a small network on rows whose label is whether their first half weighs more."""
    values = np.random.default_rng(0).random((ROWS, WORDS), dtype=np.float32)
    labels = values[:, : WORDS // 2].sum(axis=1) > values[:, WORDS // 2 :].sum(axis=1)
    x = gdt.asarray(values, layout=gdt.Layout(["batch", None], mesh))
    y = gdt.asarray(labels.astype(np.int64), layout=gdt.Layout(["batch"], mesh))
    network, optimizer = Network(mesh), gdt.optim.Adam(0.01)

    def loss(model: Network) -> gdt.DistributedArray:
        return gdt.nn.losses.sparse_softmax_cross_entropy(y, model(x))

    value_and_grad, losses = gdt.value_and_grad(loss), []
    for _ in range(STEPS):
        value, gradients = value_and_grad(network)
        optimizer.update(network, gradients)
        losses.append(float(value))
    return losses


if __name__ == "__main__":
    repository = Path(sys.argv[1])
    assert not Path(next(iter(gdt.__path__))).is_relative_to(repository), "not the wheel's gdt"
    assert (files("gdt") / "py.typed").is_file()
    check_commit(repository)
    count = check_kernel_sources(repository)
    losses = [train(gdt.create_mesh({"batch": 4, "model": 2}, blocks=n)) for n in (1, 8)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    first, last = losses[0][0], losses[0][-1]
    assert last < first / 2, f"the loss does not fall: {losses[0]}"
    print(
        f"wheel: gdt imported from its own environment, {count} kernel sources found, "
        f"loss {first:.3f} -> {last:.3f} in {STEPS} steps on 8 virtual devices"
    )
