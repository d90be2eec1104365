"""Functions of NumPy in the place of ops, where one block of the host holds whole arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.engine.whole_arrays import NumpyOp
from gdt.testing import assert_close, meshes, tolerance

FOLDED = meshes([(2, 2)], modes=["folded"])[0]
RNG = np.random.default_rng(3)
FLOATS, WIDE = RNG.standard_normal(11).astype(np.float32), RNG.standard_normal(8)
ROWS, INTEGERS = RNG.standard_normal((5, 3)), RNG.integers(-4, 4, 7)
VECTORS = [FLOATS, WIDE, INTEGERS, WIDE * 1j, INTEGERS > 0, FLOATS[:2], WIDE.astype(np.float16)]

CALLS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "diff": (gdt.diff, [*VECTORS, ROWS, FLOATS[:1]]),
    "diff along rows": (lambda x: gdt.diff(x, n=2, axis=0), [ROWS, ROWS[:1], ROWS[:, :0]]),
    "trapezoid": (gdt.trapezoid, [*VECTORS, ROWS]),
    "trapezoid along rows": (lambda x: gdt.trapezoid(x, dx=2, axis=0), [ROWS, INTEGERS]),
    "gradient": (gdt.gradient, [FLOATS, INTEGERS, ROWS, FLOATS[:2]]),
    "gradient to second order": (lambda x: gdt.gradient(x, 0.5, edge_order=2), [FLOATS, ROWS]),
}


def layouts(rank: int) -> list[gdt.Layout]:
    """Along the first axis, over one mesh axis or both, in either order; along the last; whole."""
    a, b = FOLDED.axis_names
    first = [None, a, (a, b), (b, a)] if rank else []
    specs = [[spec, *[None] * (rank - 1)] for spec in first]
    return [gdt.Layout(spec, FOLDED) for spec in [*specs, [*[None] * (rank - 1), a][:rank]]]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_numpy_in_one_block_computes_what_ops_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, samples = CALLS[name]
    calls: list[str] = []
    run = NumpyOp._call
    monkeypatch.setattr(
        NumpyOp, "_call", lambda op, *a, **s: calls.append(op.name) or run(op, *a, **s)
    )
    for sample in samples:
        for layout in layouts(sample.ndim):
            x = gdt.asarray(sample, layout=layout)
            with gdt.count_collectives():  # which the ops report
                expected = as_tuple(function(x))
            for _ in range(2):
                for out, want in zip(as_tuple(function(x)), expected, strict=True):
                    assert out.type is want.type, (sample.dtype, layout)
                    bound = tolerance([want.dtype], sample.size)
                    assert_close(out.numpy(), want.numpy(), bound, name)
                    assert padding(out) <= {*np.atleast_1d(out.numpy())[-1:].ravel().tolist()} | {1}
    assert calls


def padding(x: gdt.DistributedArray) -> set[Any]:
    """What stands behind the elements of an array in C order."""
    return {*np.asarray(x.blocks[0]).ravel()[x.size :].tolist()} if x.type.is_in_order else set()


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
