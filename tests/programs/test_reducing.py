"""Chains with reductions in recorded steps: one loop, with the bits of the step as written."""

from __future__ import annotations

import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.fusion import llvm
from gdt.fusion.reducing import CHUNK, Grid, grid_of, reduced
from gdt.programs.reducing import ReducingFunction, kind_in
from tests.programs.fused_chains import bits
from tests.replays import any_values

pytestmark = pytest.mark.skipif(bool(llvm.problem()), reason=llvm.problem() or "loops are compiled")

REDUCED = ["sum", "mean", "max", "min"]


def normalised(x: Any) -> Any:
    centred = x - gdt.mean(x, axis=-1, keepdims=True)
    variance = gdt.mean(centred * centred, axis=-1, keepdims=True)
    return centred / gdt.sqrt(variance + 1e-5)


def standardised(x: Any) -> Any:
    e = gdt.exp(x - gdt.max(x, axis=-1, keepdims=True))
    total = gdt.sum(e, axis=-1, keepdims=True)
    return e / total, gdt.log(total), gdt.sum(e * x, axis=-1)


def loss(x: Any, scale: Any, offset: Any) -> Any:
    y = normalised(x) * scale + offset
    return gdt.mean(gdt.where(y > 0, y * y, 0.5 * y)), gdt.sum(y, axis=0)


def chains_of(step: Any) -> list[list[str]]:
    """The ops of each chain with reductions."""
    instructions = step.programs[-1].instructions
    return [
        [f.name for f in k.fused] for k in instructions if isinstance(k.function, ReducingFunction)
    ]


def assert_same(written: Any, *arrays: Any, count: int = 1) -> Any:
    """Check the bits of four calls of a recorded step, which has so many chains with reductions."""
    step = gdt.function(written, verify=0)
    with any_values():
        expected = written(*arrays)
        expected = expected if isinstance(expected, (tuple, list)) else [expected]
        for _ in range(4):
            results = step(*arrays)
            results = results if isinstance(results, (tuple, list)) else [results]
            for have, want in zip(results, expected, strict=True):
                assert (have.dtype, have.shape) == (want.dtype, want.shape)
                np.testing.assert_array_equal(bits(have.numpy()), bits(want.numpy()))
    assert len(chains_of(step)) == count
    return step


def numbers(shape: tuple[int, ...], dtype: Any = "f4") -> np.ndarray:
    return np.random.default_rng(0).normal(1, 2, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(300, 125), (3, 100, 33), (9000, 16), (5, 4096), (1, 9, 999)])
@pytest.mark.parametrize("chain", [normalised, standardised])
def test_rows_are_reduced_within_a_loop(chain: Any, shape: tuple[int, ...], dtype: str) -> None:
    x = numbers(shape, dtype)
    step = assert_same(chain, gdt.asarray(x))
    assert step.programs[0].source.count("fused(") == 1
    if chain is normalised:
        wide = x.astype("f8")
        want = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
        tolerance = 1e-5 if dtype == "f4" else 1e-12
        np.testing.assert_allclose(step(gdt.asarray(x)).numpy(), want, atol=tolerance)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_is_part_of_a_loop(name: str, dtype: str) -> None:
    function = getattr(gdt, name)
    x = numbers((3, 100, 33), dtype)
    x[0, 0, 0], x[1, 1, 1:] = 1000, -np.inf

    def chain(x: Any) -> Any:
        y = function(x * 2)
        return y, gdt.sum(y * x, axis=-1)

    x[2, 2, 2] = -np.inf
    assert_same(chain, gdt.asarray(x), count=1)
    wide = 2 * x.astype("f8")
    wide -= wide.max(-1, keepdims=True)
    want = np.exp(wide) / np.exp(wide).sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        want = want if name == "softmax" else wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    have = function(gdt.asarray(x) * 2).numpy()
    np.testing.assert_allclose(have, want, rtol=1e-12 if dtype == "f8" else 1e-5, atol=1e-6)
    gradient = gdt.grad(lambda x: gdt.sum(function(x) * function(x)))
    assert_same(lambda x: gradient(x * 2) + 1, gdt.asarray(numbers((300, 125), dtype)), count=1)


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("size", [1200, 1201])
def test_sums_of_columns_and_of_all_end_a_chain(size: int, blocks: int) -> None:
    mesh = gdt.create_mesh([("rows", 4)], blocks=blocks, mesh_name=f"reducing {blocks}")
    x = gdt.asarray(numbers((size, 125)), layout=gdt.Layout(["rows", None], mesh))
    row = gdt.asarray(numbers((125,)), layout=gdt.Layout([None], mesh))
    if size % 4 == 0:  # else padding is left out before what is summed
        assert_same(loss, x, row, row)
    else:
        assert_same(lambda x: normalised(x) * 2, x)


