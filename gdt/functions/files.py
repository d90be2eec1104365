"""Arrays from files, text and memory, and into files, in NumPy's formats.

With several processes every one of them reads the file; what is saved is written by the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.errors import DtypeError, error
from gdt.ops.creation import asarray
from gdt.sharding import processes
from gdt.sharding.dtypes import BFLOAT16
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh

__all__ = [
    "frombuffer",
    "fromfile",
    "fromiter",
    "fromstring",
    "genfromtxt",
    "load",
    "loadtxt",
    "save",
    "savetxt",
    "savez",
    "savez_compressed",
]


@public
def frombuffer(
    buffer: Any,
    dtype: Any = float,
    count: int = -1,
    offset: int = 0,
    *,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """The numbers in memory, as `np.frombuffer` reads them; layout, device: see `gdt.asarray`.

    >>> gdt.frombuffer(b"ab", dtype="uint8").tolist()
    [97, 98]
    """
    values = np.frombuffer(buffer, dtype, count, offset)
    return asarray(values, layout=layout, device=device)


@public
def fromiter(
    iter: Iterable[Any],
    dtype: Any,
    count: int = -1,
    *,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """The numbers that an iterable yields; layout, device: see `gdt.asarray`.

    >>> gdt.fromiter((i * i for i in range(3)), int).tolist()
    [0, 1, 4]
    """
    return asarray(np.fromiter(iter, dtype, count), layout=layout, device=device)


@public
def fromstring(
    string: str,
    dtype: Any = float,
    count: int = -1,
    *,
    sep: str,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """The numbers in a text, with `sep` between them; layout, device: see `gdt.asarray`.

    >>> gdt.fromstring("1 2", sep=" ").tolist()
    [1.0, 2.0]
    """
    values = np.fromstring(string, dtype, count, sep=sep)
    return asarray(values, layout=layout, device=device)


@public
def fromfile(
    file: Any,
    dtype: Any = float,
    count: int = -1,
    sep: str = "",
    offset: int = 0,
    *,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """The numbers in a file of bytes or text, as `np.fromfile` reads them; layout, device: see
    `gdt.asarray`.

    >>> import numpy as np, tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     np.arange(3.0).tofile(file.name)
    ...     gdt.fromfile(file.name).tolist()
    [0.0, 1.0, 2.0]
    """
    values = np.fromfile(file, dtype, count, sep, offset)
    return asarray(values, layout=layout, device=device)


@public
def loadtxt(
    fname: Any,
    dtype: Any = float,
    comments: Any = "#",
    delimiter: str | None = None,
    converters: Any = None,
    skiprows: int = 0,
    usecols: Any = None,
    unpack: bool = False,
    ndmin: int = 0,
    encoding: str | None = None,
    max_rows: int | None = None,
    *,
    quotechar: str | None = None,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """The table of numbers in a file of text, as `np.loadtxt` reads it.

    layout, device: see `gdt.asarray`.

    >>> gdt.loadtxt(["a b c", "1 2 3", "4 5 6"], skiprows=1, usecols=(0, 2)).tolist()
    [[1.0, 3.0], [4.0, 6.0]]
    """
    positions: Any = (converters, skiprows, usecols, unpack, ndmin, encoding, max_rows)
    values = np.loadtxt(fname, dtype, comments, delimiter, *positions, quotechar=quotechar)
    return asarray(values, layout=layout, device=device)


@public
def genfromtxt(
    fname: Any,
    dtype: Any = float,
    comments: Any = "#",
    delimiter: Any = None,
    skip_header: int = 0,
    skip_footer: int = 0,
    converters: Any = None,
    missing_values: Any = None,
    filling_values: Any = None,
    usecols: Any = None,
    *,
    unpack: bool | None = None,
    invalid_raise: bool = True,
    max_rows: int | None = None,
    encoding: str | None = None,
    ndmin: int = 0,
    layout: Layout | None = None,
    device: Mesh | None = None,
) -> DistributedArray:
    """The table of numbers in a file of text, as `np.genfromtxt` reads it: with NaN, or
    `filling_values`, where there is none.

    layout, device: see `gdt.asarray`.

    >>> gdt.genfromtxt(["a,b", "1,2", "3,"], delimiter=",", skip_header=1).tolist()
    [[1.0, 2.0], [3.0, nan]]
    """
    positions = (skip_header, skip_footer, converters, missing_values, filling_values, usecols)
    options: Any = {"unpack": unpack, "invalid_raise": invalid_raise, "max_rows": max_rows}
    options |= {"encoding": encoding, "ndmin": ndmin}
    values = np.genfromtxt(fname, dtype, comments, delimiter, *positions, **options)
    return asarray(values, layout=layout, device=device)


@public
def load(file: Any, *, layout: Layout | None = None, device: Mesh | None = None) -> Any:
    """The array in a file of `gdt.save` or `np.save`; of `savez` a dict of arrays.

    layout, device: see `gdt.asarray`. Files with Python objects are refused.

    >>> import io
    >>> file = io.BytesIO()
    >>> gdt.save(file, gdt.arange(3)); _ = file.seek(0)
    >>> gdt.load(file).tolist()
    [0, 1, 2]
    """
    values = np.load(file, allow_pickle=False)
    if isinstance(values, np.ndarray):
        return asarray(values, layout=layout, device=device)
    with values:
        return {name: asarray(values[name], layout=layout, device=device) for name in values.files}


def _fetched(name: str, x: Any) -> np.ndarray:
    (array,) = as_operands(name, x=x)
    if array.dtype == BFLOAT16:
        problem = "NumPy's format has no bfloat16"
        remedy = "Use x.astype('float32'), or gdt.checkpoint.save."
        raise error(DtypeError, name, problem, operands={"x": array.type}, remedy=remedy)
    return array.numpy()


def _is_writer() -> bool:
    return processes.current().index == 0


@public
def save(file: Any, x: Any) -> None:
    """Write an array into a file in NumPy's format; its values are fetched.

    >>> import io
    >>> gdt.save(io.BytesIO(), gdt.ones(2))
    """
    values = _fetched("save", x)
    if _is_writer():
        np.save(file, values, allow_pickle=False)


def _savez(name: str, write: Any) -> Any:
    def function(file: Any, *args: Any, **kwds: Any) -> None:
        arrays = {f"arr_{i}": _fetched(name, x) for i, x in enumerate(args)}
        arrays |= {key: _fetched(name, x) for key, x in kwds.items()}
        if _is_writer():
            write(file, **arrays)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""Write several arrays into one file, by name; see `gdt.load`.

    >>> import io
    >>> gdt.{name}(io.BytesIO(), x=gdt.ones(2))
    """
    return public(function)


savez, savez_compressed = _savez("savez", np.savez), _savez("savez_compressed", np.savez_compressed)


@public
def savetxt(
    fname: Any,
    x: Any,
    fmt: Any = "%.18e",
    delimiter: str = " ",
    newline: str = "\n",
    header: str = "",
    footer: str = "",
    comments: str = "# ",
    encoding: str | None = None,
) -> None:
    """Write a table into a file of text, as `np.savetxt` does; its values are fetched.

    >>> import io
    >>> gdt.savetxt(io.StringIO(), gdt.ones((2, 2)))
    """
    values = _fetched("savetxt", x)
    if _is_writer():
        np.savetxt(fname, values, fmt, delimiter, newline, header, footer, comments, encoding)
