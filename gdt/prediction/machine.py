"""Machines: the rates of a device and of the links between devices, by which steps are priced."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gdt.arguments import checked, checked_class
from gdt.errors import ArgumentError, error
from gdt.sharding.mesh import Mesh

__all__ = ["Link", "Machine"]

DATA = Path(__file__).parent / "machines.json"
FITTED_SHARE = 0.714
"""The share of the peak that products reach, unless the machine says it: fitted on one run of
Megatron-LM on A100 (`published.json`)."""

BANDWIDTH_SHARE = 0.8
"""The share of the bandwidths of memory and links that is reached, unless the machine says it: an
assumption. All-reduces of NCCL's tests reach 235 of the 300 GB/s of a DGX A100."""

BOUNDS = {
    "FLOP/s": (1e8, 1e17),
    "bandwidth": (1e8, 1e14),
    "memory": (1e7, 1e13),
    "bandwidth of a link": (1e6, 1e13),
    "latency": (0.0, 0.1),
    "launch": (0.0, 0.01),
}
"""The least and the most of what is believed: figures outside are in other units."""


def believed(what: str, value: object, unit: str) -> float:
    """Return a figure of a machine as a float; ArgumentError for one that no machine has."""
    low, high = BOUNDS[what]
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise error(ArgumentError, f"{what} is {value!r}; it is a number of {unit}")
    if not low <= value <= high:
        remedy = f"It is in {unit}, from {low:g} to {high:g}."
        raise error(ArgumentError, f"{what} is {value:g}, which no machine has", remedy=remedy)
    return float(value)


@checked_class(eager=True)
@dataclass(frozen=True)
class Link:
    """The connection of the devices along a mesh axis.

    bandwidth: the bytes that one device sends in a second, in one direction.
    latency: the seconds that a message takes beside its bytes.

    Raises ArgumentError for figures that no link has.

    >>> gdt.Link(bandwidth=300e9, latency=3e-6)
    Link(bandwidth=300000000000.0, latency=3e-06)
    """

    bandwidth: float
    latency: float = 5e-6

    def __post_init__(self) -> None:
        for name, what, unit in (
            ("bandwidth", "bandwidth of a link", "bytes a second"),
            ("latency", "latency", "seconds"),
        ):
            object.__setattr__(self, name, believed(what, getattr(self, name), unit))


