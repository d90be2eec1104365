"""The kernels of attention: every head, and every tile of its positions, is an item of a launch.

Blocks are (mesh axes..., batch..., positions, features), or have an axis of tiles after the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.cuda import launches
from gdt.engine.launcher import Launcher
from gdt.engine.plan import Shards
from gdt.nn.functions.attention.spans import Spans
from gdt.sharding.dtypes import BFLOAT16, FLOAT32

Block = Any


def _operands(launcher: Launcher, *blocks: Block) -> tuple[list[Block], tuple[int, ...]]:
    """Return blocks without gaps, and the leading axes to which they broadcast."""
    dtypes = {a.dtype for a in blocks}
    if len(dtypes) > 1:
        raise launcher.refused(f"operands are of {', '.join(sorted(map(str, dtypes)))}")
    leading = np.broadcast_shapes(*[a.shape[:-2] for a in blocks])
    return [launcher.contiguous(a) for a in blocks], leading


def _sight(
    launcher: Launcher, q: Block, k: Block, mask: Block, key: Block, how: Spans, shards: Shards,
    leading: tuple[int, ...],
) -> launches.Sight:  # fmt: skip
    """Return what the queries of blocks see, whose leading axes broadcast to `leading`."""
    has_mask = hasattr(mask, "ndim") and mask.ndim
    first_query, first_key, head = launcher.keep(
        "positions", lambda: _positions(launcher, q, k, key, how, shards, leading)
    )
    return launches.Sight(
        how.queries,
        how.keys,
        how.scale,
        how.causal,
        first_query,
        first_key,
        launcher.contiguous(mask) if has_mask else None,
        key.reshape(1) if how.rate else None,
        how.rate,
        head,
    )


def _positions(
    launcher: Launcher, q: Block, k: Block, key: Block, how: Spans, shards: Shards,
    leading: tuple[int, ...],
) -> tuple[Block | None, Block | None, Block | None]:  # fmt: skip
    """Return the positions of the first query and of the first key, and the index of the head, of
    every item; None where all are 0."""
    xp, tiles = launcher.xp, leading[-1]
    batch, items = (leading[:-1], (*leading[:-1], 1)) if how.has_tiles else (leading, leading)
    drops = how.drops(xp, key, shards, (), batch)
    head = None if drops is None else xp.ascontiguousarray(drops.heads.reshape(items))
    if how.query_tiles == 1 and how.key_tiles == 1:
        return None, None, head
    start = shards.start["...1"]  # (mesh axes...)
    ones = [1] * (len(leading) - 1 - start.ndim)
    numbers = start.reshape(*start.shape, *ones, 1) + xp.arange(tiles)  # (mesh axes..., 1s, tiles)
    place = how.place(numbers, q.shape[-2], k.shape[-2])
    first_query, first_key = (
        None if isinstance(a, int) else xp.ascontiguousarray(a, np.int32)
        for a in (place.first_query, place.first_key)
    )
    return first_query, first_key, head


def attention_kernel(
    launcher: Launcher,
    q: Block,
    k: Block,
    v: Block,
    mask: Block,
    key: Block,
    /,
    how: Spans,
    *,
    shards: Shards,
    alone: bool = False,
) -> Any:
    """The results of queries, and the logarithms of the denominators; `alone`, the former."""
    (q, k, v), leading = _operands(launcher, q, k, v)
    out = launcher.empty((*leading, q.shape[-2], v.shape[-1]), q.dtype.name)
    denominators = None if alone else launcher.empty((*leading, q.shape[-2]), "float32")
    sight = _sight(launcher, q, k, mask, key, how, shards, leading)
    launcher.run(
        launches.attention(
            q, k, v, out, denominators, sight, mesh_ndim=len(leading), arch=launcher.runner.arch
        )
    )
    return out if alone else (out, denominators)


def gradient_kernel(
    launcher: Launcher,
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
    shards: Shards,
) -> tuple[Block, Block, Block]:
    """The gradients in q, k and v of `attention_of_tiles`, one for every head."""
    (q, k, v, g), leading = _operands(launcher, q, k, v, g)
    denominators, products = (launcher.contiguous(a) for a in (denominators, products))
    dtype = launcher.result_dtype(q.dtype) if q.dtype == BFLOAT16 else FLOAT32
    g_q, g_k, g_v = (launcher.empty((*leading, *a.shape[-2:]), dtype.name) for a in (q, k, v))
    sight = _sight(launcher, q, k, mask, key, how, shards, leading)
    launcher.run(
        launches.attention_gradients(
            q,
            k,
            v,
            g,
            denominators,
            products,
            (g_q, g_k, g_v),
            sight,
            mesh_ndim=len(leading),
            arch=launcher.runner.arch,
        )
    )
    return g_q, g_k, g_v
