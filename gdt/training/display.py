"""The progress of a training: a live line for each epoch in a terminal, else a line at its end."""

from __future__ import annotations

import html
import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich import get_console
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
)
from rich.table import Column

from gdt.training.history import Numbers

PERIOD = 0.1  # seconds between two updates of the progress bars in a notebook
WIDE = 60  # columns of the narrowest terminal that shows a bar


class Display:
    """The progress of a training on a console.

    console: rich's; None for the one that rich shares. show: whether anything is shown. is_live:
    whether a line changes while a pass runs, as in a terminal or a notebook.
    """

    def __init__(self, console: Console | None, show: bool) -> None:
        self.console, self.show = console or get_console(), show
        in_notebook = self.console.is_jupyter
        self.is_live = show and (self.console.is_terminal or in_notebook)
        progress_type = NotebookProgress if in_notebook and show else Progress
        self._progress = progress_type(
            *self._columns(), console=self.console, disable=not self.is_live
        )
        self._label, self._task = "", TaskID(0)  # of the pass that runs

    def _columns(self) -> list[ProgressColumn]:
        """Return the columns of a live line; a narrow terminal has no room for bar and time."""
        name, results = "{task.description}", "{task.fields[numbers]}"
        cut = Column(no_wrap=True, overflow="ellipsis")
        if self.console.width < WIDE:
            return [TextColumn(f"{name} {results}", table_column=cut)]
        seconds, numbers = TextColumn("{task.elapsed:.0f}s"), TextColumn(results, table_column=cut)
        bar = BarColumn(bar_width=10)
        return [TextColumn(name), bar, MofNCompleteColumn(), seconds, numbers]

    @contextmanager
    def running(self, title: str) -> Iterator[None]:
        """Show `title`, then the passes that begin inside the `with` block."""
        if title:
            self.line(title)
        with self._progress:
            yield

    def line(self, text: str) -> None:
        """Show a line of text."""
        if self.show:
            self._progress.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def begin(self, label: str, total: int | None) -> None:
        """Begin an epoch, or another pass, of `total` batches (None: not known)."""
        self._label = label
        self._task = self._progress.add_task(label, total=total, numbers="")

    def update(self, done: int, results: Numbers) -> None:
        """Show the results after `done` batches, on a live line."""
        if self.is_live:
            self._progress.update(self._task, completed=done, numbers=text_of(results))

    def end(self, done: int, results: Numbers) -> None:
        """Show the results of the whole pass, which had `done` batches."""
        self._progress.update(self._task, completed=done, total=done, numbers=text_of(results))
        self._progress.stop_task(self._task)
        if not self.is_live:
            steps = f"{done} {'batch' if done == 1 else 'batches'}"
            self.line(f"{self._label}  {steps}  {text_of(results)}")


class NotebookProgress(Progress):
    """Progress bars as text in a notebook: one output of the cell, which each update replaces.

    (The `Progress` of rich needs ipywidgets in a notebook.)
    """

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
        return self._html(f"<pre style='font-family:monospace'>{html.escape(capture.get())}</pre>")


def text_of(results: Numbers) -> str:
    """Return numbers as text, those of validation without their names; arrays are left out.

    >>> from gdt.training.display import text_of
    >>> text_of({"loss": 0.31, "accuracy": 0.86, "val_loss": 0.33, "val_accuracy": 0.85})
    'loss 0.3100 accuracy 0.8600 val 0.3300 0.8500'
    """
    scalars = {n: v for n, v in results.items() if isinstance(v, float | int)}
    training = [f"{n} {v:.4f}" for n, v in scalars.items() if not n.startswith("val_")]
    validation = [f"{v:.4f}" for n, v in scalars.items() if n.startswith("val_")]
    return " ".join([*training, *(["val", *validation] if validation else [])])
