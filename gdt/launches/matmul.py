"""Launches of matmul.cu: products on CUDA cores or tensor cores, with what follows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from gdt.errors import KernelError, error
from gdt.kernels import C_DTYPES, Call, Instance, constants
from gdt.launches.calls import (
    ENOUGH_BLOCKS,
    Array,
    Empty,
    Leading,
    c_type,
    ceil_div,
    named_call,
    split_count,
    sum_type,
)

FILE = "matmul.cu"
LARGE_TILE, SMALL_TILE = 128, 64
SIMT_TILES = (("float", LARGE_TILE), ("float", SMALL_TILE), ("double", SMALL_TILE))
MMA_TYPES = (  # operands and result of tensor cores; float operands are rounded to tf32
    ("half_t", "half_t"),
    ("half_t", "float"),
    ("bfloat16_t", "bfloat16_t"),
    ("bfloat16_t", "float"),
    ("float", "float"),
)
MMA_FINISH = (("float", "half_t"), ("float", "bfloat16_t"), ("float", "float"))
ACTIVATIONS = ("none", "relu", "gelu", "relu_backward", "gelu_backward")
PIECE_LENGTH = 256  # elements of k that make a piece worth its extra pass
CHUNK_STEP = 64  # elements of k that are whole steps of every kernel
MMA_SKEW = 8  # elements that pad a row of tiles whose rows run across k


def matmul_instances() -> Iterator[Instance]:
    """Every instance launched here."""
    for x_t, w_t in product(("false", "true"), repeat=2):
        for t, tile in SIMT_TILES:
            yield Instance(FILE, "matmul_simt", (t, str(tile), x_t, w_t))
        for (t, out), tile in product(MMA_TYPES, (LARGE_TILE, SMALL_TILE)):
            yield Instance(FILE, "matmul_mma", (t, out, str(tile), x_t, w_t))
    for wide, out in (*MMA_FINISH, ("double", "double")):
        yield Instance(FILE, "matmul_finish", (wide, out))


def _orientation(array: Array, lead: int) -> tuple[bool, int]:
    """Whether the last two axes are stored swapped, and the elements from one row to the next."""
    item = array.dtype.itemsize
    rows, columns = array.shape[lead:]
    down, across = (s // item for s in array.strides[lead:])
    if array.size == 0:
        return False, columns
    if across == 1 or columns == 1:
        return False, down if rows > 1 else columns
    if down == 1 or rows == 1:
        return True, across
    problem = f"an operand of shape {array.shape} walks memory neither by rows nor by columns"
    raise error(KernelError, "matmul", problem)


def _tile(rows: int, columns: int, items: int, double: bool) -> int:
    """The large tile where it gives every multiprocessor work, else the small one."""
    large = ceil_div(rows, LARGE_TILE) * ceil_div(columns, LARGE_TILE) * items
    return SMALL_TILE if double or large < ENOUGH_BLOCKS // 2 else LARGE_TILE


def _mma_shared(itemsize: int, tile: int, x_t: bool, w_t: bool) -> int:
    """Bytes for the tiles in flight, laid out as `MmaTile` does."""
    known = constants(FILE)
    k, pack = known["MMA_K_BYTES"] // itemsize, known["PACK_BYTES"] // itemsize
    size = {True: tile * (k + pack), False: k * (tile + MMA_SKEW)}  # by whether rows run along k
    return known["STAGES"] * (size[not x_t] + size[w_t]) * itemsize


def matmul(
    x: Array,
    w: Array,
    out: Array,
    empty: Empty,
    *,
    bias: Array | None = None,
    aux: Array | None = None,
    pre: Array | None = None,
    alpha: float = 1.0,
    accumulate: bool = False,
    activation: str = "none",
    tensor_cores: bool = False,
    lead: int = 0,
    tile: int | None = None,
    pieces: int | None = None,
) -> list[Call]:
    """out = activation(alpha x @ w + bias + accumulate * out).

    x: (lead..., m, k) and w: (lead..., k, n), stored by rows or by columns; bias:
    (lead..., n); out, aux, pre: (lead..., m, n), contiguous. `aux` is what the backward activations
    look at, `pre` receives the activation's argument. float16 and bfloat16 need `tensor_cores`,
    float32 with them is tf32. `tile` and `pieces` are chosen by size if None.
    """
    (m, k), n = x.shape[lead:], w.shape[-1]
    (x_t, x_row), (w_t, w_row) = _orientation(x, lead), _orientation(w, lead)
    leading = Leading(lead, *(_lead_only(a, lead) for a in (x, w, bias)))
    x_lead, w_lead, bias_lead = leading.operands
    items = leading.items
    if 0 in (items, m, n):
        return []
    tile = tile or _tile(m, n, items, x.dtype.itemsize == 8)
    tiles = ceil_div(m, tile) * ceil_div(n, tile)
    pieces = pieces or split_count(tiles * items, max(1, k // PIECE_LENGTH))
    chunk = ceil_div(ceil_div(max(k, 1), pieces), CHUNK_STEP) * CHUNK_STEP
    pieces = ceil_div(max(k, 1), chunk)
    wide = sum_type(x)
    parts = empty((pieces, items, m, n), C_DTYPES[wide]) if pieces > 1 else None
    turned = tuple("true" if t else "false" for t in (x_t, w_t))
    if tensor_cores:
        types = (c_type(x), c_type(out), str(tile), *turned)
        instance = Instance(FILE, "matmul_mma", types)
        shared = _mma_shared(x.dtype.itemsize, tile, x_t, w_t)
    else:
        instance = Instance(FILE, "matmul_simt", (c_type(x), str(tile), *turned))
        shared = 0
    if instance not in matmul_instances():
        raise error(KernelError, "matmul", f"no kernel {instance} for {x.dtype} and {out.dtype}")
    finish = {
        "out": out,
        "bias": bias,
        "bias_strides": leading.strides(instance, bias_lead),
        "aux": aux,
        "pre": pre,
        "axes": leading.axes(instance),
        "m": m,
        "n": n,
        "alpha": alpha,
        "accumulate": int(accumulate),
        "activation": ACTIVATIONS.index(activation),
    }
    threads = constants(FILE)["THREADS"]
    first = named_call(
        instance,
        (tiles, pieces, items),
        (threads,),
        x=x,
        x_strides=leading.strides(instance, x_lead),
        x_row=x_row,
        w=w,
        w_strides=leading.strides(instance, w_lead),
        w_row=w_row,
        parts=parts,
        k=k,
        chunk=chunk,
        **finish,
    )
    first = replace(first, shared=shared)
    if parts is None:
        return [first]
    last = Instance(FILE, "matmul_finish", (wide, c_type(out)))
    grid = (ceil_div(m * n, threads), items)
    return [first, named_call(last, grid, (threads,), parts=parts, pieces=pieces, **finish)]


def _lead_only(array: Array | None, lead: int) -> Array | None:
    """A view of an operand's leading axes alone; its inner strides are passed by themselves."""
    return None if array is None else array[(..., *(slice(1),) * (array.ndim - lead))]
