"""From named arguments to a `KernelCall`: types, grids, and the mesh axes that operands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.cuda.compiler import (
    C_TYPES,
    GRID_LIMIT,
    Instance,
    KernelCall,
    constants,
    dtype_name,
    parameters,
    structs,
)
from gdt.errors import KernelError, error

Array = Any
Struct = np.ndarray[Any, Any]
Empty = Callable[[tuple[int, ...], str], Array]

SUM_TYPES = {  # the C type in which values of each C type are summed
    "float": "float",
    "double": "double",
    "half_t": "float",
    "bfloat16_t": "float",
    "int": "long long",
    "long long": "long long",
}
FLOATS = ("float", "double", "half_t", "bfloat16_t")
ENOUGH_BLOCKS = 264  # two for each multiprocessor of an H100
SPLITS_MAX = 64  # parts that one reduction is cut into
INT_LIMIT = 2**31 - 2**20  # of the kernels' indices, with room for a step of a whole grid


def c_type(array: Array) -> str:
    """The C type of an array's elements."""
    name = dtype_name(array.dtype)
    if name not in C_TYPES:
        raise error(KernelError, "kernels", f"no kernel takes {array.dtype}")
    return C_TYPES[name]


def sum_type(array: Array) -> str:
    """The C type in which an array's elements are summed."""
    if c_type(array) not in SUM_TYPES:
        raise error(KernelError, "kernels", f"no kernel adds {array.dtype} up")
    return SUM_TYPES[c_type(array)]


def ceil_div(n: int, by: int) -> int:
    """n / by, rounded up."""
    return -(-n // by)


def split_count(blocks: int, steps: int, enough: int = ENOUGH_BLOCKS) -> int:
    """Into how many parts to cut `steps` steps of work, that `blocks` blocks would do alone."""
    return max(1, min(ceil_div(enough, max(1, blocks)), SPLITS_MAX, steps))


def named_call(
    instance: Instance, grid: tuple[int, ...], block: tuple[int, ...], **arguments: Any
) -> KernelCall:
    """A call with its arguments by name, put in the order of the kernel's own signature."""
    names = [p.name for p in parameters(instance)]
    if set(names) != set(arguments):
        raise TypeError(f"{instance} takes {names}, given {sorted(arguments)}")
    for name, value in arguments.items():
        if isinstance(value, int) and value > INT_LIMIT and name != "ignore":
            raise error(KernelError, str(instance), f"{name} = {value} is past 2^31 - 2^20")
    if any(size > limit for size, limit in zip(grid, GRID_LIMIT, strict=False)):
        raise error(KernelError, str(instance), f"a grid of {grid} blocks is too large")
    return KernelCall(instance, grid, block, tuple(arguments[n] for n in names))


def check_size(instance: Instance, size: int) -> None:
    """Refuse more elements of one item than the kernels' int indices count."""
    if size > INT_LIMIT:
        raise error(KernelError, str(instance), f"{size} elements of one item are past 2^31 - 2^20")


class Leading:
    """Sizes of the leading axes of a call, and each operand's strides over them, in elements.

    Neighbouring axes that every operand walks as one become one.

    >>> Leading(2, np.zeros((8, 2, 5)), np.zeros((8, 2, 1))).sizes
    [16]
    >>> Leading(2, np.zeros((8, 2, 5)), np.zeros((1, 2, 1))).sizes
    [8, 2]
    """

    def __init__(self, mesh_ndim: int, *operands: Array | None):
        self.operands = operands
        given = [a for a in operands if a is not None]
        for array in given:
            _check_contiguous(array, mesh_ndim)
        shape = np.broadcast_shapes(*(a.shape[:mesh_ndim] for a in given))
        self.items = math.prod(shape)
        self.sizes: list[int] = []
        rows: list[list[int]] = [[] for _ in given]
        for axis, size in enumerate(shape):
            if size == 1:
                continue
            strides = [stride_of(a, axis) for a in given]
            if self.sizes and all(r[-1] == s * size for r, s in zip(rows, strides, strict=True)):
                self.sizes[-1] *= size
                for row, stride in zip(rows, strides, strict=True):
                    row[-1] = stride
            else:
                self.sizes.append(size)
                for row, stride in zip(rows, strides, strict=True):
                    row.append(stride)
        limit = constants("block.cuh")["MAX_AXES"]
        if len(self.sizes) > limit:
            problem = f"{len(self.sizes)} leading axes are more than {limit}"
            raise error(KernelError, "kernels", problem)
        self._strides = {id(a): row for a, row in zip(given, rows, strict=True)}

    def axes(self, instance: Instance) -> Struct:
        """The sizes, as the argument `Axes` of a kernel."""
        value = np.empty(1, structs(instance.file)["Axes"])
        value["size"] = 1
        value["size"][0, : len(self.sizes)] = self.sizes
        return value

    def strides(self, instance: Instance, array: Array | None, unit: int = 1) -> Struct:
        """The strides of one operand, as the argument `Strides` of a kernel, in `unit` elements."""
        value = np.zeros(1, structs(instance.file)["Strides"])
        if array is not None:
            row = self._strides[id(array)]
            value["of"][0, : len(row)] = [stride // unit for stride in row]
        return value

    def steps(self, array: Array) -> tuple[int, int]:
        """The elements that all strides of one operand are multiples of, and how many such steps
        lead to its last item; -1 where a stride leads backwards."""
        row = self._strides[id(array)]
        unit = math.gcd(*row)
        if min(row, default=0) < 0:
            return unit, -1
        last = sum((size - 1) * stride for size, stride in zip(self.sizes, row, strict=True))
        return unit, last // unit if unit else 0


def stride_of(array: Array, axis: int) -> int:
    """Elements from one index of an axis to the next, 0 where there is only one."""
    return 0 if array.shape[axis] == 1 else int(array.strides[axis] // array.dtype.itemsize)


def _check_contiguous(array: Array, mesh_ndim: int) -> None:
    expected = array.dtype.itemsize
    if array.size == 0:
        return
    for axis in range(array.ndim - 1, mesh_ndim - 1, -1):
        if array.shape[axis] > 1 and array.strides[axis] != expected:
            problem = (
                f"an operand of shape {array.shape} is not contiguous from axis {mesh_ndim} on"
            )
            raise error(KernelError, "kernels", problem)
        expected *= array.shape[axis]
