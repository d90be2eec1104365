"""Layers, initialisers and losses: their values, their state, and that layouts change neither."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import UNSHARDED, Layout, Mesh, create_mesh, nn
from gdt.errors import (
    ArgumentError,
    CheckpointError,
    DtypeError,
    GradientError,
    LayoutError,
    NanError,
    ShapeError,
)
from gdt.nn import initializers, losses

MESHES = [
    create_mesh([("batch", 1), ("model", 1)]),
    create_mesh([("batch", 4), ("model", 2)]),
    create_mesh([("batch", 4), ("model", 2)], blocks=8),
]


class Net(nn.Module):
    """Two dense layers with full batch normalisation between them."""

    def __init__(self, mesh: Mesh) -> None:
        split = Layout([UNSHARDED, "model"], mesh)
        self.dense1 = nn.Dense(6, 10, split, activation="relu", key=1)
        self.norm = nn.BatchNorm(10, split.delete([0]), momentum=0.5)
        self.dense2 = nn.Dense(10, 3, Layout(["model", UNSHARDED], mesh), key=2)

    def __call__(self, x: Any) -> Any:
        return self.dense2(self.norm(self.dense1(x)))


def batch(mesh: Mesh, x: np.ndarray) -> gdt.DistributedArray:
    return gdt.asarray(x, layout=Layout.batch_sharded(mesh, "batch", x.ndim))


# ---------------------------------------------------------------- modules


def test_names_parameters_and_state() -> None:
    model = Net(MESHES[1])
    trained = [
        "dense1.weight",
        "dense1.bias",
        "norm.scale",
        "norm.offset",
        "dense2.weight",
        "dense2.bias",
    ]
    moments = ["norm.moving_mean", "norm.moving_variance"]
    assert list(model.parameters()) == trained
    assert sorted(model.state()) == sorted(trained + moments)
    assert [name for name, _ in model.named_parameters()] == trained
    assert [name for name, _ in model.modules()] == ["", "dense1", "norm", "dense2"]


def test_modules_in_lists_and_dicts_are_found_and_shared_ones_once() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.blocks = {"a": nn.Dense(2, 2), "b": [nn.Dense(2, 2, use_bias=False)]}
            self.again = self.blocks["a"]
            self.table = [gdt.ones((3,)), gdt.ones((1,), "int32")]

    names = ["blocks.a.weight", "blocks.a.bias", "blocks.b.0.weight", "table.0"]
    assert list(Net().parameters()) == names
    assert list(Net().state()) == [*names, "table.1"]


class Private(nn.Module):
    """Parts, and arrays, under private names."""

    def __init__(self) -> None:
        self._hidden = nn.Dense(2, 3, key=1)
        self._layers = [nn.Dense(3, 3, key=2), {"last": nn.Dense(3, 1, key=3)}]
        self._mean, self._means = gdt.zeros((2,)), [gdt.zeros((2,))]

    def __call__(self, x: Any) -> Any:
        return self._layers[1]["last"](self._layers[0](self._hidden(x)))


def test_private_modules_are_parts_and_private_arrays_are_warned_of() -> None:
    model, parts = Private(), ("_hidden", "_layers.0", "_layers.1.last")
    with pytest.warns(UserWarning, match=r"Private\._mean[s:].*neither trained nor saved") as told:
        assert list(model.parameters()) == [f"{p}.{n}" for p in parts for n in ("weight", "bias")]
    assert {w.filename for w in told} == {__file__}
    assert len(told) == 2 and "call it means if" in str(told[1].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # each name is told once
        assert list(model.state()) == list(Private().parameters())
    assert [name for name, _ in model.eval().modules()] == ["", *parts]
    assert not model._layers[1]["last"].training
    text = repr(model)
    assert "  _mean: float64[2]  [-]  (private: neither trained nor saved)" in text
    assert text.startswith("Private  25 parameters\n") and "_layers.1.last: Dense(3 -> 1" in text


class WithNumPy(nn.Module):
    """A part with NumPy arrays of floats, beside others that are meant to stay as they are."""

    untrained = ("table",)

    def __init__(self) -> None:
        self.layers = [nn.Dense(2, 2, key=1), {"scale": np.ones(2, "float32")}]
        self.layers[0].mask = np.ones((2, 2))
        self.table, self._cache, self.rows = np.ones(3), np.ones(4), np.arange(5)

    def __call__(self, x: Any) -> Any:
        return self.layers[0](x) * self.layers[1]["scale"]


def test_numpy_floats_in_a_module_are_warned_of_once_by_their_path() -> None:
    x, loss = gdt.ones((3, 2)), lambda model, x: gdt.sum(model(x))
    with pytest.warns(UserWarning, match="neither trained nor saved") as told:
        gradients = gdt.grad(loss)(WithNumPy(), x)
    assert list(gradients) == ["layers.0.weight", "layers.0.bias"]
    assert [str(w.message).partition(":")[0] for w in told] == [
        "layers.0.mask, of a gdt.nn.layers.Dense, is a NumPy array, float64[2, 2]",
        f"layers.1.scale, of a {__name__}.WithNumPy, is a NumPy array, float32[2]",
    ]
    assert {w.filename for w in told} == {__file__}
    gdt.grad(loss)(WithNumPy(), x)  # each name is told once


class Untrainable(nn.Module):
    def __init__(self) -> None:
        self.weight, self.counts = np.ones(3, "int64"), gdt.ones((3,), "int32")
        self.dense = nn.Dense(3, 1, key=1).freeze()

    def __call__(self, x: Any) -> Any:
        return self.dense(x * self.weight)


def test_training_without_parameters_is_an_error_that_lists_the_arrays() -> None:
    x, y = gdt.ones((3, 3)), gdt.ones((3, 1))
    listed = [
        "  weight: a NumPy array, int64[3]",
        "  counts: int32[3]  [-]",
        "  dense.weight: float32[3, 1]  [-, -], frozen or named in `untrained`",
    ]
    model, optimizer = Untrainable(), gdt.optim.SGD(0.1)
    mse = nn.losses.mean_squared_error
    calls = {
        "GradientTape.gradient": lambda: gdt.grad(lambda m: gdt.sum(m(x)))(model),
        "GradientTape.gradient: there": lambda: gdt.training.Trainer(model, optimizer, mse).fit(
            [(x, y)], show=False
        ),
        "SGD.init": lambda: optimizer.init(model),
        "SGD.update": lambda: optimizer.update(model, {}),
    }
    for start, call in calls.items():
        with pytest.raises(gdt.errors.GdtError) as raised:
            call()
        lines = str(raised.value).splitlines()
        assert lines[0].startswith(start) and "the Untrainable has no parameters" in lines[0]
        assert lines[1:4] == listed and "gdt.asarray" in lines[-1]
    assert optimizer.steps == 0
    for empty in ({}, [], {"w": np.ones(3)}):
        with pytest.raises(ArgumentError, match="has no parameters"):
            optimizer.update(empty, {})
    assert gdt.grad(lambda m, x: gdt.sum(m(x)), (0, 1))(model, x)[0] == {}
    with gdt.GradientTape() as tape:
        z = gdt.sum(x)
    with pytest.raises(GradientError, match=r"no array is watched\n  Pass sources"):
        tape.gradient(z)
    assert gdt.vjp(lambda: 2 * gdt.ones(2))[1](gdt.ones(2)) == ()


def test_a_module_that_refers_to_itself() -> None:
    model = nn.Sequential(nn.Dense(2, 2, key=1), nn.Flatten())
    model[1].parent, model[1].others = model, [model[0]]
    model.layers.append(model.layers)
    assert list(model.parameters()) == ["layers.0.weight", "layers.0.bias"]
    assert [name for name, _ in model.eval().modules()] == ["", "layers.0", "layers.1"]
    assert not model[1].training
    lines = repr(model).splitlines()
    assert lines[0] == "Sequential  6 parameters"
    assert "    parent: Sequential  (the same as the whole)" in lines
    assert "    others.0: Dense  (the same as layers.0)" in lines


def test_an_array_in_a_tuple_is_refused() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.pair = (gdt.ones((3,)), gdt.ones((3,)))

    with pytest.raises(DtypeError, match="pair has no place where another could be put"):
        Net().parameters()


def test_frozen_parts_are_saved_but_not_trained() -> None:
    model = Net(MESHES[0])
    model.dense1.freeze()
    assert list(model.parameters()) == ["norm.scale", "norm.offset", "dense2.weight", "dense2.bias"]
    assert "dense1.weight" in model.state()
    model.dense1.freeze(False)
    assert len(model.parameters()) == 6


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("mesh", MESHES)
def test_a_frozen_normalisation_infers_also_within_frozen_parts(mesh: Any, eager: bool) -> None:
    x = np.linspace(1, 9, 24, dtype="float32").reshape(6, 4)
    with gdt.default_mesh(mesh):
        base = nn.Sequential(nn.Dense(4, 4, key=1), nn.Residual(nn.BatchNorm(4)))
        model = nn.Sequential(base, nn.Dense(4, 2, key=2))
    model.compile("sgd", "sparse_softmax_cross_entropy", run_eagerly=eager)
    fit = lambda: model.fit(x, np.arange(6) % 2, 3, shuffle=False, verbose=0)
    fit()
    before = base.get_weights()
    base.trainable = False  # after a step was recorded in which it is trained
    expected = model(x, training=False)
    assert np.array_equal(model(x), expected)
    assert np.array_equal(base.layers[1].layer(x, training=True), base.layers[1].layer.eval()(x))
    fit()
    assert all(map(np.array_equal, base.get_weights(), before))
    base.freeze(False).train()
    fit()
    assert not any(map(np.array_equal, base.get_weights(), before))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_modules_are_copied_and_pickled_with_their_activations(copied: Any) -> None:
    layers = [nn.Dense(2, 4, activation="relu", key=1), nn.Dropout(0.5), gdt.tanh]
    model = nn.Sequential(*layers, nn.Dense(4, 1, activation="gelu", key=2))
    other, x = copied(model).eval(), gdt.ones((3, 2), "float32")
    assert other[0].activation is gdt.relu and other[2] is gdt.tanh
    assert other(x).tolist() == model.eval()(x).tolist()
    assert all(other.state()[n] is not array for n, array in model.state().items())


def test_modes_reach_every_part() -> None:
    model = nn.Sequential(nn.Dense(2, 2), nn.Sequential(nn.BatchNorm(2)))
    assert model.training and model[1][0].training
    assert not model.eval()[1][0].training
    assert model.train()[1][0].training


def test_load_moves_values_to_the_modules_own_layouts() -> None:
    source, target = Net(MESHES[2]), Net(MESHES[1])
    source.dense1.bias = source.dense1.bias + 1
    assert target.load(source.state()) is target
    for name, value in target.state().items():
        np.testing.assert_array_equal(value.numpy(), source.state()[name].numpy())
        assert value.mesh is MESHES[1]
    target.load({name: value.numpy() for name, value in source.state().items()})


def test_a_module_shares_no_array_with_the_state_that_it_loads() -> None:
    source, target = nn.Dense(3, 2, key=0), nn.Dense(3, 2, key=1)
    arrays = {name: x.numpy().copy() for name, x in source.state().items()}
    for state in (source.state(), arrays):
        weight = target.load(state).weight.numpy()
        state["weight"][0, 0] = 99.0
        np.testing.assert_array_equal(target.weight.numpy(), weight)


def test_load_lists_every_mismatch_and_changes_nothing() -> None:
    model = Net(MESHES[1])
    state: dict[str, Any] = dict(model.state())
    before = dict(state)
    state["dense1.weight"] = np.zeros((6, 11), np.float32)
    state["dense1.bias"] = np.zeros(10)
    state["extra"] = np.zeros(1)
    del state["norm.scale"]
    with pytest.raises(CheckpointError) as caught:
        model.load(state)
    lines = str(caught.value).splitlines()
    assert lines == [
        "Net.load: the state does not fit the module",
        "  dense1.weight: float32[6, 10] wanted, float32[6, 11] given",
        "  dense1.bias: float32[10] wanted, float64[10] given",
        "  norm.scale: missing",
        "  extra: given, and not wanted",
    ]
    assert all(model.state()[name] is value for name, value in before.items())


def test_repr_shows_layouts_and_counts() -> None:
    assert repr(Net(MESHES[1])).splitlines() == [
        "Net  123 parameters",
        "  dense1: Dense(6 -> 10, relu)  70 parameters",
        "    weight: float32[6, 10]  [-, 'model']",
        "    bias: float32[10]  ['model']",
        "  norm: BatchNorm(10)  20 parameters",
        "    scale: float32[10]  ['model']",
        "    offset: float32[10]  ['model']",
        "    moving_mean: float32[10]  ['model']  (not trained)",
        "    moving_variance: float32[10]  ['model']  (not trained)",
        "  dense2: Dense(10 -> 3, linear)  33 parameters",
        "    weight: float32[10, 3]  ['model', -]",
        "    bias: float32[3]  [-]",
    ]


# ---------------------------------------------------------------- layers


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_gradients_have_the_layouts_of_their_parameters(
    mesh: Mesh, rng: np.random.Generator
) -> None:
    model = Net(mesh)
    x = batch(mesh, rng.standard_normal((8, 6)).astype(np.float32))
    with gdt.GradientTape() as tape:
        loss = gdt.sum(model(x) * model(x))
    gradients = tape.gradient(loss, model)
    assert gradients.keys() == model.parameters().keys()
    for name, parameter in model.parameters().items():
        assert gradients[name].type is parameter.type, name


def test_dense_is_a_matrix_product_bias_and_activation(rng: np.random.Generator) -> None:
    x = rng.standard_normal((8, 6)).astype(np.float32)
    for mesh in MESHES:
        layer = nn.Dense(
            6, 10, Layout([UNSHARDED, "model"], mesh), "relu", bias_initializer="ones", key=3
        )
        expected = np.maximum(x @ layer.weight.numpy() + 1, 0)
        np.testing.assert_allclose(layer(batch(mesh, x)).numpy(), expected, rtol=1e-5, atol=1e-6)
        assert layer.bias is not None and layer.bias.layout is Layout(["model"], mesh)


def test_dense_checks_its_arguments() -> None:
    with pytest.raises(ArgumentError, match="'rellu' is not an activation"):
        nn.Dense(2, 2, activation="rellu")
    with pytest.raises(ArgumentError, match="'glorot' is not an initialiser"):
        nn.Dense(2, 2, initializer="glorot")
    with pytest.raises(ArgumentError, match="input_size is 0, not positive"):
        nn.Dense(0, 2)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_batch_norm_uses_the_global_batch_and_tracks_its_moments(
    mesh: Mesh, rng: np.random.Generator
) -> None:
    x = (3 + 2 * rng.standard_normal((8, 10))).astype(np.float32)
    layer = nn.BatchNorm(10, Layout(["model"], mesh), momentum=0.5, epsilon=1e-3)
    y = layer(batch(mesh, x))
    mean, variance = x.mean(0), x.var(0)
    np.testing.assert_allclose(
        y.numpy(), (x - mean) / np.sqrt(variance + 1e-3), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(layer.moving_mean.numpy(), 0.5 * mean, rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance.numpy(), 0.5 + 0.5 * variance, rtol=1e-5)
    assert layer.moving_mean.layout is Layout(["model"], mesh)
    before = layer.moving_mean
    expected = (x - before.numpy()) / np.sqrt(layer.moving_variance.numpy() + 1e-3)
    np.testing.assert_allclose(
        layer(batch(mesh, x), training=False).numpy(), expected, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(layer.eval()(batch(mesh, x)).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert layer.moving_mean is before  # evaluation changes nothing


def test_batch_norm_tracks_in_any_layout_of_its_vectors(rng: np.random.Generator) -> None:
    """Moving moments keep their layout even where the batch's moments have another."""
    mesh = MESHES[2]
    layer = nn.BatchNorm(10, Layout([UNSHARDED], mesh), momentum=0.0)
    x = rng.standard_normal((8, 10)).astype(np.float32)
    layer(gdt.asarray(x, layout=Layout(["batch", "model"], mesh)))
    assert layer.moving_mean.layout is Layout([UNSHARDED], mesh)
    np.testing.assert_allclose(layer.moving_mean.numpy(), x.mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # NumPy's, of 0 / 0
def test_an_empty_batch_leaves_running_moments_as_they_are() -> None:
    layer = nn.BatchNorm(2)
    assert layer(gdt.zeros((0, 2), "float32")).shape == (0, 2)
    assert layer.moving_mean.tolist() == [0.0, 0.0]
    assert layer.moving_variance.tolist() == [1.0, 1.0]


def test_batch_norm_finds_its_size_at_the_first_call() -> None:
    mesh = gdt.create_mesh([("batch", 2), ("model", 2)])
    layers = [nn.BatchNorm(momentum=0.5), nn.BatchNorm(4, Layout(["model"], mesh), momentum=0.5)]
    assert not layers[0].state()
    layouts = nn.LayoutMap(mesh)
    layouts[".*"] = ["model"]
    layouts.apply(layers[0])
    x = gdt.random.normal((6, 4), layout=Layout(["batch", None], mesh))
    for mode in (True, False):
        results = [layer.train(mode)(x).numpy() for layer in layers]
        np.testing.assert_array_equal(*results)
    names = ["scale", "offset", "moving_mean", "moving_variance"]
    assert [*layers[0].state()] == names
    assert all(a.layout is Layout(["model"], mesh) for a in layers[0].state().values())
    assert [*layers[0].parameters()] == names[:2]


def test_a_training_pass_under_the_tape_leaves_gradients_alone(rng: np.random.Generator) -> None:
    """Buffers are updated beside the tape: a second derivative of the loss sees constants."""
    layer = nn.BatchNorm(3)
    x = gdt.asarray(rng.standard_normal((5, 3)).astype(np.float32))
    with gdt.GradientTape() as tape:
        loss = gdt.sum(layer(x) * x)
    assert tape.gradient(loss, layer, unconnected="none").keys() == {"scale", "offset"}


def test_dropout_drops_the_same_elements_on_every_layout() -> None:
    x, found = np.ones((16, 12), np.float32), []
    for mesh in MESHES:
        layer = nn.Dropout(0.25, key=7)
        for layout in ([UNSHARDED, UNSHARDED], ["batch", "model"], ["model", UNSHARDED]):
            layer.calls = 0
            found.append(layer(gdt.asarray(x, layout=Layout(layout, mesh))).numpy())
    for y in found:
        np.testing.assert_array_equal(y, found[0])
    assert set(np.unique(found[0])) == {0, np.float32(1 / 0.75)}
    assert 0.5 < np.mean(found[0] > 0) < 0.95


def test_dropout_draws_anew_in_every_call_and_rests_in_evaluation() -> None:
    layer, x = nn.Dropout(0.5, key=1), gdt.ones((100,))
    first, second = layer(x).numpy(), layer(x).numpy()
    assert (first != second).any()
    assert layer(x, training=False) is x and layer.eval()(x) is x
    assert layer.calls == 2
    keys = [gdt.random.fold_in(layer.key, n) for n in range(2)]  # of the calls, from 0
    masks = [gdt.random.bernoulli(x.shape, 0.5, key=key).numpy() for key in keys]
    np.testing.assert_array_equal([first > 0, second > 0], masks)
    with pytest.raises(ArgumentError, match="rate is 1"):
        nn.Dropout(1.0)


def test_sequential_flatten_and_activations() -> None:
    model = nn.Sequential([nn.Flatten(), nn.Activation("relu"), nn.Activation(lambda x: x * 2)])
    x = gdt.asarray(np.arange(-6.0, 6.0).reshape(2, 2, 3))
    assert model(x).tolist() == [[0.0] * 6, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]]
    assert len(model) == 3 and isinstance(model[0], nn.Flatten)


