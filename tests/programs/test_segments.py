"""Recorded steps on several simulated GPUs, with NCCL between them: they are launched with the
addresses of their capture, and nothing else changes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import Layout, Mesh
from gdt.array.array import DistributedArray
from gdt.autodiff import buckets
from gdt.backend import backend_of
from gdt.caches import Cache
from gdt.comm.transport import transport_of
from gdt.errors import DistributedError, FunctionError
from gdt.programs import replay
from gdt.programs.function import Function
from gdt.programs.graphs.cuda_graph import StepGraph
from tests.replays import TwoCalls, any_values, same
from tests.samples import SAMPLES
from tests.strict import engine

from .test_cuda_graph import HOST, LIBRARY, WARM, calls_of, graph_of

MESHES = {"4 on 4": ({"x": 2, "y": 2}, 4), "8 on 2": ({"x": 4, "y": 2}, 2)}
GPUS = pytest.mark.parametrize("gpus", MESHES, indirect=True)


@pytest.fixture
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mesh]:
    """Several GPUs, as far as CuPy's interface goes on the host, with NCCL between them."""
    sizes, count = MESHES[getattr(request, "param", "4 on 4")]
    mesh = engine.mesh_with_nccl(sizes, count, monkeypatch)
    with gdt.default_mesh(mesh):
        yield mesh
    assert not engine.CUPY.machine.captures
    assert not engine.CUPY.order.faults


def training_step(
    loss: Callable[[Any, DistributedArray], DistributedArray],
    weights: dict[str, DistributedArray],
    optimizer: gdt.optim.Optimizer,
) -> Callable[[DistributedArray], DistributedArray]:
    """A step that updates weights by the gradient of a loss, and returns the loss."""

    def step(x: DistributedArray) -> DistributedArray:
        value, gradients = gdt.value_and_grad(loss)(weights, x)
        optimizer.update(weights, gradients)
        return value

    return step


def segments_of(step: Function) -> list[list[str]]:
    """The names of the instructions in each piece of a step; in capitals, those in which the host
    waits."""
    graph = graph_of(step)
    assert graph is not None
    return [
        [k.name.upper() if k.waits else k.name for k in piece.program.instructions]
        for piece in graph.pieces
    ]


def asked(nccl: Any) -> list[int]:
    """Launches and captures of graphs, calls of NCCL, and arrays that were allocated, so far."""
    counts = calls_of("launch"), calls_of("begin_capture"), len(nccl.calls)
    return [*counts, engine.CUPY.machine.allocations]


# ---------------------------------------------------------------- pieces


def normalized(mesh: Mesh) -> tuple[dict[str, DistributedArray], Function]:
    """A step that computes, adds over all devices, and computes with the sum."""
    state = {"w": gdt.ones(4, layout=Layout([None], mesh))}

    @gdt.function
    def step(x: DistributedArray) -> DistributedArray:
        total = gdt.sum(gdt.exp(x * 0.5), axis=0).resolve()
        state["w"] = state["w"] * 0.5 + total / 8
        return total * state["w"]

    return state, step


@GPUS
def test_what_is_computed_between_collectives_is_launched(gpus: Mesh) -> None:
    state, step = normalized(gpus)
    other, as_written = normalized(gpus)
    nccl, count = transport_of(gpus).nccl, len(gpus.blocks)  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    for n in range(8):
        x = gdt.asarray(rng.standard_normal((8, 4)), layout=Layout(["x", None], gpus))
        before = asked(nccl)
        found = step(x)
        spent = [now - was for now, was in zip(asked(nccl), before, strict=True)]
        if n > WARM:
            # Graphs before, beside and after, on each GPU; a call of NCCL; what is returned.
            assert spent == [3 * count, 0, count, count]
        assert same(found, as_written._function(x))
        assert same(state["w"], other["w"])
    (names,) = segments_of(step)
    assert [name for name in names if name in ("relayout", "join")] == ["relayout", "join"]


