"""Data sets in files are read and written a shard at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.errors import ArgumentError, DtypeError, FunctionError, ShapeError
from gdt.sharding.mesh import Mesh

VALUES = np.arange(7 * 6, dtype=np.float32).reshape(7, 6)


class DataSet:
    """An array in a file: it is read and written by slices, and keeps which."""

    chunks = (3, 2)

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.read, self.written = values, [], []  # type: ignore[var-annotated]
        self.shape, self.dtype = values.shape, values.dtype

    def __getitem__(self, index: tuple[slice, ...]) -> Any:
        self.read.append(self.values[index].size)
        return self.values[index]

    def __setitem__(self, index: tuple[slice, ...], value: Any) -> None:
        self.written.append(np.asarray(value).size)
        self.values[index] = value

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("read as a whole")


def meshes() -> list[Mesh]:
    return [gdt.create_mesh([("x", 2), ("y", 4)], device_type="CPU", blocks=b) for b in (1, 8)]


@pytest.mark.parametrize("mesh", meshes(), ids=["one block", "a block each"])
@pytest.mark.parametrize(
    ("specs", "most"),
    [(["x", "y"], 8), ([("x", "y"), None], 6), ([None, "y"], 14), ([None, None], 42)],
)
def test_a_shard_is_read_and_written_at_a_time(mesh: Mesh, specs: list[Any], most: int) -> None:
    layout, source, target = gdt.Layout(specs, mesh), DataSet(VALUES), DataSet(VALUES * 0)
    x = gdt.asarray(source, layout=layout)
    assert x.layout is layout and x.dtype == np.float32 and x.tolist() == VALUES.tolist()
    assert max(source.read) <= most
    assert sum(source.read) == VALUES.size or len(mesh.blocks) > 1, "replicas read once"
    assert float(gdt.sum(x)) == VALUES.sum()  # padding is 0
    gdt.store(x, target)
    assert target.values.tolist() == VALUES.tolist()
    assert max(target.written) <= most and sum(target.written) == VALUES.size
    wide = gdt.asarray(DataSet(VALUES), "float64", layout=layout)
    assert wide.dtype == np.float64 and wide.tolist() == VALUES.tolist()


def test_data_sets_of_any_shape() -> None:
    mesh = meshes()[1]
    for values in (np.zeros((0, 3)), np.array(2.5), np.arange(3)):
        layout = gdt.Layout(["x", None][: values.ndim], mesh)
        x = gdt.asarray(DataSet(values), layout=layout)
        assert x.shape == values.shape and x.tolist() == values.tolist()
        target = DataSet(values.copy())
        gdt.store(x * 2, target)
        assert target.values.tolist() == (values * 2).tolist()
    assert gdt.asarray(DataSet(VALUES)).tolist() == VALUES.tolist()
    partial = gdt.Layout([None, None], mesh, partial=["y"])
    assert gdt.asarray(DataSet(VALUES), layout=partial).tolist() == VALUES.tolist()


def test_sums_that_are_partial_are_stored_whole() -> None:
    layout = gdt.Layout(["x", "y"], meshes()[1])
    total, target = gdt.sum(gdt.asarray(VALUES, layout=layout), axis=0), DataSet(np.zeros(6))
    assert any(total.layout.reductions)
    gdt.store(total, target)
    assert target.values.tolist() == VALUES.sum(axis=0).tolist()


def test_data_sets_of_zarr(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    layout = gdt.Layout(["x", "y"], meshes()[1])
    source = zarr.create_array(tmp_path / "a.zarr", shape=(7, 6), chunks=(3, 2), dtype="float32")
    gdt.store(gdt.asarray(VALUES, layout=layout), source)
    assert source[:].tolist() == VALUES.tolist()
    x = gdt.asarray(source, layout=layout)
    assert x.tolist() == VALUES.tolist()
    with pytest.raises(DtypeError, match=r"Write gdt.store\(x, dataset\)"):
        zarr.array(x)


def test_what_is_no_data_set_of_the_array_is_refused() -> None:
    x = gdt.ones((7, 6))
    with pytest.raises(ArgumentError, match="store: a tuple is no data set that takes slices"):
        gdt.store(x, ())
    with pytest.raises(ShapeError, match=r"store: the data set has shape \[6\]"):
        gdt.store(x, DataSet(np.zeros(6)))
    with pytest.raises(DtypeError, match="no number"):
        gdt.asarray(DataSet(np.array(["a", "b"])))


def test_recorded_steps_do_not_read_data_sets() -> None:
    source = DataSet(VALUES)

    @gdt.function
    def step(x: gdt.DistributedArray) -> gdt.DistributedArray:
        return x + gdt.asarray(source)

    with pytest.raises(FunctionError, match="read a data set of a file"):
        for _ in range(3):
            step(gdt.ones((7, 6)))
