"""Random orders, and choices from arrays."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.array.placing import checked_layout
from gdt.backend import backend_of
from gdt.comm.notes import note_draw
from gdt.engine.planned import BlockPlan, planned_op
from gdt.errors import ArgumentError, DtypeError, ShapeError, error, type_text
from gdt.ops.along_axis import take_along_axis
from gdt.ops.axes import checked_axis
from gdt.ops.blocks import radix_sort
from gdt.ops.comparison import where
from gdt.ops.creation import asarray
from gdt.ops.extrema import max_
from gdt.ops.indexing import getitem
from gdt.ops.movement import made_whole, relayout
from gdt.ops.reductions import sum_
from gdt.ops.scans import cumsum
from gdt.ops.shapes import Shape, checked_shape, reshape
from gdt.ops.sorting import argsort
from gdt.ops.taking import rows_at, take
from gdt.random import bits as random_bits
from gdt.random.continuous import exponential, uniform
from gdt.random.draws import Draw, in_layout, of_rank_0
from gdt.random.generator import Key, operands_of
from gdt.random.integer_draws import integers
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout

Block = Any

LONG = 1 << 15  # elements of a split axis, from which on each device orders its share alone


@planned_op(action="draw")
def _permute(key: ArrayType, stream: Any, /, *, n: int) -> BlockPlan:
    """The integers below `n` in random order, replicated."""
    mesh, xp = key.mesh, backend_of(key.mesh).xp
    array_type = ArrayType.of((n,), np.dtype(np.int64), Layout.replicated(mesh, 1))

    def permute(block: int, *scalars: Any) -> Block:
        scalars = tuple(map(of_rank_0, scalars))
        if block == 0:
            note_draw(array_type, *scalars)
        return random_bits.permutation(xp, n, *scalars).reshape((1,) * mesh.ndim + (n,))

    blocks = range(len(mesh.blocks))
    return BlockPlan([None, None], array_type, [partial(permute, block) for block in blocks])


@checked
def permutation(
    x: Any, axis: int = 0, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """The integers below `x` in random order; or an array with its elements along `axis` in random
    order.

    All orders are equally likely, unless two of the 64-bit numbers by which elements are sorted are
    equal. The order of a long split axis is split as well; every device computes any other order.

    >>> gdt.random.permutation(5, key=0).tolist()
    [4, 0, 3, 1, 2]
    """
    if isinstance(x, int | np.integer):
        (n,) = checked_shape(int(x), "permutation")
        target_layout = checked_layout(layout, 1, "permutation")
        return relayout(_random_order(n, key, target_layout), target_layout)
    x = asarray(x)
    axis = checked_axis(x.type, axis)
    order = _random_order(x.shape[axis], key, Layout.of(x.mesh, (x.layout.dims[axis],)))
    return in_layout(rows_at(x, order, axis=axis), layout)


def _random_order(n: int, key: Key, layout: Layout) -> DistributedArray:
    """The integers below `n` in random order: split as `layout` is if they are many, else
    replicated."""
    if n < LONG or not layout.dims[0]:
        return _permute(*operands_of(key, layout.mesh), n=n)
    return argsort(Draw.of("permutation", n, np.uint64, key, layout).words())


@checked
def shuffle(x: Any, axis: int = 0, *, key: Key = None) -> None:
    """Put the elements of an array along `axis` into random order, in place: `x[...]` becomes
    `gdt.random.permutation(x, axis)`, and other arrays stay as they are.

    Raises AxisError for an axis that `x` does not have, DtypeError for what is no distributed
    array.

    >>> x = gdt.arange(5)
    >>> gdt.random.shuffle(x, key=0)
    >>> x.tolist()
    [4, 0, 3, 1, 2]
    """
    if not isinstance(x, DistributedArray):
        remedy = "gdt.random.permutation(x) returns another array."
        raise error(DtypeError, f"x is {type_text(x)}", remedy=remedy)
    x[...] = permutation(x, axis, key=key)


@planned_op()
def _order(x: ArrayType, /, *, axis: int) -> BlockPlan:
    """The indices that sort an array along an axis, counted from the end, that is not split."""
    xp, array_type = backend_of(x.mesh).xp, ArrayType.of(x.shape, np.dtype(np.int64), x.layout)

    def order(block: Block) -> Block:
        return radix_sort.argsort(xp, block, axis).astype(np.int64, copy=False)

    return BlockPlan([None], array_type, [order] * len(x.mesh.blocks))


@planned_op()
def _place(x: ArrayType, bounds: ArrayType, /) -> BlockPlan:
    """For each element of `x`, the number of `bounds`, which ascend, that are not greater; at most
    the index of the last bound."""
    xp, array_type = backend_of(x.mesh).xp, ArrayType.of(x.shape, np.dtype(np.int64), x.layout)
    whole = Layout.replicated(x.mesh, 1)

    def place(block: Block, bounds: Block) -> Block:
        places = xp.searchsorted(bounds.reshape(-1), block.reshape(-1), side="right")
        return xp.minimum(places, bounds.size - 1).astype(np.int64).reshape(block.shape)

    return BlockPlan([None, whole], array_type, [place] * len(x.mesh.blocks))


@checked
def permuted(
    x: Any, axis: int | None = None, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """An array with its elements in random order: each row along `axis` in an order of its own; for
    None, all elements in one order.

    A split axis that is permuted becomes whole, as in a transform of `gdt.fft`. Raises AxisError
    for an axis that `x` does not have.

    >>> sorted(gdt.random.permuted([3, 1, 2], key=0).tolist())
    [1, 2, 3]
    """
    x = asarray(x)
    if axis is None:
        flat = permutation(reshape(x, (x.size,)), key=key)
        return in_layout(reshape(flat, x.shape), layout)
    axis = checked_axis(x.type, axis)
    whole = made_whole(x.resolve(), axis)
    if whole is None:
        dims = (*x.layout.dims[:axis], (), *x.layout.dims[axis + 1 :])
        whole = relayout(x, Layout.of(x.mesh, dims))
    bits = Draw.of("permuted", x.shape, np.uint64, key, whole.layout).words()
    shuffled = take_along_axis(whole, _order(bits, axis=axis - x.ndim), axis=axis)
    return in_layout(shuffled, layout)


@checked
def choice(
    x: Any,
    shape: Shape = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Elements of an array along `axis`, or integers below `x`, in random order.

    replace: whether one may be chosen again. p: the probability of each; equal ones if None. The
    result has `shape` in the place of `axis`. Without replacement every device computes the whole
    order, as `gdt.random.permutation` does; with `p` the order is that in which exponential numbers
    of the rates `p` end (Efraimidis and Spirakis 2006), which has the distribution of NumPy's.

    Raises ArgumentError for probabilities below 0 or that do not add up to 1, for more elements
    than there are without replacement, and for an empty axis; ShapeError for another number of
    probabilities; AxisError for an axis that `x` does not have. A distributed `p` is divided by its
    sum in place of a check.

    >>> sorted(gdt.random.choice(5, 5, replace=False, key=0).tolist())
    [0, 1, 2, 3, 4]
    """
    sizes = checked_shape(shape, "choice")
    count = int(np.prod(sizes))
    of_integers = isinstance(x, int | np.integer)
    values = None if of_integers else asarray(x)
    n = int(x) if values is None else values.shape[checked_axis(values.type, axis)]
    if count and (n < 1 or (not replace and count > n)):
        again = "" if replace else " without replacement"
        raise error(ArgumentError, f"{count} of {n} elements{again}")
    target = layout if of_integers else None
    if values is not None and target is None:
        target = Layout.replicated(values.mesh, len(sizes))
    target = checked_layout(target, len(sizes), "choice")
    chances = None if p is None else _chances(p, n, target, 0 if replace else count)
    if replace and chances is None:
        indices = integers(max(n, 1), shape=sizes, key=key, layout=target)
    elif replace:
        bounds = cumsum(chances)
        u = uniform(sizes, key=key, layout=target)
        indices = _place(u * max_(bounds), bounds)
    else:
        whole = Layout.replicated(target.mesh, 1)
        if chances is None:
            order = permutation(n, key=key, layout=whole)
        else:
            ends = exponential(n, key=key, layout=whole)
            possible = chances > 0
            ends = where(possible, ends / where(possible, chances, 1), np.inf)
            order = _order(ends, axis=-1)
        indices = relayout(reshape(getitem(order, slice(count)), sizes), target)
    if values is None:
        return indices
    return in_layout(take(values, indices, axis=axis), layout)


def _chances(p: Any, n: int, target: Layout, fewest: int) -> DistributedArray:
    """The probabilities of n elements as a float64 vector that adds up to 1; at least `fewest` of
    them are not 0."""
    if not isinstance(p, DistributedArray):
        host = np.asarray(p, float)
        if host.size and not ((host >= 0).all() and abs(host.sum() - 1) < 1e-8):
            problem = f"p adds up to {host.sum():.6g}, or holds what is no probability"
            raise error(ArgumentError, problem)
        if np.count_nonzero(host) < fewest:
            problem = f"{fewest} elements without replacement, but {np.count_nonzero(host)} chances"
            raise error(ArgumentError, problem)
        p = asarray(host, layout=Layout.replicated(target.mesh, host.ndim))
    if p.shape != (n,):
        problem = f"p has shape {list(p.shape)}, for {n} elements"
        raise error(ShapeError, problem)
    p = relayout(p.astype(np.float64), Layout.replicated(target.mesh, 1))
    return p / sum_(p)
