"""Cotangents that lie as their values do.

The gradient of a mean is a constant that every device has whole, and the cotangent of what tensor
parallel layers share is a partial sum. An op that chooses for itself would go on with copies, or
with sums, in the layout of the next weight that is split, and the whole pass before with it. So the
backward pass cuts a cotangent as its value is cut, over mesh axes along which it holds copies, for
nothing, or a partial sum, for half of what resolving it costs.

And the pass knows what reads a cotangent next: values that lie as the operand does, or as an op has
moved it, and at its end the source. So products choose with the bytes that bring their cotangents
there. What was looked up in a source is added up to the gradient of the table, which is reduced
anyway: its cotangent may stay a partial sum, at no price.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from operator import itemgetter
from typing import Any, NamedTuple

from gdt.array.array import DistributedArray
from gdt.caches import memoized
from gdt.engine.forms import with_form
from gdt.engine.op import Op
from gdt.observe import is_taped
from gdt.ops.movement import relayout
from gdt.ops.taking import take_in_range
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Axes, Layout
from gdt.sharding.prices import OpStrategy, Price, output_types, scattering_nbytes
from gdt.sharding.routes import route_bytes
from gdt.sharding.strategy import choose, considered, with_output


def aligned(g: Any, op: Any, out: Any, args: Sequence[Any], dependent: Set[int]) -> Any:
    """Return the cotangent `g` of the output of `op(*args)`, cut as the output `out` is cut.

    g, out: tuples of an op with several outputs. dependent: the identities of the arrays that
    depend on the sources.

    Left as they are: cotangents of an op of one array, which goes on with them in any layout; of
    one that passes them on, such as `add`, since the gradient of a bias needs no sum of a constant;
    copies for operands that are all cut as the output is, with which the next op cuts them itself;
    and sums of which smaller cotangents are made, such as that of a table.
    """
    linear = op.declaration.linear if isinstance(op, Op) else ()
    arrays = [a for a in args if type(a) is DistributedArray]
    if len(arrays) < 2 or any(len(part) > 1 for part in linear):
        return g
    if type(out) is tuple:
        pairs = zip(g, out, strict=True)
        return tuple([c if c is None else _cut(c, o, arrays, dependent) for c, o in pairs])
    return _cut(g, out, arrays, dependent)


class Reader(NamedTuple):
    """A reader of the cotangent of an array.

    layout: that of the array, or of the source. kind: "values", for a pass that goes on through
        values that lie so; "table", for the gradient of a table, which reads partial sums at no
        price; or "source".
    """

    layout: Layout
    kind: str = "values"

    def nbytes(self, cotangent: ArrayType) -> int:
        """Return the bytes that bring a cotangent there; but for a source, over the mesh axes that
        split the layout, and partial sums over others are scattered."""
        if self.kind == "source":
            return route_bytes(cotangent, self.layout)
        have, own_axes = cotangent.layout, self.layout.split_axes
        kept = tuple(None if a in own_axes else r for a, r in enumerate(have.reductions))
        others = [tuple(a for a in axes if a not in own_axes) for axes in have.dims]
        dims = tuple(old + more for old, more in zip(self.layout.dims, others, strict=True))
        target = cotangent.with_layout(Layout.of(have.mesh, dims, kept))
        nbytes = route_bytes(cotangent, target.layout)
        return nbytes if self.kind == "table" else nbytes + scattering_nbytes(target)

    def takes_sums(self, price: Price, cotangent: ArrayType) -> bool:
        """Return whether the cotangent is a partial sum that is free: one for a source that holds
        copies, which is reduced with others, or one for what no mesh axis splits, where no operand
        moves."""
        is_whole = not (price.moved or self.layout.split_axes)
        summed = {a for a, r in enumerate(cotangent.layout.reductions) if r}
        is_bundled = self.kind == "source" and self.layout.split_axes.isdisjoint(summed)
        return bool(summed) and (is_bundled or is_whole)


class Reads(NamedTuple):
    """The reads of arrays by the calls of a backward pass; keys are the numbers (`id`) of arrays.

    counts: by how many operands an array is read; the cotangents of several are added up before
        they move. tables: of what is looked up in a source, the layout of that. sources: the
        arrays of whose gradients the pass is made.
    """

    counts: Counter[int]
    tables: dict[int, Layout]
    sources: Set[int]

    @staticmethod
    def of(calls: Sequence[Any], sources: Set[int]) -> Reads:
        """Return what the calls read, and hold none of them."""
        tables = {
            id(out): args[0].layout
            for op, args, _, out in calls
            if op is take_in_range and id(args[0]) in sources
        }
        return Reads(Counter(id(x) for node in calls for x in node[1]), tables, sources)

    def readers(self, x: DistributedArray) -> list[Reader]:
        """Return what may read the cotangent of `x`, each in place of the others."""
        if (table := self.tables.get(id(x))) is not None:
            dims = tuple(tuple(a for a in axes if a in table.split_axes) for axes in x.layout.dims)
            return [Reader(Layout.of(x.mesh, dims), "table")]
        if self.counts[id(x)] > 1:
            return []
        if id(x) in self.sources:
            return [Reader(x.layout.resolved, "source")]
        return [Reader(form.layout.resolved) for form in with_form(x)]


def for_readers(
    g: Any, op: Any, args: tuple[Any, ...], static: Mapping[str, Any], position: int, reads: Reads
) -> tuple[Any, tuple[Any, ...]]:
    """Return the cotangent `g` of the output of `op(*args, **static)`, and the operands: where it
    is a product, in the layouts in which the cotangent of operand number `position` sends the
    least on its way to one of its readers, if the op's own choice sends more; on meshes of several
    axes, whose links may differ, at least a third more.

    A partial sum of which an earlier cotangent has been made is resolved first, for both.
    """
    if not (isinstance(op, Op) and len(op.declaration.linear) == len(args) == 2):
        return g, args
    x, other = args[position], args[1 - position]
    if not type(g) is type(other) is DistributedArray or g.mesh is not other.mesh:
        return g, args
    readers = reads.readers(x) if g.mesh.size > 1 else []
    if not readers:
        return g, args
    have = g.type if g._resolved is None else g._resolved.type
    is_reread = g._is_passed and any(have.layout.reductions)
    # The form of an array is none of what a tape has seen: its gradients would not reach the array.
    others = [other] if is_taped() else with_form(other)
    types, statics = (args[0].type, args[1].type), tuple(static.items())
    forms = tuple([form.type for form in others])
    moves = _fewest(op, types, statics, position, have, is_reread, forms, tuple(readers))
    if moves is None:
        return g, args
    number, own_layout, other_layout = moves
    moved = relayout(others[number], other_layout)
    g = relayout(relayout(g, have.layout.resolved) if is_reread else g, own_layout)
    return g, (moved, args[1]) if position else (args[0], moved)


@memoized(1000)
def _fewest(
    op: Op[..., Any],
    types_of_call: tuple[ArrayType, ArrayType],
    statics: tuple[tuple[str, Any], ...],
    position: int,
    have: ArrayType,
    is_reread: bool,
    others: tuple[ArrayType, ...],
    readers: tuple[Reader, ...],
) -> tuple[int, Layout, Layout] | None:
    """Return which of the forms of the other operand a product takes, and the layouts of both in
    which the cotangent of operand number `position` sends the fewest bytes on its way to one of the
    readers; None where the op's own choice is as good, or nearly, and for what is no product.

    have: the type of the cotangent of the output. is_reread: it is a partial sum that has been
        passed on before.
    """
    rule, sizes, _ = op.declaration.bound_rule(types_of_call, dict(statics))
    if rule.linear != (frozenset({0}), frozenset({1})) or not rule.reduced(0):
        return None
    rule = rule._replace(ins=(rule.outs[0], rule.ins[1 - position]), outs=(rule.ins[position],))

    def read_nbytes(types: Sequence[ArrayType], strategy: OpStrategy) -> int:
        (out,) = output_types(rule, types, sizes, strategy)
        return min([reader.nbytes(out) for reader in readers])

    usual: list[tuple[int, int]] = []  # the bytes of the op's own choice, and those with its reader
    resolving = 0
    if is_reread:
        types = have, others[0]
        strategy = choose(rule, types, sizes, frozenset({0}))
        if 0 in strategy.passed():
            return None
        usual.append((0, strategy.nbytes + read_nbytes(types, strategy)))
        resolving = route_bytes(have, have.layout.resolved)
        have = have.with_layout(have.layout.resolved)
    options: list[tuple[int, int, Any]] = []
    for number, other in enumerate(others):
        types = have, other
        priced = sorted(considered(rule, types, sizes), key=itemgetter(0))
        if not is_reread:
            price, strategy = priced[0]
            (out,) = output_types(rule, types, sizes, strategy)
            if readers[0].takes_sums(price, out):
                return None
            nbytes = price.nbytes - price.later + read_nbytes(types, strategy)
            usual.append((price.nbytes, nbytes))
        for reader in readers:
            priced += with_output(rule, types, sizes, reader.layout)
        for price, strategy in priced:
            nbytes = resolving + price.nbytes - price.later + read_nbytes(types, strategy)
            options.append((nbytes, number, strategy.target_layouts))
    nbytes, number, (own_layout, other_layout) = min(options, key=itemgetter(0))
    own_nbytes = min(usual, key=itemgetter(0))[1]
    if nbytes >= (own_nbytes if have.mesh.ndim == 1 else own_nbytes * 3 // 4):
        return None
    return number, own_layout, other_layout


def _cut(
    g: DistributedArray,
    out: DistributedArray,
    operands: Sequence[DistributedArray],
    dependent: Set[int],
) -> DistributedArray:
    """Return `g` cut as `out` along the dims that other mesh axes do not cut otherwise."""
    have, want = g.type.layout, out.type.layout
    if have.dims == want.dims or have.mesh is not want.mesh or g.ndim != out.ndim:
        return g
    own_axes = have.split_axes
    # A reduce-scatter of a partial cotangent sends its bytes once; if the cotangent stays partial,
    # so are those of the operands, whose bytes all-reduces send twice.
    if g.nbytes > 2 * sum(x.nbytes for x in operands if id(x) in dependent):
        own_axes |= {a for a, r in enumerate(have.reductions) if r is not None}
    dims = tuple(
        _extended(old, new, own_axes) if _is_needed(d, out, operands, have) else old
        for d, (old, new) in enumerate(zip(have.dims, want.dims, strict=True))
    )
    return relayout(g, have.split_as(dims))


def _extended(old: Axes, new: Axes, own_axes: Set[int]) -> Axes:
    """Return the mesh axes `new` if they begin with `old` and go on with none of `own_axes`, else
    `old`."""
    return new if new[: len(old)] == old and own_axes.isdisjoint(new[len(old) :]) else old


def _is_needed(
    dim: int, out: DistributedArray, operands: Sequence[DistributedArray], have: Layout
) -> bool:
    """Return whether the op that uses the cotangent may not cut its dim `dim` by itself: of a sum,
    or where an operand is not cut along that dim as the output is."""
    axes = out.type.layout.dims[dim]
    if any(have.reductions[a] for a in axes):
        return True
    return any(
        x.ndim <= dim or x.shape[dim] != out.shape[dim] or x.type.layout.dims[dim] != axes
        for x in operands
    )
