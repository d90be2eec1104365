"""The errors of gdt, and the one form that they all have.

Every error is both a `GdtError` and the builtin that a NumPy user would expect to catch
(`ShapeError` is a `ValueError`, `DtypeError` a `TypeError`, ...). Its text has up to four parts:

    matmul: factor 'k' is 8 in x but 12 in w
      x: float32[16, 8]  ['data', -]
      w: float32[12, 8]  [-, 'model']
      rule: ... i k, k j -> ... i j
      Transpose w, or slice one of them to the other's size.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

import numpy as np


class GdtError(Exception):
    """The base class of every error that gdt raises on purpose."""

    def __init__(self, *message: object) -> None:
        super().__init__(*message)


class MeshError(GdtError, ValueError):
    """A mesh that cannot be built, or operands that live on different meshes."""


class DeviceError(GdtError, RuntimeError):
    """A device that does not exist, or that lacks what a call needs."""


class OutOfMemoryError(GdtError, MemoryError):
    """A device that has less free memory than an array or a kernel needs."""


class ExportError(GdtError, BufferError):
    """An array that cannot be exported to another library: split, partial, or on another device."""


class LayoutError(GdtError, ValueError):
    """A layout that does not fit its mesh or its array."""


class ShapeError(GdtError, ValueError):
    """Shapes, axes or counts that do not fit together."""


class AxisError(ShapeError, np.exceptions.AxisError):
    """An axis that an array does not have; an IndexError too, as NumPy's is."""


class RankError(ShapeError, AttributeError):
    """An attribute that arrays of another rank have: for `hasattr` there is none."""


class CopyError(GdtError, ValueError):
    """A copy that is needed where none was allowed."""


class IndexRangeError(GdtError, IndexError):
    """An index outside its axis."""


class DtypeError(GdtError, TypeError):
    """An operand of a type or dtype that the operation cannot take."""


class IndexTypeError(DtypeError, IndexError):
    """A value that is no index; an IndexError too, as NumPy's is."""


class ArgumentError(GdtError, TypeError, ValueError):
    """An argument that is missing, unknown, of a wrong type, or outside its range."""


class RangeError(ArgumentError, OverflowError):
    """A number that a dtype cannot hold, or bounds whose difference is infinite."""


class NestingError(ArgumentError, RecursionError):
    """A container that holds itself, or too many containers in one another."""


class DivisionError(GdtError, ZeroDivisionError):
    """Weights that add up to 0."""


class LinAlgError(GdtError, np.linalg.LinAlgError):
    """A matrix that is singular, not square or not positive definite, or an algorithm that does not
    converge."""


class ImmutableError(GdtError, AttributeError):
    """An attempt to set or delete an attribute of an immutable object."""


class ReadOnlyError(GdtError, ValueError, TypeError):
    """A write to an array that cannot be written, as NumPy's read-only views and its scalars."""


class GradientError(GdtError, ValueError):
    """A gradient that does not exist: of a target that no tape recorded, or that is an integer."""


class FunctionError(GdtError, RuntimeError):
    """A step that `gdt.function` cannot record."""


class ReplayError(FunctionError):
    """A recorded step that does another thing than the step as it is written."""


class MoveError(GdtError, RuntimeError):
    """An implicit move of data where `gdt.no_moves()` or `gdt.implicit_fetch("raise")` forbids
    it."""


class NanError(GdtError, FloatingPointError):
    """A NaN or an infinity where `gdt.check_nans()` forbids it."""


class DistributedError(GdtError, RuntimeError):
    """Processes that cannot be connected, that disagree, or that have ended; a collective that
    failed."""


class KernelError(GdtError, RuntimeError):
    """A CUDA kernel that does not compile, or that does not take its arguments."""


class CompileError(KernelError):
    """A CUDA kernel that does not compile."""


class CheckpointError(GdtError, RuntimeError):
    """A checkpoint that is missing, damaged, of another format, or of other arrays than its
    target's."""


class DataError(GdtError, RuntimeError):
    """A data set that is missing, damaged, or in a format that no reader knows."""


class InteropError(GdtError, ImportError):
    """Another library that cannot work with gdt as it is: too old, or imported before gdt could."""


class BenchmarkError(GdtError, ValueError):
    """A measurement that cannot be made, read or compared."""


E = TypeVar("E", bound=GdtError)


