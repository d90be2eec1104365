"""Sharding rules: `"... i k, k j -> ... i j"` says which dims of an op are the same dim.

From that one line follows, for every mesh axis, each legal way to run the op on shards:

- split a factor: every operand that has it is cut along it, and so is every output that has it; an
  output that lacks it holds a partial reduction;
- pass a partial sum on, through operands in which the op is linear;
- run on whole operands, the same everywhere.

Each such way is a *strategy*. The engine takes the one that sends the fewest bytes; a sum that
becomes partial costs nothing.

Notation: terms are separated by commas, dims by spaces. Equal names are one *factor*. `...` stands
for any number of leading dims, aligned from the right, that broadcast; `(a b)` is one dim made of
two factors, major first; `1` is a dim of length one. (The notation follows einops; the idea is Mesh
TensorFlow's and Shardy's.)
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple

from gdt.errors import MeshError, ShapeError, error
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.routes import route_bytes

Dim = tuple[str, ...]  # the factors of one dim, major first; () is a dim of length 1
Term = tuple[Dim, ...]


class Rule(NamedTuple):
    """A parsed rule: the terms of operands and outputs, and what else restricts its strategies."""

    text: str
    ins: tuple[Term, ...]
    outs: tuple[Term, ...]
    whole: frozenset[str]  # factors that no strategy splits
    linear: tuple[frozenset[int], ...]  # sets of operands in which together the op is linear
    reduce: str  # the reduction over factors that an output lacks
    merges: bool  # the op merges the shards of reduced factors; its outputs are not partial

    def reduced(self, output: int) -> list[str]:
        """Return the factors of the operands that output number `output` lacks."""
        factors = {f for dim in self.outs[output] for f in dim}
        return [f for f in self.factors if f not in factors]

    @property
    def factors(self) -> list[str]:
        """The factors of the operands, in order of appearance."""
        return list(dict.fromkeys(f for term in self.ins for dim in term for f in dim))


@dataclass(frozen=True)
class RuleSpec:
    """The result of a rule function that says more than a text can.

    sizes: the sizes of factors that are no dim of an operand by themselves.
    whole: factors that must be whole for these shapes.
    linear: False where partial sums of these dtypes may not pass, though the op is linear.
    """

    text: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    linear: bool = True


@lru_cache(maxsize=1 << 12)
def parse(
    text: str,
    ranks: tuple[int, ...],
    whole: frozenset[str] = frozenset(),
    linear: tuple[frozenset[int], ...] = (),
    reduce: str = "sum",
    merges: bool = False,
) -> Rule:
    """Read the rule `text` for operands of these ranks; the other arguments are those of Rule.

    >>> parse("... i k, k j -> ... i j", (3, 2)).outs
    ((('...1',), ('i',), ('j',)),)
    """
    left, right = text.split("->")
    terms = [_dims(t) for t in left.split(",")]
    batch = max(
        (r - len(t) + 1 for t, r in zip(terms, ranks, strict=True) if "..." in t), default=0
    )
    ins = tuple(
        _term(t, r - len(t) + 1 if "..." in t else 0) for t, r in zip(terms, ranks, strict=True)
    )
    outs = tuple(_term(_dims(t), batch) for t in right.split(","))
    return Rule(text, ins, outs, whole, linear, reduce, merges)


def _dims(text: str) -> list[str]:
    """Return the texts of a term's dims: `_dims("... (a b) 1") == ["...", "(a b)", "1"]`."""
    return re.findall(r"\([^)]*\)|\S+", text)


def _term(dims: Sequence[str], batch: int) -> Term:
    """Return the term of these texts, in which `...` stands for `batch` dims."""
    term: list[Dim] = []
    for dim in dims:
        if dim == "...":
            term += [(f"...{i}",) for i in range(batch, 0, -1)]
        else:
            term.append(tuple(f for f in dim.strip("()").split() if f != "1"))
    return tuple(term)


def bind(
    rule: Rule,
    types: Sequence[ArrayType | None],
    sizes: Mapping[str, int],
    op: str,
    names: Sequence[str],
) -> dict[str, int]:
    """Return the size of every factor, or raise ShapeError where two operands disagree.

    sizes: the sizes of factors that are known beforehand. op: the name of the op, for the error.
    names: the names of the operands.
    """
    bound = dict(sizes)
    owner: dict[str, str] = {}  # the operand from which each factor has its size
    for name, term, array_type in zip(names, rule.ins, types, strict=True):
        shape = array_type.shape if array_type is not None else ()
        if len(term) != len(shape):
            problem = f"{name} has rank {len(shape)}, the rule has {len(term)} dims"
            raise _shape_error(op, problem, rule, types, names)
        for position, (dim, size) in enumerate(zip(term, shape, strict=True)):
            axis = position - len(term)
            problem = _bind_dim(dim, size, axis, bound, owner, name) if dim else ""
            if problem:
                raise _shape_error(op, problem, rule, types, names)
    return bound


