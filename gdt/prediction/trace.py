"""Traces: what one abstract device does in a step, op by op, and what it holds at the peak."""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gdt.array.array import DistributedArray
from gdt.autodiff.checkpointed import calls_checkpointed
from gdt.backend.abstract import DEVICE, AbstractArray, Work
from gdt.errors import MeshError, error, line_of_user
from gdt.observe import Collective, Observer, observing, observing_only
from gdt.sharding.mesh import Mesh
from gdt.state.trees import leaves


class Sent(NamedTuple):
    """A collective; overlap: that of those that run together beside computation, or None."""

    collective: Collective
    overlap: object


class Packing(NamedTuple):
    """Bytes that are read and written for the collectives of an overlap, beside computation."""

    nbytes: int
    overlap: object


class Join(NamedTuple):
    """The place where computation waits for the collectives of an overlap."""

    overlap: object


Event = Work | Sent | Packing | Join


@dataclass
class TracedOp:
    """The work of an op on one device, with the moves before it.

    nbytes: of its operands and results on the device. held: the most bytes of the device's memory
    that are taken while it runs. is_recomputed: whether a checkpointed function runs again for it.
    """

    name: str
    events: list[Event]
    nbytes: int
    held: int
    is_recomputed: bool = False


class Held(NamedTuple):
    """Memory that is held at the peak: by what, in which line of the user's program, its bytes."""

    what: str
    line: str
    nbytes: int


@dataclass
class Trace:
    """The work of a step on one device of `mesh`.

    before: the bytes that are held before the step. peak: the most that is held in it. held: what
    the step itself has made of that, largest first.
    """

    mesh: Mesh
    ops: list[TracedOp] = field(default_factory=list)
    before: int = 0
    peak: int = 0
    held: list[Held] = field(default_factory=list)


class Tracer(Observer):
    """The observer and listener that makes a trace."""

    def __init__(self) -> None:
        self.ops: list[TracedOp] = []
        self.mesh: Mesh | None = None
        self._events: list[Event] = []
        self._gradients = 0  # how many are being computed
        self._numbers: dict[int, int] = {}  # of allocations, by the identity of the array
        self._lines: list[tuple[str, int]] = []  # of allocations: line and bytes
        self._names: dict[int, str] = {}  # of the ops that made them, by number
        self._log: list[int] = []  # number of what is allocated; ~number of what is freed
        self._at_peak, self.peak = 0, DEVICE.now
        self._most = DEVICE.now  # since the last op
        self._ends: list[int] = []  # of ops: how many allocations there were

    # ---- the device

    def worked(self, work: Work) -> None:
        """Note what a function of the namespace does."""
        overlap = DEVICE.overlap
        self._events.append(work if overlap is None else Packing(work.nbytes, overlap))

    def allocated(self, array: AbstractArray) -> None:
        """Note memory that begins to be held."""
        number = self._numbers[id(array)] = len(self._lines)
        self._lines.append((line_of_user(), array.nbytes))
        self._log.append(number)
        self._most = max(self._most, DEVICE.now)
        if DEVICE.now > self.peak:
            self.peak, self._at_peak = DEVICE.now, len(self._log)

    def freed(self, array: AbstractArray) -> None:
        """Note memory that is held no more."""
        number = self._numbers.pop(id(array), None)
        if number is not None:
            self._log.append(~number)

    def joined(self, overlap: object) -> None:
        """Note that computation waits for what was sent in `overlap`."""
        self._events.append(Join(overlap))

    # ---- the ops

    def on_collective(self, collective: Collective) -> None:
        self._events.append(Sent(collective, DEVICE.overlap))

    def on_op(self, op: Any, args: tuple[Any, ...], static: dict[str, Any], out: Any) -> None:
        outs = [x for x in leaves(out) if isinstance(x, DistributedArray)]
        operands = [x for x in leaves(args) if isinstance(x, DistributedArray)]
        for x in outs:
            self.mesh = x.mesh if self.mesh is None or x.mesh.size > self.mesh.size else self.mesh
            for block in x.blocks:
                owner = block if getattr(block, "base", None) is None else block.base
                number = self._numbers.get(id(owner))
                if number is not None:
                    self._names.setdefault(number, f"{op.name}: {x.type}")
        self._add(op.name, sum(x.type.local_nbytes for x in (*outs, *operands)))

    def on_enter(self, name: str) -> None:
        self._gradients += name == "gradient"

    def on_leave(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        self._gradients -= name == "gradient"
        if self._events:
            self._add(name, 0)

    def _add(self, name: str, nbytes: int) -> None:
        is_recomputed = self._gradients > 0 and calls_checkpointed()
        self.ops.append(TracedOp(name, self._events, nbytes, self._most, is_recomputed))
        self._events, self._most = [], DEVICE.now
        self._ends.append(len(self._lines))

    # ---- the end

    def finished(self, before: int) -> Trace:
        """Return the trace; before: the bytes that were held before it."""
        if any(not isinstance(event, Join) for event in self._events):
            self._add("update", 0)
        if self.mesh is None or self.mesh.device_kind != "abstract":
            where = "no op at all" if self.mesh is None else f"on {self.mesh.device_type()} devices"
            raise error(
                MeshError,
                "predict",
                f"the step has run {where}",
                remedy='Make its arrays on a mesh of abstract devices: device_type="abstract".',
            )
        return Trace(self.mesh, self.ops, before, self.peak, self._held())

    def _held(self) -> list[Held]:
        """Return what is held at the peak, equal ones together, largest first."""
        alive: set[int] = set()
        for number in self._log[: self._at_peak]:
            if number >= 0:
                alive.add(number)
            else:
                alive.discard(~number)
        totals: dict[tuple[str, str], int] = {}
        for number in alive:
            line, nbytes = self._lines[number]
            key = self._names.get(number) or self._purpose(number), line
            totals[key] = totals.get(key, 0) + nbytes
        held = [Held(*key, nbytes) for key, nbytes in totals.items()]
        return sorted(held, key=lambda h: -h.nbytes)

    def _purpose(self, number: int) -> str:
        """Return what an array is called that no op has returned."""
        following = bisect_right(self._ends, number)
        return f"made for {self.ops[following].name}" if following < len(self.ops) else "made last"


def trace(step: Callable[..., Any], *args: Any) -> Trace:
    """Return what one device does in `step(*args)`, after a first call that makes plans and state.

    Raises MeshError for a step that does not run on abstract devices.
    """
    with observing_only(), _listening(None):  # a prediction in a step is no part of that step
        step(*args)
        gc.collect()
        before, tracer = DEVICE.now, Tracer()
        with tracing(tracer):
            step(*args)
    return tracer.finished(before)


@contextmanager
def tracing(tracer: Tracer) -> Iterator[None]:
    """Let a tracer be told of what ops, and abstract devices, do in this `with` statement."""
    with _listening(tracer), observing(tracer):
        yield


@contextmanager
def _listening(listener: Tracer | None) -> Iterator[None]:
    """Let a tracer alone, or nobody, be told of what abstract devices do."""
    before, DEVICE.listener = DEVICE.listener, listener
    try:
        yield
    finally:
        DEVICE.listener = before
