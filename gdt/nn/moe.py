"""MoE: a mixture of experts, of which each token asks a few."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gdt import random
from gdt.arguments import checked_class
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.autodiff.functional import stop_gradient
from gdt.errors import ArgumentError, LayoutError, error
from gdt.nn import activations, initializers
from gdt.nn.activations import Function
from gdt.nn.functions.rows_of_groups import rows_of_groups
from gdt.nn.functions.softmax import softmax
from gdt.nn.initializers import Initializer
from gdt.nn.module import Module
from gdt.nn.parameters import (
    ParameterSpec,
    check_features,
    check_sizes,
    features_of,
    in_compute_dtype,
    mesh_of,
    stacked_rows,
)
from gdt.ops.along_axis import take_along_axis_in_range
from gdt.ops.comparison import less, where
from gdt.ops.elementwise import astype
from gdt.ops.indexing import getitem
from gdt.ops.movement import made_whole, relayout
from gdt.ops.products.op import matmul
from gdt.ops.ranges import arange
from gdt.ops.reductions import sum_
from gdt.ops.shapes import expand_dims, reshape, transpose
from gdt.ops.sorting import argsort, top_k
from gdt.sharding.default_mesh import get_default_mesh
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.mesh import Mesh


class Routing(NamedTuple):
    """The figures of a call of an `MoE`, for each group of tokens: arrays of the leading axes of x.

    balance: the loss that is least, 1, where experts are asked equally often; see `gdt.nn.MoE`.
    dropped: how many times a token found no place at an expert that it has asked.
    asked: (..., experts), how often each expert was asked.

    >>> layer = gdt.nn.MoE(2, hidden_size=4, top_k=1, capacity=None, size=3, key=0)
    >>> y, routing = layer(gdt.ones((5, 3), "float32"), routing=True)
    >>> int(routing.dropped), int(gdt.sum(routing.asked))
    (0, 5)
    """

    balance: DistributedArray
    dropped: DistributedArray
    asked: DistributedArray


@checked_class(eager=True)
class MoE(Module):
    """A mixture of experts, each of them two dense layers: a router gives each token to the `top_k`
    experts that it takes for the best, and adds up what they return, weighted.

    x: (..., tokens, size), result: of the same shape. All tokens of a group, such as a sequence,
    are routed together, and groups by themselves: so no layout changes what is computed.
    experts: the number of experts. hidden_size: the features between their two layers.
    top_k: how many experts a token asks. Their weights are the router's probabilities, divided by
        their sum; with one expert, the probability itself.
    capacity: the places that an expert has for the tokens of a group, in multiples of `top_k *
        tokens / experts`, rounded up. Tokens ask their best experts first, in order, then their
        second; who finds no place gets 0 from there, and is dropped. None has places for all.
    size: the features of x; found at the first call if not given.
    activation: of the hidden features. use_bias: whether the two layers have biases.
    layouts: layouts of the arrays by name: `router_weight` (size, experts), `up_weight` (experts,
        size, hidden), `up_bias` (experts, hidden), `down_weight` (experts, hidden, size) and
        `down_bias` (experts, size). Where mesh axes split the first axis of `up_weight`, experts
        are on different devices, and tokens are sent there and back, by one all-to-all each.
    initializer: of the matrices, each by itself. dtype: of the arrays. key: of the random numbers.

    `moe(x, routing=True)` returns the pair of the result and a `Routing`. Its `balance`, of which a
    small multiple of the mean belongs into the loss of a training, is experts * sum(asked share *
    mean probability) for each group. Routing is computed in float32 at least. Sources: Shazeer et
    al. 2017; Lepikhin et al. 2021, "GShard"; Fedus et al. 2022, "Switch Transformers".

    Raises ArgumentError for sizes below 1, for a capacity that is not positive and for more experts
    to ask than there are; ShapeError for an x of another number of features or no axis of tokens.

    >>> layer = gdt.nn.MoE(4, hidden_size=16, size=8, key=0)
    >>> y, routing = layer(gdt.ones((2, 6, 8), "float32"), routing=True)
    >>> y.shape, routing.dropped.tolist(), routing.asked.tolist()
    ((2, 6, 8), [4, 4], [[6, 0, 6, 0], [6, 0, 6, 0]])
    """

    def __init__(
        self,
        experts: int,
        hidden_size: int,
        top_k: int = 2,
        capacity: float | None = 1.25,
        size: int | None = None,
        activation: str | Function | None = "gelu",
        use_bias: bool = True,
        *,
        layouts: Mapping[str, Layout] | None = None,
        initializer: str | Initializer = "glorot_uniform",
        dtype: Any = np.float32,
        key: Any = None,
    ) -> None:
        check_sizes(experts=experts, hidden_size=hidden_size, top_k=top_k, size=size)
        if top_k > experts:
            raise error(ArgumentError, f"top_k is {top_k}, of {experts} experts")
        if capacity is not None and not (capacity > 0 and math.isfinite(capacity)):
            remedy = "It is positive; None has places for all tokens."
            raise error(ArgumentError, f"capacity is {capacity}", remedy=remedy)
        self.experts, self.hidden_size, self.top_k = experts, hidden_size, top_k
        self.capacity, self.activation, self.size = capacity, activations.get(activation), size
        layouts, create = dict(layouts or {}), initializers.get(initializer)
        each = partial(_of_each, create)
        kinds: dict[str, Initializer] = {"router_weight": create, "up_weight": each}
        kinds |= {"up_bias": initializers.zeros} if use_bias else {}
        kinds |= {"down_weight": each}
        kinds |= {"down_bias": initializers.zeros} if use_bias else {}
        self._parameter_specs = {
            name: ParameterSpec("MoE", kind, dtype, layouts.pop(name, None), key, number)
            for number, (name, kind) in enumerate(kinds.items())
        }
        for wrong in layouts:
            remedy = f"They are {', '.join(self._parameter_specs)}."
            raise error(LayoutError, f"{wrong!r} is no parameter", remedy=remedy)
        self.router_weight: DistributedArray | None = None
        self.up_bias: DistributedArray | None = None
        self.down_bias: DistributedArray | None = None
        if size is not None:
            self._build(size)

    def _build(self, size: int, mesh: Mesh | None = None) -> None:
        """Create the arrays for x of `size` features."""
        self.size, experts, hidden = size, self.experts, self.hidden_size
        shapes = {
            "router_weight": (size, experts),
            "up_weight": (experts, size, hidden),
            "up_bias": (experts, hidden),
            "down_weight": (experts, hidden, size),
            "down_bias": (experts, size),
        }
        for name, spec in self._parameter_specs.items():
            layout = None
            if name.endswith("bias"):  # split as the last axis of its weight
                layout = getattr(self, name.replace("bias", "weight")).layout.delete([1])
            setattr(self, name, spec.create(shapes[name], mesh, layout))
        del self._parameter_specs

    def describe(self) -> str:
        """Return the sizes as text."""
        size = "?" if self.size is None else self.size
        return f"{size} -> {self.hidden_size} -> {size}, {self.top_k} of {self.experts} experts"

    def __call__(self, x: Any, routing: bool = False) -> Any:
        """Return what the experts make of x, and with `routing` a `Routing` beside it."""
        (x,) = as_operands("MoE", x=x)
        if self.router_weight is None:
            self._build(features_of("MoE", x, 2), mesh_of(self, x))
        check_features("MoE", x, self.size or 0, 2)
        lead, tokens = x.shape[:-2], x.shape[-2]
        groups = _with_whole_tokens(reshape(x, (math.prod(lead), tokens, x.shape[-1])))
        probabilities, weights, routes = self._routes(groups)
        out = self._experts(rows_of_groups(groups, routes.token), routes.places)
        taken = rows_of_groups(out, routes.slot)  # (groups, top_k * tokens, size)
        parts = (math.prod(lead), self.top_k, tokens, x.shape[-1])
        y = sum_(reshape(taken * astype(expand_dims(weights, -1), taken.dtype), parts), axis=1)
        y = reshape(y, x.shape)
        if not routing:
            return y
        count = max(tokens, 1)
        share = astype(routes.asked, probabilities.dtype) / (self.top_k * count)
        balance = self.experts * sum_(share * (sum_(probabilities, axis=1) / count), axis=-1)
        told = Routing(balance, routes.dropped, routes.asked)
        return y, Routing(*[reshape(a, (*lead, *a.shape[1:])) for a in told])

    def _routes(self, x: DistributedArray) -> tuple[DistributedArray, DistributedArray, Routes]:
        """Return the router's probabilities (groups, tokens, experts), the weights of all choices
        (groups, top_k * tokens), 0 for those that are dropped, and the routes."""
        wide = x if x.dtype.itemsize > 4 else astype(x, np.float32)
        probabilities = softmax(matmul(wide, astype(self.router_weight, wide.dtype)), axis=-1)
        weights, experts = top_k(probabilities, self.top_k)  # (groups, tokens, top_k)
        if self.top_k > 1:
            weights = weights / sum_(weights, axis=-1, keepdims=True)
        count = x.shape[1] * self.top_k
        choices = [
            reshape(transpose(a, (0, 2, 1)), (x.shape[0], count)) for a in (weights, experts)
        ]
        # Without it the backward pass would send cotangents of x back, which end at the numbers.
        numbers = stop_gradient(choices[1])
        routes = _routes(numbers, self.experts, self._places(x.shape[1]), x.shape[1])
        return probabilities, where(routes.is_kept, choices[0], 0), routes

    def _places(self, tokens: int) -> int:
        """Return the places that an expert has for the tokens of a group."""
        if self.capacity is None:
            return tokens
        return min(tokens, math.ceil(self.capacity * self.top_k * tokens / self.experts))

    def _experts(self, x: DistributedArray, places: int) -> DistributedArray:
        """Return what the experts make of the tokens at their places, both (groups, experts *
        places, size)."""
        names = ("up_weight", "up_bias", "down_weight", "down_bias")
        x, up, up_bias, down, down_bias = in_compute_dtype(
            self, x, *[getattr(self, name) for name in names]
        )
        groups, _, size = x.shape
        dims = x.layout.dims
        axes = up.layout.dims[0]
        at_tokens = reshape(x, (groups, self.experts, places, size))
        at_experts = _moved(at_tokens, _without(dims[0], axes), axes)
        rows = transpose(at_experts, (1, 0, 2, 3))  # (experts, groups, places, size)
        rows = reshape(rows, (self.experts, groups * places, size))
        hidden = matmul(rows, up)
        if up_bias is not None:
            hidden = hidden + expand_dims(up_bias, 1)
        if self.activation is not None:
            hidden = self.activation(hidden)
        out = matmul(hidden, down)
        if down_bias is not None:
            out = out + expand_dims(down_bias, 1)
        out = transpose(reshape(out, (self.experts, groups, places, size)), (1, 0, 2, 3))
        return reshape(_moved(out, dims[0], ()), (groups, self.experts * places, size))


class Routes(NamedTuple):
    """The ways of tokens to experts and back, of groups of `choices`: each a token that asks an
    expert, those of all tokens' best experts first.

    token: (groups, experts * places), the token at each place; any token at those that are free.
    slot: (groups, choices), the place of each choice; any place of those that are dropped.
    is_kept: (groups, choices), whether it has one. asked: (groups, experts). dropped: (groups,).
    places: how many an expert has.
    """

    token: DistributedArray
    slot: DistributedArray
    is_kept: DistributedArray
    asked: DistributedArray
    dropped: DistributedArray
    places: int


def _routes(expert: DistributedArray, experts: int, places: int, tokens: int) -> Routes:
    """Return the routes of choices (groups, choices), each the number of an expert."""
    groups, count = expert.shape
    order = argsort(expert, axis=1)  # choices by experts, and in their order
    numbers = reshape(arange(experts + 1, layout=Layout.replicated(expert.mesh, 1)), (-1, 1))
    starts = sum_(less(expand_dims(expert, 1), numbers), axis=-1)  # (groups, experts + 1)
    first, stop = getitem(starts, (..., slice(-1))), getitem(starts, (..., slice(1, None)))
    place = argsort(order, axis=1) - take_along_axis_in_range(first, expert, axis=1)
    is_kept = place < places
    slot = where(is_kept, expert * places + place, 0)
    at = expand_dims(first, -1) + arange(places, layout=Layout.replicated(expert.mesh, 1))
    at = reshape(at, (groups, experts * places)) % max(count, 1)  # of a free place, any
    token = take_along_axis_in_range(order, at, axis=1) % max(tokens, 1)
    dropped = count - sum_(is_kept, axis=-1)
    return Routes(token, slot, is_kept, stop - first, dropped, places)


def _without(axes: Axes, others: Axes) -> Axes:
    return tuple([a for a in axes if a not in others])


def _moved(x: DistributedArray, groups: Axes, experts: Axes) -> DistributedArray:
    """Return (groups, experts, places, size) with groups and experts split over these mesh axes;
    what is partial over others stays so."""
    others = [_without(of, (*groups, *experts)) for of in x.layout.dims[2:]]
    return relayout(x, x.layout.split_as((groups, experts, *others)))


def _with_whole_tokens(x: DistributedArray) -> DistributedArray:
    """Return (groups, tokens, size) with tokens that are not split: groups are in their place, if
    there are enough."""
    whole = made_whole(x, 1, never=(2,))
    return relayout(x, [x.layout.sharding_specs[0], None, None]) if whole is None else whole


def _of_each(
    initializer: Initializer, shape: tuple[int, ...], dtype: Any, layout: Layout | None, key: Any
) -> DistributedArray:
    """Return the matrices of all experts, each made by itself."""
    mesh = get_default_mesh() if layout is None else layout.mesh
    whole = Layout.replicated(mesh, len(shape))
    keys = [None if key is None else random.fold_in(random.key(key), n) for n in range(shape[0])]
    rows = [initializer(shape[1:], dtype, whole.delete([0]), k) for k in keys]
    return stacked_rows(rows, whole if layout is None else layout)
