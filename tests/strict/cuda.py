"""`cupy.cuda` on the host: devices, streams and events that log how they are used."""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import cupy
import numpy as np

from .capture import ISOLATION, MERGE, Capture, refused
from .order import Memory, Order

# Of streams: two never have one, as they would if the first were gone.
ADDRESSES = itertools.count(1 << 40, 8)


class Transfer(NamedTuple):
    """A copy to the host, or another wait for the device; `stack` says where."""

    what: str
    stack: tuple[str, ...]


class Machine(threading.local):
    """The devices of a simulated machine, and which of them a thread uses."""

    def __init__(
        self, device_count: int, log: list[Transfer], calls: list[tuple[Any, ...]], order: Order,
        null: dict[int, Stream], contexts: set[int], functions: Mapping[str, Callable[..., Any]],
    ):  # fmt: skip
        self.device_count, self.current = device_count, 0
        self.streams: dict[int, Stream] = {}  # by device, the current one, unless it is `null`
        self.entered: list[tuple[int, Stream]] = []  # of every device, the latest last
        self.null = null  # by device, the default stream, which all threads share
        self.functions = functions  # ufuncs that are not NumPy's
        self.contexts = contexts  # devices on which the process has a context, as of all threads
        self.transfers, self.calls, self.order = log, calls, order
        self.captures: dict[int, Capture] = {}  # by the address of the stream
        self.allocations = 0  # of memory for arrays, outside of captures
        self.allocators: list[Any] = []  # that are used, the latest last

    @property
    def capture(self) -> Capture | None:
        """The capture of the current stream of the current device."""
        if not self.captures:
            return None
        return self.captures.get(self.stream(self.current).identity)

    def stream(self, device: int) -> Stream:
        """The current stream of a device."""
        stream: Stream | None = self.streams.get(device) or self.null.get(device)
        if stream is None:
            stream = self.null.setdefault(device, Stream(self, device_id=device))
        return stream

    def use_stream(self, stream: Stream | None) -> None:
        """Make a stream the current one of its device; None is `Stream.null`, which CuPy has once
        for all devices, and makes the current one of the current device."""
        if stream is None or stream is self.null.get(stream.device_id):
            self.streams.pop(self.current, None)
            return
        self.streams[stream.device_id] = stream

    def use_device(self, device: int) -> None:
        """Make a device the current one: `cudaSetDevice`, which makes a context since CUDA 12."""
        self.current = device
        self.contexts.add(device)

    def launch(
        self,
        compute: Callable[[], Any],
        operands: Any,
        written: Sequence[np.ndarray] = (),
        is_memory: bool = False,
    ) -> Any:
        """Let the device compute: at once, or whenever the graph that is captured is launched; see
        `Capture.note`."""
        if self.capture is not None:
            return self.capture.note(compute, operands, written, is_memory)
        return compute()

    def reads(self, memory: Memory) -> None:
        """The current stream reads memory, or a graph that is captured on it will."""
        self._uses(memory, Memory.reads)

    def writes(self, memory: Memory) -> None:
        """The current stream writes memory, or a graph that is captured on it will."""
        self._uses(memory, Memory.writes)

    def _uses(self, memory: Memory, use: Callable[[Memory, int], None]) -> None:
        if self.capture is not None:
            self.capture.uses.append((use, memory))
        else:
            use(memory, self.stream(self.current).ptr)

    def send(self) -> None:
        """The host sends something to the device."""
        if self.captures:
            raise refused()

    def wait(self, what: str) -> None:
        """Write down that the host waits for a device."""
        if self.captures:
            raise refused()
        frames = traceback.extract_stack(limit=16)[:-2]  # of a log that a whole run of tests fills
        stack = tuple(f"{f.filename}:{f.lineno} {f.name}" for f in frames)
        self.transfers.append(Transfer(what, stack))


class _Stack(threading.local):
    """A list of each thread, as CuPy's `_ThreadLocalStack`."""

    def __init__(self) -> None:
        self.items: list[int] = []


class Device:
    """`cupy.cuda.Device`."""

    def __init__(self, machine: Machine, index: int | None = None):
        self._machine, self.id = machine, machine.current if index is None else int(index)
        if not 0 <= self.id < machine.device_count:
            raise cupy.cuda.runtime.CUDARuntimeError(101)  # cudaErrorInvalidDevice
        self._before = _Stack()

    mem_info = (60 << 30, 80 << 30)

    @property
    def compute_capability(self) -> str:
        with self:
            return "90"

    def __enter__(self) -> Device:
        self._before.items.append(self._machine.current)
        if self.id != self._machine.current:
            self._machine.use_device(self.id)
        return self

    def __exit__(self, *_: object) -> None:
        self._machine.use_device(self._before.items.pop())

    def use(self) -> None:
        self._machine.use_device(self.id)

    def synchronize(self) -> None:
        self._machine.wait("Device.synchronize")
        self._machine.order.waited(self._machine.order.streams[self.id])


