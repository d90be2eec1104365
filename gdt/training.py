"""Trainer: epochs over batches with a live progress bar, evaluation and callbacks.

A trainer contains only what every training loop repeats; `step` and `evaluate` are short enough to
be copied and changed.
"""

from __future__ import annotations

import html
import io
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich import get_console
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from gdt.arguments import checked, checked_class, shown_value
from gdt.array.array import DistributedArray
from gdt.autodiff.tape import GradientTape
from gdt.errors import ArgumentError, error, frame_of_user
from gdt.metrics import Mean
from gdt.nn.module import Module
from gdt.optim.optimizer import Optimizer
from gdt.sharding import processes
from gdt.state import Stateful

Numbers = dict[str, float]
Function = Callable[[Any, DistributedArray], DistributedArray]  # (targets, predictions) -> scalar
Callback = Callable[[int, Numbers], object]  # called after every epoch with its number and results

REITERABLE = "Pass a list, or an object that yields its batches again in every iteration."
REFRESH = 8  # steps between two updates of the progress bar
PERIOD = 0.1  # seconds between two pictures of the progress bars in a notebook


@dataclass
class History:
    """The measurements of a training.

    steps: the loss and the metrics of every batch, by name. epochs: their means over every epoch;
    with validation data also its results, under names that begin with `val_`.
    """

    steps: list[Numbers] = field(default_factory=list)
    epochs: list[Numbers] = field(default_factory=list)

    def __getitem__(self, name: str) -> list[float]:
        """Return one quantity, epoch by epoch."""
        return [epoch[name] for epoch in self.epochs]


