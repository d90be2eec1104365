"""Classifiers: estimators of classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from gdt.errors import ArgumentError, error
from gdt.estimators.base import Estimator, InputFn, Perceptron
from gdt.metrics import AUC
from gdt.nn import losses


class _Classifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """Estimators of classes, by the cross-entropy of a softmax."""

    _loss = staticmethod(losses.sparse_softmax_cross_entropy)

    def _targets(self, y: np.ndarray, reset: bool) -> np.ndarray:
        if reset:
            check_classification_targets(y)
            self.classes_ = np.unique(y)
        labels = np.searchsorted(self.classes_, y).clip(0, len(self.classes_) - 1)
        unknown = np.asarray(y)[self.classes_[labels] != y]
        if len(unknown):
            problem = f"{unknown[0]!r} is a class that was not there at first"
            raise error(ArgumentError, type(self).__name__, problem)
        return labels

    def _outputs(self) -> int:
        return max(len(self.classes_), 2)  # of one class, the second is never likelier

    def partial_fit(  # type: ignore[override]  # scikit-learn's order
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> Self:
        """Take one step with these rows; classes: all there are, needed in the first call unless y
        has them all."""
        if classes is not None and not hasattr(self, "model_"):
            X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], reset=True)
            self.classes_ = np.unique(classes)
            self._check_numbers()
            self._begin(X.shape[1], float(len(X)))
        return super().partial_fit(X, y, sample_weight)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the logits (rows, classes); of two classes the second's minus the first's."""
        raw = self._raw(X)
        return raw[:, 1] - raw[:, 0] if len(self.classes_) == 2 else raw

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities (rows, classes)."""
        probabilities = _softmax(self._raw(X))
        return probabilities if len(self.classes_) > 1 else np.ones_like(probabilities[:, :1])

    def predict(self, X: Any = None, *, input_fn: InputFn | None = None) -> Any:
        """Return the classes: an array for an array X, and for an `input_fn`, whose targets
        are left out, an iterator of dicts of logits, probabilities, class_ids and classes, one for
        each row."""
        X = X if input_fn is None else input_fn
        if callable(X):
            return (row for part in self._features(X) for row in self._rows(self._raw(part)))
        numbers = self.predict_proba(X).argmax(-1)
        return self.classes_[numbers]

    def _rows(self, raw: np.ndarray) -> Iterator[dict[str, Any]]:
        for logits, probabilities in zip(raw, _softmax(raw), strict=True):
            number = int(logits.argmax())
            yield {
                "logits": logits,
                "probabilities": probabilities,
                "class_ids": np.array([number]),
                "classes": self.classes_[[number]],
            }

    def _measured(self, y: np.ndarray, raw: np.ndarray) -> dict[str, float]:
        results = {"accuracy": float((raw.argmax(-1) == y).mean())}
        if len(self.classes_) == 2:
            auc = AUC()
            auc.update(y.astype(np.float32), _softmax(raw)[:, 1].astype(np.float32))
            mean = float(y.mean())
            results |= {"accuracy_baseline": max(mean, 1 - mean), "auc": auc.result()}
        return results


def _softmax(raw: np.ndarray) -> np.ndarray:
    exponentials = np.exp(raw - raw.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)  # type: ignore[no-any-return]


class LinearClassifier(_Classifier):
    """A softmax regression by gradient descent on a mesh.

    optimizer: its name, or a function that makes it; None for Adam. For the others see
    LinearRegressor.

    >>> import numpy as np
    >>> from gdt.estimators import LinearClassifier
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> classifier = LinearClassifier(alpha=0.1).fit(x, np.where(x[:, 0] > 0, "yes", "no"))
    >>> classifier.predict([[0.9]]).tolist()
    ['yes']
    """


class MLPClassifier(_Classifier, Perceptron):
    """A classifier by a multilayer perceptron on a mesh; arguments as in MLPRegressor.

    >>> import numpy as np
    >>> from gdt.estimators import MLPClassifier
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> classifier = MLPClassifier(max_iter=500, random_state=0).fit(x, abs(x[:, 0]) > 0.5)
    >>> classifier.score(x, abs(x[:, 0]) > 0.5) > 0.9
    True
    """
