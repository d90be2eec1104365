"""NVRTC, the compiler of CUDA C++ at run time, through ctypes: it needs no driver and no GPU."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from gdt.errors import CompileError, KernelError, error


def _strings(items: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(items))(*[i.encode() for i in items])


class Nvrtc:
    """A loaded NVRTC library. version: the version of its CUDA toolkit, such as (13, 0)."""

    def __init__(self, library: ctypes.CDLL):
        self.library = library
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = (major.value, minor.value)

    def _check(self, status: int) -> None:
        """Raise KernelError with NVRTC's text if `status` is an error."""
        if status:
            self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
            text = self.library.nvrtcGetErrorString(status).decode()
            raise error(KernelError, "NVRTC", text)

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        """Return an output of a compilation: its "ProgramLog" or its "CUBIN"."""
        size = ctypes.c_size_t()
        self._check(getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self.library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    def compile(
        self,
        file: str,
        source: str,
        headers: Mapping[str, str],
        options: Sequence[str],
        expressions: Sequence[str],
    ) -> tuple[bytes, dict[str, str], str]:
        """Compile `source`; return the cubin, the mangled name of each of the `expressions`, and
        the log, which holds the report of ptxas if `options` ask for it.

        file: the name of `source` in errors. headers: the text of each header, by the name that
        `#include` has. expressions: kernels as C++ names them, such as `sgd<float>`. Raises
        CompileError for a source that does not compile, KernelError for other errors of NVRTC.
        """
        program = ctypes.c_void_p()
        texts, names = _strings([*headers.values()]), _strings([*headers])
        self._check(
            self.library.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), file.encode(), len(headers), texts, names
            )
        )
        try:
            for expression in expressions:
                self._check(self.library.nvrtcAddNameExpression(program, expression.encode()))
            status = self.library.nvrtcCompileProgram(program, len(options), _strings(options))
            log = self._text(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if status:
                raise compile_error(file, log, options)
            cubin = self._text(program, "CUBIN")
            return cubin, {e: self._lowered(program, e) for e in expressions}, log
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _lowered(self, program: ctypes.c_void_p, expression: str) -> str:
        """Return the mangled name of a kernel, in the compiled program."""
        name = ctypes.c_char_p()
        self._check(
            self.library.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(name))
        )
        return (name.value or b"").decode()


def compile_error(file: str, log: str, options: Sequence[str]) -> CompileError:
    """Return the error of a failed compilation. It begins with the first problem, such as
    `softmax_ce.cu line 12: identifier "x" is undefined`; the whole log follows."""
    first = re.search(r"^(\S+)\((\d+)\): error: (.*)$", log, re.M)
    where = f"{first[1]} line {first[2]}: {first[3]}" if first else log.strip().split("\n")[0]
    operands = {"options": " ".join(options), "log": log.strip()}
    return error(CompileError, file, f"does not compile: {where}", operands=operands)


def _candidates() -> list[str]:
    """Return the paths of all NVRTC libraries: of wheels, of CUDA_PATH, of the system."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    roots = [Path(os.environ[v]) for v in ("CUDA_PATH", "CUDA_HOME") if v in os.environ]
    paths = [p for w in wheels for p in sorted(w.glob("*/lib/libnvrtc.so.*"))]
    paths += [p for r in roots for p in sorted(r.glob("lib*/libnvrtc.so.*"))]
    system = ctypes.util.find_library("nvrtc")
    return [*map(str, paths), *([system] if system else [])]


def _load_builtins(path: str) -> None:
    """Load the library of builtins in the folder of the NVRTC at `path`.

    NVRTC loads it by name when it first compiles. The wheel of NVRTC 13.0 has no RPATH to its own
    folder, so it would not find the library unless that is loaded already.
    """
    for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")):
        ctypes.CDLL(str(builtins))


@cache
def nvrtc() -> Nvrtc:
    """Load NVRTC from the installed wheel, from CUDA_PATH, or from the system, in this order.

    Raises KernelError if there is none that can be loaded."""
    reasons = []
    for path in _candidates():
        try:
            _load_builtins(path)
            return Nvrtc(ctypes.CDLL(path))
        except OSError as e:
            if not str(e).startswith(f"{path}: cannot open shared object file"):
                reasons.append(str(e))
    problem = "libnvrtc is not installed"
    if reasons:
        problem = f"libnvrtc cannot be loaded: {'; '.join(reasons)}"
    remedy = "Install gdt[cuda13] or gdt[cuda12], or set CUDA_PATH to a CUDA toolkit."
    raise error(KernelError, "NVRTC", problem, remedy=remedy)
