"""Ufuncs of abstract arrays: their results broadcast, and have the dtypes that NumPy resolves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.backend.abstract.array import (
    DEVICE,
    FUNCTIONS,
    AbstractArray,
    Form,
    form_of,
    not_modelled,
)


@lru_cache(maxsize=4096)
def ufunc_dtypes(ufunc: np.ufunc, operands: tuple[Any, ...]) -> tuple[np.dtype, ...]:
    """Return the dtypes of the results of a ufunc, of dtypes and of types of Python's numbers."""
    dtypes = ufunc.resolve_dtypes((*operands, *[None] * ufunc.nout))
    return dtypes[ufunc.nin :]


def _kind(x: Any) -> Any:
    """Return the dtype of an operand, or the type of Python's number."""
    return type(x) if type(x) in (int, float, complex) else np.asarray(x).dtype


def kinds_of(operands: Sequence[Any]) -> tuple[Any, ...]:
    """Return what decides the dtype of a result, of each operand."""
    return tuple([x.dtype if hasattr(x, "dtype") else _kind(x) for x in operands])


def shape_of(x: Any) -> tuple[int, ...]:
    """Return the shape of an operand."""
    return x.shape if hasattr(x, "shape") else np.shape(x)


def call_ufunc(ufunc: np.ufunc, method: str, args: Sequence[Any], **kwargs: Any) -> Any:
    """Return what a method of a ufunc does with these arguments."""
    if method != "__call__":
        return UFUNC_METHODS[method](ufunc, *args, **kwargs)
    operands, given = args[: ufunc.nin], kwargs.get("out") or args[ufunc.nin :]
    if ufunc is np.matmul:
        x, w = operands
        return matmul(x, w, given[0] if given else None)
    if ufunc.signature is not None:
        raise not_modelled(ufunc.__name__)
    if given and all(x is not None for x in given):
        outs = tuple(given)
    else:
        forms = ufunc_forms(ufunc, tuple(map(_operand_form, operands)), kwargs.get("dtype"))
        outs = tuple([AbstractArray(form) for form in forms])
    if DEVICE.listener is not None:
        for out in outs:
            DEVICE.work(ufunc.__name__, out, operands, out.size)
    return outs if len(outs) > 1 else outs[0]


def _operand_form(x: Any) -> Any:
    """Return the form of an operand, or the type of Python's number."""
    if isinstance(x, AbstractArray):
        return x.form
    kind = _kind(x)
    return kind if isinstance(kind, type) else (kind, np.shape(x))


@lru_cache(maxsize=1 << 14)
def ufunc_forms(ufunc: np.ufunc, operands: tuple[Any, ...], dtype: Any) -> tuple[Form, ...]:
    """Return the forms of the results of a ufunc: in memory they lie as the first operand of their
    shape does."""
    facts = [(x.dtype, x.shape) if isinstance(x, Form) else x for x in operands]
    found = ufunc_dtypes(ufunc, tuple([x if isinstance(x, type) else x[0] for x in facts]))
    shape = np.broadcast_shapes(*[x[1] for x in facts if not isinstance(x, type)])
    like = [x.order for x in operands if isinstance(x, Form) and x.shape == shape]
    order = like[0] if like else None
    return tuple([form_of(shape, d if dtype is None else np.dtype(dtype), order) for d in found])


def matmul(x: Any, w: Any, out: Any = None, **_: Any) -> AbstractArray:
    """See NumPy."""
    form, product = _product(x.shape, w.shape, x.dtype, w.dtype)
    out = AbstractArray(form) if out is None else out
    return DEVICE.work("matmul", out, [x, w], 2 * math.prod(product), product)


@lru_cache(maxsize=1 << 14)
def _product(
    x: tuple[int, ...], w: tuple[int, ...], *dtypes: np.dtype
) -> tuple[Form, tuple[int, int, int, int]]:
    """Return the form of a product of arrays of these shapes and dtypes, and its sizes: of the
    stack, rows, columns and inner length."""
    xs, ws = x if len(x) > 1 else (1, *x), w if len(w) > 1 else (*w, 1)
    if xs[-1] != ws[-2]:
        raise ValueError(f"matmul: shapes {x} and {w} do not fit")
    stack, (m, k), n = np.broadcast_shapes(xs[:-2], ws[:-2]), xs[-2:], ws[-1]
    shape = (*stack, *((m,) if len(x) > 1 else ()), *((n,) if len(w) > 1 else ()))
    (dtype,) = ufunc_dtypes(np.matmul, dtypes)
    return form_of(shape, dtype), (math.prod(stack), m, n, k)


FUNCTIONS[np.ufunc] = call_ufunc
UFUNC_METHODS: dict[str, Callable[..., Any]] = {}
"""By name: what a method of a ufunc does with abstract arrays; `functions` fills it."""