@checked_class(eager=True)
class Trainer(Stateful):
    """The training and evaluation of a model on batches `(x, y)` of distributed arrays.

    loss: a function `(y, predictions) -> scalar array`, such as those of `gdt.nn.losses`.
    metrics: such functions by name, as those of `gdt.metrics`.

    Model and batches have any layouts. `gdt.checkpoint` saves a trainer's model and optimizer.

    Raises ArgumentError for a metric called `loss` or `val_...`.

    >>> model = gdt.nn.Sequential(gdt.nn.Dense(2, 1, key=0))
    >>> x = gdt.asarray([[0.0, 1.0], [1.0, 0.0]], "float32")
    >>> y = gdt.asarray([[1.0], [-1.0]], "float32")
    >>> trainer = gdt.training.Trainer(model, gdt.optim.SGD(0.1), gdt.nn.losses.mean_squared_error)
    >>> history = trainer.fit([(x, y)], epochs=50, show=False)
    >>> history["loss"][-1] < history["loss"][0]
    True
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        loss: Function,
        metrics: Mapping[str, Function] | None = None,
    ) -> None:
        clashes = sorted(n for n in metrics or {} if n == "loss" or n.startswith("val_"))
        if clashes:
            problem = f"a metric is called {clashes[0]!r}, which is the name of another result"
            raise error(ArgumentError, "Trainer", problem, remedy="Give it another name.")
        self.model, self.optimizer = model, optimizer
        self.loss, self.metrics = loss, dict(metrics or {})

    def __repr__(self) -> str:
        functions = {"loss": self.loss, **self.metrics}
        shown = [f"{n}={getattr(f, '__name__', None) or repr(f)}" for n, f in functions.items()]
        model = type(self.model).__name__
        return f"Trainer({model}, {', '.join(shown)}) with {self.optimizer!r}"

    def step(self, x: Any, y: Any) -> dict[str, DistributedArray]:
        """Update the model once; return the loss and the metrics of the batch, by name.

        They are resolved in one collective with the gradients."""
        with GradientTape() as tape:
            predictions = self.model(x)
            loss = self.loss(y, predictions)
            metrics = {name: metric(y, predictions) for name, metric in self.metrics.items()}
        gradients = tape.gradient(loss, self.model, together_with=list(metrics.values()))
        self.optimizer.update(self.model, gradients)
        return {"loss": loss, **metrics}

    def evaluate(self, batches: Iterable[tuple[Any, Any]]) -> Numbers:
        """Return the means of loss and metrics over all rows of all batches, in evaluation mode.

        Raises ArgumentError if there is no batch, as in an iterator that has ended.
        """
        means = self._means()
        with evaluating(self.model):
            for x, y in _pairs(batches, "evaluate"):
                predictions = self.model(x)
                means["loss"].update(self.loss(y, predictions), weight=y.shape[0])
                for name, metric in self.metrics.items():
                    means[name].update(metric(y, predictions), weight=y.shape[0])
        return {name: mean.result() for name, mean in means.items()}

    def fit(
        self,
        batches: Iterable[tuple[Any, Any]],
        epochs: int = 1,
        *,
        validation: Iterable[tuple[Any, Any]] | None = None,
        callbacks: Sequence[Callback] = (),
        title: str = "",
        show: bool = True,
        console: Console | None = None,
    ) -> History:
        """Train for some epochs; return what was measured.

        An epoch is one pass over `batches`, then an evaluation on `validation`, then the callbacks.

        batches, validation: iterables of pairs `(x, y)`.
        callbacks: functions of the number of the epoch, from 1, and its results by name.
        title: a line above the progress bars. show: whether process 0 prints anything.
        console: rich's console to print on.

        Raises ArgumentError for iterators if there are several epochs, since they end with the
        first, and where an epoch has no batch.
        """
        for name, iterable in (("batches", batches), ("validation", validation)):
            if epochs > 1 and isinstance(iterable, Iterator):
                class_name = type(iterable).__name__
                problem = f"{name} is a {class_name}, which ends with the first epoch of {epochs}"
                raise error(ArgumentError, "Trainer.fit", problem, remedy=REITERABLE)
        history = History()
        show = show and processes.current().index == 0
        total = len(batches) if isinstance(batches, Sized) else None
        progress = _progress(console, show)
        if title and show:
            progress.console.print(title)
        with progress:
            for epoch in range(1, epochs + 1):
                task = progress.add_task(f"epoch {epoch}/{epochs}", total=total, numbers="")

                def report(done: int, text: str, task: TaskID = task) -> None:
                    progress.update(task, completed=done, total=total or done, numbers=text)

                try:
                    results = self._epoch(batches, history, report)
                except KeyboardInterrupt:
                    raise KeyboardInterrupt(_interrupted(history)) from None
                if validation is not None:
                    validated = self.evaluate(validation)
                    results |= {f"val_{name}": value for name, value in validated.items()}
                report(len(history.steps) // epoch, _text(results))
                progress.stop_task(task)
                history.epochs.append(results)
                for callback in callbacks:
                    callback(epoch, results)
        return history

    def _epoch(
        self,
        batches: Iterable[tuple[Any, Any]],
        history: History,
        report: Callable[[int, str], None],
    ) -> Numbers:
        """Train on all batches once; return the means of loss and metrics."""
        means = self._means()
        for number, (x, y) in enumerate(_pairs(batches, "fit"), start=1):
            results = {name: float(value) for name, value in self.step(x, y).items()}
            history.steps.append(results)
            if not math.isfinite(results["loss"]) and _all_finite(history.steps[:-1]):
                warnings.warn(
                    f"Trainer.fit: the loss is {results['loss']} in batch {number} of epoch "
                    f"{len(history.epochs) + 1}, and training from here on may be without effect; "
                    "`with gdt.check_nans():` around fit names the op",
                    stacklevel=frame_of_user()[1],
                )
            for name, value in results.items():
                means[name].update(value, weight=y.shape[0])
            if number % REFRESH == 0:
                report(number, _text({name: mean.result() for name, mean in means.items()}))
        return {name: mean.result() for name, mean in means.items()}

    def _means(self) -> dict[str, Mean]:
        return {name: Mean() for name in ("loss", *self.metrics)}


def _interrupted(history: History) -> str:
    """Say how far a training came before it was interrupted."""
    epochs, steps = len(history.epochs), len(history.steps)
    return (
        f"Training was interrupted after {steps} steps and {epochs} whole epochs; "
        "the model keeps what these steps have learnt."
    )


def _all_finite(steps: Sequence[Numbers]) -> bool:
    """Return whether the loss of every step is finite."""
    return all(math.isfinite(results["loss"]) for results in steps)


def _pairs(batches: Iterable[Any], method: str) -> Iterator[tuple[Any, Any]]:
    """Yield all batches as pairs; raise ArgumentError if there is none."""
    count = 0
    for batch in batches:
        count += 1
        yield _pair(batch)
    if not count:
        raise error(ArgumentError, f"Trainer.{method}", "there is no batch", remedy=REITERABLE)


def _pair(batch: Any) -> tuple[Any, Any]:
    """Return a batch as a pair (x, y), or raise ArgumentError."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        what = f"a {type(batch).__name__}"
        what += f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise error(ArgumentError, "Trainer", f"a batch is {what}, not a pair (x, y)")
    x, y = batch
    return x, y


