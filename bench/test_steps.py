"""pytest-benchmark of the training steps that run in this environment: gdt's, with all coordinates
in one block and with one block each, beside NumPy's."""

import pytest

from bench.baselines import numpy_step
from bench.gdt_steps import CONTENDERS
from bench.report import contenders
from bench.worker import WARM_STEPS
from bench.workloads import WORKLOADS

SCHEMES = {
    name: [c.name for c in contenders(name) if c.module == "bench.gdt_steps"] for name in WORKLOADS
}
STEPS = [
    (workload, contender)
    for workload, schemes in SCHEMES.items()
    for contender in ("numpy", *schemes, *(f"{scheme}-blocks" for scheme in schemes))
]


@pytest.mark.parametrize(("workload", "contender"), STEPS, ids=["-".join(s) for s in STEPS])
def test_step(benchmark, workload, contender):
    benchmark.group = workload
    prepare = numpy_step if contender == "numpy" else CONTENDERS[contender]
    step = prepare(WORKLOADS[workload])()
    for index in range(WARM_STEPS):
        step(index)
    benchmark(lambda: float(step(0)))
