"""GPUs that are not there, that fail, or that are simulated: what is said, and in which order."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import cupy
import numpy as np
import pytest

import gdt
from gdt import backend
from gdt.backend import timing
from gdt.backend.cupy import BlockDevice, CupyBackend, PlacedFunction, load_cupy
from gdt.backend.timing import device_time
from gdt.cuda import driver as cuda_driver
from gdt.data.feed import Feed
from gdt.debug import configuration
from gdt.errors import DeviceError, DtypeError, GdtError, MeshError, MoveError, OutOfMemoryError
from tests.strict import SimulatedGpus, StrictCupy, capture, engine
from tests.strict.cuda import Stream

engine.register()


EMPTY = 1 << 40  # the address of a graph without nodes


class Driver:
    """The functions of libcuda that are asked."""

    def __init__(self, version: int = 13000, status: int = 0, devices: int = 2) -> None:
        self.version, self.status, self.devices = version, status, devices

    def cuDriverGetVersion(self, number: Any) -> int:
        number._obj.value = self.version
        return 0

    def cuInit(self, flags: int) -> int:
        return self.status

    def cuDeviceGetCount(self, number: Any) -> int:
        number._obj.value = self.devices
        return 0

    def cuGraphGetNodes(self, graph: Any, nodes: None, count: Any) -> int:
        count._obj.value = 0 if graph.value == EMPTY else 3
        return 0 if graph.value else 1  # CUDA_ERROR_INVALID_VALUE

    def cuGetErrorName(self, status: int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
        return 0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Sets the driver that is found, and whether CuPy is installed."""

    def become(driver: Driver | None, have_cupy: bool = True) -> None:
        def library() -> Driver:
            if driver is None:
                raise OSError("libcuda.so.1: cannot open shared object file")
            return driver

        monkeypatch.setattr(cuda_driver, "_library", library)
        monkeypatch.setattr(cuda_driver, "have_cupy", lambda: have_cupy)
        cuda_driver.driver.cache_clear()
        cuda_driver.usable_gpus.cache_clear()

    yield become
    monkeypatch.undo()
    cuda_driver.driver.cache_clear()
    cuda_driver.usable_gpus.cache_clear()


# ---------------------------------------------------------------- what is missing


@pytest.mark.parametrize(
    "driver, have_cupy, problem, remedy",
    [
        (None, True, "no NVIDIA driver is installed", "Install NVIDIA's driver"),
        (Driver(status=100), True, "sees no GPU, or CUDA_VISIBLE_DEVICES hides all", "nvidia-smi"),
        (Driver(status=803), True, r"does not start: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH \(803\)",
         "nvidia-smi"),
        (Driver(devices=0), True, "the NVIDIA driver sees no GPU", "nvidia-smi"),
        (Driver(version=11080), True, r"runs CUDA 11\.8, and gdt needs 12\.0",
         "Update NVIDIA's driver"),
        (Driver(), False, r"2 GPU\(s\) found, but CuPy is not installed",
         r"pip install 'gdt\[cuda13\]'"),
    ],
)  # fmt: skip
def test_a_mesh_of_gpus_says_why_there_are_none(
    machine: Any, driver: Driver | None, have_cupy: bool, problem: str, remedy: str
) -> None:
    machine(driver, have_cupy)
    with pytest.raises(DeviceError, match=f"(?s){problem}.*{remedy}"):
        gdt.create_mesh([("x", 2)], device_type="GPU")
    with pytest.raises(DeviceError, match=f"(?s)'cuda:0' does not exist.*{problem}.*{remedy}"):
        gdt.create_mesh([("x", 2)], devices=["cuda:0"])
    assert gdt.create_mesh([("x", 2)]).devices == ("cpu:0", "cpu:1")


def test_graphs_without_nodes_are_known_where_the_driver_tells(machine: Any) -> None:
    machine(Driver())
    here = CupyBackend(StrictCupy(1))
    graphs = [SimpleNamespace(graph=address) for address in (EMPTY, EMPTY + 8, 0)]
    assert [*map(here._has_work, graphs)] == [False, True, True]


