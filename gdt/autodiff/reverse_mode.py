"""Reverse mode: the backward pass over recorded calls, op by op."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any, NamedTuple

from gdt.arguments import MISFITS
from gdt.array.array import DistributedArray
from gdt.array.gathers import LAST, coming
from gdt.array.moving import move_to_layouts
from gdt.array.released import Recomputation
from gdt.autodiff.alignment import Reads, aligned, for_readers
from gdt.autodiff.buckets import Buckets
from gdt.autodiff.releases import Releases
from gdt.comm.launch import can_overlap
from gdt.comm.notes import noted_dataflow
from gdt.engine.op import Op
from gdt.errors import GdtError, GradientError, error
from gdt.observe import is_recorded, is_taped
from gdt.ops.creation import ones, zeros_like
from gdt.ops.elementwise import add
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import INEXACT
from gdt.sharding.layout import Layout

Node = tuple[Any, tuple[Any, ...], dict[str, Any], Any]  # op, operands, statics, output(s)
Arrays = Sequence[DistributedArray]
Fetched = tuple[DistributedArray, str]  # an array that NumPy fetched, and the user's line
ScalarRead = tuple[DistributedArray, str, int]  # an array, and the file and line of float(array)


_warned_lines: dict[Any, Any] = {}  # a registry of the module `warnings`


class GradientWarning(UserWarning):
    """A gradient does not come back through a value that depends on its sources."""


class GradientCall(NamedTuple):
    """The arguments of `gradients`."""

    nodes: list[Node]
    targets: Arrays
    seeds: Arrays | None
    sources: Arrays
    extras: Arrays
    unconnected: str
    layouts: tuple[Layout | None, ...]
    name_of: Callable[[int], str]


def run(call: GradientCall) -> tuple[list[DistributedArray | None], list[DistributedArray | None]]:
    """Run the backward pass op by op; return the sources' cotangents as they were computed, and in
    the layouts of the call."""
    if not call.layouts:
        call = call._replace(layouts=tuple([s.layout.resolved for s in call.sources]))
    read = _read(call)
    if (last := LAST.get()) is not None:
        last.begin_backward()
    with noted_dataflow("the backward pass") as results:
        seeds = [_one(t) for t in call.targets] if call.seeds is None else call.seeds
        cotangents, moved = _backward(call.nodes, call.targets, seeds, call.sources, call.layouts)
        grads = _resolved([moved.get(i, g) for i, g in enumerate(cotangents)], call, read)
        results.extend(grads)
    return cotangents, grads


def _read(call: GradientCall) -> set[int]:
    """Return the numbers of the sources of which the gradient may be zeros."""
    if call.unconnected != "unread":
        return set(range(len(call.sources))) if call.unconnected == "zero" else set()
    operands = {id(x) for node in call.nodes for x in node[1]}
    return {i for i, s in enumerate(call.sources) if not operands.isdisjoint(_ids((s,)))}


def _one(target: DistributedArray) -> DistributedArray:
    """Return replicated ones of the target's shape and dtype."""
    array_type = target.type.with_layout(Layout.of(target.mesh, ((),) * target.ndim))
    # Several processes compare the arrays that they create, so each must create this one.
    is_cached = not (array_type.shape or is_recorded() or array_type.mesh.num_processes > 1)
    return _scalar_one(array_type) if is_cached else _ones(array_type)


def _ones(array_type: ArrayType) -> DistributedArray:
    """Return an array of ones."""
    return ones(array_type.shape, array_type.dtype, layout=array_type.layout)


_scalar_one = lru_cache(maxsize=64)(_ones)  # the seed of almost every gradient


def _backward(
    nodes: list[Node],
    targets: Arrays,
    seeds: Arrays,
    sources: Arrays,
    layouts: Sequence[Layout | None],
    unreleased: Sequence[Recomputation] = (),
) -> tuple[list[DistributedArray | None], dict[int, DistributedArray]]:
    """Return the cotangents of the sources, and by number those that a bucket has moved to their
    layouts already.

    A cotangent is None where no target depends on the source.
    """
    calls, dependent = _dependent(nodes, sources)
    nodes.clear()
    grads: dict[int, DistributedArray] = {}  # cotangents by the identity of their array
    for t, seed in zip(targets, seeds, strict=True):
        grads[id(t)] = add(grads[id(t)], seed) if id(t) in grads else seed
    source_ids = _ids(sources)
    reads = Reads.of(calls, source_ids)
    has_tape = is_taped()

    def replace(source: DistributedArray, gradient: DistributedArray) -> None:
        if not has_tape:  # a tape around this one takes gradients as they were computed
            grads[id(source)] = gradient
            grads.pop(id(source._resolved), None)

    buckets = Buckets(calls, sources, layouts, replace)
    has_overlap = bool(sources) and can_overlap(sources[0].mesh)
    with (
        Releases(calls, unreleased) as releases,
        coming(releases.gathers(dependent)) if has_overlap else nullcontext(),
    ):
        for number in reversed(range(len(calls))):
            call = calls.pop()  # so that nobody holds its activations once it has been left
            op, args, _, out = call
            g = _cotangent(out, grads, source_ids)
            if g is not None:
                g = aligned(g, op, out, args, dependent)
                last_use = partial(releases.last_use, number)
                for a, c in _cotangents(call, g, dependent, reads, last_use):
                    if c is not None:
                        have = grads.get(id(a))
                        grads[id(a)] = c if have is None else add(have, c)
            releases.passed(number)
            buckets.passed(number, lambda source: _gathered(source, grads))
    return [_gathered(s, grads) for s in sources], buckets.moved


