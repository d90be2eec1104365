"""Launches of attention_hopper.cu: attention by TMA and wgmma on sm_90a."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from gdt.cuda.launches.calls import INT_LIMIT, Array, Leading, c_type, ceil_div
from gdt.cuda.launches.matmul_hopper import HOPPER, Source
from gdt.cuda.runner import address
from gdt.cuda.sources import Instance, constants
from gdt.cuda.tensor_map import ITEM_BYTES, ROW_BYTES, TensorMap

FILE = "attention_hopper.cu"
TYPES = ("half_t", "bfloat16_t")
WIDTHS = (64, 128)  # features of queries and keys, and of values


def attention_hopper_instances() -> Iterator[Instance]:
    """Yield every instance that this module launches."""
    for t, width in product(TYPES, map(str, WIDTHS)):
        yield Instance(FILE, "attention_wgmma", (t, width))


def _source(array: Array, leading: Leading, box: int) -> Source:
    """Return an operand (lead..., positions, features) as the accelerator copies it, in boxes of
    `box` positions."""
    rows, features = array.shape[-2:]
    item = ITEM_BYTES[c_type(array)]
    unit, last = leading.steps(array)
    strides = features * item, (unit or rows * features) * item
    return Source(
        TensorMap(array, c_type(array), (features, rows, last + 1), strides, box), unit or 1
    )


def wgmma_sources(
    arch: str | None, scale: float, leading: Leading, q: Array, k: Array, v: Array
) -> Mapping[str, Source] | None:
    """Return the operands of attention_wgmma by name; None where attention_mma, or attention, runs:
    on other architectures, for other types and widths, for a scale that is not positive, and for
    operands that the accelerator cannot copy."""
    widths, known = {a.shape[-1] for a in (q, k, v)}, constants(FILE)
    if arch != HOPPER or c_type(q) not in TYPES or scale <= 0:
        return None
    if len(widths) > 1 or widths.isdisjoint(WIDTHS):
        return None
    sources = {
        "q": _source(q, leading, known["QUERIES"]),
        "k": _source(k, leading, known["KEYS"]),
        "v": _source(v, leading, ROW_BYTES // ITEM_BYTES[c_type(v)]),
    }
    maps = [source.map for source in sources.values()]
    if any(m.refusal(address(m.array)) or m.sizes[2] > INT_LIMIT for m in maps):
        return None
    return sources


def wgmma_shape(
    instance: Instance, items: int, rows: int
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the grid and block of attention_wgmma for `rows` queries of every item, and its bytes
    of dynamic shared memory."""
    known = constants(FILE)
    t, width = instance.arguments
    held = known["QUERIES"] + 2 * known["STAGES"] * known["KEYS"]
    grid = (items * ceil_div(rows, known["QUERIES"]),)
    return grid, (known["HOPPER_THREADS"],), held * int(width) * ITEM_BYTES[t]
