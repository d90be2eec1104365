"""Elementary functions of float32 as kernels have them that g++ has compiled: those of libm; and
the larger and the smaller of float16, which CuPy finds in float32: of -0 and 0 the larger is 0."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

LIBRARY = ctypes.CDLL("libm.so.6")


def _function(name: str) -> Callable[..., Any]:
    of_one = getattr(LIBRARY, f"{name}f")
    of_one.argtypes, of_one.restype = [ctypes.c_float], ctypes.c_float

    def function(x: Any, out: Any = None, **options: Any) -> Any:
        if options or getattr(x, "dtype", None) != np.float32:
            return getattr(np, name)(x, out=out, **options)
        made = np.empty_like(x) if out is None else out
        made[...] = np.array([of_one(v) for v in x.ravel().tolist()], np.float32).reshape(x.shape)
        return made

    return function


def _of_two(name: str) -> Callable[..., Any]:
    of_numpy = getattr(np, name)

    def function(x: Any, y: Any, out: Any = None, **options: Any) -> Any:
        if options or np.result_type(x, y) != np.float16:
            return of_numpy(x, y, out=out, **options)
        made = of_numpy(np.float32(x), np.float32(y)).astype(np.float16)
        if out is None:
            return made
        out[...] = made
        return out

    return function


FUNCTIONS = {
    **{n: _function(n) for n in ("exp", "expm1", "log", "log1p", "tanh", "sin", "cos")},
    **{n: _of_two(n) for n in ("maximum", "minimum")},
}