def type_text(value: object) -> str:
    """The name of a value's type with its article, as in "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' or name == 'ndarray' else 'a'} {name}"


def error(
    error_type: type[E],
    *text: str,
    operands: Mapping[str, object] | None = None,
    rule: str | None = None,
    remedy: str | None = None,
) -> E:
    """Return, without raising it, an `error_type` whose text has the common form.

    text: what is wrong, with names and numbers; before it the name of the call, where that is
    another than `name_of_call` finds.
    operands: the type of each operand by its name, or anything whose `str` describes the operand.
    rule: the text of the op's sharding rule, where the rule explains the problem.
    remedy: what to do.

    >>> remedy = "Use an axis in -2..1."
    >>> print(error(ShapeError, "concat", "axis 2 is out of range for rank 2", remedy=remedy))
    concat: axis 2 is out of range for rank 2
      Use an axis in -2..1.
    """
    *name, problem = text
    lines = [f"{name[0] if name else name_of_call()}: {problem}"]
    lines += [f"  {name}: {operand}" for name, operand in (operands or {}).items()]
    if rule is not None:
        lines.append(f"  rule: {rule}")
    if remedy is not None:
        lines.append(f"  {remedy}")
    return error_type("\n".join(lines))


WRAPPERS = (("checked", "<locals>.call"), ("compared_first", "<locals>.call"))
"""The functions of `gdt.arguments` that run a public function, whose `name` they know."""

CHAPTERS = ("gdt.fft", "gdt.linalg")
"""Packages whose functions go by two names in errors, as users write them: `linalg.solve`."""


def name_of_call() -> str:
    """Return the name of the innermost public function, op or method of gdt that runs.

    Public is what `gdt` or its package (`gdt.nn`, `gdt.linalg`) has under its name, an op of a
    user, and what `gdt.arguments` wraps. A public method is named with the class of its
    object, as in `Sequential.fit`; constructors and operators go by that class alone, private
    methods by what calls them, and an op by its own name. What a function defines goes by its name.
    """
    frame: FrameType | None = sys._getframe(2)
    innermost = frame.f_code.co_name if frame else ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("gdt."):
            name = _public_name(frame, module)
            if name:
                return name
        frame = frame.f_back
    return innermost


def _public_name(frame: FrameType, module: str) -> str:
    """Return the public name of what a frame of gdt runs; "" if it has none."""
    if module == "gdt.caches":  # which runs functions of others
        return ""
    package = ".".join(module.split(".")[:2])
    owner, _, method = frame.f_code.co_qualname.partition(".")
    variables = frame.f_locals
    if "self" in variables:
        with suppress(AttributeError):  # past `__getattr__`, which may be what fails
            op = str(object.__getattribute__(variables["self"], "__name__"))
            is_of_gdt = str(variables["self"].__module__).startswith("gdt.")
            if not is_of_gdt or getattr(sys.modules["gdt"], op, None) is variables["self"]:
                return op
    if module == "gdt.arguments" and (owner, method) in WRAPPERS:
        return str(variables["name"])
    for namespace in ("gdt", package) if owner[0] != "_" else ():
        value: Any = vars(sys.modules[namespace]).get(owner.rstrip("_"))
        if isinstance(value, type) and value.__module__ == module:
            cls = type(variables["self"]) if "self" in variables else variables.get("cls", value)
            if method[:1] == "_" != method[1:2]:  # what calls a private method has the name
                return ""
            is_public = method.isidentifier() and method[0] != "_"
            return f"{cls.__name__}.{method}" if is_public else str(cls.__name__)
        code = getattr(inspect.unwrap(value), "__code__", None)
        if code and (code.co_filename, code.co_name) == (frame.f_code.co_filename, owner):
            chapter = f"{namespace.removeprefix('gdt.')}." if namespace in CHAPTERS else ""
            return chapter + owner.rstrip("_")
    return ""


LIBRARIES = ("gdt", "numpy", "contextlib")


def frame_of_user() -> tuple[FrameType, int]:
    """Return the innermost frame that is of none of `LIBRARIES`, and its `stacklevel` for a
    `warnings.warn` in the function that calls this one."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        is_of_library = _files_of_libraries.get(file)  # no call for each frame: notes ask often
        if is_of_library is None:
            is_of_library = _files_of_libraries[file] = _is_of_library(frame)
        if not is_of_library:
            break
        level, frame = level + 1, frame.f_back
    return frame, level


_files_of_libraries: dict[str, bool] = {}


def _is_of_library(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in LIBRARIES or frame.f_code.co_filename.startswith("<gdt")


def line_of_user() -> str:
    """Return the user's line, as errors name it: its number, its file and its function."""
    frame, _ = frame_of_user()
    return f"line {frame.f_lineno} of {frame.f_code.co_filename} ({frame.f_code.co_name})"
