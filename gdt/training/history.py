"""History: the measurements of a training, by step and by epoch."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gdt.state.trees import LEAVES

Numbers = dict[str, Any]  # floats; of a metric such as ConfusionMatrix, an array


@dataclass(repr=False)
class History(Mapping[str, list[Any]]):
    """The measurements of a training; a mapping from names to the values of all epochs.

    steps: the loss and the metrics of every batch, by name; metrics that need many batches, such as
    `gdt.metrics.AUC`, are missing. epochs: the results of every epoch; with validation data also
    its results, under names that begin with `val_`. epoch: the numbers of these epochs, from 0, as
    in Keras. params: how the training was called.

    >>> history = gdt.training.History(epochs=[{"loss": 0.5}, {"loss": 0.25, "val_loss": 0.75}])
    >>> history["loss"], history.history
    ([0.5, 0.25], {'loss': [0.5, 0.25], 'val_loss': [0.75]})
    """

    steps: list[Numbers] = field(default_factory=list)
    epochs: list[Numbers] = field(default_factory=list)
    epoch: list[int] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        last = self.epochs[-1] if self.epochs else {}
        numbers = [f"{n} {v:.4g}" for n, v in last.items() if isinstance(v, float | int)]
        end = f"; at the end {', '.join(numbers)}" if numbers else ""
        return f"<History of {len(self.epochs)} epochs, {len(self.steps)} steps{end}>"

    def __iter__(self) -> Iterator[str]:
        return iter(self.history)

    def __len__(self) -> int:
        return len(self.history)

    def __getitem__(self, name: str) -> list[Any]:
        """Return one quantity of every epoch that has it."""
        values = [epoch[name] for epoch in self.epochs if name in epoch]
        if not values:
            raise KeyError(f"{name!r} was not measured; {', '.join(self.history) or 'nothing'} was")
        return values

    @property
    def history(self) -> dict[str, list[Any]]:
        """All quantities by name, epoch by epoch, as Keras has them."""
        names = dict.fromkeys(name for results in self.epochs for name in results)
        return {name: [r[name] for r in self.epochs if name in r] for name in names}

    def plot(self) -> Any:
        """Draw every quantity over the epochs, training and validation in one picture.

        Returns matplotlib's Figure, which a notebook shows; `figure.savefig(path)` writes it. Needs
        matplotlib.

        >>> import numpy as np
        >>> trainer = gdt.Trainer(gdt.nn.Dense(1, 1, key=0), "sgd", "mse")
        >>> history = trainer.fit([(np.ones((2, 1)), np.ones((2, 1)))], epochs=2, show=False)
        >>> type(history.plot()).__name__
        'Figure'
        """
        from matplotlib.figure import Figure  # noqa: PLC0415
        from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

        scalars = {
            name: [(n, r[name]) for n, r in zip(self.epoch, self.epochs, strict=True) if name in r]
            for name, values in self.history.items()
            if isinstance(values[0], float | int)
        }
        names = [name for name in scalars if not name.startswith("val_")]
        figure: Any = Figure(figsize=(4.2 * max(len(names), 1), 3.2), layout="constrained")
        for number, name in enumerate(names, start=1):
            axes = figure.add_subplot(1, len(names), number)
            for label, style in ((name, "o-"), (f"val_{name}", "o--")):
                if label in scalars:
                    epochs, values = zip(*scalars[label], strict=True)
                    axes.plot([n + 1 for n in epochs], values, style, label=label, markersize=4)
            axes.set(title=name, xlabel="epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(alpha=0.25)
            axes.legend()
        figure._repr_png_ = partial(_png, figure)  # by which a notebook shows it
        return figure


LEAVES.add(History)  # of a tree: a record of numbers is no state of the model that refers to it


def _png(figure: Any) -> bytes:
    """Return a picture of a figure."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
