"""Immutable: the base of Mesh, Layout and ArrayType, which many arrays share."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from gdt.arguments import shown_value
from gdt.errors import ImmutableError, error
from gdt.sharding.displayed import Displayed


class Immutable(Displayed):
    """An object whose attributes are set once, where it is created.

    Setting or deleting an attribute later raises ImmutableError. `functools.cached_property` works,
    since it writes to the object's `__dict__`.
    """

    instead: ClassVar[str]  # the remedy of the error: how a user gets another object

    def _set(self, **attributes: Any) -> None:
        """Set the attributes of a new object."""
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        self._refuse(f"{name} cannot be set to {shown_value(value)}")

    def __delattr__(self, name: str) -> NoReturn:
        self._refuse(f"{name} cannot be deleted")

    def _refuse(self, problem: str) -> NoReturn:
        """Raise ImmutableError."""
        class_name = type(self).__name__
        raise error(
            ImmutableError,
            class_name,
            f"{problem}, since all arrays of one {class_name} share it",
            operands={"of": self},
            remedy=self.instead,
        )
