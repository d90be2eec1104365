"""Vectors that are split over blocks, and the exchange of pieces whose sizes only the data tells.

A block of a host may hold several shards. Where the mesh axes that split an axis are in ascending
order, the shards of a block lie side by side in the array: together they are one interval of it,
which is what the functions here call the block's part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.backend import backend_of
from gdt.comm import local
from gdt.comm.transport import Transfer, transport_of
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Axes
from gdt.sharding.mesh import Mesh

Block = Any


def part_of(array_type: ArrayType, dim: int, number: int) -> tuple[int, int]:
    """The interval of axis `dim` that block `number` of all blocks holds."""
    first, count = _hosted(array_type, dim, number)
    return array_type.extent(dim, first)[0], array_type.extent(dim, first + count - 1)[1]


def _hosted(array_type: ArrayType, dim: int, number: int) -> tuple[int, int]:
    """The first of the shards of axis `dim` in a block, and how many there are."""
    mesh, first, count = array_type.mesh, 0, 1
    for a in array_type.layout.dims[dim]:
        first = first * mesh.sizes[a] + mesh.all_blocks[number][a] * mesh.box[a]
        count *= mesh.box[a]
    return first, count


def join(array_type: ArrayType, block: Block, dim: int, number: int) -> Block:
    """A block's part of axis `dim`, without padding; the mesh axes that split it have length 1."""
    axes, (low, high) = array_type.layout.dims[dim], part_of(array_type, dim, number)
    return local.gather(block, array_type.mesh.ndim, axes, dim, high - low)


def cut(xp: Any, part: Block, array_type: ArrayType, dim: int, number: int) -> Block:
    """The block whose part of axis `dim` is `part`: the inverse of `join`."""
    mesh, axes = array_type.mesh, array_type.layout.dims[dim]
    at = mesh.ndim + dim
    _, count = _hosted(array_type, dim, number)
    lack = count * array_type.local_shape[dim] - part.shape[at]
    if lack:  # repeats the last element; is 1 where there is none
        edge = (*part.shape[:at], lack, *part.shape[at + 1 :])
        last = part[(slice(None),) * at + (slice(-1, None),)]
        filling = xp.broadcast_to(last, edge) if part.size else xp.ones(edge, part.dtype)
        part = xp.concatenate([part, filling], at)
    if not axes:
        return part
    return local.split(xp, part, mesh.ndim, axes, tuple([mesh.box[a] for a in axes]), dim)


class Exchange:
    """Sends pieces of any length between the blocks that differ along the mesh axes `axes`.

    members: for every block of this process, the numbers of the blocks of its group. places: its
    place among them. size: the number of blocks in a group. what: says in errors what is
    exchanged, alike in all processes.
    """

    def __init__(self, mesh: Mesh, axes: Axes, what: str) -> None:
        self.mesh, self.what = mesh, what
        self.axes = tuple([a for a in axes if mesh.grid[a] > 1])
        groups: dict[tuple[int, ...], list[int]] = {}
        for n, at in enumerate(mesh.all_blocks):
            rest = tuple([c for k, c in enumerate(at) if k not in self.axes])
            groups.setdefault(rest, []).append(n)
        self.first = mesh.all_blocks.index(mesh.blocks[0])
        self.own = range(self.first, self.first + len(mesh.blocks))
        self.groups = [g for g in groups.values() if any(n in self.own for n in g)]
        self.size = len(self.groups[0])
        self.members = [next(g for g in self.groups if n in g) for n in self.own]
        self.places = [g.index(n) for g, n in zip(self.members, self.own, strict=True)]

    def all_gather(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """For every block of this process, the small arrays that the host has for all blocks of its
        group: (size, ...)."""
        if self.size == 1:
            return [a[None] for a in arrays]
        backend = backend_of(self.mesh)
        bundles = []
        for i, array in enumerate(arrays):
            with backend.on(self.mesh, i):
                wide = backend.asarray(array)
                bundles.append([wide.reshape((1,) * self.mesh.ndim + array.shape)])
        results = transport_of(self.mesh).all_gather(bundles, self.axes)
        return [
            backend.to_host(bundle[0]).reshape(self.size, *a.shape)
            for bundle, a in zip(results, arrays, strict=True)
        ]

    def places_by_owner(self, owners: Block) -> list[Block]:
        """For every member of the group, the places at which `owners`, which are numbers of
        members, hold its number; in ascending order."""
        backend = backend_of(self.mesh)
        order = backend.xp.argsort(owners, kind="stable")
        lengths = backend.to_host(backend.xp.bincount(owners, minlength=self.size))
        return list(backend.xp.split(order, np.cumsum(lengths)[:-1].tolist()))

    def in_places(self, pieces: Sequence[Block], places: Sequence[Block]) -> Block:
        """Pieces that members answered, put together: the rows of `pieces[k]` at `places[k]`."""
        length, like = sum(len(at) for at in places), pieces[0]
        out = backend_of(self.mesh).xp.empty((length, *like.shape[1:]), like.dtype)
        for piece, at in zip(pieces, places, strict=True):
            out[at] = piece
        return out

    def counts(self, pieces: Sequence[Sequence[Block]]) -> list[np.ndarray]:
        """For every block of this process, how long the pieces are that its group sends each
        other: (sender, receiver)."""
        return self.all_gather([np.array([len(p) for p in row], np.int64) for row in pieces])

    def all_to_all(
        self, pieces: Sequence[Sequence[Block]], counts: Sequence[np.ndarray] | None = None
    ) -> list[list[Block]]:
        """Send `pieces[i][k]` of block i of this process to block k of its group; return what each
        block receives, in the order of the senders.

        Pieces differ in length along their first axis alone. counts: their lengths, if they are
        known, as `counts` returns them.
        """
        if self.size == 1:
            return [list(row) for row in pieces]
        backend = backend_of(self.mesh)
        counts = self.counts(pieces) if counts is None else counts
        results: list[list[Block]] = []
        for i, (row, lengths, place) in enumerate(zip(pieces, counts, self.places, strict=True)):
            with backend.on(self.mesh, i):
                like = row[place]
                results.append(
                    [
                        like if k == place
                        else backend.empty((int(n), *like.shape[1:]), like.dtype)
                        for k, n in enumerate(lengths[:, place])
                    ]
                )  # fmt: skip
        sends, receives = [], []
        for group in self.groups:
            for k, source in enumerate(group):
                for m, target in enumerate(group):
                    own = source if source in self.own else target if target in self.own else None
                    if k == m or own is None or not counts[own - self.first][k, m]:
                        continue
                    if source in self.own:
                        sends.append(Transfer(source, target, pieces[source - self.first][m]))
                    if target in self.own:
                        receives.append(Transfer(source, target, results[target - self.first][k]))
        transport_of(self.mesh).exchange(sends, receives, self.what)
        return results

    def by_block(self, function: Callable[..., Any], *lists: Sequence[Any]) -> list[Any]:
        """`function(i, *items)` for every block i of this process, on its device."""
        backend, results = backend_of(self.mesh), []
        for i, items in enumerate(zip(*lists, strict=True)):
            with backend.on(self.mesh, i):
                results.append(function(i, *items))
        return results


def sent_by_all(array_type: ArrayType, dim: int) -> int:
    """The bytes that all devices send if each spreads its shard of axis `dim` evenly over those
    that hold another."""
    sizes, split_axes = array_type.mesh.sizes, array_type.layout.split_axes
    shards = math.prod(sizes[a] for a in array_type.layout.dims[dim])
    copies = math.prod(n for a, n in enumerate(sizes) if a not in split_axes)
    return array_type.nbytes * copies * (shards - 1) // shards
