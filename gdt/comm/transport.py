"""Transports, which move data between the blocks of a mesh.

A transport sees blocks only: `blocks[i]` belongs to grid coordinate `mesh.blocks[i]`, the i-th
block of this process. Each method takes and returns one entry per block of this process, is called
once per collective by every process, and counts its calls and the bytes that it moved between
blocks. Several arrays that travel together are one call.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from gdt.backend.graphs import CAPTURED, concatenated
from gdt.errors import MeshError, error
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import BFLOAT16, FLOAT32
from gdt.sharding.mesh import Mesh
from gdt.sharding.reduction import UFUNCS

Block = Any
Axes = tuple[int, ...]
Types = tuple[ArrayType, ...]  # of the whole arrays that move; empty where nobody says


class Transfer(NamedTuple):
    """One movement from a block to another; both are numbers of blocks, row-major in the grid.

    block: the block to send, or a writeable view of the memory to receive into.
    """

    source: int
    target: int
    block: Block


class Transport(Protocol):
    """The collectives that a mesh of several blocks needs from NCCL, MPI or plain copies.

    types: the types of the whole arrays; processes compare them where they send a description.
    large_nbytes: the bytes of an array from which it is reduced where it lies, in one call with
        others; smaller ones are put end to end. Infinity if a call reduces one array alone.
    """

    calls: Counter[str]
    bytes: Counter[str]
    large_nbytes: float

    def all_reduce(
        self, blocks: Sequence[Block], axes: Axes, reduction: str, types: Types = ()
    ) -> list[Block]:
        """Combine the blocks along the grid axes `axes`; every block gets the result."""

    def reduce(
        self, blocks: Sequence[Block], axes: Axes, reduction: str, types: Types = ()
    ) -> list[Block]:
        """Combine the blocks along the grid axes `axes`; the one with grid coordinate 0 gets the
        result, and the others memory of its shape, with any values."""

    def all_gather(
        self, bundles: Sequence[Sequence[Block]], axes: Axes, types: Types = ()
    ) -> list[list[Block]]:
        """Join the blocks along the grid axes `axes`: mesh axis k of each array becomes full."""

    def reduce_scatter(
        self, blocks: Sequence[Block], axis: int, reduction: str, types: Types = ()
    ) -> list[Block]:
        """Combine blocks whose mesh axis `axis` is full; each keeps its own box of it."""

    def all_reduce_several(
        self, bundles: Sequence[Sequence[Block]], axes: Axes, reduction: str
    ) -> list[list[Block]]:
        """`all_reduce` of several arrays of one dtype by one call."""

    def reduce_scatter_several(
        self, bundles: Sequence[Sequence[Block]], axis: int, reduction: str
    ) -> list[list[Block]]:
        """`reduce_scatter` of several arrays of one dtype by one call."""

    def all_to_all(self, blocks: Sequence[Block], axis: int, types: Types = ()) -> list[Block]:
        """Blocks are (full, ..., box, ...): the new front axis is scattered, mesh axis `axis`
        gathered."""

    def broadcast(self, blocks: Sequence[Block], axes: Axes, types: Types = ()) -> list[Block]:
        """Give every block the values of the one with grid coordinate 0 along `axes`. The memory of
        the others may be overwritten."""

    def exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer], what: str) -> None:
        """Send from blocks of this process, and fill blocks of this process, point to point.

        The i-th of the sends from one block to another fills the i-th of the receives between
        them. what: the type of the array that it makes.
        """

    def wait(self) -> None:
        """Let the host wait until the collectives that were begun have ended; DistributedError if
        one of them failed."""


class BlockTransport:
    """Base of the transports: the numbers of the blocks of a mesh, and the counters."""

    large_nbytes: float = math.inf
    all_calls: ClassVar[int] = 0  # of the transports of all meshes, those that are gone included

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = weakref.ref(mesh)  # a mesh that nobody refers to goes, and its transport too
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.first = mesh.all_blocks.index(mesh.blocks[0])
        self.own = range(self.first, self.first + len(mesh.blocks))  # numbers of own blocks
        self._groups_of: dict[Axes, Sequence[Sequence[int]]] = {}  # by axes

    @property
    def mesh(self) -> Mesh:
        """The mesh whose blocks exchange data."""
        mesh = self._mesh()
        if mesh is None:
            raise error(MeshError, "transport", "its mesh is gone")
        return mesh

    def _groups(self, axes: Axes) -> Sequence[Sequence[int]]:
        """Numbers of blocks that differ only in their grid coordinates along `axes`, in coordinate
        order; those groups that have a block in this process."""
        if axes not in self._groups_of:
            groups: dict[tuple[int, ...], list[int]] = {}
            for n, at in enumerate(self.mesh.all_blocks):
                groups.setdefault(tuple(c for k, c in enumerate(at) if k not in axes), []).append(n)
            self._groups_of[axes] = [g for g in groups.values() if any(n in self.own for n in g)]
        return self._groups_of[axes]

    def _count(self, kind: str, groups: Sequence[Sequence[int]], nbytes: int) -> None:
        """Count a call in which each group moves `nbytes`. Of a group in several processes,
        only the first counts them, so that all processes together count each once."""
        self._count_call(kind, nbytes * sum(g[0] in self.own for g in groups))

    def _count_exchange(self, sends: Sequence[Transfer]) -> None:
        self._count_call("exchange", sum(s.block.nbytes for s in sends))

    def _count_call(self, kind: str, nbytes: int) -> None:
        """Count a call that moves `nbytes`: now, or in each launch of the graph that is
        captured."""
        graph = CAPTURED.get()
        if graph is not None:
            graph.steps.append(partial(self._add_call, kind, nbytes))
        else:
            self._add_call(kind, nbytes)

    def _add_call(self, kind: str, nbytes: int) -> None:
        self.calls[kind] += 1
        BlockTransport.all_calls += 1
        self.bytes[kind] += nbytes

    def _named(self, axes: Axes) -> str:
        return ", ".join(repr(self.mesh.axis_names[a]) for a in axes)

    def all_reduce(
        self, blocks: Sequence[Block], axes: Axes, reduction: str, types: Types = ()
    ) -> list[Block]:
        return [b for (b,) in self.all_reduce_several([[b] for b in blocks], axes, reduction)]

    def reduce_scatter(
        self, blocks: Sequence[Block], axis: int, reduction: str, types: Types = ()
    ) -> list[Block]:
        return [b for (b,) in self.reduce_scatter_several([[b] for b in blocks], axis, reduction)]

    def all_reduce_several(
        self, bundles: Sequence[Sequence[Block]], axes: Axes, reduction: str
    ) -> list[list[Block]]:
        """Refuse the call: here each reduces one array."""
        raise NotImplementedError

    def reduce_scatter_several(
        self, bundles: Sequence[Sequence[Block]], axis: int, reduction: str
    ) -> list[list[Block]]:
        """Refuse the call: here each reduces one array."""
        raise NotImplementedError

    def wait(self) -> None:
        """Nothing to wait for: collectives have ended when they return."""


class CopyTransport(BlockTransport):
    """Blocks in the memory of the host: NumPy copies where a box of GPUs has NCCL.

    What one block sends to others goes through `_spread` and `_deliver`, which find it in this
    process; a transport between processes brings it from another.
    """

    def _spread(
        self,
        bundles: Sequence[Sequence[Block]],
        groups: Sequence[Sequence[int]],
        what: str,
        types: Types = (),
    ) -> Mapping[int, Sequence[Block]]:
        """The bundle of every block of these groups, by its number; all are shaped alike."""
        return dict(zip(self.own, bundles, strict=True))

    def _deliver(
        self,
        pieces: Mapping[tuple[int, int], Block],
        pairs: Iterable[tuple[int, int]],
        like: Block,
        what: str,
        types: Types = (),
    ) -> Mapping[tuple[int, int], Block]:
        """Send the pieces of own blocks, by (source, target); return the pieces that own blocks
        receive. pairs: the sources and targets of all pieces of the groups that have own blocks.
        like: an array of the shape and dtype of every piece."""
        return pieces

    def all_reduce(
        self, blocks: Sequence[Block], axes: Axes, reduction: str, types: Types = ()
    ) -> list[Block]:
        groups = self._groups(axes)
        # A ring: reduce-scatter, then all-gather.
        self._count("all_reduce", groups, 2 * (len(groups[0]) - 1) * blocks[0].nbytes)
        return self._reduced(blocks, groups, reduction)

    def _reduced(
        self, blocks: Sequence[Block], groups: Sequence[Sequence[int]], reduction: str
    ) -> list[Block]:
        out: list[Block] = list(blocks)
        for group in groups:
            total = combined([blocks[n - self.first] for n in group], reduction)
            for n in group:
                out[n - self.first] = total.copy() if n != group[0] else total
        return out

    def reduce(
        self, blocks: Sequence[Block], axes: Axes, reduction: str, types: Types = ()
    ) -> list[Block]:
        groups = self._groups(axes)
        self._count("reduce", groups, (len(groups[0]) - 1) * blocks[0].nbytes)
        what = f"reduce ({reduction}) over {self._named(axes)}"
        return self._to_first(blocks, groups, reduction, what, types)

    def _to_first(
        self,
        blocks: Sequence[Block],
        groups: Sequence[Sequence[int]],
        reduction: str,
        what: str,
        types: Types,
    ) -> list[Block]:
        """Combine the blocks of every group in its first block."""
        pairs = [(n, group[0]) for group in groups for n in group]
        pieces = {(n, first): blocks[n - self.first] for n, first in pairs if n in self.own}
        piece_of = self._deliver(pieces, pairs, blocks[0], what, types)
        out: list[Block] = list(blocks)
        for group in groups:
            if group[0] in self.own:
                parts = [piece_of[n, group[0]] for n in group]
                out[group[0] - self.first] = combined(parts, reduction)
        return out

    def all_gather(
        self, bundles: Sequence[Sequence[Block]], axes: Axes, types: Types = ()
    ) -> list[list[Block]]:
        groups = self._groups(axes)
        size = len(groups[0])
        nbytes = sum(block.nbytes for block in bundles[0])
        self._count("all_gather", groups, size * (size - 1) * nbytes)
        bundle_of = self._spread(bundles, groups, f"all_gather over {self._named(axes)}", types)
        grid, coordinates = [self.mesh.grid[a] for a in axes], self.mesh.all_blocks
        out: list[list[Block]] = [[] for _ in bundles]
        for group in groups:
            own = [n for n in group if n in self.own]
            places = {n: tuple([coordinates[n][a] for a in axes]) for n in group}
            for k in range(len(bundles[0])):
                members = {place: bundle_of[n][k] for n, place in places.items()}
                whole = joined(np, members, axes, grid)
                for n in own:
                    out[n - self.first].append(whole.copy() if n != own[0] else whole)
        return out

    def reduce_scatter(
        self, blocks: Sequence[Block], axis: int, reduction: str, types: Types = ()
    ) -> list[Block]:
        groups = self._groups((axis,))
        size = len(groups[0])
        self._count("reduce_scatter", groups, (size - 1) * blocks[0].nbytes)
        pieces = {
            (n, target): piece
            for group in groups
            for n in group
            if n in self.own
            for target, piece in zip(
                group, np.split(blocks[n - self.first], size, axis), strict=True
            )
        }
        like, what = next(iter(pieces.values())), f"reduce_scatter over {self._named((axis,))}"
        piece_of = self._deliver(pieces, pairs_in(groups), like, what, types)
        out: list[Block] = list(blocks)
        for group in groups:
            for n in group:
                if n in self.own:
                    total = combined([piece_of[source, n] for source in group], reduction)
                    out[n - self.first] = total if total.flags.owndata else total.copy()
        return out

    def all_to_all(self, blocks: Sequence[Block], axis: int, types: Types = ()) -> list[Block]:
        groups = self._groups((axis,))
        size = len(groups[0])
        self._count("all_to_all", groups, (size - 1) * blocks[0].nbytes)
        pieces = {
            (n, target): piece
            for group in groups
            for n in group
            if n in self.own
            for target, piece in zip(group, np.split(blocks[n - self.first], size), strict=True)
        }
        like, what = next(iter(pieces.values())), f"all_to_all over {self._named((axis,))}"
        piece_of = self._deliver(pieces, pairs_in(groups), like, what, types)
        out: list[Block] = list(blocks)
        for group in groups:
            for n in group:
                if n in self.own:
                    parts = [piece_of[source, n] for source in group]
                    out[n - self.first] = np.concatenate(parts, axis + 1)
        return out

    def broadcast(self, blocks: Sequence[Block], axes: Axes, types: Types = ()) -> list[Block]:
        groups = self._groups(axes)
        self._count("broadcast", groups, (len(groups[0]) - 1) * blocks[0].nbytes)
        return self._from_first(blocks, groups, f"broadcast over {self._named(axes)}", types)

    def _from_first(
        self, blocks: Sequence[Block], groups: Sequence[Sequence[int]], what: str, types: Types
    ) -> list[Block]:
        """Give every block of a group the values of its first block."""
        pairs = [(group[0], n) for group in groups for n in group[1:]]
        pieces = {(n, target): blocks[n - self.first] for n, target in pairs if n in self.own}
        piece_of = self._deliver(pieces, pairs, blocks[0], what, types)
        out: list[Block] = list(blocks)
        for first, n in pairs:
            if n in self.own:
                out[n - self.first] = piece_of[first, n].copy()
        return out

    def exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer], what: str) -> None:
        self._count_exchange(sends)
        for transfer, target in zip(sends, receives, strict=True):
            target.block[...] = transfer.block


def pairs_in(groups: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """All pairs of blocks of one group."""
    return [(n, target) for group in groups for n in group for target in group]


def combined(blocks: Sequence[Block], reduction: str) -> Block:
    """The sum (or max, min, prod) of blocks, one after the other. Blocks of bfloat16 are added up
    in float32, and rounded once."""
    if blocks[0].dtype == BFLOAT16:
        return combined([b.astype(FLOAT32) for b in blocks], reduction).astype(BFLOAT16)
    total = blocks[0]
    for block in blocks[1:]:
        total = UFUNCS[reduction](total, block)
    return total


def joined(
    xp: Any, members: Mapping[tuple[int, ...], Block], axes: Axes, grid: Sequence[int]
) -> Block:
    """Blocks by their grid coordinates along several mesh axes, joined along all of them."""
    if not axes:
        return members[()]
    parts = []
    for first in range(grid[0]):
        rest = {at[1:]: b for at, b in members.items() if at[0] == first}
        parts.append(joined(xp, rest, axes[1:], grid[1:]))
    return concatenated(xp, parts, axes[0])


_transports: weakref.WeakKeyDictionary[Mesh, Transport] = weakref.WeakKeyDictionary()
_makers: dict[str, Callable[[Mesh], Transport]] = {}


def register_transport(kind: str, make: Callable[[Mesh], Transport]) -> None:
    """Say what moves data between blocks on devices of a kind, such as `"cuda"`; without it they
    are copied as those of the host are."""
    _makers[kind] = make
    for mesh in [m for m in _transports if m.device_kind == kind]:
        del _transports[mesh]


def transport_of(mesh: Mesh) -> Transport:
    """The transport between the blocks of `mesh`."""
    transport = _transports.get(mesh)
    if transport is None:
        transport = _transports.setdefault(mesh, _makers.get(mesh.device_kind, CopyTransport)(mesh))
    return transport


def sent() -> int:
    """The number of collectives that the transports of all meshes have run so far."""
    return BlockTransport.all_calls


def wait_for_all() -> None:
    """Let the host wait for the collectives of all meshes; DistributedError if one has failed."""
    for transport in list(_transports.values()):
        transport.wait()
