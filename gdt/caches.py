"""Caches of plans, routes and recorded programs, which share one budget of memory.

A plan is made once for operands of given types, and found again by its key. A program that meets
ever new shapes would fill the memory with plans. So every cache has two generations: the entries
used since the last turn, and those used before it. As soon as the new entries of all caches
together take half of the budget, the caches turn: each drops its older generation, and its newer
generation becomes the older one. An entry that is found in the older generation moves to the newer
one. So entries that have not been used for long are dropped first, as in an LRU cache, and a lookup
costs no more than in a dictionary.

The bytes of an entry are an estimate, which each cache states for its entries.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

V = TypeVar("V")
P = ParamSpec("P")
R = TypeVar("R")


class Cache(dict[Any, V]):
    """A dictionary that drops entries which have not been used for long.

    `cache.get(key)` and `key in cache` look in the newer generation only. `cache[key]` looks in
    both, and raises KeyError if neither has the key.

    nbytes: an estimate of the bytes that an entry takes. older: the older generation.
    """

    __slots__ = ("__weakref__", "nbytes", "older")

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self.nbytes, self.older = nbytes, dict[Any, V]()
        BUDGET.caches.add(self)

    def __hash__(self) -> int:  # type: ignore[override]  # caches are kept in a set
        return id(self)

    def __missing__(self, key: Any) -> V:
        value = self[key] = self.older[key]
        return value

    def __setitem__(self, key: Any, value: V) -> None:
        is_new = key not in self
        super().__setitem__(key, value)
        if is_new:
            BUDGET.add(self.nbytes)

    def recall(self, key: Any) -> V | None:
        """Return the entry for `key` from either generation, None if neither has it."""
        try:
            return self[key]
        except KeyError:
            return None

    def turn(self) -> None:
        """Drop the older generation; the newer one takes its place."""
        self.older = dict(self)
        super().clear()

    def clear(self) -> None:
        """Drop all entries."""
        self.older = {}
        super().clear()


class Budget:
    """The memory that all caches together may take.

    nbytes: the size of that memory. caches: all caches that exist.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.caches = nbytes, weakref.WeakSet[Cache[Any]]()
        self._lock, self._new_nbytes = threading.RLock(), 0  # bytes of entries since the last turn

    def add(self, nbytes: int) -> None:
        """Count a new entry of `nbytes`; all caches turn when new ones take half of the budget."""
        with self._lock:
            self._new_nbytes += nbytes
            if self._new_nbytes > self.nbytes // 2:
                self._new_nbytes = 0
                for cache in list(self.caches):
                    cache.turn()

    def clear(self) -> None:
        """Drop the entries of all caches."""
        with self._lock:
            for cache in list(self.caches):
                cache.clear()

    def estimate(self) -> int:
        """Return an estimate of the bytes that all caches hold now."""
        return sum((len(c) + len(c.older)) * c.nbytes for c in list(self.caches))


BUDGET = Budget(64 << 20)


KEYWORDS = object()  # stands between positional arguments and keywords in a key


def memoized(nbytes: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keep the results of a function in a cache, by its arguments: a decorator.

    nbytes: an estimate of the bytes that a result and its arguments take. Arguments must be
    hashable; arguments that are equal, as 1 and True are, have one result.

    >>> @memoized(100)
    ... def square(x):
    ...     print("computing")
    ...     return x * x
    >>> square(3), square(3)
    computing
    (9, 9)
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        cache: Cache[R] = Cache(nbytes)

        @wraps(function)
        def look_up(*args: Any, **kwargs: Any) -> R:
            key = (*args, KEYWORDS, *kwargs.items()) if kwargs else args
            try:
                return cache[key]
            except KeyError:
                pass
            result = cache[key] = function(*args, **kwargs)
            return result

        look_up.cache = cache  # type: ignore[attr-defined]
        return cast(Callable[P, R], look_up)

    return decorate
