"""What every test starts from: one thread of BLAS, fixed seeds, no deadline of time."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded

import contextlib
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest

with contextlib.suppress(ImportError):  # a machine with a GPU may have pytest alone
    from hypothesis import settings

    settings.register_profile("fixed", deadline=None, derandomize=True)
    settings.load_profile("fixed")


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
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
