"""Rows of groups by indices of each group's own: how experts get tokens, and tokens results."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Shards
from gdt.ops.lookup import from_the_front, scatter_add, strides_of
from gdt.sharding.array_type import ArrayType
from gdt.sharding.rule import RuleSpec

Block = Any


@op("g t d, g s -> g s d", linear="x", whole="t")
def rows_of_groups(xp: Any, x: Block, indices: Block, /, *, shards: Shards = FROM_ENGINE) -> Block:
    """The rows of each group at indices of its own.

    x: (groups, rows, features); indices: integers in range, (groups, count); result: (groups,
    count, features). Rows of a group are not split.
    """
    at = from_the_front(xp, indices, shards.size["t"])
    lead = np.broadcast_shapes(x.shape[:-2], at.shape[:-1])
    count = math.prod(lead)
    groups = xp.broadcast_to(x, (*lead, *x.shape[-2:])).reshape(count, *x.shape[-2:])
    places = xp.broadcast_to(at, (*lead, at.shape[-1])).reshape(count, at.shape[-1])
    rows = groups[xp.arange(count)[:, None], places]
    return rows.reshape(*lead, at.shape[-1], x.shape[-1])


def _add_rule(g: ArrayType, indices: ArrayType, /, *, count: int) -> RuleSpec:
    return RuleSpec("g s d, g s -> g t d", {"t": count})


@op(_add_rule, linear="g", whole="t", rounded="g")
def add_to_rows_of_groups(xp: Any, g: Block, indices: Block, /, count: int) -> Block:
    """Zeros to whose rows, at indices of each group's own, those of `g` are added: the gradient of
    `rows_of_groups`.

    g: (groups, s, features); indices: (groups, s); result: (groups, count, features).
    """
    at = from_the_front(xp, indices, count)
    lead = np.broadcast_shapes(g.shape[:-2], at.shape[:-1])
    g = xp.broadcast_to(g, (*lead, *g.shape[-2:]))
    shape = (*lead, count, g.shape[-1])
    strides = strides_of(shape)
    return scatter_add(xp, g, at[..., None] * strides[-2], None, [*strides[:-2], 0, 1], shape)


rows_of_groups.vjp(
    lambda g, out, x, indices: add_to_rows_of_groups(g, indices, count=x.shape[1]),
    None,
    reads="indices",
)
add_to_rows_of_groups.vjp(
    lambda c, out, g, indices, *, count: rows_of_groups(c, indices), None, reads="indices"
)
