"""The classes and functions that files may name."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np

from gdt.array.registry import FUNCTIONS
from gdt.errors import ArgumentError, error
from gdt.metrics import Metric
from gdt.nn import initializers, losses
from gdt.nn.model import Call, Result, _Held
from gdt.nn.module import Module
from gdt.nn.parameters import ParameterSpec
from gdt.nn.placement import LayoutToCome, Placement, UsedArray
from gdt.optim import schedules
from gdt.optim.optimizer import Optimizer
from gdt.sharding.dtypes import BFLOAT16
from gdt.training import measuring
from gdt.training.callbacks import AdjustableRate

T = TypeVar("T")
OWN: dict[str, Any] = {}
"""What programs have registered, by name."""

HELPERS = (
    ParameterSpec, Call, Result, _Held, Placement, UsedArray, LayoutToCome,
    AdjustableRate,
    schedules.ExponentialDecay, schedules.CosineDecay, schedules.LinearDecay,
    schedules.PiecewiseConstant, schedules.Warmup,
)  # fmt: skip
"""Classes that attributes of modules and optimizers are of."""


def register(thing: T | None = None, *, name: str | None = None) -> Any:
    """Let files name a class of modules, or a function, of the program: a decorator.

    name: the name in files; by default that of the class or function. A program that loads such a
    file registers the same names first.

    Raises ArgumentError for a name that another class or function has, and for what has no name.

    >>> @gdt.saving.register
    ... class Halved(gdt.nn.Module):
    ...     def __call__(self, x):
    ...         return x / 2
    """
    if thing is None:
        return lambda other: register(other, name=name)
    name = name or getattr(thing, "__qualname__", "").rpartition(".")[2]
    if not callable(thing) or not name or name == "<lambda>":
        problem = f"{thing!r} is no class or function with a name"
        raise error(ArgumentError, problem, remedy="Pass name=...")
    other_thing = OWN.get(name)
    if other_thing is not None and _origin(other_thing) != _origin(thing):
        problem = f"{name!r} is the name of {_origin(other_thing)} already"
        raise error(ArgumentError, problem, remedy="Pass another name=...")
    OWN[name] = thing
    return thing


def _origin(thing: Any) -> str:
    """Return where a class or function was defined; one that is defined again is the same."""
    return f"{thing.__module__}.{getattr(thing, '__qualname__', '')}"


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def things() -> dict[str, Any]:
    """Return the classes and functions that files may name, of gdt and of the program."""
    own = [c for base in (Module, Optimizer, Metric) for c in _subclasses(base)]
    classes = [c for c in own if c.__module__.startswith("gdt.")]
    by_name: dict[str, Any] = {f"{c.__module__}.{c.__qualname__}": c for c in (*classes, *HELPERS)}
    by_name |= {f"gdt.{n}": f for n, f in FUNCTIONS.items()}
    by_name |= {f"gdt.nn.initializers.{n}": f for n, f in initializers.INITIALIZERS.items()}
    by_name |= {f"gdt.nn.losses.{f.__name__}": f for f in losses.NAMES.values()}
    by_name |= {f"gdt.metrics.{c.__name__}": c for c in classes if issubclass(c, Metric)}
    functions = {n: f for n, f in measuring.NAMES.items() if not isinstance(f, type)}
    by_name |= {f"gdt.metrics.{n}": f for n, f in functions.items()}
    by_name["gdt.metrics.binary_accuracy_of_logits"] = measuring.binary_accuracy_of_logits
    operators = ("add", "sub", "mul", "truediv", "matmul", "pow", "neg", "getitem")
    by_name |= {f"operator.{n}": getattr(operator, n) for n in operators}
    return by_name | {f"own:{name}": thing for name, thing in OWN.items()}


DTYPES = {
    t: t.__name__
    for t in (
        np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
        BFLOAT16.type, np.float16, np.float32, np.float64, np.complex64, np.complex128,
        bool, int, float, complex,
    )
}  # fmt: skip
"""Types of elements by their names in files."""
