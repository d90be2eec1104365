"""GPUs through CuPy: its array namespace, memory pool and streams.

All computation runs on CuPy's current stream of its device, as CuPy's own functions do: a user's
CuPy code and kernels are ordered with gdt's without any waiting. Collectives run on a second stream
of each device, and batches that a thread copies ahead on a third; events order the streams. The
host waits only in `to_host` and `synchronize`, and that thread for its copies.
"""

from __future__ import annotations

import importlib
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from gdt.backend.flags import ErrorFlags
from gdt.backend.graphs import CAPTURED, MOST_JOINED, Graph
from gdt.backend.numpy import Order
from gdt.backend.protocol import KernelRunner
from gdt.backend.scope import Scope
from gdt.backend.timing import device_time
from gdt.cuda.compiler import architecture
from gdt.cuda.driver import INSTALL_CUPY, is_empty
from gdt.cuda.runner import CudaRunner
from gdt.errors import DeviceError, DtypeError, KernelError, error
from gdt.observe import report_synchronization
from gdt.sharding.mesh import Mesh

Array = Any
CAPABILITY = 75, 76  # cudaDevAttrComputeCapabilityMajor, ...Minor (CUDA Runtime API)
DTYPES = frozenset("?bBhHiIlLqQefdFD")  # NumPy's dtypes that GPUs compute in
BFLOAT16 = "bfloat16"

COPIES_AHEAD: ContextVar[dict[int, Any] | None] = ContextVar("gdt.copies_ahead", default=None)
"""In a thread that copies from the host what another thread computes with later: by CUDA's numbers,
the streams of that one on devices that nobody had used, where they are not current here yet."""