def test_a_step_that_ends_with_a_collective_has_no_graph_after_it(gpus: Mesh) -> None:
    step = gdt.function(lambda x: gdt.sum(x * 2).resolve())
    for n in range(7):
        before = calls_of("launch")
        found = step(gdt.full(8, float(n), layout=Layout([("x", "y")], gpus)))
        assert float(found) == 16.0 * n
        assert calls_of("launch") - before == (len(gpus.blocks) if n >= WARM else 0)
    assert segments_of(step) == [["multiply", "sum", "relayout", "join"]]


def test_a_step_without_collectives_is_one_graph_of_each_device(gpus: Mesh) -> None:
    step = gdt.function(lambda x: gdt.exp(x) + 1)
    x = gdt.asarray(np.arange(8.0), layout=Layout([("x", "y")], gpus))
    for _ in range(WARM + 2):
        found = step(x)
    assert same(found, gdt.exp(x) + 1)
    assert segments_of(step) == [["exp", "add"]]


def test_what_the_host_waits_in_is_not_captured(gpus: Mesh) -> None:
    """How much a sort sends depends on the data."""
    step = gdt.function(lambda x: gdt.sort(gdt.exp(x)) * 2)
    layout, rng = Layout([("x", "y")], gpus), np.random.default_rng(0)
    for n in range(WARM + 3):
        values, before = rng.standard_normal(64), calls_of("begin_capture")
        np.testing.assert_allclose(
            step(gdt.asarray(values, layout=layout)).numpy(), np.sort(np.exp(values)) * 2
        )
        captures = calls_of("begin_capture") - before
        assert captures == (2 * len(gpus.blocks) if n == WARM else 0)
    assert segments_of(step) == [["exp"], ["SORT_VECTOR"], ["multiply"]]


@pytest.mark.parametrize("is_under_way", [True, False])
def test_a_step_that_waits_for_devices_itself_is_launched(is_under_way: bool, gpus: Mesh) -> None:
    """Before a collective that runs beside it, or while one does."""
    whole = Layout([None], gpus)

    @gdt.function
    def step(x: DistributedArray) -> DistributedArray:
        y = x * 2.0
        if is_under_way:
            y = gdt.relayout(y, whole)
        gdt.synchronize()
        return gdt.relayout(y, whole) + gdt.sum(x).resolve()

    for n in range(WARM + 3):
        x = gdt.full(8, float(n), layout=Layout([("x", "y")], gpus))
        assert step(x).tolist() == [10.0 * n] * 8
    (names,) = segments_of(step)
    assert "join" in names


def test_arrays_of_different_devices_are_computed_by_the_program(gpus: Mesh) -> None:
    one = engine.mesh({"x": 2, "y": 2})
    step = gdt.function(lambda x, y: (x * 2, y * 3))
    for _ in range(WARM + 2):
        x, y = gdt.ones(4), gdt.ones(4, layout=Layout([None], one))
        assert [a.tolist() for a in step(x, y)] == [[2.0] * 4, [3.0] * 4]
    assert graph_of(step) is None


def test_what_is_computed_on_the_host_is_computed_in_every_call(gpus: Mesh) -> None:
    cpu = gdt.create_mesh({"x": 2, "y": 2}, device_type="CPU")
    held, x = {"weights": gdt.ones(4, layout=Layout([None], cpu))}, gdt.ones(4)
    step = gdt.function(lambda x: (x * 2, held["weights"] + 1))
    for n in range(WARM + 3):
        held["weights"] = gdt.full(4, float(n), layout=Layout([None], cpu))
        assert [a.tolist() for a in step(x)] == [[2.0] * 4, [n + 1.0] * 4]
    assert graph_of(step) is None


# ---------------------------------------------------------------- what is overwritten, and what not


@GPUS
def test_what_others_put_in_a_place_is_read_and_what_they_keep_stays(gpus: Mesh) -> None:
    state, step = normalized(gpus)
    other, as_written = normalized(gpus)
    kept = []
    for n in range(16):
        if n in (6, 7, 11):
            for owner in (state, other):
                owner["w"] = gdt.full(4, float(n), layout=owner["w"].layout)
        if n % 5 == 4:
            kept += [state["w"], state["w"][1:], other["w"].copy(), other["w"][1:].copy()]
        x = gdt.full((8, 4), n / 8, layout=Layout(["x", None], gpus))
        assert same(step(x), as_written._function(x))
        assert same(state["w"], other["w"])
    for i in range(0, len(kept), 4):
        assert same(kept[i : i + 2], kept[i + 2 : i + 4])


