"""Counting: how often integers occur, and histograms.

Devices count their own elements, and the counts are partial sums, unless there are very many; the
edges of bins are small, and every device has them all.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.engine.whole_arrays import are_unwatched, array_of_whole, whole_of
from gdt.errors import ArgumentError, DtypeError, ShapeError, error
from gdt.functions.quantiles import quantile
from gdt.ops.comparison import clip, equal, logical_and, where
from gdt.ops.creation import asarray, ones, zeros
from gdt.ops.elementwise import astype, divide
from gdt.ops.extrema import max_, min_
from gdt.ops.reductions import mean, sum_
from gdt.ops.rows import scatter_rows
from gdt.ops.searching import count_edges
from gdt.ops.shapes import reshape
from gdt.ops.statistics import std
from gdt.ops.taking import LARGE, add_at
from gdt.sharding.dtypes import kind_of, promoted
from gdt.sharding.layout import Layout

__all__ = [
    "bincount",
    "histogram",
    "histogram2d",
    "histogram_bin_edges",
    "histogramdd",
]

Block = Any
Edges = list[DistributedArray]


# ---------------------------------------------------------------- bincount


def _counted(
    places: DistributedArray, weights: DistributedArray | None, count: int
) -> DistributedArray:
    """The sums of `weights` (ones for None) of each of `count` places: a partial sum; or split as
    the places are, where so many sums on every device would send more than the weights do."""
    if weights is None:
        weights = ones(places.shape, np.int64, layout=places.layout.resolved)
    shards = places.layout.num_shards(0) if places.ndim == 1 else 1
    if shards > 1 and count * shards > places.size and count * weights.itemsize >= LARGE:
        layout = Layout.of(places.mesh, places.layout.dims)
        sums = zeros(count, weights.dtype, layout=layout)
        return scatter_rows(sums, places, weights, axis=0, how="add")
    carrier = zeros(count, np.int8, layout=Layout.replicated(places.mesh, 1))
    return add_at(weights, places, carrier, axis=0)


@public
def bincount(x: Any, weights: Any = None, minlength: int = 0) -> DistributedArray:
    """Count each of 0, 1, 2, ... in `x`, integers of rank 1; or add up their `weights`.

    The result has max(x) + 1 elements, at least `minlength`; the largest and the smallest element
    are read. Few counts are a partial sum; 64 KiB of them or more, and more than a device has
    elements, are split as `x` is: each element goes to the device of its count. Raises ShapeError
    for negative ones (a ValueError), and for shapes that do not fit.

    >>> gdt.bincount([1, 1, 3]).tolist()
    [0, 2, 0, 1]
    """
    (x,) = as_operands("bincount", x=x)
    if x.ndim != 1:
        raise error(ShapeError, f"rank {x.ndim} is not 1", operands={"x": x.type})
    if x.dtype.kind not in "biu" and x.size:
        raise error(DtypeError, f"{x.dtype} are no integers", operands={"x": x.type})
    if minlength < 0:
        raise error(ArgumentError, f"minlength is {minlength}, and no count")
    if weights is not None:
        _, weights = as_operands("bincount", x=x, weights=weights)
        if weights.shape != x.shape:
            operands = {"x": x.type, "weights": weights.type}
            raise error(ShapeError, "the shapes differ", operands=operands)
        weights = astype(weights, float)
    if x.size and (weights is None or weights.layout is x.layout) and are_unwatched(x):
        counts = _counted_in_numpy(x, weights, minlength)
        if counts is not None:
            return counts
    count = minlength
    if x.size:
        if int(min_(x)) < 0:
            raise error(ShapeError, "there are negative elements")
        count = max(count, int(max_(x)) + 1)
    return _counted(astype(x, np.int64), weights, count)


def _counted_in_numpy(
    x: DistributedArray, weights: DistributedArray | None, minlength: int
) -> DistributedArray | None:
    """`bincount` of an array that one block of the host holds; None of negative elements."""
    places = whole_of(x).astype(np.int64, copy=False)
    try:
        counts = np.bincount(places, None if weights is None else whole_of(weights), minlength)
    except ValueError:
        return None
    return array_of_whole(counts, _layout_of_counts(x))


def _layout_of_counts(x: DistributedArray) -> Layout:
    """The layout of a vector of the counts of all devices, each of its own elements."""
    split_axes = x.layout.split_axes
    reductions = tuple(["sum" if a in split_axes else None for a in _count(x.mesh.ndim)])
    return Layout.of(x.mesh, ((),), reductions)


# ---------------------------------------------------------------- edges


def _sturges(x: DistributedArray) -> float:
    return _spread(x) / (math.log2(x.size) + 1.0)


def _spread(x: DistributedArray) -> float:
    return float(max_(x)) - float(min_(x))


def _freedman_diaconis(x: DistributedArray) -> float:
    low, high = quantile(x, (0.25, 0.75)).tolist()
    return 2.0 * float(high - low) / math.cbrt(x.size)


def _auto(x: DistributedArray) -> float:
    narrowest = _spread(x) / math.sqrt(x.size) / 2
    return min(max(_freedman_diaconis(x), narrowest), _sturges(x))


def _doane(x: DistributedArray) -> float:
    n, deviation = x.size, float(std(x))
    if n < 3 or deviation == 0:
        return 0.0
    skewness = abs(float(mean(((x - mean(x)) / deviation) ** 3)))
    scale = math.sqrt(6.0 * (n - 2) / ((n + 1.0) * (n + 3)))
    return _spread(x) / (1.0 + math.log2(n) + math.log2(1.0 + skewness / scale))


ESTIMATORS: dict[str, Callable[[DistributedArray], float]] = {
    "auto": _auto,
    "doane": _doane,
    "fd": _freedman_diaconis,
    "sturges": _sturges,
    "sqrt": lambda x: _spread(x) / math.sqrt(x.size),
    "rice": lambda x: _spread(x) / (2.0 * x.size ** (1.0 / 3)),
    "scott": lambda x: (24.0 * math.sqrt(math.pi) / x.size) ** (1.0 / 3) * float(std(x)),
}
"""The width of bins by the name of a rule. Source: NumPy's `histogram_bin_edges`."""


