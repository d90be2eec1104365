"""The text of an array: values as NumPy prints them, then type and layout."""

from __future__ import annotations

from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.printing import repr_of, str_of, text_of
from gdt.array.registry import public

__all__ = ["array2string", "array_repr", "array_str"]


@public
def array_repr(x: DistributedArray) -> str:
    """The values, type and layout of an array, formatted under `numpy.printoptions`.

    An array above the options' `threshold` is summarised, and then only `edgeitems` from both
    ends of every axis are fetched. A partial reduction is carried out on what is shown, without a
    collective. Where several processes own the mesh, all of them must call it, but for an array of
    which each holds all elements.

    >>> print(gdt.array_repr(gdt.asarray([[1, 2], [3, 4]])))
    DistributedArray([[1, 2],
                      [3, 4]], int64[2, 2]  [-, -])
    """
    return repr_of(x)


@public
def array_str(x: DistributedArray) -> str:
    """The values of an array alone, as `str` of NumPy's arrays; fetched as by `gdt.array_repr`.

    >>> print(gdt.array_str(gdt.asarray([[1, 2], [3, 4]])))
    [[1 2]
     [3 4]]
    """
    return str_of(x)


@public
def array2string(
    a: Any,
    max_line_width: int | None = None,
    precision: int | None = None,
    suppress_small: bool | None = None,
    separator: str = " ",
    prefix: str = "",
    *,
    formatter: Any = None,
    threshold: int | None = None,
    edgeitems: int | None = None,
    sign: Any = None,
    floatmode: Any = None,
    suffix: str = "",
    legacy: Any = None,
) -> str:
    """The values of an array as text, as `numpy.array2string` writes it; fetched as by
    `gdt.array_repr`.

    >>> gdt.array2string(gdt.asarray([0.25, 0.5]), precision=1, separator=", ")
    '[0.2, 0.5]'
    """
    (x,) = as_operands("array2string", a=a)
    return text_of(
        x, separator, prefix, max_line_width=max_line_width, precision=precision,
        suppress_small=suppress_small, formatter=formatter, threshold=threshold,
        edgeitems=edgeitems, sign=sign, floatmode=floatmode, suffix=suffix, legacy=legacy,
    )  # fmt: skip
