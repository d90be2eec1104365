"""The fast paths of ops that move blocks make what they make where moves are watched, bit for bit.

`count_collectives` watches moves.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.array.array import DistributedArray
from gdt.caches import BUDGET
from gdt.errors import ArgumentError, AxisError, DtypeError, GdtError, ShapeError
from gdt.ops.blocks.intervals import _move_intervals
from gdt.ops.slicing import _cut, key_of

MESHES = [{"a": 4}, {"a": 2, "b": 3}]
SHAPES = [(6, 4), (5, 1), (1, 3), (0, 2)]
LAYOUTS: list[tuple[list[Any], list[str]]] = [
    ([None, None], []),
    (["a", None], []),
    ([None, "a"], []),
    ([None, None], ["a"]),
]
INDICES: list[Any] = [
    (slice(None), 0),
    0,
    -1,
    (..., None),
    (None, slice(1, None)),
    (slice(None, None, -1), slice(None, None, 2)),
    (slice(2, 0), -1),
    (slice(1, 4), None, 0),
    (0, ..., None, 0),
    (...,),
]
CALLS: list[Callable[[DistributedArray], Any]] = [
    lambda x: gdt.concat([x, x], axis=0),
    lambda x: gdt.concat([x, x[:1], x], axis=0),
    lambda x: gdt.concat([x, x * 2], axis=1),
    lambda x: gdt.stack([x, x], axis=1),
    lambda x: gdt.roll(x, 2, axis=0),
    lambda x: gdt.shift(x, 2, axis=0),
    lambda x: gdt.shift(x, -1, axis=0, fill=np.nan),
    lambda x: gdt.pad(x, 1, constant_values=3),
    lambda x: gdt.pad(x, (2, 0)),
    lambda x: gdt.tile(x, (2, 2)),
    lambda x: gdt.repeat(x, 2, axis=0),
    gdt.flip,
]


def arrays(facts: dict[str, int], blocks: int = 1) -> list[DistributedArray]:
    """Arrays of several shapes in several layouts on a mesh."""
    mesh = gdt.create_mesh(list(facts.items()), blocks=blocks)
    found = []
    for shape in SHAPES:
        values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        for specs, partial in LAYOUTS:
            found.append(gdt.asarray(values, layout=gdt.Layout(specs, mesh, partial=partial)))
    return found


def results(call: Callable[[DistributedArray], Any], x: DistributedArray) -> list[Any]:
    """Type and bits of what a call makes, and of its gradient; or its error."""
    x = DistributedArray(x.type, x.blocks)  # of which no value of a partial sum is remembered
    with gdt.GradientTape() as tape:
        try:
            out = call(x)
        except GdtError as e:
            return [type(e), str(e)]
    grad = tape.gradient(out * out, x, unconnected="zero")
    return [(a.type, [b.tobytes() for b in a.blocks]) for a in (out, grad)]


@pytest.mark.parametrize("facts", MESHES, ids=str)
@pytest.mark.parametrize("blocks", [1, "all"])
def test_fast_paths_make_what_is_made_where_moves_are_watched(
    facts: dict[str, int], blocks: int | str
) -> None:
    count = int(np.prod(list(facts.values()))) if blocks == "all" else 1
    for x in arrays(facts, count):
        for call in [*CALLS, *[lambda x, i=i: x[i] for i in INDICES]]:
            with gdt.count_collectives():
                expected = results(call, x)
            for _ in range(3):  # found, taken, taken with gradients that are replayed
                assert results(call, x) == expected


def test_the_tape_has_one_entry_for_an_index() -> None:
    x = gdt.ones((4, 3))
    with gdt.GradientTape() as tape:
        x[:, 0]
        x[:]
    assert [op.name for op, *_ in tape.nodes or ()] == ["cut", "cut"]


def test_what_is_equal_to_an_index_is_none() -> None:
    x = gdt.ones((4, 3))
    assert x[1].shape == (3,)
    assert x[True:].shape == (3, 3)
    assert key_of(1) is not None
    assert key_of(1.0) is None and key_of(True) is None and key_of(slice(1.0)) is None
    for wrong in (1.0, (0, 1.0), slice(0.0, 2), slice("1")):
        with pytest.raises(DtypeError):
            x[wrong]
    assert x[True].shape == (1, 4, 3)


def test_plans_of_ever_new_indices_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BUDGET, "nbytes", 16 * _cut.plans.nbytes)
    x = gdt.arange(40)
    for i in range(30):
        assert int(x[i]) == i
        assert len(_cut.plans) <= 8


@pytest.mark.parametrize("axis", [True, 1.5, "0", [0], 2, -3])
def test_concat_names_an_axis_that_is_none(axis: Any) -> None:
    x = gdt.ones((2, 2))
    gdt.concat([x, x], 1)
    with pytest.raises(AxisError if type(axis) is int else ArgumentError, match="concat: axis"):
        gdt.concat([x, x], axis)


def test_constants_of_equal_value_are_told_apart() -> None:
    x = gdt.ones(1)
    assert str(gdt.pad(x, (0, 1), constant_values=0.0).tolist()) == "[1.0, 0.0]"
    assert str(gdt.pad(x, (0, 1), constant_values=-0.0).tolist()) == "[1.0, -0.0]"
    before = len(_move_intervals.plans)
    for _ in range(3):
        assert str(gdt.pad(x, (0, 1), constant_values=float("nan")).tolist()) == "[1.0, nan]"
    assert len(_move_intervals.plans) == before + 1


@pytest.mark.parametrize("mode", ["mean", "median", "maximum"])
def test_a_statistic_of_padding_is_sent_once_for_each_side_that_has_some(mode: str) -> None:
    x = gdt.arange(10.0, layout=gdt.Layout(["a"], gdt.create_mesh([("a", 4)], blocks=4)))
    for width in ((1, 1), (0, 1), (1, 0)):
        with gdt.count_collectives() as counter:
            y = gdt.pad(x, width, mode)
        assert len(counter) == sum(width) + 1  # and the exchange that joins them
        assert y.layout is x.layout
        np.testing.assert_array_equal(y.numpy(), np.pad(x.numpy(), width, mode=mode))


def test_a_shift_sends_what_crosses_borders_and_no_more() -> None:
    for blocks in (1, 4):
        mesh = gdt.create_mesh([("a", 4)], blocks=blocks)
        x = gdt.ones((8, 5), "float32", layout=gdt.Layout(["a", None], mesh))
        for n, rows in ((1, 3), (-1, 3), (2, 6), (3, 5), (7, 1), (8, 0), (-99, 0)):
            with gdt.count_collectives() as counter:
                gdt.shift(x, n, axis=0)
            assert counter.bytes == rows * 5 * 4, n
            assert len(counter.collectives) == (rows > 0), n


def test_what_cannot_be_shifted_is_named() -> None:
    x = gdt.arange(4)
    with pytest.raises(ArgumentError, match=r"n is 1\.5, not an int"):
        gdt.shift(x, 1.5)
    with pytest.raises(ArgumentError, match="n is True, not an int"):
        gdt.shift(x, True)
    with pytest.raises(DtypeError, match=r"int64 cannot hold the constant 0\.5"):
        gdt.shift(x, 1, fill=0.5)
    with pytest.raises(ShapeError, match=r"shift: the constant has shape \[2\], and is one number"):
        gdt.shift(x, 1, fill=[1, 2])
    with pytest.raises(AxisError, match="shift: axis 3 is out of range"):
        gdt.shift(x, 1, axis=3)
