"""Meshes: names, devices, blocks, identity, text."""

from __future__ import annotations

import contextvars
import pickle
import re
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.errors import MeshError
from gdt.settings import host_thread_count

MESH = gdt.create_mesh([("x", 4), ("y", 2)])
OTHER = gdt.create_mesh([("z", 3)])


def test_facts_that_tf_dtensor_has() -> None:
    assert MESH.dim_names == ["x", "y"]
    assert MESH.size == 8
    assert MESH.strides == [2, 1]
    assert MESH.shape() == [4, 2]
    assert MESH.dim_size("y") == 2
    assert MESH.contains_dim("x") and not MESH.contains_dim("z")
    assert MESH["x"] == ("x", 4) and MESH["x"].name == "x" and MESH["x"].size == 4
    assert MESH.device_type() == "CPU"
    assert MESH.num_local_devices() == 8
    assert MESH.local_devices() == MESH.global_devices() == [f"cpu:{i}" for i in range(8)]
    assert MESH.local_device_ids() == list(range(8))
    assert MESH.global_device_ids().tolist() == np.arange(8).reshape(4, 2).tolist()
    assert MESH.min_global_device_id() == 0
    assert MESH.device_location(5) == MESH.coords(5).tolist() == [2, 1]
    assert MESH.local_device_locations()[3] == MESH.unravel_index()[3] == {"x": 1, "y": 1}
    assert not MESH.is_remote() and not MESH.is_single_device()
    assert gdt.create_mesh([("x", 1)]).is_single_device()
    assert MESH.host_mesh() is MESH
    assert gdt.create_mesh([("x", 2)], mesh_name="pair").name == "pair"


def test_equal_meshes_are_one_object() -> None:
    assert gdt.create_mesh({"x": 4, "y": 2}) is MESH
    assert gdt.create_mesh([("y", 4), ("x", 2)]) is not MESH
    assert gdt.create_mesh([("x", 4), ("y", 2)], blocks=8) is not MESH
    assert len({MESH, gdt.create_mesh([("x", 4), ("y", 2)])}) == 1


def test_no_dims_give_one_axis_over_the_devices() -> None:
    mesh = gdt.create_mesh(devices=["cpu:0", "cpu:3"])
    assert mesh.dim_names == ["x"] and mesh.global_devices() == ["cpu:0", "cpu:3"]


def test_mesh_of_one_device() -> None:
    mesh = gdt.Mesh.from_device("cpu:2")
    assert mesh.is_single_device() and mesh.local_devices() == ["cpu:2"]


@pytest.mark.parametrize("blocks", [1, 2, 4, 8])
def test_blocks_are_contiguous_boxes(blocks: int) -> None:
    mesh = gdt.create_mesh([("x", 4), ("y", 2)], blocks=blocks)
    assert len(mesh.blocks) == blocks
    ids = [[] for _ in mesh.blocks]  # type: list[list[int]]
    for i, coordinate in enumerate(mesh.coordinates()):
        ids[mesh.blocks.index(mesh.block_of(coordinate)[0])].append(i)
    assert [i for block in ids for i in block] == list(range(8))
    assert {len(i) for i in ids} == {8 // blocks}


@pytest.mark.parametrize("blocks", [1, 4])
def test_text_and_pickle_give_the_same_object(blocks: int) -> None:
    mesh = gdt.create_mesh([("x", 2), ("y", 2)], blocks=blocks, mesh_name="four")
    assert gdt.Mesh.from_string(mesh.to_string()) is mesh
    assert pickle.loads(pickle.dumps(mesh)) is mesh
    assert repr(mesh) == "Mesh(x=2, y=2)"


def test_a_setting_without_a_block_holds_from_there_on() -> None:
    def program() -> list[Any]:
        gdt.default_mesh(OTHER)
        with gdt.default_mesh(MESH):
            gdt.host_threads(3)
            inside = gdt.get_default_mesh(), host_thread_count()
        gdt.implicit_fetch("raise")
        gdt.check_nans()
        with pytest.raises(gdt.errors.MoveError):
            np.asarray(gdt.ones(3))
        with pytest.raises(gdt.errors.NanError), np.errstate(all="ignore"):
            gdt.log(gdt.zeros(3))
        return [*inside, gdt.ones(3).layout.mesh]

    assert contextvars.copy_context().run(program) == [MESH, 3, OTHER]
    for wrong in (lambda: gdt.default_mesh(None), lambda: gdt.matmul_backend("fast")):
        with pytest.raises(gdt.errors.GdtError):
            wrong()


def test_default_mesh_holds_for_a_block() -> None:
    before = gdt.get_default_mesh()
    assert before.size == 1
    with gdt.default_mesh(MESH) as mesh:
        assert gdt.get_default_mesh() is mesh is MESH
        x = gdt.ones((4, 4))
        assert x.layout is gdt.Layout.replicated(MESH, 2)
        with gdt.default_mesh(before):
            assert gdt.get_default_mesh() is before
    assert gdt.get_default_mesh() is before


def test_meshes_are_made_by_create_mesh() -> None:
    with pytest.raises(MeshError, match=r"Use gdt\.create_mesh"):
        gdt.Mesh(["x"], [2])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mesh_dims": [("a", 10**9)]}, "1,000,000,000 coordinates"),
        ({"mesh_dims": [("a", 2)], "mesh_name": "x|y"}, "without '|'"),
    ],
)
def test_meshes_that_cannot_be_kept_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(MeshError, match=re.escape(words)):
        gdt.create_mesh(**arguments)
