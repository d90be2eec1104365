"""`einsum`: products and sums written as labels."""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.array.views import shown, view_step
from gdt.errors import ArgumentError, DtypeError, ShapeError, error
from gdt.ops.elementwise import astype
from gdt.ops.movement import alias
from gdt.ops.products.op import contract_labels, diagonal
from gdt.ops.reductions import sum_
from gdt.ops.shapes import transpose
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import promoted

__all__ = ["einsum", "einsum_path"]


Term = tuple[str, ...]
Labelled = tuple[DistributedArray, Term]
LETTERS = string.ascii_uppercase + string.ascii_lowercase


@public
def einsum(subscripts: Any, *operands: Any, optimize: Any = False) -> DistributedArray:
    """Products of the operands, summed over labels: `"bij,jk->bik"` is a batched matmul.

    subscripts: one letter per axis, `...` for axes that broadcast; without `->` the result has the
        axes of `...`, then the letters that occur once, in alphabetical order. A letter that occurs
        twice in one operand takes its diagonal. NumPy's other form works too: each operand before
        the list of its labels, which are integers, and last the labels of the result.
    optimize: the order in which more than two operands are contracted: False for left to right,
        else as `gdt.einsum_path` takes it, whose path it may be.

    One operand whose axes are only put in another order gives a view, as in NumPy; one of which a
    diagonal is taken a view that is read-only.

    Two operands are one contraction; see `gdt.matmul` for what split axes do. dtypes are those of
    NumPy's einsum: sums of small integers do not widen. Raises ShapeError for subscripts that do
    not fit the operands.

    >>> gdt.einsum("ij,j->i", [[1.0, 2.0], [3.0, 4.0]], [1.0, 10.0]).tolist()
    [21.0, 43.0]
    >>> gdt.einsum("ii", gdt.asarray([[1, 2], [3, 4]])).tolist()
    5
    """
    if not isinstance(subscripts, str):
        subscripts, operands = _as_text(subscripts, *operands)
    if not operands:
        raise error(ShapeError, f"{subscripts!r} without operands")
    arrays = as_operands("einsum", **{f"operand {i}": a for i, a in enumerate(operands)})
    if len({a.dtype for a in arrays}) > 1:  # for a sum of one operand alone too
        common = promoted(*[a.dtype for a in arrays])
        arrays = [astype(a, common) for a in arrays]
    terms, out = _read(subscripts, tuple([a.type for a in arrays]))
    operands_left = [_without_repeats(x, term) for x, term in zip(arrays, terms, strict=True)]
    if optimize is not False and len(arrays) > 2:
        for step in einsum_path(subscripts, *arrays, optimize=optimize)[0][1:-1]:
            operands_of_step = [operands_left.pop(i) for i in sorted(step, reverse=True)]
            operands_left.append(_contracted(operands_of_step[::-1], operands_left, out))
    x, labels = _contracted(operands_left, [], out)
    result = _reduced(x, labels, out) if labels != out else alias(x) if x is arrays[0] else x
    if len(arrays) == 1 and arrays[0] is operands[0] and {*terms[0]} == {*out}:
        return _as_view(arrays[0], terms[0], out, subscripts, result)
    return result


def _as_view(
    x: DistributedArray, term: Term, out: Term, subscripts: str, result: DistributedArray
) -> DistributedArray:
    """The axes of `x` in another order as a view of it, its diagonals as a read-only one."""
    is_transpose = len(term) == len(out)
    axes = tuple(term.index(label) for label in out)
    return shown(x, result, (("transpose", axes) if is_transpose else ("einsum", subscripts),))


view_step("einsum", lambda x, text: einsum(text, x), None, lambda x, text: np.einsum(text, x))


def _contracted(operands: Sequence[Labelled], others: Sequence[Labelled], out: Term) -> Labelled:
    """Contract operands from left to right, but for the labels that `others` or `out` have."""
    (x, labels), *rest = operands
    for i, (w, term) in enumerate(rest):
        labels_of_rest = {*out, *(n for _, later in (*rest[i + 1 :], *others) for n in later)}
        labels_left = tuple(n for n in dict.fromkeys((*labels, *term)) if n in labels_of_rest)
        target = out if i == len(rest) - 1 and not others else labels_left
        x, labels = contract_labels(x, w, labels, term, target), target
    return x, labels


