"""Launches of matmul_hopper.cu: products by TMA and wgmma on sm_90a."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from gdt.cuda.launches.calls import INT_LIMIT, Array, c_type, ceil_div, named_call
from gdt.cuda.launches.matmul_operands import MatrixOperand, Operands
from gdt.cuda.runner import KernelCall, address
from gdt.cuda.sources import Instance, constants
from gdt.cuda.tensor_map import ITEM_BYTES, ROW_BYTES, TensorMap
from gdt.errors import KernelError, error

FILE = "matmul_hopper.cu"
HOPPER = "sm_90a"
MULTIPROCESSORS = 132  # of an H100 or H200 with SXM
WIDE_TILE, NARROW_TILE = 256, 128  # columns of a tile
CLUSTER = 2  # blocks that share w, with wide tiles of results of 16 bits
ROWS_OF_TILES = 32  # from which on the tile that is lacking below an odd one weighs little
PAD = 8  # elements; of every type a multiple of 16 bytes
WGMMA_TYPES = (  # types of operands and result; float operands are rounded to tf32
    ("half_t", "half_t"),
    ("half_t", "float"),
    ("bfloat16_t", "bfloat16_t"),
    ("bfloat16_t", "float"),
)


def matmul_hopper_instances() -> Iterator[Instance]:
    """Yield every instance that this module launches."""
    for tile in (str(WIDE_TILE), str(NARROW_TILE)):
        for types, *flags in product(WGMMA_TYPES, ("false", "true"), ("false", "true")):
            yield Instance(FILE, "matmul_wgmma", (*types, tile, *flags, "1"))
        yield Instance(FILE, "matmul_wgmma", ("float", "float", tile, "false", "true", "1"))
    for t, *flags in product(("half_t", "bfloat16_t"), ("false", "true"), ("false", "true")):
        yield Instance(FILE, "matmul_wgmma", (t, t, str(WIDE_TILE), *flags, str(CLUSTER)))


@cache
def _launched_instances() -> frozenset[Instance]:
    return frozenset(matmul_hopper_instances())


@dataclass(frozen=True)
class Source:
    """An operand of a product as the accelerator copies it: its items lie `unit` elements apart."""

    map: TensorMap
    unit: int


def _source(side: MatrixOperand, operands: Operands, along_k: bool, tile: int) -> Source:
    """Return the source of one operand.

    along_k: whether memory runs along the contraction. tile: the operand's rows or columns that are
    copied at once.
    """
    element_type = c_type(side.array)
    item = ITEM_BYTES[element_type]
    rows, along = side.array.shape[-2:]
    if side.transposed:
        rows, along = along, rows
    row = side.row if rows > 1 else ceil_div(along, PAD) * PAD  # one row may have any stride
    unit, last = operands.leading.steps(side.lead_only)
    strides = row * item, (unit or rows * row) * item
    box = tile if along_k else ROW_BYTES // item
    tensor_map = TensorMap(side.array, element_type, (along, rows, last + 1), strides, box)
    return Source(tensor_map, unit or 1)


def sources(operands: Operands, columns: int) -> tuple[Source, Source]:
    """Return the sources of x and w, of which a block copies `columns` columns at once."""
    x, w = operands.x, operands.w
    return (
        _source(x, operands, not x.transposed, constants(FILE)["TILE_M"]),
        _source(w, operands, w.transposed, columns),
    )


def wgmma_refusal(operands: Operands, arch: str | None) -> str | None:
    """Return why matmul_wgmma does not take the operands, so that matmul_mma runs; else None."""
    if arch != HOPPER:
        return f"matmul_wgmma needs {HOPPER}, not {arch}"
    if operands.k == 0:
        return "there is nothing to contract"
    x_type, w_type = c_type(operands.x.array), c_type(operands.w.array)
    if x_type not in ITEM_BYTES or x_type != w_type:
        return f"wgmma takes no {x_type} with {w_type}"
    if x_type == "float" and (operands.x.transposed or not operands.w.transposed):
        return "wgmma takes tf32 only where memory runs along the contraction"
    for name, source in zip("xw", sources(operands, NARROW_TILE), strict=True):
        reason = source.map.refusal(address(source.map.array))
        if reason is None and source.map.sizes[2] > INT_LIMIT:
            reason = "it has more than 2^31 - 2^20 items"
        if reason is not None:
            return f"{name}: {reason}"
    return None


def _stored(operands: Operands, out: Array, pieces: int) -> TensorMap | None:
    """Return the map through which the accelerator stores `out`; None where threads store it."""
    element_type = c_type(out)
    rows, columns = out.shape[-2:]
    sizes, row = (columns, rows, operands.leading.items), columns * out.dtype.itemsize
    stored = TensorMap(out, element_type, sizes, (row, row * rows), constants(FILE)["SLAB_ROWS"])
    is_storable = pieces == 1 and element_type in ("half_t", "bfloat16_t")
    return stored if is_storable and stored.refusal(address(out)) is None else None


def tile_columns(operands: Operands, multiprocessors: int) -> int:
    """Return the columns of a tile: wide where that gives every other multiprocessor work."""
    down = ceil_div(operands.m, constants(FILE)["TILE_M"])
    tiles = down * ceil_div(operands.n, WIDE_TILE) * operands.leading.items
    return WIDE_TILE if tiles >= multiprocessors // 2 else NARROW_TILE


def cluster_size(operands: Operands, out: Array, columns: int, multiprocessors: int) -> int:
    """Return the number of blocks that share w: two where that leaves hardly any of them idle."""
    down = ceil_div(operands.m, constants(FILE)["TILE_M"])
    is_even = down % CLUSTER == 0 or down >= ROWS_OF_TILES
    is_known = columns == WIDE_TILE and c_type(out) == c_type(operands.x.array) != "float"
    return CLUSTER if is_even and is_known and multiprocessors >= CLUSTER else 1


def wgmma_call(
    operands: Operands,
    out_type: str,
    columns: int,
    pieces: int,
    blocks: int,
    cluster: int,
    finish: dict[str, Any],
    **rest: Any,
) -> KernelCall:
    """Return the call of matmul_wgmma on at most `blocks` blocks, `cluster` of which share w.

    finish: the arguments of the epilogue; rest: further arguments.
    """
    file_constants, leading = constants(FILE), operands.leading
    x, w = operands.x, operands.w
    transposed = tuple("true" if side.transposed else "false" for side in (x, w))
    instance = Instance(
        FILE, "matmul_wgmma", (c_type(x.array), out_type, str(columns), *transposed, str(cluster))
    )
    if instance not in _launched_instances():
        raise error(KernelError, "matmul", f"no kernel {instance} for {c_type(x.array)}")
    x_source, w_source = sources(operands, columns // cluster)
    rows = cluster * file_constants["TILE_M"]
    tiles = ceil_div(operands.m, rows) * ceil_div(operands.n, columns)
    tasks = tiles * pieces * leading.items
    if tasks > INT_LIMIT - blocks:
        raise error(KernelError, str(instance), f"{tasks} tiles are past 2^31 - 2^20")
    stored = _stored(operands, finish["out"], pieces)
    call = named_call(
        instance,
        (cluster * min(blocks // cluster, tasks),),
        (file_constants["HOPPER_THREADS"],),
        x=x_source.map,
        x_strides=leading.strides(instance, x.lead_only, x_source.unit),
        w=w_source.map,
        w_strides=leading.strides(instance, w.lead_only, w_source.unit),
        stored=stored or x_source.map,
        has_map=stored is not None,
        pieces=pieces,
        items=leading.items,
        k=operands.k,
        **finish,
        **rest,
    )
    shared = file_constants["SLOTS_BYTES"] + file_constants["SLABS_BYTES"]
    return replace(call, shared=shared, cluster=cluster)
