"""update.cu against float64 NumPy, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gdt import launches
from gdt.kernels import C_TYPES, constants

from .harness import (
    SANITIZERS,
    SCHEDULES,
    Execute,
    assert_close,
    covering,
    every,
    name,
    normal,
    run_case,
)

CHUNK = constants("update.cu")["CHUNK"]
SIZES = {
    "one": [(1,)],
    "odd": [(3,), (5, 7), (0,), (1,), ()],
    "blocks": [(CHUNK,), (CHUNK + 1,), (2, CHUNK)],
}
SGD_OPTIONS: dict[str, Any] = {
    "dtype": ["float32", "float64"],
    "sizes": list(SIZES),
    "momentum": [None, 0.0, 0.9],
    "nesterov": [False, True],
    "decay": [0.0, 0.1],
    "misaligned": [False, True],
    "order": SCHEDULES,
}
ADAM_OPTIONS: dict[str, Any] = {
    "dtype": ["float32", "float64"],
    "sizes": list(SIZES),
    "step": [1, 2, 1000],
    "decay": [0.0, 0.1],
    "decoupled": [False, True],
    "misaligned": [False, True],
    "order": SCHEDULES,
}


def tensors(
    dtype: str, sizes: str, arrays: int, misaligned: bool
) -> list[tuple[np.ndarray[Any, Any], ...]]:
    """Tuples of arrays of one shape; misaligned: they lie differently relative to 16 bytes."""
    rng = np.random.default_rng(0)
    return [
        tuple(normal(rng, shape, dtype, misaligned and i % 2 == 0) for i in range(arrays))
        for shape in SIZES[sizes]
    ]


def check_sgd(
    dtype: str,
    sizes: str,
    momentum: float | None,
    nesterov: bool,
    decay: float,
    misaligned: bool,
    execute: Execute,
) -> None:
    given = tensors(dtype, sizes, 3, misaligned)
    before = [[a.astype(np.float64) for a in t] for t in given]
    used = given if momentum is not None else [(p, g, None) for p, g, _ in given]
    rate = {C_TYPES[dtype]: np.full(1, 0.3, dtype)}
    execute(launches.sgd(used, rate, momentum=momentum or 0.0, decay=decay, nesterov=nesterov))
    for (p, g, m), (p0, g0, m0) in zip(given, before, strict=True):
        step = g0 + decay * p0
        want_m = (momentum or 0.0) * m0 + step if momentum is not None else step
        want = p0 - 0.3 * (step + (momentum or 0.0) * want_m if nesterov else want_m)
        assert_close(p, want, dtype, 1, 2.0)
        assert (g == g0).all()
        if momentum is not None:
            assert_close(m, want_m, dtype, 1, 2.0)
        else:
            assert (m == m0).all()


def check_adam(
    dtype: str,
    sizes: str,
    step: int,
    decay: float,
    decoupled: bool,
    misaligned: bool,
    execute: Execute,
) -> None:
    given = [(p, g, m, np.abs(v, out=v)) for p, g, m, v in tensors(dtype, sizes, 4, misaligned)]
    before = [[a.astype(np.float64) for a in t] for t in given]
    one = lambda value: {C_TYPES[dtype]: np.full(1, value, dtype)}
    execute(launches.adam(given, one(0.01), one(step), decay=decay, decoupled=decoupled))
    for (p, g, m, v), (p0, g0, m0, v0) in zip(given, before, strict=True):
        used = g0 + (0 if decoupled else decay) * p0
        want_m, want_v = 0.9 * m0 + 0.1 * used, 0.999 * v0 + 0.001 * used**2
        change = want_m / (1 - 0.9**step) / (np.sqrt(want_v / (1 - 0.999**step)) + 1e-8)
        want = p0 - 0.01 * (change + (decay * p0 if decoupled else 0))
        assert_close(p, want, dtype, 1, 2.0)
        assert_close(m, want_m, dtype, 1, 2.0)
        assert_close(v, want_v, dtype, 1, 2.0)
        assert (g == g0).all()


@pytest.mark.parametrize("case", covering(**SGD_OPTIONS), ids=name)
def test_sgd(case: dict[str, Any]) -> None:
    run_case(check_sgd, case)


@pytest.mark.parametrize("case", covering(**ADAM_OPTIONS), ids=name)
def test_adam(case: dict[str, Any]) -> None:
    run_case(check_adam, case)


@pytest.mark.kernels_full
def test_sgd_and_adam_in_full() -> None:
    for case in every(**SGD_OPTIONS):
        run_case(check_sgd, case)
    for case in every(**ADAM_OPTIONS):
        run_case(check_adam, case)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_under_sanitizers(sanitizer: str) -> None:
    execute = Execute(sanitizer=sanitizer)
    check_sgd("float32", "odd", 0.9, True, 0.1, True, execute)
    check_adam("float32", "odd", 2, 0.1, True, False, execute)


def test_mixed_dtypes_are_one_launch_each_and_nothing_is_none() -> None:
    rate = {"float": np.full(1, 0.1, np.float32), "double": np.full(1, 0.1)}
    given = [*tensors("float32", "odd", 2, False), *tensors("float64", "odd", 2, False)]
    calls = launches.sgd([(p, g, None) for p, g in given], rate)
    assert [c.instance.arguments for c in calls] == [("float",), ("double",)]
    assert launches.sgd([], rate) == []
