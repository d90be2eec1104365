"""What gives another value whenever it is asked: iterators and the host's random numbers.

A step that asks them is not recorded: it would go on with the values of the call that was recorded.
"""

from __future__ import annotations

import gc
import itertools
import operator
import pickle
import random
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


class Moving(NamedTuple):
    """A thing that moves on, by what a person would call it."""

    path: str
    thing: Any


OF_THE_PROCESS = (
    Moving("the module random", random._inst),
    Moving("numpy.random", np.random.mtrand._rand),
)


def is_moving(value: Any) -> bool:
    """Whether a value is such a thing; iterators of a class of their own keep their place in
    attributes, which are watched as others are."""
    return isinstance(value, (*GENERATORS, types.GeneratorType)) or (
        isinstance(value, Iterator) and not hasattr(value, "__dict__")
    )


def parts_that_move(value: Any, path: str) -> Iterator[Moving]:
    """The value, and the iterators that it is made of, as `zip` and `map` are."""
    yield Moving(path, value)
    if isinstance(value, Iterator) and not isinstance(value, types.GeneratorType):
        parts = gc.get_referents(value)
        for inner in (*parts, *[part for t in parts if type(t) is tuple for part in t]):
            if is_moving(inner):
                yield from parts_that_move(inner, path)


def positions(found: Sequence[Moving]) -> list[tuple[Any, ...]]:
    """Where each of them is."""
    return [_position(thing) for _, thing in found]


def moved_on(found: Sequence[Moving], before: Sequence[tuple[Any, ...]]) -> str | None:
    """What a person would call the first that is not where it was before; None if all are."""
    for (path, thing), was in zip(found, before, strict=True):
        now = _position(thing)
        if len(now) != len(was) or not all(a is b or a == b for a, b in zip(now, was, strict=True)):
            return f"the state of {path}"
    return None


def _position(thing: Any) -> tuple[Any, ...]:
    if isinstance(thing, types.GeneratorType):
        frame = thing.gi_frame
        return () if frame is None else (frame.f_lasti, *map(_Same, frame.f_locals.values()))
    if isinstance(thing, np.random.Generator):
        return (pickle.dumps(thing.bit_generator.state),)
    if isinstance(thing, np.random.RandomState):
        return (pickle.dumps(thing.get_state(legacy=False)),)
    if isinstance(thing, random.Random):
        return (thing.getstate(),)
    if isinstance(thing, itertools.count):
        return (repr(thing),)
    return (operator.length_hint(thing, -1),)


class _Same:
    """A variable, which is what it was if it is the same object: arrays are not compared."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]
