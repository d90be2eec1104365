"""What a call costs the host on a GPU: frames, calls of CuPy, launches and microseconds.

    python -m tests.kernels.host_costs

writes the tables of docs/gpus.md anew. CuPy is a stand-in. For ops its arrays are NumPy's, of few
elements, and its launches do nothing, so the time is that of the host before the driver is called.
For recorded steps it is the one that simulates captures; kernels write zeros.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import cupy
import numpy as np
import pytest
from cupy._core._scalar import CScalar
from cupy.cuda.function import CNumpyArray

import gdt
from bench.gdt_steps import trainer_on
from bench.workloads import IMDB, MNIST
from examples import gpt
from gdt.backend import backend_of, register_backend
from gdt.backend.cupy import CupyBackend
from gdt.cuda import sources
from gdt.cuda.runner import CudaRunner, KernelCall
from gdt.observe import OBSERVERS, Observer
from tests.strict import SimulatedGpus, StrictCupy, cuda
from tests.strict.arrays import StrictArray

from . import libm
from .emulation import EmulatedRunner
from .twin_process import one_of_two

PAGE = Path(__file__).parents[2] / "docs/gpus.md"
OWN = str(Path(gdt.__file__).parent), "<gdt"  # where files and programs of gdt begin
STAND_INS = __file__, str(Path(__file__).parents[1] / "strict")
OP_TABLE, STEP_TABLE = "<!-- host costs of ops -->\n", "<!-- host costs of steps -->\n"
END = "<!-- end -->\n"
COUNTED = "frames", "CuPy calls", "launches", "allocations"
WARM = 4  # calls of a step: as written, recorded, verified, captured
ROUNDS, CALLS = 300, 20
MEMORY = 1 << 40


class Device:
    """A context, as CuPy's is."""

    id, attributes = 0, {"MultiProcessorCount": 132}

    def __init__(self, number: int = 0) -> None:
        pass

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


class Function:
    """A kernel that does nothing. CuPy's launch converts its arguments before."""

    ptr = 0

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts

    def __call__(self, grid: Any, block: Any, arguments: Sequence[Any], shared_mem: int) -> None:
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                CNumpyArray(argument)
            elif not isinstance(argument, cupy.ndarray):
                CScalar(argument)
        self.counts["launches"] += 1


