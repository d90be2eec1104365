"""Trainer: training, evaluation and predictions of a model over batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console

from gdt.arguments import check_takes, checked_class
from gdt.data.feed import REITERABLE, Feed
from gdt.errors import ArgumentError, FunctionError, ShapeError, error
from gdt.metrics import Metric
from gdt.nn import losses
from gdt.nn.module import Module
from gdt.nn.parameters import home_of, mesh_of_model
from gdt.optim.names import optimizer_of
from gdt.optim.optimizer import Optimizer
from gdt.programs.function import Function as Recorded
from gdt.programs.function import function
from gdt.sharding.mesh import Mesh
from gdt.state.trees import leaves, mapped, with_leaves
from gdt.training.batches import (
    check_batches,
    check_count,
    check_ranks,
    check_rows,
    evaluating,
    pair,
    rows_of,
)
from gdt.training.display import Display
from gdt.training.fitting import Fit
from gdt.training.history import History, Numbers
from gdt.training.measuring import Measurement, measures_of
from gdt.training.placement import BatchPlacement, check_mesh
from gdt.training.steps import Steps
from gdt.training.strategies import current_strategy


class Session:
    """A trainer's state that changes while it works, on which recorded steps do not depend."""

    def __init__(self) -> None:
        self.stop_training = False
        self.display: Display | None = None
        self.programs: dict[str, Recorded[..., Any]] = {}
        self.trained: list[Sequence[int]] = []  # the shapes of rows of which the model has learnt

    def __reduce__(self) -> tuple[Any, ...]:
        return Session, ()  # recordings belong to the arrays of one trainer


