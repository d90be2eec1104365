"""The training that estimators share, with the methods of scikit-learn and of TensorFlow."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from gdt.arguments import checked, fits, shown_value
from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, error, frame_of_user, type_text
from gdt.nn import activations
from gdt.nn.layers import Dense, Sequential
from gdt.nn.parameters import check_sizes
from gdt.ops.creation import asarray
from gdt.optim import Adam
from gdt.optim.names import optimizer_of
from gdt.sharding.mesh import Mesh
from gdt.state.trees import mapped
from gdt.training.batches import check_count
from gdt.training.measuring import loss_of
from gdt.training.strategies import MirroredStrategy, Strategy
from gdt.training.trainer import Trainer

try:
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_is_fitted,
        validate_data,
    )
except ImportError:
    message = "gdt.estimators: scikit-learn is missing\n  pip install 'gdt[estimators]'"
    raise ModuleNotFoundError(message, name="sklearn") from None

InputFn = Callable[[], Any]
WHOLE = 512
"""The most rows that a step takes all at once, unless `batch_size` is given."""
ROWS = 200
"""The rows of a step if there are more than `WHOLE`, as in scikit-learn's perceptrons."""


class Network(Sequential):
    """A model whose loss has a penalty: `penalty` times the sum of the squares of all weights.

    loss: the loss of a batch without the penalty.
    """

    penalty: float
    loss: Callable[..., Any]

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None
    ) -> DistributedArray:
        """Return the loss of a batch plus the penalty."""
        loss = loss_of(self.loss, y, y_pred, sample_weight)
        for layer in self.layers if self.penalty else ():
            loss = loss + (layer.weight * layer.weight).sum() * self.penalty
        return loss


