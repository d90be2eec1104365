"""Compilable: compile, fit, evaluate, predict and save as methods of every Module, as in Keras.

What they do belongs to `gdt.training` and `gdt.saving`, which stand above this package, and load
when a method is first called.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from rich.console import Console

from gdt.arguments import checked, compared_first
from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, IndexRangeError, error
from gdt.state import Stateful

NOT_BUILT = "Its layers find their sizes at the first call: call it with a batch first."

Verbose = Literal["auto", 0, 1, 2]  # True is 1, and False 0


def _keras() -> ModuleType:
    """Return the module of the functions behind the methods of `Compilable`, each of which takes
    the arguments of its method by their names, with the model as `self`."""
    return importlib.import_module("gdt.training.keras")


def own_method(model: Any, name: str) -> Callable[..., Any] | None:
    """Return the method of that name that a model, or its class, has in the place of that of
    `Compilable`; None if it has none."""
    method = getattr(model, name)
    is_own = getattr(method, "__func__", method) is not getattr(Compilable, name)
    return method if is_own else None


class Compilation:
    """A model's trainer, kept where it is no part of the model."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer


class Compilable(Stateful):
    """The base of modules: training, evaluation, predictions and saving in Keras' words."""

    _compilation: Compilation | None = None

    if TYPE_CHECKING:  # of Module, the subclass

        def state(self) -> dict[str, DistributedArray]: ...
        def load(self, state: Mapping[str, Any]) -> Self: ...
        def modules(self) -> Iterator[tuple[str, Any]]: ...

        layers: Any
        optimizer: Any
    else:

        def __getattr__(self, name: str) -> object:
            if name == "optimizer" and self._compilation is not None:
                return self._compilation.trainer.optimizer
            return super().__getattr__(name)

    @property
    def compiled(self) -> Any:
        """The `gdt.Trainer` that `compile` has made, with `optimizer`, `loss` and `metrics`.

        Raises ArgumentError before `compile`.
        """
        return _keras().compiled(self)

    @compared_first
    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        metrics: Any = None,
        *,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        clip_norm: float | None = None,
        **options: Any,
    ) -> None:
        """Choose how the model is trained and measured; see `gdt.Trainer`.

        optimizer: an optimizer, or its name. loss: a function `(y, predictions)`, or its name:
        Keras' names of cross-entropies expect probabilities, those of gdt (such as
        "sparse_softmax_cross_entropy") logits. metrics: names, functions and Metrics, in a list or
        a mapping by name; weighted_metrics: such that take sample weights into account.
        run_eagerly: whether steps run as written, and not as recorded by `gdt.function`.

        >>> import numpy as np
        >>> model = gdt.nn.Sequential(gdt.nn.Dense(1, 1, key=0))
        >>> model.compile(gdt.optim.Adam(0.1), loss="mse")
        >>> x = np.linspace(0, 1, 20, dtype="float32")[:, None]
        >>> history = model.fit(x, 3 * x, epochs=300, verbose=0)
        >>> model.predict(np.ones((1, 1), "float32"), verbose=0).round(1).tolist()
        [[3.0]]
        """
        _keras().compile(**locals())

    @compared_first
    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Verbose = "auto",
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
        *,
        resume: str | os.PathLike[str] | None = None,
        save_every: int | None = None,
    ) -> Any:
        """Train the model; return the History.

        x, y, sample_weight: arrays of n rows, or x alone an iterable of batches. batch_size: 32 if
            not given; the last batch may have fewer rows. shuffle: whether rows come in another
            order in every epoch, from `gdt.random`.
        epochs: the number of the last epoch; initial_epoch: how many were done before.
        validation_split: the fraction of the last rows that are not trained on but validated with.
        validation_data: (x, y), (x, y, weights), or an iterable of batches.
        verbose: 0 shows nothing, 2 a line an epoch, 1 and "auto" also the progress in terminals.
        resume, save_every, callbacks, class_weight and the others: see `gdt.Trainer.fit`.

        Raises ArgumentError before `compile`; ShapeError where arrays differ in their rows.
        """
        return _keras().fit(**locals())

    @compared_first
    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Verbose = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Return loss and metrics as a list, the loss alone where there are no metrics, or as a
        dict; means over rows."""
        return _keras().evaluate(**locals())

    @compared_first
    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Verbose = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Return the predictions for all rows as one NumPy array."""
        return _keras().predict(**locals())

    @compared_first
    def train_on_batch(
        self,
        x: Any,
        y: Any,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Take one step; return loss and metrics of the batch as `evaluate` does."""
        return _keras().train_on_batch(**locals())

    @compared_first
    def test_on_batch(
        self, x: Any, y: Any, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """Return loss and metrics of one batch in evaluation mode as `evaluate` does."""
        return _keras().test_on_batch(**locals())

    @compared_first
    def predict_on_batch(self, x: Any) -> Any:
        """Return the predictions for one batch as a NumPy array."""
        return _keras().predict_on_batch(**locals())

    def train_step(self, data: Any) -> dict[str, Any]:
        """Take one step with a batch (x, y) or (x, y, weights); return its results by name.

        A subclass may define steps of its own, as in Keras: `fit` and `train_on_batch` call its
        `train_step`, the validations of `fit`, `evaluate` and `test_on_batch` its `test_step`, and
        the steps of gdt its `compute_loss`. Steps return a dict of arrays, of which `fit` reports
        the means over the rows of an epoch: a step returns the results of its batch, and no running
        mean. They are recorded as all steps are (`run_eagerly=True`: they are not). Without a loss
        in them `compile` needs one.

        Raises ArgumentError before `compile`.

        >>> import numpy as np
        >>> class Network(gdt.nn.Sequential):
        ...     def train_step(self, data):
        ...         x, y = data
        ...         with gdt.GradientTape() as tape:
        ...             loss = self.compute_loss(y=y, y_pred=self(x))
        ...         self.optimizer.update(self, tape.gradient(loss, self))
        ...         return {"loss": loss, "rate": gdt.sqrt(loss)}
        >>> model = Network(gdt.nn.Dense(1, 1, key=0))
        >>> model.compile("sgd", "mse")
        >>> x = np.ones((4, 1), "float32")
        >>> sorted(model.fit(x, x, verbose=0).history)
        ['loss', 'rate']
        """
        return _keras().train_step(**locals())  # type: ignore[no-any-return]

    def test_step(self, data: Any) -> dict[str, Any]:
        """Measure a batch (x, y) or (x, y, weights); return its results by name. See `train_step`.

        Raises ArgumentError before `compile`."""
        return _keras().test_step(**locals())  # type: ignore[no-any-return]

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None
    ) -> DistributedArray:
        """Return the loss of a batch, by the loss that `compile` was given. See `train_step`.

        Raises ArgumentError before `compile`, and where that was given no loss."""
        return _keras().compute_loss(**locals())  # type: ignore[no-any-return]

    def get_weights(self) -> list[np.ndarray]:
        """Return all arrays of `state()`, in its order, as NumPy arrays."""
        return [array.numpy() for array in self.state().values()]

    @checked
    def set_weights(self, weights: Sequence[Any]) -> None:
        """Replace all arrays of `state()` by those of a list in its order, cast to their dtypes.

        Raises ArgumentError for another number of arrays, CheckpointError for other shapes.

        >>> model = gdt.nn.Dense(2, 1)
        >>> model.set_weights([[[1.0], [2.0]], [3.0]])
        >>> model.get_weights()[0].tolist()
        [[1.0], [2.0]]
        """
        state = self.state()
        if len(weights) != len(state):
            problem = f"{len(weights)} arrays for {len(state)}"
            remedy = f"They are {', '.join(state)}." if state else NOT_BUILT
            op = f"{type(self).__name__}.set_weights"
            raise error(ArgumentError, op, problem, remedy=remedy)
        pairs = zip(state.items(), weights, strict=True)
        self.load({name: np.asarray(w, old.dtype) for (name, old), w in pairs})

    def count_params(self) -> int:
        """Return how many numbers the arrays of `state()` hold.

        >>> gdt.nn.Dense(4, 3).count_params()
        15
        """
        return sum(array.size for array in self.state().values())

    @checked
    def get_layer(self, name: str | None = None, index: int | None = None) -> Any:
        """Return the part of that name, as `modules()` has it, or the layer of that number.

        Raises ArgumentError for a name of no part, for both and for neither; IndexRangeError for a
        number of no layer.

        >>> model = gdt.nn.Sequential(gdt.nn.Dense(4, 3), gdt.nn.Dense(3, 1))
        >>> model.get_layer("layers.1") is model.get_layer(index=1)
        True
        """
        op = f"{type(self).__name__}.get_layer"
        if (name is None) == (index is None):
            problem = f"name is {name!r}, and index is {index!r}"
            raise error(ArgumentError, op, problem, remedy="Pass one of them.")
        if index is not None:
            if not -len(self.layers) <= index < len(self.layers):
                problem = f"layer {index} is out of range for {len(self.layers)} layers"
                raise error(IndexRangeError, op, problem)
            return self.layers[index]
        parts = dict(self.modules())
        if name not in parts:
            names = ", ".join(filter(None, parts))
            remedy = f"There are {names}." if names else "It has no parts."
            raise error(ArgumentError, op, f"there is no {name!r}", remedy=remedy)
        return parts[name]

    @compared_first
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the whole model to a folder for `gdt.load_model`; return the folder."""
        saved: Path = importlib.import_module("gdt.saving.model").save_model(self, path)
        return saved

    @compared_first
    def summary(
        self, shape: Sequence[int] | None = None, *, console: Console | None = None
    ) -> None:
        """Print the layers of the model: the shape of each one's result, how many numbers it holds,
        their bytes on a device and its floating-point operations for a row, forwards; and the
        layout of every array.

        shape: that of a row of inputs, without the batch; a model with a `gdt.nn.Input` has it.
            Where neither gives it, shapes and operations are shown as "?". The model is called with
            a row of zeros, which also makes the arrays of layers that find their sizes then.
        console: rich's console to print on.

        >>> gdt.nn.Sequential(gdt.nn.Input((4,)), gdt.nn.Dense(3)).summary()
        layer                       result  parameters  bytes  FLOPs
        layers.0 Dense           (None, 3)          15     60     24
          weight float32[4, 3]  [-, -]
          bias float32[3]  [-]
        15 numbers, of which 15 are trained
        60B on each device
        24 FLOPs for a row, forwards
        """
        importlib.import_module("gdt.nn.summary").summary(self, shape, console)