def _stone(x: DistributedArray, limits: Any) -> float:
    """The width for which the estimated error of a histogram is least (Stone 1984), of as many
    counts of bins as NumPy tries: a histogram each."""
    spread = _spread(x)
    if x.size <= 1 or spread == 0:
        return 0.0

    def error_of(count: int) -> float:
        shares = histogram(x, bins=count, range=limits)[0].numpy() / x.size
        return float((2 - (x.size + 1) * shares.dot(shares)) / (spread / count))

    counts = builtins.range(1, max(100, math.isqrt(x.size)) + 1)
    return spread / min(counts, key=error_of)


def _outer(x: Any, limits: Any, name: str) -> tuple[float, float]:
    """The first and the last edge: the limits given, or those of the values, of NumPy or not."""
    if limits is not None:
        first, last = limits
        if first > last:
            raise error(ArgumentError, name, f"range is {limits}, whose end is below its begin")
    elif not x.size:
        first, last = 0.0, 1.0
    else:
        first, last = x.min().item(), x.max().item()
    if not (math.isfinite(first) and math.isfinite(last)):
        raise error(ShapeError, f"the range [{first}, {last}] is not finite")
    return (first - 0.5, last + 0.5) if first == last else (first, last)


def _edges(
    x: Any, bins: Any, limits: Any, name: str, weights: Any = None
) -> tuple[np.ndarray, bool]:
    """The edges of the bins, on the host, and whether the bins are equally wide."""
    if isinstance(bins, str):
        if bins not in (rules := [*ESTIMATORS, "stone"]) or weights is not None:
            problem = f"bins is {bins!r}" + (" with weights" if weights is not None else "")
            remedy = f"It is a number, edges, or without weights one of {', '.join(rules)}."
            raise error(ArgumentError, problem, remedy=remedy)
        first, last = _outer(x, limits, name)
        inside = x if limits is None else x[logical_and(x >= first, x <= last)]
        width = 0.0
        if inside.size:
            width = _stone(inside, limits) if bins == "stone" else ESTIMATORS[bins](inside)
        if width and x.dtype.kind in "iu":
            width = max(width, 1.0)
        count = math.ceil((last - first) / width) if width else 1
    elif np.ndim(bins) == 0 and not isinstance(bins, DistributedArray):
        if isinstance(bins, bool) or not isinstance(bins, int | np.integer):
            raise error(DtypeError, f"bins is {bins!r}, neither a number nor edges")
        count = int(bins)
        if count < 1:
            raise error(ArgumentError, f"bins is {count}, and no number of bins")
        first, last = _outer(x, limits, name)
    else:
        edges = bins.numpy() if isinstance(bins, DistributedArray) else np.asarray(bins)
        if edges.ndim != 1 or (edges[:-1] > edges[1:]).any():
            raise error(ShapeError, "the edges are not a vector that increases")
        return edges, False
    dtype = promoted(x.dtype, float) if kind_of(x.dtype) != "f" else x.dtype
    return np.linspace(first, last, count + 1, dtype=dtype), True


