"""Strategies: batches are cut as tf.distribute cuts them, and one training has one result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import DataParallel, MirroredStrategy, ModelParallel, create_mesh, nn
from gdt.errors import ArgumentError, LayoutError, MeshError

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((64, 6)).astype("float32"), RNG.integers(0, 4, 64)


def model_parallel() -> ModelParallel:
    layouts = nn.LayoutMap(create_mesh([("batch", 2), ("model", 2)]))
    layouts[r"layers\.0\.weight"] = [None, "model"]
    layouts[r"layers\.2\.weight"] = ["model", None]
    return ModelParallel(layout_map=layouts)


STRATEGIES: dict[str, Callable[[], gdt.Strategy]] = {
    "one": lambda: MirroredStrategy(1),
    "mirrored": lambda: MirroredStrategy(["cpu:0", "cpu:1", "cpu:2", "cpu:3"]),
    "apart": lambda: MirroredStrategy(mesh=create_mesh([("batch", 4)], blocks=4)),
    "hosts": lambda: MirroredStrategy(mesh=create_mesh([("host", 2), ("device", 2)])),
    "to one": lambda: MirroredStrategy(4, "to_one"),
    "to one, apart": lambda: MirroredStrategy(
        mesh=create_mesh([("batch", 4)], blocks=4, reduce_by="to_one")
    ),
    "hierarchical": lambda: MirroredStrategy(
        mesh=create_mesh([("host", 2), ("device", 2)], blocks=4, reduce_by="hierarchical")
    ),
    "data": lambda: DataParallel(create_mesh([("data", 3)])),
    "model": model_parallel,
}


def model() -> nn.Sequential:
    layers = nn.Dense(6, 8, activation="relu", key=1), nn.BatchNorm(8), nn.Dense(8, 4, key=2)
    made = nn.Sequential(*layers)
    made.compile(gdt.optim.Adam(0.01), "sparse_softmax_cross_entropy", ["accuracy"])
    return made


def test_every_strategy_has_the_results_of_one_device() -> None:
    results = {}
    for name, make in STRATEGIES.items():
        with make().scope():
            trained = model()
        trained.fit(X, Y, 24, epochs=3, shuffle=False, verbose=0)  # 24, 24 and 16 rows
        results[name] = trained.evaluate(X, Y, 20, verbose=0)
    for name, result in results.items():
        np.testing.assert_allclose(result, results["one"], rtol=1e-4, err_msg=name)


def test_a_training_goes_on_under_another_strategy(tmp_path: Path) -> None:
    def run(strategy: str, epochs: int, folder: Path | None) -> Any:
        with STRATEGIES[strategy]().scope():
            trained = model()
        trained.fit(X, Y, 16, epochs=epochs, shuffle=False, verbose=0, resume=folder)
        return trained

    run("mirrored", 1, tmp_path)
    run("model", 2, tmp_path)
    last, whole = run("one", 3, tmp_path), run("one", 3, None)
    for (name, x), y in zip(last.state().items(), whole.state().values(), strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-3, atol=1e-5, err_msg=name)


WAYS: dict[str, Callable[[nn.Sequential], Any]] = {
    "fit": lambda m: m.fit(X, Y, verbose=0),
    "evaluate": lambda m: m.evaluate(X, Y, verbose=0),
    "predict": lambda m: m.predict(X, verbose=0),
    "call": lambda m: m(X),
    "call with an array": lambda m: m(gdt.asarray(X)),
    "loop": lambda m: gdt.optim.SGD(0.1).update(m, gdt.grad(lambda m: gdt.mean(m(X)))(m)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["mirrored", "apart", "hosts", "model"])
def test_models_without_sizes_belong_to_the_strategy_outside_of_its_scope(
    name: str, way: str
) -> None:
    strategy, others = STRATEGIES[name](), MirroredStrategy(3)
    with strategy.scope():
        late = nn.Sequential(nn.Flatten(), nn.Dense(8), nn.Dense(4)) if name != "model" else (
            nn.Sequential(nn.Dense(8), nn.Activation("relu"), nn.Dense(4))
        )  # fmt: skip
    late.compile("sgd", "sparse_softmax_cross_entropy")  # outside, too
    with others.scope(), pytest.raises(MeshError, match="by the scope that made it, is on"):
        late.fit(X, Y, verbose=0)
    WAYS[way](late)
    assert {a.mesh for a in late.state().values()} == {strategy.mesh}
    (x,) = late.compiled.place((X,))
    assert x.layout.num_shards(0) == strategy.num_replicas_in_sync
    if name == "model":
        assert late[0].weight.layout.sharding_specs == ["unsharded", "model"]


def test_a_scope_lays_models_out_when_they_are_made_or_loaded(tmp_path: Path) -> None:
    layouts = nn.LayoutMap(create_mesh([("batch", 2), ("model", 2)]))
    layouts[".*weight"] = [None, "model"]
    strategy = ModelParallel(layout_map=layouts)
    with strategy.scope():
        sized, late = nn.Sequential(nn.Dense(6, 8)), nn.Sequential(nn.Dense(8))
    late(X)
    sized.save(tmp_path)
    with strategy.scope():
        loaded = gdt.load_model(tmp_path)
    plain = nn.Sequential(nn.Dense(6, 8))
    plain.save(tmp_path / "plain")
    with strategy.scope():
        moved = gdt.load_model(tmp_path / "plain")
    for network in (sized, late, loaded, moved):
        assert network[0].weight.layout.sharding_specs == ["unsharded", "model"]
        assert network[0].bias.layout.sharding_specs == ["unsharded"]
        assert network[0].bias.mesh is strategy.mesh
    layouts["nothing"] = [None]
    for make in (lambda: nn.Dense(6, 8), lambda: nn.Dense(8)):
        problem = pytest.raises(LayoutError, match="'nothing' matches the name of no array")
        with problem, strategy.scope():
            make()


def test_layouts_are_those_of_the_strategy() -> None:
    for make in (STRATEGIES["hosts"], STRATEGIES["model"]):
        strategy = make()
        with strategy.scope():
            assert gdt.current_strategy() is strategy
            trained = model()
        assert gdt.current_strategy() is None and trained[0].weight.mesh is strategy.mesh
        (x,) = trained.compiled.place((X,))
        assert x.layout.num_shards(0) == strategy.num_replicas_in_sync
    assert trained[0].weight.layout.sharding_specs == ["unsharded", "model"]


def test_objects_of_tensorflow_say_how_gradients_are_summed() -> None:
    names = {"NcclAllReduce": "all_reduce", "ReductionToOneDevice": "to_one"}
    for name, way in names.items():
        strategy = MirroredStrategy(4, cross_device_ops=type(name, (), {})())
        assert strategy.mesh is MirroredStrategy(4, way).mesh and strategy.mesh.reduce_by == way
    mesh = create_mesh([("host", 2), ("device", 4)], reduce_by="hierarchical")
    hierarchical = type("HierarchicalCopyAllReduce", (), {})()
    assert MirroredStrategy(mesh=mesh, cross_device_ops=hierarchical).mesh is mesh


@pytest.mark.parametrize(("rows", "parts"), [(10, [3, 3, 3, 1]), (2, [1, 1, 0, 0]), (8, [2] * 4)])
def test_global_batches_are_cut_as_in_tensorflow(rows: int, parts: list[int]) -> None:
    strategy = MirroredStrategy(4)
    data = [{"x": np.arange(rows), "y": (np.ones((rows, 2)),)}]
    distributed = strategy.experimental_distribute_dataset(data)
    assert len(distributed) == 1  # type: ignore[arg-type]
    for _ in range(2):
        (batch,) = distributed
        assert [len(x) for x in strategy.experimental_local_results(batch["x"])] == parts
        assert batch["y"][0].layout.num_shards(0) == 4
    total = np.arange(rows).sum()
    assert int(strategy.reduce("SUM", batch["x"], axis=0)) == total
    assert float(strategy.reduce("mean", batch["x"], axis=0)) == pytest.approx(total / rows)
    assert strategy.gather(batch["x"], axis=0).tolist() == list(range(rows))


@pytest.mark.parametrize("name", ["mirrored", "apart", "hosts", "data", "model"])
@pytest.mark.parametrize("shape", [(12,), (12, 4), (24, 2, 3)])
def test_values_are_reduced_over_replicas_or_over_rows(name: str, shape: tuple[int, ...]) -> None:
    strategy = STRATEGIES[name]()
    values, count = RNG.integers(-9, 9, shape) / 4, strategy.num_replicas_in_sync
    assert count == {"data": 3, "model": 2}.get(name, 4)
    x = strategy.place(values)
    parts = values.reshape(count, -1, *shape[1:])
    np.testing.assert_array_equal(np.stack(strategy.experimental_local_results(x)), parts)
    whole, row = gdt.relayout(x, gdt.Layout.replicated(strategy.mesh, x.ndim)), gdt.sum(x, axis=0)
    for way, function in (("SUM", np.sum), ("mean", np.mean)):
        of_type = type("ReduceOp", (), {"name": way})()
        for op in (way, of_type):
            over_replicas = strategy.reduce(op, {"x": [x], "n": 3}, axis=None)
            np.testing.assert_allclose(over_replicas["x"][0].numpy(), function(parts, axis=0))
            over_rows = strategy.reduce(op, x, axis=0)
            np.testing.assert_allclose(over_rows.numpy(), function(values, axis=0))
            assert over_replicas["n"] == 3 and not over_rows.layout.partial
            assert strategy.reduce(op, whole, axis=0) is whole, "it is that of all replicas"
            np.testing.assert_allclose(strategy.reduce(op, row).numpy(), values.sum(0))
    gathered = strategy.gather(x)
    assert gathered.layout is gdt.Layout.replicated(strategy.mesh, x.ndim)
    np.testing.assert_array_equal(gathered.numpy(), values)
    assert strategy.experimental_local_results("a") == ("a",) * count
    split = strategy.run(lambda a, b, c: (a, b, c), (values, [values]), {"c": values})
    assert split[0].layout is split[1][0].layout is x.layout and split[2] is values
    assert strategy.layout(0).rank == 0 and strategy.layout(3).rank == 3


def test_replicas_of_several_devices_have_one_part_each() -> None:
    strategy = ModelParallel(layout_map=nn.LayoutMap(create_mesh([("batch", 2), ("model", 4)])))
    (x,) = strategy.experimental_distribute_dataset([np.arange(24).reshape(6, 4)])
    split = gdt.relayout(x, ["batch", "model"])
    for value in (x, split):
        parts = strategy.experimental_local_results(value)
        np.testing.assert_array_equal(np.stack(parts), x.numpy().reshape(2, 3, 4))
    whole = strategy.experimental_local_results(gdt.relayout(x, [None, "model"]))
    assert [part.shape for part in whole] == [(6, 4)] * 2


def test_batches_of_one_replica_are_taken_in_turn() -> None:
    strategy = MirroredStrategy(2)

    def batches(context: Any) -> list[np.ndarray]:
        size = context.get_per_replica_batch_size(6)
        return [np.full(size, n) for n in range(5)]

    distributed = strategy.distribute_datasets_from_function(batches)
    taken = [x.tolist() for x in distributed]
    assert len(distributed) == len(taken)
    assert taken == [[0, 0, 0, 1, 1, 1], [2, 2, 2, 3, 3, 3], [4, 4, 4]]
    with pytest.raises(ArgumentError, match="7 rows do not divide by 2"):
        list(strategy.distribute_datasets_from_function(
            lambda context: [context.get_per_replica_batch_size(7)]
        ))  # fmt: skip


def compiled_in(strategy: gdt.Strategy, network: nn.Module) -> nn.Module:
    with strategy.scope():
        network.compile("sgd", "mse")
    return network


def test_models_belong_to_the_strategy_in_whose_scope_they_are_made_or_loaded(
    tmp_path: Path,
) -> None:
    one, other = MirroredStrategy(4), MirroredStrategy(2)
    with one.scope():
        trained = model()
    trained.save(tmp_path)
    with other.scope(), pytest.raises(MeshError, match=r"on Mesh\(batch=4\), and the strategy's"):
        trained.fit(X, Y, verbose=0)
    with other.scope():
        loaded = gdt.load_model(tmp_path)
        loaded.fit(X, Y, verbose=0)
    assert {a.mesh for a in loaded.state().values()} == {other.mesh}


def test_an_own_loop_reduces_the_losses_of_all_rows() -> None:
    strategy, rate, rows = MirroredStrategy(4), 0.1, 10
    x = np.linspace(0, 1, rows, dtype="float32")[:, None]
    with strategy.scope():
        dense, optimizer = nn.Dense(1, 1, key=0), gdt.optim.SGD(rate)
    start, bias = float(dense.weight.numpy().sum()), 0.0

    def step(inputs: Any) -> Any:
        with gdt.GradientTape() as tape:
            each = nn.losses.mean_squared_error(inputs * 2, dense(inputs), "none")
            loss = gdt.sum(each) / rows
        optimizer.update(dense, tape.gradient(loss, dense))
        return loss, each

    (batch,) = strategy.experimental_distribute_dataset([x])
    loss, each = strategy.run(step, args=(batch,))
    difference = start * x + bias - 2 * x
    assert float(strategy.reduce("SUM", loss)) == pytest.approx((difference**2).mean(), rel=1e-5)
    rows_mean = strategy.reduce("MEAN", each, axis=0)
    assert float(rows_mean[0]) == pytest.approx((difference**2).mean(), rel=1e-5)
    expected = start - rate * 2 * (difference * x).mean()
    assert float(dense.weight.numpy().sum()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda s: s.reduce("MAX", 1), "reduce_op is 'MAX'"),
        (lambda s: s.reduce("SUM", 1, axis=1), "axis is 1"),
        (lambda s: s.reduce("SUM", s.place(np.arange(5))), "5 rows are not equally many"),
        (lambda s: s.gather(s.place(np.arange(5)), axis=1), "Parts are rows"),
        (lambda s: s.experimental_distribute_dataset(5), "yields no batches"),
        (lambda s: s.distribute_datasets_from_function(lambda _: 5), "yields no batches"),
        (lambda s: s.run(abs, np.arange(5)), "run: args is an ndarray, not Sequence"),
        (lambda s: s.run(5), "run: fn is 5, not Callable"),
        (lambda s: compiled_in(s, nn.Dense(2, 1)), "on Mesh.device=1., and the strategy's mesh is"),
        (
            lambda s: nn.LayoutMap(s.mesh).update(a=gdt.Layout(["x"], create_mesh([("x", 3)]))),
            "and the map on",
        ),
        (lambda s: MirroredStrategy(2, mesh=s.mesh), "both devices and a mesh"),
        (lambda s: MirroredStrategy(2, "ring"), "cross_device_ops is 'ring'"),
        (lambda s: MirroredStrategy(2, object()), "cross_device_ops is 'object'"),
        (lambda s: MirroredStrategy(2, "hierarchical"), "devices in a row have no hierarchy"),
        (lambda s: MirroredStrategy(mesh=s.mesh, cross_device_ops="to_one"), "has 'all_reduce'"),
        (lambda s: create_mesh([("x", 2)], reduce_by="ring"), "reduce_by is 'ring'"),
        (lambda s: DataParallel(s.mesh, 2), "both devices and a device_mesh"),
        (
            lambda s: ModelParallel(layout_map=nn.LayoutMap(s.mesh), batch_dim_name="rows"),
            "the mesh has batch",
        ),
    ],
)
def test_what_does_not_fit_is_named(call: Any, problem: str) -> None:
    with pytest.raises((ArgumentError, LayoutError, MeshError), match=problem):
        call(MirroredStrategy(2))
