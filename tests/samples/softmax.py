"""Samples of softmax and of cross-entropies."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.testing import Sample

rng = np.random.default_rng(0)
MATRIX = rng.standard_normal((5, 3))
CUBE = rng.standard_normal((2, 3, 5))
WEIGHTS = rng.uniform(0.1, 1.0, (5, 3))
LABELS = np.array([0, 2, 1, 1, 2])
LABELS_OF_CUBE = rng.integers(0, 5, (2, 3))
NAME = "sparse_softmax_cross_entropy_with_logits"


def softmax(x: np.ndarray, axis: Any = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def log_softmax(x: np.ndarray, axis: Any = -1) -> np.ndarray:
    below = x - x.max(axis=axis, keepdims=True)
    return below - np.log(np.exp(below).sum(axis=axis, keepdims=True))


def statistics(x: np.ndarray, axis: Any) -> tuple[np.ndarray, np.ndarray]:
    top = x.max(axis=axis, keepdims=True)
    return top, np.exp(x - top).sum(axis=axis, keepdims=True)


STATISTICS = statistics(MATRIX, -1)


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    return (labels[..., None] == np.arange(classes)).astype(float)


def sparse(
    labels: np.ndarray,
    logits: np.ndarray,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> np.ndarray:
    log, classes = log_softmax(logits.astype(float)), logits.shape[-1]
    target = (1 - label_smoothing) * one_hot(labels, classes) + label_smoothing / classes
    kept = labels != ignore_index if ignore_index is not None else True
    return np.where(kept, -(target * log).sum(-1), 0).astype(logits.dtype)


def sparse_gradient(
    g: np.ndarray, labels: np.ndarray, p: np.ndarray, label_smoothing: float = 0.0
) -> np.ndarray:
    classes = p.shape[-1]
    target = (1 - label_smoothing) * one_hot(labels, classes) + label_smoothing / classes
    return g[..., None] * (p - target)


def fused_gradient(
    g: np.ndarray,
    labels: np.ndarray,
    logits: np.ndarray,
    largest: np.ndarray,
    total: np.ndarray,
    label_smoothing: float = 0.0,
) -> np.ndarray:
    return sparse_gradient(g, labels, softmax(logits), label_smoothing)


def softmax_gradient(g: np.ndarray, y: np.ndarray, axis: Any) -> np.ndarray:
    return y * (g - (g * y).sum(axis=axis, keepdims=True))


def dense(labels: np.ndarray, logits: np.ndarray, axis: int = -1) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return -np.where(labels == 0, 0, labels * log_softmax(logits, axis)).sum(axis)


def logistic(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, logits) - logits * labels


def over_axes(function: Any) -> list[Sample]:
    return [
        Sample((MATRIX,), {}, function),
        Sample((MATRIX,), {"axis": 0}, function),
        Sample((CUBE,), {"axis": (0, 2)}, function),
        Sample((CUBE,), {"axis": None}, function),
        Sample((MATRIX[:, :1],), {}, function),
        Sample((MATRIX * 1000,), {}, function, grad=False),
        Sample((MATRIX.astype(np.float32),), {}, function),
        Sample((np.arange(5),), {}, lambda x: function(x.astype(float))),
        Sample((MATRIX.astype(np.float16),), {}, lambda x: function(x.astype("f4")).astype("f2")),
    ]


SPARSE = [
    Sample((LABELS, MATRIX), {}, sparse),
    Sample((LABELS.astype(np.int8), MATRIX.astype(np.float32)), {}, sparse),
    Sample((LABELS_OF_CUBE.astype(np.uint16), CUBE), {}, sparse),
    Sample((LABELS.astype(np.int32), MATRIX), {"label_smoothing": 0.1}, sparse),
    Sample((LABELS, MATRIX), {"label_smoothing": 0.2, "ignore_index": 2}, sparse),
    Sample((np.array([-1, 2, 1, -1, 2]), MATRIX), {"ignore_index": -1}, sparse),
    Sample((np.zeros(5, np.int64), MATRIX[:, :1]), {}, sparse),
    Sample((np.array(2), MATRIX[0]), {}, sparse),
    Sample((np.zeros(0, np.int64), MATRIX[:0]), {}, sparse),
]

SAMPLES: dict[str, list[Sample]] = {
    "softmax": over_axes(softmax),
    "log_softmax": over_axes(log_softmax),
    NAME: SPARSE,
    "softmax_cross_entropy_with_logits": [
        Sample((WEIGHTS, MATRIX), {}, dense),
        Sample((WEIGHTS, MATRIX), {"axis": 0}, dense),
        Sample((one_hot(LABELS, 3), MATRIX), {}, dense),
        Sample(
            (np.array([[0.0, 0.5, 0.5]]), np.array([[-np.inf, 1.0, 2.0]])), {}, dense, grad=False
        ),
    ],
    "sigmoid_cross_entropy_with_logits": [
        Sample((WEIGHTS, MATRIX), {}, logistic),
        Sample((WEIGHTS, MATRIX * 1000), {}, logistic, grad=False),
    ],
    "softmax_of_whole": [Sample((CUBE,), {"axis": (1,)}, softmax)],
    "log_softmax_of_whole": [Sample((CUBE,), {"axis": (1,)}, log_softmax)],
    "softmax_statistics": [Sample((CUBE,), {"axis": (1,)}, statistics, grad=False)],
    # Gradients of what takes statistics treat them as those of x, as no finite difference does.
    "softmax_from": [
        Sample((MATRIX, *statistics(MATRIX, -1)), {}, lambda x, m, s: softmax(x), grad=False)
    ],
    "log_softmax_from": [
        Sample((MATRIX, *statistics(MATRIX, -1)), {}, lambda x, m, s: log_softmax(x), grad=False)
    ],
    "softmax_gradient_of_whole": [Sample((WEIGHTS, MATRIX), {"axis": (-1,)}, softmax_gradient)],
    "cross_entropy_of_whole": [
        Sample((LABELS, MATRIX), {}, lambda y, x: (sparse(y, x), softmax(x))),
    ],
    "fused_cross_entropy": [
        Sample((LABELS, MATRIX), {}, lambda y, x: (sparse(y, x), *statistics(x, -1)), grad=False)
    ],
    "cross_entropy_of_split": [
        Sample((LABELS, MATRIX), {}, lambda y, x: (sparse(y, x), *statistics(x, -1)), grad=False)
    ],
    "cross_entropy_gradient": [
        Sample((WEIGHTS[:, 0], LABELS, MATRIX), {}, sparse_gradient),
        Sample((WEIGHTS[:, 0], LABELS, MATRIX), {"label_smoothing": 0.1}, sparse_gradient),
    ],
    "fused_cross_entropy_gradient": [
        Sample((WEIGHTS[:, 0], LABELS, MATRIX, *STATISTICS), {}, fused_gradient, grad=False),
        Sample(
            (WEIGHTS[:, 0], LABELS, MATRIX, *STATISTICS),
            {"label_smoothing": 0.1},
            fused_gradient,
            grad=False,
        ),
    ],
    "weighted_log": [Sample((WEIGHTS, MATRIX), {}, lambda w, x: w * x)],
    "logistic_loss": [Sample((WEIGHTS, MATRIX), {}, logistic)],
}
