"""The summary of a model: its layers with the shapes of their results, arrays, bytes and FLOPs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Console

from gdt.array.array import DistributedArray
from gdt.errors import DtypeError
from gdt.nn.module import Module, parts
from gdt.observe import Observer, observing
from gdt.ops.creation import zeros
from gdt.sharding import processes
from gdt.state.trees import leaves

WIDTH = 60
UNITS = "kMGTP"
COLUMNS = ("layer", "result", "parameters", "bytes", "FLOPs")


def _of_product(out: Any, x: Any, w: Any, **static: Any) -> int:
    return 2 * int(out.size) * int(x.shape[-1])


def _of_contraction(out: Any, x: Any, w: Any, *, terms: Any, **static: Any) -> int:
    """Return the operations of a product of axes with the labels `terms`; None is of length 1."""
    sizes = dict(zip((*terms[0], *terms[1]), (*x.shape, *w.shape), strict=True))
    return 2 * math.prod(sizes.values())


def _of_convolution(out: Any, x: Any, kernel: Any, **static: Any) -> int:
    return 2 * int(out.size) * int(math.prod(kernel.shape[:-1]))


def _of_transposed_convolution(out: Any, x: Any, kernel: Any, **static: Any) -> int:
    return 2 * int(x.size) * int(math.prod(kernel.shape[:-1]))


def _of_attention(out: Any, q: Any, k: Any, v: Any, *others: Any, **static: Any) -> int:
    pairs = math.prod(q.shape[:-1]) * k.shape[-2]
    return 2 * int(pairs) * int(k.shape[-1] + v.shape[-1])


# The operations of an op, a multiplication and an addition being two; of others they do not count.
FLOPS: dict[str, Callable[..., int]] = {
    "matrix_product": _of_product,
    "contraction": _of_contraction,
    "convolve_tiles": _of_convolution,
    "convolution_input_gradient": _of_transposed_convolution,
    "attention_of_tiles": _of_attention,
}


@dataclass
class SummaryRow:
    """A module in a summary. result: the shape that its last call returned, with None for the
    batch; "" if it was not called. flops: those of its calls, its parts' included."""

    name: str
    module: Module
    result: str = ""
    flops: int = 0
    arrays: list[tuple[str, DistributedArray]] = field(default_factory=list)


class _Watcher(Observer):
    """Adds the operations that run to all modules that are being called."""

    wants_parts = True

    def __init__(self) -> None:
        self.open: list[SummaryRow] = []
        self.total = 0

    def on_op(self, op: Any, args: tuple[Any, ...], static: dict[str, Any], out: Any) -> None:
        count = FLOPS.get(getattr(op, "name", ""))
        if count is not None:
            flops = count(out[0] if isinstance(out, tuple) else out, *args, **static)
            self.total += flops
            for row in self.open:
                row.flops += flops


class _Watched:
    """A module's placement while its calls are watched."""

    def __init__(self, row: SummaryRow, watcher: _Watcher) -> None:
        self.row, self.watcher, self.placement = row, watcher, row.module._placement

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the module; note the shape of its result."""
        self.watcher.open.append(self.row)
        try:
            if self.placement is None:
                out = function(*args, **kwargs)
            else:
                out = self.placement.call(function, *args, **kwargs)
        finally:
            self.watcher.open.pop()
        first: Any = next(iter(leaves(out)), None)
        self.row.result = f"({', '.join(['None', *map(str, np.shape(first)[1:])])})"
        return out


@contextmanager
def _watched(rows: Sequence[SummaryRow], watcher: _Watcher) -> Iterator[None]:
    """Watch the calls of the rows' modules inside the `with` statement."""
    watched = [_Watched(row, watcher) for row in rows]
    for w in watched:
        w.row.module._placement = w
    try:
        with observing(watcher):
            yield
    finally:
        for w in watched:
            w.row.module._placement = w.placement