def test_state_that_a_collective_makes_or_reads_stays_in_its_memory(gpus: Mesh) -> None:
    """Weights that are split between steps and gathered in them, and a sum that is kept."""
    split, whole = Layout([("x", "y")], gpus), Layout([None], gpus)

    def steps(wrap: Callable[[Any], Any]) -> tuple[dict[str, Any], Any]:
        state = {
            "w": gdt.asarray(np.arange(8.0), layout=split),
            "sum": gdt.zeros(8, layout=whole),
            "last": gdt.zeros(8, layout=whole),
        }

        def step(x: DistributedArray) -> list[DistributedArray]:
            view = state["w"][::-1][::-1]
            gathered = gdt.relayout(view, whole)
            before = gathered + state["sum"] + state["last"]
            state["sum"] = gdt.relayout(state["w"] * x, whole)
            state["w"] = gdt.relayout(gathered * 0.5, split) + x
            state["last"] = gdt.relayout(state["w"], whole)
            return [gathered, view, before, state["sum"]]

        return state, wrap(step)

    (state, step), (other, as_written) = steps(gdt.function), steps(lambda f: f)
    where: list[Any] = []
    for n in range(9):
        x = gdt.full(8, float(n), layout=split)
        assert same(step(x), as_written(x))
        assert all(same(state[k], other[k]) for k in state)
        where.append([b.data.ptr for k in state for b in state[k].blocks])
    assert where[WARM + 1 :] == [where[WARM]] * (8 - WARM)


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_gradients_in_buckets_are_sent_beside_the_graphs(
    name: str, size: int, gpus: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gdt.autodiff.backward, "BACKWARDS", Cache(0))
    monkeypatch.setattr(buckets, "SIZE", size)
    make = {"sgd": lambda: gdt.optim.SGD(0.1, 0.9), "adam": lambda: gdt.optim.Adam(0.1)}[name]
    rows = Layout([("x", "y"), None], gpus)

    def training(wrap: Callable[[Any], Any]) -> tuple[dict[str, Any], Any]:
        weights = {
            k: gdt.full(8, v, layout=Layout([None], gpus))
            for k, v in {"a": 0.5, "b": 0.25, "c": 2.0}.items()
        }
        optimizer = make()

        def loss(w: Any, x: DistributedArray) -> DistributedArray:
            h = gdt.tanh(gdt.tanh(x * w["a"]) * w["b"])
            return gdt.mean((h * w["c"] - 1) ** 2)

        return weights, wrap(training_step(loss, weights, optimizer))

    rng = np.random.default_rng(0)
    batches = [gdt.asarray(rng.standard_normal((8, 8)), layout=rows) for _ in range(7)]
    weights, step = training(gdt.function)
    found = [step(x).numpy() for x in batches]
    (names,) = segments_of(step)
    is_early = names.count("join") > 1  # one is of the rest, and of the loss
    assert is_early == (size < 1 << 20)
    with monkeypatch.context() as patch:
        patch.setattr(replay, "step_graph", lambda *_: None)
        others, by_plans = training(gdt.function)
        want = [by_plans(x).numpy() for x in batches]
    assert same([*weights.values()], [*others.values()])
    np.testing.assert_array_equal(found, want)