# ---------------------------------------------------------------- initialisers


@pytest.mark.parametrize("name", sorted(initializers.INITIALIZERS))
def test_initialisers_give_the_same_bits_on_every_layout(name: str) -> None:
    create = initializers.get(name)
    expected = create((9, 10), np.float32, None, 5).numpy()
    for mesh in MESHES:
        for specs in ([UNSHARDED, UNSHARDED], ["batch", "model"], [UNSHARDED, ("model", "batch")]):
            found = create((9, 10), np.float32, Layout(specs, mesh), 5)
            assert found.layout is Layout(specs, mesh) and found.dtype == np.float32
            np.testing.assert_array_equal(found.numpy(), expected)


VARIANCES: dict[str, Callable[[int, int], float]] = {
    "glorot_uniform": lambda i, o: 2 / (i + o),
    "glorot_normal": lambda i, o: 2 / (i + o),
    "he_uniform": lambda i, o: 2 / i,
    "he_normal": lambda i, o: 2 / i,
    "normal": lambda i, o: 0.05**2,
    "truncated_normal": lambda i, o: (0.05 * initializers.TRUNCATED_DEVIATION) ** 2,
}


@pytest.mark.parametrize("name", VARIANCES)
def test_initialisers_have_the_published_variance(name: str) -> None:
    values = initializers.get(name)((400, 300), np.float64, None, 11).numpy()
    variance, count = VARIANCES[name](400, 300), values.size
    assert abs(values.mean()) < 5 * math.sqrt(variance / count)
    assert abs(values.var() / variance - 1) < 5 * math.sqrt(2 / count)
    if "uniform" in name:
        assert abs(values).max() <= math.sqrt(3 * variance)
    elif name != "normal":
        assert abs(values).max() <= 2 * math.sqrt(variance) / initializers.TRUNCATED_DEVIATION


