"""CUDA graphs in one of two processes: its notes, which the other compares, are those of plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import gdt
from bench.gdt_steps import trainer_on
from bench.workloads import IMDB
from examples import imdb, mnist
from gdt import Layout, Mesh
from gdt.backend import backend_of, register_backend
from gdt.comm import notes
from gdt.comm import transport as transports
from gdt.comm.agreement import Action, Maker
from gdt.comm.differences import difference
from gdt.errors import DistributedError
from gdt.nn.losses import sparse_softmax_cross_entropy
from gdt.programs import replay
from gdt.programs.function import Function
from gdt.programs.graphs.program_notes import ProgramNotes, can_note
from gdt.programs.instruction import Instruction
from tests.needs import need_compiler

from . import strict_kernels
from .host_costs import STRICT, WARM, ZerosBackend, counted
from .twin_process import one_of_two

pytestmark = pytest.mark.usefixtures("own_backends")
CUPY = strict_kernels.CUPY
STEPS, BATCH, FEATURES, HIDDEN = 8, 16, 24, 8
CAPTURED = 3  # the first step that launches graphs: as written, recorded, and by the program
KEPT = [4, 6]  # the steps before which the user keeps the parameters


class After(NamedTuple):
    """What a step has noted so far, and the graphs that it has launched."""

    count: int
    checksum: int
    launches: int


class Training(NamedTuple):
    """The losses of a training and its parameters at the end; what was known after each step; and
    the notes as they are told to other processes."""

    values: list[np.ndarray]
    after: list[After]
    told: dict[str, Any]


Step = tuple[Any, type[gdt.optim.Optimizer]]


class Descent(gdt.optim.Optimizer):
    """Steepest descent by ops, which note the rate."""

    def apply(self, gradient: Any, parameter: Any, state: Any, *scalars: Any) -> Any:
        (rate,) = scalars
        return parameter - gradient * rate


def mnist_step(mesh: Mesh) -> Step:
    return mnist.MLP([FEATURES, HIDDEN, 4, 2], Layout([None, None], mesh)), gdt.optim.Adam


def descent_step(mesh: Mesh) -> Step:
    return mnist.MLP([FEATURES, HIDDEN, 4, 2], Layout([None, None], mesh)), Descent


def imdb_step(mesh: Mesh) -> Step:
    return imdb.MLP(Layout([None, None], mesh), Layout([None, None], mesh)), gdt.optim.SGD


def trained(
    make: Callable[[Mesh], Step], *, keeps: bool = False, late: float = 1.0, steps: int = STEPS
) -> Training:
    """A training in one of two processes, with dropout, whose statistics IMDB's layers merge.

    keeps: whether the user keeps the parameters before some steps. late: a factor of the learning
    rate from a step that graphs run on.
    """
    rng = np.random.default_rng(0)
    batches = rng.standard_normal((STEPS, BATCH, FEATURES)).astype("f4")
    labels = rng.integers(0, 2, (STEPS, BATCH))
    with one_of_two() as (history, mesh):
        gdt.random.seed(3)
        model, optimize = make(mesh)
        optimizer = optimize(lambda step: 0.02 / (1 + step) * (late if step > CAPTURED else 1))
        dropout, layout = gdt.nn.Dropout(0.25), Layout(["batch", None], mesh)
        loss = lambda m, x, y: sparse_softmax_cross_entropy(y, m(dropout(x)))
        value_and_grad = gdt.value_and_grad(loss)

        @gdt.function(verify=0)
        def step(x: Any, y: Any) -> Any:
            value, gradients = value_and_grad(model, x, y)
            optimizer.update(model, gradients)
            return value

        losses, after, kept = [], [], None
        for n in range(steps):
            x = gdt.asarray(batches[n], layout=layout)
            y = gdt.asarray(labels[n], layout=layout.delete([1]))
            if keeps and n in KEPT:
                kept = [*model.parameters().values()]
            before = launches()
            value = step(x, y)
            launched = launches() - before
            losses.append(value.numpy())  # of a sum over processes, which names who has made it
            after.append(After(history.count, history.checksum, launched))
        del kept
        values = [*losses, *[p.numpy() for p in model.parameters().values()]]
        return Training(values, after, history.told(""))


def launches() -> int:
    return [what for _, what, _ in CUPY.calls].count("launch")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    need_compiler()
    strict_kernels.register()
    monkeypatch.setattr(imdb, "TOKENS", FEATURES)
    monkeypatch.setattr(imdb, "HIDDEN", HIDDEN)
    CUPY.order.faults.clear()
    yield
    assert not CUPY.order.faults


@pytest.mark.parametrize("make", [mnist_step, descent_step, imdb_step])
def test_graphs_note_what_plans_and_the_step_as_it_is_written_note(
    make: Callable[[Mesh], Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(make, steps=1)  # makes what is kept between trainings
    graphs, kept = trained(make), trained(make, keeps=True)
    with monkeypatch.context() as patch:
        patch.setattr(replay, "step_graph", lambda *_: None)
        plans = trained(make)
        patch.setattr(Function, "_run", lambda self, arguments: self._first_call(arguments))
        written = trained(make)
    launched = [n for n, a in enumerate(graphs.after) if a.launches]
    assert launched == [*range(CAPTURED, STEPS)]
    assert [n for n in launched if not kept.after[n].launches] == KEPT
    assert not any(a.launches for a in (*plans.after, *written.after))
    for way in (kept, plans, written):
        assert [a[:2] for a in way.after] == [a[:2] for a in graphs.after]
        assert difference(graphs.told, way.told, True) is None
        for a, b in zip(graphs.values, way.values, strict=True):
            np.testing.assert_array_equal(a, b)
    assert [t[1:4] for t in graphs.told["notes"]] == [t[1:4] for t in plans.told["notes"]]
    other = difference(graphs.told, trained(make, late=2.0).told, True)
    assert other is not None
    assert other.problem == "the processes have taken different steps of an optimizer"


def ways(monkeypatch: pytest.MonkeyPatch, run: Callable[[Mesh], None]) -> list[After]:
    """What is known after a program that may launch graphs, and after one that may not."""
    found = []
    for may_launch in (True, False):
        with one_of_two() as (history, mesh), monkeypatch.context() as patch:
            if not may_launch:
                patch.setattr(replay, "step_graph", lambda *_: None)
            before = launches()
            run(mesh)
            found.append(After(history.count, history.checksum, launches() - before))
    return found


def test_collectives_name_the_ops_that_have_made_what_a_step_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where graphs have a copy of it."""

    def run(mesh: Mesh) -> None:
        layout, whole = Layout(["batch", None], mesh), Layout([None], mesh)
        step = gdt.function(lambda x: gdt.relayout(x, whole) * 2.0)
        for n in range(6):
            total = gdt.sum(gdt.asarray(np.full((4, 3), n, "f4"), layout=layout), axis=0)
            np.testing.assert_array_equal(step(total).numpy(), np.full(3, 8.0 * n, "f4"))

    graphs, plans = ways(monkeypatch, run)
    assert graphs[:2] == plans[:2]
    assert graphs.launches > plans.launches == 0


