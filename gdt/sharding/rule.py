"""Sharding rules: `"... i k, k j -> ... i j"` says which dims of an op are the same dim.

From that one line follows, for every mesh axis, each legal way to run the op on shards:

- split a factor: every operand that has it is cut along it, and so is every output that has it; an
  output that lacks it holds a partial reduction;
- pass a partial sum on, through operands in which the op is linear;
- run on whole operands, the same everywhere.

The engine takes the way that sends the fewest bytes; a sum that becomes partial costs nothing.

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
    """A parsed rule: terms of operands and outputs, and what else restricts how it may be split."""

    text: str
    ins: tuple[Term, ...]
    outs: tuple[Term, ...]
    whole: frozenset[str]
    linear: tuple[frozenset[int], ...]
    reduce: str
    merges: bool  # reduced factors are merged inside the op, and leave nothing partial

    def reduced(self, output: int) -> list[str]:
        """The factors of the operands that output number `output` lacks."""
        kept = {f for dim in self.outs[output] for f in dim}
        return [f for f in self.factors if f not in kept]

    @property
    def factors(self) -> list[str]:
        """The factors of the operands, in order of appearance."""
        return list(dict.fromkeys(f for term in self.ins for dim in term for f in dim))


@dataclass(frozen=True)
class RuleSpec:
    """What a rule function returns when a text is not enough: sizes of factors that no operand dim
    gives alone, factors that must be whole for these shapes, and whether partial sums of these
    dtypes may pass where the op says that it is linear."""

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
    """Read a rule for operands of these ranks.

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


def _dims(term: str) -> list[str]:
    return re.findall(r"\([^)]*\)|\S+", term)


def _term(dims: Sequence[str], batch: int) -> Term:
    out: list[Dim] = []
    for dim in dims:
        if dim == "...":
            out += [(f"...{i}",) for i in range(batch, 0, -1)]
        else:
            out.append(tuple(f for f in dim.strip("()").split() if f != "1"))
    return tuple(out)


def bind(
    rule: Rule,
    types: Sequence[ArrayType | None],
    sizes: Mapping[str, int],
    op: str,
    names: Sequence[str],
) -> dict[str, int]:
    """Size of every factor; a clash is the user's shape error."""
    bound = dict(sizes)
    owner: dict[str, str] = {}  # the operand that gave a factor its size
    for name, term, kind in zip(names, rule.ins, types, strict=True):
        shape = kind.shape if kind is not None else ()
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
    """Note the size of a dim's factor in `bound`, or say what is wrong with it."""
    if len(dim) > 1:
        fits = math.prod(bound[f] for f in dim) == size
        return "" if fits else f"{dim} do not make up {size} in {name}"
    factor = dim[0]
    known = bound.setdefault(factor, size)
    owner.setdefault(factor, name)
    broadcasts = factor.startswith("...")
    if known == size or (broadcasts and size == 1):
        return ""
    if broadcasts and known == 1:
        bound[factor], owner[factor] = size, name
        return ""
    if broadcasts:
        first = owner[factor]
        return f"shapes do not broadcast: axis {axis} is {known} in {first} but {size} in {name}"
    first = owner.get(factor, "the arguments")
    return f"factor {factor!r} is {known} in {first} but {size} in {name}"


def _shape_error(
    op: str, problem: str, rule: Rule, types: Sequence[ArrayType | None], names: Sequence[str]
) -> ShapeError:
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
    """One way to run an op on shards: the mesh axes that split each factor, the layouts that
    operands must have, and the layouts of the outputs."""

    axes: dict[str, Axes]
    wanted: tuple[Layout | None, ...]
    outs: tuple[Layout, ...]
    nbytes: int


def choose(rule: Rule, types: Sequence[ArrayType | None], sizes: Mapping[str, int]) -> Strategy:
    """The legal way that sends the fewest bytes; of equals, the one with the fewest moves.

    An op is never split along a mesh axis along which no operand is split.
    """
    mesh = next(t.mesh for t in types if t is not None)
    best: tuple[tuple[int, int, int], Strategy] | None = None
    for order, strategy in enumerate(
        _strategies(rule, types, sizes, [_options(rule, types, sizes, a) for a in range(mesh.ndim)])
    ):
        moves = sum(
            w is not None and t is not None and w is not t.layout
            for w, t in zip(strategy.wanted, types, strict=True)
        )
        cost = (strategy.nbytes, moves, order)
        if best is None or cost < best[0]:
            best = cost, strategy
    assert best is not None  # whole operands are always legal
    return best[1]


def legal_strategies(
    rule: Rule, types: Sequence[ArrayType | None], sizes: Mapping[str, int]
) -> Iterator[Strategy]:
    """Every way that the rule allows, whatever the layouts of the operands are now."""
    mesh = next(t.mesh for t in types if t is not None)
    arrays = {i for i, t in enumerate(types) if t is not None}
    options: list[Option] = [f for f in rule.factors if f not in rule.whole]
    options += [s for s in rule.linear if s <= arrays]
    return _strategies(rule, types, sizes, [[*options, None]] * mesh.ndim)