class Stream:
    """`cupy.cuda.Stream`; the machine logs its calls as (stream, name of the method, event)."""

    def __init__(
        self, machine: Machine, non_blocking: bool = False, device_id: int | None = None
    ) -> None:
        self._machine, self.ptr, self.identity = machine, (address := next(ADDRESSES)), address
        self.device_id = machine.current if device_id is None else device_id
        machine.order.streams[self.device_id].add(self.ptr)
        self.non_blocking = non_blocking
        self.replaced: Stream | None = None  # that was current before

    def __enter__(self) -> Stream:
        self.use()
        self._machine.entered.append((self.device_id, self))
        return self

    def __exit__(self, *_: object) -> None:
        """As CuPy does: the stream that was entered before on this device becomes the current one,
        whatever `use` had made it; if there is none, `Stream.null` does, of the current device."""
        device, _ = self._machine.entered.pop()
        entered = (stream for of, stream in reversed(self._machine.entered) if of == device)
        self._machine.use_stream(next(entered, None))

    def use(self) -> Stream:
        is_null = self is self._machine.null.get(self.device_id)
        if not is_null and self.device_id != self._machine.current:
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id}) does not match with "
                f"the current device ({self._machine.current})"
            )
        self.replaced = self._machine.stream(self.device_id)
        self._machine.use_stream(self)
        return self

    def record(self, event: Event | None = None) -> Event:
        event = event or Event(self._machine)
        assert event.device_id == self.device_id, "an event is recorded on its own device"
        self._machine.calls.append((self, "record", event))
        event.captured, event.time = self.capture, time.perf_counter()
        event.ended = self._machine.order.recorded(self.ptr)
        return event

    def wait_event(self, event: Event) -> None:
        self._machine.calls.append((self, "wait", event))
        own, other = self.capture, event.captured
        if own is not other:  # CUDA Runtime API, cudaError_t
            isolated = own is None or other is None
            raise refused(ISOLATION if isolated else MERGE)
        self._machine.order.waits(self.ptr, event.ended)

    @property
    def capture(self) -> Capture | None:
        return self._machine.captures.get(self.identity)

    def synchronize(self) -> None:
        self._machine.wait("Stream.synchronize")
        self._machine.order.waited([self.ptr])

    def begin_capture(self, mode: int | None = None) -> None:
        if not self.non_blocking:
            raise RuntimeError("a default stream cannot be captured")
        self._machine.calls.append((self, "begin_capture", mode))
        assert self.capture is None, "the stream is captured already"
        self._machine.captures[self.identity] = Capture()
        # What is captured will run, in order, on the stream that launches it.
        assert self.replaced is not None, "the stream was never the current one"
        self.ptr = self.replaced.ptr

    def end_capture(self) -> Any:
        self._machine.calls.append((self, "end_capture", None))
        capture = self._machine.captures.pop(self.identity, None)
        self.ptr = self.identity
        assert capture is not None, "nothing is being captured"
        return CudaGraph(self._machine, self.device_id, capture)


class CudaGraph:
    """`cupy.cuda.Graph`."""

    def __init__(self, machine: Machine, device_id: int, capture: Capture) -> None:
        self._machine, self.device_id = machine, device_id
        self._uses, self._graph = capture.uses, capture.end()

    @property
    def node_count(self) -> int:
        """How many things a launch does."""
        return len(self._graph.steps)

    def launch(self, stream: Any = None) -> None:
        machine = self._machine
        assert not machine.captures
        assert machine.current == self.device_id, "a graph is launched on a stream of its device"
        machine.calls.append((stream, "launch", None))
        for use, memory in self._uses:
            use(memory, (stream or machine.stream(machine.current)).ptr)
        self._graph.run()


class Event:
    """`cupy.cuda.Event`."""

    def __init__(
        self, machine: Machine, block: bool = False, disable_timing: bool = False,
        interprocess: bool = False,
    ):  # fmt: skip
        self._machine, self.device_id = machine, machine.current
        self.done, self.time = True, 0.0  # what the host computes has ended
        self.captured: Capture | None = None  # in which it was recorded
        self.ended: Counter[int] = Counter()  # by stream, how much has ended when it happens

    def synchronize(self) -> None:
        self._machine.wait("Event.synchronize")


