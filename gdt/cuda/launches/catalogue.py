"""All kernel instances that gdt launches, by file and architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gdt.cuda.compiler import ARCHITECTURES
from gdt.cuda.launches.attention import (
    WITHOUT_MMA,
    attention_instances,
    attention_mma_instances,
)
from gdt.cuda.launches.attention_hopper import attention_hopper_instances
from gdt.cuda.launches.batchnorm import batchnorm_instances
from gdt.cuda.launches.matmul import FLOAT64_ON_TENSOR_CORES, matmul_instances
from gdt.cuda.launches.matmul_hopper import HOPPER, matmul_hopper_instances
from gdt.cuda.launches.random import random_instances
from gdt.cuda.launches.reduce import reduce_instances
from gdt.cuda.launches.softmax_ce import softmax_ce_instances
from gdt.cuda.launches.transpose import transpose_instances
from gdt.cuda.launches.update import update_instances
from gdt.cuda.sources import Instance

_NOT_HOPPER = tuple(arch for arch in ARCHITECTURES if arch != HOPPER)
WITHOUT = {  # architectures that lack a kernel's instructions
    "attention_mma": (WITHOUT_MMA,),
    "attention_mma_dq": (WITHOUT_MMA,),
    "attention_mma_dkv": (WITHOUT_MMA,),
    "attention_wgmma": _NOT_HOPPER,
    "attention_wgmma_dq": _NOT_HOPPER,
    "attention_wgmma_dkv": _NOT_HOPPER,
    "matmul_mma": ("sm_75",),
    "matmul_wgmma": _NOT_HOPPER,
    "softmax_ce_cluster": _NOT_HOPPER,
}

_INSTANCES: Mapping[str, Callable[[], Iterator[Instance]]] = {
    "attention.cu": attention_instances,
    "attention_hopper.cu": attention_hopper_instances,
    "attention_mma.cu": attention_mma_instances,
    "batchnorm.cu": batchnorm_instances,
    "matmul.cu": matmul_instances,
    "matmul_hopper.cu": matmul_hopper_instances,
    "random.cu": random_instances,
    "reduce.cu": reduce_instances,
    "softmax_ce.cu": softmax_ce_instances,
    "transpose.cu": transpose_instances,
    "update.cu": update_instances,
}


def instances(file: str, arch: str | None = None) -> list[Instance]:
    """Return the instances of `file` that gdt launches, on `arch` or on any architecture.

    They are the instances that the tests compile and run.
    """
    return [i for i in _INSTANCES[file]() if arch is None or not _is_lacking(i, arch)]


def _is_lacking(instance: Instance, arch: str) -> bool:
    """Whether gdt does not launch an instance on an architecture."""
    if instance.kernel == "matmul_mma" and instance.arguments[0] == "double":
        return arch not in FLOAT64_ON_TENSOR_CORES
    return arch in WITHOUT.get(instance.kernel, ())
