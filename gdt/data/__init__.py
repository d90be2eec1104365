"""Data sets as NumPy arrays, from original files or installed packages, and batches of them."""

from gdt.data.batches import Batches
from gdt.data.digits import mnist
from gdt.data.reviews import imdb

__all__ = ["Batches", "imdb", "mnist"]
