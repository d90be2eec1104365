"""Discrete Fourier transforms of arrays that are split in any way, with NumPy's names.

**Axes that are not split** are transformed where they are, several in one call of the library.

**A split axis of an array with other axes**: its mesh axes move to another axis, by one all-to-all,
and it is transformed as a whole. The result stays split along that other axis, as a transpose-based
transform leaves it: `fft2` of an array with split rows has split columns, and `ifft2` brings it
back. `gdt.relayout` gives any other layout.

**A split axis alone** is transformed in four steps (Bailey 1990, "FFTs in external or hierarchical
memory"): as a matrix of n1 rows and n2 columns, by columns, by the factors exp(-2 pi i k j / n), by
rows, and transposed. That takes three all-to-alls, and no device holds more than its share; the
result is split as the operand. A length without two factors that are as large as the number of
shards, such as a prime, is a convolution with a chirp (Bluestein 1970) of at least twice the
length, in parts (`gdt.fft.chirp`). Axes shorter than the square of the number of shards are
gathered.

A real transform of a split axis alone, of an even length, is that of half as many complex numbers
(`gdt.fft.pairs`); of an odd length it goes four steps of half as many rows (`gdt.fft.odd`), or a
chirp whose parts are half as long.

No device holds more than three times its share at once, beside the operand and the padding of
shards; of less than 16,384 numbers with a chirp, up to seven times.
"""

from gdt.fft.frequencies import fftfreq, fftshift, ifftshift, rfftfreq
from gdt.fft.transforms import (
    fft,
    fft2,
    fftn,
    hfft,
    ifft,
    ifft2,
    ifftn,
    ihfft,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftn,
)

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]
