"""Optimizers, schedules of the learning rate, and clipping of gradients.

`optimizer.update(model, gradients)` puts updated arrays in the place of the parameters. State has
the layouts of the parameters, so an update moves nothing. All parameters are updated in one call:
in one kernel launch on a GPU, in loops on the host (`update_loops`).
"""

from typing import TYPE_CHECKING

from gdt.errors.foreign_names import missing_names as _missing_names
from gdt.optim.adam import Adam, AdamW
from gdt.optim.averaging import MovingAverage
from gdt.optim.clipping import clip_by_global_norm, global_norm
from gdt.optim.groups import ParameterGroups
from gdt.optim.loss_scaling import LossScaling
from gdt.optim.optimizer import Optimizer
from gdt.optim.scaled import Adagrad, Lion, RMSprop
from gdt.optim.schedules import CosineDecay as cosine_decay
from gdt.optim.schedules import ExponentialDecay as exponential_decay
from gdt.optim.schedules import LinearDecay as linear_decay
from gdt.optim.schedules import PiecewiseConstant as piecewise_constant
from gdt.optim.schedules import Schedule
from gdt.optim.schedules import Warmup as with_warmup
from gdt.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Lion",
    "LossScaling",
    "MovingAverage",
    "Optimizer",
    "ParameterGroups",
    "RMSprop",
    "Schedule",
    "clip_by_global_norm",
    "cosine_decay",
    "exponential_decay",
    "global_norm",
    "linear_decay",
    "piecewise_constant",
    "with_warmup",
]

if not TYPE_CHECKING:  # a type checker would take every name for one of the module
    __getattr__ = _missing_names(__name__)
