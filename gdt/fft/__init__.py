"""Discrete Fourier transforms of arrays that are split in any way, with NumPy's names.

**Axes that are not split** are transformed where they are, several in one call of the library.

**A split axis of an array with other axes**: its mesh axes move to another axis, by one all-to-all,
and it is transformed as a whole. The result stays split along that other axis, as a transpose-based
transform leaves it: `fft2` of an array with split rows has split columns, and `ifft2` brings it
back. `gdt.relayout` gives any other layout.

**A split axis alone** of n = rows * columns elements, both at least the number of shards, is
transformed in four steps (Bailey 1990, "FFTs in external or hierarchical memory"): as a matrix, by
columns, by the factors exp(-2 pi i k j / n), by rows, and transposed. That takes three all-to-alls,
no device holds more than three times its share beside the operand, and the result is split as the
operand. A real transform is that of half as many complex numbers (`gdt.fft.pairs`) if n / 2 has
such factors too, else half of a complex one.

**Any other length of a split axis alone**, such as a prime, or less than the square of the number
of shards, is gathered, and every device transforms it whole; the result is split again. Where
memory is scarce, choose the length: cut the signal, or pad it with zeros (`n=`).
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
