"""Checkpointed functions: the same gradients and random numbers, and what cannot run twice."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

import gdt
from gdt.errors import GradientError

MESHES = [gdt.create_mesh([("data", 4)], blocks=blocks) for blocks in (1, 4)]


class Layer(gdt.nn.Module):
    def __init__(self, size: int, key: int) -> None:
        self.dense = gdt.nn.Dense(size, size, activation="tanh", key=key)
        self.dropout = gdt.nn.Dropout(0.3, key=key)

    def __call__(self, x, scale=1.0):
        noise = gdt.random.uniform(x.shape, 0.0, 1.0, "float32", layout=x.layout.resolved)
        return self.dropout(self.dense(x)) * scale + noise


class Stack(gdt.nn.Module):
    def __init__(self, mesh, wrap) -> None:
        with gdt.default_mesh(mesh):
            self.layers = [Layer(8, key) for key in range(3)]
        self.wrap = wrap

    def __call__(self, x):
        for layer in self.layers:
            x = self.wrap(layer)(x, scale=0.5)
        return x


def inputs(mesh, rng):
    return gdt.asarray(rng.normal(size=(8, 8)), "float32", layout=gdt.Layout(["data", None], mesh))


def losses_and_weights(
    mesh, wrap, x, entry=None, function=lambda step, **options: step, units=r"layers\.\d"
):
    """Return the losses of six steps, and the weights after them."""
    gdt.random.seed(7)
    model, optimizer = Stack(mesh, wrap), gdt.optim.SGD(0.1)
    if entry is not None:
        layouts = gdt.nn.LayoutMap(mesh, units=units)
        layouts[r".*(weight|bias)"] = entry
        layouts.apply(model)

    def step(x):
        loss, gradients = gdt.value_and_grad(lambda m: gdt.mean(m(x) ** 2))(model)
        optimizer.update(model, gradients)
        return loss

    run = function(step, verify=3)
    losses = [float(run(x)) for _ in range(6)]
    return losses, [w.numpy() for w in model.parameters().values()]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("function", [lambda step, **options: step, gdt.function])
@pytest.mark.parametrize("entry", [None, gdt.nn.Sharded(kept="data")], ids=["replicated", "FSDP"])
def test_a_training_takes_the_same_steps(rng, mesh, function, entry) -> None:
    x = inputs(mesh, rng)
    expected = losses_and_weights(mesh, lambda layer: layer, x)
    losses, weights = losses_and_weights(mesh, gdt.checkpointed, x, entry, function)
    np.testing.assert_allclose(losses, expected[0], rtol=1e-6)
    for w, e in zip(weights, expected[1], strict=True):
        np.testing.assert_allclose(w, e, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("mesh", MESHES)
def test_checkpoints_nest_and_have_second_derivatives(rng, mesh) -> None:
    x, w = inputs(mesh, rng).astype("float64"), gdt.asarray(rng.normal(size=(8, 8)))
    w = gdt.copy_to_mesh(w, gdt.Layout([None, None], mesh))
    inner = lambda x: gdt.tanh(x @ w)
    nested = gdt.checkpointed(
        lambda x: {"y": gdt.checkpointed(inner)(gdt.checkpointed(inner)(x)), "x": x}
    )
    plain = lambda x: {"y": inner(inner(x)), "x": x}

    def second(f):
        first = gdt.grad(lambda x: gdt.sum(f(x)["y"] ** 2) + gdt.sum(f(x)["x"]))
        return gdt.grad(lambda x: gdt.sum(first(x) ** 2))(x)

    np.testing.assert_allclose(
        second(nested).numpy(), second(plain).numpy(), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("function", [lambda step, **options: step, gdt.function])
def test_arrays_that_a_module_around_has_gathered_are_used_again(rng, mesh, function) -> None:
    x, whole_model = inputs(mesh, rng), ""
    expected = losses_and_weights(mesh, lambda layer: layer, x)
    nested = lambda layer: gdt.checkpointed(gdt.checkpointed(layer))
    losses, weights = losses_and_weights(
        mesh, nested, x, gdt.nn.Sharded(kept="data"), function, whole_model
    )
    np.testing.assert_allclose(losses, expected[0], rtol=1e-6)
    for w, e in zip(weights, expected[1], strict=True):
        np.testing.assert_allclose(w, e, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("size", [8, 128])  # small, and so large that a tape frees what is unread
@pytest.mark.parametrize("blocks", [1, 4])
def test_partial_sums_that_a_checkpointed_layer_reads_twice(rng, blocks, size) -> None:
    """A layer normalises a partial sum, which takes its value, and adds to its parts."""
    mesh = gdt.create_mesh([("model", 4)], blocks=blocks)
    draw = lambda *specs: gdt.asarray(
        rng.normal(size=(size,) * len(specs)).astype(np.float32), layout=gdt.Layout(specs, mesh)
    )
    pairs = [(draw(None, "model"), draw("model", None)) for _ in range(3)]
    x, bias = draw(None, None), draw(None)

    def layer(x, up, down):
        return x + (gdt.relu(gdt.layer_norm(x) @ up) @ down + bias)

    def gradients(wrap):
        def loss(pairs):
            y = x
            for up, down in pairs:
                y = wrap(layer)(y, up, down)
            return gdt.sum(y)

        return [g.numpy() for pair in gdt.grad(loss)(pairs) for g in pair]

    for got, want in zip(gradients(gdt.checkpointed), gradients(lambda f: f), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * abs(want).max())


@pytest.mark.parametrize("mesh", MESHES)
def test_an_array_that_passes_through_unread_has_its_gradient(rng, mesh) -> None:
    x, h = inputs(mesh, rng), inputs(mesh, rng)
    for f in (lambda x, h: (h, gdt.tanh(x)), lambda x, h: (h, x)):

        def gradient(f):
            def loss(x, h):
                passed, y = f(x, h)
                return gdt.sum(passed * passed) + gdt.sum(y * h)

            return gdt.grad(loss, argnums=(0, 1))(x, h)

        for got, want in zip(gradient(gdt.checkpointed(f)), gradient(f), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)


def test_unreduced_gradients_are_still_reduced_once(rng) -> None:
    mesh = MESHES[0]
    x = inputs(mesh, rng)
    for wrap in (lambda layer: layer, gdt.checkpointed):
        model = Stack(mesh, wrap)
        with gdt.count_collectives() as counter:
            gdt.grad(lambda m: gdt.sum(m(x) ** 2))(model)
        assert counter.by_kind == {"all_reduce": 1}


@pytest.mark.parametrize("blocks", [1, 4])
def test_recorded_steps_of_micro_batches_and_dropout_are_the_same_and_reduce_once(blocks) -> None:
    mesh = gdt.create_mesh([("data", 4)], blocks=blocks)
    split = gdt.Layout(["data", None], mesh)
    batches = [gdt.ones((8, 6), "float32", layout=split) * n for n in (1.0, 2.0, 3.0)]

    def trained(wrap, record):
        gdt.random.seed(5)
        with gdt.default_mesh(mesh):
            model = gdt.nn.Sequential(gdt.nn.Dense(6, 8, key=0), gdt.nn.Dropout(0.5))
        optimizer = gdt.optim.Adam(0.1).init(model)
        f = wrap(model)
        gradient = gdt.value_and_grad(lambda m, x: gdt.mean(f(x) ** 2), resolve=False)

        def step(batches):
            total = gradient(model, batches[0])[1]
            for x in batches[1:]:
                more = gradient(model, x)[1]
                total = {name: total[name] + more[name] for name in total}
            optimizer.update(model, total)

        step = record(step)
        for _ in range(4):
            with gdt.count_collectives() as counter:
                step(batches)
            assert counter.by_kind == {"all_reduce": 1}
        return [x.numpy() for x in model.state().values()]

    expected = trained(lambda model: model, lambda step: step)
    for wrap in (lambda model: model, gdt.checkpointed):
        for got, want in zip(trained(wrap, gdt.function), expected, strict=True):
            np.testing.assert_array_equal(got, want)


def test_fsdp_gathers_a_checkpointed_layer_twice_and_the_last_one_once(rng) -> None:
    mesh, layouts = MESHES[1], gdt.nn.LayoutMap(MESHES[1])
    layouts[r".*(weight|bias)"] = gdt.nn.Sharded(kept="data")
    model = layouts.apply(Stack(mesh, gdt.checkpointed))
    x = inputs(mesh, rng)
    with gdt.count_collectives() as counter:
        gdt.grad(lambda m: gdt.sum(m(x) ** 2))(model)
    assert counter.by_kind == {"all_gather": 5, "reduce_scatter": 3, "all_reduce": 1}


def test_a_tape_keeps_what_goes_in_and_comes_out(rng) -> None:
    inside = []

    def layer(x):
        y = gdt.exp(x)
        inside.append(weakref.ref(y))
        return gdt.tanh(y) * y

    x = inputs(MESHES[0], rng)
    with gdt.GradientTape() as tape:
        y = gdt.checkpointed(layer)(x)
    assert [node[0].name for node in tape.nodes] == ["checkpointed"]
    assert inside[0]() is None
    tape.gradient(y, x)
    assert len(inside) == 2


def test_functions_that_write_into_what_they_are_given_are_refused(rng) -> None:
    """The second time they would read what the first time has written: a wrong gradient."""
    x, kept = inputs(MESHES[0], rng), {"total": gdt.zeros((8, 8))}

    def adds(x, y):
        y += x * x
        return x * y

    def counts(x):
        kept["total"][0] += x[0]
        return x * kept["total"]

    for function, what in ((lambda x: adds(x, x), "an argument"), (counts, r"kept\.total")):
        layer = gdt.checkpointed(function)
        with pytest.raises(GradientError, match=f"writes into {what} in the call of line"):
            gdt.grad(lambda x, layer=layer: gdt.sum(layer(x)))(x)


def test_functions_may_write_into_what_they_make(rng) -> None:
    def layer(x):
        y, z = gdt.zeros(x.shape), x * 1.0
        y[0] = x[0] * x[0]
        y[1:] = x[1:]
        z *= x
        z[1:] *= 3.0
        return y * z

    gradient = lambda f: gdt.grad(lambda x: gdt.sum(f(x)))(inputs(MESHES[0], rng)).numpy()
    state = rng.bit_generator.state
    expected = gradient(layer)
    rng.bit_generator.state = state
    assert np.array_equal(gradient(gdt.checkpointed(layer)), expected)


def test_functions_that_cannot_run_twice_are_refused(rng) -> None:
    x = inputs(MESHES[0], rng)
    norm, held = gdt.nn.BatchNorm(8), []
    gradient = lambda f: gdt.grad(lambda x: gdt.sum(f(x)))(x)
    with pytest.raises(GradientError, match=r"BatchNorm puts a new array into BatchNorm\.\w+ in"):
        gradient(gdt.checkpointed(norm))
    gradient(gdt.checkpointed(norm.eval()))

    def writes(x):
        held.append(gdt.sum(x))
        return x * x

    def fetches(x):
        return x * float(gdt.sum(x))

    with pytest.raises(
        GradientError, match=r"writes puts a new array into held\.0 in the call of li"
    ):
        gradient(gdt.checkpointed(writes))
    with pytest.raises(gdt.errors.ArgumentError, match="checkpointed: f is 3, not Callable"):
        gdt.checkpointed(3)
    with pytest.raises(GradientError, match=r"fetches cannot read .* as line \d+ of .*fetches"):
        gradient(gdt.checkpointed(fetches))
    weights = {"w": gdt.asarray(2.0)}
    with gdt.GradientTape() as tape:
        y = gdt.checkpointed(lambda x: x * weights["w"])(gdt.asarray(3.0))
    weights["w"] = gdt.asarray(5.0)
    with pytest.raises(GradientError, match=r"called in line \d+ .* uses other arrays in the back"):
        tape.gradient(y, tape.nodes[0][1][0])
    counts = iter((2, 1))

    def counting(x):
        return x * 2.0 + next(counts)

    with pytest.raises(
        GradientError, match=r"counting, .* with 1 in the backward pass, and with 2"
    ):
        gradient(gdt.checkpointed(counting))
    for drawing in (
        lambda x: x * rng.standard_normal(x.shape),
        lambda x: x * gdt.asarray(rng.standard_normal(x.shape), layout=x.layout),
    ):
        with pytest.raises(GradientError, match=r"in the backward pass, and with float64\["):
            gradient(gdt.checkpointed(drawing))
    fixed = rng.standard_normal(x.shape)
    gradient(gdt.checkpointed(lambda x: x * fixed))
    counts = iter((2, 1))
    with gdt.GradientTape() as tape:
        y, _ = gdt.checkpointed(lambda x: [x * 2.0] * next(counts))(x)
    with pytest.raises(GradientError, match=r"in line \d+ .* returns other arrays in the backward"):
        tape.gradient(y, x)
    assert float(gdt.checkpointed(fetches)(gdt.asarray(2.0))) == 4.0  # without a tape it runs once
