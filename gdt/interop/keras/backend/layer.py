"""The part of Keras' layers that is the backend's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keras.src import tree

from gdt.array.array import DistributedArray
from gdt.interop.keras.backend.distribution_lib import Told, places


class NumpyLayer:
    """The base of Keras' layers, under the name by which Keras looks for it."""

    variables: list[Any]

    def __gdt_places__(self) -> list[Told]:
        """Tell `gdt.function(state=[layer])` the places of a layer's arrays: of its variables, and
        of those that it, or a layer in it, keeps as attributes or was called with."""
        layers = self._flatten_layers()  # type: ignore[attr-defined]
        return [*places(self.variables), *[told for each in layers for told in _arrays(each)]]


def _arrays(layer: Any) -> Iterator[Told]:
    attributes = {name: v for name, v in vars(layer).items() if name != "_losses"}
    owners: list[Any] = [v for v in attributes.values() if isinstance(v, dict | list | tuple)]
    for operation in getattr(layer, "_operations", ()):  # of a functional model
        for node in operation._inbound_nodes:
            owners.append(tree.flatten((node.arguments.args, node.arguments.kwargs)))
    for owner in (vars(layer), *owners):
        items = owner.items() if isinstance(owner, dict) else enumerate(owner)
        for key, value in items:
            if type(value) is DistributedArray:
                yield f"{layer.name}.{key}", owner, key
