"""Tables for people: what a call ran and sent, and which device holds which part of an array."""

from __future__ import annotations

import io
import itertools
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gdt.arguments import checked, shown_value
from gdt.array.array import DistributedArray
from gdt.debug.observers import Fetch, counted, fetched_text
from gdt.debug.rows import ExplainRow, FusedRow, RowRecorder
from gdt.errors import ArgumentError, DtypeError, error, type_text
from gdt.observe import Collective, observing
from gdt.prediction.machine import Machine
from gdt.prediction.pricing import OpPricer, seconds_text
from gdt.prediction.trace import tracing
from gdt.programs.function import Function
from gdt.sharding.array_type import ArrayType
from gdt.sharding.displayed import Displayed
from gdt.sharding.routes import route_bytes

__all__ = ["explain", "visualize"]


WIDTH = 150  # columns of tables as plain text, but in a terminal


class _Drawing(Displayed):
    """An object that rich renders in a terminal, and whose `str` and `repr` are plain text."""

    def __rich__(self) -> RenderableType:
        raise NotImplementedError

    def __str__(self) -> str:
        # Where standard output cannot write lines of tables, rich draws them with dashes.
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        console = Console(
            file=io.TextIOWrapper(io.BytesIO(), encoding),
            width=shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH,
            color_system=None,
            legacy_windows=False,
            force_jupyter=False,
        )
        with console.capture() as capture:
            console.print(self)
        text = capture.get().encode(encoding, "backslashreplace").decode(encoding)
        lines = text.rstrip("\n").split("\n")
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__


# ---------------------------------------------------------------- explain


class Explanation(_Drawing):
    """The result of `explain`: one row per op that ran and per fetch to the host, the loops of
    replays, and the value of the call."""

    def __init__(self, rows: Sequence[ExplainRow], loops: Sequence[FusedRow], value: Any) -> None:
        self.rows, self.loops, self.value = list(rows), list(loops), value

    @property
    def collectives(self) -> list[Collective]:
        """All collectives that ran, in order."""
        return [c for row in self.rows for c in row.collectives]

    @property
    def fetches(self) -> list[Fetch]:
        """All fetches to the host, in order."""
        return [Fetch(r.operands[0], r.fetched) for r in self.rows if r.fetched is not None]

    @property
    def bytes(self) -> int:
        """The bytes that all devices together sent, without fetches to the host."""
        return sum(row.bytes for row in self.rows)

    def texts(self) -> list[list[str]]:
        """Return the texts of the table: of its header, its footer, and one list for each op."""
        has_kernels = any(row.kernel for row in self.rows)  # a mesh on the host has none
        header = ["op", "operands", "results", "moves", "collectives", "bytes"]
        ops = counted(len(self.rows) - len(self.fetches), "op")
        totals = [ops, "", "", fetched_text(self.fetches) if self.fetches else ""]
        totals += [counted(len(self.collectives), "collective"), f"{self.bytes:,}"]
        texts = [header, totals]
        for row in self.rows:
            texts.append(
                [
                    "  " * len(row.within) + row.op,
                    "\n".join(_name(t) for t in row.operands),
                    "\n".join(map(_result, row.results)),
                    "\n".join(map(str, row.moves))
                    if row.fetched is None
                    else f"{row.fetched:,} bytes to the host",
                    "\n".join(_collective(c) for c in row.collectives),
                    f"{row.bytes:,}" if row.bytes else "",
                ]
            )
        if has_kernels:
            for text, kernel in zip(
                texts, ["kernel", "", *(r.kernel for r in self.rows)], strict=True
            ):
                text.append(kernel)
        if any(row.predicted for row in self.rows):
            prices = [row.predicted for row in self.rows]
            columns = ["" if p is None else seconds_text(p.total) for p in prices]
            total = seconds_text(sum(p.total for p in prices if p is not None))
            for text, column in zip(texts, ["seconds", total, *columns], strict=True):
                text.append(column)
        if any(row.strategies for row in self.rows):
            columns = ["\n".join(map(str, row.strategies)) for row in self.rows]
            for text, column in zip(texts, ["strategies, in bytes", "", *columns], strict=True):
                text.append(column)
        return texts

    def __rich__(self) -> RenderableType:
        header, footer, *rows = self.texts()
        table = Table(show_footer=True)
        for name, total in zip(header, footer, strict=True):
            justify: Any = "right" if name in ("bytes", "seconds") else "left"
            no_wrap = name.startswith("strategies")
            table.add_column(name, total, justify=justify, no_wrap=no_wrap, overflow="fold")
        for texts in rows:
            table.add_row(*map(Text, texts))
        return Group(table, *[Text(str(loop)) for loop in self.loops])


