"""Schemes by layouts alone: FSDP, ZeRO and constraints on outputs, said by a LayoutMap."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import nn
from gdt.errors import LayoutError

MESHES = [gdt.create_mesh([("data", 4)], blocks=blocks) for blocks in (1, 4)]


def model_on(mesh) -> gdt.nn.Sequential:
    with gdt.default_mesh(mesh):
        layers = [gdt.nn.Dense(8, 8, activation="tanh", key=n) for n in range(3)]
        return gdt.nn.Sequential(*layers[:2], gdt.nn.Sequential(gdt.nn.LayerNorm(8), layers[2]))


def batch_on(mesh, rng):
    layout = gdt.Layout(["data", None], mesh)
    return [gdt.asarray(rng.normal(size=(8, 8)).astype("float32"), layout=layout) for _ in "xy"]


def train(model, x, y, optimizer, steps=4, function=lambda step, **options: step):
    """Return the losses of some steps, and the collectives of the last one."""

    def step(x, y):
        loss = lambda m: gdt.mean((m(x) - y) ** 2)
        value, gradients = gdt.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    run, losses = function(step, verify=2), []
    for _ in range(steps):
        with gdt.count_collectives() as counter:
            losses.append(float(step(x, y)))
    losses += [float(run(x, y)) for _ in range(steps)]
    return losses, counter


SCHEMES = {
    "data": (None, {"all_reduce": 1}, 2),
    "ZeRO": (
        gdt.nn.Sharded(state="data"),
        {"reduce_scatter": 1, "all_gather": 1, "all_reduce": 1},
        2,
    ),
    "FSDP": (
        gdt.nn.Sharded(kept="data"),
        {"all_gather": 4, "reduce_scatter": 3, "all_reduce": 1},
        3,
    ),
}


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes_send_what_theory_says_and_learn_the_same(rng, mesh, scheme) -> None:
    entry, kinds, times = SCHEMES[scheme]
    one = gdt.create_mesh([("data", 1)])
    x, y = batch_on(mesh, rng)
    whole = [gdt.asarray(a.numpy(), layout=gdt.Layout([None, None], one)) for a in (x, y)]
    expected, _ = train(model_on(one), *whole, gdt.optim.Adam(0.01))
    layouts = gdt.nn.LayoutMap(mesh)
    if entry is not None:
        layouts[".*"] = entry
    model, optimizer = layouts.apply(model_on(mesh)), gdt.optim.Adam(0.01)
    losses, counter = train(model, x, y, optimizer, function=gdt.function)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    nbytes = sum(p.nbytes for p in model.parameters().values())
    # The first layer reads its weights forwards only, since x has no gradient; those of the last
    # one are there.
    assert counter.by_kind == kinds
    assert counter.bytes <= times * 3 * nbytes + 2 * 3 * 4
    assert {w.layout.num_shards(0) for w in model.parameters().values()} == {
        4 if scheme == "FSDP" else 1
    }
    for states in optimizer.state.values():
        for name, s in states.items():
            assert s.layout.num_shards(0) == (1 if scheme == "data" else 4), name


def test_a_unit_is_kept_as_it_was_after_calls_errors_and_copies(rng) -> None:
    mesh = MESHES[0]
    layouts = gdt.nn.LayoutMap(mesh)
    layouts[".*"] = gdt.nn.Sharded(kept="data")
    model = layouts.apply(model_on(mesh))
    kept = model.parameters()
    x, _ = batch_on(mesh, rng)
    expected = model(x).numpy()
    with pytest.raises(gdt.errors.ShapeError):
        model(gdt.ones((8, 3)))
    assert all(x is kept[name] for name, x in model.parameters().items())
    twin = copy.deepcopy(model)
    with gdt.count_collectives() as counter:
        np.testing.assert_array_equal(twin(x).numpy(), expected)
    assert counter.by_kind["all_gather"] >= 3
    assert all(w.layout is kept[name].layout for name, w in twin.parameters().items())
    gdt.nn.LayoutMap(mesh).apply(model)  # another map takes the place of the first
    with gdt.count_collectives() as counter:
        model(x)
    assert not counter.collectives


def test_units_are_chosen_by_a_pattern() -> None:
    mesh = MESHES[0]
    for units, gathers in ((r"", 1), (r"layers\.[01]", 3), (r"layers\.2\.layers\.\d", 3)):
        layouts = gdt.nn.LayoutMap(mesh, units=units)
        layouts[".*"] = gdt.nn.Sharded(kept="data")
        model = layouts.apply(model_on(mesh))
        with gdt.count_collectives() as counter:
            model(gdt.ones((8, 8), "float32", layout=gdt.Layout(["data", None], mesh)))
        assert counter.by_kind == {"all_gather": gathers}, units


def test_the_unit_of_a_wrapped_module_is_the_module() -> None:
    mesh = MESHES[0]
    layouts = gdt.nn.LayoutMap(mesh)
    layouts[".*"] = gdt.nn.Sharded(kept="data")
    with gdt.default_mesh(mesh):
        layers = [gdt.checkpointed(gdt.nn.Dense(8, 8, key=n)) for n in range(2)]
    model = layouts.apply(gdt.nn.Sequential(*layers))
    assert "layers.0.function.weight" in model.parameters()
    with gdt.count_collectives() as counter:
        model(gdt.ones((8, 8), "float32", layout=gdt.Layout(["data", None], mesh)))
    assert counter.by_kind == {"all_gather": 2}


def test_trees_of_arrays_are_gathered_by_name(rng) -> None:
    mesh = MESHES[1]
    layouts = gdt.nn.LayoutMap(mesh)
    layouts[r"layers\.\d\.weight"] = gdt.nn.Sharded(kept=["data", None])
    weights = [rng.normal(size=(8, 8)).astype("float32") for _ in range(2)]
    parameters = layouts.apply({"layers": [{"weight": gdt.asarray(w)} for w in weights]})

    def loss(parameters, x):
        for n, layer in enumerate(parameters["layers"]):
            with layouts.gathered(layer, f"layers.{n}") as used:
                x = gdt.tanh(x @ used["weight"])
        return gdt.sum(x)

    x, _ = batch_on(mesh, rng)
    with gdt.count_collectives() as counter:
        gradients = gdt.grad(loss)(parameters, x)
    assert counter.by_kind == {"all_gather": 2, "reduce_scatter": 2, "all_reduce": 1}
    one = {"layers": [{"weight": gdt.asarray(w)} for w in weights]}
    plain = lambda p, x: gdt.sum(
        gdt.tanh(gdt.tanh(x @ p["layers"][0]["weight"]) @ p["layers"][1]["weight"])
    )
    expected = gdt.grad(plain)(one, gdt.asarray(x.numpy()))
    for g, e in zip(gradients["layers"], expected["layers"], strict=True):
        assert g["weight"].layout is gdt.Layout(["data", None], mesh)
        np.testing.assert_allclose(g["weight"].numpy(), e["weight"].numpy(), rtol=1e-4)


def test_a_tree_of_another_name_is_not_gathered() -> None:
    layouts = gdt.nn.LayoutMap(gdt.create_mesh([("data", 4)]))
    layouts["layer.w"] = gdt.nn.Sharded(kept="data")
    tree = layouts.apply({"layer": {"w": gdt.ones((8, 4))}, "head": gdt.ones((4,))})
    with pytest.raises(LayoutError, match=r"layr\.w does not lie as the map says") as raised:
        layouts.gathered(tree["layer"], "layr")
    assert "'layr' was passed" in str(raised.value)
    with layouts.gathered({"head": tree["head"]}) as used:  # that no key matches, and lies as kept
        assert used["head"] is tree["head"]


@pytest.mark.parametrize(
    ("state", "specs"),
    [
        ("data", ["data", "unsharded"]),
        ("model", [("data", "model"), "unsharded"]),
        ([..., "model"], ["unsharded", "model"]),
    ],
)
def test_the_state_of_an_array_that_is_kept_split(state: Any, specs: list[Any]) -> None:
    mesh = gdt.create_mesh([("data", 4), ("model", 2)])
    layouts = gdt.nn.LayoutMap(mesh)
    layouts["weight"] = gdt.nn.Sharded(kept="data", state=state)
    dense = gdt.nn.Dense(8, 4, key=0)
    model, alone = layouts.apply(copy.deepcopy(dense)), gdt.nn.LayoutMap(mesh).apply(dense)
    x = gdt.asarray(np.ones((8, 8), "float32"), layout=gdt.Layout(["data", None], mesh))
    for m in (model, alone):
        gradients = gdt.grad(lambda m: gdt.mean(m(x) ** 2))(m)
        gdt.optim.SGD(0.1).update(m, gradients)
        if m is model:
            assert gradients["weight"].layout.sharding_specs == specs
            assert m.weight.layout.sharding_specs == ["data", "unsharded"]
    np.testing.assert_allclose(model.weight.numpy(), alone.weight.numpy(), rtol=1e-6)


def test_states_of_arrays_outside_of_modules_are_refused() -> None:
    layouts = gdt.nn.LayoutMap(gdt.create_mesh([("data", 4)]))
    layouts["w"] = gdt.nn.Sharded(state="data")
    tree = {"w": gdt.ones((8, 4))}
    with pytest.raises(LayoutError, match="w has another layout for its gradient"):
        layouts.apply(tree)
    held = gdt.nn.Module()
    held.w = tree["w"]
    gradient = gdt.grad(lambda m: gdt.sum(m.w * 2.0))(layouts.apply(held))["w"]
    assert gradient.layout.sharding_specs == ["data", "unsharded"]


def test_a_constraint_on_an_output_is_obeyed() -> None:
    mesh = MESHES[0]
    layouts = gdt.nn.LayoutMap(mesh)
    layouts[r"layers\.1/output"] = [None, "data"]
    model = layouts.apply(model_on(mesh))
    seen = []
    model.layers.insert(2, lambda x: seen.append(x.layout) or x)
    model(gdt.ones((8, 8), layout=gdt.Layout(["data", None], mesh)))
    assert seen == [gdt.Layout([None, "data"], mesh)]
    layouts = gdt.nn.LayoutMap(mesh)
    layouts["/output"] = [..., "data"]
    assert layouts.apply(model_on(mesh))(gdt.ones((8, 8))).layout.sharding_specs[1] == "data"
    layouts = gdt.nn.LayoutMap(mesh)
    layouts["/output"] = ["data"]
    with pytest.raises(LayoutError, match=r"the model/output does not fit the array that"):
        layouts.apply(model_on(mesh))(gdt.ones((8, 8)))


def test_a_matched_axis_gives_up_the_mesh_axes_that_others_name() -> None:
    """As where attention splits its batch, since an axis has more devices than it has heads."""
    mesh = gdt.create_mesh([("data", 2), ("model", 2)])
    layouts = nn.LayoutMap(mesh)
    layouts["/output"] = [gdt.MATCH, "model"]
    model = layouts.apply(nn.Sequential(nn.Activation("relu")))
    x = gdt.ones((8, 4), layout=gdt.Layout([("data", "model"), None], mesh))
    y = model(x)
    assert y.layout.sharding_specs == ["data", "model"]
    assert np.array_equal(y.numpy(), x.numpy())


def test_maps_that_do_not_fit_are_refused() -> None:
    mesh = gdt.create_mesh([("data", 2), ("model", 2)])
    layouts = gdt.nn.LayoutMap(mesh)
    with pytest.raises(LayoutError, match=r"the layouts of 'w' have different ranks"):
        layouts["w"] = gdt.nn.Sharded(kept=["data", None], used=[None])
    with pytest.raises(gdt.errors.ArgumentError, match="Sharded: kept is 3"):
        gdt.nn.Sharded(kept=3)
    for entry, message in (
        (gdt.nn.Sharded(used=[None]), r"layers\.0\.weight is used has rank 1, and .* rank 2"),
        (gdt.nn.Sharded(kept="data", used=["data", None]), r"weight cannot be split over 'data' t"),
        (gdt.nn.Sharded(kept="rows"), r"no axis .*'rows'|'rows'"),
        (gdt.Layout([None, None], mesh, partial=["data"]), r"weight is used is partial"),
        (
            gdt.nn.Sharded(kept=gdt.Layout(["data", None], MESHES[0])),
            r"weight is kept is on Mesh\(data=4\), and the array is used on Mesh\(data=2",
        ),
    ):
        layouts = gdt.nn.LayoutMap(mesh)
        layouts[r"layers\.0\.weight"] = entry
        model = model_on(mesh)
        with pytest.raises((LayoutError, gdt.errors.MeshError), match=message):
            layouts.apply(model)
        assert all(w.layout.is_fully_replicated() for w in model.parameters().values())
    for key, noun in ((r"dense\d", "array"), (r"layers\.9/output", "module")):
        layouts = gdt.nn.LayoutMap(mesh)
        layouts[key] = [None, None]
        with pytest.raises(LayoutError, match=f"matches the name of no {noun}") as caught:
            layouts.apply(model_on(mesh))
        assert "layers.0" in str(caught.value)
    layouts = gdt.nn.LayoutMap(mesh)
    for key, layout in (("w", "data"), ("/output", "data"), ("/output", gdt.nn.Sharded("data"))):
        with pytest.raises(LayoutError, match="not a list of sharding specs"):
            layouts[key] = layout
    with pytest.raises(LayoutError, match="no mesh axis 'rows'"):
        layouts["/output"] = [..., "rows"]


def test_arrays_of_another_mesh_in_the_place_of_those_that_were_moved_are_refused() -> None:
    mesh, layouts = MESHES[0], gdt.nn.LayoutMap(MESHES[0])
    layouts[".*weight"] = gdt.nn.Sharded(kept="data")
    model, x = layouts.apply(model_on(mesh)), gdt.ones((8, 8))
    model[0].weight = gdt.ones((8, 8), "float32")
    with pytest.raises(LayoutError, match=r"layers\.0\.weight has not been moved to the layout"):
        model(x)
    with pytest.raises(LayoutError, match=r"a\.weight has not been moved"):
        layouts.gathered({"weight": gdt.ones((8, 2))}, "a")


def test_one_array_of_two_names_stays_one() -> None:
    w, layouts = gdt.ones((4, 8)), gdt.nn.LayoutMap(MESHES[0])
    layouts["."] = gdt.nn.Sharded(kept="data")
    tree = layouts.apply({"a": w, "b": [w]})
    assert tree["a"] is tree["b"][0]
    assert tree["a"].layout.sharding_specs == ["data", "unsharded"]
    layouts["b"] = layouts.pop(".")
    with pytest.raises(LayoutError, match=r"a and b\.0 hold one array, and have different layouts"):
        layouts.apply(tree)
    layouts["a"] = gdt.nn.Sharded(kept=["data", None], used=["data", None])  # kept as b is
    with pytest.raises(LayoutError, match=r"a and b\.0 hold one array, and have different layouts"):
        layouts.apply(tree)


@pytest.mark.parametrize(
    ("shape", "specs"),
    [
        ((8, 6), ["data", "model"]),
        ((6, 8), [None, ("model", "data")]),
        ((3, 9), [None, ("model", "data")]),  # neither divides
        ((0, 4), [None, ("model", "data")]),
        ((), []),
    ],
)
def test_one_more_mesh_axis_splits_the_first_axis_that_divides(shape, specs) -> None:
    mesh = gdt.create_mesh([("data", 4), ("model", 2)])
    layouts = gdt.nn.LayoutMap(mesh)
    used = [None] * (len(shape) - 1) + ["model"] if shape else []
    layouts["w"] = gdt.nn.Sharded(kept="data", used=used)
    tree = layouts.apply({"w": gdt.zeros(shape)})
    assert tree["w"].layout is gdt.Layout(specs, mesh)


def test_a_scope_lays_out_models_that_are_made_inside_also_before_their_arrays_are() -> None:
    mesh = gdt.create_mesh([("batch", 2), ("model", 2)])
    layouts = gdt.nn.LayoutMap(mesh)
    layouts[r"(.*\.)?layers\.\d\.weight"] = [None, "model"]
    layouts[r"dense\.weight"] = ["model", None]

    class Net(gdt.nn.Module):
        def __init__(self) -> None:
            self.dense, self.late = gdt.nn.Dense(4, 6), gdt.nn.Sequential(gdt.nn.Dense(3))

        def __call__(self, x: gdt.DistributedArray) -> gdt.DistributedArray:
            return self.late(self.dense(x))

    with layouts.scope():
        model = Net()
    assert model.dense.weight.layout.sharding_specs == ["model", "unsharded"]
    assert model.dense.bias.mesh is mesh
    model(gdt.ones((2, 4), "float32", layout=gdt.Layout(["batch", None], mesh)))
    assert model.late[0].weight.layout.sharding_specs == ["unsharded", "model"]
    assert model.late[0].bias.layout.sharding_specs == ["unsharded"]  # as model.dense.bias
    with layouts.scope(), pytest.raises(RuntimeError):
        raise RuntimeError
    outside = Net()
    assert outside.dense.weight.mesh is not mesh


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("way", ["scope", "strategy", "compile", "apply", "loop"])
def test_arrays_that_are_not_there_yet_are_sharded_as_those_that_are(way, blocks) -> None:
    mesh = gdt.create_mesh([("data", 2), ("model", 2)], blocks=blocks)
    x, y = np.linspace(-1, 1, 48, dtype="float32").reshape(8, 6), np.arange(8) % 3

    def trained(sizes: list[tuple[int, ...]], way: str) -> Any:
        layouts = gdt.nn.LayoutMap(mesh)
        layouts[".*weight"] = gdt.nn.Sharded(kept="data", used=[None, "model"])
        layouts[".*bias"] = gdt.nn.Sharded(state="data")
        strategy = gdt.ModelParallel(layout_map=layouts)
        make = lambda: gdt.nn.Sequential(
            gdt.nn.Dense(*sizes[0], activation="relu", key=1), gdt.nn.Dense(*sizes[1], key=2)
        )
        if way in ("scope", "strategy", "loop"):
            with strategy.scope() if way != "scope" else layouts.scope():
                model = make()
        else:
            model = layouts.apply(make()) if way == "apply" else make()
        if way == "loop":
            model(x)
        with strategy.scope() if way == "compile" else contextlib.nullcontext():
            model.compile(gdt.optim.Adam(0.1), "sparse_softmax_cross_entropy")
        losses = model.fit(x, y, 4, epochs=3, shuffle=False, verbose=0)["loss"]
        copied = copy.deepcopy(model)
        assert np.array_equal(copied.predict(x, verbose=0), model.predict(x, verbose=0))
        return model, losses

    (sized, expected), (late, losses) = (
        trained([(6, 8), (8, 3)], "scope"),
        trained([(8,), (3,)], way),
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    states = [[m, *m.optimizer.state.values()] for m in (sized, late)]
    for one, other in zip(*states, strict=True):
        arrays, others = (t if isinstance(t, dict) else t.state() for t in (one, other))
        assert {n: a.type for n, a in arrays.items()} == {n: a.type for n, a in others.items()}
    for one, other in zip(sized.layers, late.layers, strict=True):
        assert [a[3:] for a in one._placement.arrays] == [a[3:] for a in other._placement.arrays]


@pytest.mark.parametrize("way", ["scope", "apply"])
def test_no_device_holds_more_of_a_model_than_its_part_while_the_model_is_made(way) -> None:
    mesh = gdt.create_mesh([("data", 8)], blocks=8)
    make = lambda: gdt.nn.Sequential(
        *[gdt.nn.Dense(64, 64, initializer=name) for name in ("he_normal", "glorot_uniform") * 4],
        gdt.nn.LSTM(64, 64, initializer="he_normal", sequences=True),
        gdt.nn.GRU(64, 64, use_bias=False),
    )
    layouts = gdt.nn.LayoutMap(mesh)
    layouts[".*"] = gdt.nn.Sharded(kept="data")
    gdt.random.seed(5)
    whole = make().state()
    assert gdt.random.generator.state[1] == 12
    gdt.random.seed(5)
    with gdt.testing.peak_memory() as memory, gdt.count_collectives() as counter:
        with layouts.scope() if way == "scope" else gdt.default_mesh(mesh):
            model = make()
        if way == "apply":
            layouts.apply(model)
        state = model.state()
        for x in state.values():
            assert len(x.blocks) == 8
    nbytes = sum(x.nbytes for x in state.values())
    assert nbytes / 8 <= memory.peak <= 1.3 * nbytes / 8
    assert not counter.bytes
    for name, x in state.items():
        assert x.layout.split_axes and x.numpy().tobytes() == whole[name].numpy().tobytes()


def test_arrays_that_are_made_when_they_are_read_are_like_others() -> None:
    mesh = gdt.create_mesh([("data", 2)], blocks=2)
    layout = gdt.Layout(["data", None], mesh)
    draw = lambda: gdt.nn.initializers.normal((4, 2), layout=layout, key=1)
    expected = draw().numpy()
    x = draw()
    blocks = x.blocks  # as one who reads block by block has them
    assert blocks[0] is blocks[0] and blocks[0] is x.blocks[0] and type(x.blocks) is tuple
    for other in (copy.deepcopy(draw()), pickle.loads(pickle.dumps(draw())), draw()[:], draw().T.T):
        assert np.array_equal(other.numpy(), expected)
    x, y = draw(), draw()
    x[...] = y
    y += 1
    assert np.array_equal(x.numpy(), expected) and np.array_equal(y.numpy(), expected + 1)
    x = draw()
    gradient = gdt.grad(lambda x: gdt.sum(x * x))(x)
    assert np.array_equal(gradient.numpy(), 2 * expected)
    run = gdt.function(lambda: draw() * gdt.random.uniform(()), verify=1)
    first = run().numpy()
    assert not any(np.array_equal(run().numpy(), first) for _ in range(3))
    layer, key = gdt.nn.Dense(3, 3), gdt.random.generator.state
    layer.weight.numpy()
    assert gdt.random.generator.state == key


def test_two_keys_that_fit_one_name_differently_are_told() -> None:
    mesh = gdt.create_mesh([("model", 2)])
    layouts = gdt.nn.LayoutMap(mesh)
    layouts["weigh"], layouts["w.*"] = [None, "model"], ["model", None]
    with pytest.warns(UserWarning, match=r"weight is matched by 'weigh', which counts, and by 'w"):
        model = layouts.apply(gdt.nn.Dense(4, 2, use_bias=False))
    assert model.weight.layout.sharding_specs == ["unsharded", "model"]
    layouts["weight"] = ["model", None]  # a whole name counts before patterns, and tells nothing
    assert layouts.apply(model).weight.layout.sharding_specs == ["model", "unsharded"]


def bytes_and_loss(layouts, model, x) -> tuple[int, float]:
    """Return the bytes and the loss of a step of a model under a map."""
    layouts.apply(model)
    layout = gdt.Layout(["data", *[None] * (x.ndim - 1)], layouts.mesh)
    x, optimizer = gdt.asarray(x, layout=layout), gdt.optim.SGD(0.1)
    for _ in range(2):
        with gdt.count_collectives() as counter:
            value, gradients = gdt.value_and_grad(lambda m: gdt.mean(m(x) ** 2))(model)
            optimizer.update(model, gradients)
    return counter.bytes, float(value)


@pytest.mark.parametrize("blocks", [1, 8])
def test_maps_of_common_models_send_what_theory_says(rng, blocks: int) -> None:
    mesh = gdt.create_mesh([("data", 2), ("model", 4)], blocks=blocks)
    sizes = [16, 64, 16, 64, 16]
    x = rng.normal(size=(32, 16)).astype("float32")

    def dense() -> gdt.nn.Module:
        pairs = enumerate(itertools.pairwise(sizes))
        return gdt.nn.Sequential(*[gdt.nn.Dense(*p, activation="tanh", key=n) for n, p in pairs])

    mlp = gdt.nn.layout_maps.mlp
    replicated = bytes_and_loss(mlp(mesh, model=None), dense(), x)
    split = bytes_and_loss(mlp(mesh), dense(), x)
    both = bytes_and_loss(mlp(mesh, data="data"), dense(), x)
    whole, cut = 4 * 2 * 16, 4 * (4 * 16 * 64 + 2 * 64)  # bytes of whole arrays, and of split ones
    # Results of two pairs of layers, and the gradient of what comes into the second, over `model`.
    results = 3 * 2 * 3 * 4 * 32 * 16
    assert replicated[0] == pytest.approx(2 * 4 * (whole + cut), rel=0.01), replicated
    assert split[0] == pytest.approx(results + 2 * (cut + 4 * whole), rel=0.01)
    # Backwards no weights of the first layer, and those of the last one are there.
    less = 4 * (2 * 16 * 64 + 64 + 4 * 16)
    assert both[0] == pytest.approx(results + 3 * (cut + 4 * whole) - less, rel=0.01)
    np.testing.assert_allclose([split[1], both[1]], replicated[1], rtol=1e-5)


@pytest.mark.parametrize("blocks", [1, 8])
def test_a_map_of_convolutions_splits_channels(rng, blocks: int) -> None:
    mesh = gdt.create_mesh([("data", 2), ("model", 4)], blocks=blocks)
    x = rng.normal(size=(4, 6, 6, 3)).astype("float32")

    def network() -> gdt.nn.Module:
        layers = [gdt.nn.Conv2D(8, 3, padding="same", key=n) for n in range(2)]
        return gdt.nn.Sequential(layers[0], gdt.nn.BatchNorm(8), layers[1])

    results = []
    for layouts in (gdt.nn.layout_maps.cnn(mesh, None), gdt.nn.layout_maps.cnn(mesh)):
        with layouts.scope():
            model = network()
        split = gdt.asarray(x, layout=gdt.Layout(["data", None, None, None], mesh))
        results.append(model(split).numpy())
    assert model[0].weight.layout.sharding_specs == [*["unsharded"] * 3, "model"]
    assert model[1].moving_mean.layout.sharding_specs == ["model"]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_specs_with_dots_fit_any_rank_and_maps_for_many_models_may_match_less() -> None:
    mesh = gdt.create_mesh([("model", 2)])
    layouts = gdt.nn.LayoutMap(mesh)
    layouts[".*"] = [..., "model"]
    tree = layouts.apply({"a": gdt.ones((4,)), "b": gdt.ones((2, 3, 4))})
    assert tree["a"].layout.sharding_specs == ["model"]
    assert tree["b"].layout.sharding_specs == ["unsharded", "unsharded", "model"]
    with pytest.raises(LayoutError, match="a is used has rank 1, and the array has rank 0"):
        layouts.apply({"a": gdt.ones(())})
    for specs in ([..., "columns"], [..., ..., "model"], gdt.nn.Sharded(used=[..., "columns"])):
        with pytest.raises(LayoutError):
            gdt.nn.LayoutMap(mesh)["b"] = specs
    many = gdt.nn.LayoutMap(mesh, allow_unmatched=True)
    many["a"], many["c"] = ["model"], ["model"]
    assert many.apply({"a": gdt.ones((4,))})["a"].layout.sharding_specs == ["model"]
    with pytest.raises(LayoutError, match="'a' matches the name of no array"):
        many.apply({"b": gdt.ones((4,))})


class Random(gdt.nn.Module):
    """Layers of random widths, some of them checkpointed; a shared one, and a weight used twice."""

    def __init__(self, rng: np.random.Generator) -> None:
        widths = [int(n) for n in rng.integers(3, 11, 4)]
        pairs = enumerate(itertools.pairwise(widths))
        self.layers = [gdt.nn.Dense(*sizes, activation="tanh", key=n) for n, sizes in pairs]
        self.shared = gdt.nn.Dense(widths[3], widths[3], key=9)
        self.scale = gdt.ones((widths[3],), "float32")
        self.wraps = [(lambda f: f, gdt.checkpointed)[n] for n in rng.integers(0, 2, 3)]

    def __call__(self, x):
        for layer, wrap in zip(self.layers, self.wraps, strict=True):
            x = wrap(layer)(x)
        x = x + self.shared(x) * self.scale
        return self.shared(x) @ self.layers[2].weight.mT


def losses_and_arrays(seed: int, sizes, blocks: int):
    """Return losses of six steps and the arrays after them; on one device without a layout map."""
    rng = np.random.default_rng(seed)
    mesh = gdt.create_mesh(list(zip(("data", "model"), sizes, strict=True)), blocks=blocks)
    with gdt.default_mesh(mesh):
        model = Random(rng)
    split, both = gdt.nn.Sharded("data"), gdt.nn.Sharded(state="data")
    entries = {
        r"layers\.\d\.weight": (split, both, gdt.nn.Sharded("data", [None, "model"])),
        r".*bias": (split, both, gdt.nn.Sharded(used=["model"])),
        r"shared\.weight": (split, gdt.nn.Sharded("model", state="data")),
    }
    layouts = gdt.nn.LayoutMap(mesh)
    for key, choices in entries.items():
        layouts[key] = choices[rng.integers(len(choices))]
    if mesh.size > 1:
        layouts.apply(model)
    layout = gdt.Layout(["data", None], mesh)
    size = (int(rng.integers(1, 9)), model.layers[0].weight.shape[0])
    x = gdt.asarray(rng.normal(size=size).astype("float32"), layout=layout)
    optimizer = gdt.optim.Adam(0.01)

    def loss(model):
        return gdt.mean(model(x) ** 2) + gdt.sum(model.layers[0].weight ** 2)

    def step():
        value, gradients = gdt.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    run = gdt.function(step)
    return [float(f()) for f in (step, step, run, run, run, run)], model.parameters()


@pytest.mark.parametrize("seed", range(4))
def test_random_networks_learn_the_same_in_every_layout(seed: int) -> None:
    expected, arrays = losses_and_arrays(seed, (1, 1), 1)
    sizes = (2 + seed % 3, 1 + seed % 2)
    for blocks in (1, sizes[0] * sizes[1]):
        losses, parameters = losses_and_arrays(seed, sizes, blocks)
        np.testing.assert_allclose(losses, expected, rtol=2e-5)
        for name, w in parameters.items():
            np.testing.assert_allclose(w.numpy(), arrays[name].numpy(), rtol=2e-3, atol=2e-5)


def test_who_writes_to_a_key_changes_no_array_that_was_drawn_with_it() -> None:
    key = gdt.random.key(7)
    dense = gdt.nn.Dense(4, 4, key=key)  # whose arrays are made below
    key[...] = gdt.random.key(6)
    np.testing.assert_array_equal(dense.weight.numpy(), gdt.nn.Dense(4, 4, key=7).weight.numpy())
    assert gdt.random.key(7).numpy() != key.numpy()


def test_a_map_of_stages_and_experts_splits_what_belongs_to_them() -> None:
    mesh = gdt.create_mesh([("stage", 2), ("data", 2), ("model", 2)])

    class Block(nn.Module):
        def __init__(self, key: int) -> None:
            self.attention = nn.MultiHeadAttention(2, 4, key=key)
            self.experts = nn.MoE(2, 8, size=4, key=key)
            self.up, self.norm = nn.Dense(4, 4, key=key), nn.LayerNorm(4)

        def __call__(self, x):
            return self.up(self.norm(self.experts(x + self.attention(x))))

    class Net(nn.Module):
        def __init__(self) -> None:
            self.table = nn.Embedding(8, 4)
            self.pipeline = nn.Pipelined([Block(n) for n in range(2)], "stage", 2)

        def __call__(self, ids):
            return self.table.logits(self.pipeline(self.table(ids)))

    for data in (None, "data"):
        with warnings.catch_warnings(), gdt.default_mesh(mesh):
            warnings.simplefilter("error")
            layouts = nn.layout_maps.transformer(mesh, data=data, stage="stage", expert="data")
            net = layouts.apply(Net())
        specs = {name: w.layout.sharding_specs for name, w in net.parameters().items()}
        block = "pipeline.block."
        assert specs[f"{block}experts.up_weight"] == ["stage", "data", "unsharded", "model"]
        assert specs[f"{block}experts.up_bias"] == ["stage", "data", "model"]
        assert specs[f"{block}experts.down_weight"] == ["stage", "data", "model", "unsharded"]
        kept = "unsharded" if data is None else "data"
        assert specs[f"{block}attention.query_weight"] == ["stage", kept, "model"]
        assert specs[f"{block}attention.output_bias"] == ["stage", kept]
        assert specs[f"{block}norm.scale"] == ["stage", kept]
        whole = ("model", "unsharded") if data is None else (("model", "data"), "unsharded")
        assert tuple(specs["table.weight"]) == whole
        ids = gdt.asarray(np.arange(32).reshape(8, 4) % 8, layout=gdt.Layout(["data", None], mesh))
        assert net(ids).shape == (8, 4, 8)
