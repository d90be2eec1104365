"""MovingAverage: an optimizer that also keeps an exponential moving average of the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gdt.arguments import checked_class
from gdt.errors import ArgumentError, error
from gdt.ops.elementwise import astype
from gdt.ops.movement import relayout
from gdt.optim.noted_steps import Gradients, Owner, Owners, Scalars
from gdt.optim.optimizer import Optimizer, OptimizerWrapper, in_order
from gdt.state import trainable_slots
from gdt.state.trees import Tree


@checked_class(eager=True)
class MovingAverage(OptimizerWrapper):
    """An optimizer's steps, and the exponential moving average of the parameters that they give.

    optimizer: the optimizer that takes the steps. momentum: the factor of the average after each
        step, `average = momentum * average + (1 - momentum) * p`; the first average is p itself.

    The averages are in `state["average"]`, in the layouts of the parameters; `averaged` puts them
    in the place of the parameters. Source: Polyak and Juditsky 1992; default as in Keras.

    Raises ArgumentError for a momentum outside [0, 1).

    >>> optimizer = gdt.optim.MovingAverage(gdt.optim.SGD(1.0), momentum=0.75)
    >>> parameters = {"w": gdt.asarray([4.0])}
    >>> for _ in range(2):
    ...     optimizer.update(parameters, {"w": gdt.asarray([1.0])})
    >>> with optimizer.averaged(parameters):
    ...     parameters["w"].tolist()
    [2.75]
    >>> parameters["w"].tolist()
    [2.0]
    """

    state_names = ("average",)

    def __init__(self, optimizer: Optimizer, momentum: float = 0.99) -> None:
        self.check(0 <= momentum < 1, f"momentum is {momentum!r}", "It is in [0, 1).")
        self.optimizer, self.momentum = optimizer, float(momentum)
        self.steps = 0
        self.state = {"average": {}}

    def init(self, parameters: Tree) -> Optimizer:
        """Reset the inner optimizer and the averages; return the optimizer."""
        self.optimizer.init(parameters)
        return super().init(parameters)

    def update(self, parameters: Tree, gradients: Tree) -> None:
        """Take a step of the inner optimizer, then update the averages; see `Optimizer.update`."""
        self.optimizer.update(parameters, gradients)
        # Processes may have filled dicts in other orders.
        targets, averages = in_order(trainable_slots(parameters)), self.state["average"]
        new = [slot for slot in targets if slot.name not in averages]
        self.follow(targets)
        for slot in new:  # which may come when others are trained: the first average is itself
            zeros = averages[slot.name]
            averages[slot.name] = relayout(astype(slot.value, zeros.dtype), zeros.layout)
        owners: list[list[Owner]] = [[(averages, slot.name)] for slot in targets]
        # Each average keeps its layout, to which the parameter is moved.
        owners, arrays, scalars = self.begin_step(owners, [slot.value for slot in targets])
        self.step(scalars, owners, arrays)

    def scalars(self, rate: float) -> Scalars:
        """Return the factors of the average and of the parameter."""
        momentum = self.momentum if self.steps > 1 else 0.0
        return momentum, 1 - momentum

    def step(self, scalars: Scalars, owners: Owners, gradients: Gradients) -> None:
        """Update every average; `gradients` holds the parameters."""
        momentum, rest = scalars
        for ((averages, name), *_), parameter in zip(owners, gradients, strict=True):
            average = averages[name]
            part = rest * relayout(astype(parameter, average.dtype), average.layout)
            averages[name] = momentum * average + part

    @contextmanager
    def averaged(self, parameters: Tree) -> Iterator[Tree]:
        """Put the averages in the place of the parameters inside the `with` block.

        Raises ArgumentError before the first step.

        >>> optimizer = gdt.optim.MovingAverage(gdt.optim.SGD(1.0), momentum=0.5)
        >>> model = {"w": gdt.asarray([4.0])}
        >>> optimizer.update(model, {"w": gdt.asarray([1.0])})
        >>> optimizer.update(model, {"w": gdt.asarray([1.0])})
        >>> with optimizer.averaged(model):
        ...     model["w"].tolist()
        ...
        [2.5]
        """
        targets, averages = trainable_slots(parameters), self.state["average"]
        missing = [slot.name for slot in targets if slot.name not in averages]
        if missing or not self.steps:
            problem = f"there is no average yet of {', '.join(missing or ['any parameter'])}"
            raise error(ArgumentError, problem)
        originals = [slot.value for slot in targets]
        for slot in targets:
            slot.owner[slot.key] = averages[slot.name]
        try:
            yield parameters
        finally:
            for slot, original in zip(targets, originals, strict=True):
                slot.owner[slot.key] = original
