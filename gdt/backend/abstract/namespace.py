"""The array namespace in which bodies compute on abstract devices."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from gdt.backend.abstract.array import AbstractArray, Form
from gdt.backend.abstract.ufuncs import kinds_of


def _as_strided(x: Any, shape: Sequence[int], strides: Sequence[int], **_: Any) -> AbstractArray:
    array = np.lib.stride_tricks.as_strided(x.form.array, shape, strides)
    return x.viewed(Form.of(array))  # type: ignore[no-any-return]


class AbstractNamespace:
    """The array namespace of bodies on abstract devices: NumPy's, whose functions of arrays ask the
    arrays, with functions of its own where arrays are made of nothing."""

    lib = SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=_as_strided))

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def empty(shape: Any, dtype: Any = float, order: str = "C", **_: Any) -> AbstractArray:
        """See NumPy."""
        sizes = (shape,) if isinstance(shape, int | np.integer) else shape
        return AbstractArray.new(tuple([int(n) for n in sizes]), dtype)

    zeros = ones = empty

    @staticmethod
    def full(shape: Any, value: Any, dtype: Any = None, **_: Any) -> AbstractArray:
        """See NumPy."""
        return AbstractNamespace.empty(shape, dtype or kinds_of([value])[0])

    @staticmethod
    def arange(*args: Any, dtype: Any = None) -> AbstractArray:
        """See NumPy."""
        found = np.arange(*args, dtype=dtype)
        return AbstractArray.new(found.shape, found.dtype)

    @staticmethod
    def eye(*args: Any, dtype: Any = float, **_: Any) -> AbstractArray:
        """See NumPy."""
        n, m = args[0], args[1] if len(args) > 1 and args[1] is not None else args[0]
        return AbstractArray.new((n, m), dtype)

    @staticmethod
    def indices(shape: Sequence[int], dtype: Any = int, **_: Any) -> AbstractArray:
        """See NumPy."""
        return AbstractArray.new((len(shape), *shape), dtype)

    @staticmethod
    def asarray(value: Any, dtype: Any = None, **_: Any) -> AbstractArray:
        """See NumPy."""
        if isinstance(value, AbstractArray):
            return value if dtype is None else value.astype(dtype, copy=False)
        made = np.asarray(value, dtype)
        return AbstractArray.new(made.shape, made.dtype)

    @staticmethod
    def array(value: Any, dtype: Any = None, copy: bool = True, **_: Any) -> AbstractArray:
        """See NumPy."""
        made = AbstractNamespace.asarray(value, dtype)
        return made.copy() if made is value and copy else made

    @staticmethod
    def ascontiguousarray(x: Any, dtype: Any = None) -> AbstractArray:
        """See NumPy."""
        made = AbstractNamespace.asarray(x, dtype)
        return made if made.flags.c_contiguous else made.copy()
