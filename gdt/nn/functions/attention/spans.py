"""Tiles of queries and keys: where they lie in the sequences, and which weights they drop."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gdt.engine.plan import EXACT, Shards
from gdt.nn.functions.attention.blocks import Drops, TilePosition

Block = Any
TILES = "...1"  # the factor of the axis of tiles, the last axis in front of (positions, features)


class Spans(NamedTuple):
    """The sequences of queries and keys of one attention, and the tiles into which they are cut.

    queries, keys: the lengths of the sequences. query_tiles, key_tiles: the number of tiles of
    each. causal: whether a query sees no key of a later position. scale: the factor of the scores.
    step: the step of the ring, where both are cut: tile i of the queries meets tile i - step of the
    keys. rate: the probability that a weight is dropped. leading: the shape of the weights without
    their last axes (queries, keys); () where no weight is dropped. has_tiles: whether operands have
    an axis of tiles in front of (positions, features).
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
    has_tiles: bool = True

    def drops(
        self, xp: Any, key: Block, shards: Shards, at: tuple[int, ...], batch: tuple[int, ...]
    ) -> Drops | None:
        """Return which weights a block drops; None if it drops none.

        key: the random key. at: the coordinate of the block, () for a block of all coordinates.
        batch: the shape of the block's leading axes."""
        if not self.rate:
            return None
        ndim, heads = len(self.leading), xp.zeros((), np.int64)
        for axis, size in enumerate(batch[len(batch) - ndim :]):
            factor = f"...{ndim - axis + self.has_tiles}"  # counted from the last axis
            along = [-1 if a == axis else 1 for a in range(ndim)]
            index = xp.arange(size).reshape(along)
            if factor in shards.split:  # (mesh axes..., batch...) if `at` is ()
                first = _start(shards, factor, at)
                index = index + first.reshape(*first.shape, *[1] * ndim)
            heads = heads + index * math.prod(self.leading[axis + 1 :])
        heads = xp.broadcast_to(heads, batch).reshape(-1)
        return Drops(key.reshape(()), self.rate, heads, self.queries, self.keys)

    def are_split(self, shards: Shards) -> bool:
        """Return whether the tiles are split over devices."""
        return self.has_tiles and TILES in shards.split

    def number_of(self, xp: Any, shards: Shards, at: tuple[int, ...], tile: int) -> Any:
        """Return the number that tile `tile` of a block has in the whole array: on the host an
        int."""
        if not self.are_split(shards):
            return tile
        number = _start(shards, TILES, at) + tile
        return int(number) if xp is np else number

    def place(self, tile: Any, queries: int, keys: int) -> TilePosition:
        """Return the positions of tile number `tile`, in the order of the tiles that devices hold.

        tile: an int on the host, an array on a device. queries, keys: the lengths of a tile of
        each, with padding."""
        first_query = tile * queries if self.query_tiles > 1 else 0
        first_key: Any = 0
        if self.key_tiles > 1:
            key_tile = (tile - self.step) % self.key_tiles if self.query_tiles > 1 else tile
            first_key = key_tile * keys
        has_padding = self.key_tiles * keys != self.keys
        valid = self.keys - first_key if has_padding else None
        return TilePosition(first_query, first_key, valid, self.causal)

    @property
    def is_ring(self) -> bool:
        """Whether the tiles of keys travel around a ring, on which each meets all of queries."""
        return self.query_tiles > 1 and self.key_tiles > 1


EXACT.add(Spans)


def _start(shards: Shards, factor: str, at: tuple[int, ...]) -> Any:
    """Return where the shard of a factor begins at a coordinate; for () at all, as an array."""
    start = shards.start[factor]
    return start[tuple(i if n > 1 else 0 for i, n in zip(at, start.shape, strict=bool(at)))]
