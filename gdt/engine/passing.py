"""Partial reductions that an op passes on to its result, and those that are resolved instead; and
forms of arrays, in other layouts, that are remembered.

A sum that passes through two ops is carried out twice, once for each result. So an array remembers
that an op has passed its reduction on, and the next op may resolve it. It remembers its resolved
value too, or another form of it that an op has needed, for the ops that read the array later.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from operator import itemgetter
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.moving import move_to_layouts
from gdt.engine.declaration import Declaration
from gdt.engine.plan import Plan
from gdt.sharding.array_type import ArrayType
from gdt.sharding.strategy import choose, considered


def resolved_operands(
    op: Declaration, plan: Plan, args: Sequence[Any], static: dict[str, Any]
) -> Sequence[Any] | None:
    """The operands of a call whose plan passes partial reductions on, with some of them
    resolved in one bundle; None if they are to pass.

    Resolved are those of which the value is known, or is needed by this very call; else those
    that another op has passed on before, unless `choose` finds that passing them on again is
    cheaper.
    """
    for i in plan.passes:  # without the comprehensions below, as nearly all calls end here
        if args[i]._resolved is not None or hasattr(args[i], "_passed"):
            break
    else:
        if not plan.resolves:
            for i in plan.passes:
                args[i]._passed = True
            return None
    arrays = [(i, a) for i, a in enumerate(args) if type(a) is DistributedArray]
    partial = [(i, a) for i, a in arrays if any(a.type.layout.reductions)]
    positions = [i for i, a in partial if a._resolved is not None]
    if not positions:
        others = [args[i] for i, _ in plan.resolves]
        positions = [i for i in plan.passes if any(args[i] is other for other in others)]
    reread = tuple([i for i in plan.passes if hasattr(args[i], "_passed")])
    if not positions and reread:
        if reread not in plan.resolved_when_reread:
            rule, sizes, _ = op.bound_rule(plan.types, static)
            passed = choose(rule, plan.types, sizes, frozenset(reread)).passed()
            plan.resolved_when_reread[reread] = [i for i in plan.passes if i not in passed]
        positions = plan.resolved_when_reread[reread]
    if positions:
        args = [
            a._resolved if i in positions and a._resolved is not None else a
            for i, a in enumerate(args)
        ]
        layouts = [a.layout.resolved if i in positions else None for i, a in enumerate(args)]
        return move_to_layouts(args, layouts, op=op.name)
    for i in plan.passes:
        args[i]._passed = True
    return None


def exchanged_operands(
    op: Declaration, plan: Plan, args: Sequence[Any], static: dict[str, Any]
) -> Sequence[Any] | None:
    """The operands of a call whose plan moves some, in forms that are remembered; None if they are
    to move as the plan says, and nothing is remembered.

    While a tape records, and in its backward pass, an array remembers the first form into which an
    op has moved it so that no device got more of it than before. Later ops take that form in its
    place where they then send less: the gradient of a product, or the sum of what goes around a
    layer and what goes through it. Tapes know of the arrays alone, so forms may go at any time.
    """
    known = FORMS.get()
    if known is None or not op.rule or op.donated:
        return None
    remembered = [_remembered(a) for a in args]  # once: the tape of another thread may forget them
    types = tuple([None if form is None else form.type for form in remembered])
    if any(types):
        if types not in plan.forms:
            plan.forms[types] = _cheaper_forms(op, plan.types, types, static)
        positions = plan.forms[types]
        if positions:
            return [remembered[i] if i in positions else a for i, a in enumerate(args)]
    layouts = [
        plan.target_layouts[i] if i in plan.exchanged and a._resolved is None else None
        for i, a in enumerate(args)
    ]
    if not any(layouts):
        return None
    forms = move_to_layouts(args, layouts, op=op.name)
    for array, layout, form in zip(args, layouts, forms, strict=True):
        if layout is not None:
            remember(array, form)
    return forms


FORMS: ContextVar[list[weakref.ref[DistributedArray]] | None] = ContextVar("FORMS", default=None)
"""The arrays that remember a form besides a resolved value, of the tape that records or whose
backward pass runs; None where nothing is remembered."""


@contextmanager
def remembering() -> Iterator[None]:
    """Remember forms in a block of several ops of the same arrays, also where no tape records."""
    if FORMS.get() is not None:
        yield
        return
    known: list[weakref.ref[DistributedArray]] = []
    token = FORMS.set(known)
    try:
        yield
    finally:
        FORMS.reset(token)
        forget(known)


def remember(array: DistributedArray, form: DistributedArray) -> None:
    """Let an array remember its resolved value or, until the tape forgets it, another form."""
    if not any(array.type.layout.reductions):
        if (known := FORMS.get()) is None:
            return
        known.append(weakref.ref(array))
    array._resolved = form


def forget(known: list[weakref.ref[DistributedArray]]) -> None:
    """Let arrays forget their forms, and empty the list: so each step moves what the first does."""
    for reference in known:
        if (array := reference()) is not None:
            array._resolved = None
    known.clear()


def _remembered(x: Any) -> DistributedArray | None:
    """The form that an array without partial reductions remembers."""
    if type(x) is not DistributedArray or any(x.type.layout.reductions):
        return None
    return x._resolved


def _cheaper_forms(
    op: Declaration,
    types: tuple[ArrayType | None, ...],
    forms: tuple[ArrayType | None, ...],
    static: dict[str, Any],
) -> list[int]:
    """The operands for which to take forms of these types, so that the call sends the least."""

    def price(positions: Sequence[int]) -> tuple[int, int]:
        taken = tuple([forms[i] if i in positions else t for i, t in enumerate(types)])
        rule, sizes, _ = op.bound_rule(taken, dict(static))
        best = min(considered(rule, taken, sizes), key=itemgetter(0))[0]
        return best.nbytes, len(positions)

    known = [i for i, form in enumerate(forms) if form is not None]
    choices = [[], *([i] for i in known), known]
    return min(choices, key=price)
