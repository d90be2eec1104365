"""batchnorm.cu against float64 NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gdt.cuda import launches
from tests.covering import covering, every

from .harness import (
    DTYPES,
    FULL,
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

EPS = 1e-3
OPTIONS: dict[str, Any] = {
    "dtype": list(DTYPES),
    "outer": [1, 2, 37],
    "channels": [1, 3, 33, 40],
    "inner": [1, 2, 7, 304],
    "leading": ["none", "data", "model and data"],
    "affine": ["none", "scale", "both"],
    "misaligned": ["nothing", "x", "dy", "both"],
    "uneven": [False, True],
    "order": SCHEDULES,
}
LEADING = {  # leading axes of the data, and of what belongs to channels
    "none": ((), ()),
    "data": ((3,), (1,)),
    "model and data": ((3, 2), (1, 2)),
}


def wide_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype("float64" if dtype == "float64" else "float32")


def check_forward_and_backward(
    dtype: str,
    outer: int,
    channels: int,
    inner: int,
    leading: str,
    affine: str,
    misaligned: str,
    uneven: bool,
    execute: Execute,
) -> None:
    """Moments of each coordinate, merged over the data axis, applied; then the gradient."""
    rng = np.random.default_rng(0)
    data_leading, channel_leading = LEADING[leading]
    depth, wide = len(data_leading), wide_dtype(dtype)
    items, groups = int(np.prod(data_leading)), int(np.prod(channel_leading))
    x = normal(rng, (*data_leading, outer, channels, inner), dtype, misaligned in ("x", "both"))
    x += np.asarray(3, x.dtype)
    dy = normal(rng, x.shape, dtype, misaligned in ("dy", "both"))
    valid = np.full(items, outer, np.int32)
    if uneven and items > 1:
        valid[-1] = outer - 1
        valid[0] = 0
    scale = normal(rng, (*channel_leading, channels), wide.name) if affine != "none" else None
    bias = normal(rng, (*channel_leading, channels), wide.name) if affine == "both" else None

    moments = empty((items, 3, channels), wide)
    execute(launches.bn_moments(x, moments, None, empty, valid=valid, mesh_ndim=depth))
    gathered = moments.reshape(items // groups, groups, 3, channels).swapaxes(0, 1).copy()
    merged = empty((groups, 3, channels), wide)
    variance = empty((groups, channels), wide)
    execute(launches.bn_merge(gathered, merged, variance))
    mean = np.ascontiguousarray(merged[:, 1]).reshape(*channel_leading, channels)
    count = np.ascontiguousarray(merged[:, 0]).reshape(*channel_leading, channels)
    variance = variance.reshape(*channel_leading, channels)
    rstd = 1 / np.sqrt(variance.astype(np.float64) + EPS)
    y = garbage(x.shape, x.dtype)
    execute(launches.bn_apply(x, mean, variance, scale, bias, y, eps=EPS, mesh_ndim=depth))

    mask = (np.arange(outer) < valid[:, None]).reshape(*data_leading, outer, 1, 1)
    axes = ((0,) if depth else ()) + (depth, depth + 2)
    f8 = lambda a: a.astype(np.float64)
    spread = lambda a: f8(a)[..., None, :, None]
    n = (mask * np.ones((channels, inner))).sum(axes, keepdims=True)
    want_mean = (f8(x) * mask).sum(axes, keepdims=True) / n
    want_variance = (np.square(f8(x) - want_mean) * mask).sum(axes, keepdims=True) / n
    terms = items * outer * inner
    assert (count == n.reshape(count.shape)).all()
    assert_close(mean, want_mean.reshape(mean.shape), dtype, terms, 4.0)
    assert_close(variance, want_variance.reshape(variance.shape), dtype, terms, 4.0)

    normalised = (f8(x) - spread(mean)) * spread(rstd)
    raw = normalised * (1 if scale is None else spread(scale)) + (
        0 if bias is None else spread(bias)
    )
    largest = float(
        np.abs(normalised).max(initial=1) * (1 if scale is None else np.abs(scale).max() + 1)
    )
    assert_close(y, raw, dtype, 1, 4 * largest)

    sums = empty((items, 2, channels), wide)
    xhat = normal(rng, x.shape, dtype, misaligned in ("x", "both"))
    xhat[...] = normalised
    normalised = f8(xhat)
    execute(launches.bn_sums(xhat, dy, sums, empty, valid=valid, mesh_ndim=depth))
    g = f8(dy)
    local = np.stack([(g * mask).sum((-3, -1)), (g * normalised * mask).sum((-3, -1))], -2)
    assert_close(sums.reshape(local.shape), local, dtype, outer * inner, 4 * largest)
    total = sums.reshape(*data_leading, 2, channels)
    if depth:
        total = total.sum(0, keepdims=True, dtype=wide)
    dx = garbage(x.shape, x.dtype)
    both = total[..., 0, :], total[..., 1, :]
    execute(
        launches.bn_backward(xhat, dy, variance, scale, *both, count, dx, eps=EPS, mesh_ndim=depth)
    )
    first, second = f8(total)[..., 0, None, :, None], f8(total)[..., 1, None, :, None]
    want = (
        spread(rstd)
        * (1 if scale is None else spread(scale))
        * (g - (first + normalised * second) / spread(count))
    )
    assert_close(dx, want, dtype, 16, 4 * float(np.abs(want).max(initial=1)) * largest)


@pytest.mark.parametrize("case", covering(**OPTIONS), ids=name)
def test_forward_and_backward(case: dict[str, Any]) -> None:
    run_case(check_forward_and_backward, case)


@FULL
@pytest.mark.parametrize(("outer", "inner"), [(37, 1), (2, 300)], ids=["columns", "planes"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_and_backward_in_full(dtype: str, outer: int, inner: int) -> None:
    fewer = {"dtype": [dtype], "outer": [outer], "inner": [inner], "order": ["random"]}
    for case in every(**(OPTIONS | fewer)):
        run_case(check_forward_and_backward, case)


@pytest.mark.parametrize(("inner", "sanitizer"), with_sanitizers(1, 7))
def test_forward_and_backward_under_sanitizers(sanitizer: str, inner: int) -> None:
    check_forward_and_backward(
        "float32", 5, 3, inner, "data", "both", "dy", True, Execute(sanitizer=sanitizer)
    )


@pytest.mark.parametrize("shape", [(64, 2, 50), (64, 2, 52), (6400, 4, 1), (25600, 1, 1)])
def test_moments_of_large_offsets_keep_their_digits(shape: tuple[int, int, int]) -> None:
    """What sums of squares would lose: 1e4 standard deviations away from zero."""
    x = (np.random.default_rng(0).standard_normal(shape) + 1e4).astype(np.float32)
    x[0, :, 0] += 300  # the first element of a thread is far from all others
    channels = shape[1]
    merged, variance = empty((1, 3, channels), "float32"), empty((1, channels), "float32")
    Execute()(launches.bn_moments(x, merged, variance, empty))
    want = x.astype(np.float64).var((0, 2))
    assert np.abs(variance[0] / want - 1).max() < 1e-4


@FULL
def test_a_thread_with_many_equal_elements_makes_no_negative_variance() -> None:
    """After 10^4 sums square - sum^2 / n has no correct digit, perhaps not even its sign."""
    x = np.full((1, 1, 256 * 16384), 1.8, np.float32)
    x[0, 0, : 256 * 4] = 0  # the first pack of each thread
    merged = empty((1, 3, 1), "float32")
    first, *_ = launches.bn_moments(x, merged, None, empty)
    parts = next(a for a in first.arguments if getattr(a, "shape", ())[2:] == (3, 1))
    Execute()([replace(first, grid=(1, 1, 1))])
    assert parts[0, 0, 2] >= 0


@pytest.mark.parametrize("inner", [1, 8])
def test_an_infinity_is_the_mean_of_its_channel(inner: int) -> None:
    x = np.zeros((16, 2, inner), np.float32)
    x[0, 1, 0] = np.inf  # the first element of a thread, which others are not subtracted from
    merged, variance = empty((1, 3, 2), "float32"), empty((1, 2), "float32")
    Execute()(launches.bn_moments(x, merged, variance, empty))
    assert merged[0, 1].tolist() == [0, np.inf]
    assert variance[0, 0] == 0 and np.isnan(variance[0, 1])


def test_nan_passes_the_normalisation() -> None:
    x = np.array([[np.nan, -1, 2], [-3, np.nan, 4]], np.float32).reshape(2, 3, 1)
    mean, variance = np.zeros(3, np.float32), np.ones(3, np.float32)
    y = garbage(x.shape, x.dtype)
    Execute()(launches.bn_apply(x, mean, variance, None, None, y, eps=0.0))
    np.testing.assert_array_equal(y, x)


def test_empty_batches_have_empty_moments() -> None:
    x = np.zeros((0, 3, 4), np.float32)
    merged = garbage((1, 3, 3), x.dtype)
    Execute()(launches.bn_moments(x, merged, None, empty))
    assert not merged.any()
    assert launches.bn_moments(np.zeros((4, 0, 4), np.float32), None, None, empty) == []
