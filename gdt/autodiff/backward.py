"""Running gradients backwards through recorded calls; and running them again as a program.

A step of a training is recorded anew every time, and nearly always is the same calls on other
numbers. What its gradients do is then recorded once too: see `Backward`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.registry import FUNCTIONS
from gdt.autodiff.buckets import Buckets
from gdt.caches import Cache
from gdt.engine.plan import exactly
from gdt.errors import GradientError, error
from gdt.observe import OBSERVERS, is_recorded, observing
from gdt.ops.movement import relayout_together
from gdt.programs.instruction import array_of, held
from gdt.programs.program import Program
from gdt.programs.recorder import Recorder
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout

Node = tuple[Any, tuple[Any, ...], dict[str, Any], Any]  # op, operands, statics, output(s)
Arrays = Sequence[DistributedArray]
Fetched = tuple[DistributedArray, str]  # what NumPy took the values of, and in which line
ScalarRead = tuple[DistributedArray, str, int]  # an array, and the file and line of float(array)

_warned_lines: dict[Any, Any] = {}  # a registry of the module `warnings`


class GradientWarning(UserWarning):
    """A gradient does not come back through a value that depends on its sources."""


def gradients(
    nodes: Sequence[Node],
    targets: Arrays,
    seeds: Arrays | None,
    sources: Arrays,
    extras: Arrays,
    unconnected: str,
) -> list[DistributedArray | None]:
    """Gradients of the targets in the layouts of the sources; what is partial in targets and extras
    is resolved in one bundle with them."""
    call = GradientCall(nodes, targets, seeds, sources, extras, unconnected)
    observers = OBSERVERS.get()
    if not observers:
        return _as_program(call)
    for observer in observers:
        observer.on_enter("gradient")
    found, grads = _run(call)
    for observer in observers:
        observer.on_leave("gradient", tuple(found), tuple(grads))
    return grads


class GradientCall(NamedTuple):
    """The arguments of `gradients`."""

    nodes: Sequence[Node]
    targets: Arrays
    seeds: Arrays | None
    sources: Arrays
    extras: Arrays
    unconnected: str


def check_fetched(nodes: Sequence[Node], sources: Arrays, fetched: Sequence[Fetched]) -> None:
    """Raise GradientError if NumPy took the values of an array that depends on the sources."""
    if not fetched:
        return
    needed = _useful(nodes, sources)[1]
    for x, line in fetched:
        if not needed.isdisjoint(_ids((x,))):
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
    if not scalars:
        return
    dependent = _useful(nodes, sources)[1]
    for x, file, line in scalars:
        if not dependent.isdisjoint(_ids((x,))):
            warnings.warn_explicit(
                f"gradient: a Python scalar was made of an array that depends on the sources "
                f"({x.type}), by float() or .item(): no gradient comes back through it. Use the "
                "array itself, or x.numpy() for a constant.",
                GradientWarning,
                file,
                line,
                registry=_warned_lines,
            )


def _run(call: GradientCall) -> tuple[list[DistributedArray | None], list[DistributedArray | None]]:
    seeds = [_one(t) for t in call.targets] if call.seeds is None else call.seeds
    found, moved = _backward(call.nodes, call.targets, seeds, call.sources)
    ready = [moved.get(i, g) for i, g in enumerate(found)]
    return found, _resolved(ready, call)


def _one(target: DistributedArray) -> DistributedArray:
    kind = target.type.with_layout(Layout.of(target.mesh, ((),) * target.ndim))
    # Several processes compare what they make, also those that do not find it here.
    is_kept = not (kind.shape or is_recorded() or kind.mesh.num_processes > 1)
    return _scalar_one(kind) if is_kept else _ones(kind)


def _ones(array_type: ArrayType) -> DistributedArray:
    ones: DistributedArray = FUNCTIONS["ones"](
        array_type.shape, array_type.dtype, layout=array_type.layout
    )
    return ones


_scalar_one = lru_cache(maxsize=64)(_ones)  # what almost every gradient begins with


# ---------------------------------------------------------------- as a program


class Backward(NamedTuple):
    """What `gradients` did for calls of one signature.

    program: from the blocks of some of the call's arrays, those at the positions `inputs`, to the
    blocks of the gradients, whose types are `grads`, and of arrays that were resolved on the way:
    position and type of each.
    """

    program: Program
    inputs: list[int]
    grads: list[ArrayType | None]
    resolved: list[tuple[int, ArrayType]]


# By signature: True for one that was seen once, False for one that cannot be recorded.
BACKWARDS: Cache[Backward | bool] = Cache(50_000)


def _as_program(call: GradientCall) -> list[DistributedArray | None]:
    """The gradients: computed op by op the first time that a signature is seen, recorded the second
    time, and replayed from then on."""
    try:
        key, arrays = _signature(call)
        known = BACKWARDS.recall(key)
    except TypeError:  # a static or an operand that cannot be hashed
        return _run(call)[1]
    if type(known) is Backward:
        return _replayed(known, arrays)
    if known is True:
        return _recorded(call, key, arrays)
    if known is None:
        BACKWARDS[key] = True
    return _run(call)[1]


def _signature(call: GradientCall) -> tuple[tuple[Any, ...], list[DistributedArray]]:
    """Everything about a call but the values in its arrays; and those arrays, each once."""
    # A program sets what is done about invalid values only where that is not as around it.
    parts: list[Any] = [call.unconnected, *np.geterr().values()]
    values: list[Any] = []  # operands and outputs, in one list, which is read in one loop
    for op, args, static, out in call.nodes:
        parts += (op, len(args))
        values += args
        if type(out) is tuple:
            parts.append(len(out))
            values += out
        else:
            values.append(out)
        if static:
            if op.takes_numbers:
                parts.append(tuple(static))
                parts.extend(map(exactly, static.values()))
            else:
                parts.append(tuple(static.items()))
    for given in (call.targets, call.seeds or (), call.sources, call.extras):
        parts.append(len(given))
        values += given
    numbers: dict[int, int] = {}
    arrays: list[DistributedArray] = []
    for x in values:
        n = numbers.get(id(x))
        if n is None:
            if type(x) is not DistributedArray:
                parts += exactly(x)
                continue
            n = numbers[id(x)] = len(arrays)
            arrays.append(x)
            parts.append(x.type)
            if x._resolved is not None:
                parts.append("resolved")
                values.append(x._resolved)  # the loop comes to it
        parts.append(n)
    return tuple(parts), arrays


def _recorded(
    call: GradientCall, key: tuple[Any, ...], arrays: list[DistributedArray]
) -> list[DistributedArray | None]:
    recorder = Recorder()
    registers = [recorder.declare(a) for a in arrays]
    waiting = [n for n, a in enumerate(arrays) if a._resolved is None]
    with observing(recorder):
        grads = _run(call)[1]
    resolved = [(n, arrays[n]._resolved) for n in waiting if arrays[n]._resolved is not None]
    outputs = [recorder.find(a) for a in (*grads, *(a for _, a in resolved)) if a is not None]
    BACKWARDS[key] = False
    if not recorder.met_host:
        program = recorder.program(registers, outputs)
        if program is not None:
            BACKWARDS[key] = Backward(
                program,
                [registers.index(r) for r in program.inputs],
                [None if g is None else g.type for g in grads],
                [(n, a.type) for n, a in resolved if a is not None],
            )
    return grads


def _replayed(known: Backward, arrays: list[DistributedArray]) -> list[DistributedArray | None]:
    program, inputs, kinds, resolved = known
    made = iter(program.run(*[held(arrays[n]) for n in inputs]))
    grads = [None if kind is None else array_of(kind, next(made)) for kind in kinds]
    for n, kind in resolved:
        arrays[n]._resolved = array_of(kind, next(made))
    return grads


# ---------------------------------------------------------------- op by op


def _backward(
    nodes: Sequence[Node], targets: Arrays, seeds: Arrays, sources: Arrays
) -> tuple[list[DistributedArray | None], dict[int, DistributedArray]]:
    """Cotangents of the sources, None where no target depends on a source; and those that have been
    brought to the layouts of their sources already."""
    useful, needed = _useful(nodes, sources)
    add = FUNCTIONS["add"]
    grads: dict[int, DistributedArray] = {}
    for t, seed in zip(targets, seeds, strict=True):
        grads[id(t)] = add(grads[id(t)], seed) if id(t) in grads else seed
    kept = _ids(sources)
    with Buckets([node[1] for node in useful], sources) as buckets:
        for number in reversed(range(len(useful))):
            op, args, static, out = useful[number]
            g = _cotangent(out, grads, kept)
            if g is not None:
                for a, c in _cotangents(op, g, out, args, static, needed):
                    if c is not None:
                        have = grads.get(id(a))
                        grads[id(a)] = c if have is None else add(have, c)
            buckets.passed(number, lambda source: _gathered(source, grads))
    return [_gathered(s, grads) for s in sources], buckets.moved


def _useful(nodes: Sequence[Node], sources: Arrays) -> tuple[list[Node], set[int]]:
    """The calls that depend on the sources; and what all arrays that do go by."""
    needed = _ids(sources)
    useful = []
    for node in nodes:
        for a in node[1]:
            if id(a) in needed:
                out = node[3]
                if type(out) is tuple or out._resolved is not None:
                    needed |= _ids(out if type(out) is tuple else (out,))
                else:
                    needed.add(id(out))
                useful.append(node)
                break
    return useful, needed


def _cotangent(out: Any, grads: dict[int, DistributedArray], kept: Set[int]) -> Any:
    """The cotangent of what a call has made, a tuple if that is one; None if there is none. It is
    forgotten, unless it is among those to be kept."""
    if type(out) is not tuple:
        g: Any = _gathered(out, grads)
        if g is None:
            return None
    else:
        g = tuple(_gathered(o, grads) for o in out)
        if all(c is None for c in g):
            return None
    for o in out if type(out) is tuple else (out,):
        if id(o) not in kept:
            grads.pop(id(o), None)
            if o._resolved is not None:
                grads.pop(id(o._resolved), None)
    return g


def _ids(arrays: Sequence[DistributedArray]) -> set[int]:
    """What these arrays go by: themselves, and their values with nothing partial."""
    return {id(x) for a in arrays for x in (a, a._resolved) if x is not None}


def _gathered(
    x: DistributedArray, grads: Mapping[int, DistributedArray]
) -> DistributedArray | None:
    """The cotangent of an array, and of its value with nothing partial, which is the same array."""
    g = grads.get(id(x))
    if x._resolved is None:
        return g
    of_value = grads.get(id(x._resolved))
    if g is None or of_value is None:
        return of_value if g is None else g
    both: DistributedArray = FUNCTIONS["add"](g, of_value)
    return both


def _cotangents(
    op: Any, g: Any, out: Any, args: tuple[Any, ...], static: dict[str, Any], needed: set[int]
) -> list[tuple[DistributedArray, DistributedArray | None]]:
    wanted = [
        i for i, a in enumerate(args)
        if type(a) is DistributedArray and id(a) in needed and a.dtype.kind in "fc"
    ]  # fmt: skip
    if op.joint_vjp is not None:
        all_of_them = op.joint_vjp(g, out, *args, **static)
        return [(args[i], all_of_them[i]) for i in wanted]
    found = []
    for i in wanted:
        if i >= len(op.vjps) or op.vjps[i] is None:
            continue
        found.append((args[i], op.vjps[i](g, out, *args, **static)))
    return found


def _resolved(
    found: Sequence[DistributedArray | None], call: GradientCall
) -> list[DistributedArray | None]:
    """Gradients in the layouts of their sources; those that are not there yet travel in one bundle
    with what is partial in targets and extras."""
    grads: list[DistributedArray | None] = []
    for i, (g, s) in enumerate(zip(found, call.sources, strict=True)):
        if g is None and call.unconnected == "raise":
            raise error(
                GradientError,
                "gradient",
                f"the target does not depend on source {i} through recorded ops",
                operands={"source": s.type},
                remedy="Compute the target inside the tape's block from this very array, "
                "or pass unconnected='zero'.",
            )
        grads.append(FUNCTIONS["zeros_like"](s) if g is None and call.unconnected == "zero" else g)
    arrays = [g for g in grads if g is not None]
    layouts = [s.layout.resolved for g, s in zip(grads, call.sources, strict=True) if g is not None]
    partial = [
        t
        for t in (*call.targets, *call.extras)
        if any(t.layout.reductions) and t.mesh is (arrays or [t])[0].mesh
    ]
    together = iter(
        relayout_together([*arrays, *partial], [*layouts, *(t.layout.resolved for t in partial)])
    )
    return [next(together) if g is not None else None for g in grads]
