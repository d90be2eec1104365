"""Launches of attention.cu, attention_mma.cu and attention_hopper.cu: attention that never holds
the matrix of scores, and its gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from gdt.cuda.launches.attention_hopper import FILE as HOPPER_FILE
from gdt.cuda.launches.attention_hopper import GRADIENT_TYPES, wgmma_shape, wgmma_sources
from gdt.cuda.launches.calls import (
    Array,
    Leading,
    Struct,
    c_type,
    ceil_div,
    check_size,
    named_call,
)
from gdt.cuda.launches.matmul_hopper import Source
from gdt.cuda.runner import KernelCall, address
from gdt.cuda.sources import Instance, constants, structs
from gdt.errors import KernelError, error

FILE = "attention.cu"
ATTENTION_TYPES = ("float", "half_t")
ATTENTION_WIDTHS = (128, 256)  # features, or values, up to which a block holds its sums
MMA_FILE = "attention_mma.cu"
MMA_ATTENTION_TYPES = ("half_t", "bfloat16_t")
MMA_WIDTHS = (64, 128, 256)
WITHOUT_MMA = "sm_75"
ITEM_BYTES = 2  # of the types of MMA_ATTENTION_TYPES


class Sight(NamedTuple):
    """The keys that every query sees, and the weights that are dropped.

    total_queries, total_keys: the lengths of the whole sequences; positions past them are padding.
    scale: the factor of scores. causal: whether a query sees only keys up to its own position.
    first_query, first_key: (lead...), int32, the positions of an item's first query and key; None
    for 0. mask: (lead..., total_queries or 1, total_keys or 1), bool, or None. key: (1,), uint64,
    of dropout, or None. rate: the probability that a weight is dropped. head: (lead...), int64, the
    index of an item among all heads.
    """

    total_queries: int
    total_keys: int
    scale: float
    causal: bool = False
    first_query: Array | None = None
    first_key: Array | None = None
    mask: Array | None = None
    key: Array | None = None
    rate: float = 0.0
    head: Array | None = None

    @property
    def largest(self) -> int:
        """The largest 32 random bits with which a weight is kept."""
        return math.ceil((1 - self.rate) * 2.0**32) - 1


def attention_instances() -> Iterator[Instance]:
    """Yield every instance that this module launches."""
    for kernel in ("attention", "attention_dq", "attention_dkv"):
        for t, width in product(ATTENTION_TYPES, ATTENTION_WIDTHS):
            yield Instance(FILE, kernel, (t, str(width)))


def attention_mma_instances() -> Iterator[Instance]:
    """Yield every instance on tensor cores that this module launches."""
    for t, width in product(MMA_ATTENTION_TYPES, map(str, MMA_WIDTHS)):
        yield Instance(MMA_FILE, "attention_mma", (t, width))
        for kernel in ("attention_mma_dq", "attention_mma_dkv"):
            yield Instance(MMA_FILE, kernel, (t, width, GRADIENT_TYPES[t]))


def _on_tensor_cores(arch: str | None, *operands: Array) -> bool:
    """Whether operands (lead..., positions, features) have kernels on tensor cores, which read
    features in packs of 16 bytes."""
    pack = constants(MMA_FILE)["PACK_BYTES"]
    return arch != WITHOUT_MMA and all(
        c_type(a) in MMA_ATTENTION_TYPES
        and a.shape[-1] * a.dtype.itemsize % pack == 0
        and a.shape[-1] <= MMA_WIDTHS[-1]
        and address(a) % pack == 0
        for a in operands
    )


def _instance(kernel: str, arch: str | None, width: int, *operands: Array) -> Instance:
    """Return the instance of `kernel` for operands whose sums have `width` columns on CUDA cores,
    or raise KernelError."""
    widest = max(a.shape[-1] for a in operands)
    x = operands[0]
    if _on_tensor_cores(arch, *operands):
        fitting = [w for w in MMA_WIDTHS if w >= widest]
        name = kernel.replace("attention", "attention_mma")
        results = () if kernel == "attention" else (GRADIENT_TYPES[c_type(x)],)
        return Instance(MMA_FILE, name, (c_type(x), str(fitting[0]), *results))
    if c_type(x) not in ATTENTION_TYPES:
        raise error(KernelError, kernel, f"no kernel takes {x.dtype}")
    fitting = [w for w in ATTENTION_WIDTHS if w >= width]
    if not fitting:
        problem = f"no kernel takes {width} features, which are more than {ATTENTION_WIDTHS[-1]}"
        raise error(KernelError, kernel, problem)
    return Instance(FILE, kernel, (c_type(x), str(fitting[0])))


def _problem(instance: Instance, q: Array, k: Array, v: Array, sight: Sight) -> Struct:
    """Return the struct `Problem` of a kernel, or raise KernelError for a size past its indices."""
    mask_queries, mask_keys = (1, 1) if sight.mask is None else sight.mask.shape[-2:]
    sizes = {
        "queries": q.shape[-2],
        "keys": k.shape[-2],
        "features": k.shape[-1],
        "values": v.shape[-1],
        "total_queries": sight.total_queries,
        "total_keys": sight.total_keys,
        "mask_queries": mask_queries,
        "mask_keys": mask_keys,
    }
    problem = np.empty(1, structs(FILE)["Problem"])
    for name, size in sizes.items():
        check_size(instance, size)
        problem[name] = size
    problem["causal"], problem["scale"] = sight.causal, sight.scale
    problem["largest"], problem["factor"] = sight.largest, 1 / (1 - sight.rate)
    return problem


def launch_shape(
    instance: Instance, items: int, rows: int
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the grid and block of a kernel for `rows` rows of every item, and its bytes of shared
    memory."""
    if instance.file == HOPPER_FILE:
        return wgmma_shape(instance, items, rows)
    known = constants(instance.file)
    if instance.file == FILE:
        return (items * ceil_div(rows, known["TILE"]),), (known["SIDE"], known["SIDE"]), 0
    width, is_forward = int(instance.arguments[1]), instance.kernel == "attention_mma"
    narrow = width <= known["NARROW"]
    own = known["WARPS"] * known["STRIP"] * (2 if is_forward and narrow else 1)
    if is_forward:
        held = own + 2 * known["KEYS"]
    else:
        held = 2 * own + 2 * known["COLUMNS"] * (2 if narrow else 1)
    halves = 2 if instance.kernel == "attention_mma_dkv" and not narrow else 1
    shared = held * (width * ITEM_BYTES + known["PACK_BYTES"])
    return (items * ceil_div(rows, own), halves), (known["THREADS"],), shared


