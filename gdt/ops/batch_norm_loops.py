"""Batch normalisation as compiled loops: blocks as (outer, lead, rows, columns), of which outer and
rows are what is normalised over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.loops import are_arrays, constant, grouped, loop
from gdt.plan import Shards

Block = Any
Body = Callable[..., Any]


@loop("input, int, int, int, int, output")
def _moments(x: Block, outer: int, lead: int, rows: int, columns: int, out: Block) -> None:
    """Means, variances, and what the means lost when they were rounded."""
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
    """The sums of g, and of g * xhat."""
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


@loop("input, input, input, input, input, float, int, int, int, int, output")
def _normalized(
    x: Block,
    mean: Block,
    variance: Block,
    offset: Block,
    scale: Block,
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
            root = np.sqrt(variance[at] + small)
            factor[c] = scale[min(at, scale.size - 1)] / root
            shift[c] = offset[min(at, offset.size - 1)]
        for o in range(outer):
            for r in range(rows):
                row, made = x[o, k, r], y[o, k, r]
                for c in range(columns):
                    made[c] = (row[c] - means[c]) * factor[c] + shift[c]


@loop("input, input, input, input, input, input, float, float, int, int, int, int, output")
def _gradient(
    g: Block,
    xhat: Block,
    g_sum: Block,
    product_sum: Block,
    variance: Block,
    scale: Block,
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
            factor[c] = scale[min(at, scale.size - 1)] / np.sqrt(variance[at] + small)
        for o in range(outer):
            for r in range(rows):
                g_row, row, made = g[o, k, r], xhat[o, k, r], out[o, k, r]
                for c in range(columns):
                    mean = (row[c] * products[c] + sums[c]) * part
                    made[c] = (g_row[c] + mean) * factor[c]


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
    """`gdt.moments` without padding: means and variances, and where shards are merged what the
    means lost when they were rounded."""
    if not are_arrays(x) or shards.uneven:
        return None
    run, dtype = _moments[x.dtype.char], x.dtype
    sizes, shape = _reduced(3, x.shape, axes, keepdims)
    if run is None or sizes is None:
        return None
    rank = len(shards.size)
    is_merged = any(f"d{a + rank}" in shards.split for a in axes)

    def moments(x: Block) -> tuple[Block, ...]:
        made = np.empty(shape, dtype)
        run(x.ravel(), *sizes, made.ravel())
        return (made[0], made[1], made[2]) if is_merged else (made[0], made[1])

    return moments


def batch_norm_sums_loop(
    body: Body, g: Block, xhat: Block, /, axes: Sequence[int], keepdims: bool
) -> Body | None:
    """`batch_norm_sums` of two blocks of one dtype."""
    if not are_arrays(g, xhat) or xhat.shape != g.shape or xhat.dtype != g.dtype:
        return None
    run, dtype = _sums[g.dtype.char], g.dtype
    sizes, shape = _reduced(2, g.shape, axes, keepdims)
    if run is None or sizes is None:
        return None

    def batch_norm_sums(g: Block, xhat: Block) -> tuple[Block, Block]:
        made = np.empty(shape, dtype)
        run(g.ravel(), xhat.ravel(), *sizes, made.ravel())
        return made[0], made[1]

    return batch_norm_sums


def normalize_loop(
    body: Body,
    x: Block,
    mean: Block,
    variance: Block,
    offset: Block,
    scale: Block,
    /,
    epsilon: float,
    *,
    block_shape: tuple[int, ...],
) -> Body | None:
    """`normalize`, where its vectors are of one shape, and all of one dtype."""
    if not are_arrays(x, mean) or not _are_alike(mean, variance, offset, scale, dtype=x.dtype):
        return None
    shape, dtype, char = x.shape, x.dtype, x.dtype.char
    run, sizes = _normalized[char], grouped(shape, mean.shape)
    if run is None or sizes is None:
        return None

    def normalize(
        x: Block, mean: Block, variance: Block, offset: Any, scale: Any, *, out: Block = None
    ) -> Block:
        y = np.empty(shape, dtype) if out is None else out
        elements = y.ravel()
        if elements.base is None:  # a copy: they lie in another order
            return body(x, mean, variance, offset, scale, out=out)
        vectors = mean.ravel(), variance.ravel(), _vector(offset, char), _vector(scale, char)
        run(x.ravel(), *vectors, epsilon, *sizes, elements)
        return y

    return normalize


def batch_norm_gradient_loop(
    body: Body,
    g: Block,
    xhat: Block,
    g_sum: Block,
    product_sum: Block,
    variance: Block,
    scale: Block,
    /,
    epsilon: float,
    count: int,
) -> Body | None:
    """`batch_norm_gradient`, where its vectors are of one shape, and all of one dtype."""
    if not are_arrays(g, xhat, g_sum) or xhat.shape != g.shape or xhat.dtype != g.dtype:
        return None
    if not _are_alike(g_sum, product_sum, variance, scale, dtype=g.dtype):
        return None
    shape, dtype, char = g.shape, g.dtype, g.dtype.char
    run, sizes = _gradient[char], grouped(shape, g_sum.shape)
    if run is None or sizes is None:
        return None
    share = -1.0 / max(count, 1)

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
        made = np.empty(shape, dtype) if out is None else out
        elements = made.ravel()
        if elements.base is None:  # a copy: they lie in another order
            return body(g, xhat, g_sum, product_sum, variance, scale, out=out)
        vectors = g_sum.ravel(), product_sum.ravel(), variance.ravel(), _vector(scale, char)
        run(g.ravel(), xhat.ravel(), *vectors, epsilon, share, *sizes, elements)
        return made

    return batch_norm_gradient


def _are_alike(first: Block, *others: Any, dtype: np.dtype) -> bool:
    """Whether all are arrays of one shape and that dtype, or numbers."""
    arrays = [first, *[v for v in others if type(v) is not float]]
    return all(getattr(v, "shape", None) == first.shape and v.dtype == dtype for v in arrays)


def _vector(value: Any, char: str) -> Block:
    """A number, or an array, as a vector."""
    return constant(value, char) if type(value) is float else value.ravel()


def _reduced(
    count: int, shape: tuple[int, ...], axes: Sequence[int], keepdims: bool
) -> tuple[tuple[int, int, int, int] | None, tuple[int, ...]]:
    """The sizes of a block of which `axes` are reduced, see `grouped`, and the shape of so many
    reductions."""
    gone = {a + len(shape) for a in axes}
    kept = tuple([1 if i in gone else n for i, n in enumerate(shape)])
    left = kept if keepdims else tuple([n for i, n in enumerate(shape) if i not in gone])
    return grouped(shape, kept), (count, *left)
