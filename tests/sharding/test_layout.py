"""Layouts: the names that TF DTensor's have, and what it lacks; identity, text, types of arrays."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.errors import ImmutableError, LayoutError, ShapeError
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.testing import layouts, meshes

MESH = gdt.create_mesh([("x", 4), ("y", 2)])
SPLIT = Layout(["x", gdt.UNSHARDED, "y"], MESH)


def test_facts_that_tf_dtensor_has() -> None:
    assert gdt.UNSHARDED == "unsharded" and gdt.MATCH == "match"
    assert SPLIT.mesh is MESH
    assert SPLIT.rank == 3
    assert SPLIT.sharding_specs == ["x", "unsharded", "y"]
    assert [SPLIT.num_shards(d) for d in (0, 1, 2, -1)] == [4, 1, 2, 2]
    assert SPLIT.delete([0]).sharding_specs == ["unsharded", "y"]
    assert SPLIT.delete([-1, 1]).sharding_specs == ["x"]
    assert not SPLIT.is_fully_replicated() and Layout.replicated(MESH, 3).is_fully_replicated()
    assert Layout(["x", None], MESH).is_batch_parallel() and not SPLIT.is_batch_parallel()
    assert not SPLIT.is_single_device()
    assert Layout([None], gdt.create_mesh([("x", 1)])).is_single_device()
    assert SPLIT.offset_to_shard()[:3] == [(0, 0, 0), (0, 0, 1), (1, 0, 0)]
    assert SPLIT.local_shape_from_global_shape([9, 5, 4]) == [3, 5, 2]
    assert SPLIT.global_shape_from_local_shape([2, 5, 2]) == [8, 5, 4]


def test_deleting_an_axis_keeps_what_is_partial() -> None:
    layout = Layout(["x", None], MESH, partial={"y": "max"})
    assert layout.delete([0]) is Layout([None], MESH, partial={"y": "max"})


def test_constructors_that_tf_dtensor_has() -> None:
    assert Layout.replicated(MESH, rank=2) is Layout([None, None], MESH)
    assert Layout.batch_sharded(MESH, "x", rank=2) is Layout(["x", None], MESH)
    assert Layout.batch_sharded(MESH, "x", rank=3, axis=1) is Layout([None, "x", None], MESH)
    assert Layout.inner_sharded(MESH, "y", rank=2) is Layout([None, "y"], MESH)
    assert Layout.replicated(MESH, rank=0).rank == 0


def test_what_tf_dtensor_lacks() -> None:
    both = Layout([("x", "y"), None], MESH)
    assert both.num_shards(0) == 8 and both.sharding_specs == [("x", "y"), "unsharded"]
    assert Layout([("y", "x"), None], MESH) is not both
    partial = Layout(["x"], MESH, partial={"y": "max"})
    assert partial.partial == {"y": "max"} and not partial.is_fully_replicated()
    assert partial.resolved is Layout(["x"], MESH)
    assert Layout([None], MESH, partial=["x"]).partial == {"x": "sum"}


def test_layouts_have_no_shape() -> None:
    with pytest.raises(AttributeError, match=r"num_shards\(axis\)"):
        SPLIT.shape  # noqa: B018
    with pytest.raises(AttributeError, match="nonsense"):
        SPLIT.nonsense  # noqa: B018


def test_equal_layouts_are_one_object() -> None:
    assert Layout(["x", None, "y"], MESH) is SPLIT
    assert Layout(("x", "unsharded", ("y",)), MESH) is SPLIT
    assert copy.deepcopy(SPLIT) is SPLIT


def test_text_and_pickle_give_the_same_object() -> None:
    for mesh in meshes([(4,), (2, 2), (2, 2, 2)]):
        for rank in (0, 1, 2):
            for layout in layouts(mesh, rank, partial=True):
                assert Layout.from_string(layout.to_string()) is layout
                assert pickle.loads(pickle.dumps(layout)) is layout


KIND = ArrayType.of((4, 3, 2), np.dtype("f4"), SPLIT)
IMMUTABLE: dict[str, tuple[Any, str, str]] = {
    "layout": (SPLIT, "mesh", "gdt.relayout"),
    "layout, computed": (SPLIT, "shard_counts", "gdt.relayout"),
    "layout, new": (SPLIT, "note", "gdt.relayout"),
    "type": (KIND, "layout", "gdt.relayout"),
    "type, computed": (KIND, "local_shape", "gdt.relayout"),
    "mesh": (MESH, "sizes", "gdt.copy_to_mesh"),
    "array's layout": (gdt.ones((2,)), "layout", "gdt.relayout"),
    "array's mesh": (gdt.ones((2,)), "mesh", "gdt.copy_to_mesh"),
    "array's shape": (gdt.ones((2,)), "shape", "x.reshape"),
    "array's dtype": (gdt.ones((2,)), "dtype", "x.astype"),
}


@pytest.mark.parametrize("case", IMMUTABLE)
def test_facts_that_arrays_share_cannot_be_set(case: str) -> None:
    owner, name, instead = IMMUTABLE[case]
    before = getattr(owner, name, None)
    with pytest.raises(ImmutableError, match=f"(?s){name} cannot be set to 5.*{instead}"):
        setattr(owner, name, 5)
    with pytest.raises(AttributeError):
        delattr(owner, name)
    assert getattr(owner, name, None) is before


def test_text_is_short() -> None:
    assert str(SPLIT) == "['x', -, 'y']"
    assert repr(SPLIT) == "Layout(['x', -, 'y'], Mesh(x=4, y=2))"
    assert str(Layout([None], MESH, partial=["y"])) == "[-] + sum over 'y'"
    assert "partial={'y': 'sum'}" in repr(Layout([None], MESH, partial=["y"]))


def test_shards_of_all_layouts_cover_the_array_once() -> None:
    for mesh in meshes([(2, 3), (2, 2, 2)], modes=["folded"]):
        for layout in layouts(mesh, 2):
            array_type = ArrayType.of((5, 7), np.dtype("f4"), layout)
            seen = np.zeros(array_type.shape, int)
            for coordinate in mesh.coordinates():
                seen[array_type.shard_slices(coordinate)] += 1
            copies = mesh.size // (layout.num_shards(0) * layout.num_shards(1))
            assert (seen == copies).all()


def test_array_types_are_interned_and_pickled() -> None:
    array_type = ArrayType.of((9, 5, 4), np.dtype("f4"), SPLIT)
    assert pickle.loads(pickle.dumps(array_type)) is array_type
    assert repr(array_type) == "float32[9, 5, 4]  ['x', -, 'y']"
    assert array_type.local_shape == (3, 5, 2) and array_type.uneven == (0,)
    assert array_type.nbytes == 9 * 5 * 4 * 4 and array_type.local_nbytes == 3 * 5 * 2 * 4


@pytest.mark.parametrize(
    "method", ["local_shape_from_global_shape", "global_shape_from_local_shape"]
)
def test_shapes_must_have_the_rank(method: str) -> None:
    with pytest.raises(ShapeError, match="rank 3"):
        getattr(SPLIT, method)([4])


def test_text_of_errors() -> None:
    with pytest.raises(LayoutError) as caught:
        Layout(["x", "x"], MESH)
    assert str(caught.value).splitlines() == [
        "Layout: mesh axis 'x' is used 2 times",
        "  sharding_specs: ['x', 'x']",
        "  mesh: Mesh(x=4, y=2)",
        "  A mesh axis can split one array axis, or hold one partial reduction.",
    ]
