"""Create arrays from values of the host, or of one value.

Of an array of one value each device makes only its own shards.
"""

from __future__ import annotations

import ctypes
from array import array as array_of_numbers
from collections.abc import Sequence
from mmap import mmap
from typing import Any

import numpy as np

from gdt.arguments import same_arguments, shown_value
from gdt.array import dlpack
from gdt.array.array import DistributedArray
from gdt.array.operands import HOST, NUMBERS, as_operand, refuse_mask
from gdt.array.placing import checked_layout, distribute
from gdt.array.registry import public
from gdt.backend import as_array
from gdt.backend.cupy import on_gpu
from gdt.errors import ArgumentError, CopyError, DtypeError, ShapeError, error
from gdt.ops.datasets import from_dataset, is_dataset
from gdt.ops.elementwise import checked_dtype
from gdt.ops.generation import from_blocks, type_of_shape
from gdt.ops.movement import relayout
from gdt.ops.shapes import Shape, broadcast_to, checked_shape, reshape
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh

__all__ = [
    "array",
    "asarray",
    "empty",
    "empty_like",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]


Block = Any
Number = int | float | complex | np.generic

# ---------------------------------------------------------------- from the host


@public
def asarray(
    value: Any,
    dtype: Any = None,
    *,
    layout: Layout | None = None,
    device: Mesh | None = None,
    copy: bool | None = None,
) -> DistributedArray:
    """An array on a mesh from a NumPy array, a number, nested lists, another distributed array, or
    anything that has `__array__`, `__dlpack__` or the buffer protocol.

    layout: how to split it; replicated if not given. A distributed array keeps its own layout.
    device: the mesh of an array without a layout; the default mesh if not given.
        With several processes, every process passes the whole value, and DistributedError tells
        where the values differ. `gdt.pack` makes an array from parts that the processes have.
    copy: None and True copy host memory. False lets the array share that memory where the layout
        allows; then the caller must not write to it.

    Raises ShapeError for lists that are no array, DtypeError for elements that are no numbers and
    for masked arrays, LayoutError for a layout of another rank, CopyError (a ValueError) where
    `copy` is False and the values must be copied.

    >>> gdt.asarray([1, 2, 3]).dtype
    dtype('int64')
    """
    if isinstance(value, DistributedArray):
        return _converted(value, dtype, layout, device, copy)
    if not isinstance(value, HOST) and not on_gpu(value):
        if is_dataset(value):
            return from_dataset(value, dtype, layout, device)
        value = _taken_over(value)
    if layout is None and dtype is None and copy is not False:
        mesh = checked_layout(None, 0, "asarray", device).mesh
        return as_operand(value, mesh, "asarray", "value")
    refuse_mask(value, "asarray", "value")
    target = None if dtype is None else checked_dtype(dtype, "asarray")
    layout_or_default = (
        layout if isinstance(layout, Layout) else checked_layout(None, 0, "asarray", device)
    )
    mesh = layout_or_default.mesh
    try:
        whole = as_array(value, mesh, target)
    except (ValueError, TypeError) as e:
        raise error(ShapeError, f"the value is no array: {e}") from None
    if kind_of(whole.dtype) not in "biufc":
        raise error(DtypeError, f"the value has dtype {whole.dtype}, which is no number")
    target_layout = checked_layout(layout, whole.ndim, "asarray", device)
    is_constant = isinstance(value, NUMBERS)
    return distribute(
        whole, target_layout, copy=copy is not False, giver="asarray", is_constant=is_constant
    )


def _converted(
    x: DistributedArray,
    dtype: Any,
    layout: Layout | None,
    device: Mesh | None,
    copy: bool | None,
) -> DistributedArray:
    """A distributed array as `asarray` returns it."""
    array = x
    if layout is not None or (device is not None and device is not x.mesh):
        array = relayout(x, checked_layout(layout, x.ndim, "asarray", device))
    if dtype is not None and x.dtype != checked_dtype(dtype, "asarray"):
        array = array.astype(dtype)
    if copy is False and array is not x:
        problem = f"an array of {x.type} is not {array.type} without a copy"
        raise error(CopyError, problem, remedy="Let it be copied: copy=None.")
    return array.copy() if copy else array


def _taken_over(value: Any) -> Any:
    """The values of an object that is no array, as an array of NumPy or CuPy where its protocols
    give one; else the object itself."""
    if hasattr(value, "__dlpack__"):  # which knows bfloat16, and says that it has a gradient
        return dlpack.imported(value, "asarray")
    if hasattr(value, "__array__") or isinstance(value, range):
        return np.asarray(value)
    if isinstance(value, memoryview | bytearray | array_of_numbers | ctypes.Array | mmap):
        return np.asarray(memoryview(value))
    return value


