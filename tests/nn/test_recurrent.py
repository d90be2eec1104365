"""LSTM and GRU against loops in NumPy, in every split, with states that go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gdt
from gdt import Layout, create_mesh, nn
from gdt.errors import LayoutError, ShapeError
from gdt.testing import Oracle, Sample

MESHES = [create_mesh([("batch", 2), ("model", 2)], blocks=b) for b in (1, 4)]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def lstm(x: np.ndarray, w: np.ndarray, u: np.ndarray, b: np.ndarray) -> np.ndarray:
    hidden = cell = np.zeros((len(x), u.shape[-1]))
    results = []
    for t in range(x.shape[1]):
        gate = [x[:, t] @ w[:, g] + hidden @ u[:, g] + b[g] for g in range(4)]
        cell = sigmoid(gate[1]) * cell + sigmoid(gate[0]) * np.tanh(gate[2])
        hidden = sigmoid(gate[3]) * np.tanh(cell)
        results.append(hidden)
    return np.stack(results, 1)


def gru(x: np.ndarray, w: np.ndarray, u: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    hidden = np.zeros((len(x), u.shape[-1]))
    results = []
    for t in range(x.shape[1]):
        own = [x[:, t] @ w[:, g] + b[g] for g in range(3)]
        other = [hidden @ u[:, g] + c[g] for g in range(3)]
        update, reset = (sigmoid(own[g] + other[g]) for g in range(2))
        hidden = update * hidden + (1 - update) * np.tanh(own[2] + reset * other[2])
        results.append(hidden)
    return np.stack(results, 1)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize(("layer_class", "expect"), [(nn.LSTM, lstm), (nn.GRU, gru)])
def test_recurrent_layers_equal_loops_in_every_split(
    layer_class: Any, expect: Any, mesh: Any, rng: np.random.Generator
) -> None:
    layer = layer_class(6, 3, sequences=True, key=1)
    names = list(layer.parameters())

    def run(x: Any, *arrays: Any) -> Any:
        for name, array in zip(names, arrays, strict=True):
            setattr(layer, name, array)
        return layer(x)

    shapes = [layer.parameters()[name].shape for name in names]
    arrays = [rng.standard_normal(shape) for shape in shapes]
    oracle = Oracle(run, Sample((rng.standard_normal((4, 5, 3)), *arrays), {}, expect))
    split = [[*[None] * (len(s) - 1), "model"] for s in shapes]
    for x_specs, parameters in (
        ([None] * 3, [[None] * len(s) for s in shapes]),
        (["batch", None, None], split),
        ([None, "batch", "model"], split),
    ):
        oracle.check(mesh, [Layout(specs, mesh) for specs in [x_specs, *parameters]])


def test_states_go_on_and_sequences_are_read_backwards(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 6, 3)).astype(np.float32)
    whole = nn.LSTM(4, states=True, key=1)
    y, state = whole(gdt.asarray(x))
    _, first = whole(gdt.asarray(x[:, :2]))
    again, last = whole(gdt.asarray(x[:, 2:]), first)
    assert again.tolist() == y.tolist() == state[0].tolist()
    assert last[1].tolist() == state[1].tolist()
    limit = np.sqrt(6 / (3 + 16))  # Glorot's, of the matrix of all gates
    assert 0.9 * limit < abs(whole.weight.numpy()).max() <= limit
    assert whole.bias.numpy()[1].tolist() == [1] * 4
    back = nn.LSTM(4, 3, backwards=True, key=1)
    np.testing.assert_array_equal(back(x[:, ::-1].copy()).numpy(), y.numpy())
    empty = nn.GRU(4, 3, sequences=True)(gdt.zeros((2, 0, 3), "float32"))
    assert empty.shape == (2, 0, 4)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("layer_class", [nn.LSTM, nn.GRU])
def test_masked_steps_keep_the_state(
    layer_class: Any, backwards: bool, rng: np.random.Generator
) -> None:
    """Rows that are padded have the results of their own steps, in any split."""
    layer = layer_class(6, 3, sequences=True, states=True, backwards=backwards, key=1)
    x, lengths = rng.standard_normal((4, 5, 3)).astype("float32"), [5, 2, 0, 3]
    mask = np.arange(5) < np.array(lengths)[:, None]
    plain = layer(gdt.asarray(x), mask=gdt.asarray(mask))
    for row, length in enumerate(lengths):
        y, state = layer(gdt.asarray(x[row : row + 1, :length]))
        own = y.numpy()[0]
        kept = np.broadcast_to(own[-1] if length else np.zeros(6), (5 - length, 6))
        expected = [np.zeros((5 - length, 6)), own] if backwards else [own, kept]
        np.testing.assert_allclose(plain[0].numpy()[row], np.concatenate(expected), atol=1e-6)
        for whole, part in zip(plain[1], state, strict=True):
            np.testing.assert_allclose(whole.numpy()[row], part.numpy()[0], atol=1e-6)
    mesh = MESHES[1]
    split = gdt.asarray(x, layout=Layout(["batch", None, None], mesh))
    seen = gdt.asarray(mask, layout=Layout([None, "model"], mesh))
    gradients = [
        gdt.grad(lambda m, x=x, seen=seen: gdt.sum(m(x, mask=seen)[0] ** 2))(layer)
        for x, seen in ((gdt.asarray(x), gdt.asarray(mask)), (split, seen))
    ]
    for name, gradient in gradients[0].items():
        np.testing.assert_allclose(gradients[1][name].numpy(), gradient.numpy(), rtol=1e-4)
    with pytest.raises(ShapeError, match=r"mask has shape \[4, 4\], and x \[4, 5, 3\]"):
        layer(gdt.asarray(x), mask=mask[:, :4])
    with pytest.raises(gdt.errors.DtypeError, match="mask has dtype int64"):
        layer(gdt.asarray(x), mask=mask.astype(int))


def test_layouts_sizes_and_what_does_not_fit() -> None:
    mesh = MESHES[0]
    split = Layout([None, None, "model"], mesh)
    layer = nn.GRU(4, layouts={"weight": split, "recurrent_weight": split}, use_bias=False)
    y = layer(gdt.ones((2, 5, 3), "float32", layout=Layout(["batch", None, None], mesh)))
    assert y.layout.sharding_specs == ["batch", "model"] and repr(layer).startswith("GRU(3 -> 4)")
    assert list(layer.parameters()) == ["weight", "recurrent_weight"]
    x = nn.Input((5, 3))
    y, (hidden, cell) = nn.LSTM(4, states=True)(x)
    assert nn.Model(x, [y, hidden * cell])(gdt.ones((2, 5, 3)))[1].shape == (2, 4)
    with pytest.raises(LayoutError, match="'kernel' is no parameter"):
        nn.LSTM(4, layouts={"kernel": split})
    with pytest.raises(ShapeError, match="not \\(batch, steps, features\\)"):
        nn.LSTM(4)(gdt.ones((2, 3)))
    with pytest.raises(ShapeError, match="2 features in its last axis"):
        nn.LSTM(4, 3)(gdt.ones((2, 5, 2)))


def test_no_step_has_a_gradient_of_the_size_of_all_steps() -> None:
    layer = nn.LSTM(2, 3, key=1)
    gradient = gdt.grad(lambda layer, x: gdt.sum(layer(x)))

    def whole_arrays(steps: int) -> int:
        rows = gdt.explain(gradient, layer, gdt.ones((7, steps, 3), np.float32)).rows
        return sum(result.shape == (7, steps, 4, 2) for row in rows for result in row.results)

    assert whole_arrays(3) == whole_arrays(9) > 0
