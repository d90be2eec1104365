"""Placement: the layouts that a LayoutMap has given to the arrays and the result of a module."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.gathers import COMING, Gather, coming
from gdt.comm.launch import can_overlap
from gdt.errors import LayoutError, error
from gdt.nn.sharded import ArrayLayouts, Sharded, closed
from gdt.ops.gathering import GatheredSlot, constrained, gathered, in_their_slots
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import MATCH, Layout
from gdt.sharding.mesh import Mesh
from gdt.state import owner_of
from gdt.state.trees import mapped


def check_applied(name: str, x: DistributedArray, used: Layout) -> None:
    """Raise LayoutError if an array of this name cannot be gathered to the layout of its use, since
    it has been put in the place of the one that the map was applied to."""
    if x.mesh is not used.mesh or x.ndim != used.rank:
        raise error(
            LayoutError,
            "LayoutMap",
            f"{name} has not been moved to the layout in which it is kept, and cannot be gathered",
            operands={name: f"{x.type} on {x.mesh}", "used": f"{used} on {used.mesh}"},
            remedy="Apply the map first, and again when another array takes the place of one.",
        )


class UsedArray(NamedTuple):
    """An array that a call of its unit gathers: where it is kept, and the layouts of its use and
    of its gradient."""

    name: str
    holder: Any  # a Stateful object, a list or a dict: copies of a model have copies of it
    key: Any
    used: Layout
    gradient: Layout


@dataclass(eq=False)
class Placement:
    """The places of a module's arrays and results on its mesh, beside its own attributes.

    arrays: those that a call of the module gathers, for itself and its parts. output: the sharding
    specs, or the layout, of what a call returns. state_layouts: by the names of the parameters of a
    whole model, the layouts of their gradients and of an optimizer's state. is_awaited: whether
    layers have yet to create arrays that belong here.
    """

    name: str
    arrays: list[UsedArray] = field(default_factory=list)
    output: Layout | Sequence[Any] | None = None
    state_layouts: dict[str, Layout] = field(default_factory=dict)
    is_awaited: bool = False

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return `function(*args, **kwargs)`, a call of the module, with its arrays gathered."""
        with self._ahead():
            if self.arrays:
                with self._gathered():
                    out = function(*args, **kwargs)
            else:
                out = function(*args, **kwargs)
        return out if self.output is None else mapped(self._constrained, out)

    def _ahead(self) -> AbstractContextManager[None]:
        """Return a context around a call in which the gathers that are to come run ahead, in the
        order that the first call has had: any other order is right, and gathers arrays in vain."""
        if _CALLED.get() is not None or COMING.get() is not None:  # in a call within a call
            return nullcontext()
        if (order := _ORDERS.get(self)) is None:
            return self._noting_order()
        units = [unit for reference in order if (unit := reference()) is not None and unit.arrays]
        if not (units and can_overlap(units[0].arrays[0].used.mesh)):
            return nullcontext()
        return coming(_gather_of(w) for unit in units if (w := unit._waiting()))

    @contextmanager
    def _noting_order(self) -> Iterator[None]:
        """Note which units gather arrays in this `with` block."""
        units: list[Placement] = []
        token = _CALLED.set(units)
        try:
            yield
        finally:
            _CALLED.reset(token)
        if units:
            _ORDERS[self] = [weakref.ref(unit) for unit in units]

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        """Put gathered arrays in the places of those that are kept, for this `with` block."""
        waiting = self._waiting()
        if not waiting:  # in a call within a call
            yield
            return
        if (units := _CALLED.get()) is not None:
            units.append(self)
        arrays, layouts = _gather_of(waiting)
        gradient_layouts = [array.gradient for array, _, _ in waiting]
        with gathered(arrays, layouts, gradient_layouts) as used:
            pairs = zip(waiting, used, strict=True)
            slots = [GatheredSlot(owner, array.key, x) for (array, owner, _), x in pairs]
            with in_their_slots(slots):
                yield

    def _waiting(self) -> list[tuple[UsedArray, Any, DistributedArray]]:
        """Return the arrays that a call has to gather, with their owners and as they are kept."""
        waiting: list[tuple[UsedArray, Any, DistributedArray]] = []
        for array in self.arrays:
            owner = owner_of(array.holder)
            kept = owner[array.key]
            if isinstance(kept, DistributedArray) and kept.layout is not array.used:
                check_applied(array.name, kept, array.used)
                waiting.append((array, owner, kept))
        return waiting

    def _constrained(self, leaf: Any) -> Any:
        """Return an array that the module returns in the layout that the map gives its output."""
        if not isinstance(leaf, DistributedArray):
            return leaf
        output = self.output
        if not isinstance(output, Layout) and output is not None:
            specs = closed(output, leaf.ndim)
            if len(specs) == leaf.ndim:
                output = _matched(specs, leaf.layout)
        if isinstance(output, Layout) and output.rank == leaf.ndim and output.mesh is leaf.mesh:
            return constrained(leaf, output)
        raise error(
            LayoutError,
            "LayoutMap",
            f"the layout of {self.name}/output does not fit the array that the module returns",
            operands={"output": leaf.type, "layout": output},
            remedy="It has an entry for every axis, and is on the same mesh.",
        )


# The units that have gathered arrays in the call that is running, and in the first call of each.
_CALLED: ContextVar[list[Placement] | None] = ContextVar("gdt.called_units", default=None)
_ORDERS: WeakKeyDictionary[Placement, list[weakref.ref[Placement]]] = WeakKeyDictionary()


def _gather_of(waiting: Sequence[tuple[UsedArray, Any, DistributedArray]]) -> Gather:
    """Return the gather of arrays that a call has to gather."""
    kept, layouts = [x for _, _, x in waiting], [array.used for array, _, _ in waiting]
    return Gather(tuple(kept), tuple(layouts))


def _matched(specs: Sequence[Any], layout: Layout) -> Layout:
    """Return the layout of specs in which `MATCH` stands for the mesh axes that split the array
    there already, less those that other specs name."""
    named = Layout([None if spec == MATCH else spec for spec in specs], layout.mesh)
    taken = {a for axes in named.dims for a in axes}
    pairs = zip(specs, named.dims, layout.dims, strict=True)
    dims = [
        tuple([a for a in was if a not in taken]) if spec == MATCH else axes
        for spec, axes, was in pairs
    ]
    return Layout.of(layout.mesh, tuple(dims))


def note_layouts(
    name: str, holder: Any, key: Any, layouts: ArrayLayouts, unit: Placement, whole: Placement
) -> None:
    """Tell the placements of a unit and of the whole model the layouts of an array."""
    used, kept, state = layouts
    if used is not kept:  # once, also where an array is created again
        unit.arrays = [array for array in unit.arrays if array.name != name]
        unit.arrays.append(UsedArray(name, holder, key, used, state))
    if state is not kept:
        whole.state_layouts[name] = state


@dataclass
class LayoutToCome:
    """The layout of an array that a layer creates at its first call, which computes with the array
    as it is kept; later calls gather it as those of arrays that a LayoutMap has moved."""

    name: str
    layer: Any
    key: str
    sharded: Sharded
    mesh: Mesh
    unit: Placement
    whole: Placement

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype) -> Layout:
        """Return the layout in which the array is kept."""
        array_type = ArrayType.of(shape, dtype, Layout.replicated(self.mesh, len(shape)))
        layouts = self.sharded.layouts_of(self.name, array_type, self.mesh)
        note_layouts(self.name, self.layer, self.key, layouts, self.unit, self.whole)
        return layouts.kept
