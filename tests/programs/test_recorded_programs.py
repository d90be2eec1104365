"""Random steps, recorded and as written: whatever they view, assign, swap, update and return, and
whatever happens to their state between the calls, both give the same bits."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.array.array import DistributedArray
from tests.replays import same
from tests.strict import engine

engine.register()
MESHES = [
    gdt.create_mesh([("x", 2), ("y", 2)], device_type="CPU"),
    gdt.create_mesh([("x", 2), ("y", 2)], device_type="CPU", blocks=4),
    # Of simulated GPUs, where a step becomes CUDA graphs.
    engine.mesh({"x": 2, "y": 2}),
    engine.mesh({"x": 2, "y": 2}, 4),
]
SPLITS: list[list[str | None]] = [[None, None], ["x", None], [None, "y"]]
STATE = ("p", "q", "r")
CALLS = 7
SEEDS = 60  # of which each draws a mesh, layouts, sizes, statements and events

UNARY: dict[str, Callable[[DistributedArray], DistributedArray]] = {
    "itself": lambda w: w,
    "transposed twice": lambda w: w.mT.mT,
    "reshaped twice": lambda w: gdt.reshape(gdt.reshape(w, (-1,)), w.shape),
    "flip": lambda w: gdt.flip(w, axis=0),
    "slice": lambda w: gdt.pad(w, ((1, 1), (0, 0)))[1:-1],
    "broadcast": lambda w: gdt.broadcast_to(w[None], (1, *w.shape))[0],
    "joined": lambda w: gdt.concat([w[:2], w[2:]], axis=0),
    "half of a split": lambda w: gdt.split(gdt.concat([w, w], axis=1), 2, axis=1)[0],
    "moved": lambda w: gdt.relayout(w, gdt.Layout(["x", None], w.mesh)),
    "gathered": lambda w: gdt.relayout(w, gdt.Layout([None, None], w.mesh)),
    "halved": lambda w: w * 0.5,
    "stopped": gdt.stop_gradient,
    "copied": lambda w: w.copy(),
}
BINARY: dict[str, Callable[[Any, Any], DistributedArray]] = {
    "add": gdt.add, "minimum": gdt.minimum, "where": lambda a, b: gdt.where(a > b, a, b),
}  # fmt: skip
OPTIMIZERS = [
    lambda: gdt.optim.SGD(0.1),
    lambda: gdt.optim.SGD(0.1, momentum=0.9),
    lambda: gdt.optim.Adam(0.1),
]

KINDS = ["unary", "unary", "unary", "update", "update", "binary", "assign", "swap"]
EVENTS = ["", "", "", "keep", "keep a view", "put a view", "keep results"]
Statement = tuple[str, str, str, str]  # kind, operation, and names of two operands


def random_step(rng: random.Random) -> tuple[list[Statement], list[str]]:
    """Statements, of which number i makes `i` or changes the state; and names that are returned."""
    statements: list[Statement] = []
    names = [*STATE]
    for i in range(rng.randint(2, 8)):
        kind = rng.choice(KINDS)
        operations = {"unary": UNARY, "binary": BINARY}.get(kind, {"": None})
        one = rng.choice(names if kind in ("unary", "binary") else STATE)
        other = rng.choice(STATE if kind == "swap" else names)
        statements.append((kind, rng.choice([*operations]), one, other))
        if kind in ("unary", "binary"):
            names.append(str(i))
    return statements, rng.sample(names, rng.randint(1, 3))


def run(
    statements: list[Statement], state: dict[str, Any], optimizer: gdt.optim.Optimizer
) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for i, (kind, operation, one, other) in enumerate(statements):
        value = {**state, **results}
        if kind == "unary":
            results[str(i)] = UNARY[operation](value[one])
        elif kind == "binary":
            results[str(i)] = BINARY[operation](value[one], value[other])
        elif kind == "assign":
            state[one] = value[other] + 0.0  # an array of its own, as optimizers want
        elif kind == "swap":
            state[one], state[other] = state[other], state[one]
        else:
            optimizer.update(state, dict.fromkeys(state, value[other] * 0.01))
    return {**state, **results}


@pytest.mark.parametrize(
    "seed",
    [*range(SEEDS), *(pytest.param(n, marks=pytest.mark.layouts_full) for n in range(SEEDS, 120))],
)
def test_a_random_step_is_bitwise_the_same(seed: int) -> None:
    rng = random.Random(seed)
    statements, returned = random_step(rng)
    mesh, splits = rng.choice(MESHES), [rng.choice(SPLITS) for _ in STATE]
    rows, size = rng.choice([(8, 3), (8, 2048), (9, 2049)])
    new_optimizer = rng.choice(OPTIMIZERS)
    events = [rng.choice(EVENTS) for _ in range(CALLS)]

    def history(wrapped: Callable[[Any], Any]) -> list[Any]:
        values = (np.arange(float(rows * size)) % 13).reshape(rows, size)
        state = {
            name: gdt.asarray(values + i, layout=gdt.Layout(splits[i], mesh))
            for i, name in enumerate(STATE)
        }
        optimizer = new_optimizer()

        def step() -> list[DistributedArray]:
            values = run(statements, state, optimizer)
            return [values[name] for name in returned]

        step, copies, survivors = wrapped(step), list[Any](), list[Any]()
        for event in events:
            if event == "keep":
                survivors.append(state["p"])
            elif event == "keep a view":
                survivors.append(state["q"][1:])
            elif event == "put a view":
                state["r"] = state["r"][:, ::-1][:, ::-1]
            results = step()
            copies += [x.copy() for x in results]
            survivors += results if event == "keep results" else []
        return [*copies, *state.values(), *survivors]

    assert same(history(gdt.function), history(lambda step: step))


@pytest.mark.parametrize("spec", [["a", None], ["b", "a"]], ids=str)
def test_constants_are_not_moved_to_where_an_op_goes_another_way(spec) -> None:
    mesh = gdt.create_mesh([("a", 2), ("b", 2)])
    values = np.random.default_rng(0).normal(size=(8, 4))
    x = gdt.asarray(values, layout=gdt.Layout(spec, mesh))
    places = lambda x: gdt.arange(8, layout=gdt.Layout([None], x.mesh)) * 3 % 5
    rows = lambda x: gdt.sum(gdt.tanh(gdt.take(x, places(x), axis=0)))
    second = gdt.grad(lambda x: gdt.sum(gdt.grad(rows)(x) ** 2))
    recorded, expected = gdt.function(second), second(x).numpy()
    for _ in range(4):
        np.testing.assert_array_equal(recorded(x), expected)
