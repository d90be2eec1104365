"""pytest-benchmark of the training steps that run in this environment."""

import pytest

from bench.baselines import numpy_step
from bench.workloads import WORKLOADS


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_numpy_step(benchmark, workload):
    step = numpy_step(workload)()
    benchmark(step, 0)
