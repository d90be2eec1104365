"""Placement: the layouts that a LayoutMap has given to the arrays and the result of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gdt.array.array import DistributedArray
from gdt.errors import LayoutError, error
from gdt.ops.gathering import constrained, gathered
from gdt.ops.movement import relayout
from gdt.sharding.layout import MATCH, Layout
from gdt.state import mapped, owner_of


class UsedArray(NamedTuple):
    """An array that a call of its unit gathers: where it is kept, and the layouts of its use and
    of its gradient."""

    name: str
    holder: Any  # a Stateful object, a list or a dict: copies of a model have copies of it
    key: Any
    used: Layout
    gradient: Layout


@dataclass
class Placement:
    """The places of a module's arrays and results on its mesh, beside its own attributes.

    arrays: those that a call of the module gathers, for itself and its parts. output: the sharding
    specs, or the layout, of what a call returns. state_layouts: by the names of the parameters of a
    whole model, the layouts of their gradients and of an optimizer's state.
    """

    name: str
    arrays: list[UsedArray] = field(default_factory=list)
    output: Layout | Sequence[Any] | None = None
    state_layouts: dict[str, Layout] = field(default_factory=dict)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return `function(*args, **kwargs)`, a call of the module, with its arrays gathered."""
        if self.arrays:
            with self._gathered():
                out = function(*args, **kwargs)
        else:
            out = function(*args, **kwargs)
        return out if self.output is None else mapped(self._constrained, out)

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        """Put gathered arrays in the places of those that are kept, for this `with` block."""
        waiting = [
            (array, owner_of(array.holder), kept)
            for array in self.arrays
            if (kept := owner_of(array.holder)[array.key]).layout is not array.used
        ]
        if not waiting:  # in a call within a call
            yield
            return
        kept = [x for _, _, x in waiting]
        layouts = [array.used for array, _, _ in waiting]
        gradient_layouts = [array.gradient for array, _, _ in waiting]
        with gathered(kept, layouts, gradient_layouts) as used:
            for (array, owner, _), x in zip(waiting, used, strict=True):
                owner[array.key] = x
            try:
                yield
            finally:
                for (array, owner, x), gathered_array in zip(waiting, used, strict=True):
                    now = owner[array.key]
                    if now is gathered_array:
                        owner[array.key] = x
                    elif isinstance(now, DistributedArray):  # the call has put another there
                        owner[array.key] = relayout(now, x.layout)

    def _constrained(self, leaf: Any) -> Any:
        """Return an array that the module returns in the layout that the map gives its output."""
        if not isinstance(leaf, DistributedArray):
            return leaf
        output = self.output
        if not isinstance(output, Layout) and output is not None and len(output) == leaf.ndim:
            now = leaf.layout.sharding_specs
            pairs = zip(output, now, strict=True)
            output = Layout([was if spec == MATCH else spec for spec, was in pairs], leaf.mesh)
        if isinstance(output, Layout) and output.rank == leaf.ndim and output.mesh is leaf.mesh:
            return constrained(leaf, output)
        raise error(
            LayoutError,
            "LayoutMap",
            f"the layout of {self.name}/output does not fit the array that the module returns",
            operands={"output": leaf.type, "layout": output},
            remedy="It has an entry for every axis, and is on the same mesh.",
        )