def rows_of(module: Module, name: str = "") -> Iterator[SummaryRow]:
    """Yield a row for every module within `module` that holds arrays or no modules, each once."""
    seen: set[int] = set()
    waiting = [(name, module)]
    while waiting:
        label, inner = waiting.pop(0)
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        arrays = [(k, v) for k, v in vars(inner).items() if isinstance(v, DistributedArray)]
        below = [(f"{label}.{n}" if label else n, part) for n, part in parts(inner)]
        if arrays or not below:
            yield SummaryRow(label or "the model", inner, arrays=arrays)
        waiting = below + waiting


def summary_text(model: Module, inputs: Sequence[Any] | None) -> str:
    """Return a table of the layers of a model, and the totals.

    inputs: arrays of one row with which the model is called; None where no shapes are known.
    """
    rows, watcher = list(rows_of(model)), _Watcher()
    if inputs is not None:
        with model.in_mode(training=False), _watched(rows, watcher):
            model(*inputs)
        called = {id(row.module): row for row in rows}
        rows = list(rows_of(model))  # with the arrays that the first call has made
        for row in rows:
            before = called.get(id(row.module), row)
            row.result, row.flops = before.result, before.flops
    cells = [COLUMNS, *(_cells(row, inputs is not None) for row in rows)]
    widths = [max(len(c[i]) for c in cells) for i in range(1, len(COLUMNS))]
    lines = [_line(COLUMNS, widths)]
    for row, line in zip(rows, cells[1:], strict=True):
        lines.append(_line(line, widths))
        lines += [f"  {name} {array.type}" for name, array in row.arrays]
    return "\n".join([*lines, *_totals(model, watcher.total if inputs is not None else None)])


def _cells(row: SummaryRow, is_called: bool) -> tuple[str, ...]:
    """Return the cells of a row."""
    nbytes = sum(array.type.local_nbytes for _, array in row.arrays)
    return (
        f"{row.name} {type(row.module).__name__}",
        row.result or "?",
        f"{sum(array.size for _, array in row.arrays):,}",
        _short(nbytes),
        _short(row.flops) if is_called else "?",
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return cells as a line; where the first does not leave room for the others within `WIDTH`
    columns, they are on a line of their own."""
    rest = "  ".join(cell.rjust(width) for cell, width in zip(cells[1:], widths, strict=True))
    if len(cells[0]) + 2 + len(rest) <= WIDTH:
        return f"{cells[0]}{rest.rjust(WIDTH - len(cells[0]))}"
    return f"{cells[0]}\n{rest.rjust(WIDTH)}"


def _totals(model: Module, flops: int | None) -> list[str]:
    """Return the lines below the table."""
    trained, state = model.parameters(), model.state()
    nbytes = sum(array.type.local_nbytes for array in state.values())
    total = sum(array.size for array in state.values())
    count = sum(array.size for array in trained.values())
    lines = [
        f"{total:,} numbers, of which {count:,} are trained",
        f"{_short(nbytes)}B on each device",
    ]
    if flops is not None:
        lines.append(f"{_short(flops)} FLOPs for a row, forwards")
    return lines


def _short(number: int) -> str:
    """Return a number with a unit of a thousand, a million, ...: 12560 is 12.6k."""
    if number < 1000:
        return str(number)
    power = min((len(str(number)) - 1) // 3, len(UNITS))
    return f"{number / 1000**power:.3g}{UNITS[power - 1]}"


def summary(model: Module, shape: Sequence[int] | None, console: Console | None) -> None:
    """Print the summary of a model; see `Module.summary`."""
    inputs = example_inputs(model, shape)
    try:
        text = summary_text(model, inputs)
    except DtypeError:
        if shape is None or inputs is None:
            raise
        text = summary_text(model, [x.astype("int32") for x in inputs])  # ids of an embedding
    if processes.current().index == 0:
        target = console or Console()
        target.print(text, highlight=False, markup=False, soft_wrap=True)


def example_inputs(model: Module, shape: Sequence[int] | None) -> list[Any] | None:
    """Return arrays of one row for a model: of `shape`, or of the model's own inputs; None where
    neither is known."""
    if shape is not None:
        return [zeros((1, *shape), "float32")]
    shapes = getattr(model, "input_shapes", ())
    return [zeros((1, *s[1:]), dtype) for s, dtype in shapes] or None
