"""Composites: functions of ops that are one entry on the tape, with a gradient of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.caches import Cache
from gdt.engine.plan import takes_numbers
from gdt.observe import OBSERVERS
from gdt.sharding.array_type import ArrayType

Vjp = Callable[..., Any]
F = TypeVar("F", bound=Callable[..., Any])
ShortWay = tuple[ArrayType, Callable[..., Any]]  # the type of a result, and what makes its block


class Composite:
    """A function of ops that is one entry on the tape, with a gradient of its own.

    Declared as a decorator; `vjp` is that of `Op`. What its gradient needs it returns as outputs.

    is_shown: whether those who watch its parts are told that it begins and ends.
    """

    def __init__(self, function: Callable[..., Any], *, is_shown: bool = True) -> None:
        self.name, self.is_shown = function.__name__.strip("_"), is_shown
        self.function = checked(function, self.name)
        self.__name__, self.__doc__, self.__module__ = (
            self.name,
            function.__doc__,
            function.__module__,
        )
        self.vjps: tuple[Vjp | None, ...] = ()
        self.joint_vjp: Vjp | None = None
        options = inspect.signature(function).parameters.values()
        self.takes_numbers = takes_numbers(p for p in options if p.kind is p.KEYWORD_ONLY)
        self.find_short: Callable[..., ShortWay | None] | None = None
        self.short_ways: Cache[ShortWay | None] = Cache(1000)

    def __reduce__(self) -> str:
        """By name, as functions are."""
        return self.function.__name__

    def vjp(self, *per_operand: Vjp | None, joint: Vjp | None = None) -> None:
        """Declare gradients, as of an `Op`."""
        self.vjps, self.joint_vjp = per_operand, joint

    def short(self, find: F) -> F:
        """Declare `find(*types, static) -> (type, function) or None`, of a composite of arrays and
        one static: the type of the result, and what makes its only block of the operands' only
        blocks; None where it takes more than that.

        It is called where nobody watches the parts, and must make what they make.
        """
        self.find_short = find
        return find

    def __call__(self, *args: Any, **static: Any) -> Any:
        observers = OBSERVERS.get()
        if observers and any(o.wants_parts or o.wants_moves for o in observers):
            out = self._watched(args, static, observers)
        elif self.find_short is None:
            out = self._alone(args, static)
        else:
            out = self._shortly(args, static)
        for observer in observers:
            if not observer.wants_parts:
                observer.on_op(self, args, static, out)
        return out

    def _shortly(self, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """The composite in the short way, if it has one. A loop costs as much as all the rest, so
        one or two operands go without."""
        (how,) = static.values()
        count = len(args)
        if count == 1:
            key: tuple[Any, ...] = (how, args[0].type)
        elif count == 2:
            key = (how, args[0].type, args[1].type)
        else:
            key = (how, *[a.type for a in args])
        try:
            short = self.short_ways[key]
        except KeyError:
            types = [a.type for a in args]
            short = self.short_ways[key] = self.find_short(*types, how)  # type: ignore[misc]
        if short is None:
            return self._alone(args, static)
        kind, run = short
        if count == 1:
            block = run(args[0].blocks[0])
        elif count == 2:
            block = run(args[0].blocks[0], args[1].blocks[0])
        else:
            block = run(*[a.blocks[0] for a in args])
        return DistributedArray(kind, (block,))

    def _alone(self, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """The composite where nobody watches its parts."""
        token = OBSERVERS.set(())
        try:
            return self.function(*args, **static)
        finally:
            OBSERVERS.reset(token)

    def _watched(
        self, args: tuple[Any, ...], static: dict[str, Any], observers: Sequence[Any]
    ) -> Any:
        """The composite with those who watch its parts."""
        inner = tuple(o for o in observers if o.wants_parts)
        told = inner if self.is_shown else ()
        for observer in told:
            observer.on_enter(self.name)
        token = OBSERVERS.set(inner)
        try:
            out = self.function(*args, **static)
        finally:
            OBSERVERS.reset(token)
        for observer in told:
            observer.on_leave(self.name, args, out)
        return out
