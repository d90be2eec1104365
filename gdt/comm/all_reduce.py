"""All-reduces, carried out as their mesh says (`create_mesh(..., reduce_by=...)`).

    all_reduce    one collective
    to_one        a reduction to the block with coordinate 0, and a broadcast from there
    hierarchical  over several mesh axes: a reduce-scatter along the last one, all-reduces of the
                  shares along the others, and an all-gather, as NCCL does between hosts

All of them send as much in total. Along the slow links between hosts a hierarchical all-reduce
sends the shares of the devices of a host, each once, and one collective may send whole arrays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from gdt.backend import backend_of
from gdt.backend.graphs import concatenated
from gdt.comm.transport import Axes, Block, Types, transport_of
from gdt.sharding.mesh import WAYS, Mesh


def on_each(mesh: Mesh, function: Callable[[Any, Any], Any], blocks: Sequence[Any]) -> list[Any]:
    """`function(xp, block)` of every block, on its device."""
    backend, out = backend_of(mesh), []
    for i, block in enumerate(blocks):
        with backend.on(mesh, i):
            out.append(function(backend.xp, block))
    return out


def collectives(
    mesh: Mesh, axes: Axes, elements: int, itemsize: int
) -> Iterator[tuple[str, Axes, int]]:
    """Yield the collectives of an all-reduce: kind, mesh axes, and the bytes that all devices send.

    elements: their number on one device; itemsize: the bytes of one.
    """
    count = math.prod(mesh.sizes[a] for a in axes)
    nbytes = mesh.size // count * (count - 1) * elements * itemsize
    if mesh.reduce_by == "to_one":
        yield "reduce", axes, nbytes
        yield "broadcast", axes, nbytes
    elif mesh.reduce_by == "hierarchical" and len(axes) > 1:
        *others, axis = axes
        share = -(-elements // mesh.sizes[axis])
        nbytes = mesh.size * (mesh.sizes[axis] - 1) * share * itemsize
        yield "reduce_scatter", (axis,), nbytes
        yield from collectives(mesh, tuple(others), share, itemsize)
        yield "all_gather", (axis,), nbytes
    else:
        yield "all_reduce", axes, 2 * nbytes


def all_reduce(
    mesh: Mesh, blocks: Sequence[Block], axes: Axes, reduction: str, types: Types
) -> Sequence[Block]:
    """Combine the blocks along the mesh axes `axes`; every block gets the result.

    types: the types of the whole arrays that the blocks hold.
    """
    transport = transport_of(mesh)
    if mesh.reduce_by == "to_one":
        return transport.broadcast(transport.reduce(blocks, axes, reduction, types), axes, types)
    if mesh.reduce_by != "hierarchical" or len(axes) == 1:
        return transport.all_reduce(blocks, axes, reduction, types)
    *others, axis = axes
    shape, size, count = blocks[0].shape, blocks[0].size, mesh.sizes[axis]
    share = -(-size // count)
    rows = (*(1,) * axis, count, *(1,) * (mesh.ndim - axis - 1), share)
    cut = lambda xp, block: xp.pad(block.reshape(-1), (0, count * share - size)).reshape(rows)
    parts = transport.reduce_scatter(on_each(mesh, cut, blocks), axis, reduction, types)
    shares = all_reduce(mesh, parts, tuple(others), reduction, types)
    bundles = transport.all_gather([[block] for block in shares], (axis,), types)
    return on_each(mesh, lambda xp, b: b[0].reshape(-1)[:size].reshape(shape), bundles)


def all_reduce_together(
    mesh: Mesh, bundles: Sequence[Sequence[Block]], axes: Axes, reduction: str, types: Types
) -> list[list[Block]]:
    """Combine several arrays of one dtype by one all-reduce of the elements of all of them.

    bundles: for each block of the mesh, those of the arrays, of the same shapes everywhere. types:
    see `all_reduce`.
    """
    transport, shapes = transport_of(mesh), [block.shape for block in bundles[0]]
    takes_one_call = mesh.reduce_by == WAYS[0] or (mesh.reduce_by != "to_one" and len(axes) == 1)
    bundling = Bundling.of(bundles[0], transport.large_nbytes if takes_one_call else math.inf)
    flat = lambda xp, blocks: bundling.pack(xp, [b.reshape(-1) for b in blocks])
    packed = on_each(mesh, flat, bundles)
    if len(packed[0]) == 1:
        whole = all_reduce(mesh, [block for (block,) in packed], axes, reduction, types)
        packed = [[block] for block in whole]
    else:
        packed = transport.all_reduce_several(packed, axes, reduction)

    def shaped(xp: Any, packed: Sequence[Block]) -> list[Block]:
        return [b.reshape(s) for b, s in zip(bundling.unpack(packed), shapes, strict=True)]

    return on_each(mesh, shaped, packed)


class Bundling(NamedTuple):
    """The way in which arrays of equal rows travel together: large ones alone, others end to end.

    large, small: their numbers. stops: where the rows of the small ones end.
    """

    large: Sequence[int]
    small: Sequence[int]
    stops: Sequence[int]

    @staticmethod
    def of(arrays: Sequence[Block], large_nbytes: float, rows: int = 1) -> Bundling:
        """Return the bundling of arrays, of which those of `large_nbytes` are large."""
        large = [k for k, a in enumerate(arrays) if a.nbytes >= large_nbytes]
        small = [k for k, a in enumerate(arrays) if a.nbytes < large_nbytes]
        return Bundling(
            large, small, [*itertools.accumulate(arrays[k].size // rows for k in small)]
        )

    def pack(self, xp: Any, arrays: Sequence[Block]) -> list[Block]:
        """Return the large ones of the arrays, (rows..., n), after the one that the others make."""
        small = [arrays[k] for k in self.small]
        joined = [concatenated(xp, small, -1)] if len(small) > 1 else small
        return [*joined, *[arrays[k] for k in self.large]]

    def unpack(self, packed: Sequence[Block]) -> list[Block]:
        """Return the arrays from what `pack` has made; small ones are views."""
        pairs = itertools.pairwise([0, *self.stops])
        arrays = [packed[0][..., start:stop] for start, stop in pairs]
        arrays += packed[len(packed) - len(self.large) :]
        by_number = dict(zip([*self.small, *self.large], arrays, strict=True))
        return [by_number[k] for k in range(len(arrays))]
