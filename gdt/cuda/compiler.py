"""Compile the CUDA sources of `kernels/`, cache the cubins on disk, check arguments, launch.

A kernel is a function template of a `.cu` file. An `Instance` names the kernel and its template
arguments; a `KernelCall` adds grid, block and arguments. The parameters of a kernel are read from
its source, so no second list of signatures has to be kept in step:

    >>> finish = Instance("reduce.cu", "reduce_finish", ("Sum", "float", "float"))
    >>> [str(p) for p in parameters(finish)[:2]]
    ['const float* parts', 'float* out']

NVRTC (`gdt.cuda.nvrtc`) compiles to cubin, which needs no GPU. CuPy's own `RawKernel` is not used,
because it checks no argument types, cannot ask for `sm_90a`, and cannot be tested without a driver.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gdt.cuda.nvrtc import nvrtc
from gdt.cuda.tensor_map import TensorMap
from gdt.errors import KernelError, error

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
# Bytes of shared memory, static and dynamic, beyond which a function's limit must be raised.
SHARED_LIMIT = 48 << 10
GRID_LIMIT = (2**31 - 1, 65535, 65535)
BASE_OPTIONS = (
    "-std=c++17",
    "-default-device",
    "-lineinfo",
    "--ptxas-options=-v",
    "-diag-suppress=177",  # functions of shared headers that a file does not use
)
# Random numbers equal the CPU's to the bit, so a * b + c must round twice.
FILE_OPTIONS: Mapping[str, tuple[str, ...]] = {"random.cu": ("--fmad=false",)}

C_DTYPES: Mapping[str, str] = {
    "bool": "bool",
    "signed char": "int8",
    "unsigned char": "uint8",
    "int": "int32",
    "unsigned": "uint32",
    "long long": "int64",
    "unsigned long long": "uint64",
    "half_t": "float16",
    "bfloat16_t": "bfloat16",
    "float": "float32",
    "double": "float64",
}
SCALAR_TYPES = frozenset(C_DTYPES) - {"half_t", "bfloat16_t"}
C_TYPES: Mapping[str, str] = {dtype: c_type for c_type, dtype in C_DTYPES.items()}


@dataclass(frozen=True)
class Instance:
    """A kernel of a file with its template arguments: `matmul_simt<float, false, true>`."""

    file: str
    kernel: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kernel}<{', '.join(self.arguments)}>" if self.arguments else self.kernel


@dataclass(frozen=True)
class KernelCall:
    """One launch, for any runner: `CudaRunner`, or the tests' runner that uses the CPU.

    grid: the number of blocks along up to three axes. block: the number of threads along each.
    shared: the bytes of dynamic shared memory. pointees: arrays whose addresses the arguments hold,
    to which the call refers so that their memory is not freed.
    """

    instance: Instance
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    shared: int = 0
    pointees: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel.

    dtype: the name of the dtype of `c_type`, or the dtype of a struct. pointer: whether the
    parameter is a pointer to `c_type`. const: whether the kernel only reads through it.
    """

    name: str
    c_type: str
    dtype: str | np.dtype[Any]
    pointer: bool
    const: bool

    def __str__(self) -> str:
        return f"{'const ' * self.const}{self.c_type}{'*' * self.pointer} {self.name}"


# ---- sources and signatures ----------------------------------------------------------------------


@cache
def source_folder() -> Path:
    """Return the folder of the CUDA sources: in an installed gdt, or beside it in a checkout."""
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "kernel_sources", here.parent / "kernels"):
        if folder.is_dir():
            return folder
    raise error(KernelError, "kernels", f"no CUDA sources beside {here}", remedy="Reinstall gdt.")


@cache
def read_source(file: str, folder: Path | None = None) -> str:
    """Return the text of a source file; raise KernelError if it cannot be read."""
    path = (folder or source_folder()) / file
    try:
        return path.read_text()
    except OSError as problem:
        raise error(KernelError, file, f"cannot be read: {problem}") from problem


def included(file: str, folder: Path | None = None) -> dict[str, str]:
    """Return the texts of the headers that `file` includes, directly or not, by name."""
    headers: dict[str, str] = {}
    unread = [file]
    while unread:
        for name in re.findall(r'#include "([\w.]+)"', read_source(unread.pop(), folder)):
            if name not in headers and not name.endswith(".hpp"):
                headers[name] = read_source(name, folder)
                unread.append(name)
    return headers


