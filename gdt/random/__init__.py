"""Random numbers that depend on the seed alone, not on mesh, layout, storage or number of devices.

Every element is a function of a key, the number of the draw, and the element's global index
(`gdt.random.bits` defines it), so each device draws its own shard and nothing is sent. On the CPU
the numbers are bitwise the same everywhere.

Distributions that are drawn by rejection (`gamma`, `poisson`, `binomial` and their relatives) count
the attempts of every element by itself, so that an element still depends on nothing but key and
index.

`gdt.random.default_rng(seed)` makes a generator with NumPy's methods and order of arguments; the
functions here take the shape first.

A draw with `key=` gives the same numbers every time. Without it, the default generator
`gdt.random.generator` gives a key and counts its draws; `gdt.random.seed` resets it. Keys and
counts are arrays when a draw runs, so no plan contains them.
"""

from typing import TYPE_CHECKING

from gdt.errors.foreign_names import RANDOM, no_attribute
from gdt.random.choosing import choice, permutation, permuted, shuffle
from gdt.random.generator import Generator, fold_in, generator, key, seed, split
from gdt.random.integer_draws import integers
from gdt.random.multivariate import dirichlet, multinomial, multivariate_normal
from gdt.random.numpy_generator import NumPyGenerator, default_rng

if TYPE_CHECKING:
    from gdt.random.discrete import bernoulli
    from gdt.random.signatures import *
else:
    from gdt.random.continuous import (
        beta,
        chisquare,
        exponential,
        f,
        gamma,
        gumbel,
        laplace,
        logistic,
        lognormal,
        noncentral_chisquare,
        noncentral_f,
        normal,
        pareto,
        power,
        random,
        rayleigh,
        standard_cauchy,
        standard_exponential,
        standard_gamma,
        standard_normal,
        standard_t,
        triangular,
        truncated_normal,
        uniform,
        wald,
        weibull,
    )
    from gdt.random.discrete import (
        bernoulli,
        binomial,
        geometric,
        logseries,
        negative_binomial,
        poisson,
        zipf,
    )

__all__ = [
    "Generator",
    "NumPyGenerator",
    "bernoulli",
    "beta",
    "binomial",
    "chisquare",
    "choice",
    "default_rng",
    "dirichlet",
    "exponential",
    "f",
    "fold_in",
    "gamma",
    "generator",
    "geometric",
    "gumbel",
    "integers",
    "key",
    "laplace",
    "logistic",
    "lognormal",
    "logseries",
    "multinomial",
    "multivariate_normal",
    "negative_binomial",
    "noncentral_chisquare",
    "noncentral_f",
    "normal",
    "pareto",
    "permutation",
    "permuted",
    "poisson",
    "power",
    "random",
    "rayleigh",
    "seed",
    "shuffle",
    "split",
    "standard_cauchy",
    "standard_exponential",
    "standard_gamma",
    "standard_normal",
    "standard_t",
    "triangular",
    "truncated_normal",
    "uniform",
    "wald",
    "weibull",
    "zipf",
]


if not TYPE_CHECKING:  # a type checker would take every name for one of the module

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name, RANDOM)
