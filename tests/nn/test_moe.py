"""Mixtures of experts: what a loop over tokens computes, on every layout, and what is sent."""

from __future__ import annotations

import functools
import gc
import math
import re

import numpy as np
import pytest

import gdt
from gdt import nn
from gdt.backend.abstract import DEVICE
from gdt.errors import ArgumentError, LayoutError, ShapeError
from gdt.nn.functions.rows_of_groups import add_to_rows_of_groups, rows_of_groups
from gdt.testing import Sample, check_mesh, check_rule
from tests.covering import covered

GROUPS, TOKENS, SIZE, HIDDEN, EXPERTS = 8, 12, 6, 10, 4


def by_loop(x, weights, top_k, capacity):
    """Return the result, and the number of dropped choices of each group, token by token."""
    w = {name: a.numpy() for name, a in weights.items()}
    places = TOKENS if capacity is None else math.ceil(capacity * top_k * TOKENS / EXPERTS)
    y, dropped = np.zeros_like(x), np.zeros(len(x), int)
    for g, group in enumerate(x):
        odds = np.exp(group @ w["router_weight"])
        odds /= odds.sum(-1, keepdims=True)
        best = np.argsort(-odds, axis=-1, kind="stable")[:, :top_k]
        free = [min(places, TOKENS)] * EXPERTS
        for choice in range(top_k):
            for t, expert in enumerate(best[:, choice]):
                if not free[expert]:
                    dropped[g] += 1
                    continue
                free[expert] -= 1
                weight = odds[t, expert] / (odds[t, best[t]].sum() if top_k > 1 else 1)
                hidden = np.tanh(group[t] @ w["up_weight"][expert] + w["up_bias"][expert])
                y[g, t] += weight * (hidden @ w["down_weight"][expert] + w["down_bias"][expert])
    return y, dropped


LAYOUTS = [
    ([("one", 1)], [None, None, None], None, None),
    ([("data", 4)], ["data", None, None], "data", None),
    ([("data", 2), ("expert", 2)], [("data", "expert"), None, None], "expert", None),
    ([("data", 2), ("expert", 2)], ["data", None, None], "expert", None),
    ([("data", 2), ("model", 2)], ["data", "model", None], "data", "model"),
    ([("data", 2), ("model", 2)], ["data", None, "model"], "data", "model"),
    ([("data", 3)], ["data", None, None], "data", None),
    ([("time", 4)], [None, "time", None], "time", None),
]


def layer_on(mesh, expert=None, model=None, **options):
    layouts = {
        "up_weight": gdt.Layout([expert, None, model], mesh),
        "down_weight": gdt.Layout([expert, model, None], mesh),
    }
    with gdt.default_mesh(mesh):
        layer = nn.MoE(
            EXPERTS, HIDDEN, size=SIZE, activation="tanh", dtype="float64", layouts=layouts,
            key=1, **options,
        )  # fmt: skip
    chance = np.random.default_rng(5)
    for name in ("up_bias", "down_bias"):
        bias = getattr(layer, name)
        setattr(layer, name, gdt.asarray(chance.normal(size=bias.shape), layout=bias.layout))
    return layer


def tokens(rng):
    return rng.normal(size=(GROUPS, TOKENS, SIZE))


@functools.cache
def gradients_on_one(top_k, capacity):
    mesh = gdt.create_mesh([("one", 1)])
    layer = layer_on(mesh, top_k=top_k, capacity=capacity)
    return [*_gradients(layer, gdt.asarray(tokens(np.random.default_rng(1))))]


def _gradients(layer, x):
    def loss(layer, x):
        y, routing = layer(x, routing=True)
        return gdt.sum(y**2) + gdt.mean(routing.balance)

    of_layer, of_x = gdt.grad(loss, (0, 1))(layer, x)
    return [g.numpy() for g in of_layer.values()], of_x.numpy()


@covered(
    pytest.mark.layouts_full,
    layout=LAYOUTS,
    routing=[(1, 1.0), (2, 1.25), (2, None), (4, 0.3)],
    apart=[False, True],
)
def test_it_is_a_loop_over_tokens(layout, routing, apart) -> None:
    (dims, rows, expert, model), (top_k, capacity) = layout, routing
    mesh = gdt.create_mesh(dims, blocks=int(np.prod([n for _, n in dims])) if apart else None)
    layer = layer_on(mesh, expert, model, top_k=top_k, capacity=capacity)
    values = tokens(np.random.default_rng(1))
    x = gdt.asarray(values, layout=gdt.Layout(rows, mesh))
    y, routing = layer(x, routing=True)
    expected, dropped = by_loop(values, layer.parameters(), top_k, capacity)
    np.testing.assert_allclose(y, expected, atol=1e-12)
    np.testing.assert_array_equal(routing.dropped, dropped)
    np.testing.assert_array_equal(gdt.sum(routing.asked, axis=-1), [top_k * TOKENS] * GROUPS)
    assert (dropped.sum() > 0) == (capacity is not None and capacity < 4)
    of_layer, of_x = _gradients(layer, x)
    expected_of_layer, expected_of_x = gradients_on_one(top_k, capacity)
    np.testing.assert_allclose(of_x, expected_of_x, atol=1e-12)
    for g, e in zip(of_layer, expected_of_layer, strict=True):
        np.testing.assert_allclose(g, e, atol=1e-11)


