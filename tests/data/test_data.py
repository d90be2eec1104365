"""Batches of arrays and of files, and positions in an iteration."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from gdt import errors
from gdt.data import Batches
from gdt.data.feed import decoded, encoded

# Batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "batch_size", "drop_remainder"),
    [
        *itertools.product([1, 7, 12], [1, 4, 12, 20], [False]),
        *[(1, 1, True), (7, 1, True), (7, 4, True), (12, 4, True), (12, 12, True)],
    ],
)
@pytest.mark.parametrize("seed", [None, 3])
def test_an_epoch_holds_every_row_once_unless_dropped(rows, batch_size, drop_remainder, seed):
    x, y = np.arange(rows), np.arange(rows) * 10.0
    batches = Batches(x, y, batch_size=batch_size, seed=seed, drop_remainder=drop_remainder)
    epoch = list(batches)
    assert len(epoch) == len(batches)
    assert all(len(a) == batch_size for a, _ in epoch[:-1])
    seen = np.concatenate([a for a, _ in epoch])
    assert len(set(seen.tolist())) == len(seen)
    assert len(seen) == (rows // batch_size * batch_size if drop_remainder else rows)
    assert all((a * 10 == b).all() for a, b in epoch)
    assert seed is not None or (seen == x[: len(seen)]).all()


def test_each_iteration_is_the_next_epoch_and_an_epoch_can_be_returned_to():
    batches = Batches(np.arange(100), batch_size=100, seed=1)
    (first,), (second,) = next(iter(batches)), next(iter(batches))
    assert (first != second).any()
    again = Batches(np.arange(100), batch_size=100, seed=1)
    again.epoch = 1
    np.testing.assert_array_equal(next(iter(again))[0], second)
    assert again.epoch == 2
    (other,) = next(iter(Batches(np.arange(100), batch_size=100, seed=2)))
    assert (other != first).any()


def test_two_iterations_at_once_do_not_disturb_each_other():
    batches = Batches(np.arange(10), batch_size=5, seed=1)
    pairs = list(zip(batches, batches, strict=True))
    for epoch in (0, 1):
        rows = np.concatenate([pair[epoch][0] for pair in pairs])
        assert sorted(rows.tolist()) == list(range(10))


def test_place_makes_the_batch():
    batches = Batches(
        [1, 2, 3], [4, 5, 6], batch_size=2, place=lambda x, y: {"x": x.tolist(), "y": y.tolist()}
    )
    assert list(batches) == [{"x": [1, 2], "y": [4, 5]}, {"x": [3], "y": [6]}]


@pytest.mark.parametrize(
    ("arrays", "options", "problem"),
    [
        ([], {"batch_size": 2}, "needs arrays with rows"),
        ([np.float32(3)], {"batch_size": 2}, "needs arrays with rows"),
        (
            [np.ones(3), np.ones((4, 2))],
            {"batch_size": 2},
            r"arrays differ(.|\n)* array 1: float64\[4, 2\]",
        ),
        ([np.ones(3)], {"batch_size": 0}, "batch_size is 0"),
        ([np.ones(0)], {"batch_size": 2}, "0 rows make no batch of 2"),
        ([np.ones(3)], {"batch_size": 4, "drop_remainder": True}, "3 rows make no batch of 4"),
    ],
)
def test_batches_refuse_what_makes_none(arrays, options, problem):
    with pytest.raises((errors.ShapeError, errors.ArgumentError), match=f"Batches: .*{problem}"):
        Batches(*arrays, **options)


def test_rows_of_files_are_those_of_one_array(tmp_path):
    rng = np.random.default_rng(0)
    whole, labels = rng.standard_normal((23, 3)), np.arange(23)
    cuts = [0, 5, 5, 17, 23]
    paths = []
    for start, stop in itertools.pairwise(cuts):
        paths.append(tmp_path / f"{start}-{stop}-{len(paths)}.npy")
        np.save(paths[-1], whole[start:stop])
    np.save(tmp_path / "labels.npy", labels)
    for seed in (None, 1):
        files = Batches(paths, str(tmp_path / "labels.npy"), batch_size=7, seed=seed)
        arrays = Batches(whole, labels, batch_size=7, seed=seed)
        for (x, y), (x_file, y_file) in zip(arrays, files, strict=True):
            np.testing.assert_array_equal(x, x_file)
            np.testing.assert_array_equal(y, y_file)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "is no array"),
        (b"abc", "is no array"),
        (np.ones((3, 2)), "differ in more than their number of rows"),
        (np.ones((3, 3), "f4"), "differ in more than their number of rows"),
        ({"a": np.ones(3)}, "several arrays"),
    ],
)
def test_files_that_make_no_rows_are_named(tmp_path, content, problem):
    np.save(tmp_path / "first.npy", np.ones((2, 3)))
    path = tmp_path / "second.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        with path.open("wb") as file:
            np.savez(file, **content)
    elif content is not None:
        np.save(path, content)
    with pytest.raises((errors.DataError, errors.ShapeError), match=problem) as caught:
        Batches([tmp_path / "first.npy", path], batch_size=2)
    assert "second.npy" in str(caught.value)


def test_positions_hold_bytes_arrays_and_nested_values():
    state = {"a": [1, 2.5, None, "text", b"\x00\xff"], "b": {"c": np.arange(6.0).reshape(2, 3)}}
    returned = decoded(json.loads(json.dumps(encoded(state))))
    assert returned["a"] == state["a"]
    np.testing.assert_array_equal(returned["b"]["c"], state["b"]["c"])
    with pytest.raises(errors.ArgumentError, match="holds an object"):
        encoded({"a": object()})


def test_a_position_in_an_epoch_is_returned_to():
    rows = np.arange(10)
    batches = Batches(rows, batch_size=3, seed=4)
    list(batches)
    epoch = iter(batches)
    taken = [next(epoch)[0].tolist() for _ in range(2)]
    state, rest = epoch.get_state(), [x.tolist() for (x,) in epoch]
    after = [x.tolist() for (x,) in batches]
    for seed in (4, 5, None):  # the order goes on, whatever the new one is
        other = Batches(rows, batch_size=3, seed=seed)
        resumed = iter(other)
        resumed.set_state(state)
        assert taken and [x.tolist() for (x,) in resumed] == rest
        assert [x.tolist() for (x,) in other] == after


def test_a_position_inside_an_epoch_is_one_of_batches_of_its_size():
    rows = np.arange(10)
    epoch = iter(Batches(rows, batch_size=2, seed=0))
    next(epoch)
    inside = epoch.get_state()
    list(epoch)
    larger = iter(Batches(rows, batch_size=5, seed=0))
    with pytest.raises(errors.ArgumentError, match="1 batches of 2 rows, and batches have 5 rows"):
        larger.set_state(inside)
    larger.set_state(epoch.get_state())
    assert list(larger) == []
