"""matmul.cu against float64 NumPy, and its epilogues against the ops that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gdt.cuda import launches
from gdt.cuda.runner import KernelCall
from tests.covering import covering, every

from .harness import (
    DTYPES,
    EPSILONS,
    SANITIZERS,
    SCHEDULES,
    Execute,
    assert_close,
    empty,
    garbage,
    name,
    normal,
    run_case,
)

OPTIONS: dict[str, Any] = {
    "m": [1, 5, 70, 129],
    "n": [1, 3, 10, 136],
    "k": [1, 7, 64, 99],
    "x_t": [False, True],
    "w_t": [False, True],
    "leading": ["none", "both", "w replicated", "x replicated"],
    "activation": launches.ACTIVATIONS,
    "has_bias": [False, True],
    "tile": [64, 128],
    "pieces": [1, 2],
    "has_counters": [False, True],
    "misaligned": [False, True],
    "order": SCHEDULES,
}
SIMT_OPTIONS = {"dtype": ["float32", "float64"]} | OPTIONS
MMA_OPTIONS = {
    "dtype": ["float16", "bfloat16", "float32", "float64"],
    "wide_result": [False, True],
    "async_mode": ["early", "late", "tossed"],
} | OPTIONS
LEADING = {
    "none": ((), ()),
    "both": ((2,), (2,)),
    "w replicated": ((2, 2), (1, 2)),
    "x replicated": ((1, 2), (3, 1)),
}
TF32_EPSILON = 2.0**-11


def operand(
    rng: Any,
    leading: tuple[int, ...],
    rows: int,
    columns: int,
    turned: bool,
    dtype: str,
    misaligned: bool,
    pad: int = 1,
) -> Any:
    """pad: rows in memory begin on multiples of so many elements."""
    if turned:
        return operand(rng, leading, columns, rows, False, dtype, misaligned, pad).swapaxes(-1, -2)
    row = -(-columns // pad) * pad
    return normal(rng, (*leading, rows, row), dtype, misaligned)[..., :columns]


def reference(product: Any, bias: Any, aux: Any, activation: str, dtype: Any) -> Any:
    """What the ops of an epilogue make of a product, of which each rounds its result to `dtype`."""
    value = np.asarray(product, dtype)
    widened = lambda a: np.asarray(a).astype(np.float64 if dtype == np.float64 else np.float32)
    if bias is not None:
        value = (widened(value) + widened(bias)[..., None, :]).astype(dtype)
    if activation == "relu":
        value = np.where((value > 0) | (value != value), value, np.zeros((), dtype))
    if activation == "relu_backward":
        value = (widened(value) * (widened(aux) > 0)).astype(dtype)
    return value


def check_matmul(
    dtype: str,
    m: int,
    n: int,
    k: int,
    x_t: bool,
    w_t: bool,
    leading: str,
    activation: str,
    has_bias: bool,
    tile: int,
    pieces: int,
    misaligned: bool,
    execute: Execute,
    tensor_cores: bool = False,
    wide_result: bool = False,
    arch: str | None = None,
    multiprocessors: int = 132,
    pad: int = 1,
    has_counters: bool = False,
    cluster: int | None = None,
) -> list[KernelCall]:
    """The calls that were compared with the reference; those that were compared with them to the
    bit have counters where these have none."""
    rng = np.random.default_rng(0)
    x_leading, w_leading = LEADING[leading]
    out_leading = np.broadcast_shapes(x_leading, w_leading)
    x = operand(rng, x_leading, m, k, x_t, dtype, misaligned, pad)
    w = operand(rng, w_leading, k, n, w_t, dtype, misaligned, pad)
    out_dtype = "float32" if wide_result and dtype != "float64" else dtype
    tile = 64 if dtype == "float64" and not tensor_cores else tile
    out = garbage((*out_leading, m, n), DTYPES[out_dtype])
    bias = normal(rng, (*w_leading, n), out_dtype) if has_bias else None
    aux = normal(rng, out.shape, out_dtype) if activation.endswith("backward") else None
    options: dict[str, Any] = {
        "tensor_cores": tensor_cores, "arch": arch, "multiprocessors": multiprocessors,
        "mesh_ndim": len(x_leading), "tile": tile, "pieces": pieces,
        "cluster": cluster,
    }  # fmt: skip
    arrivals = np.zeros(launches.ENOUGH_BLOCKS, np.uint32)
    counters = [arrivals if has else None for has in (has_counters, not has_counters)]
    calls = launches.matmul(
        x, w, out, empty, bias=bias, aux=aux, activation=activation, arrivals=counters[0], **options
    )
    execute(calls)
    f8 = lambda a: a.astype(np.float64)
    product, size = f8(x) @ f8(w), float(np.abs(f8(x)).max() * np.abs(f8(w)).max()) + 2
    if tensor_cores and dtype == "float32":  # both operands lose digits before they are multiplied
        size *= TF32_EPSILON / EPSILONS["float32"] / 4
    if bias is None and activation == "none":
        assert_close(out, product, dtype, k, size)
        return calls
    alone = garbage(out.shape, out.dtype)
    execute(launches.matmul(x, w, alone, empty, arrivals=counters[1], **options))
    assert not arrivals.any()
    assert_close(alone, product, dtype, k, size)
    want = reference(alone, bias, aux, activation, out.dtype)
    assert want.tobytes() == out.tobytes()
    return calls


def check_mma(**options: Any) -> None:
    check_matmul(**options, tensor_cores=True)


@pytest.mark.parametrize("case", covering(**SIMT_OPTIONS), ids=name)
def test_matmul(case: dict[str, Any]) -> None:
    run_case(check_matmul, case)


@pytest.mark.parametrize("case", covering(**MMA_OPTIONS), ids=name)
def test_matmul_on_tensor_cores(case: dict[str, Any]) -> None:
    run_case(check_mma, case)


FULL = {"m": [70], "n": [136], "k": [99], "tile": [64], "order": ["random"]}


@pytest.mark.kernels_full
@pytest.mark.parametrize("dtype", SIMT_OPTIONS["dtype"])
def test_matmul_in_full(dtype: str) -> None:
    for case in every(**(SIMT_OPTIONS | FULL | {"dtype": [dtype]})):
        run_case(check_matmul, case)


@pytest.mark.kernels_full
@pytest.mark.parametrize("dtype", MMA_OPTIONS["dtype"])
def test_matmul_on_tensor_cores_in_full(dtype: str) -> None:
    fewer: dict[str, Any] = {
        "dtype": [dtype],
        "async_mode": ["tossed"],
        "wide_result": [False],
        "leading": ["none", "w replicated"],
        "activation": ["none", "relu_backward"],
    }
    for case in every(**(MMA_OPTIONS | FULL | fewer)):
        run_case(check_mma, case)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("tensor_cores", [False, True])
def test_matmul_under_sanitizers(sanitizer: str, tensor_cores: bool) -> None:
    dtype = "bfloat16" if tensor_cores else "float32"
    for misaligned in (False, True):
        check_matmul(
            dtype, 70, 67, 99, False, False, "w replicated", "relu", True, 64, 2, misaligned,
            Execute(sanitizer=sanitizer), tensor_cores, has_counters=misaligned,
        )  # fmt: skip


def test_split_k_is_the_same_in_any_order_of_blocks() -> None:
    rng = np.random.default_rng(0)
    x, w = normal(rng, (9, 1000), "float32"), normal(rng, (1000, 7), "float32")
    results = []
    for order in SCHEDULES:
        results.append(garbage((9, 7), x.dtype))
        Execute(order)(launches.matmul(x, w, results[-1], empty))
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()


def test_an_empty_contraction_is_the_epilogue_of_zero() -> None:
    x, w = np.zeros((3, 0), np.float32), np.zeros((0, 5), np.float32)
    out, bias = garbage((3, 5), x.dtype), np.arange(5, dtype=np.float32)
    Execute()(launches.matmul(x, w, out, empty, bias=bias))
    assert (out == bias).all()
    assert (
        launches.matmul(np.zeros((0, 3), np.float32), np.zeros((3, 2), np.float32), out, empty)
        == []
    )


@pytest.mark.parametrize("activation", launches.ACTIVATIONS)
def test_infinities_and_nan_pass_the_activations_as_they_pass_the_ops(activation: str) -> None:
    special, small = np.zeros((8, 7), np.float32), np.zeros((1, 8), np.float32)
    special[7] = np.nan, np.inf, -np.inf, -1e-30, 1e30, -1e30, 1.0
    small[0, 7] = 1e-20  # the last addend, of which -1e-30 leaves -0
    alone, out = (garbage((1, 7), special.dtype) for _ in range(2))
    aux = special[7:, ::-1].copy()
    Execute()(launches.matmul(small, special, alone, empty))
    assert np.signbit(alone[0, 3]) and alone[0, 3] == 0
    Execute()(launches.matmul(small, special, out, empty, aux=aux, activation=activation))
    with np.errstate(invalid="ignore"):
        want = reference(alone, None, aux, activation, out.dtype)
    np.testing.assert_array_equal(out, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(out[numbers]), np.signbit(want[numbers]))


@pytest.mark.parametrize(("columns", "tile"), [(11, "128"), (10, "64")])
def test_tiles_are_large_where_they_occupy_every_multiprocessor(columns: int, tile: str) -> None:
    """One tile of 128 rows and columns for each of 132 multiprocessors, and fewer."""
    x, w, out = (
        np.empty(shape, np.float16)
        for shape in ((12 * 128, 64), (64, columns * 128), (12 * 128, columns * 128))
    )
    (call,) = launches.matmul(x, w, out, empty, tensor_cores=True, pieces=1)
    assert call.instance.arguments[2] == tile
