"""sort and argsort, stable, and functions that sort: lexsort, partition, top_k.

An axis that is not split is sorted where it is. A split one gives its mesh axes to other axes, by
an all-to-all, if those are long enough. A split vector is sorted by `gdt.ops.sample_sort`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.arguments import same_arguments
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.engine.op import op
from gdt.engine.whole_arrays import in_numpy
from gdt.errors import ArgumentError, ShapeError, error
from gdt.ops.along_axis import take_along_axis, take_along_axis_in_range
from gdt.ops.axes import checked_axis
from gdt.ops.blocks import radix_sort
from gdt.ops.elementwise import astype, imag, real
from gdt.ops.indexing import getitem
from gdt.ops.joining import stack
from gdt.ops.lookup import along_axis_or_flat
from gdt.ops.movement import relayout
from gdt.ops.padding import pad
from gdt.ops.ranges import arange
from gdt.ops.rearranging import flip, moveaxis
from gdt.ops.sample_sort import argsort_rows, argsort_vector, keys_of, sort_vector
from gdt.ops.shapes import reshape
from gdt.ops.taking import rows_at
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Layout
from gdt.sharding.reduction import identity

__all__ = [
    "argpartition",
    "argsort",
    "argsort_whole_axis",
    "lexsort",
    "partition",
    "sort",
    "sort_complex",
    "sort_keys",
    "sort_whole_axis",
    "top_k",
]

Block = Any


# ---------------------------------------------------------------- axes that are whole


def _along(x: ArrayType, *, axis: int) -> str:
    dims = " ".join("n" if d == x.ndim + axis else f"d{d}" for d in range(x.ndim))
    return f"{dims} -> {dims}"


@op(_along, whole="n")
def sort_whole_axis(xp: Any, x: Block, /, axis: int) -> Block:
    """`gdt.sort` along an axis, counted from the end, that every device has whole.

    >>> gdt.sort_whole_axis(gdt.asarray([3, 1, 2]), axis=-1).tolist()
    [1, 2, 3]
    """
    return radix_sort.sort(xp, x, axis)


@op(_along, whole="n")
def argsort_whole_axis(xp: Any, x: Block, /, axis: int) -> Block:
    """`gdt.argsort` along an axis, counted from the end, that every device has whole.

    >>> gdt.argsort_whole_axis(gdt.asarray([3, 1, 2]), axis=-1).tolist()
    [1, 2, 0]
    """
    return radix_sort.argsort(xp, x, axis)


def _sort_vjp(g: Any, out: Any, x: Any, *, axis: int) -> Any:
    order = argsort_whole_axis(x, axis=axis)
    place = argsort_whole_axis(order, axis=axis)  # of each element in the sorted array
    return take_along_axis_in_range(g, place, axis=axis + x.ndim)


sort_whole_axis.vjp(_sort_vjp)
argsort_whole_axis.vjp(None)


# ---------------------------------------------------------------- any axis


def by_axis(
    x: DistributedArray,
    axis: int,
    whole: Callable[..., DistributedArray],
    vector: Callable[[DistributedArray], DistributedArray],
) -> DistributedArray:
    """Sort, or select, along `axis`, counted from the front: by `whole` where no device needs more
    than its share for that, else by `vector`."""
    axes = x.layout.dims[axis]
    shards = x.layout.shard_counts[axis]
    if shards == 1 or not x.size:
        return whole(x, axis=axis - x.ndim)
    every = tuple(sorted({a for dim_axes in x.layout.dims for a in dim_axes}))
    if x.ndim == 1:
        return vector(relayout(x, Layout.of(x.mesh, (every,))))
    rest = [d for d in range(x.ndim) if d != axis and not x.layout.dims[d]]
    long = [d for d in rest if x.shape[d] >= shards]
    if long:
        dims = [*x.layout.dims]
        dims[long[0]], dims[axis] = axes, ()
        return whole(relayout(x, Layout.of(x.mesh, tuple(dims))), axis=axis - x.ndim)
    last = moveaxis(x, axis, -1)
    others = last.shape[:-1]
    rows = reshape(last, (math.prod(others), last.shape[-1]))
    if rows.shape[0] >= math.prod(x.mesh.sizes[a] for a in every):
        out = whole(relayout(rows, Layout.of(x.mesh, (every, ()))), axis=-1)
    else:
        layout = Layout.of(x.mesh, (every,))
        out = stack([vector(relayout(row, layout)) for row in rows])
    return moveaxis(reshape(out, (*others, out.shape[-1])), -1, axis)


def _sorted_along(x: DistributedArray, axis: int) -> DistributedArray:
    return by_axis(x, axis, sort_whole_axis, sort_vector)


def _order_along(x: DistributedArray, axis: int) -> DistributedArray:
    return by_axis(x, axis, argsort_whole_axis, argsort_vector)


def _operand(x: Any, axis: int | None, name: str) -> tuple[DistributedArray, int]:
    """The operand with nothing partial, flattened for None, and the axis from the front."""
    (x,) = as_operands(name, x=x)
    return along_axis_or_flat(x.resolve(), axis, takes_rank_0=name.startswith("arg"))


def _check_kind(kind: str | None, name: str) -> None:
    if kind not in (None, "quicksort", "mergesort", "heapsort", "stable"):
        raise error(
            ArgumentError,
            name,
            f"kind is {kind!r}",
            remedy="Every sort is stable; kind is accepted for NumPy's sake.",
        )


@public
def sort(
    x: Any,
    axis: int | None = -1,
    *,
    descending: bool = False,
    stable: bool = True,
    kind: str | None = None,
) -> DistributedArray:
    """The elements in ascending order along `axis` (None: of the flattened array), NaN last.

    descending: the reverse of that. stable, kind: accepted for the sake of the standard and of
    NumPy. The result is split as `x` is, or along another axis of it that is long enough.

    Raises AxisError for an axis that `x` does not have.

    >>> gdt.sort(gdt.asarray([[3, 1, 2], [5, 6, 4]])).tolist()
    [[1, 2, 3], [4, 5, 6]]
    """
    _check_kind(kind, "sort")
    x, axis = _operand(x, axis, "sort")
    out = _sorted_along(x, axis)
    return flip(out, axis=axis) if descending else out


@public
@same_arguments(sort)
def argsort(
    x: Any, axis: int | None = -1, *, descending: bool = False, kind: str | None = None, **_: bool
) -> DistributedArray:
    """The indices that sort `x` along `axis` (None: the flattened array), int64; of equal elements
    the first comes first, in descending order too.

    Raises AxisError for an axis that `x` does not have.

    >>> gdt.argsort(gdt.asarray([2, 1, 2])).tolist()
    [1, 0, 2]
    """
    _check_kind(kind, "argsort")
    x, axis = _operand(x, axis, "argsort")
    if not descending:
        return _order_along(x, axis)
    order = flip(_order_along(flip(x, axis=axis), axis), axis=axis)
    return x.shape[axis] - 1 - order


@op("... -> ...")
def sort_keys(xp: Any, x: Block, /) -> Block:
    """Unsigned integers, as wide as the elements of `x`, in the same order: zeros of both signs
    have the same, and so have NaNs, which come last.

    >>> gdt.sort_keys(gdt.asarray([-3, 2], "int8")).tolist()
    [125, 130]
    """
    return keys_of(xp, x)


sort_keys.vjp(None)


def order_of_rows(x: DistributedArray) -> DistributedArray:
    """The indices that sort the rows of a matrix in lexicographic order, int64, NaN last; by one
    sort of keys that are as long as rows."""
    axes = tuple(sorted({a for of in x.layout.dims for a in of}))
    return argsort_rows(relayout(x, Layout.of(x.mesh, (axes, ()))))


@public
def lexsort(keys: Any, axis: int = -1) -> DistributedArray:
    """The indices that sort by several keys along `axis`: by the last key, where that is equal by
    the one before, and so on.

    keys: a list of arrays of one shape, or an array of them. Raises ShapeError where there is none,
    or shapes differ.

    >>> gdt.lexsort(([1, 2, 3], [5, 4, 4])).tolist()
    [1, 2, 0]
    """
    keys = as_operands("lexsort", **{f"key {i}": key for i, key in enumerate(keys)})
    if not keys or len({key.shape for key in keys}) > 1:
        operands = {f"key {i}": key.type for i, key in enumerate(keys)}
        raise error(ShapeError, "no keys, or keys of other shapes", operands=operands)
    at = checked_axis(keys[0].type, axis)
    if keys[0].ndim == 1 and len(keys) > 1 and any(any(key.layout.dims) for key in keys):
        return order_of_rows(_key_columns(keys[::-1]))
    order = argsort(keys[0], axis=at)
    for key in keys[1:]:
        by_key = argsort(take_along_axis(key, order, axis=at), axis=at)
        order = take_along_axis(order, by_key, axis=at)
    return order


def _key_columns(keys: Sequence[DistributedArray]) -> DistributedArray:
    """Unsigned integers in the order of the keys, a column for each key, two for complex ones."""
    parts = [p for k in keys for p in ([real(k), imag(k)] if k.dtype.kind == "c" else [k])]
    columns = [sort_keys(part.resolve()) for part in parts]
    widest = max((column.dtype for column in columns), key=lambda dtype: dtype.itemsize)
    return stack([astype(column, widest) for column in columns], axis=1)


def _check_kth(x: DistributedArray, kth: Any, axis: int) -> None:
    places, size = np.atleast_1d(kth), x.shape[axis]
    if places.dtype.kind not in "iu" or ((places < -size) | (places >= size)).any():
        problem = f"kth is {kth!r}; it is made of ints below {size} along axis {axis}"
        raise error(ArgumentError, problem, operands={"x": x.type})


@public
def partition(x: Any, kth: int | Sequence[int], axis: int | None = -1) -> DistributedArray:
    """The elements of `x` so that those before `kth` along `axis` are no larger than it, those
    after it no smaller, in any order: that of NumPy where one block of the host holds `x`, else
    they are sorted.

    Raises ArgumentError for a `kth` that is no place along the axis.

    >>> gdt.partition(gdt.asarray([3, 1, 2]), 1).tolist()
    [1, 2, 3]
    """
    x, axis = _operand(x, axis, "partition")
    _check_kth(x, kth, axis)
    places = tuple(np.atleast_1d(kth).tolist())
    return _partitioned(x, kth=places, axis=axis)


def _partitioned_in_numpy(x: np.ndarray, kth: tuple[int, ...], axis: int) -> np.ndarray:
    return np.partition(x, kth, axis=axis)


@in_numpy(_partitioned_in_numpy)
def _partitioned(x: DistributedArray, /, *, kth: tuple[int, ...], axis: int) -> DistributedArray:
    return _sorted_along(x, axis)


@public
def argpartition(x: Any, kth: int | Sequence[int], axis: int | None = -1) -> DistributedArray:
    """The indices that partition `x`; see `gdt.partition`.

    >>> gdt.argpartition(gdt.asarray([3, 1, 2]), 1).tolist()
    [1, 2, 0]
    """
    x, axis = _operand(x, axis, "argpartition")
    _check_kth(x, kth, axis)
    return _order_along(x, axis)


@public
def top_k(
    x: Any, k: int, axis: int = -1, *, largest: bool = True
) -> tuple[DistributedArray, DistributedArray]:
    """The `k` largest elements along `axis`, or the smallest, in order, and their indices.

    Raises ArgumentError for a `k` that is no int of 0 to the size of the axis.

    >>> values, indices = gdt.top_k(gdt.asarray([1, 5, 3]), 2)
    >>> values.tolist(), indices.tolist()
    ([5, 3], [1, 2])
    """
    x, axis = _operand(x, axis, "top_k")
    is_count = isinstance(k, int | np.integer) and not isinstance(k, bool)
    if not is_count or not 0 <= k <= x.shape[axis]:
        problem = f"k is {k!r}; it is an int of 0 to {x.shape[axis]}"
        raise error(ArgumentError, problem, operands={"x": x.type})
    if x.ndim == 1 and _are_few(x, k):
        first = _first_of_shards(x, int(k), largest)
    else:
        order = argsort(x, axis=axis, descending=largest)
        first = getitem(order, (slice(None),) * axis + (slice(int(k)),))
    if x.ndim == 1:
        return rows_at(x, first, axis=0), first
    return take_along_axis_in_range(x, first, axis=axis), first


def _are_few(x: DistributedArray, k: int) -> bool:
    """Whether every shard of a split vector has `k` elements, and only a few of them are wanted."""
    return (
        x.layout.num_shards(0) > 1
        and 0 < k * x.layout.num_shards(0) <= x.size // 2
        and (kind_of(x.dtype) != "c")
    )


def _first_of_shards(x: DistributedArray, k: int, largest: bool) -> DistributedArray:
    """The indices of the `k` first elements of a split vector in order: of the `k` first ones of
    every shard, which is all that is sent."""
    shards = x.layout.num_shards(0)
    chunk = -(-x.size // shards)
    is_float = kind_of(x.dtype) == "f"
    # Equal elements come before the padding.
    last = identity("max", x.dtype) if largest else np.nan if is_float else identity("min", x.dtype)
    padded = pad(x, (0, shards * chunk - x.size), constant_values=last)
    rows = reshape(padded, (shards, chunk))
    order = getitem(argsort(rows, axis=1, descending=largest), (slice(None), slice(k)))
    values = take_along_axis_in_range(rows, order, axis=1)
    starts = reshape(arange(shards, layout=Layout.of(x.mesh, (rows.layout.dims[0],))), (shards, 1))
    values, places = [
        reshape(relayout(part, Layout.replicated(x.mesh, 2)), (shards * k,))
        for part in (values, order + starts * chunk)
    ]
    best = getitem(argsort(values, descending=largest), (slice(k),))
    return rows_at(places, best, axis=0)


@public
def sort_complex(x: Any) -> DistributedArray:
    """The elements along the last axis in increasing order, as complex numbers.

    >>> gdt.sort_complex([2.0, 1.0]).tolist()
    [(1+0j), (2+0j)]
    """
    (x,) = as_operands("sort_complex", x=x)
    ordered = sort(x)
    if ordered.dtype.kind == "c":
        return ordered
    is_short = ordered.dtype.kind in "iu" and ordered.dtype.itemsize < 4
    return astype(ordered, np.complex64 if is_short else np.complex128)
