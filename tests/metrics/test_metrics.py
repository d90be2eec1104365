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


def test_the_result_of_a_metric_of_ones_own_is_a_number_of_python() -> None:
    class SquaredError(Metric):
        def statistics(self, targets: Any, predictions: Any, weights: Any = None) -> Any:
            return gdt.sum((targets - predictions) ** 2)

        def value(self, total: np.ndarray) -> Any:
            return total[()] / 2

    metric = SquaredError()
    metric.update(gdt.ones(3), gdt.zeros(3))
    assert type(metric.result()) is float and metric.result() == 1.5


@pytest.mark.parametrize("k", [1, 2, 5])
def test_accuracy_of_the_best_k(k: int, rng: np.random.Generator) -> None:
    y, z = labelled(rng)
    expected = score.top_k_accuracy_score(y, z, k=k, labels=range(CLASSES)) if k < CLASSES else 1.0
    layout = Layout(["a", "b"], create_mesh([("a", 2), ("b", 2)]))
    value = gdt.metrics.top_k_accuracy(y, gdt.asarray(z, layout=layout), k)
    assert float(value) == pytest.approx(expected)


def auc_of_keras(y: np.ndarray, p: np.ndarray, w: np.ndarray, count: int) -> float:
    """The trapezoids between thresholds, of which the first and the last lie outside of [0, 1]."""
    thresholds = [-1e-7, *[i / (count - 1) for i in range(1, count - 1)], 1 + 1e-7]
    points = [((w * y)[p > t].sum(), (w * (1 - y))[p > t].sum()) for t in thresholds]
    hits, alarms = np.array(points).T / np.array([[(w * y).sum()], [(w * (1 - y)).sum()]])
    return float((-np.diff(alarms) * (hits[1:] + hits[:-1]) / 2).sum())


def test_parameters_of_metrics_are_those_of_their_formulas(rng: np.random.Generator) -> None:
    y, w = rng.integers(0, 2, ROWS).astype(np.float32), rng.integers(0, 4, ROWS) / 2
    p = rng.random(ROWS).astype(np.float32)
    p[:2], z = [0.0, 1.0], (4 * p - 2).astype(np.float32)
    labels, logits = labelled(rng)
    rows = np.abs(logits[:, :3] - 1)
    ratio = lambda a, b: (w * a).sum() / (w * b).sum()
    each = MeanOf(lambda t, q: abs(gdt.asarray(q) - gdt.asarray(t)))
    cases: list[tuple[Metric, Any, Any, Any, float]] = [
        *[(AUC(n), y, p, w, auc_of_keras(y, p, w, n)) for n in (2, 3, 5, 11)],
        *[
            (AUC(11, from_logits=True), y, z, w, auc_of_keras(y, 1 / (1 + np.exp(-z)), w, 11)),
            (AUC(11).of_logits(), y, z, w, auc_of_keras(y, 1 / (1 + np.exp(-z)), w, 11)),
        ],
        *[(Precision(t), y, z, w, ratio(y * (z > t), z > t)) for t in (-1.0, 0.0, 0.7)],
        *[(Recall(t), y, z, w, ratio(y * (z > t), y)) for t in (-1.0, 0.0, 0.7)],
        (Precision().of_logits(), y, z, w, ratio(y * (z > 0), z > 0)),
        (Recall(0.7).of_logits(), y, z, w, ratio(y * (z > 0.7), y)),
        (Precision(9.0), y, z, w, 0.0),
        (Recall(), 0 * y, z, w, 0.0),
        (each, np.ones((ROWS, 3)), logits[:, :3], w, ratio(rows.mean(1), np.ones(ROWS))),
        (each, np.ones((ROWS, 3)), logits[:, :3], None, rows.mean()),
        (
            each, np.ones((ROWS, 3)), logits[:, :3], np.stack([w, 2 * w, 0 * w], 1),
            ratio(rows[:, 0] + 2 * rows[:, 1], np.full(ROWS, 3.0)),
        ),
        (each, y, y, 0 * w, np.nan),
    ]  # fmt: skip
    for metric, targets, predictions, weights, expected in cases:
        for name in ("statistics that are added", "halves"):
            if name == "halves":
                for half in (slice(0, 40), slice(40, None)):
                    some = [x if x is None else x[half] for x in (targets, predictions, weights)]
                    metric.update(*some)
            else:
                metric.add(metric.statistics(targets, predictions, weights))
            assert metric.result() == pytest.approx(expected, rel=1e-5, nan_ok=True), (metric, name)
            metric.reset()
    for metric in (AUC(), Precision(), Recall(), MeanOf(gdt.metrics.binary_accuracy)):
        before = dict(vars(metric))
        assert metric.of_logits() is not metric and vars(metric) == before, "it is left as it was"
    best = np.argsort(-logits, -1)
    with pytest.raises(ArgumentError, match="accuracy: reduction is 'sum'"):
        gdt.metrics.accuracy(labels, logits, "sum")
    one_hot = np.eye(CLASSES)[labels]
    for function, arguments, hits in (
        (gdt.metrics.accuracy, (labels, logits), best[:, 0] == labels),
        (gdt.metrics.top_k_accuracy, (labels, logits, 3), (labels == best[:, :3].T).any(0)),
        (gdt.metrics.categorical_accuracy, (one_hot, logits), best[:, 0] == labels),
        (gdt.metrics.binary_accuracy, (one_hot, logits, -0.3), (logits > -0.3) == (one_hot > 0.5)),
        (gdt.metrics.binary_accuracy, (one_hot, logits), (logits > 0.5) == (one_hot > 0.5)),
    ):
        assert float(function(*arguments)) == pytest.approx(hits.mean())
        np.testing.assert_array_equal(function(*arguments, reduction="none").numpy(), hits)
    reduced = gdt.metrics.top_k_accuracy(labels, logits)  # k is 5, which all labels are within
    assert float(reduced) == 1.0 and reduced.dtype == np.float32


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
        (
            lambda: gdt.metrics.binary_accuracy(np.ones((2, 3)), np.ones((3, 2))),
            r"targets have shape \[2, 3\], predictions \[3, 2\]",
        ),
        (lambda: Recall().update([1.0], [1.0], [1.0, 2.0]), "2 weights, 1 predictions"),
        (lambda: ConfusionMatrix(3).update([1], [[1.0, 2.0]]), "an axis of 3 classes"),
    ],
)
def test_what_does_not_fit_is_named(call: Any, problem: str) -> None:
    with pytest.raises((ArgumentError, ShapeError), match=problem):
        call()
