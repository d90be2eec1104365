"""Draws: the public functions of `gdt.random`, and the generator that counts them."""

from __future__ import annotations

import threading
from functools import lru_cache, partial
from operator import index
from typing import Any

import numpy as np

from gdt.arguments import checked, checked_class
from gdt.array.array import DistributedArray
from gdt.array.placing import checked_layout, distribute
from gdt.array.registry import FUNCTIONS
from gdt.backend import backend_of
from gdt.comm.messages import note_draw
from gdt.engine.op import op
from gdt.engine.planned import BlockPlan, planned_op
from gdt.errors import ArgumentError, AxisError, DtypeError, ShapeError, error
from gdt.observe import COUNTED, from_host, met_host
from gdt.ops.comparison import less
from gdt.ops.elementwise import astype, checked_dtype
from gdt.ops.movement import relayout
from gdt.ops.shapes import Shape, checked_shape
from gdt.random import bits as random_bits
from gdt.random.kernels import draw_block
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh, get_default_mesh
from gdt.sharding.rule import RuleSpec

Block = Any
Key = Any  # a uint64 array of rank 0, or a seed

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
        """Start anew from this seed."""
        self.state = _key_of_seed(seed), 0

    def take(self) -> tuple[int, int]:
        """The key and the stream of the next draw. Stream 0 is left to draws with explicit keys."""
        met_host("draw from a generator on the host", COUNTED)
        with self._lock:
            key, draws = self._state
            self._state = key, draws + 1
        return key, draws + 1

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

    seed: an integer of 0 or more; a key, which is returned as it is; or None for a key of its own
        from the default generator.

    >>> gdt.random.normal(2, key=gdt.random.key(1)).round(3).tolist()
    [-0.279, -1.368]
    """
    return _as_key(seed)


def _as_key(given: Any) -> DistributedArray:
    if isinstance(given, DistributedArray):
        if given.dtype != np.uint64 or given.shape != ():
            problem = "a key is of dtype uint64 and rank 0"
            raise error(DtypeError, "key", problem, operands={"key": given.type})
        return given
    mesh = get_default_mesh()
    if given is None:
        (new,) = from_host(
            "key", lambda: (_number(int(random_bits.fold_in(np, *generator.take())), mesh),)
        )
        return new  # type: ignore[no-any-return]
    (fixed,) = from_host("key", lambda: (_number(_key_of_seed(given), mesh),))
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
    keys: DistributedArray = split_key(_as_key(key), n=n)
    return keys


# ---------------------------------------------------------------- draws


@planned_op()
def _draw(
    key: ArrayType,
    stream: Any,
    /,
    *,
    sampler: str,
    array_type: ArrayType,
    options: tuple[tuple[str, Any], ...],
) -> BlockPlan:
    """The elements of an array; options: arguments of the sampler."""

    def draw(block: int, *scalars: Any) -> Block:
        scalars = tuple(map(_of_rank_0, scalars))
        if block == 0:
            note_draw(array_type, *scalars)
        return draw_block(sampler, array_type, block, dict(options), *scalars)

    blocks = range(len(array_type.mesh.blocks))
    return BlockPlan([None, None], array_type, [partial(draw, block) for block in blocks])


@planned_op()
def _permute(key: ArrayType, stream: Any, /, *, n: int) -> BlockPlan:
    """The integers below `n` in random order, replicated."""
    mesh, xp = key.mesh, backend_of(key.mesh).xp
    array_type = ArrayType.of((n,), np.dtype(np.int64), Layout.replicated(mesh, 1))

    def permute(block: int, *scalars: Any) -> Block:
        scalars = tuple(map(_of_rank_0, scalars))
        if block == 0:
            note_draw(array_type, *scalars)
        return random_bits.permutation(xp, n, *scalars).reshape((1,) * mesh.ndim + (n,))

    blocks = range(len(mesh.blocks))
    return BlockPlan([None, None], array_type, [partial(permute, block) for block in blocks])


def _of_rank_0(value: Any) -> Any:
    """The block of an array of rank 0 without its mesh axes; a Python number as it is."""
    return value if isinstance(value, int) else value.reshape(())


def _operands(given: Key, mesh: Mesh) -> tuple[DistributedArray, Any]:
    """The key and the stream of a draw as operands on `mesh`."""
    if given is None:
        key, stream = from_host("random", lambda: _taken(mesh))
        return key, stream
    return relayout(_as_key(given), Layout.replicated(mesh, 0)), 0


def _taken(mesh: Mesh) -> tuple[DistributedArray, DistributedArray]:
    """Key and stream of the next draw of the default generator, as arrays."""
    taken, stream = generator.take()
    return _number(taken, mesh), distribute(np.uint64(stream), Layout.replicated(mesh, 0))


def _drawn(
    sampler: str, shape: Shape, dtype: Any, layout: Layout | None, key: Key, options: Any
) -> DistributedArray:
    """A draw, in the wanted layout with nothing partial."""
    sizes = checked_shape(shape, sampler)
    layout = checked_layout(layout, len(sizes), sampler)
    array_type = ArrayType.of(sizes, checked_dtype(dtype, sampler), layout.resolved)
    if "dtype" in options:
        options = {**options, "dtype": array_type.dtype}
    out: DistributedArray = _draw(
        *_operands(key, array_type.mesh),
        sampler=sampler,
        array_type=array_type,
        options=tuple(options.items()),
    )
    return out


def _in_layout(x: DistributedArray, layout: Layout | None) -> DistributedArray:
    return x if layout is None or x.layout is layout else relayout(x, layout)


@checked
def uniform(
    shape: Shape = (),
    low: Any = 0.0,
    high: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Uniform numbers in [low, high); rounding may give `high` itself if it is not 1, as in NumPy.

    low, high: numbers, or arrays that broadcast to the shape. dtype: float16, float32 or float64.

    >>> gdt.random.uniform(2, key=0).round(3).tolist()
    [0.399, 0.736]
    """
    x = _drawn("uniform", shape, dtype, layout, key, {"dtype": dtype})
    if not (_is(high, 1) and _is(low, 0)):
        x = _like(x, x * (high - low) + low, "uniform", low=low, high=high)
    return _in_layout(x, layout)


