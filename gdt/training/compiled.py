"""Training in Keras' words: the functions behind `model.compile`, `fit`, `evaluate`, `predict`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console

from gdt import random
from gdt.array.array import DistributedArray
from gdt.data.batches import Batches
from gdt.data.files import is_path
from gdt.errors import ArgumentError, error, type_text
from gdt.errors.foreign_names import remedy_for
from gdt.metrics import MeanOf, Metric
from gdt.nn import losses
from gdt.nn.compiling import METHODS, Compilation, own_method
from gdt.nn.module import Module
from gdt.optim.names import optimizer_of
from gdt.optim.optimizer import Optimizer
from gdt.sharding import processes
from gdt.state.trees import leaves, mapped
from gdt.training.batches import check_class_weight, pair
from gdt.training.callback import as_callbacks
from gdt.training.display import Display, text_of
from gdt.training.history import History, Numbers
from gdt.training.measuring import OF_SEVERAL, Measurement, measures_of
from gdt.training.placement import Placement
from gdt.training.trainer import Trainer

ROWS = 32  # of a batch, as in Keras
ARGUMENTS = ("optimizer", "loss", "metrics", "weighted_metrics", "run_eagerly", "clip_norm")
REMEDIES = {
    "loss_weights": f"Weigh the parts of one loss, a function of all outputs:\n  loss={OF_SEVERAL}",
    "steps_per_execution": "Leave it out: a step is one recorded program, and devices do not wait.",
    "auto_scale_loss": "Leave it out: gdt.optim.LossScaling(optimizer) scales losses of float16.",
}
UNCALLED = dict.fromkeys(
    ("make_train_function", "make_test_function", "make_predict_function"),
    "Define train_step(data) or test_step(data), or write a loop of your own.",
) | {
    "compute_metrics": "Pass metrics= functions (y, predictions), or return them from train_step.",
    "predict_step": "Return the predictions from __call__, in evaluation mode if not "
    "self.training.",
}
"""What to write in place of methods of Keras that a model defines in vain."""
DEFAULTS = {"loss_weights": None, "steps_per_execution": 1, "auto_scale_loss": True}


def compile_model(
    model: Module,
    optimizer: Any,
    loss: Any,
    metrics: Any,
    weighted_metrics: Any,
    run_eagerly: bool,
    clip_norm: float | None,
    options: Mapping[str, Any],
) -> None:
    """Give a model its trainer."""
    for name, value in options.items():
        if name == "jit_compile" or DEFAULTS.get(name, NONE) == value:
            continue
        is_keras = name in DEFAULTS
        problem = f"{name}={value!r} has no counterpart" if is_keras else f"{name!r} is no argument"
        lines = [remedy_for([name], ARGUMENTS), f"Its arguments are ({', '.join(ARGUMENTS)})."]
        remedy = REMEDIES.get(name) or "\n  ".join(filter(None, lines))
        raise error(ArgumentError, "compile", problem, remedy=remedy)
    uncalled = [name for name in UNCALLED if callable(getattr(type(model), name, None))]
    if uncalled:
        problem = f"{type(model).__name__} defines {uncalled[0]}, which nothing calls"
        raise error(ArgumentError, "compile", problem, remedy=UNCALLED[uncalled[0]])
    if loss is None and not any(own_method(model, n) for n in ("train_step", "compute_loss")):
        remedy = 'Write loss="mse", or a function (y, predictions) such as gdt.nn.losses has.'
        raise error(ArgumentError, "compile", "there is no loss", remedy=remedy)
    if isinstance(loss, Sequence | Mapping) and not isinstance(loss, str):
        problem = f"loss is {type_text(loss)}: a model has one loss"
        raise error(ArgumentError, "compile", problem, remedy=REMEDIES["loss_weights"])
    loss = losses.get(loss) if isinstance(loss, str) else loss
    unweighted = measures_of(metrics, loss)
    weighted = {
        f"weighted_{name}" if name in unweighted else name: metric
        if isinstance(metric, Metric)
        else MeanOf(metric, name)
        for name, metric in measures_of(weighted_metrics, loss).items()
    }
    if model._compilation is not None:
        vars(model).pop("optimizer", None)  # one that was set in place of the last one's
    if isinstance(vars(model).get("optimizer"), Optimizer):
        problem = f"the {type(model).__name__} has an attribute `optimizer` of its own"
        raise error(ArgumentError, "compile", problem, remedy="Give it another name.")
    model._compilation = Compilation(
        Trainer(
            model,
            optimizer,
            loss,
            {**unweighted, **weighted},
            weighted_metrics=tuple(weighted),
            clip_norm=clip_norm,
            eager=run_eagerly,
        )
    )


NONE = object()


def compiled(model: Module) -> Trainer:
    """Return the trainer of a model; raise ArgumentError before `compile`."""
    if model._compilation is None:
        problem = f"the {type(model).__name__} was not compiled"
        remedy = 'Write model.compile(optimizer="adam", loss="mse") first.'
        raise error(ArgumentError, "compile", problem, remedy=remedy)
    trainer: Trainer = model._compilation.trainer
    if isinstance(vars(model).get("optimizer"), Optimizer | str):  # as Keras' users set another
        trainer.optimizer = optimizer_of(vars(model).pop("optimizer"))
    return trainer


# ---------------------------------------------------------------- data


def _is_array(value: Any) -> bool:
    """Return whether a value is an array, or a tree of arrays, and no iterable of batches."""
    if isinstance(value, Mapping):
        return True
    if isinstance(value, list | tuple):
        return not value or not isinstance(value[0], tuple | list) or _is_nested_numbers(value)
    return isinstance(value, DistributedArray | np.ndarray) or hasattr(value, "__array__")


def _is_nested_numbers(value: Any) -> bool:
    """Return whether nested lists hold numbers: an array written down."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, int | float | np.generic)


