"""Regressors: estimators of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from gdt.estimators.base import Estimator, InputFn, Perceptron
from gdt.linalg import lstsq
from gdt.nn import losses
from gdt.ops.elementwise import sqrt
from gdt.ops.joining import concat


class _Regressor(RegressorMixin, Estimator):  # type: ignore[misc]
    """Estimators of numbers, by the mean squared error."""

    _takes_columns = True
    _loss = staticmethod(losses.mean_squared_error)

    def _targets(self, y: np.ndarray, reset: bool) -> np.ndarray:
        y = np.asarray(y, np.float64)
        if reset:
            self.target_ndim_ = y.ndim
            self.n_outputs_ = 1 if y.ndim == 1 else y.shape[1]
        return y.reshape(len(y), -1)

    def _outputs(self) -> int:
        return int(self.n_outputs_)

    def _penalty_of_row(self) -> float:
        return 1 / self._outputs()  # the loss is a mean over them, and has no factor of 1/2

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: Any = None, *, input_fn: InputFn | None = None) -> Any:
        """Return the predictions: an array for an array X, and for an `input_fn`, whose targets
        are left out, an iterator of {"predictions": [value]}, one for each row."""
        X = X if input_fn is None else input_fn
        if callable(X):
            return ({"predictions": row} for part in self._features(X) for row in self._raw(part))
        raw = self._raw(X)
        return raw[:, 0] if self.target_ndim_ == 1 else raw

    def _measured(self, y: np.ndarray, raw: np.ndarray) -> dict[str, float]:
        return {"label/mean": float(y.mean()), "prediction/mean": float(raw.mean())}


class LinearRegressor(_Regressor):
    """A linear regression on a mesh: least squares, or gradient descent.

    optimizer: None for the exact solution in `fit`, by `gdt.linalg.lstsq` over rows that stay
        split; or the name of an optimizer, or a function that makes it, such as
        `lambda: gdt.optim.SGD(0.1)`. `train` and `partial_fit` take steps, of Adam for None.
    alpha: the factor of the squares of all weights beside the sum of squared errors, as of
        scikit-learn's Ridge; of classifiers half of it, beside the sum of cross-entropies.
    strategy: a gdt.Strategy or a mesh; None for one device. random_state: of weights and order.

    Of `fit` by steps: max_iter: the most epochs. batch_size: rows of a step; None for all rows of
        small data sets. tol, n_iter_no_change: training ends where the loss has not fallen by `tol`
        for so many epochs. learning_rate_init: that of a named optimizer.

    Where columns depend on each other, the exact weights are the shortest, as in scikit-learn.

    >>> import numpy as np
    >>> from gdt.estimators import LinearRegressor
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> LinearRegressor().fit(x, 2 * x[:, 0] + 1).predict([[0.5]]).round(2).tolist()
    [2.0]
    >>> regressor = LinearRegressor(optimizer=lambda: gdt.optim.SGD(0.1))
    >>> batches = lambda: [({"feats": np.ones((10, 1))}, np.ones(10))] * 100
    >>> regressor.train(batches, steps=10).evaluate(batches, steps=10)["global_step"]
    10
    """

    def _fit(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> None:
        if self.optimizer is not None:
            super()._fit(X, y, weights)
            return
        x, y, w = self.trainer_.place((X.astype(np.float64), y, weights))
        w = w[:, None] / weights.sum()
        x_mean, y_mean = ((w * a).sum(axis=0, keepdims=True) for a in (x, y))
        root = sqrt(w * weights.sum())
        a, b = (x - x_mean) * root, (y - y_mean) * root
        if self.alpha:  # rows that pull every weight to 0
            rows = np.sqrt(self.alpha) * np.eye(X.shape[1])
            a, b = concat([a, rows]), concat([b, np.zeros((X.shape[1], y.shape[1]))])
        weight = lstsq(a, b, max(X.shape) * np.finfo(np.float64).eps).x
        bias = y_mean[0] - (x_mean @ weight)[0]
        self.model_.load({"layers.0.weight": weight.numpy(), "layers.0.bias": bias.numpy()})
        self.n_iter_ = self.global_step_ = 1


class MLPRegressor(_Regressor, Perceptron):
    """A regression by a multilayer perceptron on a mesh.

    hidden_layer_sizes: the units of the hidden layers. activation: its name. optimizer: its name,
    or a function that makes it. For the others see LinearRegressor.

    >>> import numpy as np
    >>> from gdt.estimators import MLPRegressor
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> MLPRegressor(random_state=0).fit(x, np.abs(x[:, 0])).score(x, np.abs(x[:, 0])) > 0.9
    True
    """
