"""What every test starts from: one thread of BLAS, caches in the checkout, fixed seeds, no deadline
of time, and rare searches for cycles of garbage."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded

import contextlib
import gc
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdt.array.registry import FUNCTIONS
from gdt.engine.op import OPS

# What tests compile and note is no part of the user's own caches.
CACHE = Path(__file__).parent.parent / "build" / "cache"
for name in ("GDT_CACHE_DIR", "CUPY_CACHE_DIR", "MPLCONFIGDIR"):
    os.environ.setdefault(name, str(CACHE / name.lower()))

with contextlib.suppress(ImportError):  # a machine with a GPU may have pytest alone
    from hypothesis import settings

    settings.register_profile("fixed", deadline=None, derandomize=True)
    settings.load_profile("fixed")


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over modules and tests, and look at the plans that tests leave
    in caches a few times only: with Python's thresholds that is a fifth of the time of tests.

    `gdt.plan` freezes objects where a program has frozen none, and unfreezes all in the end: here
    it freezes them too, and none is unfrozen."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.get_freeze_count, gc.unfreeze = lambda: 0, lambda: None


@pytest.fixture(autouse=True, scope="module")
def older_objects_are_no_garbage() -> None:
    """Let searches for garbage, of which many tests ask for some, pass over what the modules before
    have left in caches."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)


@pytest.fixture
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, and that of `tempfile`, which pytest removes after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def registries_are_restored() -> Iterator[None]:
    """Forget the ops that an example declares."""
    registries: list[dict[str, Any]] = [OPS, FUNCTIONS]
    copies = [dict(registry) for registry in registries]
    yield
    for registry, copy in zip(registries, copies, strict=True):
        registry.clear()
        registry.update(copy)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
