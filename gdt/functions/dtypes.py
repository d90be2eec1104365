"""Functions of dtypes, and the inspection of the namespace: devices, dtypes, capabilities.

Source: Python array API standard 2025.12, data type functions and inspection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operators import is_array_like
from gdt.array.registry import public
from gdt.errors import ArgumentError, DtypeError, error
from gdt.sharding.default_mesh import get_default_mesh
from gdt.sharding.dtypes import BFLOAT16, FLOAT32, castable, kind_of, limits_of, promoted
from gdt.sharding.mesh import Mesh

__all__ = [
    "can_cast",
    "common_type",
    "finfo",
    "iinfo",
    "iscomplexobj",
    "isdtype",
    "isrealobj",
    "isscalar",
    "issubdtype",
    "min_scalar_type",
    "promote_types",
    "result_type",
]

Dtype = np.dtype[Any]


@dataclass(frozen=True)
class FloatInfo:
    """The limits of a floating-point dtype, as Python numbers.

    bits: bits of one number. eps: the distance from 1 to the next larger number. max, min: the
    largest and the smallest finite number. smallest_normal, tiny: the smallest positive number of
    full precision. smallest_subnormal: the smallest positive number. precision: decimal digits that
    are kept. resolution: 10 ** -precision.
    """

    dtype: Dtype
    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    tiny: float
    smallest_subnormal: float
    precision: int
    resolution: float


@dataclass(frozen=True)
class IntegerInfo:
    """The limits of an integer dtype: bits of one number, the largest and the smallest one."""

    dtype: Dtype
    bits: int
    max: int
    min: int


def _dtype_of(value: Any) -> Dtype:
    """The dtype of an array, or the one that `value` names; DtypeError for anything else."""
    if isinstance(value, DistributedArray):
        return value.dtype
    try:
        return np.asarray(value).dtype if is_array_like(value) else np.dtype(value)
    except TypeError:
        raise error(DtypeError, f"{value!r} is neither a dtype nor an array") from None


@public
def finfo(type: Any, /) -> FloatInfo:
    """The limits of a floating-point dtype, of an array, or of the parts of a complex dtype.

    Raises DtypeError for integers and bools.

    >>> gdt.finfo("float32").bits, gdt.finfo(gdt.float64).eps
    (32, 2.220446049250313e-16)
    """
    dtype = _dtype_of(type)
    if kind_of(dtype) not in "fc":
        raise error(DtypeError, f"{dtype} is no dtype of floating-point numbers")
    limits = limits_of(dtype)
    numbers = {
        name: float(getattr(limits, name))
        for name in ("eps", "max", "min", "smallest_normal", "smallest_subnormal", "resolution")
    }
    return FloatInfo(
        dtype=limits.dtype,
        bits=int(limits.bits),
        precision=int(limits.precision),
        tiny=numbers["smallest_normal"],
        **numbers,
    )


@public
def iinfo(type: Any, /) -> IntegerInfo:
    """The limits of an integer dtype, or of that of an array.

    Raises DtypeError for any other dtype.

    >>> gdt.iinfo("int8").min, gdt.iinfo(gdt.uint8).max
    (-128, 255)
    """
    dtype = _dtype_of(type)
    if dtype.kind not in "iu":
        raise error(DtypeError, f"{dtype} is no dtype of integers")
    limits = np.iinfo(dtype)
    return IntegerInfo(dtype, int(limits.bits), int(limits.max), int(limits.min))


@public
def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of the kind `kind`.

    kind: a dtype, one of "bool", "signed integer", "unsigned integer", "integral", "real floating",
        "complex floating" and "numeric", or a tuple of those: one of them is enough.

    Raises DtypeError for what is no dtype, ArgumentError for an unknown kind.

    >>> gdt.isdtype(gdt.float32, ("integral", "real floating"))
    True
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    checked = [_is_of_kind(_dtype_of(dtype), k) for k in kinds]
    return any(checked)


def _is_of_kind(dtype: Dtype, kind: Any) -> bool:
    if not isinstance(kind, str):
        return bool(dtype == np.dtype(kind))
    try:
        return bool(np.isdtype(FLOAT32 if dtype == BFLOAT16 else dtype, kind))
    except ValueError as cause:
        raise error(ArgumentError, str(cause)) from None


@public
def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Whether a dtype is the same as, or below, another one in NumPy's hierarchy of types.

    >>> gdt.issubdtype(gdt.float32, gdt.floating)
    True
    """
    if arg1 == BFLOAT16:
        return bool(arg2 == BFLOAT16 or np.issubdtype(np.floating, arg2))
    return bool(np.issubdtype(arg1, arg2))


def _promotable(value: Any) -> Any:
    """Return an operand of a promotion as NumPy takes it: the dtype of a distributed array, and
    Python numbers and NumPy arrays as they are."""
    if isinstance(value, DistributedArray):
        return value.dtype
    if isinstance(value, bool | int | float | complex | np.ndarray | np.generic):
        return value
    return _dtype_of(value)