@pytest.mark.parametrize("size", [80_000, 90_113, 4096 * 17])
def test_a_vector_is_summed_in_rows_and_what_is_left(size: int) -> None:
    x = numbers((size,))
    step = assert_same(lambda x: (gdt.sum(x * x), x + 1), gdt.asarray(x))
    want = np.sum(x.astype("f8") ** 2)
    np.testing.assert_allclose(float(step(gdt.asarray(x))[0]), want, rtol=1e-6)


def test_results_are_the_same_in_any_number_of_threads() -> None:
    x, row = gdt.asarray(numbers((20_000, 125))), gdt.asarray(numbers((125,)))
    results = []
    for count in (1, 2, 5):
        with gdt.host_threads(count):
            results.append([y.numpy() for y in assert_same(loss, x, row, row)(x, row, row)])
            for axis in (None, 0, 1):
                results[-1].append(gdt.sum(x, axis=axis).numpy())
    for others in results[1:]:
        for a, b in zip(results[0], others, strict=True):
            np.testing.assert_array_equal(a, b)


ODD = [np.nan, np.inf, -np.inf, -0.0, 1e-40, 3e38]


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("chain", [normalised, standardised, lambda x: gdt.sum(x * 2, axis=0)])
def test_odd_numbers_are_those_of_the_step_as_written(chain: Any, value: float) -> None:
    x = numbers((700, 125))
    x[7, 3] = x[9, 5] = x[9, 6] = x[200] = value
    assert_same(chain, gdt.asarray(x))


@pytest.mark.parametrize("name", REDUCED)
def test_a_largest_number_hides_no_warning(name: str) -> None:
    """The logarithm of 0 is -inf, which the largest number of a row does not show."""
    x = np.abs(numbers((700, 125))) + 1
    x[3, 4] = 0
    step = gdt.function(lambda x: getattr(gdt, name)(gdt.log(x), axis=1), verify=0)
    with any_values():
        for _ in range(3):
            step(gdt.asarray(x))
    assert chains_of(step)
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        step(gdt.asarray(x))


def test_a_sum_that_overflows_warns_as_written() -> None:
    step = gdt.function(lambda x: gdt.sum(x * 2, axis=1), verify=0)
    x = gdt.asarray(np.full((300, 125), 1e37, "f4"))
    with any_values():
        for _ in range(3):
            step(x)
    with pytest.warns(RuntimeWarning, match="overflow"):
        assert np.isinf(step(x).numpy()).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(gdt.asarray(np.ones((300, 125), "f4")))


@pytest.mark.parametrize("order", ["transposed", "with gaps", "reversed"])
def test_blocks_in_any_order_of_memory(order: str) -> None:
    views: dict[str, Any] = {
        "transposed": gdt.transpose,
        "with gaps": lambda x: x[:, ::2],
        "reversed": lambda x: x[::-1],
    }
    x = gdt.asarray(numbers((300, 250)))
    assert_same(lambda x: normalised(views[order](x)), x, count=order != "transposed")


