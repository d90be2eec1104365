"""Keras' random numbers: draws from keys that are made of Keras' seeds.

They are gdt's numbers of that key, the same on every mesh and in every layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras.src.backend import config
from keras.src.random.seed_generator import SeedGenerator, draw_seed, make_default_seed

import gdt
from gdt.array.array import DistributedArray
from gdt.interop.keras.backend.variables import convert_to_tensor

__all__ = ["SeedGenerator", "draw_seed", "make_default_seed"]

Shape = Sequence[int]


def key_of(seed: Any) -> DistributedArray:
    """Return the key of the next draw of a seed, a generator of seeds, or None for Keras' own."""
    pair = gdt.astype(draw_seed(seed), "uint64")
    return gdt.random.fold_in(pair[0], pair[1])


def _drawn(
    draw: Callable[..., DistributedArray], shape: Shape, *parameters: Any, dtype: Any, seed: Any
) -> DistributedArray:
    dtype = dtype or config.floatx()
    wide = "float64" if dtype == "float64" else "float32"
    numbers = [p if isinstance(p, int | float) else convert_to_tensor(p, wide) for p in parameters]
    return gdt.astype(draw(tuple(shape), *numbers, dtype=wide, key=key_of(seed)), dtype)


def normal(
    shape: Shape, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
) -> DistributedArray:
    """Return draws of the normal distribution."""
    return _drawn(gdt.random.normal, shape, mean, stddev, dtype=dtype, seed=seed)


def truncated_normal(
    shape: Shape, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
) -> DistributedArray:
    """Return draws of the normal distribution within two standard deviations of its mean."""
    return _drawn(gdt.random.truncated_normal, shape, mean, stddev, dtype=dtype, seed=seed)


def uniform(
    shape: Shape, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None
) -> DistributedArray:
    """Return draws of the uniform distribution from `minval` to `maxval`, which it excludes."""
    return _drawn(gdt.random.uniform, shape, minval, maxval, dtype=dtype, seed=seed)


def gamma(shape: Shape, alpha: Any, dtype: Any = None, seed: Any = None) -> DistributedArray:
    """Return draws of the gamma distribution of scale 1."""
    return _drawn(gdt.random.gamma, shape, alpha, dtype=dtype, seed=seed)


def beta(
    shape: Shape, alpha: Any, beta: Any, dtype: Any = None, seed: Any = None
) -> DistributedArray:
    """Return draws of the beta distribution."""
    return _drawn(gdt.random.beta, shape, alpha, beta, dtype=dtype, seed=seed)


def binomial(
    shape: Shape, counts: Any, probabilities: Any, dtype: Any = None, seed: Any = None
) -> DistributedArray:
    """Return numbers of successes in so many trials."""
    counts, probabilities = convert_to_tensor(counts), convert_to_tensor(probabilities)
    out = gdt.random.binomial(
        tuple(shape), gdt.astype(counts, "int64"), probabilities, key=key_of(seed)
    )
    return gdt.astype(out, dtype or config.floatx())


def randint(
    shape: Shape, minval: Any, maxval: Any, dtype: Any = "int32", seed: Any = None
) -> DistributedArray:
    """Return integers from `minval` to `maxval`, which they exclude."""
    low, high = (
        n if isinstance(n, int) else convert_to_tensor(n, "int64") for n in (minval, maxval)
    )
    numbers = gdt.random.integers(low, high, tuple(shape), "int64", key=key_of(seed))
    return gdt.astype(numbers, dtype)


def categorical(
    logits: Any, num_samples: int, dtype: Any = "int32", seed: Any = None
) -> DistributedArray:
    """Return classes (batch, num_samples), drawn with the probabilities of logits (batch, classes):
    those at which the sum of logits and Gumbel noise is the largest."""
    logits = convert_to_tensor(logits)
    batch, classes = logits.shape
    noise = gdt.random.gumbel((batch, num_samples, classes), dtype="float32", key=key_of(seed))
    return gdt.astype(gdt.argmax(logits[:, None, :] + noise, axis=-1), dtype)


def dropout(
    inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None
) -> DistributedArray:
    """Return `inputs` with a part of their elements set to 0, and the others scaled up."""
    inputs = convert_to_tensor(inputs)
    if rate == 0.0:
        return inputs
    if rate == 1.0:
        return gdt.zeros_like(inputs)
    given = inputs.shape if noise_shape is None else noise_shape
    shape = [n if m is None else m for m, n in zip(given, inputs.shape, strict=True)]
    mask = gdt.random.bernoulli(tuple(shape), 1.0 - rate, key=key_of(seed))
    return gdt.where(mask, inputs / (1.0 - rate), 0)


def shuffle(x: Any, axis: int = 0, seed: Any = None) -> DistributedArray:
    """Return the slices along an axis in a random order."""
    return gdt.random.permutation(convert_to_tensor(x), axis=axis, key=key_of(seed))
