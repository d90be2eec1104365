"""Long axes that are sorted by digits: NumPy's stable order, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gdt
from gdt.backend import threads
from gdt.engine.loops import are_compiled
from gdt.ops.blocks import radix_sort

pytestmark = pytest.mark.skipif(not are_compiled(), reason="needs numba")

DTYPES = ["float32", "float64", "int32", "int64", "uint32", "uint64"]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short vectors are sorted by digits, in as many threads as there may be."""
    monkeypatch.setattr(radix_sort, "SMALLEST", 1)
    monkeypatch.setattr(threads, "SMALLEST", 1)


def values(dtype: str, size: int) -> np.ndarray:
    """All bits, few values and the ends of the dtype; for floats NaNs, zeros and infinities of both
    signs too."""
    rng, kind = np.random.default_rng(size), np.dtype(dtype)
    x = rng.integers(0, 256, size * kind.itemsize, np.uint8).view(kind)
    x[::3] = rng.integers(0, 5, x[::3].size)
    if kind.kind == "f":
        special = np.array([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-40, -1e-40], kind)
    else:
        special = np.array([np.iinfo(kind).min, np.iinfo(kind).max], kind)
    x[1::3] = rng.choice(special, x[1::3].size)
    return x


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_order_is_that_of_numpys_stable_sort(dtype: str, count: int) -> None:
    with gdt.host_threads(count):
        for size in (0, 1, 2, 3, 100, 5000):
            x = values(dtype, size)
            order = radix_sort.argsort(np, x)
            expected = np.argsort(x, kind="stable")
            assert order.dtype == np.int64 and np.array_equal(order, expected)
            words = f"u{x.dtype.itemsize}"
            assert np.array_equal(radix_sort.sort(np, x).view(words), x[expected].view(words))


def test_many_equal_numbers_of_float16_are_in_order() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(5).astype("float16")[rng.integers(0, 5, 140_001)]
    expected = np.sort(x, kind="stable")
    for shards in (1, 3):
        layout = gdt.Layout(["x"], gdt.create_mesh([("x", shards)]))
        assert np.array_equal(gdt.sort(gdt.asarray(x, layout=layout)).numpy(), expected)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_zeros_of_both_signs_stay_in_order(dtype: str) -> None:
    mesh = gdt.create_mesh([("x", 4)], blocks=4, mesh_name="zeros")
    random = np.random.default_rng(1)
    for n in (5, 70, 3000):
        x = random.choice([0.0, -0.0, 1.0, -1.0], (2, n)).astype(dtype)
        for layout in (["x"], [None]):
            for values in (x, x[0]):
                specs = [None] * (values.ndim - 1) + layout
                result = gdt.sort(
                    gdt.asarray(values, layout=gdt.Layout(specs, mesh)), kind="stable"
                )
                expected = np.sort(values, axis=-1, kind="stable")
                assert result.numpy().tobytes() == expected.tobytes(), (n, specs)


@pytest.mark.parametrize("x", [np.zeros(7, np.int32), np.arange(7), -np.arange(7.0)])
def test_results_lie_in_memory_of_their_own(x: np.ndarray) -> None:
    before = x.copy()
    ordered = radix_sort.sort(np, x)
    assert not np.shares_memory(ordered, x)
    ordered[:] = 0
    assert np.array_equal(x, before)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_any_axis_strides_and_read_only_memory(axis: int) -> None:
    table = values("float32", 1200).reshape(3, 20, 20)
    frozen = table.copy()
    frozen.flags.writeable = False
    unaligned = np.frombuffer(b"." + table.tobytes(), np.float32, offset=1).reshape(table.shape)
    for x in (
        table[:, ::-2, 1::3],
        table.T,
        frozen,
        unaligned,
        np.broadcast_to(table[0], (2, 20, 20)),
    ):
        order = radix_sort.argsort(np, x, axis)
        assert np.array_equal(order, np.argsort(x, axis=axis, kind="stable"))
        expected = np.take_along_axis(x, order, axis)
        assert np.array_equal(radix_sort.sort(np, x, axis), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "complex64", ">f4", "longdouble"])
def test_other_dtypes_are_sorted_by_numpy(dtype: str, short: Any) -> None:
    x = np.arange(50)[::-1].astype(dtype)
    assert np.array_equal(radix_sort.sort(np, x), np.sort(x))
    assert np.array_equal(radix_sort.argsort(np, x), np.argsort(x, kind="stable"))


@pytest.mark.parametrize("blocks", [1, 4])
def test_long_vectors_are_sorted_in_every_layout(blocks: int) -> None:
    """Shards that are long enough for loops, of a length that four do not divide."""
    x = np.random.default_rng(0).standard_normal(4 * radix_sort.SMALLEST + 3).astype(np.float32)
    x[::50_000] = np.nan
    mesh = gdt.create_mesh([("x", 4)], blocks=blocks, mesh_name="digits")
    split = gdt.asarray(x, layout=gdt.Layout(["x"], mesh))
    expected = np.argsort(x, kind="stable")
    with gdt.host_threads(2):
        assert np.array_equal(gdt.sort(split).numpy(), x[expected], equal_nan=True)
        assert np.array_equal(gdt.argsort(split).numpy(), expected)
