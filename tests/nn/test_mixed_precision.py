"""float16 in layers: what is computed in it, what stays in float32, and scaled losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gdt
from gdt import Layout, create_mesh, nn
from gdt.errors import ArgumentError
from gdt.nn import losses

MESH = create_mesh([("batch", 2), ("model", 2)], blocks=4)


def network() -> nn.Module:
    layers = [
        nn.Conv1D(8, 3, padding="same", key=1),
        nn.LayerNorm(),
        nn.Residual(nn.MultiHeadAttention(2, key=2)),
        nn.LSTM(8, key=3),
        nn.BatchNorm(8, momentum=0.5),
        nn.Dense(3, key=4),
    ]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_have_16_bits_and_what_remains_is_float32(
    dtype: str, rng: np.random.Generator
) -> None:
    model = nn.mixed_precision(network(), f"mixed_{dtype}")  # Keras' names
    x = gdt.asarray(
        rng.standard_normal((4, 6, 5)).astype("f4"), layout=Layout(["batch", None, None], MESH)
    )
    dtypes: dict[str, set[str]] = {}

    class Seen(gdt.observe.Observer):
        def on_op(self, op: Any, args: Any, static: Any, out: Any) -> None:
            first, last = (out[0], out[-1]) if isinstance(out, tuple) else (out, out)
            dtypes.setdefault(getattr(op, "name", ""), set()).add(first.dtype.name)
            dtypes.setdefault(f"last of {getattr(op, 'name', '')}", set()).add(last.dtype.name)

    with gdt.default_mesh(MESH), gdt.observe.observing(Seen()), gdt.GradientTape() as tape:
        logits = model(x)
        loss = losses.sparse_softmax_cross_entropy(gdt.asarray([0, 1, 2, 0]), logits)
    gradients = tape.gradient(loss, model)
    assert logits.dtype.name == dtype and loss.dtype == np.float32
    for op in ("matrix_product", "convolve_tiles", "attention_of_tiles"):
        assert dtypes[op] == {dtype}, op
    assert dtypes["last of attention_of_tiles"] == {"float32"}, "the softmax's denominators"
    assert dtypes["moments"] == {"float32"}
    assert {a.dtype.name for a in model.state().values()} == {"float32"}
    assert {g.dtype.name for g in gradients.values()} == {"float32"}
    plain = nn.mixed_precision(network(), None)
    with gdt.default_mesh(MESH):
        plain(x)
    plain.load(model.state())
    atol = 2e-2 if dtype == "float16" else 1.6e-1  # 3 digits less
    half = model.eval()(x).numpy().astype("f4")
    np.testing.assert_allclose(plain.eval()(x).numpy(), half, atol=atol)


def test_sums_of_products_do_not_lose_what_is_small() -> None:
    layer = nn.mixed_precision(nn.Dense(4096, 1, use_bias=False, initializer="ones"))
    assert float(layer(gdt.ones((1, 4096), "float32"))[0, 0]) == 4096
    rows = gdt.full((1, 4096), 0.25, "float16")
    assert float(gdt.matmul(rows, gdt.full((4096, 1), 0.125, "float16"))[0, 0]) == 128


@pytest.mark.parametrize("recorded", [False, True])
def test_a_step_that_overflows_changes_nothing_and_halves_the_scale(recorded: bool) -> None:
    layout = Layout(["model"], MESH)
    model = {"w": gdt.asarray(np.ones(4, np.float32), layout=layout)}
    optimizer = gdt.optim.LossScaling(gdt.optim.SGD(0.1, 0.9), scale=4.0, growth_interval=3)
    plain, other = (
        gdt.optim.SGD(0.1, 0.9),
        {"w": gdt.asarray(np.ones(4, np.float32), layout=layout)},
    )

    def step(factor: gdt.DistributedArray) -> None:
        with gdt.GradientTape() as tape:
            loss = optimizer.scaled(gdt.sum(model["w"] ** 2 * factor))
        optimizer.update(model, optimizer.unscaled(tape.gradient(loss, model)))

    take = gdt.function(step, state=[model, optimizer]) if recorded else step
    scales = []
    for factor in (1.0, np.inf, 1.0, 1.0, 1.0, 1.0):
        take(gdt.asarray(np.float32(factor), layout=Layout([], MESH)))
        scales.append(float(optimizer.scale))
        if np.isfinite(factor):
            plain.update(other, gdt.grad(lambda p: gdt.sum(p["w"] ** 2))(other))
        if len(scales) == 2:
            np.testing.assert_array_equal(model["w"].numpy(), other["w"].numpy())
    assert scales == [4.0, 2.0, 2.0, 2.0, 4.0, 4.0]
    moments = optimizer.optimizer.state
    for name, arrays in plain.state.items():
        np.testing.assert_allclose(moments[name]["w"].numpy(), arrays["w"].numpy(), rtol=1e-6)
    assert model["w"].layout is layout and optimizer.optimizer.steps == 6


def test_scaled_losses_train_what_float16_alone_would_lose(rng: np.random.Generator) -> None:
    x = rng.standard_normal((32, 8)).astype("f4")
    y = (x[:, :1] > 0).astype("f4") * 1e-3
    results = {}
    for scaled in (False, True):
        model = nn.mixed_precision(nn.Sequential(nn.Dense(8, 1, key=1)))
        optimizer = gdt.optim.SGD(0.2)
        if scaled:
            optimizer = gdt.optim.LossScaling(optimizer, scale=1024.0)
        trainer = gdt.Trainer(model, optimizer, lambda y, p: 1e-4 * losses.mean_squared_error(y, p))
        history = trainer.fit([(gdt.asarray(x), gdt.asarray(y))] * 4, epochs=2, show=False)
        results[scaled] = history["loss"][-1]
        assert np.isfinite(results[scaled])
    assert results[True] <= results[False]


def test_a_gradient_is_clipped_by_its_norm_without_the_scale() -> None:
    x, weights = gdt.ones((4, 1), "float32"), []
    for optimizer in (gdt.optim.SGD(0.5), gdt.optim.LossScaling(gdt.optim.SGD(0.5), scale=1024.0)):
        model = nn.Dense(1, 1, use_bias=False, initializer="ones")
        trainer = gdt.Trainer(model, optimizer, "mse", clip_norm=1.5)
        for target in (0.5, -0.5):  # gradients of 1, which stays as it is, and of 2
            trainer.step(x, x * target)
        weights.append(model.weight.numpy())
    np.testing.assert_array_equal(*weights)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="dtype is 'float8'"):
        nn.mixed_precision(nn.Dense(2, 2), "float8")
    scaled = gdt.optim.LossScaling(gdt.optim.SGD(lambda step: 0.1 / (step + 1)))
    for rate in (0.1, 0.05):
        assert gdt.training.callbacks.rate_of(scaled) == rate  # of the next step
        scaled.update(weights := {"w": gdt.ones(2)}, {"w": gdt.ones(2)})
        assert scaled.steps == scaled.optimizer.steps and weights["w"].tolist() == [1 - rate] * 2
    with pytest.raises(ArgumentError, match="LossScaling: scale is 0"):
        gdt.optim.LossScaling(gdt.optim.SGD(0.1), scale=0)
