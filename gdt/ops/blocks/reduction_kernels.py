"""The kernels of reductions: blocks as (mesh axes..., outer, n, inner), reduced over n.

They apply where the reduced axes are neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gdt.cuda import launches
from gdt.engine.launcher import Launcher
from gdt.engine.plan import Shards
from gdt.sharding.dtypes import BFLOAT16, FLOAT32, kind_of

Block = Any


class Reduced(NamedTuple):
    """A block as (mesh axes..., outer, n, inner), and the shape of its reduction."""

    data: Block
    shape: tuple[int, ...]


def _reduced(launcher: Launcher, x: Block, axis: Sequence[int], keepdims: bool) -> Reduced:
    mesh_ndim, dims = launcher.mesh_ndim, x.shape[launcher.mesh_ndim :]
    axes = sorted(a + len(dims) for a in axis)
    if not axes or axes != list(range(axes[0], axes[-1] + 1)):
        raise launcher.refused(f"axes {axes} are not neighbours")
    sizes = (
        math.prod(dims[: axes[0]]),
        math.prod(dims[axes[0] : axes[-1] + 1]),
        math.prod(dims[axes[-1] + 1 :]),
    )
    result_shape = tuple(
        1 if i in axes else n for i, n in enumerate(dims) if keepdims or i not in axes
    )
    data = launcher.contiguous(x).reshape(*x.shape[:mesh_ndim], *sizes)
    return Reduced(data, (*x.shape[:mesh_ndim], *result_shape))


def sum_kernel(
    launcher: Launcher,
    x: Block,
    /,
    axis: Sequence[int],
    keepdims: bool = False,
    dtype: Any = None,
) -> Block:
    """The sum over `axis`, in the dtype that NumPy gives it."""
    own = np.dtype(np.int64) if x.dtype.kind == "i" else x.dtype
    wide = FLOAT32 if own == BFLOAT16 else own
    # NumPy's dtype of float64 equals None.
    if kind_of(x.dtype) not in "fi" or (dtype is not None and dtype != wide):
        raise launcher.refused(f"no kernel adds {x.dtype} up as {dtype}")
    return _sum(launcher, x, axis, keepdims, launcher.result_dtype(own))


def mean_kernel(
    launcher: Launcher,
    x: Block,
    /,
    axis: Sequence[int],
    keepdims: bool = False,
    dtype: Any = None,
) -> Block:
    """The sum that a mean is made of: of 16-bit floats it is float32."""
    if kind_of(x.dtype) != "f" or dtype != (FLOAT32 if x.dtype == BFLOAT16 else x.dtype):
        raise launcher.refused(f"no kernel adds {x.dtype} up as {dtype}")
    return _sum(launcher, x, axis, keepdims, FLOAT32 if x.dtype.itemsize == 2 else x.dtype)


def _sum(
    launcher: Launcher, x: Block, axis: Sequence[int], keepdims: bool, dtype: np.dtype
) -> Block:
    reduction = _reduced(launcher, x, axis, keepdims)
    out = launcher.empty(reduction.shape, dtype)
    launcher.run(
        launches.reduce("Sum", reduction.data, out, launcher.empty, mesh_ndim=launcher.mesh_ndim)
    )
    return out


def extreme_kernel(op: str) -> Callable[..., Block]:
    """The kernel of the largest ("Max") or smallest ("Min") element over `axis`."""

    def kernel(
        launcher: Launcher, x: Block, /, axis: Sequence[int], keepdims: bool = False
    ) -> Block:
        reduction = _reduced(launcher, x, axis, keepdims)
        if not reduction.data.shape[-2]:
            raise launcher.refused("there are no elements")
        out = launcher.empty(reduction.shape, launcher.result_dtype(x.dtype))
        launcher.run(
            launches.reduce(op, reduction.data, out, launcher.empty, mesh_ndim=launcher.mesh_ndim)
        )
        return out

    return kernel


def arg_kernel(op: str) -> Callable[..., tuple[Block, ...]]:
    """The kernel of the index of the largest ("Max") or smallest ("Min") element along one axis;
    over a split axis also the element, for the merge."""

    def kernel(
        launcher: Launcher,
        x: Block,
        /,
        axis: Sequence[int],
        keepdims: bool = False,
        *,
        shards: Shards,
    ) -> tuple[Block, ...]:
        xp, mesh_ndim, rank = launcher.xp, launcher.mesh_ndim, x.ndim - launcher.mesh_ndim
        if len(axis) != 1 or not x.shape[axis[0]]:
            raise launcher.refused(f"no kernel finds the place among axes {list(axis)}")
        factor = f"d{axis[0] + rank}"
        reduction = _reduced(launcher, x, axis, keepdims)
        is_split, start, value = factor in shards.split, None, None
        index = launcher.empty(reduction.shape, "int64")
        if is_split:
            over = x.shape[:mesh_ndim]
            start = launcher.keep(
                "start",
                lambda: xp.ascontiguousarray(
                    xp.broadcast_to(shards.start[factor], over).reshape(-1), np.int64
                ),
            )
            wide = FLOAT32 if x.dtype.itemsize == 2 and kind_of(x.dtype) == "f" else x.dtype
            value = launcher.empty(reduction.shape, wide)
        launcher.run(
            launches.arg_reduce(
                op, reduction.data, value, index, launcher.empty, start=start, mesh_ndim=mesh_ndim
            )
        )
        if value is None:
            return (index,)
        return value.astype(launcher.result_dtype(x.dtype), copy=False), index

    return kernel