class Namespace:
    """CuPy's arrays, at addresses where no memory is, and functions that compute nothing."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        error = type("error", (RuntimeError,), {})
        runtime = SimpleNamespace(
            getDeviceCount=lambda: 1, getDevice=lambda: 0, memGetInfo=tuple, CUDARuntimeError=error
        )
        driver = SimpleNamespace(launchKernel=self._launched, CUDADriverError=error)
        stream = SimpleNamespace(ptr=0)
        self.cuda = SimpleNamespace(
            Device=Device, runtime=runtime, driver=driver, get_current_stream=lambda _: stream,
            memory=SimpleNamespace(OutOfMemoryError=error), alloc_pinned_memory=bytearray,
            UnownedMemory=cupy.cuda.UnownedMemory, MemoryPointer=cupy.cuda.MemoryPointer,
            alloc=self._allocated, Event=cupy.cuda.Event,
        )  # fmt: skip
        self._memory = cupy.cuda.UnownedMemory(MEMORY, MEMORY, None, 0)
        self._offsets = itertools.cycle(range(0, MEMORY, 1 << 20))

    def _launched(self, *_: Any) -> None:
        self.counts["launches"] += 1

    def _allocated(self, nbytes: int) -> Any:
        self.counts["allocations"] += 1
        return cupy.cuda.MemoryPointer(self._memory, next(self._offsets))

    def ndarray(self, shape: Any, dtype: Any, memptr: Any = None) -> Any:
        """Memory."""
        if memptr is None:
            self.counts["allocations"] += 1
            memptr = cupy.cuda.MemoryPointer(self._memory, next(self._offsets))
        return cupy.ndarray(shape, dtype, memptr)

    empty = ndarray

    def full(self, shape: Any, value: Any, dtype: Any) -> Any:
        """Memory, which is not filled."""
        return self.empty(shape, dtype)

    def asarray(self, value: Any, dtype: Any = None) -> Any:
        """The array itself, or memory for it."""
        if isinstance(value, cupy.ndarray):
            return value
        host = np.asarray(value, dtype)
        return self.empty(host.shape, host.dtype)

    def ones(self, shape: Any, dtype: Any) -> Any:
        """Memory."""
        return self.empty(shape, dtype)

    def add(self, x: Any, y: Any) -> Any:
        """Memory for the sum."""
        self.counts["launches"] += 1
        return self.empty(x.shape, x.dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(cupy, name)


class Runner(CudaRunner):
    """A runner whose kernels are compiled already."""

    def _function(self, call: Any) -> Any:
        self.cupy.cuda.runtime.getDevice()
        return Function(self.cupy.counts)


class Backend(CupyBackend):
    """The CuPy backend on the stand-in."""

    def _runner(self) -> Any:
        return Runner(self.xp, "sm_80", _allowed={Function.ptr: 1 << 20})


def register() -> None:
    """Let meshes name the device `card:0`."""
    register_backend("card", lambda: Backend(Namespace()), lambda: 1)


def counted(call: Callable[[], Any], counts: Counter[str]) -> dict[str, int]:
    """What one call does. counts: those of the stand-in."""
    seen: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
        if event == "call":
            file = frame.f_code.co_filename
            seen["frames"] += file.startswith(OWN)
            seen["CuPy calls"] += file.startswith(STAND_INS) and caller.startswith(OWN)
        elif event == "c_call" and frame.f_code.co_filename.startswith(OWN):
            seen["CuPy calls"] += isinstance(getattr(argument, "__self__", None), cupy.ndarray)

    counts.clear()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return {**seen, "launches": counts["launches"], "allocations": counts["allocations"]}


def microseconds(calls: list[Callable[[], Any]]) -> list[float]:
    """The time of each call: the least of many turns."""
    least = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for n, call in enumerate(calls):
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            least[n] = min(least[n], time.perf_counter() - begin)
    return [seconds / CALLS * 1e6 for seconds in least]


def observed(call: Callable[[], Any]) -> Callable[[], Any]:
    """A call with an observer that does nothing. A tape is one: all results are made for it."""
    observers = (Observer(),)

    def run() -> None:
        token = OBSERVERS.set(observers)
        try:
            call()
        finally:
            OBSERVERS.reset(token)

    return run


def ops(mesh: gdt.Mesh) -> dict[str, tuple[Callable[[], Any], Callable[[], Any] | None]]:
    """Calls of ops, and of CuPy's function where an op is one."""
    numbers = np.random.default_rng(0).normal(size=(8, 8)).astype("f4")
    x, y = gdt.asarray(numbers), gdt.asarray(numbers)
    half, labels = gdt.asarray(numbers, dtype="float16"), gdt.asarray(np.arange(8))
    queries = gdt.asarray(np.ones((2, 4, 8, 64), "f2"))
    (a,), (b,) = x.blocks, y.blocks
    add = backend_of(mesh).xp.add
    attend = lambda: gdt.attention(queries, queries, queries)
    loss = lambda: gdt.sparse_softmax_cross_entropy_with_logits(labels, x)
    return {
        "`x + y`": (lambda: x + y, lambda: add(a, b)),
        "`gdt.sum(x)`": (lambda: gdt.sum(x), None),
        "`x @ y`, float32": (lambda: x @ y, None),
        "`x @ y`, float16": (lambda: half @ half, None),
        "attention": (attend, None),
        "attention, observed": (observed(attend), None),
        "cross-entropy": (loss, None),
        "cross-entropy, observed": (observed(loss), None),
    }


STRICT = StrictCupy(1, libm.FUNCTIONS)


class Zeros(EmulatedRunner):
    """A runner of the machine that simulates captures, whose kernels write zeros."""

    new_array = STRICT.ndarray

    def run(self, call: KernelCall) -> None:
        pairs = zip(sources.parameters(call.instance), call.arguments, strict=True)
        results = [a for p, a in pairs if p.pointer and not p.const and p.name != "error"]
        # Of the arrays themselves a graph would hold references, as a user's would.
        hosts = [a._host for a in (*results, *call.pointees) if isinstance(a, StrictArray)]

        def clear() -> None:
            for host in hosts:
                host[...] = 0

        STRICT.machine.launch(clear, hosts, hosts)


