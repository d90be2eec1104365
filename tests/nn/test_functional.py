"""Functional models: the graph of calls, sizes found from `Input`, and what is refused."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import rich.console

import gdt
from gdt import Layout, create_mesh, nn
from gdt.errors import ArgumentError, ShapeError


def test_a_graph_of_layers_equals_the_same_calls(rng: np.random.Generator) -> None:
    a, b = nn.Input((6,)), nn.Input((2, 3))
    shared = nn.Dense(4, activation="tanh", key=1)
    left, right = shared(a), shared(nn.Flatten()(b))
    joined = nn.Concatenate()([left, right])
    norm = nn.LayerNorm()
    out = nn.Dense(2, key=2)(norm(joined) * 2.0 + 1.0 - joined[:, :1])
    model = nn.Model([a, b], {"y": out, "both": (left, 1.0 / 2 * -right)})
    assert [type(m).__name__ for m in model.layers] == [
        "Dense", "Flatten", "Concatenate", "LayerNorm", "Dense",
    ]  # fmt: skip
    assert list(model.parameters()) == [
        "layers.0.weight", "layers.0.bias", "layers.3.scale", "layers.3.offset",
        "layers.4.weight", "layers.4.bias",
    ]  # fmt: skip
    assert out.shape == (None, 2) and "4 -> ?" not in repr(model)
    x, y = rng.standard_normal((5, 6)).astype("f4"), rng.standard_normal((5, 2, 3)).astype("f4")
    first, second = shared(gdt.asarray(x)), shared(gdt.asarray(y.reshape(5, 6)))
    both = gdt.concat([first, second], -1)
    expected = model.layers[4](norm(both) * 2.0 + 1.0 - both[:, :1])
    for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        results = other([gdt.asarray(x), gdt.asarray(y)])
        assert results["y"].tolist() == expected.tolist()
        assert results["both"][1].tolist() == (-second / 2).tolist()
        assert len(other.parameters()) == 6


def test_layers_that_need_rows_are_called_with_none_in_silence() -> None:
    x = nn.Input((4, 4, 3))
    model = nn.Model(x, nn.GlobalAveragePool()(nn.BatchNorm(3)(x)))
    assert model.predict(np.ones((2, 4, 4, 3), "float32"), verbose=0).shape == (2, 3)


def test_functional_models_are_trained_recorded_and_split(rng: np.random.Generator) -> None:
    mesh = create_mesh([("batch", 4), ("model", 2)])
    with gdt.default_mesh(mesh):
        x = nn.Input((8,))
        hidden = nn.Dense(16, None, Layout([None, "model"], mesh), "relu", key=1)(x)
        hidden = nn.Residual(nn.Sequential(nn.Dense(16, key=2), nn.Dropout(0.5, key=3)))(hidden)
        model = nn.Model(x, nn.Dense(1, key=4)(hidden))
    assert model.layers[2].weight.shape == (16, 1)
    optimizer = gdt.optim.SGD(0.05)
    data = gdt.asarray(
        rng.standard_normal((8, 8)).astype("f4"), layout=Layout(["batch", None], mesh)
    )

    @gdt.function
    def step(x: Any) -> Any:
        with gdt.GradientTape() as tape:
            loss = gdt.mean((model(x) - 1.0) ** 2)
        optimizer.update(model, tape.gradient(loss, model))
        return loss

    losses = [float(step(data)) for _ in range(30)]
    assert losses[-1] < losses[0] / 4


def test_models_of_models_and_inputs_of_sequential() -> None:
    x = nn.Input((4,))
    inner = nn.Model(x, nn.Dense(3, key=1)(x))
    y = nn.Input((4,))
    outer = nn.Model(y, inner(y) + inner(y))
    assert list(outer.parameters()) == ["layers.0.layers.0.weight", "layers.0.layers.0.bias"]
    rows = gdt.ones((2, 4), "float32")
    assert outer(rows).tolist() == (2 * inner(rows)).tolist()
    model = nn.Sequential(nn.Input((5, 5, 1)), nn.Conv2D(3, 3), nn.Flatten(), nn.Dense(2))
    assert len(model) == 3 and model[2].weight.shape == (27, 2)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda x: nn.Model(x, gdt.ones(2)), "inputs and outputs are symbols, and"),
        (lambda x: nn.Model(nn.Input((2,)), x), "the outputs need Symbol(float32[None, 3]), which"),
        (
            lambda x: nn.Model(x, x * 2)(gdt.ones((2, 4))),
            "input 0 has shape [2, 4], not (batch, 3)",
        ),
        (lambda x: nn.Model([x], x * 2)(gdt.ones((2, 3)), 1.0), "2 arrays for 1 inputs"),
        (nn.Dense(4, 3), "the layer takes 4 features"),
        (gdt.relu, "Symbol"),
    ],
)
def test_what_does_not_fit_is_named(run: Any, message: str) -> None:
    with pytest.raises((ArgumentError, ShapeError, gdt.errors.DtypeError)) as caught:
        run(nn.Input((3,)))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("layer", "shape", "flops"),
    [
        (nn.LSTM(4), (5, 3), 2 * 5 * (3 + 4) * 16),
        (nn.GRU(4, states=True), (5, 3), 2 * 5 * (3 + 4) * 12),
        (nn.Conv2DTranspose(3, 2, strides=2), (5, 5, 4), 2 * 25 * 4 * 4 * 3),
        (nn.Activation(lambda x: None), (3,), 0),
    ],
)
def test_a_summary_counts_the_products_of_every_layer(layer: Any, shape: Any, flops: int) -> None:
    console = rich.console.Console(file=io.StringIO(), width=60)
    layer.summary(shape, console=console)
    last = console.file.getvalue().splitlines()[-1]  # type: ignore[attr-defined]
    assert last == f"{gdt.nn.summary._short(flops)} FLOPs for a row, forwards"


def test_a_summary_fits_60_columns_and_counts_bytes_of_a_device_and_operations() -> None:
    mesh = create_mesh([("batch", 2), ("model", 4)])
    with gdt.default_mesh(mesh):
        x = nn.Input((8, 8, 2))
        image = nn.Conv2D(16, 3, weight_layout=Layout([None, None, None, "model"], mesh))(x)
        pixels = nn.Activation(lambda y: gdt.reshape(y, (y.shape[0], 36, 16)))(image)
        tokens = nn.MultiHeadAttention(2)(pixels)
        model = nn.Model(x, nn.Dense(10)(nn.Dropout(0.5)(nn.Flatten()(tokens))))
    console = rich.console.Console(file=io.StringIO(), width=60)
    model.summary(console=console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 60
    convolution, attention = 2 * 36 * 16 * 18, 2 * 36 * 16 * 16 * 4 + 2 * 2 * 36 * 36 * 16
    dense = 2 * 576 * 10
    assert lines[1].split()[:2] == ["layers.0", "Conv2D"]
    assert lines[1].split()[2:] == ["(None,", "6,", "6,", "16)", "304", "304", "20.7k"]
    assert "layers.2 MultiHeadAttention" in lines  # with its numbers on the next line
    assert "  weight float32[3, 3, 2, 16]  [-, -, -, 'model']" in lines
    flops = (convolution + attention + dense) / 1000
    assert lines[-1] == f"{flops:.3g}k FLOPs for a row, forwards"
    numbers = 304 + 4 * (16 * 16 + 16) + 5770
    assert lines[-3] == f"{numbers + 1:,} numbers, of which {numbers:,} are trained"
    nbytes = 304 / 4 * 4 + (numbers - 304) * 4 + 8  # a quarter of the kernel, and a key
    assert lines[-2] == f"{nbytes / 1000:.3g}kB on each device"
    assert model.training and all(m._placement is None for _, m in model.modules())


def test_a_summary_without_shapes_shows_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Dense(3), nn.Sequential(nn.Dense(2, 4)))
    model.summary()
    assert capsys.readouterr().out.splitlines()[1].split()[2:] == ["?", "0", "0", "?"]
    with pytest.raises(ShapeError):
        nn.Sequential(nn.Dense(4, 3)).summary((5,))
    model = nn.Sequential(nn.Dense(4), nn.Dense(4, 2))
    model.summary((7,))
    assert "weight float32[7, 4]" in capsys.readouterr().out
