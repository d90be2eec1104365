"""Launches of attention_hopper.cu: attention and its gradients by TMA and wgmma on sm_90a."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from gdt.cuda.launches.calls import INT_LIMIT, Array, Leading, c_type, ceil_div
from gdt.cuda.launches.matmul_hopper import HOPPER, Source
from gdt.cuda.runner import address
from gdt.cuda.sources import Instance, constants
from gdt.cuda.tensor_map import ITEM_BYTES, TensorMap

FILE = "attention_hopper.cu"
GRADIENT_TYPES = {"half_t": "float", "bfloat16_t": "bfloat16_t"}  # on tensor cores, by operands'
WIDTHS = (64, 128)  # features of queries and keys, and of values
OWN = {  # the operands of which a block has rows; of the others it has tiles of columns
    "attention_wgmma_dkv": ("k", "v"),
    "attention_wgmma_dq": ("q", "g"),
    "attention_wgmma": ("q",),
}


def attention_hopper_instances() -> Iterator[Instance]:
    """Yield every instance that this module launches."""
    for kernel, t, width in product(OWN, GRADIENT_TYPES, WIDTHS):
        yield _instance(kernel, t, width)


def _instance(kernel: str, t: str, width: int) -> Instance:
    results = () if kernel == "attention_wgmma" else (GRADIENT_TYPES[t],)
    return Instance(FILE, kernel, (t, str(width), *results))


def _columns(kernel: str) -> int:
    """Return the number of columns of a tile."""
    return constants(FILE)["KEYS" if kernel == "attention_wgmma" else "COLUMNS"]


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
    kernel: str, arch: str | None, scale: float, leading: Leading, operands: Mapping[str, Array]
) -> tuple[Instance, Mapping[str, Source]] | None:
    """Return the instance of `kernel` for operands q, k, v and perhaps g, and these as they are
    copied; None where another file's kernel runs: on other architectures, for other types and
    widths, for a scale that is not positive, and for operands that the accelerator cannot copy."""
    t, widths = c_type(operands["q"]), {a.shape[-1] for a in operands.values()}
    if arch != HOPPER or t not in GRADIENT_TYPES or scale <= 0:
        return None
    if len(widths) > 1 or widths.isdisjoint(WIDTHS):
        return None
    rows, columns = constants(FILE)["ROWS"], _columns(kernel)
    sources = {
        name: _source(a, leading, rows if name in OWN[kernel] else columns)
        for name, a in operands.items()
    }
    maps = [source.map for source in sources.values()]
    if any(m.refusal(address(m.array)) or m.sizes[2] > INT_LIMIT for m in maps):
        return None
    return _instance(kernel, t, *widths), sources


def wgmma_shape(
    instance: Instance, items: int, rows: int
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the grid and block of a kernel for `rows` rows of every item, and its bytes of dynamic
    shared memory."""
    known = constants(FILE)
    t, width, *_ = instance.arguments
    held = len(OWN[instance.kernel]) * known["ROWS"] + 2 * known["SLOT_ROWS"]
    grid = (items * ceil_div(rows, known["ROWS"]),)
    return grid, (known["HOPPER_THREADS"],), held * int(width) * ITEM_BYTES[t]