@checked_class(eager=True)
@dataclass(frozen=True)
class Machine:
    """A device, and the links between devices: what `gdt.predict` prices a step by.

    flops: by dtype, the most floating-point operations in a second, of products of matrices.
    bandwidth: the bytes of memory that the device reads or writes in a second.
    memory: the bytes of memory of a device.
    links: by mesh axis, the link along it; an axis that is not named has the link `"host"` inside
        of the first `devices_per_host` devices, and `"network"` beyond.
    devices_per_host: how many neighbours the link `"host"` connects.
    share: the share of `flops` that large products reach, from 0 to 1. bandwidth_share: that of the
        bandwidths of memory and links which is reached.
    launch: the seconds that a call takes however little it computes.
    half: the length of the shortest dim of a product at which half of the rate is reached.
    overlaps: whether devices communicate beside computation, as GPUs do, and virtual devices do
        not.

    Raises ArgumentError for shares above 1, and for figures that no machine has, such as GB/s in
    the place of bytes a second.

    >>> machine = gdt.Machine(
    ...     flops={"float32": 1e12}, bandwidth=1e11, memory=16e9, links={"data": gdt.Link(1e10)}
    ... )
    >>> machine.links["data"].bandwidth
    10000000000.0
    """

    flops: Mapping[str, float]
    bandwidth: float
    memory: float
    links: Mapping[str, Link] = field(default_factory=dict)
    devices_per_host: int = 8
    share: float = FITTED_SHARE
    bandwidth_share: float = BANDWIDTH_SHARE
    launch: float = 5e-6
    half: float = 128.0
    name: str = ""
    overlaps: bool = True

    def __post_init__(self) -> None:
        if not self.flops:
            raise error(ArgumentError, "flops is empty", remedy='Say {"float32": rate}.')
        rates = {
            np.dtype(name).name if name != "bfloat16" else name: believed("FLOP/s", n, "FLOP/s")
            for name, n in self.flops.items()
        }
        object.__setattr__(self, "flops", rates)
        for name, unit in (
            ("bandwidth", "bytes a second"),
            ("memory", "bytes"),
            ("launch", "seconds"),
        ):
            object.__setattr__(self, name, believed(name, getattr(self, name), unit))
        for name in ("share", "bandwidth_share"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                problem = f"{name} is {value!r}; it is a share of the peak, above 0 and at most 1"
                raise error(ArgumentError, problem)
        for name, link in self.links.items():
            if not isinstance(link, Link):
                raise error(
                    ArgumentError, f"links[{name!r}] is {link!r}", remedy="Use gdt.Link(...)."
                )

    @classmethod
    @checked
    def named(cls, name: str, **changes: Any) -> Machine:
        """Return a machine that is known by name, with `changes` of its attributes.

        The figures, each with its source, are in `gdt/prediction/machines.json`; latencies, the
        share and the launch are assumptions. Raises ArgumentError for any other name.

        >>> gdt.Machine.named("a100-80gb").flops["bfloat16"]
        312000000000000.0
        """
        known = _known_machines()
        if name not in known:
            remedy = f"It is one of {', '.join(map(repr, known))}."
            raise error(ArgumentError, f"no machine is called {name!r}", remedy=remedy)
        return replace(_machine_of(name, known[name]), **changes)

    @classmethod
    @checked
    def read(cls, path: str | Path, *, memory: float = 16e9, **changes: Any) -> Machine:
        """Return the machine on which a run of benchmarks was measured: its rates of copies and of
        products, from the file that `pytest --benchmark-json` has written.

        path: of a file with the benchmarks of `gdt.benchmark.limit_tests`.
        memory: the bytes of memory of a device, which the file does not have. changes: other
        attributes, such as `links`.

        Raises ArgumentError for a file without these benchmarks.

        >>> gdt.Machine.read("run.json")  # doctest: +SKIP
        """
        rates = _measured_rates(Path(path))
        link = Link(rates["copy"] / 2, 1e-6)  # through memory, which is read and written
        found: dict[str, Any] = {
            "flops": {"float32": rates["matmul"], "float64": rates["matmul"] / 2},
            "bandwidth": rates["copy"], "memory": memory, "share": 1.0, "bandwidth_share": 1.0,
            "half": 0.0, "links": {"host": link, "network": link}, "name": Path(path).stem,
        }  # fmt: skip
        return cls(**{**found, **changes})

    # ---- prices

    @property
    def memory_rate(self) -> float:
        """The bytes a second that memory-bound work reads and writes."""
        return self.bandwidth * self.bandwidth_share

    def rate(self, dtype: str) -> float:
        """Return the FLOP/s of products of a dtype: of the next wider one that the machine has.

        >>> gdt.Machine.named("h100-80gb").rate("float32")
        66900000000000.0
        """
        if dtype in self.flops:
            return self.flops[dtype]
        wider = [n for name, n in self.flops.items() if _width(name) >= _width(dtype)]
        return max(wider, default=min(self.flops.values()))

    def product_seconds(self, sizes: tuple[int, int, int, int], dtype: str, nbytes: float) -> float:
        """Return the seconds of a product of matrices.

        sizes: of the stack, and rows, columns and inner length. nbytes: what is read and written.
        A product whose shortest dim is `half` long reaches half of the rate, and none is faster
        than its bytes. The launch is not counted.

        >>> machine = gdt.Machine.named("a100-80gb")
        >>> square = machine.product_seconds((1, 8192, 8192, 8192), "bfloat16", 3 * 2 * 8192**2)
        >>> 0.004 < square < 0.006
        True
        """
        shortest = max(1, min(sizes[1:]))
        rate = self.rate(dtype) * self.share * shortest / (shortest + self.half)
        return max(2 * math.prod(sizes) / rate, nbytes / self.memory_rate)

    def link(self, mesh: Mesh, axes: Sequence[str]) -> Link:
        """Return the slowest of the links along mesh axes, with the longest latency.

        Raises ArgumentError for an axis without a link.

        >>> mesh = gdt.create_mesh([("data", 16), ("model", 8)], device_type="abstract")
        >>> machine = gdt.Machine.named("h100-80gb")
        >>> machine.link(mesh, ["model"]).bandwidth > machine.link(mesh, ["data"]).bandwidth
        True
        """
        links = [self._link(mesh, axis) for axis in axes]
        bandwidth = min(link.bandwidth for link in links) * self.bandwidth_share
        return Link(bandwidth, max(link.latency for link in links))

    def _link(self, mesh: Mesh, axis: str) -> Link:
        if axis in self.links:
            return self.links[axis]
        k = mesh.axis_index(axis)
        distance = math.prod(mesh.sizes[k:])  # of the farthest devices along it
        kind = "host" if distance <= self.devices_per_host else "network"
        if kind not in self.links:
            problem = f"the machine has no link for the mesh axis {axis!r}"
            own = f"{{{axis!r}: gdt.Link(bandwidth, latency)}}"
            remedy = f"Say links={own}, or 'host' and 'network'."
            raise error(ArgumentError, problem, remedy=remedy)
        return self.links[kind]

    def collective_seconds(
        self, kind: str, mesh: Mesh, axes: Sequence[str], nbytes: float
    ) -> float:
        """Return the seconds of a collective: a ring, or a tree where an all-reduce is short.

        nbytes: what one device sends. Source: Thakur et al. 2005, "Optimization of Collective
        Communication Operations in MPICH", section 4.

        >>> mesh = gdt.create_mesh([("data", 16)], device_type="abstract")
        >>> machine = gdt.Machine.named("a100-80gb")
        >>> 0.05 < machine.collective_seconds("all_gather", mesh, ["data"], 1e9) < 0.06
        True
        """
        count = math.prod(mesh.dim_size(a) for a in axes)
        if count == 1 or not nbytes:
            return 0.0
        link = self.link(mesh, axes)
        if kind == "exchange":
            return link.latency + nbytes / link.bandwidth
        rounds = 2 if kind == "all_reduce" else 1
        ring = rounds * (count - 1) * link.latency + nbytes / link.bandwidth
        tree = rounds * math.ceil(math.log2(count))
        half = nbytes * count / (count - 1) / link.bandwidth
        return self.launch + min(ring, tree * link.latency + half)


def _width(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


@cache
def _known_machines() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(DATA.read_text())["machines"]
    return known


def _machine_of(name: str, entry: Mapping[str, Any]) -> Machine:
    """Return the machine of an entry of the data file, whose figures are pairs with a source."""
    figure = {key: value[0] for key, value in entry.items() if key != "flops"}
    return Machine(
        flops={dtype: rate for dtype, (rate, _) in entry["flops"].items()},
        bandwidth=figure["bandwidth"],
        memory=figure["memory"],
        links={"host": Link(figure["host"], 3e-6), "network": Link(figure["network"], 1e-5)},
        devices_per_host=figure["devices_per_host"],
        name=name,
    )


def _measured_rates(path: Path) -> dict[str, float]:
    """Return the rates of copies and products of a file of pytest-benchmark's."""
    amounts, rates = {"copy": "memory_bytes", "matmul": "flops"}, {}
    for benchmark in json.loads(path.read_text()).get("benchmarks", ()):
        info = benchmark.get("extra_info", {})
        workload = info.get("workload")
        if info.get("kind") == "limit" and workload in amounts:
            rates[workload] = info[amounts[workload]] / benchmark["stats"]["min"]
    missing = sorted(amounts.keys() - rates.keys())
    if missing:
        problem = f"{path} has no benchmark of {' and '.join(missing)}"
        remedy = (
            "Add to it: from gdt.benchmark.limit_tests import test_copy_bandwidth, test_matmul_rate"
        )
        raise error(ArgumentError, problem, remedy=remedy)
    return rates
