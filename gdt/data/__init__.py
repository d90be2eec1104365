"""Data sets as NumPy arrays, from original files or installed packages, and batches of arrays.

Nothing is downloaded. `Batches` shuffles with gdt's own random numbers, so a seed gives the same
batches on every machine and in every process; its argument `place` puts a batch on a mesh.
"""

from gdt.data.batches import Batches
from gdt.data.digits import mnist
from gdt.data.reviews import imdb

__all__ = ["Batches", "imdb", "mnist"]