def _on_host(value: Any) -> Any:
    """Return an array, or a tree of arrays, on the host; a list of numbers is an array, and a list
    of one array is that array."""
    if isinstance(value, list | tuple) and (not value or _is_nested_numbers(value)):
        return np.asarray(value)
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    return mapped(
        lambda leaf: leaf.numpy() if isinstance(leaf, DistributedArray) else np.asarray(leaf), value
    )


def _shapes(tree: Any) -> list[tuple[int, ...]]:
    """Return the shapes of an array, or of all arrays of a tree."""
    arrays = [tree] if _is_nested_numbers(tree) else leaves(tree)
    return [np.shape(array) for array in arrays]


def rows_of_batch(op: str, **trees: Any) -> int:
    """Return how many rows arrays have; raise ArgumentError if they differ, or have none."""
    shapes = {name: _shapes(tree) for name, tree in trees.items()}
    counts = {name: [s[0] if s else 0 for s in each] for name, each in shapes.items()}
    distinct = {n for each in counts.values() for n in each}
    if len(distinct) != 1 or not min(distinct):
        problem = "arrays differ in their rows" if len(distinct) > 1 else "there are no rows"
        operands = {name: ", ".join(str(list(s)) for s in each) for name, each in shapes.items()}
        raise error(ArgumentError, op, problem, operands=operands)
    return distinct.pop()


def _batches(
    op: str, parts: tuple[Any, ...], batch_size: int | None, seed: int | None
) -> Batches[Any]:
    """Return the batches of x, y and weights, trees of arrays of which the last may be None."""
    parts = tuple([_on_host(part) for part in parts if part is not None])
    names = ("x", "y", "sample_weight")[: len(parts)]
    rows_of_batch(op, **dict(zip(names, parts, strict=True)))

    def rebuilt(*arrays: np.ndarray) -> Any:
        remaining = iter(arrays)
        return mapped(lambda _: next(remaining), parts)

    rows = ROWS if batch_size is None else batch_size
    return Batches(*leaves(parts), batch_size=rows, seed=seed, place=rebuilt)