def _as_text(*arguments: Any) -> tuple[str, tuple[Any, ...]]:
    """NumPy's other form of arguments, `x, [0, 1], w, [1, 2], [0, 2]`, as subscripts and
    operands."""
    operands, labels = arguments[0 : len(arguments) // 2 * 2 : 2], arguments[1::2]
    right = arguments[-1:] if len(arguments) % 2 else ()
    try:
        terms = ["".join(map(_letter, ns)) for ns in (*labels, *right)]
    except (TypeError, IndexError) as cause:
        kind = type(arguments[0]).__name__
        problem = f"subscripts are of type {kind}, not a text like 'ij,jk->ik'"
        remedy = f"Or write a list of integers from 0 to {len(LETTERS) - 1} after each operand."
        raise error(DtypeError, problem, remedy=remedy) from cause
    return ",".join(terms[: len(labels)]) + ("->" + terms[-1] if right else ""), operands


def _letter(label: Any) -> str:
    """The letter for an integer, or `...`; IndexError for one out of range."""
    if label is ...:
        return "..."
    letter = LETTERS[label]  # a TypeError for what is no integer
    if label < 0:
        raise IndexError(label)
    return letter


@lru_cache(maxsize=1 << 10)
def _read(subscripts: str, types: tuple[ArrayType, ...]) -> tuple[list[Term], Term]:
    """Labels of every operand's axes and of the result's; ShapeError if they do not fit."""
    terms, out = _labels(subscripts, types)
    _check_sizes(subscripts, terms, types)
    return terms, out


def _labels(subscripts: str, types: Sequence[ArrayType]) -> tuple[list[Term], Term]:
    """Labels of every operand's axes and of the result's. The axes of `...` are labelled `_1`, `_2`
    and so on from the right."""
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    operand_terms = left.split(",")
    if len(operand_terms) != len(types):
        raise _error(subscripts, f"{len(operand_terms)} terms for {len(types)} operands", types)
    for term in (*operand_terms, right):
        if not term.replace("...", "", 1).isalpha() and term.replace("...", "", 1):
            raise _error(subscripts, f"{term!r} has more than letters and one `...`", types)
    terms, batch = [], 0
    for i, (term, x) in enumerate(zip(operand_terms, types, strict=True)):
        letters = term.replace("...", "")
        rest = x.ndim - len(letters)
        if rest < 0 or (rest and "..." not in term):
            raise _error(subscripts, f"{term!r} does not fit operand {i} of rank {x.ndim}", types)
        batch = max(batch, rest)
        terms.append(_expanded(term, rest))
    if arrow:
        out = _expanded(right, batch)
    else:
        letters = left.replace(",", "").replace(".", "")
        once = tuple(n for n in sorted(set(letters)) if letters.count(n) == 1)
        out = (*_expanded("...", batch), *once)
    operand_labels = {n for term in terms for n in term}
    for n in out:
        if n not in operand_labels and n.isalpha():
            raise _error(
                subscripts, f"label {n!r} of the result is not one of the operands'", types
            )
        if out.count(n) > 1:
            raise _error(subscripts, f"label {n!r} is twice in the result", types)
    if batch and "..." not in (right if arrow else "..."):
        raise _error(subscripts, "the result lacks the `...` of the operands", types)
    return terms, out


def _expanded(term: str, batch: int) -> Term:
    before, dots, after = term.partition("...")
    return (*before, *(f"_{i}" for i in range(batch, 0, -1) if dots), *after)


def _check_sizes(subscripts: str, terms: list[Term], types: Sequence[ArrayType]) -> None:
    sizes: dict[str, int] = {}
    for i, (term, x) in enumerate(zip(terms, types, strict=True)):
        for n, size in zip(term, x.shape, strict=True):
            other = sizes.setdefault(n, size)
            if other == 1:
                sizes[n] = size
            elif size not in (1, other):
                problem = f"label {n!r} is {size} in operand {i} but {other} before"
                raise _error(subscripts, problem, types)


def _error(subscripts: str, problem: str, types: Sequence[ArrayType]) -> ShapeError:
    operands = {f"operand {i}": t for i, t in enumerate(types)}
    return error(ShapeError, problem, operands=operands, rule=subscripts)


def _without_repeats(x: DistributedArray, term: Term) -> tuple[DistributedArray, Term]:
    """`x` with the diagonal of every label that occurs more than once, and its labels then."""
    for n in dict.fromkeys(term):
        while term.count(n) > 1:
            first = term.index(n)
            second = term.index(n, first + 1)
            if x.shape[first] != x.shape[second]:
                problem = f"label {n!r} is {x.shape[first]} and {x.shape[second]} in one operand"
                raise _error("".join(term), problem, [x.type])
            x = diagonal(x, 0, first, second)
            term = (*(m for i, m in enumerate(term) if i not in (first, second)), n)
    return x, term


def _reduced(x: DistributedArray, labels: Term, out: Term) -> DistributedArray:
    """Sum over the labels that `out` lacks, and put the others in its order."""
    summed = tuple(i for i, n in enumerate(labels) if n not in out)
    if summed:
        x = sum_(x, axis=summed, dtype=np.dtype(x.dtype))
        labels = tuple(n for n in labels if n in out)
    return transpose(x, tuple(labels.index(n) for n in out))


@public
def einsum_path(subscripts: Any, *operands: Any, optimize: Any = "greedy") -> tuple[Any, str]:
    """The order in which `numpy.einsum_path` would contract operands of these shapes, and a text
    that explains it.

    subscripts: as `gdt.einsum` takes them. optimize: "greedy", "optimal", True, False, a pair of
        one of these names and a limit of elements, or a path.

    >>> path, _ = gdt.einsum_path("ij,jk,kl->il", *[gdt.ones((2, 2))] * 3)
    >>> path[0]
    'einsum_path'
    """
    if not isinstance(subscripts, str):
        subscripts, operands = _as_text(subscripts, *operands)
    arrays = as_operands("einsum_path", **{f"operand {i}": o for i, o in enumerate(operands)})
    values = [np.broadcast_to(np.empty(()), x.shape) for x in arrays]
    try:
        return np.einsum_path(subscripts, *values, optimize=optimize)
    except (IndexError, KeyError, TypeError) as cause:
        problem = f"optimize is {optimize!r}, neither a way to look for a path nor a path"
        raise error(ArgumentError, problem) from cause
