"""Contractions: matmul, einsum, tensordot and outer are one thing, a product summed over labels.

In a block the mesh axes are labels like any other: a batch split over 8 coordinates is a row label,
and the gradient of a weight sums over it inside the same matrix product. So a contraction of blocks
is arranged as one call of BLAS (or a batch of them), whatever the layouts are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gdt import launches
from gdt.launcher import Launcher
from gdt.op import op
from gdt.ops.elementwise import like
from gdt.plan import Labels
from gdt.policy import MATMUL_PRECISION

Block = Any
Label = Any
Terms = tuple[Label, ...]

# Below this contraction length a product is so short that writing it twice costs more than a loop
# of products, measured on the gradient of a 1200 x 48 weight split by columns.
LONG_CONTRACTION = 256


@lru_cache(maxsize=1 << 12)
def arrange(
    left: Terms, right: Terms, out: Terms, left_shape: tuple[int, ...], right_shape: tuple[int, ...]
) -> Callable[[Any, Block, Block, Block], Block]:
    """How to contract two blocks with these labels: a function `(xp, x, w, out) -> block`, where
    xp needs `matmul` and `ascontiguousarray`.

    None labels dims of length 1. Labels of both operands that `out` lacks are summed over.
    """
    sizes: dict[Label, int] = {}
    for labels, shape in ((left, left_shape), (right, right_shape)):
        sizes.update((n, s) for n, s in zip(labels, shape, strict=True) if n is not None)
    x_labels, w_labels = [n for n in left if n is not None], [n for n in right if n is not None]
    o_labels = [n for n in out if n is not None]
    alone_x = [n for n in x_labels if n not in w_labels and n not in o_labels]
    alone_w = [n for n in w_labels if n not in x_labels and n not in o_labels]
    x_labels = [n for n in x_labels if n not in alone_x]
    w_labels = [n for n in w_labels if n not in alone_w]
    batch = [n for n in o_labels if n in x_labels and n in w_labels]
    rows = [n for n in o_labels if n in x_labels and n not in w_labels]
    columns = [n for n in o_labels if n in w_labels and n not in x_labels]
    inner = [n for n in x_labels if n in w_labels and n not in o_labels]
    length = math.prod(sizes[n] for n in inner)
    if o_labels != batch + rows + columns and o_labels == batch + columns + rows:
        swapped = arrange(right, left, out, right_shape, left_shape)
        return lambda xp, x, w, target: swapped(xp, w, x, target)
    looped: list[Label] = []
    if o_labels != batch + rows + columns and length < LONG_CONTRACTION:
        # One product would have to be written again in the block's order: loop over leading labels.
        order = batch + rows + columns
        while o_labels != order and len(looped) + len(batch) < len(o_labels) - 1:
            looped = o_labels[: len(looped) + 1]
            order = looped + [n for n in batch + rows + columns if n not in looped]
        if o_labels != order:
            looped = []
    batch = looped + [n for n in batch if n not in looped]
    rows, columns = [n for n in rows if n not in batch], [n for n in columns if n not in batch]
    order = batch + rows + columns
    direct = o_labels == order
    shape = tuple(sizes[n] for n in order)
    out_shape = tuple(sizes[n] if n is not None else 1 for n in out)
    back = [order.index(n) for n in o_labels]

    def matrix(
        labels: Sequence[Label], first: Sequence[Label], second: Sequence[Label]
    ) -> tuple[list[int], tuple[int, ...]]:
        """Transposition and shape that make (batch..., first, second) of a block."""
        held = [n for n in batch if n in labels]
        transposition = [labels.index(n) for n in [*held, *first, *second]]
        lead = tuple(sizes[n] if n in labels else 1 for n in batch)
        return transposition, (
            *lead,
            math.prod(sizes[n] for n in first),
            math.prod(sizes[n] for n in second),
        )

    x_order, x_shape = matrix(x_labels, rows, inner)
    w_order, w_shape = matrix(w_labels, inner, columns)
    x_squeezed = tuple(
        s for n, s in zip(left, left_shape, strict=True) if n is not None and n not in alone_x
    )
    w_squeezed = tuple(
        s for n, s in zip(right, right_shape, strict=True) if n is not None and n not in alone_w
    )
    x_sum = tuple(i for i, n in enumerate(left) if n in alone_x and n is not None)
    w_sum = tuple(i for i, n in enumerate(right) if n in alone_w and n is not None)
    product_shape = (*(sizes[n] for n in batch), x_shape[-2], w_shape[-1])

    view_x = _viewer(x_squeezed, x_order, x_shape)
    view_w = _viewer(w_squeezed, w_order, w_shape)
    product_out = shape == out_shape == product_shape

    def contract(xp: Any, x: Block, w: Block, target: Block) -> Block:
        if x_sum:
            x = x.sum(axis=x_sum, dtype=x.dtype)
        if w_sum:
            w = w.sum(axis=w_sum, dtype=w.dtype)
        if target is None or not direct:
            product = xp.matmul(view_x(x), view_w(w))
            if direct:
                return product if product_out else product.reshape(out_shape)
            product = product.reshape(shape).transpose(back).reshape(out_shape)
            if target is None:
                return xp.ascontiguousarray(product)
            target[...] = product
            return target
        xp.matmul(view_x(x), view_w(w), out=target.reshape(product_shape))
        return target

    return contract


def _viewer(
    squeezed: tuple[int, ...], order: list[int], shape: tuple[int, ...]
) -> Callable[[Block], Block]:
    """Squeeze, transpose and reshape a block, in as few calls as that takes."""
    if order == sorted(order):
        return lambda block: block.reshape(shape)
    if tuple(squeezed[i] for i in order) == shape:
        return lambda block: block.reshape(squeezed).transpose(order)
    return lambda block: block.reshape(squeezed).transpose(order).reshape(shape)


def contract(xp: Any, x: Block, w: Block, labels: Labels, out: Block) -> Block:
    """Contract two blocks; bool and integer blocks as NumPy's matmul does."""
    if labels.function is None:
        left, right, result = labels.terms
        labels.function = arrange(left, right, result, x.shape, w.shape)
    return labels.function(xp, x, w, out)


