"""Attention of queries and keys, whole or in tiles, its gradients, and the merge of two results:
ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Shards
from gdt.errors import GradientError, error
from gdt.nn.functions.attention.blocks import (
    attend,
    block_of_tiles,
    cut_mask,
    gradients,
    mask_of_tile,
    tiles_of,
)
from gdt.nn.functions.attention.kernels import attention_kernel, gradient_kernel
from gdt.nn.functions.attention.spans import Spans
from gdt.ops.elementwise import like, multiply
from gdt.ops.reductions import sum_
from gdt.sharding.array_type import ArrayType
from gdt.sharding.rule import RuleSpec

Block = Any


def _whole(mask: ArrayType | None) -> frozenset[str]:
    """Return the factors that are not split: positions of tiles, and features."""
    return frozenset("tsef" if mask is None else "tsefmn")


def _mask_term(mask: ArrayType | None) -> str:
    return "..." if mask is None else "... m n"


def _rule(q: ArrayType, k: ArrayType, v: ArrayType, mask: Any, key: Any, *, how: Spans) -> RuleSpec:
    text = f"... t e, ... s e, ... s f, {_mask_term(mask)}, ... -> ... t f, ... t"
    return RuleSpec(text, whole=_whole(mask))


def _in_tiles(how: Spans, *blocks: Block) -> list[Block]:
    """Return blocks (..., tiles, positions, features), of which those of whole sequences are one
    tile. (A mask that is a number stays one.)"""
    if how.has_tiles:
        return list(blocks)
    return [x[..., None, :, :] if getattr(x, "ndim", 0) else x for x in blocks]


def _batch(
    how: Spans, shards: Shards, *blocks: Block
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the mesh axes, the batch axes and the tiles of blocks whose leading axes broadcast.

    Mesh axes whose coordinates all hold the same tiles are batch axes.
    """
    lead = np.broadcast_shapes(*[b.shape[:-2] for b in blocks])
    mesh_ndim = shards.start["t"].ndim if how.are_split(shards) else 0
    return lead[:mesh_ndim], lead[mesh_ndim:-1], lead[-1]


@op(_rule, outputs=2, rounded="q -")
def attention_of_tiles(
    xp: Any,
    q: Block,
    k: Block,
    v: Block,
    mask: Block,
    key: Block,
    /,
    how: Spans,
    *,
    shards: Shards = FROM_ENGINE,
) -> tuple[Block, Block]:
    """Return the results of queries, and the logarithms of the denominators.

    q: (..., queries, e), k: (..., keys, e), v: (..., keys, f). mask: (..., queries, keys), or True.
    key: uint64; 0 if nothing is dropped. Results: (..., queries, f), (..., queries), float32 for
    q of 16 bits. If `how.has_tiles`, the last axis of `...` is that of tiles of the positions.
    """
    q, k, v, mask = _in_tiles(how, q, k, v, mask)
    shape, batch, tiles = _batch(how, shards, q, k, v)
    results = []
    for at, tile, parts in tiles_of(xp, shape, tiles, batch, q, k, v):
        place = how.place(how.number_of(xp, shards, at, tile), q.shape[-2], k.shape[-2])
        seen = mask_of_tile(xp, mask, at, tile, batch)
        seen = cut_mask(xp, seen, place, q.shape[-2], k.shape[-2])
        queries, keys, values = parts
        drops = how.drops(xp, key, shards, at, batch)
        results.append(attend(xp, queries, keys, values, seen, place, how.scale, drops))
    out, denominators = block_of_tiles(xp, shape, tiles, batch, results)
    if not how.has_tiles:
        out, denominators = out[..., 0, :, :], denominators[..., 0, :]
    return out.astype(xp.result_type(q.dtype, k.dtype, v.dtype), copy=False), denominators


attention_of_tiles.kernel(attention_kernel, takes_bfloat16=True)


def _gradient_rule(
    q: ArrayType, k: ArrayType, v: ArrayType, mask: Any, key: Any, *rest: Any, how: Spans
) -> RuleSpec:
    left = f"... t e, ... s e, ... s f, {_mask_term(mask)}, ..., ... t f, ... t, ... t"
    return RuleSpec(f"{left} -> ... t e, ... s e, ... s f", whole=_whole(mask))


