"""Arguments that do not fit a public function: explained when the call fails, free when it runs.

`checked` wraps a function. If a call of it raises one of Python's own errors, the arguments are
compared with the function's signature and annotations; the first that does not fit is named in an
ArgumentError. An error for which no argument is to blame is passed on as it is.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from gdt.errors import (
    ArgumentError,
    DeviceError,
    GdtError,
    LinAlgError,
    RangeError,
    error,
    type_text,
)
from gdt.errors.foreign_names import remedy_for

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)
P = ParamSpec("P")
R = TypeVar("R")

MISFITS = (
    TypeError, ValueError, AttributeError, LookupError, OverflowError, ZeroDivisionError,
    RecursionError, MemoryError,
)  # fmt: skip
"""What Python and NumPy raise where a value is not of the kind or size that code expects. (A
FloatingPointError is what a user asks NumPy for.)"""


def checked(function: F, name: str = "", *, eager: bool = False) -> F:
    """`function`, with ArgumentError where its arguments are to blame for an error of Python's.

    name: what errors call it; its own name if not given. eager: whether the arguments are compared
    with the annotations before the call, for functions that keep them for later.

    >>> gdt.diagonal([[1, 2]], offset="one")
    Traceback (most recent call last):
    gdt.errors.ArgumentError: diagonal: offset is 'one', not int
    """
    own = function.__name__
    name = name or (own if own.startswith("__") else own.rstrip("_"))
    run = compared_first(function, name) if eager else function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            # Two calls, since the first, which is the common one, takes less time.
            return run(*args, **kwargs) if kwargs else run(*args)
        except GdtError:
            raise
        except MISFITS as cause:
            misfit_error = blamed(function, _shown_name(function, name, args), args, kwargs, cause)
            if misfit_error is None:
                raise
            raise misfit_error from cause

    return call  # type: ignore[return-value]


def same_arguments(
    model: Callable[P, Any], *, eval_str: bool = False
) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """A decorator of a function that hands its arguments on: `help`, type checkers and checks of
    arguments take them for those of `model`.

    eval_str: whether the signature holds annotations evaluated, as that of an op does.

    >>> import inspect
    >>> inspect.signature(gdt.std) == inspect.signature(gdt.var)
    True
    """
    parameters = inspect.signature(model, eval_str=True).parameters.values()
    hints = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        described: Any = function
        described.__signature__ = inspect.signature(model, eval_str=eval_str)
        described.__annotations__ = hints
        return function

    return decorate


def compared_first(function: F, name: str = "") -> F:
    """`function`, called only if its arguments fit; the errors of its own are passed on.

    name: what errors call it; its own name if not given.
    """
    name = name or function.__name__

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        wrong = misfit(function, _shown_name(function, name, args), args, kwargs)
        if wrong is not None:
            raise wrong
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def _shown_name(function: Callable[..., Any], name: str, args: Sequence[Any]) -> str:
    """Return the name of a call in errors: a constructor, or a call, that is inherited goes by the
    name of the object's class."""
    is_of_class = function.__name__ in ("__init__", "__call__") and args
    return type(args[0]).__name__ if is_of_class else name


def checked_class(*hot: str, eager: bool = False) -> Callable[[C], C]:
    """A decorator of a class that checks its constructor and its public methods.

    hot: methods to leave unchecked, because they run often. eager: whether the constructor's
        arguments are compared with their annotations before it runs.
    """

    def decorate(cls: C) -> C:
        for attribute, member in list(vars(cls).items()):
            if attribute in hot or not (attribute in CONSTRUCTORS or attribute[0] != "_"):
                continue
            name = cls.__name__ + CONSTRUCTORS.get(attribute, f".{attribute}")
            if isinstance(member, classmethod | staticmethod):
                setattr(cls, attribute, type(member)(checked(member.__func__, name)))
            elif inspect.isfunction(member):
                early = eager and attribute == "__init__"
                setattr(cls, attribute, checked(member, name, eager=early))
        return cls

    return decorate


CONSTRUCTORS = {
    "__init__": "",
    "__new__": "",
    "__call__": "",
    "__getitem__": "[...]",
    "__setitem__": "[...]",
}


