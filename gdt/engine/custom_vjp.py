"""Functions of ops that are one entry on the tape, with a gradient of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Generic, ParamSpec, TypeVar

from gdt.arguments import checked
from gdt.engine.differentiable import Differentiable
from gdt.observe import OBSERVERS

__all__ = ["custom_vjp"]

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class custom_vjp(Differentiable, Generic[P, R_co]):
    """A decorator: a function of ops becomes one entry on the tape, with a gradient of its own.

    Operands are given by position, statics by name. `vjp` declares the gradient as that of an op;
    what it needs, the function returns as outputs. Follows `jax.custom_vjp`.

    >>> @gdt.custom_vjp
    ... def clipped_gradient(x):
    ...     return x * 1.0
    >>> clipped_gradient.vjp(lambda g, out, x: gdt.clip(g, -1.0, 1.0))
    >>> gdt.grad(lambda x: gdt.sum(clipped_gradient(x) * 5.0))(gdt.asarray([2.0])).tolist()
    [1.0]
    """

    def __init__(self, function: Callable[P, R_co]) -> None:
        self.name = function.__name__.strip("_")
        self.function = checked(function, self.name)
        self.__name__, self.__doc__, self.__module__ = (
            self.name,
            function.__doc__,
            function.__module__,
        )
        self.__signature__ = inspect.signature(function)

    def __repr__(self) -> str:
        return f"<custom_vjp {self.name}>"

    def __reduce__(self) -> str:
        """By name, as functions are."""
        return self.function.__name__

    def _takes(self, count: int) -> bool:
        """Whether the function may have so many operands; its other parameters are statics."""
        try:
            self.__signature__.bind_partial(*range(count))
        except TypeError:
            return False
        return count > 0

    def _operand_names(self) -> Sequence[str]:
        """The names of the parameters, those of statics as well."""
        return [*self.__signature__.parameters]

    def __call__(self, *args: P.args, **static: P.kwargs) -> R_co:
        observers = OBSERVERS.get()
        inner = tuple([o for o in observers if o.wants_parts])
        for observer in inner:
            observer.on_enter(self.name)
        token = OBSERVERS.set(inner)
        try:
            out = self.function(*args, **static)
        finally:
            OBSERVERS.reset(token)
        for observer in inner:
            observer.on_leave(self.name, args, out)
        for observer in observers:
            if not observer.wants_parts:
                observer.on_op(self, args, static, out)
        return out
