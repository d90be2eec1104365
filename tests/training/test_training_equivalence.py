"""One program, one seed: the same losses on every mesh, scheme and storage mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

import gdt
from examples import datasets, imdb, mnist
from gdt import Layout, Mesh, create_mesh, nn
from gdt.nn.losses import sparse_softmax_cross_entropy
from gdt.optim import SGD, Adam, Optimizer
from gdt.training import Trainer
from tests.covering import covered

STEPS, BATCH = 50, 32
FEWER_STEPS = 6  # but in one block on the mesh of most axes
RELATIVE = 1e-5

Specs = tuple[str, ...] | None
Batch = tuple[np.ndarray, np.ndarray]

# For every mesh and scheme, the mesh axes that split the batch, the features and the hidden units.
MESHES: dict[str, list[int]] = {
    "1": [1],
    "2": [2],
    "4": [4],
    "8": [8],
    "2x4": [2, 4],
    "2x2x2": [2, 2, 2],
}
SCHEMES: dict[str, list[tuple[Specs, Specs, Specs]]] = {
    "data": [(("a",), None, None), (("a", "b"), None, None), (("a", "b", "c"), None, None)],
    "model": [(None, None, ("a",)), (("a",), None, ("b",)), (("a",), None, ("b", "c"))],
    "spatial": [(None, ("a",), None), (("a",), ("b",), None), (("a",), ("b",), ("c",))],
}
PLACES = [
    (mesh, mode)
    for mesh in MESHES
    for mode in ("folded", "blocks")
    if mesh != "1" or mode == "folded"
]


@cache
def reviews() -> list[Batch]:
    """Batches of real reviews, as tf-idf of their 1,200 commonest words."""
    texts, labels = datasets.imdb()
    chosen = slice(0, STEPS * BATCH // 2)  # two epochs
    vectorizer = TfidfVectorizer(max_features=imdb.TOKENS, dtype=np.float32)
    x = vectorizer.fit_transform(texts[chosen]).toarray()
    return batches(x, labels[chosen])


@cache
def digits() -> list[Batch]:
    """Batches of real digits."""
    x, y = datasets.mnist("train")
    chosen = slice(0, STEPS * BATCH // 2)
    return batches(mnist.pixels(x[chosen]), y[chosen])


def batches(x: np.ndarray, y: np.ndarray) -> list[Batch]:
    order = np.random.default_rng(0).permutation(len(x))
    return [(x[rows], y[rows]) for rows in order.reshape(-1, BATCH)] * 2


def imdb_model(features: Specs, hidden: Specs, mesh: Mesh) -> nn.Module:
    return imdb.MLP(Layout([features, hidden], mesh), Layout([hidden, None], mesh))


class SplitMLP(mnist.MLP):
    """The digits' MLP with its weights split by columns and by rows in turn."""

    def __init__(self, sizes: list[int], layouts: list[Layout]) -> None:
        super().__init__(sizes, layouts[0])
        for number, layout in enumerate(layouts):
            before = self.layers[number]
            self.layers[number] = nn.Dense(
                *before.weight.shape, layout, before.activation, key=number
            )


def mnist_model(features: Specs, hidden: Specs, mesh: Mesh) -> nn.Module:
    specs = [[features, hidden], [hidden, None], [None, hidden]]
    return SplitMLP(mnist.SIZES, [Layout(s, mesh) for s in specs])


TRAININGS: dict[
    str, tuple[Callable[..., nn.Module], Callable[[], Optimizer], Callable[[], list[Batch]]]
] = {
    "imdb": (imdb_model, lambda: SGD(0.02), reviews),
    "mnist": (mnist_model, lambda: Adam(1e-3), digits),
}


def losses(
    name: str, mesh: Mesh, scheme: tuple[Specs, Specs, Specs], steps: int | None = None
) -> list[float]:
    """Loss of every step of a training, or of the first ones."""
    make, optimizer, data = TRAININGS[name]
    batch, features, hidden = scheme
    model = make(features, hidden, mesh)
    trainer = Trainer(
        model, optimizer(), sparse_softmax_cross_entropy, {"accuracy": gdt.metrics.accuracy}
    )
    layout = Layout([batch, features], mesh)
    return [
        float(
            trainer.step(gdt.asarray(x, layout=layout), gdt.asarray(y, layout=layout.delete([1])))[
                "loss"
            ]
        )
        for x, y in data()[:steps]
    ]


@cache
def one_device(name: str) -> list[float]:
    return losses(name, create_mesh([("a", 1)]), (None, None, None))


@covered(
    pytest.mark.networks_full,
    place=PLACES,
    scheme=[*SCHEMES],
    name=[*TRAININGS],
)
def test_losses_are_those_of_one_device(place: tuple[str, str], scheme: str, name: str) -> None:
    mesh, mode = place
    sizes = MESHES[mesh]
    on = create_mesh(
        list(zip("abc", sizes, strict=False)), blocks=math.prod(sizes) if mode == "blocks" else 1
    )
    steps = STEPS if len(sizes) == 3 and mode == "folded" else FEWER_STEPS
    found = losses(name, on, SCHEMES[scheme][len(sizes) - 1], steps)
    np.testing.assert_allclose(found, one_device(name)[:steps], rtol=RELATIVE)


@pytest.mark.parametrize("name", TRAININGS)
def test_the_trainings_learn(name: str) -> None:
    """Equal losses would prove little if nothing were trained."""
    found = one_device(name)
    assert np.mean(found[-10:]) < 0.8 * np.mean(found[:10])