@public
def array(
    value: Any,
    dtype: Any = None,
    *,
    copy: bool | None = True,
    ndmin: int = 0,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """A new array of what `gdt.asarray` takes; arguments and errors are those of `gdt.asarray`.

    ndmin: the least rank of the result: axes of length 1 are added in front.

    >>> gdt.array([1, 2], ndmin=2).tolist()
    [[1, 2]]
    """
    x = asarray(value, dtype, layout=layout, device=device, copy=copy)
    return x if x.ndim >= ndmin else reshape(x, (1,) * (ndmin - x.ndim) + x.shape)


# ---------------------------------------------------------------- of one value


@public
def full(
    shape: Shape,
    fill_value: Any,
    dtype: Any = None,
    *,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """An array of that shape filled with a number, or with an array that broadcasts to the shape.

    The dtype is that of `fill_value` unless given. layout, device: see `gdt.asarray`.
    Raises ShapeError for an invalid shape or one to
    which `fill_value` does not broadcast, and ArgumentError for a value that is no number.

    >>> gdt.full((2,), 7).tolist()
    [7, 7]
    """
    if isinstance(fill_value, DistributedArray) or np.ndim(fill_value):
        values = broadcast_to(asarray(fill_value, dtype, device=device), shape)
        return values if layout is None else relayout(values, layout)
    if not isinstance(fill_value, int | float | complex | np.generic | np.ndarray):
        raise error(ArgumentError, f"fill_value is {shown_value(fill_value)}, no number")
    dtype = np.asarray(fill_value).dtype if dtype is None else dtype
    return _constant(type_of_shape(shape, dtype, "full", layout, device), fill_value)


def _constant(array_type: ArrayType, value: Any) -> DistributedArray:
    def make(backend: Any, grid: Sequence[int]) -> Block:
        block = backend.empty(array_type.block_shape, array_type.dtype, array_type.memory_order)
        block[...] = value
        return block

    return from_blocks(array_type, make, np.asarray(value))


@public
def zeros(
    shape: Shape,
    dtype: Any = None,
    *,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """Zeros of that shape; float64 if no dtype is given, replicated on the mesh
    `device` (by default the default mesh) if no layout is.

    Raises ShapeError for an invalid shape, DtypeError for a dtype that is no number.

    >>> gdt.zeros(2).tolist()
    [0.0, 0.0]
    """
    return _constant(type_of_shape(shape, dtype, "zeros", layout, device), 0)


@public
@same_arguments(zeros)
def ones(shape: Shape, dtype: Any = None, **place: Any) -> DistributedArray:
    """Ones of that shape; float64 if no dtype is given, replicated on the mesh
    `device` (by default the default mesh) if no layout is.

    Raises ShapeError for an invalid shape, DtypeError for a dtype that is no number.

    >>> gdt.ones((1, 2), dtype=int).tolist()
    [[1, 1]]
    """
    return _constant(type_of_shape(shape, dtype, "ones", **place), 1)


@public
@same_arguments(zeros)
def empty(shape: Shape, dtype: Any = None, **place: Any) -> DistributedArray:
    """An array of that shape whose elements are not set: they hold whatever the memory held.

    float64 if no dtype is given; layout, device: see `gdt.asarray`. Raises ShapeError
    for an invalid shape, DtypeError for a dtype that is no number.

    >>> gdt.empty((2, 3)).shape
    (2, 3)
    """
    array_type = type_of_shape(shape, dtype, "empty", **place)
    if array_type.dtype.kind == "b":  # a byte of recycled memory need not be a bool
        return _constant(array_type, False)
    return from_blocks(
        array_type,
        lambda backend, grid: backend.empty(
            array_type.block_shape, array_type.dtype, array_type.memory_order
        ),
    )


@public
def full_like(
    x: Any,
    fill_value: Any,
    dtype: Any = None,
    *,
    shape: Shape | None = None,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """An array filled with `fill_value`, in the shape, dtype and resolved layout of `x`.

    dtype, shape, layout: in place of those of `x`. device: the mesh of a replicated result, in
    place of that of `x`. Raises the errors of `gdt.full`.

    >>> gdt.full_like(gdt.zeros(2), 7).tolist()
    [7.0, 7.0]
    """
    return full(fill_value=fill_value, **_like(x, dtype, shape, layout, device))


@public
def zeros_like(
    x: Any,
    dtype: Any = None,
    *,
    shape: Shape | None = None,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """Zeros in the shape, dtype and resolved layout of `x`.

    dtype, shape, layout: in place of those of `x`. device: see `gdt.full_like`.

    >>> gdt.zeros_like(gdt.ones(2)).tolist()
    [0.0, 0.0]
    """
    return full_like(x, 0, dtype, shape=shape, layout=layout, device=device)


@public
@same_arguments(zeros_like)
def ones_like(x: Any, dtype: Any = None, **place: Any) -> DistributedArray:
    """Ones in the shape, dtype and resolved layout of `x`.

    dtype, shape, layout: in place of those of `x`. device: see `gdt.full_like`.

    >>> gdt.ones_like(gdt.zeros(2)).tolist()
    [1.0, 1.0]
    """
    return full_like(x, 1, dtype, **place)


@public
@same_arguments(zeros_like)
def empty_like(x: Any, dtype: Any = None, **place: Any) -> DistributedArray:
    """An array whose elements are not set, in the shape, dtype and resolved layout of `x`.

    dtype, shape, layout: in place of those of `x`. device: see `gdt.full_like`.

    >>> gdt.empty_like(gdt.ones((2, 3))).shape
    (2, 3)
    """
    return empty(**_like(x, dtype, **place))


def _like(
    x: Any,
    dtype: Any,
    shape: Shape | None = None,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> dict[str, Any]:
    """The arguments of `full` and `empty` that make an array like `x`: replicated where it has
    another rank or mesh."""
    like = x if isinstance(x, DistributedArray) else np.asarray(x)
    sizes = like.shape if shape is None else checked_shape(shape, "full_like")
    if layout is None and isinstance(x, DistributedArray):
        is_alike = len(sizes) == x.ndim and device in (None, x.mesh)
        layout = x.layout.resolved if is_alike else None
        device = x.mesh if device is None else device
    dtype = like.dtype if dtype is None else dtype
    return {"shape": sizes, "dtype": dtype, "layout": layout, "device": device}
