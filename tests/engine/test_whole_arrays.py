"""Functions of NumPy in the place of ops, where one block of the host holds whole arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.engine import whole_arrays
from gdt.engine.whole_arrays import NumpyOp
from gdt.testing import assert_close, meshes, tolerance

FOLDED = meshes([(2, 2)], modes=["folded"])[0]
RNG = np.random.default_rng(3)
FLOATS, WIDE = RNG.standard_normal(11).astype(np.float32), RNG.standard_normal(8)
ROWS, INTEGERS = RNG.standard_normal((5, 3)), RNG.integers(-4, 4, 7)
VECTORS = [FLOATS, WIDE, INTEGERS, WIDE * 1j, INTEGERS > 0, FLOATS[:2], WIDE.astype(np.float16)]

ONE_ROW = np.arange(12.0)[None]  # whose columns are split evenly
LEVELS = np.array([3.0, -1.0, 7.0, 4.0])
SHORT = np.array([2, -3, 2], np.int16)
LONG = RNG.integers(-300, 300, 9000)


def updated(xp: Any, x: Any, value: Any, index: Any, how: str = "set") -> Any:
    if xp is gdt:
        return gdt.update_at(x, value, gdt.asarray(index) if type(index) is list else index, how)
    x = x.copy()
    if how == "set":
        x[index] = value
    else:
        getattr(np, {"min": "minimum"}.get(how, how)).at(x, index, value)
    return x


Call = Callable[[Any, Any], Any]  # of a namespace, `gdt` or `numpy`, and an array
CALLS: dict[str, tuple[Call, list[Any]]] = {
    "diff": (lambda xp, x: xp.diff(x), [*VECTORS, ROWS, FLOATS[:1]]),
    "diff along rows": (lambda xp, x: xp.diff(x, n=2, axis=0), [ROWS, ROWS[:1], ROWS[:, :0]]),
    "trapezoid": (lambda xp, x: xp.trapezoid(x), [*VECTORS, ROWS]),
    "trapezoid along rows": (lambda xp, x: xp.trapezoid(x, dx=2, axis=0), [ROWS, INTEGERS]),
    "gradient": (lambda xp, x: xp.gradient(x), [FLOATS, INTEGERS, ROWS, FLOATS[:2]]),
    "gradient to second order": (
        lambda xp, x: xp.gradient(x, 0.5, edge_order=2),
        [FLOATS, WIDE],
    ),
    "isin": (lambda xp, x: xp.isin(x, SHORT), [*VECTORS, LONG, ROWS]),
    "isin of many": (lambda xp, x: xp.isin(x, FLOATS, invert=True), [*VECTORS, FLOATS[::-1]]),
    "isin of many integers": (lambda xp, x: xp.isin(x, LONG * 99), [INTEGERS, LONG, WIDE]),
    "bincount": (lambda xp, x: xp.bincount(x), [abs(INTEGERS), LONG + 300, INTEGERS > 0]),
    "bincount of weights": (
        lambda xp, x: xp.bincount(x, x.astype(np.float32) / 3, minlength=12),
        [abs(INTEGERS), LONG + 300],
    ),
    "histogram": (lambda xp, x: xp.histogram(x), [*VECTORS[:3], LONG, LONG / 7, FLOATS[:1]]),
    "histogram between limits": (
        lambda xp, x: xp.histogram(x, 5, (-0.3, 0.7)),
        [FLOATS, np.append(LONG / 300, np.nan).astype(np.float32)],
    ),
    "histogram of edges": (lambda xp, x: xp.histogram(x, [-1, 0, 0.25, 2]), [FLOATS, LONG / 99]),
    "median": (lambda xp, x: xp.median(x), [*VECTORS[:3], VECTORS[-1], ROWS, FLOATS * np.nan]),
    "median of columns": (lambda xp, x: xp.median(x, axis=0, keepdims=True), [ROWS, ROWS[:1]]),
    "quantiles": (
        lambda xp, x: xp.quantile(x, [[0.1, 0.5], [1.0, 0.0]], axis=-1),
        [*VECTORS[:3], ROWS, FLOATS[:1]],
    ),
    "quantiles that are elements": (
        lambda xp, x: xp.percentile(x, [30, 70.0], method="nearest"),
        [*VECTORS[:3], INTEGERS > 0, ROWS],
    ),
    "cumsum": (lambda xp, x: xp.cumsum(x), [*VECTORS, ROWS]),
    "cumsum of columns": (lambda xp, x: xp.cumsum(x, axis=0, dtype=float), [ROWS, INTEGERS]),
    "cumprod": (lambda xp, x: xp.cumprod(x), [*VECTORS]),
    "partition": (lambda xp, x: xp.sort(xp.partition(x, 1)[..., :2]), [*VECTORS, ROWS]),
    "partition by columns": (lambda xp, x: xp.partition(x, (0, 2), axis=0)[2], [ROWS]),
    "nonzero": (lambda xp, x: xp.nonzero(x), [*VECTORS, ROWS > 0, INTEGERS[:0]]),
    "argwhere": (lambda xp, x: xp.argwhere(x), [*VECTORS, ROWS > 0]),
    "nan_to_num": (
        lambda xp, x: xp.nan_to_num(x, nan=-3, posinf=2.5),
        [FLOATS, np.array([np.nan, -np.inf, np.inf, 1, -0.0]), np.float16([np.inf, 1])],
    ),
    "unique": (lambda xp, x: xp.unique(x), [*VECTORS, LONG, ROWS, LEVELS * np.nan]),
    "unique with all": (
        lambda xp, x: xp.unique(x, True, True, True),
        [*VECTORS, LONG, np.array([np.nan, 1, np.nan, 1])],
    ),
    "unique with unlike nan": (
        lambda xp, x: xp.unique(x, return_counts=True, equal_nan=False),
        [np.array([np.nan, 1, np.nan, 1, 0, -0.0])],
    ),
    "update of a slice": (lambda xp, x: updated(xp, x, 3, slice(4, None, -2)), [*VECTORS, ROWS]),
    "update of the only row": (lambda xp, x: updated(xp, x, 3, ...), [ONE_ROW]),
    "update of a place": (lambda xp, x: updated(xp, x, 5, (..., -1)), [*VECTORS[:3], ROWS]),
    "update of places": (lambda xp, x: updated(xp, x, 2, [0, -1, 0]), [*VECTORS, ROWS]),
    "sum at places": (lambda xp, x: updated(xp, x, 2, [0, -1, 0], "add"), [*VECTORS[:3], ROWS]),
    "least at places": (lambda xp, x: updated(xp, x, x[:1], [0, 1], "min"), [*VECTORS[:3], ROWS]),
    "count_nonzero": (lambda xp, x: xp.count_nonzero(x), [*VECTORS, ROWS > 0, INTEGERS[:0] > 0]),
    "count_nonzero of rows": (
        lambda xp, x: xp.count_nonzero(x, axis=1),
        [ROWS > 0, LONG.reshape(90, -1) > 0],
    ),
}
BY_OPS = {"count_nonzero", "count_nonzero of rows"}  # whose bodies they are


def layouts(rank: int) -> list[gdt.Layout]:
    """Along the first axis, over one mesh axis or both, in either order; along the last, alone and
    beside the first; whole."""
    a, b = FOLDED.axis_names
    first = [None, a, (a, b), (b, a)] if rank else []
    specs = [[spec, *[None] * (rank - 1)] for spec in first]
    specs += [[a, *[None] * (rank - 2), b]] if rank > 1 else []
    return [gdt.Layout(spec, FOLDED) for spec in [*specs, [*[None] * (rank - 1), a][:rank]]]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_numpy_in_one_block_computes_what_ops_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, samples = CALLS[name]
    runs: list[int] = []
    for owner, method in ((NumpyOp, "_call"), (whole_arrays, "viewer")):
        run = getattr(owner, method)
        monkeypatch.setattr(owner, method, lambda *a, run=run, **s: runs.append(1) or run(*a, **s))
    for sample in samples:
        numpys = as_tuple(function(np, sample))
        for layout in layouts(sample.ndim):
            x = gdt.asarray(sample, layout=layout)
            with gdt.count_collectives():  # which the ops report
                expected = as_tuple(function(gdt, x))
            for _ in range(2):
                outs = as_tuple(function(gdt, x))
                for out, want, numpy in zip(outs, expected, numpys, strict=True):
                    assert out.type is want.type, (sample.dtype, layout)
                    assert out.shape == np.shape(numpy), (sample.dtype, layout)
                    bound = tolerance([want.dtype], sample.size)
                    assert_close(out.numpy(), want.numpy(), bound, name)
                    assert_close(out.numpy(), np.asarray(numpy), bound, name)
                    if x.type.is_of_numpy:
                        last = np.atleast_1d(out.numpy())[-1:].ravel()
                        assert padding(out) <= {*map(str, last), "1", "1.0"}
    assert runs or name in BY_OPS


def padding(x: gdt.DistributedArray) -> set[str]:
    """What stands behind the elements of an array in C order."""
    return {*map(str, np.asarray(x.blocks[0]).ravel()[x.size :])} if x.type.is_in_order else set()


def as_tuple(outs: Any) -> tuple[Any, ...]:
    return outs if isinstance(outs, tuple) else (outs,)


def test_a_recorded_step_runs_numpy_and_a_tape_records_ops() -> None:
    x = gdt.asarray(WIDE, layout=layouts(1)[1])
    step = gdt.function(lambda x: gdt.sum(gdt.diff(x) ** 2))
    gradient = gdt.function(gdt.grad(lambda x: gdt.sum(gdt.diff(x) ** 2)))
    steps = 2 * np.diff(WIDE)
    for k in (1.0, 2.0, 3.0):
        np.testing.assert_allclose(float(step(x * k)), np.sum(np.diff(WIDE * k) ** 2))
        expected = k * (np.append(0, steps) - np.append(steps, 0))
        np.testing.assert_allclose(gradient(x * k).numpy(), expected)


def test_a_histogram_flattens_a_matrix_once() -> None:
    mesh = gdt.create_mesh([("model", 4)])
    x = gdt.asarray(np.arange(64.0).reshape(4, 16), layout=gdt.Layout([None, "model"], mesh))
    with gdt.count_collectives() as flattened:
        gdt.reshape(x, -1)
    with gdt.count_collectives() as counted:
        gdt.histogram(x, [0.0, 32.0, 64.0])
    assert counted.bytes == flattened.bytes > 0
