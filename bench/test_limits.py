"""What the machine can do: the rates that the report compares every other measurement with."""

import numpy as np
import pytest

from gdt.backend import backend_of
from gdt.benchmark import Devices, measure

pytest_plugins = ["gdt.benchmark.plugin"]
pytestmark = pytest.mark.parametrize(
    "devices", [Devices(1, "cpu"), Devices(1, "gpu")], ids=str, indirect=True
)

COPIED = 128 << 20  # bytes: more than caches hold
SIZE = {"cpu": 1024, "gpu": 8192}  # of square matrices: large enough for the full rate


def test_copy_bandwidth(devices, benchmark):
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


def test_matmul_rate(devices, benchmark):
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
