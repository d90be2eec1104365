"""Regressors: estimators of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from gdt.arguments import checked
from gdt.estimators.base import Estimator, InputFn, features_of
from gdt.nn import losses
from gdt.sharding.mesh import Mesh
from gdt.training.strategies import Strategy


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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: Any = None, *, input_fn: InputFn | None = None) -> Any:
        """Return the predictions: an array for an array X, and for an `input_fn`, whose targets
        are left out, an iterator of {"predictions": [value]}, one for each row."""
        X = X if input_fn is None else input_fn
        if callable(X):
            return ({"predictions": row} for part in features_of(X) for row in self._raw(part))
        raw = self._raw(X)
        return raw[:, 0] if self.target_ndim_ == 1 else raw

    def _measured(self, y: np.ndarray, raw: np.ndarray) -> dict[str, float]:
        return {"label/mean": float(y.mean()), "prediction/mean": float(raw.mean())}


class LinearRegressor(_Regressor):
    """A linear regression by gradient descent on a mesh.

    optimizer: its name, or a function that makes it, such as `lambda: gdt.optim.SGD(0.1)`.
    max_iter: epochs of `fit`. batch_size: rows of a step; None for all rows of small data sets.
    strategy: a gdt.Strategy or a mesh; None for one device. random_state: of weights and order.

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

    _adam_rate = 0.1  # weights begin at 0

    @checked
    def __init__(
        self,
        optimizer: Any = "adam",
        max_iter: int = 200,
        batch_size: int | None = None,
        strategy: Strategy | Mesh | None = None,
        random_state: Any = None,
    ) -> None:
        self.optimizer, self.max_iter, self.batch_size = optimizer, max_iter, batch_size
        self.strategy, self.random_state = strategy, random_state


class MLPRegressor(_Regressor):
    """A regression by a multilayer perceptron on a mesh; arguments as in LinearRegressor.

    hidden_layer_sizes: the units of the hidden layers. activation: its name.

    >>> import numpy as np
    >>> from gdt.estimators import MLPRegressor
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> MLPRegressor(random_state=0).fit(x, np.abs(x[:, 0])).score(x, np.abs(x[:, 0])) > 0.9
    True
    """

    @checked
    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] = (32,),
        activation: str = "relu",
        optimizer: Any = "adam",
        max_iter: int = 200,
        batch_size: int | None = None,
        strategy: Strategy | Mesh | None = None,
        random_state: Any = None,
    ) -> None:
        self.hidden_layer_sizes, self.activation = hidden_layer_sizes, activation
        self.optimizer, self.max_iter, self.batch_size = optimizer, max_iter, batch_size
        self.strategy, self.random_state = strategy, random_state