def _name(operand_type: Any) -> str:
    """Return the text of an array's type, or the name of a Python scalar's class."""
    return str(operand_type) if isinstance(operand_type, ArrayType) else operand_type.__name__


def _result(array_type: Any) -> str:
    """Return the text of a result's type, with the bytes that resolving it will send."""
    text = _name(array_type)
    if not isinstance(array_type, ArrayType) or array_type.layout is array_type.layout.resolved:
        return text
    nbytes = route_bytes(array_type, array_type.layout.resolved)
    return f"{text}\n({nbytes:,} bytes to resolve)"


def _collective(c: Collective) -> str:
    """Return a collective as text, such as `all_reduce of 2 arrays over x, y`."""
    arrays = f" of {c.arrays} arrays" if c.arrays > 1 else ""
    return f"{c.kind}{arrays} over {', '.join(c.axes)}"


@checked
def explain(
    f: Callable[..., Any],
    *args: Any,
    strategies: bool = False,
    machine: Machine | None = None,
    **kwargs: Any,
) -> Explanation:
    """Call `f(*args, **kwargs)`; return a table of every op that ran, its moves and its bytes.

    Ops inside composites and of gradients are listed where they ran, indented, and so are fetches
    to the host (printing, `float(x)`, `np.asarray(x)`). `print` the result, or
    read its `rows`, `collectives`, `fetches`, `bytes` and `value`, which is the value of the call.
    A partial reduction is resolved once: another call with the same arrays may send less. Where a
    result is partial, the table says what resolving it will send.

    Of a recorded step the ops are those of the step as written. `loops` names the chains of
    element-wise ops that its replays compute as one loop, with the bytes that these read and write.

    strategies: whether to list, for each op with a rule, the ways to run it that were considered
        for its operands, the chosen one first, with their prices (see `gdt.sharding.strategy`).
    machine: for arrays on abstract devices, a machine on which each op is priced, as `gdt.predict`
        prices steps: a column has its seconds on a device, `row.predicted` what they consist of.

    >>> mesh = gdt.create_mesh([("x", 4)])
    >>> x = gdt.ones((8, 3), layout=gdt.Layout(["x", None], mesh))
    >>> explanation = gdt.explain(lambda x: gdt.sum(x).resolve(), x)
    >>> [(row.op, row.bytes) for row in explanation.rows]
    [('sum', 0), ('resolve', 48)]
    >>> explanation.collectives
    [Collective(kind='all_reduce', axes=('x',), bytes=48, arrays=1, reduction='sum')]
    >>> w = gdt.ones((3, 5), layout=gdt.Layout(["x", None], mesh))
    >>> for strategy in gdt.explain(gdt.matmul, x, w, strategies=True).rows[0].strategies:
    ...     print(strategy)
    i over x: 480
    whole operands: 1,056
    k over x: 192 + 960 later
    """
    if isinstance(f, DistributedArray):
        remedy = "Write gdt.explain(lambda: x.sum())."  # type: ignore[unreachable]
        raise error(ArgumentError, f"f is {shown_value(f)}, no function", remedy=remedy)
    pricer = None if machine is None else OpPricer(machine)
    recorder = RowRecorder(strategies, pricer)
    with nullcontext() if pricer is None else tracing(pricer), observing(recorder):
        value = f(*args, **kwargs)
    programs = f.programs if isinstance(f, Function) else []
    loops = [FusedRow.of(k) for program in programs for k in program.instructions if k.fused]
    return Explanation(recorder.rows, loops, value)


