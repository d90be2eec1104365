"""Keras' training loops on gdt: `fit`, `evaluate`, `predict`, and the steps that they run.

A step is written as for Keras' stateful backends: `train_step(data)` reads and assigns variables,
and returns logs. A step with two arguments is taken for one of Keras' JAX backend:
`train_step(state, data)` returns `(logs, state)`, where the state is lists of values of variables.
Both are recorded by `gdt.function`: `recorded_step`.
"""

from __future__ import annotations

import inspect
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
from keras.src import backend, tree
from keras.src import callbacks as callbacks_module
from keras.src.backend import config
from keras.src.backend.common import global_state
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.optimizers import Optimizer
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
from keras.src.trainers import trainer as base_trainer
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.data_adapter_utils import (
    class_weight_to_sample_weights,
    unpack_x_y_sample_weight,
)
from keras.src.trainers.epoch_iterator import EpochIterator
from keras.src.utils import traceback_utils
from keras.src.utils.python_utils import is_default, pythonify_logs

from gdt.array.array import DistributedArray
from gdt.array.moving import move_to_layouts
from gdt.autodiff.functional import renamed
from gdt.autodiff.tape import GradientTape
from gdt.interop.keras.backend import distribution_lib
from gdt.interop.keras.backend.recorded_step import RecordedStep
from gdt.interop.keras.backend.saving import callbacks_written_once, written_once
from gdt.ops.joining import concat

Logs = dict[str, Any]
Step = Callable[..., Any]
DEFAULT_METRICS = base_trainer.Trainer.compute_metrics


class BatchIterator(EpochIterator):  # type: ignore[misc]
    """The batches of an epoch, laid out for the distribution that is set."""

    def _get_iterator(self) -> Iterator[Any]:
        return map(distribution_lib.distribute_batch, self.data_adapter.get_numpy_iterator())

    def __next__(self) -> tuple[int, int, list[Any]]:
        """Return the numbers of the first and the last batch of an execution, and its batches,
        which are fewer at the end of the data."""
        first, last, iterator = next(self._epoch_iterator)
        batches: list[Any] = []
        with self.catch_stop_iteration():  # which warns, if there is none
            batches.append(next(iterator))
        if not batches:
            raise StopIteration
        batches += islice(iterator, self.steps_per_execution - 1)
        return first, last, batches


