"""Training in Keras' words: the functions behind `model.compile`, `fit`, `evaluate`, `predict`.

Each takes the arguments of the method of its name (`gdt.nn.compiling`), which is its `self`, by
their names. Arrays become batches here; all else is work of the model's `Trainer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, error, type_text
from gdt.errors.foreign_names import remedy_for
from gdt.metrics import MeanOf, Metric
from gdt.nn import losses
from gdt.nn.compiling import Compilation, own_method
from gdt.nn.module import Module
from gdt.optim.names import optimizer_of
from gdt.optim.optimizer import Optimizer
from gdt.sharding import processes
from gdt.training.array_batches import (
    batches_of,
    held_out_arrays,
    is_array,
    rows_of_batch,
    split_rows,
)
from gdt.training.batches import check_class_weight, pair
from gdt.training.callback import as_callbacks
from gdt.training.display import Display, text_of
from gdt.training.history import History, Numbers
from gdt.training.measuring import OF_SEVERAL, Measurement, measures_of
from gdt.training.placement import BatchPlacement
from gdt.training.trainer import Trainer

ARGUMENTS = ("optimizer", "loss", "metrics", "weighted_metrics", "run_eagerly", "clip_norm")
REMEDIES = {
    "loss_weights": f"Weigh the parts of one loss, a function of all outputs:\n  loss={OF_SEVERAL}",
    "steps_per_execution": "Leave it out: a step is one recorded program, and devices do not wait.",
    "auto_scale_loss": "Leave it out: gdt.optim.LossScaling(optimizer) scales losses of float16.",
}
IGNORED: dict[str, list[Any]] = {
    "loss_weights": [None],
    "steps_per_execution": [1],
    "auto_scale_loss": [True],
}
"""Arguments of Keras' compile, and their values that change nothing here."""
UNCALLED = dict.fromkeys(
    ("make_train_function", "make_test_function", "make_predict_function"),
    "Define train_step(data) or test_step(data), or write a loop of your own.",
) | {
    "compute_metrics": "Pass metrics= functions (y, predictions), or return them from train_step.",
    "predict_step": "Return the predictions from __call__, in evaluation mode if not "
    "self.training.",
}
"""What to write in place of methods of Keras that a model defines in vain."""


def compile(
    self: Module,
    *,
    optimizer: Any,
    loss: Any,
    metrics: Any,
    weighted_metrics: Any,
    options: Mapping[str, Any],
    run_eagerly: bool,
    clip_norm: float | None,
) -> None:
    """Give a model its trainer."""
    for name, value in options.items():
        if name == "jit_compile" or value in IGNORED.get(name, []):
            continue
        is_keras = name in IGNORED
        problem = f"{name}={value!r} has no counterpart" if is_keras else f"{name!r} is no argument"
        lines = [remedy_for([name], ARGUMENTS), f"Its arguments are ({', '.join(ARGUMENTS)})."]
        remedy = REMEDIES.get(name) or "\n  ".join(filter(None, lines))
        raise error(ArgumentError, problem, remedy=remedy)
    uncalled = [name for name in UNCALLED if callable(getattr(type(self), name, None))]
    if uncalled:
        problem = f"{type(self).__name__} defines {uncalled[0]}, which nothing calls"
        raise error(ArgumentError, problem, remedy=UNCALLED[uncalled[0]])
    if loss is None and not any(own_method(self, n) for n in ("train_step", "compute_loss")):
        remedy = 'Write loss="mse", or a function (y, predictions) such as gdt.nn.losses has.'
        raise error(ArgumentError, "there is no loss", remedy=remedy)
    if isinstance(loss, Sequence | Mapping) and not isinstance(loss, str):
        problem = f"loss is {type_text(loss)}: a model has one loss"
        raise error(ArgumentError, problem, remedy=REMEDIES["loss_weights"])
    loss = losses.get(loss) if isinstance(loss, str) else loss
    unweighted = measures_of(metrics, loss)
    weighted = {
        f"weighted_{name}" if name in unweighted else name: metric
        if isinstance(metric, Metric)
        else MeanOf(metric, name)
        for name, metric in measures_of(weighted_metrics, loss).items()
    }
    if self._compilation is not None:
        vars(self).pop("optimizer", None)  # one that was set in place of the last one's
    if isinstance(vars(self).get("optimizer"), Optimizer):
        problem = f"the {type(self).__name__} has an attribute `optimizer` of its own"
        raise error(ArgumentError, problem, remedy="Give it another name.")
    names, measures = tuple(weighted), {**unweighted, **weighted}
    options = {"weighted_metrics": names, "clip_norm": clip_norm, "eager": run_eagerly}
    self._compilation = Compilation(Trainer(self, optimizer, loss, measures, **options))


def compiled(self: Module) -> Trainer:
    """Return the trainer of a model; raise ArgumentError before `compile`."""
    if self._compilation is None:
        problem = f"the {type(self).__name__} was not compiled"
        remedy = 'Write model.compile(optimizer="adam", loss="mse") first.'
        raise error(ArgumentError, "compile", problem, remedy=remedy)
    trainer: Trainer = self._compilation.trainer
    if isinstance(vars(self).get("optimizer"), Optimizer | str):  # as Keras' users set another
        trainer.optimizer = optimizer_of(vars(self).pop("optimizer"))
    return trainer


