"""Keras' variables, and how values of any kind become arrays."""

from __future__ import annotations

from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import numpy as np
from keras.src import tree
from keras.src.backend.common import KerasVariable, standardize_dtype
from keras.src.backend.common.dtypes import result_type
from keras.src.backend.common.stateless_scope import in_stateless_scope

import gdt
from gdt.array.array import DistributedArray
from gdt.array.operands import SCALARS, as_operand
from gdt.errors import DtypeError, error
from gdt.interop.keras.backend import distribution_lib
from gdt.sharding.dtypes import BFLOAT16

ASSIGNED: ContextVar[dict[int, tuple[Any, Any]] | None] = ContextVar("ASSIGNED", default=None)
"""Variables that were assigned in a step that may fail, by identity, with their values before."""


class Variable(KerasVariable):  # type: ignore[misc]
    """A variable of Keras whose value is a distributed array, in the layout of the distribution."""

    _layout: Any

    def _initialize(self, value: DistributedArray) -> None:
        self._shape = self._validate_shape(value.shape)
        distribution = distribution_lib.current_distribution()
        if self._layout is None and distribution is not None:
            self._layout = distribution.get_variable_layout(self)
        self._direct_assign(value)

    def _direct_assign(self, value: DistributedArray) -> None:
        if self._layout is not None:
            value = distribution_lib.distribute_variable(value, self._layout, self.path)
        self._note()
        # Another object: a user may write to the elements of the one that was assigned.
        self._value = gdt.stop_gradient(value)

    def assign_add(self, value: Any) -> DistributedArray:
        """Add to the value. Where what is added is still to be reduced over devices, the sum is
        too: so what metrics add up in a step travels together."""
        now = self.value
        is_partial = type(value) is DistributedArray and any(value.layout.reductions)
        if not (is_partial and value.type.with_layout(value.layout.resolved) is now.type):
            return super().assign_add(value)  # type: ignore[no-any-return]
        total: DistributedArray = gdt.relayout(now, value.layout) + value
        if in_stateless_scope():
            return self.assign(total)  # type: ignore[no-any-return]
        self._note()
        self._value = total
        return total

    def _note(self) -> None:
        """Note the value before it is replaced, where somebody may have to put it back."""
        assigned = ASSIGNED.get()
        if assigned is not None and "_value" in vars(self):
            assigned.setdefault(id(self), (self, self._value))

    def _convert_to_tensor(self, value: Any, dtype: Any = None) -> DistributedArray:
        return convert_to_tensor(value, dtype=dtype)

    def __gdt_places__(self) -> list[distribution_lib.Told]:
        """Tell `gdt.function(state=[variable])` the place of the array."""
        return [(self.path, vars(self), "_value")]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The value on the host."""
        return np.array(self.value.numpy(), dtype=dtype)


def convert_to_tensor(
    x: Any, dtype: Any = None, sparse: bool | None = None, ragged: bool | None = None
) -> DistributedArray:
    """Return an array, a variable, a number, a list or anything that NumPy takes as an array.

    Without a dtype, those of NumPy and Python become what `keras.backend.result_type` says:
    float32 of float64, for one.
    """
    if sparse or ragged:
        kind = "sparse" if sparse else "ragged"
        raise ValueError(f"`{kind}=True` is not supported: gdt has dense arrays alone.")
    if isinstance(x, KerasVariable):
        x = x.value
    if type(x) is DistributedArray:
        if dtype is None:
            return x
        wanted = dtype_named(dtype)
        return x if x.dtype == wanted else gdt.astype(x, wanted)
    if dtype is not None:
        dtype = dtype_named(dtype)
    if isinstance(x, list | tuple):
        leaves = tree.flatten(x)
        dtype = dtype or result_type(*[getattr(item, "dtype", type(item)) for item in leaves])
        if any(isinstance(item, DistributedArray | KerasVariable) for item in leaves):
            return gdt.stack([convert_to_tensor(item, dtype) for item in x])
        return _on_host(np.asarray(x, None if dtype == BFLOAT16 else dtype), dtype)
    if type(x) in SCALARS:
        return _on_host(np.asarray(x), dtype or result_type(type(x)))
    whole = np.asarray(x)
    if whole.dtype.kind in "OSU":
        raise error(DtypeError, "convert_to_tensor", f"{x!r} is no array of numbers")
    return _on_host(whole, dtype or result_type(whole.dtype))


@lru_cache(maxsize=256)
def dtype_named(dtype: Any) -> np.dtype:
    """Return the dtype that Keras means: by a name, a type of Python or a dtype."""
    named: np.dtype = np.dtype(standardize_dtype(dtype))
    return named


def _on_host(x: np.ndarray, dtype: Any) -> DistributedArray:
    """Return values of the host as an array that is replicated on the default mesh.

    Recorded steps keep them: what a layer takes from NumPy is constant, as where Keras compiles.
    """
    values = x.astype(np.dtype(dtype), copy=False)
    mesh = gdt.get_default_mesh()
    return as_operand(values, mesh, "convert_to_tensor", "x", is_constant=True)


def convert_to_numpy(x: Any) -> np.ndarray:
    """Return a copy of the values on the host, which may be written to."""
    if isinstance(x, KerasVariable):
        x = x.value
    return np.array(x.numpy() if type(x) is DistributedArray else x)


def is_tensor(x: object) -> bool:
    """Return whether `x` is a distributed array."""
    return isinstance(x, DistributedArray)
