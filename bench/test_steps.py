"""Benchmarks of the training steps that run in this environment: gdt's, with all coordinates in one
block, with one block each and on GPUs, beside NumPy's."""

import pytest

import gdt
from bench.baselines import numpy_step
from bench.gdt_steps import CONTENDERS, MESHES, MODES, PLACES, name_of
from bench.report import contenders
from bench.worker import WARM_STEPS
from bench.workloads import WORKLOADS
from gdt.benchmark import Devices, measure
from gdt.sharding.devices import DEVICE_COUNTS

pytest_plugins = ["gdt.benchmark.plugin"]

SCHEMES = {name: [c.name for c in contenders(name) if c.library == "gdt"] for name in WORKLOADS}
STEPS = [
    (workload, scheme, mode, place)
    for workload, schemes in SCHEMES.items()
    for scheme in schemes
    for mode in MODES
    for place in PLACES
]


def time_steps(benchmark, workload, prepare, mesh, **info):
    benchmark.group = workload
    step = prepare(WORKLOADS[workload])()
    for index in range(WARM_STEPS):
        step(index)
    run = lambda: float(step(0))
    measure(benchmark, run, mesh=mesh, kind="step", workload=workload, info=info)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_numpy_step(benchmark, workload):
    mesh = Devices(1).mesh()
    time_steps(
        benchmark, workload, numpy_step, mesh, contender="NumPy in place", scheme="", mode=""
    )


@pytest.fixture
def place(request):
    if request.param == "gpu" and not DEVICE_COUNTS["cuda"]():
        pytest.skip("needs a GPU, 0 found")
    return request.param


@pytest.mark.parametrize(("workload", "scheme", "mode", "place"), STEPS, indirect=["place"])
def test_step(place, benchmark, workload, scheme, mode):
    mesh = gdt.create_mesh(MESHES[scheme], **{"device_type": "CPU", **PLACES[place]})
    prepare = CONTENDERS[name_of(scheme, mode, place)]
    time_steps(benchmark, workload, prepare, mesh, contender="gdt", scheme=scheme, mode=mode)
