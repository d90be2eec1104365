"""Arrays that are kept in one layout and used in another: what is sent, what is kept, gradients."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import gdt
from gdt.array.released import ReleasedBlocks
from gdt.autodiff.backward import BACKWARDS, Backward
from gdt.ops.gathering import gathered

MESHES = [gdt.create_mesh([("data", 4)], blocks=blocks) for blocks in (1, 4)]


def loss_and_used(x, weights, layout):
    """Return the loss of two layers that gather their weights, and what they gathered."""
    used = []
    for w in weights:
        with gathered([w], [layout], [w.layout]) as (whole,):
            x = gdt.relu(x @ (whole.mT * 2.0))
            used.append(whole)
    return gdt.sum(x), used


def plain_loss(x, weights):
    for w in weights:
        x = gdt.relu(x @ (w.mT * 2.0))
    return gdt.sum(x)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("size", [8, 6], ids=["even", "uneven"])
def test_weights_but_the_last_are_gathered_twice_and_gradients_scattered(rng, mesh, size) -> None:
    split, whole = gdt.Layout(["data", None], mesh), gdt.Layout([None, None], mesh)
    x = gdt.asarray(rng.normal(size=(8, size)).astype("float32"), layout=split)
    weights = [
        gdt.asarray(rng.normal(size=(size, size)).astype("float32"), layout=split) for _ in range(2)
    ]
    expected = gdt.grad(lambda ws: plain_loss(x, ws))(weights)
    gradient = gdt.grad(lambda ws: loss_and_used(x, ws, whole)[0])
    with gdt.count_collectives() as counter:
        gradient(weights)
    # The first layer needs no weights backwards, since x has no gradient; the last one has them.
    assert counter.by_kind == {"all_gather": 2, "reduce_scatter": 2, "all_reduce": 1}
    if size == 8:
        assert counter.bytes == 4 * 3 * weights[0].nbytes + 2 * 3 * 4
    BACKWARDS.clear()
    for _ in range(3):  # op by op, recorded, replayed
        for g, e, w in zip(gradient(weights), expected, weights, strict=True):
            assert g.layout is w.layout
            np.testing.assert_allclose(g.numpy(), e.numpy(), rtol=1e-5)
    assert any(type(value) is Backward for value in BACKWARDS.values())


@pytest.mark.parametrize("mesh", MESHES)
def test_a_tape_keeps_no_gathered_array_but_the_last_for_one_gradient(rng, mesh) -> None:
    split, whole = gdt.Layout(["data", None], mesh), gdt.Layout([None, None], mesh)
    x = gdt.asarray(rng.normal(size=(8, 8)), layout=split)
    weights = [gdt.asarray(rng.normal(size=(8, 8)), layout=split) for _ in range(2)]
    with gdt.GradientTape(persistent=True) as tape:
        loss, used = loss_and_used(x, weights, whole)
    from_w = [
        out
        for _, args, _, out in tape.nodes
        if len(args) and all(a is used[0] or not isinstance(a, gdt.DistributedArray) for a in args)
    ]
    for n in range(3):
        assert all(type(a.blocks) is ReleasedBlocks for a in (used[0], *from_w))
        assert (type(used[1].blocks) is ReleasedBlocks) == (n > 0)
        with gdt.count_collectives() as counter:
            tape.gradient(loss, weights)
        assert counter.by_kind["all_gather"] == (n > 0)
    for _ in range(3):  # op by op, recorded, replayed
        with gdt.GradientTape(persistent=True) as tape:
            loss, last = loss_and_used(x, weights, whole)
        tape.gradient(loss, weights)
        assert all(type(a.blocks) is ReleasedBlocks for a in last)
    np.testing.assert_array_equal(used[0].numpy(), weights[0].numpy())  # who reads it gathers it
    assert type(used[0].blocks) is not ReleasedBlocks


@pytest.mark.parametrize("wrap", [lambda layer: layer, gdt.checkpointed], ids=["", "checkpointed"])
def test_one_gathered_array_is_held_until_its_tape_has_gone(wrap) -> None:
    mesh = MESHES[1]
    split, whole = gdt.Layout(["data", None], mesh), gdt.Layout([None, None], mesh)
    x = gdt.ones((4, 64), layout=split)
    weights = [gdt.ones((64, 64), layout=split) for _ in range(3)]

    @wrap
    def layer(x, w):
        with gathered([w], [whole], [split]) as (used,):
            return x @ used

    def loss():
        return gdt.sum(functools.reduce(layer, weights, x))

    loss()
    with gdt.testing.peak_memory(weights, [x]) as memory:
        before = memory.now
        loss()
        assert memory.now == before
        tape = gdt.GradientTape()
        with tape:
            loss(), loss()
        activations = 7 * x.nbytes
        assert weights[0].nbytes <= memory.now - before <= weights[0].nbytes + activations
        assert memory.peak - before <= 2 * weights[0].nbytes + activations
        loss()  # of nobody's forward pass
        del tape
        assert memory.now == before


@pytest.mark.parametrize("wrap", [lambda layer: layer, gdt.checkpointed], ids=["", "checkpointed"])
@pytest.mark.parametrize("mesh", MESHES)
def test_of_blocks_within_blocks_the_last_to_read_its_arrays_keeps_them(mesh, wrap) -> None:
    split, whole = gdt.Layout(["data", None], mesh), gdt.Layout([None, None], mesh)
    x, inner, outer = [gdt.ones((8, 8), layout=split) for _ in "xio"]

    @wrap
    def layer(x):
        with gathered([inner], [whole], [split]) as (used,):
            return x @ used

    for ends_outside in (False, True):
        with gdt.GradientTape() as tape, gathered([outer], [whole], [split]) as (used,):
            y = layer(x @ used)
            value = gdt.sum(y @ used if ends_outside else layer(y))
        with gdt.count_collectives() as counter:
            tape.gradient(value, [inner, outer])
        # The inner array for the first call; what the last one has read is there.
        assert counter.by_kind["all_gather"] == 1


@pytest.mark.parametrize("mesh", MESHES)
def test_second_derivatives_and_recorded_steps(rng, mesh) -> None:
    split, whole = gdt.Layout(["data", None], mesh), gdt.Layout([None, None], mesh)
    x = gdt.asarray(rng.normal(size=(8, 4)), layout=split)
    weights = [gdt.asarray(rng.normal(size=(4, 4)), layout=split) for _ in range(2)]

    def squares(loss):
        def of_weights(ws):
            return sum(gdt.sum(g * g) for g in gdt.grad(lambda ws: loss(ws) ** 2)(ws))

        return of_weights

    expected = gdt.grad(squares(lambda ws: plain_loss(x, ws)))(weights)
    second = gdt.grad(squares(lambda ws: loss_and_used(x, ws, whole)[0]))
    step = gdt.function(lambda first, last: second([first, last]), verify=3)
    for compute in (second, second, lambda ws: step(*ws), *[lambda ws: step(*ws)] * 3):
        for g, e in zip(compute(weights), expected, strict=True):
            np.testing.assert_allclose(g.numpy(), e.numpy(), rtol=1e-9)


@pytest.mark.parametrize("mesh", MESHES)
def test_gradients_of_micro_batches_are_reduced_once(rng, mesh) -> None:
    split = gdt.Layout(["data", None], mesh)
    x = rng.normal(size=(4, 8, 6)).astype("float32")
    batches = [gdt.asarray(rows, layout=split) for rows in x]
    model = gdt.nn.Dense(6, 3, gdt.Layout([None, None], mesh), key=0)
    whole = gdt.asarray(x.reshape(32, 6), layout=split)
    expected = gdt.grad(lambda m: gdt.sum(m(whole) ** 2))(model)
    optimizer, before = gdt.optim.SGD(1.0), model.state()
    with gdt.count_collectives() as counter:
        total = None
        for rows in batches:
            value, gradient = gdt.value_and_grad(
                lambda m, rows=rows: gdt.sum(m(rows) ** 2), resolve=False
            )(model)
            assert any(value.layout.reductions)
            total = gradient if total is None else {n: total[n] + gradient[n] for n in total}
        optimizer.update(model, total)
    assert counter.by_kind == {"all_reduce": 1}
    for name, x in model.state().items():
        change = before[name].numpy() - x.numpy()
        np.testing.assert_allclose(change, expected[name].numpy(), rtol=1e-4)
