"""`out=`: results that are written into distributed arrays that the caller names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from gdt.array.registry import FUNCTIONS
from gdt.errors import DtypeError, ShapeError, error, type_text
from gdt.sharding.dtypes import castable

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


def into(out: Any, name: str, result: R, *, where: Any = True, casting: str = "same_kind") -> R:
    """`result` if `out` is None; else the distributed array `out`, which the result is written
    into, where the mask `where` is true.

    out: an array, or a tuple of as many arrays and Nones as there are results. casting: how the
    dtypes may differ; see `gdt.can_cast`.

    Raises DtypeError for arrays of the host and for other dtypes, ShapeError for other shapes.
    """
    if out is None:
        return result
    return _written(out, name, result, where, casting)  # type: ignore[no-any-return]


def _written(out: Any, name: str, result: Any, where: Any, casting: str) -> Any:
    if isinstance(result, tuple):
        each = zip(out, result, strict=True)
        return tuple([into(o, name, r, where=where, casting=casting) for o, r in each])
    target = out[0] if isinstance(out, tuple) else out
    if not isinstance(target, type(result)):
        raise of_the_host(name, target)
    if not castable(result.dtype, target.dtype, casting):
        problem = f"a result of {result.dtype} cannot be written as {target.dtype}"
        raise error(DtypeError, name, problem, operands={"out": target.type})
    if where is not True:
        result = FUNCTIONS["where"](where, result.astype(target.dtype), target)
    if target.shape != result.shape:
        problem = f"out has shape {list(target.shape)}, the result {list(result.shape)}"
        raise error(ShapeError, name, problem, operands={"out": target.type})
    target[...] = result
    return target


def of_the_host(name: str, target: object) -> DtypeError:
    """The error of values that would go to what is no distributed array."""
    problem = "a distributed array is not written into an array of the host"
    if not isinstance(target, np.ndarray):
        problem = f"out is {type_text(target)}, not a distributed array"
    return error(DtypeError, name, problem, remedy="Use x.numpy() to compute on the host.")


def writes_out(function: F) -> F:
    """`function`, whose result is written into the array that a call gives for its parameter `out`;
    the function itself gets None. A decorator."""
    position = [*inspect.signature(function).parameters].index("out")
    name = function.__name__

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        if len(args) > position:
            out, args = args[position], (*args[:position], None, *args[position + 1 :])
        result = function(*args, **kwargs)
        return result if out is None else into(out, name, result)

    return call  # type: ignore[return-value]