def test_unused_gpus_are_logged_once(machine: Any, caplog: pytest.LogCaptureFixture) -> None:
    machine(Driver(), have_cupy=False)
    with caplog.at_level(logging.WARNING, "gdt"):
        for _ in range(2):
            gdt.create_mesh([("x", 2)])
    assert [r.getMessage().split(":")[0] for r in caplog.records] == [
        "2 GPU(s) found, but CuPy is not installed"
    ]


def test_meshes_take_all_gpus_or_those_that_are_named(machine: Any) -> None:
    machine(Driver(devices=4))
    assert gdt.create_mesh([("x", 8)]).blocks == ((0,), (1,), (2,), (3,))
    assert gdt.create_mesh([("x", 2)]).devices == ("cuda:0", "cuda:1")
    assert gdt.create_mesh([("x", 8)], devices=["cuda:0"]).devices == ("cuda:0",) * 8
    assert gdt.create_mesh([("x", 8)], devices=["GPU:1", "GPU:3"]).devices[3:5] == (
        "cuda:1",
        "cuda:3",
    )
    with pytest.raises(MeshError, match=r"8 coordinates does not fit 3 device\(s\)"):
        gdt.create_mesh([("x", 8)], devices=["cuda:0", "cuda:1", "cuda:2"])
    with pytest.raises(DeviceError, match=r"(?s)'cuda:4' does not exist: 4.*cuda:0 to cuda:3"):
        gdt.create_mesh([("x", 8)], devices=["cuda:4"])
    with pytest.raises(MeshError, match=r"(?s)of one kind.*cuda:0, cpu:0.*gdt\.relayout moves"):
        gdt.create_mesh([("x", 2)], devices=["cuda:0", "cpu:0"])


def test_a_driver_that_is_older_than_cupy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Runtime:
        driverGetVersion = staticmethod(lambda: 12040)
        runtimeGetVersion = staticmethod(lambda: 13000)

    monkeypatch.setattr(cupy.cuda, "runtime", Runtime)
    with pytest.raises(DeviceError, match=r"(?s)runs CUDA 12.4, and .* CUDA 13.0.*gdt\[cuda12"):
        load_cupy()


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy.cuda.runtime, "driverGetVersion", lambda: 0)
    with pytest.raises(DeviceError, match=r"(?s)no NVIDIA driver is installed.*device_type='CPU'"):
        load_cupy()


def test_cupy_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=r"(?s)CuPy cannot be imported.*pip install"):
        load_cupy()


def test_import_asks_for_no_gpu_and_says_nothing() -> None:
    script = "import sys, gdt; sys.exit('cupy' in sys.modules or 'mpi4py' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# ---------------------------------------------------------------- failures


def test_out_of_memory_says_what_was_asked_what_is_held_and_what_would_fit() -> None:
    here = SimulatedGpus(StrictCupy(2))
    with pytest.raises(OutOfMemoryError) as caught, here._scopes[1]:
        raise cupy.cuda.memory.OutOfMemoryError(5 << 30, 12 << 30)
    text = str(caught.value)
    assert text.startswith("cuda:1: Out of memory allocating 5,368,709,120 bytes")
    assert "in use: 10,737,418,240 bytes" in text
    assert f"would fit: {62 << 30:,} bytes" in text
    assert isinstance(caught.value, MemoryError)


