"""Compiled loops: bodies of ops that small blocks spend most of a step in, in one pass on the host.

A body in NumPy is a call, a temporary and a pass over memory for each operation. Where numba is
installed (the extra `fast`) an op may have its body as a loop over elements too, and names it in
its own block as it names its kernel:

    @loop("input, input, output")
    def _relu_gradient(g, y, out):
        for i in range(g.size):
            out[i] = ...

    @relu_gradient.loop
    def relu_gradient_loop(body, g, y, /):
        run = _relu_gradient[g.dtype.char]
        if run is None or ...:
            return None
        ...

The function gets the body and what the plan's first call passes to it, and returns what runs in the
body's place from then on, with blocks of these shapes and dtypes; or None if the loop does not take
them. Loops compute what bodies do in the same order and dtype, but for sums, which they add up in
float64; they give no NumPy warnings about what is infinite or no number. They are compiled when
they first run, and kept on disk by numba. `GDT_COMPILED_LOOPS=0` in the environment leaves bodies
as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from types import ModuleType
from typing import Any

import numpy as np

from gdt.backend.numpy import order_in_memory
from gdt.errors import KernelError, error

Block = Any

VARIABLE = "GDT_COMPILED_LOOPS"
INSTALL = "pip install 'gdt[fast]'"
ELEMENTS = {"f": "float32", "d": "float64"}


class Loop(dict[str, Any]):
    """A loop by the characters of dtypes: compiled for float32 and float64, None for any other.

    parameters: of each parameter what it is: a vector of elements in order that is read (`input`)
    or written (`output`), one of integers that is read (`labels`), or a number (`int`, `float`).
    """

    def __init__(self, function: Callable[..., Any], parameters: str) -> None:
        super().__init__()
        self.function, self.parameters = function, parameters.split(", ")

    def __missing__(self, char: str) -> Any:
        self[char] = compiled = self._compile(ELEMENTS[char]) if char in ELEMENTS else None
        return compiled

    def _compile(self, element: str) -> Any:
        numba, problem = _numba()
        if numba is None:
            raise error(KernelError, self.function.__name__, problem, remedy=INSTALL)
        types = numba.types
        kinds = {
            "input": types.Array(getattr(types, element), 1, "C", readonly=True),
            "output": types.Array(getattr(types, element), 1, "C"),
            "labels": types.Array(types.int64, 1, "C", readonly=True),
            "int": types.int64,
            "float": types.float64,
        }
        signature = tuple([kinds[p] for p in self.parameters])
        options = {"error_model": "numpy", "nogil": True}
        try:
            return numba.njit(signature, cache=True, **options)(self.function)
        except (RuntimeError, OSError):  # no folder to keep it in, or no room there
            return numba.njit(signature, **options)(self.function)


def loop(parameters: str) -> Callable[[Callable[..., Any]], Loop]:
    """Declare a loop: a decorator of a function that numba compiles."""
    return lambda function: Loop(function, parameters)


class LoopBody:
    """The body of an op, or its loop if that takes what the first call passes."""

    def __init__(
        self, loop: Callable[..., Any], body: Callable[..., Any], static: Mapping[str, Any]
    ) -> None:
        self.body = partial(body, np, **static)
        self.loop = partial(loop, self.body, **static)
        self.chosen: Callable[..., Any] | None = None

    def __call__(self, *operands: Any, **memory: Any) -> Any:
        if self.chosen is None:
            self.chosen = self.loop(*operands) or self.body
        return self.chosen(*operands, **memory)


# ---------------------------------------------------------------- whether there are any

_wanted = [os.environ.get(VARIABLE, "1") not in ("0", "off", "false")]


@cache
def _numba() -> tuple[ModuleType | None, str]:
    """numba, and why there is none."""
    try:
        import numba  # noqa: PLC0415 - takes half a second, and only plans that have loops need it
    except ImportError as problem:  # not installed, or not for this version of NumPy
        return None, str(problem)
    if getattr(numba.config, "DISABLE_JIT", 0):  # then loops would run in Python
        return None, "NUMBA_DISABLE_JIT is set"
    return numba, ""


def are_compiled() -> bool:
    """Whether ops run as loops where they can."""
    return _wanted[0] and _numba()[0] is not None


def described() -> tuple[str, str]:
    """Whether loops are compiled, by what, or why not; and what to do about that."""
    if not _wanted[0]:
        return f"turned off by {VARIABLE}", ""
    numba, problem = _numba()
    if numba is not None:
        return f"by numba {numba.__version__}", ""
    return f"no: {problem}", "" if "NUMBA" in problem else INSTALL


@contextmanager
def wanted(on: bool) -> Iterator[None]:
    """A block of code in which new plans have loops, or none."""
    before, _wanted[0] = _wanted[0], on
    try:
        yield
    finally:
        _wanted[0] = before


# ---------------------------------------------------------------- blocks as loops take them


def are_arrays(*operands: Any) -> bool:
    """Whether none of them is a number."""
    return all(isinstance(x, np.ndarray) for x in operands)


def vectors(*blocks: Block) -> Sequence[Block] | None:
    """Views of blocks of one shape and order in memory, as vectors; None if they have gaps, or
    other orders."""
    found = [b.ravel() for b in blocks if b.flags.c_contiguous]
    if len(found) == len(blocks):
        return found
    order = order_in_memory(blocks[0])
    if order is None or any(b.strides != blocks[0].strides for b in blocks):
        return None
    found = [b.transpose(order).ravel() for b in blocks]
    return None if found[0].base is None else found  # they have gaps, and are copies


def grouped(
    shape: tuple[int, ...], kept: tuple[int, ...], *same: tuple[int, ...]
) -> tuple[int, int, int, int] | None:
    """The sizes (outer, lead, rows, columns) of a block, of which what broadcasts to it and has
    shape `kept` has lead and columns; None if it is not of that form, if there is nothing, or if
    one of `same` differs from `kept`."""
    if len(kept) > len(shape) or any(s != kept for s in same):
        return None
    groups = [1]
    for n, k in zip(shape, (1,) * (len(shape) - len(kept)) + kept, strict=True):
        if k not in (1, n) or n == 0:
            return None
        if n != 1:
            if (k == 1) is not (len(groups) % 2 == 1):
                groups.append(1)
            groups[-1] *= n
    if len(groups) > 4:
        return None
    if len(groups) < 3:  # rows, or rows and columns
        groups = [1, 1, *groups]
    outer, lead, rows, columns = groups + [1] * (4 - len(groups))
    return outer, lead, rows, columns


@lru_cache(maxsize=256)
def constant(value: float, char: str) -> np.ndarray:
    """A vector of one number."""
    return np.full(1, value, char)
