"""Metrics over many batches: scikit-learn's values in every layout; only results send anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.metrics

import gdt
from gdt import Layout, create_mesh
from gdt.errors import ArgumentError, ShapeError
from gdt.metrics import AUC, ConfusionMatrix, MeanOf, Metric, Perplexity, Precision, Recall
from gdt.nn import losses

ROWS, CLASSES = 101, 5


def expected_auc(y: np.ndarray, p: np.ndarray, w: np.ndarray) -> float:
    return float(sklearn.metrics.roc_auc_score(y, p, sample_weight=w))


def expected_cross_entropy(y: np.ndarray, z: np.ndarray, w: np.ndarray) -> float:
    logs = z - np.log(np.exp(z).sum(-1, keepdims=True))
    return float(np.average(-logs[np.arange(len(y)), y], weights=w))


def binary(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return targets, and predictions on the thresholds of `AUC`, where it is exact."""
    y = rng.integers(0, 2, ROWS).astype(np.float32)
    p = (rng.integers(0, 199, ROWS) + 0.5) / 199
    return y, p.astype(np.float32)


def labelled(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.integers(0, CLASSES, ROWS), rng.standard_normal((ROWS, CLASSES)).astype(np.float32)


score = sklearn.metrics
CASES: dict[str, tuple[Any, Any, Any]] = {
    "auc": (AUC, binary, expected_auc),
    "precision": (
        Precision, binary,
        lambda y, p, w: score.precision_score(y, p > 0.5, sample_weight=w),
    ),
    "recall": (
        Recall, binary, lambda y, p, w: score.recall_score(y, p > 0.5, sample_weight=w)
    ),
    "matrix": (
        lambda: ConfusionMatrix(CLASSES), labelled,
        lambda y, z, w: score.confusion_matrix(y, z.argmax(-1), sample_weight=w),
    ),
    "mean": (
        lambda: MeanOf(losses.sparse_softmax_cross_entropy), labelled, expected_cross_entropy
    ),
    "mean of accuracy": (
        lambda: MeanOf(gdt.metrics.accuracy), labelled,
        lambda y, z, w: np.average(z.argmax(-1) == y, weights=w),
    ),
    "perplexity": (
        lambda: Perplexity(gdt.sparse_softmax_cross_entropy_with_logits), labelled,
        lambda y, z, w: np.exp(expected_cross_entropy(y, z, w)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_batches_add_up_and_send_nothing_before_the_result(
    name: str, blocks: int, rng: np.random.Generator
) -> None:
    make, data, expected = CASES[name]
    mesh = create_mesh([("a", 2), ("b", 2)], blocks=blocks)
    metric: Metric = make()
    y, p = data(rng)
    weights = rng.integers(1, 4, ROWS).astype(np.float32)
    with gdt.count_collectives() as counted:
        for part in (slice(0, 64), slice(64, ROWS)):
            arrays = [
                gdt.asarray(x[part], layout=Layout([("a", "b"), None][: x.ndim], mesh))
                for x in (y, p, weights)
            ]
            metric.update(*arrays)
        assert not counted.collectives
        result = metric.result()
    np.testing.assert_allclose(result, expected(y, p, weights), rtol=1e-5)
    metric.reset()
    assert np.isnan(metric.result())
    metric.update(y, p)
    np.testing.assert_allclose(metric.result(), expected(y, p, np.ones(ROWS)), rtol=1e-5)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_accuracy_of_the_best_k(k: int, rng: np.random.Generator) -> None:
    y, z = labelled(rng)
    expected = score.top_k_accuracy_score(y, z, k=k, labels=range(CLASSES)) if k < CLASSES else 1.0
    layout = Layout(["a", "b"], create_mesh([("a", 2), ("b", 2)]))
    value = gdt.metrics.top_k_accuracy(y, gdt.asarray(z, layout=layout), k)
    assert float(value) == pytest.approx(expected)


def test_logits_that_are_no_numbers_are_no_hits() -> None:
    logits = [[np.nan, 1.0, 2.0], [2.0, 1.0, np.nan], [np.nan] * 3]
    hits = gdt.metrics.top_k_accuracy([2, 1, 1], logits, 2, reduction="none")
    assert hits.tolist() == [1.0, 0.0, 0.0]


def test_a_prediction_at_the_threshold_is_not_above_it() -> None:
    assert float(gdt.metrics.binary_accuracy([0.0, 1.0], [0.5, 0.75])) == 1.0


def test_a_mean_takes_weights_below_1() -> None:
    mean = gdt.metrics.Mean()
    mean.update(2.0, weight=0.25)
    assert mean.result() == 2.0


def test_an_area_without_negatives_is_no_number() -> None:
    auc = AUC()
    auc.update([1.0, 1.0], [0.2, 0.4])
    assert np.isnan(auc.result())


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: AUC(1), "AUC: num_thresholds is 1"),
        (lambda: ConfusionMatrix(0), "0 classes"),
        (lambda: gdt.metrics.top_k_accuracy([0], [[1.0]], 0), "k is 0"),
        (lambda: AUC().update([1.0], [[1.0, 2.0]]), r"targets have shape \[1\]"),
        (lambda: Recall().update([1.0], [1.0], [1.0, 2.0]), "2 weights, 1 predictions"),
        (lambda: ConfusionMatrix(3).update([1], [[1.0, 2.0]]), "an axis of 3 classes"),
    ],
)
def test_what_does_not_fit_is_named(call: Any, problem: str) -> None:
    with pytest.raises((ArgumentError, ShapeError), match=problem):
        call()