# ---------------------------------------------------------------- where things are


class Visualization(_Drawing):
    """The drawing of `visualize`: which devices hold which part of an array."""

    def __init__(self, array_type: ArrayType) -> None:
        self.array_type = array_type

    @property
    def holders(self) -> dict[tuple[tuple[int, int], ...], list[str]]:
        """The devices that hold each part; a part is the intervals of its global indices."""
        holders: dict[tuple[tuple[int, int], ...], list[str]] = {}
        mesh = self.array_type.mesh
        for device, coordinate in zip(mesh.devices, mesh.coordinates(), strict=True):
            part = tuple((s.start, s.stop) for s in self.array_type.shard_slices(coordinate))
            devices = holders.setdefault(part, [])
            if device not in devices:
                devices.append(device)
        return holders

    def __rich__(self) -> RenderableType:
        holders, dims = self.holders, enumerate(self.array_type.layout.dims)
        split: list[int | None] = [d for d, axes in dims if axes]
        # The last two split axes are rows and columns; each part of the others has a table.
        if len(split) == 1:
            split = [*split, None] if split != [self.array_type.ndim - 1] else [None, *split]
        *outer, down, across = split or [None, None]
        tables: list[RenderableType] = [Text(str(self.array_type))]
        for intervals in itertools.product(*(self._intervals(d) for d in outer)):
            fixed = dict(zip(outer, intervals, strict=True))
            title = ", ".join(f"axis {d}: {a}:{b}" for d, (a, b) in fixed.items())
            tables.append(self._table(holders, down, across, fixed, title))
        partial = [
            f"Each device holds a part of a {reduction} over {name!r}."
            for name, reduction in self.array_type.layout.partial.items()
        ]
        return Group(*tables, *map(Text, partial))

    def _intervals(self, dim: int | None) -> list[tuple[int, int]]:
        """Return the intervals of the shards of an axis, each once."""
        if dim is None:
            return [(0, 0)]
        shards = range(self.array_type.layout.shard_counts[dim])
        return list(dict.fromkeys(self.array_type.extent(dim, i) for i in shards))

    def _table(
        self, holders: Any, down: int | None, across: int | None, fixed: dict[Any, Any], title: str
    ) -> Table:
        """Return the table of the axes `down` and `across`, at `fixed` intervals of the others."""

        def heading(dim: int | None, interval: tuple[int, int]) -> str:
            return "" if dim is None else f"axis {dim}: {interval[0]}:{interval[1]}"

        columns = self._intervals(across)
        table = Table(
            "",
            *(heading(across, c) for c in columns),
            title=title or None,
            show_lines=True,
            show_header=across is not None,
        )
        for r in self._intervals(down):
            cells = []
            for c in columns:
                at = {**fixed, down: r, across: c}
                part = tuple(at.get(d, (0, n)) for d, n in enumerate(self.array_type.shape))
                cells.append("\n".join(_grouped(holders.get(part, []))))
            table.add_row(heading(down, r), *cells)
        return table


def _grouped(devices: Sequence[str]) -> list[str]:
    """Return lines of four devices each."""
    return [", ".join(devices[i : i + 4]) for i in range(0, len(devices), 4)]


@checked
def visualize(x: DistributedArray | ArrayType) -> Visualization:
    """Return a drawing of which device holds which part of an array, as a table of text.

    x: an array or its type. `print` the result, or read its `holders`. Raises DtypeError for what
    is neither.

    >>> mesh = gdt.create_mesh([("x", 2), ("y", 2)])
    >>> gdt.visualize(gdt.ones((5, 4), layout=gdt.Layout(["x", None], mesh))).holders
    {((0, 3), (0, 4)): ['cpu:0', 'cpu:1'], ((3, 5), (0, 4)): ['cpu:2', 'cpu:3']}
    """
    array_type = x.type if isinstance(x, DistributedArray) else x
    if not isinstance(array_type, ArrayType):
        raise error(DtypeError, f"{type_text(x)} is no distributed array")
    return Visualization(array_type)
