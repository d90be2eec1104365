"""NumPy's functions on abstract arrays.

Three families need one rule each: views, which NumPy computes itself; reductions; and functions
whose result has the shape of the operand. The others have a rule of their own; or
NumPy runs on stand-ins, arrays of ones, where those are small: so every function that depends on
values nowhere has the shape and dtype that it has on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from gdt.backend.abstract.array import (
    DEVICE,
    FUNCTIONS,
    AbstractArray,
    Form,
    not_modelled,
    refused,
)
from gdt.backend.abstract.ufuncs import UFUNC_METHODS, call_ufunc, shape_of

MOST_STAND_INS = 1 << 22
"""The most elements of the stand-ins on which NumPy itself finds what a function returns."""


# ---------------------------------------------------------------- families


@lru_cache(maxsize=4096)
def _dtype_of_one(function: Callable[..., Any], ndim: int, dtype: np.dtype, kwargs: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(function(np.ones((1,) * ndim, dtype), **dict(kwargs))).dtype


def dtype_of_one(function: Callable[..., Any], x: Any, **kwargs: Any) -> np.dtype:
    """Return the dtype of what a function makes of an array of one element like `x`."""
    known = {k: v for k, v in kwargs.items() if v is not None}
    return _dtype_of_one(function, x.ndim, x.dtype, tuple(known.items()))  # type: ignore[no-any-return]


def reduction(
    function: Callable[..., Any], x: Any, axis: Any = None, keepdims: Any = False,
    dtype: Any = None, out: Any = None,
) -> AbstractArray:  # fmt: skip
    """Return what a function reduces an array to, along some axes."""
    axes = range(x.ndim) if axis is None else normalize_axis_tuple(axis, x.ndim)
    sizes = enumerate(x.shape)
    shape = [1 if a in axes else n for a, n in sizes if keepdims or a not in axes]
    if out is None:
        found = dtype_of_one(function, x, dtype=dtype, axis=0 if x.ndim else None)
        out = AbstractArray.new(shape, found)
    out = out[0] if isinstance(out, tuple) else out
    return DEVICE.work(function.__name__, out, [x], x.size)


def alike(
    function: Callable[..., Any], x: Any, *args: Any, out: Any = None, **kwargs: Any
) -> AbstractArray:
    """Return what a function makes of an array that keeps its shape."""
    known = {k: v for k, v in kwargs.items() if k in ("dtype",)}
    made = x.like(dtype_of_one(function, x, **known)) if out is None else out
    return DEVICE.work(function.__name__, made, [x], x.size)


def view(function: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the view, or the views, of an array that NumPy's function returns."""
    found = function(x.form.array, *args, **kwargs)
    if isinstance(found, list | tuple):
        return type(found)([x.viewed(Form.of(array)) for array in found])
    return x.viewed(Form.of(found))


VIEWS = (
    "moveaxis swapaxes transpose squeeze expand_dims broadcast_to split array_split diagonal flip "
    "flipud fliplr rot90 rollaxis matrix_transpose permute_dims atleast_1d atleast_2d atleast_3d"
)
REDUCTIONS = "sum prod max min amax amin any all argmax argmin mean var std count_nonzero"
ALIKE = "sort argsort tril triu round around nan_to_num copy real_if_close"
for _name in VIEWS.split():
    FUNCTIONS[getattr(np, _name)] = partial(view, getattr(np, _name))
for _name in REDUCTIONS.split():
    FUNCTIONS[getattr(np, _name)] = partial(reduction, getattr(np, _name))
for _name in ALIKE.split():
    FUNCTIONS[getattr(np, _name)] = partial(alike, getattr(np, _name))
FUNCTIONS[np.lib.stride_tricks.sliding_window_view] = partial(
    view, np.lib.stride_tricks.sliding_window_view
)


def _reduce(
    ufunc: np.ufunc, x: Any, axis: Any = 0, dtype: Any = None, out: Any = None,
    keepdims: bool = False, **_: Any,
) -> AbstractArray:  # fmt: skip
    return reduction(ufunc.reduce, x, axis, keepdims, dtype, out)


def _accumulate(
    ufunc: np.ufunc, x: Any, axis: int = 0, dtype: Any = None, out: Any = None
) -> AbstractArray:
    return alike(ufunc.accumulate, x, axis, dtype=dtype)


def _at(ufunc: np.ufunc, x: Any, indices: Any, *values: Any) -> None:
    value = values[0] if values and isinstance(values[0], AbstractArray) else x
    DEVICE.work(ufunc.__name__, value, [value, value], value.size)


