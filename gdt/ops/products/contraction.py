"""Contractions: matmul, einsum, tensordot and outer are one thing, a product summed over labels.

In a block the mesh axes are labels like any other: a batch split over 8 coordinates is a row label,
and the gradient of a weight sums over it inside the same matrix product. So a contraction of blocks
is arranged as one call of BLAS (or a batch of them), whatever the layouts are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gdt.backend.numpy import Order
from gdt.caches import memoized
from gdt.cuda import launches
from gdt.cuda.runner import GRID_LIMIT, address
from gdt.engine.blas import is_small, multiply
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.launcher import Launcher
from gdt.engine.loops import are_arrays
from gdt.engine.op import op
from gdt.engine.plan import Labels, Memory
from gdt.engine.source import define
from gdt.ops.elementwise import like
from gdt.ops.products.panels import in_panels, reduced_in_panels
from gdt.settings import MATMUL_PRECISION
from gdt.sharding.dtypes import BFLOAT16

__all__ = ["matrix_product"]


Block = Any
Label = Any
Terms = tuple[Label, ...]
Shape = tuple[int, ...]

# Below this contraction length a product is so short that writing it twice costs more than a loop
# of products, measured on the gradient of a 1200 x 48 weight split by columns.
LONG_CONTRACTION = 256


OFTEN = 64  # uses of each element from which on an operand is worth a copy into aligned rows
PACK_BYTES = 16  # that tensor cores' copies to shared memory have, and begin at multiples of


class Factor:
    """One operand of a product: its labels and sizes without dims of length 1 and without labels
    that neither the other operand nor the output has, whose axes `summed` are added up first."""

    def __init__(self, labels: Terms, shape: tuple[int, ...], others: Terms) -> None:
        sizes = [(n, s) for n, s in zip(labels, shape, strict=True) if n is not None]
        self.summed = tuple(i for i, n in enumerate(labels) if n is not None and n not in others)
        self.sizes = {n: s for n, s in sizes if n in others}
        self.labels = list(self.sizes)

    def matrices(
        self, block: str, batch: Sequence[Label], first: Sequence[Label], second: Sequence[Label]
    ) -> str:
        """The source that reshapes the block named `block` to a stack of matrices: (batch...,
        first, second)."""
        sizes = self.sizes
        order = [self.labels.index(n) for n in (*batch, *first, *second) if n in sizes]
        mesh_ndim = [sizes.get(n, 1) for n in batch]
        last = [math.prod(sizes[n] for n in group) for group in (first, second)]
        if self.summed:
            block = f"{block}.sum(axis={self.summed}, dtype=np.result_type(x.dtype, w.dtype))"
        return _viewed(block, tuple(sizes.values()), order, (*mesh_ndim, *last))


class OutputLabels(NamedTuple):
    """The labels of the output: of the stack of products, and of their rows and columns."""

    batch: list[Label]
    rows: list[Label]
    columns: list[Label]

    @property
    def order(self) -> list[Label]:
        """The labels in the order in which products are written."""
        return self.batch + self.rows + self.columns

    def looped(self, out: list[Label]) -> OutputLabels:
        """The groups with leading labels of the output moved to the stack, as many as it takes for
        products to be written in the output's order; the groups as they are if that leaves no
        matrix to multiply."""
        for count in range(1, len(out) - len(self.batch)):
            first = out[:count]
            rest = [[n for n in group if n not in first] for group in self]
            groups = OutputLabels(first + rest[0], rest[1], rest[2])
            if groups.order == out:
                return groups
        return self


@memoized(1000)
def arrange(
    terms: tuple[Terms, ...], left_shape: Shape, right_shape: Shape, order: Order = None
) -> tuple[str, ...]:
    """The lines of a function of `x`, `w` and `target` that contracts two blocks. They name NumPy,
    `multiply`, `xp.matmul` and `xp.ascontiguousarray`.

    terms: the labels of both blocks and of the output; None labels a dim of length 1. A label of
        both blocks that the output lacks is summed over. order: the output's dims in memory,
        slowest first, where that is not their own order.
    """
    left, right, out = terms
    if order is None:
        return tuple(_lines("x", "w", left, right, out, left_shape, right_shape, ""))
    back = tuple(map(order.index, range(len(order))))
    term = tuple(out[i] for i in order)
    return (
        "if target is not None:",
        f"    target = target.transpose({order})",
        *_lines("x", "w", left, right, term, left_shape, right_shape, f".transpose({back})"),
    )


def _lines(
    x: str,
    w: str,
    left: Terms,
    right: Terms,
    out: Terms,
    left_shape: Shape,
    right_shape: Shape,
    finish: str,
) -> list[str]:
    """The lines that contract the blocks with the names `x` and `w`.

    finish: source that follows the product in what the lines return.
    """
    first, second = Factor(left, left_shape, right + out), Factor(right, right_shape, left + out)
    labels = [n for n in out if n is not None]
    groups = OutputLabels(
        [n for n in labels if n in first.sizes and n in second.sizes],
        [n for n in labels if n not in second.sizes],
        [n for n in labels if n not in first.sizes],
    )
    if labels != groups.order and labels == groups.batch + groups.columns + groups.rows:
        return _lines(w, x, right, left, out, right_shape, left_shape, finish)
    inner = [n for n in first.labels if n in second.sizes and n not in labels]
    if labels != groups.order and math.prod(first.sizes[n] for n in inner) < LONG_CONTRACTION:
        groups = groups.looped(labels)
    sizes = {**first.sizes, **second.sizes}
    lengths = [math.prod(sizes[n] for n in group) for group in (groups.rows, inner, groups.columns)]
    product = (
        f"{'multiply(xp, ' if is_small(*lengths) else 'xp.matmul('}"
        f"{first.matrices(x, groups.batch, groups.rows, inner)}, "
        f"{second.matrices(w, groups.batch, inner, groups.columns)}"
    )
    return _product(product, sizes, groups, out, finish)


def _product(
    product: str, sizes: Mapping[Label, int], groups: OutputLabels, out: Terms, finish: str
) -> list[str]:
    """The lines that make a block with the labels `out` of `product`, the source of a call without
    its closing bracket."""
    batch, rows, columns = ([sizes[n] for n in group] for group in groups)
    product_shape = (*batch, math.prod(rows), math.prod(columns))
    out_shape = tuple(sizes[n] if n is not None else 1 for n in out)
    order, labels = groups.order, [n for n in out if n is not None]
    if labels == order:
        shaped = "" if product_shape == out_shape else f".reshape({out_shape})"
        return [
            "if target is None:",
            f"    return {product}){shaped}{finish}",
            f"{product}, out=target.reshape({product_shape}))",
            f"return target{finish}",
        ]
    shape, back = (*batch, *rows, *columns), tuple([order.index(n) for n in labels])
    return [
        f"product = {product}).reshape({shape}).transpose({back}).reshape({out_shape})",
        "if target is None:",
        f"    return xp.ascontiguousarray(product){finish}",
        "target[...] = product",
        f"return target{finish}",
    ]


def _viewed(block: str, squeezed: Shape, order: list[int], shape: Shape) -> str:
    """The source of a block squeezed, transposed and reshaped, in as few calls as that takes."""
    if order == sorted(order):
        return f"{block}.reshape({shape})"
    view = f"{block}.reshape({squeezed}).transpose({tuple(order)})"
    return view if tuple(squeezed[i] for i in order) == shape else f"{view}.reshape({shape})"


def contract(xp: Any, x: Block, w: Block, labels: Labels, out: Block) -> Block:
    """Contract two blocks; bool and integer blocks as NumPy's matmul does, float16 on the host in
    float32, since NumPy has no fast product of it."""
    if xp is np and x.dtype == w.dtype == np.float16:
        return _rounded(contract(xp, x.astype(np.float32), w.astype(np.float32), labels, None), out)
    if labels.function is None:
        lines = arrange(labels.terms, x.shape, w.shape, labels.order)
        labels.function = define(
            "product(xp, x, w, target)", lines, {"np": np, "multiply": multiply}
        )
    return labels.function(xp, x, w, out)


def _rounded(product: Block, out: Block) -> Block:
    """Return a product as float16, in the memory `out` if there is any."""
    if out is None:
        return product.astype(np.float16)
    out[...] = product
    return out


def contract_on_host(
    body: Any, x: Block, w: Block, /, *, labels: Labels, **_: Any
) -> Callable[..., Block] | None:
    """A function that contracts blocks of these shapes in one frame."""
    if not are_arrays(x, w) or x.dtype == w.dtype == np.float16:
        return None
    lines = arrange(labels.terms, x.shape, w.shape, labels.order)
    product: Callable[..., Block] = define(
        "product(x, w, *, out=None)",
        ["target = out", *lines],
        {"np": np, "xp": np, "multiply": multiply},
    )
    product.__name__ = body.func.__name__
    return product


def _on_tensor_cores(dtype: np.dtype, arch: str) -> bool:
    """Whether products of `dtype` run on tensor cores. Those of float32 do where the precision
    "tensorfloat32" is set, those of float64 where tensor cores are faster."""
    if dtype == np.float64:
        return arch in launches.FLOAT64_ON_TENSOR_CORES
    if dtype != np.float32:
        return dtype.itemsize == 2
    return MATMUL_PRECISION.get() == "tensorfloat32" and arch not in launches.WITHOUT["matmul_mma"]


class Epilogue(NamedTuple):
    """The end of a kernel of products, for each element of the result: a sum with a bias of its
    column, and an activation, which may read an element of `aux`; see `launches.matmul`."""

    activation: str = "none"
    bias: Block | None = None
    aux: Block | None = None


class KernelProducts:
    """The part of a namespace that `contract` uses, with products by the kernels of matmul.cu and
    matmul_hopper.cu."""

    def __init__(self, launcher: Launcher, epilogue: Epilogue | None = None) -> None:
        self.launcher, self.ascontiguousarray = launcher, launcher.xp.ascontiguousarray
        self.epilogue = epilogue

    def matmul(self, x: Block, w: Block, out: Block = None) -> Block:
        """Product of stacks of matrices whose leading axes broadcast; of equal rank."""
        launcher, dtype = self.launcher, x.dtype
        if dtype != w.dtype:
            dtype = launcher.xp.result_type(dtype, w.dtype)
            x, w = x.astype(dtype, copy=False), w.astype(dtype, copy=False)
        x, w, mesh_ndim = self._walkable(x), self._walkable(w), x.ndim - 2
        finish = self.epilogue and self._finish(self.epilogue, out, w.shape[-1])
        if out is None:
            batch, others = x.shape[:mesh_ndim], w.shape[:mesh_ndim]
            if batch != others:
                batch = np.broadcast_shapes(batch, others)
            shape = (*batch, x.shape[-2], w.shape[-1])
            out = launcher.empty(shape, launcher.result_dtype(dtype))
        tensor_cores = _on_tensor_cores(dtype, launcher.runner.arch)
        if tensor_cores:
            arch, uses = launcher.runner.arch, (w.shape[-1], x.shape[-2])
            turns = launches.matmul_transposes(x, w, arch=arch, mesh_ndim=mesh_ndim)
            x, w = (
                side if turn else self._aligned(side, often)
                for side, turn, often in zip((x, w), turns, uses, strict=True)
            )
        self._launch(x, w, out, tensor_cores, finish or Epilogue())
        return out

    def _launch(
        self, x: Block, w: Block, out: Block, tensor_cores: bool, epilogue: Epilogue
    ) -> None:
        """Launch a product of operands that kernels take: in halves, and these in halves, while it
        has more matrices, or a matrix more rows or columns, than one launch takes."""
        launcher, runner, shape = self.launcher, self.launcher.runner, out.shape
        if math.prod(shape[:-2]) <= GRID_LIMIT[2] and max(shape) <= launches.INT_LIMIT:
            calls = launches.matmul(
                x, w, out, launcher.empty, **epilogue._asdict(),
                mesh_ndim=out.ndim - 2, arch=runner.arch, tensor_cores=tensor_cores,
                multiprocessors=runner.multiprocessors, arrivals=launcher.counters(),
            )  # fmt: skip
            launcher.run(calls)
            return
        axis = next(i for i, size in enumerate(shape) if size > 1)  # so that halves lie in order
        rows, columns = out.ndim - 2, out.ndim - 1
        activation, bias, aux = epilogue
        for half in (slice(shape[axis] // 2), slice(shape[axis] // 2, None)):
            part = partial(_along, axis, half)
            own = bias[..., half] if bias is not None and axis == columns else bias
            self._launch(
                x if axis == columns else part(x), w if axis == rows else part(w), part(out),
                tensor_cores, Epilogue(activation, own, part(aux)),
            )  # fmt: skip

    def _finish(self, epilogue: Epilogue, out: Block | None, columns: int) -> Epilogue:
        """An epilogue as a launch takes it that computes `out`, the whole result."""
        activation, bias, aux = epilogue
        if out is None:
            raise self.launcher.refused("the product lies in another order than the result")
        if bias is not None and bias.size != columns:
            raise self.launcher.refused(f"a bias of {bias.size} elements, of {columns} columns")
        if bias is not None:
            bias = self.launcher.contiguous(bias).reshape((*[1] * (out.ndim - 2), columns))
        if aux is not None:
            aux = self.launcher.contiguous(aux).reshape(out.shape)
        return Epilogue(activation, bias, aux)

    def _aligned(self, x: Block, uses: int) -> Block:
        """`x`, copied into rows that begin on 16 bytes if tensor cores use each element often: rows
        that do not, as of a vocabulary of 50,257, are copied to shared memory by elements."""
        if x.strides[-1] != x.itemsize:
            if x.strides[-2] != x.itemsize:
                return x  # of one row or column, or empty
            return self._aligned(x.swapaxes(-1, -2), uses).swapaxes(-1, -2)
        if uses < OFTEN or (address(x) | x.strides[-2]) % PACK_BYTES == 0:
            return x
        columns, pack = x.shape[-1], PACK_BYTES // x.itemsize
        rows = self.launcher.empty((*x.shape[:-1], -(-columns // pack) * pack), x.dtype)
        rows[..., :columns] = x
        return rows[..., :columns]

    def _walkable(self, x: Block) -> Block:
        """`x`, copied unless its matrices are stored by rows or by columns."""
        (rows, columns), (down, across) = x.shape[-2:], x.strides[-2:]
        if x.itemsize in (down, across) or 1 in (rows, columns):
            return x
        return self.launcher.xp.ascontiguousarray(x)


def _along(axis: int, part: slice, x: Block | None) -> Block | None:
    """The part of a block along an axis, of a block that is the same along it the whole."""
    return x if x is None or x.shape[axis] == 1 else x[(*[slice(None)] * axis, part)]


def contract_with_kernels(
    launcher: Launcher,
    x: Block,
    w: Block,
    /,
    *,
    labels: Labels,
    out: Block = None,
    epilogue: Epilogue | None = None,
    **_: Any,
) -> Block:
    """Contract two blocks by the kernels of matmul.cu and matmul_hopper.cu; with an epilogue,
    which needs `out`."""
    if BFLOAT16 in (x.dtype, w.dtype):
        left, right, result = labels.terms
        if x.dtype != w.dtype:
            raise launcher.refused(f"operands are of {x.dtype} and {w.dtype}")
        if {*left, *right} - {None} - {*result} - ({*left} & {*right}):
            raise launcher.refused("an operand is added up before the product")
    return contract(KernelProducts(launcher, epilogue), x, w, labels, out)


@op("... i k, k j -> ... i j", linear="x, w")
def matrix_product(
    xp: Any, x: Block, w: Block, /, *, labels: Labels = FROM_ENGINE, out: Memory | None = None
) -> Block:
    """Matrix product over the last axis of `x` and the first of `w`: what `@` runs for a matrix
    `w`.

    x: (..., i, k), w: (k, j), result: (..., i, j); dtypes promote as in NumPy.
    Split i or j: no communication. Split k: each device sums its part, and the result stays a
    partial sum until its value is needed. Raises ShapeError for shapes that do not fit.

    >>> mesh = gdt.create_mesh([("data", 4)])
    >>> x = gdt.ones((8, 4), layout=gdt.Layout(["data", gdt.UNSHARDED], mesh))
    >>> w = gdt.ones((4, 2), layout=gdt.Layout.replicated(mesh, 2))
    >>> gdt.matrix_product(x, w).layout.sharding_specs
    ['data', 'unsharded']
    """
    return contract(xp, x, w, labels, out)


@op("... i k, j k -> ... i j", linear="x, w")
def matrix_product_nt(
    xp: Any, x: Block, w: Block, /, *, labels: Labels = FROM_ENGINE, out: Memory | None = None
) -> Block:
    """`x @ w.T` without transposing; x: (..., i, k), w: (j, k), result: (..., i, j)."""
    return contract(xp, x, w, labels, out)


@op("... k i, ... k j -> i j", linear="x, w")
def matrix_product_tn(
    xp: Any, x: Block, w: Block, /, *, labels: Labels = FROM_ENGINE, out: Memory | None = None
) -> Block:
    """`x.T @ w`, summed over all leading axes; x: (..., k, i), w: (..., k, j), result: (i, j)."""
    return contract(xp, x, w, labels, out)


for product in (matrix_product, matrix_product_nt, matrix_product_tn):
    product.kernel(contract_with_kernels, has_library=True, takes_bfloat16=True)
    product.specialize(contract_on_host)
    product.alternative(partial(in_panels, product))
# Not those of gradients: the partial sums of all gradients are reduced together.
matrix_product.alternative(partial(reduced_in_panels, matrix_product))

matrix_product.vjp(
    lambda g, out, x, w: like(matrix_product_nt(g, w), x),
    lambda g, out, x, w: like(matrix_product_tn(x, g), w),
    reads=("w", "x"),
)
matrix_product_nt.vjp(
    lambda g, out, x, w: like(matrix_product(g, w), x),
    lambda g, out, x, w: like(matrix_product_tn(g, x), w),
    reads=("w", "x"),
)
matrix_product_tn.vjp(
    lambda g, out, x, w: like(matrix_product_nt(w, g), x),
    lambda g, out, x, w: like(matrix_product(x, g), w),
    reads=("w", "x"),
)
