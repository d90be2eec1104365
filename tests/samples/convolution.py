"""Samples of convolution and pooling, with loops over results and taps as what is expected."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gdt.testing import Sample

rng = np.random.default_rng(0)
normal = rng.standard_normal


def geometry(
    sizes: Sequence[int], taps: Sequence[int], strides: Any, padding: Any, dilation: Any = 1
) -> tuple[list[tuple[int, int]], list[int], tuple[int, ...], tuple[int, ...]]:
    """Zeros before and after every axis, the number of results, strides and dilations."""
    one = lambda v: (v,) * len(taps) if isinstance(v, int) else tuple(v)
    steps, apart = one(strides), one(dilation)
    pads = []
    for i, (n, k, s, d) in enumerate(zip(sizes, taps, steps, apart, strict=True)):
        if padding == "same":
            total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
            pads.append((total // 2, total - total // 2))
        elif padding == "valid":
            pads.append((0, 0))
        else:
            pad = one(padding)[i]
            pads.append((pad, pad) if isinstance(pad, int) else tuple(pad))
    numbers = [
        (n + sum(p) - (k - 1) * d - 1) // s + 1
        for n, p, k, s, d in zip(sizes, pads, taps, steps, apart, strict=True)
    ]
    return pads, numbers, steps, apart


def convolution(
    x: np.ndarray,
    kernel: np.ndarray,
    strides: Any = 1,
    padding: Any = "valid",
    dilation: Any = 1,
    groups: int = 1,
) -> np.ndarray:
    taps, (inputs, results) = kernel.shape[:-2], kernel.shape[-2:]
    lead = x.shape[: -len(taps) - 1]
    sizes = x.shape[len(lead) : -1]
    pads, numbers, steps, apart = geometry(sizes, taps, strides, padding, dilation)
    padded = np.pad(x, [*[(0, 0)] * len(lead), *pads, (0, 0)])
    out = np.zeros((*lead, *numbers, results), x.dtype)
    every = [np.ndindex(*numbers), np.ndindex(*taps), range(groups)]
    for at, tap, group in itertools.product(*every):
        place = [a * s + t * d for a, s, t, d in zip(at, steps, tap, apart, strict=True)]
        own = slice(group * results // groups, (group + 1) * results // groups)
        values = padded[(..., *place, slice(group * inputs, (group + 1) * inputs))]
        out[(..., *at, own)] += values @ kernel[tap][:, own]
    return out


def transposed(
    x: np.ndarray, kernel: np.ndarray, strides: Any = 1, padding: Any = "valid", **static: Any
) -> np.ndarray:
    """The adjoint of `convolution`: its products with the images of a basis."""
    extra = static.pop("output_padding", 0)
    rank = kernel.ndim - 2
    steps = geometry([99] * rank, kernel.shape[:rank], strides, padding)[2]
    parts = zip(x.shape[-rank - 1 : -1], kernel.shape, steps, strict=False)
    if padding == "same":
        sizes = [m * s for m, _, s in parts]
    elif padding == "valid":
        sizes = [m * s + max(k - s, 0) for m, k, s in parts]
    else:
        sizes = [(m - 1) * s + k - 2 * padding + extra for m, k, s in parts]
    images = (*x.shape[: -rank - 1], *sizes, kernel.shape[-2] * static.get("groups", 1))
    out = np.zeros(images)
    for at in np.ndindex(*images):
        one = np.zeros(images)
        one[at] = 1
        out[at] = (convolution(one, kernel, strides, padding, **static) * x).sum()
    return out


def pool(reduce: Any, *, count_padding: bool = False) -> Any:
    """The function that reduces every window of an image."""

    def pooled(x: np.ndarray, size: Any, strides: Any = None, padding: Any = "valid") -> Any:
        rank = x.ndim - 2 if isinstance(size, int) else len(size)
        taps = (size,) * rank if isinstance(size, int) else size
        steps = taps if strides is None else strides
        lead = x.shape[: -rank - 1]
        pads, numbers, steps, _ = geometry(x.shape[len(lead) : -1], taps, steps, padding)
        out = np.zeros((*lead, *numbers, x.shape[-1]), x.dtype)
        for at in np.ndindex(*numbers):
            starts = [a * s - p[0] for a, s, p in zip(at, steps, pads, strict=True)]
            window = [slice(max(u, 0), max(u + k, 0)) for u, k in zip(starts, taps, strict=True)]
            values = x[(..., *window, slice(None))]
            axes = tuple(range(len(lead), x.ndim - 1))
            share = math.prod(values.shape[len(lead) : -1]) / math.prod(taps)
            out[(..., *at, slice(None))] = reduce(values, axes) * (share if count_padding else 1)
        return out

    return pooled


def distinct(*shape: int) -> np.ndarray:
    return rng.permutation(math.prod(shape)).reshape(shape).astype(float)


# Few and small: images of two spatial axes are in tests/nn/test_convolution.py, in chosen layouts.
SAMPLES: dict[str, list[Sample]] = {
    "convolution": [
        Sample(
            (normal((2, 9, 4)), normal((3, 2, 4))),
            {"strides": 2, "padding": [(1, 2)], "groups": 2, "dilation": 2},
            convolution,
        ),
        Sample(
            (normal((5, 4, 1)), normal((2, 2, 1, 3))), {"padding": [(3, 0), (0, 1)]}, convolution
        ),
    ],
    "transposed_convolution": [
        Sample(
            (normal((2, 5, 2)), normal((3, 1, 2))),
            {"strides": 2, "padding": 1, "output_padding": 1, "groups": 2},
            transposed,
        ),
    ],
    "max_pool": [
        Sample((distinct(1, 7, 3),), {"size": 3, "strides": 1, "padding": "same"}, pool(np.max)),
    ],
    "average_pool": [
        Sample((normal((2, 7, 2)),), {"size": (3,), "strides": 2, "padding": 1}, pool(np.mean)),
    ],
}

_OF_TILES = [
    *("convolve_tiles", "convolution_input_gradient", "convolution_kernel_gradient"),
    *("max_pool_tiles", "max_pool_gradient", "take_maxima"),
    *("sum_pool_tiles", "spread_over_windows"),
]
ELSEWHERE = dict.fromkeys(_OF_TILES, "the samples of the public functions that they are parts of")
