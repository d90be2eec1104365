"""Module: the base of layers and models, whose attributes are their parameters and parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from gdt.arguments import checked_class
from gdt.array.array import DistributedArray
from gdt.errors import CheckpointError, error
from gdt.ops.creation import asarray
from gdt.state import Facts, Stateful, check_untied, mismatches, parts, slots, trainable_slots


@checked_class()
class Module(Stateful):
    """Base of layers and models: arrays among its attributes are parameters, modules its parts.

    Modules may also lie in lists and dicts. A subclass is an `__init__` that makes the parameters
    and a `__call__` that computes; names come from the attributes, such as `dense1.weight` or
    `layers.0.bias`. Arrays listed in `untrained` are saved with the model and not trained; arrays
    under a name with a leading underscore are neither, and warned of.

    >>> class Scale(gdt.nn.Module):
    ...     def __init__(self):
    ...         self.factor = gdt.ones((3,))
    ...     def __call__(self, x):
    ...         return self.factor * x
    >>> model = Scale()
    >>> list(model.parameters()), model(gdt.asarray([1.0, 2.0, 3.0])).tolist()
    (['factor'], [1.0, 2.0, 3.0])
    """

    training: bool = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} defines no __call__")

    # ---- what it holds

    def parameters(self) -> dict[str, DistributedArray]:
        """The trainable arrays by name: what `GradientTape.gradient` and optimizers take.

        Raises DtypeError if two names hold one array.
        """
        found = trainable_slots(self)
        check_untied(found)
        return {slot.name: slot.value for slot in found}

    def named_parameters(self) -> Iterator[tuple[str, DistributedArray]]:
        """Name and array of every trainable parameter."""
        return iter(self.parameters().items())

    def state(self) -> dict[str, DistributedArray]:
        """All arrays by name, also those that are not trained, such as running moments."""
        return {s.name: s.value for s in slots(self) if isinstance(s.value, DistributedArray)}

    def load(self, state: Mapping[str, Any]) -> Self:
        """Take arrays over from `state`, in this module's layouts; returns the module.

        state: what `state()` of an equal module returned, on any mesh, or NumPy arrays by name.
        Raises CheckpointError that lists every name, shape and dtype that does not fit, and changes
        nothing then.
        """
        places = {s.name: s for s in slots(self) if isinstance(s.value, DistributedArray)}
        given = {
            name: value if isinstance(value, DistributedArray) else np.asarray(value)
            for name, value in state.items()
        }
        wrong = mismatches(_facts(self.state()), _facts(given))
        if wrong:
            raise error(
                CheckpointError,
                f"{type(self).__name__}.load",
                "the state does not fit the module\n  " + "\n  ".join(wrong),
            )
        new = {n: asarray(v, layout=places[n].value.layout) for n, v in given.items()}
        for name, slot in places.items():
            slot.owner[slot.key] = new[name]
        return self

    def modules(self) -> Iterator[tuple[str, Module]]:
        """This module under the name "", and all its parts by name, each once."""
        return _modules(self, "", set())

    # ---- mode

    def train(self, training: bool = True) -> Self:
        """Set the mode of this module and all its parts; returns the module. Modules begin in
        training."""
        for _, module in self.modules():
            module.training = training
        return self

    def eval(self) -> Self:
        """The mode that uses running moments and drops nothing; returns the module."""
        return self.train(False)

    def freeze(self, frozen: bool = True) -> Self:
        """Take this module's arrays out of `parameters()`, or put them back; returns the module."""
        self.trainable = not frozen
        return self

    # ---- text

    def describe(self) -> str:
        """What the first line of the repr says of this module beside its class."""
        return ""

    def __repr__(self) -> str:
        return "\n".join(_lines(self, "", {}, ""))


def _facts(state: Mapping[str, Any]) -> dict[str, Facts]:
    return {name: (value.shape, value.dtype.name) for name, value in state.items()}


def _parts(module: Module) -> Iterator[tuple[str, Module]]:
    """The modules that are attributes of a module, or lie in lists and dicts that are."""
    for name, part in parts(vars(module)):
        if isinstance(part, Module):
            yield name, part


def _modules(module: Module, name: str, seen: set[int]) -> Iterator[tuple[str, Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    yield name, module
    for inner, part in _parts(module):
        yield from _modules(part, f"{name}.{inner}" if name else inner, seen)


def _lines(module: Module, name: str, seen: dict[int, str], path: str) -> list[str]:
    """The text of a module, a line each; of one that was there before, its name alone."""
    label = f"{name}: " if name else ""
    if id(module) in seen:
        return [f"{label}{type(module).__name__}  (the same as {seen[id(module)]})"]
    seen[id(module)] = path or "the whole"
    trained = {id(s.value): s.value.size for s in trainable_slots(module)}
    frozen = "" if module.trainable else ", frozen"
    facts = f"({module.describe()})" if module.describe() else ""
    total = f"{sum(trained.values()):,} parameters"
    lines = [f"{label}{type(module).__name__}{facts}{frozen}  {total}"]
    for key, value in vars(module).items():
        if isinstance(value, DistributedArray):
            lines.append(f"  {key}: {value.type}{_note(module, key)}")
    for inner, part in _parts(module):
        below = f"{path}.{inner}" if path else inner
        lines += [f"  {line}" for line in _lines(part, inner, seen, below)]
    return lines


def _note(module: Module, key: str) -> str:
    """What is unusual about an array among a module's attributes."""
    if key[0] == "_":
        return "  (private: neither trained nor saved)"
    return "  (not trained)" if key in module.untrained else ""
