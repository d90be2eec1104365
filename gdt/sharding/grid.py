"""The sizes of a mesh: axes with their names, and the grid of blocks that hold its coordinates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gdt.errors import MeshError, error

MeshDims = Sequence[tuple[str, int]] | Mapping[str, int]


class MeshDimension(NamedTuple):
    """The name and size of one mesh axis, as `mesh["batch"]` returns it."""

    name: str
    size: int


def checked_dims(mesh_dims: MeshDims) -> list[tuple[str, int]]:
    """Return the (name, size) pairs of `mesh_dims`, or raise MeshError."""
    op = "create_mesh"
    pairs: Iterable[object] = (
        mesh_dims.items() if isinstance(mesh_dims, Mapping)
        else mesh_dims if isinstance(mesh_dims, Iterable)
        else [mesh_dims]
    )  # fmt: skip
    dims: list[tuple[str, int]] = []
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)):
            problem = f"{pair!r} is not a pair of an axis name and a size"
            raise error(MeshError, problem, remedy='Write create_mesh([("x", 8)]).')
        name, size = pair
        if not name.isidentifier() or name in ("unsharded", "match"):
            raise error(
                MeshError,
                op,
                f"{name!r} cannot name a mesh axis",
                remedy="Use an identifier, such as 'batch'.",
            )
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise error(
                MeshError, f"axis {name!r} has size {size!r}; a size is an int of at least 1"
            )
        if name in (n for n, _ in dims):
            raise error(MeshError, op, f"two mesh axes are called {name!r}")
        dims.append((name, int(size)))
    if not dims:
        raise error(
            MeshError, "a mesh needs at least one axis", remedy='Use [("x", 1)] for one device.'
        )
    return dims


def check_owners(sizes: tuple[int, ...], blocks: int, owners: int, op: str) -> None:
    """Raise MeshError unless each process can own an equal box of the mesh, of whole blocks."""
    if math.prod(sizes) % owners or (isinstance(blocks, int) and blocks % owners):
        wrong = "coordinates" if math.prod(sizes) % owners else "blocks"
        count = math.prod(sizes) if wrong == "coordinates" else blocks
        raise error(
            MeshError,
            op,
            f"{count} {wrong} cannot be shared equally by {owners} processes",
            operands={"mesh": "x".join(map(str, sizes))},
            remedy=f"Use a multiple of {owners}, or start another number of processes.",
        )
    block_grid(sizes, owners, op)


def block_grid(sizes: tuple[int, ...], blocks: int, op: str) -> tuple[int, ...]:
    """Return the number of blocks along each mesh axis, so that each hosts a contiguous box.

    Major axes are cut first. Raises MeshError where `blocks` equal boxes are impossible."""
    if isinstance(blocks, bool) or not isinstance(blocks, int) or blocks < 1:
        raise error(MeshError, f"blocks is {blocks!r}; it is an int of at least 1")
    grid, count = [], blocks
    for size in sizes:
        # A cut axis must end before the next one begins, else a block would not be a box.
        parts = count if size % count == 0 else size if count % size == 0 else 0
        if parts == 0:
            shape = "x".join(map(str, sizes))
            raise error(
                MeshError,
                op,
                f"{math.prod(sizes)} coordinates of a mesh of {shape} cannot be split contiguously "
                f"into {blocks} equal boxes",
                remedy="Use a number of physical devices that divides the leading mesh axes.",
            )
        grid.append(parts)
        count //= parts
    if count != 1:
        raise error(MeshError, f"{blocks} blocks are more than {math.prod(sizes)} coordinates")
    return tuple(grid)
