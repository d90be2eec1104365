"""A small differential fuzz against NumPy, and the page of NumPy's functions."""

from __future__ import annotations

from . import fuzz, numpy_page


def test_random_calls_equal_numpys() -> None:
    _, differences = fuzz.run(0, 400)
    assert not differences, "\n".join(differences)


def test_the_page_of_numpys_functions_is_current() -> None:
    assert numpy_page.PAGE.read_text() == numpy_page.text(), "run python -m tests.numpy_page"
