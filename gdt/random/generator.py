"""The default generator, which counts draws, and keys of explicit ones."""

from __future__ import annotations

import threading
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from gdt.arguments import checked, checked_class
from gdt.array.array import DistributedArray
from gdt.array.placing import distribute
from gdt.engine.op import op
from gdt.errors import DtypeError, error
from gdt.observe import COUNTED, from_host, met_host
from gdt.ops.movement import relayout
from gdt.random import bits as random_bits
from gdt.sharding.array_type import ArrayType
from gdt.sharding.default_mesh import get_default_mesh
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.rule import RuleSpec

Block = Any
Key = Any  # a uint64 array of rank 0, a seed, or a generator, which gives another key to each draw

# ---------------------------------------------------------------- the default generator


def _key_of_seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise error(DtypeError, "seed", f"{seed!r} is not an integer")
    return int(random_bits.key_from_seed(np, int(seed)))


@checked_class()
class Generator:
    """A key, and how many draws it has made: each draw takes the next stream of that key.

    Safe to use from several threads; which thread gets which draw is then up to their order.

    >>> generator = gdt.random.Generator(7)
    >>> generator.take(), generator.take()
    ((7, 1), (7, 2))
    """

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._state = _key_of_seed(seed), 0

    def seed(self, seed: int) -> None:
        """Start anew from this seed.

        >>> generator = gdt.random.Generator(1)
        >>> generator.seed(2)
        >>> generator.take()
        (2, 1)
        """
        self.state = _key_of_seed(seed), 0

    def take(self) -> tuple[int, int]:
        """The key and the stream of the next draw. Stream 0 is left to draws with explicit keys.

        >>> generator = gdt.random.Generator(1)
        >>> generator.take(), generator.take()
        ((1, 1), (1, 2))
        """
        met_host("draw from a generator on the host", COUNTED)
        with self._lock:
            key, draws = self._state
            self._state = key, draws + 1
        return key, draws + 1

    def next_key(self) -> DistributedArray:
        """A key for the next draw, on the default mesh: another one in every call.

        >>> generator = gdt.random.Generator(7)
        >>> gdt.random.normal(2, key=generator.next_key()).shape
        (2,)
        """
        (key,) = from_host("key", self._key)
        return key  # type: ignore[no-any-return]

    def _key(self) -> tuple[DistributedArray]:
        return (_number(int(random_bits.fold_in(np, *self.take())), get_default_mesh()),)

    def _operands(self, mesh: Mesh) -> tuple[DistributedArray, DistributedArray]:
        """The key and the stream of the next draw, as arrays."""
        number, stream = self.take()
        return _number(number, mesh), distribute(np.uint64(stream), Layout.replicated(mesh, 0))

    @property
    def state(self) -> tuple[int, int]:
        """The key and the number of draws made; assign it to go on from there."""
        met_host("read the state of a generator", COUNTED)
        return self._state

    @state.setter
    def state(self, state: tuple[int, int]) -> None:
        met_host(
            "seed random numbers",
            "Seed outside of it, or give each draw a key: key=gdt.random.key(1).",
        )
        with self._lock:
            self._state = int(state[0]), int(state[1])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (), self.state

    def __setstate__(self, state: tuple[int, int]) -> None:
        self.state = state

    def __repr__(self) -> str:
        return f"Generator(key={self.state[0]}, draws={self.state[1]})"


generator = Generator()
"""The generator of draws without a key; its seed is 0 at the start, in every process."""


@checked
def seed(n: int) -> None:
    """Start the default generator anew from the seed `n`, an integer of 0 or more.

    >>> gdt.random.seed(1)
    >>> first = gdt.random.uniform(3)
    >>> gdt.random.seed(1)
    >>> bool(gdt.all(gdt.random.uniform(3) == first))
    True
    """
    generator.seed(n)


# ---------------------------------------------------------------- keys


@checked
def key(seed: Any = None) -> DistributedArray:
    """A key: a uint64 array of rank 0, replicated on the default mesh.

    seed: an integer of 0 or more; a key, which is returned as it is; or a generator, which gives a
        key of its own, and is the default generator for None.

    >>> gdt.random.normal(2, key=gdt.random.key(1)).round(3).tolist()
    [-0.279, -1.368]
    """
    own = as_key(seed)
    # The user may write to it, and the key of a number is known for the next call.
    return own.copy() if isinstance(seed, int | np.integer) else own


def as_key(seed: Any) -> DistributedArray:
    if isinstance(seed, DistributedArray):
        if seed.dtype != np.uint64 or seed.shape != ():
            problem = "a key is of dtype uint64 and rank 0"
            raise error(DtypeError, "key", problem, operands={"key": seed.type})
        return seed
    source = generator if seed is None else seed
    if isinstance(source, Generator):
        return source.next_key()
    mesh = get_default_mesh()
    (fixed,) = from_host("key", lambda: (_number(_key_of_seed(seed), mesh),))
    return fixed  # type: ignore[no-any-return]


@lru_cache(maxsize=64)
def _number(value: int, mesh: Mesh) -> DistributedArray:
    return distribute(np.uint64(value), Layout.replicated(mesh, 0))


@op("..., ... -> ...")
def fold_in(xp: Any, key: Block, data: Block, /) -> Block:
    """A new key from a key and an integer, such as the number of a step or a layer.

    key: uint64; data: integers of 0 or more; they broadcast.

    >>> key = gdt.random.key(0)
    >>> gdt.random.fold_in(key, 1).tolist() == gdt.random.fold_in(key, 2).tolist()
    False
    """
    return random_bits.fold_in(xp, key, data)


def _split_rule(array_type: ArrayType, *, n: int) -> RuleSpec:
    return RuleSpec("... -> ... n", {"n": n})


@op(_split_rule)
def split_key(xp: Any, key: Block, /, n: int) -> Block:
    """`n` new keys from a key: uint64 of shape (..., n). `gdt.random.split` is this function.

    >>> a, b = gdt.random.split(gdt.random.key(0), 2)
    >>> a.tolist() == b.tolist()
    False
    """
    return random_bits.split(xp, key, n)


@checked
def split(key: Key, n: int = 2) -> DistributedArray:
    """`n` new keys from a key: uint64 of shape (n,); iterate over them or index them.

    >>> a, b = gdt.random.split(gdt.random.key(0), 2)
    >>> a.tolist() == b.tolist()
    False
    """
    return split_key(as_key(key), n=n)


# ---------------------------------------------------------------- operands of draws


class Counted(NamedTuple):
    """The key and the stream of a draw that has been counted, and may be made several times."""

    key: DistributedArray
    stream: Any


def operands_of(user_key: Key, mesh: Mesh) -> tuple[DistributedArray, Any]:
    """The key and the stream of a draw as operands on `mesh`."""
    if isinstance(user_key, Counted):
        return user_key
    source = generator if user_key is None else user_key
    if isinstance(source, Generator):
        key, stream = from_host("random", partial(source._operands, mesh))
        return key, stream
    return relayout(as_key(user_key), Layout.replicated(mesh, 0)), 0
