"""A small differential fuzz against NumPy, and the page of NumPy's functions."""

from __future__ import annotations

import numpy as np
import pytest

import gdt

from . import fuzz, numpy_page, seeds


def test_random_calls_equal_numpys() -> None:
    _, differences = seeds.run(fuzz.check, 0, 400)
    assert not differences, "\n".join(differences)


def test_the_page_of_numpys_functions_is_current() -> None:
    rows = [line for line in numpy_page.PAGE.read_text().splitlines() if line.startswith("| `")]
    present, absent = numpy_page.functions()
    names = [*present, *numpy_page.of_packages()]
    assert len(rows) == len(names) + len(absent), "run python -m tests.numpy_page"
    for number, (line, name) in enumerate(zip(rows, names, strict=False)):
        measured = number % 8 == 0  # all of them would take ten seconds
        row = numpy_page.row(name, is_measured=measured)
        assert line == row if measured else line.startswith(row), "run python -m tests.numpy_page"


def test_values_that_are_finite_and_paths_of_contractions() -> None:
    assert np.asarray_chkfinite(np.ones(2)).tolist() == gdt.asarray_chkfinite([1, 1]).tolist()
    with pytest.raises(ValueError, match="infinities or NaN"):
        gdt.asarray_chkfinite([1.0, np.inf])
    operands = [np.ones((2, 3)), np.ones((3, 4)), np.ones((4, 5))]
    arrays = [gdt.asarray(o) for o in operands]
    path = np.einsum_path("ij,jk,kl", *operands)[0]
    assert np.einsum_path("ij,jk,kl", *arrays)[0] == path
    x, w, v = arrays
    listed = (x, [0, 1], w, [1, 2], v, [2, 3], [3, 0])  # NumPy's own call of itself has no end
    assert np.einsum_path(*listed)[0] == path
    assert gdt.einsum("ij,jk,kl->li", *arrays, optimize=path).tolist() == [[12.0] * 2] * 5
    assert np.einsum(*listed, optimize="optimal").tolist() == [[12.0] * 2] * 5
    with pytest.raises(TypeError, match="subscripts are of type DistributedArray"):
        np.einsum_path(x, w)
    for wrong in ("short", 3, ["einsum_path", (0, 5), (0, 1)]):
        with pytest.raises(ValueError, match="neither a way to look for a path nor a path"):
            gdt.einsum("ij,jk,kl", *arrays, optimize=wrong)
