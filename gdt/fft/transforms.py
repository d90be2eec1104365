"""The public transforms, with the names and arguments of `numpy.fft`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any, TypeVar

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.output import writes_out
from gdt.array.registry import public_of
from gdt.errors import ArgumentError, DtypeError, ShapeError, error
from gdt.fft.local import SWAPPED, irfft_of_whole, resized, rfft_of_whole
from gdt.fft.matrices import rows_of_length
from gdt.fft.pairs import irfft_of_pairs, rfft_of_pairs
from gdt.fft.split import gathered, transformed
from gdt.ops.axes import checked_axes
from gdt.ops.elementwise import astype, conj, real
from gdt.ops.indexing import getitem
from gdt.ops.joining import concat
from gdt.ops.movement import made_whole, relayout
from gdt.ops.rearranging import flip
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of

Sizes = Sequence[int] | None
Axes = Sequence[int] | None
Norm = str | None
Out = DistributedArray | None
F = TypeVar("F", bound=Callable[..., Any])


def _public(function: F) -> F:
    """Register a transform, which writes its result into `out`. A decorator."""
    return public_of("fft")(writes_out(function))


# ---------------------------------------------------------------- arguments


def _checked_norm(name: str, norm: Norm) -> str:
    norm = "backward" if norm is None else norm
    if norm not in SWAPPED:
        problem = f"norm is {norm!r}"
        raise error(ArgumentError, name, problem, remedy=f"Use one of {', '.join(SWAPPED)}.")
    return norm


def _operand(name: str, x: Any, *, is_real: bool = False) -> DistributedArray:
    (x,) = as_operands(name, x=x)
    if is_real and x.dtype.kind == "c":
        raise error(DtypeError, name, "x is complex", operands={"x": x.type})
    # A split transform's factors are of the type that the elements and complex64 promote to.
    return x if kind_of(x.dtype) in "fc" else astype(x, "float64")


def _length(name: str, n: Any, **operands: ArrayType) -> int:
    """`n`, or ShapeError if it is no number of elements of a transform."""
    if isinstance(n, bool) or index(n) < 1:
        problem = f"a transform of {n} elements"
        remedy = "It has 1 or more; n= pads an empty axis with zeros."
        raise error(ShapeError, name, problem, operands=operands, remedy=remedy)
    return int(n)


def _lengths(name: str, n: int | None) -> list[int] | None:
    """The lengths `s` of a transform of one axis: unlike in `s`, -1 is no length."""
    return None if n is None else [_length(name, n)]


def _sizes(
    name: str, array_type: ArrayType, s: Sizes, axes: Axes
) -> tuple[list[int], list[int | None]]:
    """The axes to transform, counted from the front, and their lengths; None: as they are."""
    if axes is None:
        axes = range(array_type.ndim if s is None else len(s))
        axes = [a - len(axes) for a in axes]
    numbers = checked_axes(array_type, axes)
    if s is None:
        return numbers, [None] * len(numbers)
    if len(s) != len(numbers):
        problem = f"s {tuple(s)} has not one length for each of the axes {tuple(axes)}"
        raise error(ShapeError, name, problem, operands={"x": array_type})
    if len(set(numbers)) < len(numbers):
        problem = f"axes {tuple(axes)} name an axis twice, and s is {tuple(s)}"
        remedy = "Transform one axis after the other, each with its length."
        raise error(ShapeError, name, problem, operands={"x": array_type}, remedy=remedy)
    return numbers, [None if n == -1 else n for n in s]


def _resized(
    name: str, x: DistributedArray, axes: Sequence[int], sizes: Sequence[int | None]
) -> DistributedArray:
    """`x` with these lengths along axes counted from the front."""
    for axis, n in zip(axes, sizes, strict=True):
        x = resized(x, axis - x.ndim, _length(name, x.shape[axis] if n is None else n, x=x.type))
    return x


# ---------------------------------------------------------------- complex


def _complex(
    name: str, x: Any, s: Sizes, axes: Axes, norm: Norm, *, inverse: bool = False
) -> DistributedArray:
    x, divisor = _operand(name, x), _checked_norm(name, norm)
    numbers, sizes = _sizes(name, x.type, s, axes)
    x = _resized(name, x, numbers, sizes)
    # NumPy transforms nothing without axes, and leaves the dtype.
    return transformed(x, numbers, inverse, divisor)


@_public
def fft(
    x: Any, n: int | None = None, axis: int = -1, norm: Norm = None, out: Out = None
) -> DistributedArray:
    """The discrete Fourier transform along an axis: out[k] is the sum of x[j] exp(-2 pi i j k / n).

    n: the length of the transform; `x` is cut, or padded with zeros. norm: `"backward"` (None)
    divides the inverse by n, `"forward"` the transform, `"ortho"` both by sqrt(n). The result is
    complex64 for float16, float32 and complex64, else complex128. An axis that is split becomes
    whole and another one split, if there is one as long as the number of shards; else it stays
    split (`gdt.fft` says how).

    Raises AxisError for an axis that `x` does not have, ShapeError for a length below 1,
    ArgumentError for an unknown norm. Source: NumPy's `fft.fft`.

    >>> gdt.fft.fft([1.0, 0.0, 0.0, 0.0]).tolist()
    [(1+0j), (1+0j), (1+0j), (1+0j)]
    """
    return _complex("fft.fft", x, _lengths("fft.fft", n), [axis], norm)


@_public
def ifft(
    x: Any, n: int | None = None, axis: int = -1, norm: Norm = None, out: Out = None
) -> DistributedArray:
    """The inverse of `gdt.fft.fft`, whose arguments, dtypes, layouts and errors it has.

    >>> gdt.fft.ifft([4.0, 0.0, 0.0, 0.0]).tolist()
    [(1+0j), (1+0j), (1+0j), (1+0j)]
    """
    return _complex("fft.ifft", x, _lengths("fft.ifft", n), [axis], norm, inverse=True)


@_public
def fft2(
    x: Any, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = None, out: Out = None
) -> DistributedArray:
    """`gdt.fft.fftn` along two axes, by default the last ones.

    >>> gdt.fft.fft2([[1.0, 0.0], [0.0, 0.0]]).tolist()
    [[(1+0j), (1+0j)], [(1+0j), (1+0j)]]
    """
    return _complex("fft.fft2", x, s, axes, norm)


@_public
def ifft2(
    x: Any, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = None, out: Out = None
) -> DistributedArray:
    """`gdt.fft.ifftn` along two axes, by default the last ones.

    >>> gdt.fft.ifft2([[4.0, 0.0], [0.0, 0.0]]).tolist()
    [[(1+0j), (1+0j)], [(1+0j), (1+0j)]]
    """
    return _complex("fft.ifft2", x, s, axes, norm, inverse=True)


@_public
def fftn(
    x: Any, s: Sizes = None, axes: Axes = None, norm: Norm = None, out: Out = None
) -> DistributedArray:
    """The discrete Fourier transform along several axes.

    s: the length of the transform along each axis; -1 leaves it. axes: all of them if None, or the
    last `len(s)`. Norm, dtypes, layouts and errors are those of `gdt.fft.fft`; raises ShapeError
    if `s` and `axes` do not fit each other. Source: NumPy's `fft.fftn`.

    >>> mesh = gdt.create_mesh([("x", 2)])
    >>> image = gdt.ones((4, 6), layout=gdt.Layout(["x", None], mesh))
    >>> gdt.fft.fftn(image).type
    complex128[4, 6]  [-, 'x']
    """
    return _complex("fft.fftn", x, s, axes, norm)


@_public
def ifftn(
    x: Any, s: Sizes = None, axes: Axes = None, norm: Norm = None, out: Out = None
) -> DistributedArray:
    """The inverse of `gdt.fft.fftn`, whose arguments, dtypes, layouts and errors it has.

    >>> gdt.fft.ifftn([[4.0, 0.0], [0.0, 0.0]]).tolist()
    [[(1+0j), (1+0j)], [(1+0j), (1+0j)]]
    """
    return _complex("fft.ifftn", x, s, axes, norm, inverse=True)


# ---------------------------------------------------------------- real


def _of_real(name: str, x: Any, s: Sizes, axes: Axes, norm: Norm) -> DistributedArray:
    x, divisor = _operand(name, x, is_real=True), _checked_norm(name, norm)
    numbers, sizes = _sizes(name, x.type, s, axes)
    x = _resized(name, x, numbers, sizes)
    if not numbers:
        raise error(ShapeError, name, "there is no axis to transform", operands={"x": x.type})
    half, last = _half_of_real(x, numbers[-1], divisor), numbers[-1]
    if last in numbers[:-1]:  # which is transformed again, in its whole length
        half = resized(half, last - x.ndim, x.shape[last])
    return transformed(half, numbers[:-1], False, divisor)


def _half_of_real(x: DistributedArray, axis: int, norm: str) -> DistributedArray:
    """The elements 0 to n // 2 of the transform of real numbers along an axis."""
    whole, n, shards = made_whole(x, axis), x.shape[axis], x.layout.num_shards(axis)
    if whole is not None:
        return rfft_of_whole(whole, axis=axis - x.ndim, norm=norm)
    if n % 2 == 0 and rows_of_length(n // 2, shards):
        return rfft_of_pairs(x, axis, norm)
    if rows_of_length(n, shards):
        return _between(transformed(x, [axis], False, norm), axis, 0, n // 2 + 1)
    half = rfft_of_whole(gathered(x, axis), axis=axis - x.ndim, norm=norm)
    return relayout(half, x.layout.resolved)


def _to_real(
    name: str, x: Any, s: Sizes, axes: Axes, norm: Norm, *, conjugated: bool = False
) -> DistributedArray:
    """The real transform of `x`, or of its conjugates."""
    x, divisor = _operand(name, x), _checked_norm(name, norm)
    numbers, sizes = _sizes(name, x.type, s, axes)
    if not numbers:
        raise error(ShapeError, name, "there is no axis to transform", operands={"x": x.type})
    last, n = numbers[-1], sizes[-1]
    n = _length(name, 2 * (x.shape[last] - 1) if n is None else n, x=x.type)
    x = _resized(name, x, numbers, [*sizes[:-1], n // 2 + 1])
    is_half = x.dtype == np.float16 and len(numbers) == 1  # several axes: of complex64 before
    x = astype(x, np.float32) if is_half else x
    x = transformed(x, numbers[:-1], True, divisor)
    out = _real_of_half(x, last, n, divisor, conjugated)
    return astype(out, np.float16) if is_half else out


def _real_of_half(
    x: DistributedArray, axis: int, n: int, norm: str, conjugated: bool
) -> DistributedArray:
    """The n real numbers whose transform begins with the n // 2 + 1 elements of `x`, or their
    conjugates."""
    whole, shards = made_whole(x, axis), x.layout.num_shards(axis)
    if whole is None and n % 2 == 0 and rows_of_length(n // 2, shards):
        return irfft_of_pairs(x, axis, norm, conjugated)
    if whole is None and rows_of_length(n, shards):
        x = conj(x) if conjugated else x
        backwards = conj(flip(_between(x, axis, 1, (n + 1) // 2), axis))  # elements n - 1, ...
        return real(transformed(concat([x, backwards], axis), [axis], True, norm))
    half = gathered(x, axis) if whole is None else whole
    half = conj(half) if conjugated else half
    out = irfft_of_whole(half, axis=axis - x.ndim, n=n, norm=norm)
    return relayout(out, x.layout.resolved) if whole is None else out


def _between(x: DistributedArray, axis: int, start: int, stop: int) -> DistributedArray:
    return getitem(x, (*[slice(None)] * axis, slice(start, stop)))


@_public
def rfft(
    x: Any, n: int | None = None, axis: int = -1, norm: Norm = None, out: Out = None
) -> DistributedArray:
    """The elements 0 to n // 2 of `gdt.fft.fft` of real numbers; the others are their conjugates.

    Arguments, dtypes, layouts and errors are those of `gdt.fft.fft`; raises DtypeError for complex
    numbers.

    >>> gdt.fft.rfft([1.0, 0.0, 0.0, 0.0]).tolist()
    [(1+0j), (1+0j), (1+0j)]
    """
    return _of_real("fft.rfft", x, _lengths("fft.rfft", n), [axis], norm)


@_public
def irfft(
    x: Any, n: int | None = None, axis: int = -1, norm: Norm = None, out: Out = None
) -> DistributedArray:
    """The inverse of `gdt.fft.rfft`: `n` real numbers; if None, 2 * (elements of the axis - 1).

    Norm, layouts and errors are those of `gdt.fft.fft`; the result is float32 for complex64, and
    float16 for float16.

    >>> gdt.fft.irfft([1.0, 1.0, 1.0]).tolist()
    [1.0, 0.0, 0.0, 0.0]
    """
    return _to_real("fft.irfft", x, _lengths("fft.irfft", n), [axis], norm)


@_public
def rfft2(
    x: Any, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = None, out: Out = None
) -> DistributedArray:
    """`gdt.fft.rfftn` along two axes, by default the last ones.

    >>> gdt.fft.rfft2([[1.0, 0.0], [0.0, 0.0]]).tolist()
    [[(1+0j), (1+0j)], [(1+0j), (1+0j)]]
    """
    return _of_real("fft.rfft2", x, s, axes, norm)


@_public
def irfft2(
    x: Any, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = None, out: Out = None
) -> DistributedArray:
    """`gdt.fft.irfftn` along two axes, by default the last ones.

    >>> gdt.fft.irfft2([[1.0, 1.0], [1.0, 1.0]]).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    return _to_real("fft.irfft2", x, s, axes, norm)


@_public
def rfftn(
    x: Any, s: Sizes = None, axes: Axes = None, norm: Norm = None, out: Out = None
) -> DistributedArray:
    """The transform of real numbers along several axes: `rfft` along the last one, `fft` along the
    others.

    Arguments and errors are those of `gdt.fft.fftn`; raises DtypeError for complex numbers.

    >>> gdt.fft.rfftn([[1.0, 0.0], [0.0, 0.0]]).tolist()
    [[(1+0j), (1+0j)], [(1+0j), (1+0j)]]
    """
    return _of_real("fft.rfftn", x, s, axes, norm)


@_public
def irfftn(
    x: Any, s: Sizes = None, axes: Axes = None, norm: Norm = None, out: Out = None
) -> DistributedArray:
    """The inverse of `gdt.fft.rfftn`: real numbers, of the lengths `s` along the axes; the last one
    is 2 * (elements of the axis - 1) if `s` is None.

    >>> gdt.fft.irfftn([[1.0, 1.0], [1.0, 1.0]]).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    return _to_real("fft.irfftn", x, s, axes, norm)


@_public
def hfft(
    x: Any, n: int | None = None, axis: int = -1, norm: Norm = None, out: Out = None
) -> DistributedArray:
    """The transform, which is real, of a signal whose elements 0 to n // 2 are `x` and whose others
    are their conjugates.

    n: the length of the result; if None, 2 * (elements of the axis - 1). Norm, layouts and errors
    are those of `gdt.fft.fft`.

    >>> gdt.fft.hfft([1.0, 0.0, 0.0]).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    inverse_norm = SWAPPED[_checked_norm("fft.hfft", norm)]
    sizes = _lengths("fft.hfft", n)
    return _to_real("fft.hfft", x, sizes, [axis], inverse_norm, conjugated=True)


@_public
def ihfft(
    x: Any, n: int | None = None, axis: int = -1, norm: Norm = None, out: Out = None
) -> DistributedArray:
    """The inverse of `gdt.fft.hfft`, of real numbers; the result has n // 2 + 1 elements.

    >>> gdt.fft.ihfft([4.0, 0.0, 0.0, 0.0]).tolist()
    [(1-0j), (1-0j), (1-0j)]
    """
    inverse_norm = SWAPPED[_checked_norm("fft.ihfft", norm)]
    return conj(_of_real("fft.ihfft", x, _lengths("fft.ihfft", n), [axis], inverse_norm))