# ---------------------------------------------------------------- losses


def test_losses_are_their_formulas(rng: np.random.Generator) -> None:
    logits, other = rng.standard_normal((2, 8, 5))
    labels = rng.integers(0, 5, 8)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    targets = rng.dirichlet(np.ones(5), 8)
    sigmoids = 1 / (1 + np.exp(-logits))
    gap = abs(logits - other)
    logistic = lambda t: -t * np.log(sigmoids) - (1 - t) * np.log(1 - sigmoids)
    options = {"from_logits": True, "label_smoothing": 0.2}
    smoothed = [targets * 0.8 + 0.2 / classes for classes in (2, 5)]
    own = np.arange(8), labels
    p = rng.random((8, 5))  # rows of another sum than 1, with a 0 and a 1
    p[0, 0], p[1, 1], p[own[0][2], own[1][2]] = 0.0, 1.0, 0.0
    scaled = np.clip(p / p.sum(-1, keepdims=True), 1e-7, 1.0)
    yes, no = np.log(np.clip(p, 1e-7, 1 - 1e-7)), np.log(1 - np.clip(p, 1e-7, 1 - 1e-7))
    t = np.clip(np.where(targets < 0.1, 0.0, targets), 1e-7, 1.0)
    cases = [
        (losses.sparse_softmax_cross_entropy, labels, logits, -np.log(probabilities[own])),
        (losses.softmax_cross_entropy, targets, logits, -(targets * np.log(probabilities)).sum(-1)),
        (losses.sigmoid_cross_entropy, targets, logits, logistic(targets)),
        (partial(losses.binary_crossentropy, **options), targets, logits, logistic(smoothed[0])),
        (
            partial(losses.categorical_crossentropy, **options),
            targets,
            logits,
            -(smoothed[1] * np.log(probabilities)).sum(-1),
        ),
        (
            partial(losses.sparse_categorical_crossentropy, from_logits=True),
            labels,
            logits,
            -np.log(probabilities[own]),
        ),
        (losses.sparse_categorical_crossentropy, labels, p, -np.log(scaled[own])),
        (losses.categorical_crossentropy, targets, p, -(targets * np.log(scaled)).sum(-1)),
        (
            partial(losses.categorical_crossentropy, label_smoothing=0.2),
            targets,
            p,
            -(smoothed[1] * np.log(scaled)).sum(-1),
        ),
        (losses.binary_crossentropy, targets, p, -targets * yes - (1 - targets) * no),
        (
            partial(losses.binary_crossentropy, label_smoothing=0.2),
            targets,
            p,
            -smoothed[0] * yes - (1 - smoothed[0]) * no,
        ),
        (
            losses.kl_divergence,
            np.where(targets < 0.1, 0.0, targets),
            p,
            (t * np.log(t / np.clip(p, 1e-7, 1.0))).sum(-1),
        ),
        (losses.mean_squared_error, other, logits, (logits - other) ** 2),
        (losses.mean_absolute_error, other, logits, gap),
        *(
            (
                partial(losses.huber, delta=d),
                other,
                logits,
                np.where(gap < d, gap**2 / 2, d * (gap - d / 2)),
            )
            for d in (0.5, 1.0, 2.0)
        ),
    ]
    for mesh in MESHES:
        for loss, truth, predictions, each in cases:
            operands = batch(mesh, truth), batch(mesh, predictions)
            close = partial(np.testing.assert_allclose, rtol=1e-7, err_msg=f"{loss} on {mesh}")
            close(loss(*operands).item(), each.mean())
            close(loss(*operands, "sum").item(), each.sum())
            close(loss(*operands, "none").numpy(), each)
    for wrong in (-0.1, 1.1):
        for loss in (losses.binary_crossentropy, losses.categorical_crossentropy):
            with pytest.raises(ArgumentError, match=f"{loss.__name__}: label_smoothing is {wrong}"):
                loss(targets, p, label_smoothing=wrong)