@pytest.mark.parametrize("is_state", [False, True])
def test_results_that_are_other_arrays_too_are_told_apart_alike(
    is_state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their blocks: graphs would return copies, so there are none."""

    def run(mesh: Mesh) -> None:
        layout = Layout(["batch", None], mesh)
        arrays = [gdt.asarray(np.ones((4, 3), "f4"), layout=layout)]

        def step(x: Any) -> Any:
            if not is_state:
                return x, x * 2.0
            arrays[0] = arrays[0] * 2.0
            return arrays[0], x * 2.0

        call = gdt.function(step, state=[arrays])
        for n in range(6):
            x = gdt.asarray(np.full((4, 3), n, "f4"), layout=layout)
            result, _ = call(x)
            gdt.add(result, arrays[0] if is_state else x).numpy()

    graphs, plans = ways(monkeypatch, run)
    assert graphs[:2] == plans[:2]
    assert graphs.launches == 0


def test_a_result_that_is_returned_twice_is_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(mesh: Mesh) -> None:
        @gdt.function
        def step(x: Any) -> Any:
            doubled = x * 2.0
            return doubled, gdt.sum(doubled), doubled

        for n in range(6):
            x = gdt.asarray(np.full((4, 3), n, "f4"), layout=Layout(["batch", None], mesh))
            first, _, last = step(x)
            gdt.exp(last).numpy()
            assert last.blocks[0] is first.blocks[0]

    graphs, plans = ways(monkeypatch, run)
    assert graphs[:2] == plans[:2]
    assert graphs.launches > plans.launches == 0


def test_programs_of_which_graphs_cannot_make_the_notes() -> None:
    """What the host draws is drawn first, and given to others in the memory of a GPU; and what has
    made a block that a collective combines must be told when the graph is launched."""
    draw = Instruction("rate", tuple, (), (1,), True, is_effect=True)
    values = [np.ones(3), 0.5, np.ones(3), np.ones(3)]
    product = Instruction("multiply", tuple, (0, 1), (2,), False)
    sent = product._replace(communicates=True)
    apart = sent._replace(waits=True)

    def can(*instructions: Instruction) -> bool:
        program: Any = SimpleNamespace(instructions=instructions, inputs=[0], outputs=[2, 3])
        return can_note(program, values, [0]) and ProgramNotes(program, values).is_complete

    def reduced(block: Any, number: int) -> Instruction:
        note = Action("op", "all_reduce of the results", "of calls"), [Maker.of(block, number)]
        return sent._replace(inputs=(2,), outputs=(3,), notes=(note,), last_note=9)

    with one_of_two():
        assert can(draw, product)
        assert can(draw, sent)
        assert can(apart._replace(inputs=(0,)))
        assert not can(draw, apart)
        assert not can(draw._replace(communicates=True), product)
        with notes.unnoted():
            assert not can(draw, product)
        made = product._replace(notes=((Action("op", "made"), ()),), last_note=8, named=(2,))
        assert can(made, reduced(values[2], 8))
        assert can(made, reduced(values[0], 0))
        assert not can(made._replace(waits=True, communicates=True), reduced(values[2], 8))
        assert not can(made, reduced(object(), 5))


def test_what_the_host_waits_in_is_noted_between_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which elements processes send each other for a median depends on the data."""

    def run(mesh: Mesh) -> None:
        layout, whole = Layout(["batch"], mesh), Layout([], mesh)

        @gdt.function
        def step(x: Any) -> Any:
            total = gdt.sum(gdt.exp(x)).resolve()
            middle = gdt.median(x * total)
            return gdt.relayout(gdt.sum(x * middle), whole) + middle

        for n in range(6):
            values = np.random.default_rng(n).standard_normal(8).astype("f4")
            found = step(gdt.asarray(values, layout=layout))
            doubled = np.concatenate([values[:4]] * 2).astype("f8")
            total = np.exp(doubled).sum()
            want = (doubled.sum() + 1) * np.median(doubled * total)
            np.testing.assert_allclose(found.numpy(), want, rtol=1e-4)

    graphs, plans = ways(monkeypatch, run)
    assert graphs[:2] == plans[:2]
    assert graphs.launches > plans.launches == 0


def test_what_nobody_waits_for_is_waited_for_in_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes send it, since others may run the step as it is written; what it reads is given to
    others when it has ended."""

    def run(mesh: Mesh) -> None:
        layout, whole = Layout(["batch"], mesh), Layout([None], mesh)

        @gdt.function
        def step(x: Any) -> Any:
            gdt.relayout(x * 2.0, whole)
            return gdt.exp(gdt.median(x) * x) + 1.0

        for n in range(6):
            step(gdt.full(8, n / 8, layout=layout)).numpy()

    graphs, plans = ways(monkeypatch, run)
    assert graphs[:2] == plans[:2]
    assert graphs.launches > plans.launches == 0


@pytest.mark.parametrize("failing", [1, 7, 8])  # of the 8 groups of calls of a step
def test_a_collective_that_fails_in_a_launch_is_named_and_nothing_is_lost(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the last, beside what is computed; the next call makes new communicators."""
    found = []
    for fails in (False, True):
        with one_of_two() as (_, mesh), monkeypatch.context() as patch:
            gdt.random.seed(3)
            model, optimize = imdb_step(mesh)
            optimizer = optimize(0.02)
            loss = lambda m, x, y: sparse_softmax_cross_entropy(y, m(x))
            value_and_grad = gdt.value_and_grad(loss)

            @gdt.function(verify=0)
            def step(x: Any, y: Any) -> Any:
                value, gradients = value_and_grad(model, x, y)  # noqa: B023
                optimizer.update(model, gradients)  # noqa: B023
                return value

            x = gdt.ones((BATCH, FEATURES), layout=Layout(["batch", None], mesh))
            y = gdt.zeros(BATCH, "int64", layout=Layout(["batch"], mesh))
            for _ in range(CAPTURED + 2):
                step(x, y)
            backend: Any = backend_of(mesh)
            nccl, left = transports.transport_of(mesh).nccl, [failing]  # type: ignore[attr-defined]
            end, before = nccl.groupEnd, launches()

            def fail() -> None:
                end()  # noqa: B023
                left[0] -= 1  # noqa: B023
                if left[0] == 0:  # noqa: B023
                    raise nccl.NcclError("unhandled system error")  # noqa: B023

            if fails:
                patch.setattr(nccl, "groupEnd", fail)
                with pytest.raises(DistributedError, match="NCCL: unhandled system error"):
                    step(x, y)
                assert launches() > before
                # What computes later waits for what was launched beside.
                streams = backend.compute_stream(0).ptr, backend.communication_stream(0).ptr
                compute, communication = [CUPY.order.clocks[stream] for stream in streams]
                assert compute[streams[1]] == communication[streams[1]]
            made = len(nccl.made)
            value = step(x, y).numpy()
            assert fails == (len(nccl.made) > made)
            found.append([value, *[p.numpy() for p in model.parameters().values()]])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_replay_in_a_process_is_fewer_frames_than_its_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Collectives issue the calls of NCCL again, with the addresses of the capture."""
    register_backend("twin", lambda: ZerosBackend(STRICT), lambda: 2)
    frames = []
    for may_launch in (True, False):
        with one_of_two("twin") as (_, mesh), monkeypatch.context() as patch:
            if not may_launch:
                patch.setattr(replay, "step_graph", lambda *_: None)
            step = trainer_on(mesh, "data", "captured")(IMDB)()
            for n in range(WARM + 1):
                step(n)
            frames.append(counted(partial(step, WARM + 1), Counter())["frames"])
    assert frames[0] < 200 < 1000 < frames[1]
