"""Samples of attention, with the whole matrix of scores as what is expected."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gdt.ops.blocks.philox import CounterRun
from gdt.random.bits import bernoulli
from gdt.testing import Sample

rng = np.random.default_rng(0)
normal = rng.standard_normal


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: Any = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    key: int = 0,
) -> np.ndarray:
    scores = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    seen = np.ones(scores.shape[-2:], bool)
    if causal:
        seen = np.arange(scores.shape[-1]) <= np.arange(scores.shape[-2])[:, None]
    seen = seen if mask is None else seen & mask
    scores = np.where(seen, scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(largest == -np.inf, 0, largest))
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    if dropout:
        shape = (*np.broadcast_shapes(weights.shape[:-2], v.shape[:-2]), *weights.shape[-2:])
        kept = bernoulli(np, CounterRun(0, math.prod(shape)), key, p=1 - dropout)
        weights = weights * kept.reshape(shape) / (1 - dropout)
    return weights @ v  # type: ignore[no-any-return]


# Gradients are in tests/nn/test_attention.py: they have no gradients of their own.
SAMPLES: dict[str, list[Sample]] = {
    "attention": [
        Sample((*normal((2, 2, 7, 4)), normal((2, 7, 3))), {"causal": True}, attention, grad=False),
        Sample(
            (normal((5, 4)), normal((9, 4)), normal((9, 2)), rng.random((5, 9)) < 0.5),
            {"scale": 0.3, "dropout": 0.4, "key": 3},
            attention,
            grad=False,
        ),
    ],
}
ELSEWHERE = dict.fromkeys(
    ["attention_of_tiles", "attention_gradient", "merge_attention"], "tests/nn/test_attention.py"
)
