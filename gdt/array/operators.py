"""Operators and methods of arrays that are the public functions of the same meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np

from gdt.arguments import checked
from gdt.array.registry import FUNCTIONS, METHODS, UNCHECKED
from gdt.array.views import ELEMENT, rebind
from gdt.backend.cupy import on_gpu
from gdt.errors import DtypeError, RankError, ShapeError, error
from gdt.sharding.dtypes import castable

A = TypeVar("A")

COMMON_OPERANDS = frozenset({float, int})  # the operands, beside arrays, that are tested for first


class Method(Protocol):
    """A method that returns an array of the class of its own array."""

    def __get__(self, instance: A, owner: Any = None) -> Callable[..., A]: ...


def _forward(name: str) -> Method:
    """Make a method that calls the public function `name`."""

    def method(self: Any, *args: Any, **static: Any) -> Any:
        return FUNCTIONS[name](self, *args, **static)

    return _named(method, name)


def _named(method: Any, name: str) -> Method:
    """Register a method that calls the public function `name`. It gets the signature and docstring
    of that function when the function is declared."""
    method.__name__ = name
    METHODS[name] = method
    descriptor: Method = method
    return descriptor


def _astype(self: Any, *args: Any, **static: Any) -> Any:
    """The method `astype`: it takes `order`, `casting`, `subok` and `copy` behind the dtype as
    NumPy's does, and leaves out `order` and `subok`, which say nothing of values."""
    if static or len(args) > 1:
        names = ("dtype", "order", "casting", "subok", "copy")
        if len(args) <= len(names):  # of more, the function says what is wrong
            static, args = dict(zip(names, args, strict=False)) | static, ()
        static.pop("order", None)
        static.pop("subok", None)
    return FUNCTIONS["astype"](self, *args, **static)


def _reflected(name: str) -> Callable[[A, object], A]:
    """Make a method that calls the public function `name` with `self` as the second operand."""

    def method(self: Any, other: object) -> Any:
        return FUNCTIONS[name](other, self) if is_array_like(other) else NotImplemented

    method.__name__ = name
    method.__doc__ = f"See `gdt.{name}`."
    return method


def _operator(name: str, of_others: bool | None = None) -> Callable[[A, object], A]:
    """Make an operator that calls the public function `name`.

    of_others: of a comparison, what each element is with None or text, which is no number.
    """

    def method(self: Any, other: object) -> Any:
        cls = type(other)
        if cls is not type(self) and cls not in COMMON_OPERANDS and not is_array_like(other):
            if of_others is not None and (other is None or isinstance(other, str | bytes)):
                return FUNCTIONS["full_like"](self, of_others, dtype=bool)
            return NotImplemented
        return UNCHECKED[name](self, other)

    method.__doc__ = f"See `gdt.{name}`."
    return method


def _in_place(name: str, symbol: str) -> Callable[[A, object], A]:
    """Make an operator that writes what the public function `name` returns to the array."""

    def method(self: Any, other: object) -> Any:
        if type(other) not in COMMON_OPERANDS and not is_array_like(other):
            return NotImplemented
        out = UNCHECKED[name](self, other)
        if out.type is not self.type:
            out = _as_kept(self, out, symbol)
        if self._shared is ELEMENT:
            return out
        rebind(self, out)
        return self

    method.__doc__ = f"`x {symbol} y` writes to `x`, as in NumPy; see `gdt.{name}`."
    return method


def _as_kept(x: Any, result: Any, symbol: str) -> Any:
    """The result of `x symbol y` in the dtype of `x`; an error for one that `x` cannot keep."""
    if result.shape != x.shape:
        raise error(
            ShapeError,
            symbol,
            f"the result has shape {list(result.shape)}, which does not fit the array on the left",
            operands={"left": x.type, "result": result.type},
        )
    if not castable(result.dtype, x.dtype, "same_kind"):
        raise error(
            DtypeError,
            symbol,
            f"a result of {result.dtype} cannot be kept as {x.dtype}",
            operands={"left": x.type, "result": result.type},
            remedy=f"Write x = x {symbol[:-1]} y to get a new array of {result.dtype}.",
        )
    return result if result.dtype == x.dtype else result.astype(x.dtype)