@functools.cache
def trained(dims, rows, expert, model, steps=100):
    """Return the losses of a training of two layers, each beside its input, with balance."""
    mesh = gdt.create_mesh([*dims])
    layers = [layer_on(mesh, expert, model) for _ in range(2)]
    optimizer = gdt.optim.Adam(1e-2)
    x = gdt.asarray(tokens(np.random.default_rng(2)), layout=gdt.Layout([*rows], mesh))

    class Net(nn.Module):
        def __init__(self) -> None:
            self.layers = layers

        def __call__(self, x):
            balance = 0.0
            for layer in self.layers:
                y, routing = layer(x, routing=True)
                x, balance = x + y, balance + gdt.mean(routing.balance)
            return x, balance

    net = Net()
    optimizer.init(net)

    @gdt.function
    def step(x):
        def loss(net):
            y, balance = net(x)
            return gdt.mean((y - 1) ** 2) + 0.01 * balance

        value, gradients = gdt.value_and_grad(loss)(net)
        optimizer.update(net, gradients)
        return value

    return [float(step(x)) for _ in range(steps)]


@pytest.mark.parametrize(
    ("dims", "rows", "expert", "model"), [LAYOUTS[n] for n in (1, 2, 3, 5, 6)], ids=str
)
def test_a_hundred_steps_are_those_of_one_device(dims, rows, expert, model) -> None:
    expected = trained((("one", 1),), (None, None, None), None, None)
    losses = trained(tuple(dims), tuple(rows), expert, model)
    np.testing.assert_allclose(losses, expected, rtol=1e-9)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("is_source", [False, True])