# ---------------------------------------------------------------- training and evaluation


def fit(
    self: Module,
    *,
    x: Any,
    y: Any,
    sample_weight: Any,
    batch_size: int | None,
    shuffle: bool,
    validation_split: float,
    validation_data: Any,
    validation_batch_size: int | None,
    verbose: int | str,
    **options: Any,
) -> History:
    """Train a model: make batches of its arrays, and of those that are held out. options: those
    that `Trainer.fit` takes under the same names."""
    trainer = compiled(self)
    arrays = {"x": x, "y": y, "sample_weight": sample_weight}
    held_out = held_out_arrays(validation_data)
    if validation_split and validation_data is None:
        if not is_array(x):
            problem = f"validation_split needs arrays, and x is {type_text(x)}"
            raise error(ArgumentError, problem, remedy="Pass validation_data=batches.")
        arrays, held_out = split_rows(validation_split, **arrays)
    if held_out is not None:
        size = batch_size if validation_batch_size is None else validation_batch_size
        validation_data = batches_of("fit", **held_out, batch_size=size)
    return trainer.fit(
        batches_of("fit", **arrays, batch_size=batch_size, shuffle=shuffle),
        validation=validation_data,
        show=_shows(verbose),
        console=Console(force_terminal=False) if verbose == 2 else None,
        **options,
    )


def _shows(verbose: int | str) -> bool:
    """Return whether something is shown."""
    return verbose not in (0, False)


@contextmanager
def _telling(trainer: Trainer, callbacks: Any, what: str) -> Iterator[SimpleNamespace]:
    """Tell callbacks that a test or predictions begin, and that they have ended, with what the
    `with` block has set as `logs`."""
    listeners = as_callbacks(callbacks)
    for listener in listeners:
        listener.trainer, listener.params = trainer, {}
        getattr(listener, f"on_{what}_begin")({})
    results = SimpleNamespace(logs={})
    yield results
    for listener in listeners:
        getattr(listener, f"on_{what}_end")(results.logs)


def _listed(results: Numbers, return_dict: bool) -> Any:
    """Return results as Keras does: a dict, a list, or the loss where there are no metrics."""
    if return_dict:
        return results
    return [*results.values()] if len(results) > 1 else next(iter(results.values()))


def evaluate(
    self: Module, *, verbose: int | str, steps: Any, callbacks: Any, return_dict: bool, **data: Any
) -> Any:
    """Measure a model. data: arguments of `batches_of`."""
    batches, trainer = batches_of("evaluate", **data), compiled(self)
    with _telling(trainer, callbacks, "test") as end:
        results = end.logs = trainer.evaluate(batches, steps=steps)
    display = Display(None, _shows(verbose) and processes.current().index == 0)
    display.line(text_of(results))
    return _listed(results, return_dict)


def predict(self: Module, *, verbose: Any, steps: Any, callbacks: Any, **data: Any) -> Any:
    """Return a model's predictions; the model need not be compiled. data: as in `evaluate`."""
    compilation, batches = self._compilation, batches_of("predict", **data)
    trainer = Trainer(self, "sgd", "mse") if compilation is None else compilation.trainer
    with _telling(trainer, callbacks, "predict"):
        return trainer.predict(batches, steps=steps)


# ---------------------------------------------------------------- one batch


def train_on_batch(
    self: Module, *, x: Any, y: Any, sample_weight: Any, class_weight: Any, return_dict: bool
) -> Any:
    """Take one step."""
    trainer, rows = compiled(self), rows_of_batch("train_on_batch", x=x, y=y)
    batch = (x, y) if sample_weight is None else (x, y, sample_weight)
    if class_weight is not None:
        check_class_weight(class_weight)
    place = BatchPlacement(self, trainer.batch_axes, class_weight)
    measurement = Measurement(trainer.metrics)
    measurement.add(trainer.recorded(trainer.step)(*pair(place(batch), "fit")), rows)
    return _listed(measurement.results(), return_dict)


def test_on_batch(self: Module, *, x: Any, y: Any, **options: Any) -> Any:
    """Measure one batch."""
    return self.evaluate(x, y, rows_of_batch("test_on_batch", x=x, y=y), 0, **options)


def predict_on_batch(self: Module, *, x: Any) -> Any:
    """Return the predictions for one batch."""
    return self.predict(x, rows_of_batch("predict_on_batch", x=x), 0)


def train_step(self: Module, *, data: Any) -> dict[str, Any]:
    """Take one step as gdt does."""
    return compiled(self).gradient_step(*pair(data, "fit"))


def test_step(self: Module, *, data: Any) -> dict[str, Any]:
    """Measure a batch as gdt does."""
    return compiled(self).measured(*pair(data, "evaluate"))


def compute_loss(
    self: Module, *, x: Any, y: Any, y_pred: Any, sample_weight: Any
) -> DistributedArray:
    """Return the loss of a batch as gdt does, which does not look at x."""
    return compiled(self).loss_of_batch(y, y_pred, sample_weight)
