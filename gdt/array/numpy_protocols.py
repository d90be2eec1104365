"""NumPy's functions and ufuncs, called with distributed arrays, run as gdt's of the same meaning.

`functions` is `gdt.array.registry.FUNCTIONS`; NumPy's arguments are passed on as far as they are
given.
Sources: NEP 13 (`__array_ufunc__`) and NEP 18 (`__array_function__`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.array.registry import ALIASES
from gdt.errors import DtypeError, error

Functions = Mapping[str, Callable[..., Any]]

REDUCE_NAMES = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min",
    "logical_and": "all", "logical_or": "any",
}  # fmt: skip
CHAPTERS = ("numpy.fft", "numpy.linalg")
ARGUMENT_NAMES = {"a_min": "min", "a_max": "max"}


def call_ufunc(
    functions: Functions,
    ufunc: np.ufunc,
    method: str,
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call gdt's function for a ufunc of NumPy, as `__array_ufunc__` does.

    Raises DtypeError for a ufunc, a method of it, or an argument that gdt lacks.
    """
    axis = kwargs.get("axis", 0)  # of a reduction; None says all axes
    kwargs = {k: v for k, v in kwargs.items() if v is not None}
    function = functions.get(ALIASES.get(ufunc.__name__, ufunc.__name__))
    if method == "reduce" and ufunc.__name__ in REDUCE_NAMES:
        return functions[REDUCE_NAMES[ufunc.__name__]](inputs[0], **{**kwargs, "axis": axis})
    if ufunc is np.divmod and method == "__call__" and not kwargs:
        return functions["floor_divide"](*inputs), functions["remainder"](*inputs)
    if method != "__call__" or function is None or kwargs:
        what = f"numpy.{ufunc.__name__}" + (f".{method}" if method != "__call__" else "")
        names = f" with {', '.join(kwargs)}" if kwargs else ""
        raise error(
            DtypeError,
            what,
            f"is not available for distributed arrays{names}",
            remedy="Use x.numpy() to compute on the host.",
        )
    return function(*inputs)


def call_function(
    functions: Functions,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call gdt's function for a function of NumPy, as `__array_function__` does.

    A function that gdt lacks runs as NumPy wrote it. It reads facts such as `x.ndim` from the
    array, calls gdt's functions where there are any, and otherwise fetches the values, which
    `gdt.implicit_fetch` allows or forbids.
    """
    name = function.__name__
    if function.__module__ in CHAPTERS:
        name = f"{function.__module__.removeprefix('numpy.')}.{name}"
    is_known = function.__module__ == "numpy" or function.__module__ in CHAPTERS
    own = functions.get(ALIASES.get(name, name.rstrip("_"))) if is_known else None
    is_nonzero = function is np.where and len(args) == 1
    holds_none = function is np.broadcast_arrays and any(a is None for a in args)
    if own is None or is_nonzero or holds_none:
        return function._implementation(*args, **kwargs)  # type: ignore[attr-defined]  # NEP 18
    args, kwargs = _without_defaults(function, args, kwargs)
    return own(*args, **kwargs)


def _without_defaults(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The operands by position, and by name what is not as NumPy's function has it by default:
    `out=None` says nothing."""
    signature = _signature(function)
    if signature is None:
        return args, kwargs
    bound = signature.bind(*args, **kwargs).arguments
    operands: list[Any] = []
    options: dict[str, Any] = {}
    for name, value in bound.items():
        parameter = signature.parameters[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            operands += value
        elif parameter.kind is parameter.VAR_KEYWORD:
            options |= value
        elif parameter.kind is parameter.POSITIONAL_ONLY or parameter.default is parameter.empty:
            operands.append(value)
        elif not _is_same(value, parameter.default):
            options[ARGUMENT_NAMES.get(name, name)] = value
    return tuple(operands), options


def _is_same(value: object, default: object) -> bool:
    return value is default or (
        isinstance(value, str | int | float) and type(value) is type(default) and value == default
    )


@lru_cache(maxsize=256)
def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except ValueError:  # of some functions in C
        return None
