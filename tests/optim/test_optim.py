"""Optimizers give the published values in every layout, and never write what others refer to."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import UNSHARDED, Layout, create_mesh
from gdt.errors import ArgumentError, ShapeError
from gdt.optim import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Lion,
    MovingAverage,
    Optimizer,
    ParameterGroups,
    RMSprop,
)
from gdt.optim.adam import adam_step

LAYOUTS = [[UNSHARDED, UNSHARDED], ["a", UNSHARDED], ["b", "a"], [("a", "b"), UNSHARDED]]
Naive = Callable[[np.ndarray, np.ndarray], np.ndarray]


def sgd(rate: float, momentum: float = 0.0, nesterov: bool = False) -> Naive:
    def train(w: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        v = np.zeros_like(w)
        for g in gradients:
            v = momentum * v - rate * g
            w = w + (momentum * v - rate * g if nesterov else v)
        return w

    return train


def adam(
    rate: Callable[[int], float],
    decay: float = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-7,
) -> Naive:
    """Kingma and Ba 2015, algorithm 1, line by line."""

    def train(w: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        m, v = np.zeros_like(w), np.zeros_like(w)
        for t, g in enumerate(gradients, start=1):
            w = w * (1 - rate(t - 1) * decay)
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g**2
            m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
            w = w - rate(t - 1) * m_hat / (np.sqrt(v_hat) + epsilon)
        return w

    return train


def rmsprop(rate: float, momentum: float = 0.0, rho: float = 0.9, epsilon: float = 1e-7) -> Naive:
    """Keras' formula: epsilon stands under the root."""

    def train(w: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        v, m = np.zeros_like(w), np.zeros_like(w)
        for g in gradients:
            v = rho * v + (1 - rho) * g**2
            m = momentum * m + rate * g / np.sqrt(v + epsilon)
            w = w - m
        return w

    return train


def adagrad(rate: float, first: float = 0.1, epsilon: float = 1e-7) -> Naive:
    def train(w: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        a = np.full_like(w, first)
        for g in gradients:
            a = a + g**2
            w = w - rate * g / np.sqrt(a + epsilon)
        return w

    return train


def lion(rate: float, decay: float, beta1: float = 0.9, beta2: float = 0.99) -> Naive:
    """Chen et al. 2023, algorithm 2, line by line."""

    def train(w: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        m = np.zeros_like(w)
        for g in gradients:
            w = w - rate * (np.sign(beta1 * m + (1 - beta1) * g) + decay * w)
            m = beta2 * m + (1 - beta2) * g
        return w

    return train


OPTIMIZERS: dict[str, tuple[Callable[[], Optimizer], Naive]] = {
    "sgd": (lambda: SGD(0.1), sgd(0.1)),
    "momentum": (lambda: SGD(0.1, 0.9), sgd(0.1, 0.9)),
    "nesterov": (lambda: SGD(0.1, 0.9, nesterov=True), sgd(0.1, 0.9, nesterov=True)),
    "adam": (lambda: Adam(0.01), adam(lambda step: 0.01)),
    "adamw": (lambda: AdamW(0.01, 0.1), adam(lambda step: 0.01, decay=0.1)),
    "rmsprop": (lambda: RMSprop(0.01), rmsprop(0.01)),
    "rmsprop with momentum": (lambda: RMSprop(0.01, momentum=0.9), rmsprop(0.01, 0.9)),
    "adagrad": (lambda: Adagrad(0.1), adagrad(0.1)),
    "lion": (lambda: Lion(0.01, weight_decay=0.1), lion(0.01, 0.1)),
    "groups": (lambda: ParameterGroups({"w": SGD(0.1)}, Adam()), sgd(0.1)),
    "average": (lambda: MovingAverage(Adam(0.01)), adam(lambda step: 0.01)),
    "schedule": (lambda: Adam(lambda step: 0.1 / (step + 1)), adam(lambda step: 0.1 / (step + 1))),
}


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("specs", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_values_are_the_published_formulas(
    name: str, specs: list, blocks: int, rng: np.random.Generator
) -> None:
    mesh = create_mesh([("a", 2), ("b", 2)], blocks=blocks)
    make, naive = OPTIMIZERS[name]
    optimizer, layout = make(), Layout(specs, mesh)
    start, gradients = rng.standard_normal((9, 5)), rng.standard_normal((12, 9, 5))
    parameters = {"w": gdt.asarray(start, layout=layout)}
    elsewhere = Layout([UNSHARDED, "b"], mesh)  # gradients come in another layout
    for g in gradients:
        optimizer.update(parameters, {"w": gdt.asarray(g, layout=elsewhere)})
    np.testing.assert_allclose(parameters["w"].numpy(), naive(start, gradients), rtol=1e-12)
    assert parameters["w"].layout is layout
    assert all(kept["w"].layout is layout for kept in optimizer.state.values())
    assert optimizer.steps == 12


OF_OTHER_NUMBERS: list[tuple[Optimizer, Naive]] = [
    (SGD(0.3, 0.6), sgd(0.3, 0.6)),
    (SGD(0.3, 1.0), sgd(0.3, 1.0)),
    (SGD(0.3, 0.6, nesterov=True), sgd(0.3, 0.6, nesterov=True)),
    (Adam(0.3, 0.5, 0.7, 0.2), adam(lambda step: 0.3, 0.0, 0.5, 0.7, 0.2)),
    (Adam(0.3, 0.0, 0.0, 0.2), adam(lambda step: 0.3, 0.0, 0.0, 0.0, 0.2)),
    (AdamW(0.3, 0.2, 0.5, 0.7, 0.2), adam(lambda step: 0.3, 0.2, 0.5, 0.7, 0.2)),
    (AdamW(lambda n: 1 / (n + 3)), adam(lambda n: 1 / (n + 3), 0.004)),
    (RMSprop(0.3, 0.6, epsilon=0.2), rmsprop(0.3, 0.0, 0.6, 0.2)),
    (RMSprop(0.3, 0.6, 0.7, 0.2), rmsprop(0.3, 0.7, 0.6, 0.2)),
    (Adagrad(0.3, 0.5, 0.2), adagrad(0.3, 0.5, 0.2)),
    (Adagrad(0.3, 0.0, 1e-3), adagrad(0.3, 0.0, 1e-3)),
    (Lion(0.3, 0.5, 0.7, 0.2), lion(0.3, 0.2, 0.5, 0.7)),
    (Lion(0.3, 0.8, 0.4), lion(0.3, 0.0, 0.8, 0.4)),
    (MovingAverage(RMSprop(0.3, 0.6, 0.7, 0.2), 0.5), rmsprop(0.3, 0.7, 0.6, 0.2)),
    *[(make(), naive) for make, naive in (
        (SGD, sgd(0.01)), (Adam, adam(lambda step: 0.001)), (RMSprop, rmsprop(0.001)),
        (AdamW, adam(lambda step: 0.001, 0.004)), (Adagrad, adagrad(0.001)),
        (Lion, lion(0.001, 0.0)),
    )],
]  # fmt: skip


@pytest.mark.parametrize(("optimizer", "naive"), OF_OTHER_NUMBERS, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("size", [5, 9000])  # as one piece of memory, and with its order found
def test_every_hyperparameter_has_its_place_in_the_formula(
    optimizer: Optimizer, naive: Naive, size: int, rng: np.random.Generator
) -> None:
    """Also a second time: `init` lets the state begin anew."""
    start, gradients = rng.standard_normal(size), rng.standard_normal((6, size))
    for g in gradients:
        g[rng.random(size) < 0.2] = 0.0
    for _ in range(2):
        parameters = {"w": gdt.asarray(start)}
        optimizer.init(parameters)
        for g in gradients:
            optimizer.update(parameters, {"w": gdt.asarray(g)})
        np.testing.assert_allclose(parameters["w"].numpy(), naive(start, gradients), rtol=1e-10)
        assert optimizer.steps == 6


def test_adams_first_step_has_the_length_of_the_learning_rate() -> None:
    parameters = {"w": gdt.asarray([1.0, 1.0, 1.0])}
    Adam(0.01, epsilon=0.0).update(parameters, {"w": gdt.asarray([1e-6, -3.0, 1e6])})
    np.testing.assert_allclose(parameters["w"].numpy(), [0.99, 1.01, 0.99], rtol=1e-12)


def test_bias_correction_is_computed_in_double_precision() -> None:
    """In float32, 1 - beta2**t would shift the first steps by a part in a thousand."""
    parameters = {"w": gdt.zeros((1,), "float32")}
    optimizer = Adam(1.0)
    optimizer.update(parameters, {"w": gdt.ones((1,), "float32")})
    assert abs(parameters["w"].item() + 1) < 1e-6


@pytest.mark.parametrize("make", [m for m, _ in OPTIMIZERS.values()], ids=list(OPTIMIZERS))
def test_an_array_that_another_name_refers_to_keeps_its_values(
    make: Callable[[], Optimizer],
) -> None:
    for mesh in (create_mesh([("a", 4)]), create_mesh([("a", 4)], blocks=4)):
        layout = Layout(["a", UNSHARDED], mesh)
        parameters = {"w": gdt.ones((8, 3), layout=layout)}
        optimizer, gradient = make(), {"w": gdt.ones((8, 3), layout=layout)}
        optimizer.update(parameters, gradient)
        old, view, shard = parameters["w"], parameters["w"].numpy(), parameters["w"].shards[0].data
        states = [kept["w"] for kept in optimizer.state.values()]
        values = [x.numpy().copy() for x in (old, *states)]
        optimizer.update(parameters, gradient)
        for x, value in zip((old, *states), values, strict=True):
            np.testing.assert_array_equal(x.numpy(), value)
        np.testing.assert_array_equal(view, values[0])
        np.testing.assert_array_equal(shard, values[0][:2])
        assert (parameters["w"].numpy() != values[0]).all()
        assert (gradient["w"].numpy() == 1).all()


def test_a_parameter_that_nobody_else_refers_to_is_updated_in_place() -> None:
    mesh = create_mesh([("a", 8)])
    parameters = {"w": gdt.zeros((300, 200), "float32", layout=Layout.replicated(mesh, 2))}
    gradient = {"w": gdt.ones((300, 200), "float32", layout=Layout.replicated(mesh, 2))}
    optimizer = Adam()
    optimizer.update(parameters, gradient)
    homes = []
    for _ in range(5):
        optimizer.update(parameters, gradient)
        kept = [parameters["w"], *(s["w"] for s in optimizer.state.values())]
        homes.append([x.blocks[0].ctypes.data for x in kept])
        del kept
    assert homes == [homes[0]] * 5


def test_an_array_shared_by_two_parameters_stays_two_values() -> None:
    shared = gdt.ones((3,))
    parameters = {"a": shared, "b": shared}
    del shared
    SGD(1.0).update(
        parameters, {"a": gdt.asarray([1.0, 1.0, 1.0]), "b": gdt.asarray([2.0, 2.0, 2.0])}
    )
    assert parameters["a"].tolist() == [0, 0, 0] and parameters["b"].tolist() == [-1, -1, -1]


def test_long_blocks_are_updated_in_runs(rng: np.random.Generator) -> None:
    start, g = rng.standard_normal((2, 200_001))
    for make, naive in OPTIMIZERS.values():
        parameters = {"w": gdt.asarray(start)}
        make().update(parameters, {"w": gdt.asarray(g)})
        np.testing.assert_allclose(
            parameters["w"].numpy(), naive(start, g[None]), rtol=1e-12, atol=1e-15
        )


def test_blocks_that_are_not_contiguous_are_updated(rng: np.random.Generator) -> None:
    start, g = rng.standard_normal((2, 6, 4))
    parameters = {"w": gdt.asarray(start.T.copy()).T}
    Adam(0.01).update(parameters, {"w": gdt.asarray(g)})
    expected = adam(lambda step: 0.01)(start, g[None])
    np.testing.assert_allclose(parameters["w"].numpy(), expected, rtol=1e-12)


def test_a_new_learning_rate_needs_no_new_plan() -> None:
    parameters, gradient = {"w": gdt.ones((4,))}, {"w": gdt.ones((4,))}
    optimizer = Adam()
    optimizer.update(parameters, gradient)
    plans = len(adam_step.plans)
    for _ in range(3):
        optimizer.learning_rate = optimizer.learning_rate / 2  # type: ignore[operator]
        optimizer.update(parameters, gradient)
    assert len(adam_step.plans) == plans


def test_gradients_that_do_not_fit_are_listed_and_change_nothing() -> None:
    parameters = {"w": gdt.ones((2, 3)), "b": gdt.ones((3,))}
    with pytest.raises(ShapeError) as caught:
        SGD().update(parameters, {"w": gdt.ones((3, 2)), "c": gdt.ones((3,))})
    text = str(caught.value)
    assert text.startswith("SGD.update: gradients do not fit the parameters")
    assert "b: no gradient" in text and "c: a gradient of no parameter" in text
    assert "float64[2, 3]" in text and "float64[3, 2]" in text
    assert (parameters["w"].numpy() == 1).all()


def test_gradients_miss_none_of_the_parameters_whose_state_is_split() -> None:
    mesh = create_mesh([("data", 4)])
    layouts = gdt.nn.LayoutMap(mesh)
    layouts["layers.0.weight"] = gdt.nn.Sharded(state="data")
    model = layouts.apply(gdt.nn.Sequential(gdt.nn.Dense(8, 4, key=1)))
    before = model.parameters()
    gradients = {n: gdt.ones(x.shape, x.dtype, layout=x.layout) for n, x in before.items()}
    del gradients["layers.0.weight"]
    with pytest.raises(ShapeError, match=r"layers\.0\.weight: no gradient"):
        SGD(0.1).update(model, gradients)
    assert all(x is before[n] for n, x in model.parameters().items())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_of_a_new_shape_changes_nothing(name: str) -> None:
    optimizer = OPTIMIZERS[name][0]()
    parameters = {"v": gdt.ones((2,)), "w": gdt.ones((2,))}
    optimizer.update(parameters, {"v": gdt.ones((2,)), "w": gdt.ones((2,))})
    parameters["w"] = gdt.ones((3,))
    gradients = {"v": gdt.ones((2,)), "w": gdt.ones((3,))}
    before = dict(parameters)
    if optimizer.state:
        problem = r"(?s)update: .*\n  w: float64\[3\].*float64\[2\].*optimizer\.init\(parameters\)"
        with pytest.raises(ShapeError, match=problem):
            optimizer.update(parameters, gradients)
        assert optimizer.steps == 1 and all(parameters[n] is x for n, x in before.items())
        optimizer.init(parameters)
    optimizer.update(parameters, gradients)
    assert all((parameters[n].numpy() < x.numpy()).all() for n, x in before.items())


def test_state_follows_its_parameter_to_another_dtype() -> None:
    parameters, optimizer = {"w": gdt.ones((2,), "float32")}, Adam(0.1)
    optimizer.update(parameters, {"w": gdt.ones((2,), "float32")})
    parameters["w"] = parameters["w"].astype("float64")
    optimizer.update(parameters, {"w": gdt.ones((2,))})
    assert {x["w"].dtype.name for x in optimizer.state.values()} == {"float64"}
    np.testing.assert_allclose(parameters["w"].numpy(), 0.8, rtol=1e-5)


@pytest.mark.parametrize(
    "momenta", [(0.9, 0.0, 0.5), (0.0, 0.9, 0.9)], ids=lambda x: type(x).__name__
)
def test_momentum_may_change_between_steps(momenta: tuple[float, ...]) -> None:
    optimizer, parameters = SGD(0.1, momenta[0]), {"w": gdt.ones(())}
    w, v = 1.0, 0.0
    for i, momentum in enumerate(momenta):
        optimizer.momentum = momentum
        optimizer.update(parameters, {"w": gdt.asarray(2.0)})
        v = momentum * v - 0.1 * 2.0
        w += v
        if not any(momenta[: i + 1]):
            v = 0.0  # plain steps keep no velocity
        assert parameters["w"].item() == pytest.approx(w)


@pytest.mark.parametrize(
    "rate",
    [
        0.1,
        gdt.optim.exponential_decay(0.1, 10, 0.5, staircase=True),
        gdt.optim.cosine_decay(0.1, 10),
        gdt.optim.piecewise_constant([2], [0.1, 0.01]),
        gdt.optim.with_warmup(gdt.optim.cosine_decay(0.1, 10), 3),
    ],
    ids=str,
)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_optimizers_and_schedules_are_copied_and_pickled(rate: Any, copied: Any) -> None:
    one, parameters = SGD(rate, 0.9), {"w": gdt.ones((2,))}
    one.update(parameters, {"w": gdt.ones((2,))})
    other, others = copied(one), copied(parameters)
    for _ in range(3):
        one.update(parameters, {"w": gdt.ones((2,))})
    assert other.steps == 1 and (other.state["velocity"]["w"].numpy() > -0.2).all()
    for _ in range(3):
        other.update(others, {"w": gdt.ones((2,))})
    assert others["w"].tolist() == parameters["w"].tolist()


def test_repr_of_an_optimizer() -> None:
    schedule = gdt.optim.cosine_decay(0.1, decay_steps=10)
    assert repr(SGD(schedule, 0.9)) == (
        "SGD(learning_rate=CosineDecay(initial=0.1, decay_steps=10, final=0.0), momentum=0.9, "
        "nesterov=False) after 0 steps"
    )


def test_none_leaves_its_parameter_as_it_is() -> None:
    parameters = {"w": gdt.ones((2,)), "b": gdt.ones((2,))}
    SGD(1.0).update(parameters, {"w": gdt.ones((2,)), "b": None})
    assert parameters["w"].tolist() == [0, 0] and parameters["b"].tolist() == [1, 1]


def test_nested_parameters_and_lists() -> None:
    parameters = {"layers": [{"w": gdt.ones((2,))}, {"w": gdt.ones((2,))}], "scale": [gdt.ones(())]}
    f = lambda p: gdt.sum(p["layers"][0]["w"] * p["layers"][1]["w"]) * p["scale"][0]
    optimizer = SGD(0.5)
    optimizer.update(parameters, gdt.grad(f)(parameters))
    assert parameters["layers"][0]["w"].tolist() == [0.5, 0.5]
    assert parameters["scale"][0].item() == 0.0


def test_state_follows_its_parameter_to_another_mesh(rng: np.random.Generator) -> None:
    start, gradients = rng.standard_normal((8, 4)), rng.standard_normal((4, 8, 4))
    parameters = {"w": gdt.asarray(start, layout=Layout(["a", None], create_mesh([("a", 2)])))}
    optimizer = Adam(0.01)
    for i, g in enumerate(gradients):
        if i == 2:
            there = Layout([None, "b"], create_mesh([("b", 4)]))
            parameters["w"] = gdt.relayout(parameters["w"], there)
        optimizer.update(parameters, {"w": gdt.asarray(g, layout=parameters["w"].layout)})
    expected = adam(lambda step: 0.01)(start, gradients)
    np.testing.assert_allclose(parameters["w"].numpy(), expected, rtol=1e-12)


def warmed(rate: Callable[[int], float], rise: int) -> Callable[[int], float]:
    return lambda n: rate(0) * (n + 1) / rise if n < rise else rate(n - rise)


@pytest.mark.parametrize(
    ("schedule", "formula"),
    [
        (gdt.optim.exponential_decay(0.3, 7, 0.5), lambda n: 0.3 * 0.5 ** (n / 7)),
        (gdt.optim.exponential_decay(3, 7, 2.0, staircase=True), lambda n: 3 * 2.0 ** (n // 7)),
        (
            gdt.optim.cosine_decay(0.3, 7, 0.1),
            lambda n: 0.2 + 0.1 * math.cos(math.pi * min(n, 7) / 7),
        ),
        (gdt.optim.linear_decay(0.3, 7, 0.1), lambda n: 0.3 - 0.2 * min(n, 7) / 7),
        (gdt.optim.linear_decay(0.1, 7, 0.3), lambda n: 0.1 + 0.2 * min(n, 7) / 7),
        (
            gdt.optim.piecewise_constant([3, 5, 5], [0.4, 0.3, 0.2, 0.1]),
            lambda n: 0.4 if n < 3 else 0.3 if n < 5 else 0.1,
        ),
        (gdt.optim.with_warmup(0.3, 1), lambda n: 0.3),
        (gdt.optim.with_warmup(0.3, 4), warmed(lambda n: 0.3, 4)),
        (
            gdt.optim.with_warmup(gdt.optim.linear_decay(0.3, 7), 4),
            warmed(lambda n: 0.3 - 0.3 * min(n, 7) / 7, 4),
        ),
        (
            gdt.optim.with_warmup(gdt.optim.piecewise_constant([0, 2], [9.0, 1.0, 0.1]), 3),
            warmed(lambda n: 1.0 if n < 2 else 0.1, 3),
        ),
    ],
    ids=lambda x: type(x).__name__,
)
def test_schedules_are_their_formulas_in_every_step(schedule: Any, formula: Any) -> None:
    rates = [schedule(n) for n in range(20)]
    np.testing.assert_allclose(rates, [formula(n) for n in range(20)], rtol=1e-12, atol=1e-17)
    assert all(type(rate) is float for rate in rates)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(-1.0),
        lambda: SGD(float("nan")),
        lambda: SGD(0.1, nesterov=True),
        lambda: Adam(beta1=1.0),
        lambda: AdamW(weight_decay=-1.0),
        lambda: gdt.optim.piecewise_constant([1], [0.1]),
        lambda: gdt.optim.cosine_decay(1.0, 0),
        lambda: gdt.optim.schedules.ExponentialDecay(1.0, -3, 0.5),
        lambda: gdt.optim.schedules.LinearDecay(1.0, 0),
        lambda: gdt.optim.schedules.Warmup(1.0, 0),
        lambda: gdt.optim.schedules.PiecewiseConstant((2, 1), (0.1, 0.2, 0.3)),
    ],
)
def test_hyperparameters_are_checked(make: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError):
        make()


def test_clipping_by_the_common_norm() -> None:
    gradients = {"a": gdt.asarray([3.0]), "b": gdt.asarray([[4.0]])}
    clipped, norm = gdt.optim.clip_by_global_norm(gradients, 2.5)
    assert norm.item() == 5.0
    assert clipped["a"].tolist() == [1.5] and clipped["b"].tolist() == [[2.0]]
    same, _ = gdt.optim.clip_by_global_norm(gradients, 10.0)
    assert same["a"].tolist() == [3.0]
    clipped, norm = gdt.optim.clip_by_global_norm({"a": gdt.asarray([3.0, 4.0]), "b": None}, 1.0)
    assert clipped["b"] is None and np.allclose(clipped["a"].numpy(), [0.6, 0.8])
    assert float(norm) == float(gdt.optim.global_norm([gdt.asarray([3.0, 4.0]), None])) == 5.0


@pytest.mark.parametrize(
    ("dtype", "value", "count"),
    [("float16", 300.0, 4), ("float16", 6e4, 9), ("float32", 1e25, 4), ("float32", 3e38, 4),
     ("float64", 1e200, 3), ("complex64", 1e25 - 1e25j, 4), ("float32", 1e-25, 4)],
)  # fmt: skip
@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # of a norm beyond range
def test_norms_whose_squares_are_out_of_range(
    dtype: str, value: complex, count: int, blocks: int
) -> None:
    mesh = create_mesh([("a", 4)], blocks=blocks)
    g = gdt.asarray(np.full(count, value, dtype), layout=Layout(["a"], mesh))
    exact = abs(value) * math.sqrt(count)
    limit = min(1.0, exact / 8)
    (clipped,), norm = gdt.optim.clip_by_global_norm([g], limit)
    want = np.full(count, value / exact * limit)
    bound = 2e-3 if dtype == "float16" else 1e-6
    np.testing.assert_allclose(clipped.numpy(), want, rtol=bound)
    assert clipped.dtype == g.dtype and norm.dtype.kind == "f"
    if exact < np.finfo(norm.dtype).max:
        assert norm.item() == pytest.approx(exact, rel=1e-3)


def test_limits_of_norms() -> None:
    zeros, some = [gdt.zeros(3)], [gdt.asarray([3.0, 4.0])]
    assert gdt.optim.clip_by_global_norm(zeros, 0.0)[0][0].tolist() == [0.0, 0.0, 0.0]
    assert gdt.optim.clip_by_global_norm(some, 0.0)[0][0].tolist() == [0.0, 0.0]
    whole = [gdt.asarray([3, 4])]
    assert gdt.optim.clip_by_global_norm(whole, 2.5)[0][0].tolist() == [1.5, 2.0]
    assert gdt.optim.clip_by_global_norm(some, math.inf)[0][0].tolist() == [3.0, 4.0]
    assert gdt.optim.global_norm([gdt.zeros((0, 2))]).item() == 0.0
    assert gdt.optim.global_norm([gdt.asarray([1.0, math.inf])]).item() == math.inf
    for limit in (-1.0, math.nan, "1"):
        with pytest.raises(ArgumentError, match="max_norm is"):
            gdt.optim.clip_by_global_norm(some, limit)  # type: ignore[arg-type]


COMPLEX = [SGD(0.1), SGD(0.05, 0.5), SGD(0.05, 0.5, nesterov=True), Adam(0.1), AdamW(0.1, 0.01)]


@pytest.mark.parametrize("optimizer", COMPLEX, ids=lambda o: type(o).__name__)
def test_complex_parameters_descend(optimizer: Optimizer) -> None:
    wanted = gdt.asarray([1 + 2j, -3j])
    parameters = {"z": gdt.zeros(2, complex)}
    for _ in range(200):
        gradient = gdt.grad(lambda p: gdt.sum(abs(p["z"] - wanted) ** 2))(parameters)
        optimizer.update(parameters, gradient)
    np.testing.assert_allclose(parameters["z"].numpy(), wanted.numpy(), atol=0.05)


def test_adam_takes_the_modulus_of_complex_gradients() -> None:
    """The first step is as long as the learning rate, in any direction."""
    parameters = {"z": gdt.zeros(2, complex)}
    Adam(0.1).update(parameters, {"z": gdt.asarray([3 + 4j, -2j])})
    np.testing.assert_allclose(parameters["z"].numpy(), [-0.06 + 0.08j, -0.1j], rtol=1e-6)


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(ArgumentError, match="reshape: argument 'shape' is missing"):
        gdt.reshape(gdt.zeros(3))


def test_a_complex_gradient_of_a_real_weight_is_refused() -> None:
    weights = {"w": gdt.ones(2)}
    with pytest.raises(ShapeError, match=r"w: parameter float64\[2\].* is real.*complex128"):
        gdt.optim.SGD(0.1).update(weights, {"w": gdt.ones(2, "complex128")})
    assert weights["w"].tolist() == [1.0, 1.0]


def test_groups_take_the_first_pattern_that_matches(rng: np.random.Generator) -> None:
    model = gdt.nn.Sequential(gdt.nn.Dense(3, 4, key=1), gdt.nn.BatchNorm(4))
    optimizer = ParameterGroups(
        {r".*bias": SGD(0.1), r"layers\.1": SGD(1.0)}, default=AdamW(0.1, 0.5)
    )
    before = {n: x.numpy().copy() for n, x in model.parameters().items()}
    gradients = {n: gdt.ones_like(x) for n, x in model.parameters().items()}
    optimizer.update(model, gradients)
    change = {n: x.numpy() - before[n] for n, x in model.parameters().items()}
    np.testing.assert_allclose(change["layers.0.bias"], -0.1)
    np.testing.assert_allclose(
        change["layers.0.weight"], -0.1 - 0.05 * before["layers.0.weight"], rtol=1e-4
    )
    others = [n for n in change if n.startswith("layers.1") and not n.endswith("bias")]
    assert others and all((change[n] == -1).all() for n in others)
    optimizer.learning_rate = 0.2
    rates = [o.learning_rate for o in (*optimizer.groups.values(), optimizer.default)]
    assert optimizer.steps == 1 and rates == [0.2, 1.0, 0.2]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: ParameterGroups({"(": SGD()}, SGD()), "no pattern"),
        (lambda: ParameterGroups({"a": (o := SGD())}, o), "serves two groups"),
        (lambda: ParameterGroups({"v": SGD()}, SGD()).init({"w": gdt.ones(2)}), "parameters are w"),
        (lambda: MovingAverage(SGD(), 1.0), "momentum is 1.0"),
        (lambda: MovingAverage(SGD()).averaged({"w": gdt.ones(2)}).__enter__(), "no average yet"),
        (
            lambda: MovingAverage(SGD()).init(p := {"w": gdt.ones(2)}).averaged(p).__enter__(),
            "no average yet of any parameter",
        ),
    ],
)
def test_wrappers_of_optimizers_say_what_does_not_fit(make: Any, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        make()


def test_averages_are_those_of_the_formula_and_leave_the_weights(rng: np.random.Generator) -> None:
    mesh = create_mesh([("a", 4)], blocks=4)
    parameters = {"w": gdt.zeros((7,), layout=Layout(["a"], mesh))}
    optimizer, average = MovingAverage(SGD(1.0), 0.75), 0.0
    step = gdt.function(lambda g: optimizer.update(parameters, {"w": g}))
    for number, g in enumerate(rng.standard_normal((6, 7))):
        step(gdt.asarray(g, layout=Layout(["a"], mesh)))
        weights = parameters["w"].numpy()
        average = 0.75 * average + 0.25 * weights if number else weights
        with optimizer.averaged(parameters):
            np.testing.assert_allclose(parameters["w"].numpy(), average, rtol=1e-12)
        np.testing.assert_array_equal(parameters["w"].numpy(), weights)


def test_the_first_average_of_a_parameter_that_is_trained_later_is_the_parameter() -> None:
    model = gdt.nn.Sequential(gdt.nn.Dense(1, 1, key=0), gdt.nn.Dense(1, 1, key=1))
    model[0].freeze()
    optimizer = gdt.optim.MovingAverage(gdt.optim.SGD(0.0), momentum=0.9)
    for step in range(4):
        model[0].freeze(step < 2)
        optimizer.update(model, {n: gdt.zeros_like(x) for n, x in model.parameters().items()})
    for name, average in optimizer.state["average"].items():
        np.testing.assert_allclose(average.numpy(), model.parameters()[name].numpy(), rtol=1e-6)


def test_groups_and_averages_are_saved_and_go_on(tmp_path: Any) -> None:
    def trained(steps: int, path: Any = None) -> Any:
        parameters = {"w": gdt.ones((2,)), "b": gdt.ones((2,))}
        optimizer = MovingAverage(ParameterGroups({"b": SGD(0.1, 0.9)}, Adam(0.1)))
        optimizer.init(parameters)
        tree = {"parameters": parameters, "optimizer": optimizer}
        if path is not None:
            gdt.checkpoint.restore(path, tree)
        for _ in range(steps):
            optimizer.update(parameters, {n: x * 2 for n, x in parameters.items()})
        return tree

    path = gdt.checkpoint.save(tmp_path / "a.safetensors", trained(2))
    one, other = trained(5), trained(3, path)
    for name, value in one["parameters"].items():
        np.testing.assert_array_equal(value.numpy(), other["parameters"][name].numpy())
        averages = [t["optimizer"].state["average"][name].numpy() for t in (one, other)]
        np.testing.assert_array_equal(*averages)


def test_a_model_in_the_place_of_gradients_is_an_error() -> None:
    model, optimizer = gdt.nn.Dense(3, 2), gdt.optim.Adam(0.1)
    _, gradients = gdt.value_and_grad(lambda model: gdt.sum(model(gdt.ones((2, 3)))))(model)
    with pytest.raises(ArgumentError, match=r"a Dense, which has parameters"):
        optimizer.update(gradients, model)
    assert optimizer.steps == 0


class Signum(Optimizer):
    """An optimizer of a program's own: steps along the sign of a corrected momentum."""

    state_names = ("m",)

    def __init__(self, learning_rate: Any = 0.01, beta: float = 0.75) -> None:
        super().__init__(learning_rate)
        self.beta = beta

    def scalars(self, rate: float) -> tuple[float, ...]:
        return rate, 1 - self.beta**self.steps

    def apply(self, gradient: Any, parameter: Any, state: Any, rate: Any, correction: Any) -> Any:
        state["m"] = self.beta * state["m"] + (1 - self.beta) * gradient
        mean = state["m"] / correction
        return parameter - rate * (gdt.sign(mean) + mean / (1 + gdt.max(abs(mean))) * rate)


def signum(rates: Any, w: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    m = np.zeros_like(w)
    for t, g in enumerate(gradients):
        m = 0.75 * m + 0.25 * g
        mean, rate = m / (1 - 0.75 ** (t + 1)), rates(t)
        w = w - rate * (np.sign(mean) + mean / (1 + np.abs(mean).max()) * rate)
    return w


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("specs", LAYOUTS, ids=str)
def test_a_formula_of_a_program_s_own_is_an_optimizer(
    specs: list, blocks: int, recorded: bool, rng: np.random.Generator
) -> None:
    """Also in recorded steps: the rate and the correction are other numbers in each."""
    mesh = create_mesh([("a", 2), ("b", 2)], blocks=blocks)
    rates, layout = gdt.optim.exponential_decay(0.1, 2, 0.5), Layout(specs, mesh)
    start, gradients = rng.standard_normal((9, 5)), rng.standard_normal((6, 9, 5))
    parameters, optimizer = {"w": gdt.asarray(start, layout=layout)}, Signum(rates)
    step = lambda g: optimizer.update(parameters, {"w": g})
    step = gdt.function(step) if recorded else step
    for g in gradients:
        step(gdt.asarray(g, layout=layout))
    np.testing.assert_allclose(parameters["w"].numpy(), signum(rates, start, gradients), rtol=1e-12)
    assert parameters["w"].layout is layout is optimizer.state["m"]["w"].layout


def test_a_formula_is_recorded_anew_for_other_numbers_of_its_own() -> None:
    histories = []
    for recorded in (False, True):
        parameters, optimizer = {"w": gdt.ones(3)}, Signum(0.1)
        step = lambda g, o=optimizer, p=parameters: o.update(p, {"w": g})
        step = gdt.function(step) if recorded else step
        for beta in (0.75, 0.75, 0.75, 0.5, 0.5):
            optimizer.beta = beta
            step(gdt.asarray([1.0, -1.0, beta - 0.7]))
        histories.append(parameters["w"].tolist())
    assert histories[0] == histories[1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_formulas_train_in_groups_averages_and_half_precision(dtype: str, tmp_path: Any) -> None:
    def trained(steps: int, path: Any = None) -> Any:
        parameters = {"w": gdt.ones((8,), dtype), "b": gdt.ones((8,), dtype)}
        groups = ParameterGroups({"b": RMSprop(0.1)}, Signum(0.125))
        optimizer = gdt.optim.LossScaling(MovingAverage(groups)).init(parameters)
        tree = {"parameters": parameters, "optimizer": optimizer}
        if path is not None:
            gdt.checkpoint.restore(path, tree)
        for _ in range(steps):
            gradients = {n: optimizer.scaled(x) * 0.5 for n, x in parameters.items()}
            optimizer.update(parameters, optimizer.unscaled(gradients))
        return tree

    path = gdt.checkpoint.save(tmp_path / "a.safetensors", trained(2))
    one, other = trained(4), trained(2, path)
    for name, x in one["parameters"].items():
        assert x.dtype == dtype and (x.numpy().astype("float64") < 0.9).all()
        np.testing.assert_array_equal(x.numpy(), other["parameters"][name].numpy())
    state = one["optimizer"].optimizer.optimizer.default.state["m"]["w"]
    assert state.dtype == ("float16" if dtype == "float16" else "float32")


@pytest.mark.parametrize(
    ("result", "state", "problem"),
    [
        (None, None, r"the parameter of w is float64\[3\].*, and the new one a NoneType"),
        (gdt.ones(()), None, r"the parameter of w is .*, and the new one float64\[\]"),
        (gdt.ones(3), {"m": 1.0}, r"the m of w is float64\[3\].*, and the new one a float"),
        (gdt.ones(3), {"v": gdt.ones(3)}, r"the v of w is not in \['m'\]"),
    ],
)
def test_formulas_that_make_other_arrays_are_refused(result: Any, state: Any, problem: str) -> None:
    class Wrong(Signum):
        def apply(self, gradient: Any, parameter: Any, states: Any, *scalars: Any) -> Any:
            states.update(state or {})
            return result

    parameters = {"w": gdt.zeros(3)}
    with pytest.raises(ShapeError, match=f"Wrong.apply: {problem}"):
        Wrong().update(parameters, {"w": gdt.ones(3)})
    assert parameters["w"].tolist() == [0.0] * 3


def test_a_warning_of_a_rule_is_given_once() -> None:
    parameters = {"w": gdt.asarray(np.ones(4, np.float16))}
    optimizer = gdt.optim.Adam(0.01, epsilon=1e-8)  # 0 in float16
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            optimizer.update(parameters, {"w": gdt.zeros(4, np.float16)})
    assert [str(w.message) for w in caught] == ["invalid value encountered in divide"]
