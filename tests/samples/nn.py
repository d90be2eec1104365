"""Samples of the ops that only layers use."""

from __future__ import annotations

import numpy as np

from gdt.testing import Sample

rng = np.random.default_rng(0)


def average(running: np.ndarray, value: np.ndarray, momentum: float) -> np.ndarray:
    return momentum * running + (1 - momentum) * value


SAMPLES = {
    "moving_average": [
        Sample((rng.random(7), rng.random(7), 0.9), expect=average, grad=False),
        Sample(
            (rng.random((4, 6)).astype("float32"), rng.random((4, 6)).astype("float32"), 0.5),
            expect=average,
            grad=False,
        ),
    ],
}
