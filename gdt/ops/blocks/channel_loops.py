"""Moments and batch normalisation as compiled loops. They see blocks as (outer, lead, rows,
columns), and normalise over outer and rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.engine.loops import Loop, are_arrays, are_floats, loop
from gdt.engine.plan import Shards
from gdt.ops.blocks.sums import LARGEST, LONGEST, grouped

Block = Any
Body = Callable[..., Any]
Sizes = tuple[int, int, int, int]

# Measured: NumPy reduces rows of one element, which lie without gaps, in less time than a loop, but
# for blocks of few elements; rows of 2 to 6 elements take it 3 to 9 times as long.
SHORT_ROW, FEW = 2, 512


@loop("input, int, int, int, int, output")
def _moments(x: Block, outer: int, lead: int, rows: int, columns: int, out: Block) -> None:
    """Compute means, variances, and the rounding errors of the means."""
    x, out = x.reshape((outer, lead, rows, columns)), out.reshape((3, lead, columns))
    count, total = outer * rows, np.empty(columns)
    for k in range(lead):
        mean, variance, rest = out[0, k], out[1, k], out[2, k]
        total[:] = 0
        for o in range(outer):
            for r in range(rows):
                row = x[o, k, r]
                for c in range(columns):
                    total[c] += row[c]
        for c in range(columns):
            mean[c] = total[c] / count
            rest[c] = total[c] / count - mean[c]
        total[:] = 0
        for o in range(outer):
            for r in range(rows):
                row = x[o, k, r]
                for c in range(columns):
                    off = row[c] - mean[c]
                    total[c] += off * off
        for c in range(columns):
            variance[c] = total[c] / count


@loop("input, input, int, int, int, int, output")
def _sums(
    g: Block, xhat: Block, outer: int, lead: int, rows: int, columns: int, out: Block
) -> None:
    """Compute the sums of g, and of g * xhat."""
    g, xhat = g.reshape((outer, lead, rows, columns)), xhat.reshape((outer, lead, rows, columns))
    out = out.reshape((2, lead, columns))
    total, product = np.empty(columns), np.empty(columns)
    for k in range(lead):
        total[:] = 0
        product[:] = 0
        for o in range(outer):
            for r in range(rows):
                g_row, row = g[o, k, r], xhat[o, k, r]
                for c in range(columns):
                    total[c] += g_row[c]
                    product[c] += g_row[c] * row[c]
        for c in range(columns):
            out[0, k, c] = total[c]
            out[1, k, c] = product[c]


@loop("input, input, input, input, input, float, float, float, int, int, int, int, output")
def _normalized(
    x: Block,
    mean: Block,
    variance: Block,
    offsets: Block,
    scales: Block,
    offset: float,
    scale: float,
    epsilon: float,
    outer: int,
    lead: int,
    rows: int,
    columns: int,
    y: Block,
) -> None:
    x, y = x.reshape((outer, lead, rows, columns)), y.reshape((outer, lead, rows, columns))
    small = x.dtype.type(epsilon)
    factor, shift = np.empty(columns, x.dtype), np.empty(columns, x.dtype)
    for k in range(lead):
        means = mean[k * columns : (k + 1) * columns]
        for c in range(columns):
            at = k * columns + c
            factor[c] = scales[at] if scales.size else scale
            factor[c] /= np.sqrt(variance[at] + small)
            shift[c] = offsets[at] if offsets.size else offset
        for o in range(outer):
            for r in range(rows):
                row, out_row = x[o, k, r], y[o, k, r]
                for c in range(columns):
                    out_row[c] = (row[c] - means[c]) * factor[c] + shift[c]


@loop("input, input, input, input, input, input, float, float, float, int, int, int, int, output")
def _gradient(
    g: Block,
    xhat: Block,
    g_sum: Block,
    product_sum: Block,
    variance: Block,
    scales: Block,
    scale: float,
    epsilon: float,
    share: float,
    outer: int,
    lead: int,
    rows: int,
    columns: int,
    out: Block,
) -> None:
    g, xhat = g.reshape((outer, lead, rows, columns)), xhat.reshape((outer, lead, rows, columns))
    out = out.reshape((outer, lead, rows, columns))
    small, part = g.dtype.type(epsilon), g.dtype.type(share)
    factor = np.empty(columns, g.dtype)
    for k in range(lead):
        sums = g_sum[k * columns : (k + 1) * columns]
        products = product_sum[k * columns : (k + 1) * columns]
        for c in range(columns):
            at = k * columns + c
            factor[c] = scales[at] if scales.size else scale
            factor[c] /= np.sqrt(variance[at] + small)
        for o in range(outer):
            for r in range(rows):
                g_row, row, out_row = g[o, k, r], xhat[o, k, r], out[o, k, r]
                for c in range(columns):
                    mean = (row[c] * products[c] + sums[c]) * part
                    out_row[c] = (g_row[c] + mean) * factor[c]


# ---------------------------------------------------------------- in the place of bodies


def moments_loop(
    body: Body,
    x: Block,
    /,
    axes: Sequence[int],
    keepdims: bool = False,
    *,
    shards: Shards,
    dtype: Any = None,
) -> Body | None:
    """Return the loop of `gdt.moments`, or None where there is padding: it returns means and
    variances, and where shards are merged the rounding errors of the means."""
    if not are_arrays(x) or shards.uneven:
        return None
    run, sizes, shape = _reduction(_moments, x, axes, keepdims, count=3)
    if run is None:
        return None
    rank, is_large, kind = len(shards.size), x.size > LARGEST, x.dtype
    is_merged = any(f"d{a + rank}" in shards.split for a in axes)

    def moments(x: Block) -> Any:
        if is_large and not x.flags.c_contiguous:
            return body(x)
        out = np.empty(shape, kind)
        run(x.ravel(), *sizes, out.ravel())
        return (out[0], out[1], out[2]) if is_merged else (out[0], out[1])

    return moments


def batch_norm_sums_loop(
    body: Body, g: Block, xhat: Block, /, axes: Sequence[int], keepdims: bool
) -> Body | None:
    """Return the loop of `batch_norm_sums`; None unless both blocks have one shape and dtype."""
    if not are_arrays(g, xhat) or xhat.shape != g.shape or xhat.dtype != g.dtype:
        return None
    run, sizes, shape = _reduction(_sums, g, axes, keepdims, count=2)
    if run is None:
        return None
    is_large, dtype = g.size > LARGEST, g.dtype

    def batch_norm_sums(g: Block, xhat: Block) -> Any:
        if is_large and not (g.flags.c_contiguous and xhat.flags.c_contiguous):
            return body(g, xhat)
        sums = np.empty(shape, dtype)
        run(g.ravel(), xhat.ravel(), *sizes, sums.ravel())
        return sums[0], sums[1]

    return batch_norm_sums


def normalize_loop(
    body: Body,
    x: Block,
    mean: Block,
    variance: Block,
    offset: Any,
    scale: Any,
    /,
    epsilon: float,
    *,
    block_shape: tuple[int, ...],
) -> Body | None:
    """Return the loop of `normalize`; None unless its vectors have one shape, and all operands one
    dtype."""
    if not are_arrays(x, mean) or not are_floats(epsilon):
        return None
    if not _are_alike(mean, variance, offset, scale, dtype=x.dtype):
        return None
    run, sizes = _loop_over(_normalized, x, mean.shape)
    if run is None:
        return None
    shape, dtype = x.shape, x.dtype
    none = np.empty(0, dtype)

    def normalize(
        x: Block, mean: Block, variance: Block, offset: Any, scale: Any, *, out: Block = None
    ) -> Block:
        y = np.empty(shape, dtype) if out is None else out
        if not (y.flags.c_contiguous and x.flags.c_contiguous):
            return body(x, mean, variance, offset, scale, out=out)
        if type(offset) is float:  # adding -0.0 changes nothing, as the body does not for 0.0
            offsets, offset = none, offset or -0.0
        else:
            offsets, offset = offset.ravel(), 0.0
        scales, scale = (none, scale) if type(scale) is float else (scale.ravel(), 1.0)
        arrays = x.ravel(), mean.ravel(), variance.ravel(), offsets, scales
        run(*arrays, offset, scale, epsilon, *sizes, y.ravel())
        return y

    return normalize


def batch_norm_gradient_loop(
    body: Body,
    g: Block,
    xhat: Block,
    g_sum: Block,
    product_sum: Block,
    variance: Block,
    scale: Any,
    /,
    epsilon: float,
    count: int,
) -> Body | None:
    """Return the loop of `batch_norm_gradient`; None unless its vectors have one shape, and all
    operands one dtype."""
    if not are_arrays(g, xhat, g_sum) or not are_floats(epsilon):
        return None
    if xhat.shape != g.shape or xhat.dtype != g.dtype:
        return None
    if not _are_alike(g_sum, product_sum, variance, scale, dtype=g.dtype):
        return None
    run, sizes = _loop_over(_gradient, g, g_sum.shape)
    if run is None:
        return None
    share, shape, dtype = -1.0 / max(count, 1), g.shape, g.dtype
    none = np.empty(0, dtype)

    def batch_norm_gradient(
        g: Block,
        xhat: Block,
        g_sum: Block,
        product_sum: Block,
        variance: Block,
        scale: Any,
        *,
        out: Block = None,
    ) -> Block:
        gradient = np.empty(shape, dtype) if out is None else out
        if not (gradient.flags.c_contiguous and g.flags.c_contiguous and xhat.flags.c_contiguous):
            return body(g, xhat, g_sum, product_sum, variance, scale, out=out)
        scales, scale = (none, scale) if type(scale) is float else (scale.ravel(), 1.0)
        arrays = g.ravel(), xhat.ravel(), g_sum.ravel(), product_sum.ravel(), variance.ravel()
        run(*arrays, scales, scale, epsilon, share, *sizes, gradient.ravel())
        return gradient

    return batch_norm_gradient


def _are_alike(first: Block, *others: Any, dtype: np.dtype) -> bool:
    """Whether `first` and `others` are arrays of one shape and of `dtype`; `others` may also be
    floats."""
    arrays = [first, *[v for v in others if type(v) is not float]]
    return are_arrays(*arrays) and all(v.shape == first.shape and v.dtype == dtype for v in arrays)


def _reduction(
    loops: Loop, x: Block, axes: Sequence[int], keepdims: bool, *, count: int
) -> tuple[Any, Sizes, tuple[int, ...]]:
    """Return the loop that reduces `axes` of blocks like `x`, or None; the sizes that it takes; and
    the shape of `count` reductions."""
    reduced_axes = {a + x.ndim for a in axes}
    shape = tuple([1 if i in reduced_axes else n for i, n in enumerate(x.shape)])
    run, sizes = _loop_over(loops, x, shape)
    if x.dtype.itemsize > 4 and sizes[0] * sizes[2] > LONGEST:  # added up pairwise by NumPy
        run = None
    out_shape = (
        shape if keepdims else tuple([n for i, n in enumerate(x.shape) if i not in reduced_axes])
    )
    return run, sizes, (count, *out_shape)


def _loop_over(loops: Loop, x: Block, vector_shape: tuple[int, ...]) -> tuple[Any, Sizes]:
    """Return the loop for blocks like `x` and vectors of `vector_shape`, and the sizes that it
    takes. The loop is None where the vectors do not group the block's axes as loops do, and where
    rows are so short that NumPy is as fast."""
    sizes = grouped(x.shape, vector_shape)
    if sizes is None or (sizes[-1] < SHORT_ROW and x.size > FEW):
        return None, (0, 0, 0, 0)
    return loops[x.dtype.char], sizes