def _bind_dim(
    dim: Dim, size: int, axis: int, bound: dict[str, int], owner: dict[str, str], name: str
) -> str:
    """Enter the size of a dim's factor in `bound`; return what is wrong with it, or ""."""
    if len(dim) > 1:
        fits = math.prod(bound[f] for f in dim) == size
        return "" if fits else f"{dim} do not make up {size} in {name}"
    factor = dim[0]
    first_size = bound.setdefault(factor, size)
    owner.setdefault(factor, name)
    broadcasts = factor.startswith("...")
    if first_size == size or (broadcasts and size == 1):
        return ""
    if broadcasts and first_size == 1:
        bound[factor], owner[factor] = size, name
        return ""
    first = owner.get(factor, "the arguments")
    sizes = f"{first_size} in {first} but {size} in {name}"
    if broadcasts:
        return f"shapes do not broadcast: axis {axis} is {sizes}"
    return f"factor {factor!r} is {sizes}"


def _shape_error(
    op: str, problem: str, rule: Rule, types: Sequence[ArrayType | None], names: Sequence[str]
) -> ShapeError:
    """Return the error for operands of these types whose shapes do not fit the rule."""
    operands = {
        n: t if t is not None else "Python scalar" for n, t in zip(names, types, strict=True)
    }
    return error(ShapeError, op, problem, operands=operands, rule=rule.text)


def check_meshes(types: Sequence[ArrayType | None], op: str, names: Sequence[str]) -> None:
    """Raise MeshError unless all operands live on one mesh."""
    arrays = {n: t for n, t in zip(names, types, strict=True) if t is not None}
    if len({t.mesh for t in arrays.values()}) > 1:
        raise error(
            MeshError,
            op,
            "operands live on different meshes",
            operands={n: f"{t} on {t.mesh}" for n, t in arrays.items()},
            remedy="Move one of them with gdt.relayout(x, layout) to a layout on the other's mesh.",
        )


class Strategy(NamedTuple):
    """One legal way to run an op on shards.

    axes: the mesh axes that split each factor.
    target_layouts: the layout to which each operand must be moved; None for a Python scalar.
    output_layouts: the layout of each output.
    nbytes: the bytes that moving the operands sends, of all devices together.
    """

    axes: dict[str, Axes]
    target_layouts: tuple[Layout | None, ...]
    output_layouts: tuple[Layout, ...]
    nbytes: int


def choose(rule: Rule, types: Sequence[ArrayType | None], sizes: Mapping[str, int]) -> Strategy:
    """Return the strategy that sends the fewest bytes; of equals, the one with the fewest moves.

    An op is never split along a mesh axis along which no operand is split.
    """
    mesh = next(t.mesh for t in types if t is not None)
    best: tuple[tuple[int, int, int], Strategy] | None = None
    for order, strategy in enumerate(
        _strategies(rule, types, sizes, [_options(rule, types, sizes, a) for a in range(mesh.ndim)])
    ):
        moves = sum(
            target is not None and t is not None and target is not t.layout
            for target, t in zip(strategy.target_layouts, types, strict=True)
        )
        cost = (strategy.nbytes, moves, order)
        if best is None or cost < best[0]:
            best = cost, strategy
    assert best is not None  # whole operands are always legal
    return best[1]


def legal_strategies(
    rule: Rule, types: Sequence[ArrayType | None], sizes: Mapping[str, int]
) -> Iterator[Strategy]:
    """Return every strategy that the rule allows, whatever the layouts of the operands are."""
    mesh = next(t.mesh for t in types if t is not None)
    arrays = {i for i, t in enumerate(types) if t is not None}
    options: list[Option] = [f for f in rule.factors if f not in rule.whole]
    options += [s for s in rule.linear if s <= arrays]
    return _strategies(rule, types, sizes, [[*options, None]] * mesh.ndim)


# What one mesh axis does in a strategy: it splits a factor (str), it holds the partial sums of
# some operands (frozenset), or it holds whole operands (None).
Option = str | frozenset[int] | None


def _options(
    rule: Rule, types: Sequence[ArrayType | None], sizes: Mapping[str, int], axis: int
) -> list[Option]:
    """Return the options of mesh axis `axis`, which depend on its uses by the operands."""
    options: dict[Option, None] = {}  # a set in order of insertion
    for n, (term, array_type) in enumerate(zip(rule.ins, types, strict=True)):
        if array_type is None:
            continue
        for dim, axes, size in zip(term, array_type.layout.dims, array_type.shape, strict=True):
            if axis in axes:
                options.update(
                    (f, None)
                    for f in dim
                    if f not in rule.whole and (len(dim) > 1 or sizes[f] == size)
                )
        if array_type.layout.reductions[axis] == "sum":
            options.update(
                (s, None) for s in rule.linear if n in s and all(types[i] is not None for i in s)
            )
    return [*options, None]


