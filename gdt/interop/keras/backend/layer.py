"""The part of Keras' layers that is the backend's."""

from __future__ import annotations

from typing import Any

from gdt.interop.keras.backend import distribution_lib


class NumpyLayer:
    """The base of Keras' layers, under the name by which Keras looks for it."""

    variables: list[Any]

    def __gdt_places__(self) -> list[distribution_lib.Told]:
        """Tell `gdt.function(state=[layer])` the places of the layer's arrays."""
        return distribution_lib.places(self.variables)