def cotangents_of(
    nodes: list[Node],
    targets: Arrays,
    seeds: Arrays,
    sources: Arrays,
    unreleased: Sequence[Recomputation],
) -> list[DistributedArray | None]:
    """Return the cotangents of the sources as they are computed, moved nowhere; None for a source
    on which no target depends. nodes: a list that is emptied. unreleased: recomputations of arrays
    to release on the way."""
    layouts = [None] * len(sources)
    return _backward(nodes, targets, seeds, sources, layouts, unreleased)[0]


def _dependent(nodes: Sequence[Node], sources: Arrays) -> tuple[list[Node], set[int]]:
    """Return the calls that depend on the sources, and the identities of all arrays that do."""
    identities = _ids(sources)
    calls = []
    for node in nodes:
        for a in node[1]:
            if id(a) in identities:
                out = node[3]
                if type(out) is tuple or out._resolved is not None:
                    identities |= _ids(out if type(out) is tuple else (out,))
                else:
                    identities.add(id(out))
                calls.append(node)
                break
    return calls, identities


def _cotangent(out: Any, grads: dict[int, DistributedArray], sources: Set[int]) -> Any:
    """Return the cotangent of a call's output, a tuple for a tuple; None if there is none.

    It is removed from `grads`, to free its memory, unless the output is one of the `sources`.
    """
    if type(out) is not tuple:
        g: Any = _gathered(out, grads)
        if g is None:
            return None
    else:
        g = tuple(_gathered(o, grads) for o in out)
        if all(c is None for c in g):
            return None
    for o in out if type(out) is tuple else (out,):
        if id(o) not in sources:
            grads.pop(id(o), None)
            if o._resolved is not None:
                grads.pop(id(o._resolved), None)
    return g


def _ids(arrays: Sequence[DistributedArray]) -> set[int]:
    """Return the identities of these arrays and of their resolved values."""
    return {id(x) for a in arrays for x in (a, a._resolved) if x is not None}


def _gathered(
    x: DistributedArray, grads: Mapping[int, DistributedArray]
) -> DistributedArray | None:
    """Return the cotangent of an array: the sum of its own and of its resolved value's."""
    g = grads.get(id(x))
    if x._resolved is None:
        return g
    resolved = grads.get(id(x._resolved))
    if g is None or resolved is None:
        return resolved if g is None else g
    return add(g, resolved)


def _cotangents(
    call: Node,
    g: Any,
    dependent: Set[int],
    reads: Reads,
    last_use: Callable[[DistributedArray], None],
) -> list[tuple[DistributedArray, DistributedArray | None]]:
    """Return the operands of a call that depend on a source, with their cotangents for `g`.

    dependent: the identities of the arrays that depend on a source. reads: what all calls read.
    last_use: called with an operand when only its own cotangent is left to be computed, if that
        does not depend on it.
    """
    op, args, static, out = call
    positions = [
        i for i, a in enumerate(args)
        if type(a) is DistributedArray and id(a) in dependent and a.dtype.kind in INEXACT
    ]  # fmt: skip
    if not positions:
        return []
    if op.joint_vjp is not None:
        every = _called(op, "the operands", op.joint_vjp, g, out, args, static)
        if type(every) not in (tuple, list) or len(every) != len(args):
            problem = f"it returns no tuple of {len(args)} cotangents, one for each operand"
            raise error(GradientError, f"{op.name}.vjp", problem)
        return [(args[i], _checked_cotangent(op, i, args[i], every[i])) for i in positions]
    vjps = op.vjps
    if not vjps:
        raise error(
            GradientError,
            op.name,
            "the target depends on the sources through it, and it declares no gradient",
            operands={f"operand {i}": args[i].type for i in positions},
            remedy=f"Declare it, {op.name}.vjp(...), or call it on gdt.stop_gradient(x), where the "
            "result counts as a constant.",
        )
    if positions[-1] >= len(vjps):
        raise error(
            GradientError,
            f"{op.name}.vjp",
            f"there are {len(vjps)} gradients, and none for operand {positions[-1]}",
            operands={f"operand {positions[-1]}": args[positions[-1]].type},
            remedy="Pass a function for each operand; None for one that counts as a constant.",
        )
    if len(positions) > 1 and type(g) is DistributedArray and any(g.type.layout.reductions):
        g._passed = True  # several cotangents are made of it: the first one may resolve it for all
    cotangents = []
    for i in positions:
        if (vjp := vjps[i]) is not None:
            if i == positions[-1] and isinstance(op, Op) and op.declaration.is_linear_in(i):
                last_use(args[i])
            c, operands = for_readers(g, op, args, static, i, reads)
            cotangent = _called(op, f"operand {i}", vjp, c, out, operands, static)
            cotangents.append((args[i], _checked_cotangent(op, i, args[i], cotangent)))
            if c is not g and c.layout.split_axes < g.layout.split_axes:
                g = c  # which is gathered once for all
    return cotangents


