"""Launches of reduce.cu: sums, extrema and positions of extrema over one axis."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from gdt.cuda.launches.calls import (
    FLOATS,
    REDUCTION_BLOCKS,
    SUM_TYPES,
    Array,
    Empty,
    Leading,
    c_type,
    ceil_div,
    check_size,
    named_call,
    split_count,
    sum_type,
)
from gdt.cuda.runner import KernelCall
from gdt.cuda.sources import C_DTYPES, Instance, constants

FILE = "reduce.cu"
PARTS_MAX = 264  # two for each multiprocessor of an H100
STEPS_OF_THREAD = 8  # a reduction is split where a thread would take more steps


def reduce_instances() -> Iterator[Instance]:
    """Yield every instance that this module launches."""
    for op, t in product(("Sum", "Max", "Min"), (*FLOATS, "int", "long long")):
        wide = SUM_TYPES[t] if op == "Sum" or t in FLOATS else t
        yield Instance(FILE, "reduce_rows", (op, t, wide))
        yield Instance(FILE, "reduce_columns", (op, t, wide))
        yield Instance(FILE, "reduce_finish", (op, t, wide))
        if op != "Sum":
            yield Instance(FILE, "arg_rows", (op, t, wide))
            yield Instance(FILE, "arg_columns", (op, t, wide))
            if t == wide:
                yield Instance(FILE, "arg_finish", (op, wide))
    yield Instance(FILE, "reduce_finish", ("Sum", "long long", "long long"))


def _reduction(
    stem: str, op: str, x: Array, wide: str, mesh_ndim: int, items: int
) -> tuple[Instance, tuple[int, ...], tuple[int, ...], dict[str, int]]:
    """Return the kernel, grid, block and size arguments of a reduction over n.

    x: (lead..., outer, n, inner). stem: the kernel's name before `_rows` (inner is 1) or
    `_columns`. wide: the C type of the result. The second size of the grid is the number of parts.
    """
    outer, n, inner = x.shape[mesh_ndim:]
    warp, rows = constants(FILE)["WARP"], constants(FILE)["ROWS"]
    types, sizes = (op, c_type(x), wide), {"outer": outer, "n": n}
    if inner == 1:
        is_shared = outer * items < REDUCTION_BLOCKS and n >= warp * rows
        block = (warp * rows,) if is_shared else (warp, rows)  # of a row, or of `rows` rows
        blocks = outer if is_shared else ceil_div(outer, rows)
        steps = ceil_div(n, block[0] * STEPS_OF_THREAD)
        grid = (blocks, split_count(blocks * items, steps, most=PARTS_MAX), items)
        return Instance(FILE, f"{stem}_rows", types), grid, block, sizes
    blocks = outer * ceil_div(inner, warp)
    steps = ceil_div(n, rows * STEPS_OF_THREAD)
    grid = (blocks, split_count(blocks * items, steps, most=PARTS_MAX), items)
    return Instance(FILE, f"{stem}_columns", types), grid, (warp, rows), sizes | {"inner": inner}


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
) -> list[KernelCall]:
    """Reduce x over n by `op`: "Sum", "Max" or "Min".

    x: (lead..., outer, n, inner); out: (lead..., outer, inner). count: (items,), int32, the number
    of indices of n that are not padding; None if there is no padding.
    """
    wide = _wide_type(op, x)
    leading = Leading(mesh_ndim, x)
    instance, grid, block, sizes = _reduction("reduce", op, x, wide, mesh_ndim, leading.items)
    if out.size == 0:
        return []
    check_size(instance, out.size)
    parts = empty((grid[1], out.size), C_DTYPES[wide])
    first = named_call(
        instance,
        grid,
        block,
        x=x,
        x_strides=leading.strides(instance, x),
        count=count,
        parts=parts,
        axes=leading.axes(instance),
        **sizes,
    )
    return [first, *reduce_finish(op, parts, out)]


def reduce_finish(op: str, parts: Array, out: Array) -> list[KernelCall]:
    """Combine parts: (count, size) in order, and round to the dtype of out, of `size` elements."""
    instance = Instance(FILE, "reduce_finish", (op, c_type(out), c_type(parts)))
    threads = constants(FILE)["THREADS"]
    grid = (ceil_div(out.size, threads),)
    return [
        named_call(
            instance, grid, (threads,), parts=parts, out=out, count=parts.shape[0], size=out.size
        )
    ]


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
    instance, grid, block, sizes = _reduction("arg", op, x, wide, mesh_ndim, leading.items)
    if index.size == 0:
        return []
    check_size(instance, index.size)
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
        parts=parts,
        index=places,
        axes=leading.axes(instance),
        **sizes,
    )
    return [first, *arg_finish(op, parts, places, value, index)]


def arg_finish(
    op: str, parts: Array, places: Array, value: Array | None, index: Array
) -> list[KernelCall]:
    """Combine extrema `parts` and their positions `places` in order, of splits or of devices.

    parts, places: (count, size); value, index: `size` elements.
    """
    instance = Instance(FILE, "arg_finish", (op, c_type(parts)))
    threads = constants(FILE)["THREADS"]
    return [
        named_call(
            instance,
            (ceil_div(index.size, threads),),
            (threads,),
            parts=parts,
            index=places,
            out=value,
            out_index=index,
            count=parts.shape[0],
            size=index.size,
        )
    ]
