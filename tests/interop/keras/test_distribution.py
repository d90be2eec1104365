"""`keras.distribution` on gdt: layouts of variables and batches, and what a step sends."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import gdt
from gdt.errors import ArgumentError
from gdt.interop.keras import device_mesh
from gdt.interop.keras.backend import distribution_lib

D = keras.distribution
X = np.random.default_rng(0).random((48, 6), "float32")
Y = X @ np.random.default_rng(1).random((6, 4), "float32")


def mesh_of(*sizes: int) -> Any:
    names = [f"cpu:{i}" for i in range(np.prod(sizes))]
    return D.DeviceMesh(sizes, ["batch", "model"][: len(sizes)], names)


def model_parallel(rows: int, columns: int, layouts: dict[str, Any]) -> Any:
    layout_map = D.LayoutMap(mesh_of(rows, columns))
    for path, axes in layouts.items():
        layout_map[path] = axes
    return D.ModelParallel(layout_map=layout_map, auto_shard_dataset=False)


MEGATRON = {
    ".*up/kernel": (None, "model"),
    ".*up/bias": ("model",),
    ".*down/kernel": ("model", None),
}


def mlp() -> Any:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(16, "tanh", name="up"), layers.Dense(4, name="down")]
    )


def trained(distribution: Any, **options: Any) -> tuple[Any, list[float]]:
    D.set_distribution(distribution)
    model = mlp()
    model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"], **options)
    history = model.fit(X, Y, 16, 4, shuffle=False, verbose=0, validation_data=(X, Y))
    D.set_distribution(None)
    return model, history.history["loss"] + history.history["val_mae"]


DISTRIBUTIONS = {
    "data 8": lambda: D.DataParallel(mesh_of(8)),
    "data 3": lambda: D.DataParallel(mesh_of(3)),  # 16 rows do not divide
    "megatron": lambda: model_parallel(2, 4, MEGATRON),
    "rows": lambda: model_parallel(4, 2, {".*kernel": ("model", None)}),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_distribution_changes_no_result(name: str) -> None:
    _, expected = trained(None)
    _, losses = trained(DISTRIBUTIONS[name]())
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_variables_lie_in_the_layouts_of_the_map() -> None:
    model, _ = trained(DISTRIBUTIONS["megatron"]())
    specs = {
        v.path.partition("/")[2]: v.value.layout.sharding_specs
        for v in [*model.variables, *model.optimizer.variables]
    }
    assert specs["up/kernel"] == ["unsharded", "model"]
    assert specs["down/kernel"] == ["model", "unsharded"]
    assert specs["down/bias"] == ["unsharded"]
    (momentum,) = [name for name in specs if "up_kernel_momentum" in name]
    assert specs[momentum] == ["unsharded", "model"]


def collectives(distribution: Any, **options: Any) -> Any:
    """Return what a training step sends."""
    D.set_distribution(distribution)
    model = mlp()
    model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae", "mse"], **options)
    model.train_on_batch(X, Y)
    batch = distribution_lib.distribute_batch((X, Y))
    for _ in range(3):
        with gdt.count_collectives() as counter:
            model.train_function([batch])
    return counter


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_data_parallel_step_sends_one_all_reduce(run_eagerly: bool) -> None:
    counter = collectives(D.DataParallel(mesh_of(8)), run_eagerly=run_eagerly)
    assert len(counter.collectives) == 1
    numbers = 6 * 16 + 16 + 16 * 4 + 4 + 3  # parameters, the loss and two metrics
    assert counter.bytes == 2 * 7 * numbers * 4


def test_a_data_parallel_evaluation_sends_one_all_reduce() -> None:
    D.set_distribution(D.DataParallel(mesh_of(8)))
    model = mlp()
    model.compile("adam", "mse", metrics=["mae", "mse"])
    model.test_on_batch(X, Y)
    batch = distribution_lib.distribute_batch((X, Y))
    with gdt.count_collectives() as counter:
        model.test_function([batch])
    assert [c.arrays for c in counter.collectives] == [3]


def test_a_megatron_step_sends_what_theory_says() -> None:
    counter = collectives(model_parallel(2, 4, MEGATRON))
    # Sums of the activations of `down`, of a batch's half on each of two groups of four devices.
    activations = 2 * (2 * 3 * 24 * 4 * 4)
    # Over the batch's axis of two, in four groups: gradients of the shares, the loss and metrics.
    shares = 6 * 4 + 4 + 4 * 4 + 4
    gradients = 4 * (2 * 1 * (shares + 3) * 4)
    assert activations + gradients <= counter.bytes <= 1.05 * (activations + gradients)


def test_explain_shows_a_step_of_keras() -> None:
    D.set_distribution(D.DataParallel(mesh_of(8)))
    model = mlp()
    model.compile("adam", "mse")
    model.train_on_batch(X, Y)
    batch = distribution_lib.distribute_batch((X, Y))
    explanation = gdt.explain(lambda: model.train_function([batch]))
    assert {"matrix_product", "tanh", "matrix_product_tn"} <= {row.op for row in explanation.rows}
    assert [c.kind for row in explanation.rows for c in row.collectives] == ["all_reduce"]


# ---------------------------------------------------------------- meshes and devices


def test_meshes_convert() -> None:
    mesh = gdt.create_mesh([("batch", 4), ("model", 2)], reduce_by="hierarchical")
    converted = device_mesh(mesh)
    assert converted.backend_mesh is mesh
    assert (converted.shape, converted.axis_names) == ((4, 2), ["batch", "model"])
    other = mesh_of(4, 2).backend_mesh
    assert other.axis_names == ("batch", "model") and other.sizes == (4, 2)
    assert D.TensorLayout((None, "model"), converted).backend_layout == gdt.Layout(
        [None, "model"], mesh
    )


def test_devices_are_as_many_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert D.list_devices("cpu") == ["cpu:0"]
    monkeypatch.setenv("GDT_DEVICES", "4")
    assert D.list_devices("cpu") == ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]
    assert D.get_device_count("cpu") == 4
    assert D.DataParallel().device_mesh.shape == (4,)
    monkeypatch.setenv("GDT_DEVICES", "many")
    with pytest.raises(ArgumentError, match="GDT_DEVICES=many"):
        D.list_devices("cpu")


def test_a_tensor_is_laid_out_in_the_middle_of_a_model() -> None:
    distribution = model_parallel(4, 2, {"up/output": ("batch", "model")})
    D.set_distribution(distribution)
    up = layers.Dense(8, name="up")
    out = up(distribution_lib.distribute_batch(X))
    assert out.layout.sharding_specs == ["batch", "model"]
    again = D.distribute_tensor(out, D.TensorLayout((None, "model"), distribution.device_mesh))
    assert again.layout.sharding_specs == ["unsharded", "model"]
    with pytest.raises(ValueError, match="device mesh is not set"):
        D.distribute_tensor(out, D.TensorLayout((None, "model")))


# ---------------------------------------------------------------- gdt's strategies


def test_the_scope_of_a_mirrored_strategy() -> None:
    _, expected = trained(None)
    strategy = gdt.MirroredStrategy(4)
    with strategy.scope():
        model = mlp()
        model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])
    history = model.fit(X, Y, 16, 4, shuffle=False, verbose=0, validation_data=(X, Y))
    losses = history.history["loss"] + history.history["val_mae"]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert {v.value.mesh for v in model.trainable_variables} == {strategy.mesh}
    assert D.distribution() is None
    assert model.predict(X, verbose=0).shape == (48, 4)


def test_what_layers_make_and_take_from_numpy_lies_on_the_mesh_of_the_distribution() -> None:
    device = mesh_of(8)
    with D.DataParallel(device).scope(), gdt.count_collectives() as counts:
        x = D.distribute_tensor(X[:, :4], D.TensorLayout(("batch", None), device))
        for other in (2.0, np.float32(2), np.ones(4, "float32"), [1.0] * 4):
            assert ops.convert_to_tensor(other).mesh is x.mesh
            assert (x * ops.convert_to_tensor(other)).mesh is x.mesh
        for made in (ops.arange(4), ops.eye(4), ops.zeros(4), ops.linspace(0, 1, 4), ops.tri(4)):
            assert made.mesh is x.mesh
    assert not counts.fetches, counts
