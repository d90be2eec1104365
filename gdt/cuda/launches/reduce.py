"""Launches of reduce.cu: sums, extrema and positions of extrema over one axis."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from gdt.cuda.launches.calls import (
    FLOATS,
    REDUCTION_BLOCKS,
    STEPS_OF_THREAD,
    SUM_TYPES,
    Array,
    Empty,
    Leading,
    c_type,
    ceil_div,
    check_size,
    column_shape,
    named_call,
    split_count,
    sum_type,
)
from gdt.cuda.runner import KernelCall
from gdt.cuda.sources import C_DTYPES, Instance, constants

FILE = "reduce.cu"


def reduce_instances() -> Iterator[Instance]:
    """Yield every instance that this module launches."""
    for op, t in product(("Sum", "Max", "Min"), (*FLOATS, "int", "long long")):
        wide = SUM_TYPES[t] if op == "Sum" or t in FLOATS else t
        own = t if t in FLOATS else wide
        types = {(t, wide, wide), (t, wide, own)}  # of parts, and where there is one part
        if own != wide:
            types.add((wide, wide, own))  # which combines parts
        for kernel, each in product(("reduce_rows", "reduce_columns"), sorted(types)):
            yield Instance(FILE, kernel, (op, *each))
        if op != "Sum":
            yield Instance(FILE, "arg_rows", (op, t, wide))
            yield Instance(FILE, "arg_columns", (op, t, wide))
            if t == wide:
                yield Instance(FILE, "arg_finish", (op, wide))


def _reduction(
    stem: str, x: Array, mesh_ndim: int, items: int
) -> tuple[str, tuple[int, ...], tuple[int, ...], dict[str, int]]:
    """Return the kernel, grid, block and size arguments of a reduction over n.

    x: (lead..., outer, n, inner). stem: the kernel's name before `_rows` (inner is 1) or
    `_columns`. The second size of the grid is the number of parts.
    """
    outer, n, inner = x.shape[mesh_ndim:]
    known, sizes = constants(FILE), {"outer": outer, "n": n}
    warp, threads = known["WARP"], known["THREADS"]
    pack = known["PACK_BYTES"] // x.dtype.itemsize
    if inner == 1:
        is_shared = outer * items < REDUCTION_BLOCKS * threads // warp and n >= threads
        lanes = threads if is_shared else warp  # of a row
        block = (lanes, threads // lanes)
        blocks, steps = ceil_div(outer, block[1]), ceil_div(n, lanes * pack)
        kernel = f"{stem}_rows"
    else:
        block = column_shape(FILE, inner, pack)
        blocks, steps = outer * ceil_div(inner, block[0] * pack), ceil_div(n, block[1])
        kernel, sizes["inner"] = f"{stem}_columns", inner
    splits = split_count(blocks * items, ceil_div(steps, STEPS_OF_THREAD))
    return kernel, (blocks, splits, items), block, sizes


def _wide_type(op: str, x: Array) -> str:
    """Return the C type in which `op` reduces x."""
    t = c_type(x)
    return sum_type(x) if op == "Sum" or t in FLOATS else t


def reduce(
    op: str,
    x: Array,
    out: Array,
    empty: Empty,
    *,
    count: Array | None = None,
    mesh_ndim: int = 0,
    splits: int | None = None,
) -> list[KernelCall]:
    """Reduce x over n by `op`: "Sum", "Max" or "Min".

    x: (lead..., outer, n, inner); out: (lead..., outer, inner). count: (items,), int32, the number
    of indices of n that are not padding; None if there is no padding. splits: the number of parts
    into which n is cut, which are then reduced in turn; None for enough to keep a GPU busy.
    """
    wide = _wide_type(op, x)
    leading = Leading(mesh_ndim, x)
    kernel, (blocks, enough, items), block, sizes = _reduction(
        "reduce", x, mesh_ndim, leading.items
    )
    if out.size == 0:
        return []
    splits = splits or enough
    parts = out if splits == 1 else empty((splits, out.size), C_DTYPES[wide])
    instance = Instance(FILE, kernel, (op, c_type(x), wide, c_type(parts)))
    check_size(instance, out.size)
    first = named_call(
        instance,
        (blocks, splits, items),
        block,
        x=x,
        x_strides=leading.strides(instance, x),
        count=count,
        out=parts,
        axes=leading.axes(instance),
        **sizes,
    )
    if parts is out:
        return [first]
    return [first, *reduce(op, parts.reshape(1, splits, out.size), out, empty, splits=1)]


def arg_reduce(
    op: str,
    x: Array,
    value: Array | None,
    index: Array,
    empty: Empty,
    *,
    start: Array | None = None,
    count: Array | None = None,
    mesh_ndim: int = 0,
) -> list[KernelCall]:
    """Find the "Max" or "Min" of x over n, and its position; NaN wins, then the smallest index.

    x: (lead..., outer, n, inner); value, in the accumulator's dtype, and index, int64:
    (lead..., outer, inner). start: (items,), int64, added to the position. count: as of `reduce`.
    """
    wide = _wide_type(op, x)
    leading = Leading(mesh_ndim, x)
    kernel, grid, block, sizes = _reduction("arg", x, mesh_ndim, leading.items)
    instance = Instance(FILE, kernel, (op, c_type(x), wide))
    if index.size == 0:
        return []
    check_size(instance, index.size)
    parts, places = value, index
    if grid[1] > 1:
        parts = empty((grid[1], index.size), C_DTYPES[wide])
        places = empty((grid[1], index.size), "int64")
    first = named_call(
        instance,
        grid,
        block,
        x=x,
        x_strides=leading.strides(instance, x),
        start=start,
        count=count,
        out=parts,
        index=places,
        axes=leading.axes(instance),
        **sizes,
    )
    return [first] if places is index else [first, _arg_finish(op, parts, places, value, index)]


def _arg_finish(
    op: str, parts: Array, places: Array, value: Array | None, index: Array
) -> KernelCall:
    """Return the call that combines extrema `parts` and their positions `places`.

    parts, places: (count, size); value, index: `size` elements.
    """
    block = column_shape(FILE, index.size)
    return named_call(
        Instance(FILE, "arg_finish", (op, c_type(parts))),
        (ceil_div(index.size, block[0]),),
        block,
        parts=parts,
        index=places,
        out=value,
        out_index=index,
        count=len(parts),
        size=index.size,
    )
