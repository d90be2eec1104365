"""CuPy's interface on the host: what CuPy lacks, or refuses, is refused here.

    cupy = StrictCupy(device_count=4)
    with cupy.cuda.Device(1):
        x = cupy.asarray(np.ones(3))
    np.exp(np.ones(3)) + x  # TypeError, as with CuPy

Values live in NumPy arrays that only this package sees. Attributes, arguments and dtypes are
checked against the CuPy that is installed, arrays of different devices do not mix, and every
transfer to the host is written down.
"""

from __future__ import annotations

from .arrays import StrictArray
from .backend import SimulatedGpus
from .cuda import Transfer
from .namespace import StrictCupy

__all__ = ["SimulatedGpus", "StrictArray", "StrictCupy", "Transfer"]
