"""Operands that are hard to compute with, and assertions that hold of every array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.placing import distribute
from gdt.backend import backend_of
from gdt.sharding.dtypes import kind_of, limits_of
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.reduction import identity


def placed(value: np.ndarray, layout: Layout, *, poison: bool = False) -> DistributedArray:
    """Return `value` in a layout, as hard to compute with as the layout allows.

    The parts of a partial array are all wrong by themselves: 2x, -x, 0, ... of a sum, -x, -1, 1 ...
    of a product, alternate elements of a maximum or minimum. Bools, and numbers that a factor would
    make infinite, are whole in the first part.
    poison: whether padding is `poisoned`.

    >>> import numpy as np
    >>> layout = gdt.Layout(["a"], gdt.create_mesh([("a", 2)]))
    >>> gdt.testing.placed(np.arange(3.0), layout, poison=True).blocks[0].tolist()
    [[0.0, 1.0], [2.0, nan]]
    """
    x, mesh, blocks = distribute(value, layout.resolved), layout.mesh, []
    backend = backend_of(mesh)
    array_type = x.type.with_layout(layout)
    for i, grid in enumerate(mesh.blocks):
        block = backend.to_host(x.blocks[i]).copy()
        for a, reduction in enumerate(layout.reductions):
            if reduction and mesh.grid[a] > 1:
                block = _part(block, mesh.grid[a], grid[a], reduction)
        with backend.on(mesh, i):
            blocks.append(backend.asarray(block))
    array = DistributedArray(array_type, tuple(blocks))
    return poisoned(array) if poison else array


def poisoned(x: DistributedArray) -> DistributedArray:
    """Return a copy of x with NaN, the largest integer, or the negation of a bool as padding.

    >>> from gdt.testing.operands import poisoned
    >>> layout = gdt.Layout(["a"], gdt.create_mesh([("a", 2)]))
    >>> poisoned(gdt.asarray([0.0, 1.0, 2.0], layout=layout)).blocks[0].tolist()
    [[0.0, 1.0], [2.0, nan]]
    """
    array_type, mesh, blocks = x.type, x.mesh, []
    backend = backend_of(mesh)
    for i, grid in enumerate(mesh.blocks):
        block = backend.to_host(x.blocks[i]).copy()
        for d in array_type.uneven:
            for at, valid in array_type.padded_shards(d):
                index = _index(mesh, grid, array_type.layout.dims[d], at)
                if index is not None:
                    tail = (*index, *[slice(None)] * d, slice(valid, None))
                    block[tail] = _poison(block[tail])
        with backend.on(mesh, i):
            blocks.append(backend.asarray(block))
    return DistributedArray(array_type, tuple(blocks))


def _part(whole: Any, axis_grid: int, block: int, reduction: str) -> Any:
    """Return the part that block number `block`, of `axis_grid` along a mesh axis, has of `whole`:
    all parts together are reduced to `whole`."""
    is_first = block == 0
    if reduction in ("max", "min"):  # the elements of the first two blocks take turns
        turns = np.arange(whole.size).reshape(whole.shape) % 2 == block
        return np.where(turns, whole, identity(reduction, whole.dtype)).astype(whole.dtype)
    if reduction == "prod":
        part = whole if is_first else np.ones_like(whole)
        if whole.dtype.kind == "b" or block > 1:
            return part.copy()
        return np.where(np.isnan(whole), part, np.negative(part))  # a product keeps no NaN's sign
    unweighted = whole if is_first else np.zeros_like(whole)
    if whole.dtype.kind == "b":
        return unweighted.copy()
    weight = np.asarray((2, -1, *[0] * axis_grid)[block]).astype(whole.dtype)
    with np.errstate(all="ignore"):
        part = (whole * weight).astype(whole.dtype)
        if kind_of(whole.dtype) not in "fc":
            return part
        return np.where(np.abs(whole) < limits_of(whole.dtype).max / 64, part, unweighted)


def _index(mesh: Mesh, grid: Sequence[int], axes: Axes, at: Sequence[int]) -> list[Any] | None:
    """Return the index of a shard along the mesh axes of the block at `grid`, or None if another
    block holds the shard. at: the shard's indices along the mesh axes `axes`."""
    index: list[Any] = [slice(None)] * mesh.ndim
    for a, c in zip(axes, at, strict=True):
        inside = c - grid[a] * mesh.box[a]
        if not 0 <= inside < mesh.box[a]:
            return None
        index[a] = slice(inside, inside + 1)
    return index


