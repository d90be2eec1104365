"""NumPy's functions and ufuncs, called with distributed arrays, run as gdt's of the same meaning.

NumPy's arguments are passed on as far as they are given.
Sources: NEP 13 (`__array_ufunc__`) and NEP 18 (`__array_function__`).
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.array.output import into, of_the_host
from gdt.array.registry import ALIASES, FUNCTIONS
from gdt.errors import ArgumentError, DtypeError, error
from gdt.settings import allows_fetches

Options = dict[str, Any]

REDUCE_NAMES = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min",
    "logical_and": "all", "logical_or": "any",
}  # fmt: skip
SCAN_NAMES = {"add": "cumsum", "multiply": "cumprod"}
AT_NAMES = {
    "add": "add", "subtract": "subtract", "multiply": "multiply", "divide": "divide",
    "maximum": "max", "minimum": "min",
}  # fmt: skip
CHAPTERS = ("numpy.fft", "numpy.linalg", "numpy.lib.stride_tricks")
ARGUMENT_NAMES = {"a_min": "min", "a_max": "max"}


def call_ufunc(
    ufunc: np.ufunc,
    method: str,
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call gdt's function for a ufunc of NumPy, or for one of its methods, as `__array_ufunc__`
    does.

    Raises DtypeError for a ufunc, a method of it, or an argument that gdt lacks.
    """
    options = {k: v for k, v in kwargs.items() if not _says_nothing(k, v)}
    out = options.pop("out", None)
    name = _own_name(ufunc)
    full_name = f"numpy.{ufunc.__name__}" + (f".{method}" if method != "__call__" else "")
    if ufunc.__name__ not in OUTSIDE and name not in FUNCTIONS:
        raise _lacking(full_name)
    if method == "at":
        return _combine_at(name, full_name, inputs)
    options["axis"] = kwargs.get("axis", 0)  # of a reduction; None says all axes
    result = _RUNS[method](ufunc, inputs, options)
    where = kwargs.get("where", True) if method == "__call__" else True
    return into(out, full_name, result, where=where, casting=kwargs.get("casting", "same_kind"))


def _own_name(ufunc: np.ufunc) -> str:
    return ALIASES.get(ufunc.__name__, ufunc.__name__)


OUTSIDE = ("divmod",)  # ufuncs that gdt has as functions of ops


def _says_nothing(name: str, value: Any) -> bool:
    """Whether an argument of a ufunc is as it is by default."""
    return value is None or (name, value if isinstance(value, bool | str) else 0) in NOTHING


NOTHING = {("where", True), ("casting", "same_kind"), ("order", "K"), ("subok", True)}


def _run_call(ufunc: np.ufunc, inputs: Sequence[Any], options: Options) -> Any:
    """Call the function on operands cast to what `dtype` asks for; where the mask is false,
    anything may be."""
    del options["axis"]
    dtype, where = options.pop("dtype", None), options.pop("where", True)
    casting = options.pop("casting", "same_kind")
    if options.pop("order", "K") not in ("K", "A", "C", "F"):  # gdt chooses the order in memory
        raise error(ArgumentError, f"numpy.{ufunc.__name__}", "order is none of K, A, C and F")
    _refuse(f"numpy.{ufunc.__name__}", options)
    if dtype is not None or casting != "same_kind":
        inputs = _cast(ufunc, inputs, dtype, casting)
    function = FUNCTIONS[_own_name(ufunc)]
    if where is True:
        return function(*inputs)
    with np.errstate(all="ignore"):  # elements that the mask leaves out are computed as well
        return function(*inputs)


def _cast(ufunc: np.ufunc, inputs: Sequence[Any], dtype: Any, casting: Any) -> Sequence[Any]:
    """The operands in the dtypes from which the ufunc computes `dtype`, if it is given.

    Raises DtypeError where there are none, or `casting` forbids a cast.
    """
    operands = [x if hasattr(x, "dtype") or type(x) in WEAK else np.asarray(x) for x in inputs]
    dtypes = [type(x) if type(x) in WEAK else x.dtype for x in operands]
    asked: dict[str, Any] = {}
    if dtype is not None:
        asked["signature"] = (*[None] * ufunc.nin, *[np.dtype(dtype)] * ufunc.nout)
    try:
        types = (*dtypes, *[None] * ufunc.nout)
        resolved = ufunc.resolve_dtypes(types, casting=casting, **asked)
    except TypeError as cause:
        raise error(DtypeError, f"numpy.{ufunc.__name__}", str(cause)) from None
    if dtype is None:
        return inputs
    return [
        np.asarray(x).astype(d) if isinstance(x, np.ndarray | np.generic) or type(x) in WEAK
        else x.astype(d)
        for x, d in zip(operands, resolved, strict=False)
    ]  # fmt: skip


WEAK = (int, float, complex)