class ZerosBackend(SimulatedGpus):
    """The CuPy backend on that machine."""

    def _runner(self) -> Any:
        return Zeros()


NODES: list[int] = []  # the launches and copies in each graph that was captured


class CountedGraph(cuda.CudaGraph):
    """A graph that is counted."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        NODES.append(self.node_count)


def gpt_step(mesh: gdt.Mesh) -> Callable[[int], Any]:
    """A recorded step of examples/gpt.py."""
    model, optimizer = gpt.GPT(), gpt.optimizer()
    split = gdt.Layout(["batch", None], mesh)
    shape = gpt.BATCH, gpt.POSITIONS
    ids, labels = (gdt.zeros(shape, "int64", layout=split) for _ in range(2))
    loss = lambda model: gdt.nn.losses.sparse_softmax_cross_entropy(labels, model(ids))

    @gdt.function
    def step() -> Any:
        value, gradients = gdt.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    return lambda _: step()


def step_cells(step: Callable[[int], Any]) -> list[int]:
    """What a call of a recorded step costs: a row of the table."""
    NODES.clear()
    for n in range(WARM):
        step(n)
    before = len(STRICT.calls)
    found = counted(partial(step, WARM), Counter())
    launched = sum(what == "launch" for _, what, _ in STRICT.calls[before:])
    return [found["frames"], found["CuPy calls"], launched, sum(NODES)]


def step_table() -> list[str]:
    """The lines of the table of recorded steps."""
    register_backend("zeros", lambda: ZerosBackend(STRICT), lambda: 2)
    lines = [
        "| recorded step | frames | calls of CuPy | launches | launches and copies in it |",
        "|---|---|---|---|---|",
    ]
    rows: dict[str, list[int]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "CudaGraph", CountedGraph)
        with gdt.default_mesh(gdt.create_mesh([("batch", 8)], devices=["zeros:0"])) as mesh:
            rows["MNIST"] = step_cells(trainer_on(mesh, "data", "captured")(MNIST)())
            rows["IMDB"] = step_cells(trainer_on(mesh, "data", "captured")(IMDB)())
            rows["GPT"] = step_cells(gpt_step(mesh))
        for name, workload in (("MNIST", MNIST), ("IMDB", IMDB)):
            with one_of_two("zeros") as (_, mesh):
                step = trainer_on(mesh, "data", "captured")(workload)()
                rows[f"{name}, in one of two processes"] = step_cells(step)
    return lines + [f"| {name} | {' | '.join(map(str, cells))} |" for name, cells in rows.items()]


def op_counts() -> dict[str, dict[str, int]]:
    """What one call of each op does."""
    register()
    with gdt.default_mesh(gdt.create_mesh([("x", 1)], devices=["card:0"])) as mesh:
        counts = {}
        for name, (op, _) in ops(mesh).items():
            op(), op(), op()
            counts[name] = counted(op, backend_of(mesh).xp.counts)
        return counts


def op_table() -> list[str]:
    """The lines of the table of ops."""
    counts = op_counts()
    lines = [
        "| op | frames | calls of CuPy | launches | allocations | us | of CuPy's own, us |",
        "|---|---|---|---|---|---|---|",
    ]
    with gdt.default_mesh(gdt.create_mesh([("x", 1)], devices=["card:0"])) as mesh:
        measured = ops(mesh)
        for op, _ in measured.values():
            op(), op(), op()
        times = microseconds([op for op, _ in measured.values()])
        bare = microseconds([own for _, own in measured.values() if own is not None])
        for (name, (_, own)), us in zip(measured.items(), times, strict=True):
            cells = [counts[name].get(k, 0) for k in COUNTED]
            beside = f"{bare.pop(0):.1f}" if own is not None else ""
            lines.append(f"| {name} | {' | '.join(map(str, cells))} | {us:.1f} | {beside} |")
    return lines


def main() -> None:
    """Write the tables into docs/gpus.md."""
    text = PAGE.read_text()
    for begin, table in ((OP_TABLE, op_table), (STEP_TABLE, step_table)):
        before, rest = text.split(begin)
        text = before + begin + "\n".join(table()) + "\n" + END + rest.split(END, 1)[1]
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
