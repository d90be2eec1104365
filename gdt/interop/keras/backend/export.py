"""The export of models, which gdt does not have."""

from __future__ import annotations

from typing import Any

from gdt.errors import ExportError, error


class NumpyExportArchive:
    """An archive that cannot be made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise error(
            ExportError,
            "export",
            "gdt exports no model",
            remedy="Save it, model.save('model.keras'), and export it with Keras on JAX.",
        )