@pytest.mark.parametrize("count", [1, 2])
def test_the_only_gpu_is_not_made_current_and_fails_as_others_do(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = SimulatedGpus(StrictCupy(count))
    scope, entered = here._scopes[0], []
    enter = type(scope.device).__enter__
    monkeypatch.setattr(type(scope.device), "__enter__", lambda d: entered.append(d) or enter(d))
    fails = [False, True]

    def function(x: float, *, y: float) -> float:
        if fails.pop(0):
            raise cupy.cuda.memory.OutOfMemoryError(5 << 30, 12 << 30)
        return x + y

    placed = PlacedFunction(function, BlockDevice(here, engine.mesh({"x": 1}), 0), scope)
    assert placed(1.0, y=2.0) == 3.0
    assert len(entered) == (0 if count == 1 else 1)
    assert scope.was_entered
    with pytest.raises(OutOfMemoryError, match="cuda:0: Out of memory"):
        placed(1.0, y=2.0)


def test_kept_memory_is_freed_on_every_gpu_that_was_used() -> None:
    here = SimulatedGpus(StrictCupy(3))
    for device in (0, 2):
        with here._scopes[device]:
            pass
    assert here.free_memory() == 4 << 30
    pools = here.xp.cuda.pool, here.xp.cuda.pinned_pool
    assert pools[0].freed == [0, 2] and pools[1].freed == [0]
    assert here.free_memory() == 0


@pytest.mark.parametrize(
    "status, problem",
    [
        (719, "the device has failed: cudaErrorLaunchFailure"),
        (214, "the device has failed: cudaErrorECCUncorrectable"),
        (900, "cannot be captured: cudaErrorStreamCaptureUnsupported"),
        (1, "CUDA refuses: cudaErrorInvalidValue"),
    ],
)
def test_failures_of_a_device_name_it(status: int, problem: str) -> None:
    here = SimulatedGpus(StrictCupy(2))
    with pytest.raises(DeviceError, match=f"cuda:1: {problem}"), here._scopes[1]:
        raise cupy.cuda.runtime.CUDARuntimeError(status)
    assert here.xp.cuda.runtime.getDevice() == 0


@pytest.mark.parametrize("where", ["array", "op", "recorded step", "launch"])
def test_out_of_memory_is_told_wherever_it_happens(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what there was before is still there, and computes."""
    layout = gdt.Layout([None], engine.mesh({"x": 2}))
    x = gdt.full(4, 2.0, layout=layout)
    step = gdt.function(gdt.exp)
    if where != "array":
        for _ in range({"op": 0, "recorded step": 2, "launch": 4}[where]):
            step(x)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise cupy.cuda.memory.OutOfMemoryError(1 << 40, 12 << 30)

    with monkeypatch.context() as patched:
        patched.setattr(engine.CUPY, "asarray", fail, raising=False)
        patched.setattr(type(engine.CUPY.exp), "__call__", fail)
        patched.setattr(capture.Graph, "run", fail)
        with pytest.raises(OutOfMemoryError) as caught:
            if where == "array":
                gdt.asarray(np.ones(4), layout=layout)
            elif where == "op":
                gdt.exp(x)
            else:
                step(x)
    for part in ("allocating 1,099,511,627,776 bytes", "in use: ", "would fit: ", "memory: "):
        assert part in str(caught.value)
    assert gdt.exp(x).tolist() == [np.exp(2.0)] * 4
    assert step(x).tolist() == [np.exp(2.0)] * 4


@pytest.mark.parametrize("calls", [2, 3, 5])
def test_a_device_that_fails_in_a_recorded_step_is_named(
    calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = gdt.full(4, 2.0, layout=gdt.Layout([None], engine.mesh({"x": 2})))
    step = gdt.function(gdt.exp)
    for _ in range(calls):
        step(x)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise cupy.cuda.runtime.CUDARuntimeError(719)

    monkeypatch.setattr(type(engine.CUPY.exp), "__call__", fail)
    monkeypatch.setattr(capture.Graph, "run", fail)
    with pytest.raises(GdtError, match="cuda:0: the device has failed: cudaErrorLaunchFailure"):
        step(x)


def test_failures_inside_an_op_are_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    x = gdt.ones(4, layout=gdt.Layout(["x"], engine.mesh({"x": 4})))
    gdt.exp(x)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise cupy.cuda.runtime.CUDARuntimeError(700)

    monkeypatch.setattr(type(engine.CUPY.exp), "__call__", fail)
    with pytest.raises(DeviceError, match="cuda:0: the device has failed: cudaErrorIllegalAddress"):
        gdt.exp(x)


def test_dtypes_that_gpus_have_not_are_refused() -> None:
    with pytest.raises(DtypeError, match="GPUs have no dtype"):
        gdt.asarray(np.ones(2, np.longdouble), layout=gdt.Layout([None], engine.mesh({"x": 1})))


# ---------------------------------------------------------------- streams and graphs


def test_communication_waits_for_computation_and_holds_it_up() -> None:
    strict = StrictCupy(2)
    here = SimulatedGpus(strict)
    with here.communicating([1]) as ((stream,), ends):
        begun = [what for _, what, _ in strict.calls]
    compute = here.compute_stream(1)
    assert stream is here.communication_stream(1) and stream.non_blocking
    assert stream.device_id == 1 and stream is not compute
    (c1, _, e1), (s1, _, e2), (s2, _, e3), (c2, _, e4) = strict.calls
    assert begun == ["record", "wait"]
    assert (c1, s1, s2, c2) == (compute, stream, stream, compute)
    assert e1 is e2 and e3 is e4 and ends == [e3] and not strict.transfers


def test_a_capture_has_memory_of_its_own_and_is_launched() -> None:
    strict = StrictCupy(1)
    here = SimulatedGpus(strict)
    x = strict.asarray(np.ones(3))
    with here.capture(0) as graph:
        y = strict.exp(x)
    graph.launch()
    calls = [what for _, what, _ in strict.calls]
    assert calls == ["allocator", "record", "wait", "begin_capture", "end_capture", "launch"]
    assert strict.calls[0][2] == graph.pool.malloc and y.shape == (3,)


def test_a_capture_that_fails_ends_and_says_why() -> None:
    strict = StrictCupy(1)
    here = SimulatedGpus(strict)
    with pytest.raises(DeviceError, match="cannot be captured"), here.capture(0):
        raise cupy.cuda.runtime.CUDARuntimeError(900)
    assert [what for _, what, _ in strict.calls][-1] == "end_capture"


def test_a_step_waits_for_no_device() -> None:
    """No op of a training step, forwards, backwards or in its update, reads a value."""
    mesh = engine.mesh({"batch": 4})
    with gdt.default_mesh(mesh):
        gdt.random.seed(0)
        model = gdt.nn.Sequential(
            [gdt.nn.Dense(6, 5), gdt.nn.BatchNorm(5), gdt.nn.Dense(5, 3)]
        )  # fmt: skip
        optimizer = gdt.optim.Adam(0.01)
        x = gdt.random.normal((8, 6), layout=gdt.Layout(["batch", None], mesh))
        labels = gdt.asarray(np.arange(8) % 3, layout=gdt.Layout(["batch"], mesh))
        for step in range(2):
            before = len(engine.CUPY.transfers)
            with gdt.GradientTape() as tape:
                loss = gdt.sparse_softmax_cross_entropy_with_logits(labels, model(x)).mean()
            optimizer.update(model, tape.gradient(loss, model.parameters()))
            waits = engine.CUPY.transfers[before:]
            assert step == 0 or not waits, waits[0]


def test_a_stream_follows_another_of_a_device_that_is_not_current() -> None:
    here = SimulatedGpus(StrictCupy(2))
    before = here.compute_stream(1)
    with here._scopes[1]:
        stream = here.xp.cuda.Stream(non_blocking=True)
    here.follow(1, before, stream)
    (recorded, _, event), (waiting, _, waited_for) = here.xp.calls
    assert (recorded, waiting) == (before, stream)
    assert event is waited_for
    assert event.device_id == 1


def test_a_captured_step_waits_for_the_last_where_a_device_has_another_stream() -> None:
    """Of the second device, which is not the current one."""
    mesh = engine.mesh({"x": 2}, devices=2)
    x = gdt.arange(4.0, layout=gdt.Layout(["x"], mesh))
    step = gdt.function(gdt.exp)
    for _ in range(5):
        want = step(x)
    engine.CUPY.order.faults.clear()
    before = engine.CUPY.cuda.get_current_stream(1)
    with engine.CUPY.cuda.Device(1):
        engine.CUPY.cuda.Stream(non_blocking=True).use()
    assert step(x).tolist() == want.tolist()
    with engine.CUPY.cuda.Device(1):
        before.use()
    assert not engine.CUPY.order.faults


@pytest.mark.parametrize("current", ["default", "entered", "used", "used in an entered one"])
@pytest.mark.parametrize("what", ["overlap", "failed overlap", "capture", "failed capture"])
def test_every_device_has_its_current_stream_again(what: str, current: str) -> None:
    """CuPy's current device is the first one, and gdt leaves its streams beside it."""
    strict = StrictCupy(4)
    here, mesh = SimulatedGpus(strict), engine.mesh({"x": 4}, devices=4)
    for device in range(4):
        with strict.cuda.Device(device):
            if "entered" in current:
                strict.cuda.Stream(non_blocking=True).__enter__()
            if "used" in current:
                strict.cuda.Stream(non_blocking=True).use()
    before = [strict.cuda.get_current_stream(i) for i in range(4)]
    context = here.overlapping(mesh) if "overlap" in what else here.capture(*range(4))
    with suppress(KeyError), context:
        during = [strict.cuda.get_current_stream(i) for i in range(4)]
        if "failed" in what:
            raise KeyError
    assert [strict.cuda.get_current_stream(i) for i in range(4)] == before
    assert not {*during} & {*before}
    assert [stream.device_id for stream in during] == [0, 1, 2, 3]


@pytest.mark.parametrize("failing", [1, 2])
def test_a_device_that_fails_before_it_communicates_is_named(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh, calls = engine.mesh({"x": 2}, devices=2), iter(range(1, 3))
    x = gdt.arange(4.0, layout=gdt.Layout(["x"], mesh))
    wait_event = Stream.wait_event

    def fail(stream: Stream, event: Any) -> None:
        if next(calls, 0) == failing:
            raise engine.CUPY.cuda.runtime.CUDARuntimeError(719)  # cudaErrorLaunchFailure
        wait_event(stream, event)

    monkeypatch.setattr(Stream, "wait_event", fail)
    with pytest.raises(DeviceError, match="the device has failed: cudaErrorLaunchFailure"):
        gdt.relayout(x, gdt.Layout([None], mesh))


def test_a_device_that_fails_after_it_communicates_has_its_stream_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, mesh = SimulatedGpus(StrictCupy(1)), engine.mesh({"x": 1})
    before = here.compute_stream(0)

    def fail(stream: Stream, event: Any = None) -> None:
        raise cupy.cuda.runtime.CUDARuntimeError(719)  # cudaErrorLaunchFailure

    with pytest.raises(DeviceError, match="the device has failed"), here.overlapping(mesh):
        assert here.compute_stream(0) is not before
        monkeypatch.setattr(Stream, "record", fail)
    assert here.compute_stream(0) is before


@pytest.mark.parametrize("stream", ["default", "used"])
def test_a_thread_copies_batches_beside_what_another_computes(stream: str) -> None:
    """On a stream of their own, which waits for who has used their memory before, and for which no
    computation waits."""
    order, calls, mesh = engine.CUPY.order, engine.CUPY.calls, engine.mesh({"x": 2}, devices=2)
    here = backend.backend_of(mesh)
    before = [here.compute_stream(i) for i in range(2)]
    x = gdt.ones((4, 3), layout=gdt.Layout(["x", None], mesh))
    order.faults.clear()
    if stream == "used":
        for device in range(2):
            with engine.CUPY.cuda.Device(device):
                engine.CUPY.cuda.Stream(non_blocking=True).use()
        x = x + 0.0
        order.faults.clear()  # a stream that waits for nobody has read what `before` wrote
    computing = [here.compute_stream(i) for i in range(2)]
    batches = [np.zeros((0, 3), np.float32), *[np.full((4, 3), i, np.float32) for i in range(6)]]
    placed = threading.Semaphore(0)

    def place(batch: np.ndarray) -> Any:
        out = gdt.asarray(batch, layout=gdt.Layout(["x" if len(batch) else None, None], mesh))
        placed.release()
        return out

    total, start, seen = x, len(calls), 0
    for number, batch in enumerate(Feed(batches, place, prefetch=1).take(), 1):
        while seen < min(number + 2, len(batches)):  # one waits in the queue, one for its place
            seen += placed.acquire()  # so the thread is not at work while this one is
        total = total + (batch if len(batch) else batch.sum())
        del batch
    assert total.tolist() == np.full((4, 3), 16.0).tolist() and not order.faults
    asked = calls[start:]
    copying = {s for s, what, _ in asked if what == "wait" and s not in computing}
    assert {s.device_id for s in copying} == {0, 1} and not copying & {*before}
    recorded = {event: s for s, what, event in asked if what == "record"}
    assert not [e for s, what, e in asked if what == "wait" and recorded[e] in copying]
    waits = [recorded[e] for s, what, e in asked if what == "wait" and s in copying]
    assert {*waits} <= {*computing} and len(waits) == 2 * (len(batches) - 1)
    for device in range(2):
        with engine.CUPY.cuda.Device(device):
            before[device].use()


def test_a_thread_copies_to_a_device_that_nobody_has_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory of the stream that reads it, which is not the default one."""
    here = engine.StrictBackend(engine.CUPY)
    mesh = engine.mesh({"x": 2})
    # Other stand-ins number the same devices, which they have used.
    monkeypatch.setattr(backend, "_backends", {"cpu": backend.NUMPY, "strict": here})
    engine.CUPY.order.faults.clear()
    batches: list[Any] = []

    def copy(copies: Any) -> None:
        with copies:
            batches.append(gdt.asarray(np.ones((4, 8)), layout=gdt.Layout(["x", None], mesh)))

    with engine.CUPY.cuda.Stream(non_blocking=True):
        assert not any(scope.was_entered for scope in here._scopes)
        copies = [backend.copying_ahead() for _ in range(4)]
        for context in copies:  # as one thread copies batch after batch, while this one waits
            thread = threading.Thread(target=copy, args=(context,))
            thread.start()
            thread.join()
            gdt.tanh(batches.pop())
    assert not engine.CUPY.order.faults


def test_a_backend_makes_no_contexts_on_gpus_that_it_does_not_use() -> None:
    strict = StrictCupy(4)
    here = SimulatedGpus(strict)
    assert here.runner is not None
    assert not strict.machine.contexts
    with here._scopes[2]:
        strict.exp(strict.asarray(np.ones(3)))
    here.synchronize()
    assert strict.machine.contexts == {0, 2}  # 0 was current, and CuPy makes it so again


def test_streams_of_the_simulated_machine_are_those_of_cupy() -> None:
    """The stack of `cupy/cuda/stream.pyx`: what `use` says is lost when a context ends, and the
    default stream is given to the device that is current then."""
    cuda = StrictCupy(2).cuda
    first, default = cuda.Device(0), cuda.get_current_stream(0)
    with first:
        used, entered = cuda.Stream().use(), cuda.Stream()
        with entered:
            assert cuda.get_current_stream() is entered
        assert cuda.get_current_stream() is default
        used.use()
        with cuda.Device(1):
            for refused in (used.use, used.__enter__):
                with pytest.raises(RuntimeError, match=r"created on \(0\) does not match.*\(1\)"):
                    refused()
        entered.__enter__()
        with cuda.Device(1):
            entered.__exit__()
        assert cuda.get_current_stream(0) is entered


# ---------------------------------------------------------------- time


class Clocks:
    """A GPU and a host, each with a clock: the host asks, the GPU begins when it is free."""

    FILL, LAUNCH = 100e-6, 5e-6  # of `LEAD_BYTES` on the GPU; of any launch on the host

    def __init__(self) -> None:
        self.host = self.device = 0.0
        self.cuda = self

    def launch(self, seconds: float, cost: float = LAUNCH) -> None:
        self.host += cost
        self.device = max(self.device, self.host) + seconds

    def wait(self) -> None:
        self.host = max(self.host, self.device)

    def get_current_stream(self) -> Clocks:
        return self

    def empty(self, *_: Any) -> Clocks:
        return self

    def fill(self, value: int) -> None:
        self.launch(self.FILL)

    def Event(self) -> Any:
        return Mark(self)

    def record(self, event: Any) -> Any:
        event.time = max(self.device, self.host)
        return event

    def get_elapsed_time(self, begin: Any, end: Any) -> float:
        return float(end.time - begin.time) * 1e3


class Mark:
    """An event of such a GPU."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks, self.time = clocks, 0.0

    done = property(lambda self: self.clocks.host >= self.time)

    def synchronize(self) -> None:
        self.clocks.wait()


@pytest.mark.parametrize("cost", [1e-6, 20e-6, 500e-6])
def test_the_time_of_a_device_holds_none_of_the_hosts(cost: float) -> None:
    clocks = Clocks()
    measured = device_time(clocks, lambda: clocks.launch(3e-6, cost))
    assert measured.is_unbiased
    assert measured.seconds == pytest.approx(3e-6)


def test_a_run_that_waits_for_the_device_is_told_from_others() -> None:
    clocks = Clocks()

    def run() -> None:
        clocks.launch(3e-6)
        clocks.wait()

    measured = device_time(clocks, run)
    assert not measured.is_unbiased
    assert 7e-6 < measured.seconds < 9e-6


def test_backends_time_what_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LEAD_BYTES", 8)
    monkeypatch.setattr(timing, "FILLS_MAX", 1)
    for here in (SimulatedGpus(StrictCupy(1)), backend.NUMPY):
        x = here.xp.asarray(np.ones(9))
        assert 0 < here.seconds(lambda here=here, x=x: here.xp.exp(x)) < 1


# ---------------------------------------------------------------- what is reported


def test_synchronizations_are_reported_at_the_line_of_the_user() -> None:
    x = gdt.ones(3)
    with gdt.sync_debug_mode("warn"), pytest.warns(UserWarning, match="copying to the host") as got:
        float(x.sum())
    assert got[0].filename == __file__
    with gdt.sync_debug_mode("error"):
        y = x + 1
        with pytest.raises(MoveError, match="the host waits for devices"):
            print(y)
        with pytest.raises(MoveError, match="synchronize"):
            gdt.synchronize()
    with pytest.raises(ValueError, match="Use 'warn' or 'error'"), gdt.sync_debug_mode("loud"):
        pass


def test_the_configuration_tells_of_every_gpu(
    machine: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(Driver(devices=4))
    monkeypatch.setattr(configuration, "load_cupy", lambda: StrictCupy(4))
    found = {f.name: f for f in configuration.findings()}
    assert found["NVIDIA driver"] == ("NVIDIA driver", "runs CUDA up to 13.0", "")
    assert found["cuda:2"].text == (
        "Strict GPU, compute capability 9.0, kernels for sm_90a, 60.0 of 80.0 GiB free; "
        "reaches cuda:3 directly"
    )
    gdt.show_config()
    assert "gdt.show_config" in capsys.readouterr().out


def test_the_configuration_names_what_is_missing(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(Driver(version=12040), have_cupy=False)
    monkeypatch.setattr(configuration, "_version", lambda distribution: None)
    found = {f.name: f for f in configuration.findings()}
    assert found["CuPy"].remedy == "pip install 'gdt[cuda12]'"
    assert found["NCCL"].remedy == "pip install 'gdt[cuda12]'"
    assert found["cuDNN frontend"].remedy == "pip install 'gdt[cudnn12]'"
    assert found["MPI"].remedy == "pip install 'gdt[mpi]'"
    assert found["GPUs"].text.startswith("none that can be used")


def test_the_configuration_shows_texts_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = configuration.Finding("GPUs", "no gdt[cuda13]", "pip install 'gdt[cuda13]'")
    monkeypatch.setattr(configuration, "findings", lambda: [finding])
    gdt.show_config()
    shown = capsys.readouterr().out
    assert "no gdt[cuda13]" in shown
    assert "pip install 'gdt[cuda13]'" in shown


def test_drivers_answer_through_ctypes() -> None:
    """`Driver` above stands for a library whose functions fill a number by reference."""
    number = ctypes.c_int()
    Driver(version=12040).cuDriverGetVersion(ctypes.byref(number))
    assert number.value == 12040


def test_synchronize_waits_for_the_devices_that_were_used() -> None:
    here = SimulatedGpus(StrictCupy(3))
    with here._scopes[1]:
        pass
    here.synchronize()
    assert [t.what for t in here.xp.transfers] == ["Device.synchronize"]
    assert backend.backend_of(engine.mesh({"x": 1})) is backend.backend_of(engine.mesh({"x": 2}))
