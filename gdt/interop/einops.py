"""A backend of einops: after `import gdt.interop.einops` its functions take distributed arrays.

einops finds the subclasses of its `AbstractBackend` by itself. (`einops.array_api` needs nothing.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einops._backends import AbstractBackend

from gdt.array.array import DistributedArray
from gdt.functions.dtypes import isdtype
from gdt.functions.einsum import einsum
from gdt.functions.repeating import tile
from gdt.ops.creation import asarray
from gdt.ops.joining import concat, stack
from gdt.ops.ranges import arange
from gdt.ops.shapes import expand_dims


class EinopsBackend(AbstractBackend):
    """The functions that einops calls, as gdt has them."""

    framework_name = "gdt"

    def is_appropriate_type(self, tensor: Any) -> bool:
        """Whether `tensor` is a distributed array."""
        return isinstance(tensor, DistributedArray)

    def from_numpy(self, x: Any) -> DistributedArray:
        """An array of the values of NumPy's array."""
        return asarray(x)

    def to_numpy(self, x: DistributedArray) -> Any:
        """The values on the host."""
        return x.numpy()

    def arange(self, start: int, stop: int) -> DistributedArray:
        """The numbers from `start` to `stop`."""
        return arange(start, stop)

    def stack_on_zeroth_dimension(self, tensors: Sequence[Any]) -> DistributedArray:
        """The arrays along a new first axis."""
        return stack(tensors)

    def tile(self, x: Any, repeats: Sequence[int]) -> DistributedArray:
        """The array repeated along each axis."""
        return tile(x, repeats)

    def concat(self, tensors: Sequence[Any], axis: int) -> DistributedArray:
        """The arrays end to end."""
        return concat(tensors, axis=axis)

    def add_axis(self, x: Any, new_position: int) -> DistributedArray:
        """The array with an axis of length 1."""
        return expand_dims(x, new_position)

    def is_float_type(self, x: Any) -> bool:
        """Whether the elements are floating-point numbers."""
        return isdtype(x.dtype, "real floating")

    def einsum(self, pattern: str, *x: Any) -> DistributedArray:
        """The sum of products that the pattern names."""
        return einsum(pattern, *x)
