"""Launch kernels: a `KernelCall` has a grid, a block and arguments, which are checked against the
kernel's source before `CudaRunner` passes them to the GPU.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gdt.cuda.compiler import compile_file
from gdt.cuda.cudnn import Cudnn, load
from gdt.cuda.sources import Instance, Parameter, parameters
from gdt.cuda.tensor_map import TensorMap
from gdt.errors import KernelError, error

# Bytes of shared memory, static and dynamic, beyond which a function's limit must be raised.
SHARED_LIMIT = 48 << 10
GRID_LIMIT = (2**31 - 1, 65535, 65535)
MOST_MAPS = 1000  # encoded tensor maps that a launch keeps; recycled memory has the same addresses


@dataclass(frozen=True)
class KernelCall:
    """One launch, for any runner: `CudaRunner`, or the tests' runner that uses the CPU.

    grid: the number of blocks along up to three axes. block: the number of threads along each.
    shared: the bytes of dynamic shared memory. cluster: the number of neighbouring blocks that run
    together, as the kernel's __cluster_dims__ has it; it divides the grid. pointees: arrays whose
    addresses the arguments hold, to which the call refers so that their memory is not freed.
    """

    instance: Instance
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    shared: int = 0
    pointees: tuple[Any, ...] = ()
    cluster: int = 1


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
    inside = all(0 < n <= limit for n, limit in zip(sizes, GRID_LIMIT, strict=True))
    if not inside or sizes[0] % call.cluster:
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


class ArgumentPlace(NamedTuple):
    """The place of an array among the arguments of a launch.

    parameter: its number among the parameters of the kernel. array: its number among the arrays
    that are given. offset: from the beginning of that array, in bytes.
    """

    parameter: int
    array: int
    offset: int


def address(array: Any) -> int:
    """Return the address of an array's first element, in host or device memory."""
    on_host = isinstance(array, ON_HOST)
    return int(array.ctypes.data if on_host else array.data.ptr)


Launch = Callable[[Sequence[Any], Sequence[int]], None]
"""A launch of a kernel on arrays and their addresses."""

NULL = np.uintp(0)
ON_HOST = np.ndarray, np.generic


def _for_cupy(arguments: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        [
            NULL if a is None else a.encoded(address(a.array)) if type(a) is TensorMap else a
            for a in arguments
        ]
    )


class Parameters(threading.local):
    """The parameters of a launch as the driver takes them, for each thread its own.

    of_launch: the addresses that change from launch to launch, the table of where each parameter
    lies, and the address of the table. constants: the parameters that stay, and numbers of words
    in the place of others.
    """

    def __init__(
        self, make_context: Callable[[], Any], constants: Sequence[np.ndarray[Any, Any] | int]
    ) -> None:
        make_context()  # in this thread, which may not have launched anything yet
        count = 1 + max((c for c in constants if isinstance(c, int)), default=-1)
        words: Any = (ctypes.c_uint64 * count)()
        table = (ctypes.c_uint64 * len(constants))()
        for n, constant in enumerate(constants):
            if isinstance(constant, int):
                table[n] = ctypes.addressof(words) + constant * ctypes.sizeof(ctypes.c_uint64)
            else:
                table[n] = constant.ctypes.data
        self.of_launch = words, table, ctypes.addressof(table)


class EncodedMaps:
    """The tensor maps of a launch, encoded for the addresses of arrays.

    maps: with the parameter that each is, the array that it maps, and where it begins there.
    """

    def __init__(self, maps: Sequence[tuple[ArgumentPlace, TensorMap]]) -> None:
        self._maps = maps
        self._known: dict[tuple[int, int], tuple[Any, int]] = {}

    def fill(self, table: Any, addresses: Sequence[int]) -> list[Any]:
        """Write into the table of parameters where encoded maps lie; return these, which live until
        the driver has read them."""
        encoded = []
        for (place, array, offset), tensor_map in self._maps:
            words, table[place] = self._encoded(tensor_map, place, addresses[array] + offset)
            encoded.append(words)
        return encoded

    def _encoded(self, tensor_map: TensorMap, place: int, address: int) -> tuple[Any, int]:
        """Return an encoded tensor map, and where it lies."""
        known = self._known.get((place, address))
        if known is None:
            if len(self._known) >= MOST_MAPS:
                self._known.clear()
            encoded = tensor_map.encoded(address)
            known = self._known[place, address] = encoded, encoded.ctypes.data
        return known


