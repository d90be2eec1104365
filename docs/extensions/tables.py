"""`python -m docs.extensions.tables` writes docs/tables.md: layers, losses, metrics and so on."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gdt
from docs.extensions.summaries import summary
from gdt.nn import Module, activations, initializers, losses
from gdt.optim import Optimizer, names
from gdt.training import Callback, measuring

PAGE = Path(__file__).parent.parent / "tables.md"


def table(rows: Iterable[tuple[str, Any, str]]) -> list[str]:
    """Lines of a table: how a thing is called, what it is, and its names as texts."""
    rows = [(f"`{n}`", summary(inspect.getdoc(v) or ""), t) for n, v, t in rows]
    columns = 3 if any(text for _, _, text in rows) else 2
    lines = [("name", "what it is", "as a text")[:columns], ("---",) * columns]
    lines += [row[:columns] for row in rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def by_name(prefix: str, functions: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """A row for each function, with all texts that name it."""
    texts: dict[str, list[str]] = {}
    for text, function in functions.items():
        texts.setdefault(function.__name__, []).append(f'`"{text}"`')
    values = {function.__name__: function for function in functions.values()}
    return [(f"{prefix}.{n}", values[n], ", ".join(texts[n])) for n in values]


def classes(package: Any, base: type) -> list[tuple[str, Any, str]]:
    """A row for each class of a package that has the base."""
    found = [(n, getattr(package, n)) for n in sorted(package.__all__, key=str.lower)]
    is_one = lambda v: inspect.isclass(v) and issubclass(v, base) and v is not base
    return [(f"{package.__name__}.{name}", value, "") for name, value in found if is_one(value)]


def text() -> str:
    """The page."""
    optimizers = classes(gdt.optim, Optimizer)
    by_text = {cls: f'`"{name}"`' for name, cls in names.OPTIMIZERS.items()}
    schedules = ["cosine_decay", "exponential_decay", "linear_decay", "piecewise_constant",
                 "with_warmup"]  # fmt: skip
    metrics = by_name("gdt.metrics", measuring.NAMES)
    known = {name for name, _, _ in metrics}
    shown = [("gdt.metrics." + n, v, "") for n, v in vars(gdt.metrics).items()
             if inspect.isclass(v) and issubclass(v, gdt.metrics.Metric)]  # fmt: skip
    metrics += [row for row in shown if row[0] not in known]
    strategies = ["MirroredStrategy", "DataParallel", "ModelParallel"]
    functions = {name: activations.get(name) for name in activations.NAMES}
    sections = {
        "Layers": ("A layer is a `gdt.nn.Module`. [Layers](layers.md) shows how they are used; all "
                   "take inputs that are split along any axis.", classes(gdt.nn, Module)),
        "Activations": ('As a text in `activation="relu"`, and as functions.',
                        by_name("gdt", functions)),
        "Initializers": ("As a text or a function in `initializer=`.",
                         by_name("gdt.nn.initializers", initializers.INITIALIZERS)),
        "Losses": ("Functions `(targets, predictions)`, by name in "
                   '`model.compile(loss="mse")`. Every loss is a metric too.',
                   by_name("gdt.nn.losses", losses.NAMES)),
        "Metrics": ('By name in `model.compile(metrics=["accuracy"])`, as functions of one batch, '
                    "and as objects that add up batches.", metrics),
        "Optimizers": ("`optimizer.update(model, gradients)`, or in `model.compile`. State lies as "
                       "the parameters do.",
                       [(n, v, by_text.get(v, "")) for n, v, _ in optimizers]),
        "Schedules of the learning rate": (
            "In place of the number: `gdt.optim.Adam(gdt.optim.cosine_decay(0.1, 1000))`.",
            [(f"gdt.optim.{n}", getattr(gdt.optim, n), "") for n in schedules]),
        "Clipping": ("Between gradients and update.",
                     [(f"gdt.optim.{n}", getattr(gdt.optim, n), "")
                      for n in ("clip_by_global_norm", "global_norm")]),
        "Callbacks": ("In `model.fit(callbacks=[...])` and `gdt.Trainer.fit`.",
                      classes(gdt.training, Callback)),
        "Strategies": ("Where a model and its batches go: `with strategy.scope():`.",
                       [(f"gdt.{n}", getattr(gdt, n), "") for n in strategies]),
    }  # fmt: skip
    lines = ["# Layers, losses, metrics, optimizers, callbacks", "",
             "This page is written by `python -m docs.extensions.tables` from the code's "
             "docstrings, and a test keeps it current."]  # fmt: skip
    for title, (first, rows) in sections.items():
        lines += ["", f"## {title}", "", first, "", *table(rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text())
