"""Sharding rules: `"... i k, k j -> ... i j"` says which dims of an op are the same dim.

From that one line follows, for every mesh axis, each legal way to run the op on shards:

- split a factor: every operand that has it is cut along it, and so is every output that has it; an
  output that lacks it holds a partial reduction;
- pass a partial sum on, through operands in which the op is linear;
- run on whole operands, the same everywhere.

Each such way is a *strategy*; `gdt.sharding.strategy` lists them and chooses.

Notation: terms are separated by commas, dims by spaces. Equal names are one *factor*. `...` stands
for any number of leading dims, aligned from the right, that broadcast; `(a b)` is one dim made of
two factors, major first; `1` is a dim of length one. (The notation follows einops; the idea is Mesh
TensorFlow's and Shardy's.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from gdt.errors import MeshError, ShapeError, error
from gdt.sharding.array_type import ArrayType
from gdt.sharding.mesh import mesh_texts

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
        texts = mesh_texts([t.mesh for t in arrays.values()])
        raise error(
            MeshError,
            op,
            "operands live on different meshes",
            operands={n: f"{t} on {m}" for (n, t), m in zip(arrays.items(), texts, strict=True)},
            remedy="Move one of them with gdt.relayout(x, layout) to a layout on the other's mesh.",
        )


def out_shapes(rule: Rule, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Return the global shapes of the outputs."""
    return [tuple(math.prod(sizes[f] for f in dim) for dim in term) for term in rule.outs]
