"""Benchmarks of single tiny calls: one group for each op, NumPy's call on the block beside gdt's.

Every round is one call; look at `min`. `python -m bench.overhead` prints the differences. On a GPU
the time of a call ends when the host has launched the kernels.
"""

import pytest

import gdt
from bench.tiny import TINY_OPS, tiny_ops
from gdt.benchmark import Devices

pytest_plugins = ["gdt.benchmark.plugin"]
pytestmark = [
    pytest.mark.parametrize(
        "devices", [Devices(8, "cpu"), Devices(8, "gpu")], ids=str, indirect=True
    ),
    pytest.mark.parametrize("name", TINY_OPS),
]

ROUNDS = {"rounds": 5000, "warmup_rounds": 100}


@pytest.fixture
def tiny_op(devices, name, benchmark):
    mesh = devices.mesh()
    benchmark.group = f"{name} on {devices}"
    benchmark.extra_info.update(
        kind="dispatch",
        workload=name,
        devices=mesh.size,
        device_type=mesh.device_type(),
        blocks=1,
    )
    yield tiny_ops(mesh)[name]
    gdt.synchronize()


def test_bare(tiny_op, benchmark):
    benchmark.extra_info["caller"] = "array library"
    benchmark.pedantic(tiny_op.bare, **ROUNDS)


def test_gdt(tiny_op, benchmark):
    benchmark.extra_info["caller"] = "gdt"
    benchmark.pedantic(tiny_op.op, **ROUNDS)


def test_gdt_with_tape(tiny_op, benchmark):
    benchmark.extra_info["caller"] = "gdt with tape"
    with gdt.GradientTape() as tape:
        benchmark.pedantic(tiny_op.op, setup=tape.nodes.clear, **ROUNDS)
