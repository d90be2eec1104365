"""Elementary functions of float32 as kernels have them that g++ has compiled: those of libm."""

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


FUNCTIONS = {n: _function(n) for n in ("exp", "expm1", "log", "log1p", "tanh", "sin", "cos")}