def test_losses_of_many_float16_numbers() -> None:
    """Losses are computed in float32; gradients have the dtype of the predictions."""
    ones, zeros = gdt.ones((300, 300), "float16"), gdt.zeros((300, 300), "float16")
    for loss in (gdt.nn.losses.mean_squared_error, gdt.nn.losses.mean_absolute_error):
        value, gradient = gdt.value_and_grad(loss, argnums=1)(zeros, ones)
        assert value.dtype == np.float32 and value.item() == 1.0
        assert np.all(gradient.numpy() > 0)


@pytest.mark.parametrize("mesh", MESHES)
def test_losses_of_probabilities_are_nan_for_logits(mesh: gdt.Mesh) -> None:
    """Rows without a negative number keep their losses."""
    p, one_hot = np.array([[0.25, 0.75], [-3.0, -1.0], [0.5, -0.25]]), np.eye(2)[[1, 0, 1]]
    cases = [
        (losses.sparse_categorical_crossentropy, np.array([1, 0, 1])),
        (losses.categorical_crossentropy, one_hot),
        (losses.binary_crossentropy, one_hot),
        (losses.kl_divergence, one_hot),
    ]
    for loss, targets in cases:
        each = loss(batch(mesh, targets), batch(mesh, p), "none").numpy()  # (3,) or (3, 2)
        is_row = each.ndim == 1
        expected = (p < 0).any(-1) if is_row else p < 0
        np.testing.assert_array_equal(np.isnan(each), expected)
        np.testing.assert_allclose(each[0], -np.log(0.75), rtol=1e-5)
    model = gdt.nn.Dense(2, 2, initializer=lambda *_: gdt.asarray([[-1.0, 0.0], [0.0, -1.0]]))
    model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(NanError, match="from_logits=True to the loss, or activation='softmax'"):
        model.fit(np.ones((4, 2)), np.zeros(4, int), verbose=0)