@checked
def normal(
    shape: Shape = (),
    mean: Any = 0.0,
    std: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Normal numbers of that mean and standard deviation.

    mean, std: numbers, or arrays that broadcast to the shape. dtype: float16, float32 or float64.

    >>> gdt.random.normal(3, key=0).round(3).tolist()
    [1.276, -0.72, -0.07]
    """
    x = _drawn("normal", shape, dtype, layout, key, {"dtype": dtype})
    return _in_layout(_scaled(x, mean, std, "normal"), layout)


@checked
def truncated_normal(
    shape: Shape = (),
    mean: Any = 0.0,
    std: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Normal numbers given that they are within two standard deviations of the mean.

    `std` is that of the normal before it is cut off; the numbers' own is 0.8796 of it.

    >>> bool(gdt.all(abs(gdt.random.truncated_normal(100, key=0)) <= 2))
    True
    """
    x = _drawn("truncated_normal", shape, dtype, layout, key, {"dtype": dtype})
    return _in_layout(_scaled(x, mean, std, "truncated_normal"), layout)


def _is(value: Any, number: int) -> bool:
    return isinstance(value, int | float) and value == number


def _scaled(x: DistributedArray, mean: Any, std: Any, sampler: str) -> DistributedArray:
    y = x if _is(std, 1) else x * std
    return _like(x, y if _is(mean, 0) else y + mean, sampler, mean=mean, std=std)


def _like(x: DistributedArray, y: DistributedArray, sampler: str, **given: Any) -> DistributedArray:
    """The numbers that were made of a draw `x` with these arguments, in its dtype; ShapeError if
    they are of another shape."""
    if y.shape != x.shape:
        shapes = " and ".join(f"{k} of shape {list(np.shape(v))}" for k, v in given.items())
        raise error(ShapeError, sampler, f"{shapes} do not broadcast to {list(x.shape)}")
    return astype(y, x.dtype)


@checked
def integers(
    low: int,
    high: int | None = None,
    shape: Shape = (),
    dtype: Any = int,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray:
    """Integers from `low` up to, not including, `high`; from 0 up to `low` if it is None.

    Raises ShapeError for an empty range, DtypeError for a dtype that does not hold it.

    >>> gdt.random.integers(10, shape=5, key=0).tolist()
    [3, 8, 7, 6, 9]
    """
    low, high = (0, low) if high is None else (low, high)
    limits = {"low": index(low), "high": index(high), "dtype": dtype}
    x = _drawn("integers", shape, dtype, layout, key, limits)
    return _in_layout(x, layout)


@checked
def bernoulli(
    shape: Shape = (), p: Any = 0.5, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """Booleans that are true with probability `p`: a number, or an array that broadcasts to the
    shape.

    Raises ArgumentError for a `p` outside [0, 1]; of a distributed array, which is not fetched for
    that, such elements count as 0 or 1.

    >>> gdt.random.bernoulli(4, 0.5, key=3).tolist()
    [False, True, False, False]
    """
    if isinstance(p, int | float):
        if not 0 <= p <= 1:
            raise error(ArgumentError, "bernoulli", f"p is {p}, which is no probability")
        drawn = _drawn("bernoulli", shape, bool, layout, key, {"p": float(p)})
    else:
        exact = astype(p, np.float64) if isinstance(p, DistributedArray) else _probabilities(p)
        bits = _drawn("bits32", shape, np.uint32, layout, key, {})
        drawn = less(bits, exact * 2.0**32)
        if drawn.shape != bits.shape:
            problem = f"p of shape {list(np.shape(p))} does not broadcast to {list(bits.shape)}"
            raise error(ShapeError, "bernoulli", problem)
        drawn = _in_layout(drawn, bits.layout)
    return _in_layout(drawn, layout)


def _probabilities(p: Any) -> np.ndarray:
    values = np.asarray(p, float)
    wrong = values[~((values >= 0) & (values <= 1))]
    if wrong.size:
        problem = f"p holds {wrong.flat[0]}, which is no probability"
        raise error(ArgumentError, "bernoulli", problem)
    return values


@checked
def permutation(
    x: Any, axis: int = 0, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray:
    """The integers below `x` in random order; or an array with its elements along `axis` so.

    All orders are equally likely, but for one of 2^64 bits being drawn twice. Every device computes
    the whole order of an axis, as it takes a sort.

    >>> gdt.random.permutation(5, key=0).tolist()
    [4, 0, 3, 1, 2]
    """
    if isinstance(x, int | np.integer):
        (n,) = checked_shape(int(x), "permutation")
        target_layout = checked_layout(layout, 1, "permutation")
        return relayout(_permute(*_operands(key, target_layout.mesh), n=n), target_layout)
    x = FUNCTIONS["asarray"](x)
    if not -x.ndim <= axis < x.ndim:
        problem = f"axis {axis} is out of range for rank {x.ndim}"
        raise error(AxisError, "permutation", problem, operands={"x": x.type})
    along = Layout.replicated(x.mesh, 1)
    shuffled: DistributedArray = FUNCTIONS["take"](
        x, permutation(x.shape[axis], key=key, layout=along), axis=axis
    )
    return _in_layout(shuffled, layout)
