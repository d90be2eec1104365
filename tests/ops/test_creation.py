"""Created arrays are NumPy's, bitwise, in every layout; each device makes only its own shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.testing import assert_consistent, layouts, meshes
from tests.allocations import allocations

MESHES = meshes()
REDUCTIONS = (None, "sum", "prod", "max", "min")


def mesh_id(mesh: gdt.Mesh) -> str:
    return f"{mesh.sizes}{mesh.grid}"


def with_partial(mesh: gdt.Mesh, rank: int) -> list[gdt.Layout]:
    """All layouts of a rank, and each reduction partial along each mesh axis."""
    found = list(layouts(mesh, rank))
    for name in mesh.axis_names:
        specs: list[Any] = [None] * rank
        found += [gdt.Layout(specs, mesh, partial={name: r}) for r in REDUCTIONS if r]
    return found


def assert_same(x: gdt.DistributedArray, want: np.ndarray, layout: gdt.Layout) -> None:
    assert x.layout is layout
    assert x.dtype == want.dtype and x.shape == want.shape
    assert x.numpy().tobytes() == np.ascontiguousarray(want).tobytes()
    assert_consistent(x)


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64", "complex64"])
def test_asarray_keeps_every_value_in_every_layout(dtype: str, mesh: gdt.Mesh) -> None:
    value = np.arange(35).reshape(5, 7).astype(dtype)
    for layout in with_partial(mesh, 2):
        assert_same(gdt.asarray(value, layout=layout), value, layout)
        assert_same(gdt.asarray(value.tolist(), dtype, layout=layout), value, layout)


def test_asarray_copies_unless_told_not_to() -> None:
    value = np.zeros(4)
    copied, shared = gdt.asarray(value), gdt.asarray(value, copy=False)
    value[0] = 1
    assert copied.tolist()[0] == 0 and shared.tolist()[0] == 1
    assert gdt.asarray(copied) is copied
    assert not np.shares_memory(gdt.asarray(copied, copy=True).blocks[0], copied.blocks[0])


OTHER_ORDER, OTHER_INTS = np.dtype("float32").newbyteorder(), np.dtype("int32").newbyteorder()
SWAPPED = np.array([1.0, 2.0, 3.0], OTHER_ORDER)
FROM_OTHER_ORDER: dict[str, tuple[Callable[[], gdt.DistributedArray], list[float]]] = {
    "asarray": (lambda: gdt.asarray(SWAPPED), [1, 2, 3]),
    "asarray, shared": (lambda: gdt.asarray(SWAPPED, copy=False), [1, 2, 3]),
    "asarray of a dtype": (lambda: gdt.asarray([1, 2], OTHER_ORDER), [1, 2]),
    "operand": (lambda: gdt.ones((3,), "float32") * SWAPPED, [1, 2, 3]),
    "pack": (lambda: gdt.pack([SWAPPED[:1], SWAPPED[1:2]], halves()), [1, 2]),
    "full": (lambda: gdt.full((2,), 3.0, OTHER_ORDER), [3, 3]),
    "sum": (lambda: gdt.sum(gdt.ones((2, 2), int), axis=0, dtype=OTHER_ORDER), [2, 2]),
    "cumsum": (lambda: gdt.cumsum(gdt.asarray([1, 1, 1]), dtype=OTHER_ORDER), [1, 2, 3]),
    "astype": (lambda: gdt.asarray([1, 2]).astype(OTHER_ORDER), [1, 2]),
    "one_hot": (lambda: gdt.one_hot(gdt.asarray(1), 3, dtype=OTHER_ORDER), [0, 1, 0]),
    "uniform": (lambda: gdt.random.uniform(2, 3, 3, dtype=OTHER_ORDER), [3, 3]),
    "integers": (lambda: gdt.random.integers(7, 8, 2, dtype=OTHER_INTS), [7, 7]),
}


def halves() -> gdt.Layout:
    return gdt.Layout(["x"], gdt.create_mesh([("x", 2)], blocks=2))


@pytest.mark.parametrize("case", FROM_OTHER_ORDER)
def test_arrays_are_in_the_hosts_byte_order(case: str) -> None:
    make, values = FROM_OTHER_ORDER[case]
    x = make()
    assert x.tolist() == values
    assert x.dtype.isnative and all(block.dtype.isnative for block in x.blocks)


def test_asarray_of_a_distributed_array_converts_and_moves_it() -> None:
    layout = gdt.Layout(["x"], gdt.create_mesh([("x", 2)]))
    x = gdt.asarray(gdt.asarray([1.5, 2.5, 3.5]), "int32", layout=layout)
    assert_same(x, np.array([1, 2, 3], "int32"), layout)


RANGES = [
    (10,),
    (0,),
    (-3,),
    (9.0,),
    (2, 11),
    (2, 11, 3),
    (11, 2, -2),
    (0.0, 1.0, 0.1),
    (1, 2.5, 0.25),
    (5, 0, -0.7),
    (1e16, 1e16 + 20, 3.0),
    (np.float32(0), np.float32(2), np.float32(0.3)),
    (np.int8(3), np.int8(9)),
    (-1.5,),
]


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
@pytest.mark.parametrize("args", RANGES, ids=str)
def test_arange_is_numpys(args: tuple[Any, ...], mesh: gdt.Mesh) -> None:
    for layout in with_partial(mesh, 1):
        assert_same(gdt.arange(*args, layout=layout), np.arange(*args), layout)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float16", "float32", "complex64"])
@pytest.mark.parametrize("args", [(9,), (3, 9), (1, 9, 0.5), (0, 2, 0.1), (100, 1, -7)], ids=str)
def test_arange_of_a_dtype_is_numpys(args: tuple[Any, ...], dtype: str) -> None:
    layout = gdt.Layout(["x"], gdt.create_mesh([("x", 4)]))
    assert_same(
        gdt.arange(*args, dtype=dtype, layout=layout), np.arange(*args, dtype=dtype), layout
    )


def test_arange_of_bools_has_two_elements_at_most() -> None:
    assert gdt.arange(2, dtype=bool).tolist() == [False, True]
    with pytest.raises(gdt.errors.DtypeError, match="a range of 3 elements is not of dtype bool"):
        gdt.arange(3, dtype=bool)


SPACES = [
    ((0, 1), {}),
    ((0, 1, 7), {}),
    ((0, 1, 7), {"endpoint": False}),
    ((-2.5, 9, 9), {"dtype": "int32"}),
    ((3, 3, 5), {}),
    ((0, 1, 1), {}),
    ((0, 1, 0), {}),
    ((1j, 2 + 3j, 5), {}),
    ((0, 1, 5), {"dtype": "float16"}),
    ((0, 5e-324, 4), {}),
    ((np.float32(0), np.float32(1), 9), {}),
]


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
@pytest.mark.parametrize(("args", "static"), SPACES, ids=str)
def test_linspace_is_numpys(args: Any, static: Any, mesh: gdt.Mesh) -> None:
    for layout in with_partial(mesh, 1):
        assert_same(
            gdt.linspace(*args, **static, layout=layout), np.linspace(*args, **static), layout
        )


@pytest.mark.parametrize("mesh", meshes([(4,), (2, 3)]), ids=mesh_id)
@pytest.mark.parametrize("dtype", [float, bool, "complex64"])
@pytest.mark.parametrize("args", [(5,), (4, 7), (7, 4, -2), (4, 4, 1), (0, 3), (1, 1)], ids=str)
def test_eye_and_tri_are_numpys(args: tuple[int, ...], dtype: Any, mesh: gdt.Mesh) -> None:
    for layout in with_partial(mesh, 2):
        assert_same(gdt.eye(*args, dtype=dtype, layout=layout), np.eye(*args, dtype=dtype), layout)
        assert_same(gdt.tri(*args, dtype=dtype, layout=layout), np.tri(*args, dtype=dtype), layout)


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
@pytest.mark.parametrize("shape", [(), (9,), (0,), (4, 5), (3, 1, 2)], ids=str)
def test_constant_arrays_are_numpys(shape: tuple[int, ...], mesh: gdt.Mesh) -> None:
    for layout in with_partial(mesh, len(shape)):
        assert_same(gdt.zeros(shape, layout=layout), np.zeros(shape), layout)
        assert_same(gdt.ones(shape, bool, layout=layout), np.ones(shape, bool), layout)
        assert_same(gdt.full(shape, 7, layout=layout), np.full(shape, 7), layout)
        assert_same(
            gdt.full(shape, 2.5, "float32", layout=layout), np.full(shape, 2.5, "f4"), layout
        )
        made = gdt.empty(shape, "float32", layout=layout)
        assert made.layout is layout and made.shape == shape and made.dtype == np.float32
        assert [b.shape for b in made.blocks] == [made.type.block_shape] * len(mesh.blocks)


def test_full_broadcasts_arrays_as_numpy_does() -> None:
    layout = gdt.Layout(["x", None], gdt.create_mesh([("x", 2)]))
    want = np.full((3, 2), [1, 2], float)
    assert_same(gdt.full((3, 2), [1, 2], float, layout=layout), want, layout)
    with gdt.default_mesh(layout.mesh):
        assert_same(gdt.full((3, 2), gdt.arange(1, 3), float, layout=layout), want, layout)


LIKE: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (gdt.zeros_like, np.zeros_like),
    (gdt.ones_like, np.ones_like),
    (lambda x, **k: gdt.full_like(x, 3, **k), lambda x, **k: np.full_like(x, 3, **k)),
]


@pytest.mark.parametrize(("ours", "numpys"), LIKE)
def test_like_takes_shape_dtype_and_layout(ours: Any, numpys: Any) -> None:
    mesh = gdt.create_mesh([("x", 2), ("y", 2)])
    value = np.arange(10, dtype="int16").reshape(5, 2)
    layout = gdt.Layout([None, "x"], mesh, partial=["y"])
    x = gdt.asarray(value, layout=layout)
    assert_same(ours(x), numpys(value), layout.resolved)
    assert_same(ours(x, dtype="float32"), numpys(value, dtype="float32"), layout.resolved)
    assert_same(ours(x, layout=layout), numpys(value), layout)
    assert ours(value).numpy().tolist() == numpys(value).tolist()
    assert gdt.empty_like(x).type is ours(x).type


def test_empty_bools_are_bools() -> None:
    for _ in range(3):
        gdt.full((1 << 16,), 255, "uint8")  # leaves memory that is no bool
        assert set(gdt.empty((1 << 16,), bool).numpy().view("uint8").tolist()) <= {0, 1}


def test_a_device_makes_only_its_shards() -> None:
    layout = gdt.Layout(["x", None], gdt.create_mesh([("x", 8)], blocks=8))
    gdt.eye(8, layout=layout)
    with allocations() as allocated:
        x = gdt.eye(1600, dtype="float64", layout=layout)
    assert allocated.peak < x.nbytes * 1.5  # all blocks, and what one of them is made of


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: gdt.asarray([[1, 2], [3]]), "is no array"),
        (lambda: gdt.asarray(["a"]), "dtype <U1, which is no number"),
        (lambda: gdt.asarray(object()), "asarray"),
        (lambda: gdt.zeros((2, -1)), "zeros: -1 in shape"),
        (lambda: gdt.zeros((2, 2.5)), "2.5 in shape"),
        (lambda: gdt.zeros(2, "str"), "dtype <U0 is no number"),
        (lambda: gdt.zeros(2, "nonsense"), "'nonsense' is not a dtype"),
        (lambda: gdt.arange(0, 5, 0), "arange: the step is 0"),
        (lambda: gdt.arange(0, np.inf), "no finite range"),
        (lambda: gdt.arange(0, np.nan), "no finite range"),
        (lambda: gdt.arange(1j), "1j is not a real number"),
        (lambda: gdt.linspace(0, 1, -1), "linspace: -1 in shape"),
        (lambda: gdt.tril(gdt.ones(())), "rank 0 is neither a matrix nor a row of one"),
        (lambda: gdt.zeros(2, layout="x"), "'x' is not a Layout"),
        (
            lambda: gdt.ones(2, layout=gdt.Layout.replicated(gdt.get_default_mesh(), 2)),
            "a layout of rank 2 does not fit an array of rank 1",
        ),
    ],
)
def test_bad_input_is_named(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(gdt.errors.GdtError, match=problem):
        make()


def test_masked_arrays_are_refused() -> None:
    masked = np.ma.masked_array([1.0, 2.0], mask=[True, False])
    for call in (
        lambda: gdt.asarray(masked), lambda: gdt.asarray(masked, "float32"),
        lambda: gdt.ones(2) + masked, lambda: np.add(gdt.ones(2), masked),
    ):  # fmt: skip
        with pytest.raises(gdt.errors.DtypeError, match=r"masked array.*\n.*filled"):
            call()
