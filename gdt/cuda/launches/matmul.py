"""Launches of matmul.cu and matmul_hopper.cu: matrix products with bias and activation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

from gdt.cuda.launches.calls import (
    ENOUGH_BLOCKS,
    INT_LIMIT,
    SUM_TYPES,
    Array,
    Empty,
    c_type,
    ceil_div,
    named_call,
    sum_type,
)
from gdt.cuda.launches.matmul_hopper import FILE as HOPPER_FILE
from gdt.cuda.launches.matmul_hopper import (
    HOPPER,
    MULTIPROCESSORS,
    cluster_size,
    tile_columns,
    wgmma_call,
    wgmma_refusal,
)
from gdt.cuda.launches.matmul_operands import Operands
from gdt.cuda.launches.transpose import transposed, transposed_first
from gdt.cuda.runner import KernelCall
from gdt.cuda.sources import C_DTYPES, Instance, constants
from gdt.errors import KernelError, error

FILE = "matmul.cu"
LARGE_TILE, SMALL_TILE = 128, 64
SIMT_TILES = (("float", LARGE_TILE), ("float", SMALL_TILE), ("double", SMALL_TILE))
MMA_TYPES = (  # of operands and result on tensor cores; float operands are rounded to tf32
    ("half_t", "half_t"),
    ("half_t", "float"),
    ("bfloat16_t", "bfloat16_t"),
    ("bfloat16_t", "float"),
    ("float", "float"),
    ("double", "double"),
)
# Tensor cores that have twice the rate of CUDA cores for float64: 19.5 and 9.7 TFLOP/s of an A100,
# 67 and 34 of an H100 (NVIDIA's data sheets). B200's have the same, those of others less.
FLOAT64_ON_TENSOR_CORES = ("sm_80", HOPPER)
MMA_FINISH = (("float", "half_t"), ("float", "bfloat16_t"), ("float", "float"))
ACTIVATIONS = ("none", "relu", "relu_backward")
PIECE_LENGTH = 256  # elements of k from which on a piece of the sum is worth its extra pass
PIECES_MAX = 64
FINISHED_PIECES = 8  # that one block adds up for its tile; more would take longer than a launch
CHUNK_STEP = 64  # elements of k; a multiple of the step of every kernel


def matmul_instances() -> Iterator[Instance]:
    """Yield every instance of matmul.cu that this module launches."""
    for x_t, w_t in product(("false", "true"), repeat=2):
        for t, tile in SIMT_TILES:
            yield Instance(FILE, "matmul_simt", (t, str(tile), x_t, w_t))
        for (t, out), tile in product(MMA_TYPES, (LARGE_TILE, SMALL_TILE)):
            yield Instance(FILE, "matmul_mma", (t, out, str(tile), x_t, w_t, SUM_TYPES[t]))
    for wide, out in (*MMA_FINISH, ("double", "double")):
        yield Instance(FILE, "matmul_finish", (wide, out))


@cache
def _launched_instances() -> frozenset[Instance]:
    return frozenset(matmul_instances())


def _tile(
    operands: Operands, columns: int | None, tensor_cores: bool, multiprocessors: int | None
) -> tuple[int, int]:
    """Return the rows and columns of a tile, of matmul_hopper.cu if `multiprocessors` is given.

    A tile of matmul.cu is large where large tiles give every multiprocessor work, else small; of
    float64 on CUDA cores always.
    columns: the columns of a tile, where the caller chooses them.
    """
    if multiprocessors is not None:
        rows = constants(HOPPER_FILE)["TILE_M"]
        return rows, columns or tile_columns(operands, multiprocessors)
    large = ceil_div(operands.m, LARGE_TILE) * ceil_div(operands.n, LARGE_TILE)
    few = large * operands.leading.items < ENOUGH_BLOCKS // 2
    simt_double = c_type(operands.x.array) == "double" and not tensor_cores
    tile = columns or (SMALL_TILE if few or simt_double else LARGE_TILE)
    return tile, tile


def _mma_shared(itemsize: int, tile: int, x_t: bool, w_t: bool) -> int:
    """Return the bytes of shared memory for the tiles in flight, laid out as in `MmaTile`."""
    file_constants = constants(FILE)
    k = file_constants["MMA_K_BYTES"] // itemsize
    pack = file_constants["PACK_BYTES"] // itemsize
    along, across = pack, file_constants["SKEW_ACROSS"]
    if itemsize == 8:
        along = across = file_constants["SKEW_DOUBLE"]
    size = {True: tile * (k + along), False: k * (tile + across)}  # do rows run along k
    return file_constants["STAGES"] * (size[not x_t] + size[w_t]) * itemsize


def matmul(
    x: Array,
    w: Array,
    out: Array,
    empty: Empty,
    *,
    bias: Array | None = None,
    aux: Array | None = None,
    activation: str = "none",
    tensor_cores: bool = False,
    arch: str | None = None,
    multiprocessors: int = MULTIPROCESSORS,
    mesh_ndim: int = 0,
    tile: int | None = None,
    pieces: int | None = None,
    cluster: int | None = None,
    arrivals: Array | None = None,
) -> list[KernelCall]:
    """Compute out = activation(x @ w + bias), each step rounded to the dtype of out.

    x: (lead..., m, k), w: (lead..., k, n), each stored by rows or by columns.
    bias: (lead..., n).
    out, aux: (lead..., m, n), contiguous.
    aux: the array whose values decide "relu_backward".
    activation: one of `ACTIVATIONS`.
    tensor_cores: needed for float16 and bfloat16; float32 operands are then rounded to tf32. On
        `arch` sm_90a the product runs by wgmma, unless `matmul_refusal` gives a reason, or the
        operands of `matmul_transposes` alone do. float64 may have them on
        `FLOAT64_ON_TENSOR_CORES`.
    tile: the columns of a tile. pieces: the number of parts into which k is cut. cluster: the
        number of blocks of matmul_hopper.cu that share w. All are chosen by size if None.
    arrivals: uint32 zeros, `ENOUGH_BLOCKS` for all sizes, which no other launch uses at the same
        time; few parts of k are then added up in the same launch, which leaves zeros.

    Raises KernelError for types, strides or sizes that no kernel takes.
    """
    operands, before = Operands.of(x, w, bias, mesh_ndim), list[KernelCall]()
    if tensor_cores:
        operands, before = _laid_out(operands, bias, empty, arch, mesh_ndim)
    m, n, k, leading = operands.m, operands.n, operands.k, operands.leading
    if 0 in (leading.items, m, n):
        return []
    if max(m, n, k) > INT_LIMIT:
        raise error(KernelError, f"lengths {m}, {n} and {k} are past 2^31 - 2^20")
    hopper = tensor_cores and wgmma_refusal(operands, arch) is None
    rows, columns = _tile(operands, tile, tensor_cores, multiprocessors if hopper else None)
    tiles = ceil_div(m, rows) * ceil_div(n, columns)
    enough = multiprocessors if hopper else ENOUGH_BLOCKS
    steps = max(1, k // PIECE_LENGTH)
    wanted = ceil_div(enough, tiles * leading.items)
    pieces = pieces or min(wanted, PIECES_MAX, steps)
    chunk = ceil_div(ceil_div(max(k, 1), pieces), CHUNK_STEP) * CHUNK_STEP
    pieces = ceil_div(max(k, 1), chunk)
    wide = sum_type(x)
    room = 0 if hopper or arrivals is None else arrivals.size
    is_finished = 1 < pieces <= FINISHED_PIECES and tiles * leading.items <= room
    parts = empty((pieces, leading.items, m, n), C_DTYPES[wide]) if pieces > 1 else None
    finish = {
        "out": out,
        "bias": bias,
        "aux": aux,
        "parts": parts,
        "m": m,
        "n": n,
        "activation": ACTIVATIONS.index(activation),
    }
    last = Instance(FILE, "matmul_finish", (wide, c_type(out)))
    finish["axes"] = leading.axes(last)
    finish["bias_strides"] = leading.strides(last, operands.bias_lead)
    if hopper:
        cluster = cluster or cluster_size(operands, out, columns, multiprocessors)
        rest = finish | {"chunk": chunk}
        first = wgmma_call(operands, c_type(out), columns, pieces, multiprocessors, cluster, rest)
    else:
        tiled = tiles, pieces, leading.items
        c_types = (c_type(x), c_type(out)) if tensor_cores else (c_type(x),)
        counts = arrivals if is_finished else None
        rest = finish | {"chunk": chunk, "arrivals": counts}
        first = _tiled_call(operands, c_types, columns, tiled, rest)
    if parts is None or is_finished:
        return [*before, first]
    threads = constants(FILE)["THREADS"]
    grid = ceil_div(m * n, threads), leading.items
    return [*before, first, named_call(last, grid, (threads,), pieces=pieces, **finish)]


def _laid_out(
    operands: Operands, bias: Array | None, empty: Empty, arch: str | None, mesh_ndim: int
) -> tuple[Operands, list[KernelCall]]:
    """Return the operands as the product reads them, and the calls that transpose them."""
    arrays, calls = [operands.x.array, operands.w.array], []
    for n, turns in enumerate(transposed_first(operands, arch)):
        if turns:
            arrays[n], call = transposed((operands.x, operands.w)[n], empty, mesh_ndim)
            calls.append(call)
    laid_out = Operands.of(arrays[0], arrays[1], bias, mesh_ndim) if calls else operands
    return (laid_out, calls) if wgmma_refusal(laid_out, arch) is None else (operands, [])


def matmul_transposes(
    x: Array, w: Array, *, arch: str | None = None, mesh_ndim: int = 0
) -> tuple[bool, bool]:
    """Return which of x and w a product on tensor cores transposes first."""
    return transposed_first(Operands.of(x, w, None, mesh_ndim), arch)


def matmul_refusal(
    x: Array, w: Array, *, bias: Array | None = None, arch: str | None = None, mesh_ndim: int = 0
) -> str | None:
    """Return why a product on tensor cores does not run by wgmma; None if it does."""
    return wgmma_refusal(Operands.of(x, w, bias, mesh_ndim), arch)


def _tiled_call(
    operands: Operands,
    c_types: tuple[str, ...],
    tile: int,
    grid: tuple[int, int, int],
    finish: dict[str, Any],
) -> KernelCall:
    """Return the call of matmul_mma (two C types, of operands and result) or matmul_simt (one).

    finish: the arguments of the epilogue.
    """
    x, w, leading = operands.x, operands.w, operands.leading
    kernel = "matmul_mma" if len(c_types) == 2 else "matmul_simt"
    transposed = tuple("true" if side.transposed else "false" for side in (x, w))
    sums = (sum_type(x.array),) if kernel == "matmul_mma" else ()
    instance = Instance(FILE, kernel, (*c_types, str(tile), *transposed, *sums))
    if instance not in _launched_instances():
        raise error(KernelError, f"no kernel {instance} for {' and '.join(c_types)}")
    call = named_call(
        instance,
        grid,
        (constants(FILE)["THREADS"],),
        x=x.array,
        x_strides=leading.strides(instance, x.lead_only),
        x_row=x.row,
        w=w.array,
        w_strides=leading.strides(instance, w.lead_only),
        w_row=w.row,
        k=operands.k,
        **finish,
    )
    if kernel == "matmul_simt":
        return call
    itemsize = x.array.dtype.itemsize
    return replace(call, shared=_mma_shared(itemsize, tile, x.transposed, w.transposed))
