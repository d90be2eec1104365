"""Moving intervals sends what changes its device, and nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gdt
from gdt.comm.recut import MANY, RecutRunner
from gdt.comm.transport import transport_of
from gdt.ops.blocks.intervals import move_intervals
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.recut import Margins, Piece, Recut
from gdt.testing import assert_consistent, layouts, meshes, placed
from tests.strict import engine


def line(size: int, mesh: Mesh, *, split: bool = True) -> ArrayType:
    return ArrayType.of((size,), np.dtype(np.int64), Layout.of(mesh, ((0,) if split else (),)))


@pytest.mark.parametrize(
    ("size", "new", "pieces", "elements"),
    [
        (8, 8, [Piece(0, 0, 0, 8)], 0),  # nothing moves
        (8, 8, [Piece(0, 7, 0, 8, -1)], 8),  # reversed: every element changes its shard
        (8, 8, [Piece(0, 0, 1, 7), Piece(0, 7, 0, 1)], 4),  # rolled by one: one element per shard
        (8, 6, [Piece(0, 2, 0, 6)], 6),  # x[2:]: all go one shard down
        (8, 10, [Piece(0, 0, 2, 8)], 2),  # two in front: shards of 3, only 1 and 6 move
        (8, 4, [Piece(0, 0, 0, 4, 2)], 0),  # x[::2]: each shard keeps its first
        (9, 9, [Piece(0, 0, 0, 9)], 0),
        (9, 3, [Piece(0, 3, 0, 3)], 2),  # x[3:6] was on shard 1, and one stays there
    ],
)
def test_only_elements_that_change_their_shard_are_sent(
    size: int, new: int, pieces: list[Piece], elements: int
) -> None:
    mesh = gdt.create_mesh([("x", 4)], blocks=4)
    recut = Recut([line(size, mesh)], line(new, mesh), 0, pieces)
    assert recut.nbytes == 8 * elements
    x = gdt.asarray(np.arange(size), layout=Layout.of(mesh, ((0,),)))
    before = transport_of(mesh).bytes["exchange"]
    RecutRunner(recut)(x.blocks)
    assert transport_of(mesh).bytes["exchange"] - before == 8 * elements


def test_one_row_is_sent_once_to_each_device_that_lacks_it() -> None:
    mesh = gdt.create_mesh([("x", 4)], blocks=4)
    x = gdt.asarray(np.arange(32).reshape(8, 4), layout=gdt.Layout(["x", None], mesh))
    before = transport_of(mesh).bytes["exchange"]
    row = x[5]
    assert transport_of(mesh).bytes["exchange"] - before == 3 * 4 * 8
    assert row.layout.is_fully_replicated() and row.tolist() == [20, 21, 22, 23]


@pytest.mark.parametrize("sizes", [(4,), (2, 2), (2, 3)])
def test_bytes_counted_are_the_minimum_and_those_sent(sizes: tuple[int, ...]) -> None:
    (mesh,) = meshes([sizes], modes=["apart"])
    for have in layouts(mesh, 1):
        for want in layouts(mesh, 1):
            source = ArrayType.of((9,), np.dtype(np.int64), have)
            target = ArrayType.of((9,), np.dtype(np.int64), want)
            recut = Recut([source], target, 0, [Piece(0, 0, 0, 9)])
            missing = 0
            for c in mesh.coordinates():
                (a,), (b,) = source.shard_slices(c), target.shard_slices(c)
                missing += len({*range(b.start, b.stop)} - {*range(a.start, a.stop)})
            assert recut.nbytes == 8 * missing
            x = gdt.asarray(np.arange(9), layout=have)
            before = transport_of(mesh).bytes["exchange"]
            out = gdt.DistributedArray(target, tuple(RecutRunner(recut)(x.blocks)))
            assert transport_of(mesh).bytes["exchange"] - before == 8 * missing
            assert out.tolist() == list(range(9))


@pytest.mark.parametrize("margins", [(), ((1, 2, 1),)])
@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [Piece(0, 2, 3, 4)],
        [Piece(0, 5, 6, 3), Piece(0, 4, 1, 2, -1), Piece(0, 2, 4, 1)],
        [Piece(0, 0, 1, 3, 1, 2)],
        [Piece(0, 0, 2, 9)],
        [Piece(0, 0, 0, 6), Piece(0, 8, 6, 3, -1), Piece(0, 6, 9, 2)],
    ],
)
def test_what_no_piece_covers_is_filled(pieces: list[Piece], margins: Margins) -> None:
    """In shards of any length, without one, and around them."""
    values, fill = np.arange(27.0).reshape(9, 3), np.array(7.0)
    expected = np.full((11, 6 if margins else 3), 7.0)
    for _, at, start, count, step, stride in pieces:
        columns = slice(2, 5) if margins else slice(None)
        for i in range(count):
            expected[start + i * stride, columns] = values[at + i * step]
    for mesh in meshes([(2,), (2, 3), (16,)]):
        for layout in layouts(mesh, 2):
            if margins and layout.dims[1]:
                continue
            x = gdt.asarray(values, layout=layout)
            out = move_intervals([x], 0, pieces, 11, fill.tobytes(), margins=margins)
            np.testing.assert_array_equal(out.numpy(), expected)


def test_the_transposed_pieces_undo_a_move() -> None:
    for step in (1, 2, -1, -3):
        for stride in (1, 2):
            piece = Piece(0, 2 if step > 0 else 11, 1, 4, step, stride)
            x = np.arange(12.0)
            out, back = np.zeros(9), np.zeros(12)
            for i in range(piece.count):
                out[piece.start + i * piece.stride] = x[piece.at + i * piece.step]
            again = piece.transposed()
            for i in range(again.count):
                back[again.start + i * again.stride] = out[again.at + i * again.step]
            taken = [piece.at + i * piece.step for i in range(piece.count)]
            assert [back[i] for i in taken] == [x[i] for i in taken]
            assert math.isclose(back.sum(), sum(x[i] for i in taken))


@pytest.mark.parametrize("dtype", ["float32", "mixed"])
@pytest.mark.parametrize("count", [8, 9, 40])
def test_joins_of_many_arrays_are_captured(count: int, dtype: str) -> None:
    """As CuPy joins more than eight, a graph cannot hold it."""
    engine.register()
    kinds = ["float32", "float64" if dtype == "mixed" else "float32"]
    whole = [np.arange(2.0 * i, 2 * i + 2).astype(kinds[i % 2]) for i in range(count)]
    with gdt.default_mesh(engine.mesh({"x": 2})):
        arrays = [gdt.asarray(a) for a in whole]
        step = gdt.function(lambda *xs: (gdt.concat(xs), gdt.stack(xs, axis=1)))
        for _ in range(6):
            joined, stacked = step(*arrays)
        launches = sum(what == "launch" for _, what, _ in engine.CUPY.calls)
        step(*arrays)
        assert sum(what == "launch" for _, what, _ in engine.CUPY.calls) == launches + 1
    np.testing.assert_array_equal(joined.numpy(), np.concatenate(whole))
    np.testing.assert_array_equal(stacked.numpy(), np.stack(whole, 1))
    assert joined.dtype == np.concatenate(whole).dtype


def test_joining_sends_nothing_where_shards_stay_whole() -> None:
    mesh = gdt.create_mesh([("x", 4)], blocks=4)
    rows = gdt.Layout(["x", None], mesh)
    a, b = gdt.ones((8, 2), layout=rows), gdt.ones((8, 3), layout=gdt.Layout.replicated(mesh, 2))
    before = transport_of(mesh).bytes.copy()
    joined = gdt.concat([b, a], axis=1)
    assert transport_of(mesh).bytes == before
    assert joined.layout is rows


@pytest.mark.parametrize("size", [1, 99, 100, 101, 250, 643])
def test_many_shards_of_one_block_move_as_one_array(size: int) -> None:
    mesh = gdt.create_mesh([("a", 20), ("b", 5)])
    assert mesh.size > MANY
    values = np.arange(2.0 * size).reshape(size, 2)
    for split in ("a", ("a", "b"), ("b", "a")):
        x = placed(values, gdt.Layout([split, None], mesh), poison=True)
        for made, want in [
            (x[1:], values[1:]),
            (x[::-2], values[::-2]),
            (gdt.roll(x, 3, axis=0), np.roll(values, 3, axis=0)),
            (gdt.pad(x, ((2, 1), (1, 0))), np.pad(values, ((2, 1), (1, 0)))),
            (gdt.concat([x, x[:3]]), np.concatenate([values, values[:3]])),
            (gdt.cumsum(x, axis=0), np.cumsum(values, axis=0)),
            (x.reshape(2, -1), values.reshape(2, -1)),
        ]:
            assert_consistent(made)
            np.testing.assert_array_equal(made.numpy(), want)
        gradient = gdt.grad(lambda x: gdt.sum(x[1::2] * x[: x[1::2].shape[0]]))(x)
        odd = values[1::2]
        want = np.zeros_like(values)
        want[1::2] += values[: len(odd)]
        want[: len(odd)] += odd
        np.testing.assert_array_equal(gradient.numpy(), want)
