"""The training steps in gdt, eager with the tape, on 8 virtual devices, split in three ways.

echo | python -m bench.gdt_steps imdb model
"""

from collections.abc import Callable

import numpy as np

import gdt
from bench.worker import Start, Step, serve
from bench.workloads import ADAM_EPSILON, BETA1, BETA2, EPSILON, IMDB, Workload

U = gdt.UNSHARDED
MESHES = {
    "data": {"batch": 8},
    "model": {"batch": 4, "model": 2},
    "spatial": {"batch": 2, "feature": 2, "model": 2},
}


def layouts(scheme: str, mesh: gdt.Mesh, layers: int) -> tuple[gdt.Layout, list[gdt.Layout]]:
    """Layout of the inputs, and of every weight; a bias follows its weight's last axis."""
    feature = "feature" if scheme == "spatial" else U
    model = "model" if scheme != "data" else U
    specs = [[feature, model], *([model, U] if i % 2 else [U, model] for i in range(1, layers))]
    return gdt.Layout(["batch", feature], mesh), [gdt.Layout(s, mesh) for s in specs]


def trainer(scheme: str, blocks: int | None = None) -> Callable[[Workload], Start]:
    """How a workload is trained under one scheme; `blocks` is `gdt.create_mesh`'s."""

    def prepare(workload: Workload) -> Start:
        layers = len(workload.sizes) - 1
        mesh = gdt.create_mesh(MESHES[scheme], blocks=blocks)
        inputs, weights = layouts(scheme, mesh, layers)
        labels = gdt.Layout(["batch"], mesh)
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
                    if workload is IMDB:
                        x, _, _ = gdt.batch_norm(x, epsilon=EPSILON)
            losses = gdt.sparse_softmax_cross_entropy_with_logits(y, x)
            return gdt.sum(losses) if workload is IMDB else gdt.mean(losses)

        value_and_grad = gdt.value_and_grad(loss)

        def start() -> Step:
            parameters = {
                name: gdt.asarray(np.array(value), layout=place)
                for name, value, place in zip(names, initial, places, strict=True)
            }
            rate = workload.learning_rate
            optimizer: gdt.optim.Optimizer = (
                gdt.optim.SGD(rate)
                if workload is IMDB
                else gdt.optim.Adam(rate, BETA1, BETA2, ADAM_EPSILON)
            )

            def step(index: int) -> gdt.DistributedArray:
                x, y = batches[index % len(batches)]
                value, gradients = value_and_grad(parameters, x, y)
                optimizer.update(parameters, gradients)
                return value

            return step

        return start

    return prepare


CONTENDERS = {
    **{scheme: trainer(scheme) for scheme in MESHES},
    **{f"{scheme}-blocks": trainer(scheme, blocks=8) for scheme in MESHES},
}

if __name__ == "__main__":
    serve(CONTENDERS, {"gdt": gdt.__version__, "numpy": np.__version__})