def test_losses_refuse_shapes_that_would_broadcast() -> None:
    with pytest.raises(
        ShapeError, match=r"targets have shape \[4, 1\], predictions have shape \[4\]"
    ):
        losses.mean_squared_error(gdt.ones((4, 1)), gdt.ones((4,)))
    with pytest.raises(ArgumentError, match="reduction is 'average'"):
        losses.mean_squared_error(gdt.ones((4,)), gdt.ones((4,)), "average")


def test_accuracy_stays_partial_until_it_is_needed(rng: np.random.Generator) -> None:
    logits, labels = rng.standard_normal((8, 5)), rng.integers(0, 5, 8).astype(np.uint8)
    for mesh in MESHES[1:]:
        found = gdt.metrics.accuracy(batch(mesh, labels), batch(mesh, logits))
        assert found.layout.partial == {"batch": "sum"} and found.dtype == np.float32
        assert found.item() == pytest.approx(np.mean(logits.argmax(-1) == labels))


# ---------------------------------------------------------------- layouts by name


def test_a_layout_map_lays_out_a_model_without_changing_it() -> None:
    mesh = MESHES[2]
    layouts = nn.LayoutMap(mesh)
    layouts[r"dense1\.weight"] = Layout([UNSHARDED, "model"], mesh)
    layouts[r".*\.bias"] = [UNSHARDED]
    layouts["dense2.weight"] = ["model", UNSHARDED]
    model = Net(MESHES[1])
    before = {name: value.numpy() for name, value in model.state().items()}
    assert layouts.apply(model) is model
    for name, value in model.state().items():
        np.testing.assert_array_equal(value.numpy(), before[name])
    assert model.dense1.weight.layout is Layout([UNSHARDED, "model"], mesh)
    assert model.dense2.weight.layout is Layout(["model", UNSHARDED], mesh)
    assert model.dense1.bias.layout is Layout([UNSHARDED], mesh)
    assert model.norm.scale.layout is Layout.replicated(mesh, 1)


