"""Any index gives what NumPy gives, in any layout; what it sends, and what its errors say."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gdt
from gdt.backend import NUMPY
from gdt.comm.vectors import Exchange
from gdt.errors import ArgumentError, DtypeError, IndexRangeError, ShapeError
from gdt.ops.repeated_rows import _pieces, repeated_rows
from gdt.testing import assert_consistent, layouts, meshes, placed

MESHES = meshes([(2,), (4,), (2, 2), (2, 3)])


@st.composite
def placed_arrays(draw: st.DrawFn) -> tuple[np.ndarray, gdt.DistributedArray]:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9))
    mesh = draw(st.sampled_from(MESHES))
    layout = draw(st.sampled_from(layouts(mesh, len(shape), partial=True)))
    x = np.arange(np.prod(shape)).reshape(shape)
    return x, placed(x, layout, poison=draw(st.booleans()))


MESH = gdt.create_mesh([("x", 4)])


@settings(max_examples=300)
@given(st.data())
def test_basic_indices_equal_numpy(data: st.DataObject) -> None:
    x, distributed = data.draw(placed_arrays())
    index = data.draw(hnp.basic_indices(x.shape, allow_newaxis=True, allow_ellipsis=True))
    got = distributed[index]
    assert_consistent(got)
    np.testing.assert_array_equal(got.numpy(), x[index])


BOUNDS = (None, 0, 2, 3, 9, -1, -3, -4, -9)


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("split", ["x", None])
def test_slices_beyond_the_ends_equal_numpy(split: str | None, blocks: int) -> None:
    layout = gdt.Layout([None, split], gdt.create_mesh([("x", 4)], blocks=blocks))
    x = np.arange(6).reshape(2, 3)
    distributed = gdt.asarray(x, layout=layout)
    for start, stop, step in itertools.product(BOUNDS, BOUNDS, (1, 2, -1, -2, -9)):
        index = (slice(None), slice(start, stop, step))
        got = distributed[index]
        assert_consistent(got)
        np.testing.assert_array_equal(got.numpy(), x[index])


@settings(max_examples=150)
@given(st.data())
def test_gradients_of_slices_go_back_to_their_place(data: st.DataObject) -> None:
    x, _ = data.draw(placed_arrays())
    mesh = data.draw(st.sampled_from(MESHES))
    layout = data.draw(st.sampled_from(layouts(mesh, x.ndim)))
    index = data.draw(hnp.basic_indices(x.shape, allow_newaxis=True, allow_ellipsis=True))
    values = gdt.asarray(x + 1.0, layout=layout)
    with gdt.GradientTape() as tape:
        picked = values[index]
        loss = gdt.sum(picked * picked)
    want = np.zeros(x.shape)
    want[index] = 2 * (x + 1.0)[index]
    gradient = tape.gradient(loss, values, unconnected="zero")
    assert gradient.layout is layout
    np.testing.assert_array_equal(gradient.numpy(), want)


@settings(max_examples=150)
@given(st.data())
def test_integer_arrays_equal_numpy(data: st.DataObject) -> None:
    x, distributed = data.draw(placed_arrays())
    if 0 in x.shape:
        return
    points = hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=3)
    axes = data.draw(st.integers(1, x.ndim))
    index: Any = data.draw(hnp.integer_array_indices(x.shape[:axes], result_shape=points))
    got = distributed[index]
    assert_consistent(got)
    np.testing.assert_array_equal(got.numpy(), x[index])


def test_axes_of_separated_arrays_stand_first() -> None:
    """What separates them may be a `...` that stands for no axis."""
    x = np.arange(24.0).reshape(2, 3, 4)
    rows, all_ = np.array([[1], [-2], [0]]), slice(None)
    for index in (
        (all_, 0, ..., rows), (all_, rows, ..., rows), (all_, ..., 0, rows), (0, ..., rows),
        (all_, rows, rows, ...), (all_, 0, None, rows), (rows, all_, rows), (..., rows, 0, rows),
    ):  # fmt: skip
        distributed = gdt.asarray(x, layout=gdt.Layout([None, "x", None], MESH))
        np.testing.assert_array_equal(distributed[index].numpy(), x[index])
        values, written = np.arange(x[index].size).reshape(x[index].shape), x.copy()
        written[index] = values
        distributed[index] = values
        np.testing.assert_array_equal(distributed.numpy(), written)


@settings(max_examples=60)
@given(st.data())
def test_masks_equal_numpy(data: st.DataObject) -> None:
    x, distributed = data.draw(placed_arrays())
    axes = data.draw(st.integers(1, x.ndim))
    sizes = [data.draw(st.sampled_from((n, n, n, 0))) for n in x.shape[:axes]]  # 0 fits any axis
    mask = data.draw(hnp.arrays(bool, tuple(sizes)))
    np.testing.assert_array_equal(distributed[mask].numpy(), x[mask])
    np.testing.assert_array_equal(distributed[gdt.asarray(mask)].numpy(), x[mask])


X = gdt.asarray(np.arange(12.0).reshape(4, 3), layout=gdt.Layout(["x", None], MESH))

ERRORS = [
    (IndexRangeError, lambda: X[4], "getitem: index 4 is out of range for axis 0 of size 4"),
    (IndexRangeError, lambda: X[0, -4], "index -4 is out of range for axis 1 of size 3"),
    (IndexRangeError, lambda: X[0, 0, 0], "getitem: 3 indices are too many for rank 2"),
    (IndexRangeError, lambda: X[..., 0, ...], "one `...` at most"),
    (IndexRangeError, lambda: X[[0, 9]], "index 9 is out of range for axis 0 of size 4"),
    (IndexRangeError, lambda: X[:, gdt.asarray([3])], "index 3 is out of range for axis 1"),
    (IndexRangeError, lambda: X[[0, 1], [0, 1, 2]], "shapes \\[2\\], \\[3\\] do not broadcast"),
    (
        IndexRangeError,
        lambda: X[np.ones(3, bool)],
        "a mask of shape \\[3\\] does not fit axes of \\[4\\]",
    ),
    (DtypeError, lambda: X[0.5], "0.5 is no index"),
    (DtypeError, lambda: X[[0.5]], "is no index"),
    (DtypeError, lambda: X["a"], "'a' is no index"),
    (DtypeError, lambda: X[:, "a":], "is no slice"),
    (ArgumentError, lambda: X[::0], "slice step cannot be zero"),
    (
        IndexRangeError,
        lambda: gdt.take(X, 4, axis=0),
        "take: index 4 is out of range for axis 0 of size 4",
    ),
    (
        IndexRangeError,
        lambda: gdt.take(X, gdt.asarray([-13])),
        "index -13 is out of range for axis 0 of size 12",
    ),
    (
        IndexRangeError,
        lambda: gdt.take_along_axis(X, [[3]], axis=1),
        "index 3 is out of range for axis 1",
    ),
    (DtypeError, lambda: gdt.take(X, [0.5], axis=0), "take: indices have dtype float64"),
    (DtypeError, lambda: gdt.take(X, [True], axis=0), "take: indices have dtype bool"),
    (ShapeError, lambda: gdt.take(X, 0, axis=2), "take: axis 2 is out of range for rank 2"),
    (ShapeError, lambda: gdt.take_along_axis(X, [0], axis=0), "do not have the same rank"),
    (ArgumentError, lambda: gdt.one_hot([1], -1), "depth is -1"),
    (DtypeError, lambda: gdt.one_hot([1.0], 3), "indices have dtype float64"),
]


@pytest.mark.parametrize(("kind", "call", "text"), ERRORS, ids=[text for _, _, text in ERRORS])
def test_errors_say_which_index(kind: type[Exception], call: Any, text: str) -> None:
    with gdt.default_mesh(MESH), pytest.raises(kind, match=text):
        call()


def test_a_mask_that_is_distributed_is_not_fetched() -> None:
    with gdt.implicit_fetch("raise"), gdt.no_moves():
        assert X[X > 3].shape == (int((X.numpy() > 3).sum()),)


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_a_split_table_is_not_gathered(blocks: int) -> None:
    mesh = gdt.create_mesh([("vocabulary", 4)], blocks=blocks)
    values = np.random.default_rng(0).standard_normal((9, 3))
    table = gdt.asarray(values, layout=gdt.Layout(["vocabulary", None], mesh))
    with gdt.no_moves(), gdt.GradientTape() as tape:
        rows = gdt.take(table, [8, 0, 8, 3], axis=0)
    assert rows.layout.partial == {"vocabulary": "sum"}
    np.testing.assert_array_equal(rows.numpy(), values[[8, 0, 8, 3]])
    with gdt.no_moves():
        gradient = tape.gradient(rows, table)
    assert gradient.layout is table.layout
    assert gradient.numpy()[:, 0].tolist() == [1, 0, 0, 1, 0, 0, 0, 0, 2]


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize(
    "index",
    [
        True, False, np.True_, np.array(False), (slice(1, None), True), (..., False), (True, 0),
        (True, [0, 2]), (None, True), (0, True), (True, True),
        (np.array([True, False, True]), True),
    ],
    ids=str,
)  # fmt: skip
def test_masks_of_rank_0_take_all_or_nothing(blocks: int, index: Any) -> None:
    mesh = gdt.create_mesh([("x", 4)], blocks=blocks)
    values = np.arange(12.0).reshape(3, 4)
    x = gdt.asarray(values, layout=gdt.Layout(["x", None], mesh))
    got = x[index]
    assert got.shape == values[index].shape and got.tolist() == values[index].tolist()
    if index is True or index is False:
        assert x[gdt.asarray(index)].tolist() == values[index].tolist()


@pytest.mark.parametrize("blocks", [1, 4, 8])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_the_sign_of_zero_survives_a_gather(blocks: int, dtype: str) -> None:
    mesh = gdt.create_mesh([("x", 8)], blocks=blocks)
    values = np.array([-0.0, 0.0] * 8, dtype)
    values = np.negative(values) if dtype == "complex128" else values
    x = gdt.asarray(values, layout=gdt.Layout(["x"], mesh))
    at = np.array([9, 2, 2, 15, 0])
    for got, want in (
        (x[at], values[at]),
        (x[values.real == 0], values),
        (gdt.take_along_axis(x, at, axis=0), values[at]),
        (gdt.repeat(x, np.arange(16) % 3, axis=0), np.repeat(values, np.arange(16) % 3)),
    ):
        for part in ("real", "imag"):
            ours, numpys = getattr(got.numpy(), part), getattr(want, part)
            assert np.signbit(ours).tolist() == np.signbit(numpys).tolist()


@pytest.mark.parametrize("shape", [(8,), (8, 3)])
def test_masks_and_arrays_without_a_mesh_of_their_own_join(shape: tuple[int, ...]) -> None:
    mesh = gdt.create_mesh([("x", 4)], blocks=4)
    host = np.arange(24.0).reshape(8, 3)
    mask = host[tuple([slice(None)] * len(shape) + [0] * (2 - len(shape)))] % 4 == 0
    layouts = [gdt.Layout(["x", *[None] * (n - 1)], mesh) for n in (2, len(shape))]
    split, split_mask = (
        gdt.asarray(a, layout=w) for a, w in zip((host, mask), layouts, strict=True)
    )
    assert np.array_equal(split[gdt.asarray(mask)].numpy(), host[mask])
    assert np.array_equal(gdt.asarray(host)[split_mask].numpy(), host[mask])
    other = gdt.asarray(host, layout=gdt.Layout(["x", None], gdt.create_mesh([("x", 2)])))
    with pytest.raises(gdt.errors.MeshError, match=r"(?s)getitem: .*Mesh\(x=2\).*Mesh\(x=4\)"):
        other[split_mask]


def test_rows_are_sent_to_where_copies_of_them_stand() -> None:
    rows, times = np.array([5.0, 6.0, 7.0, 8.0]), np.array([2, 3, 1, 4])
    places = np.array([[0, 2], [2, 5], [3, 7], [7, 7]])
    pieces = _pieces(NUMPY, rows, times, places)
    found = [(rows.tolist(), times.tolist()) for rows, times in pieces]
    assert found == [([5], [2]), ([6], [3]), ([6, 7, 8], [2, 1, 1]), ([], [])]


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("size", [0, 1, 8, 11])
def test_counts_of_repeat_may_be_distributed(size: int, blocks: int) -> None:
    mesh = gdt.create_mesh([("x", 4)], blocks=blocks)
    host, counts = np.arange(3.0 * size).reshape(size, 3), np.arange(size) % 3
    expected = np.repeat(host, counts, axis=0)
    for x_specs, count_specs in ((["x", None], ["x"]), ([None, "x"], ["x"]), ([None] * 2, [None])):
        x = gdt.asarray(host, layout=gdt.Layout(x_specs, mesh))
        repeats = gdt.asarray(counts, layout=gdt.Layout(count_specs, mesh))
        with gdt.implicit_fetch("raise"):
            result = gdt.repeat(x, repeats, axis=0)
        assert np.array_equal(result.numpy(), expected)
        assert np.array_equal(gdt.repeat(x, counts.tolist(), axis=0).numpy(), expected)
    if size:
        with pytest.raises(ValueError, match="one integer of 0 or more, or one for each of"):
            gdt.repeat(x, (counts - 1).tolist(), axis=0)
        gradient = gdt.grad(lambda x: gdt.sum(gdt.repeat(x, repeats, axis=0)))(x)
        assert np.array_equal(gradient.numpy(), np.broadcast_to(counts[:, None], (size, 3)))
        for wrong in (repeats - 1, repeats.astype(float)):
            with pytest.raises(ValueError, match="counts are integers of 0 or more"):
                gdt.repeat(x, wrong, axis=0)


def test_rows_in_one_block_are_repeated_without_reading_their_counts_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout = gdt.Layout(["x"], gdt.create_mesh([("x", 4)], blocks=1))
    x, counts = gdt.arange(9, layout=layout), gdt.asarray(np.arange(9) % 3, layout=layout)
    with monkeypatch.context() as patch:
        for owner, name in ((NUMPY, "to_host"), (Exchange, "all_gather")):
            patch.setattr(owner, name, lambda *_: pytest.fail("a CUDA graph cannot wait for this"))
        result = repeated_rows(x, counts, axis=0, size=9)
    assert result.tolist() == np.repeat(np.arange(9), np.arange(9) % 3).tolist()
