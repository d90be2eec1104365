"""`make smoke`: in under a minute, a sample of every op on one mesh, a training, two processes.

It says early that something is broken; that nothing is, `make test` says.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gdt
from gdt.array.registry import FUNCTIONS
from gdt.testing import Oracle, choices

from .processes.launch import results
from .samples import SAMPLES

MESH = gdt.create_mesh([("a", 2), ("b", 2)], device_type="CPU")


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_function_equals_itself_on_whole_arrays(name: str) -> None:
    oracle = Oracle(FUNCTIONS[name], SAMPLES[name][0])
    ranks = [a.ndim for a in oracle.sample.arrays]
    for layouts in choices(MESH, ranks, limit=2)[1:]:  # the first one splits nothing
        oracle.check(MESH, layouts, gradients=True, second=False)


def test_recorded_training_is_the_written_one() -> None:
    x = np.random.rand(64, 4).astype("float32")
    y = x @ np.arange(8, dtype="float32").reshape(4, 2)

    def losses(strategy: gdt.Strategy, *, run_eagerly: bool) -> list[float]:
        gdt.random.seed(0)  # of the order of rows
        with strategy.scope():
            hidden = gdt.nn.Dense(4, 8, activation="tanh", key=0)
            model = gdt.nn.Sequential(hidden, gdt.nn.Dense(8, 2, key=1))
            model.compile(gdt.optim.Adam(0.01), "mse", run_eagerly=run_eagerly)
        return list(model.fit(x, y, epochs=5, verbose=0)["loss"])

    split = losses(gdt.MirroredStrategy(8), run_eagerly=False)
    assert split == losses(gdt.MirroredStrategy(8), run_eagerly=True)
    assert split == pytest.approx(losses(gdt.MirroredStrategy(1), run_eagerly=False), rel=1e-5)
    assert split[-1] < split[0]


def test_two_processes_agree(tmp_path: Path) -> None:
    one, two = results(2, "values", tmp_path)
    assert {key for key in one if one[key] != two[key]} <= {"recordings", "shards"}
