"""Communication beside computation in a step of FSDP: who waits for which collective, and when."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import gdt
from examples.parallel_gpt import fsdp
from gdt import Layout, Mesh, nn
from gdt.array import gathers, moving
from gdt.backend import backend_of
from gdt.backend.cupy import CupyBackend
from gdt.comm.launch import Launch
from gdt.comm.transport import transport_of
from tests.strict import engine
from tests.strict.timeline import Task, tasks_of

UPDATE = "adam_step"
WRAPS = {"plain": lambda block: block, "checkpointed": gdt.checkpointed}


class Block(nn.Module):
    """Two layers without products, which a simulated GPU captures in graphs, beside a residual."""

    def __init__(self) -> None:
        self.up, self.down = gdt.full(8, 0.5), gdt.full(8, 0.25)

    def __call__(self, x: Any) -> Any:
        return x + gdt.tanh(x * self.up) * self.down


class Network(nn.Module):
    """Three blocks, each a unit, and a head that the whole gathers. between: called after each."""

    def __init__(self) -> None:
        self.blocks, self.head = [Block() for _ in range(3)], gdt.full(8, 2.0)
        self.between: Callable[[], None] | None = None

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
            if self.between is not None:
                self.between()
        return x * self.head


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mesh]:
    """Simulated GPUs, whose streams use memory in order."""
    yield engine.mesh_with_nccl({"data": 2}, 2, monkeypatch)
    assert not engine.CUPY.order.faults


def training(mesh: Mesh, wrap: Callable[[Any], Any] = WRAPS["plain"]) -> tuple[Any, Any]:
    """A network of which every device keeps a part, and its step."""
    with gdt.default_mesh(mesh):
        model = Network()
    fsdp(mesh).apply(model)
    model.blocks = [wrap(block) for block in model.blocks]
    optimizer = gdt.optim.Adam(1e-2).init(model)
    rng, rows = np.random.default_rng(0), Layout(["data", None], mesh)
    x = gdt.asarray(rng.standard_normal((4, 8)), layout=rows)

    def step() -> gdt.DistributedArray:
        value, gradients = gdt.value_and_grad(lambda model: gdt.mean(model(x) ** 2))(model)
        optimizer.update(model, gradients)
        return value

    return model, step


def traced(mesh: Mesh, wrap: Callable[[Any], Any]) -> list[Task]:
    """The tasks of the third step, op by op."""
    _, step = training(mesh, wrap)
    step(), step()
    return tasks_of(step, mesh)


def check_waits(tasks: list[Task]) -> None:
    """Check that each task waits for what it reads alone; but for the launch of a reduce-scatter,
    before which computation waits for the last one, of which it frees what was read."""
    for task in tasks:
        for launch in task.waits:
            is_freed = task.name == launch.name == "reduce_scatter"
            assert is_freed or task.reads & launch.writes, f"{task.name} waits for {launch.name}"


@pytest.mark.parametrize("wrap", WRAPS)
def test_no_op_waits_for_a_collective_that_it_does_not_read(wrap: str, gpus: Mesh) -> None:
    tasks = traced(gpus, WRAPS[wrap])
    check_waits(tasks)
    waiting = [(launch, task) for task in tasks for launch in task.waits]
    for launch, task in waiting:
        if launch.name == "reduce_scatter":
            assert task.name in (UPDATE, "reduce_scatter")
    launches = [task for task in tasks if task.communicates]
    names = [launch.name for launch in launches]
    assert names == (
        ["all_gather"] * 6  # forwards the head and three blocks; backwards two blocks
        + ["reduce_scatter", "all_gather"] + ["reduce_scatter"] * 3 + ["all_reduce"]
    )  # fmt: skip
    scatters = [launch for launch in launches if launch.name == "reduce_scatter"]
    assert all(before in after.waits for before, after in pairwise(scatters))
    # All but the loss, which nobody on the devices reads, is waited for once.
    assert {launch for launch, _ in waiting} == {*launches[:-1]}


@pytest.mark.parametrize("wrap", WRAPS)
def test_the_next_gather_is_launched_before_a_unit_computes(wrap: str, gpus: Mesh) -> None:
    tasks = traced(gpus, WRAPS[wrap])
    gathered = [task for task in tasks if task.name == "all_gather"]
    first_reads = [next(t for t in tasks if launch in t.waits) for launch in gathered]
    assert gathered[4].number > first_reads[3].number  # the backward pass begins
    # With the head, whose weights are there.
    head = [t for t in tasks if t.number > gathered[4].number and t.reads & gathered[0].writes]
    assert head
    readers = [*first_reads[:3], head[0], *first_reads[4:-1]]
    for launch, reader in zip(gathered[1:], readers, strict=True):
        assert launch.number < reader.number and not reader.communicates
        assert launch.after is None or launch.after.number < reader.number


@pytest.mark.parametrize(("is_function", "wrap"), [(True, "checkpointed"), (False, "plain")])
def test_values_and_collectives_are_those_without_overlap(
    is_function: bool, wrap: str, gpus: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As written, recorded, replayed as a program, and as graphs."""
    results, before = [], len(engine.CUPY.calls)
    for overlaps in (True, False):
        monkeypatch.setattr(CupyBackend, "overlaps", overlaps)
        model, step = training(gpus, WRAPS[wrap])
        step, losses, sent = gdt.function(step) if is_function else step, [], []
        for _ in range(5 if is_function else 3):
            count = len(transport_of(gpus).nccl.calls)
            losses.append(step())
            new = transport_of(gpus).nccl.calls[count:]
            sent.append(sorted((c.name, c.rank, c.count) for c in new))
            assert not engine.CUPY.order.faults
        results.append(([x.numpy() for x in (*losses, *model.parameters().values())], sent))
    captures = [what for _, what, _ in engine.CUPY.calls[before:] if what == "begin_capture"]
    assert bool(captures) == is_function
    (values, sent), (others, sent_without) = results
    assert sent == sent_without
    for a, b in zip(values, others, strict=True):
        np.testing.assert_array_equal(a, b)