def load_cupy() -> Any:
    """Import cupy; raise DeviceError if it is missing, or newer than the driver."""
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
    """Return CUDA's number of a version, such as 13020, as text: 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"


class CupyBackend:
    """All GPUs of this process.

    cupy: the module, or one that stands in for it. scopes: the contexts of the devices, by number;
    by default every GPU is a device.
    """

    recycled_size = math.inf  # CuPy's pool recycles what bodies allocate
    most_joined: float = MOST_JOINED
    overlaps = True

    def __init__(self, cupy: Any, scopes: Sequence[Scope] = ()) -> None:
        self.xp = cupy
        self._event = partial(cupy.cuda.Event, disable_timing=True)
        self._scopes = scopes or [Scope(cupy, i) for i in range(cupy.cuda.runtime.getDeviceCount())]
        self._communication: dict[int, Any] = {}
        self._copying: dict[int, Any] = {}  # by CUDA's number of the device
        self.runner: KernelRunner | None = self._runner()
        self._flags = ErrorFlags(self._pinned, self._seen_by_device)
        self.flags: ErrorFlags | None = self._flags
        self._graph_buffers: set[int] = set()  # identities of buffers to which graphs refer

    # ---- memory

    def free_memory(self) -> int:
        """Free the memory of all used GPUs that CuPy keeps for arrays to come, and what it keeps of
        the host for copies; return the bytes that were freed on GPUs."""
        pool, freed = self.xp.get_default_memory_pool(), 0
        for scope in self._scopes:
            if scope.was_entered:
                with scope:  # the pool has a part for each device
                    before = pool.free_bytes()
                    pool.free_all_blocks()
                    freed += before - pool.free_bytes()
        self.xp.get_default_pinned_memory_pool().free_all_blocks()
        return freed

    def empty(self, shape: tuple[int, ...], dtype: np.dtype, order: Order = None) -> Array:
        """Return an uninitialised array on the current device, by rows, as kernels expect it."""
        return self.xp.empty(shape, checked_dtype(dtype))

    def asarray(
        self, value: Any, dtype: Any = None, *, copy: bool = False, order: Order = None
    ) -> Array:
        """Return `value` as an array on the current device, without copying one that is there,
        unless `copy`.

        value: an array of NumPy or CuPy, a number or nested lists of them, or an array of a library
        that offers `__cuda_array_interface__` or DLPack.
        """
        if not on_gpu(value):
            value = np.asarray(value, dtype)
            checked_dtype(value.dtype)
            if value.nbytes and COPIES_AHEAD.get() is not None:
                return self._copied_ahead(value)
        elif copy:
            return self.xp.array(value, dtype)
        return self.xp.asarray(value, dtype)

    def copying_ahead(self) -> AbstractContextManager[None]:
        """Return a context for another thread, in which arrays of the host are copied beside what
        this thread computes; see `Backend.copying_ahead`."""
        used = [(s, s.stream) for s in self._scopes if s.was_entered]
        return self._beside(
            used, {s.device.id: s.stream for s in self._scopes if not s.was_entered}
        )

    @contextmanager
    def _beside(self, used: Sequence[tuple[Scope, Any]], unused: dict[int, Any]) -> Iterator[None]:
        with ExitStack() as entered:
            for scope, stream in used:  # what is current belongs to a thread
                entered.enter_context(scope.computing_on(stream))
            token = COPIES_AHEAD.set(unused)
            try:
                yield
            finally:
                COPIES_AHEAD.reset(token)

    def _copied_ahead(self, value: np.ndarray) -> Array:
        """Return a copy of `value` on the current device, when it has arrived there.

        The copy's memory is of the stream that computes, and may be used until now: so it is taken
        first, and the stream of copies waits for what computes then, and for nothing later.
        """
        cuda = self.xp.cuda
        staging = np.frombuffer(cuda.alloc_pinned_memory(value.nbytes), np.uint8, value.nbytes)
        pinned = staging.view(value.dtype).reshape(value.shape)
        pinned[...] = value
        gpu = cuda.runtime.getDevice()
        if (reader := (COPIES_AHEAD.get() or {}).pop(gpu, None)) is not None:
            reader.use()
        copy = self.xp.empty(value.shape, value.dtype)
        if gpu not in self._copying:
            self._copying[gpu] = cuda.Stream(non_blocking=True)
        stream = self._copying[gpu]
        stream.wait_event(cuda.get_current_stream().record(self._event()))
        copy.set(pinned, stream)
        stream.synchronize()
        return copy

    def to_host(self, block: Array) -> np.ndarray:
        """Return a block as a NumPy array; wait for its computation, and raise the error that a
        kernel noted."""
        report_synchronization("copying to the host")
        with self._scopes[block.device.id]:
            host: np.ndarray = block.get()
        self._flags.check()
        return host

    def synchronize(self) -> None:
        """Wait until all used devices have finished, and raise the error that a kernel noted."""
        report_synchronization("synchronize")
        for scope in self._scopes:
            if scope.was_entered:
                with scope:
                    scope.device.synchronize()
        self._flags.check()

    def seconds(self, run: Callable[[], Any]) -> float:
        """Return the seconds that the current device computes for one `run`, without the host's
        time for launching it."""
        return device_time(self.xp, run).seconds

    def upload(self, value: np.ndarray) -> Array:
        """Return a copy of `value` on the current device, for kernels.

        A graph cannot hold a copy from the host. So while a graph is captured, the values are
        copied once, when the capture has ended: they are the same in every launch.
        """
        graph = CAPTURED.get()
        if graph is None:
            return self.xp.asarray(value)
        # The graph's own pool may give memory that what was captured before has written and freed,
        # and that each launch writes again.
        with self.xp.cuda.using_allocator(self.xp.get_default_memory_pool().malloc):
            copy = self.xp.empty(value.shape, value.dtype)
        graph.uploads.append((copy, value.copy()))
        return copy

    def _pinned(self, count: int) -> np.ndarray:
        """Return an array of `count` uint64 in memory of the host that all devices address."""
        memory = self.xp.cuda.alloc_pinned_memory(count * np.dtype(np.uint64).itemsize)
        return np.frombuffer(memory, np.uint64, count)

    def _seen_by_device(self, array: np.ndarray) -> Array:
        """Return an array of `_pinned` as one of the current device.

        Its address is the same there (CUDA Programming Guide, Unified Virtual Addressing).
        """
        cuda = self.xp.cuda
        address, device = array.ctypes.data, cuda.runtime.getDevice()
        memory = cuda.UnownedMemory(address, array.nbytes, array, device)
        return self.xp.ndarray(array.shape, array.dtype, cuda.MemoryPointer(memory, 0))

    def owns(self, buffer: object) -> bool:
        """Return whether a graph refers to `buffer`. (CuPy's pool refers to memory, not to
        arrays.)"""
        return id(buffer) in self._graph_buffers

    def keep(self, buffer: Array, owner: object) -> None:
        """Note that `owner` refers to `buffer` for as long as `owner` lives."""
        self._graph_buffers.add(id(buffer))
        weakref.finalize(owner, self._graph_buffers.discard, id(buffer))

    # ---- devices

    def on(self, mesh: Mesh, block: int) -> AbstractContextManager[object]:
        """Return a context in which the device of block number `block` of `mesh` is current.

        Failures of the device are raised as OutOfMemoryError or DeviceError.
        """
        return self._scopes[device_of(mesh, block)]

    def gpu(self, device: int) -> int:
        """Return the number that CUDA gives to `device`."""
        return int(self._scopes[device].device.id)

    def placed(self, mesh: Mesh, block: int, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` as it runs on the device of block number `block` of `mesh`."""
        device = BlockDevice(self, mesh, block)
        return PlacedFunction(function, device, self._scopes[device_of(mesh, block)])

    def _runner(self) -> CudaRunner | None:
        """Return the runner of kernels, or None unless all GPUs have one architecture for which
        there are kernels."""
        capabilities = {_capability(self.xp.cuda.runtime, s.device.id) for s in self._scopes}
        if len(capabilities) != 1:
            return None
        try:
            return CudaRunner(self.xp, architecture(capabilities.pop()))
        except KernelError:
            return None

    # ---- streams

    def compute_stream(self, device: int) -> Any:
        """Return the stream on which `device` computes: CuPy's current one."""
        return self._scopes[device].stream

    def communication_stream(self, device: int) -> Any:
        """Return the stream on which `device` communicates."""
        stream = self._communication.get(device)
        if stream is None:
            with self._scopes[device]:
                stream = self.xp.cuda.Stream(non_blocking=True)
            stream = self._communication.setdefault(device, stream)
        return stream

    @contextmanager
    def communicating(self, devices: Sequence[int]) -> Iterator[tuple[list[Any], list[Any]]]:
        """Order the communication streams of devices between their computations; provide the
        streams, and a list that gets the events of their ends.

        Work that is put on the streams in this context begins when all computation that was
        enqueued before has ended; computation that is enqueued afterwards waits for it. The caller
        holds references to the memory that the streams use until the context ends.
        """
        computing, streams, ends = list[Any](), list[Any](), list[Any]()
        for device in devices:
            stream = self._communication.get(device) or self.communication_stream(device)
            with self._scopes[device]:
                computing.append(self.xp.cuda.get_current_stream())
                if computing[-1].ptr != stream.ptr:  # as it is in `overlapping`
                    stream.wait_event(computing[-1].record(self._event()))
            streams.append(stream)
        yield streams, ends
        for device, compute, stream in zip(devices, computing, streams, strict=True):
            with self._scopes[device]:
                ends.append(stream.record(self._event()))
                if compute.ptr != stream.ptr:
                    compute.wait_event(ends[-1])

    @contextmanager
    def overlapping(self, mesh: Mesh) -> Iterator[list[Any]]:
        """Make the communication streams of the devices of `mesh` CuPy's current streams; provide a
        list that gets, of each device, the event of the end of their work, and the stream that
        computes.

        Their work begins when the computation that was enqueued before has ended, and runs beside
        computation that is enqueued later, until `join`. The caller holds references to the memory
        that they read until then: CuPy's pool returns freed memory to the stream that it came from,
        which may overwrite it at once.
        """
        graph = CAPTURED.get()
        if graph is None:
            with self._overlapping(mesh) as events:
                yield events
            return
        events = CapturedEvents(graph.pool)
        with graph.paused():
            beside = graph.beside(lambda: self._new_streams(_devices(mesh)))
            with self._overlapping(mesh), self._recording(beside):
                yield events
            graph.steps.append(partial(self._launch_beside, mesh, beside, events))

    @contextmanager
    def _overlapping(self, mesh: Mesh) -> Iterator[list[Any]]:
        computing, events = list[Any](), list[Any]()
        try:
            for device in _devices(mesh):
                stream = self._communication.get(device) or self.communication_stream(device)
                with self._scopes[device] as scope:
                    computing.append(self.xp.cuda.get_current_stream())
                    stream.wait_event(computing[-1].record(self._event()))
                    scope.use(stream)
            yield events
        finally:
            for device, compute in zip(_devices(mesh), computing, strict=False):
                with self._scopes[device] as scope:
                    scope.use(compute)  # also where the device fails in what follows
                    end = self._communication[device].record(self._event())
                events.append((end, compute))

    def _launch_beside(self, mesh: Mesh, graph: Graph, events: CapturedEvents) -> None:
        """Launch a graph beside later computation, until a `join` of `events`."""
        with self._overlapping(mesh) as ends:
            graph.launch()
        events[:] = ends

    def join(self, mesh: Mesh, events: Sequence[Any], *, is_read: bool = True) -> None:
        """Let later computation of each device of `mesh` wait for its event: on the stream that
        computed before, which gets the memory that was read, and, if somebody reads the results,
        on the one that computes now."""
        if not isinstance(events, CapturedEvents):
            self._join(mesh, events, is_read=is_read)
        elif (graph := CAPTURED.get()) is not None and graph.pool is events.pool:
            graph.call(partial(self._join, mesh, events, is_read=is_read))

    def _join(self, mesh: Mesh, events: Sequence[Any], *, is_read: bool = True) -> None:
        for device, (end, before) in zip(_devices(mesh), events, strict=False):  # fewer: one failed
            with self._scopes[device]:
                before.wait_event(end)
                if is_read and (now := self.xp.cuda.get_current_stream()).ptr != before.ptr:
                    now.wait_event(end)

    def follow(self, device: int, before: Any, stream: Any) -> None:
        """Let later work of `stream` wait for the work that is on the stream `before` now. Both are
        streams of `device`, which need not be the current one."""
        with self._scopes[device]:
            stream.wait_event(before.record(self._event()))

    # ---- graphs

    @contextmanager
    def capture(self, *devices: int, after: Graph | None = None) -> Iterator[Graph]:
        """Record the work of this context on `devices` as one CUDA graph for each, instead of
        running it.

        Memory that the work allocates stays allocated as long as the graph lives, so that a launch
        finds it. The work must have run once before, uncaptured, so that kernels are compiled and
        loaded. Waiting, copies to or from the host, cuBLAS, and ordering one device after another
        cannot be captured: CUDA's error is raised as DeviceError.

        after: a graph of the same devices that is always launched before; they share memory.

        The following computes 2 * x in one launch; each launch reads the values that x holds then:

            with backend.capture(0) as graph:
                y = 2 * x
            graph.launch()
        """
        graph = self._graph(devices) if after is None else after.next()
        with (
            self._scopes[devices[0]],
            self.xp.cuda.using_allocator(graph.pool.malloc),
            self._recording(graph),
        ):
            yield graph

    @contextmanager
    def _recording(self, graph: Graph) -> Iterator[None]:
        """Record the work of this context as a graph."""
        for device, stream in graph.streams.items():
            self.follow(device, self.compute_stream(device), stream)
        token = CAPTURED.set(graph)
        try:
            with graph.recording():
                yield
        finally:
            CAPTURED.reset(token)
            graph.upload()  # also after a failure, since a launcher may store the copy

    def _new_streams(self, devices: Sequence[int]) -> dict[int, Any]:
        """Return a stream of each device."""
        streams = {}
        for device in dict.fromkeys(devices):
            with self._scopes[device]:
                streams[device] = self.xp.cuda.Stream(non_blocking=True)
        return streams

    def _graph(self, devices: Sequence[int]) -> Graph:
        """Return a graph on `devices`, not captured yet, with a memory pool of its own."""
        streams = self._new_streams(devices)
        scopes, memory = {device: self._scopes[device] for device in streams}, list[Any]()

        def allocate(nbytes: int) -> Any:
            # The pool refers to this function, and it to all memory. Else a pool that lacks memory
            # during the capture would free all that no array has, of which graphs have the
            # addresses.
            memory.append(self.xp.cuda.Memory(nbytes))
            return self.xp.cuda.MemoryPointer(memory[-1], 0)

        return Graph(self.xp.cuda.MemoryPool(allocate), streams, scopes, self._has_work)

    def _has_work(self, graph: Any) -> bool:
        """Return whether a launch of a graph of CuPy does anything."""
        return not is_empty(graph.graph)


