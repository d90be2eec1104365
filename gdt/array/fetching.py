"""Fetching: what the blocks of an array hold, as whole arrays and as shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gdt.backend import backend_of
from gdt.caches import memoized
from gdt.comm import local
from gdt.comm.relayout import run_routes
from gdt.comm.transport import transport_of
from gdt.observe import OBSERVERS, report_fetch
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import LocalPlace
from gdt.sharding.reduction import IDEMPOTENT, identity
from gdt.sharding.routes import route

__all__ = ["Shard"]


Block = Any


class Shard(NamedTuple):
    """The part of an array that one device holds: the device's name, its mesh coordinate, the index
    of the part in the global array, and the data.

    >>> x = gdt.arange(3, layout=gdt.Layout(["x"], gdt.create_mesh([("x", 2)])))
    >>> shard = x.shards[1]
    >>> shard.index, shard.data.tolist()
    ((slice(2, 3, None),), [2])
    """

    device: str
    coordinate: tuple[int, ...]
    index: tuple[slice, ...]  # type: ignore[assignment]  # hides tuple.index
    data: Any


def gather_to_host(array_type: ArrayType, blocks: Sequence[Block]) -> np.ndarray:
    """Return the global array of the blocks of a resolved array, on the host and read-only."""
    mesh, backend = array_type.mesh, backend_of(array_type.mesh)
    report_fetch(array_type, array_type.nbytes)
    if mesh.num_processes > 1:
        array_type, blocks = _gathered(array_type, blocks)
    if mesh.divided:
        transport_of(mesh).wait()
    if not mesh.divided or array_type.layout.is_fully_replicated():
        out: np.ndarray = joined(array_type, backend.to_host(blocks[0]))
    else:
        out = np.empty(array_type.shape, array_type.dtype)
        for shard in shards_of(array_type, blocks):
            out[shard.index] = backend.to_host(shard.data)
    out = out.view()
    out.flags.writeable = False
    return out


def joined(array_type: ArrayType, block: Block) -> Block:
    """The global array, of the only block of an array of that type, or one that is whole."""
    for dim, axes in enumerate(array_type.layout.dims):
        if axes:
            block = local.gather(block, array_type.mesh.ndim, axes, dim, array_type.shape[dim])
    return block.reshape(array_type.shape)


def _gathered(array_type: ArrayType, blocks: Sequence[Block]) -> tuple[ArrayType, Sequence[Block]]:
    """Type and blocks of a resolved array whole in every process; observers are told nothing,
    since it is fetched."""
    whole = Layout.replicated(array_type.mesh, array_type.ndim)
    token = OBSERVERS.set(())
    try:
        (blocks,) = run_routes([route(array_type, whole)], [blocks])
    finally:
        OBSERVERS.reset(token)
    return array_type.with_layout(whole), blocks


def shards_of(array_type: ArrayType, blocks: Sequence[Block]) -> list[Shard]:
    """The shards on the devices of this process, row-major by coordinate, as read-only views; those
    that are the same part of a block are one array."""
    mesh, backend, shards = array_type.mesh, backend_of(array_type.mesh), []
    views: dict[Any, Any] = {}
    for device, (_, coordinate, i, inside), part, at, is_identity in _places(array_type):
        data = None if is_identity else views.get((i, at))
        if data is None:
            with backend.on(mesh, i):
                data = blocks[i][(*at, *[slice(0, s.stop - s.start) for s in part])]
                if is_identity:
                    data = _identity_like(backend.xp, data, array_type.layout, inside)
            if isinstance(data, np.ndarray):
                data = data.view()
                data.flags.writeable = False
            if not is_identity:
                views[i, at] = data
        shards.append(Shard(device, coordinate, part, data))
    return shards


class _Place(NamedTuple):
    """The place of a shard: the device, its place in the blocks, its part of the global array, the
    index of mesh axes in the block, and whether the shard is a later part of a reduction."""

    device: str
    place: LocalPlace
    part: tuple[slice, ...]
    at: tuple[int, ...]
    is_identity: bool


@memoized(1000)
def _places(array_type: ArrayType) -> list[_Place]:
    """The places of the shards on the devices of this process, row-major by coordinate."""
    mesh, split_axes = array_type.mesh, array_type.layout.split_axes
    reductions = array_type.layout.reductions
    return [
        _Place(
            mesh.devices[place.device_id],
            place,
            array_type.shard_slices(place.coordinate),
            tuple([c if a in split_axes else 0 for a, c in enumerate(place.inside)]),
            any(p and c for p, c in zip(reductions, place.inside, strict=True)),
        )
        for place in mesh.local_places
    ]


def distinct_shards(x: Any) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
    """Yield the index and the data, on the host, of every shard of a resolved array on the devices
    of this process; of the copies of a shard that of the first device, whichever process has it."""
    to_host, split_axes = backend_of(x.mesh).to_host, x.layout.split_axes
    for shard in x.shards:
        if not any(c for a, c in enumerate(shard.coordinate) if a not in split_axes):
            yield shard.index, to_host(shard.data)


def _identity_like(xp: Any, data: Any, layout: Layout, inside: tuple[int, ...]) -> Any:
    for reduction, c in zip(layout.reductions, inside, strict=True):
        if c and reduction and reduction not in IDEMPOTENT:
            return xp.full_like(data, identity(reduction, data.dtype))
    return data
