"""LossScaling: an optimizer that trains models of float16 with scaled losses."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import ClassVar

import numpy as np

from gdt.arguments import checked_class
from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, error
from gdt.ops.comparison import isfinite, where
from gdt.ops.creation import full, zeros
from gdt.ops.elementwise import astype
from gdt.ops.movement import relayout
from gdt.ops.reductions import sum_
from gdt.optim.optimizer import Optimizer, OptimizerWrapper, by_name, in_order
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.state import slots
from gdt.state.trees import Tree, mapped


@checked_class(eager=True)
class LossScaling(OptimizerWrapper):
    """An optimizer's steps with gradients of a loss that was multiplied by `scale`, so that small
    ones are not lost in float16.

    optimizer: the optimizer that takes the steps. scale: the first scale. growth_interval: after so
        many good steps in a row the scale is doubled.

    A step with a gradient that is not finite changes neither parameters nor the optimizer's arrays,
    and halves the scale; the inner optimizer's `steps` counts it. To find out whether all gradients
    are finite takes one all-reduce of a number. Scale and good steps are saved with the optimizer.
    `gdt.Trainer` scales its loss by itself; a loop of one's own takes the gradient of
    `optimizer.scaled(loss)`, and gives `update` what `optimizer.unscaled` returns for it.

    Raises ArgumentError for numbers that are not positive. Source: Micikevicius et al. 2018; the
    defaults are PyTorch's.

    >>> optimizer = gdt.optim.LossScaling(gdt.optim.SGD(0.5), scale=1024.0)
    >>> model = {"w": gdt.asarray([1.0, 2.0])}
    >>> with gdt.GradientTape() as tape:
    ...     loss = optimizer.scaled(gdt.sum(model["w"] ** 2))
    >>> optimizer.update(model, optimizer.unscaled(tape.gradient(loss, model)))
    >>> model["w"].tolist()
    [0.0, 0.0]
    """

    counters: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, optimizer: Optimizer, scale: float = 65536.0, growth_interval: int = 2000
    ) -> None:
        problem = f"scale is {scale!r} and growth_interval {growth_interval!r}"
        self.check(scale > 0 and growth_interval >= 1, problem, "Both are positive.")
        if isinstance(optimizer, LossScaling):
            raise error(ArgumentError, "the optimizer scales the loss already")
        self.optimizer, self.growth_interval = optimizer, growth_interval
        self.first_scale = scale
        self.scale: DistributedArray | None = None
        self.good_steps: DistributedArray | None = None
        self.state = {}

    @property
    def steps(self) -> int:  # type: ignore[override]
        """The number of steps of the inner optimizer."""
        return self.optimizer.steps

    def init(self, parameters: Tree) -> Optimizer:
        """Reset the inner optimizer and the scale; return the optimizer."""
        self.optimizer.init(parameters)
        self.scale = None
        self._start(self.targets("init", parameters)[0].value.mesh)
        return self

    def _start(self, mesh: Mesh) -> tuple[DistributedArray, DistributedArray]:
        """Return the scale and the number of good steps; make both on `mesh`, where the model is,
        if there are none yet."""
        if self.scale is None or self.good_steps is None:
            layout = Layout.replicated(mesh, 0)
            self.scale = full((), self.first_scale, np.float32, layout=layout)
            self.good_steps = zeros((), np.int32, layout=layout)
        return self.scale, self.good_steps

    def scaled(self, loss: DistributedArray) -> DistributedArray:
        """Return the loss times the scale."""
        scale, _ = self._start(loss.mesh)
        return loss * scale

    def unscaled(self, gradients: Tree) -> Tree:
        """Return gradients of a scaled loss, divided by the scale, in float32 for float16."""
        return mapped(lambda g: g if g is None else _wide(g) / self.scale, gradients)

    def update(self, parameters: Tree, gradients: Tree) -> None:
        """Take a step of the inner optimizer if all gradients are finite; see `Optimizer`."""
        # Processes may have filled dicts in other orders.
        targets = in_order(self.targets("update", parameters))
        scale, good = self._start(targets[0].value.mesh)
        by_slot = dict(sorted(by_name(gradients).items()))
        bad = [sum_(where(isfinite(g), 0.0, 1.0)) for g in by_slot.values() if g is not None]
        is_finite = reduce(add, bad).resolve() == 0.0 if bad else scale > 0
        harmless = {n: None if g is None else where(is_finite, g, 0) for n, g in by_slot.items()}
        self.optimizer.follow(targets)
        kept = [s for s in slots(self.optimizer) if isinstance(s.value, DistributedArray)]
        arrays = [*targets, *kept]  # and no counters
        before = [slot.value for slot in arrays]
        self.optimizer.update(parameters, harmless)
        for slot, old in zip(arrays, before, strict=True):
            if slot.value is not old:
                value = where(is_finite, slot.value, old)
                slot.owner[slot.key] = relayout(value, old.layout)
        grows = good + 1 >= self.growth_interval
        larger = where(grows, scale * 2.0, scale)
        self.scale = where(is_finite, larger, scale * 0.5)
        self.good_steps = astype(where(is_finite & ~grows, good + 1, 0), np.int32)


def _wide(g: DistributedArray) -> DistributedArray:
    """Return a gradient in the dtype in which it is used: float32 for float16."""
    return astype(g, np.float32) if g.dtype.itemsize < 4 else g
