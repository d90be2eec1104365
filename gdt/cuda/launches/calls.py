"""C types, grids and strides of operands over their leading axes, for the launches of kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.cuda.runner import GRID_LIMIT, KernelCall, dtype_name
from gdt.cuda.sources import C_TYPES, Instance, constants, parameters, structs
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
ENOUGH_BLOCKS = 264  # two blocks for each multiprocessor of an H100
REDUCTION_BLOCKS = 396  # three, of 256 threads, all of which it runs at the same time
STEPS_OF_THREAD = 8  # packs for each thread of a reduction that is cut into parts, at least
INT_LIMIT = 2**31 - 2**20  # largest index of a kernel; a step of a whole grid past it fits an int


def c_type(array: Array) -> str:
    """Return the C type of an array's elements, or raise KernelError if kernels have none."""
    name = dtype_name(array.dtype)
    if name not in C_TYPES:
        raise error(KernelError, "kernels", f"no kernel takes {array.dtype}")
    return C_TYPES[name]


def sum_type(array: Array) -> str:
    """Return the C type in which an array's elements are summed, or raise KernelError."""
    if c_type(array) not in SUM_TYPES:
        raise error(KernelError, "kernels", f"no kernel adds {array.dtype} up")
    return SUM_TYPES[c_type(array)]


def ceil_div(n: int, by: int) -> int:
    """Return n / by, rounded up."""
    return -(-n // by)


def split_count(blocks: int, steps: int) -> int:
    """Return the number of parts into which to cut a reduction, so that a GPU runs all blocks at
    once.

    blocks: the number of blocks without cutting. steps: the number of parts that have work enough.
    """
    return max(1, min(REDUCTION_BLOCKS // max(1, blocks), steps))


def column_shape(file: str, width: int, each: int = 1) -> tuple[int, int]:
    """Return the block (lanes, rows) of threads for columns: no more lanes than `width` columns
    need where a thread has `each` of them, and at most a warp."""
    threads, lanes = constants(file)["THREADS"], 1
    while lanes < constants(file)["WARP"] and lanes * each < width:
        lanes *= 2
    return lanes, threads // lanes


def named_call(
    instance: Instance, grid: tuple[int, ...], block: tuple[int, ...], **arguments: Any
) -> KernelCall:
    """Return the call of a kernel whose arguments are given by the names of its parameters.

    Raises KernelError for a number or a grid that the kernel cannot take."""
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
    """Raise KernelError if `size`, the elements of one item, exceeds the kernels' int indices."""
    if size > INT_LIMIT:
        raise error(KernelError, str(instance), f"{size} elements of one item are past 2^31 - 2^20")


class Leading:
    """The sizes of the leading axes of a call, and each operand's strides over them, in elements.

    Neighbouring axes whose strides allow it in every operand are joined into one axis.

    operands: arrays whose first `mesh_ndim` axes broadcast and whose other axes are contiguous;
    None for an operand that the call lacks. items: the product of the sizes.

    >>> Leading(2, np.zeros((8, 2, 5)), np.zeros((8, 2, 1))).sizes
    [16]
    >>> Leading(2, np.zeros((8, 2, 5)), np.zeros((1, 2, 1))).sizes
    [8, 2]
    """

    def __init__(self, mesh_ndim: int, *operands: Array | None):
        self.operands = operands
        arrays = [a for a in operands if a is not None]
        for array in arrays:
            _check_contiguous(array, mesh_ndim)
        shape = np.broadcast_shapes(*(a.shape[:mesh_ndim] for a in arrays))
        self.items = math.prod(shape)
        self.sizes: list[int] = []
        rows: list[list[int]] = [[] for _ in arrays]  # the strides of each array
        for axis, size in enumerate(shape):
            if size == 1:
                continue
            strides = [stride_of(a, axis) for a in arrays]
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
        self._strides = {id(a): row for a, row in zip(arrays, rows, strict=True)}

    def axes(self, instance: Instance) -> Struct:
        """Return the sizes as the struct `Axes` of a kernel."""
        value = np.empty(1, structs(instance.file)["Axes"])
        value["size"] = 1
        value["size"][0, : len(self.sizes)] = self.sizes
        return value

    def strides(self, instance: Instance, array: Array | None, unit: int = 1) -> Struct:
        """Return the strides of one operand as the struct `Strides` of a kernel.

        unit: the number of elements in which the strides are counted; 0 for an operand of None."""
        value = np.zeros(1, structs(instance.file)["Strides"])
        if array is not None:
            row = self._strides[id(array)]
            value["of"][0, : len(row)] = [stride // unit for stride in row]
        return value

    def steps(self, array: Array) -> tuple[int, int]:
        """Return the greatest common divisor of one operand's strides, and the number of steps of
        that length to its last item; -1 in place of the number where a stride is negative."""
        row = self._strides[id(array)]
        unit = math.gcd(*row)
        if min(row, default=0) < 0:
            return unit, -1
        last = sum((size - 1) * stride for size, stride in zip(self.sizes, row, strict=True))
        return unit, last // unit if unit else 0


def stride_of(array: Array, axis: int) -> int:
    """Return the stride of an axis in elements, 0 where the axis has length 1."""
    return 0 if array.shape[axis] == 1 else int(array.strides[axis] // array.dtype.itemsize)


def _check_contiguous(array: Array, mesh_ndim: int) -> None:
    """Raise KernelError unless the axes behind the first `mesh_ndim` are contiguous."""
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
