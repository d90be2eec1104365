"""The positions and the weights that belong to a tile of a block."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gdt.engine.plan import Shards
from gdt.nn.functions.attention.blocks import Drops, TilePosition

Block = Any


class Spans(NamedTuple):
    """The positions of queries and keys, and how their tiles meet.

    queries, keys: how many positions there are. query_tiles, key_tiles: into how many tiles they
    are cut. step: where both are cut, tile i of the queries meets tile i - step of the keys. rate:
    the probability that a weight is dropped. leading: the leading axes of the weights.
    """

    queries: int
    keys: int
    query_tiles: int
    key_tiles: int
    causal: bool
    scale: float
    step: int = 0
    rate: float = 0.0
    leading: tuple[int, ...] = ()

    def drops(
        self, xp: Any, key: Block, shards: Shards, at: tuple[int, ...], batch: tuple[int, ...]
    ) -> Drops | None:
        """Return which weights the heads at a coordinate drop; None if no weight is."""
        if not self.rate:
            return None
        ndim, heads = len(self.leading), xp.zeros((), np.int64)
        for axis, size in enumerate(batch[len(batch) - ndim :]):
            factor = f"...{ndim - axis + 1}"  # "...1" is that of tiles
            along = [-1 if a == axis else 1 for a in range(ndim)]
            index = xp.arange(size).reshape(along)
            if factor in shards.split:  # (mesh axes..., batch...) if the mesh axes are batch axes
                first = _start(shards, factor, at)
                index = index + first.reshape(*first.shape, *[1] * ndim)
            heads = heads + index * math.prod(self.leading[axis + 1 :])
        heads = xp.broadcast_to(heads, batch).reshape(-1)
        return Drops(key.reshape(()), self.rate, heads, self.queries, self.keys)

    def place(self, tile: Any, queries: int, keys: int) -> TilePosition:
        """Return the place of tile number `tile`, of `queries` and `keys` positions with padding.

        tile: a number on the host, an array on a device."""
        first_query = tile * queries if self.query_tiles > 1 else 0
        first_key: Any = 0
        if self.key_tiles > 1:
            own = (tile - self.step) % self.key_tiles if self.query_tiles > 1 else tile
            first_key = own * keys
        is_even = self.key_tiles * keys == self.keys
        return TilePosition(
            first_query, first_key, None if is_even else self.keys - first_key, self.causal
        )

    @property
    def is_ring(self) -> bool:
        """Whether every tile of queries meets every tile of keys."""
        return self.query_tiles > 1 and self.key_tiles > 1


def number_of(xp: Any, shards: Shards, at: tuple[int, ...], tile: int) -> Any:
    """Return the number of a tile of a block in the whole array: on the host a number."""
    if "...1" not in shards.split:
        return tile
    number = _start(shards, "...1", at) + tile
    return int(number) if xp is np else number


def _start(shards: Shards, factor: str, at: tuple[int, ...]) -> Any:
    """Return where the shard of a factor begins at a coordinate, or for `()` at all of them."""
    start = shards.start[factor]
    return start[tuple(i if n > 1 else 0 for i, n in zip(at, start.shape, strict=bool(at)))]
