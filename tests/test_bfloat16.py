"""bfloat16: stored in 16 bits, computed with in float32, wherever a dtype is taken."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import create_mesh
from gdt.array.array import DistributedArray
from gdt.array.registry import FUNCTIONS
from gdt.errors import DtypeError
from gdt.sharding.dtypes import BFLOAT16
from gdt.state import leaves
from gdt.testing import Sample, assert_consistent, choices

from .samples import SAMPLES

MESHES = [create_mesh([("a", 2), ("b", 2)], blocks=n) for n in (1, 4)]
EPSILON = 2.0**-7
BY_RESOLUTION = {"nextafter", "spacing"}  # of the dtype itself
IN_FLOAT32 = {"softmax_statistics", "cross_entropy_of_split", "fused_cross_entropy", "astype"}


def rounded(sample: Sample, dtype: Any) -> list[np.ndarray]:
    """The arrays of a sample with floating-point numbers that bfloat16 holds, in a dtype."""
    return [a.astype(BFLOAT16).astype(dtype) if a.dtype.kind == "f" else a for a in sample.arrays]


def values(out: Any) -> list[np.ndarray]:
    return [x.numpy() for x in leaves(out) if isinstance(x, DistributedArray)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("mesh", MESHES, ids=["one block", "four blocks"])
def test_functions_of_bfloat16_are_those_of_float32_rounded(mesh: gdt.Mesh) -> None:
    count, one = 0, create_mesh([("one", 1)])
    for name in sorted(SAMPLES.keys() - BY_RESOLUTION):
        function, number = FUNCTIONS[name], zlib.crc32(name.encode())
        samples = [s for s in SAMPLES[name] if any(a.dtype.kind == "f" for a in s.arrays)]
        for sample in samples[number % len(samples) :][:1] if samples else ():
            wide = [gdt.asarray(a, device=one) for a in rounded(sample, np.float32)]
            with gdt.default_mesh(one), np.errstate(all="ignore"):
                expected = values(function(*sample.with_arrays(wide), **sample.static))
            *_, layouts = choices(mesh, [a.ndim for a in sample.arrays], limit=2, seed=number)
            arrays = [
                gdt.asarray(a, layout=w.resolved)
                for a, w in zip(rounded(sample, BFLOAT16), layouts, strict=True)
            ]
            with gdt.default_mesh(mesh), np.errstate(all="ignore"):
                try:
                    out = function(*sample.with_arrays(arrays), **sample.static)
                except DtypeError as refusal:
                    assert "is of dtype bfloat16" in str(refusal), name
                    assert function.__module__.startswith("gdt.linalg"), name
                    continue
            for x in leaves(out):
                if isinstance(x, DistributedArray):
                    assert_consistent(x)
            for got, want in zip(values(out), expected, strict=True):
                count += 1
                where = f"{name}, {[w.type for w in arrays]}, {dict(sample.static)}"
                is_free = name in IN_FLOAT32 or "dtype" in sample.static
                is_rounded = want.dtype == np.float32 and not is_free
                assert got.dtype in ((BFLOAT16,) if is_rounded else (BFLOAT16, want.dtype)), where
                number_type = np.complex128 if want.dtype.kind == "c" else np.float64
                finite = np.abs(want[np.isfinite(want)]) if want.dtype.kind in "fc" else 0
                bound = 2 * EPSILON * max(1.0, float(np.max(finite, initial=0)))
                np.testing.assert_allclose(
                    got.astype(number_type), want.astype(number_type), 2 * EPSILON, bound,
                    err_msg=where,
                )  # fmt: skip
    assert count > 280
