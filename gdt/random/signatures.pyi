"""Signatures of the distributions that `gdt.random.draws.distribution` makes, for type checkers.

`tests/random/test_random.py` compares them with those of the functions.
"""

from typing import Any

from gdt.array.array import DistributedArray
from gdt.ops.shapes import Shape
from gdt.random.generator import Key
from gdt.sharding.layout import Layout

def beta(
    shape: Shape,
    a: Any,
    b: Any,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def chisquare(
    shape: Shape, df: Any, dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray: ...
def exponential(
    shape: Shape = (),
    scale: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def f(
    shape: Shape,
    dfnum: Any,
    dfden: Any,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def gamma(
    shape: Shape,
    a: Any,
    scale: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def gumbel(
    shape: Shape = (),
    loc: Any = 0.0,
    scale: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def laplace(
    shape: Shape = (),
    loc: Any = 0.0,
    scale: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def logistic(
    shape: Shape = (),
    loc: Any = 0.0,
    scale: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def lognormal(
    shape: Shape = (),
    mean: Any = 0.0,
    sigma: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def noncentral_chisquare(
    shape: Shape,
    df: Any,
    nonc: Any,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def noncentral_f(
    shape: Shape,
    dfnum: Any,
    dfden: Any,
    nonc: Any,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def normal(
    shape: Shape = (),
    mean: Any = 0.0,
    std: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def pareto(
    shape: Shape, a: Any, dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray: ...
def power(
    shape: Shape, a: Any, dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray: ...
def random(
    shape: Shape = (), dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray: ...
def rayleigh(
    shape: Shape = (),
    scale: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def standard_cauchy(
    shape: Shape = (), dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray: ...
def standard_exponential(
    shape: Shape = (), dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray: ...
def standard_gamma(
    shape: Shape, a: Any, dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray: ...
def standard_normal(
    shape: Shape = (), dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray: ...
def standard_t(
    shape: Shape, df: Any, dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray: ...
def triangular(
    shape: Shape,
    left: Any,
    mode: Any,
    right: Any,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def truncated_normal(
    shape: Shape = (),
    mean: Any = 0.0,
    std: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def uniform(
    shape: Shape = (),
    low: Any = 0.0,
    high: Any = 1.0,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def wald(
    shape: Shape,
    mean: Any,
    scale: Any,
    dtype: Any = float,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def weibull(
    shape: Shape, a: Any, dtype: Any = float, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray: ...
def binomial(
    shape: Shape, n: Any, p: Any, dtype: Any = int, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray: ...
def geometric(
    shape: Shape, p: Any, dtype: Any = int, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray: ...
def logseries(
    shape: Shape, p: Any, dtype: Any = int, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray: ...
def negative_binomial(
    shape: Shape, n: Any, p: Any, dtype: Any = int, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray: ...
def poisson(
    shape: Shape = (),
    lam: Any = 1.0,
    dtype: Any = int,
    *,
    key: Key = None,
    layout: Layout | None = None,
) -> DistributedArray: ...
def zipf(
    shape: Shape, a: Any, dtype: Any = int, *, key: Key = None, layout: Layout | None = None
) -> DistributedArray: ...
