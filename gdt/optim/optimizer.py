"""Optimizer, the base of all optimizers: state in the layouts of the parameters, and `update`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from gdt.arguments import checked_class, shown_value
from gdt.array.array import DistributedArray
from gdt.array.moving import move_to_layouts
from gdt.engine.declaration import wide_types
from gdt.errors import ArgumentError, DtypeError, ShapeError, error, type_text
from gdt.observe import from_host
from gdt.ops.creation import ones, zeros_like
from gdt.ops.elementwise import astype, conj, real_
from gdt.ops.movement import relayout
from gdt.optim.noted_steps import Gradients, NoteStep, Owner, Owners, Scalars, Updates, in_one_order
from gdt.optim.schedules import Schedule
from gdt.sharding import processes
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import INEXACT
from gdt.sharding.layout import Layout
from gdt.state import PARAMETERS, Slot, Stateful, reasons, slots, trainable_slots
from gdt.state.trees import Tree


@checked_class(
    "targets", "prepare", "begin_step", "take_step", "scalars", "apply", "step", eager=True
)
class Optimizer(Stateful):
    """The base of all optimizers; a subclass defines `apply`, and `state_names` if it has state.

    learning_rate: a float, or a schedule, a function from the number of earlier updates to a float.

    `apply(gradient, parameter, state, rate)` returns the new parameter and puts new arrays into
    `state`, a dict of one array for each name in `state_names`, which begin as zeros. It is written
    with gdt's functions. All arrays are whole, in the parameter's dtype (float32 for bfloat16), and
    what it makes is stored in the dtype and the layout of what it replaces. The rate is a scalar
    array, since it differs from step to step. Other such numbers, as of the counter `steps`, come
    from a method `scalars(rate)`, which returns a tuple of floats, and are passed on as arrays.

    `steps` counts the updates. `state[s][name]` is the array called s in `state_names` that belongs
    to the parameter `name`, in the parameter's layout. Both are saved with `gdt.checkpoint`. State
    belongs to the names of parameters, since their arrays are replaced in every step: give each
    model an optimizer of its own, and call `init` before using one for another model.

    Raises ArgumentError for a learning rate that is negative or not finite.

    >>> class SignDescent(gdt.optim.Optimizer):
    ...     state_names = ("m",)
    ...     def apply(self, gradient, parameter, state, rate):
    ...         state["m"] = 0.5 * state["m"] + gradient
    ...         return parameter - rate * gdt.sign(state["m"])
    >>> parameters = {"w": gdt.asarray([1.0, 1.0])}
    >>> SignDescent(0.25).update(parameters, {"w": gdt.asarray([3.0, -2.0])})
    >>> parameters["w"].tolist()
    [0.75, 1.25]
    """

    trainable = False  # the state has no parameters
    counters: ClassVar[tuple[str, ...]] = ("steps",)
    state_names: ClassVar[tuple[str, ...]] = ()  # of the arrays that belong to every parameter

    def __init__(self, learning_rate: float | Schedule) -> None:
        self.check(
            callable(learning_rate) or 0 <= learning_rate < float("inf"),
            f"learning_rate is {learning_rate!r}",
            "Pass a finite number of at least 0, or a schedule.",
        )
        self.learning_rate = learning_rate
        self.steps = 0
        self.state: dict[str, dict[str, DistributedArray]] = {s: {} for s in self.state_names}

    def check(self, holds: bool, problem: str, remedy: str) -> None:
        """Raise ArgumentError, of the optimizer's class, unless its arguments hold."""
        if not holds:
            raise error(ArgumentError, type(self).__name__, problem, remedy=remedy)

    def init(self, parameters: Tree) -> Optimizer:
        """Reset the optimizer for these parameters: no steps, state of zeros; return the optimizer.

        parameters: a Module, or a dict or list of arrays. The first `update` does the same; call
        `init` before a checkpoint is restored into the optimizer. Raises ArgumentError if there is
        no parameter.

        >>> gdt.optim.Adam().init({"w": gdt.ones(2)}).state["m"]["w"].tolist()
        [0.0, 0.0]
        """
        self.steps = 0
        for arrays in self.state.values():
            arrays.clear()
        self.follow(in_order(self.targets("init", parameters)))
        return self

    def __repr__(self) -> str:
        names = list(inspect.signature(type(self)).parameters)
        shown = [f"{name}={vars(self)[name]!r}" for name in names if name in vars(self)]
        return f"{type(self).__name__}({', '.join(shown)}) after {self.steps} steps"

    def targets(self, method: str, tree: Tree) -> list[Slot]:
        """Return the slots of the parameters, or raise ArgumentError if there is none."""
        parameters = _flat_slots(tree) if type(tree) is dict else None
        if parameters is None:
            parameters = trainable_slots(tree)
        if not parameters:
            op = f"{type(self).__name__}.{method}"
            problem = f"there is nothing to train: the {type(tree).__name__} has no parameters"
            raise error(ArgumentError, op, problem, operands=reasons(tree), remedy=PARAMETERS)
        return parameters

    def update(self, parameters: Tree, gradients: Tree) -> None:
        """Take one step: put updated arrays in the place of the parameters.

        parameters: a Module, or a dict or list of arrays.
        gradients: as `GradientTape.gradient` returns them for the parameters. A gradient in another
            layout is moved to that of its parameter's state; None leaves its parameter as it is.
            Gradients of complex parameters are conjugated here, since the loss grows along the
            conjugate.

        An array to which anything else refers keeps its values. Raises ShapeError if gradients are
        missing, or if gradients or state have other shapes than the parameters, and ArgumentError
        if there is no parameter; then nothing is changed.

        >>> model = {"w": gdt.asarray([1.0, 2.0])}
        >>> gdt.optim.SGD(0.5).update(model, {"w": gdt.asarray([1.0, 0.0])})
        >>> model["w"].tolist()
        [0.5, 2.0]
        """
        targets = self.targets("update", parameters)
        self.take_step(*self.prepare(targets, by_name(gradients)))

    def scaled(self, loss: DistributedArray) -> DistributedArray:
        """Return the loss to take the gradient of: itself, but for `LossScaling`.

        >>> optimizer = gdt.optim.LossScaling(gdt.optim.SGD(0.1), scale=8.0)
        >>> float(optimizer.scaled(gdt.asarray(2.0)))
        16.0
        """
        return loss

    def unscaled(self, gradients: Tree) -> Tree:
        """Return the gradients of the loss, of those of the scaled loss: themselves, but for
        `LossScaling`.

        >>> optimizer = gdt.optim.LossScaling(gdt.optim.SGD(0.1), scale=8.0)
        >>> loss = optimizer.scaled(gdt.asarray(2.0))
        >>> float(optimizer.unscaled({"w": gdt.asarray(16.0)})["w"])
        2.0
        """
        return gradients

    def prepare(self, targets: Sequence[Slot], gradients: Mapping[str, Any]) -> Updates:
        """Return the owners and gradients of these parameters, after moving gradients and state to
        the layouts of the parameters."""
        updates = self._fitting(targets, gradients)
        if updates is None:
            # What moves travels together: processes may have filled dicts in other orders.
            ordered = in_order(targets)
            gradients = self._moved(ordered, gradients)
            self.follow(ordered)
            states = self.state.values()
            updated = [(s, g) for s in targets if (g := gradients[s.name]) is not None]
            owners = [[(s.owner, s.key), *[(x, s.name) for x in states]] for s, _ in updated]
            updates = owners, [g for _, g in updated]
        return updates

    def _fitting(self, targets: Sequence[Slot], gradients: Mapping[str, Any]) -> Updates | None:
        """Return the owners and gradients where gradients and state have the types of real
        parameters, as they do in nearly all steps; else None."""
        owners: list[list[Owner]] = []
        arrays: list[DistributedArray] = []
        states = self.state.values()
        for name, owner, key, _, _, _, state_layout in targets:
            array_type, g = owner[key].type, gradients.get(name)
            if g is None or g.type is not array_type or array_type.dtype.kind != "f":
                return None
            group: list[Owner] = [(owner, key)]
            for kept in states:
                if name not in kept or kept[name].type is not array_type:
                    return None
                group.append((kept, name))
            if state_layout is not None:
                return None
            owners.append(group)
            arrays.append(g)
        return (owners, arrays) if len(arrays) == len(gradients) else None

    def take_step(self, owners: list[list[Owner]], gradients: list[DistributedArray]) -> None:
        """Count a step, and update every parameter, in the layout of its gradient, as `prepare`
        returns them."""
        owners, gradients, scalars = self.begin_step(owners, gradients)
        whole = [  # parameters whose state is split further
            (mapping, key, mapping[key].layout, g.layout)
            for ((mapping, key), *_), g in zip(owners, gradients, strict=True)
            if mapping[key].type is not g.type
        ]
        if not whole:
            self.step(scalars, owners, gradients)
            return
        for mapping, key, _, layout in whole:
            mapping[key] = relayout(mapping[key], layout).copy()  # a view would keep the whole
        try:
            self.step(scalars, owners, gradients)
        finally:
            parts = [mapping[key] for mapping, key, _, _ in whole]
            parameters = move_to_layouts(parts, [layout for _, _, layout, _ in whole])
            for (mapping, key, _, _), parameter in zip(whole, parameters, strict=True):
                mapping[key] = parameter

    def begin_step(
        self, owners: list[list[Owner]], gradients: list[DistributedArray]
    ) -> tuple[list[list[Owner]], list[DistributedArray], Scalars]:
        """Count a step; return owners and gradients, in an order that is the same in all processes,
        and the step's scalars."""
        note_step: NoteStep | None = None
        if processes.current().count > 1 and gradients:
            owners, gradients, note_step = in_one_order(owners, gradients)
        scalars = from_host(type(self).__name__, partial(self._begin_step, note_step))
        return owners, gradients, scalars

    def _begin_step(self, note_step: NoteStep | None) -> Scalars:
        """Count the step, note it for several processes to compare, and return its scalars."""
        rate: Any = self.learning_rate
        rate = rate(self.steps) if callable(rate) else rate
        try:
            value = float(rate)
        except (TypeError, ValueError):
            value = np.nan
        if not 0 <= value < np.inf:
            problem = f"the learning rate of step {self.steps + 1} is {shown_value(rate)}"
            remedy = "It is a finite number of at least 0."
            raise error(ArgumentError, type(self).__name__, problem, remedy=remedy)
        vars(self)["steps"] += 1  # the observers of the counter have been told by `from_host`
        scalars = self.scalars(value)
        if note_step is not None:
            flags = sorted(f" {name}" for name, value in vars(self).items() if value is True)
            note_step(f"step {self.steps} of {type(self).__name__}{''.join(flags)}", scalars)
        return scalars

    def scalars(self, rate: float) -> Scalars:
        """Return the scalars of step number `self.steps` at the learning rate `rate`."""
        return (rate,)

    def apply(
        self, gradient: DistributedArray, parameter: DistributedArray, state: Any, *scalars: Any
    ) -> DistributedArray:
        """Return the new value of a parameter, and put new arrays into its `state`, a dict by the
        names in `state_names`. See the class for what a subclass may do here."""
        raise NotImplementedError(f"{type(self).__name__} defines no apply")

    def step(self, scalars: Scalars, owners: Owners, gradients: Gradients) -> None:
        """Update every parameter by `apply`; an optimizer that has an op of all parameters, with a
        kernel and a loop, overrides this.

        owners: of each parameter, and of its state."""
        numbers: dict[Any, list[DistributedArray]] = {}
        for group, gradient in zip(owners, gradients, strict=True):
            arrays = [mapping[key] for mapping, key in group]
            dtype, mesh = _wide(arrays[0].type).dtype, arrays[0].mesh
            if (dtype, mesh) not in numbers:
                # Arrays, since a number that Python computes of others is a constant of a program.
                one = ones((), dtype, layout=Layout.replicated(mesh, 0))
                numbers[dtype, mesh] = [real_(one) * number for number in scalars]
            state = dict(zip(self.state, arrays[1:], strict=True))
            g, parameter = _in_dtype(gradient, dtype), _in_dtype(arrays[0], dtype)
            results = {"parameter": self.apply(g, parameter, state, *numbers[dtype, mesh])} | state
            old = dict(zip(("parameter", *self.state), arrays, strict=True))
            self._check_results(str(group[0][1]), old, results)
            for (name, x), (mapping, key) in zip(old.items(), group, strict=True):
                mapping[key] = relayout(_in_dtype(results[name], x.dtype), x.layout)

    def _check_results(
        self, key: str, old: Mapping[str, DistributedArray], new: Mapping[str, Any]
    ) -> None:
        """Raise ShapeError unless `apply` has made an array of the same shape for each of a
        parameter's arrays, and no other."""
        for name, x in new.items():
            before = old[name].type if name in old else f"not in {list(old)[1:]}"
            if name not in old or not isinstance(x, DistributedArray) or x.shape != old[name].shape:
                made = x.type if isinstance(x, DistributedArray) else type_text(x)
                problem = f"the {name} of {key} is {before}, and the new one {made}"
                remedy = "Return the new parameter; state_names names the arrays of `state`."
                raise error(ShapeError, f"{type(self).__name__}.apply", problem, remedy=remedy)

    def follow(self, targets: Sequence[Slot]) -> None:
        """Move the state of every parameter to the parameter's layout and dtype; begin with zeros
        where there is none.

        Raises ShapeError if state has another shape than its parameter."""
        stale = [
            (name, arrays, slot, array_type)
            for slot in targets
            for array_type in [_state_type(slot)]
            for name, arrays in self.state.items()
            if (x := arrays.get(slot.name)) is None or x.type is not array_type
        ]
        wrong = [
            f"{slot.name}: {slot.value.type}, and its {name} is {arrays[slot.name].type}"
            for name, arrays, slot, _ in stale
            if slot.name in arrays and arrays[slot.name].shape != slot.value.shape
        ]
        if wrong:
            problem = "parameters have other shapes than their state\n  " + "\n  ".join(wrong)
            remedy = "Call optimizer.init(parameters); each model needs its own optimizer."
            raise error(ShapeError, f"{type(self).__name__}.update", problem, remedy=remedy)
        for _, arrays, slot, like in stale:
            if slot.name in arrays:
                arrays[slot.name] = relayout(_in_dtype(arrays[slot.name], like.dtype), like.layout)
            else:
                arrays[slot.name] = zeros_like(slot.value, like.dtype, layout=slot.state_layout)

    def _moved(self, targets: Sequence[Slot], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return for every target the direction in which the loss grows, in the dtype of the target
        and the layout of its state, by its name; None where the gradient is None."""
        self._check(targets, named)
        given = [slot for slot in targets if named[slot.name] is not None]
        gradients = [_in_dtype(named[slot.name], slot.value.dtype) for slot in given]
        moved = move_to_layouts(gradients, [_gradient_type(slot).layout for slot in given])
        pairs = zip(given, moved, strict=True)
        directions = {s.name: g if g.dtype.kind != "c" else conj(g) for s, g in pairs}
        return dict.fromkeys(named) | directions

    def _check(self, targets: Sequence[Slot], named: Mapping[str, Any]) -> None:
        """Raise unless there is a gradient of the right shape, or None, for every target."""
        op, names = f"{type(self).__name__}.update", {slot.name for slot in targets}
        wrong = [f"{name}: no gradient" for name in sorted(names - named.keys())]
        wrong += [f"{name}: a gradient of no parameter" for name in sorted(named.keys() - names)]
        for slot in targets:
            g = named.get(slot.name)
            if g is not None and (g.shape != slot.value.shape or g.mesh is not slot.value.mesh):
                wrong.append(
                    f"{slot.name}: parameter {slot.value.type}, gradient {g.type} on {g.mesh}"
                )
            elif g is not None and g.dtype.kind == "c" and slot.value.dtype.kind != "c":
                wrong.append(
                    f"{slot.name}: parameter {slot.value.type} is real, and its gradient "
                    f"{g.type} is not; gdt.real(gradient) drops the imaginary part"
                )
        if wrong:
            problem = "gradients do not fit the parameters\n  " + "\n  ".join(wrong)
            raise error(ShapeError, op, problem)


class OptimizerWrapper(Optimizer):
    """An optimizer around `optimizer`, which takes the steps and whose learning rate is its own."""

    optimizer: Optimizer

    @property
    def learning_rate(self) -> float | Schedule:
        """The learning rate of the inner optimizer."""
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float | Schedule) -> None:
        self.optimizer.learning_rate = rate

    def scaled(self, loss: DistributedArray) -> DistributedArray:
        """Return the loss as the inner optimizer scales it."""
        return self.optimizer.scaled(loss)

    def unscaled(self, gradients: Tree) -> Tree:
        """Return the gradients of the loss, computed from those of the scaled loss."""
        return self.optimizer.unscaled(gradients)


def _gradient_type(slot: Slot) -> ArrayType:
    """Return the type of a parameter's gradient."""
    array_type: ArrayType = slot.owner[slot.key].type
    return array_type.with_layout(slot.state_layout) if slot.state_layout else array_type


def _state_type(slot: Slot) -> ArrayType:
    """Return the type of a parameter's state: of bfloat16 it is float32, since an average in
    bfloat16 stays where it is."""
    return _wide(_gradient_type(slot))


def _wide(array_type: ArrayType) -> ArrayType:
    """Return the type in which an update computes: float32 for bfloat16."""
    (wide,) = wide_types((array_type,))
    return wide  # type: ignore[return-value]


def _flat_slots(tree: dict[Any, Any]) -> list[Slot] | None:
    """Return the slots of a dict of parameters alone, without a search; None of another dict."""
    parameters = []
    for name, x in tree.items():
        if type(x) is not DistributedArray or x.type.dtype.kind not in INEXACT:
            return None
        # As `Slot(...)` does, without the frame of its call.
        parameters.append(tuple.__new__(Slot, (str(name), tree, name, None, True, "", None)))
    return parameters


def in_order(targets: Sequence[Slot]) -> list[Slot]:
    """Return slots in the order of their names: processes may have filled dicts in other orders."""
    return sorted(targets, key=lambda slot: slot.name)


def _in_dtype(g: DistributedArray, dtype: np.dtype) -> DistributedArray:
    """Return g in a dtype; g itself if it has it."""
    return g if g.dtype == dtype else astype(g, dtype)


def by_name(tree: Tree) -> Mapping[str, Any]:
    """Return gradients by the names of their parameters, or raise DtypeError; ArgumentError for an
    object with parameters, which stands where the gradients do."""
    if type(tree) is dict and {*map(type, tree.values())} == {DistributedArray}:
        return tree  # as nearly always
    if hasattr(tree, "parameters"):
        raise error(
            ArgumentError,
            "update",
            f"the gradients are {type_text(tree)}, which has parameters",
            remedy="Write optimizer.update(model, gradients).",
        )
    named = tree if _is_flat(tree) else {slot.name: slot.value for slot in slots(tree)}
    for name, g in named.items():
        if g is not None and not isinstance(g, DistributedArray):
            raise error(DtypeError, f"the gradient of {name} is {type_text(g)}")
    return named


def _is_flat(tree: Tree) -> bool:
    """Return whether a tree is a dict without dicts or lists in it."""
    return isinstance(tree, dict) and not any(isinstance(g, dict | list) for g in tree.values())
