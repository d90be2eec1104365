"""Keras 3 on gdt: after `import gdt.interop.keras`, Keras runs on distributed arrays.

    import gdt.interop.keras
    import keras

Keras knows a fixed list of backends, and takes all that its backend `numpy` is from one package,
`keras.src.backend.numpy`. A finder of modules gives Keras the package `gdt.interop.keras.backend`
under that name, and nothing in Keras is patched. `keras.backend.backend()` is "numpy".

A program that is written for another backend runs as it is by

    python -m gdt.interop.keras script.py

and a test suite by `pytest -p gdt.interop.keras`. Needs keras >= 3.15: `pip install 'gdt[keras]'`.
"""

from gdt.interop.keras import finder

finder.install()

import keras as keras  # noqa: E402  (it must find the finder)

from gdt.interop.keras.backend.distribution_lib import device_mesh  # noqa: E402

__all__ = ["device_mesh"]
