"""reduce.cu against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gdt.cuda import launches
from gdt.cuda.launches.calls import REDUCTION_BLOCKS
from gdt.cuda.sources import C_DTYPES, C_TYPES
from tests.covering import covering, every

from .harness import (
    DTYPES,
    SCHEDULES,
    Execute,
    assert_close,
    empty,
    garbage,
    name,
    normal,
    run_case,
    with_sanitizers,
)

WHOLE = {"int32": np.dtype(np.int32), "int64": np.dtype(np.int64)}
OPTIONS: dict[str, Any] = {
    "op": ["Sum", "Max", "Min"],
    "dtype": [*DTYPES, *WHOLE],
    "outer": [1, 3, 17],
    "n": [1, 5, 64, 3000],
    "inner": [1, 2, 40],
    "leading": [(), (2,), (1, 3)],
    "uneven": [False, True],
    "special": ["none", "nan", "ties"],
    "order": SCHEDULES,
}
NUMPY = {"Sum": np.sum, "Max": np.max, "Min": np.min}
NUMPY_ARG = {"Max": np.argmax, "Min": np.argmin}


def data(
    dtype: str, outer: int, n: int, inner: int, leading: tuple[int, ...], special: str
) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    shape = (*leading, outer, n, inner)
    if dtype in WHOLE:
        limits = np.iinfo(dtype)
        low, high = (0, 3) if special == "ties" else (limits.min // 4096, limits.max // 4096)
        return rng.integers(low, high, shape, dtype=dtype)
    x = normal(rng, shape, dtype)
    if special == "ties":
        x = np.round(x.astype(np.float32)).astype(x.dtype)
    if special == "nan":
        x[..., n // 2 :: 7, 0] = np.nan
    return x


def readable(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """16-bit floats as float32: NumPy has no bfloat16 of its own."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 else x


