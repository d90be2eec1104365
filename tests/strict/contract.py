"""What the installed CuPy has: its functions, their parameters, and the dtypes of its ufuncs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import cupy
import numpy as np

from gdt.sharding.dtypes import BFLOAT16

from .capture import refused

DTYPES = frozenset("?bBhHiIlLqQefdFD") | {c for c in "E" if "EE->E" in cupy.add.types}
"""The characters of the dtypes that CuPy has: of NumPy's, and from version 14 on that of
bfloat16."""

REDUCED = {"add", "multiply"}
"""The ufuncs whose `reduce` CuPy has; `ufunc.reduce` raises NotImplementedError for the others."""

SCATTERED = {"add", "subtract", "bitwise_and", "bitwise_or", "bitwise_xor"}
"""The ufuncs whose `at` CuPy has."""

ADDED = {"int32", "float16", "float32", "float64", "uint32", "uint64"}
"""The dtypes of `add.at` (the message of its TypeError); from version 14 on int64 is one."""

CONSTRUCTORS = frozenset({"array", "asarray", "asanyarray", "ascontiguousarray"})
"""The functions that copy host arrays to the device."""


OF_CUBLAS = {"matmul", "dot", "vdot", "inner", "outer", "tensordot", "einsum"}
"""The functions that call cuBLAS, but for integers; CuPy refuses that during a capture."""

OF_THRUST = {"sort", "argsort", "lexsort", "partition", "argpartition", "msort", "median"}
"""The functions that call Thrust, which waits for the device."""

CHAPTERS = {"fft", "linalg"}
"""The modules of functions of NumPy's."""

JOINS = {"concatenate", "stack", "vstack", "hstack", "dstack", "column_stack"}
MOST_JOINED = 8  # arrays that CuPy joins by a copy of each (_core/_routines_manipulation.pyx)
ONE_KERNEL_BYTES = 2 << 20  # of an array on average, below which one kernel joins more than that


def version() -> tuple[int, ...]:
    """Major and minor version of the installed CuPy."""
    return tuple(int(part) for part in cupy.__version__.split(".")[:2])


def attribute(name: str) -> Any:
    """An attribute of the module `cupy`; AttributeError that names the version if there is none."""
    if not hasattr(cupy, name):
        raise AttributeError(f"CuPy {cupy.__version__} has no {name!r}")
    return getattr(cupy, name)


OF_CUPY_14 = {"bitwise_count", "eig_of_whole", "eigvals_of_whole"}
LACKED = OF_CUPY_14 if version() < (14,) else set()
"""The functions of gdt for which the installed CuPy has nothing."""


@cache
def signature(owner: Any, name: str) -> inspect.Signature | None:
    """The parameters of a function or method of CuPy; None where CuPy does not say."""
    function = getattr(owner, name)
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        # Cython writes the parameters of methods into the first line of the docstring.
        first = (function.__doc__ or "").split("\n")[0]
        form = re.match(r"[\w.]+\((?P<parameters>.*)\)( -> .*)?$", first)
        return _written(form["parameters"]) if form else None


def _written(parameters: str) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    found = []
    for text in filter(None, map(str.strip, parameters.split(","))):
        name = text.split("=")[0].split()[-1]
        default = None if "=" in text else inspect.Parameter.empty
        if text == "*":
            kind = inspect.Parameter.KEYWORD_ONLY
        elif name.startswith("**"):
            found.append(inspect.Parameter(name[2:], inspect.Parameter.VAR_KEYWORD))
        elif name.startswith("*"):
            found.append(inspect.Parameter(name[1:], inspect.Parameter.VAR_POSITIONAL))
            kind = inspect.Parameter.KEYWORD_ONLY
        else:
            found.append(inspect.Parameter(name, kind, default=default))
    return inspect.Signature(found)


def check_call(owner: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise TypeError unless CuPy's function or method takes these arguments."""
    known = signature(owner, name)
    if known is not None:
        try:
            known.bind(*args, **kwargs)
        except TypeError as e:
            raise TypeError(f"CuPy {cupy.__version__}: {name}{known}: {e}") from None


def check_capture(name: str, first: Any, machine: Any) -> None:
    """Refuse what CuPy or CUDA refuses while a stream is captured."""
    if machine.capture is None:
        return
    if name in OF_CUBLAS and getattr(first, "dtype", np.dtype(float)).kind in "fc":
        problem = "calling cuBLAS API during stream capture is currently unsupported"
        raise NotImplementedError(problem)
    if name in OF_THRUST:
        raise refused()
    if name in JOINS and len(first) > MOST_JOINED and _is_one_kernel(first):
        raise RuntimeError(f"{name}: a table of addresses is copied from the host during a capture")


def _is_one_kernel(arrays: Sequence[Any]) -> bool:
    """Whether CuPy joins these arrays by one kernel, to which it sends their addresses."""
    small = sum(a.nbytes for a in arrays) < len(arrays) * ONE_KERNEL_BYTES
    return small and len({a.dtype for a in arrays}) == 1


def loop(name: str, operands: Sequence[Any], dtype: Any) -> tuple[str, str]:
    """The characters of the dtypes in which a ufunc of CuPy computes: operands, results.

    Raises TypeError if it takes none of the operands: NumPy arrays, NumPy scalars, or Python
    scalars, which are weak.
    """
    for operands_of, results in _loops(name):
        fits = all(map(_casts, operands, operands_of))
        if (fits and dtype is None) or (dtype is not None and set(results) == {dtype.char}):
            return operands_of, results
    shown = ", ".join(str(getattr(x, "dtype", type(x).__name__)) for x in operands)
    raise TypeError(f"CuPy {cupy.__version__}: {name} has no loop for {shown}, dtype={dtype}")


def dtype_of(char: str) -> np.dtype[Any]:
    """The dtype of a character; NumPy does not know that of bfloat16."""
    return BFLOAT16 if char == BFLOAT16.char else np.dtype(char)


def _loops(name: str) -> Iterator[tuple[str, str]]:
    for text in getattr(cupy, name).types:
        operands, results = text.split("->")
        if DTYPES.issuperset(operands + results):
            yield operands, results


def _casts(operand: Any, char: str) -> bool:
    target = dtype_of(char)
    if isinstance(operand, np.ndarray | np.generic):
        return np.can_cast(operand.dtype, target)
    return np.result_type(type(operand)(0), target) == target
