"""Adam and AdamW.

The state holds weighted sums in place of the papers' moving averages, m / (1 - beta1) and
v / (1 - beta2): `m = beta1 * m + g` takes two passes over memory where the average takes three. The
constant factors and the bias corrections become two numbers, computed in Python's floats.
"""

from __future__ import annotations

import math
from typing import Any

from gdt.arguments import checked_class
from gdt.cuda import launches
from gdt.engine.updates import update_op
from gdt.fusion.formula_loop import FormulaLoop
from gdt.optim.noted_steps import Gradients, Owners, Scalars
from gdt.optim.optimizer import Optimizer
from gdt.optim.runs import Block, in_runs
from gdt.optim.schedules import Schedule
from gdt.optim.update_kernels import declare
from gdt.optim.update_loops import in_place

Scalar = Any

ADAM = FormulaLoop(
    "p m v g",
    {"m": "m * beta1 + g", "v": "v * beta2 + squared(g)",
     "p": "p * keep - m / (sqrt(v) + epsilon) * rate"},
    "p m v",
    scalars="beta1 beta2 keep rate epsilon",
)  # fmt: skip


@update_op("..., ..., ..., ..., ..., ..., ..., ..., ... -> ..., ..., ...", donate="p, m, v")
def adam_step(
    xp: Any,
    p: Block,
    m: Block,
    v: Block,
    g: Block,
    beta1: Scalar,
    beta2: Scalar,
    keep: Scalar,
    rate: Scalar,
    epsilon: Scalar,
    /,
    *,
    out: Any,
) -> tuple[Block, Block, Block]:
    """Return keep * p - rate * m / (sqrt(v) + epsilon), m and v, after m = beta1 * m + g and v =
    beta2 * v + |g|^2. keep: 1 without weight decay, and then the product is exact."""

    functions = {"sqrt": xp.sqrt, "squared": lambda g: g * (g if g.dtype.kind == "f" else g.conj())}

    def formula(*blocks: Block) -> list[Block]:
        return ADAM.evaluate(functions, *blocks, beta1, beta2, keep, rate, epsilon)

    return in_runs(xp, formula, (p, m, v, g), out)  # type: ignore[no-any-return]


declare(adam_step, launches.adam)
adam_step.specialize(in_place(ADAM))


@checked_class("scalars", "step", eager=True)
class Adam(Optimizer):
    """Adam: steps of about the learning rate, scaled by running moments of the gradients.

    `p -= rate * mean / (sqrt(square) + epsilon)`, where mean and square are the bias-corrected
    moving averages of g and |g|^2 with the factors beta1 and beta2. learning_rate: a float or a
    schedule. Source: Kingma and Ba 2015, algorithm 1; defaults as in Keras.

    Raises ArgumentError for betas outside [0, 1) and a negative epsilon.

    >>> parameters = {"w": gdt.asarray([1.0, -2.0])}
    >>> gdt.optim.Adam(0.1).update(parameters, {"w": gdt.asarray([4.0, -0.5])})
    >>> parameters["w"].numpy().round(4).tolist()
    [0.9, -1.9]
    """

    state_names = ("m", "v")
    weight_decay = 0.0

    def __init__(
        self,
        learning_rate: float | Schedule = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-7,
    ) -> None:
        self.check(
            0 <= beta1 < 1 and 0 <= beta2 < 1 and epsilon >= 0,
            f"beta1={beta1}, beta2={beta2}, epsilon={epsilon}",
            "The betas are in [0, 1), epsilon is at least 0.",
        )
        super().__init__(learning_rate)
        self.beta1, self.beta2, self.epsilon = float(beta1), float(beta2), float(epsilon)

    def scalars(self, rate: float) -> Scalars:
        """Return the scalars of `adam_step`: bias corrections are factors of rate and epsilon."""
        steps = self.steps
        mean = (1 - self.beta1) / (1 - self.beta1**steps)
        root = math.sqrt((1 - self.beta2**steps) / (1 - self.beta2))
        keep = 1 - rate * self.weight_decay
        return self.beta1, self.beta2, keep, rate * mean * root, self.epsilon * root

    def step(self, scalars: Scalars, owners: Owners, gradients: Gradients) -> None:
        """Update every parameter and its moments."""
        adam_step.multi_tensor(owners, gradients, *scalars)


@checked_class(eager=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: `p *= 1 - rate * weight_decay` before Adam's step.

    Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization"; defaults as in
    Keras. Raises ArgumentError for a negative weight_decay.

    >>> parameters = {"w": gdt.asarray([1.0, -2.0])}
    >>> gdt.optim.AdamW(0.1, weight_decay=0.5).update(parameters, {"w": gdt.asarray([4.0, -0.5])})
    >>> parameters["w"].numpy().round(4).tolist()
    [0.85, -1.8]
    """

    def __init__(
        self,
        learning_rate: float | Schedule = 0.001,
        weight_decay: float = 0.004,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-7,
    ) -> None:
        self.check(weight_decay >= 0, f"weight_decay is {weight_decay!r}", "It is at least 0.")
        super().__init__(learning_rate, beta1, beta2, epsilon)
        self.weight_decay = float(weight_decay)
