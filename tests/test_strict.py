"""Every sample of tests/samples on devices whose arrays refuse what CuPy refuses."""

from __future__ import annotations

import zlib

import pytest

from gdt.array import FUNCTIONS
from gdt.testing import Oracle, choices

from .samples import SAMPLES
from .strict import engine

engine.register()
MESHES = {"8 on one": ({"x": 4, "y": 2}, 1), "4 on two": ({"x": 2, "y": 2}, 2)}


def check(name: str, how: str, samples: int | None, layouts: int) -> None:
    mesh = engine.mesh(*MESHES[how])
    for n, sample in enumerate(SAMPLES[name][:samples]):
        oracle = Oracle(FUNCTIONS[name], sample)
        seed = zlib.crc32(f"{name} {n} {how}".encode())
        ranks = [a.ndim for a in sample.arrays]
        for chosen in choices(mesh, ranks, limit=layouts, seed=seed):
            oracle.check(mesh, chosen)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_function_on_strict_devices(name: str) -> None:
    check(name, "8 on one", samples=2, layouts=1)


@pytest.mark.cupy_full
@pytest.mark.parametrize("how", MESHES)
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_sample_on_strict_devices(name: str, how: str) -> None:
    check(name, how, samples=None, layouts=3)