def test_tokens_are_sent_by_three_exchanges_or_four(rng, is_source) -> None:
    """There and back, and the cotangents of the results; those of tokens, if x has a gradient."""
    mesh = gdt.create_mesh([("data", 4)])
    layer = layer_on(mesh, "data")
    x = gdt.asarray(tokens(rng), layout=gdt.Layout(["data", None, None], mesh))
    loss = lambda layer, x: gdt.mean(layer(x) ** 2)
    with gdt.count_collectives() as counter:
        gdt.grad(loss, (0, 1) if is_source else 0)(layer, x)
    places = math.ceil(1.25 * 2 * TOKENS / EXPERTS)
    dispatched = GROUPS * EXPERTS * places * SIZE * 8
    sent = [c.bytes for c in counter if c.kind == "all_to_all"]
    assert sent == [dispatched * 3 // 4] * (4 if is_source else 3)
    assert counter.by_kind["all_reduce"] == 1  # of the router's gradient
    assert len(counter.collectives) == len(sent) + 1


def test_balance_is_least_where_experts_are_asked_alike() -> None:
    layer = nn.MoE(2, 4, top_k=1, size=2, dtype="float64")
    layer.router_weight = gdt.asarray([[3.0, 0.0], [0.0, 3.0]])
    even, uneven = [[[1.0, 0.0], [0.0, 1.0]]], [[[1.0, 0.0], [1.0, 0.0]]]
    probability = 1 / (1 + math.exp(-3))
    assert float(layer(np.array(even), routing=True)[1].balance[0]) == pytest.approx(1.0)
    assert float(layer(np.array(uneven), routing=True)[1].balance[0]) == pytest.approx(
        2 * probability
    )
    gradient = gdt.grad(lambda m: gdt.sum(m(np.array(uneven), routing=True)[1].balance))(layer)
    assert gradient["router_weight"].numpy()[0, 0] > 0  # the expert that all ask is asked less
    assert not gradient["up_weight"].numpy().any()


def test_groups_are_the_leading_axes_of_x(rng) -> None:
    layer = nn.MoE(EXPERTS, HIDDEN, size=SIZE, dtype="float64", key=0)
    x = rng.normal(size=(2, 3, 5, SIZE))
    y, routing = layer(x, routing=True)
    assert y.shape == x.shape
    assert [a.shape for a in routing] == [(2, 3), (2, 3), (2, 3, EXPERTS)]
    one, of_one = layer(x[1, 2], routing=True)
    np.testing.assert_allclose(one, y[1, 2])
    assert [a.shape for a in of_one] == [(), (), (EXPERTS,)]
    assert layer(x[:, :0]).shape == (2, 0, 5, SIZE)
    assert layer(x[:, :, :0]).shape == (2, 3, 0, SIZE)


@pytest.mark.filterwarnings("error")
def test_groups_of_no_tokens_ask_nobody() -> None:
    layer = nn.MoE(4, 8, size=SIZE, key=0)
    y, routing = layer(gdt.zeros((3, 0, SIZE), "float32"), routing=True)
    assert y.shape == (3, 0, SIZE)
    assert (routing.balance.tolist(), routing.dropped.tolist()) == ([0.0] * 3, [0] * 3)


def test_matrices_of_experts_begin_as_those_of_dense_layers() -> None:
    layer = nn.MoE(64, 32, size=16, key=3)
    limit = math.sqrt(6 / 48)
    for name in ("up_weight", "down_weight"):
        w = getattr(layer, name).numpy()
        assert 0.95 * limit < abs(w).max() <= limit
        assert len(np.unique(w[:, 0, 0])) == 64
    mesh = gdt.create_mesh([("x", 8)])
    with gdt.default_mesh(mesh):
        layouts = nn.LayoutMap(mesh)
        layouts["(up|down)_.*"] = ["x", ...]
        split = layouts.apply(nn.MoE(64, 32, size=16, key=3))
    assert split.up_bias.layout.sharding_specs == ["x", "unsharded"]
    np.testing.assert_array_equal(split.up_weight, layer.up_weight)


def test_it_computes_in_half_precision_and_routes_in_single(rng) -> None:
    layer = nn.mixed_precision(nn.MoE(EXPERTS, HIDDEN, size=SIZE, key=0), "bfloat16")
    x = rng.normal(size=(2, 5, SIZE)).astype("float32")
    y, routing = layer(x, routing=True)
    assert y.dtype == "bfloat16"
    assert routing.balance.dtype == "float32"
    expected = nn.mixed_precision(layer, None)(x)
    np.testing.assert_allclose(y.astype("float32"), expected, atol=0.05)


WHOLE = gdt.Layout([None, None], gdt.create_mesh([("one", 1)]))
WRONG = [
    (lambda: nn.MoE(0, 4), ArgumentError, "experts is 0, not positive"),
    (lambda: nn.MoE(4, 0), ArgumentError, "hidden_size is 0, not positive"),
    (lambda: nn.MoE(4, 4, top_k=0), ArgumentError, "top_k is 0, not positive"),
    (lambda: nn.MoE(4, 4, top_k=5), ArgumentError, "top_k is 5, of 4 experts"),
    (lambda: nn.MoE(4, 4, capacity=0), ArgumentError, "capacity is 0"),
    (lambda: nn.MoE(4, 4, capacity=-1.0), ArgumentError, "capacity is -1.0"),
    (lambda: nn.MoE(4, 4, capacity=math.nan), ArgumentError, "capacity is nan"),
    (lambda: nn.MoE(4, 4, layouts={"up": WHOLE}), LayoutError, "'up' is no parameter"),
    (lambda: nn.MoE(4, 4, size=3)(np.ones((2, 4))), ShapeError, "x has 4 features"),
    (lambda: nn.MoE(4, 4, size=3)(np.ones(3)), ShapeError, "x has shape [3]"),
]


@pytest.mark.parametrize(("call", "kind", "text"), WRONG)
def test_what_does_not_fit_is_named(call, kind, text) -> None:
    with pytest.raises(kind, match=f"MoE.*{re.escape(text)}"):
        call()


# ---------------------------------------------------------------- rows


def _taken(x, at):
    return np.stack([group[rows] for group, rows in zip(x, at, strict=True)])


def _added(g, at, count):
    out = np.zeros((len(g), count, g.shape[2]), g.dtype)
    for n, rows in enumerate(at):
        np.add.at(out[n], rows, g[n])
    return out


@pytest.mark.parametrize("dims", [[("a", 2), ("b", 2)], [("a", 3)]], ids=str)
def test_rows_of_groups_on_every_layout(rng, dims) -> None:
    mesh = gdt.create_mesh(dims)
    x, at = rng.normal(size=(5, 4, 3)), rng.integers(0, 4, (5, 6))
    g = rng.normal(size=(5, 6, 3))
    for op, sample in (
        (rows_of_groups, Sample((x, at), expect=_taken)),
        (add_to_rows_of_groups, Sample((g, at), {"count": 4}, expect=_added)),
    ):
        check_mesh(op, sample, mesh)
        check_rule(op, sample, mesh)


def test_a_device_holds_the_arrays_of_its_own_experts_alone() -> None:
    mesh = gdt.create_mesh({"expert": 4}, device_type="abstract")
    layouts = nn.layout_maps.transformer(mesh, model=None, expert="expert")
    with gdt.default_mesh(mesh), layouts.scope():
        layer = nn.MoE(EXPERTS, 1024, size=64, use_bias=False)
    before = DEVICE.now
    weights = layer.up_weight, layer.down_weight
    made = sum(block.nbytes for w in weights for block in w.blocks)
    gc.collect()
    assert made == 2 * 4 * 64 * 1024 and abs(DEVICE.now - before - made) < 0.01 * made
