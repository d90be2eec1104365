"""Launch kernels: a `KernelCall` has a grid, a block and arguments, which are checked against the
kernel's source before `CudaRunner` passes them to the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gdt.cuda.compiler import compile_file
from gdt.cuda.cudnn import Cudnn, load
from gdt.cuda.sources import Instance, Parameter, parameters
from gdt.cuda.tensor_map import TensorMap
from gdt.errors import KernelError, error

# Bytes of shared memory, static and dynamic, beyond which a function's limit must be raised.
SHARED_LIMIT = 48 << 10
GRID_LIMIT = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True)
class KernelCall:
    """One launch, for any runner: `CudaRunner`, or the tests' runner that uses the CPU.

    grid: the number of blocks along up to three axes. block: the number of threads along each.
    shared: the bytes of dynamic shared memory. pointees: arrays whose addresses the arguments hold,
    to which the call refers so that their memory is not freed. checked: whether the arguments are
    what `check` returns.
    """

    instance: Instance
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    shared: int = 0
    pointees: tuple[Any, ...] = ()
    checked: bool = False


def check(call: KernelCall, folder: Path | None = None) -> list[Any]:
    """Check a call against its kernel's signature; return its arguments, scalars in their C types.

    An array must have the parameter's dtype, be aligned to it, and be C-contiguous unless the
    kernel also has a parameter `<name>_strides`. None is a null pointer. Hopper's accelerator must
    be able to copy from a tensor map. A Python number is converted to the parameter's type.

    Raises KernelError for an argument that does not fit its parameter.
    """
    signature = parameters(call.instance, folder)
    name = str(call.instance)
    if len(call.arguments) != len(signature):
        problem = f"{len(call.arguments)} arguments for {len(signature)} parameters"
        takes = {"takes": ", ".join(map(str, signature))}
        raise error(KernelError, name, problem, operands=takes)
    sizes = tuple(call.grid) + (1,) * (3 - len(call.grid))
    if not all(0 < n <= limit for n, limit in zip(sizes, GRID_LIMIT, strict=True)):
        raise error(KernelError, name, f"no GPU takes a grid of {call.grid} blocks")
    strided = {p.name.removesuffix("_strides") for p in signature if p.name.endswith("_strides")}
    return [
        _check_argument(name, p, a, p.name in strided)
        for p, a in zip(signature, call.arguments, strict=True)
    ]


def _check_argument(kernel: str, p: Parameter, argument: Any, strided: bool) -> Any:
    """Return one argument as its parameter takes it, or raise KernelError.

    strided: whether the kernel takes the strides of this array.
    """

    def refuse(problem: str) -> KernelError:
        return error(KernelError, kernel, f"argument {p.name!r} {problem}", operands={"takes": p})

    if p.pointer:
        if argument is None:
            return None
        if not hasattr(argument, "dtype") or not hasattr(argument, "strides"):
            raise refuse(f"is {type(argument).__name__}, not an array")
        if dtype_name(argument.dtype) != p.dtype and argument.dtype != p.dtype:
            raise refuse(f"has dtype {argument.dtype}")
        if not strided and not argument.flags.c_contiguous:
            raise refuse(f"of shape {argument.shape} is not C-contiguous")
        if address(argument) % argument.dtype.itemsize:
            raise refuse(f"is not aligned to {argument.dtype.itemsize} bytes")
        return argument
    if p.c_type == TensorMap.__name__:
        if not isinstance(argument, TensorMap):
            raise refuse(f"is {type(argument).__name__}, not a tensor map")
        if (reason := argument.refusal(address(argument.array))) is not None:
            raise refuse(f"cannot be copied from: {reason}")
        return argument
    if isinstance(p.dtype, np.dtype):
        if getattr(argument, "dtype", None) != p.dtype or np.size(argument) != 1:
            raise refuse(f"is not one struct {p.c_type}")
        return argument
    return _scalar(p.dtype, argument, refuse)


def _scalar(dtype: str, value: Any, refuse: Callable[[str], KernelError]) -> Any:
    """Return `value` as a NumPy scalar of `dtype`, or raise what `refuse` returns."""
    target = np.dtype(dtype)
    if isinstance(value, np.generic):
        if value.dtype != target:
            raise refuse(f"has dtype {value.dtype}")
        return value
    if not isinstance(value, bool | int | float):
        raise refuse(f"is {type(value).__name__}, not a number")
    if target.kind == "f":
        return target.type(value)
    if target.kind in "iu":
        low, high = _limits(target)
        if not low <= value <= high or value != int(value):
            raise refuse(f"is {value}, which {target} cannot hold")
    return target.type(value)


@cache
def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


@cache  # NumPy builds the name anew at every call, which costs more than a launch
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return `dtype.name`."""
    return dtype.name


def address(array: Any) -> int:
    """Return the address of an array's first element, in host or device memory."""
    on_host = isinstance(array, ON_HOST)
    return int(array.ctypes.data if on_host else array.data.ptr)


NULL = np.uintp(0)
ON_HOST = np.ndarray, np.generic


def _for_cupy(arguments: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        [
            NULL if a is None else a.encoded(address(a.array)) if type(a) is TensorMap else a
            for a in arguments
        ]
    )


@dataclass
class CudaRunner:
    """A runner that launches calls on the current CUDA device and stream, through `cupy`."""

    cupy: Any
    arch: str
    _functions: dict[tuple[int, Instance], Any] = field(default_factory=dict)
    _allowed: dict[int, int] = field(default_factory=dict)  # bytes of dynamic shared memory

    def run(self, call: KernelCall) -> None:
        """Check the arguments, if nobody has, and launch, without waiting for the end."""
        arguments = _for_cupy(call.arguments if call.checked else check(call))
        function = self._function(call)
        if call.shared > self._allowed[function.ptr]:
            driver = self.cupy.cuda.driver
            limit = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver.funcSetAttribute(function.ptr, limit, call.shared)
            self._allowed[function.ptr] = call.shared
        function(call.grid, call.block, arguments, shared_mem=call.shared)

    @cached_property
    def multiprocessors(self) -> int:
        """The number of multiprocessors of the current device; a runner's devices are alike."""
        return int(self.cupy.cuda.Device().attributes["MultiProcessorCount"])

    @cached_property
    def cudnn(self) -> Cudnn:
        """cuDNN on the current device and stream; KernelError where its frontend is missing."""
        cuda = self.cupy.cuda
        return Cudnn(load(), cuda.runtime.getDevice, lambda: cuda.get_current_stream().ptr)

    def _function(self, call: KernelCall) -> Any:
        """Return the compiled kernel of `call`, loaded into the current device."""
        key = self.cupy.cuda.runtime.getDevice(), call.instance  # a function belongs to one device
        function = self._functions.get(key)
        if function is None:
            cubin = compile_file(call.instance.file, [call.instance], self.arch)
            module = self.cupy.cuda.function.Module()
            module.load(cubin.code)
            function = module.get_function(cubin.names[str(call.instance)])
            driver = self.cupy.cuda.driver
            static = driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
            self._allowed[function.ptr] = SHARED_LIMIT - driver.funcGetAttribute(
                static, function.ptr
            )
            self._functions[key] = function
        return function
