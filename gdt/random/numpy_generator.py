"""Generators whose methods have NumPy's names and order of arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdt.arguments import checked, checked_class
from gdt.array.array import DistributedArray
from gdt.errors.foreign_names import RANDOM, Absent
from gdt.ops.shapes import Shape
from gdt.random import bits as random_bits
from gdt.random import choosing, continuous, discrete, multivariate
from gdt.random.draws import by_name, defaults_of
from gdt.random.generator import Generator, generator
from gdt.random.integer_draws import integers
from gdt.sharding.layout import Layout

Size = Shape | None
Draw = Callable[..., DistributedArray]


def _in_numpys_order(
    draw: Draw, *, broadcast: Sequence[str] | None = None, **names: str
) -> Callable[..., DistributedArray]:
    """Make the method of a draw: its parameters stand first, then `size`, `dtype` and `layout`.

    broadcast: the parameters whose shapes a size of None takes; all of them if not given. names:
    parameters of NumPy, and what the draw calls them.
    """
    numpys = {label: name for name, label in names.items()}
    shape, *others, _, layout = inspect.signature(draw).parameters.values()
    dtype = next(p for p in others if p.name == "dtype")
    n = others.index(dtype)  # parameters stand before it, options behind it
    parameters = [p.replace(name=numpys.get(p.name, p.name)) for p in others[:n]]
    self_ = shape.replace(name="self", default=shape.empty, annotation=shape.empty)
    size = shape.replace(name="size", default=None, annotation=Size)
    signature = inspect.Signature([self_, *parameters, size, dtype, *others[n + 1 :], layout])
    order = [p.name for p in (self_, *parameters, size, dtype)]
    defaults = defaults_of(signature)
    labels = [p.name for p in parameters] if broadcast is None else broadcast

    def method(*args: Any, **kwargs: Any) -> DistributedArray:
        values = defaults | by_name(order, args, kwargs)
        own_key, shape = values.pop("self"), values.pop("size")
        if shape is None:
            shape = np.broadcast_shapes(*[np.shape(values[label]) for label in labels])
        values = {names.get(name, name): value for name, value in values.items()}
        return draw(shape, **values, key=own_key)

    method.__signature__ = signature  # type: ignore[attr-defined]
    method.__doc__ = f"`gdt.random.{draw.__name__}` with its arguments in NumPy's order."
    return method


@checked_class()
class NumPyGenerator(Generator):
    """A generator with the methods of NumPy's `Generator`, which `gdt.random.default_rng` makes.

    Each method is the function of `gdt.random` of its name, with NumPy's names and order of
    arguments: the shape is `size`, and None takes the shape of the parameters. All of them take
    `layout=`, and those that draw floats `dtype=`. The numbers are those of `gdt.random`, not of
    NumPy: they depend on the seed, the number of the draw and the index of the element alone.

    >>> rng = gdt.random.default_rng(7)
    >>> rng.normal(10.0, 2.0, size=(3, 2)).shape
    (3, 2)
    """

    beta = _in_numpys_order(continuous.beta)
    binomial = _in_numpys_order(discrete.binomial)
    chisquare = _in_numpys_order(continuous.chisquare)
    dirichlet = _in_numpys_order(multivariate.dirichlet, broadcast=())
    exponential = _in_numpys_order(continuous.exponential)
    f = _in_numpys_order(continuous.f)
    gamma = _in_numpys_order(continuous.gamma, shape="a")
    geometric = _in_numpys_order(discrete.geometric)
    gumbel = _in_numpys_order(continuous.gumbel)
    laplace = _in_numpys_order(continuous.laplace)
    logseries = _in_numpys_order(discrete.logseries)
    logistic = _in_numpys_order(continuous.logistic)
    lognormal = _in_numpys_order(continuous.lognormal)
    multinomial = _in_numpys_order(multivariate.multinomial, broadcast=("n",))
    multivariate_normal = _in_numpys_order(multivariate.multivariate_normal, broadcast=())
    negative_binomial = _in_numpys_order(discrete.negative_binomial)
    noncentral_chisquare = _in_numpys_order(continuous.noncentral_chisquare)
    noncentral_f = _in_numpys_order(continuous.noncentral_f)
    normal = _in_numpys_order(continuous.normal, loc="mean", scale="std")
    pareto = _in_numpys_order(continuous.pareto)
    poisson = _in_numpys_order(discrete.poisson)
    power = _in_numpys_order(continuous.power)
    random = _in_numpys_order(continuous.random)
    rayleigh = _in_numpys_order(continuous.rayleigh)
    standard_cauchy = _in_numpys_order(continuous.standard_cauchy)
    standard_exponential = _in_numpys_order(continuous.standard_exponential)
    standard_gamma = _in_numpys_order(continuous.standard_gamma, shape="a")
    standard_normal = _in_numpys_order(continuous.standard_normal)
    standard_t = _in_numpys_order(continuous.standard_t)
    triangular = _in_numpys_order(continuous.triangular)
    uniform = _in_numpys_order(continuous.uniform)
    wald = _in_numpys_order(continuous.wald)
    weibull = _in_numpys_order(continuous.weibull)
    zipf = _in_numpys_order(discrete.zipf)

    def integers(
        self,
        low: Any,
        high: Any = None,
        size: Size = None,
        dtype: Any = int,
        endpoint: bool = False,
        *,
        layout: Layout | None = None,
    ) -> DistributedArray:
        """`gdt.random.integers` in NumPy's order.

        >>> gdt.random.default_rng(0).integers(0, 10, size=3).shape
        (3,)
        """
        low, high = (0, low) if high is None else (low, high)
        shape = np.broadcast_shapes(np.shape(low), np.shape(high)) if size is None else size
        return integers(low, high, shape, dtype, endpoint=endpoint, key=self, layout=layout)

    def choice(
        self,
        a: Any,
        size: Size = None,
        replace: bool = True,
        p: Any = None,
        axis: int = 0,
        shuffle: bool = True,
        *,
        layout: Layout | None = None,
    ) -> DistributedArray:
        """`gdt.random.choice` in NumPy's order; shuffle: ignored, since the order is random.

        >>> gdt.random.default_rng(0).choice([3, 5], size=4).shape
        (4,)
        """
        shape = () if size is None else size
        return choosing.choice(a, shape, replace, p, axis, key=self, layout=layout)

    def permutation(
        self, x: Any, axis: int = 0, *, layout: Layout | None = None
    ) -> DistributedArray:
        """`gdt.random.permutation`.

        >>> sorted(gdt.random.default_rng(0).permutation(4).tolist())
        [0, 1, 2, 3]
        """
        return choosing.permutation(x, axis, key=self, layout=layout)

    def permuted(
        self, x: Any, axis: int | None = None, *, layout: Layout | None = None
    ) -> DistributedArray:
        """`gdt.random.permuted`.

        >>> sorted(gdt.random.default_rng(0).permuted([3, 1, 2]).tolist())
        [1, 2, 3]
        """
        return choosing.permuted(x, axis, key=self, layout=layout)

    def shuffle(self, x: DistributedArray, axis: int = 0) -> None:
        """`gdt.random.shuffle`: in place.

        >>> x = gdt.arange(4)
        >>> gdt.random.default_rng(0).shuffle(x)
        >>> sorted(x.tolist())
        [0, 1, 2, 3]
        """
        choosing.shuffle(x, axis, key=self)

    def bytes(self, length: int) -> bytes:
        """Random bytes, on the host.

        >>> len(gdt.random.default_rng(0).bytes(3))
        3
        """
        numbers = integers(0, 256, length, np.uint8, key=self)
        return bytes(numbers.numpy())

    def spawn(self, n_children: int) -> list[NumPyGenerator]:
        """New generators, whose numbers have nothing to do with those of this one.

        >>> one, other = gdt.random.default_rng(0).spawn(2)
        >>> float(one.random()) == float(other.random())
        False
        """
        return [_of_key(int(random_bits.fold_in(np, *self.take()))) for _ in range(n_children)]


for _name in ("bit_generator", "hypergeometric", "multivariate_hypergeometric", "vonmises"):
    setattr(NumPyGenerator, _name, Absent(_name, RANDOM))


def _of_key(key: int) -> NumPyGenerator:
    numpy_generator = NumPyGenerator()
    numpy_generator._state = key, 0
    return numpy_generator


@checked
def default_rng(seed: Any = None) -> NumPyGenerator:
    """A generator with NumPy's methods, such as `normal(loc, scale, size)`, for split arrays.

    seed: an integer of 0 or more; integers, or a SeedSequence of NumPy, which are hashed as NumPy
        does; a generator, which is returned as it is; or None for a key of its own from the default
        generator, which `gdt.random.seed` resets, and which is the same in all processes.

    >>> rng = gdt.random.default_rng(7)
    >>> layout = gdt.Layout(["x"], gdt.create_mesh([("x", 4)]))
    >>> rng.normal(10.0, 2.0, size=1000, layout=layout).layout.sharding_specs
    ['x']
    >>> rng.uniform([0, 10], [1, 20]).shape
    (2,)
    """
    if isinstance(seed, NumPyGenerator):
        return seed
    if seed is None:
        return _of_key(int(random_bits.fold_in(np, *generator.take())))
    if isinstance(seed, Sequence | np.ndarray) and np.ndim(seed):
        seed = np.random.SeedSequence(seed)
    if isinstance(seed, np.random.SeedSequence):
        seed = int(seed.generate_state(1, np.uint64)[0])
    return NumPyGenerator(seed)
