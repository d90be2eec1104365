"""Launches of attention.cu: attention that never holds the matrix of scores, and its gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from gdt.cuda.launches.calls import (
    Array,
    Leading,
    Struct,
    c_type,
    ceil_div,
    check_size,
    named_call,
)
from gdt.cuda.runner import KernelCall
from gdt.cuda.sources import Instance, constants, structs
from gdt.errors import KernelError, error

FILE = "attention.cu"
ATTENTION_TYPES = ("float", "half_t")
ATTENTION_WIDTHS = (128, 256)  # features, or values, up to which a block holds its sums


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


def _instance(kernel: str, x: Array, width: int) -> Instance:
    """Return the instance for operands like x whose sums have `width` columns, or raise
    KernelError."""
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


def _call(
    instance: Instance, rows: int, mesh_ndim: int, sight: Sight, own: dict[str, Array],
    strided: dict[str, Array],
) -> list[KernelCall]:  # fmt: skip
    """Return the call for `rows` rows of every item.

    strided: the operands with leading axes, by name. own: the results."""
    operands = strided | {
        "mask": sight.mask,
        "first_query": sight.first_query,
        "first_key": sight.first_key,
        "head": sight.head,
    }
    leading = Leading(mesh_ndim, *operands.values())
    if 0 in (leading.items, rows):
        return []
    sizes = constants(FILE)
    call = named_call(
        instance,
        (leading.items * ceil_div(rows, sizes["TILE"]),),
        (sizes["SIDE"], sizes["SIDE"]),
        **operands,
        **{f"{name}_strides": leading.strides(instance, a) for name, a in operands.items()},
        **own,
        seed=sight.key,
        axes=leading.axes(instance),
        problem=_problem(instance, strided["q"], strided["k"], strided["v"], sight),
    )
    return [call]


def attention(
    q: Array, k: Array, v: Array, out: Array, lse: Array, sight: Sight, *, mesh_ndim: int = 0
) -> list[KernelCall]:
    """Compute the results of queries, and the log-sum-exp `lse` of their scores.

    q: (lead..., queries, features), k: (lead..., keys, features), v: (lead..., keys, values), of
    one dtype: float32 or float16. out: (items, queries, values), of their dtype. lse:
    (items, queries), float32.
    """
    instance = _instance("attention", q, v.shape[-1])
    operands = {"q": q, "k": k, "v": v}
    return _call(instance, q.shape[-2], mesh_ndim, sight, {"out": out, "lse": lse}, operands)


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
) -> list[KernelCall]:
    """Compute the gradients in q, k and v of `attention`, float32, one for every item.

    g: (lead..., queries, values), the cotangent of the result. lse: (lead..., queries). products:
    (lead..., queries), the sums of g times the result. gradients: (items, queries, features),
    (items, keys, features) and (items, keys, values).
    """
    features, values = k.shape[-1], v.shape[-1]
    dq, dk, dv = gradients
    operands = {"q": q, "k": k, "v": v, "g": g, "lse": lse, "product": products}
    of_queries = _instance("attention_dq", q, features)
    of_keys = _instance("attention_dkv", q, max(features, values))
    return [
        *_call(of_queries, q.shape[-2], mesh_ndim, sight, {"dq": dq}, operands),
        *_call(of_keys, k.shape[-2], mesh_ndim, sight, {"dk": dk, "dv": dv}, operands),
    ]