class ArrayMethods:
    """The operators and methods of a `DistributedArray` that call public functions on the array."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    __add__, __radd__, __iadd__ = (
        _operator("add"),
        _reflected("add"),
        _in_place("add", "+="),
    )
    __sub__, __rsub__ = _operator("subtract"), _reflected("subtract")
    __isub__ = _in_place("subtract", "-=")
    __mul__, __rmul__ = _operator("multiply"), _reflected("multiply")
    __imul__ = _in_place("multiply", "*=")
    __truediv__, __rtruediv__ = _operator("divide"), _reflected("divide")
    __itruediv__ = _in_place("divide", "/=")
    __floordiv__, __rfloordiv__ = (
        _operator("floor_divide"),
        _reflected("floor_divide"),
    )
    __ifloordiv__ = _in_place("floor_divide", "//=")
    __mod__, __rmod__ = _operator("remainder"), _reflected("remainder")
    __imod__ = _in_place("remainder", "%=")
    __pow__, __rpow__ = _operator("power"), _reflected("power")
    __ipow__ = _in_place("power", "**=")
    __matmul__, __rmatmul__ = _operator("matmul"), _reflected("matmul")
    __imatmul__ = _in_place("matmul", "@=")
    __and__, __rand__ = _operator("bitwise_and"), _reflected("bitwise_and")
    __or__, __ror__ = _operator("bitwise_or"), _reflected("bitwise_or")
    __xor__, __rxor__ = _operator("bitwise_xor"), _reflected("bitwise_xor")
    __lshift__, __rlshift__ = _operator("left_shift"), _reflected("left_shift")
    __rshift__, __rrshift__ = _operator("right_shift"), _reflected("right_shift")
    __iand__, __ior__ = _in_place("bitwise_and", "&="), _in_place("bitwise_or", "|=")
    __ixor__ = _in_place("bitwise_xor", "^=")
    __ilshift__, __irshift__ = _in_place("left_shift", "<<="), _in_place("right_shift", ">>=")
    __lt__, __le__ = _operator("less"), _operator("less_equal")
    __gt__, __ge__ = _operator("greater"), _operator("greater_equal")
    __eq__ = _operator("equal", False)  # type: ignore[assignment]  # object's returns a bool
    __ne__ = _operator("not_equal", True)  # type: ignore[assignment]
    __neg__, __pos__ = _forward("negative"), _forward("positive")
    __abs__, __invert__ = _forward("abs"), _forward("invert")
    __getitem__: Method  # `getitem` itself, which `gdt.ops.indexing` puts here
    __setitem__: ClassVar[Callable[[Any, Any, Any], None]]  # which `gdt.ops.writing` puts here

    def __divmod__(self: Any, other: Any) -> Any:
        return (self // other, self % other) if is_array_like(other) else NotImplemented

    def __rdivmod__(self: Any, other: Any) -> Any:
        if not is_array_like(other):
            return NotImplemented
        return self.__rfloordiv__(other), self.__rmod__(other)

    astype = _named(_astype, "astype")
    squeeze, conj, take = (_forward(n) for n in ("squeeze", "conj", "take"))
    conjugate, dot, repeat, view = conj, _forward("dot"), _forward("repeat"), _forward("view")
    argsort, argpartition = _forward("argsort"), _forward("argpartition")
    nonzero, choose, searchsorted = (_forward(n) for n in ("nonzero", "choose", "searchsorted"))
    swapaxes, diagonal, trace = _forward("swapaxes"), _forward("diagonal"), _forward("trace")
    sum, mean, prod, max, min = (_forward(n) for n in ("sum", "mean", "prod", "max", "min"))
    any, all, argmax, argmin = (_forward(n) for n in ("any", "all", "argmax", "argmin"))
    std, var, cumsum, cumprod = (_forward(n) for n in ("std", "var", "cumsum", "cumprod"))
    round, clip, ravel = _forward("round"), _forward("clip"), _forward("ravel")
    copy, relayout = _forward("copy"), _forward("relayout")
    _sorted, _partitioned = _forward("sort"), _forward("partition")  # new arrays
    _updated = _forward("update_at")

    def reshape(self, *shape: Any, **options: Any) -> Self:
        """See `gdt.reshape`; the sizes may be given one by one. options: its `order` and `copy`."""
        sizes = shape[0] if len(shape) == 1 else shape
        if options:
            return FUNCTIONS["reshape"](self, sizes, **options)
        return UNCHECKED["reshape"](self, shape=sizes)

    @checked
    def transpose(self, *axes: Any) -> Self:
        """See `gdt.transpose`; the axes may be given one by one."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        return FUNCTIONS["transpose"](self, axes=order)

    @checked
    def flatten(self, order: str = "C") -> Self:
        """The elements as an array of rank 1 of its own; `order` as of `gdt.reshape`."""
        return self.reshape(-1, order=order, copy=True)

    @checked
    def compress(self, condition: Any, axis: int | None = None) -> Self:
        """See `gdt.compress`."""
        out: Self = FUNCTIONS["compress"](condition, self, axis=axis)
        return out

    @property
    def real(self) -> Self:
        """The real part."""
        return UNCHECKED["real"](self)

    @real.setter
    def real(self: Any, value: Any) -> None:
        self.real[...] = value

    @property
    def imag(self) -> Self:
        """The imaginary part."""
        return UNCHECKED["imag"](self)

    @imag.setter
    def imag(self: Any, value: Any) -> None:
        self.imag[...] = value

    @property
    def T(self) -> Self:
        """The array with its axes reversed."""
        return UNCHECKED["transpose"](self)

    @property
    def mT(self) -> Self:
        """The array with its last two axes swapped."""
        x: Any = self  # with the facts of the class that inherits this one
        if x.ndim < 2:
            problem = f"rank {x.ndim} is not a matrix"
            raise error(RankError, "mT", problem, operands={"x": x.type})
        return self.transpose(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)


def is_array_like(value: object) -> bool:
    """Whether an operator accepts `value` as its other operand."""
    return isinstance(
        value, ArrayMethods | np.ndarray | np.generic | int | float | complex | list | tuple
    ) or (hasattr(value, "__dlpack__") or on_gpu(value))
