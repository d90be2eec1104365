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

# These move on exactly if one of the iterators that they are made of does.
MADE_OF_OTHERS = (
    enumerate, zip, map, filter, itertools.chain, itertools.islice, itertools.starmap,
    itertools.accumulate, itertools.compress, itertools.takewhile, itertools.dropwhile,
    itertools.filterfalse, itertools.zip_longest, itertools.pairwise, itertools.groupby,
)  # fmt: skip
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
    """Why a call must be taken to have moved one of them on, which is named as a person would; None
    if all are where they were before."""
    for (path, thing), was in zip(found, before, strict=True):
        now = _position(thing)
        if now == (UNKNOWN,):
            return f"the position of {path}, a {type(thing).__name__}, cannot be read"
        if len(now) != len(was) or not all(a is b or a == b for a, b in zip(now, was, strict=True)):
            return f"the state of {path} has changed"
    return None


UNKNOWN = object()


def _position(thing: Any) -> tuple[Any, ...]:
    if isinstance(thing, types.GeneratorType):
        # What it is made of may move without it being seen here: see `Ran.resumed`.
        frame = thing.gi_frame
        return () if frame is None else (frame.f_lasti, *map(_Same, frame.f_locals.values()))
    if isinstance(thing, np.random.Generator):
        return (pickle.dumps(thing.bit_generator.state),)
    if isinstance(thing, np.random.RandomState):
        return (pickle.dumps(thing.get_state(legacy=False)),)
    if isinstance(thing, random.Random):
        return (thing.getstate(),)
    if isinstance(thing, itertools.count | itertools.repeat):
        return (repr(thing),)
    if isinstance(thing, np.flatiter):
        return (thing.index,)
    if isinstance(thing, MADE_OF_OTHERS):
        return ()
    if hasattr(thing, "__length_hint__"):
        return (operator.length_hint(thing, -1),)
    return (UNKNOWN,)


class _Same:
    """A variable, which is what it was if it is the same object: arrays are not compared."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]