# A factor to split, operands that stay partial, or whole operands.
Option = str | frozenset[int] | None


def _options(
    rule: Rule, types: Sequence[ArrayType | None], sizes: Mapping[str, int], axis: int
) -> list[Option]:
    found: dict[Option, None] = {}
    for n, (term, kind) in enumerate(zip(rule.ins, types, strict=True)):
        if kind is None:
            continue
        for dim, axes, size in zip(term, kind.layout.dims, kind.shape, strict=True):
            if axis in axes:
                found.update(
                    (f, None)
                    for f in dim
                    if f not in rule.whole and (len(dim) > 1 or sizes[f] == size)
                )
        if kind.layout.reductions[axis] == "sum":
            found.update(
                (s, None) for s in rule.linear if n in s and all(types[i] is not None for i in s)
            )
    return [*found, None]


def _strategies(
    rule: Rule,
    types: Sequence[ArrayType | None],
    sizes: Mapping[str, int],
    options: Sequence[list[Option]],
) -> Iterator[Strategy]:
    for combination in itertools.product(*options):
        split: dict[str, list[int]] = {}
        for axis, option in enumerate(combination):
            if isinstance(option, str):
                split.setdefault(option, []).append(axis)
        orders = [_orders(rule, types, f, axes) for f, axes in split.items()]
        for chosen in itertools.product(*orders):
            strategy = _strategy(
                rule, types, sizes, dict(zip(split, chosen, strict=True)), combination
            )
            if strategy is not None:
                yield strategy


def _orders(
    rule: Rule, types: Sequence[ArrayType | None], factor: str, axes: Sequence[int]
) -> list[Axes]:
    """The orders of mesh axes on one factor that operands have now, and the mesh's."""
    orders: dict[Axes, None] = {}
    if len(axes) > 1:
        for term, kind in zip(rule.ins, types, strict=True):
            for dim, now in zip(term, kind.layout.dims if kind is not None else (), strict=False):
                kept = tuple(a for a in now if a in axes)
                if factor in dim and len(kept) == len(axes):
                    orders[kept] = None
    orders[tuple(axes)] = None
    return list(orders)


def _strategy(
    rule: Rule,
    types: Sequence[ArrayType | None],
    sizes: Mapping[str, int],
    split: dict[str, Axes],
    combination: Sequence[Option],
) -> Strategy | None:
    mesh = next(t.mesh for t in types if t is not None)
    axes_of = partial(_axes_of, mesh, sizes, split)
    wanted: list[Layout | None] = []
    for n, (term, kind) in enumerate(zip(rule.ins, types, strict=True)):
        if kind is None:
            wanted.append(None)
            continue
        # A dim of length 1 that broadcasts is whole.
        dims = _all_given(
            () if len(dim) == 1 and sizes[dim[0]] != size else axes_of(dim)
            for dim, size in zip(term, kind.shape, strict=True)
        )
        if dims is None:
            return None
        reductions = tuple(
            "sum" if isinstance(o, frozenset) and n in o else None for o in combination
        )
        wanted.append(Layout.of(mesh, dims, reductions))
    outs = []
    for n, term in enumerate(rule.outs):
        dims = _all_given(map(axes_of, term))
        if dims is None:
            return None
        outs.append(Layout.of(mesh, dims, _waiting(rule, n, split, combination)))
    nbytes = sum(
        route_bytes(t, w)
        for t, w in zip(types, wanted, strict=True)
        if t is not None and w is not None
    )
    return Strategy(split, tuple(wanted), tuple(outs), nbytes)


def _axes_of(
    mesh: Mesh, sizes: Mapping[str, int], split: Mapping[str, Axes], dim: Dim
) -> Axes | None:
    """Mesh axes of one dim; None if its shards would cut across factors."""
    if len(dim) > 1:
        full = True
        for f in dim:
            shards = math.prod(mesh.sizes[a] for a in split.get(f, ()))
            if shards > 1 and (not full or sizes[f] % shards):
                return None
            full = full and shards == sizes[f]
    return tuple(a for f in dim for a in split.get(f, ()))


def _all_given(dims: Iterable[Axes | None]) -> tuple[Axes, ...] | None:
    """The axes of all dims, or None if one has none."""
    found = []
    for axes in dims:
        if axes is None:
            return None
        found.append(axes)
    return tuple(found)


def _waiting(
    rule: Rule, output: int, split: Mapping[str, Axes], combination: Sequence[Option]
) -> tuple[str | None, ...]:
    """The reductions that an output waits for: sums passed on, and those of its reduced factors."""
    waits: list[str | None] = ["sum" if isinstance(o, frozenset) else None for o in combination]
    if not rule.merges:
        for f in rule.reduced(output):
            for a in split.get(f, ()):
                waits[a] = rule.reduce
    return tuple(waits)


def out_shapes(rule: Rule, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Global shapes of the outputs."""
    return [tuple(math.prod(sizes[f] for f in dim) for dim in term) for term in rule.outs]
