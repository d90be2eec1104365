"""Forms of arrays, in the layouts into which ops have moved them, for the ops that read the arrays
later: the gradient of a product, or the sum of what goes around a layer and what goes through it.

A tape has the forms of the arrays that ops move while it records and in its backward pass, and they
end with it: so every step moves what the first one does. Its record has the arrays alone.
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
from gdt.sharding.layout import Layout
from gdt.sharding.strategy import choose, considered


class Forms:
    """The first form of each array into which an op has moved it; gone with the array.

    entries: by the identity of the array, a reference to it and its form.
    """

    def __init__(self) -> None:
        self.entries: dict[int, tuple[weakref.ref[DistributedArray], DistributedArray]] = {}

    def get(self, x: Any) -> DistributedArray | None:
        """The form of `x`, if it is an array that has one."""
        _, form = self.entries.get(id(x), (None, None))
        return form

    def put(self, array: DistributedArray, form: DistributedArray) -> None:
        """Keep a form of an array; that of a partial sum is its resolved value."""
        if any(array.type.layout.reductions):
            array._resolved = form
            return
        own, key = weakref.ref(self), id(array)

        def discard(_: object) -> None:
            if (forms := own()) is not None:
                forms.entries.pop(key, None)

        self.entries[key] = weakref.ref(array, discard), form

    def discard(self, array: DistributedArray) -> None:
        """Forget the form of an array that has another value now, or whose memory is freed."""
        self.entries.pop(id(array), None)


FORMS: ContextVar[Forms | None] = ContextVar("gdt.forms", default=None)
"""The forms of the tape that records or whose backward pass runs; None where no op keeps any."""


def with_form(x: DistributedArray) -> list[DistributedArray]:
    """Return an array, and its form if it has one."""
    forms = FORMS.get()
    form = None if forms is None else forms.get(x)
    return [x] if form is None else [x, form]


@contextmanager
def keeping_forms(forms: Forms | None) -> Iterator[None]:
    """Have ops keep forms there, and take them from there, inside the `with` statement."""
    token = FORMS.set(forms)
    try:
        yield
    finally:
        FORMS.reset(token)


def exchanged_operands(
    op: Declaration, plan: Plan, args: Sequence[Any], static: dict[str, Any]
) -> Sequence[Any] | None:
    """The operands of a call whose plan moves some, in forms that are kept for later ops; None if
    they are to move as the plan says, and none is kept.

    Kept is the first form into which an op has moved an array so that no device got more of it than
    before. Later ops take it in the place of the array where they then send less.
    """
    forms = FORMS.get()
    if forms is None or not op.rule or op.donated:
        return None
    kept = [forms.get(a) for a in args]
    types = tuple([None if form is None else form.type for form in kept])
    if any(types):
        if types not in plan.forms:
            plan.forms[types] = _cheaper_forms(op, plan.types, types, static)
        positions = plan.forms[types]
        if positions:
            return [kept[i] if i in positions else a for i, a in enumerate(args)]
    layouts = tuple(
        plan.target_layouts[i]
        if i in plan.exchanged and kept[i] is None and a._resolved is None
        else None
        for i, a in enumerate(args)
    )
    if not any(layouts):
        return None
    if layouts not in plan.settled:
        plan.settled[layouts] = _is_settled(op, plan, layouts, static)
    if not plan.settled[layouts]:
        return None
    moved = move_to_layouts(args, layouts, op=op.name)
    for array, layout, form in zip(args, layouts, moved, strict=True):
        if layout is not None:
            forms.put(array, form)
    return moved


def _is_settled(
    op: Declaration, plan: Plan, layouts: Sequence[Layout | None], static: dict[str, Any]
) -> bool:
    """Return whether a call that gets operands in these layouts comes to an end: for what has moved
    other strategies may be considered, of which one moves it on, or back."""
    moved = [w is not None for w in layouts]
    for _ in layouts:
        pairs = zip(plan.types, plan.moved, moved, strict=True)
        types = tuple([m if is_moved else t for t, m, is_moved in pairs])
        rule, sizes, _ = op.bound_rule(types, dict(static))
        plan = Plan(types, choose(rule, types, sizes).target_layouts)
        if not plan.exchanged:
            return True
        moved = [i in plan.exchanged for i in range(len(types))]
    return False


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
