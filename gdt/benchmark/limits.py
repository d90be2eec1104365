"""The machine's rates, as a run has measured them, and the fractions that benchmarks reach."""

from __future__ import annotations

from typing import NamedTuple

from gdt.benchmark.records import BenchmarkRun, Record


class Limits(NamedTuple):
    """The highest rates of each type of device.

    bandwidth: bytes a second that a large copy reads and writes. matmul_rate: floating-point
    operations a second of a large float32 product.
    """

    bandwidth: dict[str, float]
    matmul_rate: dict[str, float]

    def of_bandwidth(self, record: Record) -> float | None:
        """Return the fraction of the bandwidth that a benchmark uses at least; None if unknown."""
        return _fraction(record.memory_bytes, record, self.bandwidth)

    def of_matmul_rate(self, record: Record) -> float | None:
        """Return the fraction of the matmul rate that a benchmark reaches; None if unknown."""
        return _fraction(record.flops, record, self.matmul_rate)

    def copying(self, record: Record) -> float | None:
        """Return the bytes a second that a benchmark's devices could copy: half the bandwidth."""
        bandwidth = self.bandwidth.get(record.device_type)
        return None if bandwidth is None else bandwidth * record.hardware / 2


def limits_of(run: BenchmarkRun) -> Limits:
    """Return the limits that a run has measured, by type of device."""
    limits = Limits({}, {})
    for record in run.of("limit"):
        if record.workload == "copy" and record.memory_bytes:
            limits.bandwidth[record.device_type] = record.memory_bytes / record.minimum
        elif record.workload == "matmul" and record.flops:
            limits.matmul_rate[record.device_type] = record.flops / record.minimum
    return limits


def _fraction(amount: float | None, record: Record, rates: dict[str, float]) -> float | None:
    """Return the rate of `amount` in a benchmark, as a fraction of its devices' rate."""
    rate = rates.get(record.device_type)
    if not amount or not rate:
        return None
    return amount / record.median / (rate * record.hardware)
