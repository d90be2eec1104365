"""Plans of steps: what machines make best, and that plans run as they are predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import gdt
from examples import parallel_gpt
from gdt import nn
from gdt.errors import ArgumentError, GradientError, MeshError, OutOfMemoryError, ShapeError
from gdt.prediction import ParallelPlan, Prediction, RankedPlans, planning
from gdt.prediction.depth import PlanTracer
from gdt.prediction.estimates import Facts

MakeStep = Callable[[ParallelPlan], Callable[[], Any]]


@pytest.fixture(autouse=True)
def _few_traces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace fewer plans, after those of fixtures; `make test FULL=networks` traces all."""
    if request.node.get_closest_marker("networks_full") is None:
        monkeypatch.setattr(planning, "TRACED", 6)


class Block(nn.Module):
    """Two dense layers beside a residual, under names that no layout map knows."""

    def __init__(self, size: int, key: int) -> None:
        self.widen = nn.Dense(size, 4 * size, activation="relu", key=key)
        self.narrow = nn.Dense(4 * size, size, key=key + 1)

    def __call__(self, x: Any) -> Any:
        return x + self.narrow(self.widen(x))


class Network(nn.Module):
    """Blocks, one after the other."""

    def __init__(self, size: int, count: int) -> None:
        self.parts = [Block(size, 2 * n) for n in range(count)]

    def __call__(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x


class NumberedNetwork(Network):
    """The same, which takes its blocks by number."""

    def __call__(self, x: Any) -> Any:
        for n in range(8):
            x = self.parts[n](x)
        return x


def of_model(make_model: Callable[[], nn.Module], shape: tuple[int, ...]) -> MakeStep:
    """Return the function that makes the training step of a model, for x of ones of a shape."""

    def make_step(plan: ParallelPlan) -> Callable[[], Any]:
        with gdt.default_mesh(plan.mesh):
            model = plan.apply(make_model())
        optimizer = gdt.optim.Adam(1e-3).init(model)
        x = gdt.ones(shape, "float32", layout=plan.batch_layout(len(shape)))
        evaluated = plan.value_and_grad(lambda model, x: gdt.mean(model(x) ** 2))

        def step() -> Any:
            loss, gradients = evaluated(model, x)
            optimizer.update(model, gradients)
            return loss

        return step

    return make_step


def of_network(
    size: int, rows: int, count: int = 1, model_class: type[Network] = Network
) -> MakeStep:
    """Return the function that makes the training step of a network."""
    return of_model(lambda: model_class(size, count), (rows, size))


def of_gpt(size: parallel_gpt.Size, pipelined: bool = False) -> MakeStep:
    """Return the function that makes the training step of the GPT of the examples."""

    def make_step(plan: ParallelPlan) -> Callable[[], Any]:
        with gdt.default_mesh(plan.mesh):
            model = parallel_gpt.GPT(size)
            if pipelined:
                model.blocks = [plan.sequential(model.blocks)]
        plan.apply(model)
        optimizer = gdt.optim.Adam(1e-3).init(model)
        layout, rng = plan.batch_layout(2), np.random.default_rng(0)
        shape = (size.batch, size.tokens)
        if plan.mesh.device_kind == "abstract":
            tokens, targets = (gdt.zeros(shape, np.int32, layout=layout) for _ in "xy")
        else:
            draw = lambda: rng.integers(0, size.vocabulary, shape, np.int32)
            tokens, targets = (gdt.asarray(draw(), layout=layout) for _ in "xy")
        evaluated = plan.value_and_grad(
            lambda model, x, y: nn.losses.sparse_softmax_cross_entropy(y, model(x))
        )

        def step() -> Any:
            loss, gradients = evaluated(model, tokens, targets)
            optimizer.update(model, gradients)
            return loss

        return step

    return make_step


def machine(
    fast: float, slow: float, memory: float = 64e9, near: str = "host", far: str = "network"
) -> gdt.Machine:
    """Return a machine of four devices a host, whose links send so many bytes a second."""
    links = {near: gdt.Link(fast, 1e-6), far: gdt.Link(slow, 1e-6)}
    return gdt.Machine(
        flops={"float32": 1e13}, bandwidth=1e12, memory=memory, links=links, devices_per_host=4,
        launch=0.0,
    )  # fmt: skip


def on_virtual_devices(plan: ParallelPlan) -> ParallelPlan:
    """Return a plan on virtual devices, each with a block of its own."""
    dims = [*zip(plan.mesh.axis_names, plan.mesh.sizes, strict=True)]
    return plan.on(gdt.create_mesh(dims, device_type="CPU", blocks=plan.mesh.size))


def predictions(plans: Iterable[ParallelPlan]) -> list[Prediction]:
    """Return the predictions of plans that were traced."""
    return [plan.prediction for plan in plans if plan.prediction]


# ---------------------------------------------------------------- what is best

FAST = 1e11  # bytes a second
# The machine, the features and rows of the network, and of the best plan the mesh, the axes that
# split rows, the way of splitting features, and what is kept split.
CASES = {
    "data parallel": (machine(FAST, FAST), 2048, 1 << 15, {"data": 8}, "data", "", ""),
    "FSDP": (
        machine(FAST, 1e8, 0.8e9, "data", "model"), 2048, 1 << 14, {"data": 8}, "data", "", "all",
    ),
    "FSDP inside of hosts": (
        machine(FAST, 5e9), 2048, 1 << 15, {"replica": 2, "data": 4}, "replica data", "", "all",
    ),
    "Megatron": (machine(FAST, FAST), 2048, 256, {"model": 8}, "", "shapes", ""),
    "Megatron inside of hosts, data parallel between": (
        machine(FAST, 1e10), 8192, 1 << 14, {"data": 2, "model": 4}, "data", "shapes", "",
    ),
    "each device alone": (machine(2e6, 2e6), 2048, 8, {"data": 8}, "", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_machine_decides_what_is_best(name: str) -> None:
    of_machine, size, rows, sizes, batch_axes, features, kept = CASES[name]
    make_step = of_network(size, rows, count=2 if kept else 1)
    plans = gdt.plan(make_step, 8, machine=of_machine, time_limit=600)
    best = plans[0]  # of those that are nearly as fast, the simplest
    assert dict(zip(best.mesh.axis_names, best.mesh.sizes, strict=True)) == sizes, plans
    assert (best.features, best.kept) == (features, kept), plans
    assert best.batch_axes == tuple(batch_axes.split()), plans
    seconds = [found.seconds for found in predictions(plans)]
    assert seconds[1:] == sorted(seconds[1:]) and seconds[0] <= 1.01 * min(seconds)


SMALL = of_network(16, 8)


@pytest.fixture(scope="module")
def plans() -> RankedPlans:
    return gdt.plan(SMALL, 4, machine=machine(FAST, 1e10), time_limit=600)


def test_plans_are_the_same_each_time() -> None:
    first, again = (
        gdt.plan(SMALL, 4, machine=machine(FAST, 1e10), time_limit=600) for _ in range(2)
    )
    assert [*first] == [*again]
    for found, other in zip(predictions(first), predictions(again), strict=True):
        assert (found.seconds, found.bytes) == (other.seconds, other.bytes)
        assert found.peak == pytest.approx(other.peak, rel=1e-2)  # the keys of a generator


def test_plans_are_shown_as_a_table(plans: RankedPlans) -> None:
    lines = str(plans).splitlines()
    assert (
        lines[0].split()[:3] == ["mesh", "scheme", "checkpointing"] and len(lines) == len(plans) + 2
    )
    assert lines[-1].startswith(f"16 of {plans.considered} plans traced in ")
    assert plans.is_complete and "time_limit" not in lines[-1]


def convolution(size: int, key: int = 0) -> nn.Module:
    return nn.Conv2D(size, 3, padding="same", input_channels=4, key=key)


LAYERS: dict[str, tuple[Callable[[], list[nn.Module]], set[str]]] = {
    "dense": (lambda: [nn.Dense(4, 64, key=0), nn.Dense(64, 4, key=1)], {"", "mlp"}),
    "convolutions": (lambda: [convolution(4, key=n) for n in range(2)], {"", "cnn"}),
    "both": (
        lambda: [convolution(8), nn.Flatten(), nn.Dense(512, 1024, key=0), nn.Dense(1024, 99)],
        {"", "mlp", "cnn"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_features_are_split_in_the_ways_of_the_layers(name: str) -> None:
    make_layers, ways = LAYERS[name]
    make_step = of_model(lambda: nn.Sequential(*make_layers()), (16, 8, 8, 4))
    tracer = PlanTracer(make_step, machine(FAST, FAST))
    mesh = gdt.create_mesh([("data", 2), ("model", 2)], device_type="abstract")
    for way in ways:
        found, notes = tracer.predict(ParallelPlan(mesh, ("data",), way))
    assert Facts(tracer.machine, 4, notes, found, found).ways.keys() == ways


@pytest.mark.networks_full
def test_175_billion_parameters_have_their_features_split_inside_of_hosts() -> None:
    size = parallel_gpt.Size(96, 12_288, 96, 51_200, 2_048, 1_024)
    of_machine = gdt.Machine.named("a100-80gb", flops={"float32": 156e12})
    plans = gdt.plan(of_gpt(size), 1_024, machine=of_machine, time_limit=600)
    best = plans[0]
    assert best.count("model") == of_machine.devices_per_host == 8
    assert (best.features, best.sequence, best.kept) == ("transformer", True, "all")
    assert best.prediction is not None and best.prediction.seconds == pytest.approx(46.7, rel=0.02)
    assert best.prediction.peak <= 0.9 * of_machine.memory and plans.considered > 1_000


# ---------------------------------------------------------------- plans are run as predicted


def runs_as_predicted(make_step: MakeStep, plan: ParallelPlan) -> float:
    """Check the bytes and the collectives of a plan on virtual devices; return the third loss."""
    assert plan.prediction is not None
    step = make_step(on_virtual_devices(plan))
    step(), step()
    with gdt.count_collectives() as counter:
        loss = step()
    assert counter.bytes == pytest.approx(sum(plan.prediction.bytes.values()) * plan.mesh.size)
    assert len(counter) == plan.prediction.collectives
    return float(loss)


def test_each_plan_sends_the_predicted_bytes_and_trains_alike(plans: RankedPlans) -> None:
    losses = [runs_as_predicted(SMALL, plan) for plan in plans]
    assert len(plans) == 16 and losses == pytest.approx([losses[0]] * 16, rel=1e-4)


GPT = parallel_gpt.Size(2, 32, 4, 64, 16, 32)
GPT_PLANS = {
    "sequence": ({"data": 2, "model": 4}, {"features": "transformer", "sequence": True}),
    "micro-batches": ({"data": 4}, {"kept": "all", "micro_batches": 8}),
    "micro-batches, ZeRO": (
        {"data": 2, "model": 2},
        {"kept": "state", "features": "transformer", "micro_batches": 2, "checkpoint": True},
    ),
}


@pytest.mark.parametrize("name", GPT_PLANS)
def test_a_gpt_under_a_plan_sends_the_predicted_bytes(name: str) -> None:
    sizes, choices = GPT_PLANS[name]
    mesh = gdt.create_mesh([*sizes.items()], device_type="abstract")
    plan, make_step = ParallelPlan(mesh, ("data",), **choices), of_gpt(GPT)
    found, _ = PlanTracer(make_step, machine(FAST, FAST)).predict(plan)
    loss = runs_as_predicted(make_step, replace(plan, prediction=found))
    alone = make_step(ParallelPlan(gdt.create_mesh([("data", 1)])))
    assert loss == pytest.approx([float(alone()) for _ in range(3)][-1], rel=1e-4)


def test_a_pipeline_is_planned_where_blocks_can_be_stages() -> None:
    make_step, of_machine = of_gpt(GPT, True), machine(FAST, FAST)
    plans = gdt.plan(make_step, 4, machine=of_machine, memory=1e12, time_limit=0)
    assert not plans.is_complete and plans.considered > 100
    mesh = gdt.create_mesh([("stage", 2), ("data", 2)], device_type="abstract")
    plan = ParallelPlan(mesh, ("data",), kept="all", checkpoint=True, micro_batches=4)
    assert plan.scheme == "FSDP, pipeline"
    found, _ = PlanTracer(make_step, of_machine).predict(plan)
    runs_as_predicted(make_step, replace(plan, prediction=found))


def of_experts(size: int, hidden: int, rows: int) -> MakeStep:
    """Return the function that makes the training step of a layer of eight experts."""

    def make_model() -> nn.Module:
        return nn.Sequential(nn.Residual(nn.MoE(8, hidden, top_k=1, size=size, key=0)))

    return of_model(make_model, (rows, 16, size))


def test_experts_are_split_where_that_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    make_step, slow = of_experts(512, 2048, 1024), machine(1e10, 1e10)
    best = gdt.plan(make_step, 8, machine=slow, time_limit=600)[0]  # sends tokens, not gradients
    assert best.experts and best.batch_axes == ("data",) and "experts" in best.scheme
    mesh = gdt.create_mesh([("data", 4)], device_type="abstract")
    plan, small = ParallelPlan(mesh, ("data",), kept="all", experts=True), of_experts(8, 16, 8)
    found, _ = PlanTracer(small, slow).predict(plan)
    loss = runs_as_predicted(small, replace(plan, prediction=found))
    alone = small(ParallelPlan(gdt.create_mesh([("data", 1)])))
    assert loss == pytest.approx([float(alone()) for _ in range(3)][-1], rel=1e-4)

    offered: list[ParallelPlan] = []
    all_of = planning.candidates
    monkeypatch.setattr(
        planning, "candidates", lambda facts: offered.extend(all_of(facts)) or offered
    )
    gdt.plan(SMALL, 4, machine=slow, time_limit=0)
    assert offered and not any(plan.experts for plan in offered)


# ---------------------------------------------------------------- random layouts


@dataclass(frozen=True, eq=False)
class RandomPlan(ParallelPlan):
    """A plan that lets some arrays lie as a random number says.

    share: of the arrays; the others lie as in the plan without it.
    """

    seed: int = 0
    share: float = 1.0

    def layouts(self, model: nn.Module) -> nn.LayoutMap:
        layouts, rng = super().layouts(model), np.random.default_rng(self.seed)
        for name, x in model.parameters().items():
            specs: list[str | None] = [None] * x.ndim
            for axis in self.mesh.axis_names:
                if (at := rng.integers(-1, x.ndim)) >= 0:
                    specs[at] = axis
            if rng.random() < self.share:
                layouts[name] = specs
        return layouts


def random_plan(best: ParallelPlan, rng: np.random.Generator, seed: int) -> RandomPlan:
    """Return a neighbour of the best plan, or any plan at all."""
    if seed % 2:
        chosen = {k: getattr(best, k) for k in ("features", "kept", "sequence", "checkpoint")}
        return RandomPlan(best.mesh, best.batch_axes, **chosen, seed=seed, share=0.2)
    devices = best.mesh.size
    model = int(rng.choice([n for n in range(1, devices + 1) if devices % n == 0]))
    dims = [("data", devices // model), ("model", model)]
    splits: list[tuple[str, ...]] = [(), ("data",), ("data",), ("model",), ("data", "model")]
    return RandomPlan(
        gdt.create_mesh(dims, device_type="abstract"),
        splits[rng.integers(len(splits))],
        features=["", "shapes"][rng.integers(2)],
        kept=["", "state", "all"][rng.integers(3)],
        checkpoint=bool(rng.integers(2)),
        micro_batches=1 << int(rng.integers(3)),
        seed=seed,
        share=float(rng.choice([0.0, 0.3, 1.0])),
    )


SEARCHES: dict[str, tuple[MakeStep, gdt.Machine]] = {
    "GPT": (of_gpt(parallel_gpt.Size(2, 256, 8, 1024, 128, 64)), machine(FAST, 1e10)),
    "data parallel": (of_network(2048, 1 << 15), CASES["data parallel"][0]),
    "FSDP": (of_network(2048, 1 << 14, 2), CASES["FSDP"][0]),
    "mixture": (of_network(8192, 1 << 14), machine(FAST, 1e10)),
}


@pytest.mark.parametrize(
    ("name", "count"),
    [*[pytest.param(k, 200, marks=pytest.mark.networks_full) for k in SEARCHES], ("mixture", 10)],
)
def test_random_layouts_beat_no_plan_by_more_than_a_tenth(name: str, count: int) -> None:
    make_step, of_machine = SEARCHES[name]
    best = gdt.plan(make_step, 8, machine=of_machine, time_limit=600)[0]
    rng, ratios = np.random.default_rng(0), []
    tracer = PlanTracer(make_step, of_machine)
    with tracer.older_objects_frozen():
        for seed in range(count):
            found, _ = tracer.predict(random_plan(best, rng, seed))
            if found.peak <= planning.MEMORY_SHARE * of_machine.memory:
                ratios.append(found.seconds / best.prediction.seconds)
    print(f"{name}: the fastest of {len(ratios)} takes {min(ratios):.3f} times the plan's seconds")
    assert len(ratios) >= count / 4 and min(ratios) >= 0.9


# ---------------------------------------------------------------- depth


@pytest.mark.parametrize("kept", [pytest.param("", marks=pytest.mark.networks_full), "all"])
def test_a_deep_model_is_predicted_from_a_few_of_its_blocks(kept: str) -> None:
    mesh = gdt.create_mesh([("data", 4), ("model", 2)], device_type="abstract")
    plan = ParallelPlan(mesh, ("data",), "shapes", kept, micro_batches=8)
    numbered, network = (
        of_network(1024, 1 << 15, 8, model_class) for model_class in (NumberedNetwork, Network)
    )
    whole, _ = PlanTracer(numbered, machine(FAST, FAST)).predict(plan)
    found, notes = PlanTracer(network, machine(FAST, FAST)).predict(plan)
    assert notes.counts == {"list 0, run 0": 8, "micro-batches": 8}
    assert found.bytes == pytest.approx(whole.bytes)
    assert found.collectives == whole.collectives
    assert found.state == pytest.approx(whole.state, rel=1e-3)  # but for keys of random numbers
    assert found.seconds == pytest.approx(whole.seconds) and found.mfu == pytest.approx(whole.mfu)
    assert found.flops == whole.flops and found.peak == pytest.approx(whole.peak, rel=0.03)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_peak_of_a_deep_model_holds_the_weights_of_a_few_of_its_blocks(
    checkpoint: bool,
) -> None:
    """Those that are used, that were gathered ahead, and whose gradients are sent."""
    mesh = gdt.create_mesh([("data", 8)], device_type="abstract")
    plan = ParallelPlan(mesh, ("data",), "", "all", checkpoint=checkpoint)
    found, whole = (
        PlanTracer(of_network(4096, 64, 8, model_class), machine(FAST, FAST)).predict(plan)[0]
        for model_class in (Network, NumberedNetwork)
    )
    assert found.peak == pytest.approx(whole.peak, rel=0.03) and found.bytes == whole.bytes


def test_blocks_whose_gradients_share_messages_are_all_traced() -> None:
    mesh = gdt.create_mesh([("data", 8)], device_type="abstract")
    found, whole = (
        PlanTracer(of_network(512, 64, 8, model_class), machine(FAST, FAST)).predict(
            ParallelPlan(mesh, ("data",))
        )[0]
        for model_class in (Network, NumberedNetwork)
    )
    assert found.collectives == whole.collectives == 3  # of 25 MiB; 8.4 MB of a block
    assert found.seconds == pytest.approx(whole.seconds)


# ---------------------------------------------------------------- limits and errors


def test_the_time_limit_ends_a_search() -> None:
    plans = gdt.plan(of_network(64, 8), 8, machine=machine(FAST, FAST), time_limit=0)
    assert [plan.scheme for plan in plans] == ["FSDP", "FSDP"] and not plans.is_complete
    assert str(plans).endswith("; time_limit has ended the search")
    with pytest.raises(OutOfMemoryError, match="before time_limit, of 2 that were traced"):
        gdt.plan(of_network(64, 8), 8, machine=machine(FAST, FAST), memory=1e3, time_limit=0)


def test_what_fits_nowhere_is_refused_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "TRACED", 3)
    with pytest.raises(OutOfMemoryError, match="no plan fits in 10 kB of a device; the nearest"):
        gdt.plan(of_network(64, 2), 2, machine=machine(FAST, FAST), memory=1e4)


def test_a_step_without_a_plan_is_refused() -> None:
    def make_step(plan: ParallelPlan) -> Callable[[], Any]:
        x = gdt.ones((8, 4), layout=plan.batch_layout(2))
        return lambda: gdt.sum(x * 2.0).resolve()

    with pytest.raises(ArgumentError, match="has not applied the plan to a model"):
        gdt.plan(make_step, 2, machine=machine(FAST, FAST))


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"devices": 0}, "devices is 0"),
        ({"devices": 8.0}, "devices is 8.0"),
        ({"devices": True}, "devices is True"),
        ({"memory": -1.0}, "memory is -1.0"),
        ({"time_limit": -1.0}, "time_limit is -1.0"),
        ({"make_step": 3}, "make_step"),
        ({"machine": "a100-80gb"}, "machine"),
        ({"pipelines": True}, "pipelines"),
        ({"make_step": lambda plan: None}, "make_step has returned None"),
    ],
)
def test_an_argument_of_no_meaning_is_refused(wrong: dict[str, Any], problem: str) -> None:
    arguments = {"make_step": SMALL, "devices": 2, "machine": machine(FAST, FAST)} | wrong
    with pytest.raises(ArgumentError, match=problem):
        gdt.plan(**arguments)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"features": "rnn"}, "features is 'rnn'"),
        ({"kept": "some"}, "kept is 'some'"),
        ({"batch_axes": "data"}, "batch_axes is 'data'"),
        ({"batch_axes": ("rows",)}, r"batch_axes is \('rows',\)"),
        ({"micro_batches": 0}, "micro_batches is 0"),
    ],
)
def test_a_plan_of_no_meaning_is_refused(wrong: dict[str, Any], problem: str) -> None:
    mesh = gdt.create_mesh([("data", 4)], device_type="abstract")
    with pytest.raises(ArgumentError, match=problem):
        ParallelPlan(mesh, **wrong)
    with pytest.raises(ArgumentError, match="ndim is 0"):
        ParallelPlan(mesh).batch_layout(0)


