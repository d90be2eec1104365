"""Data sets in files, such as those of h5py and zarr: read and written a shard at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.fetching import distinct_shards
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.backend import backend_of
from gdt.comm.notes import note_made
from gdt.errors import ArgumentError, ShapeError, error, type_text
from gdt.observe import MADE_OUTSIDE, from_host, is_recorded, met_host
from gdt.ops.generation import type_of_shape
from gdt.ops.movement import relayout
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh

__all__ = ["store"]

Slices = tuple[slice, ...]


def is_dataset(value: Any) -> bool:
    """Whether a value is an array in a file of which slices can be read: it has a shape, a dtype
    and chunks, which may be None."""
    return all(hasattr(value, name) for name in ("shape", "dtype", "chunks", "__getitem__"))


def from_dataset(
    value: Any, dtype: Any, layout: Layout | None, device: Mesh | None
) -> DistributedArray:
    """The values of a data set, of which each process reads the slices of its own shards."""
    target = value.dtype if dtype is None else dtype
    array_type = type_of_shape(value.shape, target, "asarray", layout, device)
    if is_recorded():
        met_host("read a data set of a file", MADE_OUTSIDE)
    resolved_type = array_type.with_layout(array_type.layout.resolved)
    (array,) = from_host("asarray", lambda: (_read(value, resolved_type),))
    note_made("asarray", array)
    result = array
    return result if resolved_type is array_type else relayout(result, array_type.layout)


def _read(value: Any, array_type: ArrayType) -> DistributedArray:
    mesh, backend = array_type.mesh, backend_of(array_type.mesh)
    split_axes = array_type.layout.split_axes
    blocks, filled = [], set()
    for i in range(len(mesh.blocks)):
        with backend.on(mesh, i):
            blocks.append(
                backend.empty(array_type.block_shape, array_type.dtype, array_type.memory_order)
            )
            blocks[i][...] = 0  # padding
    for _, coordinate, i, inside in mesh.local_places:
        place = tuple(c if a in split_axes else 0 for a, c in enumerate(inside))
        if (i, place) in filled:  # by a replica in the same block
            continue
        filled.add((i, place))
        index = array_type.shard_slices(coordinate)
        part = np.asarray(value[index]).astype(array_type.dtype, copy=False)
        with backend.on(mesh, i):
            blocks[i][place + tuple(slice(n) for n in part.shape)] = backend.asarray(part)
    return DistributedArray(array_type, tuple(blocks))


@public
def store(source: Any, target: Any) -> None:
    """Write an array into a data set of its shape, of h5py or zarr say, a shard at a time.

    Every process writes the shards that it is the first one to have: the format must let several
    processes write, where there are several. Slices that are not whole chunks of the data set are
    written one after the other. As `dask.array.store`.

    Raises ArgumentError for what takes no slices, ShapeError for another shape.

    >>> import numpy as np
    >>> target = np.zeros(3)
    >>> gdt.store(gdt.asarray([1, 2, 3]), target)
    >>> target.tolist()
    [1.0, 2.0, 3.0]
    """
    (x,) = as_operands("store", source=source)
    if not hasattr(target, "__setitem__") or not hasattr(target, "shape"):
        problem = f"{type_text(target)} is no data set that takes slices"
        raise error(ArgumentError, problem, operands={"source": x.type})
    if tuple(target.shape) != x.shape:
        problem = f"the data set has shape {list(target.shape)}"
        raise error(ShapeError, problem, operands={"source": x.type})
    for index, data in distinct_shards(x.resolve()):
        if data.size:
            target[index] = data
