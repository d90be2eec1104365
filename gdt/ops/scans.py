"""Products and scans: prod, cumsum and cumprod.

A scan of a split axis is a scan of every shard, then one all-gather of the shards' totals, whose
own scan says what each shard begins with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.output import into
from gdt.array.registry import public
from gdt.engine.declaration import same_statics
from gdt.engine.loops import loop
from gdt.engine.op import Op, op
from gdt.engine.plan import Memory
from gdt.engine.whole_arrays import NumpyOp, in_numpy
from gdt.ops.axes import Axis, checked_axis
from gdt.ops.comparison import equal, where
from gdt.ops.elementwise import add, astype, checked_dtype, multiply
from gdt.ops.indexing import getitem
from gdt.ops.lookup import along_axis_or_flat
from gdt.ops.movement import relayout
from gdt.ops.padding import pad
from gdt.ops.reductions import kept_dims, prepare_sum, reduction_rule, sum_
from gdt.ops.shapes import expand_dims, reshape
from gdt.ops.taking import neutral_number
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.rule import RuleSpec

__all__ = ["cumprod", "cumsum", "prod"]


Block = Any
SMALLEST = 1 << 17
"""The fewest elements of a row for which the loop is worth importing numba."""


# ---------------------------------------------------------------- prod


@op(reduction_rule, reduce="prod", prepare=prepare_sum, extended="out, initial, where")
@same_statics(sum_)
def prod(xp: Any, x: Block, /, **static: Any) -> Block:
    """Product over `axis` (None: all axes); small integers and bools widen as in NumPy.

    Over a split axis each device multiplies its part, and the result stays a partial product until
    it is needed. The gradient is right where factors are 0, second derivatives where none is.
    dtype: the dtype of the product. out: an array that it is written into. keepdims: whether the
    reduced axes stay, with length 1. initial: a number that the product begins with. where: a mask
    of the factors. Raises AxisError for an axis that `x` does not have.

    >>> float(gdt.prod(gdt.asarray([2.0, 3.0, 4.0])))
    24.0
    """
    return x.prod(**static)


def _prod_vjp(
    g: Any, out: Any, x: Any, *, axis: Axis = None, keepdims: bool = False, dtype: Any = None
) -> DistributedArray:
    zero = equal(x, 0)
    zeros = sum_(zero, axis=axis, keepdims=True)
    others = where(zero, 1, x)
    product = prod(others, axis=axis, keepdims=True)
    # Without zeros: product / x. With one, its element gets the product of all others.
    alone = where(zero, where(equal(zeros, 1), product, 0), 0)
    slope = where(equal(zeros, 0), product / others, alone)
    return astype(kept_dims(g, x, axis), x.dtype) * slope


prod.vjp(_prod_vjp)


# ---------------------------------------------------------------- scans of whole axes


def _scan_rule(array_type: ArrayType, *, axis: int, **_: Any) -> RuleSpec:
    names = [f"d{i}" for i in range(array_type.ndim)]
    text = f"{' '.join(names)} -> {' '.join(names)}"
    return RuleSpec(text, whole=frozenset({names[axis]}), linear=array_type.dtype.kind in "fc")


def _reversed(x: Block, axis: int) -> Block:
    return x[(..., slice(None, None, -1), *[slice(None)] * (-axis - 1))]


def _scanned(
    x: Block, out: Memory | None, method: str, axis: int, reverse: bool, dtype: Any
) -> Block:
    """The scan of a block by a method of arrays, from the end if `reverse`."""
    if not reverse:
        return getattr(x, method)(axis=axis, dtype=dtype, out=out)
    target = None if out is None else _reversed(out, axis)
    return _reversed(getattr(_reversed(x, axis), method)(axis=axis, dtype=dtype, out=target), axis)


def _has_loop(x: Block, out: Block | None, axis: int) -> bool:
    """Whether the loop takes these blocks: several long rows, without gaps."""
    if out is None or axis != -1 or not SMALLEST <= x.shape[-1] <= x.size // 2:
        return False
    is_contiguous = x.flags.c_contiguous and out.flags.c_contiguous
    return is_contiguous and _sums_of_rows[x.dtype.char] is not None


@loop("input, output, int")
def _sums_of_rows(x: Block, out: Block, length: int) -> None:
    """Write the sums of the first 1, 2, 3, ... elements of every row of that length, four rows at
    a time: each sum waits for the one before, and processors add several numbers meanwhile."""
    rows = x.size // length
    for row in range(0, rows - rows % 4, 4):
        a, b, c, d = row * length, (row + 1) * length, (row + 2) * length, (row + 3) * length
        sum_a, sum_b, sum_c, sum_d = x[a], x[b], x[c], x[d]
        out[a], out[b], out[c], out[d] = sum_a, sum_b, sum_c, sum_d
        for i in range(1, length):
            sum_a += x[a + i]
            sum_b += x[b + i]
            sum_c += x[c + i]
            sum_d += x[d + i]
            out[a + i], out[b + i], out[c + i], out[d + i] = sum_a, sum_b, sum_c, sum_d
    for row in range(rows - rows % 4, rows):
        a = row * length
        sum_a = x[a]
        out[a] = sum_a
        for i in range(1, length):
            sum_a += x[a + i]
            out[a + i] = sum_a


def _prepare_scan(
    array_type: ArrayType, *, axis: int, reverse: bool = False, dtype: Any = None
) -> dict[str, Any]:
    return {
        "axis": checked_axis(array_type, axis) - array_type.ndim,
        "reverse": reverse,
        "dtype": None if dtype is None else checked_dtype(dtype, "cumsum"),
    }


@op(_scan_rule, linear="x", prepare=_prepare_scan)
def cumsum_of_whole(
    xp: Any,
    x: Block,
    /,
    axis: int,
    reverse: bool = False,
    dtype: Any = None,
    *,
    out: Memory | None = None,
) -> Block:
    """`cumsum` along an axis that is not split; from the end if `reverse`."""
    memory: Any = out
    if xp is np and dtype is None and not reverse and _has_loop(x, memory, axis):
        _sums_of_rows[x.dtype.char](x.reshape(-1), memory.reshape(-1), x.shape[-1])
        return memory
    return _scanned(x, out, "cumsum", axis, reverse, dtype)


@op(_scan_rule, prepare=_prepare_scan)
def cumprod_of_whole(
    xp: Any,
    x: Block,
    /,
    axis: int,
    reverse: bool = False,
    dtype: Any = None,
    *,
    out: Memory | None = None,
) -> Block:
    """`cumprod` along an axis that is not split; from the end if `reverse`."""
    return _scanned(x, out, "cumprod", axis, reverse, dtype)


# ---------------------------------------------------------------- scans of split axes


def _scan_of_shards(
    x: DistributedArray, axis: int, product: bool, reverse: bool, dtype: Any
) -> DistributedArray:
    """`cumsum`, or `cumprod` if `product`, along a split axis, counted from the end: a scan of
    every shard, and one of their totals."""
    scan, _, join = _SCANS[product]
    axis %= x.ndim
    shards, size = x.layout.num_shards(axis), x.shape[axis]
    chunk = -(-size // shards)
    if shards * chunk != size:
        widths = [(0, shards * chunk - size if d == axis else 0) for d in range(x.ndim)]
        x = pad(x, widths, constant_values=_identity(product, x.dtype))
    # (..., shards, chunk, ...), of which only `shards` is split
    rows = reshape(x, (*x.shape[:axis], shards, chunk, *x.shape[axis + 1 :]))
    local = scan(rows, axis=axis + 1, reverse=reverse, dtype=dtype)
    # (..., shards, ...)
    totals = getitem(local, (*[slice(None)] * (axis + 1), 0 if reverse else -1))
    begin = _exclusive(totals, axis, product, reverse)
    whole = reshape(join(local, expand_dims(begin, axis + 1)), x.shape)
    return whole if shards * chunk == size else getitem(whole, _prefix(axis, size))


@in_numpy(cumsum_of_whole)
def cumsum_of_split(
    x: DistributedArray, /, *, axis: int, reverse: bool = False, dtype: Any = None
) -> DistributedArray:
    """`cumsum` along a split axis."""
    return _scan_of_shards(x, axis, False, reverse, dtype)


@in_numpy(cumprod_of_whole)
def cumprod_of_split(
    x: DistributedArray, /, *, axis: int, reverse: bool = False, dtype: Any = None
) -> DistributedArray:
    """`cumprod` along a split axis."""
    return _scan_of_shards(x, axis, True, reverse, dtype)


def _exclusive(
    totals: DistributedArray,
    axis: int,
    product: bool,
    reverse: bool,
) -> DistributedArray:
    """The scan of `totals` before each shard (after it, if `reverse`); the identity for the
    first."""
    layout = totals.layout.resolved
    dims = (*layout.dims[:axis], (), *layout.dims[axis + 1 :])
    totals = relayout(totals, Layout.of(layout.mesh, dims))
    others = slice(1, None) if reverse else slice(None, -1)
    widths = [(0, 0)] * totals.ndim
    widths[axis] = (0, 1) if reverse else (1, 0)
    shifted = pad(
        getitem(totals, (*[slice(None)] * axis, others)),
        widths,
        constant_values=_identity(product, totals.dtype),
    )
    return _SCANS[product][0](shifted, axis=axis, reverse=reverse, dtype=totals.dtype)


def _identity(product: bool, dtype: np.dtype) -> Any:
    return 1 if product else neutral_number(np, dtype).item()


def _prefix(axis: int, size: int) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, slice(size))


Scan = Op[..., DistributedArray]

# By whether it is a product: the scan of a whole axis, that of a split one, and what joins both.
_SCANS: dict[bool, tuple[Scan, NumpyOp[..., DistributedArray], Scan]] = {
    False: (cumsum_of_whole, cumsum_of_split, add),
    True: (cumprod_of_whole, cumprod_of_split, multiply),
}


# ---------------------------------------------------------------- cumsum and cumprod


def _scan(
    x: DistributedArray, axis: int, product: bool, reverse: bool, dtype: Any
) -> DistributedArray:
    whole, split, _ = _SCANS[product]
    axis = axis % x.ndim - x.ndim  # from the end, as bodies count
    run: Callable[..., DistributedArray] = split if x.layout.dims[axis] and x.shape[axis] else whole
    if run is split and x.ndim == 1 and not product and x.type.local_shape[0] >= SMALLEST:
        run = split.function  # the loop adds up several shards at once
    return run(x, axis=axis, reverse=reverse, dtype=dtype)


def _cumsum_vjp(
    g: Any, out: Any, x: Any, *, axis: int, reverse: bool = False, dtype: Any = None
) -> DistributedArray:
    return astype(_scan(g, axis, False, not reverse, None), x.dtype)


def _cumprod_vjp(
    g: Any, out: Any, x: Any, *, axis: int, reverse: bool = False, dtype: Any = None
) -> DistributedArray:
    """The cotangent of x[i]: the sum of g[k] * out[k] / x[i] over k from i on; at the first 0 the
    sum of g[k] times the products without it; 0 beyond the first 0."""
    zero = equal(x, 0)
    count = _scan(astype(zero, x.dtype), axis, False, reverse, None)
    first = equal(multiply(zero, count), 1)
    beyond = _scan(where(first, 1, x), axis, True, reverse, None)
    at_first = _scan(g * beyond, axis, False, not reverse, None)
    before = _scan(g * out, axis, False, not reverse, None) / where(zero, 1, x)
    return astype(where(first, at_first, where(zero, 0, before)), x.dtype)


for _sums, _products in zip(_SCANS[False][:2], _SCANS[True][:2], strict=True):
    _sums.vjp(_cumsum_vjp)
    _products.vjp(_cumprod_vjp)


def _checked(name: str, x: Any, axis: Any, dtype: Any) -> tuple[DistributedArray, int, Any]:
    (x,) = as_operands(name, x=x)
    x, front = along_axis_or_flat(x, axis, takes_rank_0=True)
    return x, front - x.ndim, None if dtype is None else checked_dtype(dtype, name)


@public
def cumsum(
    x: Any, axis: int | None = None, dtype: Any = None, out: DistributedArray | None = None
) -> DistributedArray:
    """Sums of the first 1, 2, 3, ... elements along `axis` (None: of the flattened array); small
    integers and bools widen as in NumPy.

    A split axis stays split: the devices gather one total per shard. Raises AxisError for an axis
    that `x` does not have.

    >>> gdt.cumsum(gdt.asarray([1, 2, 3])).tolist()
    [1, 3, 6]
    """
    x, axis, dtype = _checked("cumsum", x, axis, dtype)
    sums = _scan(x, axis, False, False, dtype)
    return sums if out is None else into(out, "cumsum", sums)


@public
def cumprod(
    x: Any, axis: int | None = None, dtype: Any = None, out: DistributedArray | None = None
) -> DistributedArray:
    """Products of the first 1, 2, 3, ... elements along `axis` (None: of the flattened array);
    small integers and bools widen as in NumPy.

    A split axis stays split: the devices gather one product per shard. The gradient is right where
    elements are 0, second derivatives where none is. Raises AxisError for an axis that `x` does not
    have.

    >>> gdt.cumprod(gdt.asarray([1.0, 2.0, 3.0])).tolist()
    [1.0, 2.0, 6.0]
    """
    x, axis, dtype = _checked("cumprod", x, axis, dtype)
    products = _scan(x, axis, True, False, dtype)
    return products if out is None else into(out, "cumprod", products)
