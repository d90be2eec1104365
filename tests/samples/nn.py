"""Samples of the ops that only layers use."""

from __future__ import annotations

import numpy as np

from gdt.testing import Sample

rng = np.random.default_rng(0)


def average(running: np.ndarray, value: np.ndarray, momentum: float) -> np.ndarray:
    return momentum * running + (1 - momentum) * value


def lstm_cell(gates: np.ndarray, cell: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    activated = 1 / (1 + np.exp(-gates))
    activated[:, 2] = np.tanh(gates[:, 2])
    opening, forget, candidate, output = activated.swapaxes(0, 1)
    new = forget * cell + opening * candidate
    return output * np.tanh(new), new, activated


def lstm_cell_gradient(
    g_hidden: np.ndarray,
    g_cell: np.ndarray,
    activated: np.ndarray,
    cell: np.ndarray,
    new: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    opening, forget, candidate, output = activated.swapaxes(0, 1)
    g_new = g_cell + g_hidden * output * (1 - np.tanh(new) ** 2)
    g_gates = [
        g_new * candidate * opening * (1 - opening),
        g_new * cell * forget * (1 - forget),
        g_new * opening * (1 - candidate**2),
        g_hidden * np.tanh(new) * output * (1 - output),
    ]
    return np.stack(g_gates, 1), g_new * forget


def cell_samples(dtype: str) -> tuple[np.ndarray, ...]:
    """A hidden state, a cell, gates, and two more cells, of 3 sequences and 5 units."""
    shapes = [(3, 5), (3, 5), (3, 4, 5), (3, 5), (3, 5)]
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


SAMPLES = {
    "lstm_cell": [
        Sample(cell_samples(dtype)[2:4], expect=lstm_cell) for dtype in ("float64", "float32")
    ],
    "lstm_cell_gradient": [
        Sample(cell_samples(dtype), expect=lstm_cell_gradient) for dtype in ("float64", "float32")
    ],
    "moving_average": [
        Sample((rng.random(7), rng.random(7), 0.9), expect=average, grad=False),
        Sample(
            (rng.random((4, 6)).astype("float32"), rng.random((4, 6)).astype("float32"), 0.5),
            expect=average,
            grad=False,
        ),
    ],
}
