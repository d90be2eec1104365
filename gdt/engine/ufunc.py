"""Ops that NumPy has as ufuncs: with the arguments and the methods that ufuncs have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, overload

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.numpy_protocols import call_ufunc
from gdt.array.operands import as_operands, bind_arguments
from gdt.engine.declaration import RuleOf
from gdt.engine.op import Op, declared

P = ParamSpec("P")

OPTIONS: dict[str, Any] = {
    "out": None, "where": True, "casting": "same_kind", "order": "K", "dtype": None, "subok": True,
}  # fmt: skip
"""The arguments of every ufunc, with their defaults. A call that passes none of them is an op's."""


class Ufunc(Op[..., Any]):
    """An op of the name of a ufunc of NumPy. `gdt.add(x, y, out=z)`, `gdt.add.reduce(x)` and the
    like are what NumPy's ufunc does when it is called with distributed arrays."""

    def __init__(
        self, body: Callable[..., Any], rule: RuleOf, returns: object, **options: Any
    ) -> None:
        super().__init__(body, rule, returns, **options)
        self.declaration = replace(self.declaration, positions=("out",), extended=OPTIONS)

    def signature(self) -> inspect.Signature:
        """The signature of calls."""
        kinds, own = inspect.Parameter, super().signature()
        operands = [p for p in own.parameters.values() if p.name not in OPTIONS]
        shown = [
            kinds(n, kinds.KEYWORD_ONLY if i else kinds.POSITIONAL_OR_KEYWORD, default=default)
            for i, (n, default) in enumerate(OPTIONS.items())
        ]
        return own.replace(parameters=[*operands, *shown])

    def _extended(
        self, args: tuple[Any, ...], static: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        if not options:
            return self._call(*args, **static)
        operands, _ = bind_arguments(self.name, self.declaration.operands, (), args, static)
        return self._run("__call__", operands, options)

    def _run(self, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return call_ufunc(getattr(np, self.name), method, inputs, options)

    def reduce(self, array: Any, axis: Any = 0, **options: Any) -> Any:
        """The elements along `axis` joined to one, as `numpy.ufunc.reduce` does; options: `dtype`,
        `out`, `keepdims`, `initial` and `where`.

        >>> gdt.maximum.reduce([[1, 5], [7, 2]]).tolist()
        [7, 5]
        """
        (x,) = as_operands(f"{self.name}.reduce", array=array)
        return self._run("reduce", (x,), {"axis": axis, **options})

    def accumulate(self, array: Any, axis: int = 0, **options: Any) -> Any:
        """The first 1, 2, 3, ... elements along `axis` joined to one; options: `dtype`, `out`.

        >>> gdt.multiply.accumulate([1, 2, 3]).tolist()
        [1, 2, 6]
        """
        (x,) = as_operands(f"{self.name}.accumulate", array=array)
        return self._run("accumulate", (x,), {"axis": axis, **options})

    def reduceat(self, array: Any, indices: Any, axis: int = 0, **options: Any) -> Any:
        """The elements from each index up to the next one joined to one, as
        `numpy.ufunc.reduceat` does; options: `out`.

        >>> gdt.add.reduceat([1, 2, 3, 4], [0, 1]).tolist()
        [1, 9]
        """
        (x,) = as_operands(f"{self.name}.reduceat", array=array)
        return self._run("reduceat", (x, indices), {"axis": axis, **options})

    def outer(self, x: Any, y: Any, /, **options: Any) -> Any:
        """Every element of `x` with every one of `y`; options: those of a call.

        >>> gdt.subtract.outer([1, 2], [3, 4]).tolist()
        [[-2, -3], [-1, -2]]
        """
        return self._run("outer", tuple(as_operands(f"{self.name}.outer", x=x, y=y)), options)

    def at(self, x: Any, indices: Any, *values: Any) -> None:
        """Write into `x` its elements at `indices` joined with `values`, one after the other.

        >>> x = gdt.zeros(3)
        >>> gdt.add.at(x, [0, 0, 2], 1.0)
        >>> x.tolist()
        [2.0, 0.0, 1.0]
        """
        self._run("at", (x, indices, *values), {})


if TYPE_CHECKING:

    class Unary(Ufunc):
        """A ufunc of one operand."""

        def __call__(
            self, x: Any, /, out: DistributedArray | None = None, *, where: Any = True,
            casting: str = "same_kind", order: str = "K", dtype: Any = None, subok: bool = True,
        ) -> DistributedArray: ...  # fmt: skip

    class Binary(Ufunc):
        """A ufunc of two operands."""

        def __call__(
            self, x: Any, y: Any, /, out: DistributedArray | None = None, *, where: Any = True,
            casting: str = "same_kind", order: str = "K", dtype: Any = None, subok: bool = True,
        ) -> DistributedArray: ...  # fmt: skip

    class Declared(Protocol):
        """The decorator that makes a ufunc of a body."""

        @overload
        def __call__(self, body: Callable[[Any, Any], Any]) -> Unary: ...
        @overload
        def __call__(self, body: Callable[[Any, Any, Any], Any]) -> Binary: ...

else:
    Unary = Binary = Ufunc


@overload
def ufunc(
    rule: RuleOf, *, outputs: int, **options: Any
) -> Callable[[Callable[Concatenate[Any, P], Any]], Op[P, tuple[DistributedArray, ...]]]: ...
@overload
def ufunc(rule: RuleOf, **options: Any) -> Declared: ...
def ufunc(rule: RuleOf, *, outputs: int = 1, **options: Any) -> Any:
    """Declare an op that NumPy has as a ufunc of its name; arguments are those of `gdt.op`."""
    returns = DistributedArray if outputs == 1 else tuple[(DistributedArray,) * outputs]  # type: ignore[misc]
    return lambda body: declared(Ufunc(body, rule, returns, **options))
