"""The rates that a run has measured its devices at, and what fraction of them a benchmark uses."""

from __future__ import annotations

from typing import NamedTuple

from gdt.benchmark.records import BenchmarkRun, Record


class Limits(NamedTuple):
    """Of each type of device: bytes a second that a large copy reads and writes, and floating-point
    operations a second of a large float32 product; both at their fastest."""

    bandwidth: dict[str, float]
    matmul_rate: dict[str, float]

    def of_bandwidth(self, record: Record) -> float | None:
        """Fraction of the bandwidth that it must use at least; None if that is not known."""
        return _fraction(record.memory_bytes, record, self.bandwidth)

    def of_matmul_rate(self, record: Record) -> float | None:
        """Fraction of the rate of products; None if that is not known."""
        return _fraction(record.flops, record, self.matmul_rate)

    def copying(self, record: Record) -> float | None:
        """Bytes a second that its devices could copy: each is read once and written once."""
        bandwidth = self.bandwidth.get(record.device_type)
        return None if bandwidth is None else bandwidth * record.hardware / 2


def limits_of(run: BenchmarkRun) -> Limits:
    """The limits that a run has measured; nothing for a type of device where it has not."""
    found = Limits({}, {})
    for record in run.of("limit"):
        if record.workload == "copy" and record.memory_bytes:
            found.bandwidth[record.device_type] = record.memory_bytes / record.minimum
        elif record.workload == "matmul" and record.flops:
            found.matmul_rate[record.device_type] = record.flops / record.minimum
    return found


def _fraction(amount: float | None, record: Record, rates: dict[str, float]) -> float | None:
    rate = rates.get(record.device_type)
    if not amount or not rate:
        return None
    return amount / record.median / (rate * record.hardware)