def test_an_operand_that_fits_no_row_leaves_the_reduction_apart() -> None:
    """Rows of a sum of 5 numbers each are no rows of a loop, and rows of 1,500 are not 50 each."""
    x, wide = gdt.asarray(numbers((30_000, 5))), gdt.asarray(numbers((40, 30, 50)))
    part = gdt.asarray(numbers((40, 1, 50)))
    assert_same(lambda x: x * 2 - gdt.sum(x, axis=-1, keepdims=True), x, count=0)
    step = assert_same(lambda x, p: gdt.sum(x * p + 1, axis=(1, 2)), wide, part, count=0)
    assert [f.name for k in step.programs[0].instructions for f in k.fused] == ["multiply", "add"]


def test_a_row_of_numbers_is_no_column_of_a_square() -> None:
    x = gdt.asarray(numbers((300, 300)))
    assert_same(lambda x: x * 2 - gdt.sum(x * 2, axis=1), x)
    assert_same(lambda x: x * 2 - gdt.sum(x * 2, axis=1, keepdims=True), x)


@pytest.mark.parametrize("dtype", ["f2", "i4", "b1"])
def test_other_dtypes_are_summed_as_written(dtype: str) -> None:
    x = gdt.asarray((numbers((300, 125)) > 0).astype(dtype))
    assert_same(lambda x: (gdt.sum(x, axis=1), gdt.mean(x + x)), x, count=0)


def test_gradients_are_those_of_the_step_as_written() -> None:
    x, row = gdt.asarray(numbers((300, 125))), gdt.asarray(numbers((125,)))
    written = gdt.value_and_grad(lambda p, x: loss(x, *p)[0])

    def step(p: Any, q: Any, x: Any) -> Any:
        value, gradients = written((p, q), x)
        return value, *gradients

    fused = gdt.function(step, verify=0)
    expected = step(row, row, x)
    for _ in range(4):
        for have, want in zip(fused(row, row, x), expected, strict=True):
            np.testing.assert_array_equal(have.numpy(), want.numpy())
    assert chains_of(fused)


def test_the_intermediates_of_a_chain_take_no_memory() -> None:
    x = gdt.asarray(np.ones((2000, 1000), "f4"))
    step = gdt.function(lambda x: gdt.sum(gdt.exp(normalised(x) * 0.5)), verify=0)
    for _ in range(3):
        step(x)
    tracemalloc.start()
    step(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < x.nbytes / 20


# ---------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("shape", "axes", "grid"),
    [
        ((8, 1000, 125), (-1,), Grid("rows", 8000, 125, 10**6)),
        ((8, 1000, 125), (-2, -1), None),  # of 125,000 numbers
        ((8, 100, 20), (-2, -1), Grid("rows", 8, 2000, 16000)),
        ((8000, 125), (-2,), Grid("columns", 8000, 125, 10**6)),
        ((8, 1000, 125), (-2,), None),
        ((8000, 125), (-2, -1), Grid("all", 8000, 125, 10**6)),
        ((10**6,), (-1,), Grid("all", 244, 4096, 10**6)),
        ((1, 100), (-1,), Grid("all", 1, 100, 100)),
        ((1000, 5), (-1,), None),
        ((0, 7), (-1,), None),
    ],
)
def test_grids(shape: tuple[int, ...], axes: tuple[int, ...], grid: Grid | None) -> None:
    assert grid_of(shape, axes, "sum") == grid


