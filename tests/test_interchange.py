"""Arrays of other libraries: DLPack, and arrays in the memory of GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gdt
from gdt.errors import ArgumentError, DeviceError, DtypeError, ExportError

from .strict import StrictArray, engine

engine.register()
MESH = gdt.create_mesh([("x", 2)], device_type="CPU")
GPU = engine.mesh({"x": 8})
TWO = engine.mesh({"x": 4}, devices=2)


class Producer:
    """An array on any device, or one that refuses."""

    def __init__(self, device: int, refuses: bool = False) -> None:
        self.device, self.refuses = device, refuses

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("no dtype of DLPack")


@pytest.mark.parametrize("blocks", [1, 2])
def test_numpy_reads_an_array_through_dlpack(blocks: int) -> None:
    mesh = gdt.create_mesh([("x", 2)], device_type="CPU", blocks=blocks)
    x = gdt.arange(5, dtype="float32", layout=gdt.Layout(["x"], mesh))
    assert x.__dlpack_device__() == (1, 0)
    got = np.from_dlpack(x)
    assert got.tolist() == [0, 1, 2, 3, 4] and got.dtype == np.float32
    if got.flags.writeable:  # it was copied
        got[0] = 9
    assert x.tolist() == [0, 1, 2, 3, 4]


class Capsule:
    """An array in the memory of the host, as a capsule that has been made before."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_consumers_that_know_no_read_only_memory_get_a_copy() -> None:
    x = gdt.ones(3)
    shared = np.from_dlpack(Capsule(x.__dlpack__(max_version=(1, 0))))
    assert np.shares_memory(shared, x.numpy()) and not shared.flags.writeable
    copied = np.from_dlpack(Capsule(x.__dlpack__()))
    assert not np.shares_memory(copied, x.numpy())
    asked_for = np.from_dlpack(Capsule(x.__dlpack__(copy=False)))
    assert np.shares_memory(asked_for, x.numpy()) and not x.numpy().flags.writeable
    memory = np.ones(3)
    memory.flags.writeable = False
    with pytest.raises(ExportError, match=r"is read-only, which DLPack before 1.0 cannot say"):
        gdt.asarray(memory, copy=False).__dlpack__(copy=False)
    with pytest.raises(BufferError, match="the host has no streams"):
        x.__dlpack__(stream=1)
    with pytest.raises(BufferError, match=r"on \(1, 0\), not on \(2, 0\)"):
        x.__dlpack__(dl_device=(2, 0))


def test_shards_in_one_memory_are_exported_without_a_copy() -> None:
    mesh = gdt.create_mesh([("x", 2), ("y", 4)], blocks=1)
    for specs, shape in ((["x", "y"], (2, 2)), (["x"], (7,)), ([("x", "y"), None], (16, 8))):
        x = gdt.asarray(np.arange(np.prod(shape)).reshape(shape), layout=gdt.Layout(specs, mesh))
        for version in ({}, {"max_version": (0, 8)}, {"max_version": (1, 0)}):
            shared = np.from_dlpack(Capsule(x.__dlpack__(copy=False, **version)))
            assert np.shares_memory(shared, x.numpy()) and shared.tolist() == x.tolist()
        assert not np.from_dlpack(x, copy=False).flags.writeable
    divided = gdt.create_mesh([("x", 2)], blocks=2)
    apart = gdt.asarray([1, 2], layout=gdt.Layout(["x"], divided))
    with pytest.raises(BufferError, match="cannot be had without a copy"):
        apart.__dlpack__(copy=False)


def test_arrays_of_other_libraries_are_taken_over() -> None:
    layout = gdt.Layout(["x"], MESH)
    value = np.arange(4.0)
    x = gdt.from_dlpack(value, layout=layout)
    assert x.layout is layout
    value[0] = 9
    assert x.tolist() == [0, 1, 2, 3]
    assert gdt.from_dlpack(value, copy=False).numpy()[0] == 9
    assert gdt.from_dlpack(x).tolist() == x.tolist()


