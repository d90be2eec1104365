"""Covering parts of what parametrizations multiply: `make test` runs them, its FULL= all of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def covering(**options: Sequence[Any]) -> list[dict[str, Any]]:
    """Few choices of two options or more in which every pair of values of two occurs.

    >>> len(covering(a=[1, 2], b=[1, 2], c=[1, 2]))
    4
    """
    names = list(options)
    assert len(names) > 1, "one option has no pairs: nothing would be chosen"
    missing = {
        ((a, i), (b, j))
        for a, b in combinations(names, 2)
        for i in range(len(options[a]))
        for j in range(len(options[b]))
    }
    chosen = []
    while missing:
        case = dict(min(missing))
        for name in names:
            if name not in case:
                case[name] = max(
                    range(len(options[name])),
                    key=lambda i: sum(p in missing for p in _pairs(case | {name: i}, names)),
                )
        missing -= set(_pairs(case, names))
        chosen.append({name: options[name][case[name]] for name in names})
    return chosen


def _pairs(case: dict[str, int], names: list[str]) -> Iterable[Any]:
    items = [(n, case[n]) for n in names if n in case]
    return combinations(items, 2)


def every(**options: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The full product."""
    for values in product(*options.values()):
        yield dict(zip(options, values, strict=True))


def covered(mark: pytest.MarkDecorator, **options: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test by the full product of options, of which all but a covering part have
    this mark: a decorator."""
    chosen = covering(**options)
    cases = [
        pytest.param(
            *case.values(),
            marks=() if case in chosen else mark,
            id="-".join(map(str, case.values())),
        )
        for case in every(**options)
    ]
    return pytest.mark.parametrize(tuple(options), cases)