def test_sums_follow_the_order_in_memory_of_what_a_step_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where graphs have a copy of it: they give the same bits."""
    mesh = engine.mesh_with_nccl({"x": 4, "y": 2}, 2, monkeypatch)
    recorded = gdt.function(gdt.sum)
    for n in range(WARM + 3):
        values = np.random.default_rng(n).standard_normal((64, 24)).astype("f4") * 100
        x = gdt.asarray(values, layout=Layout([None, "y"], mesh))
        assert not engine.host(x.blocks[0]).flags.c_contiguous
        assert recorded(x).numpy() == gdt.sum(x).numpy()


@GPUS
def test_numbers_are_constants_on_every_device(gpus: Mesh) -> None:
    x = gdt.ones((8, 4), layout=Layout(["x", None], gpus))
    scaled = gdt.function(lambda x: gdt.sum(x * np.float64(3), axis=0).resolve() + gdt.asarray(1.0))
    for n in range(7):
        assert scaled(x * float(n)).tolist() == [24.0 * n + 1] * 4
    assert graph_of(scaled).is_captured  # type: ignore[union-attr]


# ---------------------------------------------------------------- functions, and errors


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - HOST)[::3])
def test_functions_on_several_devices_are_captured(name: str, gpus: Mesh) -> None:
    calls = TwoCalls.of(name, SAMPLES[name][0], gpus, seed=f"{name} several")
    with any_values():
        expected = calls.expected()
        if expected is None:
            return
        step = gdt.function(calls.function)
        for _ in range(WARM):
            step(*calls.first)
        try:
            found = step(*calls.first), step(*calls.second)
        except FunctionError as e:
            assert name in LIBRARY, e
            return
        assert same(found, (calls.function(*calls.first), expected))


def test_what_runs_beside_a_launch_that_fails_has_ended_before_the_next(
    gpus: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what was begun before a collective in which the host waits, and joined after it."""
    nccl = transport_of(gpus).nccl  # type: ignore[attr-defined]
    rows, whole = Layout([("x", "y"), None], gpus), Layout([None, None], gpus)

    @gdt.function(verify=0)
    def step(x: DistributedArray) -> DistributedArray:
        gathered = gdt.relayout(x * 2.0, whole)
        return gathered + gdt.sort(x[:, 0])

    def fail() -> None:
        nccl.depth = 0
        raise nccl.NcclError("unhandled system error")

    x = gdt.asarray(np.arange(64.0).reshape(8, 8), layout=rows)
    for n in range(WARM + 3):
        if n <= WARM:
            step(x)
            continue
        ends, end = [*range(2)], nccl.groupEnd
        with monkeypatch.context() as patch, pytest.raises(DistributedError):
            patch.setattr(nccl, "groupEnd", lambda: end() if ends.pop() else fail())  # noqa: B023
            step(x)
        assert same(step(x), step._function(x))


def test_an_error_in_any_segment_names_the_line_and_changes_nothing(gpus: Mesh) -> None:
    w = {"w": gdt.ones((4, 4)), "count": gdt.asarray(0)}

    def step(x: DistributedArray) -> DistributedArray:
        w["count"] = w["count"] + 1
        total = gdt.sum(x, axis=0, keepdims=True).resolve()
        return total @ w["w"]  # this line

    recorded = gdt.function(step)
    x = gdt.ones((8, 4), layout=Layout(["x", None], gpus))
    for _ in range(WARM):
        recorded(x)
    line = step.__code__.co_firstlineno + 3
    for _ in range(2):
        launches = calls_of("launch")
        with pytest.raises(FunctionError) as caught:
            recorded(x)
        text = str(caught.value)
        assert text.startswith(
            f"step: matrix_product, which line {line} of {__file__} (step) calls"
        )
        assert calls_of("launch") == launches
    assert int(w["count"]) == WARM
    assert (x + 1).tolist() == [[2.0] * 4] * 8


# ---------------------------------------------------------------- the simulation


def test_captures_of_several_devices_are_under_way_at_once(gpus: Mesh) -> None:
    cupy, backend = engine.CUPY, backend_of(gpus)
    xs = []
    for i in range(3):
        with cupy.cuda.Device(i):
            xs.append(cupy.asarray(np.full(3, float(i))))
    with backend.capture(0, 1) as graph:  # type: ignore[attr-defined]
        made = []
        for i, x in enumerate(xs):
            with cupy.cuda.Device(i):
                made.append(x + 1.0)
    for n in range(2):
        for i, x in enumerate(xs):
            with cupy.cuda.Device(i):
                x[...] = 10.0 * n + i
        graph.launch()
        # The last device was not captured: it has computed at once.
        assert [engine.host(y)[0] for y in made] == [10.0 * n + 1, 10.0 * n + 2, 3.0]


