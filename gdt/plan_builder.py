"""Building plans: from a rule, and the way to run it that was chosen, to functions of blocks."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gdt.arguments import misfit_value
from gdt.backend import backend_of
from gdt.backend.numpy import Order
from gdt.comm import local
from gdt.comm.transport import transport_of
from gdt.errors import DtypeError, GdtError, ShapeError, error
from gdt.launcher import KernelBody
from gdt.layout import ArrayType, Axes, Layout
from gdt.observe import OBSERVERS, Collective
from gdt.relayout import run_step
from gdt.routes import Step
from gdt.rule import Rule, out_shapes

if TYPE_CHECKING:
    from gdt.op import Op

from gdt.plan import Block, Labels, Plan, Shards
from gdt.reduction import identity, reducer


class PlanBuilder:
    """Builds what a plan runs from a rule and the way that was chosen."""

    def __init__(
        self,
        op: Op,
        plan: Plan,
        rule: Rule,
        sizes: Mapping[str, int],
        axes: Mapping[str, Axes],
        layouts: Sequence[Layout],
        static: Mapping[str, Any],
        moved: Sequence[ArrayType | None] | None = None,
    ) -> None:
        self.op, self.plan, self.rule, self.sizes, self.axes, self.layouts = (
            op,
            plan,
            rule,
            sizes,
            axes,
            layouts,
        )
        self.mesh = next(t.mesh for t in plan.types if t is not None)
        self.backend = backend_of(self.mesh)
        self.static = dict(static)
        self.shapes = out_shapes(rule, sizes)
        self.moved = list(moved or plan.moved)
        self.buffer: tuple[tuple[int, ...], np.dtype, Order] | None = None
        self.finish = self._finish()
        self.kernel_bodies: dict[object, KernelBody] = {}  # by block, or "folded"

    # ---- what surrounds the body

    def fills(self, n: int, block: int) -> list[tuple[tuple[Any, ...], Any]]:
        """Where operand `n` has padding that would enter a reduction: (index, value) in one
        block."""
        kind, name = self.moved[n], self.op.operand_name(n)
        if kind is None or not kind.uneven or self.op.fill.get(name, 0) is None:
            return []
        kept = {f for term in self.rule.outs for dim in term for f in dim}
        found: list[tuple[tuple[Any, ...], Any]] = []
        for d in kind.uneven:
            if any(f in kept for f in self.rule.ins[n][d]):
                continue
            value = self.op.fill.get(name, self.op.reduce)
            if isinstance(value, str):
                value = identity(value, kind.dtype)
            for at, valid in kind.padded_shards(d):
                place = self._place(kind.layout.dims[d], at, block)
                if place is not None:
                    index: list[Any] = [slice(None)] * self.mesh.ndim
                    for a, c in place.items():
                        index[a] = slice(c, c + 1)
                    found.append(((*index, *[slice(None)] * d, slice(valid, None)), value))
        return found

    def _place(self, axes: Axes, at: Sequence[int], block: int) -> dict[int, int] | None:
        """Where a block holds the coordinates `at` of mesh axes; None if it does not."""
        inside = {}
        for a, c in zip(axes, at, strict=True):
            offset = c - self.mesh.blocks[block][a] * self.mesh.box[a]
            if not 0 <= offset < self.mesh.box[a]:
                return None
            inside[a] = offset
        return inside

    def aligned(self, n: int) -> tuple[int, ...] | None:
        """Block shape of operand `n` with 1s for the leading `...` dims that others have; None if
        none."""
        kind = self.moved[n]
        most = max((self._batch(i) for i in range(len(self.moved))), default=0)
        missing = most - self._batch(n)
        if kind is None or not missing or not self._has_batch(n):
            return None
        lead = self.mesh.ndim
        return kind.block_shape[:lead] + (1,) * missing + kind.block_shape[lead:]

    def _batch(self, n: int) -> int:
        return sum(1 for dim in self.rule.ins[n] if dim[:1] and dim[0].startswith("..."))

    def _has_batch(self, n: int) -> bool:
        terms = self.rule.text.split("->")[0].split(",")
        return "..." in terms[n]

    def shards(self, block: int) -> Shards:
        """Starts and valid lengths of the shards of every factor in one block."""
        mesh, starts, valids = self.mesh, {}, {}
        for f, size in self.sizes.items():
            axes = self.axes.get(f, ())
            shape = [mesh.box[a] if a in axes else 1 for a in range(mesh.ndim)]
            p = math.prod(mesh.sizes[a] for a in axes)
            chunk = -(-size // p)
            start = np.empty(shape, np.int64)
            for inside in np.ndindex(*shape):
                shard = 0
                for a in axes:
                    shard = shard * mesh.sizes[a] + mesh.blocks[block][a] * mesh.box[a] + inside[a]
                start[inside] = min(shard * chunk, size)
            with self.backend.on(mesh, block):
                starts[f] = self.backend.asarray(start)
                valids[f] = self.backend.asarray(np.clip(size - start, 0, chunk))
        counts = {f: math.prod(mesh.sizes[a] for a in self.axes.get(f, ())) for f in self.sizes}
        split = frozenset(f for f, p in counts.items() if p > 1)
        uneven = frozenset(f for f in split if self.sizes[f] % counts[f])
        return Shards(starts, valids, dict(self.sizes), split, uneven)

    def block_shape(self, output: int, *, reduced: bool) -> tuple[int, ...]:
        """Shape of a block of an output, before or after coordinates are combined in it."""
        kind = ArrayType.of(self.shapes[output], np.dtype(bool), self.layouts[output])
        shape = list(kind.block_shape)
        if not reduced:
            for f in self.rule.reduced(output):
                for a in self.axes.get(f, ()):
                    shape[a] = self.mesh.box[a]
        return tuple(shape)

    def labels(self) -> tuple[tuple[Any, ...], ...]:
        """Mesh axes and factors along the block of every operand and of the output; None for length
        1."""
        found = []
        for n, kind in enumerate(self.moved):
            shape = kind.block_shape if kind is not None else ()
            mesh_axes: list[Any] = [a if shape[a] > 1 else None for a in range(self.mesh.ndim)]
            dims = [
                dim[0] if dim and self.moved_size(n, d) == self.sizes[dim[0]] else None
                for d, dim in enumerate(self.rule.ins[n])
            ]
            found.append((*mesh_axes, *dims))
        shape = self.block_shape(0, reduced=True)
        mesh_axes = [a if shape[a] > 1 else None for a in range(self.mesh.ndim)]
        found.append((*mesh_axes, *[dim[0] if dim else None for dim in self.rule.outs[0]]))
        return tuple(found)

    def _product_order(self) -> Order:
        """The order in memory of a block that a contraction makes, if that is large."""
        held = [kind.dtype for kind in self.moved if kind is not None]
        made = ArrayType.of(self.shapes[0], np.result_type(*held), self.layouts[0])
        nbytes = math.prod(made.block_shape) * made.dtype.itemsize
        is_large = self.backend.runner is None and nbytes >= self.backend.recycled_size
        return made.memory_order if is_large else None

    def moved_size(self, n: int, d: int) -> int:
        """Size of dim `d` of operand `n`; 1 for a Python scalar."""
        kind = self.moved[n]
        return kind.shape[d] if kind is not None else 1

    # ---- assembling

    def build(self) -> None:
        """Set the plan's `execute`; its output types and `quick` follow from the first run."""
        op = self.op
        if "block_shape" in op.injected:
            self.static["block_shape"] = self.block_shape(0, reduced=False)
        if "labels" in op.injected:
            self.static["labels"] = Labels(self.labels(), self._product_order())
        self.alone = not self.mesh.divided and not op.donated
        if self.alone:
            # Inside one block nothing is sent, and the body is called as directly as can be.
            self.folded, self.folds = self._fold()
            self.inner = self._inner([None] * len(self.moved))
        else:
            self.runs = [self._run(i) for i in range(len(self.mesh.blocks))]
        self.plan.execute = self._first_run

    def _run(self, block: int) -> Callable[..., tuple[Block, ...]]:
        """From the operands' blocks at one grid coordinate to what its body makes of them, with
        coordinates combined in the block where the rule says that a factor is reduced."""
        op, xp = self.op, self.backend.xp
        extra = {"shards": self.shards(block)} if "shards" in op.injected else {}
        body = self._body({**self.static, **extra}, block)
        befores = [self._before(n, block) for n in range(len(self.moved))]
        if any(befores):
            body = _after_preparing(befores, body)
        combine = reducer(xp, op.reduce)

        reduces = any(
            self.axes.get(f) for n in range(len(self.shapes)) for f in self.rule.reduced(n)
        )

        if op.merge is not None or not (reduces or self.finish):
            return lambda *xs, **out: _tuple(body(*xs, **out))

        def run(*xs: Block, **out: Any) -> tuple[Block, ...]:
            outs = _tuple(body(*xs, **out))
            overs = [self._over(n, x) for n, x in enumerate(outs)]
            outs = tuple(combine(x, o) if o else x for x, o in zip(outs, overs, strict=True))
            return outs if self.finish is None else _tuple(self.finish(*outs))

        return run

    def _body(self, static: Mapping[str, Any], where: object) -> Callable[..., Any]:
        """The op's body; on a backend with kernels its kernel, where that applies."""
        op = self.op
        if self.backend.runner is None or op.kernel_body is None:
            return partial(op.body, self.backend.xp, **static)
        if where not in self.kernel_bodies:
            self.kernel_bodies[where] = KernelBody(
                op.name, self.mesh.ndim, self.backend, op.kernel_body, op.body, static,
                selectable=op.has_library,
            )  # fmt: skip
        return self.kernel_bodies[where]

    def _before(self, n: int, block: int) -> Callable[[Block], Block] | None:
        fills, shape = self.fills(n, block), self.aligned(n)
        if fills:
            return partial(_filled, fills, shape)
        return None if shape is None else lambda x: x.reshape(shape)

    def _over(self, output: int, x: Block) -> Axes:
        """The mesh axes along which a body's output is still to be combined in its block."""
        axes = {a for f in self.rule.reduced(output) for a in self.axes.get(f, ())}
        return tuple(a for a in sorted(axes) if x.shape[a] > 1)

    def _finish(self) -> Callable[..., Any] | None:
        """The op's `finish` with the statics that it names, and the number of elements reduced."""
        if self.op.finish is None:
            return None
        reduced = math.prod(self.sizes[f] for f in self.rule.reduced(0))
        names = inspect.signature(self.op.finish).parameters
        known = {**self.static, "count": reduced}
        known = {k: v for k, v in known.items() if k in names}
        return partial(self.op.finish, self.backend.xp, **known)

    # ---- running

    def _execute(
        self, operands: Sequence[Any], owned: Sequence[Sequence[bool]] = ()
    ) -> tuple[Sequence[Block], ...]:
        """From the blocks of every moved operand to the blocks of every output."""
        if self.alone:
            xs = [o[0] if t is not None else o for o, t in zip(operands, self.moved, strict=True)]
            with self.backend.on(self.mesh, 0):
                return tuple((block,) for block in _tuple(self.inner(*xs)))
        results = []
        for i, run in enumerate(self.runs):
            xs = [o[i] if t is not None else o for o, t in zip(operands, self.moved, strict=True)]
            with self.backend.on(self.mesh, i):
                results.append(run(*xs, **self._out(xs, i, owned)))
        if self.op.merge is not None:
            results = self._merged(results)
        return tuple(zip(*results, strict=True))

    def _out(self, xs: Sequence[Block], i: int, owned: Sequence[Sequence[bool]]) -> dict[str, Any]:
        """Memory for a body that takes it: that of donated operands, or recycled for large
        blocks."""
        if self.op.donated:
            free = [o[i] for o in owned] or [False] * len(self.op.donated)
            return {"out": self._targets(xs, free)}
        return {"out": self.backend.empty(*self.buffer)} if self.buffer else {}

    def _targets(self, xs: Sequence[Block], free: Sequence[bool]) -> tuple[Block, ...]:
        """What donated operands are updated into: themselves where they are free."""
        empty, order = self.backend.empty, self.moved[0].memory_order  # type: ignore[union-attr]
        if len(free) == 1:
            return (xs[0] if free[0] else empty(xs[0].shape, xs[0].dtype, order),)
        pairs = zip(xs, free, strict=False)
        return tuple([x if mine else empty(x.shape, x.dtype, order) for x, mine in pairs])

    def _merged(self, results: list[tuple[Block, ...]]) -> list[tuple[Block, ...]]:
        """One all-gather of all statistics, then the merge in coordinate order, minor axes
        first."""
        axes = self._merged_axes()
        if axes:
            self._report_merge(axes, *self._gathered(results[0]))
            if self.mesh.divided:
                transport = transport_of(self.mesh)
                types = tuple([kind for kind in self.moved if kind is not None])
                results = [tuple(r) for r in transport.all_gather(results, axes, types)]
        return [
            self.backend.placed(self.mesh, i, self._merge)(r, axes) for i, r in enumerate(results)
        ]

    def _merged_axes(self) -> Axes:
        axes = (a for f in self.rule.reduced(0) for a in self.axes.get(f, ()))
        return tuple(a for a in axes if self.mesh.sizes[a] > 1)

    def _merge(self, statistics: tuple[Block, ...], axes: Axes) -> tuple[Block, ...]:
        for a in reversed(axes):
            statistics = self.op.merge(self.backend.xp, *statistics, axis=a)  # type: ignore[misc]
        return statistics if self.finish is None else _tuple(self.finish(*statistics))

    def _gathered(self, statistics: tuple[Block, ...]) -> tuple[int, int]:
        """Bytes that one coordinate has of all statistics, and how many arrays they are."""
        lead = self.mesh.ndim
        return sum(x.nbytes // math.prod(x.shape[:lead]) for x in statistics), len(statistics)

    def _gathered_apart(self, operands: Sequence[Any]) -> tuple[int, int]:
        """`_gathered` of a block in which every coordinate stands for itself, as those of separate
        devices do: where coordinates are folded together, a body may return less."""
        xs = [o[0] if t is not None else o for o, t in zip(operands, self.moved, strict=True)]
        with np.errstate(all="ignore"), self.backend.on(self.mesh, 0):  # the real run warns
            return self._gathered(self._run(0)(*xs))

    def _report_merge(self, axes: Axes, shard: int, arrays: int) -> None:
        observers = [o for o in OBSERVERS.get() if o.wants_moves]
        if observers:
            mesh = self.mesh
            p = math.prod(mesh.sizes[a] for a in axes)
            names = tuple(mesh.axis_names[a] for a in axes)
            nbytes = mesh.size * (p - 1) * shard
            for observer in observers:
                observer.on_collective(Collective("all_gather", names, nbytes, arrays))

    def _first_run(
        self, operands: Sequence[Any], owned: Sequence[Sequence[bool]] = ()
    ) -> tuple[Sequence[Block], ...]:
        """Checks the promised shapes, learns the dtypes, and clears the way for later runs."""
        try:
            if self.alone and self.op.merge is not None:
                self.gathered = self._gathered_apart(operands)
            results = self._execute(operands, owned)
        except TypeError as e:
            raise self._type_error(e) from e
        for n, blocks in enumerate(results):
            promised = self.block_shape(n, reduced=True)
            for b in blocks:
                if b.shape != promised or b.dtype != blocks[0].dtype:
                    raise error(
                        ShapeError,
                        self.op.name,
                        f"the rule promises blocks of {promised}, the body returned "
                        f"{b.dtype}{b.shape}",
                        operands=self._described(),
                        rule=self.rule.text,
                    )
        self.plan.outs = tuple(
            ArrayType.of(s, b[0].dtype, w)
            for s, b, w in zip(self.shapes, results, self.layouts, strict=True)
        )
        if "out" in self.op.injected and not self.op.donated and len(results) == 1:
            shape = self.block_shape(0, reduced="labels" in self.op.injected)
            if results[0][0].nbytes >= self.backend.recycled_size:
                self.buffer = (shape, results[0][0].dtype, self.plan.outs[0].memory_order)
        self.plan.execute = self._execute
        if self.alone:
            self.inner = self._inner([None] * len(self.moved))
            movers = [_mover(r) for r in self.plan.routes]
            quick = self._inner(movers) if any(movers) else self.inner
            self.plan.quick = self.backend.placed(self.mesh, 0, quick)
        elif self.op.donated and not self.plan.moves:
            self.plan.kernel_bodies = tuple(self.kernel_bodies.values())
        if self.op.donated and len(self.mesh.blocks) == 1 and not self.plan.moves:
            self.plan.quick_update = self.backend.placed(self.mesh, 0, self._update())
        return results

    # ---- one block

    def _update(self) -> Callable[..., tuple[Block, ...]]:
        """From the operands' blocks, and whether each donated one may be overwritten, to the
        outputs' blocks."""
        run, given = self.runs[0], self.op.scratch
        if given >= 0 and self.backend.runner is None and self.moved[given] is self.moved[0]:
            self.plan.scratch, count = given, len(self.op.donated)

            def update(xs: Sequence[Block], free: Sequence[bool]) -> tuple[Block, ...]:
                scratch = xs[given] if len(free) > count and free[count] else None
                return run(*xs, out=self._targets(xs, free[:count]), scratch=scratch)

            return update
        return lambda xs, free: run(*xs, out=self._targets(xs, free))

    def _fold(self) -> tuple[PlanBuilder, list[Callable[[Block], Block] | None]]:
        """Inside one block a factor that every output lacks need not stay split: its mesh axes and
        its dim are one dim, where that is a view. Returns the builder for such operands, and what
        makes them of the moved ones."""
        rule, lead = self.rule, self.mesh.ndim
        alone = {t[0] for term in rule.ins for t in term if len(t) == 1}
        gone = {
            f
            for f in alone
            if self.axes.get(f)
            and self.sizes[f] % math.prod(self.mesh.sizes[a] for a in self.axes[f]) == 0
            and all(f in rule.reduced(n) for n in range(len(rule.outs)))
        }
        folds: list[Callable[[Block], Block] | None] = [None] * len(self.moved)
        moved = list(self.moved)
        for n, (kind, term) in enumerate(zip(self.moved, rule.ins, strict=True)):
            for d, dim in enumerate(term):
                if kind is None or not gone & set(dim) or not kind.layout.dims[d]:
                    continue
                fold = partial(
                    local.gather, lead=lead, axes=kind.layout.dims[d], dim=d, size=kind.shape[d]
                )
                shape = moved[n].block_shape  # type: ignore[union-attr]
                if len(dim) > 1 or fold(np.broadcast_to(True, shape).copy()).base is None:
                    return self, [None] * len(self.moved)
                layout = moved[n].layout  # type: ignore[union-attr]
                whole = (*layout.dims[:d], (), *layout.dims[d + 1 :])
                moved[n] = kind.with_layout(Layout.of(self.mesh, whole, layout.pending))
                merged = kind.layout.dims[d]
                between = (k for k in range(merged[0], lead + d) if k not in merged)
                if list(merged) == sorted(merged) and all(shape[k] == 1 for k in between):
                    # The mesh axes and the dim are neighbours already.
                    fold = partial(_reshaped, moved[n].block_shape)  # type: ignore[union-attr]
                folds[n] = _in_turn(folds[n], fold)
        if not any(folds) or "labels" in self.op.injected:
            return self, [None] * len(self.moved)
        axes = {f: a for f, a in self.axes.items() if f not in gone}
        builder = PlanBuilder(
            self.op, self.plan, rule, self.sizes, axes, self.layouts, self.static, moved
        )
        if "block_shape" in self.op.injected:
            builder.static["block_shape"] = builder.block_shape(0, reduced=False)
        return builder, folds

    def _inner(self, movers: Sequence[Callable[[Block], Block] | None]) -> Callable[..., Any]:
        """The shortest way from the operands' only blocks to the outputs' (a block, or a tuple of
        them), with everything decided that shapes decide."""
        op, finish, folded = self.op, self.finish, self.folded
        extra = {"shards": folded.shards(0)} if "shards" in op.injected else {}
        body = self._body({**folded.static, **extra}, "folded")
        if self.buffer:
            body = _into_recycled(self.backend.empty, *self.buffer, body)
        befores = [
            _in_turn(_in_turn(m, f), folded._before(n, 0))
            for n, (m, f) in enumerate(zip(movers, self.folds, strict=True))
        ]
        if any(befores):
            body = _on_prepared(befores, body)
        if op.merge is not None:
            reported, axes = self._merged_axes(), folded._merged_axes()

            def merge(*xs: Block) -> Any:
                if reported and OBSERVERS.get():
                    self._report_merge(reported, *self.gathered)
                outs = folded._merge(_tuple(body(*xs)), axes)
                return outs if len(outs) > 1 else outs[0]

            return merge
        if "labels" in op.injected or not any(map(self.rule.reduced, range(len(self.shapes)))):
            return body if finish is None else _in_turn(body, finish)  # type: ignore[return-value]
        return folded._combining(body)

    def _combining(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """`body`, then the combination of coordinates in its only block."""
        combine, finish = reducer(self.backend.xp, self.op.reduce), self.finish
        shapes = [self.block_shape(n, reduced=False) for n in range(len(self.shapes))]
        overs = [
            tuple(
                a for a in range(self.mesh.ndim) if raw[a] != self.block_shape(n, reduced=True)[a]
            )
            for n, raw in enumerate(shapes)
        ]
        if len(overs) == 1:
            over = overs[0]
            if over:
                combined: Callable[..., Any] = lambda *xs: combine(body(*xs), over)
            else:
                combined = body
            return combined if finish is None else _in_turn(combined, finish)  # type: ignore[return-value]

        if not any(overs):
            return body if finish is None else lambda *xs: finish(*body(*xs))

        def combine_all(*xs: Block) -> Any:
            outs = tuple(combine(x, o) if o else x for x, o in zip(body(*xs), overs, strict=True))
            return outs if finish is None else finish(*outs)

        return combine_all

    def _described(self) -> dict[str, object]:
        names = [self.op.operand_name(i) for i in range(len(self.plan.types))]
        return {
            n: t if t is not None else "Python scalar"
            for n, t in zip(names, self.plan.types, strict=True)
        }

    def _type_error(self, cause: TypeError) -> Exception:
        if isinstance(cause, GdtError):
            return cause
        found = misfit_value(self.op.body, self.op.name, self.static)
        if found is not None:
            return found
        problem = str(cause).splitlines()[0]
        if "not supported for the input types" in problem:  # NumPy's, of ufuncs without a loop
            dtypes = [str(t.dtype) for t in self.plan.types if t is not None]
            problem = f"does not take {', '.join(dtypes)}"
        return error(DtypeError, self.op.name, problem, operands=self._described())


def _tuple(outputs: Any) -> tuple[Block, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _filled(
    fills: Sequence[tuple[tuple[Any, ...], Any]], shape: tuple[int, ...] | None, x: Block
) -> Block:
    x = x.copy()
    for index, value in fills:
        x[index] = value
    return x if shape is None else x.reshape(shape)


def _reshaped(shape: tuple[int, ...], x: Block) -> Block:
    return x.reshape(shape)


def _mover(steps: Sequence[Step]) -> Callable[[Block], Block] | None:
    """A route inside the only block of a mesh, where a sum over devices is summed already."""
    steps = [s for s in steps if s.kind != "all_reduce"]

    def move(x: Block) -> Block:
        for step in steps:
            (x,) = run_step(step, [x])
        return x

    return move if steps else None


def _in_turn(
    first: Callable[..., Any] | None, second: Callable[..., Any] | None
) -> Callable[..., Any] | None:
    if first is None or second is None:
        return first or second
    return lambda *xs: second(first(*xs))


def _after_preparing(
    befores: Sequence[Callable[[Block], Block] | None], body: Callable[..., Any]
) -> Callable[..., Any]:
    needed = [(n, before) for n, before in enumerate(befores) if before is not None]

    def prepared(*xs: Block, **out: Any) -> Any:
        ready = list(xs)
        for n, before in needed:
            ready[n] = before(ready[n])
        return body(*ready, **out)

    return prepared


def _on_prepared(
    befores: Sequence[Callable[[Block], Block] | None], body: Callable[..., Any]
) -> Callable[..., Any]:
    """`body` on prepared operands: for one or two of them, as nearly all ops have, without a loop,
    which would cost as much as a small op."""
    if len(befores) == 1:
        (only,) = befores
        return lambda x: body(only(x))  # type: ignore[misc]
    if len(befores) == 2:
        first, second = befores
        if second is None:
            return lambda x, y: body(first(x), y)  # type: ignore[misc]
        if first is None:
            return lambda x, y: body(x, second(y))
        return lambda x, y: body(first(x), second(y))
    return _after_preparing(befores, body)


def _into_recycled(
    empty: Callable[..., Block],
    shape: tuple[int, ...],
    dtype: np.dtype,
    order: Order,
    body: Callable[..., Any],
) -> Callable[..., Any]:
    return lambda *xs: body(*xs, out=empty(shape, dtype, order))
