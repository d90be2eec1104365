"""Attention of sequences that may be split along any axis but the features of keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.errors import ArgumentError, DtypeError, ShapeError, error
from gdt.nn.functions.attention.ring import attend_to_tiles
from gdt.nn.functions.attention.spans import Spans
from gdt.ops.blocks.windows import plain_tiling, tiled, untiled
from gdt.ops.comparison import where
from gdt.ops.creation import asarray
from gdt.ops.exponential import exp
from gdt.ops.extrema import max_
from gdt.ops.movement import relayout
from gdt.ops.reductions import sum_
from gdt.ops.shapes import broadcast_to, expand_dims, reshape
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.mesh import Mesh

__all__ = ["attention"]


def _checked(
    q: Any, k: Any, v: Any, mask: Any
) -> tuple[DistributedArray, DistributedArray, DistributedArray, DistributedArray | None]:
    """Return the operands as arrays of one rank, or raise ShapeError or DtypeError."""
    arrays = {"q": q, "k": k, "v": v} | ({} if mask is None else {"mask": mask})
    operands = as_operands("attention", **arrays)
    types = {name: a.type for name, a in zip(arrays, operands, strict=True)}
    q, k, v = operands[:3]
    problem = ""
    if min(a.ndim for a in (q, k, v)) < 2:
        problem = "q, k and v are (..., positions, features)"
    elif q.shape[-1] != k.shape[-1]:
        problem = f"queries have {q.shape[-1]} features, and keys {k.shape[-1]}"
    elif k.shape[-2] != v.shape[-2]:
        problem = f"there are {k.shape[-2]} keys and {v.shape[-2]} values"
    elif not k.shape[-2]:
        problem = "there are no keys"
    if problem:
        raise error(ShapeError, problem, operands=types)
    if any(kind_of(a.dtype) != "f" for a in (q, k, v)):
        raise error(DtypeError, "operands are not floating-point", operands=types)
    leading = [a.shape[:-2] for a in operands]
    try:
        shape = np.broadcast_shapes(*leading) if len(set(leading)) > 1 else leading[0]
    except ValueError:
        problem = f"leading axes {', '.join(map(str, leading))} do not broadcast"
        raise error(ShapeError, problem, operands=types) from None
    if mask is None:
        return q, k, v, None
    seen = operands[3]
    if seen.dtype != bool:
        remedy = "It is True where a query sees a key."
        raise error(DtypeError, "mask is not bool", operands=types, remedy=remedy)
    sizes = (1, 1, *seen.shape)[-2:]
    if any(n not in (1, m) for n, m in zip(sizes, (q.shape[-2], k.shape[-2]), strict=True)):
        problem = f"a mask of {sizes} is not for {q.shape[-2]} queries and {k.shape[-2]} keys"
        raise error(ShapeError, problem, operands=types)
    if shape != np.broadcast_shapes(*leading[:3]):  # queries that differ in what they see
        q = broadcast_to(q, (*shape, *q.shape[-2:]))
    return q, k, v, reshape(seen, sizes) if seen.ndim < 2 else seen


def _checked_key(dropout: float, key: Any, mesh: Mesh) -> Any:
    """Return the key of dropout on a mesh, or 0 if nothing is dropped; or raise ArgumentError."""
    if not 0 <= dropout < 1:
        problem = f"dropout is {dropout!r}"
        raise error(ArgumentError, problem, remedy="It is in [0, 1).")
    if not dropout:
        return 0
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
    q, k, v, seen = _checked(q, k, v, mask)
    key = _checked_key(dropout, key, q.mesh)
    query_axes, key_axes = q.layout.dims[-2], k.layout.dims[-2] or v.layout.dims[-2]
    if query_axes and key_axes:
        key_axes = query_axes
        k, v = _of_one_batch(k, v)
    tiles = [math.prod(q.mesh.sizes[a] for a in axes) for axes in (query_axes, key_axes)]
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    leading = np.broadcast_shapes(*[a.shape[:-2] for a in (q, k, v)]) if dropout else ()
    sizes, rate = (q.shape[-2], k.shape[-2]), float(dropout)
    how = Spans(*sizes, tiles[0], tiles[1], causal, scale, rate=rate, leading=leading)
    queries, keys, values = _cut(q, query_axes), _cut(k, key_axes), _cut(v, key_axes)
    mask_of_all: Any = True if seen is None else _whole_mask(seen, query_axes)
    out, sums = attend_to_tiles(queries, keys, values, mask_of_all, key, how=how)
    if how.query_tiles == 1 and how.key_tiles > 1:
        out = _merged(out, sums)  # (..., 1, queries, f)
    return untiled(out, plain_tiling(how.queries, out.ndim - 3, how.query_tiles, query_axes))


def _whole_mask(mask: DistributedArray, axes: Axes) -> DistributedArray:
    """Return a mask (..., queries, keys) with an axis for tiles and whole positions, which is not
    split over the mesh axes `axes` of the tiles."""
    batch = [tuple(a for a in dim if a not in axes) for dim in mask.layout.dims[:-2]]
    layout = Layout.of(mask.mesh, (*batch, (), ()))
    return expand_dims(relayout(mask, layout), -3)


def _merged(out: DistributedArray, sums: DistributedArray) -> DistributedArray:
    """Return the results of queries that met their keys in several tiles: (..., tiles, queries, f)
    becomes (..., 1, queries, f)."""
    largest = max_(sums, axis=-2, keepdims=True)  # (..., 1, queries)
    shares = exp(sums - where(largest > -np.inf, largest, 0.0))  # (..., tiles, queries)
    total = sum_(shares, axis=-2, keepdims=True)
    shares = shares / where(total > 0, total, 1.0)
    merged = sum_(out * expand_dims(shares, -1), axis=-3, keepdims=True)
    return merged if merged.dtype == out.dtype else merged.astype(out.dtype)
