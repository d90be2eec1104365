"""ArrayType: the global shape, dtype and layout of an array, immutable and interned.

From these three follow the shape of every shard and of every block, and where padding lies. A dim
of n elements over p coordinates has shards of `ceil(n / p)`, so that all shards are equal; the tail
is padding.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import ClassVar
from weakref import WeakValueDictionary

import numpy as np

from gdt.errors import LayoutError, error
from gdt.sharding.immutable import Immutable
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh

__all__ = ["ArrayType"]


class ArrayType(Immutable):
    """The global shape, dtype and layout of an array; plans of ops are cached by it.

    shape: global sizes. dtype: a NumPy dtype. layout: a Layout of `len(shape)` array axes.

    Raises LayoutError where the rank of `layout` is not that of `shape`.

    >>> mesh = gdt.create_mesh([("batch", 4)])
    >>> gdt.zeros((10, 3), "float32", layout=gdt.Layout(["batch", None], mesh)).type
    float32[10, 3]  ['batch', -]
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    layout: Layout

    instead = "gdt.relayout, gdt.copy_to_mesh, gdt.reshape and x.astype give arrays of other types."
    # Weak references: shapes that never come again do not fill the memory.
    _interned: ClassVar[WeakValueDictionary[tuple[object, ...], ArrayType]] = WeakValueDictionary()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: np.dtype, layout: Layout) -> ArrayType:
        """Return the one type of this shape, dtype and layout.

        >>> import numpy as np
        >>> layout = gdt.Layout(["x"], gdt.create_mesh([("x", 2)]))
        >>> gdt.ArrayType.of((4,), np.dtype("float32"), layout)
        float32[4]  ['x']
        """
        key = (shape, dtype, layout)
        array_type = cls._interned.get(key)
        if array_type is None:
            if len(shape) != layout.rank:
                raise error(
                    LayoutError,
                    "layout",
                    f"a layout of rank {layout.rank} does not fit an array of rank {len(shape)}",
                    operands={"shape": list(shape), "layout": layout},
                    remedy=layout.remedy_for(len(shape)),
                )
            with cls._lock:
                array_type = cls._interned.get(key)  # another thread's, if it was first
                if array_type is None:
                    array_type = object.__new__(cls)
                    array_type._set(shape=shape, dtype=dtype, layout=layout)
                    cls._interned[key] = array_type
        return array_type

    def with_layout(self, layout: Layout) -> ArrayType:
        """Return the type of the same array in another layout.

        >>> x = gdt.ones(4, layout=gdt.Layout(["x"], gdt.create_mesh([("x", 2)])))
        >>> x.type.with_layout(gdt.Layout([None], x.mesh))
        float64[4]  [-]
        """
        return ArrayType.of(self.shape, self.dtype, layout)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def mesh(self) -> Mesh:
        """The mesh of the layout."""
        return self.layout.mesh

    @cached_property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of every shard with its padding: `ceil(n / shards)` along each axis."""
        counts = self.layout.shard_counts
        return tuple(-(-n // p) for n, p in zip(self.shape, counts, strict=True))

    @cached_property
    def block_shape(self) -> tuple[int, ...]:
        """The shape of a block: one axis per mesh axis, then the local shape. A mesh axis that
        splits the array has the box's size, any other mesh axis has 1."""
        split_axes = self.layout.split_axes
        return (
            tuple(b if a in split_axes else 1 for a, b in enumerate(self.mesh.box))
            + self.local_shape
        )

    @cached_property
    def memory_order(self) -> tuple[int, ...] | None:
        """The axes of a block, slowest first, in the order of the global array's memory: each array
        axis follows the mesh axes that split it. None if that order is the block's own."""
        mesh_ndim = self.mesh.ndim
        order = [i for d, axes in enumerate(self.layout.dims) for i in (*axes, mesh_ndim + d)]
        order = [a for a in range(mesh_ndim) if a not in order] + order
        long = [i for i in order if self.block_shape[i] > 1]
        return None if long == sorted(long) else tuple(order)

    @cached_property
    def uneven(self) -> tuple[int, ...]:
        """The array axes whose last shards hold padding."""
        counts = self.layout.shard_counts
        return tuple(d for d, (n, p) in enumerate(zip(self.shape, counts, strict=True)) if n % p)

    @cached_property
    def is_in_order(self) -> bool:
        """Whether a block lies in memory as NumPy's array of all its elements does: in C order,
        with no padding but behind them."""
        return self.memory_order is None and self.uneven in ((), (0,))

    @cached_property
    def is_on_host(self) -> bool:
        """Whether one block of the host holds all elements, which are numbers of NumPy's."""
        is_alone = self.mesh.device_kind == "cpu" and not self.mesh.divided
        return is_alone and self.dtype.kind in "biufc" and not any(self.layout.reductions)

    @cached_property
    def is_of_numpy(self) -> bool:
        """Whether one block of the host is NumPy's array of all elements, but for padding."""
        return self.is_on_host and self.is_in_order

    @cached_property
    def nbytes(self) -> int:
        """The bytes of the global array."""
        return math.prod(self.shape) * self.dtype.itemsize

    @cached_property
    def local_nbytes(self) -> int:
        """The bytes of one shard with its padding, which is what a device sends of it."""
        return math.prod(self.local_shape) * self.dtype.itemsize

    def is_whole(self) -> bool:
        """Whether this process holds all elements.

        >>> x = gdt.ones((5, 2), layout=gdt.Layout(["x", None], gdt.create_mesh([("x", 2)])))
        >>> x.type.is_whole(), gdt.sum(x).type.is_whole()
        (True, True)
        """
        mesh, split_axes = self.mesh, self.layout.split_axes
        return all(len({at[a] for at in mesh.blocks}) == mesh.grid[a] for a in split_axes)

    def extent(self, dim: int, index: int) -> tuple[int, int]:
        """Return the interval of global indices that shard `index` of axis `dim` holds, without
        its padding.

        >>> x = gdt.ones((5, 2), layout=gdt.Layout(["x", None], gdt.create_mesh([("x", 2)])))
        >>> x.type.extent(0, index=1)
        (3, 5)
        """
        size, chunk = self.shape[dim], self.local_shape[dim]
        return min(index * chunk, size), min((index + 1) * chunk, size)

    def shard_slices(self, coordinate: Sequence[int]) -> tuple[slice, ...]:
        """Return the part of the global array that the device at `coordinate` holds.

        >>> x = gdt.ones((5, 2), layout=gdt.Layout(["x", None], gdt.create_mesh([("x", 2)])))
        >>> x.type.shard_slices((1,))
        (slice(3, 5, None), slice(0, 2, None))
        """
        index = self.layout.shard_index
        return tuple(slice(*self.extent(d, index(coordinate, d))) for d in range(self.ndim))

    def padded_shards(self, dim: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield, for each shard of axis `dim` that has padding, its index along the mesh axes of
        `dim` and its number of valid elements.

        >>> x = gdt.ones((5, 2), layout=gdt.Layout(["x", None], gdt.create_mesh([("x", 2)])))
        >>> list(x.type.padded_shards(0))
        [((1,), 2)]
        """
        sizes = [self.mesh.sizes[a] for a in self.layout.dims[dim]]
        for index, at in enumerate(itertools.product(*map(range, sizes))):
            start, stop = self.extent(dim, index)
            if stop - start < self.local_shape[dim]:
                yield at, stop - start

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.shape)}  {self.layout}"

    def __reduce__(self) -> tuple[object, ...]:
        return ArrayType.of, (self.shape, self.dtype, self.layout)
