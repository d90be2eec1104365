"""Meshes and layouts to test on: all that there are, or a fixed spread of them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh, create_mesh


def meshes(
    sizes: Sequence[tuple[int, ...]] = ((2,), (4,), (2, 2), (2, 3)),
    *,
    modes: Sequence[str] = ("folded", "mixed", "apart"),
) -> list[Mesh]:
    """Meshes of these sizes in every storage mode: all coordinates in one block (`"folded"`), one
    block per coordinate (`"apart"`), and, where there is one, something between (`"mixed"`).

    >>> [mesh.grid for mesh in gdt.testing.meshes([(2, 2)])]
    [(1, 1), (2, 1), (2, 2)]
    """
    found = []
    for shape in sizes:
        size = math.prod(shape)
        blocks = {
            "folded": 1,
            "mixed": shape[0] if len(shape) > 1 else max(2, size // 2),
            "apart": size,
        }
        counts = dict.fromkeys(blocks[m] for m in modes if m != "mixed" or 1 < blocks[m] < size)
        dims = list(zip("abc", shape, strict=False))
        found += [create_mesh(dims, blocks=n, device_type="CPU") for n in counts]
    return found


def layouts(mesh: Mesh, rank: int, *, partial: bool = False) -> list[Layout]:
    """Every layout of that rank, with all orders of several mesh axes on one array axis, and all
    choices of partial sums if `partial`; the replicated one first.

    >>> len(gdt.testing.layouts(gdt.create_mesh([("a", 2), ("b", 2)]), 2))
    11
    """
    found = []
    nowhere, waits = -1, -2
    places = [nowhere, *range(rank), *([waits] if partial else [])]
    for assigned in itertools.product(places, repeat=mesh.ndim):
        on = [[a for a in range(mesh.ndim) if assigned[a] == d] for d in range(rank)]
        sums = tuple("sum" if d == waits else None for d in assigned)
        for dims in itertools.product(*[itertools.permutations(axes) for axes in on]):
            found.append(Layout.of(mesh, dims, sums))
    return found


def choices(
    mesh: Mesh, ranks: Sequence[int], *, partial: bool = True, limit: int = 16, seed: int = 0
) -> list[tuple[Layout, ...]]:
    """Layouts for operands of these ranks: all combinations, or `limit` of them spread at random
    but always in the same way; all replicated comes first."""
    options = [layouts(mesh, rank, partial=partial) for rank in ranks]
    total = math.prod(map(len, options))
    chosen: Sequence[int] = range(total)
    if total > limit:
        chosen = [0, *random.Random(seed).sample(range(1, total), limit - 1)]
    found = []
    for n in chosen:
        combination, left = [], n
        for option in options:
            left, i = divmod(left, len(option))
            combination.append(option[i])
        found.append(tuple(combination))
    return found
