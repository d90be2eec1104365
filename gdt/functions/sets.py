"""Sets of the elements of arrays: unique and its family, isin, unions and differences.

Arrays are sorted; an element is a new one where it differs from its neighbour.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.engine.whole_arrays import are_unwatched, array_of_whole, in_numpy, whole_of
from gdt.ops.axes import checked_axis
from gdt.ops.blocks import radix_sort
from gdt.ops.comparison import (
    equal,
    logical_and,
    logical_not,
    logical_or,
    minimum,
    not_equal,
)
from gdt.ops.creation import ones, zeros, zeros_like
from gdt.ops.elementwise import astype
from gdt.ops.joining import concat
from gdt.ops.masks import flatnonzero, select_rows
from gdt.ops.movement import relayout
from gdt.ops.ranges import arange
from gdt.ops.rearranging import flip, moveaxis
from gdt.ops.reductions import any_
from gdt.ops.rows import scatter_rows
from gdt.ops.scans import cumsum
from gdt.ops.searching import of_one_dtype, search, whole_if_short
from gdt.ops.shapes import reshape
from gdt.ops.sorting import argsort, order_of_rows, sort
from gdt.ops.taking import rows_at
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Layout

__all__ = [
    "intersect1d",
    "isin",
    "setdiff1d",
    "setxor1d",
    "union1d",
    "unique",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]

Block = Any


# ---------------------------------------------------------------- unique


class Groups(NamedTuple):
    """The elements of a vector, sorted: `ordered`. order: the index of each in the vector; None if
    it is not needed. is_first: whether each differs from the one before."""

    ordered: DistributedArray
    order: DistributedArray | None
    is_first: DistributedArray


def _groups(x: DistributedArray, *, with_order: bool, equal_nan: bool) -> Groups:
    order = argsort(x) if with_order else None
    ordered = sort(x) if order is None else rows_at(x, order, axis=0)
    return Groups(ordered, order, _firsts(ordered, equal_nan))


def _firsts(ordered: DistributedArray, equal_nan: bool) -> DistributedArray:
    """Whether each element of a sorted vector, or row of a matrix, differs from the one before."""
    differs = not_equal(ordered[1:], ordered[:-1])
    if equal_nan and kind_of(ordered.dtype) in "fc":
        differs = logical_and(
            differs, logical_or(equal(ordered[1:], ordered[1:]), equal(ordered[:-1], ordered[:-1]))
        )
    if ordered.ndim > 1:
        differs = any_(differs, axis=1)
    return _with_trues_in_front(differs, min(ordered.shape[0], 1))


def _with_trues_in_front(values: DistributedArray, count: int) -> DistributedArray:
    """Return the vector with `count` elements True in front."""
    first = ones(count, bool, layout=Layout.replicated(values.mesh, 1))
    return concat([relayout(first, values.layout.resolved), values.resolve()])


def _counts(is_first: DistributedArray) -> DistributedArray:
    starts = flatnonzero(is_first)
    end = astype(zeros(1, layout=Layout.replicated(starts.mesh, 1)), np.int64)
    stops = concat([starts[1:], relayout(end + is_first.size, starts.layout)])
    return stops[: starts.size] - starts


def _inverse(groups: Groups) -> DistributedArray:
    number = cumsum(astype(groups.is_first, np.int64), axis=0) - 1
    order = groups.order
    assert order is not None
    empty = zeros_like(number)
    return scatter_rows(empty, order, number, axis=0, how="set")


class UniqueAll(NamedTuple):
    """The result of `gdt.unique_all`."""

    values: DistributedArray
    indices: DistributedArray
    inverse_indices: DistributedArray
    counts: DistributedArray


class UniqueCounts(NamedTuple):
    """The result of `gdt.unique_counts`."""

    values: DistributedArray
    counts: DistributedArray


class UniqueInverse(NamedTuple):
    """The result of `gdt.unique_inverse`."""

    values: DistributedArray
    inverse_indices: DistributedArray


def _flat(x: Any, name: str) -> DistributedArray:
    (x,) = as_operands(name, x=x)
    return reshape(x.resolve(), (x.size,))


@public
def unique_values(x: Any) -> DistributedArray:
    """Return the different elements of `x`, ascending; no NaN equals another.

    The size of the result depends on the values, so no step that `gdt.function` records calls it.

    >>> gdt.unique_values(gdt.asarray([3, 1, 3])).tolist()
    [1, 3]
    """
    groups = _groups(_flat(x, "unique_values"), with_order=False, equal_nan=False)
    return select_rows(groups.ordered, groups.is_first)


@public
def unique_counts(x: Any) -> UniqueCounts:
    """Return the different elements of `x`, ascending, and how often each occurs; no NaN equals
    another.

    >>> [part.tolist() for part in gdt.unique_counts(gdt.asarray([3, 1, 3]))]
    [[1, 3], [1, 2]]
    """
    groups = _groups(_flat(x, "unique_counts"), with_order=False, equal_nan=False)
    return UniqueCounts(select_rows(groups.ordered, groups.is_first), _counts(groups.is_first))


@public
def unique_inverse(x: Any) -> UniqueInverse:
    """Return the different elements of `x`, ascending, and for each element of `x` its index among
    them, in the shape of `x`; no NaN equals another.

    >>> [part.tolist() for part in gdt.unique_inverse(gdt.asarray([3, 1, 3]))]
    [[1, 3], [1, 0, 1]]
    """
    groups = _groups(_flat(x, "unique_inverse"), with_order=True, equal_nan=False)
    inverse = reshape(_inverse(groups), np.shape(x))
    return UniqueInverse(select_rows(groups.ordered, groups.is_first), inverse)


@public
def unique_all(x: Any) -> UniqueAll:
    """Return the different elements of `x`, ascending; the index of the first of each in the
    flattened `x`; for each element of `x` its index among them; and how often each occurs. No NaN
    equals another.

    >>> [part.tolist() for part in gdt.unique_all(gdt.asarray([3, 1, 3]))]
    [[1, 3], [1, 0], [1, 0, 1], [1, 2]]
    """
    groups = _groups(_flat(x, "unique_all"), with_order=True, equal_nan=False)
    assert groups.order is not None
    return UniqueAll(
        select_rows(groups.ordered, groups.is_first),
        select_rows(groups.order, groups.is_first),
        reshape(_inverse(groups), np.shape(x)),
        _counts(groups.is_first),
    )


@public
def unique(
    x: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,
) -> Any:
    """Return the different elements of `x`, ascending; with `axis` the different slices along it,
    in lexicographic order. With any of the three `return_` arguments the result is a tuple.

    return_index: add the index of the first of each in the flattened `x`, or along the axis.
    return_inverse: add for each element of `x`, or each slice, its index among the different ones.
    return_counts: add how often each occurs. equal_nan: whether one NaN stands for all. sorted:
    accepted for NumPy's sake; the elements are sorted in any case.

    The size of the results depends on the values, as that of `gdt.unique_values` does.

    >>> gdt.unique(gdt.asarray([[1, 0], [1, 0], [2, 3]]), axis=0).tolist()
    [[1, 0], [2, 3]]
    """
    (x,) = as_operands("unique", x=x)
    with_order = return_index or return_inverse
    if axis is None:
        flat = reshape(x.resolve(), (x.size,))
        if are_unwatched(flat):
            parts = _unique_in_numpy(
                whole_of(flat), with_order, return_inverse, return_counts, equal_nan
            )
            asked = (True, return_index, return_inverse, return_counts)
            arrays = [
                array_of_whole(part, flat.layout)
                for part, is_asked in zip(parts, asked, strict=True)
                if is_asked
            ]
            if return_inverse:
                at = 1 + return_index
                arrays[at] = reshape(arrays[at], x.shape)
            return arrays[0] if len(arrays) == 1 else tuple(arrays)
        groups = _groups(flat, with_order=with_order, equal_nan=equal_nan)
        values, shape = select_rows(groups.ordered, groups.is_first), x.shape
    else:
        dim = checked_axis(x.type, axis)
        front = moveaxis(x.resolve(), dim, 0)
        rows = reshape(front, (front.shape[0], math.prod(front.shape[1:])))
        in_order = Layout.of(x.mesh, (rows.layout.dims[0],))
        order = order_of_rows(rows) if rows.size else arange(rows.shape[0], layout=in_order)
        ordered = rows_at(rows, order, axis=0)
        groups = Groups(ordered, order, _firsts(ordered, equal_nan))
        values = select_rows(ordered, groups.is_first)
        values = moveaxis(reshape(values, (values.shape[0], *front.shape[1:])), 0, dim)
        shape = (front.shape[0],)
    results = [values]
    if return_index:
        assert groups.order is not None
        results.append(select_rows(groups.order, groups.is_first))
    if return_inverse:
        results.append(reshape(_inverse(groups), shape))
    if return_counts:
        results.append(_counts(groups.is_first))
    return results[0] if len(results) == 1 else tuple(results)


def _unique_in_numpy(
    x: np.ndarray, with_order: bool, with_inverse: bool, with_counts: bool, equal_nan: bool
) -> tuple[Any, ...]:
    """The different elements of a vector; the index of the first of each, the index of each element
    among them, and the number of each, or None where they are not asked for."""
    order = radix_sort.argsort(np, x) if with_order else None
    ordered = radix_sort.sort(np, x) if order is None else x[order]
    is_first = np.ones(x.size, bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    if equal_nan and x.size and x.dtype.kind in "fc" and ordered[-1] != ordered[-1]:
        first_nan = np.searchsorted(ordered, ordered[-1])
        is_first[first_nan + 1 :] = False
    firsts = order.compress(is_first) if order is not None else None
    inverse = counts = None
    if order is not None and with_inverse:
        inverse = np.empty(x.size, np.int64)
        inverse[order] = np.cumsum(is_first) - 1
    if with_counts:
        counts = np.diff(np.append(np.flatnonzero(is_first), x.size))
    return ordered.compress(is_first), firsts, inverse, counts


# ---------------------------------------------------------------- sets


@public
def isin(
    x: Any, test: Any, assume_unique: bool = False, invert: bool = False, *, kind: Any = None
) -> DistributedArray:
    """Return whether each element of `x` is an element of `test`: bools in the shape of `x`.

    invert: return whether it is none. assume_unique, kind: accepted for NumPy's sake. NaN is not
    an element of any `test`.

    >>> gdt.isin(gdt.asarray([1, 2, 5]), [5, 1]).tolist()
    [True, False, True]
    """
    x, test = as_operands("isin", x=x, test=test)
    if not {x.dtype.kind, test.dtype.kind} <= {"b", "i"}:
        x, test = of_one_dtype("isin", x=x, test=test)
    return _are_members(x, test, invert=bool(invert))


def _are_members_in_numpy(x: np.ndarray, test: np.ndarray, invert: bool) -> np.ndarray:
    is_exact = test.dtype.kind in "biu"
    spread = int(test.max()) - int(test.min()) if test.size and is_exact else math.inf
    # Few values are compared one by one; integers that lie close together are looked up.
    if test.size < 10 * x.size**0.145 or spread <= x.size + test.size:
        return np.isin(x, test, invert=invert)
    ordered = radix_sort.sort(np, test.reshape(-1))
    at = np.minimum(np.searchsorted(ordered, x), ordered.size - 1)
    are_members: np.ndarray = ordered[at] != x if invert else ordered[at] == x
    return are_members


@in_numpy(_are_members_in_numpy)
def _are_members(
    x: DistributedArray, test: DistributedArray, /, *, invert: bool
) -> DistributedArray:
    x, test = of_one_dtype("isin", x=x, test=test)
    flat = whole_if_short(sort(reshape(test, (test.size,))), x)
    if not flat.size:
        is_member = logical_and(equal(x, x), False)
    else:
        at = minimum(search(flat, x, "left"), flat.size - 1)
        is_member = equal(rows_at(flat, at, axis=0), x)
    return logical_not(is_member) if invert else is_member


def _sets(name: str, x: Any, y: Any) -> tuple[DistributedArray, DistributedArray]:
    x, y = of_one_dtype(name, x=x, y=y)
    return reshape(x, (x.size,)), reshape(y, (y.size,))


@public
def union1d(x: Any, y: Any) -> DistributedArray:
    """The different elements of both arrays, ascending.

    >>> gdt.union1d([1, 3], [3, 2]).tolist()
    [1, 2, 3]
    """
    union: DistributedArray = unique(concat(_sets("union1d", x, y)))
    return union


@public
def intersect1d(x: Any, y: Any, assume_unique: bool = False, return_indices: bool = False) -> Any:
    """The different elements that both arrays have, ascending.

    assume_unique: whether neither array has an element twice. return_indices: whether to return
    where each occurs first in `x` and in `y` as well.

    >>> gdt.intersect1d([1, 3, 3], [3, 2]).tolist()
    [3]
    """
    x, y = _sets("intersect1d", x, y)
    if not return_indices:
        x, y = (x, y) if assume_unique else (unique(x), unique(y))
        both = sort(concat([x, y]))
        return select_rows(both[:-1], equal(both[1:], both[:-1]))
    (x, first_x), (y, first_y) = (unique(a, return_index=True) for a in (x, y))
    whole = concat([x, y])
    order = argsort(whole)
    both = rows_at(whole, order, axis=0)
    twice = equal(both[1:], both[:-1])
    at_x = select_rows(order[:-1], twice)
    at_y = select_rows(order[1:], twice) - x.size
    values = select_rows(both[:-1], twice)
    return values, rows_at(first_x, at_x, axis=0), rows_at(first_y, at_y, axis=0)


@public
def setdiff1d(x: Any, y: Any, assume_unique: bool = False) -> DistributedArray:
    """The different elements of `x` that `y` lacks, ascending; in their order if `assume_unique`.
    The dtype is that of `x`.

    >>> gdt.setdiff1d([4, 1, 3], [3, 2]).tolist()
    [1, 4]
    """
    x, y = as_operands("setdiff1d", x=x, y=y)
    x = reshape(x, (x.size,))
    x = x if assume_unique else unique(x)
    return select_rows(x, isin(x, y, invert=True))


@public
def setxor1d(x: Any, y: Any, assume_unique: bool = False) -> DistributedArray:
    """The different elements that one of the arrays has and the other lacks, ascending.

    >>> gdt.setxor1d([1, 3], [3, 2]).tolist()
    [1, 2]
    """
    x, y = _sets("setxor1d", x, y)
    x, y = (x, y) if assume_unique else (unique(x), unique(y))
    both = sort(concat([x, y]))
    if not both.size:
        return both
    differs = not_equal(both[1:], both[:-1])
    starts = _with_trues_in_front(differs, 1)
    ends = flip(_with_trues_in_front(flip(differs), 1))
    return select_rows(both, logical_and(starts, ends))
