"""Arrays from other libraries, through DLPack."""

from __future__ import annotations

from typing import Any

from gdt.array import dlpack
from gdt.array.array import DistributedArray
from gdt.array.registry import public
from gdt.ops.creation import asarray
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh

__all__ = ["from_dlpack"]


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