class CapturedEvents(list[Any]):
    """Events that a graph records: of its newest launch. pool: that of the graph, without which
    nobody waits for them, as after a capture that has failed."""

    def __init__(self, pool: Any) -> None:
        super().__init__()
        self.pool = pool


class BlockDevice(NamedTuple):
    """The device of block number `block` of `mesh`, on which a function runs."""

    backend: CupyBackend
    mesh: Mesh
    block: int


class PlacedFunction:
    """A function as it runs on a device. scope: the context in which the device is current."""

    def __init__(self, function: Callable[..., Any], device: BlockDevice, scope: Scope) -> None:
        self.function, self.device, self._scope = function, device, scope

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Call the function on its device."""
        scope = self._scope
        if not scope.is_current:
            with scope:
                return self.function(*args, **keywords)
        scope.was_entered = True
        try:
            return self.function(*args, **keywords)
        except Exception:
            with scope:  # which says what has failed
                raise


def _capability(runtime: Any, gpu: int) -> tuple[int, int]:
    """Return the compute capability of a GPU, such as (9, 0).

    CuPy's `Device.compute_capability` would make the GPU current, which since CUDA 12 makes a
    context on it: some 500 MB of its memory, for a GPU that this process may not use.
    """
    major, minor = (int(runtime.deviceGetAttribute(fact, gpu)) for fact in CAPABILITY)
    return major, minor


@lru_cache(maxsize=4096)
def device_of(mesh: Mesh, block: int) -> int:
    """Return the index of the GPU that holds block number `block` of this process."""
    corner = [g * b for g, b in zip(mesh.blocks[block], mesh.box, strict=True)]
    name = mesh.devices[int(np.ravel_multi_index(corner, mesh.sizes))]
    return int(name.split(":")[1])


@lru_cache(maxsize=4096)
def _devices(mesh: Mesh) -> Sequence[int]:
    """Return the indices of the GPUs that hold the blocks of this process."""
    return tuple(dict.fromkeys(device_of(mesh, i) for i in range(len(mesh.blocks))))


def on_gpu(value: Any) -> bool:
    """Return whether `value` is an array in the memory of a GPU, of CuPy or another library."""
    return hasattr(value, "__cuda_array_interface__")


def checked_dtype(dtype: Any) -> np.dtype:
    """Return `dtype` as a NumPy dtype, or raise DtypeError if GPUs do not have it."""
    checked: np.dtype = np.dtype(dtype)
    if checked.char not in DTYPES and checked.name != BFLOAT16:
        raise error(
            DtypeError,
            "cuda",
            f"GPUs have no dtype {checked}",
            remedy="Convert it, for example with x.astype('float64').",
        )
    return checked
