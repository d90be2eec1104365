"""One measurement: the devices that it runs on, and what is written beside its time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from gdt.array.array import DistributedArray
from gdt.debug.observers import count_collectives
from gdt.errors import BenchmarkError, error
from gdt.ops.placement import synchronize
from gdt.sharding import processes
from gdt.sharding.devices import DEVICE_COUNTS
from gdt.sharding.mesh import Mesh, create_mesh

COUNTS = (1, 2, 4, 8)


class Devices(NamedTuple):
    """The devices that a benchmark runs on.

    size: coordinates of the mesh. kind: `"cpu"` or `"gpu"`. apart: whether each has memory of its
    own (a block each on the host, a GPU each); else all share the host's, or the first GPU's.

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
        """Why this machine cannot run it; empty if it can."""
        wanted = 0 if self.kind == "cpu" else self.size if self.apart else 1
        found = DEVICE_COUNTS["cuda"]() if wanted else 0
        return f"needs {wanted} GPU(s), {found} found" if found < wanted else ""

    def mesh(self) -> Mesh:
        """A mesh of one axis `"x"` over these devices; DeviceError if the machine lacks them."""
        axes = [("x", self.size)]
        if self.kind == "cpu":
            blocks = self.size if self.apart else 1
            return create_mesh(axes, device_type="CPU", blocks=blocks)
        names = [f"cuda:{i}" for i in range(self.size if self.apart else 1)]
        return create_mesh(axes, devices=names)


def device_counts(
    counts: Iterable[int] = COUNTS, kinds: Iterable[str] = ("cpu", "gpu")
) -> list[Devices]:
    """Parameters for the fixture `devices`: every count on every kind, in shared memory and apart.

    Raises BenchmarkError for a count below 1 or an unknown kind.

    >>> [str(d) for d in gdt.benchmark.device_counts([1, 4], ["cpu"])]
    ['cpu-folded-1', 'cpu-folded-4', 'cpu-apart-4']
    """
    counts, kinds = list(counts), list(kinds)
    for count in counts:
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise error(
                BenchmarkError, "device_counts", f"{count!r} is not a positive number of devices"
            )
    for kind in kinds:
        if kind not in ("cpu", "gpu"):
            remedy = "Use 'cpu' or 'gpu'."
            raise error(BenchmarkError, "device_counts", f"unknown kind {kind!r}", remedy=remedy)
    return [
        Devices(count, kind, apart)
        for kind in kinds
        for apart in (False, True)
        for count in counts
        if count > 1 or not apart  # one device is apart from nothing
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
    info: Mapping[str, Any] | None = None,
) -> Any:
    """Time `function(*args)` with pytest-benchmark's fixture, and record what it sends.

    The call is timed until every device is done, and partial reductions that it returns are
    resolved within that time. It runs twice before: once to make its plans, once to count its
    collectives. Returns what the function returns.

    Raises BenchmarkError where several processes run the program: pytest-benchmark lets each choose
    how often it calls the function, and they would wait for each other forever.

    kind: what the report does with it: `"strong"` or `"weak"` scaling, `"collective"`, `"step"`,
    ... workload: the name of a line of the report, the same for every number of devices.
    flops, memory_bytes: floating-point operations, and bytes that memory reads and writes at least,
        in one call on all devices together; with them the report shows the fraction of what the
        machine can do.
    info: more entries of the benchmark's `extra_info`.
    """

    count = processes.current().count
    if count > 1:
        problem = f"{count} processes would not agree on the number of calls"
        raise error(BenchmarkError, "measure", problem, remedy="Run one process.")

    def call() -> Any:
        out = resolved(function(*args))
        synchronize()
        return out

    call()
    with count_collectives() as counter:
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
    )
    benchmark.extra_info.update(info or {})
    return benchmark(call)


def resolved(value: Any) -> Any:
    """`value` with no reduction partial in any of its arrays; looks into lists, tuples and
    dicts."""
    if isinstance(value, DistributedArray):
        return value.resolve()
    if isinstance(value, dict):
        return {k: resolved(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(resolved, value))
    return value
