"""Compiled loops: bodies of ops that small blocks spend most of a step in, in one pass on the host.

A body in NumPy is a call, a temporary and a pass over memory for each operation. Where numba is
installed (the extra `fast`) an op may have its body as a loop over elements too:

    @loop("input, output")
    def _square_root(x, out):
        for i in range(x.size):
            out[i] = ...

    @square_root.specialize
    def square_root_loop(body, x, /): ...

Loops do the arithmetic of bodies in the same order and dtype, but for sums, which they add up in
float64, and for exponentials and logarithms, which are not NumPy's. They give no NumPy warnings
about what is infinite or no number. They are compiled when they first run, and kept on disk by
numba. `GDT_COMPILED_LOOPS=0` in the environment leaves bodies as they are.

A loop is one of the functions that may take a body's place on the host (`Op.specialize`); another
is a function without the body's questions, which on small blocks cost about as much as the
arithmetic. What `specialize` declares gets the body, what the plan's first call passes to it, and
the statics. It returns what runs from then on with blocks of these shapes and dtypes, whose memory
may lie in any order and be read-only; or None where the body runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np

from gdt.backend.numpy import order_in_memory
from gdt.fusion import llvm
from gdt.fusion.llvm import VARIABLE

Block = Any

INSTALL = "pip install 'gdt[fast]'"
ELEMENTS = {"f": "float32", "d": "float64"}


# ---------------------------------------------------------------- compiled by numba


@cache
def _numba() -> tuple[ModuleType | None, str, str]:
    """numba, or why there is none and what to do about that."""
    try:
        import numba  # noqa: PLC0415 - takes half a second, and only plans that have loops need it

        is_off = numba.config.DISABLE_JIT  # type: ignore[attr-defined]
    except Exception as problem:  # its parts do not fit each other, or this version of NumPy
        if isinstance(problem, ModuleNotFoundError) and problem.name == "numba":
            return None, "numba is not installed; it makes small steps faster", INSTALL
        reason = f"numba cannot be imported: {type(problem).__name__}: {problem}"
        return None, reason, "pip install --upgrade numba"
    if is_off:  # then loops would run in Python
        return None, "turned off by NUMBA_DISABLE_JIT", ""
    return numba, "", ""


def are_compiled() -> bool:
    """Whether ops run as loops where they can."""
    return llvm.WANTED and _numba()[0] is not None


def described() -> tuple[str, str]:
    """By what loops are compiled, or why they are not; and what to do about that."""
    if not llvm.WANTED:
        return f"turned off by {VARIABLE}", ""
    numba, problem, remedy = _numba()
    return (problem, remedy) if numba is None else (f"by numba {numba.__version__}", "")


class Loop:
    """A compiled loop for each dtype: `loop[char]`, where `char` is the character of the dtype.

    It is compiled for float32 and float64, and None for other dtypes or without numba.

    parameters: the kind of each parameter: a contiguous vector of elements that is read (`input`)
    or written (`output`), a vector of integers that is read (`labels`) or written (`counts`), one
    of unsigned integers as wide as the elements, which is read (`keys`) or also written (`words`),
    one of 16 bits that is read or written (`digits`), one of bools that is read (`bools`), or a
    number (`int`, `float`).
    fuses: whether a product and a sum may be rounded once, where the processor can do that.
    """

    def __init__(self, function: Callable[..., Any], parameters: str, fuses: bool = False) -> None:
        self.function, self.parameters, self.fuses = function, parameters.split(", "), fuses
        self.compiled: dict[str, Any] = {}

    def __getitem__(self, char: str) -> Any:
        if char not in ELEMENTS or not are_compiled():
            return None
        if char not in self.compiled:
            self.compiled[char] = self._compile(_numba()[0], ELEMENTS[char])
        return self.compiled[char]

    def _compile(self, numba: Any, element: str) -> Any:
        types = numba.types
        kinds = {
            "input": types.Array(getattr(types, element), 1, "C", readonly=True),
            "output": types.Array(getattr(types, element), 1, "C"),
            "words": types.Array(types.uint64 if element == "float64" else types.uint32, 1, "C"),
            "bools": types.Array(types.boolean, 1, "C", readonly=True),
            "digits": types.Array(types.uint16, 1, "C"),
            "labels": types.Array(types.int64, 1, "C", readonly=True),
            "counts": types.Array(types.int64, 1, "C"),
            "int": types.int64,
            "float": types.float64,
        }
        kinds["keys"] = kinds["words"].copy(readonly=True)
        signature = tuple([kinds[p] for p in self.parameters])
        options = {"error_model": "numpy", "nogil": True}
        options |= {"fastmath": {"contract"}} if self.fuses else {}
        try:
            return numba.njit(signature, cache=True, **options)(self.function)
        except Exception:  # what is kept is damaged, or there is no folder or no room to keep it
            try:
                return numba.njit(signature, **options)(self.function)
            except Exception as problem:  # memory that may not be executed, a foreign processor
                why = f"numba cannot compile {self.function.__name__}: {problem}"
                warnings.warn(f"{why}; NumPy computes it", RuntimeWarning, stacklevel=2)
                return None


def loop(parameters: str, fuses: bool = False) -> Callable[[Callable[..., Any]], Loop]:
    """Declare a loop: a decorator of a function that numba compiles."""
    return lambda function: Loop(function, parameters, fuses)


def vectors(*blocks: Block) -> Sequence[Block] | None:
    """Views of blocks of one shape and order in memory, as vectors; None if they have gaps, or
    other orders."""
    views = []
    for block in blocks:  # a comprehension costs as much as two blocks
        if not block.flags.c_contiguous:
            break
        views.append(block.ravel())
    else:
        return views
    order = order_in_memory(blocks[0])
    if order is None or any(b.strides != blocks[0].strides for b in blocks):
        return None
    blocks = tuple([b.transpose(order) for b in blocks])
    return [b.ravel() for b in blocks] if blocks[0].flags.c_contiguous else None


# ---------------------------------------------------------------- chosen in the place of bodies


class ChosenBody:
    """The body of an op on the host, or a function that takes its place, chosen at the first call.

    choose: the function that `Op.specialize` has declared.
    """

    def __init__(
        self, choose: Callable[..., Any], body: Callable[..., Any], static: Mapping[str, Any]
    ) -> None:
        self.body = partial(body, np, **static)
        self.choose = partial(choose, self.body, **static)
        self.chosen: Callable[..., Any] | None = None

    def __call__(self, *operands: Any, **memory: Any) -> Any:
        if self.chosen is None:
            self.chosen = self.choose(*operands) or self.body
        return self.chosen(*operands, **memory)


def are_arrays(*operands: Any) -> bool:
    """Whether none of them is a number."""
    return all(isinstance(x, np.ndarray) for x in operands)


def are_floats(*operands: Any) -> bool:
    """Whether all of them are Python's floats, which take the dtype of arrays that they meet."""
    return all(type(x) is float for x in operands)