class Estimator(BaseEstimator):  # type: ignore[misc]
    """The training that all estimators share; a subclass has targets, losses and predictions."""

    hidden_layer_sizes: tuple[int, ...] = ()
    activation = "relu"
    _adam_rate = 0.1  # large, since the weights of linear models begin at 0

    @checked
    def __init__(
        self,
        optimizer: Any = None,
        max_iter: int = 200,
        batch_size: int | None = None,
        strategy: Strategy | Mesh | None = None,
        random_state: Any = None,
        *,
        alpha: float = 0.0,
        tol: float = 1e-4,
        learning_rate_init: float | None = None,
        n_iter_no_change: int = 10,
    ) -> None:
        self.optimizer, self.max_iter, self.batch_size = optimizer, max_iter, batch_size
        self.strategy, self.random_state, self.alpha, self.tol = strategy, random_state, alpha, tol
        self.learning_rate_init, self.n_iter_no_change = learning_rate_init, n_iter_no_change

    # ---- what a subclass has

    def _targets(self, y: np.ndarray, reset: bool) -> np.ndarray:
        """Return targets as rows of float32 or labels, after checking them."""
        raise NotImplementedError

    def _outputs(self) -> int:
        """Return the number of the model's outputs."""
        raise NotImplementedError

    _loss: Callable[..., Any]

    def _penalty_of_row(self) -> float:
        """Return the factor of alpha in the penalty, if losses of rows are added up."""
        return 0.5

    # ---- fitting

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train new weights on all rows, for at most `max_iter` epochs; return the estimator.

        X: (rows, features). y: (rows,), or (rows, targets) of regressors. sample_weight: (rows,); a
        row of weight 2 counts as two equal rows, and one of weight 0 as none. Gives scikit-learn's
        ConvergenceWarning if the loss still changes after the last epoch.

        Raises ArgumentError for parameters out of range, ValueError for data that scikit-learn
        refuses.
        """
        self._check_numbers()
        X, y = self._checked(X, y, reset=True)
        weights = self._weights(sample_weight, X)
        self.features_: dict[str, int] | None = None  # names and widths, which `train` learns
        self._begin(X.shape[1], float(weights.sum()))
        self._fit(X, y, weights)
        return self

    def _check_numbers(self) -> None:
        """Raise ArgumentError for parameters out of range, which scikit-learn checks in `fit`."""
        op = type(self).__name__
        sizes = {"max_iter": self.max_iter, "n_iter_no_change": self.n_iter_no_change}
        check_sizes(batch_size=self.batch_size, **sizes)
        for name, value in (("alpha", self.alpha), ("tol", self.tol)):
            if not fits(value, float) or not 0 <= value < np.inf:
                problem = f"{name} is {value!r}"
                raise error(ArgumentError, op, problem, remedy="It is finite and at least 0.")

    def _fit(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> None:
        """Train the new model by gradient steps, until the loss has stopped falling."""
        rows = len(X) if self.batch_size is None and len(X) <= WHOLE else self.batch_size or ROWS
        order = check_random_state(self.random_state)
        whole = self._placed(X, y, weights) if rows >= len(X) else None
        best, waited = np.inf, 0
        for _ in range(self.max_iter):
            if whole is not None:
                loss = float(self._step(whole))
            else:
                indices = order.permutation(len(X))
                parts = [indices[start : start + rows] for start in range(0, len(X), rows)]
                losses = [self._step(self._placed(X[p], y[p], weights[p])) for p in parts]
                loss = float(np.average([*map(float, losses)], weights=[*map(len, parts)]))
            self.n_iter_ += 1
            # The rule of scikit-learn's perceptrons.
            waited = waited + 1 if loss > best - self.tol else 0
            best = min(best, loss)
            if waited > self.n_iter_no_change:
                return
        text = (
            f"{type(self).__name__}: max_iter={self.max_iter} epochs are over, and the loss, "
            f"{best:.4g}, has not settled within tol={self.tol:g} "
            f"for {self.n_iter_no_change} epochs. "
            "Raise max_iter or learning_rate_init, or scale the columns of X."
        )
        warnings.warn(text, ConvergenceWarning, stacklevel=frame_of_user()[1])

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Take one step with these rows, from the present weights; return the estimator."""
        self._update(X, y, sample_weight)
        self.n_iter_ += 1
        return self

    def _update(self, X: Any, y: Any, sample_weight: Any = None) -> None:
        """Take one step with these rows, from new weights if there are none."""
        is_new = not hasattr(self, "model_")
        X, y = self._checked(X, y, reset=is_new)
        weights = self._weights(sample_weight, X)
        if is_new:
            self._check_numbers()
            self._begin(X.shape[1], float(weights.sum()))
        self._step(self._placed(X, y, weights))

    def _checked(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return features and targets as arrays. reset: whether they are the first, which say how
        many features and which classes there are."""
        X, y = validate_data(
            self,
            X,
            y,
            dtype=[np.float64, np.float32],
            multi_output=self._takes_columns,
            reset=reset,
        )
        return X, self._targets(y, reset)

    _takes_columns = False

    def _weights(self, sample_weight: Any, X: np.ndarray) -> np.ndarray:
        """Return the weights of rows; scikit-learn raises ValueError where all are 0."""
        weights: np.ndarray = _check_sample_weight(
            sample_weight, X, dtype=np.float64, ensure_non_negative=True
        )
        return weights

    def _mesh_strategy(self) -> Strategy:
        if isinstance(self.strategy, Strategy):
            return self.strategy
        return MirroredStrategy(mesh=self.strategy) if self.strategy else MirroredStrategy(1)

    def _begin(self, features: int, rows: float) -> None:
        """Make a new model and a new optimizer. The weights of linear models begin at 0.

        rows: the sum of the weights of rows; losses are means over rows, so the penalty is divided
            by it."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        sizes = [features, *self.hidden_layer_sizes, self._outputs()]
        with self._mesh_strategy().scope():
            layers: list[Any] = []
            for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
                is_last = number == len(sizes) - 2
                layers.append(
                    Dense(
                        inputs,
                        outputs,
                        activation=None if is_last else activations.get(self.activation),
                        initializer="glorot_uniform" if len(sizes) > 2 else "zeros",
                        dtype=np.float64,
                        key=seed + number,
                    )
                )
            self.model_ = Network(layers)
            self.model_.penalty = self.alpha * self._penalty_of_row() / max(rows, 1.0)
            self._make_trainer(self._new_optimizer())
        self.global_step_ = self.n_iter_ = 0

    def _new_optimizer(self) -> Any:
        """Return a new optimizer: its state must not pass from one fit to the next."""
        rate = self.learning_rate_init
        if self.optimizer in ("adam", None):
            return Adam(self._adam_rate if rate is None else rate)
        is_name = isinstance(self.optimizer, str) or not callable(self.optimizer)
        optimizer = optimizer_of(self.optimizer) if is_name else self.optimizer()
        if rate is not None and not is_name:
            problem = f"learning_rate_init is {rate:g}, and optimizer is a function that makes one"
            remedy = "Pass the rate in it, as in lambda: gdt.optim.SGD(0.1)."
            raise error(ArgumentError, type(self).__name__, problem, remedy=remedy)
        if rate is not None:
            optimizer.learning_rate = rate
        return optimizer

    def _make_trainer(self, optimizer: Any) -> None:
        """Make the trainer of the model, with this optimizer."""
        with self._mesh_strategy().scope():
            self.model_.loss = self._loss
            self.trainer_ = Trainer(self.model_, optimizer, self._loss)

    def _placed(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> Any:
        """Return a batch on the mesh. Weights are scaled to a mean of 1, so that two rows and one
        of weight 2 are the same."""
        scaled = weights * (len(weights) / max(weights.sum(), np.finfo(np.float64).tiny))
        return self.trainer_.place((X.astype(np.float64, copy=False), y, scaled))

    def _step(self, batch: Any) -> Any:
        """Take a step; return its loss."""
        results = self.trainer_.recorded(self.trainer_.step)(*batch)
        self.global_step_ += 1
        return results["loss"]

    def _raw(self, X: Any) -> np.ndarray:
        """Return the outputs of the model for all rows."""
        check_is_fitted(self, "model_")
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        outputs: np.ndarray = self.trainer_.predict([X])
        return outputs

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        trainer = state.pop("trainer_", None)  # recorded steps belong to this process
        if trainer is not None:
            state["optimizer_"] = trainer.optimizer
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        state = dict(state)
        optimizer = state.pop("optimizer_", None)
        super().__setstate__(state)
        if optimizer is not None:
            self._make_trainer(optimizer)

    # ---- the methods of TensorFlow's estimators

    def train(
        self,
        input_fn: InputFn,
        hooks: Any = None,
        steps: int | None = None,
        max_steps: int | None = None,
    ) -> Self:
        """Train on the batches of `input_fn()`, from the present weights; return the estimator.

        input_fn: a function that returns an iterable of batches (features, targets), or one batch,
            which every step takes. Features are an array, or a dict of arrays, whose columns are
            joined in the order of their names.
        hooks: not supported. steps: the most steps that this call takes; None: one for each batch.
        max_steps: the most steps that all calls together take.

        Raises ArgumentError for hooks, for `steps` with `max_steps`, and for an `input_fn` that
        gives no batches.
        """
        op = f"{type(self).__name__}.train"
        check_count(op, "steps", steps)
        check_count(op, "max_steps", max_steps)
        if hooks:
            problem = f"hooks is {shown_value(hooks)}, and nothing calls them"
            remedy = "Call train again, and look at evaluate, between some steps."
            raise error(ArgumentError, op, problem, remedy=remedy)
        if steps is not None and max_steps is not None:
            raise error(ArgumentError, op, "both steps and max_steps are given")
        steps = steps if max_steps is None else max_steps - getattr(self, "global_step_", 0)
        if steps is not None and steps <= 0:
            return self
        for X, y in self._batches(op, pairs_of(op, input_fn, steps), steps):
            self._update(X, y)
        return self

    def evaluate(self, input_fn: InputFn, steps: int | None = None) -> dict[str, float]:
        """Return a dict: `average_loss`, the loss of one target; `loss`, the mean over batches of
        the summed loss of a batch; the metrics of the estimator; `global_step`.

        steps: the most batches that are taken; None: all."""
        check_is_fitted(self, "model_")
        op = f"{type(self).__name__}.evaluate"
        check_count(op, "steps", steps)
        total, labels, outputs = 0.0, [], []
        for X, targets in self._batches(op, pairs_of(op, input_fn), steps):
            raw, y = self._raw(X), self._targets(targets, False)
            total += float(self._loss(asarray(y), asarray(raw), "sum"))
            labels.append(y)
            outputs.append(raw)
        y, raw = np.concatenate(labels), np.concatenate(outputs)
        return {
            "average_loss": total / y.size,
            "loss": total / len(labels),
            **self._measured(y, raw),
            "global_step": self.global_step_,
        }

    def _batches(
        self, op: str, pairs: Iterator[tuple[Any, Any]], steps: int | None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the features of at most `steps` batches as columns, and their targets.

        Raises ArgumentError where there is no batch."""
        y = None
        for features, targets in itertools.islice(pairs, steps):
            y = np.asarray(targets)
            X = self._columns(op, features)
            yield X, _flat(y) if self._takes_columns else y
        if y is None:
            raise error(ArgumentError, op, "input_fn returned no batch")

    def _features(self, input_fn: InputFn) -> Iterator[np.ndarray]:
        """Yield the columns of all batches of an input function, which may have no targets."""
        op = f"{type(self).__name__}.predict"
        return (self._columns(op, features) for features in features_of(input_fn))

    def _columns(self, op: str, features: Any) -> np.ndarray:
        """Return features as (rows, columns); those of a mapping side by side, by their names.

        Raises ArgumentError for other names or widths than those of the first batch."""
        if not isinstance(features, Mapping):
            return _flat(features)
        arrays = {name: _flat(features[name]) for name in sorted(features)}
        widths = {name: array.shape[1] for name, array in arrays.items()}
        if not hasattr(self, "model_"):
            self.features_ = widths
        known = getattr(self, "features_", None)
        if known is not None and known != widths:
            shown = [", ".join(f"{n} ({w})" for n, w in each.items()) for each in (widths, known)]
            problem = f"the features (columns) are {shown[0]}, and the model has learnt {shown[1]}"
            raise error(ArgumentError, op, problem, remedy="Name them as in the first call.")
        return np.concatenate([*arrays.values()], axis=1)

    def _measured(self, y: np.ndarray, raw: np.ndarray) -> dict[str, float]:
        """Return further results of `evaluate`."""
        raise NotImplementedError


class Perceptron(Estimator):
    """The arguments of multilayer perceptrons."""

    _adam_rate = 0.02  # suits columns whose elements are of the order of 1

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
        *,
        alpha: float = 0.0,
        tol: float = 1e-4,
        learning_rate_init: float | None = None,
        n_iter_no_change: int = 10,
    ) -> None:
        self.hidden_layer_sizes, self.activation = hidden_layer_sizes, activation
        super().__init__(
            optimizer, max_iter, batch_size, strategy, random_state, alpha=alpha, tol=tol,
            learning_rate_init=learning_rate_init, n_iter_no_change=n_iter_no_change,
        )  # fmt: skip


def pairs_of(op: str, input_fn: Any, count: int | None = None) -> Iterator[tuple[Any, Any]]:
    """Yield the batches of an input function; a pair that it returns is yielded `count` times.

    op: the method that takes the function, for errors."""
    remedy = "Write lambda: (features, targets)."
    if not callable(input_fn):
        problem = f"input_fn is {shown_value(input_fn)}, not a function"
        raise error(ArgumentError, op, problem, remedy=remedy)
    data = input_fn()
    if not isinstance(data, Iterable):
        problem = f"input_fn returned {type_text(data)}, which yields no batches"
        raise error(ArgumentError, op, problem, remedy=remedy)
    batches: Iterable[Any] = itertools.repeat(data, count or 1) if _is_pair(data) else data
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            problem = f"input_fn yields {type_text(batch)}, not a pair (features, targets)"
            raise error(ArgumentError, op, problem, remedy=remedy)
        yield tuple(mapped(_on_host, batch))


def features_of(input_fn: InputFn) -> Iterator[Any]:
    """Yield the features of all batches of an input function, which may have no targets."""
    data = input_fn()
    batches: Iterable[Any] = [data] if _is_pair(data) or _is_batch(data) else data
    for batch in batches:
        yield mapped(_on_host, batch[0] if isinstance(batch, tuple | list) else batch)


def _is_pair(data: Any) -> bool:
    """Whether `data` is one batch (features, targets)."""
    return isinstance(data, tuple) and len(data) == 2 and _is_batch(data[0])


def _is_batch(features: Any) -> bool:
    """Whether `features` is an array or a dict of arrays, and no pair (features, targets)."""
    return isinstance(features, Mapping) or hasattr(features, "shape")


def _on_host(leaf: Any) -> np.ndarray:
    return leaf.numpy() if hasattr(leaf, "numpy") else np.asarray(leaf)


def _flat(features: Any) -> np.ndarray:
    """Return an array as (rows, columns)."""
    array = _on_host(features)
    return array.reshape(len(array), math.prod(array.shape[1:]))
