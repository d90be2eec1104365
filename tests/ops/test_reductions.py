"""What samples cannot say of reductions, softmax and cross-entropies: gradients at ties and zeros,
accuracy, and errors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.engine import blocks
from gdt.errors import ArgumentError, DtypeError, IndexRangeError, ShapeError
from gdt.ops.blocks.sums import add_reduce, ones
from tests.samples import SAMPLES

MESHES = [gdt.create_mesh([("x", 4)], blocks=blocks, device_type="CPU") for blocks in (1, 2, 4)]


def split(value: object, mesh: gdt.Mesh, *, axis: int = 0) -> gdt.DistributedArray:
    whole = np.asarray(value)
    return gdt.asarray(whole, layout=gdt.Layout.batch_sharded(mesh, "x", whole.ndim, axis))


@pytest.fixture(params=MESHES, ids=["folded", "mixed", "apart"])
def mesh(request: pytest.FixtureRequest) -> gdt.Mesh:
    found: gdt.Mesh = request.param
    return found


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("name", ["max", "min"])
def test_ties_share_the_gradient_evenly(name: str, mesh: gdt.Mesh) -> None:
    x = split([3.0, 1.0, 3.0, 0.0, 3.0, 0.0, 2.0], mesh)
    gradient = gdt.grad(getattr(gdt, name))(x).tolist()
    third, half = 1 / 3, 1 / 2
    want = [third, 0, third, 0, third, 0, 0] if name == "max" else [0, 0, 0, half, 0, half, 0]
    assert gradient == want


@pytest.mark.parametrize("zeros", [[], [3], [0, 5]])
def test_gradient_of_a_product_with_zeros(zeros: Sequence[int], mesh: gdt.Mesh) -> None:
    x = np.arange(2.0, 9.0)
    x[list(zeros)] = 0
    want = [np.prod(np.delete(x, i)) for i in range(len(x))]
    assert gdt.grad(gdt.prod)(split(x, mesh)).tolist() == want


@pytest.mark.parametrize("zeros", [[], [3], [0, 5], [2, 3]])
def test_gradient_of_a_running_product_with_zeros(zeros: Sequence[int], mesh: gdt.Mesh) -> None:
    x, weights = np.arange(2.0, 9.0), np.arange(1.0, 8.0)
    x[list(zeros)] = 0
    unit = np.eye(len(x))
    want = [
        sum(
            w * np.prod(np.where(unit[i] == 1, 1, x)[: k + 1])
            for k, w in enumerate(weights)
            if k >= i
        )
        for i in range(len(x))
    ]
    loss = lambda x: gdt.sum(gdt.cumprod(x, axis=0) * weights)
    np.testing.assert_allclose(gdt.grad(loss)(split(x, mesh)).numpy(), want, rtol=1e-12)


# ---------------------------------------------------------------- accuracy


@pytest.mark.parametrize("rows", [64, 61])
def test_variance_of_float32_far_from_zero(rows: int, mesh: gdt.Mesh) -> None:
    rng = np.random.default_rng(0)
    x = (1e4 + rng.standard_normal((rows, 3))).astype(np.float32)
    exact = x.astype(float)
    mean, variance = gdt.moments(split(x, mesh), axes=0)
    np.testing.assert_allclose(mean.numpy(), exact.mean(0), rtol=1e-6)
    np.testing.assert_allclose(variance.numpy(), exact.var(0), rtol=1e-5)
    y, _, _ = gdt.batch_norm(split(x, mesh), epsilon=0.0)
    want = (exact - exact.mean(0)) / exact.std(0)
    np.testing.assert_allclose(y.numpy(), want, atol=2e-3)


def test_a_mean_is_the_quotient_of_the_sum(mesh: gdt.Mesh) -> None:
    whole = gdt.asarray(np.arange(7.0), layout=gdt.Layout.replicated(mesh, 1))
    assert gdt.mean(whole).item() == 3.0


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_initial_numbers_are_of_the_dtype_of_the_result(name: str, mesh: gdt.Mesh) -> None:
    for values in (
        np.array([3, 4, 5], np.uint8),
        np.array([True, False]),
        np.array([2.0, 3.0], "f4"),
    ):
        for initial in (2.5, 7, 0, -1, True):
            if initial < 0 and values.dtype != bool:
                continue
            expected = getattr(np, name)(values, initial=initial)
            result = getattr(gdt, name)(split(values, mesh), initial=initial)
            assert result.dtype == expected.dtype and float(result) == expected, (values, initial)


def test_mean_of_more_numbers_than_float16_counts_that_are_no_nan() -> None:
    values = np.full(70_001, 0.1, "f2")
    values[0] = np.nan
    x = gdt.asarray(values)
    for name in ("nanmean", "nanvar"):
        result = getattr(gdt, name)(x)
        assert result.dtype == np.float16 and float(result) == getattr(np, name)(values), name


@pytest.mark.parametrize("dtype", [None, "float16", "float32"])
def test_gradient_of_a_mean_of_more_numbers_than_float16_counts(dtype: str | None) -> None:
    x = gdt.ones(70_000, "float16")
    for mean in (lambda x: gdt.mean(x, dtype=dtype), lambda x: gdt.moments(x, axes=0)[0]):
        gradient = gdt.grad(mean)(x)
        assert gradient.dtype == np.float16
        assert set(gradient.tolist()) == {float(np.float16(1 / 70_000))}


def test_large_logits_of_split_classes_lose_no_digits(mesh: gdt.Mesh) -> None:
    x = np.array([[1e4, 1e4 + 1, 1e4 + 2, 1e4 - 1, 1e4]], np.float32)
    low = (x - np.float32(1e4)).astype(float)
    want = np.exp(low) / np.exp(low).sum()
    np.testing.assert_allclose(gdt.softmax(split(x, mesh, axis=1)).numpy(), want, rtol=1e-6)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("row", [0, 5])
def test_a_complex_nan_is_the_extremum(name: str, row: int, mesh: gdt.Mesh) -> None:
    values = (np.arange(12.0)[::-1] + 1j).reshape(6, 2)
    values[row, 1] = complex(1, np.nan)
    for axis in (None, 0, 1):
        got, want = (
            getattr(xp, name)(x, axis=axis) for xp, x in ((gdt, split(values, mesh)), (np, values))
        )
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_nothing_has_no_extremum(name: str, mesh: gdt.Mesh) -> None:
    with pytest.raises(ShapeError, match=f"{name}: an empty array has none"):
        getattr(gdt, name)(split(np.zeros((0, 3)), mesh), axis=0)


@pytest.mark.parametrize(
    "name",
    ["sum", "prod", "max", "min", "any", "all", "ptp", "count_nonzero", "squeeze", "nansum",
     "nanprod", "nanmax", "nanmin", "nanmean", "nanstd", "nanvar"],
)  # fmt: skip
def test_axes_0_and_last_of_rank_0_are_none_as_in_numpy(name: str, mesh: gdt.Mesh) -> None:
    value = np.float64(3)
    x = gdt.asarray(value, layout=gdt.Layout.replicated(mesh, 0))
    for axis in (0, -1):
        got, want = (getattr(xp, name)(a, axis=axis) for xp, a in ((gdt, x), (np, value)))
        assert got.shape == () and got.dtype == want.dtype and got.tolist() == want.tolist()
    for axis in (1, -2, (0,)):
        for xp, a in ((gdt, x), (np, value)):
            with pytest.raises(np.exceptions.AxisError):
                getattr(xp, name)(a, axis=axis)
    if name in ("sum", "prod", "max", "nansum", "nanmax", "nanmean"):
        assert gdt.grad(lambda x: getattr(gdt, name)(x, axis=-1))(x).tolist() == 1


def test_axes_that_do_not_exist(mesh: gdt.Mesh) -> None:
    x = split(np.zeros((4, 3)), mesh)
    with pytest.raises(ShapeError, match="sum: axis 2 is out of range for rank 2"):
        gdt.sum(x, axis=2)
    with pytest.raises(ShapeError, match="mean: an axis is repeated"):
        gdt.mean(x, axis=(0, -2))
    with pytest.raises(ArgumentError, match=r"any: axis is 0\.5, and no integer"):
        gdt.any(x, axis=0.5)
    with pytest.raises(ShapeError, match="cumsum: axis -3 is out of range"):
        gdt.cumsum(x, axis=-3)


def test_arguments_that_numpy_has_and_gdt_has_not(mesh: gdt.Mesh) -> None:
    with pytest.raises(ArgumentError, match="sum: no argument 'weights'"):
        gdt.sum(split(np.zeros(4), mesh), weights=True)


def test_ddof_and_correction_are_one_argument(mesh: gdt.Mesh) -> None:
    with pytest.raises(DtypeError, match="both are given"):
        gdt.var(split(np.zeros(4), mesh), ddof=1, correction=1)


@pytest.mark.parametrize("axis", [0, 1], ids=["split rows", "split classes"])
@pytest.mark.parametrize("label", [3, -1])
def test_labels_that_are_no_class(label: int, axis: int, mesh: gdt.Mesh) -> None:
    logits = split(np.zeros((5, 3)), mesh, axis=axis)
    labels = np.array([0, 1, 2, label, 0])
    with pytest.raises(IndexRangeError, match=rf"label {label} is outside 0\.\.2"):
        gdt.sparse_softmax_cross_entropy_with_logits(labels, logits)
    assert (
        gdt.sparse_softmax_cross_entropy_with_logits(labels, logits, ignore_index=label).tolist()[3]
        == 0
    )


def test_labels_and_logits_that_do_not_fit(mesh: gdt.Mesh) -> None:
    logits = split(np.zeros((5, 3)), mesh)
    loss = gdt.sparse_softmax_cross_entropy_with_logits
    with pytest.raises(ShapeError, match="do not name a class for each row"):
        loss(np.zeros(4, int), logits)
    with pytest.raises(DtypeError, match="labels are integers"):
        loss(np.zeros(5), logits)
    with pytest.raises(ShapeError, match="different shapes"):
        gdt.softmax_cross_entropy_with_logits(np.zeros(3), logits)
    with pytest.raises(ShapeError, match=r"scale has shape \[2\], not \[3\]"):
        gdt.batch_norm(logits, np.ones(2))


# ---------------------------------------------------------------- sums as products

BLOCKS = [(2, 1, 2, 32, 24), (4, 2, 16, 24), (1, 8, 3), (2, 3, 4, 5), (2, 2, 2, 2, 2), (5,), (3, 0)]


@pytest.mark.parametrize("shape", BLOCKS)
def test_sums_of_blocks_over_any_axes(shape: tuple[int, ...]) -> None:
    block = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    for count in range(1, len(shape) + 1):
        for axes in itertools.combinations(range(-len(shape), 0), count):
            for keepdims in (False, True):
                expected = block.sum(axis=axes, keepdims=keepdims)
                found = add_reduce(np, block, axes, keepdims)
                np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("shape", BLOCKS)
def test_sums_of_blocks_do_not_depend_on_the_order_of_memory(shape: tuple[int, ...]) -> None:
    block = np.random.default_rng(0).normal(size=shape)
    other = np.asfortranarray(block)
    for axis in range(-len(shape), 0):
        found = [add_reduce(np, x, (axis,), False) for x in (block, other)]
        np.testing.assert_array_equal(found[0], found[1], strict=True)


@pytest.mark.parametrize("blocks", [1, 4])
def test_the_gradient_of_logsumexp_of_partial_sums_takes_the_sums_of_the_value(blocks: int) -> None:
    """Subtracted from partial sums, large values would round, and the sums be reduced twice."""
    mesh = gdt.create_mesh([("a", 2), ("b", 2)], blocks=blocks)
    layout = gdt.Layout([None, None], mesh, partial={"a": "sum", "b": "sum"})
    x = gdt.relayout(gdt.ones((4, 3), layout=gdt.Layout([None, None], mesh)), layout)
    with gdt.count_collectives() as counter:
        gdt.grad(lambda x: gdt.sum(gdt.logsumexp(x, axis=1)))(x)
    assert counter.by_kind == {"all_reduce": 1}
    for sample in SAMPLES["logsumexp"]:
        rank = sample.arrays[0].ndim
        partial = gdt.Layout([None] * rank, mesh, partial={"a": "sum", "b": "sum"})
        gdt.testing.check(gdt.logsumexp, sample, mesh, [partial], second=True)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_vectors_that_sums_share_are_read_only() -> None:
    assert ones(3, "d") is ones(3, "d") and ones(3, "d").tolist() == [1.0] * 3
    with pytest.raises(ValueError, match="read-only"):
        ones(3, "d")[0] = 2.0


def test_a_variance_that_overflows_is_infinite_over_empty_shards() -> None:
    value = np.array([1e30, -1e30, 3e38], np.float32)
    mesh = gdt.create_mesh([("x", 8)], device_type="CPU")
    for layout in (gdt.Layout(["x"], mesh), gdt.Layout([None], mesh)):
        x = gdt.asarray(value, layout=layout)
        with np.errstate(over="ignore"):  # of which NumPy warns, on some machines
            assert np.isposinf(gdt.var(x).numpy()) and np.isposinf(np.var(value))


@pytest.mark.parametrize("n", [3, 4997])
def test_padding_in_one_block_is_left_out_and_not_filled(
    n: int, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Filling it would copy the operand."""
    monkeypatch.setattr(blocks, "_filled", None)
    mesh = gdt.create_mesh([("rows", 4), ("columns", 2)])
    host = rng.normal(size=(n, 6))
    for specs in (["rows", None], [("rows", "columns"), None], ["rows", "columns"]):
        x = gdt.asarray(host, layout=gdt.Layout(specs, mesh))
        for got, want in (
            (gdt.sum(x, axis=0), host.sum(0)),
            (gdt.max(x, axis=0), host.max(0)),
            (gdt.count_nonzero(x > 0, axis=0), np.count_nonzero(host > 0, axis=0)),
            (gdt.var(x, axis=0), host.var(0)),
            (x.T @ x, host.T @ host),
            (gdt.einsum("ni,nj->", x, x), np.einsum("ni,nj->", host, host)),
        ):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((30_000, 5), 1), ((30_000, 1, 5), (1, 2)), ((100_000, 2), -1), ((20_000, 7), -1)],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_sums_and_extremes_of_many_short_rows_are_numpys(
    shape: tuple[int, ...], axis: Any, dtype: str, keepdims: bool
) -> None:
    x = np.random.default_rng(0).normal(0, 5, shape).astype(dtype)
    if dtype != "int32":
        x.ravel()[::97] = np.nan
        x.ravel()[::31] = -0.0
    for name in ("sum", "max", "min"):
        result = getattr(gdt, name)(gdt.asarray(x), axis=axis, keepdims=keepdims).numpy()
        expected = getattr(np, name)(x, axis=axis, keepdims=keepdims)
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((200_001, 5), 0), ((2, 3000, 40), (0, 1)), ((3001, 255), 0), ((70_000, 2), (0,))],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_many_rows_have_few_rounding_errors(
    shape: tuple[int, ...], axis: Any, dtype: str
) -> None:
    """NumPy adds one row after the other: its error here is up to 20 times the bound."""
    x = np.random.default_rng(1).uniform(0, 1, shape).astype(dtype)
    for name in ("sum", "mean"):
        for keepdims in (False, True):
            result = getattr(gdt, name)(gdt.asarray(x), axis=axis, keepdims=keepdims).numpy()
            expected = getattr(np, name)(x.astype(np.longdouble), axis=axis, keepdims=keepdims)
            assert (result.dtype, result.shape) == (x.dtype, expected.shape)
            bound = 12 * np.finfo(dtype).eps
            np.testing.assert_allclose(result, expected.astype(dtype), rtol=bound)


@pytest.mark.parametrize("parts", [3, 5, 7, 8])
def test_the_variance_of_equal_numbers_is_0_over_any_parts(parts: int) -> None:
    mesh = gdt.create_mesh([("a", parts)], device_type="CPU", blocks=parts)
    for rows in (parts, 7, 2 * parts + 1, 49):
        for number in (1.0, 3.0, 2.0**100):
            x = gdt.asarray(np.full(rows, number, "f"), layout=gdt.Layout(["a"], mesh))
            mean, variance = gdt.moments(x, axes=0)
            assert (float(mean), float(variance)) == (number, 0.0)