def test_a_layout_map_refuses_what_cannot_work() -> None:
    layouts = nn.LayoutMap(MESHES[1])
    layouts["a"] = ["model"]
    with pytest.raises(LayoutError, match="'a' has a layout already"):
        layouts["a"] = ["batch"]
    with pytest.raises(LayoutError, match="is no pattern"):
        layouts["("] = ["batch"]
    with pytest.raises(KeyError):
        layouts["b"]
    assert layouts["ab"] is layouts["a"]  # patterns are anchored at the start only
    model = Net(MESHES[1])
    layouts[r".*weight"] = ["model"]
    with pytest.raises(LayoutError):
        layouts.apply(model)
    assert model.dense1.weight.layout is Layout([UNSHARDED, "model"], MESHES[1])


def test_weight_and_bias_of_one_key_hold_different_numbers() -> None:
    layer = gdt.nn.Dense(1, 64, initializer="normal", bias_initializer="normal", key=0)
    assert layer.bias is not None
    assert not np.isin(layer.bias.numpy(), layer.weight.numpy()).any()


def test_one_array_under_two_names_is_refused() -> None:
    model = nn.Sequential(nn.Dense(3, 3), nn.Dense(3, 3))
    model.layers[1].weight = model.layers[0].weight
    with pytest.raises(gdt.errors.DtypeError, match=r"hold one array"):
        model.parameters()
