"""RMSprop, Adagrad and Lion: steps whose length in each element does not follow the gradient's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdt.arguments import checked_class
from gdt.array.array import DistributedArray
from gdt.engine.updates import update_op
from gdt.errors import ArgumentError, error
from gdt.optim.noted_steps import Owner
from gdt.optim.optimizer import Optimizer
from gdt.optim.runs import Block, runs, write_squares
from gdt.optim.schedules import Schedule

Scalar = Any
Owners = Sequence[Sequence[Owner]]


@update_op("..., ..., ..., ..., ..., ..., ... -> ..., ...", donate="p, v")
def rmsprop_step(
    xp: Any,
    p: Block,
    v: Block,
    g: Block,
    rho: Scalar,
    rest: Scalar,
    rate: Scalar,
    epsilon: Scalar,
    /,
    *,
    out: Any,
) -> tuple[Block, Block]:
    """Return p - rate * g / sqrt(v + epsilon) and v, after v = rho * v + rest * |g|^2."""
    for change, p_, v_, g_, p_new, v_new in runs(xp, p, v, g, *out):
        _scaled_gradient(xp, change, v_, g_, v_new, rho, rest, epsilon)
        xp.multiply(change, rate, out=change)
        xp.subtract(p_, change, out=p_new)
    return tuple(out)


@update_op("..., ..., ..., ..., ..., ..., ..., ..., ... -> ..., ..., ...", donate="p, v, m")
def rmsprop_momentum_step(
    xp: Any,
    p: Block,
    v: Block,
    m: Block,
    g: Block,
    rho: Scalar,
    rest: Scalar,
    rate: Scalar,
    epsilon: Scalar,
    momentum: Scalar,
    /,
    *,
    out: Any,
) -> tuple[Block, Block, Block]:
    """Return p - m, v and m, after v = rho * v + rest * |g|^2 and m = momentum * m + rate * g /
    sqrt(v + epsilon)."""
    for change, p_, v_, m_, g_, p_new, v_new, m_new in runs(xp, p, v, m, g, *out):
        _scaled_gradient(xp, change, v_, g_, v_new, rho, rest, epsilon)
        xp.multiply(change, rate, out=change)
        xp.multiply(m_, momentum, out=m_new)
        xp.add(m_new, change, out=m_new)
        xp.subtract(p_, m_new, out=p_new)
    return tuple(out)


def _scaled_gradient(
    xp: Any,
    change: Block,
    v: Block,
    g: Block,
    v_new: Block,
    rho: Scalar,
    rest: Scalar,
    epsilon: Scalar,
) -> None:
    """Write rho * v + rest * |g|^2 to `v_new`, and g / sqrt(v_new + epsilon) to `change`."""
    write_squares(xp, g, change)
    xp.multiply(change, rest, out=change)
    xp.multiply(v, rho, out=v_new)
    xp.add(v_new, change, out=v_new)
    xp.add(v_new, epsilon, out=change)
    xp.sqrt(change, out=change)
    xp.divide(g, change, out=change)


@update_op("..., ..., ..., ..., ... -> ..., ...", donate="p, a")
def adagrad_step(
    xp: Any, p: Block, a: Block, g: Block, rate: Scalar, epsilon: Scalar, /, *, out: Any
) -> tuple[Block, Block]:
    """Return p - rate * g / sqrt(a + epsilon) and a, after a = a + |g|^2."""
    for change, p_, a_, g_, p_new, a_new in runs(xp, p, a, g, *out):
        write_squares(xp, g_, change)
        xp.add(a_, change, out=a_new)
        xp.add(a_new, epsilon, out=change)
        xp.sqrt(change, out=change)
        xp.divide(g_, change, out=change)
        xp.multiply(change, rate, out=change)
        xp.subtract(p_, change, out=p_new)
    return tuple(out)


@update_op("..., ..., ..., ..., ..., ..., ..., ... -> ..., ...", donate="p, m")
def lion_step(
    xp: Any,
    p: Block,
    m: Block,
    g: Block,
    weight: Scalar,
    beta2: Scalar,
    rest: Scalar,
    keep: Scalar,
    rate: Scalar,
    /,
    *,
    out: Any,
) -> tuple[Block, Block]:
    """Return keep * p - rate * sign(weight * m + g), and beta2 * m + rest * g."""
    for change, p_, m_, g_, p_new, m_new in runs(xp, p, m, g, *out):
        xp.multiply(m_, weight, out=change)
        xp.add(change, g_, out=change)
        xp.sign(change, out=change)
        xp.multiply(change, rate, out=change)
        xp.multiply(p_, keep, out=p_new)
        xp.subtract(p_new, change, out=p_new)
        xp.multiply(g_, rest, out=change)
        xp.multiply(m_, beta2, out=m_new)
        xp.add(m_new, change, out=m_new)
    return tuple(out)


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
        if not (0 <= rho < 1 and 0 <= momentum < 1 and epsilon > 0):
            raise error(
                ArgumentError,
                "RMSprop",
                f"rho={rho}, momentum={momentum}, epsilon={epsilon}",
                remedy="rho and momentum are in [0, 1), epsilon is positive.",
            )
        super().__init__(learning_rate)
        self.rho, self.momentum, self.epsilon = float(rho), float(momentum), float(epsilon)
        self.state = {name: {} for name in (("v", "m") if momentum else ("v",))}

    def scalars(self, rate: float) -> tuple[float, ...]:
        """Return the scalars of `rmsprop_step`, or of `rmsprop_momentum_step` with momentum."""
        scalars = (self.rho, 1 - self.rho, rate, self.epsilon)
        return (*scalars, self.momentum) if "m" in self.state else scalars

    def step(
        self, scalars: tuple[float, ...], owners: Owners, gradients: Sequence[DistributedArray]
    ) -> None:
        """Update every parameter and its state."""
        op = rmsprop_momentum_step if "m" in self.state else rmsprop_step
        op.multi_tensor(owners, gradients, *scalars)


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
        if not (initial_accumulator_value >= 0 and epsilon > 0):
            raise error(
                ArgumentError,
                "Adagrad",
                f"initial_accumulator_value={initial_accumulator_value}, epsilon={epsilon}",
                remedy="The initial value is at least 0, epsilon is positive.",
            )
        super().__init__(learning_rate)
        self.initial_accumulator_value = float(initial_accumulator_value)
        self.epsilon = float(epsilon)

    def scalars(self, rate: float) -> tuple[float, ...]:
        """Return the rate, and what is added to the sum of squares."""
        return rate, self.initial_accumulator_value + self.epsilon

    def step(
        self, scalars: tuple[float, ...], owners: Owners, gradients: Sequence[DistributedArray]
    ) -> None:
        """Update every parameter and its sum of squares."""
        adagrad_step.multi_tensor(owners, gradients, *scalars)


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
        if not (0 <= beta1 < 1 and 0 <= beta2 < 1 and weight_decay >= 0):
            raise error(
                ArgumentError,
                "Lion",
                f"beta1={beta1}, beta2={beta2}, weight_decay={weight_decay}",
                remedy="The betas are in [0, 1), weight_decay is at least 0.",
            )
        super().__init__(learning_rate)
        self.beta1, self.beta2 = float(beta1), float(beta2)
        self.weight_decay = float(weight_decay)

    def scalars(self, rate: float) -> tuple[float, ...]:
        """Return the scalars of `lion_step`; the sign is the same after a division by 1 - beta1."""
        weight, keep = self.beta1 / (1 - self.beta1), 1 - rate * self.weight_decay
        return weight, self.beta2, 1 - self.beta2, keep, rate

    def step(
        self, scalars: tuple[float, ...], owners: Owners, gradients: Sequence[DistributedArray]
    ) -> None:
        """Update every parameter and its momentum."""
        lion_step.multi_tensor(owners, gradients, *scalars)
