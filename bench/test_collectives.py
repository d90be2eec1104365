"""Benchmarks of collectives between 8 devices, by the size of the array that moves.

The time is that of the public call that needs the collective, lookup of its plan included.
"""

import numpy as np
import pytest

import gdt
from gdt.benchmark import Devices, measure
from gdt.testing import placed

pytest_plugins = ["gdt.benchmark.plugin"]

DEVICES = 8
SIZES = [1 << n for n in range(10, 27, 2)]  # bytes, 1 KiB to 64 MiB
KIB = 1 << 10


def size_name(nbytes: int) -> str:
    return f"{nbytes // KIB}KiB" if nbytes < KIB**2 else f"{nbytes // KIB**2}MiB"


def all_reduce(mesh, x):
    partial = placed(x, gdt.Layout([None], mesh, partial=["x"]))
    # An array stores its resolved value, so every call needs another array.
    return lambda: gdt.DistributedArray(partial.type, partial.blocks).resolve()


def all_gather(mesh, x):
    split = gdt.asarray(x, layout=gdt.Layout(["x"], mesh))
    return lambda: gdt.relayout(split, [None])


def reduce_scatter(mesh, x):
    partial = placed(x, gdt.Layout([None], mesh, partial=["x"]))
    return lambda: gdt.relayout(partial, ["x"])


def all_to_all(mesh, x):
    rows = gdt.asarray(x.reshape(2 * DEVICES, -1), layout=gdt.Layout(["x", None], mesh))
    return lambda: gdt.relayout(rows, [None, "x"])


def exchange(mesh, x):
    split = gdt.asarray(x, layout=gdt.Layout(["x"], mesh))
    return lambda: gdt.roll(split, x.size // DEVICES, 0)  # every shard goes to the next device


COLLECTIVES = [all_reduce, all_gather, reduce_scatter, all_to_all, exchange]


@pytest.mark.parametrize("size", SIZES, ids=size_name)
@pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "devices",
    [Devices(DEVICES, kind, apart) for kind in ("cpu", "gpu") for apart in (False, True)],
    ids=str,
    indirect=True,
)
@pytest.mark.benchmark(max_time=0.3)
def test_collective(devices, benchmark, collective, size):
    benchmark.group = f"{collective.__name__} on {devices}"
    mesh = devices.mesh()
    call = collective(mesh, np.ones(size // 4, np.float32))
    measure(
        benchmark,
        call,
        mesh=mesh,
        kind="collective",
        workload=collective.__name__,
        info={"size": size},
    )
    assert benchmark.extra_info["collectives"] == {collective.__name__: 1}
