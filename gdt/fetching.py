"""Fetching: what the blocks of an array hold, as whole arrays and as shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gdt.backend import backend_of
from gdt.comm import local
from gdt.comm.transport import transport_of
from gdt.layout import ArrayType, Layout
from gdt.observe import OBSERVERS, met_host
from gdt.reduction import IDEMPOTENT, identity
from gdt.relayout import run_routes
from gdt.routes import route

if TYPE_CHECKING:
    from gdt.array import DistributedArray

Block = Any


class Shard(NamedTuple):
    """What one device holds: its name, its mesh coordinate, the part of the global array, the
    data."""

    device: str
    coordinate: tuple[int, ...]
    index: tuple[slice, ...]  # type: ignore[assignment]  # hides tuple.index
    data: Any


def fetched(x: DistributedArray) -> np.ndarray:
    """The global array on the host, read-only."""
    met_host("numpy")
    x = x.resolve()
    mesh, backend = x.mesh, backend_of(x.mesh)
    kind, blocks = _gathered(x) if mesh.num_processes > 1 else (x.type, x.blocks)
    if mesh.divided:
        transport_of(mesh).wait()
    if not mesh.divided or kind.layout.is_fully_replicated():
        out: np.ndarray = joined(kind, backend.to_host(blocks[0]))
    else:
        out = np.empty(x.shape, x.dtype)
        for shard in shards_of(x):
            out[shard.index] = backend.to_host(shard.data)
    out = out.view()
    out.flags.writeable = False
    return out


def joined(kind: ArrayType, block: Block) -> Block:
    """The global array, of the only block of an array of that type, or one that is whole."""
    for dim, axes in enumerate(kind.layout.dims):
        if axes:
            block = local.gather(block, kind.mesh.ndim, axes, dim, kind.shape[dim])
    return block.reshape(kind.shape)


def _gathered(x: DistributedArray) -> tuple[ArrayType, Sequence[Block]]:
    """Type and blocks of a resolved array whole in every process; observers are told nothing,
    since it is fetched."""
    whole = Layout.replicated(x.mesh, x.ndim)
    token = OBSERVERS.set(())
    try:
        (blocks,) = run_routes([route(x.type, whole)], [x.blocks])
    finally:
        OBSERVERS.reset(token)
    return x.type.with_layout(whole), blocks


def shards_of(x: DistributedArray) -> list[Shard]:
    """What every device of this process holds, row-major by coordinate; read-only views."""
    met_host("shards")
    mesh, backend, found = x.mesh, backend_of(x.mesh), []
    position = {at: i for i, at in enumerate(mesh.blocks)}
    split = {a for axes in x.layout.dims for a in axes}
    for coordinate in mesh.local_coordinates():
        at, inside = mesh.block_of(coordinate)
        block = x.blocks[position[at]]
        index = x.type.shard_slices(coordinate)
        with backend.on(mesh, position[at]):
            data = block[tuple(c if a in split else 0 for a, c in enumerate(inside))]
            data = data[tuple(slice(0, s.stop - s.start) for s in index)]
            if any(p and c for p, c in zip(x.layout.pending, inside, strict=True)):
                data = _identity_like(backend.xp, data, x.layout, inside)
        if isinstance(data, np.ndarray):
            data = data.view()
            data.flags.writeable = False
        device = mesh.devices[int(np.ravel_multi_index(coordinate, mesh.sizes))]
        found.append(Shard(device, coordinate, index, data))
    return found


def _identity_like(xp: Any, data: Any, layout: Layout, inside: tuple[int, ...]) -> Any:
    for reduction, c in zip(layout.pending, inside, strict=True):
        if c and reduction and reduction not in IDEMPOTENT:
            return xp.full_like(data, identity(reduction, data.dtype))
    return data
