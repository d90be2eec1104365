"""GPUs through CuPy: its array namespace, memory pool and streams.

Everything that computes runs on CuPy's current stream of its device, as CuPy's own functions do: a
user's CuPy code and kernels are ordered with gdt's without any waiting. Collectives run on a second
stream of each device, and events order the two. The host waits in `to_host` and `synchronize`
alone.
"""

from __future__ import annotations

import importlib
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.backend.flags import ErrorFlags, Explain
from gdt.backend.graphs import CAPTURED, Graph
from gdt.backend.numpy import Order
from gdt.backend.protocol import KernelRunner
from gdt.backend.scope import Scope
from gdt.cuda.compiler import CudaRunner, architecture
from gdt.cuda.driver import INSTALL_CUPY
from gdt.errors import DeviceError, DtypeError, KernelError, error
from gdt.observe import report_synchronization
from gdt.sharding.mesh import Mesh

Array = Any
DTYPES = frozenset("?bBhHiIlLqQefdFD")  # NumPy's dtypes that GPUs compute in
BFLOAT16 = "bfloat16"


def load_cupy() -> Any:
    """The module cupy; DeviceError if it is missing, or newer than the driver."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as e:
        raise error(
            DeviceError, "cuda", f"CuPy cannot be imported: {e}", remedy=INSTALL_CUPY
        ) from e
    runtime = cupy.cuda.runtime
    driver, built_for = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if not driver:
        remedy = "Install NVIDIA's driver, or use device_type='CPU'."
        raise error(DeviceError, "cuda", "no NVIDIA driver is installed", remedy=remedy)
    if driver // 1000 < built_for // 1000:
        raise error(
            DeviceError,
            "cuda",
            f"the driver runs CUDA {_version(driver)}, and CuPy {cupy.__version__} is built for "
            f"CUDA {_version(built_for)}",
            remedy="Update NVIDIA's driver, or install the CuPy that fits it: "
            "pip uninstall cupy-cuda13x, then pip install 'gdt[cuda12]'.",
        )
    return cupy


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


class CupyBackend:
    """All GPUs of this process.

    cupy: the module, or one that stands in for it.
    """

    recycled_size = math.inf  # CuPy's pool recycles what bodies allocate

    def __init__(self, cupy: Any) -> None:
        self.xp = cupy
        self._scopes = [Scope(cupy, i) for i in range(cupy.cuda.runtime.getDeviceCount())]
        self._communication: dict[int, Any] = {}
        self.runner: KernelRunner | None = self._runner()
        self._flags = DeviceFlags(cupy, self._scopes)
        self.flags: ErrorFlags | None = self._flags
        self._kept: set[int] = set()  # identities of buffers that graphs refer to

    # ---- memory

    def empty(self, shape: tuple[int, ...], dtype: np.dtype, order: Order = None) -> Array:
        """An uninitialised array on the current device, by rows: kernels walk them fastest."""
        return self.xp.empty(shape, checked_dtype(dtype))

    def asarray(
        self, value: Any, dtype: Any = None, *, copy: bool = False, order: Order = None
    ) -> Array:
        """`value` as an array on the current device; not copied if it is one, unless `copy`.

        It may be NumPy's or CuPy's, a number or nested lists of them, or an array of a library that
        offers `__cuda_array_interface__` or DLPack.
        """
        if not on_gpu(value):
            value = np.asarray(value, dtype)
            checked_dtype(value.dtype)
        elif copy:
            return self.xp.array(value, dtype)
        return self.xp.asarray(value, dtype)

    def to_host(self, block: Array) -> np.ndarray:
        """A block as a NumPy array; waits for what computes it."""
        report_synchronization("copying to the host")
        with self._scopes[block.device.id]:
            host: np.ndarray = block.get()
        self._flags.check()
        return host

    def synchronize(self) -> None:
        """Wait until all work on all devices that were used has ended."""
        report_synchronization("synchronize")
        for scope in self._scopes:
            if scope.used:
                with scope:
                    scope.device.synchronize()
        self._flags.check()

    def upload(self, value: np.ndarray) -> Array:
        """A copy of `value` on the current device, for kernels.

        While a graph is captured, which cannot hold a copy from the host, it is made when the
        capture has ended, once: it is the same in every launch.
        """
        graph = CAPTURED.get()
        if graph is None:
            return self.xp.asarray(value)
        copy = self.xp.empty(value.shape, value.dtype)
        graph.uploads.append((copy, value.copy()))
        return copy

    def owns(self, buffer: object) -> bool:
        """Whether `buffer` is one that a graph keeps; CuPy's pool keeps memory, and no arrays."""
        return id(buffer) in self._kept

    def keep(self, buffer: Array, owner: object) -> None:
        """`owner` is going to refer to `buffer` for as long as it lives."""
        self._kept.add(id(buffer))
        weakref.finalize(owner, self._kept.discard, id(buffer))

    # ---- devices

    def on(self, mesh: Mesh, block: int) -> AbstractContextManager[object]:
        """In this context the device of that block of a mesh is the current one.

        Failures of the device are raised as gdt's errors: OutOfMemoryError, DeviceError.
        """
        return self._scopes[device_of(mesh, block)]

    def placed(self, mesh: Mesh, block: int, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, on the device of that block."""
        scope = self._scopes[device_of(mesh, block)]

        def run(*args: Any, **named: Any) -> Any:
            with scope:
                return function(*args, **named)

        return run

    def _runner(self) -> CudaRunner | None:
        """What runs kernels, if the GPUs are all of one architecture that there are kernels for."""
        found = {_capability(s.device) for s in self._scopes}
        if len(found) != 1:
            return None
        try:
            return CudaRunner(self.xp, architecture(found.pop()))
        except KernelError:
            return None

    # ---- streams

    def compute_stream(self, device: int) -> Any:
        """The stream on which a device computes: CuPy's current one."""
        return self.xp.cuda.get_current_stream(device)

    def communication_stream(self, device: int) -> Any:
        """The stream on which a device communicates."""
        stream = self._communication.get(device)
        if stream is None:
            with self._scopes[device]:
                stream = self.xp.cuda.Stream(non_blocking=True)
            stream = self._communication.setdefault(device, stream)
        return stream

    @contextmanager
    def communicating(self, device: int) -> Iterator[Any]:
        """The communication stream of a device, which begins what is put on it when the device has
        computed all that it was asked before; what it is asked afterwards waits for the end.

        Memory that the stream uses must be referred to until the context ends.
        """
        compute, stream = self.compute_stream(device), self.communication_stream(device)
        with self._scopes[device]:
            stream.wait_event(compute.record(self._event()))
            yield stream
            compute.wait_event(stream.record(self._event()))

    @contextmanager
    def overlapping(self, mesh: Mesh) -> Iterator[None]:
        """In this context the communication streams of the devices of a mesh are CuPy's current
        ones. They begin when the devices have computed what they were asked before, and run beside
        what these are asked afterwards, until `join`.

        Memory that they read must be referred to until then: CuPy's pool gives it to the stream
        that it came from, which may overwrite it at once.
        """
        with ExitStack() as entered:
            for device in _devices(mesh):
                compute, stream = self.compute_stream(device), self.communication_stream(device)
                with self._scopes[device]:
                    stream.wait_event(compute.record(self._event()))
                    entered.enter_context(stream)
            yield

    def join(self, mesh: Mesh) -> None:
        """Let what the devices of a mesh are asked next wait for their communication streams."""
        for device in _devices(mesh):
            compute, stream = self.compute_stream(device), self.communication_stream(device)
            with self._scopes[device]:
                compute.wait_event(stream.record(self._event()))

    def follow(self, before: Any, stream: Any) -> None:
        """Let a stream begin what it is asked next when another of its device has ended what that
        was asked until now."""
        stream.wait_event(before.record(self._event()))

    def _event(self) -> Any:
        return self.xp.cuda.Event(disable_timing=True)

    # ---- graphs

    @contextmanager
    def capture(self, *devices: int, after: Graph | None = None) -> Iterator[Graph]:
        """Record what is launched on these devices in this context as a CUDA graph of each, instead
        of running it.

        What it allocates stays allocated for as long as the graph lives, so that a replay finds its
        memory. It must have run once before, uncaptured, so that kernels are compiled and loaded.
        Waiting, copies to or from the host, and cuBLAS cannot be captured: CUDA's error is raised
        as a DeviceError. Nor can what orders one device after another: captures that are under way
        at the same time are graphs of their own.

        after: a graph of the same devices that is always launched before; it shares its memory.

        Device 0 computes 2 * x in one launch, and again with what x holds by then:

            with backend.capture(0) as graph:
                y = 2 * x
            graph.launch()
        """
        graph = self._graph(devices) if after is None else after.next()
        with self._scopes[devices[0]], self.xp.cuda.using_allocator(graph.pool.malloc):
            for device, stream in graph.streams.items():
                with self._scopes[device]:
                    stream.wait_event(self.compute_stream(device).record(self._event()))
            token = CAPTURED.set(graph)
            try:
                with graph.recording():
                    yield graph
            finally:
                CAPTURED.reset(token)
                graph.upload()  # a launcher may keep what it reads, graph or not

    def _graph(self, devices: Sequence[int]) -> Graph:
        """A graph to be captured on these devices, with memory of its own."""
        streams = {}
        for device in dict.fromkeys(devices):
            with self._scopes[device]:
                streams[device] = self.xp.cuda.Stream(non_blocking=True)
        scopes = {device: self._scopes[device] for device in streams}
        return Graph(self.xp.cuda.MemoryPool(), streams, scopes)


class DeviceFlags(ErrorFlags):
    """Flags in the memory of every device: a kernel finds its own."""

    def __init__(self, cupy: Any, scopes: Sequence[Scope]) -> None:
        self._cupy, self._scopes = cupy, scopes
        full = lambda count, value: cupy.full(count, value, np.uint64)
        self._of = [ErrorFlags(full, lambda values: values.get()) for _ in scopes]

    def new(self, explain: Explain) -> Any:
        """A flag in the memory of the current device."""
        return self._of[self._cupy.cuda.runtime.getDevice()].new(explain)

    def check(self) -> None:
        """Raise the error of the first flag that is set on any device."""
        for scope, flags in zip(self._scopes, self._of, strict=True):
            if scope.used:
                with scope:
                    flags.check()


def _capability(device: Any) -> tuple[int, int]:
    """Compute capability, which CuPy writes as "90" or "120"."""
    text = str(device.compute_capability)
    return int(text[:-1]), int(text[-1])


@lru_cache(maxsize=4096)
def device_of(mesh: Mesh, block: int) -> int:
    """Index of the GPU that holds a block of this process."""
    corner = [g * b for g, b in zip(mesh.blocks[block], mesh.box, strict=True)]
    name = mesh.devices[int(np.ravel_multi_index(corner, mesh.sizes))]
    return int(name.split(":")[1])


def _devices(mesh: Mesh) -> list[int]:
    """Indices of the GPUs that hold the blocks of this process."""
    return list(dict.fromkeys(device_of(mesh, i) for i in range(len(mesh.blocks))))


def on_gpu(value: Any) -> bool:
    """Whether `value` is an array in the memory of a GPU, CuPy's or another library's."""
    return hasattr(value, "__cuda_array_interface__")


def checked_dtype(dtype: Any) -> np.dtype:
    """`dtype`, or a DtypeError if GPUs do not have it."""
    wanted: np.dtype = np.dtype(dtype)
    if wanted.char not in DTYPES and wanted.name != BFLOAT16:
        raise error(
            DtypeError,
            "cuda",
            f"GPUs have no dtype {wanted}",
            remedy="Convert it, for example with x.astype('float64').",
        )
    return wanted
