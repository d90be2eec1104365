"""Multi-head attention, and rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gdt import random
from gdt.arguments import checked, checked_class
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operand, as_operands
from gdt.errors import ArgumentError, LayoutError, ShapeError, error
from gdt.nn import initializers
from gdt.nn.dropout import Dropout
from gdt.nn.functions.attention.op import attention
from gdt.nn.initializers import Initializer
from gdt.nn.module import Module
from gdt.nn.parameters import ParameterSpec, check_sizes, features_of, in_compute_dtype, mesh_of
from gdt.ops.elementwise import astype
from gdt.ops.exponential import cos, sin
from gdt.ops.joining import concat
from gdt.ops.products.op import matmul
from gdt.ops.ranges import arange
from gdt.ops.shapes import expand_dims, reshape, transpose
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh

PARTS = ("query", "key", "value", "output")


@checked
def rotary(x: Any, positions: Any = None, base: float = 10_000.0) -> Any:
    """Turn pairs of features by angles that grow with the position, so that products of queries and
    keys depend on the distance of their positions.

    x: (..., positions, features) with an even number of features; feature i and feature i +
    features / 2 are a pair, which is turned by position / base ** (2 * i / features).
    positions: integers (positions,); 0, 1, ... if not given. Angles are computed in float32, or in
        float64 for an x of it.

    Raises ShapeError for an odd number of features. Source: Su et al. 2021, "RoFormer".

    >>> x = gdt.ones((3, 2))
    >>> gdt.nn.rotary(x).numpy().round(2).tolist()
    [[1.0, 1.0], [-0.3, 1.38], [-1.33, 0.49]]
    """
    (x,) = as_operands("rotary", x=x)
    size = features_of("rotary", x, 2)
    if size % 2:
        raise error(ShapeError, f"x has {size} features, which are not pairs")
    if positions is None:
        layout = Layout.of(x.mesh, (x.layout.dims[-2],))
        positions = arange(x.shape[-2], dtype=np.int32, layout=layout)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    powers = (base ** (-np.arange(0, size, 2) / size)).astype(wide)
    frequencies = as_operand(powers, x.mesh, "rotary", "frequencies", is_constant=True)
    angles = expand_dims(astype(positions, wide), -1) * frequencies  # (positions, size / 2)
    turned = [astype(f(angles), x.dtype) for f in (cos, sin)]
    first, second = x[..., : size // 2], x[..., size // 2 :]
    return concat(
        [first * turned[0] - second * turned[1], second * turned[0] + first * turned[1]], -1
    )


@checked_class(eager=True)
class MultiHeadAttention(Module):
    """Attention of several heads: x is projected to queries, keys and values, the results are
    joined and projected back.

    x, result: (batch, positions, size).
    heads: the number of heads. size: the features of x; found at the first call if not given.
    head_size: the features of a head; size / heads if not given.
    key_heads: the number of heads of keys and values, each of which `heads / key_heads` heads of
        queries share; `heads` if not given.
    causal: whether a position sees itself and earlier positions alone.
    rotary: whether queries and keys are turned by their positions; see `gdt.nn.rotary`.
    use_bias: whether the four projections have biases.
    dropout: the probability with which a weight is dropped in training; see `gdt.attention`.
    layouts: layouts of parameters by name: `query_weight`, `key_weight` and `value_weight` (size,
        heads * head_size), `output_weight` (heads * head_size, size), and the biases `query_bias`,
        `key_bias`, `value_bias` and `output_bias`, which are split as their weights' last axes if
        not given. Heads are split where the last axis of the first three weights and the first of
        the last one are.
    initializer: of the weights. dtype: of the parameters. key: of the random numbers of weights and
        dropout; the next ones of `gdt.random` if not given.

    Positions may be split too: keys and values then travel around a ring; see `gdt.attention`.
    Source: Vaswani et al. 2017, "Attention is all you need".

    Raises ArgumentError for sizes that heads do not divide and for a dropout outside [0, 1),
    LayoutError for a name of no parameter.

    >>> mesh = gdt.create_mesh([("batch", 2), ("model", 2)])
    >>> columns, rows = gdt.Layout([None, "model"], mesh), gdt.Layout(["model", None], mesh)
    >>> layouts = dict.fromkeys(["query_weight", "key_weight", "value_weight"], columns)
    >>> layer = gdt.nn.MultiHeadAttention(
    ...     4, 8, causal=True, layouts=layouts | {"output_weight": rows}
    ... )
    >>> x = gdt.ones((2, 5, 8), "float32", layout=gdt.Layout(["batch", None, None], mesh))
    >>> layer(x).shape
    (2, 5, 8)
    """

    def __init__(
        self,
        heads: int,
        size: int | None = None,
        head_size: int | None = None,
        key_heads: int | None = None,
        *,
        causal: bool = False,
        rotary: bool = False,
        use_bias: bool = True,
        dropout: float = 0.0,
        layouts: Mapping[str, Layout] | None = None,
        initializer: str | Initializer = "glorot_uniform",
        dtype: Any = np.float32,
        key: Any = None,
    ) -> None:
        key_heads = heads if key_heads is None else key_heads
        name = "MultiHeadAttention"
        check_sizes(heads=heads, size=size, head_size=head_size, key_heads=key_heads)
        if heads % key_heads:
            problem = f"{key_heads} heads of keys do not divide {heads} heads"
            raise error(ArgumentError, problem)
        layouts, create = dict(layouts or {}), initializers.get(initializer)
        self._parameter_specs: dict[str, ParameterSpec] = {}
        for number, part in enumerate(PARTS):
            weight, bias = f"{part}_weight", f"{part}_bias"
            self._parameter_specs[weight] = ParameterSpec(
                name, create, dtype, layouts.pop(weight, None), key, number
            )
            if use_bias:
                zeros = initializers.zeros
                self._parameter_specs[bias] = ParameterSpec(
                    name, zeros, dtype, layouts.pop(bias, None)
                )
        for wrong in layouts:
            remedy = f"They are {', '.join(self._parameter_specs)}."
            raise error(LayoutError, f"{wrong!r} is no parameter", remedy=remedy)
        self.heads, self.key_heads, self.head_size = heads, key_heads, head_size
        self.causal, self.rotary, self.size = causal, rotary, size
        own_key = None if key is None else random.fold_in(random.key(key), len(PARTS))
        self.dropout = Dropout(dropout, key=own_key) if dropout else None
        self.query_weight: DistributedArray | None = None
        if size is not None:
            self._build(size)

    def _build(self, size: int, mesh: Mesh | None = None) -> None:
        """Create weights and biases for x of `size` features."""
        if self.head_size is None and size % self.heads:
            problem = f"{self.heads} heads do not divide {size} features"
            raise error(ArgumentError, problem)
        head_size = self.head_size or size // self.heads
        self.size, self.head_size = size, head_size
        widths = [n * head_size for n in (self.heads, self.key_heads, self.key_heads)]
        shapes = [*((size, width) for width in widths), (widths[0], size)]
        for part, shape in zip(PARTS, shapes, strict=True):
            weight = self._parameter_specs[f"{part}_weight"].create(shape, mesh)
            setattr(self, f"{part}_weight", weight)
            if f"{part}_bias" in self._parameter_specs:
                spec, layout = self._parameter_specs[f"{part}_bias"], weight.layout.delete([0])
                setattr(self, f"{part}_bias", spec.create(shape[1:], layout=layout))
        del self._parameter_specs

    def _project(self, part: str, x: Any) -> Any:
        """Return x times a weight, plus its bias if there is one."""
        arrays = x, getattr(self, f"{part}_weight"), getattr(self, f"{part}_bias", None)
        x, weight, bias = in_compute_dtype(self, *arrays)
        y = matmul(x, weight)
        return y if bias is None else y + bias

    def _heads_of(self, part: str, x: Any, count: int) -> Any:
        """Return a projection of (batch, positions, size) as (batch, heads, positions, features),
        with its positions turned if they are to be."""
        y = self._project(part, x)
        y = reshape(y, (*y.shape[:-1], count, y.shape[-1] // count))
        y = transpose(y, (*range(y.ndim - 3), -2, -3, -1))
        return rotary(y) if self.rotary and part != "value" else y

    def __call__(
        self, x: Any, context: Any = None, mask: Any = None, training: bool | None = None
    ) -> DistributedArray:
        """Return what the positions of x see in `context`, or in x itself.

        x: (batch, positions, size). context: (batch, others, size). mask: bool, whether a position
        sees another: (batch, positions, others), or what broadcasts to it. training: whether to
        drop weights; by default the module's mode.
        """
        if self.query_weight is None:
            self._build(features_of("MultiHeadAttention", x, 2), mesh_of(self, x))
        seen = x if context is None else context
        q = self._heads_of("query", x, self.heads)  # (batch, heads, positions, head_size)
        k = self._heads_of("key", seen, self.key_heads)
        v = self._heads_of("value", seen, self.key_heads)
        rank, sizes = 0 if mask is None else np.ndim(mask), (q.shape[-2], k.shape[-2])
        if rank >= q.ndim:
            problem = f"the mask has {rank} axes, and x {q.ndim - 1}"
            remedy = "It is (batch, positions, others), or what broadcasts to it; heads see alike."
            raise error(ShapeError, problem, remedy=remedy)
        if rank == 2 and any(n not in (1, m) for n, m in zip(mask.shape, sizes, strict=True)):
            problem = f"the mask has shape {list(mask.shape)}, for {sizes[0]} positions"
            remedy = "A mask of the others that are seen, (batch, others), is mask[:, None, :]."
            raise error(ShapeError, f"{problem} and {sizes[1]} others", remedy=remedy)
        if rank > 2:
            mask = expand_dims(mask, -3)
        y = self._attend(q, k, v, mask, self.training if training is None else training)
        y = transpose(y, (*range(y.ndim - 3), -2, -3, -1))
        y = reshape(y, (*y.shape[:-2], self.heads * y.shape[-1]))
        return self._project("output", y)  # type: ignore[no-any-return]

    def _attend(self, q: Any, k: Any, v: Any, mask: Any, training: bool) -> Any:
        """Return the results of all heads; heads of keys are shared by neighbouring heads."""
        options: dict[str, Any] = {"causal": self.causal}
        if training and self.dropout is not None:
            options |= {"dropout": self.dropout.rate, "key": self.dropout.next_key()}
        if self.key_heads == self.heads:
            return attention(q, k, v, mask, **options)
        shared = self.heads // self.key_heads
        grouped = reshape(q, (*q.shape[:-3], self.key_heads, shared, *q.shape[-2:]))
        k, v = expand_dims(k, -3), expand_dims(v, -3)  # (batch, key_heads, 1, others, head_size)
        mask = expand_dims(mask, -3) if mask is not None and np.ndim(mask) > 2 else mask
        y = attention(grouped, k, v, mask, **options)
        return reshape(y, q.shape)

    def describe(self) -> str:
        """Return the sizes as text."""
        size = "?" if self.size is None else self.size
        heads = f"{self.heads} heads"
        if self.key_heads != self.heads:
            heads += f" on {self.key_heads}"
        return f"{size}, {heads}" + (", causal" if self.causal else "")
