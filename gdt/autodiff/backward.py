"""Gradients of recorded calls: by the backward pass (`reverse_mode`), or by its replay.

The steps of a training record the same calls on other numbers, nearly always. So a backward pass is
recorded as well when its calls are seen a second time, and replayed from then on: see `Backward`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.released import ReleasedBlocks
from gdt.array.sent import SentBlocks
from gdt.autodiff.reverse_mode import Arrays, GradientCall, Node, run
from gdt.autodiff.unread import FreedBlocks
from gdt.caches import Cache
from gdt.comm.agreement import HISTORIES, CallHistory, origin_of
from gdt.engine.forms import FORMS, Forms
from gdt.engine.plan import value_key
from gdt.observe import OBSERVERS, observing
from gdt.programs.aliases import blocks_of, owners_of
from gdt.programs.instruction import array_of
from gdt.programs.program import Program
from gdt.programs.recorder import Recorder
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout


def gradients(
    nodes: list[Node],
    targets: Arrays,
    seeds: Arrays | None,
    sources: Arrays,
    extras: Arrays,
    unconnected: str,
    layouts: Sequence[Layout | None],
    name_of: Callable[[int], str] = str,
) -> list[DistributedArray | None]:
    """Return the gradients of the targets, in these layouts.

    The partial reductions of targets and extras are resolved in one bundle with the gradients.

    nodes: the recorded calls, a list that is emptied: the memory of each activation is free as soon
    as the pass has left the call that made it. seeds: the cotangents of the targets; None for ones.
    extras: other arrays whose reductions join the bundle. unconnected: "raise", "unread", "zero" or
    "none", for a source on which no target depends. layouts: one for each source, where None leaves
    a gradient in the layout in which it was computed; or none, for those of the sources. name_of:
    what errors call a source, by its number.
    """
    call = GradientCall(
        nodes, targets, seeds, sources, extras, unconnected, tuple(layouts), name_of
    )
    if not (HISTORIES or OBSERVERS.get()):
        return _as_program(call)
    if HISTORIES and not HISTORIES[0].in_step:
        return _compared(call, HISTORIES[0])
    return _computed(call)


def _computed(call: GradientCall) -> list[DistributedArray | None]:
    """Return the gradients, by a program where nobody observes the ops."""
    observers = OBSERVERS.get()
    if not observers:
        return _as_program(call)
    for observer in observers:
        observer.on_enter("gradient")
    cotangents, grads = run(call)
    for observer in observers:
        observer.on_leave("gradient", tuple(cotangents), tuple(grads))
    return grads


def _compared(call: GradientCall, history: CallHistory) -> list[DistributedArray | None]:
    """Return the gradients of a pass that processes compare: one may replay what another runs op by
    op, as where it alone counts collectives."""
    try:
        _, arrays = _signature(call)
    except TypeError:  # as in `_as_program`: no process replays it
        arrays = []
    history.begin_step(arrays)
    operands = [weakref.ref(a) for a in arrays if type(a.blocks) is not ReleasedBlocks]
    arrays.clear()
    try:
        grads = _computed(call)
    finally:
        history.end_step()
    alive = [a for reference in operands if (a := reference()) is not None]
    history.place_results([g for g in grads if g is not None], alive)
    return grads


# ---------------------------------------------------------------- as a program

Gradients = list[DistributedArray | None]
Key = tuple[Any, ...]


class Backward(NamedTuple):
    """A recorded backward pass, for all calls of one signature.

    program: takes the blocks of the call's arrays at the positions `inputs`; returns the blocks of
        the gradients, then those of the arrays that were resolved on the way, then launches.
    grads: the types of the gradients; None for a source without one.
    resolved: the position and the type of each resolved array.
    passed: the positions of the arrays whose partial reductions ops have passed on.
    launches: for each array that is returned, the number among the results of the launch that makes
        it, for which its reader waits; -1 for one that is there.
    """

    program: Program
    inputs: list[int]
    grads: list[ArrayType | None]
    resolved: list[tuple[int, ArrayType]]
    passed: list[int]
    launches: list[int]

    def __call__(self, call: GradientCall, key: Key, arrays: list[DistributedArray]) -> Gradients:
        """Return the gradients of a call with other arrays, a list that is emptied."""
        call.nodes.clear()
        program, inputs, types, resolved, passed, launches = self
        for n in passed:
            arrays[n]._passed = True
        unresolved = [(weakref.ref(arrays[n]), t) for n, t in resolved]
        # As `value_of` does, without its frame for every input.
        values = [b[0] if len(b := arrays[n].blocks) == 1 else tuple(b) for n in inputs]
        b = ()  # so that each block is free as soon as the program has read it
        arrays.clear()
        results = program.run(values)
        pairs = zip(results, launches, strict=False)  # of the arrays alone
        made = iter([b if n < 0 else SentBlocks(results[n], blocks_of(b)) for b, n in pairs])
        grads = [None if t is None else array_of(t, next(made)) for t in types]
        for reference, t in unresolved:
            value = array_of(t, next(made))
            if (array := reference()) is not None:
                array._resolved = value
                if HISTORIES:
                    value._origin = origin_of(array)
        return grads


# By signature, what computes the gradients of the next call: `_recorded` for the second one, then
# a `Backward`, or `_as_written` if the pass cannot be recorded.
Compute = Callable[[GradientCall, Key, list[DistributedArray]], Gradients]
ENTRY_NBYTES = 50_000
BACKWARDS: Cache[Compute | Backward] = Cache(ENTRY_NBYTES)


def _as_program(call: GradientCall) -> Gradients:
    """Return the gradients: computed op by op the first time that a signature is seen, recorded the
    second time, and replayed from then on."""
    try:
        key, arrays = _signature(call)
        compute = BACKWARDS.recall(key) or _first
    except TypeError:  # a static or an operand that cannot be hashed
        return run(call)[1]
    return compute(call, key, arrays)


def _as_written(call: GradientCall, key: Key, arrays: list[DistributedArray]) -> Gradients:
    """Return the gradients, computed op by op."""
    arrays.clear()  # so that each is free as soon as the pass has left it
    return run(call)[1]


def _first(call: GradientCall, key: Key, arrays: list[DistributedArray]) -> Gradients:
    """Return the gradients, computed op by op, and have the next call recorded."""
    BACKWARDS[key] = _recorded
    return _as_written(call, key, arrays)


def _recorded(call: GradientCall, key: Key, arrays: list[DistributedArray]) -> Gradients:
    """Return the gradients, computed op by op, and enter their recording in `BACKWARDS`."""
    recorder = Recorder()
    registers = [
        None if type(a.blocks) in (ReleasedBlocks, FreedBlocks) else recorder.declare(a)
        for a in arrays
    ]
    unresolved = [n for n, a in enumerate(arrays) if a._resolved is None]
    with observing(recorder):
        grads = run(call)[1]
    resolved = [(n, arrays[n]._resolved) for n in unresolved if arrays[n]._resolved is not None]
    made = [a for a in (*grads, *(a for _, a in resolved)) if a is not None]
    outputs, launches = recorder.find_sent(made)
    inputs, program = [r for r in registers if r is not None], None
    if not recorder.met_host:
        program = recorder.program(inputs, outputs, takes_list=True)
    BACKWARDS[key] = _as_written
    # Nobody frees what the cache holds: large constants would outlive their model in it.
    if program is not None and _constant_nbytes(program) <= ENTRY_NBYTES:
        BACKWARDS[key] = Backward(
            program,
            [registers.index(r) for r in program.inputs],
            [None if g is None else g.type for g in grads],
            [(n, a.type) for n, a in resolved if a is not None],
            [n for n, a in enumerate(arrays) if a._is_passed],
            launches,
        )
    return grads


def _constant_nbytes(program: Program) -> int:
    """Return the bytes of the memory that the constants of a program hold."""
    owners = {id(x): x for value in program.constants.values() for x in owners_of(value)}
    return sum(getattr(x, "nbytes", 0) for x in owners.values())


def _signature(call: GradientCall) -> tuple[tuple[Any, ...], list[DistributedArray]]:
    """Return everything about a call except the values of its arrays, and its arrays, each once."""
    # A program contains no np.errstate where the recorded ops ran under the one around them.
    parts: list[Any] = [call.unconnected, call.layouts, *np.geterr().values()]
    values: list[Any] = []  # operands and outputs of all calls
    for op, args, static, out in call.nodes:
        parts += (op, len(args))
        values += args
        if type(out) is tuple:
            parts.append(len(out))
            values += out
        else:
            values.append(out)
        if static:
            parts += static
            parts += map(value_key, static.values())
    for group in (call.targets, call.seeds or (), call.sources, call.extras):
        parts.append(len(group))
        values += group
    forms = (FORMS.get() or Forms()).entries
    numbers: dict[int, int] = {}  # of the values, by identity
    arrays: list[DistributedArray] = []
    for x in values:  # which grows on the way
        identity = id(x)
        if identity in numbers:
            parts.append(numbers[identity])
            continue
        numbers[identity] = len(numbers)
        if type(x) is not DistributedArray:
            parts.append(value_key(x))
            continue
        arrays.append(x)
        parts.append(x.type)
        if (form := x._resolved) is not None:  # read once: a step of another thread may hide it
            parts.append("resolved")
            values.append(form)
        elif (entry := forms.get(identity)) is not None:
            parts.append("moved")
            values.append(entry[1])
        elif hasattr(x, "_passed"):
            parts.append("passed")
        if type(x.blocks) is ReleasedBlocks:
            recomputation = x.blocks.recomputation
            parts += (recomputation.op, x.blocks.number, len(recomputation.args))
            parts += recomputation.static
            parts += map(value_key, recomputation.static.values())
            values += recomputation.args
    return tuple(parts), arrays
