"""Formulas of NumPy's ufuncs beside the ufuncs: all pairs of special values, in all dtypes."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gdt
from gdt.fusion import llvm
from gdt.fusion.formula import ElementGraph
from gdt.fusion.loop import FusedLoop
from gdt.fusion.op_formula import LOOP_DTYPES, UFUNCS
from tests.programs.fused_chains import bits

pytestmark = pytest.mark.skipif(bool(llvm.problem()), reason=llvm.problem() or "compiled")

FLOATS = [0.0, -0.0, 1.0, -1.5, 2.5, 3e38, -1e-45, 1e-320, math.inf, -math.inf, math.nan, 0.5]
INTEGERS = [0, 1, 2, 3, 5, 100, 127, -1, -2, -128]
assert gdt.relu  # declares formulas


def special(dtype: np.dtype) -> np.ndarray:
    with np.errstate(all="ignore"):
        values = FLOATS if dtype.kind == "f" else INTEGERS if dtype.kind != "b" else [False, True]
        info = np.iinfo(dtype) if dtype.kind in "iu" else None
        edges = [info.min, info.max] if info else []
        return np.concatenate([np.array(values).astype(dtype), np.array(edges, dtype)])


@pytest.mark.parametrize("name", sorted(UFUNCS))
def test_formulas_have_the_bits_of_ufuncs(name: str) -> None:
    ufunc, formula = getattr(np, name), UFUNCS[name]
    taken = 0
    for code in sorted(LOOP_DTYPES):
        dtype = np.dtype(code.replace("b1", "?"))
        dtypes = formula.dtypes([dtype] * ufunc.nin, None)
        if dtypes is None or {*dtypes} != {code}:
            continue
        values = special(dtype)
        operands = [np.repeat(values, len(values)), np.tile(values, len(values))][: ufunc.nin]
        graph = ElementGraph()
        names = {"xy"[i]: graph.add("input", code, i) for i in range(ufunc.nin)}
        result = graph.write(formula.text, **names)
        with np.errstate(all="ignore"):
            expected = ufunc(*operands)
        out = np.empty_like(expected)
        FusedLoop(graph, [code] * ufunc.nin, [result], [], [])(out.shape, operands, [out])
        np.testing.assert_array_equal(bits(out), bits(expected), err_msg=f"{name} of {code}")
        taken += 1
    assert taken