@op(_gradient_rule, outputs=3, rounded="q k v")
def attention_gradient(
    xp: Any,
    q: Block,
    k: Block,
    v: Block,
    mask: Block,
    key: Block,
    g: Block,
    denominators: Block,
    products: Block,
    /,
    how: Spans,
    *,
    shards: Shards = FROM_ENGINE,
) -> tuple[Block, Block, Block]:
    """Return the gradients in q, k and v of `attention_of_tiles`, one for every head: those of keys
    that several heads share are still to be added.

    products: those of every result with its cotangent, (..., queries).
    """
    q, k, v, mask, g = _in_tiles(how, q, k, v, mask, g)
    vectors = _in_tiles(how, denominators[..., None], products[..., None])
    shape, batch, tiles = _batch(how, shards, q, k, v, g)
    results = []
    for at, tile, parts in tiles_of(xp, shape, tiles, batch, q, k, v, g, *vectors):
        place = how.place(how.number_of(xp, shards, at, tile), q.shape[-2], k.shape[-2])
        seen = mask_of_tile(xp, mask, at, tile, batch)
        seen = cut_mask(xp, seen, place, q.shape[-2], k.shape[-2])
        queries, keys, values, cotangent, sums, own = parts
        drops = how.drops(xp, key, shards, at, batch)
        rows = sums[..., 0], own[..., 0]
        results.append(
            gradients(xp, queries, keys, values, seen, cotangent, *rows, place, how.scale, drops)
        )
    g_q, g_k, g_v = block_of_tiles(xp, shape, tiles, batch, results)
    if not how.has_tiles:
        g_q, g_k, g_v = (a[..., 0, :, :] for a in (g_q, g_k, g_v))
    return g_q, g_k, g_v


def _no_second_derivative(*_: Any, **__: Any) -> DistributedArray:
    """Raise GradientError."""
    problem = "its gradient, which is computed in blocks, has no derivative"
    remedy = "Write gdt.softmax(scale * q @ k.mT) @ v, whose derivatives are of any order."
    raise error(GradientError, "attention", problem, remedy=remedy)


attention_gradient.kernel(gradient_kernel, takes_bfloat16=True)
attention_gradient.vjp(*[_no_second_derivative] * 8)


def cotangents(g: Any, out: Any) -> tuple[DistributedArray, DistributedArray, DistributedArray]:
    """Return the cotangent of the results, the logarithms of the denominators, and the products of
    every result with its cotangent, (..., queries)."""
    (g_y, g_sums), (y, sums) = g, out
    if g_y is None:
        g_y = multiply(y, 0)
    products = sum_(multiply(g_y, y), axis=-1)
    if products.dtype != sums.dtype:
        products = products.astype(sums.dtype)
    return g_y, sums, products if g_sums is None else products - g_sums


def attention_vjp(
    g: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, key: Any, *, how: Spans
) -> tuple[Any, ...]:
    """Return the cotangents of `attention_of_tiles`."""
    gradients = attention_gradient(q, k, v, mask, key, *cotangents(g, out), how=how)
    return *(like(a, x) for a, x in zip(gradients, (q, k, v), strict=True)), None, None


attention_of_tiles.vjp(joint=attention_vjp)


@op("... t f, ... t, ... t f, ... t -> ... t f, ... t", outputs=2, rounded="x -")
def merge_attention(
    xp: Any, x: Block, x_sums: Block, y: Block, y_sums: Block, /
) -> tuple[Block, Block]:
    """Return the results of queries that met some keys in x, and the others in y, with the
    logarithms of both denominators."""
    sums = xp.logaddexp(x_sums, y_sums)
    shift = xp.where(sums == -np.inf, sums.dtype.type(0), sums)
    shares = [xp.exp(a - shift)[..., None] for a in (x_sums, y_sums)]
    out = x * shares[0] + y * shares[1]
    return out.astype(x.dtype, copy=False), sums
