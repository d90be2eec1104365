"""gdt: NumPy-like arrays sharded over many devices."""

from typing import TYPE_CHECKING

from gdt import (
    checkpoint,
    data,
    distributed,
    fft,
    linalg,
    metrics,
    nn,
    ops,
    optim,
    random,
    saving,
    settings,
    testing,
    training,
)
from gdt.array import array as array_module
from gdt.array import fetching
from gdt.array.array import *
from gdt.array.fetching import *
from gdt.autodiff import batching, derivatives, tape
from gdt.autodiff import checkpointed as checkpointed_module
from gdt.autodiff.batching import *
from gdt.autodiff.checkpointed import *
from gdt.autodiff.derivatives import *
from gdt.autodiff.tape import *
from gdt.backend import free_memory, set_cache_limit
from gdt.checkpoint import CheckpointManager
from gdt.debug import configuration, drawing, html, observers
from gdt.debug.configuration import *
from gdt.debug.drawing import *
from gdt.debug.observers import *
from gdt.engine import custom_vjp as custom_vjp_module
from gdt.engine import op as op_module
from gdt.engine.custom_vjp import *
from gdt.engine.op import *
from gdt.errors.foreign_names import NAMES, no_attribute
from gdt.linalg import fitting
from gdt.linalg.fitting import *
from gdt.ops import *
from gdt.ops import constants, lib, numpys
from gdt.ops.constants import *
from gdt.ops.dtypes import namespace_info as __array_namespace_info__
from gdt.ops.numpys import *
from gdt.programs import function as function_module
from gdt.programs.function import *
from gdt.saving import load_model, load_weights
from gdt.settings import *
from gdt.sharding import array_type, layout, mesh
from gdt.sharding import default_mesh as default_mesh_module
from gdt.sharding.array_type import *
from gdt.sharding.default_mesh import *
from gdt.sharding.layout import *
from gdt.sharding.mesh import *
from gdt.training import strategies
from gdt.training.strategies import *
from gdt.training.trainer import Trainer

__version__ = "0.1.0"
__array_api_version__ = "2025.12"

__all__ = [
    "CheckpointManager",
    "Trainer",
    "checkpoint",
    "data",
    "distributed",
    "fft",
    "free_memory",
    "lib",
    "linalg",
    "load_model",
    "load_weights",
    "metrics",
    "nn",
    "optim",
    "random",
    "saving",
    "set_cache_limit",
    "testing",
    "training",
]
__all__ += array_module.__all__
__all__ += array_type.__all__
__all__ += batching.__all__
__all__ += checkpointed_module.__all__
__all__ += configuration.__all__
__all__ += constants.__all__
__all__ += custom_vjp_module.__all__
__all__ += default_mesh_module.__all__
__all__ += derivatives.__all__
__all__ += drawing.__all__
__all__ += fetching.__all__
__all__ += fitting.__all__
__all__ += function_module.__all__
__all__ += layout.__all__
__all__ += mesh.__all__
__all__ += numpys.__all__
__all__ += observers.__all__
__all__ += op_module.__all__
__all__.extend(ops.PUBLIC)
__all__ += settings.__all__
__all__ += strategies.__all__
__all__ += tape.__all__
__all__.sort()


def __dir__() -> list[str]:
    return [*__all__, "__array_api_version__", "__array_namespace_info__", "__version__", "errors"]


if not TYPE_CHECKING:  # a type checker would take every name for one of the module

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name, NAMES)
