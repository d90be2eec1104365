"""Rows in files: memory-mapped arrays, one after another, of which only rows in use are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gdt.errors import DataError, ShapeError, error

Rows = slice | npt.NDArray[np.int64]


class Files:
    """The rows of several `.npy` files as one array, which is never in memory as a whole.

    paths: the files. Their arrays have one dtype and rows of one shape.

    Raises DataError for a file that is missing or holds no array, ShapeError where arrays differ.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self.parts = [mapped_file(path) for path in paths]
        facts = [(part.dtype, part.shape[1:]) for part in self.parts]
        if any(fact != facts[0] for fact in facts) or any(not p.ndim for p in self.parts):
            pairs = zip(paths, self.parts, strict=True)
            types = {Path(p).name: f"{part.dtype}{list(part.shape)}" for p, part in pairs}
            problem = "arrays of files differ in more than their number of rows"
            raise error(ShapeError, "Batches", problem, operands=types)
        self.dtype, row = facts[0]
        self.starts = np.cumsum([0, *map(len, self.parts)])
        self.shape = (int(self.starts[-1]), *row)
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, rows: Rows) -> npt.NDArray[Any]:
        """Return the rows of a slice, or of indices that are 0 or more."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        files = np.searchsorted(self.starts, rows, side="right") - 1
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for number in np.unique(files):
            is_here = files == number
            out[is_here] = self.parts[number][rows[is_here] - self.starts[number]]
        return out


def mapped_file(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """Return the array of a `.npy` file; its elements are read when they are used."""
    try:
        array: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as cause:
        problem = f"{os.fspath(path)} is no array of numbers in a .npy file ({cause})"
        remedy = "np.save(path, array) writes one."
        raise error(DataError, problem, remedy=remedy) from None
    if not isinstance(array, np.ndarray):
        array.close()
        problem = f"{os.fspath(path)} holds several arrays"
        remedy = "Save each array to a .npy file of its own."
        raise error(DataError, problem, remedy=remedy)
    return array


def is_path(value: Any) -> bool:
    """Return whether a value names a file."""
    return isinstance(value, str | os.PathLike)
