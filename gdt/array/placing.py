"""Placing: whole arrays, of the host or of a GPU, are split over the devices of a layout."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.backend import as_array, backend_of
from gdt.backend.cupy import COPIES_AHEAD
from gdt.comm.notes import note_made
from gdt.comm.relayout import carry_out
from gdt.comm.transport import transport_of
from gdt.errors import LayoutError, MeshError, error
from gdt.observe import (
    MADE_OUTSIDE,
    OBSERVERS,
    from_host,
    is_recorded,
    met_host,
    noted,
    observing_only,
    ran,
)
from gdt.sharding.array_type import ArrayType
from gdt.sharding.default_mesh import get_default_mesh
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh, checked_mesh, mesh_texts
from gdt.sharding.routes import route

Block = Any

BROADCAST_SIZE = 1 << 20  # bytes from which a replica comes from another GPU, not from the host


def checked_layout(layout: object, rank: int, op: str, device: object = None) -> Layout:
    """`layout`, or the replicated one on the mesh `device`, by default the default mesh.

    Raises LayoutError for a layout that does not fit the rank, MeshError for a device that is no
    mesh, or not the mesh of `layout`.
    """
    if device is not None:
        mesh = checked_mesh(device, op)
        if layout is None:
            return Layout.replicated(mesh, rank)
        if isinstance(layout, Layout) and layout.mesh is not mesh:
            of_layout, of_device = mesh_texts([layout.mesh, mesh])
            raise error(
                MeshError,
                op,
                "the layout is of another mesh than the device",
                operands={"layout": f"{layout} on {of_layout}", "device": of_device},
                remedy="Give one of the two: a layout names its mesh.",
            )
    if layout is None:
        return Layout.replicated(get_default_mesh(), rank)
    if not isinstance(layout, Layout):
        raise error(
            LayoutError, op, f"{layout!r} is not a Layout", remedy="Use gdt.Layout([...], mesh)."
        )
    if layout.rank != rank:
        raise error(
            LayoutError,
            op,
            f"a layout of rank {layout.rank} does not fit an array of rank {rank}",
            operands={"layout": layout},
            remedy=layout.remedy_for(rank),
        )
    return layout


def distribute(
    value: Any, layout: Layout, *, copy: bool = True, giver: str = "", is_constant: bool = False
) -> DistributedArray:
    """Split a whole array over the mesh of `layout`; every block gets memory of its own if `copy`.

    giver: the public function to which the user gave the value, if it is not gdt's own; then
        processes compare it.
    is_constant: whether it is the same in every run of a program, as a number is.
    """
    for observer in OBSERVERS.get():
        observer.on_place(value)
    if not is_recorded():
        return _placed_alike(value, layout, copy, giver)
    if is_constant:
        with observing_only():
            array = _placed(value, layout, copy)
        noted(lambda: note_made(giver, array, value))
        ran("constant", lambda: [array.blocks], [], [array.blocks])
        return array
    if giver:
        met_host("take data from the host (a NumPy array or a list)", MADE_OUTSIDE)
    (array,) = from_host("asarray", lambda: (_placed_alike(value, layout, copy, giver),))
    return array  # type: ignore[no-any-return]


def _placed_alike(value: Any, layout: Layout, copy: bool, giver: str) -> DistributedArray:
    array = _placed(value, layout, copy)
    if giver:
        note_made(giver, array, value)
    return array


def _placed(value: Any, layout: Layout, copy: bool) -> DistributedArray:
    backend, mesh = backend_of(layout.mesh), layout.mesh
    whole = as_array(value, mesh)
    lead = (1,) * mesh.ndim
    if mesh.device_kind == "cpu" and not (
        mesh.divided or any(layout.dims) or any(layout.reductions)
    ):
        # All coordinates share the one block of the host.
        block = backend.asarray(whole, copy=copy).reshape(lead + whole.shape)
        return DistributedArray(ArrayType.of(whole.shape, whole.dtype, layout), (block,))
    if mesh.device_kind != "cpu" and isinstance(whole, np.ndarray):
        # Cut on the host, so that each device is sent no more than it keeps.
        parts: Sequence[Block] = _placed(whole, _on_host(layout), copy=False).blocks
    else:
        array_type = ArrayType.of(whole.shape, whole.dtype, Layout.of(mesh, ((),) * whole.ndim))
        wholes = []
        for i in range(len(mesh.blocks)):
            with backend.on(mesh, i):
                wholes.append(backend.asarray(whole).reshape(lead + whole.shape))
        parts = wholes
        if layout is not array_type.layout:
            (parts,) = carry_out([route(array_type, layout)], [wholes])
    axes = _broadcast_axes(layout, parts[0].nbytes)
    array_type = ArrayType.of(whole.shape, whole.dtype, layout)
    blocks = []
    for i, (part, grid) in enumerate(zip(parts, mesh.blocks, strict=True)):
        with backend.on(mesh, i):
            if any(grid[a] for a in axes):
                blocks.append(backend.empty(part.shape, part.dtype, array_type.memory_order))
            else:
                blocks.append(backend.asarray(part, copy=copy, order=array_type.memory_order))
    if axes:
        blocks = transport_of(mesh).broadcast(blocks, axes)
    return DistributedArray(array_type, tuple(blocks))


def _broadcast_axes(layout: Layout, nbytes: int) -> tuple[int, ...]:
    """The mesh axes along which blocks of so many bytes are sent from GPU to GPU: those between
    which they are the same. Their links are faster than the host's; another process has the host's
    copy of its own."""
    mesh = layout.mesh
    if mesh.device_kind == "cpu" or mesh.num_processes > 1 or nbytes < BROADCAST_SIZE:
        return ()
    if COPIES_AHEAD.get() is not None:  # NCCL's calls are the thread's that computes
        return ()
    split_axes = layout.split_axes
    same = [a for a in range(mesh.ndim) if a not in split_axes and not layout.reductions[a]]
    return tuple(a for a in same if mesh.grid[a] > 1)


@lru_cache(maxsize=4096)
def _on_host(layout: Layout) -> Layout:
    """The layout on virtual devices of the host, with the same blocks."""
    mesh = layout.mesh
    names = tuple(f"cpu:{i}" for i in range(mesh.size))
    host = Mesh._of(mesh.axis_names, mesh.sizes, names, mesh.name, mesh.grid, mesh.num_processes)
    return Layout.of(host, layout.dims, layout.reductions)