def test_kinds_of_operands() -> None:
    grid, shape = Grid("rows", 8000, 125, 10**6), (8, 1000, 125)
    kinds = {
        (8, 1000, 125): "whole", (8, 1000, 1): "row", (1000, 1): "row", (125,): "column",
        (1, 1, 125): "column", (): "one", (1000, 125): None, (8, 1, 125): None,
    }  # fmt: skip
    for seen, kind in kinds.items():
        found = kind_in(shape, seen, grid)
        assert (found and found[0]) == kind, seen


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(40_000, 20), (CHUNK * 5 + 5, 125), (700, 700)])
def test_sums_are_as_exact_as_sums_of_pairs(shape: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(3).uniform(0, 1, shape).astype(dtype)
    for axes in (None, (-1,), (-2,)):
        found, exact = reduced("sum", x, axes, False), x.astype(np.longdouble).sum(axis=axes)
        assert found is not None
        np.testing.assert_allclose(found, exact.astype(dtype), rtol=8 * np.finfo(dtype).eps)


def test_a_view_that_repeats_one_element_is_read_as_that_by_reductions() -> None:
    """Another call of the step may have a whole block in its place."""
    x = np.random.default_rng(5).normal(size=(90, 120)).astype("f4")
    step = gdt.function(lambda x, y: gdt.sum(x * y + 1, axis=1), verify=0)
    views = [gdt.broadcast_to(gdt.asarray(a), x.shape) for a in (x[:1, :1], x[:, :1], x[:1])]
    for y in [views[0]] * 4 + [gdt.asarray(x), *views, gdt.asarray(x), views[0]]:
        have, want = step(gdt.asarray(x), y), gdt.sum(gdt.asarray(x) * y + 1, axis=1)
        np.testing.assert_array_equal(have.numpy(), want.numpy())


@pytest.mark.parametrize("axis", [0, 1])
def test_a_view_that_repeats_a_row_is_reduced_as_written(axis: int) -> None:
    row = gdt.asarray(numbers((1, 333)))

    def chain(x: Any) -> Any:
        whole = gdt.broadcast_to(x, (700, 333))
        return whole * 2 - gdt.sum(whole, axis=axis, keepdims=True)

    assert_same(chain, row, count=0)


def test_a_chain_that_keeps_many_rows_leaves_the_reduction_apart() -> None:
    """What it keeps of a row lies on the stack of a thread."""

    def chain(x: Any, count: int) -> Any:
        parts = [gdt.sin(x * n) for n in range(1, count)]
        total = gdt.sum(x * x, axis=1, keepdims=True)
        return sum((part / total for part in parts), start=total * 0 + x)

    x = gdt.asarray(numbers((700, 125)))
    assert_same(lambda x: chain(x, 5), x, count=1)
    assert_same(lambda x: chain(x, 30), x, count=0)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("shape", "axes"), [((900, 125), (-1,)), ((8, 1000, 16), (-1,)), ((40, 30, 50), (-2, -1))]
)
def test_variances_of_rows_are_loops(shape: Any, axes: Any, dtype: str) -> None:
    x = numbers(shape, dtype) + 1000
    for keepdims in (False, True):
        mean, variance = gdt.moments(gdt.asarray(x), axes=axes, keepdims=keepdims)
        wide = x.astype(np.longdouble)
        for have, want in ((mean, wide.mean(axes, keepdims=keepdims)),
                           (variance, wide.var(axes, keepdims=keepdims))):  # fmt: skip
            assert (have.dtype, have.shape) == (dtype, want.shape)
            tolerance = 1e-4 if dtype == "f4" else 1e-10  # of numbers around 1000 beside 4
            np.testing.assert_allclose(have.numpy(), want.astype(dtype), rtol=tolerance)
    x.reshape(-1)[77] = np.inf
    with pytest.warns(RuntimeWarning, match="invalid value"):
        variance = gdt.moments(gdt.asarray(x), axes=axes)[1].numpy()
    assert np.isnan(variance).sum() == 1


@pytest.mark.parametrize(
    "step",
    [
        lambda x, top: gdt.where(gdt.astype(top, bool), x * 2.0, x + 1.0),
        lambda x, top: gdt.logical_xor(top, x > 0.3),
    ],
    ids=["astype", "logical_xor"],
)
def test_a_bool_made_of_a_reduction_is_not_asked_whether_it_is_infinite(step: Any) -> None:
    x = numbers((400, 64))
    x[0] = 0.0
    for _ in range(2):
        assert_same(lambda x: step(x, gdt.max(x * 2.0, axis=-1, keepdims=True)), gdt.asarray(x))
        x[1, 3], x[2, 5] = np.inf, np.nan
