"""Optimizers by their names."""

from __future__ import annotations

from collections.abc import Callable

from gdt.errors import ArgumentError, error
from gdt.optim.adam import Adam, AdamW
from gdt.optim.optimizer import Optimizer
from gdt.optim.scaled import Adagrad, Lion, RMSprop
from gdt.optim.sgd import SGD

OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    cls.__name__.lower(): cls for cls in (SGD, Adam, AdamW, RMSprop, Adagrad, Lion)
}
"""Optimizers by name."""


def optimizer_of(optimizer: Optimizer | str) -> Optimizer:
    """Return an optimizer by its name, or as it is; raise ArgumentError for another name.

    >>> gdt.optim.names.optimizer_of("rmsprop")
    RMSprop(learning_rate=0.001, rho=0.9, momentum=0.0, epsilon=1e-07) after 0 steps
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    name = optimizer.lower() if isinstance(optimizer, str) else ""
    if name not in OPTIMIZERS:
        remedy = f"Pass an optimizer, or one of {', '.join(OPTIMIZERS)}."
        raise error(ArgumentError, "optimizer", f"{optimizer!r} is no optimizer", remedy=remedy)
    return OPTIMIZERS[name]()
