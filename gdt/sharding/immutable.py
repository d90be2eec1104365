"""Immutable: the base of interned facts, which every array that has them shares."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from gdt.arguments import shown_value
from gdt.errors import ImmutableError, error


class Immutable:
    """Base of objects whose attributes are set where the object is made, and nowhere else.

    Reading an attribute costs what it costs of other objects, and `functools.cached_property`
    works, since it does not set attributes.
    """

    instead: ClassVar[str]  # how a user gets what an assignment would have meant

    def _set(self, **facts: Any) -> None:
        """Set the attributes of a new object."""
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        self._refuse(f"{name} cannot be set to {shown_value(value)}")

    def __delattr__(self, name: str) -> NoReturn:
        self._refuse(f"{name} cannot be deleted")

    def _refuse(self, problem: str) -> NoReturn:
        kind = type(self).__name__
        raise error(
            ImmutableError,
            kind,
            f"{problem}, since all arrays of one {kind} share it",
            operands={"of": self},
            remedy=self.instead,
        )
