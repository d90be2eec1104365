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
from gdt.random import choosing, counts, draws, multivariate, variates
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
    own = inspect.signature(draw).parameters
    numpys = {label: name for name, label in names.items()}
    listed = [
        own[label].replace(name=numpys.get(label, label))
        for label in own
        if label not in ("shape", "dtype", "key", "layout")
    ]
    parameters = [p for p in listed if p.kind is not p.KEYWORD_ONLY]
    options = [p for p in listed if p.kind is p.KEYWORD_ONLY]
    self_ = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    size = self_.replace(name="size", default=None, annotation="Size")
    signature = inspect.Signature([self_, *parameters, size, own["dtype"], *options, own["layout"]])

    def method(*args: Any, **kwargs: Any) -> DistributedArray:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        self, shape = values.pop("self"), values.pop("size")
        values = {names.get(name, name): value for name, value in values.items()}
        if shape is None:
            labels = [p.name for p in parameters] if broadcast is None else broadcast
            shape = np.broadcast_shapes(*[np.shape(values[names.get(n, n)]) for n in labels])
        return draw(shape, **values, key=self)

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
    """

    beta = _in_numpys_order(counts.beta)
    binomial = _in_numpys_order(counts.binomial)
    chisquare = _in_numpys_order(counts.chisquare)
    dirichlet = _in_numpys_order(multivariate.dirichlet, broadcast=())
    exponential = _in_numpys_order(variates.exponential)
    f = _in_numpys_order(counts.f)
    gamma = _in_numpys_order(counts.gamma, shape="a")
    geometric = _in_numpys_order(counts.geometric)
    gumbel = _in_numpys_order(variates.gumbel)
    laplace = _in_numpys_order(variates.laplace)
    logseries = _in_numpys_order(counts.logseries)
    logistic = _in_numpys_order(variates.logistic)
    lognormal = _in_numpys_order(variates.lognormal)
    multinomial = _in_numpys_order(multivariate.multinomial, broadcast=("n",))
    multivariate_normal = _in_numpys_order(multivariate.multivariate_normal, broadcast=())
    negative_binomial = _in_numpys_order(counts.negative_binomial)
    noncentral_chisquare = _in_numpys_order(counts.noncentral_chisquare)
    noncentral_f = _in_numpys_order(counts.noncentral_f)
    normal = _in_numpys_order(draws.normal, loc="mean", scale="std")
    pareto = _in_numpys_order(variates.pareto)
    poisson = _in_numpys_order(counts.poisson)
    power = _in_numpys_order(variates.power)
    random = _in_numpys_order(variates.random)
    rayleigh = _in_numpys_order(variates.rayleigh)
    standard_cauchy = _in_numpys_order(variates.standard_cauchy)
    standard_exponential = _in_numpys_order(variates.standard_exponential)
    standard_gamma = _in_numpys_order(counts.standard_gamma, shape="a")
    standard_normal = _in_numpys_order(variates.standard_normal)
    standard_t = _in_numpys_order(counts.standard_t)
    triangular = _in_numpys_order(variates.triangular)
    uniform = _in_numpys_order(draws.uniform)
    wald = _in_numpys_order(variates.wald)
    weibull = _in_numpys_order(variates.weibull)
    zipf = _in_numpys_order(counts.zipf)

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
        """`gdt.random.integers` in NumPy's order."""
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
        """`gdt.random.choice` in NumPy's order; shuffle: ignored, since the order is random."""
        shape = () if size is None else size
        return choosing.choice(a, shape, replace, p, axis, key=self, layout=layout)

    def permutation(
        self, x: Any, axis: int = 0, *, layout: Layout | None = None
    ) -> DistributedArray:
        """`gdt.random.permutation`."""
        return choosing.permutation(x, axis, key=self, layout=layout)

    def permuted(
        self, x: Any, axis: int | None = None, *, layout: Layout | None = None
    ) -> DistributedArray:
        """`gdt.random.permuted`."""
        return choosing.permuted(x, axis, key=self, layout=layout)

    def shuffle(self, x: DistributedArray, axis: int = 0) -> None:
        """`gdt.random.shuffle`: in place."""
        choosing.shuffle(x, axis, key=self)

    def bytes(self, length: int) -> bytes:
        """Random bytes, on the host."""
        numbers = integers(0, 256, length, np.uint8, key=self)
        return bytes(numbers.numpy())

    def spawn(self, n_children: int) -> list[NumPyGenerator]:
        """New generators, whose numbers have nothing to do with those of this one."""
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