def _on_tensor_cores(dtype: np.dtype, arch: str) -> bool:
    """Whether products of `dtype` run on tensor cores: of float32, where it is asked for."""
    if dtype != np.float32:
        return dtype.itemsize == 2
    return MATMUL_PRECISION.get() == "tensorfloat32" and arch not in launches.WITHOUT["matmul_mma"]


class KernelProducts:
    """What `contract` needs of a namespace, with products by the kernels of matmul.cu and
    matmul_hopper.cu."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher, self.ascontiguousarray = launcher, launcher.xp.ascontiguousarray

    def matmul(self, x: Block, w: Block, out: Block = None) -> Block:
        """Product of stacks of matrices whose leading axes broadcast; of equal rank."""
        launcher, dtype = self.launcher, self.launcher.xp.result_type(x.dtype, w.dtype)
        x, w = (self._walkable(a.astype(dtype, copy=False)) for a in (x, w))
        lead = x.ndim - 2
        if out is None:
            batch = np.broadcast_shapes(x.shape[:lead], w.shape[:lead])
            out = launcher.empty((*batch, x.shape[-2], w.shape[-1]), dtype.name)
        runner = launcher.runner
        calls = launches.matmul(
            x, w, out, launcher.empty,
            lead=lead, tensor_cores=_on_tensor_cores(dtype, runner.arch), arch=runner.arch,
            multiprocessors=runner.multiprocessors,
        )  # fmt: skip
        launcher.run(calls)
        return out

    def _walkable(self, x: Block) -> Block:
        """`x`, copied unless its matrices are stored by rows or by columns."""
        (rows, columns), (down, across) = x.shape[-2:], x.strides[-2:]
        if x.itemsize in (down, across) or 1 in (rows, columns):
            return x
        return self.launcher.xp.ascontiguousarray(x)


def contract_with_kernels(
    launcher: Launcher, x: Block, w: Block, /, *, labels: Labels, out: Block = None, **_: Any
) -> Block:
    """Contract two blocks by the kernels of matmul.cu and matmul_hopper.cu."""
    return contract(KernelProducts(launcher), x, w, labels, out)


@op("... i k, k j -> ... i j", linear="x, w")
def matrix_product(xp: Any, x: Block, w: Block, /, *, labels: Labels, out: Block = None) -> Block:
    """Matrix product over the last axis of `x` and the first of `w`: what `@` runs for a matrix
    `w`.

    x: (..., i, k), w: (k, j), result: (..., i, j); dtypes promote as in NumPy.
    Split i or j: no communication. Split k: each device sums its part, and the result stays a
    pending sum until its value is needed.

    >>> mesh = gdt.create_mesh([("data", 4)])
    >>> x = gdt.ones((8, 4), layout=gdt.Layout(["data", gdt.UNSHARDED], mesh))
    >>> (x @ gdt.ones((4, 2), layout=gdt.Layout.replicated(mesh, 2))).layout.sharding_specs
    ['data', 'unsharded']
    """
    return contract(xp, x, w, labels, out)


@op("... i k, j k -> ... i j", linear="x, w")
def matrix_product_nt(
    xp: Any, x: Block, w: Block, /, *, labels: Labels, out: Block = None
) -> Block:
    """`x @ w.T` without transposing; x: (..., i, k), w: (j, k), result: (..., i, j)."""
    return contract(xp, x, w, labels, out)


@op("... k i, ... k j -> i j", linear="x, w")
def matrix_product_tn(
    xp: Any, x: Block, w: Block, /, *, labels: Labels, out: Block = None
) -> Block:
    """`x.T @ w`, summed over all leading axes; x: (..., k, i), w: (..., k, j), result: (i, j)."""
    return contract(xp, x, w, labels, out)


for product in (matrix_product, matrix_product_nt, matrix_product_tn):
    product.kernel(contract_with_kernels, has_library=True)

matrix_product.vjp(
    lambda g, out, x, w: like(matrix_product_nt(g, w), x),
    lambda g, out, x, w: like(matrix_product_tn(x, g), w),
)
matrix_product_nt.vjp(
    lambda g, out, x, w: like(matrix_product(g, w), x),
    lambda g, out, x, w: like(matrix_product_tn(g, x), w),
)
matrix_product_tn.vjp(
    lambda g, out, x, w: like(matrix_product_nt(w, g), x),
    lambda g, out, x, w: like(matrix_product(x, g), w),
)