def _data(
    op: str, x: Any, y: Any, weights: Any, batch_size: int | None, seed: int | None = None
) -> Iterable[Any]:
    """Return batches of arrays, or the iterable of batches that x is."""
    if x is None:
        raise error(ArgumentError, op, "there is no x")
    if is_path(x) or (isinstance(x, list | tuple) and x and all(map(is_path, x))):
        remedy = "Write gdt.data.Batches(x, y, batch_size=32) for x, which reads `.npy` files."
        raise error(ArgumentError, op, f"x is {type_text(x)}, and no array", remedy=remedy)
    if _is_array(x):
        if y is None and weights is None and op != "predict":
            remedy = "Pass y, or an iterable of batches (x, y)."
            raise error(ArgumentError, op, "there are no targets y", remedy=remedy)
        return _batches(op, (x, y, weights), batch_size, seed)
    others = {"y": y, "sample_weight": weights, "batch_size": batch_size}
    wrong = [name for name, value in others.items() if value is not None]
    if wrong:
        problem = f"{wrong[0]} is given, and x yields batches, being {type_text(x)}"
        remedy = "Let x yield (x, y) or (x, y, weights)."
        raise error(ArgumentError, op, problem, remedy=remedy)
    return x  # type: ignore[no-any-return]


def _split(fraction: float, parts: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the first rows of arrays, and the last, of which there are a `fraction`."""
    parts = tuple(None if part is None else _on_host(part) for part in parts)
    names = ("x", "y", "sample_weight")
    arrays = {n: part for n, part in zip(names, parts, strict=True) if part is not None}
    rows = rows_of_batch("fit", **arrays)
    first = math.floor(rows * (1 - fraction))
    if not 0 < fraction < 1 or not 0 < first < rows:
        problem = f"validation_split is {fraction!r} of {rows} rows"
        remedy = "It is between 0 and 1, and leaves rows on both sides."
        raise error(ArgumentError, "fit", problem, remedy=remedy)
    return tuple(_cut(p, slice(0, first)) for p in parts), tuple(
        _cut(p, slice(first, None)) for p in parts
    )


def _cut(part: Any, rows: slice) -> Any:
    """Return these rows of all arrays of a tree, or None for None."""
    return None if part is None else mapped(lambda array: array[rows], part)


# ---------------------------------------------------------------- the methods of a model


def fit(
    model: Module,
    x: Any,
    y: Any,
    batch_size: int | None,
    epochs: int,
    verbose: int | str,
    callbacks: Any,
    validation_split: float,
    validation_data: Any,
    shuffle: bool,
    class_weight: Any,
    sample_weight: Any,
    initial_epoch: int,
    steps_per_epoch: int | None,
    validation_steps: int | None,
    validation_batch_size: int | None,
    validation_freq: Any,
    resume: Any,
    save_every: int | None,
) -> History:
    """Train a model; see `Module.fit`."""
    trainer = compiled(model)
    held_out: tuple[Any, ...] | None = None
    if validation_split and validation_data is None:
        if not _is_array(x):
            problem = f"validation_split needs arrays, and x is {type_text(x)}"
            raise error(ArgumentError, "fit", problem, remedy="Pass validation_data=batches.")
        (x, y, sample_weight), held_out = _split(validation_split, (x, y, sample_weight))
    elif isinstance(validation_data, tuple | list):
        held_out = _parts_of(validation_data)
    rows = batch_size if validation_batch_size is None else validation_batch_size
    validation = validation_data
    if held_out is not None:
        x_held, y_held, weights_held = held_out
        validation = _data("fit", x_held, y_held, weights_held, rows)
    seed = None
    if shuffle and _is_array(x):
        # Mixed, so that the seeds of one state are not those of another seed some draws later.
        seed = int(np.random.SeedSequence(random.generator.take()).generate_state(1)[0])
    return trainer.fit(
        _data("fit", x, y, sample_weight, batch_size, seed),
        epochs,
        validation=validation,
        validation_every=validation_freq,
        validation_steps=validation_steps,
        initial_epoch=initial_epoch,
        steps_per_epoch=steps_per_epoch,
        class_weight=class_weight,
        callbacks=callbacks,
        resume=resume,
        save_every=save_every,
        show=verbose not in (0, False),
        console=Console(force_terminal=False) if verbose == 2 else None,
    )


def _parts_of(data: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the arrays x, y and weights or None of validation data; None for a list of tuples or
    lists, which are batches, and for other tuples of them."""
    is_batches = all(isinstance(item, tuple | list) for item in data)
    if is_batches and (isinstance(data, list) or len(data) not in (2, 3)):
        return None
    if len(data) not in (2, 3):
        problem = f"validation_data is {type_text(data)} of {len(data)}"
        remedy = "Pass (x, y), (x, y, weights), or an iterable of such batches."
        raise error(ArgumentError, "fit", problem, remedy=remedy)
    return (*data, None)[:3]


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
    model: Module,
    x: Any,
    y: Any,
    batch_size: int | None,
    verbose: int | str,
    sample_weight: Any,
    steps: int | None,
    callbacks: Any,
    return_dict: bool,
) -> Any:
    """Measure a model; see `Module.evaluate`."""
    data = _data("evaluate", x, y, sample_weight, batch_size)
    trainer = compiled(model)
    with _telling(trainer, callbacks, "test") as end:
        results = end.logs = trainer.evaluate(data, steps=steps)
    display = Display(None, verbose not in (0, False) and processes.current().index == 0)
    display.line(text_of(results))
    return _listed(results, return_dict)


