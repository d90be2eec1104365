"""Recorded steps as CUDA graphs, on devices that simulate stream capture: a launch computes with
what the arrays hold by then, and gives bit for bit what the step gives."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.array.array import DistributedArray
from gdt.errors import FunctionError
from gdt.programs.function import Function
from gdt.programs.graphs.cuda_graph import StepGraph
from tests.replays import TwoCalls, any_values, same
from tests.samples import SAMPLES, fft, linalg, masks, quantiles, sets, sorting
from tests.strict import contract, engine

engine.register()
MESH = engine.mesh({"x": 2, "y": 2})
WARM = 3  # calls before the first capture: as written, recorded, and by the program
HOST = {*masks.SAMPLES, *sets.SAMPLES, "pack"}  # what reads values
LIBRARY = {  # what calls cuBLAS, as it does without gdt's kernels, or cuFFT and cuSOLVER
    *fft.SAMPLES, *linalg.SAMPLES, *quantiles.SAMPLES, *sorting.SAMPLES,
    "attention", "convolution", "transposed_convolution",
    "contraction", "dot", "einsum", "inner", "matmul", "matrix_product", "matrix_product_nt",
    "matrix_product_tn", "outer", "tensordot", "vdot",
}  # fmt: skip


def graph_of(step: Function) -> StepGraph | None:
    (((recording, *_), _),) = step._recordings.values()
    return recording.graph


def calls_of(what: str) -> int:
    """How often streams were asked for something."""
    return sum(call == what for _, call, _ in engine.CUPY.calls)


@pytest.fixture(autouse=True)
def on_one_device() -> Any:
    with gdt.default_mesh(MESH):
        yield


@pytest.mark.parametrize("samples", [1, pytest.param(2, marks=pytest.mark.layouts_full)])
@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - HOST - contract.LACKED))
def test_every_function_is_captured(name: str, samples: int) -> None:
    for n, sample in enumerate(SAMPLES[name][:samples]):
        calls = TwoCalls.of(name, sample, MESH, seed=f"{name} {n} graph")
        with any_values():
            expected = calls.expected()
            if expected is None:
                continue
            step = gdt.function(calls.function)
            for _ in range(WARM):
                step(*calls.first)
            graph = graph_of(step)
            try:
                found = step(*calls.first), step(*calls.second)
            except FunctionError as e:
                assert name in LIBRARY, e
                continue
        as_written = calls.function(*calls.first), expected
        assert same(found, as_written), (name, sample, calls.types())
        assert graph is None or graph.is_captured
        assert graph is not None or not calls.first


# ---------------------------------------------------------------- what is overwritten, and what not


def counting() -> tuple[dict[str, DistributedArray], Function]:
    """A step that adds its argument to a total, and returns the total before and twice after."""
    kept = {"total": gdt.zeros(3), "unit": gdt.ones(3)}

    @gdt.function
    def step(x: DistributedArray) -> Any:
        before = kept["total"]
        kept["total"] = before + x * kept["unit"]
        return before, kept["total"] * 2

    return kept, step


def test_a_launch_reads_and_writes_what_the_step_does() -> None:
    kept, step = counting()
    results = [step(gdt.full(3, float(n))) for n in range(8)]
    totals = [sum(range(n)) for n in range(9)]
    for n, (before, doubled) in enumerate(results):  # all are still what they were
        assert before.tolist() == [totals[n]] * 3
        assert doubled.tolist() == [2.0 * totals[n + 1]] * 3
    assert kept["total"].tolist() == [totals[8]] * 3


def test_a_step_is_launched_once_for_each_call() -> None:
    kept, step = counting()
    x = gdt.ones(3)
    for _ in range(WARM):
        step(x)
    before = {what: calls_of(what) for what in ("begin_capture", "launch")}
    for _ in range(5):
        step(x)
    assert calls_of("begin_capture") - before["begin_capture"] == 1
    assert calls_of("launch") - before["launch"] == 5
    assert kept["total"].tolist() == [8.0] * 3


def test_state_stays_in_its_memory_and_a_launch_waits_for_nothing() -> None:
    kept, step = counting()
    x = gdt.ones(3)
    for _ in range(WARM + 1):
        step(x)
    where = kept["total"].blocks[0].data.ptr
    waits, allocations = len(engine.CUPY.transfers), engine.CUPY.machine.allocations
    for _ in range(4):
        step(x)
    assert kept["total"].blocks[0].data.ptr == where
    assert len(engine.CUPY.transfers) == waits
    # Nothing but the two arrays that each call returns.
    assert engine.CUPY.machine.allocations == allocations + 4 * 2


def test_verification_launches_the_graphs_and_leaves_them_as_they_are() -> None:
    kept, scale = {"total": gdt.zeros(3)}, np.array([1.0])

    @gdt.function(verify=1)
    def step(x: DistributedArray) -> DistributedArray:
        kept["total"] = kept["total"] + x * float(scale[0])
        return kept["total"] * 2

    for _ in range(WARM + 1):
        step(gdt.ones(3))
    before = {what: calls_of(what) for what in ("begin_capture", "launch")}
    for n in range(4):
        assert step(gdt.ones(3)).tolist() == [2.0 * (WARM + n + 2)] * 3
    assert calls_of("begin_capture") == before["begin_capture"]
    assert calls_of("launch") == before["launch"] + 4
    scale[0] = 2.0  # a recording sees nothing of NumPy's elements
    with pytest.raises(FunctionError, match="differ in what it returns"):
        step(gdt.ones(3))
    assert kept["total"].tolist() == [WARM + 5 + 2.0] * 3


def test_what_somebody_has_kept_does_not_change() -> None:
    kept, step = counting()
    history, views = [], []
    for n in range(12):
        step(gdt.ones(3))
        if n % 3 == 0:
            history.append((n, kept["total"]))
        if n % 4 == 0:
            views.append((n, kept["total"][1:]))
    assert [h.tolist() for _, h in history] == [[n + 1.0] * 3 for n, _ in history]
    assert [v.tolist() for _, v in views] == [[n + 1.0] * 2 for n, _ in views]


@pytest.mark.parametrize("is_returned", [True, False])
def test_a_view_that_the_step_has_made_does_not_change(is_returned: bool) -> None:
    w, optimizer = {"w": gdt.ones((4, 6))}, gdt.optim.SGD(0.5)

    @gdt.function
    def step() -> DistributedArray:
        view = w["w"][:, 1:3]
        optimizer.update(w, {"w": gdt.ones((4, 6))})
        return view if is_returned else gdt.sum(view) / 8

    found = [float(gdt.mean(step())) for _ in range(WARM + 4)]
    assert found == [1 - 0.5 * n for n in range(WARM + 4)]
    assert graph_of(step).is_captured  # type: ignore[union-attr]


def test_arrays_that_others_put_in_a_place_are_read() -> None:
    kept, step = counting()
    for n in range(12):
        if n == 5:
            kept["total"] = gdt.full(3, 100.0)
        if n in (7, 9, 10):
            kept["unit"] = gdt.full(3, float(n))
        before = kept["total"].tolist()
        want = [b + u for b, u in zip(before, kept["unit"].tolist(), strict=True)]
        step(gdt.ones(3))
        assert kept["total"].tolist() == want


def test_arrays_that_change_places_do() -> None:
    kept = {"a": gdt.zeros(2), "b": gdt.ones(2)}

    @gdt.function
    def swap() -> None:
        kept["a"], kept["b"] = kept["b"], kept["a"]

    for n in range(7):
        assert (kept["a"].tolist(), kept["b"].tolist()) == ([n % 2] * 2, [1 - n % 2] * 2)
        swap()


def test_steps_share_their_state_with_each_other_and_with_eager_updates() -> None:
    w = {"w": gdt.ones(4)}
    optimizer = gdt.optim.SGD(0.5)
    gradient = {"w": gdt.ones(4)}

    @gdt.function
    def down() -> None:
        optimizer.update(w, gradient)

    @gdt.function
    def up() -> None:
        optimizer.update(w, {"w": gdt.negative(gradient["w"])})

    for n in range(12):
        if n % 4 == 3:
            optimizer.update(w, gradient)
            want = 0.5
        else:
            down()
            assert w["w"].tolist() == [0.5] * 4
            want = 1.0
            up()
        assert w["w"].tolist() == [want] * 4
        w["w"] = w["w"] + (1.0 - want)
    assert optimizer.steps == 3 + 2 * 9


def test_calls_on_different_streams_wait_for_each_other() -> None:
    kept, step = counting()
    with gdt.default_mesh(MESH):
        x = gdt.ones(3)
    for _ in range(WARM + 1):
        step(x)
    faults, waits = len(engine.CUPY.order.faults), calls_of("wait")
    streams = [engine.CUPY.cuda.Stream(non_blocking=True) for _ in range(2)]
    for stream in streams:
        stream.wait_event(engine.CUPY.cuda.get_current_stream().record())
    for n in range(4):
        with streams[n % 2]:
            step(gdt.ones(3))
    assert calls_of("wait") - waits == 2 + 4
    assert engine.CUPY.order.faults[faults:] == []
    assert kept["total"].tolist() == [8.0] * 3
    for stream in streams:  # before its memory goes back to the stream that it came from
        engine.CUPY.cuda.get_current_stream().wait_event(stream.record())


def test_threads_do_not_mix_their_operands() -> None:
    step = gdt.function(lambda x: x * 3)
    failures: list[Any] = []

    def work(first: int) -> None:
        with gdt.default_mesh(MESH):
            for n in range(first, first + 40):
                found = step(gdt.full(2, float(n))).tolist()
                failures.extend([] if found == [3.0 * n] * 2 else [found])

    with gdt.default_mesh(MESH):
        for _ in range(WARM + 1):
            step(gdt.ones(2))
    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []


# ---------------------------------------------------------------- what the host computes


def test_learning_rates_and_counts_are_those_of_the_call() -> None:
    def trained(wrap: Any) -> list[list[float]]:
        w = {"w": gdt.asarray([1.0, 2.0], dtype="float32")}
        optimizer = gdt.optim.Adam(lambda step: 0.1 / (1 + step))

        def step() -> None:
            optimizer.update(w, {"w": w["w"] * 2})

        run, values = wrap(step), []
        for n in range(10):
            if n == 7:
                optimizer.learning_rate = 0.3
            run()
            values.append(w["w"].tolist())
        assert optimizer.steps == 10
        return values

    assert trained(gdt.function) == trained(lambda step: step)


def test_random_numbers_go_on_and_start_anew_with_a_seed() -> None:
    draw = lambda: gdt.random.uniform((4, 4))
    drawn = gdt.function(draw)
    for _ in range(2):
        gdt.random.seed(5)
        expected = [draw().tolist() for _ in range(6)]
        gdt.random.seed(5)
        assert [drawn().tolist() for _ in range(6)] == expected


def test_numbers_are_constants_of_the_graph() -> None:
    weighted = gdt.function(lambda x: gdt.sum(x * np.float64(2) + gdt.asarray(1)))
    for n in range(1, 8):
        assert float(weighted(gdt.full(3, float(n)))) == 6.0 * n + 3


# ---------------------------------------------------------------- what is not captured


def test_what_cannot_be_captured_is_named_with_the_line_of_the_user() -> None:
    w = {"w": gdt.ones((2, 2)), "count": gdt.asarray(0)}

    def step(x: DistributedArray) -> DistributedArray:
        w["count"] = w["count"] + 1
        return x @ w["w"]  # this line

    recorded, x = gdt.function(step), gdt.ones((2, 2))
    for _ in range(WARM):
        recorded(x)
    line = step.__code__.co_firstlineno + 2
    for _ in range(2):
        with pytest.raises(FunctionError) as caught:
            recorded(x)
        text = str(caught.value)
        assert text.startswith(
            f"step: matrix_product, which line {line} of {__file__} (step) calls"
        )
        assert "cuBLAS" in text and "call the step without gdt.function" in text
    assert int(w["count"]) == WARM  # nothing was changed
    assert engine.CUPY.machine.capture is None
    assert (x + 1).tolist() == [[2.0, 2.0]] * 2


def test_a_choice_of_the_matrix_product_is_part_of_the_graph() -> None:
    step = gdt.function(lambda x: x + 1)
    for name in ("handwritten", "cublas"):
        with gdt.matmul_backend(name):
            for _ in range(WARM + 1):
                step(gdt.ones(2))
    assert len(step.programs) == 2


def test_arrays_of_the_host_are_computed_by_the_program() -> None:
    mesh = gdt.create_mesh({"x": 2}, device_type="CPU")
    step = gdt.function(lambda x: gdt.sum(x * 2).resolve())
    for n in range(5):
        x = gdt.full(4, float(n), layout=gdt.Layout(["x"], mesh))
        assert float(step(x)) == 8.0 * n
    assert graph_of(step) is None