def _call(
    instance: Instance, rows: int, mesh_ndim: int, sight: Sight, own: dict[str, Array],
    strided: dict[str, Array], arch: str | None = None,
) -> list[KernelCall]:  # fmt: skip
    """Return the call for `rows` rows of every item.

    strided: the operands with leading axes, by name. own: the results. arch: an architecture, on
    which a kernel of wgmma may take the place of `instance`."""
    operands = strided | {
        "mask": sight.mask,
        "first_query": sight.first_query,
        "first_key": sight.first_key,
        "head": sight.head,
    }
    leading = Leading(mesh_ndim, *operands.values())
    if 0 in (leading.items, rows):
        return []
    q, k, v = strided["q"], strided["k"], strided["v"]
    matrices = {name: a for name, a in strided.items() if name in "qkvg"}
    kernel = instance.kernel.replace("_mma", "").replace("attention", "attention_wgmma")
    sources: Mapping[str, Source] = {}
    if found := wgmma_sources(kernel, arch, sight.scale, leading, matrices):
        instance, sources = found
    units = {name: source.unit for name, source in sources.items()}
    grid, block, shared = launch_shape(instance, leading.items, rows)
    call = named_call(
        instance,
        grid,
        block,
        **operands | {name: source.map for name, source in sources.items()},
        **{
            f"{name}_strides": leading.strides(instance, a, units.get(name, 1))
            for name, a in operands.items()
        },
        **own,
        seed=sight.key,
        axes=leading.axes(instance),
        problem=_problem(instance, q, k, v, sight),
    )
    return [replace(call, shared=shared)]


def attention(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array | None,
    sight: Sight,
    *,
    mesh_ndim: int = 0,
    arch: str | None = None,
) -> list[KernelCall]:
    """Compute the results of queries and, unless it is None, the log-sum-exp `lse` of their scores.

    q: (lead..., queries, features), k: (lead..., keys, features), v: (lead..., keys, values), of
    one dtype: float32, float16 or bfloat16. out: (items, queries, values), of their dtype. lse:
    (items, queries), float32. arch: the architecture; 16-bit floats of features in packs of 16
    bytes run on its tensor cores, on sm_90a by wgmma unless `wgmma_sources` refuses them. bfloat16
    has no other kernel.
    """
    instance = _instance("attention", arch, v.shape[-1], q, k, v)
    operands = {"q": q, "k": k, "v": v}
    return _call(instance, q.shape[-2], mesh_ndim, sight, {"out": out, "lse": lse}, operands, arch)


def attention_gradients(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    lse: Array,
    products: Array,
    gradients: tuple[Array, Array, Array],
    sight: Sight,
    *,
    mesh_ndim: int = 0,
    arch: str | None = None,
) -> list[KernelCall]:
    """Compute the gradients in q, k and v of `attention`, one for every item: float32, or bfloat16
    of operands of bfloat16.

    g: (lead..., queries, values), the cotangent of the result. lse: (lead..., queries). products:
    (lead..., queries), the sums of g times the result. gradients: (items, queries, features),
    (items, keys, features) and (items, keys, values). arch: as of `attention`.
    """
    features, values = k.shape[-1], v.shape[-1]
    dq, dk, dv = gradients
    operands = {"q": q, "k": k, "v": v, "g": g, "lse": lse, "product": products}
    of_queries = _instance("attention_dq", arch, features, q, k, v, g)
    of_keys = _instance("attention_dkv", arch, max(features, values), q, k, v, g)
    return [
        *_call(of_queries, q.shape[-2], mesh_ndim, sight, {"dq": dq}, operands, arch),
        *_call(of_keys, k.shape[-2], mesh_ndim, sight, {"dk": dk, "dv": dv}, operands, arch),
    ]
