"""Arrays from other libraries, through DLPack."""

from __future__ import annotations

from typing import Any

from gdt.array import dlpack
from gdt.array.array import DistributedArray
from gdt.array.registry import public
from gdt.array.sharing import share_memory
from gdt.ops.creation import asarray
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh

__all__ = ["from_dlpack", "may_share_memory", "require", "shares_memory"]


@public
def from_dlpack(
    x: Any,
    *,
    layout: Layout | None = None,
    device: Mesh | None = None,
    copy: bool | None = None,
) -> DistributedArray:
    """An array from one of another library (PyTorch, JAX, CuPy, ...) that has `__dlpack__`.

    layout, device, copy: as of `gdt.asarray`. Arrays of GPUs stay there if the mesh is on GPUs.

    Raises ArgumentError for objects without `__dlpack__`, DtypeError for dtypes that NumPy lacks,
    DeviceError for devices other than CPUs and CUDA GPUs. Data API standard, `from_dlpack`.

    >>> import numpy as np
    >>> gdt.from_dlpack(np.arange(3)).tolist()
    [0, 1, 2]
    """
    value = x if isinstance(x, DistributedArray) else dlpack.imported(x)
    return asarray(value, layout=layout, device=device, copy=copy)


@public
def may_share_memory(a: Any, b: Any, /, max_work: int = 0) -> bool:
    """Whether a write to one of two arrays may show in the other one.

    max_work: accepted for NumPy's sake.

    >>> x = gdt.ones(2)
    >>> gdt.may_share_memory(x, x), gdt.may_share_memory(x, x + 1)
    (True, False)
    """
    return share_memory(a, b)


@public
def shares_memory(a: Any, b: Any, /, max_work: int = -1) -> bool:
    """Whether a write to one of two arrays may show in the other one; see `gdt.may_share_memory`.

    >>> gdt.shares_memory(gdt.ones(2), gdt.ones(2))
    False
    """
    return share_memory(a, b)


@public
def require(a: Any, dtype: Any = None, requirements: Any = None) -> DistributedArray:
    """`a` as an array; requirements: those of NumPy on memory, which every array of gdt meets.

    >>> gdt.require([1, 2], float, "C").dtype
    dtype('float64')
    """
    return asarray(a, dtype)
