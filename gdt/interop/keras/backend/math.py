"""Keras' functions of segments, ranks, spectra and special functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from keras.src.backend.common import standardize_dtype

import gdt
from gdt.array.array import DistributedArray
from gdt.interop.keras.backend.numpy import floats, in_floats, of_one, promoted_arrays, slogdet
from gdt.interop.keras.backend.variables import convert_to_tensor

Parts = tuple[DistributedArray, DistributedArray]  # real and imaginary

# ---------------------------------------------------------------- segments and ranks


def _segment(how: str, of_none: Callable[[Any], Any]) -> Callable[..., DistributedArray]:
    """Make a reduction of segments; `of_none`: of a dtype, the result of an empty one."""

    def call(
        data: Any, segment_ids: Any, num_segments: int | None = None, sorted: bool = False
    ) -> DistributedArray:
        data, ids = convert_to_tensor(data), convert_to_tensor(segment_ids)
        count = int(gdt.max(ids)) + 1 if num_segments is None else num_segments
        # What is no segment goes into one more, which is cut off.
        ids = gdt.where((ids >= 0) & (ids < count), ids, count)
        start = gdt.full((count + 1, *data.shape[1:]), of_none(data.dtype), data.dtype)
        return gdt.update_at(start, data, ids, how)[:count]

    call.__doc__ = f"Return the reduction, {how}, of the rows of each segment."
    return call


def _lowest(dtype: Any) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _highest(dtype: Any) -> Any:
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


segment_sum, segment_prod = _segment("add", lambda _: 0), _segment("multiply", lambda _: 1)
segment_max, segment_min = _segment("max", _lowest), _segment("min", _highest)


def top_k(x: Any, k: int, sorted: bool = True) -> Parts:
    """Return the largest elements along the last axis, in order, and their indices."""
    values, indices = gdt.top_k(convert_to_tensor(x), int(k))
    return values, gdt.astype(indices, "int32")


def in_top_k(targets: Any, predictions: Any, k: int) -> DistributedArray:
    """Return whether each target is one of the `k` classes that are predicted the most."""
    targets, predictions = convert_to_tensor(targets), convert_to_tensor(predictions)
    own = gdt.take_along_axis(predictions, gdt.astype(targets, "int64")[:, None], axis=-1)
    own = gdt.where(gdt.isnan(own), -np.inf, own)
    return gdt.sum(gdt.astype(predictions > own, "int32"), axis=-1) < k


logsumexp = in_floats(gdt.nn.functions.logsumexp)


def cdist(x: Any, y: Any) -> DistributedArray:
    """Return the distances (..., n, m) of vectors (..., n, d) and (..., m, d)."""
    x, y = promoted_arrays((floats(x), floats(y)))
    if x.ndim < 2 or y.ndim < 2:
        raise ValueError("`cdist` inputs must have rank >= 2")
    if x.shape[-1] != y.shape[-1]:
        raise ValueError("Last dimension of inputs to `cdist` must match")
    difference = gdt.expand_dims(x, -2) - gdt.expand_dims(y, -3)
    return gdt.sqrt(gdt.sum(gdt.square(difference), axis=-1))


def logdet(x: Any) -> DistributedArray:
    """Return the logarithms of determinants."""
    return slogdet(floats(x))[1]


# ---------------------------------------------------------------- spectra


def _complex(x: Any) -> DistributedArray:
    """Return the complex numbers of a pair of real and imaginary parts."""
    if not isinstance(x, tuple | list) or len(x) != 2:
        raise ValueError(
            f"Input `x` should be a tuple of two tensors - real and imaginary.Received: x={x}"
        )
    real, imaginary = (convert_to_tensor(part) for part in x)
    if real.shape != imaginary.shape:
        raise ValueError(
            "Input `x` should be a tuple of two tensors - real and imaginary."
            "Both the real and imaginary parts should have the same shape. "
            f"Received: x[0].shape = {real.shape}, x[1].shape = {imaginary.shape}"
        )
    if real.dtype.kind not in "fV" or imaginary.dtype.kind not in "fV":
        raise ValueError(f"At least one tensor in input `x` is not of type float.Received: x={x}.")
    return real + 1j * imaginary


_get_complex_tensor_from_tuple = _complex  # as `keras.ops.nn` calls it


def _parts(x: DistributedArray) -> Parts:
    return gdt.real(x), gdt.imag(x)


def fft(x: Any) -> Parts:
    """Return the Fourier transform along the last axis."""
    return _parts(gdt.fft.fft(_complex(x)))


def fft2(x: Any) -> Parts:
    """Return the Fourier transform along the last two axes."""
    return _parts(gdt.fft.fft2(_complex(x)))


def ifft2(x: Any) -> Parts:
    """Return the inverse Fourier transform along the last two axes."""
    return _parts(gdt.fft.ifft2(_complex(x)))


def rfft(x: Any, fft_length: int | None = None) -> Parts:
    """Return the Fourier transform of real numbers along the last axis."""
    return _parts(gdt.fft.rfft(floats(x), n=fft_length))


def irfft(x: Any, fft_length: int | None = None) -> DistributedArray:
    """Return the real numbers of which `x` is the Fourier transform."""
    return gdt.fft.irfft(_complex(x), n=fft_length)


def _frames(length: int, size: int, stride: int) -> DistributedArray:
    """Return the indices (frames, size) of windows of a signal."""
    starts = gdt.arange(0, length - size + 1, stride)
    return starts[:, None] + gdt.arange(size)


def extract_sequences(x: Any, sequence_length: int, sequence_stride: int) -> DistributedArray:
    """Return windows (..., windows, length) of signals (..., time)."""
    x = convert_to_tensor(x)
    return gdt.take(x, _frames(x.shape[-1], sequence_length, sequence_stride), axis=-1)


def _window(window: Any, length: int, padded: int, dtype: Any) -> DistributedArray:
    """Return a window in the middle of zeros, or ones where there is none."""
    if window is None:
        return gdt.ones(padded, dtype)
    if isinstance(window, str):
        if window not in ("hann", "hamming"):
            raise ValueError(
                "If a string is passed to `window`, it must be one of "
                f'`"hann"`, `"hamming"`. Received: window={window}'
            )
        # Of a period: one element longer, without the last.
        symmetric = (gdt.hanning if window == "hann" else gdt.hamming)(length + 1)
        window = symmetric[:length]
    window = convert_to_tensor(window, dtype)
    if window.shape != (length,):
        raise ValueError(
            "The shape of `window` must be equal to [sequence_length]."
            f"Received: window shape={window.shape}"
        )
    before = (padded - length) // 2
    return gdt.pad(window, [(before, padded - length - before)])


def stft(
    x: Any,
    sequence_length: int,
    sequence_stride: int,
    fft_length: int,
    window: Any = "hann",
    center: bool = True,
) -> Parts:
    """Return the Fourier transforms (..., windows, frequencies) of the windows of signals."""
    x = convert_to_tensor(x)
    if standardize_dtype(x.dtype) not in ("float32", "float64"):
        raise TypeError(
            f"Invalid input type. Expected `float32` or `float64`. Received: input type={x.dtype}"
        )
    if fft_length < sequence_length:
        raise ValueError(
            "`fft_length` must equal or larger than `sequence_length`. "
            f"Received: sequence_length={sequence_length}, fft_length={fft_length}"
        )
    weights = _window(window, sequence_length, fft_length, x.dtype)
    if center:
        widths = [(0, 0)] * (x.ndim - 1) + [(fft_length // 2, fft_length // 2)]
        x = gdt.pad(x, widths, mode="reflect")
    return rfft(extract_sequences(x, fft_length, sequence_stride) * weights)


def istft(
    x: Any,
    sequence_length: int,
    sequence_stride: int,
    fft_length: int,
    length: int | None = None,
    window: Any = "hann",
    center: bool = True,
) -> DistributedArray:
    """Return signals of which `x` has the Fourier transforms: the sums of all windows, by the sums
    of their squared weights."""
    x = _complex(x)
    if x.ndim < 2:
        raise ValueError(f"Input `x` must have at least 2 dimensions. Received shape: {x.shape}")
    frames = gdt.fft.irfft(x, n=fft_length)
    weights = _window(window, sequence_length, fft_length, frames.dtype)
    count = fft_length + sequence_stride * (x.shape[-2] - 1)
    at = _frames(count, fft_length, sequence_stride)

    def overlapped(parts: DistributedArray) -> DistributedArray:
        return gdt.update_at(
            gdt.zeros((*parts.shape[:-2], count), parts.dtype), parts, (..., at), "add"
        )

    squares = gdt.broadcast_to(gdt.square(weights), at.shape)
    total = overlapped(squares)
    signal = overlapped(frames * weights) / gdt.where(total > 1e-10, total, 1)
    if window is None:  # as in Keras' other backends
        signal = signal * (fft_length / sequence_stride)
    start = fft_length // 2 if center else 0
    if length is not None:
        return signal[..., start : start + length]
    return signal[..., start : count - start]


# ---------------------------------------------------------------- special functions

erf = of_one(gdt.erf)


def rsqrt(x: Any) -> DistributedArray:
    """Return 1 / sqrt(x)."""
    return 1 / gdt.sqrt(floats(x))


ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806,
    0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip


@in_floats
def erfc(x: Any) -> DistributedArray:
    """Return 1 - erf(x), within 1.2e-7 of its value. Source: Press et al., "Numerical Recipes",
    section 6.2, `erfcc`."""
    t = 1 / (1 + 0.5 * gdt.abs(x))
    positive = t * gdt.exp(-gdt.square(x) + _polynomial(ERFC, t))
    return gdt.where(x < 0, 2 - positive, positive)


ERFINV = (
    (1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087,
     -4.39150654e-06, -3.5233877e-06, 3.43273939e-07, 2.81022636e-08),
    (2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773,
     -0.00367342844, 0.00134934322, 0.000100950558, -0.000200214257),
)  # fmt: skip


@in_floats
def erfinv(x: Any) -> DistributedArray:
    """Return y of erf(y) = x, in the precision of float32. Source: Giles 2010, "Approximating the
    erfinv function"."""
    w = -gdt.log((1 - x) * (1 + x))
    is_central = w < 5
    central = _polynomial(ERFINV[0], gdt.where(is_central, w, 5.0) - 2.5)
    far = gdt.where(is_central | gdt.isinf(w), 5.0, w)
    outer = _polynomial(ERFINV[1], gdt.sqrt(far) - 3)
    y = gdt.where(is_central, central, outer) * x
    return gdt.where(x == 1, math.inf, gdt.where(x == -1, -math.inf, y))


def _polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    """Return the polynomial with these coefficients, from that of power 0 up."""
    value: Any = coefficients[-1]
    for c in coefficients[-2::-1]:
        value = value * x + c
    return value
