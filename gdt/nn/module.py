"""Module: the base of layers and models, whose arrays and modules are its attributes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gdt.arguments import checked_class, shown_value
from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, CheckpointError, error
from gdt.nn.compiling import Compilable
from gdt.nn.symbol import call as symbol_of_call
from gdt.nn.symbol import is_symbolic
from gdt.ops.creation import asarray
from gdt.sharding.default_mesh import default_mesh
from gdt.sharding.displayed import Displayed
from gdt.sharding.mesh import Mesh
from gdt.state import Facts, check_untied, mismatches, places, slots, trainable_slots


@dataclass(frozen=True)
class Home:
    """The place of the models of a scope, also when they run outside of it: their mesh, and the
    axes of it that split the rows of batches; None for the first one."""

    mesh: Mesh
    batch_axes: tuple[str, ...] | None = None


_SCOPE: ContextVar[tuple[Home, list[Module] | None] | None] = ContextVar("gdt.scope", default=None)


@contextmanager
def making_models(home: Home, modules: list[Module] | None = None) -> Iterator[None]:
    """Give a home to the modules that this `with` block makes, and add them to `modules`; None
    adds them to the list of the block around it, if there is one."""
    around = _SCOPE.get()
    token = _SCOPE.set((home, around[1] if modules is None and around is not None else modules))
    try:
        with default_mesh(home.mesh):
            yield
    finally:
        _SCOPE.reset(token)


def join_scope(module: Module) -> None:
    """Let the scope that is open, if there is one, know a module that was made in it."""
    scope = _SCOPE.get()
    if scope is not None:
        home, modules = scope
        vars(module)["_home"] = home
        if modules is not None:
            modules.append(module)


@checked_class("__new__")
class Module(Compilable, Displayed):
    """The base of layers and models.

    A subclass has an `__init__` that creates the parameters and a `__call__` that computes. Arrays
    among its attributes are its parameters, modules its parts, also in lists and dicts. Their names
    come from the attributes, such as `dense1.weight` or `layers.0.bias`. Arrays whose attributes
    are listed in `untrained` are saved with the model but not trained. Arrays under a name with a
    leading underscore are neither, and give a warning.

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
    compute_dtype: str | None = None  # of the layer's products; see `gdt.nn.mixed_precision`
    gathers_parts: bool = False  # whether none of its parts is a unit of a LayoutMap
    _home: Home | None = None  # that of the scope in which the module was made

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make a module, which belongs to the scope that is open.

        Raises ArgumentError for arguments of a class that has no `__init__`."""
        if (args or kwargs) and cls.__init__ is object.__init__:
            shown = [*map(shown_value, args), *(f"{n}={shown_value(v)}" for n, v in kwargs.items())]
            problem = f"it takes no arguments, and {shown[0]} is given"
            raise error(ArgumentError, cls.__name__, problem)
        module = super().__new__(cls)
        join_scope(module)
        return module

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__call__" in vars(cls):
            cls.__call__ = _placed(cls.__call__)  # type: ignore[method-assign]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        text = f"{type(self).__name__} defines no __call__"
        others = [name for name in ("call", "forward") if hasattr(type(self), name)]
        raise NotImplementedError(text + (f"; rename its {others[0]}" if others else ""))

    # ---- parameters and parts

    def parameters(self) -> dict[str, DistributedArray]:
        """Return the trainable arrays by name, as gradients and optimizers take them.

        Raises DtypeError if two names hold one array.

        >>> list(gdt.nn.Sequential(gdt.nn.Dense(3, 4)).parameters())
        ['layers.0.weight', 'layers.0.bias']
        """
        parameter_slots = trainable_slots(self)
        check_untied(parameter_slots)
        return {slot.name: slot.owner[slot.key] for slot in parameter_slots}

    def named_parameters(self) -> Iterator[tuple[str, DistributedArray]]:
        """Return an iterator of the name and array of every trainable parameter.

        >>> [(name, x.shape) for name, x in gdt.nn.Dense(3, 4).named_parameters()]
        [('weight', (3, 4)), ('bias', (4,))]
        """
        return iter(self.parameters().items())

    def state(self) -> dict[str, DistributedArray]:
        """Return all arrays by name, also those that are not trained, such as running moments.

        >>> list(gdt.nn.BatchNorm(4).state())
        ['scale', 'offset', 'moving_mean', 'moving_variance']
        """
        return {s.name: s.value for s in slots(self) if isinstance(s.value, DistributedArray)}

    def load(self, state: Mapping[str, Any]) -> Self:
        """Replace this module's arrays by those of `state`, in this module's layouts; return it.

        state: arrays by name, NumPy's or as `state()` of an equal module on any mesh returned them.

        Raises CheckpointError, which lists every name, shape and dtype that does not fit; then
        nothing is changed.

        >>> one, other = gdt.nn.Dense(3, 4, key=1), gdt.nn.Dense(3, 4, key=2)
        >>> bool((one.load(other.state()).weight == other.weight).all())
        True
        """
        array_slots = {s.name: s for s in slots(self) if isinstance(s.value, DistributedArray)}
        values = {
            name: value if isinstance(value, DistributedArray) else np.asarray(value)
            for name, value in state.items()
        }
        wrong = mismatches(_facts(self.state()), _facts(values))
        if wrong:
            raise error(
                CheckpointError,
                f"{type(self).__name__}.load",
                "the state does not fit the module\n  " + "\n  ".join(wrong),
            )
        # Copies, since a later write into an array of `state` is none of this module.
        arrays = {
            n: asarray(v, layout=array_slots[n].value.layout, copy=True) for n, v in values.items()
        }
        for name, slot in array_slots.items():
            slot.owner[slot.key] = arrays[name]
        return self

    def modules(self) -> Iterator[tuple[str, Module]]:
        """Return an iterator of (name, module): this module under "", and all its parts, once.

        >>> [name for name, _ in gdt.nn.Sequential(gdt.nn.Dense(3, 4)).modules()]
        ['', 'layers.0']
        """
        seen: set[int] = set()
        parts = [("", self), *[(p.name, p.value) for p in places(self)]]
        for name, part in parts:
            if isinstance(part, Module) and id(part) not in seen:
                seen.add(id(part))
                yield name, part

    # ---- mode

    def train(self, training: bool = True) -> Self:
        """Set the mode of this module and all its parts to training (the first mode of a module) or
        evaluation; return the module.

        >>> gdt.nn.Dropout(0.5).train(False).training
        False
        """
        for _, module in self.modules():
            module.training = training
        return self

    def eval(self) -> Self:
        """Set the mode that uses running moments and drops nothing; return the module.

        >>> gdt.nn.Dropout(0.5, key=0).eval()(gdt.ones(2)).tolist()
        [1.0, 1.0]
        """
        return self.train(False)

    @contextmanager
    def in_mode(self, training: bool) -> Iterator[Self]:
        """Set the mode inside the `with` block, and restore every part's own after it.

        >>> model = gdt.nn.Dropout(0.5, key=0)
        >>> with model.in_mode(training=False):
        ...     model(gdt.ones((2,))).tolist()
        [1.0, 1.0]
        """
        modes = [(module, module.training) for _, module in self.modules()]
        self.train(training)
        try:
            yield self
        finally:
            for module, mode in modes:
                module.training = mode

    @property
    def trainable(self) -> bool:
        """Whether the module's arrays are trained; setting it sets it of all parts, as in Keras."""
        return bool(vars(self).get("trainable", True))

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        for _, module in self.modules():
            vars(module)["trainable"] = bool(trainable)

    def freeze(self, frozen: bool = True) -> Self:
        """Exclude the arrays of this module and its parts from `parameters()`, or include them;
        return the module.

        A frozen `BatchNorm` uses its running moments, and keeps them as they are.

        >>> model = gdt.nn.Sequential(gdt.nn.Dense(3, 4), gdt.nn.Dense(4, 1))
        >>> _ = model[0].freeze()
        >>> list(model.parameters())
        ['layers.1.weight', 'layers.1.bias']
        """
        self.trainable = not frozen
        return self

    # ---- text

    def describe(self) -> str:
        """Return the text that follows the class in the first line of the repr.

        >>> gdt.nn.Dense(3, 4).describe()
        '3 -> 4, linear'
        """
        return ""

    def __repr__(self) -> str:
        return "\n".join(_lines(self, "", {}, ""))