@public
def histogram_bin_edges(
    x: Any, bins: Any = 10, range: Any = None, weights: Any = None
) -> DistributedArray:
    """The edges of the bins of `gdt.histogram`, whose arguments these are.

    >>> gdt.histogram_bin_edges([1.0, 2.0, 5.0], bins=2).tolist()
    [1.0, 3.0, 5.0]
    """
    (x,) = as_operands("histogram_bin_edges", x=x)
    edges, _ = _edges(x, bins, range, "histogram_bin_edges", weights)
    return asarray(edges, device=x.mesh)


# ---------------------------------------------------------------- histograms


def _bins_of(x: DistributedArray, edges: DistributedArray) -> DistributedArray:
    """The bin of every element, -1 for one in none: the last bin has its right edge."""
    count = edges.shape[0] - 1
    places = count_edges(x, edges) - 1
    places = where(equal(x, edges[-1]), count - 1, places)
    return where(places >= count, -1, places)


@public
def histogram(
    x: Any, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None
) -> tuple[DistributedArray, DistributedArray]:
    """The number of elements in each bin, or the sum of their `weights`; and the edges of the bins.

    bins: a number of bins of equal width between the limits `range` (by default the smallest and
        the largest element, which are read); or their edges, which increase; or the name of a rule
        of NumPy: "auto", "doane", "fd", "rice", "scott", "sqrt", "stone" or "sturges". density:
        whether to divide by the total and by the widths of the bins. Every device counts its own
        elements, which a matrix of split columns sends once, as `gdt.reshape` does.

    >>> counts, edges = gdt.histogram([1, 2, 1, 5], bins=[0, 2, 4])
    >>> counts.tolist()
    [2, 1]
    """
    (x,) = as_operands("histogram", x=x)
    x = astype(x, np.uint8) if x.dtype.kind == "b" else x
    if weights is not None:
        _, weights = as_operands("histogram", x=x, weights=weights)
        if weights.shape != x.shape:
            operands = {"x": x.type, "weights": weights.type}
            raise error(ShapeError, "the shapes differ", operands=operands)
        weights = reshape(weights, -1)
    x = reshape(x, -1)
    is_plain = weights is None and not density and not isinstance(bins, str)
    if is_plain and x.dtype.kind in "iuf" and are_unwatched(x):
        return _histogram_in_numpy(x, bins, range)
    host_edges, _ = _edges(x, bins, range, "histogram", weights)
    edges = asarray(host_edges, device=x.mesh)
    counts = _sums_in_bins([_bins_of(x, edges)], [edges.shape[0] - 1], weights)
    if density:
        widths = asarray(np.diff(host_edges).astype(float), device=x.mesh)
        return divide(divide(counts, widths), sum_(counts)), edges
    return counts, edges


def _histogram_in_numpy(
    x: DistributedArray, bins: Any, limits: Any
) -> tuple[DistributedArray, DistributedArray]:
    """The histogram of a vector that one block of the host holds."""
    elements = whole_of(x)
    if np.ndim(bins) == 0:
        limits = _outer(elements, limits, "histogram")
    edges, is_even = _edges(elements, bins, limits, "histogram")
    count = edges.size - 1
    # NumPy computes the bin of an element, which is one beside it at most if bins are not too many.
    is_coarse = edges.dtype.kind == "f" and count * np.finfo(edges.dtype).eps < 0.01
    if is_even and is_coarse and elements.size > FEW:
        counts, _ = np.histogram(elements, count, limits)
    elif elements.size > FEW:
        counts, _ = np.histogram(elements, edges)
    else:
        places = edges.searchsorted(elements, side="right") - 1
        places[elements == edges[-1]] = count - 1
        counts = np.bincount(places[(places >= 0) & (places < count)], minlength=count)
    replicated = Layout.replicated(x.mesh, 1)
    return array_of_whole(counts, _layout_of_counts(x)), array_of_whole(edges, replicated)