UFUNC_METHODS.update(reduce=_reduce, accumulate=_accumulate, at=_at)


# ---------------------------------------------------------------- by itself


def rule(*functions: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare what functions of NumPy's do with abstract arrays: a decorator."""

    def declare(modelled: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS.update(dict.fromkeys(functions, modelled))
        return modelled

    return declare


@rule(np.partition)
def partition(x: Any, *_: Any, **__: Any) -> AbstractArray:
    """See NumPy."""
    return alike(np.sort, x)


@rule(np.argpartition)
def argpartition(x: Any, *_: Any, **__: Any) -> AbstractArray:
    """See NumPy."""
    return alike(np.argsort, x)


@rule(np.cumsum)
def cumsum(x: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> AbstractArray:
    """See NumPy."""
    return alike(np.cumsum, x if axis is not None else x.ravel(), dtype=dtype, out=out)


@rule(np.cumprod)
def cumprod(x: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> AbstractArray:
    """See NumPy."""
    return alike(np.cumprod, x if axis is not None else x.ravel(), dtype=dtype, out=out)


@rule(np.reshape)
def reshape(x: Any, shape: Any, *_: Any, **__: Any) -> AbstractArray:
    """See NumPy."""
    return x.reshape(shape)  # type: ignore[no-any-return]


@rule(np.ravel)
def ravel(x: Any, *_: Any) -> AbstractArray:
    """See NumPy."""
    return x.ravel()  # type: ignore[no-any-return]


@rule(np.real)
def real(x: Any) -> AbstractArray:
    """See NumPy."""
    return x.real  # type: ignore[no-any-return]


@rule(np.imag)
def imag(x: Any) -> AbstractArray:
    """See NumPy."""
    return x.imag  # type: ignore[no-any-return]


@rule(np.where)
def where(condition: Any, *branches: Any) -> AbstractArray:
    """As NumPy's; with a condition alone it counts elements, which needs values."""
    if not branches:
        refused("finding elements")
    shape = np.broadcast_shapes(*map(shape_of, (condition, *branches)))
    return DEVICE.work("where", AbstractArray.new(shape, result_type(*branches)), branches)


@rule(np.result_type)
def result_type(*operands: Any) -> np.dtype:
    """See NumPy."""
    return np.result_type(*[x.dtype if isinstance(x, AbstractArray) else x for x in operands])


@rule(np.concatenate)
def concatenate(arrays: Sequence[Any], axis: int | None = 0, out: Any = None, **_: Any) -> Any:
    """See NumPy."""
    arrays = list(arrays) if axis is not None else [x.reshape(-1) for x in arrays]
    axis = normalize_axis_index(axis or 0, arrays[0].ndim)
    shape = list(arrays[0].shape)
    shape[axis] = sum(x.shape[axis] for x in arrays)
    if out is None:
        out = AbstractArray.new(shape, result_type(*[x.dtype for x in arrays]))
    return DEVICE.work("concatenate", out, arrays)


@rule(np.stack)
def stack(arrays: Sequence[Any], axis: int = 0, **_: Any) -> Any:
    """See NumPy."""
    axis = normalize_axis_index(axis, arrays[0].ndim + 1)
    return concatenate([x[(*(slice(None),) * axis, None)] for x in arrays], axis)


@rule(np.pad)
def pad(x: Any, pad_width: Any, *_: Any, **__: Any) -> AbstractArray:
    """See NumPy."""
    widths = np.broadcast_to(pad_width, (x.ndim, 2))
    shape = [n + int(a) + int(b) for n, (a, b) in zip(x.shape, widths, strict=True)]
    return DEVICE.work("pad", AbstractArray.new(shape, x.dtype), [x])


@rule(np.take)
def take(x: Any, indices: Any, axis: int | None = None, out: Any = None, **_: Any) -> Any:
    """See NumPy."""
    x = x if axis is not None else x.ravel()
    at = normalize_axis_index(axis or 0, x.ndim)
    shape = (*x.shape[:at], *shape_of(indices), *x.shape[at + 1 :])
    out = AbstractArray.new(shape, x.dtype) if out is None else out
    return DEVICE.work("take", out, [out, indices])


@rule(np.take_along_axis)
def take_along_axis(x: Any, indices: Any, axis: int = -1) -> AbstractArray:
    """See NumPy."""
    at = normalize_axis_index(axis, x.ndim)
    one = [1 if a == at else n for a, n in enumerate(x.shape)]
    shape = np.broadcast_shapes(tuple(one), indices.shape)
    out = AbstractArray.new(shape, x.dtype)
    return DEVICE.work("take_along_axis", out, [out, indices])


@rule(np.put_along_axis, np.put, np.place)
def put(x: Any, *_: Any, **__: Any) -> None:
    """See NumPy."""
    DEVICE.work("put", x)


@rule(np.clip)
def clip(x: Any, low: Any = None, high: Any = None, out: Any = None, **_: Any) -> Any:
    """See NumPy."""
    bounds = [b for b in (low, high) if b is not None]
    return call_ufunc(
        np.maximum if len(bounds) < 2 else np._core.umath.clip,  # type: ignore[attr-defined]
        "__call__", [x, *bounds], out=None if out is None else (out,),
    )  # fmt: skip


@rule(np.copyto)
def copyto(out: Any, x: Any, **_: Any) -> None:
    """See NumPy."""
    DEVICE.work("copy", out, [x])


@rule(np.searchsorted)
def searchsorted(x: Any, values: Any, *_: Any, **__: Any) -> AbstractArray:
    """See NumPy."""
    out = AbstractArray.new(shape_of(values), np.intp)
    return DEVICE.work("searchsorted", out, [values])


@rule(np.empty_like, np.zeros_like, np.ones_like)
def empty_like(x: Any, dtype: Any = None, order: str = "K", shape: Any = None, **_: Any) -> Any:
    """See NumPy."""
    if shape is not None:
        return AbstractArray.new(np.empty_like(np.empty(0), shape=shape).shape, dtype or x.dtype)
    return x.like(dtype)


@rule(np.full_like)
def full_like(x: Any, value: Any, dtype: Any = None, **_: Any) -> AbstractArray:
    """See NumPy."""
    return x.like(dtype)  # type: ignore[no-any-return]


@rule(np.may_share_memory, np.shares_memory)
def may_share_memory(x: Any, y: Any, *_: Any) -> bool:
    """As NumPy's, of whole memories."""
    owners = [a if getattr(a, "base", None) is None else a.base for a in (x, y)]
    return owners[0] is owners[1]


@rule(np.repeat)
def repeat(x: Any, repeats: Any, axis: int | None = None) -> AbstractArray:
    """See NumPy."""
    if isinstance(repeats, AbstractArray):
        refused("repeating by counts")
    x = x if axis is not None else x.ravel()
    at = normalize_axis_index(axis or 0, x.ndim)
    counts = np.broadcast_to(repeats, x.shape[at])
    shape = [int(counts.sum()) if a == at else n for a, n in enumerate(x.shape)]
    return DEVICE.work("repeat", AbstractArray.new(shape, x.dtype), [x])


NEED_VALUES = "nonzero flatnonzero argwhere unique extract compress array_equal allclose"
for _name in NEED_VALUES.split():
    FUNCTIONS[getattr(np, _name)] = partial(lambda name, *_, **__: refused(name), _name)


# ---------------------------------------------------------------- of stand-ins


def call_on_stand_ins(function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return what a function returns of arrays of ones in the place of the abstract ones.

    Raises DeviceError for more of them than fit, and where the result is no array.
    """
    operands = [x for x in (*args, *kwargs.values()) if isinstance(x, AbstractArray)]
    if sum(x.size for x in operands) > MOST_STAND_INS:
        raise not_modelled(function.__name__)
    with np.errstate(all="ignore"):
        named = {k: _stand_in(v) for k, v in kwargs.items() if k != "out"}
        found = function(*map(_stand_in, args), **named)
    return _abstract(function.__name__, found, operands)


def _stand_in(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_stand_in, value))
    if not isinstance(value, AbstractArray):
        return value
    if value.ndim < 2:
        return np.ones(value.shape, value.dtype)
    return np.broadcast_to(np.eye(*value.shape[-2:], dtype=value.dtype), value.shape).copy()


def _abstract(name: str, found: Any, operands: Sequence[Any]) -> Any:
    if isinstance(found, tuple):
        made = [_abstract(name, part, operands) for part in found]
        return type(found)(*made) if hasattr(found, "_fields") else tuple(made)
    if isinstance(found, list):
        return [_abstract(name, part, operands) for part in found]
    if not isinstance(found, np.ndarray | np.generic):
        refused(name)
    return DEVICE.work(name, AbstractArray.new(found.shape, found.dtype), operands)


FUNCTIONS[np.ndarray] = call_on_stand_ins
