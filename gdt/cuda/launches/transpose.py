"""Launches of transpose.cu: operands of products, laid out anew along the contraction.

wgmma takes tf32 only where the memory of both operands runs along the contraction, as that of
`x @ w.T` does. In a large product another operand is transposed first; the copies of the product
round it to tf32, as they round one that lies so, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdt.cuda.launches.calls import Array, Empty, Leading, c_type, ceil_div, named_call
from gdt.cuda.launches.matmul_hopper import HOPPER
from gdt.cuda.launches.matmul_operands import MatrixOperand, Operands
from gdt.cuda.runner import KernelCall
from gdt.cuda.sources import C_DTYPES, Instance, constants

FILE = "transpose.cu"
TYPE = "float"
# By the public models of the README's table, tf32 runs at 150 TFLOP/s by mma.sync and at 350 by
# wgmma on an H100, and a copy at 3 TB/s: 88 operations gain what it takes to move a byte. A launch
# of 3 us is gained by 2^30 operations.
OPERATIONS_OF_BYTE = 128
OPERATIONS_OF_LAUNCH = 2**30


def transpose_instances() -> Iterator[Instance]:
    """Yield every instance that this module launches."""
    yield Instance(FILE, "transpose", (TYPE,))


def transposed_first(operands: Operands, arch: str | None) -> tuple[bool, bool]:
    """Return which of x and w are transposed before a product on tensor cores."""
    x, w = operands.x, operands.w
    if arch != HOPPER or {c_type(x.array), c_type(w.array)} != {TYPE}:
        return False, False
    turns = x.transposed, not w.transposed
    moved = sum(2 * side.array.nbytes for side, turn in zip((x, w), turns, strict=True) if turn)
    operations = 2 * operands.m * operands.n * operands.k * operands.leading.items
    pays = operations >= max(OPERATIONS_OF_BYTE * moved, OPERATIONS_OF_LAUNCH)
    return (turns[0] and pays, turns[1] and pays)


def transposed(side: MatrixOperand, empty: Empty, mesh_ndim: int) -> tuple[Array, KernelCall]:
    """Return an operand that is stored in the other order, and the call that writes it."""
    array = side.array.swapaxes(-1, -2) if side.transposed else side.array
    (rows, columns), known = array.shape[-2:], constants(FILE)
    pack = known["PACK_BYTES"] // array.dtype.itemsize
    width = ceil_div(rows, pack) * pack
    out = empty((*array.shape[:-2], columns, width), C_DTYPES[TYPE])
    leading, instance = Leading(mesh_ndim, side.lead_only), Instance(FILE, "transpose", (TYPE,))
    tiles = ceil_div(rows, known["TILE"]) * ceil_div(columns, known["TILE"])
    call = named_call(
        instance,
        (tiles, leading.items),
        (known["THREADS"],),
        x=array,
        x_strides=leading.strides(instance, side.lead_only),
        x_row=side.row,
        out=out,
        axes=leading.axes(instance),
        rows=rows,
        columns=columns,
        width=width,
    )
    made = out[..., :rows]
    return (made if side.transposed else made.swapaxes(-1, -2)), call