def _called(
    op: Any,
    role: str,
    vjp: Callable[..., Any],
    g: Any,
    out: Any,
    args: tuple[Any, ...],
    static: dict[str, Any],
) -> Any:
    """Return what a function of `vjp` returns; GradientError names the op where Python raises."""
    try:
        return vjp(g, out, *args, **static)
    except (GdtError, MemoryError):
        raise
    except MISFITS as cause:
        raise error(
            GradientError,
            f"{op.name}.vjp",
            f"the gradient of {role} raises {type(cause).__name__}: {cause}",
            operands={f"operand {i}": a.type for i, a in enumerate(args) if hasattr(a, "type")},
            remedy="It is called as f(g, out, *operands, **statics), with the statics as the call "
            "passes them, and computes with functions of gdt.",
        ) from cause


def _checked_cotangent(op: Any, i: int, x: DistributedArray, cotangent: Any) -> Any:
    """Return the cotangent of operand `i`, or raise GradientError if it is no array of the shape of
    the operand `x`; None counts as no dependence."""
    if cotangent is None or (type(cotangent) is DistributedArray and cotangent.shape == x.shape):
        return cotangent
    is_array = type(cotangent) is DistributedArray
    raise error(
        GradientError,
        f"{op.name}.vjp",
        f"the gradient of operand {i} returns "
        + ("another shape" if is_array else f"type {type(cotangent).__name__}, and no gdt array"),
        operands={f"operand {i}": x.type} | ({"cotangent": cotangent.type} if is_array else {}),
    )


def _resolved(
    cotangents: Sequence[DistributedArray | None], call: GradientCall, read: Set[int]
) -> list[DistributedArray | None]:
    """Return the cotangents in the layouts of the call, moved in one bundle with the partial
    reductions of targets and extras; raise GradientError as `call.unconnected` asks for it.

    read: the numbers of the sources of which the gradient may be zeros.
    """
    grads: list[DistributedArray | None] = []
    for i, (g, s) in enumerate(zip(cotangents, call.sources, strict=True)):
        if g is None and call.unconnected != "none" and i not in read:
            raise error(
                GradientError,
                "gradient",
                f"the target does not depend on source {call.name_of(i)} through recorded ops",
                operands={"source": s.type},
                remedy="Compute the target from this very array, inside the tape's block and not "
                "on the host; freeze() parts of a Module that are not called; or pass "
                "unconnected='zero'.",
            )
        grads.append(zeros_like(s) if g is None and i in read else g)
    arrays = [g for g in grads if g is not None]
    layouts = [w for g, w in zip(grads, call.layouts, strict=True) if g is not None]
    together = () if None in call.layouts else (*call.targets, *call.extras)
    partial = [
        t for t in together if any(t.layout.reductions) and t.mesh is (arrays or [t])[0].mesh
    ]
    moved = iter(
        move_to_layouts(
            [*arrays, *partial],
            [*layouts, *(t.layout.resolved for t in partial)],
            overlapped=True,
        )
    )
    return [next(moved) if g is not None else None for g in grads]


# ---------------------------------------------------------------- values read on the host


def check_fetched(nodes: Sequence[Node], sources: Arrays, fetched: Sequence[Fetched]) -> None:
    """Raise GradientError if NumPy fetched an array that depends on the sources."""
    dependent = _dependent(nodes, sources)[1]
    for x, line in fetched:
        if not dependent.isdisjoint(_ids((x,))):
            raise error(
                GradientError,
                "gradient",
                f"{line} fetched an array that depends on the sources to the host, "
                "and gradients do not come back from there",
                operands={"x": x.type},
                remedy="Compute with functions of gdt (np.sqrt and np.sum are, np.linalg.norm is "
                "not), or take the values as constants with x.numpy().",
            )


def warn_of_scalars(nodes: Sequence[Node], sources: Arrays, scalars: Sequence[ScalarRead]) -> None:
    """Warn, once for each line, that a scalar was made of an array that depends on the sources."""
    dependent = _dependent(nodes, sources)[1]
    for x, file, line in scalars:
        if not dependent.isdisjoint(_ids((x,))):
            warnings.warn_explicit(
                f"gradient: Python scalars were made of an array that depends on the sources "
                f"({x.type}), by float(), .item() or .tolist(): no gradient comes back through "
                "them. Use the array itself, or x.numpy() for a constant.",
                GradientWarning,
                file,
                line,
                registry=_warned_lines,
            )
