"""float8: arrays are cast to it, moved, stored, and cast from it; nothing computes with it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gdt
from gdt.errors import DtypeError

MESH = gdt.create_mesh([("x", 4)])
DTYPES = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
VALUES = np.linspace(-300, 300, 64, dtype="float32")


@pytest.mark.parametrize("layout", [None, gdt.Layout(["x"], MESH)], ids=["whole", "split"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_casts_round_as_ml_dtypes_does(dtype: Any, layout: gdt.Layout | None) -> None:
    x = gdt.asarray(VALUES, layout=layout)
    stored = gdt.astype(x, dtype)
    assert stored.dtype == dtype and stored.layout is x.layout
    np.testing.assert_array_equal(stored.numpy(), VALUES.astype(dtype))
    expected = VALUES.astype(dtype).astype("float32")
    np.testing.assert_array_equal(gdt.astype(stored, "float32").numpy(), expected)
    step = gdt.function(lambda x: gdt.astype(gdt.astype(x * 0.5, dtype), "float32") + 1.0)
    for _ in range(4):
        out = step(x)
    np.testing.assert_array_equal(out.numpy(), (VALUES * 0.5).astype(dtype).astype("float32") + 1)
    whole = gdt.relayout(stored, gdt.Layout.replicated(MESH, 1))
    np.testing.assert_array_equal(whole.numpy(), VALUES.astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_computes_with_it(dtype: Any) -> None:
    x = gdt.ones(4, dtype)
    for compute in (gdt.sum, gdt.exp, lambda x: x + x, lambda x: x * 2.0, lambda x: x @ x):
        with pytest.raises(DtypeError, match=r"float8.*, with which gdt does not compute"):
            compute(x)
    with pytest.raises(DtypeError, match="the result has dtype float8"):
        gdt.sum(gdt.ones(4), dtype=dtype)