def _poison(padding: np.ndarray) -> Any:
    """Return the value that replaces padding of this dtype."""
    if kind_of(padding.dtype) in "fc":
        return np.nan
    return ~padding if padding.dtype.kind == "b" else np.iinfo(padding.dtype).max


def tolerance(dtypes: Sequence[np.dtype], length: int) -> float:
    """Return how far sums of `length` terms in different orders may differ, relatively.

    Each addition rounds once, so the bound is `length * eps`; 16 more roundings are allowed for
    transcendental functions, whose last digits depend on the length of a vector. It is 0 for
    dtypes that are not floating-point.

    >>> import numpy as np
    >>> gdt.testing.tolerance([np.dtype("float64")], 48) == 64 * 2.0**-52
    True
    """
    eps = [float(limits_of(d).eps) for d in dtypes if kind_of(d) in "fc"]
    return (length + 16) * max(eps, default=0.0)


def assert_close(got: np.ndarray, want: np.ndarray, bound: float, what: str) -> None:
    """Raise AssertionError, which begins with `what`, unless `got` is `want` within `bound`.

    bound: relative to the largest finite element of `want`, or to 1; 0 asks for equality.

    >>> import numpy as np
    >>> gdt.testing.assert_close(np.array([1.0]), np.array([1.0 + 1e-9]), 1e-6, "sum")
    """
    if kind_of(got.dtype) not in "fc" or not bound:
        if not np.array_equal(got, want, equal_nan=kind_of(got.dtype) in "fc"):
            raise AssertionError(f"{what}: got\n{got}\nexpected\n{want}")
        return
    finite = np.abs(want[np.isfinite(want)])
    scale = max(1.0, float(finite.max(initial=0)))
    close = np.isclose(got, want, rtol=bound, atol=bound * scale, equal_nan=True)
    if not close.all():
        count = f"{np.count_nonzero(~close)} of {close.size} elements differ"
        raise AssertionError(f"{what}: {count}; got\n{got}\nexpected\n{want}")


def assert_consistent(x: DistributedArray) -> None:
    """Raise AssertionError unless the blocks and shards of x agree with its type and value.

    Replicas on different devices must be bitwise equal.

    >>> gdt.testing.assert_consistent(gdt.ones((3,)))
    """
    value, array_type = x.numpy(), x.type
    if (value.shape, value.dtype) != (array_type.shape, array_type.dtype):
        raise AssertionError(f"numpy() of {array_type} is {value.dtype}{value.shape}")
    if len(x.blocks) != len(x.mesh.blocks):
        raise AssertionError(f"{len(x.blocks)} blocks on a mesh with {len(x.mesh.blocks)}")
    for block in x.blocks:
        if (block.shape, block.dtype) != (array_type.block_shape, array_type.dtype):
            want = f"{array_type.dtype}{array_type.block_shape}"
            raise AssertionError(
                f"a block of {array_type} is {block.dtype}{block.shape}, not {want}"
            )
    shards = x.shards
    coordinates = [s.coordinate for s in shards]
    if coordinates != x.mesh.local_coordinates():
        raise AssertionError(f"{array_type} has shards at {coordinates}")
    if any(array_type.layout.reductions):
        return
    for shard in {id(shard.data): shard for shard in shards}.values():  # of one memory once
        want = value[shard.index]
        data = backend_of(x.mesh).to_host(shard.data)
        if not np.array_equal(data, want, equal_nan=kind_of(array_type.dtype) in "fc"):
            problem = f"at {shard.coordinate}, {array_type} holds\n{data}\nnot\n{want}"
            raise AssertionError(problem)
