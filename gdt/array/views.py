"""Views: arrays that show the elements of another array, and write through to it.

`x[1:3]`, `x.T` and `x.reshape(-1)` share the memory of `x` in NumPy. Here blocks that
others may refer to are never written, and what a view of a split array shows may lie on other
devices; so a view remembers its base, the
array that owns the elements, and the steps that lead from there to it. A write to a view makes a
new value of the base by the inverse of the steps. All other views of that base are outdated by it:
their blocks are made anew when they are read next. The base knows its views by weak references.
The attribute `_shared` of a base is the list of these references, that of a view is its base and
the steps, and that of an array that has no views and is none is None.

A kind of step is declared beside the function that takes it, by `view_step`. An op whose results
are views when users call it is declared by `Op.shows`; a function of ops that returns a view calls
`shown`. What a layer computes has no views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from weakref import ref as reference

import numpy as np

from gdt.array.deferred import DeferredBlocks
from gdt.comm.agreement import HISTORIES, origin_of
from gdt.errors import ReadOnlyError, error
from gdt.observe import KEEPERS, OBSERVERS

Block = Any
V = TypeVar("V", bound=Any)
Step = tuple[str, Any]  # the name of a kind of step, and what it takes beside the array

FEW = 8  # views whose references are kept without a look at whether they are alive


class Kind(NamedTuple):
    """A kind of step from an array to a view of it.

    take: `take(x, static)` is the view.
    put: `put(x, static, value)` is `x` with `value` there, in the layout of `x`; None for views
        that are read-only.
    of_numpy: `take` of a NumPy array; ValueError where NumPy has to copy, if it `may_copy`.
    write: `write(x, static, value)` does what `put` does in the blocks of `x` itself, and returns
        True; or it returns False, where others may refer to them.
    """

    take: Callable[[Any, Any], Any]
    put: Callable[[Any, Any, Any], Any] | None
    of_numpy: Callable[[Any, Any], Any]
    write: Callable[[Any, Any, Any], bool]
    may_copy: bool


KINDS: dict[str, Kind] = {}


def view_step(
    name: str,
    take: Callable[[Any, Any], Any],
    put: Callable[[Any, Any, Any], Any] | None,
    of_numpy: Callable[[Any, Any], Any],
    write: Callable[[Any, Any, Any], bool] = lambda x, static, value: False,
    *,
    may_copy: bool = False,
) -> None:
    """Declare a kind of step; see `Kind`."""
    KINDS[name] = Kind(take, put, of_numpy, write, may_copy)


# What an index of ints alone takes: as NumPy's scalars, a value of its own that nobody writes to.
ELEMENT: tuple[None, tuple[Step, ...]] = (None, ())


def shown(x: Any, view: V, steps: tuple[Step, ...]) -> V:
    """Return `view`, which steps have made of the array `x`, as a view of `x` where it is one in
    NumPy."""
    shared = x._shared
    if type(shared) is list:
        if shared[-1]() is None:  # as most views live shorter than what they show
            shared[-1] = reference(view)
        else:
            _remember(shared, view)
        view._shared = x, steps
    elif shared is None:
        x._shared = [reference(view)]
        view._shared = x, steps
    elif is_view_in_numpy(x, steps):
        base, before = shared
        _remember(base._shared, view)
        view._shared = base, before + steps
    return view


def _remember(references: list[Any], view: Any) -> None:
    """Add a reference to a view, once in a while without those to views that are gone."""
    count = len(references)
    if count >= FEW and not count & (count - 1):  # a power of two
        references[:] = [other for other in references if other() is not None]
    references.append(reference(view))


def _origin(array: Any) -> tuple[Any, tuple[Step, ...]]:
    """The base of an array, which is the array if it is no view, and the steps from there."""
    shared = array._shared
    return shared if type(shared) is tuple else (array, ())


def is_view_in_numpy(x: Any, steps: tuple[Step, ...]) -> bool:
    """Whether steps from an array give a view of it in NumPy, where the base lies in C order."""
    base, before = _origin(x)
    if base is None:  # an element has no views
        return False
    may_copy = any(KINDS[kind].may_copy for kind, _ in steps)
    return not may_copy or _is_view_in_numpy(base.shape, base.dtype, before + steps)


@lru_cache(maxsize=1 << 12)
def _is_view_in_numpy(shape: tuple[int, ...], dtype: Any, steps: tuple[Step, ...]) -> bool:
    try:
        _in_numpy(np.empty(1, dtype), shape, steps)
    except ValueError:
        return False
    return True


def _in_numpy(memory: np.ndarray, shape: tuple[int, ...], steps: tuple[Step, ...]) -> np.ndarray:
    """A C-ordered array of that shape after the steps, as if it lay in the memory of one element:
    nothing of it may be read."""
    strides = [memory.itemsize * math.prod(shape[d + 1 :]) for d in range(len(shape))]
    x = np.lib.stride_tricks.as_strided(memory, shape, strides)
    for kind, static in steps:
        x = KINDS[kind].of_numpy(x, static)
    return x


def overlap(x: Any, y: Any) -> bool:
    """Whether a write to one of two arrays may show in the other one."""
    (base, steps), (other, other_steps) = _origin(x), _origin(y)
    if base is not other or base is None:
        return x is y
    memory = np.empty(1, base.dtype)
    view, other_view = (_in_numpy(memory, base.shape, s) for s in (steps, other_steps))
    return np.may_share_memory(view, other_view)


def base_of(array: Any) -> Any:
    """The array whose elements a view shows; None for an array of its own."""
    shared = getattr(array, "_shared", None)
    return shared[0] if type(shared) is tuple else None


def shares_base(x: Any, view: Any) -> bool:
    """Whether an array is a view, and of the array that is the base of `x`, or `x` itself."""
    base = base_of(view)
    return base is not None and (base is x or base is base_of(x))


def check_writable(array: Any) -> None:
    """Raise ReadOnlyError (a TypeError and a ValueError) for an array that cannot be written."""
    base, steps = _origin(array)
    if base is None:
        problem = "an element that an index of ints has taken is a value of its own"
        remedy = "Write x[i, j] = value to the array itself, or x[i, j, ...], which is a view."
        raise error(ReadOnlyError, "write", problem, operands={"x": array.type}, remedy=remedy)
    for kind, _ in steps:
        if KINDS[kind].put is None:
            problem = f"the result of {kind} is read-only, as in NumPy"
            remedy = "Write x.at[index].set(value), which returns another array, or to x.copy()."
            raise error(ReadOnlyError, "write", problem, operands={"x": array.type}, remedy=remedy)


def _put(x: Any, steps: tuple[Step, ...], value: Any) -> Any:
    (kind, static), rest = steps[0], steps[1:]
    step = KINDS[kind]
    inner = _put(step.take(x, static), rest, value) if rest else value
    return step.put(x, static, inner)  # type: ignore[misc]


def views_of(base: Any) -> list[Any]:
    """The views of an array that somebody still has."""
    views = [other() for other in base._shared or ()]
    return [view for view in views if view is not None]


def taken(base: Any, steps: tuple[Step, ...]) -> Any:
    """The array to which the steps lead from a base."""
    for kind, static in steps:
        base = KINDS[kind].take(base, static)
    return base


class OutdatedBlocks(DeferredBlocks):
    """A stand-in for the blocks of a view whose base has been written: whoever reads them has the
    view made anew."""

    base: Any
    steps: tuple[Step, ...]
    view: reference[Any]

    def __new__(cls, view: Any) -> OutdatedBlocks:
        blocks = super().__new__(cls)
        (blocks.base, blocks.steps), blocks.view = view._shared, reference(view)
        return blocks

    def _compute(self) -> Sequence[Block]:
        view = self.view()
        if view is None or (view.blocks is not self and type(view.blocks) is OutdatedBlocks):
            blocks: Sequence[Block] = taken(self.base, self.steps).blocks
            return blocks
        if view.blocks is self:
            renew(view)
        return tuple(view.blocks)

    def _read(self) -> Sequence[Block]:
        return self._compute()  # not kept: the base may be written again


def outdate(view: Any) -> None:
    """Have a view, whose base has another value now, made anew when it is read next."""
    if type(view.blocks) is OutdatedBlocks:
        return
    observers = all_observers()
    if observers:
        before = valued_as(view)
        for observer in observers:
            observer.on_outdate(view, before)
    view.blocks, view._resolved = OutdatedBlocks(view), None


def renew(view: Any) -> None:
    """Make a view of what its base holds now."""
    value = taken(*view._shared)
    for observer in all_observers():
        observer.on_renew(view, value)
    view.type, view.blocks, view._resolved = value.type, value.blocks, None
    if HISTORIES:
        view._origin = origin_of(value)


# ---------------------------------------------------------------- values


def rebind(array: Any, after: Any) -> None:
    """Give `array`, a DistributedArray, the value of `after`, which has its shape and dtype; the
    base and the views of it show that."""
    if after is array:  # as a write to no elements has it
        return
    if type(after.blocks) is OutdatedBlocks:
        renew(after)
    if array._shared is None:
        _replace(array, after)
        return
    check_writable(array)
    base, steps = _origin(array)
    if len(steps) == 1 and KINDS[steps[0][0]].write(base, steps[0][1], after):
        return
    value = _put(base, steps, after) if steps else after
    moves = value.type is not base.type
    _replace(base, value)
    for view in views_of(base):
        if view is array and after.type is array.type and not moves:
            _replace(array, after)
        else:
            outdate(view)
            if moves or view is array:  # types of operands are read before their blocks
                renew(view)


def partial_of(array: Any) -> Any:
    """The array with a partial reduction of which an array is the value, if somebody has it."""
    partial = getattr(array, "_partial", None)  # a reference
    return partial if partial is None else partial()


def _replace(array: Any, after: Any) -> None:
    partial = partial_of(array)
    observers = all_observers()
    if observers or partial is not None:
        before = valued_as(array)
        for observer in observers:
            observer.on_write(array, before, after)
        if partial is not None and partial._resolved is array:
            partial._resolved = before
    array.type, array.blocks, array._resolved = after.type, after.blocks, None
    if HISTORIES:
        array._origin = origin_of(after)


def valued_as(array: Any) -> Any:
    """Another array of the value that an array has, resolved if that is."""
    before = array._alias()
    before._resolved = array._resolved
    return before


def all_observers() -> Collection[Any]:
    """The observers that are active, and those that keep arrays."""
    active = OBSERVERS.get()
    if not KEEPERS:
        return active
    return {*active, *[o for reference in [*KEEPERS] if (o := reference()) is not None]}
