"""Every op and public function equals itself on whole arrays: in any layout, on any mesh, in one
block and in several; new functions get these tests by adding samples."""

from __future__ import annotations

import copy
import math
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

CHOICES = 2  # of layouts for the first samples of a function on each mesh; the others have one
FIRST = 2
WITH_GRADIENTS = 2  # of those; of the others only on meshes of two axes
TURNS = {1: 2, 2: 2, 3: 6}  # the others are on one in so many meshes of one, two and three axes
MESHES = [*meshes(), *meshes([(2, 2, 2)])]
SIZES = sorted({m.sizes for m in MESHES}, key=math.prod)
WHOLE = (
    SIZES[0],
    (2, 3),
)  # meshes with second derivatives, and operands that all devices have whole


def mesh_id(mesh: Mesh) -> str:
    return "x".join(map(str, mesh.sizes)) + "-" + "x".join(map(str, mesh.grid))


@cache
def oracles(name: str) -> list[Oracle]:
    """The oracles of a function's samples, which compute results and slopes once for all meshes."""
    return [Oracle(FUNCTIONS[name], sample) for sample in SAMPLES[name]]


def check(
    name: str, n: int, mesh: Mesh, limit: int, gradients: int, second: int, *, first: int = 0
) -> None:
    """Check sample n of a function in up to `limit` combinations of layouts.

    gradients, second: how many of them are checked with gradients, with second derivatives.
    first: the first combination that is checked; combination 0 replicates all operands.
    """
    oracle = oracles(name)[n]
    # Other layouts for every sample and storage mode, but the same in every run.
    seed = zlib.crc32(f"{name} {n} {mesh.sizes} {mesh.grid}".encode())
    ranks = [a.ndim for a in oracle.sample.arrays]
    combinations = choices(mesh, ranks, limit=limit, seed=seed, reductions=list(UFUNCS))
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


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_function_equals_itself_on_whole_arrays(name: str, sizes: tuple[int, ...]) -> None:
    alike = [m for m in MESHES if m.sizes == sizes]  # the samples take turns on the storage modes
    turn = zlib.crc32(name.encode())
    for n in range(len(SAMPLES[name])):
        if n >= FIRST and (n + turn + SIZES.index(sizes)) % TURNS[len(sizes)]:
            continue
        mesh = alike[((n if n < FIRST else n // 2) + turn) % len(alike)]
        if len(sizes) == 3:  # where plans take longest
            check(name, n, mesh, limit=2, gradients=int(n < FIRST), second=0, first=1)
            continue
        first = 0 if sizes in WHOLE and n < FIRST else 1
        limit = 1 + (CHOICES if n < FIRST else 1)
        gradients = WITH_GRADIENTS - first if n < FIRST or len(sizes) == 2 else 0
        second = gradients if sizes in WHOLE and n < FIRST else 0
        check(name, n, mesh, limit, gradients, second, first=first)


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
@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_function_in_many_layouts(name: str, mesh: Mesh) -> None:
    for n in range(len(SAMPLES[name])):
        check(name, n, mesh, limit=24, gradients=8, second=2)