def _strategies(
    rule: Rule,
    types: Sequence[ArrayType | None],
    sizes: Mapping[str, int],
    options: Sequence[list[Option]],
) -> Iterator[Strategy]:
    """Yield the legal strategies in which each mesh axis takes one of its `options`."""
    for combination in itertools.product(*options):
        axes_of: dict[str, list[int]] = {}  # the mesh axes that split each factor
        for axis, option in enumerate(combination):
            if isinstance(option, str):
                axes_of.setdefault(option, []).append(axis)
        orders = [_orders(rule, types, f, axes) for f, axes in axes_of.items()]
        for ordered in itertools.product(*orders):
            split = dict(zip(axes_of, ordered, strict=True))
            strategy = _strategy(rule, types, sizes, split, combination)
            if strategy is not None:
                yield strategy


def _orders(
    rule: Rule, types: Sequence[ArrayType | None], factor: str, axes: Sequence[int]
) -> list[Axes]:
    """Return the orders in which the mesh axes `axes` may split `factor`: those that operands have
    now, and that of the mesh."""
    orders: dict[Axes, None] = {}  # a set in order of insertion
    if len(axes) > 1:
        for term, array_type in zip(rule.ins, types, strict=True):
            layout_dims = array_type.layout.dims if array_type is not None else ()
            for dim, dim_axes in zip(term, layout_dims, strict=False):
                order = tuple(a for a in dim_axes if a in axes)
                if factor in dim and len(order) == len(axes):
                    orders[order] = None
    orders[tuple(axes)] = None
    return list(orders)


def _strategy(
    rule: Rule,
    types: Sequence[ArrayType | None],
    sizes: Mapping[str, int],
    split: dict[str, Axes],
    combination: Sequence[Option],
) -> Strategy | None:
    """Return the strategy that splits each factor along the mesh axes `split`, or None where the
    shards of a dim of several factors would cut across them."""
    mesh = next(t.mesh for t in types if t is not None)
    axes_of = partial(_axes_of, mesh, sizes, split)
    target_layouts: list[Layout | None] = []
    for n, (term, array_type) in enumerate(zip(rule.ins, types, strict=True)):
        if array_type is None:
            target_layouts.append(None)
            continue
        # A dim of length 1 that broadcasts is whole.
        dims = _all_or_none(
            () if len(dim) == 1 and sizes[dim[0]] != size else axes_of(dim)
            for dim, size in zip(term, array_type.shape, strict=True)
        )
        if dims is None:
            return None
        reductions = tuple(
            "sum" if isinstance(o, frozenset) and n in o else None for o in combination
        )
        target_layouts.append(Layout.of(mesh, dims, reductions))
    output_layouts = []
    for n, term in enumerate(rule.outs):
        dims = _all_or_none(map(axes_of, term))
        if dims is None:
            return None
        reductions = _output_reductions(rule, n, split, combination)
        output_layouts.append(Layout.of(mesh, dims, reductions))
    nbytes = sum(
        route_bytes(t, layout)
        for t, layout in zip(types, target_layouts, strict=True)
        if t is not None and layout is not None
    )
    return Strategy(split, tuple(target_layouts), tuple(output_layouts), nbytes)


def _axes_of(
    mesh: Mesh, sizes: Mapping[str, int], split: Mapping[str, Axes], dim: Dim
) -> Axes | None:
    """Return the mesh axes that split `dim`, or None if its shards would cut across factors.

    A factor of `(a b)` may be split only where every factor before it is split into single indices,
    and only evenly."""
    if len(dim) > 1:
        all_single = True
        for f in dim:
            shards = math.prod(mesh.sizes[a] for a in split.get(f, ()))
            if shards > 1 and (not all_single or sizes[f] % shards):
                return None
            all_single = all_single and shards == sizes[f]
    return tuple(a for f in dim for a in split.get(f, ()))


def _all_or_none(dims: Iterable[Axes | None]) -> tuple[Axes, ...] | None:
    """Return the mesh axes of all dims, or None if one of them is None."""
    all_axes = []
    for axes in dims:
        if axes is None:
            return None
        all_axes.append(axes)
    return tuple(all_axes)


def _output_reductions(
    rule: Rule, output: int, split: Mapping[str, Axes], combination: Sequence[Option]
) -> tuple[str | None, ...]:
    """Return the partial reduction of output number `output` over each mesh axis: the sums that
    pass through the op, and the reductions of its split factors that the output lacks."""
    reductions: list[str | None] = [
        "sum" if isinstance(o, frozenset) else None for o in combination
    ]
    if not rule.merges:
        for f in rule.reduced(output):
            for a in split.get(f, ()):
                reductions[a] = rule.reduce
    return tuple(reductions)


def out_shapes(rule: Rule, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Return the global shapes of the outputs."""
    return [tuple(math.prod(sizes[f] for f in dim) for dim in term) for term in rule.outs]
