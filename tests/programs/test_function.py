"""gdt.function: replays are the step itself, bit for bit, whatever changes around it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import nn
from gdt.array.array import DistributedArray
from gdt.errors import FunctionError
from gdt.programs.function import Function, RerecordedWarning
from gdt.sharding.mesh import Mesh
from tests.covering import covered
from tests.replays import TwoCalls, any_values, same
from tests.samples import SAMPLES
from tests.some_samples import ON_SOME_SAMPLES, SamplesOf
from tests.strict import engine

engine.register()
FOLDED = gdt.create_mesh([("x", 2), ("y", 2)], device_type="CPU")
APART = gdt.create_mesh([("x", 2), ("y", 2)], device_type="CPU", blocks=4)
ON_BOTH = pytest.mark.parametrize("mesh", [FOLDED, APART], ids=["folded", "apart"])

STATE: dict[str, Any] = {"scale": gdt.asarray(1.0), "rate": 0.5}


# ---------------------------------------------------------------- every function


@ON_SOME_SAMPLES
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_replay_computes_with_the_values_at_hand(name: str, samples_of: SamplesOf) -> None:
    for n, sample in enumerate(samples_of(name)):
        mesh = (FOLDED, APART)[(n + len(name)) % 2]  # samples take turns
        calls = TwoCalls.of(name, sample, mesh, seed=f"{name} {mesh.grid} function")
        with any_values(), gdt.default_mesh(mesh):
            expected = calls.expected()
            if expected is None:
                continue
            step = gdt.function(calls.function, verify=1)
            try:
                step(*calls.first), step(*calls.first)
            except FunctionError as e:
                takes = name in ("digitize", "getitem", "update_at")
                taken = takes and "cannot take data from the host" in str(e)
                assert taken or "on the host" in str(e), e
                continue
            found = step(*calls.second)
        assert len(step.programs) == 1
        assert same(found, expected), (name, sample, calls.types())


# ---------------------------------------------------------------- trainings


class Network(nn.Module):
    def __init__(self, mesh: Mesh) -> None:
        layout = gdt.Layout([None, "y"], mesh)
        self.dense1 = nn.Dense(6, 8, weight_layout=layout)
        self.norm = nn.BatchNorm(8, gdt.Layout(["y"], mesh))
        self.dropout = nn.Dropout(0.25)
        self.dense2 = nn.Dense(8, 3, weight_layout=gdt.Layout(["y", None], mesh))

    def __call__(self, x: DistributedArray) -> DistributedArray:
        return self.dense2(self.dropout(self.norm(gdt.relu(self.dense1(x)))))


def training(
    mesh: Mesh, optimizer: gdt.optim.Optimizer, wrap: Callable[[Any], Any]
) -> tuple[Any, Network]:
    gdt.random.seed(3)
    network = Network(mesh)

    def loss(model: Network, x: Any, y: Any) -> Any:
        noise = 0.1 * gdt.random.normal(x.shape, dtype=np.float32, layout=x.layout)
        logits = model(x + noise)
        return nn.losses.sparse_softmax_cross_entropy(y, logits), gdt.relu(logits)

    value_and_grad = gdt.value_and_grad(loss, has_aux=True)

    def step(x: DistributedArray, y: DistributedArray) -> Any:
        (value, aux), gradients = value_and_grad(network, x, y)
        optimizer.update(network, gradients)
        return {"loss": value, "more": [aux, None]}

    return wrap(step), network


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "as written": lambda step: step,
    "recorded": gdt.function,
    "verified": gdt.function(verify=1),
}


OPTIMIZERS: dict[str, Callable[[], gdt.optim.Optimizer]] = {
    "sgd": lambda: gdt.optim.SGD(0.1),
    "nesterov": lambda: gdt.optim.SGD(0.1, 0.9, nesterov=True),
    "adam": lambda: gdt.optim.Adam(lambda step: 0.1 / (1 + step)),
    "adamw": lambda: gdt.optim.AdamW(0.01),
}


@ON_BOTH
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_is_bitwise_the_same(name: str, mesh: Mesh) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((7, 8, 6)).astype(np.float32)
    labels = rng.integers(0, 3, (7, 8))
    states = []
    for wrap in WRAPPERS.values():
        optimizer = OPTIMIZERS[name]()
        step, network = training(mesh, optimizer, wrap)
        losses = []
        for x, y in zip(inputs, labels, strict=True):
            out = step(
                gdt.asarray(x, layout=gdt.Layout(["x", None], mesh)),
                gdt.asarray(y, layout=gdt.Layout(["x"], mesh)),
            )
            losses.append(out["loss"].numpy())
            assert out["more"][1] is None
        if isinstance(step, Function):
            assert len(step.programs) == 1
        kept = [p.numpy() for p in network.parameters().values()]
        kept += [network.norm.moving_mean.numpy(), network.norm.moving_variance.numpy()]
        kept += [s.numpy() for kind in optimizer.state.values() for s in kind.values()]
        states.append((losses, kept, optimizer.steps, network.dropout.calls))
    for one, *others in zip(*states, strict=True):
        for other in others:
            if isinstance(one, list):
                assert all(map(np.array_equal, one, other))
            else:
                assert one == other


def test_a_replay_overwrites_the_parameters_and_nothing_that_somebody_kept() -> None:
    w = {"w": gdt.ones((64, 64))}
    optimizer = gdt.optim.Adam(0.1)

    @gdt.function
    def step(x: DistributedArray) -> DistributedArray:
        loss, gradient = gdt.value_and_grad(lambda p: gdt.sum(p["w"] @ x))(w)
        optimizer.update(w, gradient)
        return loss

    x = gdt.ones((64, 64))
    for _ in range(3):
        step(x)
    where = w["w"].blocks[0].ctypes.data
    step(x)
    assert w["w"].blocks[0].ctypes.data == where
    kept = w["w"]
    value = kept.numpy().copy()
    step(x)
    assert np.array_equal(kept.numpy(), value)
    assert not np.array_equal(w["w"].numpy(), value)


VIEWS: dict[str, Callable[[DistributedArray], DistributedArray]] = {
    "array": lambda w: w,
    "slice": lambda w: w[:, :2],
    "row": lambda w: w[0],
    "reshape": lambda w: gdt.reshape(w, (-1,)),
    "transpose": lambda w: w.mT,
    "flip": lambda w: gdt.flip(w, axis=1),
    "flip of rows": lambda w: gdt.flip(w, axis=0),
    "broadcast": lambda w: gdt.broadcast_to(w, (2, *w.shape)),
    "split": lambda w: gdt.split(w, 2, axis=1)[1],
    "relayout": lambda w: gdt.relayout(w, gdt.Layout([None, None], w.mesh)),
    "slice of a relayout": lambda w: gdt.relayout(w, gdt.Layout([None, None], w.mesh))[:, 1:],
    "two views": lambda w: gdt.expand_dims(w.mT, 0),
}


@covered(
    pytest.mark.layouts_full,
    name=[*VIEWS],
    size=[8, 4096],
    is_cut=[False, True],
    rows=[(8, None), (8, "x"), (7, "x")],
    mesh=[FOLDED, APART],
)
def test_a_view_of_a_parameter_does_not_change_in_its_update(
    name: str, size: int, is_cut: bool, rows: tuple[int, str | None], mesh: Mesh
) -> None:
    """cut: when the step is recorded, the parameter is a view itself, of which a reshaping is a
    copy; afterwards it is none."""

    def trained(wrapped: Callable[[Any], Any]) -> list[Any]:
        w = {}

        def put() -> None:
            number, split = rows
            values = np.arange(1.0, number * (size + is_cut) + 1).reshape(number, -1)
            w["w"] = gdt.asarray(values, layout=gdt.Layout([split, None], mesh))[:, :size]

        optimizer = gdt.optim.SGD(0.1, momentum=0.9)

        def step() -> tuple[DistributedArray, DistributedArray]:
            view = VIEWS[name](w["w"])
            gradient = gdt.grad(lambda p: gdt.sum(p["w"] ** 2))(w)
            optimizer.update(w, gradient)
            return view, gdt.sum(view * 2)

        step = wrapped(step)
        found = []
        for n in range(5):
            if n <= is_cut:
                put()
            found.append([x.copy() for x in step()])
        return found

    assert same(trained(gdt.function), trained(lambda step: step))


@pytest.mark.parametrize("columns", [8, 9], ids=["even", "uneven"])
@pytest.mark.parametrize("name", ["relayout", "slice of a relayout", "reshape", "flip", "slice"])
def test_a_gathered_parameter_does_not_change_in_its_update(name: str, columns: int) -> None:
    """When the step is recorded, the parameter lies in memory in the order of its axes, so that to
    gather it copies it; afterwards it lies so that what is gathered is a view."""
    mesh = gdt.create_mesh([("x", 4)])
    layout = gdt.Layout([None, "x"], mesh)

    def trained(wrapped: Callable[[Any], Any]) -> list[Any]:
        w = {}

        def put(value: int) -> None:
            array = gdt.full((512, columns), float(value), layout=layout)
            assert not array.blocks[0].flags.c_contiguous
            block = np.ascontiguousarray(array.blocks[0]) if value < 2 else array.blocks[0]
            w["w"] = DistributedArray(array.type, (block,))

        optimizer, gradient = gdt.optim.SGD(0.1), gdt.ones((512, columns), layout=layout)

        def step() -> DistributedArray:
            view = VIEWS[name](w["w"])
            optimizer.update(w, {"w": gradient})
            return view

        step = wrapped(step)
        found = []
        for n in range(5):
            if n < 3:
                put(n)
            found.append(step().copy())
        return found

    assert same(trained(gdt.function), trained(lambda step: step))


def test_a_parameter_whose_multiple_is_read_later_is_overwritten() -> None:
    w, optimizer, g = {"w": gdt.ones(8)}, gdt.optim.SGD(0.1), gdt.ones(8)

    @gdt.function
    def step() -> DistributedArray:
        half = w["w"] * 0.5
        optimizer.update(w, {"w": g})
        return half

    for _ in range(3):
        step()
    (program,) = step.programs
    assert len(program.donated) == 1


@pytest.mark.parametrize("size", [3, 20_000], ids=["small", "large"])
@pytest.mark.parametrize(
    "gradient",
    [
        lambda w, m: {"a": m["a"], "b": m["b"]},
        lambda w, m: {"a": m["b"], "b": m["a"]},
        lambda w, m: {"a": m["a"][::-1], "b": m["b"][::-1]},
        lambda w, m: {"a": w["a"], "b": w["b"]},
        lambda w, m: {"a": w["b"], "b": w["a"]},
    ],
    ids=["state", "states swapped", "state reversed", "parameter", "parameters swapped"],
)
@pytest.mark.parametrize("mesh", [FOLDED, APART, engine.mesh({"x": 2, "y": 2})])
def test_an_update_leaves_what_it_reads_as_another_operand(
    mesh: Mesh, gradient: Callable[[Any, Any], Any], size: int
) -> None:
    def trained(wrapped: Callable[[Any], Any]) -> list[DistributedArray]:
        layout = gdt.Layout([None], mesh)
        w = {
            k: gdt.asarray(np.arange(1.0, size + 1) + i, layout=layout) for i, k in enumerate("ab")
        }
        optimizer = gdt.optim.Adam(0.1)
        optimizer.init(w)

        def step() -> None:
            optimizer.update(w, gradient(w, optimizer.state["m"]))

        optimizer.update(w, {k: gdt.ones(size, layout=layout) for k in w})
        step = wrapped(step)
        for _ in range(6):
            step()
        return [*w.values()]

    with any_values():
        assert same(trained(gdt.function), trained(lambda step: step))


def test_an_update_uses_up_nothing_that_it_reads_as_another_operand() -> None:
    x, optimizer = gdt.asarray(np.arange(40_000.0)), gdt.optim.SGD(0.1)

    def step() -> DistributedArray:
        w = {"w": x * 2.0}
        optimizer.update(w, w)
        return w["w"]

    recorded = gdt.function(step)
    for _ in range(4):
        assert same(recorded(), step())


def test_arrays_of_one_block_and_of_several_meet_in_a_step() -> None:
    def trained(wrapped: Callable[[Any], Any]) -> list[Any]:
        values = np.arange(8.0)
        x, y = [gdt.asarray(values, layout=gdt.Layout(["x"], mesh)) for mesh in (FOLDED, APART)]
        one, several = {"w": x}, {"w": y}
        optimizer, other = gdt.optim.SGD(0.1), gdt.optim.SGD(0.1)

        def step(x: DistributedArray, y: DistributedArray) -> list[DistributedArray]:
            optimizer.update(one, {"w": x})
            other.update(several, {"w": y})
            return [x * 2.0, y * 3.0]

        step = wrapped(step)
        return [*[step(x + 1.0, y + 2.0) for _ in range(5)], one["w"], several["w"]]

    assert same(trained(gdt.function), trained(lambda step: step))


@pytest.mark.parametrize("read", ["nowhere", "returned", "after", "as a view"])
def test_an_update_uses_up_gradients_that_nobody_reads_again(read: str) -> None:
    inputs = gdt.asarray(np.random.default_rng(0).normal(size=(64, 1200)))
    targets = gdt.asarray(np.random.default_rng(1).normal(size=(64, 48)))

    def training() -> tuple[dict[str, DistributedArray], Callable[[], Any]]:
        w, optimizer = {"w": gdt.zeros((1200, 48))}, gdt.optim.SGD(0.01)

        def step() -> Any:
            _, g = gdt.value_and_grad(lambda p: gdt.sum((inputs @ p["w"] - targets) ** 2))(w)
            before = g["w"].T if read == "as a view" else None
            optimizer.update(w, g)
            return {
                "nowhere": None, "returned": g["w"], "as a view": before,
                "after": gdt.sum(g["w"]) if read == "after" else None,
            }[read]  # fmt: skip

        return w, step

    (w, step), (other, plain) = training(), training()
    recorded = gdt.function(step)
    for _ in range(4):
        assert same(recorded(), plain())
        assert same(w["w"], other["w"])
    (program,) = recorded.programs
    assert ("scratch=None" not in program.source) is (read == "nowhere")


def test_an_update_of_a_copy_leaves_the_original() -> None:
    w, optimizer = {"w": gdt.ones(4)}, gdt.optim.SGD(1.0)

    @gdt.function
    def step(g: DistributedArray) -> dict[str, Any]:
        copy = dict(w)
        optimizer.update(copy, {"w": g})
        return copy

    for _ in range(4):
        assert step(gdt.ones(4))["w"].tolist() == [0.0] * 4
        assert w["w"].tolist() == [1.0] * 4


# ---------------------------------------------------------------- what may change


def test_signatures_are_types_layouts_and_python_values() -> None:
    @gdt.function
    def scaled(x: DistributedArray, factor: float = 1.0) -> DistributedArray:
        return x * factor

    for _ in range(3):
        for x in (gdt.ones(3), gdt.ones(4), gdt.ones(3, dtype=np.float32)):
            for factor in (2.0, 3.0):
                out = scaled(x, factor=factor)
                assert out.type is x.type
                assert out.tolist() == [factor] * x.size
    assert len(scaled.programs) == 6


def test_arrays_in_global_variables_closures_and_attributes_may_change() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            self.array, self.power = gdt.asarray(1.0), 1.0

    scale, offset = Scale(), gdt.asarray(0.0)

    @gdt.function
    def step(x: DistributedArray) -> DistributedArray:
        return (x * STATE["scale"] * STATE["rate"] + offset) * scale.array**scale.power

    x = gdt.asarray(8.0)
    try:
        for n in range(15):
            if n == 3:
                offset = gdt.asarray(1.0)
            if n == 5:
                STATE["scale"] = gdt.asarray(0.5)
            if n == 7:
                scale.array = gdt.asarray(3.0)
            if n == 9:
                scale.power = 2.0
            if n == 12:
                STATE["rate"] = 0.25
            expected = 8.0 * float(STATE["scale"]) * STATE["rate"] + float(offset)
            assert float(step(x)) == expected * float(scale.array) ** scale.power
    finally:
        STATE.update(scale=gdt.asarray(1.0), rate=0.5)
    assert len(step.programs) == 3


def test_variables_that_the_step_assigns_are_assigned_by_a_replay() -> None:
    total, count = gdt.asarray(0.0), gdt.asarray(0)

    @gdt.function
    def step(x: DistributedArray) -> None:
        nonlocal total, count
        total = total + x
        count = count + 1

    for n in range(5):
        step(gdt.asarray(float(n)))
    assert (float(total), int(count)) == (10.0, 5)
    assert len(step.programs) == 1


def test_a_module_in_evaluation_mode_is_recorded_apart() -> None:
    network = Network(FOLDED)
    x = gdt.ones((4, 6), dtype=np.float32, layout=gdt.Layout.replicated(FOLDED, 2))

    @gdt.function
    def forward(x: DistributedArray) -> DistributedArray:
        return network(x)

    for training in (True, False) * 4:
        network.train(training)
        mean = network.norm.moving_mean.numpy()
        forward(x)
        assert np.array_equal(network.norm.moving_mean.numpy(), mean) != training


def test_a_module_may_be_an_argument_and_another_is_recorded_apart() -> None:
    @gdt.function
    def forward(model: nn.Dense, x: DistributedArray) -> DistributedArray:
        return model(x)

    x = gdt.ones((2, 6), dtype=np.float32)
    models = [nn.Dense(6, 2), nn.Dense(6, 2)]
    for _ in range(3):
        for model in models:
            assert np.array_equal(forward(model, x).numpy(), model(x).numpy())
    models[0].weight = models[0].weight * 2.0
    assert np.array_equal(forward(models[0], x).numpy(), models[0](x).numpy())
    assert len(forward.programs) == 2


def test_arrays_that_were_one_and_are_two_are_recorded_anew() -> None:
    kept = {"a": gdt.asarray(1.0)}
    kept["b"] = kept["a"]

    @gdt.function
    def both() -> DistributedArray:
        return kept["a"] + 10 * kept["b"]

    for _ in range(3):
        assert float(both()) == 11.0
    kept["b"] = gdt.asarray(2.0)
    for _ in range(3):
        assert float(both()) == 21.0


def test_random_numbers_go_on_and_start_anew_with_a_seed() -> None:
    def draw() -> DistributedArray:
        return gdt.random.uniform(4)

    drawn = gdt.function(draw)
    gdt.random.seed(5)
    expected = [draw().tolist() for _ in range(5)]
    gdt.random.seed(5)
    assert [drawn().tolist() for _ in range(5)] == expected
    gdt.random.seed(5)
    assert [drawn().tolist() for _ in range(5)] == expected


def test_a_learning_rate_that_is_set_takes_effect() -> None:
    w, gradient = {"w": gdt.asarray([10.0])}, {"w": gdt.asarray([1.0])}
    optimizer = gdt.optim.SGD(1.0)

    @gdt.function
    def step() -> None:
        optimizer.update(w, gradient)

    for _ in range(3):
        step()
    optimizer.learning_rate = 0.5
    step()
    assert w["w"].tolist() == [6.5]


# ---------------------------------------------------------------- inside and outside of others


def test_observers_see_every_op() -> None:
    step = gdt.function(lambda x: gdt.sum(gdt.exp(x)))
    x = gdt.asarray([1.0, 2.0], layout=gdt.Layout(["x"], APART))
    for _ in range(3):
        step(x)
    with gdt.count_collectives() as eager:
        gdt.sum(gdt.exp(x)).resolve()
    with gdt.count_collectives() as counted:
        step(x).resolve()
    assert counted.by_kind == eager.by_kind
    assert len(counted) == 1
    assert "exp" in str(gdt.explain(step, x))
    assert gdt.grad(step)(gdt.asarray([0.0, 0.0])).tolist() == [1.0, 1.0]


def test_functions_nest() -> None:
    w = {"w": gdt.asarray(2.0)}
    inner = gdt.function(lambda x: x * w["w"])
    outer = gdt.function(lambda x: inner(x) + 1.0)
    for n in range(6):
        w["w"] = gdt.asarray(float(n))
        assert float(outer(gdt.asarray(3.0))) == 3.0 * n + 1.0
    assert len(outer.programs) == 1


def test_collectives_of_a_replay_are_those_of_the_step() -> None:
    layout = gdt.Layout(["x", "y"], APART)

    def step(x: DistributedArray) -> DistributedArray:
        return gdt.sum(x @ x.T, axis=0).resolve()

    x = gdt.asarray(np.ones((8, 8)), layout=layout)
    transport = gdt.comm.transport.transport_of(APART)
    step(x)

    def moved(call: Callable[[Any], Any]) -> dict[str, int]:
        transport.bytes.clear()
        call(x)
        return dict(transport.bytes)

    eager, replayed = moved(step), gdt.function(step)
    replayed(x), replayed(x)
    assert moved(replayed) == {kind: 2 * nbytes for kind, nbytes in eager.items()}  # verified
    assert moved(replayed) == eager
    assert len(replayed.programs) == 1


# ---------------------------------------------------------------- errors


def test_what_a_call_has_resolved_is_no_matter_to_the_next() -> None:
    """A call sends the same, and leaves the same to be sent, whether it is replayed or not."""
    transport = gdt.comm.transport.transport_of(APART)

    @gdt.function
    def step(waiting: DistributedArray) -> tuple[DistributedArray, ...]:
        total = gdt.sum(waiting)
        return gdt.exp(waiting), total, gdt.sqrt(total)

    waiting = gdt.sum(gdt.ones((8, 3), layout=gdt.Layout(["x", None], APART)), axis=0)
    sent = []
    for _ in range(4):
        before = transport.calls.total()
        results = step(waiting)
        assert [float(r.numpy().sum()) for r in (*results, waiting)] == [
            3 * float(np.exp(8.0)), 24.0, float(np.sqrt(24.0)), 24.0,
        ]  # fmt: skip
        sent.append(transport.calls.total() - before)
    # What is waiting is resolved outside, once; the first replay runs both ways.
    assert sent == [3, 2, 4, 2]
    assert len(step.programs) == 1


def test_reading_a_value_names_the_line() -> None:
    def step(x: DistributedArray) -> DistributedArray:
        return x * 2.0 if float(gdt.sum(x)) > 0 else x  # this line

    recorded = gdt.function(step)
    assert recorded(gdt.ones(2)).tolist() == [2.0, 2.0]
    line = step.__code__.co_firstlineno + 1
    with pytest.raises(FunctionError, match=f"line {line} of .*test_function.py"):
        recorded(gdt.ones(2))


def test_numbers_are_not_returned() -> None:
    step = gdt.function(lambda x: (x, 1))
    with pytest.raises(FunctionError, match="returns a value of type int"):
        step(gdt.ones(2))


def test_numpy_arrays_are_not_arguments() -> None:
    step = gdt.function(lambda x, **more: x)
    for args, kwargs in [((np.ones(2),), {}), ((gdt.ones(1),), {"more": [np.ones(2)]})]:
        with pytest.raises(FunctionError, match=r"NumPy array float64\[2\]"):
            step(*args, **kwargs)


def test_errors_of_data_are_raised_in_a_replay_and_change_nothing() -> None:
    w = {"w": gdt.ones((2, 3), dtype=np.float32)}
    optimizer = gdt.optim.SGD(0.1)

    @gdt.function
    def step(x: DistributedArray, y: DistributedArray) -> DistributedArray:
        loss, gradient = gdt.value_and_grad(
            lambda p: nn.losses.sparse_softmax_cross_entropy(y, x @ p["w"])
        )(w)
        optimizer.update(w, gradient)
        return loss

    x, y = gdt.ones((2, 2), dtype=np.float32), gdt.asarray([0, 2])
    for _ in range(3):
        step(x, y)
    before, steps = w["w"].numpy().copy(), optimizer.steps
    with pytest.raises(gdt.errors.IndexRangeError, match="label 3 is outside"):
        step(x, gdt.asarray([0, 3]))
    assert np.array_equal(w["w"].numpy(), before) and optimizer.steps == steps
    step(x, y)


@ON_BOTH
def test_an_index_out_of_range_is_found_before_anything_is_updated(mesh: Mesh) -> None:
    layout = gdt.Layout(["x", None], mesh)
    w, optimizer = {"w": gdt.ones((8, 4096), layout=layout)}, gdt.optim.Adam(0.1)

    @gdt.function
    def step(rows: DistributedArray) -> DistributedArray:
        optimizer.update(w, {"w": gdt.random.normal((8, 4096), layout=layout)})
        return gdt.sum(w["w"][rows])

    rows = gdt.asarray([1, 2], layout=gdt.Layout(["x"], mesh))
    for _ in range(4):
        step(rows)
    before, steps = w["w"].numpy().copy(), optimizer.steps
    with pytest.raises(gdt.errors.IndexRangeError, match="index 8 is out of range"):
        step(rows + 6)
    assert np.array_equal(w["w"].numpy(), before) and optimizer.steps == steps


@ON_BOTH
def test_invalid_values_are_treated_as_where_the_step_was_written(mesh: Mesh) -> None:
    layout = gdt.Layout(["x"], mesh)

    @gdt.function
    def step(x: DistributedArray) -> DistributedArray:
        with np.errstate(divide="ignore"):
            y = 1 / x
        return gdt.exp(y * 0.1)

    @gdt.function
    def strict(x: DistributedArray) -> DistributedArray:
        with np.errstate(divide="raise"):
            return 1 / x

    for value in (1.0, 1.0, 1.0, 0.0):
        x = gdt.full(4, value, layout=layout)
        assert same(step(x), gdt.full(4, np.exp(0.1) if value else np.inf))
        if value:
            strict(x)
    with pytest.raises(FloatingPointError, match="divide by zero"):
        strict(x)
    with pytest.warns(RuntimeWarning, match="overflow"):
        step(gdt.full(4, 1e-5, layout=layout))


@ON_BOTH
@pytest.mark.parametrize("size", [8, 5])
@pytest.mark.parametrize(
    "taken",
    [
        lambda x, at: x[at],
        lambda x, at: x[gdt.sum(gdt.stack([at, at * 0], axis=1), axis=1)],
        lambda x, at: gdt.take(x, at, axis=0),
        lambda x, at: gdt.take_along_axis(x, at, axis=0),
    ],
    ids=["getitem", "computed", "take", "take_along_axis"],
)
def test_indices_are_checked_in_a_replay(
    taken: Callable[..., DistributedArray], size: int, mesh: Mesh
) -> None:
    layout = gdt.Layout([("x", "y")], mesh)
    x = gdt.asarray(np.arange(8.0), layout=layout)
    step = gdt.function(taken)
    for start in range(3):
        at = gdt.asarray((np.arange(size) + start) % 8, layout=layout)
        assert same(step(x, at), taken(x, at))
    assert len(step.programs) == 1
    for wrong in (8, -9):
        with pytest.raises(gdt.errors.IndexRangeError, match=f"index {wrong} is out of range"):
            step(x, gdt.asarray([0] * (size - 1) + [wrong], layout=layout))


def test_a_function_takes_a_function() -> None:
    with pytest.raises(gdt.errors.ArgumentError, match="function"):
        gdt.function(3)
    step = gdt.function(len)
    assert isinstance(step, Function)


# ---------------------------------------------------------------- what a step depends on


def test_attributes_of_the_name_of_a_global_variable_are_no_guards() -> None:
    step = gdt.function(lambda x: gdt.mean(x) * 1.0)
    for value in range(5):
        globals()["mean"] = float(step(gdt.full(3, float(value))))
        assert globals()["mean"] == value
    assert len(step.programs) == 1
    del globals()["mean"]


def test_one_container_given_twice_is_not_two() -> None:
    @gdt.function
    def step(p: dict[str, Any], q: dict[str, Any]) -> DistributedArray:
        p["w"] = p["w"] + 1
        return q["w"] * 1

    a, b = {"w": gdt.zeros(1)}, {"w": gdt.zeros(1)}
    for _ in range(3):
        assert step(a, b).tolist() == [0.0]
    assert [step(a, a).tolist() for _ in range(3)] == [[4.0], [5.0], [6.0]]


def test_a_container_that_is_also_a_variable() -> None:
    kept, other = {"w": gdt.zeros(1)}, {"w": gdt.zeros(1)}

    @gdt.function
    def step(p: dict[str, Any]) -> DistributedArray:
        kept["w"] = kept["w"] + 1
        return p["w"] * 1

    for _ in range(3):
        assert step(other).tolist() == [0.0]
    assert [step(kept).tolist() for _ in range(3)] == [[4.0], [5.0], [6.0]]


def test_zeros_of_both_signs() -> None:
    step = gdt.function(lambda x, s: 1 / (x * s))
    with np.errstate(divide="ignore"):
        found = [float(step(gdt.asarray(1.0), s)) for s in (0.0, 0.0, -0.0, -0.0, -0.0, 0.0)]
    assert found == [np.inf, np.inf, -np.inf, -np.inf, -np.inf, np.inf]


def test_seeding_in_a_step_names_the_line() -> None:
    def step() -> DistributedArray:
        gdt.random.seed(1)
        return gdt.random.uniform()

    recorded = gdt.function(step)
    first = float(recorded())
    with pytest.raises(FunctionError, match=r"cannot seed random numbers, as line \d+ of .*step"):
        recorded()
    assert float(step()) == first


def test_a_step_that_cannot_be_recorded_is_not_taken() -> None:
    w, optimizer = {"w": gdt.ones(3)}, gdt.optim.SGD(0.5)

    def returns_a_number() -> float:
        loss, g = gdt.value_and_grad(lambda p: gdt.sum(p["w"] ** 2))(w)
        optimizer.update(w, g)
        return loss.ndim

    def reads_a_number() -> DistributedArray:
        loss, g = gdt.value_and_grad(lambda p: gdt.sum(p["w"] ** 2))(w)
        optimizer.update(w, g)
        float(loss)
        return loss

    step = gdt.function(returns_a_number)
    for _ in range(2):
        with pytest.raises(FunctionError, match="it returns a value of type int"):
            step()
        assert (w["w"].tolist(), optimizer.steps) == ([1.0] * 3, 0)
    step = gdt.function(reads_a_number)
    step()
    for _ in range(2):
        with pytest.raises(FunctionError, match="cannot read values on the host"):
            step()
        assert (w["w"].tolist(), optimizer.steps) == ([0.0] * 3, 1)


def test_recordings_keep_no_arrays_alive() -> None:
    w, optimizer = {"w": gdt.ones((64, 64))}, gdt.optim.Adam(0.1)

    @gdt.function
    def step(x: DistributedArray) -> None:
        _, g = gdt.value_and_grad(lambda p: gdt.sum(p["w"] * x))(w)
        optimizer.update(w, g)

    batches = []
    for rate in (0.1, 0.2, 0.3):
        optimizer.learning_rate = rate
        for x in (gdt.ones((64, 64)), gdt.ones((64, 64))):
            step(x)
            batches.append(weakref.ref(x))
        del x
    assert [batch() for batch in batches] == [None] * 6
    kept = [weakref.ref(a.blocks[0].base) for a in (w["w"], optimizer.state["m"]["w"])]
    w["w"], optimizer.state["m"]["w"] = gdt.zeros((64, 64)), gdt.zeros((64, 64))
    gdt.backend.NUMPY.pool.trim()
    assert [ref() for ref in kept] == [None, None]


def test_methods_are_bound() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.total = gdt.zeros(2)

        @gdt.function
        def step(self, x: DistributedArray) -> DistributedArray:
            self.total = self.total + x
            return self.total * 1

    one, two = Trainer(), Trainer()
    for n in range(1, 6):
        assert one.step(gdt.ones(2)).tolist() == [float(n)] * 2
        assert two.step(gdt.full(2, 2.0)).tolist() == [2.0 * n] * 2
    assert Trainer.step(one, gdt.ones(2)).tolist() == [6.0] * 2


@pytest.mark.parametrize("where", ["argument", "state"])
def test_numbers_that_change_in_every_call_are_warned_about_once(where: str) -> None:
    state = {"w": gdt.ones(2), "factor": 0}
    step = gdt.function(lambda x, i: x * i * state["factor"])
    changed = {"argument": "its arguments", "state": "state.factor"}[where]
    message = f"64 calls of <lambda> have run as written, the last one because {changed} changed"
    with pytest.warns(RerecordedWarning, match=message) as found:
        for i in range(150):
            state["factor"] = i * (where == "state")
            step(gdt.ones(2), i * (where == "argument"))
    assert len(found) == 1
    assert found[0].filename == __file__
    assert len(step.programs) <= 16


def test_a_forgotten_step_is_gone_without_a_collection_of_cycles() -> None:
    w, x = {"w": gdt.ones(2)}, gdt.ones(2)

    @gdt.function
    def step(x: DistributedArray) -> DistributedArray:
        return x * w["w"]

    for _ in range(3):
        step(x)
    gc.collect()
    gc.disable()
    try:
        (((recording, *_), _),) = step._recordings.values()
        functions = [weakref.ref(recording.replay), weakref.ref(recording.program.run)]
        del step, recording
        assert [f() for f in functions] == [None, None]
    finally:
        gc.enable()


def test_the_source_of_a_program_names_recycled_memory() -> None:
    w, optimizer = {"w": gdt.ones(8)}, gdt.optim.SGD(0.1)

    @gdt.function
    def step(x: DistributedArray) -> DistributedArray:
        optimizer.update(w, {"w": x})
        return x.T @ x

    x = gdt.ones(8)
    for _ in range(3):
        step(x)
    (program,) = step.programs
    assert " else empty(shape, dtype, " in program.source


def test_arguments_are_tuples_in_tuples_of_arrays_of_several_shapes() -> None:
    """As a batch of two inputs and labels is."""
    step = gdt.function(lambda batch: batch[0][0] * 2 + gdt.sum(batch[1]))
    x, z, y = (gdt.asarray(np.ones(shape)) for shape in [(5, 6), (5, 2), (5,)])
    for _ in range(3):
        assert step(((x, z), y)).shape == (5, 6)


def test_what_a_recording_has_returned_is_free_without_a_collection_of_garbage() -> None:
    step = gdt.function(lambda x: {"a": x + 1, "b": [x * 2]})
    x = gdt.ones((3,))
    gc.disable()  # no cycles either
    try:
        held = []
        for _ in range(3):  # as it is recorded, verified and replayed
            out = step(x)
            held += [weakref.ref(out["a"]), weakref.ref(out["b"][0])]
            del out
        assert [array() for array in held] == [None] * 6
    finally:
        gc.enable()
