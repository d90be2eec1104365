"""Attention of sequences that may be split along any axis but the features of keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import all_on_one_mesh, as_operands
from gdt.array.registry import public
from gdt.caches import memoized
from gdt.engine.first_output import first_output
from gdt.errors import ArgumentError, DtypeError, ShapeError, error
from gdt.nn.functions.attention.ring import attend_in_ring, for_tiles
from gdt.nn.functions.attention.spans import Spans
from gdt.nn.functions.attention.tiles import attention_of_tiles
from gdt.ops.blocks.windows import plain_tiling, tiled, untiled
from gdt.ops.comparison import where
from gdt.ops.creation import asarray
from gdt.ops.exponential import exp
from gdt.ops.extrema import max_
from gdt.ops.movement import relayout
from gdt.ops.reductions import sum_
from gdt.ops.shapes import broadcast_to, expand_dims, reshape
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.mesh import Mesh

__all__ = ["attention"]


@memoized(1_000)
def _checked_spans(
    q: ArrayType, k: ArrayType, v: ArrayType, mask: ArrayType | None, causal: bool,
    scale: float | None, dropout: float,
) -> Spans:  # fmt: skip
    """Return the spans of an attention of operands of these types, which has no tiles where no
    positions are split; or raise ShapeError or DtypeError."""
    operands = {"q": q, "k": k, "v": v} | ({} if mask is None else {"mask": mask})
    problem = ""
    if min(t.ndim for t in (q, k, v)) < 2:
        problem = "q, k and v are (..., positions, features)"
    elif q.shape[-1] != k.shape[-1]:
        problem = f"queries have {q.shape[-1]} features, and keys {k.shape[-1]}"
    elif k.shape[-2] != v.shape[-2]:
        problem = f"there are {k.shape[-2]} keys and {v.shape[-2]} values"
    elif not k.shape[-2]:
        problem = "there are no keys"
    if problem:
        raise error(ShapeError, problem, operands=operands)
    if any(kind_of(t.dtype) != "f" for t in (q, k, v)):
        raise error(DtypeError, "operands are not floating-point", operands=operands)
    leading = [t.shape[:-2] for t in operands.values()]
    try:
        shape = np.broadcast_shapes(*leading)
    except ValueError:
        problem = f"leading axes {', '.join(map(str, leading))} do not broadcast"
        raise error(ShapeError, problem, operands=operands) from None
    if mask is not None:
        _check_mask(mask, operands)
    query_axes, key_axes = _axes_of_tiles(q, k, v)
    query_tiles, key_tiles = (
        math.prod(q.mesh.sizes[a] for a in axes) for axes in (query_axes, key_axes)
    )
    return Spans(
        q.shape[-2],
        k.shape[-2],
        query_tiles,
        key_tiles,
        causal,
        1 / math.sqrt(q.shape[-1]) if scale is None else scale,
        rate=dropout,
        leading=shape if dropout else (),
        has_tiles=bool(query_axes or key_axes),
    )


def _check_mask(mask: ArrayType, operands: dict[str, ArrayType]) -> None:
    """Raise DtypeError or ShapeError for a mask that does not fit."""
    if mask.dtype != bool:
        remedy = "It is True where a query sees a key."
        raise error(DtypeError, "mask is not bool", operands=operands, remedy=remedy)
    sizes, queries, keys = (
        (1, 1, *mask.shape)[-2:],
        operands["q"].shape[-2],
        operands["k"].shape[-2],
    )
    if any(n not in (1, m) for n, m in zip(sizes, (queries, keys), strict=True)):
        problem = f"a mask of {sizes} is not for {queries} queries and {keys} keys"
        raise error(ShapeError, problem, operands=operands)


def _axes_of_tiles(q: ArrayType, k: ArrayType, v: ArrayType) -> tuple[Axes, Axes]:
    """Return the mesh axes that split the positions of queries, and those of keys and values, which
    are cut as queries are if both are split."""
    query_axes, key_axes = q.layout.dims[-2], k.layout.dims[-2] or v.layout.dims[-2]
    return query_axes, query_axes if query_axes and key_axes else key_axes


def _check_dropout(dropout: float) -> None:
    """Raise ArgumentError for what is no probability to drop a weight."""
    if not 0 <= dropout < 1:
        problem = f"dropout is {dropout!r}"
        raise error(ArgumentError, problem, remedy="It is in [0, 1).")


def _checked_key(key: Any, mesh: Mesh) -> Any:
    """Return the key of dropout on a mesh, or raise ArgumentError."""
    if key is None:
        remedy = "Pass key=gdt.random.key(), or a seed."
        raise error(ArgumentError, "dropout has no key", remedy=remedy)
    is_seed = isinstance(key, int | np.integer) and not isinstance(key, bool)
    array = asarray(np.uint64(key) if is_seed and 0 <= key < 2**64 else key)
    if array.ndim or array.dtype != np.uint64:
        problem, remedy = f"key is {array.type}", "Pass one of gdt.random.key()."
        raise error(ArgumentError, problem, remedy=remedy)
    return relayout(array, Layout.replicated(mesh, 0))


def _cut(x: DistributedArray, axes: Axes) -> DistributedArray:
    """Return (..., positions, features) as (..., tiles, positions of a tile, features). Features
    are gathered: here once, and not in every step of a ring."""
    x = relayout(x, Layout.of(x.mesh, (*x.layout.dims[:-1], ()), x.layout.reductions))
    tiles = math.prod(x.mesh.sizes[a] for a in axes)
    return tiled(x, plain_tiling(x.shape[-2], x.ndim - 2, tiles, axes))


def _of_one_batch(k: DistributedArray, v: DistributedArray) -> list[DistributedArray]:
    """Return keys and values, which travel together, with the leading axes of both."""
    lead = np.broadcast_shapes(k.shape[:-2], v.shape[:-2])
    return [x if x.shape[:-2] == lead else broadcast_to(x, lead + x.shape[-2:]) for x in (k, v)]


@public
def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    key: Any = None,
) -> DistributedArray:
    """Return softmax(scale * q k^T) v: the means of the values of the keys that a query sees,
    weighted by how well they fit.

    q: (..., queries, e), k: (..., keys, e), v: (..., keys, f), floating-point; leading axes, such
    as sequences and heads, broadcast. Result: (..., queries, f). mask: bool, (..., queries, keys)
    or what broadcasts to it: whether a query sees a key; the result of a query that sees none is 0.
    causal: whether a query sees the keys of its own position and of earlier ones alone. scale:
    1 / sqrt(e) if not given.

    dropout: the probability, in [0, 1), with which a weight is dropped; those that are not are
    divided by 1 - dropout. key: of `gdt.random.key`, or its seed; needed for that. On every layout
    those weights are kept of which gdt.random.bernoulli((..., queries, keys), 1 - dropout, key=key)
    is True: devices draw anew what they need, forwards and backwards.

    The matrix of scores is never held, neither forwards nor backwards: blocks of it are computed
    and used, in float32 for float16. On GPUs a kernel does so for operands of one dtype, float32,
    float16 or bfloat16, and up to 256 features; `gdt.explain` shows whether it ran. Leading axes
    may be split without communication. Of split keys alone every device computes its share, and
    the shares are merged. Where queries and keys are both split, keys and values travel around a
    ring, and a device holds 1 / n of everything.

    Raises ShapeError or DtypeError for operands that do not fit, ArgumentError for another dropout
    and for one without a key. Sources: Dao et al. 2022, Liu et
    al. 2023 ("Ring attention").

    >>> x = gdt.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> gdt.attention(x, x, x, causal=True).numpy().round(2).tolist()
    [[1.0, 0.0], [0.33, 0.67]]
    """
    if mask is not None or not all_on_one_mesh((q, k, v)):
        arrays = {"q": q, "k": k, "v": v} | ({} if mask is None else {"mask": mask})
        q, k, v, *masks = as_operands("attention", **arrays)
        mask = masks[0] if masks else None
    if scale is not None and type(scale) is not float:
        scale = float(scale)
    causal, dropout = bool(causal), float(dropout)
    if dropout:
        _check_dropout(dropout)
    seen = None if mask is None else mask.type
    how = _checked_spans(q.type, k.type, v.type, seen, causal, scale, dropout)
    key = _checked_key(key, q.mesh) if how.rate else 0
    q, mask = (q, True) if mask is None else _of_one_rank(q, k, v, mask)
    if how.has_tiles:
        return _of_tiles(q, k, v, mask, key, how)
    return _attention(q, k, v, mask, key, how=how)


_attention = first_output(attention_of_tiles)


def _of_one_rank(
    q: DistributedArray, k: DistributedArray, v: DistributedArray, mask: DistributedArray
) -> tuple[DistributedArray, DistributedArray]:
    """Return queries with the leading axes of the mask, if they differ in what they see; and the
    mask with axes of queries and keys."""
    others = [a.shape[:-2] for a in (q, k, v)]
    shape = np.broadcast_shapes(mask.shape[:-2], *others)
    if shape != np.broadcast_shapes(*others):
        q = broadcast_to(q, (*shape, *q.shape[-2:]))
    return q, reshape(mask, (1, 1, *mask.shape)[-2:]) if mask.ndim < 2 else mask


def _of_tiles(
    q: DistributedArray, k: DistributedArray, v: DistributedArray, mask: Any, key: Any, how: Spans
) -> DistributedArray:
    """Return attention of positions that are split."""
    query_axes, key_axes = _axes_of_tiles(q.type, k.type, v.type)
    if query_axes and key_axes:
        k, v = _of_one_batch(k, v)
    queries, keys, values = _cut(q, query_axes), _cut(k, key_axes), _cut(v, key_axes)
    whole = mask if mask is True else _whole_mask(mask, query_axes)
    if how.is_ring:
        out, sums = attend_in_ring(queries, keys, values, whole, key, how=how)
    else:
        out, sums = attention_of_tiles(queries, keys, values, for_tiles(whole), key, how=how)
        if how.key_tiles > 1:
            out = _merged(out, sums)  # (..., 1, queries, f)
    return untiled(out, plain_tiling(how.queries, out.ndim - 3, how.query_tiles, query_axes))


def _whole_mask(mask: DistributedArray, axes: Axes) -> DistributedArray:
    """Return a mask with whole positions, which is not split over the mesh axes `axes` of the
    tiles."""
    batch = [tuple(a for a in dim if a not in axes) for dim in mask.layout.dims[:-2]]
    return relayout(mask, Layout.of(mask.mesh, (*batch, (), ())))


def _merged(out: DistributedArray, sums: DistributedArray) -> DistributedArray:
    """Return the results of queries that met their keys in several tiles: (..., tiles, queries, f)
    becomes (..., 1, queries, f)."""
    largest = max_(sums, axis=-2, keepdims=True)  # (..., 1, queries)
    shares = exp(sums - where(largest > -np.inf, largest, 0.0))  # (..., tiles, queries)
    total = sum_(shares, axis=-2, keepdims=True)
    shares = shares / where(total > 0, total, 1.0)
    merged = sum_(out * expand_dims(shares, -1), axis=-3, keepdims=True)
    return merged if merged.dtype == out.dtype else merged.astype(out.dtype)
