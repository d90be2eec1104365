"""RMSprop, Adagrad and Lion: steps whose length in each element does not follow the gradient's."""

from __future__ import annotations

from typing import Any

from gdt.arguments import checked_class
from gdt.array.array import DistributedArray
from gdt.ops.elementwise import conj, sqrt
from gdt.ops.rounding import sign
from gdt.optim.optimizer import Optimizer
from gdt.optim.schedules import Schedule

State = dict[str, DistributedArray]


@checked_class(eager=True)
class RMSprop(Optimizer):
    """RMSprop: the gradient divided by the root of a running mean of its squares.

    `v = rho * v + (1 - rho) * |g|^2; p -= rate * g / sqrt(v + epsilon)`; with momentum the quotient
    is first added to `momentum` times its earlier sum. learning_rate: a float or a schedule.
    Source: Tieleman and Hinton 2012, lecture 6.5; formulas and defaults as in Keras.

    Raises ArgumentError for `rho` or `momentum` outside [0, 1) and an epsilon that is not positive.

    >>> parameters = {"w": gdt.asarray([1.0, -2.0])}
    >>> gdt.optim.RMSprop(0.1, rho=0.75).update(parameters, {"w": gdt.asarray([4.0, -0.5])})
    >>> parameters["w"].numpy().round(4).tolist()
    [0.8, -1.8]
    """

    def __init__(
        self,
        learning_rate: float | Schedule = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
    ) -> None:
        self.check(
            0 <= rho < 1 and 0 <= momentum < 1 and epsilon > 0,
            f"rho={rho}, momentum={momentum}, epsilon={epsilon}",
            "rho and momentum are in [0, 1), epsilon is positive.",
        )
        super().__init__(learning_rate)
        self.rho, self.momentum, self.epsilon = float(rho), float(momentum), float(epsilon)
        self.state = {name: {} for name in (("v", "m") if momentum else ("v",))}

    def apply(self, gradient: Any, parameter: Any, state: State, rate: Any) -> DistributedArray:
        """Return the new parameter."""
        state["v"] = self.rho * state["v"] + (1 - self.rho) * _squares(gradient)
        change = gradient / sqrt(state["v"] + self.epsilon) * rate
        if "m" in state:
            state["m"] = change = self.momentum * state["m"] + change
        return parameter - change  # type: ignore[no-any-return]


@checked_class(eager=True)
class Adagrad(Optimizer):
    """Adagrad: the gradient divided by the root of the sum of its squares so far.

    `a += |g|^2; p -= rate * g / sqrt(a + epsilon)`, where a begins at `initial_accumulator_value`
    (which the state leaves out). learning_rate: a float or a schedule. Source: Duchi, Hazan and
    Singer 2011, "Adaptive Subgradient Methods"; formula and defaults as in Keras.

    Raises ArgumentError for a negative initial value and an epsilon that is not positive.

    >>> parameters = {"w": gdt.asarray([1.0, -2.0])}
    >>> optimizer = gdt.optim.Adagrad(0.1, initial_accumulator_value=0.0)
    >>> optimizer.update(parameters, {"w": gdt.asarray([4.0, -0.5])})
    >>> parameters["w"].numpy().round(4).tolist()
    [0.9, -1.9]
    """

    state_names = ("a",)

    def __init__(
        self,
        learning_rate: float | Schedule = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
    ) -> None:
        self.check(
            initial_accumulator_value >= 0 and epsilon > 0,
            f"initial_accumulator_value={initial_accumulator_value}, epsilon={epsilon}",
            "The initial value is at least 0, epsilon is positive.",
        )
        super().__init__(learning_rate)
        self.initial_accumulator_value = float(initial_accumulator_value)
        self.epsilon = float(epsilon)

    def apply(self, gradient: Any, parameter: Any, state: State, rate: Any) -> DistributedArray:
        """Return the new parameter."""
        state["a"] = state["a"] + _squares(gradient)
        root = sqrt(state["a"] + (self.initial_accumulator_value + self.epsilon))
        return parameter - gradient / root * rate  # type: ignore[no-any-return]


@checked_class(eager=True)
class Lion(Optimizer):
    """Lion: steps of the learning rate along the sign of a momentum.

    `p -= rate * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * p)`, then `m = beta2 * m +
    (1 - beta2) * g`. learning_rate: a float or a schedule; a third to a tenth of Adam's. Source:
    Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2.

    Raises ArgumentError for betas outside [0, 1) and a negative weight_decay.

    >>> parameters = {"w": gdt.asarray([1.0, -2.0])}
    >>> gdt.optim.Lion(0.1).update(parameters, {"w": gdt.asarray([4.0, -0.5])})
    >>> parameters["w"].numpy().round(4).tolist()
    [0.9, -1.9]
    """

    state_names = ("m",)

    def __init__(
        self,
        learning_rate: float | Schedule = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.99,
        weight_decay: float = 0.0,
    ) -> None:
        self.check(
            0 <= beta1 < 1 and 0 <= beta2 < 1 and weight_decay >= 0,
            f"beta1={beta1}, beta2={beta2}, weight_decay={weight_decay}",
            "The betas are in [0, 1), weight_decay is at least 0.",
        )
        super().__init__(learning_rate)
        self.beta1, self.beta2 = float(beta1), float(beta2)
        self.weight_decay = float(weight_decay)

    def apply(self, gradient: Any, parameter: Any, state: State, rate: Any) -> DistributedArray:
        """Return the new parameter."""
        m = state["m"]
        state["m"] = self.beta2 * m + (1 - self.beta2) * gradient
        change = sign(self.beta1 * m + (1 - self.beta1) * gradient)
        if self.weight_decay:
            change = change + self.weight_decay * parameter
        return parameter - rate * change  # type: ignore[no-any-return]


def _squares(x: DistributedArray) -> DistributedArray:
    """Return |x|^2 in the dtype of x."""
    return x * (x if x.dtype.kind == "f" else conj(x))
