"""The hand-written steps compute what they claim."""

from itertools import pairwise

import numpy as np
import pytest

from bench.baselines import ADAM_BLOCK, Adam, ImdbStep, MnistStep
from bench.workloads import ADAM_EPSILON, BETA1, BETA2, EPSILON

BATCH = 16


def cross_entropies(logits, labels):
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]


def mnist_loss(weights, x, labels):
    for w, b in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = np.maximum(x @ w + b, 0)
    return cross_entropies(x @ weights[-2] + weights[-1], labels).mean()


def imdb_loss(weights, x, labels):
    w0, b0, w1, b1 = weights
    h = np.maximum(x @ w0 + b0, 0)
    normal = (h - h.mean(axis=0)) / np.sqrt(h.var(axis=0) + EPSILON)
    return cross_entropies(normal @ w1 + b1, labels).sum()


CASES = [(MnistStep, mnist_loss, (12, 9, 7, 5)), (ImdbStep, imdb_loss, (12, 9, 2))]


def problem(sizes):
    rng = np.random.default_rng(0)
    shapes = [s for pair in pairwise(sizes) for s in (pair, pair[1:])]
    weights = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    x = rng.standard_normal((BATCH, sizes[0])).astype(np.float32)
    return weights, x, rng.integers(0, sizes[-1], BATCH)


@pytest.mark.parametrize(("step", "loss", "sizes"), CASES)
def test_gradients_equal_finite_differences(step, loss, sizes):
    weights, x, labels = problem(sizes)
    hand_written = step(weights, BATCH, learning_rate=0.1)
    assert hand_written.backward(x, labels) == pytest.approx(loss(weights, x, labels), rel=1e-5)

    rng = np.random.default_rng(1)
    exact = [w.astype(np.float64) for w in weights]
    for w, gradient in zip(exact, hand_written.gradients.views, strict=True):
        direction, original, width = rng.standard_normal(w.shape), w.copy(), 1e-5
        w[...] = original + width * direction
        above = loss(exact, x, labels)
        w[...] = original - width * direction
        below = loss(exact, x, labels)
        w[...] = original
        expected = (above - below) / (2 * width)
        assert (gradient * direction).sum() == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("step", "loss", "sizes"), CASES)
def test_training_lowers_the_loss_and_leaves_the_given_weights_alone(step, loss, sizes):
    weights, x, labels = problem(sizes)
    originals = [w.copy() for w in weights]
    hand_written = step(weights, BATCH, learning_rate=0.01)
    losses = [hand_written(x, labels) for _ in range(50)]
    assert losses[-1] < losses[0] / 2
    assert all(np.array_equal(w, o) for w, o in zip(weights, originals, strict=True))


def test_sgd_subtracts_the_scaled_gradient():
    weights, x, labels = problem((12, 9, 2))
    step = ImdbStep(weights, BATCH, learning_rate=0.1)
    step.backward(x, labels)
    expected = [w - 0.1 * g for w, g in zip(weights, step.gradients.views, strict=True)]
    step(x, labels)
    for w, e in zip(step.parameters.views, expected, strict=True):
        np.testing.assert_allclose(w, e, rtol=1e-6, atol=1e-6)


def test_adam_equals_its_formula_across_blocks():
    rng = np.random.default_rng(0)
    size = ADAM_BLOCK + 100
    p = rng.standard_normal(size).astype(np.float32)
    expected, m, v = p.astype(np.float64), np.zeros(size), np.zeros(size)
    adam = Adam(size, learning_rate=0.01)
    for t in range(1, 21):
        g = rng.standard_normal(size).astype(np.float32)
        adam(p, g)
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g.astype(np.float64) ** 2
        corrected = m / (1 - BETA1**t), v / (1 - BETA2**t)
        expected -= 0.01 * corrected[0] / (np.sqrt(corrected[1]) + ADAM_EPSILON)
    np.testing.assert_allclose(p, expected, rtol=1e-5, atol=1e-6)