def test_replayed_steps_wait_for_what_they_read(gpus: Mesh) -> None:
    _, step = training(gpus)
    step(), step()
    check_waits([t for t in tasks_of(step, gpus, is_observed=False) if not t.communicates])


def test_a_weight_that_is_written_while_it_is_under_way_is_gathered_again(gpus: Mesh) -> None:
    model, _ = training(gpus)
    x = gdt.ones((4, 8), layout=Layout(["data", None], gpus))
    before = [model(x).numpy() for _ in range(2)][-1]

    def write() -> None:
        for block in model.blocks[1:]:
            block.up[0] = 7.0

    model.between = write
    written = model(x).numpy()
    assert not np.allclose(written[:, 0], before[:, 0])
    np.testing.assert_array_equal(written, model(x).numpy())


def moved(mesh: Mesh) -> Callable[[], tuple[gdt.DistributedArray, ...]]:
    """A step that moves and reduces arrays, computes with others, and then with these."""
    rng = np.random.default_rng(0)
    x = gdt.asarray(rng.standard_normal((4, 8)), layout=Layout(["data", None], mesh))

    def step() -> tuple[gdt.DistributedArray, ...]:
        y = gdt.exp(x)
        whole, total = gdt.relayout(y, [None, None]), gdt.sum(x, axis=0).resolve()
        other = y * 2.0 + x
        y += 1.0  # while it is under way
        return other, whole + 1.0, total * 2.0, y

    return step


def test_what_a_program_moves_travels_beside_what_it_computes(gpus: Mesh) -> None:
    step = moved(gpus)
    want = [x.numpy() for x in step()]
    tasks = tasks_of(step, gpus)
    check_waits(tasks)
    launches = {task.name for task in tasks if task.communicates}
    assert launches == {"all_gather", "all_reduce"}
    assert [len(task.waits) for task in tasks if not task.communicates and task.waits] == [1, 1]
    recorded = gdt.function(step)
    for _ in range(5):
        for a, b in zip(recorded(), want, strict=True):
            np.testing.assert_array_equal(a.numpy(), b)
    w = gdt.asarray(np.arange(8.0), layout=Layout(["data"], gpus))
    gradient = gdt.grad(lambda w: gdt.sum(gdt.exp(gdt.relayout(w, [None]) * 0.1)))(w)
    assert gradient.layout == w.layout
    np.testing.assert_allclose(gradient.numpy(), np.exp(np.arange(8) * 0.1) * 0.1, rtol=1e-6)