@contextmanager
@checked
def evaluating(model: Module) -> Iterator[Module]:
    """Put the model in evaluation mode inside the `with` block, and restore every part's mode.

    Raises ArgumentError for an argument that is no Module.

    >>> model = gdt.nn.Dropout(0.5, key=0)
    >>> with gdt.training.evaluating(model):
    ...     model(gdt.ones((2,))).tolist()
    [1.0, 1.0]
    """
    if not isinstance(model, Module):
        raise error(ArgumentError, "evaluating", f"model is {shown_value(model)}, not a Module")
    modes = [(module, module.training) for _, module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, training in modes:
            module.training = training


class NotebookProgress(Progress):
    """Progress bars in a notebook, as text in one output of the cell that is replaced as training
    goes on. (rich's own display needs the widgets of ipywidgets there.)"""

    def start(self) -> None:
        """Create the output."""
        from IPython.display import HTML, display  # noqa: PLC0415 - notebooks alone have it

        self._html, self._shown_at = HTML, time.monotonic()
        self._handle = display(self._page(), display_id=True)

    def stop(self) -> None:
        """Show the last state."""
        self.refresh()

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Update a bar, and show it unless the output is younger than `PERIOD`."""
        super().update(*args, **kwargs)
        if time.monotonic() - self._shown_at > PERIOD:
            self.refresh()

    def refresh(self) -> None:
        """Replace the output."""
        self._shown_at = time.monotonic()
        self._handle.update(self._page())

    def _page(self) -> Any:
        """Return the bars as IPython's HTML."""
        console = Console(file=io.StringIO(), width=100, color_system=None, force_jupyter=False)
        with console.capture() as capture:
            console.print(self.get_renderable())
        return self._html(f"<pre>{html.escape(capture.get())}</pre>")


def _progress(console: Console | None, show: bool) -> Progress:
    """Return a progress bar of a line for each epoch, which fits in 80 columns with one metric and
    a validation."""
    console = console or get_console()
    progress_type = NotebookProgress if console.is_jupyter and show else Progress
    return progress_type(
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TextColumn("{task.elapsed:.0f}s"),
        TextColumn("{task.fields[numbers]}"),
        console=console,
        disable=not show,
    )


def _text(numbers: Numbers) -> str:
    """Return results as text: `loss 0.31  accuracy 0.86  val 0.33 0.85`."""
    training = [f"{n} {v:.4f}" for n, v in numbers.items() if not n.startswith("val_")]
    validation = [f"{v:.4f}" for n, v in numbers.items() if n.startswith("val_")]
    return " ".join([*training, *(["val", *validation] if validation else [])])