def _run_reduce(ufunc: np.ufunc, inputs: Sequence[Any], options: Options) -> Any:
    if ufunc.__name__ in REDUCE_NAMES:
        return FUNCTIONS[REDUCE_NAMES[ufunc.__name__]](inputs[0], **options)
    axis, x = options.pop("axis"), inputs[0]
    keepdims = options.pop("keepdims", False)
    _refuse(f"numpy.{ufunc.__name__}.reduce", options)
    axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis
    try:
        ufunc.reduce(np.ones((1,) * x.ndim, x.dtype), axis=axes)  # may several axes be reduced?
    except ValueError as cause:
        raise error(ArgumentError, f"numpy.{ufunc.__name__}.reduce", str(cause)) from None
    for a in sorted((a % x.ndim for a in axes), reverse=True):
        x = FUNCTIONS["ufunc_reduce"](x, ufunc=ufunc.__name__, axis=a, keepdims=keepdims)
    return x


def _run_accumulate(ufunc: np.ufunc, inputs: Sequence[Any], options: Options) -> Any:
    if ufunc.__name__ in SCAN_NAMES:
        return FUNCTIONS[SCAN_NAMES[ufunc.__name__]](inputs[0], **options)
    axis = options.pop("axis")
    _refuse(f"numpy.{ufunc.__name__}.accumulate", options)
    return FUNCTIONS["ufunc_accumulate"](inputs[0], ufunc=ufunc.__name__, axis=axis)


def _run_reduceat(ufunc: np.ufunc, inputs: Sequence[Any], options: Options) -> Any:
    x, indices = inputs[0], tuple(np.asarray(inputs[1]).tolist())
    axis = options.pop("axis")
    _refuse(f"numpy.{ufunc.__name__}.reduceat", options)
    return FUNCTIONS["ufunc_reduceat"](x, ufunc=ufunc.__name__, indices=indices, axis=axis)


def _run_outer(ufunc: np.ufunc, inputs: Sequence[Any], options: Options) -> Any:
    x, y = (a if hasattr(a, "ndim") else np.asarray(a) for a in inputs)
    columns = x[(..., *[None] * y.ndim)]
    return _run_call(ufunc, (columns, y), options)


_RUNS: dict[str, Callable[..., Any]] = {
    "__call__": _run_call,
    "reduce": _run_reduce,
    "accumulate": _run_accumulate,
    "reduceat": _run_reduceat,
    "outer": _run_outer,
}


def _combine_at(name: str, full_name: str, inputs: Sequence[Any]) -> None:
    """`x` with values combined at indices, in its place."""
    x, index, *values = inputs
    if isinstance(x, np.ndarray):
        raise of_the_host(full_name, x)
    if name not in AT_NAMES or not values:
        raise _lacking(full_name)
    x[...] = x._updated(values[0], index, AT_NAMES[name])


def _refuse(full_name: str, options: Mapping[str, Any]) -> None:
    if options:
        problem = f"takes no {', '.join(options)} for distributed arrays"
        raise error(
            ArgumentError, full_name, problem, remedy="Use x.numpy() to compute on the host."
        )


def _lacking(full_name: str) -> DtypeError:
    """The error of a function of NumPy that gdt lacks, which names the nearest one."""
    name = full_name.removeprefix("numpy.")
    nearest = difflib.get_close_matches(name, [*FUNCTIONS, *ALIASES], 1, cutoff=0.75)
    instead = f"gdt has {nearest[0]}. " if nearest else ""
    return error(
        DtypeError,
        full_name,
        "is not available for distributed arrays",
        remedy=f"{instead}To compute on the host, pass np.asarray(x); "
        "gdt.implicit_fetch('allow') fetches by itself.",
    )


def call_function(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call gdt's function for a function of NumPy, as `__array_function__` does.

    Raises DtypeError (a TypeError) for a function that gdt lacks. Under `gdt.implicit_fetch` that
    allows it, such a function runs as NumPy wrote it: it calls gdt's functions where there are any,
    and fetches values.
    """
    name = function.__name__
    if function.__module__ in CHAPTERS:
        name = f"{function.__module__.removeprefix('numpy.')}.{name}"
    is_known = function.__module__ == "numpy" or function.__module__ in CHAPTERS
    own = FUNCTIONS.get(ALIASES.get(name, name.rstrip("_"))) if is_known else None
    holds_none = function is np.broadcast_arrays and any(a is None for a in args)
    if holds_none or (own is None and allows_fetches()):
        return function._implementation(*args, **kwargs)  # type: ignore[attr-defined]  # NEP 18
    if own is None:
        raise _lacking(f"{function.__module__}.{function.__name__}")
    args, kwargs = _without_defaults(function, args, kwargs)
    out = kwargs.pop("out", None) if "out" in kwargs else None
    result = own(*args, **kwargs)
    return into(out, f"numpy.{name}", result)


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
