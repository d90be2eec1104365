"""One measurement: its devices, its time, and the bytes and collectives recorded beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import gdt
from gdt.benchmark.turns import OneDevice, in_turns
from gdt.errors import BenchmarkError, error
from gdt.sharding import processes
from gdt.sharding.devices import DEVICE_COUNTS
from gdt.sharding.mesh import Mesh, create_mesh
from gdt.state.trees import mapped

COUNTS = (1, 2, 4, 8)


class Devices(NamedTuple):
    """The devices of a benchmark.

    size: the number of coordinates of the mesh. kind: `"cpu"` or `"gpu"`. apart: whether each
    coordinate has its own block on the host, or its own GPU; else all share one.

    >>> str(gdt.benchmark.Devices(8)), gdt.benchmark.Devices(8).mesh()
    ('cpu-folded-8', Mesh(x=8))
    """

    size: int
    kind: str = "cpu"
    apart: bool = False

    def __str__(self) -> str:
        return f"{self.kind}-{'apart' if self.apart else 'folded'}-{self.size}"

    @property
    def missing(self) -> str:
        """The number of GPUs that this machine lacks, in words; empty if it has enough."""
        gpus = 0 if self.kind == "cpu" else self.size if self.apart else 1
        available = DEVICE_COUNTS["cuda"]() if gpus else 0
        return f"needs {gpus} GPU(s), {available} found" if available < gpus else ""

    def mesh(self) -> Mesh:
        """Return a mesh of one axis `"x"` over the devices; raise DeviceError if there are too
        few."""
        axes = [("x", self.size)]
        if self.kind == "cpu":
            blocks = self.size if self.apart else 1
            return create_mesh(axes, device_type="CPU", blocks=blocks)
        names = [f"cuda:{i}" for i in range(self.size if self.apart else 1)]
        return create_mesh(axes, devices=names)


def device_counts(
    counts: Iterable[int] = COUNTS, kinds: Iterable[str] = ("cpu", "gpu")
) -> list[Devices]:
    """Return parameters for the fixture `devices`: every count on every kind, shared and apart.

    Raises BenchmarkError for a count below 1 or an unknown kind.

    >>> [str(d) for d in gdt.benchmark.device_counts([1, 4], ["cpu"])]
    ['cpu-folded-1', 'cpu-folded-4', 'cpu-apart-4']
    """
    counts, kinds = list(counts), list(kinds)
    for count in counts:
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise error(BenchmarkError, f"{count!r} is not a positive number of devices")
    for kind in kinds:
        if kind not in ("cpu", "gpu"):
            remedy = "Use 'cpu' or 'gpu'."
            raise error(BenchmarkError, f"unknown kind {kind!r}", remedy=remedy)
    return [
        Devices(count, kind, apart)
        for kind in kinds
        for apart in (False, True)
        for count in counts
        if count > 1 or not apart  # one device has nothing to share
    ]


def measure(
    benchmark: Any,
    function: Callable[..., Any],
    *args: Any,
    mesh: Mesh,
    kind: str,
    workload: str,
    flops: float | None = None,
    memory_bytes: float | None = None,
    predicted: float | None = None,
    info: Mapping[str, Any] | None = None,
    one: OneDevice | None = None,
) -> Any:
    """Time `function(*args)` with pytest-benchmark's fixture, and record its collectives.

    benchmark: the fixture.
    mesh: the devices of the call.
    kind: the section of the report: `"strong"` or `"weak"` scaling, `"collective"`, `"step"`, ...
    workload: the name of a line of the report, the same for every number of devices.
    flops, memory_bytes: floating-point operations, and bytes that memory reads and writes at least,
        in one call on all devices together; with them the report shows fractions of the machine's
        rates.
    predicted: the seconds of a call, as `gdt.predict` has them of the same on an abstract mesh,
        which the report shows beside the measured ones.
    info: more entries of the benchmark's `extra_info`.
    one: the same on one device, which is measured in turns with this; without it the report has no
        efficiency.

    The time of a call ends when every device has finished, with the partial reductions in its
    result resolved. Before, the function is called twice: to build its plans, and to count its
    collectives. Returns the result of the function.

    Raises BenchmarkError where several processes run the program: pytest-benchmark lets each choose
    its number of calls, and they would wait for each other forever.
    """
    count = processes.current().count
    if count > 1:
        problem = f"{count} processes would not agree on the number of calls"
        raise error(BenchmarkError, problem, remedy="Run one process.")

    call = whole_call(function, *args)
    call()
    with gdt.count_collectives() as counter:
        call()
    benchmark.extra_info.update(
        kind=kind,
        workload=workload,
        devices=mesh.size,
        device_type=mesh.device_type(),
        blocks=math.prod(mesh.grid),
        sent_bytes=counter.bytes,
        collectives=dict(counter.by_kind),
        flops=flops,
        memory_bytes=memory_bytes,
        predicted=predicted,
    )
    benchmark.extra_info.update(info or {})
    return benchmark(call) if one is None else in_turns(benchmark, call, one)


def whole_call(function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Return a function that calls `function(*args)` and waits until its result is there."""

    def call() -> Any:
        out = resolved(function(*args))
        gdt.synchronize()
        return out

    return call


def resolved(value: Any) -> Any:
    """Return `value` with all arrays resolved, also in its lists, tuples and dicts."""
    return mapped(lambda v: v.resolve() if isinstance(v, gdt.DistributedArray) else v, value)