def predict(
    model: Module, x: Any, batch_size: int | None, verbose: Any, steps: int | None, callbacks: Any
) -> Any:
    """Return a model's predictions; see `Module.predict`. The model need not be compiled."""
    trainer = (
        model._compilation.trainer
        if model._compilation is not None
        else Trainer(model, "sgd", "mse")
    )
    data = _data("predict", x, None, None, batch_size)
    with _telling(trainer, callbacks, "predict"):
        return trainer.predict(data, steps=steps)


def train_on_batch(
    model: Module, x: Any, y: Any, sample_weight: Any, class_weight: Any, return_dict: bool
) -> Any:
    """Take one step; see `Module.train_on_batch`."""
    trainer = compiled(model)
    rows = rows_of_batch("train_on_batch", x=x, y=y)
    batch = (x, y) if sample_weight is None else (x, y, sample_weight)
    if class_weight is not None:
        check_class_weight(class_weight)
    place = Placement(model, trainer.batch_axes, class_weight)
    inputs, targets, weights = pair(place(batch), "fit")
    measurement = Measurement(trainer.metrics)
    measurement.add(trainer.recorded("step")(inputs, targets, weights), rows)
    return _listed(measurement.results(), return_dict)


def train_step(model: Module, data: Any) -> dict[str, Any]:
    """Take one step as gdt does; see `Module.train_step`."""
    return compiled(model).gradient_step(*pair(data, "fit"))


def test_step(model: Module, data: Any) -> dict[str, Any]:
    """Measure a batch as gdt does; see `Module.test_step`."""
    return compiled(model).measured(*pair(data, "evaluate"))


def compute_loss(model: Module, y: Any, predictions: Any, weights: Any) -> DistributedArray:
    """Return the loss of a batch as gdt does; see `Module.compute_loss`."""
    return compiled(model).loss_of_batch(y, predictions, weights)


METHODS.update(
    train_step=train_step,
    test_step=test_step,
    compute_loss=compute_loss,
    compile=compile_model,
    compiled=compiled,
    fit=fit,
    evaluate=evaluate,
    predict=predict,
    train_on_batch=train_on_batch,
    rows_of_batch=rows_of_batch,
)