_KERNEL = re.compile(
    r"(?:template\s*<(?P<template>[^>]*)>\s*)?__global__\s+void\s+"
    r"(?:__launch_bounds__\s*\([^)]*\)\s*)?(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)\s*\{"
)
_STRUCT = re.compile(r"struct\s+(?:__align__\(\d+\)\s*)?(?P<name>\w+)\s*\{(?P<body>[^{}]*)\};")
_FIELD = re.compile(r"([\w ]+?)\s+(\w+)(?:\[(\w+)\])?")
_CONSTANT = re.compile(r"constexpr int (\w+) = (\d+);")


@cache
def declarations(file: str, folder: Path | None = None) -> Mapping[str, tuple[str, str]]:
    """Return, for each kernel of `file`, the texts of its template parameters and parameters."""
    text = re.sub(r"//[^\n]*", "", read_source(file, folder))
    return {m["name"]: (m["template"] or "", m["parameters"]) for m in _KERNEL.finditer(text)}


@cache
def constants(file: str, folder: Path | None = None) -> Mapping[str, int]:
    """Return the `constexpr int` constants of `file` and its headers, such as its launch shape."""
    texts = [*included(file, folder).values(), read_source(file, folder)]
    return {name: int(value) for name, value in _CONSTANT.findall("\n".join(texts))}


@cache
def structs(file: str, folder: Path | None = None) -> Mapping[str, np.dtype[Any]]:
    """Return dtypes of the plain structs that kernels of `file` may take by value."""
    texts = [*included(file, folder).values(), read_source(file, folder)]
    text = re.sub(r"//[^\n]*", "", "\n".join(texts))
    dtypes: dict[str, np.dtype[Any]] = {}
    for match in _STRUCT.finditer(text):
        parts = [part.strip() for part in match["body"].split(";") if part.strip()]
        fields = [f for f in map(_FIELD.fullmatch, parts) if f and f[1] in SCALAR_TYPES]
        if len(fields) == len(parts):
            dtypes[match["name"]] = np.dtype(
                [_field(f, constants(file, folder)) for f in fields], align=True
            )
    return dtypes


def _field(field: re.Match[str], lengths: Mapping[str, int]) -> tuple[Any, ...]:
    """Return a struct's field for `np.dtype`; `lengths` are the constants that size its arrays."""
    c_type, name, length = field.groups()
    if length is None:
        return name, C_DTYPES[c_type]
    return name, C_DTYPES[c_type], (lengths[length] if length in lengths else int(length),)


@cache
def parameters(instance: Instance, folder: Path | None = None) -> tuple[Parameter, ...]:
    """Return the parameters of a kernel, with its template arguments in place of their names.

    Raises KernelError if the file has no such kernel, or a parameter has an unknown type.
    """
    file, kernels = instance.file, declarations(instance.file, folder)
    if instance.kernel not in kernels:
        remedy = f"It has {', '.join(sorted(kernels))}."
        raise error(KernelError, str(instance), f"{file} has no such kernel", remedy=remedy)
    template, text = kernels[instance.kernel]
    names = [part.split()[-1] for part in template.split(",") if part.strip()]
    if len(names) != len(instance.arguments):
        problem = f"{len(instance.arguments)} template arguments for <{template}>"
        raise error(KernelError, str(instance), problem)
    replace = dict(zip(names, instance.arguments, strict=True))
    return tuple(_parameter(part, replace, instance, folder) for part in text.split(","))


def _parameter(
    text: str, replace: Mapping[str, str], instance: Instance, folder: Path | None
) -> Parameter:
    """Return the parameter that `text` declares."""
    words = re.sub(r"__restrict__|__grid_constant__", "", text).replace("*", " * ").split()
    *type_words, name = words
    c_type = " ".join(replace.get(w, w) for w in type_words if w not in ("const", "*"))
    dtype: str | np.dtype[Any] | None = C_DTYPES.get(c_type)
    dtype = dtype or structs(instance.file, folder).get(c_type)
    if dtype is None:
        raise error(KernelError, str(instance), f"parameter {name!r} has unknown type {c_type!r}")
    return Parameter(name, c_type, dtype, "*" in type_words, "const" in type_words)