def misfit(
    function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> ArgumentError | None:
    """An error that names the first argument that does not fit the signature or the annotations;
    None if all fit."""
    known = _signature(function)
    by_name = {**dict(zip(known.positional, args, strict=False)), **kwargs}
    is_bound = len(by_name) == len(args) + len(kwargs)
    if is_bound and known.required <= by_name.keys() <= known.names:
        return misfit_value(function, name, by_name)
    signature = known.signature
    try:
        arguments = signature.bind(*args, **kwargs).arguments
    except TypeError as cause:
        names = ", ".join(p for p in signature.parameters if p not in ("self", "cls"))
        lines = [remedy_for(kwargs, signature.parameters), f"Its arguments are ({names})."]
        remedy = "\n  ".join(filter(None, lines))
        return error(ArgumentError, name, str(cause), remedy=remedy)
    values: dict[str, Any] = {}
    for parameter, value in arguments.items():
        if signature.parameters[parameter].kind is inspect.Parameter.VAR_POSITIONAL:
            values |= {f"{parameter}[{i}]": v for i, v in enumerate(value)}
        elif signature.parameters[parameter].kind is not inspect.Parameter.VAR_KEYWORD:
            values[parameter] = value
    return misfit_value(function, name, values)


def misfit_value(
    function: Callable[..., Any], name: str, values: Mapping[str, Any]
) -> ArgumentError | None:
    """An error that names the first of these arguments that does not fit its annotation; None if
    all fit."""
    hints = _signature(function).hints
    for label, value in values.items():
        hint = hints.get(label.split("[")[0], Any)
        if not fits(value, hint):
            annotation = inspect.formatannotation(hint).replace("collections.abc.", "")
            problem = f"{label} is {shown_value(value)}, not {annotation.replace('typing.', '')}"
            return error(ArgumentError, name, problem)
    return None


def blamed(
    function: Callable[..., Any],
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    cause: Exception,
) -> GdtError | None:
    """The error to raise in place of `cause`, an error of Python's that the arguments caused.

    None if a function or a mapping of the user's may have raised `cause`, which is then passed on.
    """
    if isinstance(cause, MemoryError):
        return out_of_memory(name, cause)
    misfit_error = misfit(function, name, args, kwargs)
    if misfit_error is not None:
        return misfit_error
    arguments = _signature(function).signature.bind(*args, **kwargs).arguments
    attributes = (
        vars(arguments["self"]).values() if hasattr(arguments.get("self"), "__dict__") else ()
    )
    takes_functions = any("Callable" in str(h) for h in _signature(function).hints.values())
    if takes_functions or any(map(callable, attributes)) or isinstance(cause, LookupError):
        return None
    return of_all_arguments(name, arguments, cause)


def of_all_arguments(name: str, arguments: Mapping[str, Any], cause: Exception) -> GdtError:
    """An error that says that these arguments do not go together, or what is wrong with one."""
    operands = {
        parameter: shown_value(v) for parameter, v in arguments.items() if parameter != "self"
    }
    if isinstance(cause, np.linalg.LinAlgError):
        return error(
            LinAlgError, f"linalg.{name.removesuffix('_of_whole')}", str(cause), operands=operands
        )
    if isinstance(cause, OverflowError):
        return error(RangeError, name, str(cause), operands=operands)
    problem = f"cannot take these arguments ({type(cause).__name__}: {cause})"
    return error(ArgumentError, name, problem, operands=operands)


class _Signature:
    """The signature and the annotations of a function.

    positional: the names of the parameters that arguments without a name are bound to. names: those
    of all parameters; none if some have no name of their own, as those of `*args`. required: those
    of the parameters without a default.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.signature = inspect.signature(function)
        parameters = self.signature.parameters.values()
        are_named = all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters)
        self.positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        self.names = frozenset([p.name for p in parameters if are_named])
        self.required = frozenset([p.name for p in parameters if p.default is p.empty])
        try:
            self.hints = typing.get_type_hints(function)
        except NameError:  # a name that is imported for type checkers alone
            self.hints = {}


def _signature(function: Callable[..., Any]) -> _Signature:
    """The signature of a function, inspected once for as long as the function lives."""
    signature = _SIGNATURES.get(function)
    if signature is None:
        signature = _SIGNATURES[function] = _Signature(function)
    return signature


_SIGNATURES = weakref.WeakKeyDictionary[Callable[..., Any], _Signature]()


def check_takes(op: str, name: str, function: Callable[..., Any], *arguments: str) -> None:
    """Raise ArgumentError for a function that cannot be called with as many arguments.

    name, arguments: what the error calls the function, and what it is called with."""
    try:
        inspect.signature(function).bind(*arguments)
    except ValueError:  # of a function without a signature nothing is known
        return
    except TypeError as cause:
        problem = f"{name} is no function of ({', '.join(arguments)}): {cause}"
        raise error(ArgumentError, op, problem) from None


def shown_value(value: object) -> str:
    """A value as errors show it: itself if that is short, else its type."""
    if isinstance(value, str | int | float | complex | bool | None | np.generic):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    kind = getattr(value, "type", None)
    return type_text(value) if kind is None else str(kind)


def out_of_memory(name: str, cause: MemoryError) -> DeviceError:
    """An error that says that the host's memory does not suffice for the result of `name`."""
    return error(DeviceError, name, f"not enough memory ({cause})")


# ---------------------------------------------------------------- values and annotations


NUMBERS = {
    int: (int, np.integer),
    float: (int, float, np.integer, np.floating),
    complex: (int, float, complex, np.number),
}


def fits(value: object, hint: Any) -> bool:
    """Whether a value fits an annotation. Every value fits one that names no class, such as Any."""
    if hint is Any or isinstance(hint, TypeVar | str):
        return True
    if hint is None or hint is type(None):
        return value is None
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, h) for h in inside)
    if origin is typing.Literal:
        return value in inside
    if hint in NUMBERS:
        return isinstance(value, NUMBERS[hint]) and not isinstance(value, bool | np.bool_)
    kind = origin or hint
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    if not isinstance(value, kind) or (kind is Sequence and isinstance(value, str)):
        return False
    return _fits_inside(value, kind, inside)


def _fits_inside(value: Any, kind: type, inside: tuple[Any, ...]) -> bool:
    """Whether the elements of a container fit the annotations `inside` that of the container."""
    if not inside:
        return True
    if issubclass(kind, Mapping):
        return all(fits(k, inside[0]) and fits(v, inside[1]) for k, v in value.items())
    if kind is tuple and inside[-1] is not Ellipsis:
        return len(value) == len(inside) and all(map(fits, value, inside))
    return not issubclass(kind, Sequence) or all(fits(v, inside[0]) for v in value)
