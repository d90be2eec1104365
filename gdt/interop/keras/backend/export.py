"""The export of models, which gdt does not have."""

from __future__ import annotations

from typing import Any

from gdt.errors import ExportError, error


class NumpyExportArchive:
    """An archive that refuses what it gets."""

    def track(self, resource: Any) -> None:
        """Raise ExportError."""
        raise _refusal("track")

    def add_endpoint(self, name: str, fn: Any, input_signature: Any = None, **kwargs: Any) -> None:
        """Raise ExportError."""
        raise _refusal("add_endpoint")


def _refusal(name: str) -> ExportError:
    remedy = "Save it, model.save('model.keras'), and export it from Keras on JAX or TensorFlow."
    return error(ExportError, name, "gdt exports no model", remedy=remedy)