FEW = 1 << 12  # elements whose bins are searched in less time than NumPy takes to prepare


def _sums_in_bins(
    places: Sequence[DistributedArray], counts: Sequence[int], weights: DistributedArray | None
) -> DistributedArray:
    """The number of points in each bin of a grid, or the sums of their weights.

    places: the bins along each axis, -1 for none. counts: how many there are.
    """
    flat: Any = 0
    is_inside: Any = True
    for place, count in zip(places, counts, strict=True):
        flat = flat * count + clip(place, 0, count - 1)
        is_inside = logical_and(place >= 0, is_inside)
    weights = astype(is_inside, np.int64) if weights is None else where(is_inside, weights, 0)
    return reshape(_counted(flat, weights, math.prod(counts)), tuple(counts))


@public
def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None
) -> tuple[DistributedArray, Edges]:
    """The histogram of points in any number of dimensions; and the edges along each of them.

    sample: (points, dimensions), or a list of the coordinates along each dimension. bins, range: as
        of `gdt.histogram`, one for all dimensions or a list of one for each.

    >>> counts, edges = gdt.histogramdd([[0.0, 0.0], [1.0, 1.0]], bins=2)
    >>> counts.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if (
        isinstance(sample, list | tuple)
        and sample
        and np.ndim(sample[0]) == 1
        and (isinstance(sample, tuple) or isinstance(sample[0], DistributedArray))
    ):
        operands = {f"coordinates {i}": c for i, c in enumerate(sample)}
        columns = as_operands("histogramdd", **operands)
    else:
        (points,) = as_operands("histogramdd", sample=sample)
        points = reshape(points, (-1, 1)) if points.ndim == 1 else points
        if points.ndim != 2:
            raise error(ShapeError, f"the sample has rank {points.ndim}, not 2")
        columns = [points[:, i] for i in _count(points.shape[1])]
    rank = len(columns)
    of_axes = list(bins) if isinstance(bins, list | tuple) else [bins] * rank
    limits = [None] * rank if range is None else list(range)
    if len(of_axes) != rank or len(limits) != rank:
        raise error(ArgumentError, f"bins or range is not one for each of {rank} axes")
    edges = [
        asarray(_edges(c, b, r, "histogramdd")[0], device=columns[0].mesh)
        for c, b, r in zip(columns, of_axes, limits, strict=True)
    ]
    if weights is not None:
        weights = as_operands("histogramdd", sample=columns[0], weights=weights)[1]
    places = [_bins_of(c, e) for c, e in zip(columns, edges, strict=True)]
    counts = astype(_sums_in_bins(places, [e.shape[0] - 1 for e in edges], weights), float)
    if density:
        total = sum_(counts)
        for axis, e in enumerate(edges):
            widths = reshape(e[1:] - e[:-1], [-1 if d == axis else 1 for d in _count(rank)])
            counts = divide(counts, widths)
        counts = divide(counts, total)
    return counts, edges


_count = range  # the builtin, which parameters of NumPy's name hide


@public
def histogram2d(
    x: Any,
    y: Any,
    bins: Any = 10,
    range: Any = None,
    density: bool = False,
    weights: Any = None,
) -> tuple[DistributedArray, DistributedArray, DistributedArray]:
    """The histogram of the points (x, y); and the edges along x and along y.

    bins, range: as of `gdt.histogram`, one for both or a list of two.

    >>> counts, x_edges, y_edges = gdt.histogram2d([0, 1], [0, 1], bins=2)
    >>> counts.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    x, y = as_operands("histogram2d", x=x, y=y)
    if x.ndim != 1 or x.shape != y.shape:
        operands = {"x": x.type, "y": y.type}
        raise error(ShapeError, "the coordinates differ in shape", operands=operands)
    if not isinstance(bins, int | np.integer | str) and len(bins) not in (1, 2):
        bins = [bins, bins]
    counts, (first, second) = histogramdd((x, y), bins, range, density, weights)
    return counts, first, second
