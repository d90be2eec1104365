"""Tiles of queries meet all tiles of keys, which travel around a ring of devices."""

from __future__ import annotations

from typing import Any

from gdt.array.array import DistributedArray
from gdt.engine.custom_vjp import custom_vjp
from gdt.engine.planned import BlockPlan, planned_op
from gdt.nn.functions.attention.spans import Spans
from gdt.nn.functions.attention.tiles import (
    attention_gradient,
    attention_of_tiles,
    attention_vjp,
    cotangents,
    merge_attention,
)
from gdt.observe import Collective
from gdt.ops.elementwise import like
from gdt.ops.joining import concat
from gdt.ops.movement import relayout
from gdt.ops.rearranging import roll
from gdt.ops.shapes import expand_dims, reshape
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout

Block = Any


@custom_vjp
def attend_in_ring(
    q: DistributedArray,
    k: DistributedArray,
    v: DistributedArray,
    mask: Any,
    key: Any,
    *,
    how: Spans,
) -> tuple[DistributedArray, DistributedArray]:
    """Return what `attention_of_tiles` does of every tile of queries with all tiles of keys.

    mask: (..., queries, keys) of all positions, or True. Keys and values go around the ring of
    tiles in one message a step, so a device never holds more than its own tile and one other. Where
    one block holds the whole mesh, all tiles are at hand and are computed as one; observers are
    told of the ring's messages.
    """
    if not q.mesh.divided:
        keys = join_tiles(k, v, messages=how.key_tiles - 1)
        operands = join_tiles(q, 0), keys, join_tiles(v, 0)
        out, sums = attention_of_tiles(*operands, mask, key, how=_whole(how))
        return _cut_like(out, q), sums
    mask = for_tiles(mask)
    out, sums = attention_of_tiles(q, k, v, mask, key, how=how)
    travelling = concat([k, v], -1)  # (..., tiles, positions, e + f)
    for step in range(1, how.key_tiles):
        travelling = roll(travelling, 1, -3)
        keys, values = _parted(travelling, k.shape[-1])
        now = how._replace(step=step)
        y, y_sums = attention_of_tiles(q, keys, values, mask, key, how=now)
        out, sums = merge_attention(out, sums, y, y_sums)
    return out, sums


def _whole(how: Spans) -> Spans:
    return how._replace(query_tiles=1, key_tiles=1, has_tiles=False)


def for_tiles(mask: Any) -> Any:
    """Return a mask of all positions, (..., queries, keys), for all tiles; True stays."""
    return mask if mask is True else expand_dims(mask, -3)


@planned_op(view="x")
def join_tiles(x: ArrayType, other: ArrayType | None, /, *, messages: int = 0) -> BlockPlan:
    """Put the tiles of x end to end, (..., positions, features), in the only block of a mesh.

    other: what travels with x: an array, or 0 for none. messages: the steps of a ring of which
    observers are told; in each, every device sends its tiles of x and of `other`.
    """
    *batch, axes, _, features = x.layout.dims
    *sizes, tiles, length, size = x.shape
    whole = Layout.of(x.mesh, (*batch, (), features))
    out = ArrayType.of((*sizes, tiles * length, size), x.dtype, whole)
    first = x.mesh.ndim + len(sizes)  # the axis of tiles in a block
    order = (*(a for a in range(first) if a not in axes), *axes, first, first + 1, first + 2)

    def join(block: Block, _: Any) -> Block:
        return block.transpose(order).reshape(out.block_shape)

    nbytes = x.mesh.size * sum(t.local_nbytes for t in (x, other) if t is not None)
    message = Collective("exchange", tuple([x.mesh.axis_names[a] for a in axes]), nbytes, 1)
    return BlockPlan((x.layout.resolved, None), out, [join], None, (message,) * messages)


def _cut_like(x: DistributedArray, tiles: DistributedArray) -> DistributedArray:
    """Return what `join_tiles` has joined in tiles again, which lie as `tiles` do."""
    layout = Layout.of(x.mesh, (*x.layout.dims[:-2], tiles.layout.dims[-3], (), x.layout.dims[-1]))
    cut = reshape(x, (*x.shape[:-2], *tiles.shape[-3:-1], x.shape[-1]))
    return relayout(cut, layout)


def _parted(x: DistributedArray, size: int) -> tuple[DistributedArray, DistributedArray]:
    return x[..., :size], x[..., size:]


def _ring_vjp(
    g: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, key: Any, *, how: Spans
) -> tuple[Any, ...]:
    if not q.mesh.divided:  # of [K V], and of [dK dV]
        (g_y, g_sums), (y, sums) = g, out
        keys = join_tiles(k, v, messages=2 * (how.key_tiles - 1))
        operands = join_tiles(q, 0), keys, join_tiles(v, 0)
        g, out = (join_tiles(g_y, 0), g_sums), (join_tiles(y, 0), sums)
        *gradients, _, _ = attention_vjp(g, out, *operands, mask, key, how=_whole(how))
        return *(_cut_like(a, x) for a, x in zip(gradients, (q, k, v), strict=True)), None, None
    mask, of_results = for_tiles(mask), cotangents(g, out)
    first = attention_gradient(q, k, v, mask, key, *of_results, how=how)
    g_q, g_k, g_v = (like(a, x) for a, x in zip(first, (q, k, v), strict=True))
    travelling, carried = concat([k, v], -1), None
    for step in range(1, how.key_tiles):
        travelling = roll(travelling, 1, -3)
        keys, values = _parted(travelling, k.shape[-1])
        now = how._replace(step=step)
        parts = attention_gradient(q, keys, values, mask, key, *of_results, how=now)
        more_q, more_k, more_v = (like(a, x) for a, x in zip(parts, (q, keys, values), strict=True))
        own = concat([more_k, more_v], -1)
        carried = own if carried is None else roll(carried, 1, -3) + own
        g_q = g_q + more_q
    others_k, others_v = _parted(roll(carried, 1, -3), k.shape[-1])
    return g_q, g_k + others_k, g_v + others_v, None, None


attend_in_ring.vjp(joint=_ring_vjp)
