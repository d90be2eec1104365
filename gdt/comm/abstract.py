"""The transport of abstract devices: it makes arrays of the shapes that collectives return."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gdt.backend.abstract import AbstractArray
from gdt.comm.nccl import NcclTransport
from gdt.comm.transport import Axes, Block, BlockTransport, Transfer, Types


class AbstractTransport(BlockTransport):
    """Moves nothing between the blocks of an abstract mesh, of which there is one.

    It counts the calls and the bytes of all devices, each of which does the same.
    """

    large_nbytes: float = NcclTransport.large_nbytes

    def all_reduce_several(
        self, bundles: Sequence[Sequence[Block]], axes: Axes, reduction: str
    ) -> list[list[Block]]:
        (bundle,) = bundles
        nbytes = sum(block.nbytes for block in bundle)
        self._count_all("all_reduce", axes, 2 * (self._size(axes) - 1) * nbytes)
        return [[AbstractArray.new(block.shape, block.dtype) for block in bundle]]

    def reduce(
        self, blocks: Sequence[Block], axes: Axes, reduction: str, types: Types = ()
    ) -> list[Block]:
        (block,) = blocks
        self._count_all("reduce", axes, (self._size(axes) - 1) * block.nbytes)
        return [AbstractArray.new(block.shape, block.dtype)]

    def all_gather(
        self, bundles: Sequence[Sequence[Block]], axes: Axes, types: Types = ()
    ) -> list[list[Block]]:
        (bundle,) = bundles
        count = self._size(axes)
        self._count_all("all_gather", axes, count * (count - 1) * sum(b.nbytes for b in bundle))
        grid = self.mesh.grid
        shapes = [[n * grid[a] if a in axes else n for a, n in enumerate(b.shape)] for b in bundle]
        pairs = zip(shapes, bundle, strict=True)
        return [[AbstractArray.new(shape, b.dtype) for shape, b in pairs]]

    def reduce_scatter_several(
        self, bundles: Sequence[Sequence[Block]], axis: int, reduction: str
    ) -> list[list[Block]]:
        (bundle,) = bundles
        nbytes = sum(block.nbytes for block in bundle)
        self._count_all("reduce_scatter", (axis,), (self._size((axis,)) - 1) * nbytes)
        shapes = [[1 if a == axis else n for a, n in enumerate(b.shape)] for b in bundle]
        pairs = zip(shapes, bundle, strict=True)
        return [[AbstractArray.new(shape, b.dtype) for shape, b in pairs]]

    def all_to_all(self, blocks: Sequence[Block], axis: int, types: Types = ()) -> list[Block]:
        (block,), count = blocks, self._size((axis,))
        self._count_all("all_to_all", (axis,), (count - 1) * block.nbytes)
        shape = list(block.shape)
        shape[0], shape[axis + 1] = shape[0] // count, shape[axis + 1] * count
        return [AbstractArray.new(shape, block.dtype)]

    def broadcast(self, blocks: Sequence[Block], axes: Axes, types: Types = ()) -> list[Block]:
        (block,) = blocks
        self._count_all("broadcast", axes, (self._size(axes) - 1) * block.nbytes)
        return [block]

    def exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer], what: str) -> None:
        self._count_exchange(sends)

    def _size(self, axes: Axes) -> int:
        """The number of devices that take part in a collective along `axes`."""
        return math.prod(self.mesh.grid[a] for a in axes)

    def _count_all(self, kind: str, axes: Axes, nbytes: int) -> None:
        """Count a call in which each group of devices along `axes` sends `nbytes`."""
        self.calls[kind] += 1
        BlockTransport.all_calls += 1
        self.bytes[kind] += nbytes * (self.mesh.size // self._size(axes))