@pytest.mark.parametrize(("devices", "status"), [((0, 1), "Merge"), ((0,), "Isolation")])
def test_an_event_does_not_order_captures(
    devices: tuple[int, ...], status: str, gpus: Mesh
) -> None:
    streams, backend = engine.CUPY.cuda, backend_of(gpus)
    with (
        pytest.raises(gdt.errors.DeviceError, match=f"Capture{status}"),
        backend.capture(*devices),  # type: ignore[attr-defined]
    ):
        with streams.Device(0):
            event = streams.get_current_stream(0).record()
        streams.get_current_stream(1).wait_event(event)


def test_memory_of_graphs_lives_as_long_as_they_do(gpus: Mesh) -> None:
    """CuPy's pool frees what no array has where it lacks memory."""
    with backend_of(gpus).capture(0) as graph:  # type: ignore[attr-defined]
        memory = graph.pool.allocator(512).mem
        others = [graph.pool.allocator(8) for _ in range(2)]
    assert memory.size == 512
    reference = weakref.ref(memory)
    del memory, others  # as the pool does
    assert reference() is not None
    del graph
    engine.CUPY.calls.clear()  # which names the pool
    assert reference() is None


def test_what_a_graph_beside_others_reads_is_sent_once(gpus: Mesh) -> None:
    backend: Any = backend_of(gpus)
    devices, made = range(len(gpus.blocks)), []
    with backend.capture(*devices) as graph:
        with backend.overlapping(gpus) as events:
            for i in devices:
                with backend.on(gpus, i):
                    made.append(backend.upload(np.arange(3.0)) * (i + 1.0))
        backend.join(gpus, events)
        for i in devices:
            with backend.on(gpus, i):
                made[i] += 1.0
    for _ in range(2):
        graph.launch()
        found = [engine.host(y).tolist() for y in made]
        assert found == [[1.0, 2.0 + i, 3.0 + 2 * i] for i in devices]


def test_more_arrays_than_one_kernel_joins_are_sent_together(gpus: Mesh) -> None:
    """Gradients of many small parameters, by one collective: of more than 8 CuPy sends the host's
    table of addresses, which a graph cannot hold."""

    def training(wrap: Callable[[Any], Any]) -> tuple[dict[str, Any], Any]:
        layout = Layout([None], gpus)
        weights = {str(n): gdt.full(n, 0.5, layout=layout) for n in range(1, 13)}
        optimizer = gdt.optim.SGD(0.1)

        def loss(w: Any, x: DistributedArray) -> DistributedArray:
            return gdt.mean(gdt.concatenate([x[:, : a.shape[0]] * a for a in w.values()], 1) ** 2)

        return weights, wrap(training_step(loss, weights, optimizer))

    rng = np.random.default_rng(0)
    (weights, step), (others, as_written) = training(gdt.function), training(lambda f: f)
    for _ in range(WARM + 2):
        x = gdt.asarray(rng.standard_normal((8, 12)), layout=Layout(["x", None], gpus))
        assert same(step(x), as_written(x))
        assert same([*weights.values()], [*others.values()])
    assert graph_of(step).is_captured  # type: ignore[union-attr]


def test_a_launch_uses_memory_when_it_runs(gpus: Mesh) -> None:
    """What a graph writes on one stream is not there for another that does not wait for it."""
    cupy, backend, faults = engine.CUPY, backend_of(gpus), engine.CUPY.order.faults
    x = cupy.asarray(np.ones(3))
    with backend.capture(0) as graph:  # type: ignore[attr-defined]
        y = x * 2.0
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.wait_event(cupy.cuda.get_current_stream().record())
    graph.launch()
    with stream:
        y + 1.0
    assert {*faults} == {"read before it was written"}
    faults.clear()


def test_the_graph_of_one_device_is_one_piece() -> None:
    with gdt.default_mesh(engine.mesh({"x": 2, "y": 2})):
        step = gdt.function(lambda x: gdt.sum(x * 2).resolve())
        for _ in range(WARM + 1):
            step(gdt.ones(4))
    graph = graph_of(step)
    assert isinstance(graph, StepGraph) and len(graph.pieces) == 1