@pytest.mark.parametrize("reads", ["there, then here", "there", "nowhere"])
def test_the_stream_that_has_moved_an_array_waits_too(reads: str, gpus: Mesh) -> None:
    """Where a user reads the result on a stream that follows it: memory of the operand is of the
    first stream, and so are later readers."""
    backend, rows = backend_of(gpus), Layout(["data", None], gpus)
    here = [backend.compute_stream(i) for i in range(2)]
    x = gdt.asarray(np.ones((4, 8)), layout=rows) + 0.0
    y = gdt.relayout(x, [None, None])

    def use(streams: list[Any], before: list[Any]) -> None:
        for i, (stream, other) in enumerate(zip(streams, before, strict=True)):
            backend.follow(i, other, stream)
            with engine.CUPY.cuda.Device(i):
                stream.use()

    with engine.CUPY.cuda.Device(0):
        there = [engine.CUPY.cuda.Stream(non_blocking=True)]
    with engine.CUPY.cuda.Device(1):
        there.append(engine.CUPY.cuda.Stream(non_blocking=True))
    use(there, here)
    z = None if reads == "nowhere" else y + 1.0
    if reads != "there, then here":
        del x
    if reads == "nowhere":
        del y
    for i, stream in enumerate(here):
        with engine.CUPY.cuda.Device(i):
            stream.use()
    others = [gdt.asarray(np.zeros((4, 8)), layout=rows) + 1.0 for _ in range(3)]
    if reads == "there, then here":
        assert (y * 2.0).tolist() == np.full((4, 8), 2.0).tolist()
    del z, others


def test_what_nobody_has_read_may_be_collected_in_a_capture(
    gpus: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = CupyBackend.capture

    @contextmanager
    def collecting(self: CupyBackend, *devices: int, **options: Any) -> Iterator[Any]:
        with captured(self, *devices, **options) as graph:
            gc.collect()
            yield graph

    monkeypatch.setattr(CupyBackend, "capture", collecting)
    step = gdt.function(lambda x: gdt.tanh(gdt.relayout(x, [None, None])) * 2.0)
    gc.collect()
    gc.disable()
    try:
        for _ in range(6):
            x = gdt.asarray(np.ones((4, 8)), layout=Layout(["data", None], gpus))
            cycle: list[Any] = [gdt.relayout(x * 1.0, [None, None])]
            cycle.append(cycle)
            del cycle
            assert step(x).shape == (4, 8)
    finally:
        gc.enable()


# ---------------------------------------------------------------- planted faults


def waits_at_once(patch: pytest.MonkeyPatch) -> None:
    of_launch = moving.launched

    def launched(*args: Any) -> Any:
        launch, results = of_launch(*args)
        launch.join()
        return launch, results

    patch.setattr(moving, "launched", launched)


def frees_early(patch: pytest.MonkeyPatch) -> None:
    made = Launch.__init__

    def init(self: Launch, mesh: Mesh, events: Any, operands: Any, results: Any) -> None:
        made(self, mesh, events, [()] * len(operands), results)

    patch.setattr(Launch, "__init__", init)


def never_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CupyBackend, "join", lambda *_, **__: None)


def gathers_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gathers.MadeGather, "fits", lambda *_: False)


@pytest.mark.parametrize(
    ("plant", "fault"),
    [
        (waits_at_once, "waits for"),
        (gathers_late, "late"),
        (never_waits, "read before it was written"),
        (frees_early, "given back while it is used"),
    ],
)
def test_planted_faults_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], fault: str, gpus: Mesh
) -> None:
    faults = engine.CUPY.order.faults
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        if plant is gathers_late:
            with pytest.raises(AssertionError):
                test_the_next_gather_is_launched_before_a_unit_computes("plain", gpus)
        elif plant is waits_at_once:
            with pytest.raises(AssertionError, match=fault):
                check_waits(traced(gpus, WRAPS["plain"]))
            with pytest.raises(AssertionError, match=fault):
                check_waits(tasks_of(moved(gpus), gpus))
        else:
            traced(gpus, WRAPS["plain"])
    assert plant in (waits_at_once, gathers_late) or fault in faults
    faults.clear()
