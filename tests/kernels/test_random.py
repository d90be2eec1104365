"""random.cu against gdt.random.bits, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gdt.cuda import launches
from gdt.ops.blocks.philox import CounterRun
from gdt.random import bits as random_bits
from tests.covering import covering, every

from .harness import SANITIZERS, SCHEDULES, Execute, garbage, name, run_case

STARTS = {"zero": [0], "inside": [3], "rows": [0, 5, 2**34 + 1], "far": [2**40 + 2]}
WHOLE = ["int8", "uint8", "int32", "uint32", "int64", "uint64"]
OPTIONS: dict[str, Any] = {
    "draw": [
        *(("bits", d) for d in ("uint32", "uint64")),
        *(("uniform", d) for d in ("bfloat16", "float16", "float32", "float64")),
        *(("normal", d) for d in ("bfloat16", "float16", "float32", "float64")),
        *(("truncated", d) for d in ("bfloat16", "float16", "float32", "float64")),
        *(("integers", d) for d in WHOLE),
        ("bernoulli", "bool"),
    ],
    "start": list(STARTS),
    "length": [1, 3, 1025, 4096],
    "key": [0, 2**63 + 12345],
    "stream": [0, 7, 2**40],
    "order": SCHEDULES,
}
WIDE_RANGES = {"int64": (-(2**63), 2**63), "uint64": (5, 2**63), "int32": (-(2**31), 2**31)}


def reference(
    kernel: str, dtype: str, index: CounterRun, key: int, stream: int
) -> tuple[Any, dict[str, Any]]:
    """What the CPU draws, and what the kernel has to be told."""
    draw: dict[str, Any] = {
        "uniform": random_bits.uniform,
        "normal": random_bits.normal,
        "truncated": random_bits.truncated_normal,
    }
    if kernel == "bits":
        words = random_bits.bits32 if dtype == "uint32" else random_bits.bits64
        return words(np, index, key, stream), {}
    if kernel == "integers":
        low, high = WIDE_RANGES.get(dtype, (3, 100))
        limits = {"low": low, "high": high}
        return random_bits.integers(np, index, key, stream, dtype=dtype, **limits), limits
    if kernel == "bernoulli":
        return random_bits.bernoulli(np, index, key, stream, p=0.3), {"p": 0.3}
    return draw[kernel](np, index, key, stream, dtype=np.dtype(dtype)), {}


def check_draw(
    draw: tuple[str, str], start: str, length: int, key: int, stream: int, execute: Execute
) -> None:
    kernel, dtype = draw
    starts = np.array(STARTS[start], np.int64)
    out = garbage((len(starts), length), np.dtype(dtype))
    want, options = reference(kernel, dtype, CounterRun(starts, length), key, stream)
    one = lambda value: np.full(1, value, np.uint64)
    execute(launches.random(kernel, out, starts, one(key), one(stream), **options))
    assert out.tobytes() == np.ascontiguousarray(want).tobytes()


@pytest.mark.parametrize("case", covering(**OPTIONS), ids=name)
def test_kernels_draw_what_the_cpu_draws(case: dict[str, Any]) -> None:
    run_case(check_draw, case)


@pytest.mark.kernels_full
def test_kernels_draw_what_the_cpu_draws_in_full() -> None:
    for case in every(**OPTIONS):
        run_case(check_draw, case)
    for draw in (("normal", "float32"), ("normal", "float64"), ("truncated", "float32")):
        check_draw(draw, "inside", 2**20, 1, 2, Execute())


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_draws_under_sanitizers(sanitizer: str) -> None:
    for draw in (
        ("bits", "uint64"), ("uniform", "float32"), ("normal", "float64"),
        ("truncated", "float16"), ("integers", "int8"), ("bernoulli", "bool"),
    ):  # fmt: skip
        check_draw(draw, "rows", 1025, 5, 7, Execute(sanitizer=sanitizer))


@pytest.mark.parametrize(("start", "bound"), [(39126841, 2.0), (1819059, -2.0)])
def test_truncated_draws_end_at_their_bound(start: int, bound: float) -> None:
    """At these indices float32's quantile is a little beyond 2, at 2.0000002."""
    out, zero = garbage((1, 1), np.dtype(np.float32)), np.zeros(1, np.uint64)
    Execute()(launches.random("truncated", out, np.array([start]), zero, zero))
    assert out[0, 0] == bound
    assert random_bits.truncated_normal(np, CounterRun(start, 1), 0) == bound


def test_rows_may_have_keys_of_their_own() -> None:
    keys, out = np.array([4, 9], np.uint64), garbage((2, 5), np.dtype(np.uint32))
    starts = np.array([0, 1], np.int64)
    Execute()(launches.random("bits", out, starts, keys, np.zeros(1, np.uint64)))
    for row, key, start in zip(out, keys.tolist(), starts.tolist(), strict=True):
        assert (row == random_bits.bits32(np, CounterRun(start, 5), key)).all()


def test_the_tails_of_the_normal_are_the_cpus() -> None:
    """Millions of draws, since the far tail begins at 5 deviations."""
    check_draw(("normal", "float64"), "zero", 2**21, 3, 0, Execute())
