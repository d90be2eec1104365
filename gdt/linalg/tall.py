"""Matrices with many more rows than columns, of which no device holds all rows."""

from __future__ import annotations

from gdt.array.array import DistributedArray
from gdt.engine.custom_vjp import custom_vjp
from gdt.linalg.whole import conjugated, qr_gradient, qr_of_whole
from gdt.ops.comparison import where
from gdt.ops.indexing import getitem
from gdt.ops.joining import concat
from gdt.ops.movement import relayout
from gdt.ops.padding import pad
from gdt.ops.products.op import matmul
from gdt.ops.ranges import arange
from gdt.ops.shapes import expand_dims, reshape
from gdt.sharding.layout import Layout


def rows_split(x: DistributedArray) -> DistributedArray | None:
    """A matrix with its rows split over all mesh axes that split it, if every shard then has at
    least as many rows as columns; else None."""
    axes = tuple(a for dim in x.layout.dims for a in dim)
    layout = Layout.of(x.mesh, (axes, ()))
    if x.ndim != 2 or not axes or x.shape[0] < x.shape[1] * layout.shard_counts[0]:
        return None
    return relayout(x, layout) if x.shape[1] else None


@custom_vjp
def qr_of_tall(x: DistributedArray) -> tuple[DistributedArray, DistributedArray]:
    """The reduced QR decomposition of a matrix whose rows are split, as `rows_split` returns it.

    TSQR (Demmel, Grigori, Hoemmen and Langou 2012): every device factors its shard, and all factor
    the small factors R, one above the other. The first rows of the matrix are left out of the
    first step and stand above the factors in the second: reflections see the same first rows as
    in a decomposition of the whole matrix, and so give the same signs.
    """
    rows, columns = x.shape
    shards, layout = x.layout.num_shards(0), x.layout
    height = -(-rows // shards)
    whole = Layout.replicated(x.mesh, 2)
    head = relayout(getitem(x, slice(columns)), whole)
    number = arange(rows, layout=Layout.of(x.mesh, layout.dims[:1]))
    rest = where(expand_dims(number < columns, 1), 0, x)
    if rows % shards:
        rest = pad(rest, ((0, height * shards - rows), (0, 0)))
    q, r = qr_of_whole(reshape(rest, (shards, height, columns)))  # split along `shards`
    factors = relayout(reshape(r, (shards * columns, columns)), whole)
    small, r = qr_of_whole(concat([head, factors]))
    first, others = getitem(small, slice(columns)), getitem(small, slice(columns, None))
    others = relayout(
        reshape(others, (shards, columns, columns)), Layout.of(x.mesh, (layout.dims[0], (), ()))
    )
    q = getitem(reshape(matmul(q, others), (shards * height, columns)), slice(rows))
    first = pad(relayout(first, layout), ((0, rows - columns), (0, 0)))
    return where(expand_dims(number < columns, 1), first, relayout(q, layout)), r


qr_of_tall.vjp(conjugated(qr_gradient))
