"""The example models on the emulated device: forwards, backwards and updates of every layer run
the real kernels, and equal the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from examples import imdb, mnist
from gdt import UNSHARDED, Layout, nn
from gdt.debug.drawing import Explanation

from .conftest import SHARE
from .emulation import EmulatedBackend

FAMILIES = {
    "matmul": {"matrix_product", "matrix_product_nt", "matrix_product_tn", "contraction"},
    "batch norm": {"moments", "normalize", "batch_norm_sums", "batch_norm_gradient"},
    "cross-entropy": {
        "fused_cross_entropy", "fused_cross_entropy_gradient",
        "cross_entropy_of_whole", "cross_entropy_of_split", "cross_entropy_gradient",
    },
    "update": {"sgd_step", "momentum_step", "adam_step"},
}  # fmt: skip
STEPS, BATCH = 3, 32
MNIST_SIZES = [784, 70, 50, 10]  # of the example's 784, 700, 500, 10


pytestmark = pytest.mark.usefixtures("emulated")


def kernel_shares(found: Explanation) -> dict[str, tuple[int, int]]:
    """Of the ops of each family, how many launched a kernel and how many there were."""
    shares = {}
    for family, ops in FAMILIES.items():
        rows = [row for row in found.rows if row.op in ops]
        launched = [row for row in rows if row.kernel and not row.kernel.startswith("body")]
        shares[family] = len(launched), len(rows)
    return shares


def trained(
    model: Any, optimizer: gdt.optim.Optimizer, x: Layout, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], Explanation]:
    """Losses, gradients and parameters of a few steps, and what ran in the first of them. The
    others run unobserved: gradients as a recorded program, the update in one launch."""
    values: dict[str, np.ndarray] = {}
    first, *_, last = model.parameters().values()

    def step(number: int) -> None:
        features = rng.uniform(0, 1, (BATCH, first.shape[0])).astype(np.float32)
        labels = rng.integers(0, last.shape[-1], BATCH)
        given = gdt.asarray(features, layout=x), gdt.asarray(labels, layout=x.delete([1]))
        with gdt.GradientTape() as tape:
            loss = nn.losses.sparse_softmax_cross_entropy(given[1], model(given[0]))
        gradients = tape.gradient(loss, model)
        optimizer.update(model, gradients)
        values[f"loss {number}"] = loss.numpy()
        values.update({f"gradient {number} of {n}": g.numpy() for n, g in gradients.items()})
        values.update({f"{n} {number}": p.numpy() for n, p in model.parameters().items()})

    found = gdt.explain(step, 0)
    for number in range(1, STEPS):
        step(number)
    return values, found


def model_of_mnist(how: dict[str, Any]) -> tuple[nn.Module, gdt.optim.Optimizer, Layout]:
    mesh = gdt.create_mesh([("batch", 8)], **how)
    model = mnist.MLP(MNIST_SIZES, Layout([UNSHARDED, UNSHARDED], mesh))
    # With this epsilon a step is no steeper than its gradient.
    optimizer = gdt.optim.Adam(1e-3, epsilon=1e-3)
    return model, optimizer, Layout(["batch", UNSHARDED], mesh)


def model_of_imdb(scheme: imdb.Scheme) -> Callable[..., Any]:
    def make(how: dict[str, Any]) -> tuple[nn.Module, gdt.optim.Optimizer, Layout]:
        mesh = gdt.create_mesh(scheme.mesh, **how)
        model = imdb.MLP(Layout(scheme.hidden, mesh), Layout(scheme.output, mesh))
        return model, gdt.optim.SGD(0.02), Layout(scheme.x, mesh)

    return make


MODELS = {"mnist, data parallel": model_of_mnist}
MODELS |= {f"imdb, {scheme.name}": model_of_imdb(scheme) for scheme in imdb.SCHEMES}


@pytest.mark.parametrize("blocks", [1, 8])
@pytest.mark.parametrize("name", MODELS)
def test_training_steps_run_kernels_alone_and_equal_the_host(
    name: str,
    blocks: int,
    emulated: EmulatedBackend,
    record_property: Callable[[str, object], None],
) -> None:
    emulated.runner.ran.clear()
    devices = [f"emu:{i}" for i in range(blocks)]
    host, device = (
        trained(*MODELS[name](how), np.random.default_rng(0))
        for how in ({"blocks": blocks}, {"devices": devices})
    )
    # Each value is a chain of sums of at most so many terms, in another order than the host's.
    terms = 2 * STEPS * (sum(MNIST_SIZES) if "mnist" in name else imdb.TOKENS) + BATCH
    allowed = 8 * 2.0**-23 * (4 + math.sqrt(terms))
    assert device[0].keys() == host[0].keys()
    for key, want in host[0].items():
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(device[0][key], want, rtol=0, atol=allowed * scale, err_msg=key)
    assert device[1].collectives == host[1].collectives
    shares = kernel_shares(device[1])
    text = ", ".join(f"{f} {n}/{of}" for f, (n, of) in shares.items() if of)
    record_property(SHARE, f"{name}, {blocks} block(s): {text}")
    expected = {"matmul", "cross-entropy", "update"} | ({"batch norm"} if "imdb" in name else set())
    assert {family for family, (_, of) in shares.items() if of} == expected
    assert all(launched == of for launched, of in shares.values())
    # Of the later steps each updates all parameters of a block in one launch.
    kernel = "adam" if "mnist" in name else "sgd"
    assert emulated.runner.ran[kernel] == blocks * (shares["update"][1] + STEPS - 1)


@pytest.mark.parametrize("blocks", [1, 8])
def test_a_recorded_step_runs_the_kernels_of_an_eager_one_to_the_bit(blocks: int) -> None:
    def losses_and_parameters(wrap: Callable[[Any], Any]) -> list[np.ndarray]:
        devices = {"devices": [f"emu:{i}" for i in range(blocks)]}
        model, optimizer, layout = MODELS["imdb, model parallel"](devices)
        rng = np.random.default_rng(0)

        def step(x: gdt.DistributedArray, y: gdt.DistributedArray) -> gdt.DistributedArray:
            with gdt.GradientTape() as tape:
                loss = nn.losses.sparse_softmax_cross_entropy(y, model(x))
            optimizer.update(model, tape.gradient(loss, model))
            return loss

        run, losses = wrap(step), []
        for _ in range(STEPS):
            features = rng.uniform(0, 1, (BATCH, imdb.TOKENS)).astype(np.float32)
            x = gdt.asarray(features, layout=layout)
            y = gdt.asarray(rng.integers(0, 2, BATCH), layout=layout.delete([1]))
            losses.append(run(x, y).numpy())
        return losses + [p.numpy() for p in model.parameters().values()]

    eager, recorded = losses_and_parameters(lambda step: step), losses_and_parameters(gdt.function)
    for want, got in zip(eager, recorded, strict=True):
        np.testing.assert_array_equal(got, want)
