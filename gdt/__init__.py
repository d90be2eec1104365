"""gdt: NumPy-like arrays sharded over many devices."""

import importlib
from typing import TYPE_CHECKING

from gdt import distributed, fft, functions, linalg, ops, random, settings
from gdt.array import array as array_module
from gdt.array import fetching
from gdt.array.array import *
from gdt.array.fetching import *
from gdt.autodiff import batching, derivatives, functional, scanning, tape
from gdt.autodiff import checkpointed as checkpointed_module
from gdt.autodiff.batching import *
from gdt.autodiff.checkpointed import *
from gdt.autodiff.derivatives import *
from gdt.autodiff.functional import *
from gdt.autodiff.scanning import *
from gdt.autodiff.tape import *
from gdt.backend import free_memory, set_cache_limit
from gdt.engine import custom_vjp as custom_vjp_module
from gdt.engine import op as op_module
from gdt.engine.custom_vjp import *
from gdt.engine.op import *
from gdt.errors.foreign_names import NAMES, no_attribute
from gdt.functions import *
from gdt.functions import constants, lib, numpys
from gdt.functions.constants import *
from gdt.functions.dtypes import namespace_info as __array_namespace_info__
from gdt.functions.numpys import *
from gdt.linalg import fitting
from gdt.linalg.fitting import *
from gdt.ops import *
from gdt.programs import function as function_module
from gdt.programs.function import *
from gdt.settings import *
from gdt.sharding import array_type, displayed, layout, mesh
from gdt.sharding import default_mesh as default_mesh_module
from gdt.sharding.array_type import *
from gdt.sharding.default_mesh import *
from gdt.sharding.layout import *
from gdt.sharding.mesh import *

if TYPE_CHECKING:  # what `LOADED_ON_FIRST_USE` holds
    from gdt import checkpoint, data, debug, estimators, metrics, nn, optim, prediction, saving
    from gdt import testing as testing
    from gdt import training as training
    from gdt.checkpoint import CheckpointManager
    from gdt.debug.configuration import *
    from gdt.debug.drawing import *
    from gdt.debug.observers import *
    from gdt.nn.functions import *
    from gdt.prediction import Link, Machine, plan, predict, predict_layers, predict_scaling
    from gdt.saving import load_model, load_weights
    from gdt.training import Trainer
    from gdt.training.strategies import *

__version__ = "0.1.0"
__array_api_version__ = "2025.12"

LOADED_ON_FIRST_USE = {
    "checkpoint": ["CheckpointManager"],
    "data": [],
    "debug": [],
    "debug.configuration": ["show_config"],
    "debug.drawing": ["explain", "visualize"],
    "debug.observers": ["check_nans", "count_collectives", "no_moves", "sync_debug_mode"],
    "estimators": [],
    "metrics": [],
    "nn": [],
    "nn.functions": [
        "attention",
        "average_pool",
        "batch_norm",
        "batch_normalization",
        "convolution",
        "elu",
        "erf",
        "gelu",
        "group_norm",
        "layer_norm",
        "leaky_relu",
        "log_softmax",
        "logsumexp",
        "max_pool",
        "relu",
        "rms_norm",
        "sigmoid",
        "sigmoid_cross_entropy_with_logits",
        "silu",
        "softmax",
        "softmax_cross_entropy_with_logits",
        "softplus",
        "sparse_softmax_cross_entropy_with_logits",
        "transposed_convolution",
    ],
    "optim": [],
    "prediction": ["Link", "Machine", "plan", "predict", "predict_layers", "predict_scaling"],
    "saving": ["load_model", "load_weights"],
    "testing": [],
    "training": ["Trainer"],
    "training.strategies": [
        "DataParallel",
        "MirroredStrategy",
        "ModelParallel",
        "Strategy",
        "current_strategy",
    ],
}
"""Modules that programs of arrays alone do not load, and the names that gdt has of them.

`__getattr__` loads them (PEP 562); type checkers read the imports above."""

_module_of = {name: module for module, names in LOADED_ON_FIRST_USE.items() for name in names}
_packages = {module for module in LOADED_ON_FIRST_USE if "." not in module}

__all__ = ["distributed", "fft", "free_memory", "lib", "linalg", "random", "set_cache_limit"]
__all__.extend([*_module_of, *_packages])
__all__ += array_module.__all__
__all__ += array_type.__all__
__all__ += batching.__all__
__all__ += checkpointed_module.__all__
__all__ += constants.__all__
__all__ += custom_vjp_module.__all__
__all__ += default_mesh_module.__all__
__all__ += derivatives.__all__
__all__ += fetching.__all__
__all__ += fitting.__all__
__all__ += function_module.__all__
__all__ += functional.__all__
__all__.extend(functions.PUBLIC)
__all__ += layout.__all__
__all__ += mesh.__all__
__all__ += numpys.__all__
__all__ += op_module.__all__
__all__.extend(ops.PUBLIC)
__all__ += scanning.__all__
__all__ += settings.__all__
__all__ += tape.__all__
__all__.sort()

displayed.LOADERS.append(lambda: importlib.import_module("gdt.debug.html"))


def __dir__() -> list[str]:
    return [*__all__, "__array_api_version__", "__array_namespace_info__", "__version__", "errors"]


if not TYPE_CHECKING:  # a type checker would take every name for one of the module

    def __getattr__(name: str) -> object:
        if name in _packages:
            return importlib.import_module(f"gdt.{name}")
        if name not in _module_of:
            raise no_attribute(__name__, name, NAMES)
        value = getattr(importlib.import_module(f"gdt.{_module_of[name]}"), name)
        globals()[name] = value
        return value