def prepared_launch(
    cuda: Any, function: Any, call: KernelCall, places: Sequence[ArgumentPlace]
) -> Launch:
    """Return a launch by the driver, in which only addresses are filled in, on the current stream.

    CuPy's own launch would convert each argument anew, which takes it 3 to 5 us for a struct.
    """
    parameters: list[Any] = list(map(_constant, check(call)))
    # The words begin with the addresses of the arrays, for parameters that are one of them.
    count = 1 + max((place.array for place in places), default=-1)
    inside: list[ArgumentPlace] = []  # with numbers of words
    maps = []
    for place in places:
        argument, word = call.arguments[place.parameter], place.array
        if isinstance(argument, TensorMap):
            maps.append((place, replace(argument, array=None)))
        elif place.offset:
            word = count + len(inside)
            inside.append(place._replace(parameter=word))
        parameters[place.parameter] = word
    own, encoded_maps = Parameters(cuda.runtime.memGetInfo, parameters), EncodedMaps(maps)
    grid, block = ((*size, 1, 1)[:3] for size in (call.grid, call.block))
    run = partial(cuda.driver.launchKernel, function.ptr, *grid, *block, call.shared)
    device, stream = cuda.runtime.getDevice(), cuda.get_current_stream

    def launch(arrays: Sequence[Any], addresses: Sequence[int]) -> None:
        words, table, begin = own.of_launch
        words[:count] = addresses[:count]
        for word, array, offset in inside:
            words[word] = addresses[array] + offset
        _encoded = encoded_maps.fill(table, addresses) if maps else None
        run(stream(device).ptr, begin, 0)

    launch.function = function  # type: ignore[attr-defined]  # which keeps its module loaded
    return launch


def _constant(argument: Any) -> np.ndarray[Any, Any]:
    """Return the bytes of an argument that is the same in every launch."""
    if isinstance(argument, TensorMap):
        return argument.encoded(address(argument.array))
    if argument is None:
        return np.asarray(NULL)
    if isinstance(argument, ON_HOST):  # a number, or a struct
        return np.asarray(argument)
    return np.asarray(np.uint64(address(argument)))


@dataclass
class CudaRunner:
    """A runner that launches calls on the current CUDA device and stream, through `cupy`."""

    cupy: Any
    arch: str
    address: Callable[[Any], int] = attrgetter("data.ptr")
    _functions: dict[tuple[int, Instance], Any] = field(default_factory=dict)
    _allowed: dict[int, int] = field(default_factory=dict)  # bytes of dynamic shared memory

    def allocate(self, nbytes: int) -> tuple[Any, int]:
        """Return memory of the current device from CuPy's pool, and its address."""
        memory = self.cupy.cuda.alloc(nbytes)
        return memory, memory.ptr

    def run(self, call: KernelCall) -> None:
        """Check the arguments and launch, without waiting for the end."""
        arguments = _for_cupy(check(call))
        function = self._function(call)
        if call.shared > self._allowed[function.ptr]:
            driver = self.cupy.cuda.driver
            limit = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver.funcSetAttribute(function.ptr, limit, call.shared)
            self._allowed[function.ptr] = call.shared
        function(call.grid, call.block, arguments, shared_mem=call.shared)

    def prepare(self, call: KernelCall, places: Sequence[ArgumentPlace]) -> Launch:
        """Return the launch of a call that has run, with other arrays in some places."""
        return prepared_launch(self.cupy.cuda, self._function(call), call, places)

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
