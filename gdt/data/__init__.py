"""Batches of NumPy arrays, of `.npy` files, and of any iterable, read ahead in a thread.

`Batches` shuffles with gdt's own random numbers, so a seed gives the same batches on every machine
and in every process; its argument `place` puts a batch on a mesh.
"""

from gdt.data.batches import Batches

__all__ = ["Batches"]
