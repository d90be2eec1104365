"""The training steps in gdt on 8 devices, split in three ways: eager with the tape, and captured
where `gdt.function` exists.

echo | python -m bench.gdt_steps imdb model
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import gdt
from bench.worker import Start, Step, serve
from bench.workloads import ADAM_EPSILON, BETA1, BETA2, EPSILON, IMDB, Workload
from gdt.engine import loops

U = gdt.UNSHARDED
Train = Callable[..., gdt.DistributedArray]
MODES: dict[str, Callable[[Train], Train]] = {
    "eager": lambda train: train,
    "captured": gdt.function,
}
MESHES = {
    "data": {"batch": 8},
    "model": {"batch": 4, "model": 2},
    "spatial": {"batch": 2, "feature": 2, "model": 2},
}


def layouts(scheme: str, mesh: gdt.Mesh, layers: int) -> tuple[gdt.Layout, list[gdt.Layout]]:
    """Return the layouts of the inputs and of every weight; a bias follows its weight's last
    axis."""
    batch = mesh.axis_names[0]
    feature = "feature" if scheme == "spatial" else U
    model = "model" if scheme != "data" else U
    specs = [[feature, model], *([model, U] if i % 2 else [U, model] for i in range(1, layers))]
    return gdt.Layout([batch, feature], mesh), [gdt.Layout(s, mesh) for s in specs]


def trainer(
    scheme: str, mode: str = "eager", device_type: str = "CPU", blocks: int | None = None
) -> Callable[[Workload], Start]:
    """Return the contender of one scheme on 8 devices, which creates its mesh when it starts.

    device_type, blocks: arguments of `gdt.create_mesh`.
    """

    def prepare(workload: Workload) -> Start:
        mesh = gdt.create_mesh(MESHES[scheme], device_type=device_type, blocks=blocks)
        return trainer_on(mesh, scheme, mode)(workload)

    return prepare


def trainer_on(mesh: gdt.Mesh, scheme: str, mode: str = "eager") -> Callable[[Workload], Start]:
    """Return the contender of one scheme on `mesh`; its first axis splits the batch."""

    def prepare(workload: Workload) -> Start:
        is_imdb, layers = workload.name == IMDB.name, len(workload.sizes) - 1
        inputs, weights = layouts(scheme, mesh, layers)
        labels = inputs.delete([1])
        batches = [
            (gdt.asarray(x, layout=inputs), gdt.asarray(y, layout=labels))
            for x, y in workload.batches()
        ]
        initial = workload.weights()
        names = [f"{kind}{i}" for i in range(layers) for kind in "wb"]
        places = [p for layout in weights for p in (layout, layout.delete([0]))]

        def loss(
            parameters: dict[str, gdt.DistributedArray],
            x: gdt.DistributedArray,
            y: gdt.DistributedArray,
        ) -> gdt.DistributedArray:
            for i in range(layers):
                x = x @ parameters[f"w{i}"] + parameters[f"b{i}"]
                if i < layers - 1:
                    x = gdt.relu(x)
                    if is_imdb:
                        x, _, _ = gdt.batch_norm(x, epsilon=EPSILON)
            losses = gdt.sparse_softmax_cross_entropy_with_logits(y, x)
            return gdt.sum(losses) if is_imdb else gdt.mean(losses)

        value_and_grad = gdt.value_and_grad(loss)

        def start() -> Step:
            parameters = {
                name: gdt.asarray(np.array(value), layout=place)
                for name, value, place in zip(names, initial, places, strict=True)
            }
            rate = workload.learning_rate
            optimizer: gdt.optim.Optimizer = (
                gdt.optim.SGD(rate) if is_imdb else gdt.optim.Adam(rate, BETA1, BETA2, ADAM_EPSILON)
            )

            def train(
                parameters: dict[str, gdt.DistributedArray],
                x: gdt.DistributedArray,
                y: gdt.DistributedArray,
            ) -> gdt.DistributedArray:
                value, gradients = value_and_grad(parameters, x, y)
                optimizer.update(parameters, gradients)
                return value

            step = MODES[mode](train)
            return lambda index: step(parameters, *batches[index % len(batches)])

        return start

    return prepare


def name_of(scheme: str, mode: str, place: str) -> str:
    """Return the name of a contender: its scheme, then its mode and place unless they are eager and
    folded."""
    return "-".join([scheme, *[part for part in (mode, place) if part not in ("eager", "folded")]])


PLACES: dict[str, dict[str, Any]] = {
    "folded": {},
    "blocks": {"blocks": 8},
    "gpu": {"device_type": "GPU"},
}
CONTENDERS = {
    name_of(scheme, mode, place): trainer(scheme, mode, **where)
    for scheme in MESHES
    for mode in MODES
    for place, where in PLACES.items()
}

if __name__ == "__main__":
    compiled = {"compiled loops": loops.described()[0]} if loops.are_compiled() else {}
    serve(CONTENDERS, {"gdt": gdt.__version__, "numpy": np.__version__} | compiled)
