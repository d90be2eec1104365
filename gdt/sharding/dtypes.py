"""Facts about dtypes that NumPy does not know: bfloat16, and to what it promotes.

bfloat16 is the dtype of ml_dtypes, which CuPy shares. For NumPy it is of kind "V", has no limits
and promotes to few other dtypes. Arrays are stored in it and computed with in float32
(`gdt.engine.rounded`).
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Dtype = np.dtype[Any]

BFLOAT16: Dtype = np.dtype(ml_dtypes.bfloat16)
FLOAT32: Dtype = np.dtype(np.float32)
FLOAT8 = frozenset({np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)})
"""The dtypes that arrays are cast to and from, and that no op computes with."""
OF_ML_DTYPES = FLOAT8 | {BFLOAT16}

INEXACT = "fcV"
"""The kinds of the dtypes of floating-point and complex numbers that arrays have: of those of kind
"V" they have bfloat16 and float8_e4m3fn alone."""


def kind_of(dtype: Dtype) -> str:
    """Return the kind of a dtype, as `dtype.kind` has it; that of bfloat16 and float8 is "f".

    >>> kind_of(np.dtype("float16")), kind_of(BFLOAT16), kind_of(np.dtype(int))
    ('f', 'f', 'i')
    """
    kind = dtype.kind
    return "f" if kind == "V" and dtype in OF_ML_DTYPES else kind


def is_half(dtype: Dtype) -> bool:
    """Return whether a dtype has floating-point numbers of 16 bits: its sums take float32."""
    return dtype.itemsize == 2 and kind_of(dtype) == "f"


def widened(dtype: Dtype) -> Dtype:
    """Return the dtype in which elements of a dtype are added up: float32 for floating-point
    numbers of 16 bits."""
    return FLOAT32 if is_half(dtype) else dtype


def promoted(*operands: Any) -> Dtype:
    """Return the dtype to which dtypes and Python numbers promote, as `numpy.result_type` does.

    bfloat16 promotes as in JAX: with integers, bools and Python's real numbers to bfloat16, with
    float16 and float32 to float32. Raises NumPy's DTypePromotionError.

    >>> promoted(BFLOAT16, np.dtype(int), 2.0).name, promoted(BFLOAT16, np.dtype("float16")).name
    ('bfloat16', 'float32')
    """
    numbers = [a for a in operands if type(a) in (bool, int, float, complex)]
    dtypes = [_dtype_of(a) for a in operands if type(a) not in (bool, int, float, complex)]
    if BFLOAT16 not in dtypes:
        return np.result_type(*dtypes, *numbers)  # NumPy's does not take arrays of a GPU
    inexact = [FLOAT32 if d == BFLOAT16 else d for d in dtypes if kind_of(d) in INEXACT]
    if complex in map(type, numbers) or any(kind_of(d) in "fc" and d != BFLOAT16 for d in dtypes):
        return np.result_type(*inexact, *numbers)
    return BFLOAT16


def _dtype_of(operand: Any) -> Dtype:
    return np.dtype(operand if isinstance(operand, type | str | np.dtype) else operand.dtype)


def castable(source: Dtype, target: Dtype, casting: Any = "safe") -> bool:
    """Return whether a dtype can be cast to another one, as `numpy.can_cast` does; bfloat16 casts
    as a dtype of floating-point numbers that no other dtype of 16 bits holds.

    >>> castable(BFLOAT16, np.dtype("float32")), castable(BFLOAT16, np.dtype("float16"))
    (True, False)
    """
    if casting in ("safe", "same_kind") and source != target:
        if casting == "same_kind" and target == BFLOAT16:
            return kind_of(source) in "biuf"
        if casting == "same_kind" and source == BFLOAT16:
            return kind_of(target) in "fc"
        if target == BFLOAT16:  # 8 bits of precision
            return source.kind == "b" or (source.kind in "iu" and source.itemsize == 1)
    return bool(np.can_cast(source, target, casting))


def name_of(dtype: Dtype) -> str:
    """Return the text by which `numpy.dtype` knows a dtype, with its byte order.

    >>> name_of(BFLOAT16), name_of(np.dtype("float32"))
    ('bfloat16', '<f4')
    """
    return dtype.name if dtype in OF_ML_DTYPES else dtype.str


def limits_of(dtype: Dtype) -> Any:
    """Return the limits of a dtype of floating-point or complex numbers, as `numpy.finfo` has them.

    >>> float(limits_of(BFLOAT16).eps)
    0.0078125
    """
    if dtype in OF_ML_DTYPES:
        return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return np.finfo(dtype)
