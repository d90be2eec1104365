"""Handwritten digits with layouts in Keras' words: for each layer, and by a LayoutMap.

Follows the TensorFlow tutorial "Using DTensors with Keras" (tensorflow.org/tutorials/distribute/
dtensor_keras_tutorial): 784-128-10, Adam with a rate of 0.01, batches of 128, three epochs, on
eight devices. The same model is trained three times, with layouts that are given to no layer, to
each layer, and by a LayoutMap; the losses agree. Then a LayoutMap places the weights of a
subclassed, a sequential and a functional model.

    python -m examples.keras_tutorial [--data-dir MNIST] [--output outputs] [--full]
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import gdt
from examples.mnist import Split, load
from examples.reporting import console, launch, options
from gdt import UNSHARDED, Layout, Mesh, nn
from gdt.training import History

BATCH, RATE = 128, 0.01


def plain(mesh: Mesh) -> nn.Sequential:
    """Return the model without a layout: its weights are replicated on the default mesh."""
    with gdt.default_mesh(mesh):
        return nn.Sequential(nn.Dense(784, 128, activation="relu", key=1), nn.Dense(128, 10, key=2))


def per_layer(mesh: Mesh) -> nn.Sequential:
    """Return the model with a layout for each weight, here replicated ones."""
    unsharded = Layout.replicated(mesh, rank=2)
    return nn.Sequential(
        nn.Dense(784, 128, unsharded, activation="relu", key=1),
        nn.Dense(128, 10, unsharded, key=2),
    )


def by_layout_map(mesh: Mesh) -> nn.Sequential:
    """Return the model with the weights of the first layer split over the devices."""
    layouts = nn.LayoutMap(mesh)
    layouts[r"layers\.0\.weight"] = [UNSHARDED, "batch"]
    layouts[r"layers\.0\.bias"] = ["batch"]
    return layouts.apply(plain(mesh))  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[Mesh], nn.Sequential]] = {
    "without layouts": plain,
    "layouts of layers": per_layer,
    "LayoutMap": by_layout_map,
}


def train(
    model: nn.Module, data: tuple[Split, Split], epochs: int = 3, decay: bool = False
) -> History:
    """Train with the tutorial's settings; decay: whether the rate falls to 0 along a line."""
    (x, y), test = data
    steps = epochs * -(-len(x) // BATCH)
    rate = gdt.optim.linear_decay(RATE, steps) if decay else RATE
    gdt.random.seed(0)  # the same order of rows for all models
    model.compile(gdt.optim.Adam(rate), "sparse_softmax_cross_entropy", ["accuracy"])
    history: History = model.fit(
        x, y, BATCH, epochs, verbose=0, validation_data=test, validation_batch_size=1000
    )
    return history


class Subclassed(nn.Module):
    """The tutorial's subclassed model; its arrays are `feature.weight`, `feature_2.bias`, ..."""

    def __init__(self) -> None:
        self.feature = nn.Dense(16)
        self.feature_2 = nn.Dense(24)
        self.dropout = nn.Dropout(0.1)

    def __call__(self, x: gdt.DistributedArray) -> gdt.DistributedArray:
        return self.feature_2(self.dropout(self.feature(x)))


def functional() -> nn.Module:
    """Return the tutorial's functional model."""
    inputs = nn.Input((16,))
    return nn.Model(inputs, nn.Dense(32)(nn.Dropout(0.1)(nn.Dense(16)(inputs))))


def placed(mesh: Mesh) -> dict[str, nn.Module]:
    """Return three kinds of models, whose weights one LayoutMap splits over the devices."""
    kinds = {
        "subclassed": (Subclassed(), "feature"),
        "sequential": (nn.Sequential(nn.Dense(16), nn.Dense(32)), r"layers\.\d"),
        "functional": (functional(), r"layers\.\d"),
    }
    models = {}
    for kind, (model, names) in kinds.items():
        model(gdt.zeros((16, 16), "float32"))  # the first call gives layers their sizes
        layouts = nn.LayoutMap(mesh)
        layouts[f"{names}.*weight"] = Layout.batch_sharded(mesh, "batch", rank=2)
        layouts[f"{names}.*bias"] = Layout.batch_sharded(mesh, "batch", rank=1)
        models[kind] = layouts.apply(model)
    return models


def run(data_dir: Path | None, full: bool = False) -> dict[str, History]:
    """Train all three models, and print what they reach."""
    mesh, data = gdt.create_mesh([("batch", 8)]), load(data_dir, full)
    histories = {}
    for name, make in MODELS.items():
        histories[name] = train(make(mesh), data)
        console.print(f"{name}: test accuracy {histories[name]['val_accuracy'][-1]:.4f}")
    histories["linear decay"] = train(plain(mesh), data, decay=True)
    accuracy = histories["linear decay"]["val_accuracy"][-1]
    console.print(f"with a linear decay of the rate: test accuracy {accuracy:.4f}")
    losses = [[step["loss"] for step in histories[name].steps] for name in MODELS]
    console.print(f"largest difference of losses: {np.ptp(losses, axis=0).max():.1e}")
    for kind, model in placed(mesh).items():
        layouts = ", ".join(f"{name} {x.layout}" for name, x in model.parameters().items())
        console.print(f"{kind}: {layouts}")
    return histories


def main() -> None:
    """Read the command line and train."""
    arguments = options(__doc__, "mnist")
    run(arguments.mnist_dir, arguments.full)


if __name__ == "__main__":
    launch(main)
