"""The CUDA sources of `kernels/`, and the signatures of the kernels that are read from them.

A kernel is a function template of a `.cu` file. An `Instance` names the kernel and its template
arguments. The parameters of a kernel are read from its source, so no second list of signatures has
to be kept in step:

    >>> finish = Instance("reduce.cu", "arg_finish", ("Max", "float"))
    >>> [str(p) for p in parameters(finish)[:2]]
    ['const float* parts', 'const long long* index']
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gdt.errors import KernelError, error

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

GENERATED: dict[str, str] = {}
"""The texts of files that are generated, as `gdt.fusion.cuda` does it."""


@dataclass(frozen=True)
class Instance:
    """A kernel of a file with its template arguments: `matmul_simt<float, false, true>`."""

    file: str
    kernel: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kernel}<{', '.join(self.arguments)}>" if self.arguments else self.kernel


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
    if file in GENERATED and folder is None:
        return GENERATED[file]
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
    r"(?:__cluster_dims__\s*\([^)]*\)\s*)?"
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
