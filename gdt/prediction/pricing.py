"""Predictions: the seconds, bytes and memory of a step on devices that are not there."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gdt.arguments import checked
from gdt.backend.abstract import Work
from gdt.prediction.machine import Machine
from gdt.prediction.trace import Held, Join, Packing, Sent, Trace, TracedOp, Tracer, trace
from gdt.sharding.mesh import Mesh

__all__ = ["Prediction", "predict"]

SHOWN = 5  # rows of arrays at the peak


@dataclass(frozen=True)
class PredictedOp:
    """The prediction of one op on one device: its seconds of products, of memory-bound work, of
    launches and of collectives, its floating-point operations, the bytes that it sends, and those
    of memory that are taken at most while it runs."""

    name: str
    products: float
    memory: float
    launches: float
    communication: float
    flops: int
    bytes: float
    held: int

    @property
    def seconds(self) -> float:
        """The seconds of computation."""
        return self.products + self.memory + self.launches

    @property
    def total(self) -> float:
        """The seconds of computation and communication, one after the other."""
        return self.seconds + self.communication


@dataclass(frozen=True)
class Prediction:
    """The prediction of a step, of one of the devices of `mesh`, which all do the same.

    seconds: of the whole step. products, memory, launches: the seconds of products of matrices, of
    work bound by memory, and of starting kernels; exposed, hidden: those of collectives that
    computation waits for, and of those that run beside it. flops: floating-point operations of the
    device. mfu: the model FLOPs utilisation, the share of the machine's peak that products reach
    without those of recomputation. bytes: what the device sends, by mesh axes. collectives: how
    many there are. peak: the bytes of memory that the device needs; held: the arrays of the step
    that are alive then, with the user's lines. fits: whether that is less than it has. ops: what
    each op takes, in order.

    >>> mesh = gdt.create_mesh([("data", 64)], device_type="abstract")
    >>> x = gdt.ones((1 << 20, 8), "float32", layout=gdt.Layout(["data", None], mesh))
    >>> step = lambda: gdt.sum(x * 2.0, axis=0).resolve()
    >>> found = gdt.predict(step, machine=gdt.Machine.named("a100-80gb"))
    >>> [op.name for op in found.ops], found.exposed > found.memory
    (['multiply', 'sum', 'resolve'], True)
    """

    mesh: Mesh
    machine: Machine
    seconds: float
    products: float
    memory: float
    launches: float
    exposed: float
    hidden: float
    flops: int
    mfu: float
    bytes: dict[tuple[str, ...], float]
    collectives: int
    state: int
    peak: int
    held: list[Held] = field(repr=False)
    ops: list[PredictedOp] = field(repr=False)

    @property
    def fits(self) -> bool:
        """Whether a device of the machine has the memory."""
        return self.peak <= self.machine.memory

    def __repr__(self) -> str:
        parts = {
            "products": self.products, "memory-bound": self.memory, "launches": self.launches,
            "communication": self.exposed,
        }  # fmt: skip
        shares = ", ".join(f"{name} {seconds_text(s)}" for name, s in parts.items())
        sent = ", ".join(f"{' x '.join(axes)} {size_text(n)}" for axes, n in self.bytes.items())
        fits = "fits" if self.fits else "does not fit"
        machine, memory = self.machine.name or "devices", size_text(self.machine.memory)
        lines = [
            f"{seconds_text(self.seconds)} a step on {self.mesh} of {machine}",
            f"  {shares}; hidden {seconds_text(self.hidden)}",
            f"  {self.flops:.3g} FLOPs a device, {self.mfu:.1%} of the peak without recomputation",
            f"  sent by a device in {self.collectives} collectives: {sent or 'nothing'}",
            f"  {size_text(self.peak)} at the peak, {size_text(self.state)} between steps: "
            f"{fits} in {memory}",
        ]
        lines += [f"    {size_text(n)}  {what}, {line}" for what, line, n in self.held[:SHOWN]]
        return "\n".join(lines)


@checked
def predict(step: Callable[..., Any], *args: Any, machine: Machine) -> Prediction:
    """Predict a step on a machine that is not there: its seconds, bytes, and memory.

    step: a function of arrays on abstract devices (`gdt.create_mesh(dims,
        device_type="abstract")`), such as a training step. It is called twice, first to make plans
        and optimizers' state.
    args: its arguments. machine: the rates of a device and of the links between devices.

    An op takes the time of its products, or of the bytes that it reads and writes, as one kernel; a
    collective that of a ring or a tree. Raises MeshError for a step on devices that are there.

    >>> mesh = gdt.create_mesh([("data", 1024)], device_type="abstract")
    >>> x = gdt.ones((1 << 20, 4096), "float32", layout=gdt.Layout(["data", None], mesh))
    >>> w = gdt.ones((4096, 4096), "float32", layout=gdt.Layout([None, None], mesh))
    >>> machine = gdt.Machine.named("a100-80gb")
    >>> found = gdt.predict(lambda: gdt.grad(lambda w: gdt.mean((x @ w) ** 2))(w), machine=machine)
    >>> found.fits, found.collectives, round((found.peak - found.state) / 1e6)
    (True, 1, 134)
    """
    return priced(trace(step, *args), machine)


def priced(found: Trace, machine: Machine) -> Prediction:
    """Return the prediction of a trace on a machine."""
    ops: list[PredictedOp] = []
    sent: defaultdict[tuple[str, ...], float] = defaultdict(float)
    clock, wire = 0.0, 0.0  # when computation, and communication, are free
    ends: dict[object, float] = {}  # of communication beside computation, by its overlap
    waited = 0.0
    collectives, useful = 0, 0
    for op in found.ops:
        row = _price_of_op(op, found.mesh, machine)
        ops.append(row)
        for event in op.events:
            if isinstance(event, Join):
                end = ends.get(event.overlap, 0.0)
                waited, clock = waited + max(0.0, end - clock), max(clock, end)
            elif isinstance(event, Sent | Packing):
                if isinstance(event, Sent):
                    collective, collectives = event.collective, collectives + 1
                    sent[collective.axes] += collective.bytes / found.mesh.size
                wire = max(wire, clock) + _seconds_of(event, found.mesh, machine)
                if event.overlap is not None and machine.overlaps:
                    ends[event.overlap] = wire
                else:
                    waited, clock = waited + wire - clock, wire
        clock += row.seconds
        useful += 0 if op.is_recomputed else _product_flops(op)
    total = max(clock, wire)
    waited += total - clock
    hidden = max(0.0, sum(op.communication for op in ops) - waited) if ends else 0.0
    return Prediction(
        found.mesh, machine, total, sum(op.products for op in ops), sum(op.memory for op in ops),
        sum(op.launches for op in ops), waited, hidden, sum(op.flops for op in ops),
        _utilisation(found, machine, useful, total), dict(sent), collectives, found.before,
        found.peak, found.held, ops,
    )  # fmt: skip


class OpPricer(Tracer):
    """A tracer that prices ops on a machine while they run, for the columns of `explain`."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine, self._priced = machine, 0

    def price_since_last(self) -> PredictedOp | None:
        """Return what the ops since the last call of this method take, under the name of the last;
        None on devices that are not abstract."""
        new, self._priced = self.ops[self._priced :], len(self.ops)
        if self.mesh is None or self.mesh.device_kind != "abstract" or not new:
            return None
        prices = [_price_of_op(op, self.mesh, self.machine) for op in new]
        names = ("products", "memory", "launches", "communication", "flops", "bytes")
        sums = {name: sum(getattr(p, name) for p in prices) for name in names}
        return PredictedOp(new[-1].name, **sums, held=max(p.held for p in prices))


