"""Stochastic gradient descent, plain, with momentum, and Nesterov's."""

from __future__ import annotations

from typing import Any

from gdt.arguments import checked_class
from gdt.cuda import launches
from gdt.engine.updates import update_op
from gdt.fusion.formula_loop import FormulaLoop
from gdt.optim.noted_steps import Gradients, Owners, Scalars
from gdt.optim.optimizer import Optimizer
from gdt.optim.runs import RUN, Block, in_runs, runs
from gdt.optim.schedules import Schedule
from gdt.optim.update_kernels import declare
from gdt.optim.update_loops import in_place
from gdt.state.trees import Tree

Scalar = Any

MOMENTUM = FormulaLoop(
    "p v g",
    {"change": "g * -rate", "v": "v * momentum + change", "p": "p + v"},
    "p v",
    scalars="rate momentum",
)
NESTEROV = FormulaLoop(
    "p v g",
    {"change": "g * -rate", "v": "v * momentum + change", "p": "(p + change) + v * momentum"},
    "p v",
    scalars="rate momentum",
)


@update_op("..., ..., ... -> ...", donate="p", scratch="g")
def sgd_step(
    xp: Any, p: Block, g: Block, rate: Scalar, /, *, out: Any, scratch: Block | None = None
) -> Block:
    """Return p - rate * g."""
    if scratch is not None or p.size <= RUN:
        return xp.subtract(p, xp.multiply(g, rate, out=scratch), out=out[0])
    for old, gradient, new in runs(xp, p, g, out[0]):
        xp.subtract(old, xp.multiply(gradient, rate), out=new)
    return out[0]


@update_op("..., ..., ..., ..., ... -> ..., ...", donate="p, v")
def momentum_step(
    xp: Any,
    p: Block,
    v: Block,
    g: Block,
    rate: Scalar,
    momentum: Scalar,
    /,
    *,
    nesterov: bool = False,
    out: Any,
) -> tuple[Block, Block]:
    """Return p + v, or p + momentum * v - rate * g with `nesterov`, and v, after v = momentum * v -
    rate * g."""

    formulas = NESTEROV if nesterov else MOMENTUM

    def formula(*blocks: Block) -> list[Block]:
        return formulas.evaluate({}, *blocks, rate, momentum)

    return in_runs(xp, formula, (p, v, g), out)  # type: ignore[no-any-return]


declare(sgd_step, launches.sgd)
declare(momentum_step, launches.momentum)
momentum_step.specialize(in_place(MOMENTUM, NESTEROV))


@checked_class("scalars", "step", eager=True)
class SGD(Optimizer):
    """Gradient descent: `p -= rate * g`, or with momentum `v = momentum * v - rate * g; p += v`.

    learning_rate: a float or a schedule. momentum: in [0, 1].
    nesterov: whether to use `p += momentum * v - rate * g` after the same v (Sutskever et al. 2013,
        eq. 3-4).
    Formulas and defaults as in Keras.

    Raises ArgumentError for another momentum, and for `nesterov` without momentum.

    >>> parameters = {"w": gdt.asarray([1.0, 2.0])}
    >>> gdt.optim.SGD(0.5).update(parameters, {"w": gdt.asarray([1.0, 1.0])})
    >>> parameters["w"].tolist()
    [0.5, 1.5]
    """

    def __init__(
        self,
        learning_rate: float | Schedule = 0.01,
        momentum: float = 0.0,
        *,
        nesterov: bool = False,
    ) -> None:
        self.check(
            0 <= momentum <= 1 and (not nesterov or momentum > 0),
            f"momentum is {momentum!r} with nesterov={nesterov}",
            "Momentum is in [0, 1], and Nesterov's step needs more than 0.",
        )
        self.momentum, self.nesterov = momentum, nesterov
        super().__init__(learning_rate)
        self._keep_velocity()

    def _keep_velocity(self) -> None:
        """Add the velocity to the state if there is momentum, which may change at any time. A
        velocity that is there stays in use, also where momentum becomes 0."""
        if self.momentum:
            self.state.setdefault("velocity", {})

    def init(self, parameters: Tree) -> Optimizer:
        """Reset the optimizer for these parameters, as `Optimizer.init` does; return it."""
        self._keep_velocity()
        return super().init(parameters)

    def update(self, parameters: Tree, gradients: Tree) -> None:
        """Take one step; see `Optimizer.update`."""
        self._keep_velocity()
        super().update(parameters, gradients)

    def scalars(self, rate: float) -> Scalars:
        """Return the rate, and the momentum if there is a velocity."""
        return (rate, float(self.momentum)) if "velocity" in self.state else (rate,)

    def step(self, scalars: Scalars, owners: Owners, gradients: Gradients) -> None:
        """Update every parameter, and its velocity if there is one."""
        if "velocity" in self.state:
            momentum_step.multi_tensor(owners, gradients, *scalars, nesterov=self.nesterov)
        else:
            sgd_step.multi_tensor(owners, gradients, *scalars)
