"""Functions of NumPy that hold for gdt as they are: of text, of errors of floating-point numbers,
and of Python's objects."""

from __future__ import annotations

from numpy import (
    base_repr,
    binary_repr,
    format_float_positional,
    format_float_scientific,
    get_printoptions,
    getbufsize,
    geterr,
    geterrcall,
    iterable,
    mintypecode,
    printoptions,
    set_printoptions,
    setbufsize,
    seterr,
    seterrcall,
    typename,
)

__all__ = [
    "base_repr",
    "binary_repr",
    "format_float_positional",
    "format_float_scientific",
    "get_printoptions",
    "getbufsize",
    "geterr",
    "geterrcall",
    "iterable",
    "mintypecode",
    "printoptions",
    "set_printoptions",
    "setbufsize",
    "seterr",
    "seterrcall",
    "typename",
]
