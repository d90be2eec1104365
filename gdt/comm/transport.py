"""Transports: what moves data between the blocks of a mesh.

A transport sees blocks only: `blocks[i]` belongs to grid coordinate `mesh.blocks[i]`. Each method
takes and returns one entry per block of this process, is called once per collective, and counts its
own calls and the bytes that it moved between blocks. Several arrays that travel together are one
call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from gdt.mesh import Mesh

Block = Any
Axes = tuple[int, ...]

COMBINE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


class Transport(Protocol):
    """What a mesh of several blocks needs from NCCL, MPI or plain copies."""

    calls: Counter[str]
    bytes: Counter[str]

    def all_reduce(self, blocks: Sequence[Block], axes: Axes, reduction: str) -> list[Block]:
        """Combine the blocks along the grid axes `axes`; every block gets the result."""

    def all_gather(self, bundles: Sequence[Sequence[Block]], axes: Axes) -> list[list[Block]]:
        """Join the blocks along the grid axes `axes`: mesh axis k of each array becomes full."""

    def reduce_scatter(self, blocks: Sequence[Block], axis: int, reduction: str) -> list[Block]:
        """Combine blocks whose mesh axis `axis` is full; each keeps its own box of it."""

    def all_to_all(self, blocks: Sequence[Block], axis: int) -> list[Block]:
        """Blocks are (full, ..., box, ...): the new front axis is scattered, mesh axis `axis`
        gathered."""

    def copy(self, source: int, target: int, block: Block) -> Block:
        """Send `block` from one block of the mesh to another."""


class CopyTransport:
    """Blocks of one process on the host: NumPy copies where a box of GPUs has NCCL."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def _groups(self, axes: Axes) -> list[list[int]]:
        """Blocks that differ only in their grid coordinates along `axes`, in coordinate order."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, at in enumerate(self.mesh.blocks):
            groups.setdefault(tuple(c for k, c in enumerate(at) if k not in axes), []).append(i)
        return list(groups.values())

    def _count(self, kind: str, moved: int) -> None:
        self.calls[kind] += 1
        self.bytes[kind] += moved

    def all_reduce(self, blocks: Sequence[Block], axes: Axes, reduction: str) -> list[Block]:
        out: list[Block] = list(blocks)
        moved = 0
        for group in self._groups(axes):
            total = blocks[group[0]]
            for i in group[1:]:
                total = COMBINE[reduction](total, blocks[i])
            for i in group:
                out[i] = total.copy() if i != group[0] else total
            moved += 2 * (len(group) - 1) * total.nbytes  # a ring: reduce-scatter, then all-gather
        self._count("all_reduce", moved)
        return out

    def all_gather(self, bundles: Sequence[Sequence[Block]], axes: Axes) -> list[list[Block]]:
        out: list[list[Block]] = [list(b) for b in bundles]
        moved = 0
        for group in self._groups(axes):
            for n in range(len(bundles[0])):
                members = {
                    tuple(self.mesh.blocks[i][a] for a in axes): bundles[i][n] for i in group
                }
                joined = _join(members, axes, [self.mesh.grid[a] for a in axes])
                for i in group:
                    out[i][n] = joined.copy() if i != group[0] else joined
                moved += (len(group) - 1) * joined.nbytes
        self._count("all_gather", moved)
        return out

    def reduce_scatter(self, blocks: Sequence[Block], axis: int, reduction: str) -> list[Block]:
        out: list[Block] = list(blocks)
        moved = 0
        for group in self._groups((axis,)):
            total = blocks[group[0]]
            for i in group[1:]:
                total = COMBINE[reduction](total, blocks[i])
            for part, i in zip(np.split(total, len(group), axis), group, strict=True):
                out[i] = part.copy()
            moved += (len(group) - 1) * total.nbytes
        self._count("reduce_scatter", moved)
        return out

    def all_to_all(self, blocks: Sequence[Block], axis: int) -> list[Block]:
        out: list[Block] = list(blocks)
        moved = 0
        for group in self._groups((axis,)):
            pieces = [np.split(blocks[i], len(group), 0) for i in group]
            for j, i in enumerate(group):
                out[i] = np.concatenate([p[j] for p in pieces], axis + 1)
                moved += out[i].nbytes - pieces[j][j].nbytes
        self._count("all_to_all", moved)
        return out

    def copy(self, source: int, target: int, block: Block) -> Block:
        if source != target:
            self.bytes["exchange"] += block.nbytes
        return block


def _join(members: dict[tuple[int, ...], Block], axes: Axes, grid: Sequence[int]) -> Block:
    """Concatenate blocks along several mesh axes at once."""
    if not axes:
        return members[()]
    parts = []
    for first in range(grid[0]):
        rest = {at[1:]: b for at, b in members.items() if at[0] == first}
        parts.append(_join(rest, axes[1:], grid[1:]))
    return np.concatenate(parts, axes[0])


_transports: dict[Mesh, Transport] = {}


def transport_of(mesh: Mesh) -> Transport:
    """The transport between the blocks of `mesh`."""
    found = _transports.get(mesh)
    return _transports.setdefault(mesh, CopyTransport(mesh)) if found is None else found
