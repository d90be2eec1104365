"""Meshes and layouts to test on: all of them, or a fixed sample."""

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
    """Return meshes of these sizes in every storage mode.

    modes: `"folded"`, all coordinates in one block; `"apart"`, one block per coordinate; `"mixed"`,
    a number of blocks between, where there is one.

    >>> [mesh.grid for mesh in gdt.testing.meshes([(2, 2)])]
    [(1, 1), (2, 1), (2, 2)]
    """
    all_meshes = []
    for shape in sizes:
        size = math.prod(shape)
        blocks = {
            "folded": 1,
            "mixed": shape[0] if len(shape) > 1 else max(2, size // 2),
            "apart": size,
        }
        counts = dict.fromkeys(blocks[m] for m in modes if m != "mixed" or 1 < blocks[m] < size)
        dims = list(zip("abc", shape, strict=False))
        all_meshes += [create_mesh(dims, blocks=n, device_type="CPU") for n in counts]
    return all_meshes


def layouts(mesh: Mesh, rank: int, *, partial: bool = False) -> list[Layout]:
    """Return every layout of `rank` array axes on `mesh`, the replicated one first.

    They include all orders of several mesh axes on one array axis, and with `partial` all choices
    of partial sums.

    >>> len(gdt.testing.layouts(gdt.create_mesh([("a", 2), ("b", 2)]), 2))
    11
    """
    all_layouts = []
    replicated, summed = -1, -2  # places of a mesh axis beside the array axes
    places = [replicated, *range(rank), *([summed] if partial else [])]
    for assigned in itertools.product(places, repeat=mesh.ndim):
        on = [[a for a in range(mesh.ndim) if assigned[a] == d] for d in range(rank)]
        sums = tuple("sum" if d == summed else None for d in assigned)
        for dims in itertools.product(*[itertools.permutations(axes) for axes in on]):
            all_layouts.append(Layout.of(mesh, dims, sums))
    return all_layouts


def choices(
    mesh: Mesh,
    ranks: Sequence[int],
    *,
    partial: bool = True,
    limit: int = 16,
    seed: int = 0,
    reductions: Sequence[str] = ("sum",),
) -> list[tuple[Layout, ...]]:
    """Return combinations of layouts for operands of these ranks, all replicated first.

    limit: the largest number of combinations; of more, a sample that `seed` determines is taken.
    reductions: the reductions of partial operands; one is drawn for each operand.

    >>> mesh = gdt.create_mesh([("a", 2)])
    >>> [str(x) for (x,) in gdt.testing.choices(mesh, [1])]
    ['[-]', "['a']", "[-] + sum over 'a'"]
    """
    rng = random.Random(seed)
    options = [layouts(mesh, rank, partial=partial) for rank in ranks]
    total = math.prod(map(len, options))
    numbers: Sequence[int] = range(total)
    if total > limit:
        numbers = [0, *rng.sample(range(1, total), limit - 1)]
    combinations = []
    for n in numbers:
        combination, rest = [], n
        for option in options:
            rest, i = divmod(rest, len(option))
            combination.append(_reduced_by(option[i], rng.choice(reductions)))
        combinations.append(tuple(combination))
    return combinations


def _reduced_by(layout: Layout, reduction: str) -> Layout:
    """Return the layout with `reduction` in place of its partial sums."""
    reductions = tuple([reduction if r else None for r in layout.reductions])
    return Layout.of(layout.mesh, layout.dims, reductions)