def test_what_cannot_be_taken_over_is_refused() -> None:
    with pytest.raises(ArgumentError, match="a list has no __dlpack__"):
        gdt.from_dlpack([1, 2])
    with pytest.raises(DeviceError, match="device of DLPack's type 10"):
        gdt.from_dlpack(Producer(10))
    with pytest.raises(DtypeError, match="a Producer cannot be taken over: no dtype of DLPack"):
        gdt.from_dlpack(Producer(1))


def test_dlpack_of_gpus() -> None:
    x = gdt.arange(6, layout=gdt.Layout(["x"], GPU))
    assert x.__dlpack_device__() == (2, 0)
    assert x.__dlpack__(stream=1) is not None
    with pytest.raises(ExportError, match="lies on 2 devices, and DLPack knows one"):
        gdt.ones(4, layout=gdt.Layout(["x"], TWO)).__dlpack__()


@pytest.mark.parametrize("mesh", [GPU, TWO, MESH], ids=["one", "two", "host"])
def test_arrays_of_gpus_are_operands(mesh: gdt.Mesh) -> None:
    value = engine.CUPY.asarray(np.arange(6.0).reshape(2, 3))
    x = gdt.asarray(value, layout=gdt.Layout(["x", None], mesh))
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (x + value).tolist() == [[0, 2, 4], [6, 8, 10]]
    assert (value * x).tolist() == [[0, 1, 4], [9, 16, 25]]


def test_a_copy_of_an_array_of_a_gpu_is_its_own() -> None:
    value = engine.CUPY.asarray(np.zeros(3))
    with gdt.default_mesh(engine.mesh({"x": 1})):
        copied, shared = gdt.asarray(value), gdt.asarray(value, copy=False)
    value[...] = 1
    assert copied.tolist() == [0, 0, 0] and shared.tolist() == [1, 1, 1]


def test_relayout_moves_between_the_host_and_gpus() -> None:
    x = gdt.arange(7.0, layout=gdt.Layout(["x"], MESH))
    for mesh in (GPU, TWO):
        moved = gdt.relayout(x, gdt.Layout(["x"], mesh))
        assert all(isinstance(b, StrictArray) for b in moved.blocks)
        back = gdt.copy_to_mesh(moved * 2, gdt.Layout([None], MESH))
        assert back.mesh is MESH and back.tolist() == [0, 2, 4, 6, 8, 10, 12]


def test_shards_are_the_devices_own_arrays() -> None:
    x = gdt.arange(5, layout=gdt.Layout(["x"], TWO))
    assert [type(s.data) for s in x.shards] == [StrictArray] * 4
    assert [s.data.device.id for s in x.shards] == [0, 0, 1, 1]
    assert repr(x) == repr(gdt.arange(5, layout=gdt.Layout(["x"], TWO)))


def test_functions_of_shards_run_on_their_device() -> None:
    seen = []

    def kernel(x: Any) -> Any:
        seen.append(engine.CUPY.cuda.runtime.getDevice())
        return engine.CUPY.exp(x)

    split = gdt.Layout(["x"], TWO)
    out = gdt.map_shards(kernel, split, split)(gdt.zeros(4, layout=split))
    assert out.tolist() == [1, 1, 1, 1] and seen == [0, 0, 1, 1]


def test_checkpoints_hold_arrays_of_gpus(tmp_path: Any) -> None:
    for mesh in (GPU, TWO):
        tree = {"w": gdt.arange(9.0, layout=gdt.Layout(["x"], mesh))}
        path = gdt.checkpoint.save(tmp_path / "w.safetensors", tree)
        into = {"w": gdt.zeros(9, layout=gdt.Layout(["x"], mesh))}
        gdt.checkpoint.restore(path, into)
        assert into["w"].tolist() == tree["w"].tolist()