def _placed(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls a module with its arrays and its result in the layouts that a
    LayoutMap has given them; with symbols it returns a symbol."""

    @functools.wraps(call)
    def placed(self: Module, *args: Any, **kwargs: Any) -> Any:
        if is_symbolic(args):
            return symbol_of_call(self, *args, **kwargs)
        if self._placement is None:  # two calls, since the first takes less time
            return call(self, *args, **kwargs) if kwargs else call(self, *args)
        return self._placement.call(call, self, *args, **kwargs)

    return placed


def _facts(state: Mapping[str, Any]) -> dict[str, Facts]:
    """Return the shape and the name of the dtype of every array."""
    return {name: (value.shape, value.dtype.name) for name, value in state.items()}


def parts(module: Module) -> Iterator[tuple[str, Module]]:
    """The modules that are attributes of a module, or lie in containers that are."""
    for place in places(module):
        if place.stateful is module and isinstance(place.value, Module):
            yield place.name, place.value


def heading(module: Module, name: str, seen: Mapping[int, str]) -> str:
    """Return the first line of a module's repr.

    name: the module's name in the module around it. seen: the names of the modules shown before, by
    identity."""
    label = f"{name}: " if name else ""
    if id(module) in seen:
        return f"{label}{type(module).__name__}  (the same as {seen[id(module)]})"
    trained = {id(s.value): s.value.size for s in trainable_slots(module)}
    frozen = "" if module.trainable else ", frozen"
    facts = f"({module.describe()})" if module.describe() else ""
    total = f"{sum(trained.values()):,} parameters"
    return f"{label}{type(module).__name__}{facts}{frozen}  {total}"


def _lines(module: Module, name: str, seen: dict[int, str], path: str) -> list[str]:
    """Return the lines of a module's repr; one line for a module that has been shown before.

    seen: the names of the modules shown before, by identity. path: the name of `module` in the
    whole model.
    """
    lines = [heading(module, name, seen)]
    if id(module) in seen:
        return lines
    seen[id(module)] = path or "the whole"
    for key, value in vars(module).items():
        if isinstance(value, DistributedArray):
            lines.append(f"  {key}: {value.type}{note(module, key)}")
    for inner, part in parts(module):
        below = f"{path}.{inner}" if path else inner
        lines += [f"  {line}" for line in _lines(part, inner, seen, below)]
    return lines


def note(module: Module, key: str) -> str:
    """Return a note for an array that is not trained or not saved, else ""."""
    if key[0] == "_":
        return "  (private: neither trained nor saved)"
    return "  (not trained)" if key in module.untrained else ""
