"""Symbols: the inputs of functional models, and what layers make of them.

A symbol carries a real array of no rows. A layer that is called with a symbol runs on that array,
which gives the shape and the dtype of its result, and the sizes of layers that find them at their
first call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.errors import DtypeError, ShapeError, error
from gdt.ops.creation import zeros
from gdt.state.trees import leaves, mapped

AS_LAYER = "Make the function a layer: gdt.nn.Activation(function)(symbol)."
"""What to do where a function that is no layer is called with a symbol."""


class Symbol:
    """An array that is not there yet: an input of a functional model, or the result of a call.

    value: an array of no rows, or a tuple of such arrays. function, args, kwargs: the call that
    makes it, with symbols for arrays; None of an input.
    """

    __array_ufunc__ = None  # NumPy's operators leave it to those of symbols
    as_operand = AS_LAYER

    def __init__(
        self,
        value: Any,
        function: Callable[..., Any] | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.value, self.function, self.args, self.kwargs = (
            value,
            function,
            args,
            dict(kwargs or {}),
        )

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape, with None for the number of rows."""
        return (None, *self.value.shape[1:])

    @property
    def dtype(self) -> Any:
        """The dtype, that of the array of no rows."""
        return self.value.dtype

    @property
    def ndim(self) -> int:
        """The number of axes, the batch included."""
        return int(self.value.ndim)

    @property
    def operands(self) -> list[Symbol]:
        """The symbols among the arguments of the call."""
        return [a for a in leaves([list(self.args), self.kwargs]) if isinstance(a, Symbol)]

    def __repr__(self) -> str:
        return f"Symbol({self.dtype}{list(self.shape)})".replace("'", "")

    def __add__(self, other: Any) -> Any:
        return call(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return call(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return call(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return call(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return call(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return call(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Any:
        return call(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return call(operator.truediv, other, self)

    def __matmul__(self, other: Any) -> Any:
        return call(operator.matmul, self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return call(operator.matmul, other, self)

    def __pow__(self, other: Any) -> Any:
        return call(operator.pow, self, other)

    def __rpow__(self, other: Any) -> Any:
        return call(operator.pow, other, self)

    def __neg__(self) -> Any:
        return call(operator.neg, self)

    def __getitem__(self, index: Any) -> Any:
        return call(operator.getitem, self, index)

    def __getattr__(self, name: str) -> Any:
        text = f"'Symbol' object has no attribute {name!r}"
        hint = "" if name.startswith("__") else f". {AS_LAYER}"
        raise AttributeError(text + hint, name=name, obj=self)

    def __iter__(self) -> Any:
        if isinstance(self.value, tuple):
            return iter([self[i] for i in range(len(self.value))])
        problem = f"{self} is one array: its rows are not known yet"
        raise error(DtypeError, "Symbol", problem, remedy=AS_LAYER)


def is_symbolic(args: Iterable[Any]) -> bool:
    """Return whether a symbol is among the arguments of a call, or in a list that is."""
    for a in args:
        kind = type(a)
        if kind is Symbol or (kind in (list, tuple) and any(type(b) is Symbol for b in a)):
            return True
    return False


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the symbol of a call with symbols; of a call that returns a tuple, one for each
    item."""
    values = mapped(lambda a: a.value if isinstance(a, Symbol) else a, [list(args), kwargs])
    with np.errstate(invalid="ignore", divide="ignore"):  # of no rows there are no means
        value = function(*values[0], **values[1])
    symbol = Symbol(value, function, args, kwargs)
    if not isinstance(value, tuple):
        return symbol
    return tuple(Symbol(item, operator.getitem, (symbol, i)) for i, item in enumerate(value))


@checked
def Input(shape: Iterable[int], dtype: Any = "float32") -> Symbol:
    """Return an input of a functional model; see `gdt.nn.Model`.

    shape: that of a row: the batch is not part of it. The model's layers find their sizes at once,
    and make their arrays on the default mesh unless they have layouts.

    >>> gdt.nn.Input((28, 28))
    Symbol(float32[None, 28, 28])
    """
    sizes = tuple(shape)
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
            problem = f"{size!r} in shape {sizes} is no size"
            remedy = "Rows of any length are for gdt.nn.Sequential, and for classes of your own."
            raise error(ShapeError, problem, remedy=remedy)
    return Symbol(zeros((0, *sizes), dtype))