def assert_same(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> None:
    np.testing.assert_array_equal(readable(got), want)


def check_values(
    op: str,
    dtype: str,
    outer: int,
    n: int,
    inner: int,
    leading: tuple[int, ...],
    uneven: bool,
    special: str,
    execute: Execute,
) -> None:
    x = data(dtype, outer, n, inner, leading, special)
    items = int(np.prod(leading))
    count = np.full(items, n, np.int32)
    if uneven:
        count[-1] = max(1, n - 3)
    out_dtype = x.dtype if dtype in DTYPES or op != "Sum" else np.dtype(np.int64)
    out = garbage((*leading, outer, inner), out_dtype)
    execute(
        launches.reduce(op, x, out, empty, count=count if uneven else None, mesh_ndim=len(leading))
    )
    parts = x.reshape(items, outer, n, inner)
    for got, part, m in zip(out.reshape(items, outer, inner), parts, count, strict=True):
        if dtype in WHOLE:
            assert (got == NUMPY[op](part[:, :m].astype(np.int64), axis=1)).all()
        elif op == "Sum":
            # In more digits than float64: NumPy adds row after row, and rounds each time.
            assert_close(got, part[:, :m].astype(np.longdouble).sum(1), dtype, n, 1.0)
        else:
            assert_same(got, NUMPY[op](readable(part[:, :m]), axis=1))


def check_arguments(
    op: str,
    dtype: str,
    outer: int,
    n: int,
    inner: int,
    leading: tuple[int, ...],
    uneven: bool,
    special: str,
    execute: Execute,
) -> None:
    x = data(dtype, outer, n, inner, leading, special)
    items = int(np.prod(leading))
    count = np.full(items, n, np.int32)
    start = 3_000_000_000 * np.arange(items)  # places past those of int32
    if uneven:
        count[-1] = max(1, n - 3)
    index = garbage((*leading, outer, inner), np.dtype(np.int64))
    c_type = C_TYPES[dtype]
    wide = C_DTYPES[launches.SUM_TYPES[c_type]] if dtype in DTYPES else dtype
    value = garbage(index.shape, np.dtype(wide))
    execute(
        launches.arg_reduce(
            op,
            x,
            value,
            index,
            empty,
            start=start,
            count=count if uneven else None,
            mesh_ndim=len(leading),
        )
    )
    for i in range(items):
        part = readable(x.reshape(items, outer, n, inner)[i, :, : count[i]])
        np.testing.assert_array_equal(
            index.reshape(items, outer, inner)[i], NUMPY_ARG[op](part, axis=1) + start[i]
        )
        assert_same(value.reshape(items, outer, inner)[i], NUMPY[op](part, axis=1))


@pytest.mark.parametrize("case", covering(**OPTIONS), ids=name)
def test_values(case: dict[str, Any]) -> None:
    run_case(check_values, case)


@pytest.mark.parametrize("case", covering(**(OPTIONS | {"op": ["Max", "Min"]})), ids=name)
def test_arguments(case: dict[str, Any]) -> None:
    run_case(check_arguments, case)


@pytest.mark.kernels_full
@pytest.mark.parametrize("dtype", OPTIONS["dtype"])
def test_in_full(dtype: str) -> None:
    fewer = {"dtype": [dtype], "outer": [17], "n": [5, 3000], "order": ["random"]}
    for case in every(**(OPTIONS | fewer)):
        run_case(check_values, case)
        if case["op"] != "Sum":
            run_case(check_arguments, case)


@pytest.mark.parametrize(("inner", "sanitizer"), with_sanitizers(1, 3))
def test_under_sanitizers(sanitizer: str, inner: int) -> None:
    execute = Execute(sanitizer=sanitizer)
    check_values("Sum", "float32", 3, 700, inner, (2,), True, "none", execute)
    check_arguments("Max", "float32", 3, 700, inner, (2,), True, "ties", execute)


@pytest.mark.parametrize("inner", [1, 2])
@pytest.mark.parametrize(("dtype", "small"), [("float16", 0.2), ("bfloat16", 1.5)])
def test_sums_of_16_bit_numbers_are_rounded_once(dtype: str, small: float, inner: int) -> None:
    """Beside 512, a sum of that dtype loses the small numbers."""
    outer = 8 * REDUCTION_BLOCKS  # so many rows that none is cut into parts
    x = np.full((outer, 128, inner), small, DTYPES[dtype])
    x[:, :32] = 512
    out = garbage((outer, inner), x.dtype)
    Execute()(launches.reduce("Sum", x, out, empty))
    assert (out == x[0, :, 0].astype(np.float64).sum().astype(x.dtype)).all()


MULTIPROCESSORS = 132  # of an H100


@pytest.mark.parametrize("argument", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(1, 1 << 28, 1), (5, 1 << 25, 1), (1000, 1 << 18, 1), (1 << 16, 1 << 12, 1), (1, 1 << 22, 64),
     (1, 1 << 18, 1024)],
)  # fmt: skip
def test_a_gigabyte_is_reduced_by_enough_warps(shape: tuple[int, ...], argument: bool) -> None:
    outer, _, inner = shape
    x = np.empty(shape, np.float32)  # whose pages nobody touches
    if argument:
        value, index = np.empty((outer, inner), np.float32), np.empty((outer, inner), np.int64)
        first, *_ = launches.arg_reduce("Max", x, value, index, np.empty)
    else:
        first, *_ = launches.reduce("Sum", x, np.empty((outer, inner), np.float32), np.empty)
    warps = int(np.prod(first.grid) * np.prod(first.block)) // 32
    if inner == 1 and len(first.block) == 2:  # as many warps a row as it has lanes for
        warps = min(warps, outer * first.grid[1] * first.block[0] // 32)
    assert warps >= 8 * MULTIPROCESSORS


@pytest.mark.parametrize(
    ("op", "dtype"), [("Sum", "float32"), ("Max", "float16"), ("Min", "int64")]
)
def test_one_long_row_is_reduced_by_many_blocks(op: str, dtype: str) -> None:
    n = 20 * 2048 + 77
    check_values(op, dtype, 1, n, 1, (), False, "none", Execute("random"))
    if op != "Sum":
        check_arguments(op, dtype, 1, n, 1, (), True, "ties", Execute("reverse"))


def test_what_lies_behind_parts_does_not_win() -> None:
    def before_winners(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        size = int(np.prod(shape))
        return np.full(size + 64, 1e9, dtype)[:size].reshape(shape)

    x = np.random.default_rng(0).standard_normal((1, 20 * 2048 + 77, 1)).astype(np.float32)
    value, index = garbage((1, 1), x.dtype), garbage((1, 1), np.dtype(np.int64))
    calls = launches.arg_reduce("Max", x, value, index, before_winners)
    assert [c.instance.kernel for c in calls] == ["arg_rows", "arg_finish"]
    Execute()(calls)
    assert index[0, 0] == x.argmax() and value[0, 0] == x.max()


def test_empty_axis_gives_the_identity() -> None:
    x = np.zeros((3, 0, 2), np.float32)
    for op, want in (("Sum", 0), ("Max", -np.inf), ("Min", np.inf)):
        out = garbage((3, 2), x.dtype)
        Execute()(launches.reduce(op, x, out, empty))
        assert (out == want).all()
    assert launches.reduce("Sum", np.zeros((0, 5, 1), np.float32), np.zeros((0, 1)), empty) == []


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(3, 300, 1), (1, 300, 3)])
def test_rows_of_the_most_and_the_least_of_integers(dtype: Any, shape: tuple[int, ...]) -> None:
    limits = np.iinfo(dtype)
    for op, number in (("Max", limits.min), ("Min", limits.max)):
        out = garbage((shape[0], shape[2]), np.dtype(dtype))
        Execute()(launches.reduce(op, np.full(shape, number, dtype), out, empty))
        assert (out == number).all()