# ---- cubins --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture.

    names: the symbol of each kernel by `str(instance)`. log: the compiler's report.
    """

    code: bytes
    names: Mapping[str, str]
    log: str


def architecture(capability: tuple[int, int]) -> str:
    """Return the architecture whose cubins a device of this compute capability runs.

    Raises KernelError if none of `ARCHITECTURES` does."""
    major, minor = capability
    digits = {a: int(a.removeprefix("sm_").rstrip("a")) for a in ARCHITECTURES}
    fitting = [a for a, n in digits.items() if n // 10 == major and n % 10 <= minor]
    if not fitting:
        remedy = f"Kernels exist for {', '.join(ARCHITECTURES)}."
        problem = f"no kernel runs on compute capability {major}.{minor}"
        raise error(KernelError, "kernels", problem, remedy=remedy)
    return fitting[-1]


def compile_file(
    file: str, instances: Sequence[Instance], arch: str, folder: Path | None = None
) -> Cubin:
    """Compile `instances`, which are all of `file`, for `arch`, or read them from the disk cache.

    Raises KernelError for an unknown architecture or kernel, CompileError where NVRTC refuses."""
    if arch not in ARCHITECTURES:
        remedy = f"Kernels exist for {', '.join(ARCHITECTURES)}."
        raise error(KernelError, file, f"no kernel for architecture {arch!r}", remedy=remedy)
    for instance in instances:
        parameters(instance, folder)
    source, headers = read_source(file, folder), included(file, folder)
    options = [f"-arch={arch}", *BASE_OPTIONS, *FILE_OPTIONS.get(file, ())]
    expressions = sorted({str(i) for i in instances})
    toolkit = nvrtc().version
    key = hashlib.sha256(
        json.dumps([source, headers, options, expressions, toolkit]).encode()
    ).hexdigest()
    cubin = _read_cache(key)
    if cubin is None:
        cubin = Cubin(*nvrtc().compile(file, source, headers, options, expressions))
        _write_cache(key, cubin)
    return cubin


def cache_folder() -> Path | None:
    """Return `GDT_CACHE_DIR`, or gdt/kernels in the user's cache; None without a home folder."""
    chosen = os.environ.get("GDT_CACHE_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not chosen and cache.startswith("~"):
        return None
    return Path(chosen) if chosen else Path(cache) / "gdt" / "kernels"


def _read_cache(key: str) -> Cubin | None:
    """Return the cached cubin of `key`; None if there is none or its file is damaged."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        digest, head, code = (folder / key).read_bytes().split(b"\n", 2)
    except (OSError, ValueError):
        return None
    if hashlib.sha256(head + code).hexdigest().encode() != digest:
        return None
    names, log = json.loads(head)
    return Cubin(code, names, log)


def _write_cache(key: str, cubin: Cubin) -> None:
    """Write to a temporary file and rename: other processes see all of it or nothing.

    A full or read-only disk costs the next process a compilation, and this one nothing.
    """
    head = json.dumps([dict(cubin.names), cubin.log]).encode()
    digest = hashlib.sha256(head + cubin.code).hexdigest().encode()
    folder, temporary = cache_folder(), None
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            temporary = file.name
            file.write(b"\n".join([digest, head, cubin.code]))
        os.replace(temporary, folder / key)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


# ---- launch --------------------------------------------------------------------------------------


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
    on_host = isinstance(array, np.ndarray | np.generic)
    return int(array.ctypes.data if on_host else array.data.ptr)


def _for_cupy(argument: Any) -> Any:
    if isinstance(argument, TensorMap):
        return argument.encoded(address(argument.array))
    return np.uintp(0) if argument is None else argument


@dataclass
class CudaRunner:
    """A runner that launches calls on the current CUDA device and stream, through `cupy`."""

    cupy: Any
    arch: str
    _functions: dict[tuple[int, Instance], Any] = field(default_factory=dict)
    _allowed: dict[int, int] = field(default_factory=dict)  # bytes of dynamic shared memory

    def run(self, call: KernelCall) -> None:
        """Check the arguments and launch, without waiting for the end."""
        arguments = tuple(map(_for_cupy, check(call)))
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
