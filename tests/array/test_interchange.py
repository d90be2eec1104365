"""Arrays of other libraries: DLPack, and arrays in the memory of GPUs."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.errors import ArgumentError, DeviceError, DtypeError, ExportError
from tests.strict import StrictArray, engine

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


class Exported:
    """A library's array on the host, of the memory that a capsule names."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


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


def test_consumers_that_know_no_read_only_memory_get_a_copy() -> None:
    x = gdt.ones(3)
    shared = np.from_dlpack(Exported(x.__dlpack__(max_version=(1, 0), copy=False)))
    assert np.shares_memory(shared, x.numpy()) and not shared.flags.writeable
    assert not np.from_dlpack(x, copy=False).flags.writeable
    for copied in (np.from_dlpack(Exported(x.__dlpack__())), np.from_dlpack(x),
                   np.from_dlpack(Exported(x.__dlpack__(max_version=(1, 0))))):  # fmt: skip
        assert not np.shares_memory(copied, x.numpy())
    asked_for = np.from_dlpack(Exported(x.__dlpack__(copy=False)))
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
            shared = np.from_dlpack(Exported(x.__dlpack__(copy=False, **version)))
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


class Tensor:
    """An array as PyTorch has it: of DLPack, and of `__array__` for some dtypes alone."""

    def __init__(self, value: gdt.DistributedArray, *, requires_grad: bool = False) -> None:
        self.value, self.requires_grad = value, requires_grad
        self.dtype = f"torch.{value.dtype}"

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        return self.value.__dlpack__(**options)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Got unsupported ScalarType")


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16"])
def test_tensors_of_other_libraries_are_operands(dtype: str) -> None:
    host = gdt.asarray([1, 0, 1]).astype(dtype)
    x, t = gdt.relayout(host, gdt.Layout(["x"], MESH)), Tensor(host)
    assert gdt.asarray(t).dtype == host.dtype and gdt.asarray(t).tolist() == host.tolist()
    for got in (x + t, t + x, gdt.add(x, t), gdt.add(t, x)):
        assert got.dtype == (x + x).dtype and got.tolist() == (x + x).tolist()
    assert gdt.stack([t, t]).tolist() == [host.tolist()] * 2
    assert gdt.concat([x, t]).dtype == host.dtype
    if dtype in ("int64", "bool"):
        index = [1, 0, 1] if dtype == "int64" else [True, False, True]
        assert x[t].tolist() == x[np.array(index)].tolist()
    with pytest.raises(DtypeError, match=r"add: a Tensor cannot be taken over.*tensor\.detach"):
        x + Tensor(host, requires_grad=True)
    with pytest.raises(DtypeError, match=r"asarray: a Tensor cannot .*tensor\.detach\(\)"):
        gdt.asarray(Tensor(host, requires_grad=True))


def test_arrays_share_memory_with_themselves_and_with_what_they_view() -> None:
    x = gdt.arange(6.0, layout=gdt.Layout(["x"], MESH))
    memory = np.arange(3.0)
    own = gdt.asarray(memory, copy=False)
    for share in (gdt.may_share_memory, gdt.shares_memory, np.may_share_memory, np.shares_memory):
        assert share(x, x) is True and share(own, memory) is True
        assert share(x, x + 1) is False and share(x, x.copy()) is False
        assert share(x, memory) is False and share(memory, gdt.asarray(memory)) is False
    apart = gdt.arange(6.0, layout=gdt.Layout(["x"], gdt.create_mesh([("x", 2)], blocks=2)))
    assert all(gdt.may_share_memory(apart, block) for block in apart.blocks)
    assert gdt.may_share_memory(memory, memory[1:]) and not gdt.shares_memory([1], [1])
    assert gdt.require([1, 2], "float32", ["C", "W"]).dtype == np.float32


def test_vectors_are_columns_of_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    class Column:
        def __init__(self, values: np.ndarray) -> None:
            self.values = values

        def __arrow_c_array__(self, schema: Any) -> tuple[Any, list[int]]:
            return schema, self.values.tolist()

    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace(array=Column))
    x = gdt.arange(5, layout=gdt.Layout(["x"], MESH))
    assert x.__arrow_c_array__("schema") == ("schema", [0, 1, 2, 3, 4])
