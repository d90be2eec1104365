"""Optimizers: `optimizer.update(model, gradients)` puts updated parameters in place of the old
ones."""

from gdt.optim.adam import Adam, AdamW
from gdt.optim.clipping import clip_by_global_norm, global_norm
from gdt.optim.optimizer import Optimizer
from gdt.optim.schedules import (
    Schedule,
    cosine_decay,
    exponential_decay,
    piecewise_constant,
    with_warmup,
)
from gdt.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "Schedule",
    "clip_by_global_norm",
    "cosine_decay",
    "exponential_decay",
    "global_norm",
    "piecewise_constant",
    "with_warmup",
]