def _price_of_op(op: TracedOp, mesh: Mesh, machine: Machine) -> PredictedOp:
    """Return what an op takes: one kernel, which reads its operands and writes its results once."""
    work = [event for event in op.events if isinstance(event, Work)]
    products = sum(
        machine.product_seconds(w.product, w.dtype.name, w.nbytes) for w in work if w.product
    )
    moved = sum(w.nbytes for w in work if not w.product)
    moved = min(moved, op.nbytes) if op.nbytes else moved
    has_work = any(isinstance(event, Work | Packing) for event in op.events)
    moves = [event for event in op.events if isinstance(event, Sent | Packing)]
    return PredictedOp(
        op.name, products, moved / machine.memory_rate, machine.launch * has_work,
        sum(_seconds_of(event, mesh, machine) for event in moves), sum(w.flops for w in work),
        sum(e.collective.bytes / mesh.size for e in moves if isinstance(e, Sent)), op.held,
    )  # fmt: skip


def _seconds_of(moved: Sent | Packing, mesh: Mesh, machine: Machine) -> float:
    if isinstance(moved, Packing):
        return moved.nbytes / machine.memory_rate
    kind, axes, nbytes, *_ = moved.collective
    return machine.collective_seconds(kind, mesh, axes, nbytes / mesh.size)


def _product_flops(op: TracedOp) -> int:
    return sum(e.flops for e in op.events if isinstance(e, Work) and e.product)


def _utilisation(found: Trace, machine: Machine, useful: int, seconds: float) -> float:
    """Return the model FLOPs utilisation: of the rate of the dtype that most products have."""
    flops: Counter[str] = Counter()
    for op in found.ops:
        for e in op.events:
            if isinstance(e, Work) and e.product:
                flops[e.dtype.name] += e.flops
    if not flops or not seconds:
        return 0.0
    return useful / seconds / machine.rate(flops.most_common(1)[0][0])


def seconds_text(seconds: float) -> str:
    """Return seconds as text, in s, ms or us."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def size_text(nbytes: float) -> str:
    """Return bytes as text, in powers of 1,000."""
    power = min(int(math.log10(max(nbytes, 1)) // 3), 4)
    return f"{nbytes / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
