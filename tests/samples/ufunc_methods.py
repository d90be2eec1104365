"""Samples of the methods of NumPy's ufuncs, by the name of the ufunc."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.testing import Sample

from .elementwise import ints, signed

OPERANDS = {
    "maximum": signed(9, 6), "divide": signed(3, 6), "fmin": signed(5, 3), "hypot": signed(4, 5),
    "gcd": ints(7, 4, low=1), "bitwise_xor": ints(6, 5), "logical_or": ints(5, 4) // 5,
    "logaddexp": signed(4, 4),
}  # fmt: skip


def method(name: str, **static: Any) -> list[Sample]:
    """Samples of a method, along both axes."""

    def expect(x: np.ndarray, ufunc: str, axis: int, **static: Any) -> np.ndarray:
        return getattr(getattr(np, ufunc), name)(x, axis=axis, **static)

    return [
        Sample((x,), {"ufunc": ufunc, "axis": axis, **static}, expect=expect, grad=False)
        for axis in (1, 0)
        for ufunc, x in OPERANDS.items()
    ]


METHODS = {
    "accumulate": method("accumulate"),
    "reduce": method("reduce", keepdims=True) + method("reduce"),
    "reduceat": method("reduceat", indices=(0, 2, 1)),
}
SAMPLES: dict[str, list[Sample]] = {
    name: samples for of, samples in METHODS.items() for name in (f"ufunc_{of}", f"{of}_of_whole")
}
