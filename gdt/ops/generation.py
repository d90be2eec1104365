"""Arrays made block by block, from the global indices of their elements.

Each device makes only its own shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.placing import checked_layout
from gdt.backend import backend_of
from gdt.comm.notes import note_made
from gdt.comm.relayout import run_routes
from gdt.observe import noted, ran
from gdt.ops.elementwise import checked_dtype
from gdt.ops.shapes import Shape, checked_shape
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.routes import route

Block = Any


def shard_starts(array_type: ArrayType, grid: Sequence[int], dim: int) -> np.ndarray:
    """The global index along `dim` at which each shard of the block at `grid` begins, shaped as the
    block's mesh axes. Shards of padding alone begin beyond the end of the axis."""
    mesh, axes = array_type.mesh, array_type.layout.dims[dim]
    shard = np.zeros((1,) * mesh.ndim, np.int64)
    for a in axes:
        coordinates = np.arange(mesh.box[a]) + grid[a] * mesh.box[a]
        shard = shard * mesh.sizes[a] + coordinates.reshape(
            [-1 if k == a else 1 for k in range(mesh.ndim)]
        )
    return shard * array_type.local_shape[dim]


def _indices(array_type: ArrayType, grid: Sequence[int]) -> list[np.ndarray]:
    """The global indices of a block's elements along every axis; padding repeats the last index.

    The array for axis d has length 1 along all other axes but the mesh axes, so that the arrays
    broadcast to the block.
    """
    indices = []
    for d, (size, chunk) in enumerate(zip(array_type.shape, array_type.local_shape, strict=True)):
        start = shard_starts(array_type, grid, d)
        offsets = np.arange(chunk).reshape([-1 if k == d else 1 for k in range(array_type.ndim)])
        index = start.reshape(start.shape + (1,) * array_type.ndim) + offsets
        indices.append(np.minimum(index, size - 1))  # (mesh axes..., 1, ..., chunk, ..., 1)
    return indices


def from_blocks(
    array_type: ArrayType,
    make: Callable[[Any, Sequence[int]], Block],
    value: Any = None,
    numbers: Sequence[Any] = (),
    maker: str = "",
) -> DistributedArray:
    """Make an array of `array_type` block by block.

    make: `make(backend, grid)` returns the block at grid coordinate `grid`, in the resolved layout
        of `array_type`.
    value: the number that all elements equal, if there is one. numbers: those of which the elements
        are made. maker: the function that makes them. Processes compare all three.
    """
    resolved_type, backend = (
        array_type.with_layout(array_type.layout.resolved),
        backend_of(array_type.mesh),
    )
    blocks = []
    for i, grid in enumerate(array_type.mesh.blocks):
        with backend.on(array_type.mesh, i):
            blocks.append(make(backend, grid))
    (partial,) = run_routes([route(resolved_type, array_type.layout)], [blocks])
    array = DistributedArray(array_type, tuple(partial))
    if array_type.mesh.num_processes > 1:
        noted(lambda: note_made(maker, array, value, numbers))
    ran("constant", lambda: [partial], [], [partial])
    return array


def from_indices(
    array_type: ArrayType, values: Callable[..., Any], *numbers: Any
) -> DistributedArray:
    """Make an array of `values(xp, *indices)`, a function of the global index along every axis.

    numbers: those that the function has from the user; processes compare them.
    """
    resolved_type = array_type.with_layout(array_type.layout.resolved)

    def make(backend: Any, grid: Sequence[int]) -> Block:
        block = backend.empty(
            resolved_type.block_shape, array_type.dtype, resolved_type.memory_order
        )
        indices = [backend.asarray(i) for i in _indices(resolved_type, grid)]
        block[...] = values(backend.xp, *indices)
        return block

    maker = getattr(values, "__qualname__", "").partition(".")[0]
    return from_blocks(array_type, make, numbers=numbers, maker=maker)


def type_of_shape(
    shape: Shape, dtype: Any, name: str, layout: Layout | None = None, device: Mesh | None = None
) -> ArrayType:
    """The type of the array that the public function `name` makes of `shape`, `dtype` and `layout`,
    or replicated on the mesh `device`; float64 if `dtype` is None.

    Raises ShapeError, DtypeError, LayoutError or MeshError for an argument that does not fit.
    """
    sizes = checked_shape(shape, name)
    target = checked_layout(layout, len(sizes), name, device)
    return ArrayType.of(sizes, checked_dtype(dtype, name), target)
