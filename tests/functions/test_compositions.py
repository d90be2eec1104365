"""Functions of ops equal NumPy's of the same name, in some layouts and in both storage modes."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.array.array import DistributedArray
from gdt.array.registry import FUNCTIONS
from gdt.sharding.mesh import Mesh
from gdt.state.trees import leaves
from gdt.testing import Oracle, assert_close, choices, meshes, tolerance
from tests.compositions import COMPOSED, CREATIONS

FOLDED = meshes([(2, 2)], modes=["folded"])[0]
APART = meshes([(8,)], modes=["apart"])[0]


@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN and of divisions by 0
def test_a_composition_equals_numpys(name: str) -> None:
    for n, sample in enumerate(COMPOSED[name]):
        oracle = Oracle(FUNCTIONS[name], sample)
        ranks = [a.ndim for a in sample.arrays]
        for k, mesh in enumerate((FOLDED, APART)):
            seed = zlib.crc32(f"{name} {n} {mesh.sizes}".encode())
            layouts = choices(mesh, ranks, limit=2, seed=seed)[-1]
            oracle.check(mesh, layouts, gradients=k == n % 2)


@pytest.mark.parametrize("mesh", [FOLDED, APART], ids=["folded", "apart"])
@pytest.mark.parametrize("size", [4, 4000])
def test_interp_has_the_gradient_of_its_line_at_the_points(size: int, mesh: Mesh) -> None:
    points = np.arange(float(size))
    at = gdt.asarray([1.0, 1.5, 0.0, size - 1.0, -1.0, size + 0.5])
    split = gdt.Layout([mesh.axis_names[0]], mesh)
    operands = [gdt.asarray(a, layout=split) for a in (at, points, 2 * points)]
    f = lambda x, xp, fp: gdt.sum(gdt.interp(x, xp, fp))
    of_x, of_points, of_values = [g.numpy() for g in gdt.grad(f, (0, 1, 2))(*operands)]
    assert of_x.tolist() == [2.0, 2.0, 2.0, 2.0, 0.0, 0.0]
    assert of_values[[0, 1, 2, -1]].tolist() == [2.0, 1.5, 0.5, 2.0]
    assert of_points[[0, 1, 2, -1]].tolist() == [-2.0, -3.0, -1.0, -2.0]
    assert of_values.sum() == 6.0 and of_points.sum() == -8.0
    second = gdt.grad(lambda x: gdt.sum(gdt.grad(lambda y: f(y * y, *operands[1:]))(x)))
    assert second(operands[0]).tolist()[:2] == [4.0, 4.0]


def host(value: Any) -> Any:
    return value.numpy() if isinstance(value, DistributedArray) else value


@pytest.mark.parametrize("mesh", [FOLDED, APART], ids=["folded", "apart"])
@pytest.mark.parametrize("name", CREATIONS)
def test_arrays_that_are_created_from_numbers_are_numpys(name: str, mesh: Mesh) -> None:
    for args, static in CREATIONS[name]:
        expected = getattr(np, name)(*args, **static)
        with gdt.default_mesh(mesh):
            result = FUNCTIONS[name](*args, **static)
        assert isinstance(result, tuple) == isinstance(expected, tuple)
        for a, b in zip(leaves([result]), leaves([expected]), strict=True):
            bound = tolerance([np.asarray(b).dtype], 100)
            assert np.asarray(host(a)).dtype == np.asarray(b).dtype
            assert_close(np.asarray(host(a)), np.asarray(b), bound, name)


def test_functions_of_slices() -> None:
    x = np.arange(30.0).reshape(2, 5, 3)
    split = gdt.asarray(x, layout=gdt.Layout([None, APART.axis_names[0], None], APART))
    for axis in range(3):
        for function in (
            lambda row: row.sum(),
            lambda row: row[:2],
            lambda row: row[:, None] * row,
        ):
            result = gdt.apply_along_axis(function, axis, split)
            np.testing.assert_allclose(result.numpy(), np.apply_along_axis(function, axis, x))
    np.testing.assert_allclose(
        gdt.apply_over_axes(gdt.sum, split, [0, 2]).numpy(), np.apply_over_axes(np.sum, x, [0, 2])
    )


def test_functions_of_slices_send_what_does_not_grow_with_their_number() -> None:
    rows = np.arange(256.0).reshape(64, 4)
    split = gdt.asarray(rows, layout=gdt.Layout([APART.axis_names[0], None], APART))
    for function, shares in ((lambda row: row[::-1], 5.1), (np.sum, 2.8)):
        with gdt.count_collectives() as counter, gdt.testing.peak_memory([split]) as memory:
            result = gdt.apply_along_axis(function, 1, split)
        np.testing.assert_array_equal(result.numpy(), np.apply_along_axis(function, 1, rows))
        assert result.layout.dims[0] == split.layout.dims[0]
        assert len(counter) <= 16 and counter.bytes <= 8 * split.nbytes
        assert memory.peak <= shares * split.nbytes / 8
