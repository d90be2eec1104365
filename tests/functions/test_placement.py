"""Parts and whole arrays: pack undoes unpack, and parts that do not fit are named."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.errors import DtypeError, GdtError, GradientError, LayoutError, MeshError, ShapeError
from gdt.testing import assert_consistent, layouts, meshes, placed

MESHES = meshes() + meshes([(2, 2, 2)], modes=["folded", "apart"])
MESH = gdt.create_mesh([("x", 4)])
GRID = gdt.create_mesh([("x", 2), ("y", 2)])


def mesh_id(mesh: gdt.Mesh) -> str:
    return f"{mesh.sizes}{mesh.grid}"


def values(*shape: int, dtype: str = "int64") -> np.ndarray:
    return np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(dtype)


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
@pytest.mark.parametrize("shape", [(), (9,), (2,), (0,), (4, 6), (5, 3)], ids=str)
def test_pack_is_the_inverse_of_unpack(shape: tuple[int, ...], mesh: gdt.Mesh) -> None:
    value = values(*shape)
    every = layouts(mesh, len(shape), partial=True)
    for layout in every[:: max(1, len(every) // 30)]:
        x = placed(value, layout, poison=True)
        y = gdt.pack(gdt.unpack(x), layout)
        assert y.type is x.type and y.numpy().tolist() == value.tolist()
        assert_consistent(y)
        parts = zip(gdt.unpack(x), gdt.unpack(y), strict=True)
        assert all(np.array_equal(a, b) for a, b in parts)


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
def test_parts_of_a_partial_reduction_are_its_operands(mesh: gdt.Mesh) -> None:
    name, count = mesh.axis_names[0], mesh.size
    rest = mesh.axis_names[1:]
    at = [c[0] for c in mesh.local_coordinates()]
    for reduction, f in (("sum", sum), ("max", max), ("min", min), ("prod", np.prod)):
        layout = gdt.Layout([None], mesh, partial={name: reduction})
        x = gdt.pack([[2 * a + 1, 5 - a] for a in at], layout)
        along = range(mesh.sizes[0])
        assert x.tolist() == [f([2 * a + 1 for a in along]), f([5 - a for a in along])]
        assert count == len(at) and x.layout.partial == {name: reduction}
    if rest:
        both = gdt.Layout([], mesh, partial=dict.fromkeys(mesh.axis_names, "sum"))
        assert int(gdt.pack(list(range(count)), both)) == sum(range(count))


def test_padding_of_packed_parts_repeats_the_last_element() -> None:
    x = gdt.pack([[1, 2], [3]], gdt.Layout(["x"], gdt.create_mesh([("x", 2)])))
    assert x.blocks[0].tolist() == [[1, 2], [3, 3]]
    x = gdt.pack(np.split(np.array([1, 2]), [1, 2, 2]), gdt.Layout(["x"], MESH))
    assert x.blocks[0].tolist() == [[1], [2], [1], [1]]


def test_parts_are_copied_and_unpacked_read_only() -> None:
    part = np.zeros(2)
    x = gdt.pack([part] * 4, gdt.Layout([None], MESH))
    part[0] = 9
    assert x.tolist() == [0, 0]
    with pytest.raises(ValueError, match="read-only"):
        gdt.unpack(x)[0][0] = 1


BAD_PARTS = [
    ([[1]] * 3, ["x"], ShapeError, "pack: 3 parts for 4 devices"),
    ([[1]] * 5, ["x"], ShapeError, "pack: 5 parts for 4 devices"),
    ([[1, 2], [3], [4, 5], [6]], ["x"], ShapeError, r"device \(1,\) holds \[2\], not \[1\]"),
    ([[1, 2], [3, 4], [5, 6], [7, 8, 9]], ["x"], ShapeError, "the parts do not make an array"),
    ([[[1, 2]], [[3]], [[4, 5]], [[6, 7]]], ["x", None], ShapeError, "do not make an array"),
    ([np.float32([1]), *[np.float64([1])] * 3], ["x"], DtypeError, "different dtypes"),
    ([[1]] * 4, ["x", None], LayoutError, "a layout of rank 2 does not fit parts of other ranks"),
    ([[1], [2], [3], [[4]]], ["x"], LayoutError, "a layout of rank 1 does not fit"),
    ([[1], [1], [2], [1]], [None], LayoutError, r"devices \(0,\) and \(2,\) are not equal"),
    (["a"] * 4, [], DtypeError, "dtype <U1, which is no number"),
    ([[[1], [1, 2]]] * 4, [None, None], ShapeError, "is no array"),
    (3, ["x"], DtypeError, "the parts are an int"),
    ("abcd", ["x"], DtypeError, "the parts are a str"),
]


@pytest.mark.parametrize(
    ("parts", "specs", "kind", "problem"), BAD_PARTS, ids=range(len(BAD_PARTS))
)
def test_parts_that_do_not_fit_are_named(
    parts: Any, specs: Any, kind: type[GdtError], problem: str
) -> None:
    for mesh in (MESH, gdt.create_mesh([("x", 4)], blocks=4)):
        with pytest.raises(kind, match=problem):
            gdt.pack(parts, gdt.Layout(specs, mesh))


def test_other_bad_input_of_pack() -> None:
    x = gdt.ones(1)
    with pytest.raises(DtypeError, match="is a distributed array"):
        gdt.pack([x] * 4, gdt.Layout([None], MESH))
    with pytest.raises(LayoutError, match="different reductions are partial"):
        gdt.pack([[1]] * 4, gdt.Layout([None], GRID, partial={"x": "sum", "y": "max"}))
    with pytest.raises(LayoutError, match="'x' is not a Layout"):
        gdt.pack([[1]] * 4, "x")  # type: ignore[arg-type]


def test_equal_replicas_may_hold_nan() -> None:
    x = gdt.pack([[np.nan, 1.0]] * 4, gdt.Layout([None], MESH))
    assert np.isnan(x.numpy()[0])


# ---------------------------------------------------------------- facts and copies


def test_facts_of_arrays_and_of_others() -> None:
    x = gdt.ones((4, 2), layout=gdt.Layout(["x", None], MESH))
    assert gdt.is_distributed(x) and not gdt.is_distributed(x.numpy())
    assert gdt.fetch_layout(x) is x.layout
    gdt.check_layout(x, gdt.Layout(["x", None], MESH))
    with pytest.raises(LayoutError, match=r"(?s)not the expected one.*\['x', -\].*\[-, -\]"):
        gdt.check_layout(x, gdt.Layout([None, None], MESH))
    for f in (gdt.fetch_layout, gdt.unpack):
        with pytest.raises(DtypeError, match="an ndarray"):
            f(np.ones(3))  # type: ignore[operator]


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
def test_copy_to_mesh(mesh: gdt.Mesh) -> None:
    value = values(5, 3)
    for layout in layouts(mesh, 2, partial=True)[:12]:
        for source in (value, value.tolist(), gdt.asarray(value)):
            x = gdt.copy_to_mesh(source, layout)
            assert x.layout is layout and x.numpy().tolist() == value.tolist()


def test_copy_to_mesh_checks_the_source_layout() -> None:
    x = gdt.ones(4, layout=gdt.Layout(["x"], MESH))
    whole = gdt.Layout([None], MESH)
    assert gdt.copy_to_mesh(x, whole, source_layout=x.layout).layout is whole
    with pytest.raises(LayoutError, match="check_layout: the layout is not the expected one"):
        gdt.copy_to_mesh(x, whole, source_layout=whole)
    with pytest.raises(LayoutError, match="rank 2 does not fit an array of rank 1"):
        gdt.copy_to_mesh([1, 2], gdt.Layout([None, None], MESH))
    with pytest.raises(LayoutError, match="'x' is not a Layout"):
        gdt.copy_to_mesh([1, 2], "x")  # type: ignore[arg-type]


def test_call_with_layout() -> None:
    layout = gdt.Layout(["x", None], MESH)
    made = gdt.call_with_layout(gdt.ones, layout, (8, 3), dtype="float32")
    assert made.type is gdt.ones((8, 3), "float32", layout=layout).type
    assert gdt.call_with_layout(gdt.random.normal, layout, (8, 3), key=1).layout is layout
    found = gdt.call_with_layout(lambda n: {"a": (gdt.eye(n), np.ones((n, n)))}, layout, 4)
    assert [x.layout for x in found["a"]] == [layout, layout]
    assert gdt.call_with_layout(gdt.ones, None, 3).layout.mesh is gdt.get_default_mesh()
    with pytest.raises(LayoutError, match="rank 2 does not fit an array of rank 1"):
        gdt.call_with_layout(gdt.ones, layout, 3)
    with pytest.raises(LayoutError, match="'x' is not a Layout"):
        gdt.call_with_layout(gdt.ones, "x", 3)  # type: ignore[arg-type]


# ---------------------------------------------------------------- map_shards


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
def test_map_shards_sees_every_shard_without_padding(mesh: gdt.Mesh) -> None:
    value = values(9, 5, dtype="float64")
    for layout in layouts(mesh, 2):
        seen: list[tuple[int, ...]] = []

        def f(x: np.ndarray, seen: Any = seen) -> np.ndarray:
            seen.append(x.shape)
            assert not x.flags.writeable
            return np.sqrt(x)

        out = gdt.map_shards(f, layout, layout)(gdt.asarray(value, layout=layout))
        assert out.layout is layout and np.array_equal(out.numpy(), np.sqrt(value))
        assert_consistent(out)
        array_type = out.type
        want = [
            tuple(s.stop - s.start for s in array_type.shard_slices(c)) for c in mesh.coordinates()
        ]
        assert seen == want


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
def test_map_shards_moves_operands_and_leaves_sums_partial(mesh: gdt.Mesh) -> None:
    name = mesh.axis_names[0]
    columns, rows = gdt.Layout([None, name], mesh), gdt.Layout([name, None], mesh)
    summed = gdt.Layout([None, None], mesh, partial=[name])
    x, w = values(4, 9, dtype="float64"), values(9, 3, dtype="float64")
    product = gdt.map_shards(np.matmul, (columns, rows), summed)(x, w)
    assert product.layout is summed and np.array_equal(product.numpy(), x @ w)


def test_map_shards_of_several_results() -> None:
    split, whole = gdt.Layout(["x"], MESH), gdt.Layout([], MESH, partial={"x": "max"})
    f = gdt.map_shards(lambda x: (x * 2, x.max()), split, (split, whole))
    doubled, largest = f(gdt.arange(8))
    assert doubled.tolist() == list(range(0, 16, 2)) and int(largest) == 7


def test_map_shards_may_change_sizes() -> None:
    split = gdt.Layout(["x"], MESH)
    assert gdt.map_shards(lambda x: x[:1], split, split)(gdt.arange(8)).tolist() == [0, 2, 4, 6]


def test_map_shards_may_take_no_operands() -> None:
    split, count = gdt.Layout(["x"], MESH), itertools.count()
    made = gdt.map_shards(lambda: np.full(2, next(count)), (), split)()
    assert made.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


SPLIT, WHOLE = gdt.Layout(["x"], MESH), gdt.Layout([None], MESH)
BAD_FUNCTIONS = [
    (lambda x: x[x > 2], SPLIT, SPLIT, ShapeError, "map_shards: the parts do not make an array"),
    (lambda x: x, SPLIT, WHOLE, LayoutError, r"map_shards: .* are not equal"),
    (lambda x: None, SPLIT, SPLIT, DtypeError, "dtype object, which is no number"),
    (lambda x: (x, x), SPLIT, SPLIT, ShapeError, "returned 2 arrays for 1 layouts"),
    (lambda x: x.sum(), SPLIT, SPLIT, LayoutError, "rank 1 does not fit parts of other ranks"),
    (lambda x: x, (SPLIT, SPLIT), SPLIT, ShapeError, "1 operands for 2 layouts"),
]


@pytest.mark.parametrize(
    ("f", "ins", "out", "kind", "problem"), BAD_FUNCTIONS, ids=range(len(BAD_FUNCTIONS))
)
def test_functions_that_do_not_fit_are_named(
    f: Callable[..., Any], ins: Any, out: Any, kind: type[GdtError], problem: str
) -> None:
    with pytest.raises(kind, match=problem):
        gdt.map_shards(f, ins, out)(gdt.arange(8))


def test_other_bad_input_of_map_shards() -> None:
    with pytest.raises(MeshError, match="the layouts are on different meshes"):
        gdt.map_shards(abs, SPLIT, gdt.Layout(["x"], GRID))
    with pytest.raises(LayoutError, match="'x' is not a Layout"):
        gdt.map_shards(abs, ["x"], SPLIT)  # type: ignore[list-item]
    with pytest.raises(ZeroDivisionError) as caught:
        gdt.map_shards(lambda x: 1 // 0, SPLIT, SPLIT)(gdt.arange(8))
    assert caught.value.__notes__ == ["in map_shards, on device (0,)"]


def test_a_function_of_shards_has_no_gradient() -> None:
    f = gdt.map_shards(np.sin, SPLIT, SPLIT)
    with pytest.raises(GradientError, match="map_shards: a function of shards has no gradient"):
        gdt.grad(lambda x: gdt.sum(f(x)))(gdt.ones(4, layout=SPLIT))
