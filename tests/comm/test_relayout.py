"""Relayout: every pair of layouts of small meshes moves the right values and sends the bytes that
its route says; bytes against those of the best route and of TF DTensor."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from functools import cache

import numpy as np
import pytest

import gdt
from gdt.comm.relayout import run_routes
from gdt.comm.transport import transport_of
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.routes import Transition, route, route_bytes, transition_between
from gdt.testing import assert_consistent, layouts, meshes, placed

SIZES = [(2,), (4,), (2, 2), (2, 3), (2, 2, 2)]
UNEVEN = {1: [(7,), (1,), (0,)], 2: [(5, 3), (9, 1), (0, 4)], 3: [(5, 1, 3)]}


def shapes(mesh: Mesh, rank: int) -> list[tuple[int, ...]]:
    return [(mesh.size,) * rank, *UNEVEN[rank]]


def mesh_id(mesh: Mesh) -> str:
    return "x".join(map(str, mesh.sizes)) + "-" + "x".join(map(str, mesh.grid))


def check_pairs(
    mesh: Mesh, shape: tuple[int, ...], *, partial: bool = True, most: int | None = None
) -> None:
    """Move from every layout to every other, or to `most` of them, other ones for each."""
    rng = random.Random(0)
    # Small integers, so that sums of parts are exact in any order.
    value = np.arange(1.0, 1 + math.prod(shape), dtype=np.float32).reshape(shape)
    every = layouts(mesh, len(shape), partial=partial)
    transport = transport_of(mesh)
    for have in every:
        x = placed(value, have, poison=True)
        for want in every if most is None else rng.sample(every, min(most, len(every))):
            transitions = route(x.type, want)
            before = sum(transport.bytes.values())
            (blocks,) = run_routes([transitions], [x.blocks])
            moved = sum(transport.bytes.values()) - before
            y = gdt.DistributedArray(x.type.with_layout(want), tuple(blocks))
            described = f"{shape}: {have} -> {want} by {[(s.kind, s.axes) for s in transitions]}"
            assert np.array_equal(y.numpy(), value), described
            assert_consistent(y)
            if mesh.grid == mesh.sizes:
                assert moved == sum(s.nbytes for s in transitions), described


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mesh", meshes(SIZES[:-1], modes=["folded", "apart"]), ids=mesh_id)
def test_relayout_of_all_pairs(mesh: Mesh, rank: int) -> None:
    for shape in shapes(mesh, rank):
        check_pairs(mesh, shape)


@pytest.mark.parametrize("most", [3, pytest.param(None, marks=pytest.mark.layouts_full)])
@pytest.mark.parametrize("shape", [(8,), (7,), (1,), (8, 8), (5, 3), (8, 8, 8), (5, 1, 3)], ids=str)
@pytest.mark.parametrize("mesh", meshes([(2, 2, 2)], modes=["folded", "apart"]), ids=mesh_id)
def test_relayout_on_three_axes(mesh: Mesh, shape: tuple[int, ...], most: int | None) -> None:
    check_pairs(mesh, shape, most=most)


@pytest.mark.parametrize("mesh", meshes([(2, 2), (2, 3), (2, 2, 2)], modes=["mixed"]), ids=mesh_id)
def test_relayout_where_blocks_host_several_coordinates(mesh: Mesh) -> None:
    for shape in [(mesh.size,) * 2, (5, 3)]:
        check_pairs(mesh, shape, partial=mesh.size < 8, most=None if mesh.size < 8 else 20)


def test_routes_do_not_depend_on_the_storage_mode() -> None:
    folded, apart = meshes([(2, 3)], modes=["folded", "apart"])
    for shape in [(6, 6), (5, 3)]:
        for have, want in itertools.product(range(18), repeat=2):
            transitions = []
            for mesh in (folded, apart):
                every = layouts(mesh, 2, partial=True)
                array_type = ArrayType.of(shape, np.dtype("f4"), every[have])
                transitions.append([(*s[:5], s.nbytes) for s in route(array_type, every[want])])
            assert transitions[0] == transitions[1]


# ---------------------------------------------------------------- the best route


def moves(have: ArrayType) -> list[Transition]:
    """Every primitive step that is possible from `have`."""
    mesh, dims, partial = have.mesh, have.layout.dims, have.layout.reductions
    used = {a for axes in dims for a in axes} | {a for a, p in enumerate(partial) if p}
    free = [a for a in range(mesh.ndim) if a not in used]
    waiting = [a for a, p in enumerate(partial) if p]

    def even(dim: int, axes: tuple[int, ...]) -> bool:
        return have.shape[dim] % math.prod(mesh.sizes[a] for a in axes) == 0

    def layout(
        changes: dict[int, tuple[int, ...]], waits: tuple[str | None, ...] = partial
    ) -> Layout:
        return Layout.of(mesh, tuple(changes.get(d, axes) for d, axes in enumerate(dims)), waits)

    def without(gone: tuple[int, ...]) -> tuple[str | None, ...]:
        return tuple(None if a in gone else p for a, p in enumerate(partial))

    found = []
    for a in free:
        waits = tuple("sum" if k == a else p for k, p in enumerate(partial))
        found.append(transition_between("pend", have, layout({}, waits), (a,)))
    for n in range(1, len(waiting) + 1):
        for axes in itertools.combinations(waiting, n):
            found.append(
                transition_between(
                    "all_reduce", have, layout({}, without(axes)), axes, reduction="sum"
                )
            )
    for d, axes in enumerate(dims):
        for n in range(1, len(free) + 1):
            for new in itertools.permutations(free, n):
                if not axes or even(d, (*axes, *new)):
                    found.append(
                        transition_between("slice", have, layout({d: (*axes, *new)}), new, d)
                    )
        for a in waiting:
            if not axes or even(d, (*axes, a)):
                to = layout({d: (*axes, a)}, without((a,)))
                found.append(
                    transition_between("reduce_scatter", have, to, (a,), d, reduction="sum")
                )
        for n in range(len(axes)):
            if n == 0 or even(d, axes):
                found.append(transition_between("gather", have, layout({d: axes[:n]}), axes[n:], d))
        for n in range(len(axes)):
            if n == 0 or even(d, axes):
                sums = tuple(
                    "sum" if a in axes[n:] else r for a, r in enumerate(have.layout.reductions)
                )
                to = layout({d: axes[:n]}, sums)
                found.append(transition_between("spread", have, to, axes[n:], d))
        if axes and (len(axes) == 1 or even(d, axes)):
            for e, other in enumerate(dims):
                if e != d and (not other or even(e, (*other, axes[-1]))):
                    both = layout({d: axes[:-1], e: (*other, axes[-1])})
                    found.append(transition_between("all_to_all", have, both, (axes[-1],), d, e))
        if axes:
            for n in range(len(axes) + len(free) + 1):
                for new in itertools.permutations([*axes, *free], n):
                    if new and new != axes:
                        involved = tuple(sorted({*axes, *new}))
                        found.append(
                            transition_between("recut", have, layout({d: new}), involved, d)
                        )
    return found


edges = cache(moves)


def place(layout: Layout, axis: int) -> tuple[int, int] | str | None:
    """Where a mesh axis is: its array axis and its order there, or the reduction that waits."""
    for d, axes in enumerate(layout.dims):
        if axis in axes:
            return d, axes.index(axis)
    return layout.reductions[axis]


def stays(have: Layout, want: Layout, axis: int) -> bool:
    """Whether a mesh axis keeps its place, or is unused until a reduction is made partial. Routes
    leave such axes alone: to cut along them and gather again may send a little less, in twice as
    many collectives."""
    before, after = place(have, axis), place(want, axis)
    return before == after or (before is None and isinstance(after, str))


def cheapest(
    start: ArrayType, fixed: frozenset[int] = frozenset(), sums: frozenset[int] = frozenset()
) -> dict[Layout, int]:
    """Bytes of the best route from `start` to every layout (Dijkstra) in which the mesh axes
    `fixed` stay in their places. Shards along `sums` may become parts of a sum: along other axes
    a detour by a sum would now and then save some padding."""
    best: dict[Layout, int] = {}
    queue = [(0, 0, start)]
    order = itertools.count(1)
    while queue:
        cost, _, array_type = heapq.heappop(queue)
        if array_type.layout in best:
            continue
        best[array_type.layout] = cost
        for transition in edges(array_type):
            kept = all(place(transition.want.layout, a) == place(start.layout, a) for a in fixed)
            kept &= transition.kind != "spread" or sums.issuperset(transition.axes)
            if kept and transition.want.layout not in best:
                heapq.heappush(queue, (cost + transition.nbytes, next(order), transition.want))
    return best


@pytest.mark.parametrize("sizes", [(4,), (2, 2), (2, 3), (2, 2, 2)], ids=str)
def test_routes_send_the_fewest_bytes(sizes: tuple[int, ...]) -> None:
    (mesh,) = meshes([sizes], modes=["folded"])
    for shape in [(mesh.size,), (7,), (12, 12), (5, 3)]:
        if mesh.ndim == 3 and len(shape) == 2:
            continue
        every = layouts(mesh, len(shape), partial=True)
        for have in every:
            array_type = ArrayType.of(shape, np.dtype("f4"), have)
            best: dict[tuple[frozenset[int], ...], dict[Layout, int]] = {}
            for want in every:
                fixed = frozenset(a for a in range(mesh.ndim) if stays(have, want, a))
                sums = frozenset(
                    a for a, p in enumerate(want.reductions) if p and type(place(have, a)) is tuple
                )
                if (fixed, sums) not in best:
                    best[fixed, sums] = cheapest(array_type, fixed, sums)
                waits = tuple(
                    None if a in fixed and place(have, a) is None else p
                    for a, p in enumerate(want.reductions)
                )
                value = Layout.of(mesh, want.dims, waits)  # to make a reduction partial is free
                took, least = route_bytes(array_type, want), best[fixed, sums][value]
                taken = [(s.kind, s.nbytes) for s in route(array_type, want)]
                assert took == least, f"{array_type} -> {want}: {taken}, the best sends {least}"


# ---------------------------------------------------------------- TF DTensor's bytes

# float32[8, 8] on a mesh x=4, y=2: layouts, and the collective that TF runs with its local shapes.
TF_ROWS = [
    (["x", None], [None, None], "gather", (2, 8), (8, 8)),
    ([None, None], ["x", None], "slice", (8, 8), (2, 8)),
    (["x", None], [None, "x"], "all_to_all", (2, 8), (8, 2)),
    (["x", None], ["y", None], "gather", (2, 8), (8, 8)),
    (["x", "y"], ["y", "x"], "gather", (2, 4), (8, 8)),
    (["x", "y"], [None, None], "gather", (2, 4), (8, 8)),
    (["x", "y"], ["x", None], "gather", (2, 4), (2, 8)),
    (["x", None], ["x", "y"], "slice", (2, 8), (2, 4)),
]


@pytest.mark.parametrize("row", TF_ROWS, ids=lambda r: f"{r[0]}->{r[1]}")
def test_relayout_sends_no_more_bytes_than_tf(row: tuple) -> None:
    have, want, kind, local_in, local_out = row
    mesh = gdt.create_mesh([("x", 4), ("y", 2)])
    received = {
        "gather": math.prod(local_out) - math.prod(local_in),
        "slice": 0,
        "all_to_all": math.prod(local_in) * 3 // 4,  # a quarter stays
    }[kind]
    x = ArrayType.of((8, 8), np.dtype("f4"), Layout(have, mesh))
    assert route_bytes(x, Layout(want, mesh)) <= mesh.size * received * 4


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_a_negative_zero_survives_a_partial_sum(blocks: int, dtype: str) -> None:
    mesh = gdt.create_mesh([("a", 4)], blocks=blocks)
    x = gdt.asarray(np.array([-0.0, 0.0, 1.0], dtype), layout=Layout([None], mesh))
    y = gdt.relayout(x, Layout([None], mesh, partial=["a"])).numpy()
    assert y.tobytes() == x.numpy().tobytes()


def test_relayout_like_takes_the_layout_of_another_array() -> None:
    mesh = gdt.create_mesh([("a", 2)])
    x = gdt.arange(6.0, layout=gdt.Layout(["a"], mesh))
    moved = gdt.relayout_like(np.arange(4.0), x)
    assert moved.layout is x.layout
    assert moved.tolist() == [0.0, 1.0, 2.0, 3.0]
