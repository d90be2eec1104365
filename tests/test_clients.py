"""Other libraries compute on split arrays: the real packages, with the values that they have for
NumPy's arrays, and without fetching anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import gdt

ROOT = Path(__file__).parent.parent
MESH = gdt.create_mesh([("x", 4)], device_type="CPU", blocks=4)
HOST = np.random.default_rng(0).standard_normal((10, 3))
X = gdt.asarray(HOST, layout=gdt.Layout(["x", None], MESH))


def test_libraries_compute_on_split_arrays() -> None:
    environment = {**os.environ, "SCIPY_ARRAY_API": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.clients"]
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    problems = json.loads(run.stdout.splitlines()[-1])
    wrong = {name: text for name, text in problems.items() if text}
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())


def test_pandas_takes_arrays() -> None:
    assert np.array_equal(pd.DataFrame(X).to_numpy(), HOST)
    total = pd.Series(np.zeros(10)) + X[:, 0]
    assert np.allclose(np.asarray(total), HOST[:, 0])
    assert np.array_equal(gdt.asarray(pd.Series([1, 2])).numpy(), [1, 2])


def picture(values: Any) -> np.ndarray:
    """The pixels of diagrams of a matrix."""
    figure = Figure(figsize=(10, 4), dpi=50)
    x, y = values[:, 0], values[:, 1]
    for axes, draw in zip(
        figure.subplots(2, 5).ravel(),
        (
            lambda at: at.plot(x, y), lambda at: at.bar(x, y), lambda at: at.hist(x),
            lambda at: at.scatter(x, y, c=y), lambda at: at.imshow(values),
            lambda at: at.boxplot(values), lambda at: at.fill_between(x, y),
            lambda at: at.axhline(values[0, 0]), lambda at: at.errorbar(x, y, yerr=abs(x)),
            lambda at: at.contourf(values),
        ),
        strict=True,
    ):  # fmt: skip
        draw(axes)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def test_matplotlib_draws_arrays() -> None:
    assert np.array_equal(picture(X), picture(HOST))
    assert not np.array_equal(picture(X), picture(HOST + 1.0))


@pytest.mark.parametrize("axis", [0, 1, None])
def test_sliding_windows(axis: int | None) -> None:
    window = (2, 3) if axis is None else 3
    result = gdt.lib.stride_tricks.sliding_window_view(X, window, axis=axis)
    expected = np.lib.stride_tricks.sliding_window_view(HOST, window, axis=axis)
    assert np.array_equal(result.numpy(), expected)
    assert np.array_equal(
        np.lib.stride_tricks.sliding_window_view(X, window, axis=axis).numpy(), expected
    )
    with pytest.raises(ValueError, match="a window of 99 does not fit"):
        gdt.lib.stride_tricks.sliding_window_view(X, 99, axis=0)