def test_devices_may_be_counted_by_numpy() -> None:
    plans = gdt.plan(SMALL, np.int64(2), machine=machine(FAST, FAST), time_limit=0)
    assert plans[0].mesh.size == 2


def test_a_plan_is_for_meshes_of_its_axes_and_batches_that_divide() -> None:
    plan = ParallelPlan(
        gdt.create_mesh([("data", 4)], device_type="abstract"), ("data",), micro_batches=3
    )
    with pytest.raises(MeshError, match="the axes of the plan are 'data'"):
        plan.on(gdt.create_mesh([("model", 4)]))
    with gdt.default_mesh(gdt.create_mesh([("x", 4)])), pytest.raises(MeshError, match="'data'"):
        plan.apply(Network(4, 1))
    with pytest.raises(ShapeError, match="3 micro-batches do not divide the rows"):
        of_network(4, 8)(plan)()


def test_the_error_of_a_step_is_the_users() -> None:
    def make_step(plan: ParallelPlan) -> Callable[[], Any]:
        raise GradientError("mine")

    with pytest.raises(GradientError, match="mine"):
        gdt.plan(make_step, 2, machine=machine(FAST, FAST))


def test_plans_that_a_step_refuses_are_named() -> None:
    def make_step(plan: ParallelPlan) -> Callable[[], Any]:
        if plan.count("model") == 2:
            raise RuntimeError("not by two")
        return of_network(1024, 8)(plan)

    plans = gdt.plan(make_step, 2, machine=machine(FAST, FAST))
    assert {p.mesh.axis_names for p in plans.refused} == {("model",)}
    assert all(p.mesh.axis_names == ("data",) for p in plans)
    count = len(plans.refused)
    assert str(plans).splitlines()[-1] == f"refused by {count} plans: RuntimeError: not by two"