@checked_class(eager=True)
class Trainer(Steps):
    """The training and evaluation of a model on batches `(x, y)` or `(x, y, weights)`.

    optimizer: an optimizer, or its name, such as "adam".
    loss: a function `(y, predictions)` of a scalar array, or of a value for each row, such as those
        of `gdt.nn.losses`; or its name (`gdt.nn.losses.get`); None for a model that computes its
        own.
    metrics: functions `(y, predictions) -> scalar`, `gdt.metrics.Metric` objects or names, in a
        mapping by name or a list. weighted_metrics: the names of Metrics that take the weights of
        rows into account.
    clip_norm: the norm to which all gradients together are scaled down. eager: whether steps run as
        written; else they are recorded by `gdt.function`.

    Model and batches have any layouts. Batches of the host are put on the model's mesh, their rows
    split over its first axis (or as the strategy says in whose scope the trainer is made), and
    their floating-point numbers cast to the dtype of its parameters.
    `gdt.checkpoint` saves a trainer's model and optimizer.

    Raises ArgumentError for unknown names, and for a metric called `loss` or `val_...`.

    >>> model = gdt.nn.Sequential(gdt.nn.Dense(2, 1, key=0))
    >>> x = gdt.asarray([[0.0, 1.0], [1.0, 0.0]], "float32")
    >>> y = gdt.asarray([[1.0], [-1.0]], "float32")
    >>> trainer = gdt.Trainer(model, gdt.optim.SGD(0.1), gdt.nn.losses.mean_squared_error)
    >>> history = trainer.fit([(x, y)], epochs=50, show=False)
    >>> history["loss"][-1] < history["loss"][0]
    True
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer | str,
        loss: Callable[..., Any] | str | None,
        metrics: Any = None,
        *,
        weighted_metrics: Sequence[str] = (),
        clip_norm: float | None = None,
        eager: bool = False,
    ) -> None:
        self.model, self.optimizer = model, optimizer_of(optimizer)
        self.loss = None if loss is None else losses.get(loss)
        self.metrics = measures_of(metrics, self.loss)
        for name, measure in (("loss", self.loss), *self.metrics.items()):
            if measure is not None and not isinstance(measure, Metric):
                check_takes("Trainer", repr(name), measure, "targets", "predictions")
        if clip_norm is not None and not clip_norm > 0:
            problem, remedy = f"clip_norm is {clip_norm}", "It is positive; None does not clip."
            raise error(ArgumentError, problem, remedy=remedy)
        self.weighted_metrics, self.clip_norm = tuple(weighted_metrics), clip_norm
        others = [n for n in weighted_metrics if not isinstance(self.metrics.get(n), Metric)]
        if others:
            problem = f"weighted_metrics names {others[0]!r}, which is no Metric of metrics"
            raise error(ArgumentError, problem)
        self.eager = eager
        self.session = Session()
        strategy = current_strategy()
        home = home_of(model) if strategy is None else strategy
        self.batch_axes = None if home is None else home.batch_axes
        if strategy is not None:
            if strategy.layout_map is not None:
                strategy.layout_map.apply(model)
            check_mesh("Trainer", model, strategy.mesh)

    def __repr__(self) -> str:
        functions = {"loss": self.loss, **self.metrics}
        measures = [f"{n}={getattr(f, '__name__', None) or repr(f)}" for n, f in functions.items()]
        model = type(self.model).__name__
        return f"Trainer({model}, {', '.join(measures)}) with {self.optimizer!r}"

    # ---- recorded steps

    def recorded(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of the trainer, recorded unless the trainer is eager."""
        if self.eager:
            return method
        programs, name = self.session.programs, method.__name__
        if name not in programs:
            programs[name] = function(method)
        program = programs[name]

        def call(*args: Any) -> Any:
            try:
                return program(*args)
            except FunctionError as problem:
                problem.add_note("  Trainer(eager=True) runs its steps as they are written.")
                raise

        return call

    # ---- batches

    @property
    def mesh(self) -> Mesh:
        """The mesh of the model's parameters; where it has none yet, that of the scope in which it
        was made, or else the default mesh."""
        return mesh_of_model(self.model)

    def place(self, batch: Any) -> Any:
        """Return a batch with the arrays of the host on the model's mesh.

        Their rows are split over the axes of the strategy in whose scope the trainer was made, or
        over the first axis of the mesh.

        >>> import numpy as np
        >>> model = gdt.nn.Dense(2, 1, gdt.Layout.replicated(gdt.create_mesh([("batch", 2)]), 2))
        >>> gdt.Trainer(model, "sgd", "mse").place(np.ones((4, 2))).layout
        Layout(['batch', -], Mesh(batch=2))
        """
        return BatchPlacement(self.model, self.batch_axes)(batch)

    # ---- training

    @property
    def stop_training(self) -> bool:
        """Whether the training ends after the batch or the epoch that is running."""
        return self.session.stop_training

    @stop_training.setter
    def stop_training(self, stop: bool) -> None:
        self.session.stop_training = stop

    def say(self, text: str) -> None:
        """Show a line of text beside the progress, if that is shown."""
        if self.session.display is not None:
            self.session.display.line(text)

    def fit(
        self,
        batches: Iterable[Any],
        epochs: int = 1,
        *,
        validation: Iterable[Any] | None = None,
        validation_freq: int | Sequence[int] = 1,
        validation_steps: int | None = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        class_weight: Mapping[int, float] | None = None,
        callbacks: Any = (),
        resume: str | os.PathLike[str] | None = None,
        save_every: int | None = None,
        prefetch: int = 0,
        title: str = "",
        show: bool = True,
        console: Console | None = None,
    ) -> History:
        """Train up to the epoch of number `epochs`; return what was measured.

        An epoch is one pass over `batches`, or `steps_per_epoch` batches, after which the next one
        goes on where it stopped; then comes an evaluation on `validation`, then the callbacks.

        batches, validation: iterables of (x, y) or (x, y, weights), such as `gdt.data.Batches`,
            lists, and the loaders of grain and PyTorch.
        validation_freq: after every how many epochs to validate, or after which ones, from 1.
        initial_epoch: the number of epochs that were done before. class_weight: factors of the
            losses of rows by their labels, integers or one-hot; other labels have the factor 1.
        callbacks: one or several `gdt.training.Callback` objects, and functions of the number of
            the epoch, from 1, and its results by name.
        resume: a folder. The training goes on from the newest checkpoint in it, if there is one,
            as if it had never stopped: with its weights, optimizer, random state, position in the
            data, history and callbacks. A checkpoint is written there after every epoch, and after
            every `save_every` batches.
        prefetch: how many batches a thread of its own takes and places ahead, for batches that
            take time to read, or to copy to GPUs, where it does so beside computation.
        title: a line above the progress. show: whether process 0 shows anything. console: rich's.

        Ctrl-C ends the training after the step that is running, with a checkpoint if `resume` names
        a folder, by a KeyboardInterrupt whose text says how to go on; a second one ends it at once.

        Raises ArgumentError for iterators if there are several epochs, since they end with the
        first, where an epoch has no batch, and for negative numbers of epochs; NanError where the
        loss is not finite: it says whether the batch, the predictions or the loss are not, and in
        which row, and the model, its optimizer and the random state are as before that step. For
        this a copy of them is kept; the callback `TerminateOnNaN` ends a training without.

        >>> import numpy as np
        >>> trainer = gdt.Trainer(gdt.nn.Dense(1, 1, key=0), gdt.optim.SGD(0.1), "mse")
        >>> x = np.linspace(-1, 1, 8, dtype="float32")[:, None]
        >>> history = trainer.fit([(x, 2 * x)], epochs=20, show=False)
        >>> history["loss"][-1] < 0.1
        True
        """
        options = {name: value for name, value in locals().items() if name != "self"}
        return Fit(self, **options).run()

    # ---- evaluation

    @contextmanager
    def _evaluation(
        self, op: str, batches: Iterable[Any], steps: int | None
    ) -> Iterator[Iterator[Any]]:
        """Provide the batches, placed, to a `with` block that runs in evaluation mode.

        Raises ArgumentError after a block that has found no batch."""
        check_batches(op, "batches", batches)
        check_count(op, "steps", steps)
        feed = Feed(batches, BatchPlacement(self.model, self.batch_axes))
        try:
            with evaluating(self.model):
                yield feed.take(steps)
        finally:
            feed.close()
        if not feed.total:
            raise error(ArgumentError, op, "there is no batch", remedy=REITERABLE)

    def evaluate(self, batches: Iterable[Any], *, steps: int | None = None) -> Numbers:
        """Return the means of loss and metrics over all rows of all batches, in evaluation mode.

        steps: how many batches to use; None for all. Raises ArgumentError if there is no batch, as
        in an iterator that has ended.

        >>> import numpy as np
        >>> trainer = gdt.Trainer(gdt.nn.Dense(1, 1, initializer="zeros"), "sgd", "mse")
        >>> trainer.evaluate([(np.zeros((2, 1)), np.ones((2, 1)))])
        {'loss': 1.0}
        """
        measurement, step = Measurement(self.metrics), self.recorded(self.test_step)
        with self._evaluation("Trainer.evaluate", batches, steps) as placed:
            for batch in placed:
                x, y, weights = pair(batch, "evaluate")
                check_ranks(x, self.session.trained, "Trainer.evaluate")
                measurement.add(step(x, y, weights), rows_of(x, y))
        return measurement.results()

    def predict(self, batches: Iterable[Any], *, steps: int | None = None) -> Any:
        """Return the predictions for all batches as NumPy arrays, in evaluation mode.

        batches: of inputs x, or of tuples that begin with them. steps: how many to use; None for
        all. The result has the structure of the model's, with the batches joined along axis 0.

        >>> import numpy as np
        >>> trainer = gdt.Trainer(gdt.nn.Dense(1, 1, initializer="ones"), "sgd", "mse")
        >>> trainer.predict([np.ones((2, 1))]).tolist()
        [[1.0], [1.0]]
        """
        parts, step = [], self.recorded(self._predicted)
        with self._evaluation("Trainer.predict", batches, steps) as placed:
            for batch in placed:
                x = batch[0] if isinstance(batch, tuple | list) else batch
                check_ranks(x, self.session.trained, "Trainer.predict")
                parts.append(mapped(lambda array: array.numpy(), step(x)))
                check_rows(x, parts[-1])
        columns = [*zip(*[leaves(part) for part in parts], strict=True)]
        for column in columns:
            if len({array.shape[1:] for array in column}) > 1 or not column[0].shape:
                shapes = ", ".join(str(list(array.shape)) for array in column[:1] + column[-1:])
                problem = f"the first and the last batch have results of shapes {shapes}"
                remedy = "Let the model return a row for each row of its input."
                raise error(ShapeError, problem, remedy=remedy)
        return with_leaves(parts[0], [np.concatenate(column) for column in columns])
