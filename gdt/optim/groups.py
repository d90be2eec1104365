"""ParameterGroups: an optimizer for each group of parameters, chosen by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from gdt.arguments import checked_class
from gdt.errors import ArgumentError, error, type_text
from gdt.optim.optimizer import Optimizer, OptimizerWrapper, by_name
from gdt.optim.schedules import Schedule
from gdt.state import Slot
from gdt.state.trees import Tree


@checked_class(eager=True)
class ParameterGroups(Optimizer):
    """An optimizer that leaves each parameter to the optimizer of its name's pattern.

    groups: optimizers by regular expressions; the first that matches the beginning of a name
        (`re.match`, as in LayoutMap) has the parameter. default: the optimizer of all others.

    `learning_rate` is the rate of `default`. Assigning it also sets the groups whose rate is the
    same.

    Raises ArgumentError for a key that is no pattern, for an optimizer that serves two groups, and
    in `init` and `update` for a pattern that matches no parameter that another has not.

    >>> optimizer = gdt.optim.ParameterGroups(
    ...     {".*bias": gdt.optim.AdamW(0.1, weight_decay=0.0)},
    ...     default=gdt.optim.AdamW(0.1, weight_decay=0.5),
    ... )
    >>> parameters = {"weight": gdt.asarray([1.0]), "bias": gdt.asarray([1.0])}
    >>> optimizer.update(parameters, {"weight": gdt.asarray([0.0]), "bias": gdt.asarray([0.0])})
    >>> {name: x.numpy().round(4).tolist() for name, x in parameters.items()}
    {'weight': [0.95], 'bias': [1.0]}
    """

    counters: ClassVar[tuple[str, ...]] = ()

    def __init__(self, groups: Mapping[str, Optimizer], default: Optimizer) -> None:
        for pattern in groups:
            try:
                re.compile(pattern)
            except re.error as cause:
                problem = f"{pattern!r} is no pattern ({cause})"
                raise error(ArgumentError, problem) from None
        optimizers = [*groups.values(), default]
        for optimizer in optimizers:
            if isinstance(optimizer, OptimizerWrapper | ParameterGroups):
                name = type(optimizer).__name__
                problem = f"the optimizer of a group is {type_text(optimizer)}"
                remedy = "Pass the optimizer inside of it."
                if isinstance(optimizer, OptimizerWrapper):
                    remedy = f"Put it around all groups: {name}(ParameterGroups(...))."
                raise error(ArgumentError, problem, remedy=remedy)
        if len({id(optimizer) for optimizer in optimizers}) < len(optimizers):
            problem = "one optimizer serves two groups, whose steps it would count twice"
            remedy = "Make an optimizer for each."
            raise error(ArgumentError, problem, remedy=remedy)
        self.groups, self.default = dict(groups), default
        self.state = {}

    @property
    def steps(self) -> int:  # type: ignore[override]
        """The number of updates."""
        return max(optimizer.steps for optimizer in (*self.groups.values(), self.default))

    @property
    def learning_rate(self) -> float | Schedule:
        """The learning rate of `default`; assigning it also sets the groups with the same rate."""
        return self.default.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float | Schedule) -> None:
        before = self.default.learning_rate
        for optimizer in (*self.groups.values(), self.default):
            if optimizer.learning_rate == before:
                optimizer.learning_rate = rate

    def init(self, parameters: Tree) -> Optimizer:
        """Reset all groups for these parameters; return the optimizer."""
        for optimizer, group in self._grouped(self.targets("init", parameters)):
            if group:  # the last group may have no parameter
                optimizer.init({slot.name: slot.value for slot in group})
        return self

    def update(self, parameters: Tree, gradients: Tree) -> None:
        """Take one step in every group; see `Optimizer.update`."""
        targets, named = self.targets("update", parameters), by_name(gradients)
        grouped = self._grouped(targets)
        self._check(targets, named)
        updates = [
            optimizer.prepare(group, {slot.name: named[slot.name] for slot in group})
            for optimizer, group in grouped
        ]
        for (optimizer, _), update in zip(grouped, updates, strict=True):
            optimizer.take_step(*update)

    def _grouped(self, targets: list[Slot]) -> list[tuple[Optimizer, list[Slot]]]:
        """Return every optimizer with the slots of its parameters."""
        optimizers = dict[str | None, Optimizer]({**self.groups}) | {None: self.default}
        slots_of: dict[str | None, list[Slot]] = {pattern: [] for pattern in optimizers}
        for slot in targets:
            matching = (pattern for pattern in self.groups if re.match(pattern, slot.name))
            slots_of[next(matching, None)].append(slot)
        for pattern in self.groups:
            if not slots_of[pattern]:
                problem = f"{pattern!r} matches no parameter, or only those of patterns before it"
                remedy = f"The parameters are {', '.join(slot.name for slot in targets)}."
                raise error(ArgumentError, problem, remedy=remedy)
        return [(optimizers[pattern], group) for pattern, group in slots_of.items()]