def test_a_model_is_made_in_each_call() -> None:
    models: list[nn.Module] = []

    def make_step(plan: ParallelPlan) -> Callable[[], Any]:
        with gdt.default_mesh(plan.mesh):
            models[:] = models or [Network(16, 1)]
        return of_model(lambda: models[0], (8, 16))(plan)

    with pytest.raises(ArgumentError, match="to a model to which one was applied before"):
        gdt.plan(make_step, 2, machine=machine(FAST, FAST))


def test_a_step_on_another_mesh_is_refused() -> None:
    mesh = gdt.create_mesh([("data", 2)], device_type="abstract")
    with pytest.raises(
        ArgumentError, match=r"run on Mesh\(data=2\), and the plan is of Mesh\(data=8"
    ):
        gdt.plan(lambda plan: SMALL(plan.on(mesh)), 8, machine=machine(FAST, FAST))


def test_the_error_of_a_step_is_raised_at_once() -> None:
    """With the whole model, it is made once more where blocks were left out alone."""
    for count, known, calls in ((1, ValueError, 1), (8, ValueError, 2), (8, RuntimeError, 1)):
        made = []

        def make_step(plan: ParallelPlan, count: int = count, kind: type = known) -> Any:
            made.append(of_network(16, 8, count)(plan))  # noqa: B023
            raise kind("mine")

        with pytest.raises(known, match="mine"):
            gdt.plan(make_step, 2, machine=machine(FAST, FAST))
        assert len(made) == calls


def test_links_say_which_axes_a_mesh_may_have() -> None:
    of_machine = gdt.Machine(
        flops={"float32": 1e13}, bandwidth=1e12, memory=1e9, links={"data": gdt.Link(FAST)}
    )
    plans = gdt.plan(of_network(64, 4), 4, machine=of_machine)
    assert {plan.mesh.axis_names for plan in plans} == {("data",)}
    assert len(RankedPlans(plans[:2], 2, 2, 0.1)) == 2