@public
def result_type(*arrays_and_dtypes: Any) -> Dtype:
    """The dtype that arrays, dtypes and Python numbers promote to, as in NumPy: Python numbers are
    weak.

    Raises DtypeError for operands that have no common dtype, ArgumentError for none at all.

    >>> gdt.result_type(gdt.ones(2, dtype="float32"), gdt.int8, 3.0)
    dtype('float32')
    """
    if not arrays_and_dtypes:
        raise error(ArgumentError, "there is no operand")
    if all(isinstance(a, bool | int | float | complex) for a in arrays_and_dtypes):
        problem = "Python numbers alone have no dtype: at least one array or dtype must be given"
        raise error(ArgumentError, problem)
    operands = [_promotable(a) for a in arrays_and_dtypes]
    try:
        return promoted(*operands)
    except np.exceptions.DTypePromotionError as cause:
        raise error(DtypeError, str(cause)) from None


@public
def promote_types(type1: Any, type2: Any) -> Dtype:
    """The smallest dtype to which both dtypes can be cast safely.

    >>> gdt.promote_types("int16", "uint16")
    dtype('int32')
    """
    return promoted(_dtype_of(type1), _dtype_of(type2))


@public
def can_cast(from_: Any, to: Any, casting: str = "safe") -> bool:
    """Whether an array or a dtype can be cast to a dtype under the rule `casting`.

    casting: "no", "equiv", "safe", "same_kind" or "unsafe", as in NumPy.

    >>> gdt.can_cast("int32", "float64"), gdt.can_cast(gdt.ones(2), "float32")
    (True, False)
    """
    source, target = _dtype_of(from_), _dtype_of(to)
    return castable(source, target, casting)


@public
def common_type(*arrays: Any) -> type[Any]:
    """The floating-point type that the arrays promote to; float64 where integers are among them.

    Raises DtypeError for bools.

    >>> gdt.common_type(gdt.ones(2, dtype="float32")).__name__
    'float32'
    """
    return np.common_type(*[np.empty(0, _dtype_of(a)) for a in arrays])


@public
def min_scalar_type(a: Any, /) -> Dtype:
    """The smallest dtype that holds the number `a`; for an array with axes, the dtype it has.

    >>> gdt.min_scalar_type(300)
    dtype('uint16')
    """
    if isinstance(a, DistributedArray):
        return a.dtype if a.ndim else np.min_scalar_type(a.numpy()[()])
    return np.min_scalar_type(a)


@public
def iscomplexobj(x: Any) -> bool:
    """Whether the dtype of `x` is complex, whatever its values are.

    >>> gdt.iscomplexobj([1j]), gdt.iscomplexobj(1.0)
    (True, False)
    """
    return bool(np.iscomplexobj(np.empty(0, x.dtype) if isinstance(x, DistributedArray) else x))


@public
def isrealobj(x: Any) -> bool:
    """Whether the dtype of `x` is not complex.

    >>> gdt.isrealobj(gdt.ones(2))
    True
    """
    return not iscomplexobj(x)


@public
def isscalar(element: Any) -> bool:
    """Whether `element` is a number and no array, not even one of rank 0.

    >>> gdt.isscalar(3.0), gdt.isscalar(gdt.asarray(3.0))
    (True, False)
    """
    return bool(np.isscalar(element))


# ---------------------------------------------------------------- inspection


class NamespaceInfo:
    """Devices, dtypes and capabilities of gdt, as the array API standard asks for them."""

    def capabilities(self) -> dict[str, bool | int]:
        """Whether masks may be indices, whether sizes may depend on data, and the largest rank."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 32}

    def default_device(self) -> Mesh:
        """The mesh of arrays that are created without a layout or a device."""
        return get_default_mesh()

    def default_dtypes(self, *, device: Mesh | None = None) -> dict[str, Dtype]:
        """The dtypes that arrays of Python numbers get, by the kind of the numbers."""
        return {
            "real floating": np.dtype(float),
            "complex floating": np.dtype(complex),
            "integral": np.dtype(np.int64),
            "indexing": np.dtype(np.int64),
        }

    def dtypes(
        self, *, device: Mesh | None = None, kind: str | Sequence[str] | None = None
    ) -> dict[str, Dtype]:
        """The dtypes that arrays may have, by name. kind: only those of a kind; see
        `gdt.isdtype`."""
        kinds = tuple(kind) if isinstance(kind, list | tuple) else kind
        return {n: np.dtype(n) for n in _DTYPES if kinds is None or isdtype(n, kinds)}

    def devices(self) -> tuple[Mesh, ...]:
        """The devices that gdt knows of: the default mesh. Every other mesh is a device too."""
        return (get_default_mesh(),)


_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float32", "float64", "complex64", "complex128",
)  # fmt: skip


def namespace_info() -> NamespaceInfo:
    """The answer of `gdt.__array_namespace_info__`: devices, dtypes and capabilities."""
    return NamespaceInfo()
