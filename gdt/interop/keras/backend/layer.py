"""The part of Keras' layers that is the backend's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keras.src import tree
from keras.src.backend.common import KerasVariable
from keras.src.constraints import Constraint
from keras.src.losses import Loss
from keras.src.regularizers import Regularizer

from gdt.array.array import DistributedArray
from gdt.interop.keras.backend.distribution_lib import Told, places

PARTS = (Regularizer, Constraint, Loss)  # of layers and models, which may keep arrays


class NumpyLayer:
    """The base of Keras' layers, under the name by which Keras looks for it."""

    variables: list[Any]

    def __gdt_places__(self) -> list[Told]:
        """Tell `gdt.function(state=[layer])` the places of a layer's arrays: of its variables, and
        of those that it, or a layer in it, keeps as attributes or was called with."""
        layers = self._flatten_layers()  # type: ignore[attr-defined]
        kept = [variable for each in layers for variable in _kept_variables(each)]
        variables = places([*self.variables, *kept])
        return [*variables, *[told for each in layers for told in _arrays(each)]]


def _kept_variables(layer: Any) -> Iterator[KerasVariable]:
    """Yield the variables among the attributes of a layer. Keras does not count the states of a
    stateful RNN among its variables."""
    for value in vars(layer).values():
        if isinstance(value, dict | list | tuple | KerasVariable):
            yield from (leaf for leaf in tree.flatten(value) if isinstance(leaf, KerasVariable))


def _arrays(layer: Any) -> Iterator[Told]:
    attributes = {name: v for name, v in vars(layer).items() if name != "_losses"}
    owners: list[Any] = [v for v in attributes.values() if isinstance(v, dict | list | tuple)]
    owners += [vars(v) for v in attributes.values() if isinstance(v, PARTS)]
    for operation in getattr(layer, "_operations", ()):  # of a functional model
        for node in operation._inbound_nodes:
            owners.append(tree.flatten((node.arguments.args, node.arguments.kwargs)))
    for owner in (vars(layer), *owners):
        items = owner.items() if isinstance(owner, dict) else enumerate(owner)
        for key, value in items:
            if type(value) is DistributedArray:
                yield f"{layer.name}.{key}", owner, key