class DeviceMemory:
    """`cupy.cuda.Memory`: what CUDA has given, until nobody refers to it."""

    def __init__(self, size: int) -> None:
        self.size = size


class MemoryPool:
    """`cupy.cuda.MemoryPool`, as far as its counts; that of a graph knows what it has given."""

    def __init__(self, machine: Machine, allocator: Any = None) -> None:
        self._machine, self.allocator = machine, allocator
        self.freed: list[int] = []  # the devices whose memory was freed, in order
        self._given: list[tuple[np.ndarray, Memory]] = []
        self._back: dict[int, list[Memory]] = defaultdict(list)  # by the identity of a stream

    def give(self, host: np.ndarray, memory: Memory, stream: int) -> None:
        """Note memory that is given on the stream of that identity, and stays where it is; it may
        be any that was taken back there."""
        self._given.append((host, memory))
        memory.shares(self._back.pop(stream, ()))

    def take_back(self, memory: Memory, stream: int) -> None:
        """Note memory that the pool may give again."""
        self._back[stream].append(memory)

    def malloc(self, size: int) -> Any:
        raise NotImplementedError("the host allocates for itself")

    def used_bytes(self) -> int:
        return 10 << 30

    def total_bytes(self) -> int:
        return 12 << 30

    def free_bytes(self) -> int:
        return 0 if self._machine.current in self.freed else 2 << 30

    def free_all_blocks(self, stream: Any = None) -> None:
        self.freed.append(self._machine.current)


class Runtime:
    """`cupy.cuda.runtime`."""

    CUDARuntimeError = cupy.cuda.runtime.CUDARuntimeError

    def __init__(self, machine: Machine):
        self._machine = machine

    def getDeviceCount(self) -> int:
        return self._machine.device_count

    def getDevice(self) -> int:
        return self._machine.current

    def driverGetVersion(self) -> int:
        return int(cupy.cuda.runtime.runtimeGetVersion())

    def runtimeGetVersion(self) -> int:
        return int(cupy.cuda.runtime.runtimeGetVersion())

    def memGetInfo(self) -> tuple[int, int]:
        return Device.mem_info

    def getDeviceProperties(self, index: int) -> dict[str, Any]:
        return {"name": b"Strict GPU", "totalGlobalMem": 80 << 30, "major": 9, "minor": 0}

    def deviceGetAttribute(self, attribute: int, device: int) -> int:
        return {75: 9, 76: 0}[attribute]  # cudaDevAttrComputeCapabilityMajor, ...Minor

    def deviceCanAccessPeer(self, device: int, peer: int) -> int:
        return int(device // 2 == peer // 2)


class Cuda:
    """`cupy.cuda`."""

    def __init__(self, machine: Machine):
        self.machine, self.runtime = machine, Runtime(machine)
        self.memory, self.driver = cupy.cuda.memory, cupy.cuda.driver
        self.pool, self.pinned_pool = MemoryPool(machine), MemoryPool(machine)

    def Device(self, index: int | None = None) -> Device:
        return Device(self.machine, index)

    def Stream(self, null: bool = False, non_blocking: bool = False) -> Stream:
        return Stream(self.machine, non_blocking)

    def Event(self, **options: bool) -> Event:
        return Event(self.machine, **options)

    def get_elapsed_time(self, start_event: Event, end_event: Event) -> float:
        return (end_event.time - start_event.time) * 1e3

    def MemoryPool(self, allocator: Any = None) -> MemoryPool:
        return MemoryPool(self.machine, allocator)

    def Memory(self, size: int) -> DeviceMemory:
        return DeviceMemory(size)

    def alloc_pinned_memory(self, size: int) -> memoryview:
        return memoryview(bytearray(size))

    def UnownedMemory(self, ptr: int, size: int, owner: Any, device_id: int) -> Any:
        assert device_id == self.machine.current
        return SimpleNamespace(ptr=ptr, size=size, owner=owner)

    def MemoryPointer(self, mem: Any, offset: int) -> Any:
        return SimpleNamespace(mem=mem, offset=offset)

    @contextmanager
    def using_allocator(self, allocator: Any) -> Iterator[None]:
        self.machine.calls.append((None, "allocator", allocator))
        self.machine.allocators.append(allocator)
        try:
            yield
        finally:
            self.machine.allocators.pop()

    def get_current_stream(self, device_id: int = -1) -> Stream:
        return self.machine.stream(self.machine.current if device_id < 0 else device_id)

    def is_available(self) -> bool:
        return self.machine.device_count > 0
