"""LayoutMap: the layouts of a model's parameters by their names, kept apart from the model."""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from gdt.arguments import checked_class
from gdt.array.array import DistributedArray
from gdt.errors import LayoutError, error
from gdt.ops.movement import relayout
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.state import Tree, slots


@checked_class(eager=True)
class LayoutMap(MutableMapping[str, Layout]):
    r"""A mapping from names of arrays to layouts, whose keys may be regular expressions.

    A name is first looked up as a key; then all keys are tried with `re.match`, in the order in
    which they were added. A name that no key matches has no layout (KeyError). A value is a Layout,
    or a list of sharding specs for `mesh`. Follows `tf.keras.dtensor.experimental.LayoutMap`.

    Raises LayoutError for a key that is there already, or that is no regular expression.

    >>> mesh = gdt.create_mesh([("batch", 2), ("model", 2)])
    >>> layouts = gdt.nn.LayoutMap(mesh)
    >>> layouts[r".*\.weight"] = [gdt.UNSHARDED, "model"]
    >>> layouts[r".*\.bias"] = ["model"]
    >>> with gdt.default_mesh(mesh):
    ...     model = layouts.apply(gdt.nn.Sequential(gdt.nn.Dense(4, 6)))
    >>> model[0].bias.layout
    Layout(['model'], Mesh(batch=2, model=2))
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._layouts: dict[str, Layout] = {}

    def __setitem__(self, key: str, layout: Layout | Sequence[Any]) -> None:
        if key in self._layouts:
            raise error(
                LayoutError,
                "LayoutMap",
                f"{key!r} has a layout already",
                operands={key: self._layouts[key]},
                remedy="Delete it first to set another.",
            )
        try:
            re.compile(key)
        except re.error as cause:
            raise error(LayoutError, "LayoutMap", f"{key!r} is no pattern ({cause})") from None
        self._layouts[key] = layout if isinstance(layout, Layout) else Layout(layout, self.mesh)

    def __getitem__(self, name: str) -> Layout:
        if name in self._layouts:
            return self._layouts[name]
        for key, layout in self._layouts.items():
            if re.match(key, name):
                return layout
        raise KeyError(name)

    def __delitem__(self, key: str) -> None:
        del self._layouts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts)

    def __len__(self) -> int:
        return len(self._layouts)

    def apply(self, tree: Tree) -> Tree:
        """Move every array of a model to its layout, or replicate it on the mesh; return the model.

        Raises LayoutError, and changes nothing, if a layout does not fit the rank of its array.
        """
        array_slots = [s for s in slots(tree) if isinstance(s.value, DistributedArray)]
        replicated = [Layout.replicated(self.mesh, s.value.ndim) for s in array_slots]
        layouts = [self.get(s.name, r) for s, r in zip(array_slots, replicated, strict=True)]
        arrays = [relayout(s.value, w) for s, w in zip(array_slots, layouts, strict=True)]
        for slot, array in zip(array_slots, arrays, strict=True):
            slot.owner[slot.key] = array
        return tree
