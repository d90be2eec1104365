"""Benchmarks of the machine's copy bandwidth and matmul rate, to be imported into a test file:

    from gdt.benchmark.limit_tests import test_copy_bandwidth, test_matmul_rate

With them in a run, the report shows the fractions of these rates that other benchmarks reach.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gdt.backend import backend_of
from gdt.benchmark.measure import Devices, measure

COPIED = 128 << 20  # bytes, more than caches hold
SIZE = {"cpu": 1024, "gpu": 8192}  # rows of square matrices, enough for the full rate

on_one_device = pytest.mark.parametrize(
    "devices", [Devices(1, "cpu"), Devices(1, "gpu")], ids=str, indirect=True
)


@on_one_device
def test_copy_bandwidth(devices: Devices, benchmark: Any) -> None:
    """Time a copy of 128 MiB by the array library."""
    benchmark.group = "limits"
    mesh = devices.mesh()
    xp = backend_of(mesh).xp
    source, target = xp.ones(COPIED, np.uint8), xp.ones(COPIED, np.uint8)
    measure(
        benchmark,
        lambda: xp.copyto(target, source),
        mesh=mesh,
        kind="limit",
        workload="copy",
        memory_bytes=2 * COPIED,
    )


@on_one_device
def test_matmul_rate(devices: Devices, benchmark: Any) -> None:
    """Time a float32 product of square matrices by the array library."""
    benchmark.group = "limits"
    mesh, n = devices.mesh(), SIZE[devices.kind]
    xp = backend_of(mesh).xp
    x, w = xp.ones((n, n), np.float32), xp.ones((n, n), np.float32)
    out = xp.empty((n, n), np.float32)
    measure(
        benchmark,
        lambda: xp.matmul(x, w, out=out),
        mesh=mesh,
        kind="limit",
        workload="matmul",
        flops=2 * n**3,
    )
