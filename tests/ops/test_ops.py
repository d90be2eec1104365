"""Every op and public function equals itself on whole arrays: in any layout, on any mesh, in one
block and in several; new functions get these tests by adding samples."""

from __future__ import annotations

import copy
import pickle
import warnings
import zlib
from functools import cache

import numpy as np
import pytest

import gdt
from gdt.array.registry import FUNCTIONS
from gdt.engine.op import OPS
from gdt.sharding.mesh import Mesh
from gdt.sharding.reduction import UFUNCS
from gdt.state.trees import leaves
from gdt.testing import Oracle, choices, meshes
from tests.samples import ELSEWHERE, SAMPLES

CHOICES = 4  # of layouts per sample, mesh and storage mode
FIRST, FEW = 2, 2  # samples of a function with so many choices; the others have few
WITH_GRADIENTS = 2  # of those, and with second derivatives on the first and the last mesh
MESHES = meshes()
LARGE_MESHES = meshes([(2, 2, 2)])


def mesh_id(mesh: Mesh) -> str:
    return "x".join(map(str, mesh.sizes)) + "-" + "x".join(map(str, mesh.grid))


@cache
def oracles(name: str) -> list[Oracle]:
    """The oracles of a function's samples, which compute results and slopes once for all meshes."""
    return [Oracle(FUNCTIONS[name], sample) for sample in SAMPLES[name]]


def check_all(
    name: str, mesh: Mesh, limit: int, gradients: int, second: int, *, first: int = 0, few: int = 0
) -> None:
    """Check every sample of a function in up to `limit` combinations of layouts.

    gradients, second: how many of them are checked with gradients, with second derivatives.
    first: the first combination that is checked; combination 0 replicates all operands. few: the
        limit for samples after the first ones, which take turns on meshes of the same sizes; if 0,
        all samples have `limit`, on every mesh.
    """
    alike = [m.grid for m in [*MESHES, *LARGE_MESHES] if m.sizes == mesh.sizes]
    for n, oracle in enumerate(oracles(name)):
        if few and n >= FIRST and n % len(alike) != alike.index(mesh.grid):
            continue
        # Other layouts for every sample and storage mode, but the same in every run.
        seed = zlib.crc32(f"{name} {n} {mesh.sizes} {mesh.grid}".encode())
        ranks = [a.ndim for a in oracle.sample.arrays]
        most = few if few and n >= FIRST else limit
        combinations = choices(mesh, ranks, limit=most, seed=seed, reductions=list(UFUNCS))
        for i, layouts in enumerate(combinations[first:] or combinations):
            oracle.check(mesh, layouts, gradients=i < gradients, second=i < second)


def test_every_function_has_samples() -> None:
    missing = sorted({*OPS, *FUNCTIONS} - {*SAMPLES, *ELSEWHERE})
    assert not missing, f"no samples in tests/samples for: {', '.join(missing)}"


def test_ops_and_functions_are_pickled_by_name() -> None:
    for name, function in {**OPS, **FUNCTIONS}.items():
        assert pickle.loads(pickle.dumps(function)) is function, name
        assert copy.deepcopy(function) is function, name


def test_samples_name_functions_that_exist() -> None:
    unknown = sorted({*SAMPLES, *ELSEWHERE} - set(FUNCTIONS))
    assert not unknown, f"samples for unknown functions: {', '.join(unknown)}"


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_function_equals_itself_on_whole_arrays(name: str, mesh: Mesh) -> None:
    # What every device has whole is the same on all meshes: two of them are enough for that.
    at_an_end = mesh in (MESHES[0], MESHES[-1])
    first, second = (0, WITH_GRADIENTS) if at_an_end else (1, 0)
    check_all(name, mesh, CHOICES, WITH_GRADIENTS - first, second, first=first, few=FEW)


@pytest.mark.parametrize("mesh", LARGE_MESHES, ids=mesh_id)
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_function_on_three_mesh_axes(name: str, mesh: Mesh) -> None:
    check_all(name, mesh, limit=2, gradients=1, second=0, first=1, few=FEW)


def test_gradients_of_float32_are_float32() -> None:
    """Of the first sample of each function that has some, on one device."""
    wrong = []
    for name in SAMPLES:
        oracle = next((o for o in oracles(name) if o.differentiable), None)
        if oracle is None:
            continue
        sample = oracle.sample
        arrays = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in sample.arrays]
        with warnings.catch_warnings(action="ignore"), gdt.GradientTape() as tape:
            operands = [gdt.asarray(a) for a in arrays]
            sources = [operands[i] for i in oracle.sources]
            tape.watch(sources)
            results = FUNCTIONS[name](*sample.with_arrays(operands), **sample.static)
            real = [y for y in leaves(results) if getattr(y, "dtype", np.dtype("O")).kind == "f"]
            total = gdt.sum(gdt.concat([gdt.ravel(y).astype(np.float32) for y in real]))
        for gradient in tape.gradient(total, sources, unconnected="zero"):
            if gradient.dtype != np.float32:
                wrong.append(f"{name}: {gradient.dtype}")
    assert not wrong


@pytest.mark.layouts_full
@pytest.mark.parametrize("mesh", [*MESHES, *LARGE_MESHES], ids=mesh_id)
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_function_in_many_layouts(name: str, mesh: Mesh) -> None:
    check_all(name, mesh, limit=24, gradients=8, second=2)
