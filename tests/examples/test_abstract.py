"""Steps of the examples on abstract devices: the types and collectives of devices that are there.

`parallel_gpt` and `planned_gpt` are tried so by `tests/backend` and `tests/prediction`. What
`clusters` computes depends on values, which abstract devices have not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from examples import gpt, imdb, keras_tutorial, mnist, pipelined_moe, spatial_cnn
from gdt import Layout, Mesh, nn
from gdt.state.trees import leaves

Step = Callable[[], Any]


def training(model: Any, optimizer: Any, x: Any, y: Any) -> Step:
    """Return a training step of a classifier."""

    def step() -> Any:
        loss = lambda model: nn.losses.sparse_softmax_cross_entropy(y, model(x))
        value, gradients = gdt.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value, gradients

    optimizer.init(model)
    return step


def of_rows(model: Any, optimizer: Any, layout: Layout, shape: tuple[int, ...]) -> Step:
    """Return a training step on rows of a shape, each of which has a label."""
    x = gdt.zeros(shape, "float32", layout=layout)
    y = gdt.zeros(shape[:1], np.int64, layout=Layout(layout.sharding_specs[:1], layout.mesh))
    return training(model, optimizer, x, y)


def of_digits(mesh: Mesh) -> Step:
    model = mnist.MLP(mnist.SIZES, Layout([None, None], mesh))
    rows = Layout(["batch", None], mesh)
    return of_rows(model, gdt.optim.Adam(1e-3), rows, (mnist.BATCH, 784))


def of_tutorial(kind: str) -> Callable[[Mesh], Step]:
    def make(mesh: Mesh) -> Step:
        model = keras_tutorial.MODELS[kind](mesh)
        rows = Layout(["batch", None], mesh)
        return of_rows(model, gdt.optim.Adam(1e-2), rows, (keras_tutorial.BATCH, 784))

    return make


def of_reviews(scheme: imdb.Scheme) -> Callable[[Mesh], Step]:
    def make(mesh: Mesh) -> Step:
        model = imdb.MLP(Layout(scheme.hidden, mesh), Layout(scheme.output, mesh))
        shape = imdb.BATCH, imdb.TOKENS
        return of_rows(model, gdt.optim.SGD(0.02), Layout(scheme.x, mesh), shape)

    return make


def of_images(specs: list[str | None]) -> Callable[[Mesh], Step]:
    def make(mesh: Mesh) -> Step:
        model, layout = spatial_cnn.model(), Layout(specs, mesh)
        return of_rows(model, gdt.optim.Adam(4e-3), layout, (16, 28, 28, 1))

    return make


def of_gpt(scheme: gpt.Scheme) -> Callable[[Mesh], Step]:
    def make(mesh: Mesh) -> Step:
        model = nn.layout_maps.transformer(mesh, scheme.model, scheme.data).apply(gpt.GPT())
        shape, layout = (gpt.BATCH, gpt.POSITIONS), Layout(scheme.batch, mesh)
        x, y = (gdt.zeros(shape, np.int64, layout=layout) for _ in "xy")
        return training(model, gpt.optimizer(), x, y)

    return make


def of_experts(scheme: pipelined_moe.Scheme) -> Callable[[Mesh], Step]:
    def make(mesh: Mesh) -> Step:
        model = pipelined_moe.GPT(scheme.repeats)
        nn.layout_maps.transformer(
            mesh, model=None, data=scheme.data, stage="stage", expert=scheme.expert
        ).apply(model)
        optimizer = gdt.optim.Adam(3e-3).init(model)
        axes = tuple(axis for axis in mesh.axis_names if axis != "stage")
        shape, rows = (pipelined_moe.ROWS, pipelined_moe.POSITIONS), Layout([axes, None], mesh)
        x, y = (gdt.zeros(shape, np.int64, layout=rows) for _ in "xy")

        def step() -> Any:
            value, gradients = gdt.value_and_grad(lambda model: gdt.mean(model(x, y)))(model)
            optimizer.update(model, gradients)
            return value, gradients

        return step

    return make


Dims = list[tuple[str, int]]
EXAMPLES: dict[str, tuple[Dims, Callable[[Mesh], Step]]] = {
    "mnist": ([("batch", 8)], of_digits),
    **{f"keras_tutorial, {k}": ([("batch", 8)], of_tutorial(k)) for k in keras_tutorial.MODELS},
    **{f"imdb, {s.name}": (s.mesh, of_reviews(s)) for s in imdb.SCHEMES},
    **{f"spatial_cnn, {k}": (s[0], of_images(s[1])) for k, s in spatial_cnn.SCHEMES.items()},
    **{f"gpt, {k}": (s.mesh, of_gpt(s)) for k, s in gpt.SCHEMES.items()},
    **{f"pipelined_moe, {k}": (s.mesh, of_experts(s)) for k, s in pipelined_moe.SCHEMES.items()},
}


# Of many schemes those that have all that the others have; `make test FULL=networks` has all.
OF_ALL = ["gpt, FSDP x tensor", "gpt, sequence", "pipelined_moe, stages x experts"]
SLOW = [k for k in EXAMPLES if k.startswith(("gpt", "pipelined_moe")) and k not in OF_ALL]


@pytest.mark.parametrize(
    "name",
    [pytest.param(k, marks=[pytest.mark.networks_full] * (k in SLOW)) for k in EXAMPLES],
)
def test_an_example_has_the_types_and_the_collectives_of_real_devices(name: str) -> None:
    dims, make = EXAMPLES[name]

    def seen(device_type: str) -> tuple[list[str], list[Any]]:
        blocks = None if device_type == "abstract" else math.prod(size for _, size in dims)
        mesh = gdt.create_mesh(dims, device_type=device_type, blocks=blocks)
        with gdt.default_mesh(mesh):
            step = make(mesh)
            step()  # makes the state of the optimizer
            with gdt.count_collectives() as counter:
                results = step()
        # Abstract devices overlap as GPUs do, so FSDP's gathers come a unit earlier.
        return [str(x.type) for x in leaves(results)], sorted(counter.collectives, key=str)

    abstract = seen("abstract")
    assert abstract[0] and abstract == seen("CPU")