class NumpyTrainer(base_trainer.Trainer):  # type: ignore[misc]
    """The part of Keras' Model that trains it, under the name by which Keras looks for it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Have the files of Keras' Model written by one process."""
        super().__init_subclass__(**kwargs)
        for name in ("save", "save_weights") if cls.__module__.startswith("keras.") else ():
            if name in vars(cls):
                setattr(cls, name, written_once(vars(cls)[name]))

    def __init__(self) -> None:
        super().__init__()
        self.train_function: Step | None = None
        self.test_function: Step | None = None
        self.predict_function: Step | None = None
        self._eval_epoch_iterator: BatchIterator | None = None
        self._strategy_distribution = distribution_lib.distribution_of_strategy()

    # ------------------------------------------------------------ one step

    def train_step(self, data: Any, *stateless: Any) -> Any:
        """Change variables by a batch, and return the logs; `train_step(state, data)` changes none
        and returns `(logs, state)`.

        Loss, gradients and what metrics add up are reduced over devices in one bundle.
        """
        if stateless:
            return self._without_effect("train", data, *stateless)
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        variables = self.trainable_variables
        has_own_metrics = type(self).compute_metrics is not DEFAULT_METRICS
        values = renamed([variable.value for variable in variables])
        with GradientTape() as tape, holding(variables, values):
            y_pred = self._predictions(x, training=True)
            loss = self._loss(x, y, y_pred, sample_weight, training=True)
            if self._compile_metrics is not None and not has_own_metrics:
                self._compile_metrics.update_state(y, y_pred, sample_weight)
            scaled = loss if self.optimizer is None else self.optimizer.scale_loss(loss)
        pending = partial_variables(self)
        together = [loss, *[variable._value for variable in pending]]
        # A variable on which the loss does not depend has a gradient of zeros, as on JAX.
        gradients = tape._gradient(scaled, values, None, "zero", together)
        loss, *sums = [array.resolve() for array in together]
        put(pending, sums)
        if variables:
            self.optimizer.apply(gradients, variables)
        else:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        self._loss_tracker.update_state(loss, sample_weight=_rows(x))
        if has_own_metrics:
            return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return self.get_metrics_result()

    def test_step(self, data: Any, *stateless: Any) -> Any:
        """Return the logs of a batch; as `train_step`, without gradients."""
        if stateless:
            return self._without_effect("test", data, *stateless)
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        y_pred = self._predictions(x, training=False)
        loss = self._loss(x, y, y_pred, sample_weight, training=False)
        self._loss_tracker.update_state(loss, sample_weight=_rows(x))
        if type(self).compute_metrics is not DEFAULT_METRICS:
            return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        if self._compile_metrics is not None:
            self._compile_metrics.update_state(y, y_pred, sample_weight)
        pending = partial_variables(self)
        values = [v._value for v in pending]
        put(pending, move_to_layouts(values, [value.layout.resolved for value in values]))
        return self.get_metrics_result()

    def predict_step(self, data: Any, *stateless: Any) -> Any:
        """Return the outputs of a batch."""
        if stateless:
            return self._without_effect("predict", data, *stateless)
        return self._predictions(unpack_x_y_sample_weight(data)[0], training=False)

    def _predictions(self, x: Any, *, training: bool) -> Any:
        """The outputs for a batch, reduced over devices once for the loss and all metrics."""
        y_pred = self(x, training=training) if self._call_has_training_arg else self(x)
        return tree.map_structure(_resolved, y_pred)

    def _loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool) -> Any:
        return self._compute_loss(
            x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
        )

    # ------------------------------------------------------------ steps with a state

    def _state(self, mode: str) -> list[list[Any]]:
        """The variables of a step, in the lists and the order of Keras' JAX backend."""
        lists = [self.trainable_variables, self.non_trainable_variables]
        if mode == "train":
            lists.append(self.optimizer.variables)
        return lists if mode == "predict" else [*lists, self.metrics_variables]

    def _without_effect(self, mode: str, state: Any, data: Any) -> tuple[Any, Any]:
        """Return what a step returns, and the state that it leaves, from a state that is given."""
        lists = self._state(mode)
        with holding([*chain(*lists)], [*chain(*state)]):
            result = getattr(NumpyTrainer, f"{mode}_step")(self, data)
            values = tuple([[v._value for v in variables] for variables in lists])
        return result, values[1] if mode == "predict" else values

    def _with_effect(self, mode: str, step: Step) -> Step:
        """Return a step of the data alone, made of one that takes a state and returns another."""

        def run(data: Any) -> Any:
            lists = self._state(mode)
            result, state = step(tuple([[v.value for v in each] for each in lists]), data)
            if mode == "predict":
                lists, state = [lists[1]], [state]
            for variables, values in zip(lists, state, strict=True):
                for variable, value in zip(variables, values, strict=True):
                    variable.assign(value)
            return result

        return run

    def __gdt_places__(self) -> list[distribution_lib.Told]:
        """Tell gdt.function the places of the arrays of a step: those of the model, and of its
        metrics and the optimizers among its attributes."""
        variables = [*self.metrics_variables, *global_seed()]
        for optimizer in vars(self).values():
            if isinstance(optimizer, Optimizer):
                variables += optimizer.variables
        told = [*super().__gdt_places__(), *distribution_lib.places(variables)]
        return [*{(id(owner), key): (name, owner, key) for name, owner, key in told}.values()]

    # ------------------------------------------------------------ functions of batches

    def _function(self, mode: str) -> Step:
        """Return a function of the list of batches of an execution."""
        step = getattr(self, f"{mode}_step")
        required = [p for p in inspect.signature(step).parameters.values() if _is_required(p)]
        if len(required) == 2:
            step = self._with_effect(mode, step)
        if not self.run_eagerly and self.jit_compile:
            step = RecordedStep(self, step, f"{mode}_step")

        def run(batches: Sequence[Any]) -> Any:
            results = [step(batch) for batch in batches]
            if mode != "predict" or len(results) == 1:
                return results[-1]
            return tree.map_structure(lambda *parts: concat(parts), *results)

        return run

    def make_train_function(self, force: bool = False) -> None:
        """Make the function of `fit` and `train_on_batch`."""
        if self.train_function is None or force:
            self.train_function = self._function("train")

    def make_test_function(self, force: bool = False) -> None:
        """Make the function of `evaluate` and `test_on_batch`."""
        if self.test_function is None or force:
            self.test_function = self._function("test")

    def make_predict_function(self, force: bool = False) -> None:
        """Make the function of `predict` and `predict_on_batch`."""
        if self.predict_function is None or force:
            self.predict_function = self._function("predict")

    def _distributed(self) -> Any:
        """The scope of the strategy in whose scope the model was made, unless another is set."""
        own = self._strategy_distribution
        is_set = own is None or distribution_lib.current_distribution() is not None
        return nullcontext() if is_set else own.scope()

    def _ready(self, mode: str, iterator: BatchIterator | None, data: Any = None) -> None:
        """Create the variables that there are not, and the function of a mode."""
        if mode == "predict":
            if not all(layer.built for layer in self._flatten_layers()):
                batch = next(iterator.enumerate_epoch())[2][0] if iterator else data
                with backend.StatelessScope():
                    self(unpack_x_y_sample_weight(batch)[0])
        else:
            self._symbolic_build(iterator=iterator, data_batch=data)
        if iterator is not None:
            iterator.reset()
        getattr(self, f"make_{mode}_function")()

    def _batches(
        self,
        data: tuple[Any, Any, Any],
        batch_size: int | None,
        steps: int | None,
        shuffle: bool = False,
        class_weight: Any = None,
    ) -> BatchIterator:
        """The batches of `(x, y, sample_weight)`."""
        x, y, sample_weight = data
        return BatchIterator(
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps,
            shuffle=shuffle,
            class_weight=class_weight,
            steps_per_execution=self.steps_per_execution,
        )

    def _callbacks(
        self, callbacks: Any, iterator: BatchIterator, verbose: Any, epochs: int, **kwargs: Any
    ) -> Any:
        if isinstance(callbacks, callbacks_module.CallbackList):
            return callbacks
        return callbacks_module.CallbackList(
            callbacks,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=epochs,
            steps=iterator.num_batches,
            model=self,
            **kwargs,
        )

    def _run_epoch(
        self, mode: str, stop: str, iterator: BatchIterator, callbacks: Any
    ) -> Iterator[Any]:
        """Yield what the function of a mode returns of each execution, until the attribute `stop`
        of the model is set."""
        function = getattr(self, f"{mode}_function")
        begin = getattr(callbacks, f"on_{mode}_batch_begin")
        end = _ended(callbacks, mode)
        for first, last, batches in iterator:
            begin(first)
            result = function(batches)
            end(last, {"outputs": result} if mode == "predict" else result)
            yield result
            if getattr(self, stop):
                break

    # ------------------------------------------------------------ loops

    @traceback_utils.filter_traceback  # type: ignore[untyped-decorator]
    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Any = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
    ) -> Any:
        """Train the model; return its History. Arguments: `keras.Model.fit`."""
        self._assert_compile_called("fit")
        epochs = _capped(epochs)
        self._eval_epoch_iterator = None
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = array_slicing.train_validation_split(
                (x, y, sample_weight), validation_split=validation_split
            )
        with self._distributed():
            data = x, y, sample_weight
            iterator = self._batches(data, batch_size, steps_per_epoch, shuffle, class_weight)
            self._ready("train", iterator)
            callbacks = self._callbacks(callbacks, iterator, verbose, epochs, add_history=True)
            validate = None
            if validation_data is not None:
                validate = partial(
                    self._validate,
                    callbacks,
                    validation_data,
                    validation_batch_size or batch_size,
                    validation_steps,
                )
            try:
                with callbacks_written_once(callbacks.callbacks):
                    self._run_epochs(
                        iterator, callbacks, initial_epoch, epochs, validate, validation_freq
                    )
            finally:
                self._eval_epoch_iterator = None
        return self.history

    def _run_epochs(
        self,
        iterator: BatchIterator,
        callbacks: Any,
        first: int,
        epochs: int,
        validate: Callable[[], Logs] | None,
        validation_freq: Any,
    ) -> None:
        self.stop_training = False
        training_logs: Logs = {}
        callbacks.on_train_begin()  # where BackupAndRestore says which epoch is the next
        for epoch in range(self._initial_epoch or first, epochs):
            self.reset_metrics()
            callbacks.on_epoch_begin(epoch)
            logs = _last(self._run_epoch("train", "stop_training", iterator, callbacks))
            # Metrics of the model in place of the logs of the last step.
            training_logs = dict(self._get_metrics_result_or_logs(logs))
            if validate is not None and self._should_eval(epoch, validation_freq):
                training_logs |= {f"val_{name}": value for name, value in validate().items()}
            callbacks.on_epoch_end(epoch, training_logs)
            if self.stop_training:
                break
        if isinstance(self.optimizer, Optimizer) and epochs > 0:
            self.optimizer.finalize_variable_values(self.trainable_weights)
        callbacks.on_train_end(logs=training_logs)

    def _validate(self, callbacks: Any, data: Any, batch_size: Any, steps: Any) -> Logs:
        """Return the logs of the validation data, whose iterator is kept for the next epoch."""
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        if self._eval_epoch_iterator is None:
            self._eval_epoch_iterator = self._batches((x, y, sample_weight), batch_size, steps)
        logs: Logs = self.evaluate(
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps=steps,
            callbacks=callbacks,
            return_dict=True,
            _use_cached_eval_dataset=True,
        )
        return logs

    @traceback_utils.filter_traceback  # type: ignore[untyped-decorator]
    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the loss and the metrics of data. Arguments: `keras.Model.evaluate`."""
        self._assert_compile_called("evaluate")
        is_validation = kwargs.pop("_use_cached_eval_dataset", False)
        if kwargs:
            raise ValueError(f"Arguments not recognized: {kwargs}")
        with self._distributed():
            iterator = self._eval_epoch_iterator if is_validation else None
            iterator = iterator or self._batches((x, y, sample_weight), batch_size, steps)
            self._ready("test", iterator)
            callbacks = self._callbacks(callbacks, iterator, verbose, 1)
            self.stop_evaluating = False
            callbacks.on_test_begin()
            self.reset_metrics()
            logs = _last(self._run_epoch("test", "stop_evaluating", iterator, callbacks))
            logs = pythonify_logs(self._get_metrics_result_or_logs(logs))
            callbacks.on_test_end(logs)
        return logs if return_dict else self._flatten_metrics_in_order(logs)

    @traceback_utils.filter_traceback  # type: ignore[untyped-decorator]
    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Return the outputs of data as NumPy arrays. Arguments: `keras.Model.predict`."""
        with self._distributed():
            iterator = self._batches((x, None, None), batch_size, steps)
            self._ready("predict", iterator)
            callbacks = self._callbacks(callbacks, iterator, verbose, 1)
            self.stop_predicting = False
            callbacks.on_predict_begin()
            outputs = [
                tree.map_structure(backend.convert_to_numpy, batch)
                for batch in self._run_epoch("predict", "stop_predicting", iterator, callbacks)
            ]
            callbacks.on_predict_end()
        return tree.map_structure(lambda *parts: np.concatenate(parts), *outputs)

    # ------------------------------------------------------------ single batches

    def _call(self, mode: str, batch: Any) -> Any:
        return getattr(self, f"{mode}_function")([batch])

    def _on_batch(self, mode: str, data: Any, return_dict: bool) -> Any:
        with self._distributed():
            batch = distribution_lib.distribute_batch(data)
            self._ready(mode, None, batch)
            self.reset_metrics()
            logs = pythonify_logs(self._call(mode, batch))
        return logs if return_dict else self._flatten_metrics_in_order(logs)

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Train on one batch; return its logs. Arguments: `keras.Model.train_on_batch`."""
        self._assert_compile_called("train_on_batch")
        if class_weight is not None:
            if sample_weight is not None:
                raise ValueError(
                    "Arguments `sample_weight` and `class_weight` cannot be specified at the same "
                    f"time. Received: sample_weight={sample_weight}, class_weight={class_weight}"
                )
            sample_weight = class_weight_to_sample_weights(y, class_weight)
        return self._on_batch("train", (x, y, sample_weight), return_dict)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """Return the logs of one batch. Arguments: `keras.Model.test_on_batch`."""
        self._assert_compile_called("test_on_batch")
        return self._on_batch("test", (x, y, sample_weight), return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """Return the outputs of one batch as NumPy arrays."""
        with self._distributed():
            batch = distribution_lib.distribute_batch((x,))
            self._ready("predict", None, batch)
            outputs = self._call("predict", batch)
        return tree.map_structure(backend.convert_to_numpy, outputs)


def _is_required(parameter: inspect.Parameter) -> bool:
    kinds = (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return parameter.kind in kinds and parameter.default is parameter.empty


def _resolved(leaf: Any) -> Any:
    """An output of a model without partial sums, with the mask that a layer has given it."""
    if type(leaf) is not DistributedArray:
        return leaf
    whole, mask = leaf.resolve(), get_keras_mask(leaf)
    if mask is not None and whole is not leaf:
        set_keras_mask(whole, mask)
    return whole


def _ended(callbacks: Any, mode: str) -> Callable[[int, Any], None]:
    """Return what is called with the logs of a batch; nothing reads those that no callback takes,
    for which the host would wait."""
    methods = (f"on_{mode}_batch_end", "on_batch_end")
    if all(is_default(getattr(each, name)) for each in callbacks.callbacks for name in methods):
        return lambda batch, logs: None
    return getattr(callbacks, methods[0])  # type: ignore[no-any-return]


def _rows(x: Any) -> int:
    """The number of rows of a batch."""
    return int(next(leaf for leaf in tree.flatten(x) if leaf is not None).shape[0])


def global_seed() -> list[Any]:
    """Return the variable of Keras' generator of seeds, of which draws without one take theirs."""
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return [] if generator is None else [generator.state]


def _last(results: Iterator[Logs]) -> Logs:
    """The last logs of an epoch; none of one without batches."""
    last = deque(results, maxlen=1)
    return last[0] if last else {}


def _capped(epochs: int) -> int:
    """The number of epochs, at most that of `keras.config.set_max_epochs`."""
    most = config.max_epochs()
    if not most or most >= epochs:
        return epochs
    warnings.warn(f"Limiting epochs to {most}", stacklevel=3)
    return int(most)


# ---------------------------------------------------------------- values of variables


@contextmanager
def holding(variables: Sequence[Any], values: Sequence[Any]) -> Iterator[None]:
    """Have variables hold other values in a `with` block, and their own again after it."""
    own = [variable._value for variable in variables]
    put(variables, values)
    try:
        yield
    finally:
        put(variables, own)


def put(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Put values into variables as they are, in whatever layout."""
    for variable, value in zip(variables, values, strict=True):
        variable._value = value


def partial_variables(model: Any) -> list[Any]:
    """Return the variables that a forward pass has left as sums that are still to be reduced."""
    variables = [*model.non_trainable_variables, *model.metrics_variables]
    return [
        v
        for v in variables
        if type(v._value) is DistributedArray and any(v._value.layout.reductions)
    ]
