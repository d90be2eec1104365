"""Options, pictures and the table of results, for both examples."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")  # writes files, needs no display

import numpy as np
from filelock import FileLock, Timeout
from matplotlib import pyplot as plt
from rich import box
from rich.console import Console
from rich.table import Table

import gdt
from gdt import Mesh
from gdt.nn import Module
from gdt.training import History

COLOURS = ["#2a6fdb", "#d1495b", "#3a8f5c"]

console = Console()


class Run(NamedTuple):
    """One training: its name, mesh, history, model, and duration in seconds."""

    name: str
    mesh: Mesh
    history: History
    model: Module
    seconds: float


def launch(main: Callable[[], object]) -> None:
    """Connect the processes that a launcher has started, if one has, and run `main` in each.

    The first process prints. Ctrl-C ends with one line and status 130.
    """
    gdt.distributed.initialize()
    console.quiet = gdt.distributed.process_index() > 0
    try:
        main()
    except KeyboardInterrupt as interrupt:
        console.print(f"\n{str(interrupt) or 'Interrupted.'}", soft_wrap=True)
        sys.exit(130)


@contextmanager
def only_run_in(output: Path) -> Iterator[None]:
    """Keep other runs out of the folder of pictures and checkpoints; exit if one is in it.

    Raises KeyboardInterrupt again, with the name of the folder.
    """
    if gdt.distributed.process_index() > 0:
        yield
        return
    output.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(output / ".lock", timeout=0):
            yield
    except KeyboardInterrupt as interrupt:
        text = str(interrupt) or "Interrupted."
        raise KeyboardInterrupt(f"{text} What was saved is in {output.resolve()}.") from None
    except Timeout:
        sys.exit(
            f"Another example writes to {output.resolve()}.\n"
            "  Wait until it has ended, or choose another folder with --output."
        )


def options(description: str | None, *datasets: str) -> argparse.Namespace:
    """Parse the command line of an example: `output`, `full`, and a folder for each data set."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for dataset in datasets:
        flag = "--data-dir" if len(datasets) == 1 else f"--{dataset}-dir"
        parser.add_argument(
            flag,
            dest=f"{dataset}_dir",
            type=Path,
            metavar="FOLDER",
            help=f"the original files of {dataset}; the installed package by default",
        )
    parser.add_argument("--output", type=Path, default=Path("outputs"), help="folder for pictures")
    if "mnist" in datasets:
        parser.add_argument("--full", action="store_true", help="all 60,000 digits, not 5,000")
    return parser.parse_args()


def plot(runs: Sequence[Run], path: Path) -> Path:
    """Draw the loss of every step and the accuracy of every epoch of successive trainings."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    step, epoch = 0, 0
    before: Run | None = None
    for run, colour in zip(runs, COLOURS, strict=False):
        losses = np.array([results["loss"] for results in run.history.steps])
        steps = step + np.arange(1, len(losses) + 1)
        left.plot(steps, losses, color=colour, alpha=0.2, linewidth=0.8)
        left.plot(steps, smoothed(losses), color=colour, linewidth=1.8, label=run.name)
        epochs = epoch + np.arange(1, len(run.history.epochs) + 1)
        for name, style in (("accuracy", "o--"), ("val_accuracy", "o-")):
            right.plot(epochs, run.history[name], style, color=colour, markersize=5)
            if before is not None:
                joined = [before.history[name][-1], run.history[name][0]]
                right.plot([epoch, epoch + 1], joined, style[1:], color="grey", linewidth=0.8)
        step, epoch, before = steps[-1], epochs[-1], run
    left.set(title="Training loss", xlabel="step", ylabel="cross-entropy", ylim=(0, None))
    right.set(title="Accuracy", xlabel="epoch", xticks=range(1, epoch + 1))
    right.plot([], [], "o--", color="grey", label="training")
    right.plot([], [], "o-", color="grey", label="held out")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    if gdt.distributed.process_index() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def smoothed(values: np.ndarray) -> np.ndarray:
    """Return the mean of each value and its neighbours, a twentieth of all values."""
    reach = len(values) // 40
    totals = np.cumsum(np.concatenate([[0.0], values]))
    at = np.arange(len(values))
    start, stop = np.maximum(at - reach, 0), np.minimum(at + reach + 1, len(values))
    return (totals[stop] - totals[start]) / (stop - start)


def table(runs: Sequence[Run]) -> Table:
    """Return a table with a line for each training: loss, accuracies and time."""
    results = Table(
        title="Trainings on 8 virtual devices", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    results.add_column("training")  # wraps where a terminal is narrow
    results.add_column("mesh", no_wrap=True)
    for name in ("loss", "accuracy", "held out", "time"):
        results.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        first, last = run.history.epochs[0], run.history.epochs[-1]
        results.add_row(
            run.name,
            "x".join(map(str, run.mesh.sizes)),
            f"{first['loss']:.3f} → {last['loss']:.3f}",
            f"{last['accuracy']:.3f}",
            f"[bold]{last['val_accuracy']:.3f}[/bold]",
            f"{run.seconds:.0f} s",
        )
    return results
