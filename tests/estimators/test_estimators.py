"""The estimators are scikit-learn's, and have TensorFlow's train, evaluate and predict."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import check_estimator

import gdt
from gdt.errors import ArgumentError
from gdt.estimators import LinearClassifier, LinearRegressor, MLPClassifier, MLPRegressor

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 3))
LABELS = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")


@pytest.mark.parametrize(
    "estimator",
    [
        LinearRegressor(),
        LinearRegressor("adam"),
        LinearClassifier(),
        MLPRegressor(),
        MLPClassifier(),
    ],
    ids=str,
)
def test_scikit_learn_accepts_it(estimator: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the checks themselves warn of
        results = check_estimator(estimator, on_skip=None, on_fail=None)
    failed = [f"{r['check_name']}: {r['exception']!r}" for r in results if r["status"] == "failed"]
    assert not failed, "\n".join(failed)
    assert sum(r["status"] == "passed" for r in results) > 45


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_meshes_give_the_results_of_one_device() -> None:
    whole = MLPClassifier(random_state=0, max_iter=30).fit(X, LABELS)
    mesh = gdt.create_mesh([("a", 2), ("b", 2)], blocks=4)
    for strategy in (mesh, gdt.MirroredStrategy(3)):
        split = MLPClassifier(random_state=0, max_iter=30, strategy=strategy).fit(X, LABELS)
        np.testing.assert_allclose(split.predict_proba(X), whole.predict_proba(X), rtol=1e-9)
        again = pickle.loads(pickle.dumps(split))
        np.testing.assert_allclose(again.predict_proba(X), whole.predict_proba(X), rtol=1e-9)
        again.partial_fit(X, LABELS)
        assert again.global_step_ == split.global_step_ + 1
    assert cross_val_score(MLPClassifier(max_iter=50), X, LABELS, cv=3).mean() > 0.8


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_rows_of_weight_0_count_for_nothing_in_any_batch() -> None:
    y, weights, results = X[:, 0], (np.arange(len(X)) % 3 > 0).astype(float), []
    for wrong in (0.0, 99.0):
        regressor = MLPRegressor(batch_size=16, max_iter=2, random_state=0)
        regressor.fit(X, np.where(weights > 0, y, wrong), weights)
        results.append(regressor.predict(X))
    np.testing.assert_array_equal(*results)


STRATEGIES = [
    None,
    gdt.create_mesh([("a", 2), ("b", 2)], blocks=4),
    gdt.MirroredStrategy(3),
    gdt.MirroredStrategy(64),
]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("rows", "columns", "targets"), [(60, 3, 0), (61, 5, 2), (7, 9, 1), (1, 3, 0), (60, 1, 3)]
)
@pytest.mark.parametrize("alpha", [0.0, 2.5])
def test_squares_are_least_as_those_of_scikit_learn(
    rows: int, columns: int, targets: int, alpha: float, strategy: Any
) -> None:
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, columns)) * 10.0 ** np.arange(columns) + 100
    x[:, -1] = x[:, 0] if columns > 2 else x[:, -1]  # of deficient rank
    y = (
        rng.normal(size=(rows, targets) if targets else rows)
        + x[:, :1].sum(axis=1 - bool(targets), keepdims=bool(targets))
        + 50
    )
    for weights in (None, rng.integers(0, 3, rows) + (rows < 2)):
        own = LinearRegressor(strategy=strategy, alpha=alpha).fit(x, y, weights)
        other = (Ridge(alpha, solver="svd") if alpha else LinearRegression()).fit(x, y, weights)
        expected = other.predict(x).reshape(y.shape)  # a Ridge returns (rows, 1) as (rows,)
        np.testing.assert_allclose(own.predict(x), expected, rtol=1e-7)
        weight = own.model_[0].weight.numpy()
        np.testing.assert_allclose(
            weight.T.reshape(other.coef_.shape), other.coef_, rtol=1e-5, atol=1e-8
        )
        again = pickle.loads(pickle.dumps(own))
        np.testing.assert_array_equal(again.predict(x), own.predict(x))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_steps_with_a_penalty_reach_the_exact_solution_and_end_where_the_loss_has_settled() -> None:
    x, y = X, X @ [1.0, -2.0, 0.5] + 50
    weights = np.arange(60) % 3
    exact = LinearRegressor(alpha=3.0).fit(x, y, weights)
    options: Any = {"alpha": 3.0, "max_iter": 5000, "tol": 1e-12}
    for optimizer in ("sgd", "adam"):
        steps = LinearRegressor(optimizer, learning_rate_init=0.1, **options).fit(x, y, weights)
        np.testing.assert_allclose(steps.predict(x), exact.predict(x), rtol=1e-4)
        assert 10 < steps.n_iter_ < 5000
    assert LinearRegressor().fit(X, y).score(X, y) == pytest.approx(1.0)
    assert LinearRegressor("sgd", learning_rate_init=0.1).train(lambda: (X, y)).global_step_ == 1
    for estimator in (LinearRegressor("adam", max_iter=3), MLPRegressor(max_iter=3)):
        with pytest.warns(ConvergenceWarning, match="max_iter=3 epochs are over.*tol=0.0001"):
            estimator.fit(X, y)
    weak, strong = (MLPClassifier(alpha=a, random_state=0).fit(X, LABELS) for a in (0.0, 50.0))
    size = lambda m: sum((w.numpy() ** 2).sum() for w in m.model_.parameters().values())
    assert size(strong) < 0.5 * size(weak)
    early = MLPClassifier(tol=1.0, n_iter_no_change=4, random_state=0).fit(X, LABELS)
    assert early.n_iter_ == 6


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_softmax_with_a_penalty_is_that_of_scikit_learn() -> None:
    y, weights = np.digitize(X[:, 0] + 0.5 * X[:, 1] ** 2, [0.0, 0.7]), np.arange(60) % 3
    options: Any = {"max_iter": 500, "tol": 1e-9, "n_iter_no_change": 100}
    for alpha in (0.5, 4.0):
        own = LinearClassifier(alpha=alpha, **options).fit(X, y, weights)
        other = LogisticRegression(C=1 / alpha, tol=1e-8).fit(X, y, weights)
        np.testing.assert_allclose(own.predict_proba(X), other.predict_proba(X), atol=1e-4)
        scores = [m.decision_function(X) for m in (own, other)]
        np.testing.assert_allclose(*[s - s[:, :1] for s in scores], atol=2e-3)
        assert own.predict(X).tolist() == other.predict(X).tolist()
    two = LinearClassifier(max_iter=20).fit(X, LABELS)
    p = two.predict_proba(X)
    np.testing.assert_allclose(two.decision_function(X), np.log(p[:, 1] / p[:, 0]))
    one = LinearClassifier(max_iter=2).fit(X, ["yes"] * 60)
    assert one.predict_proba(X).tolist() == [[1.0]] * 60 and one.predict(X[:1]).tolist() == ["yes"]


@pytest.mark.parametrize(
    ("rows", "options", "steps"),
    [
        (512, {}, 1), (513, {}, 3), (60, {"batch_size": 16}, 4), (60, {"batch_size": 60}, 1),
        (60, {"batch_size": 59}, 2), (600, {"batch_size": 600}, 1),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_perceptrons_have_the_layers_and_take_the_steps_that_are_asked_for(
    rows: int, options: dict[str, Any], steps: int
) -> None:
    """Small data sets are taken whole, larger ones in steps of 200 rows."""
    x = np.resize(X, (rows, 3))
    model = MLPRegressor(
        (4, 5), "tanh", "sgd", 2, learning_rate_init=0.0, random_state=1, **options
    )
    model.fit(x, x[:, :2])
    assert (model.n_iter_, model.global_step_) == (2, 2 * steps)
    weights = [w.numpy() for w in model.model_.parameters().values()]
    assert [w.shape for w in weights] == [(3, 4), (4,), (4, 5), (5,), (5, 2), (2,)]
    outputs = x
    for w, b in zip(weights[::2], weights[1::2], strict=True):
        outputs = outputs @ w + b
        outputs = np.tanh(outputs) if len(b) > 2 else outputs
    np.testing.assert_allclose(model.predict(x), outputs, rtol=1e-9, atol=1e-12)
    assert not weights[1].any() and all(w.any() for w in weights[::2])
    alike = MLPRegressor((4, 4, 4), max_iter=1, tol=9.0, n_iter_no_change=1).fit(X[:1], X[:1, 0])
    first, second = (alike.model_.layers[i].weight.numpy() for i in (1, 2))
    assert abs(first - second).max() > 0.1, "each layer begins with weights of its own"


def test_evaluations_are_sums_over_batches_of_different_sizes() -> None:
    sizes, targets = (7, 20, 3), X[:30, :2] * 2
    parts = np.split(np.arange(30), np.cumsum(sizes)[:-1])
    regressor = LinearRegressor().fit(X[:9], targets[:9] + 1)  # which is 1 too high
    batches = lambda: [(X[p], targets[p]) for p in parts]
    results = regressor.evaluate(batches)
    assert results == pytest.approx({
        "average_loss": 1.0, "loss": 60 / 3, "label/mean": targets.mean(),
        "prediction/mean": targets.mean() + 1, "global_step": 1,
    })  # fmt: skip
    assert regressor.evaluate(batches, 1)["loss"] == pytest.approx(14.0)
    trained = LinearRegressor("sgd").train(batches).train(batches, steps=2)
    assert trained.global_step_ == 5 and trained.train(batches, max_steps=6).global_step_ == 6
    assert trained.train(batches, steps=7).global_step_ == 9, "the batches end"
    assert trained.train(lambda: (X, X[:, :2]), steps=2).global_step_ == 11, "a pair is repeated"
    y = (X[:, 0] > 0.8).astype(int)
    classifier = LinearClassifier(max_iter=50, tol=0.0, n_iter_no_change=99)
    with pytest.warns(ConvergenceWarning):
        classifier.fit(X, y)
    found = classifier.evaluate(lambda: [(X[:11], y[:11]), (X[11:], y[11:])])
    p = classifier.predict_proba(X)
    losses = -np.log(p[np.arange(60), y])
    assert found == pytest.approx({
        "average_loss": losses.mean(), "loss": losses.sum() / 2, "auc": roc_auc_score(y, p[:, 1]),
        "accuracy": (p.argmax(1) == y).mean(), "accuracy_baseline": 1 - y.mean(), "global_step": 50,
    }, rel=1e-2)  # fmt: skip
    assert found["average_loss"] == pytest.approx(losses.mean(), rel=1e-6)
    later = LinearClassifier().partial_fit(X[:5], ["a"] * 5, classes=["b", "a", "c"])
    assert later.partial_fit(X, np.resize(["c", "b"], 60)).classes_.tolist() == ["a", "b", "c"]
    assert later.n_iter_ == later.global_step_ == 2


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("optimizer", "rate", "same"),
    [
        (None, None, lambda: gdt.optim.Adam(0.1)), ("adam", 0.3, lambda: gdt.optim.Adam(0.3)),
        ("sgd", None, gdt.optim.SGD), ("RMSprop", 0.2, lambda: gdt.optim.RMSprop(0.2)),
    ],
)  # fmt: skip
def test_names_of_optimizers_and_rates_are_those_of_optim(
    optimizer: Any, rate: Any, same: Any
) -> None:
    one = LinearClassifier(optimizer, max_iter=3, learning_rate_init=rate).fit(X, LABELS)
    other = LinearClassifier(same, max_iter=3).fit(X, LABELS)
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))


def named(names: str) -> Any:
    """Return an input function of columns of these names, and labels."""
    return lambda: ({name: np.ones((10, 1)) for name in names}, np.arange(10) % 2)


def ones(batches: int = 100) -> Any:
    return lambda: [({"feats": np.ones((10, 1), "f4")}, np.ones(10, "f4"))] * batches


def test_the_program_of_the_estimators_document() -> None:
    strategy = gdt.MirroredStrategy(2)
    regressor = LinearRegressor(optimizer=lambda: gdt.optim.SGD(0.1), strategy=strategy)
    assert regressor.train(input_fn=ones(), steps=10) is regressor
    results = regressor.evaluate(input_fn=ones(), steps=10)
    assert results["global_step"] == 10 and results["label/mean"] == 1.0
    assert results["prediction/mean"] == pytest.approx(1.0, abs=0.1)
    assert results["loss"] == pytest.approx(10 * results["average_loss"])
    regressor.train(ones(), steps=40).train(ones(), max_steps=3)
    assert regressor.evaluate(ones(), steps=1)["global_step"] == 50
    assert regressor.evaluate(ones(), steps=1)["average_loss"] < 1e-6
    rows = list(regressor.predict(input_fn=ones(2)))
    assert len(rows) == 20 and rows[0]["predictions"] == pytest.approx([1.0], abs=1e-3)
    weight, bias = (float(x.numpy().sum()) for x in regressor.model_.parameters().values())
    assert weight == pytest.approx(0.5, abs=1e-3) and bias == pytest.approx(0.5, abs=1e-3)


def test_classifiers_in_tensorflows_words() -> None:
    classifier = LinearClassifier()
    data = lambda: ({"a": X[:, :1], "b": X[:, 1:]}, LABELS)
    with pytest.raises(NotFittedError):
        classifier.evaluate(data)
    assert LinearClassifier().train(data).partial_fit(X, LABELS).n_iter_ == 1
    for _ in range(10):
        classifier.train(data).train(data, steps=9)
    results = classifier.evaluate(data)
    assert results["accuracy"] > 0.95 and results["auc"] > 0.98 and results["global_step"] == 100
    assert results["accuracy_baseline"] == pytest.approx((LABELS == "no").mean())
    rows = list(classifier.predict(lambda: data()[0]))
    assert len(list(classifier.predict(data))) == len(rows) == len(X)
    assert [row["classes"][0] for row in rows] == classifier.predict(X).tolist()
    backwards = list(classifier.predict(lambda: dict(reversed(data()[0].items()))))
    np.testing.assert_array_equal([r["logits"] for r in backwards], [r["logits"] for r in rows])
    np.testing.assert_allclose([r["probabilities"] for r in rows], classifier.predict_proba(X))


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: LinearRegressor().train(list), "input_fn returned no batch"),
        (
            lambda: LinearRegressor().train(lambda: 5),
            r"LinearRegressor\.train: input_fn returned an int",
        ),
        (
            lambda: LinearRegressor().train(ones()).evaluate(lambda: [1]),
            r"LinearRegressor\.evaluate: input_fn yields an int, not a pair",
        ),
        (lambda: LinearRegressor().train(lambda: (X[:0], X[:0, 0])), "0 sample"),
        (lambda: LinearRegressor(optimizer=5).train(ones()), "5 is no optimizer"),
        (lambda: LinearRegressor().train(ones(), steps=0), "train: steps is 0"),
        (lambda: LinearRegressor().train(ones(), steps=1, max_steps=2), "both steps and max_steps"),
        (lambda: LinearRegressor().train(ones()).evaluate(X), "input_fn is an ndarray, not a f"),
        (lambda: LinearRegressor().train(lambda: [X]), "not a pair"),
        (
            lambda: LinearRegressor().train(named("ab")).train(named("ac")),
            r"train: .* are a \(1\), c \(1\), and the model has learnt a \(1\), b \(1\)",
        ),
        (
            lambda: list(LinearRegressor().train(named("ab")).predict(named("ac"))),
            "predict: the ",
        ),
        (lambda: LinearRegressor().train(named("ab")).evaluate(named("abc")), "evaluate: the fea"),
        (lambda: LinearClassifier().train(named("ab"), hooks=[print]), "hooks is a list, and noth"),
        (lambda: LinearRegressor().train(None), "input_fn is None, not a function"),
        (lambda: LinearRegressor(alpha=-1.0).fit(X, X[:, 0]), "alpha is -1.0"),
        (lambda: LinearRegressor(alpha="a").fit(X, X[:, 0]), "alpha is 'a'"),
        (lambda: MLPRegressor(tol=np.nan).fit(X, X[:, 0]), "tol is nan"),
        (lambda: MLPRegressor(n_iter_no_change=0).fit(X, X[:, 0]), "n_iter_no_change is 0"),
        (
            lambda: MLPRegressor(optimizer=gdt.optim.SGD, learning_rate_init=0.1).fit(X, X[:, 0]),
            "learning_rate_init is 0.1, and optimizer is a function",
        ),
        (lambda: LinearRegressor(batch_size=-3).fit(X, X[:, 0]), "batch_size is -3, not positive"),
        (lambda: LinearClassifier(feature_columns=[1]), "(?s)LinearClassifier: .*Leave it out"),
        (lambda: LinearRegressor().fit(X, X[:, 0], np.zeros(60)), "(?i)sample weights"),
        (
            lambda: LinearClassifier(alpha=1.0).fit(X, LABELS).partial_fit(X, ["maybe"] * 60),
            "'maybe'",
        ),
    ],
)
def test_what_does_not_fit_is_named(call: Any, problem: str) -> None:
    with pytest.raises((ArgumentError, ValueError), match=problem):
        call()
