"""Observers for users: they count collectives, forbid moves, find NaN and report waiting."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.backend import backend_of
from gdt.engine.op import OPS
from gdt.errors import ArgumentError, MoveError, NanError, error, frame_of_user
from gdt.observe import OBSERVERS, Collective, Observer, observing
from gdt.settings import Setting
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import UNSHARDED, Layout
from gdt.sharding.routes import route_bytes

__all__ = ["check_nans", "count_collectives", "no_moves", "sync_debug_mode"]


# ---------------------------------------------------------------- counting


class Fetch(NamedTuple):
    """Values that were gathered to the host: the array's type, and the bytes of what was read."""

    array_type: ArrayType
    bytes: int


class CollectiveCounter(Observer):
    """The collectives that ran in a `with` block, in order, and the `fetches` to the host; see
    `count_collectives`."""

    def __init__(self) -> None:
        self.collectives: list[Collective] = []
        self.fetches: list[Fetch] = []

    def on_fetch(self, array_type: ArrayType, nbytes: int) -> None:
        self.fetches.append(Fetch(array_type, nbytes))

    def on_collective(self, collective: Collective) -> None:
        self.collectives.append(collective)

    def __len__(self) -> int:
        return len(self.collectives)

    def __iter__(self) -> Iterator[Collective]:
        return iter(self.collectives)

    @property
    def bytes(self) -> int:
        """The bytes that all devices together sent."""
        return sum(c.bytes for c in self.collectives)

    @property
    def by_kind(self) -> Counter[str]:
        """The number of collectives of each kind."""
        return Counter(c.kind for c in self.collectives)

    @property
    def by_axes(self) -> Counter[tuple[str, ...]]:
        """The number of collectives over each tuple of mesh axes."""
        return Counter(c.axes for c in self.collectives)

    def __repr__(self) -> str:
        lines = [f"{counted(len(self), 'collective')}, {self.bytes:,} bytes"]
        groups: dict[tuple[str, tuple[str, ...]], list[Collective]] = {}
        for c in self.collectives:
            groups.setdefault((c.kind, c.axes), []).append(c)
        for (kind, axes), members in groups.items():
            nbytes, arrays = sum(c.bytes for c in members), sum(c.arrays for c in members)
            what = f"{len(members)} {kind} over {', '.join(axes)}"
            lines.append(f"  {what}: {counted(arrays, 'array')}, {nbytes:,} bytes")
        if self.fetches:
            lines.append(fetched_text(self.fetches))
        return "\n".join(lines)


def fetched_text(fetches: Sequence[Fetch]) -> str:
    """Return the number of fetches, and their bytes, as text."""
    count = f"{len(fetches)} fetch{'' if len(fetches) == 1 else 'es'}"
    return f"{count} to the host: {sum(f.bytes for f in fetches):,} bytes"


def counted(n: int, noun: str) -> str:
    """Return a number and a noun, in the plural unless n is 1."""
    return f"{n} {noun}" + ("" if n == 1 else "s")


@contextmanager
@checked
def count_collectives() -> Iterator[CollectiveCounter]:
    """Count the collectives that run in this `with` block, with their mesh axes and bytes.

    `fetches` lists what was gathered to the host, by `numpy()`, `float(x)`, `np.asarray(x)` or
    printing; it is no collective, and `bytes` leaves it out.

    >>> mesh = gdt.create_mesh([("x", 4)])
    >>> x = gdt.ones((8, 3), layout=gdt.Layout(["x", None], mesh))
    >>> with gdt.count_collectives() as counter:
    ...     total = float(gdt.sum(x))
    >>> counter
    1 collective, 48 bytes
      1 all_reduce over x: 1 array, 48 bytes
    1 fetch to the host: 8 bytes
    >>> counter.by_kind["all_reduce"]
    1
    """
    counter = CollectiveCounter()
    with observing(counter):
        yield counter


# ---------------------------------------------------------------- moves


class Move(NamedTuple):
    """An operand that an op moved from type `have` to layout `want`; bytes: of all devices."""

    operand: str
    have: ArrayType
    want: Layout
    bytes: int

    def __str__(self) -> str:
        return f"{self.operand} {self.have.layout} -> {self.want}"


def moves_of(op: str, types: Sequence[Any], target_layouts: Sequence[Any]) -> list[Move]:
    """Return the moves of the operands that change their layout."""
    moves = []
    for i, (have, want) in enumerate(zip(types, target_layouts, strict=True)):
        if have is not None and want is not None and want is not have.layout:
            name = OPS[op].declaration.operand_name(i) if op in OPS else f"operand {i}"
            moves.append(Move(name, have, want, route_bytes(have, want)))
    return moves


class _MoveGuard(Observer):
    """The observer of `no_moves`."""

    def on_move(self, op: str, types: tuple[Any, ...], target_layouts: tuple[Any, ...]) -> None:
        for name, have, want, nbytes in moves_of(op, types, target_layouts):
            if not nbytes:
                continue
            specs = [None if s == UNSHARDED else s for s in want.sharding_specs]
            resolves = any(have.layout.reductions) and want is have.layout.resolved
            call = f"{name}.resolve()" if resolves else f"gdt.relayout({name}, {specs})"
            raise error(
                MoveError,
                op,
                f"operand {name} would be moved, which sends {nbytes:,} bytes",
                operands={name: have, "wanted": want},
                remedy=f"Move it on purpose with {call}, or leave gdt.no_moves().",
            )


@checked
def no_moves() -> Setting[tuple[Observer, ...]]:
    """Raise MoveError, until the end of a `with` block or from here on, where an op would move an
    operand between devices.

    The resolution of a partial reduction is a move as well. Allowed are explicit moves (`relayout`,
    `resolve`, a fetch by `x.numpy()` or `float(x)`), also those inside of functions (`sort` along a
    split axis), the moves of gradients to the layouts of their sources, the collectives of an op's
    own work (the statistics of a softmax over a split axis), and moves that send
    nothing (cutting a replicated array).

    >>> mesh = gdt.create_mesh([("x", 2)])
    >>> x = gdt.ones((4, 4), layout=gdt.Layout(["x", None], mesh))
    >>> y = gdt.ones((4, 4), layout=gdt.Layout([None, "x"], mesh))
    >>> with gdt.no_moves():
    ...     z = x + gdt.relayout(y, x.layout)
    >>> with gdt.no_moves():
    ...     x + y
    Traceback (most recent call last):
    gdt.errors.MoveError: add: operand y would be moved, which sends 64 bytes...
    """
    return Setting(OBSERVERS, (*OBSERVERS.get(), _MoveGuard()))


# ---------------------------------------------------------------- NaN


class _NanCheck(Observer):
    """The observer of `check_nans`."""

    def on_op(self, op: Any, args: tuple[Any, ...], static: dict[str, Any], out: Any) -> None:
        self._check(op.name, [op.declaration.operand_name(i) for i in range(len(args))], args, out)

    def on_leave(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        self._check(name, [f"operand {i}" for i in range(len(args))], args, out)

    def _check(self, name: str, operands: Sequence[str], args: Sequence[Any], out: Any) -> None:
        """Raise NanError if a result of `name` is not finite; operands: the names of `args`."""
        for result in out if isinstance(out, tuple) else (out,):
            problem = _not_finite(result)
            if problem:
                culprits = [n for n, a in zip(operands, args, strict=True) if _not_finite(a)]
                raise error(
                    NanError,
                    name,
                    f"the result has {problem}",
                    operands={n: _described(a) for n, a in zip(operands, args, strict=True)},
                    remedy=f"{', '.join(culprits)} had some before."
                    if culprits
                    else "All operands are finite.",
                )


def _described(value: Any) -> object:
    """Return the type of an array, or the repr of a Python scalar."""
    return value.type if isinstance(value, DistributedArray) else repr(value)


def _not_finite(x: Any) -> str:
    """Return how many elements of x are not finite, and where the first is; "" if none."""
    if isinstance(x, float | complex):
        return "" if np.isfinite(x) else repr(x)
    if not isinstance(x, DistributedArray) or kind_of(x.dtype) not in "fc":
        return ""
    # A partial reduction is not resolved here: the check must not change what the program sends.
    fetch = backend_of(x.mesh).to_host
    parts = [fetch(s.data) for s in x.shards] if any(x.layout.reductions) else [x.numpy()]
    for part in parts:
        finite = np.isfinite(part)
        if not finite.all():
            others = part[~finite]
            nans = int(np.isnan(others).sum())
            first = [int(i) for i in np.argwhere(~finite)[0]]
            counts = f"{nans} NaN and {len(others) - nans} infinite of {finite.size} elements"
            return f"{counts}, first at {first}"
    return ""


@checked
def check_nans() -> Setting[tuple[Observer, ...]]:
    """Raise NanError, until the end of a `with` block or from here on, after the first op whose
    result has a NaN or an infinity.

    The error names the op, the types of its operands, and the operands that had some before.
    Padding is ignored. Ops inside composites and in gradients are checked too.

    >>> import numpy as np
    >>> with gdt.check_nans(), np.errstate(divide="ignore"):
    ...     gdt.log(gdt.asarray([1.0, 0.0]))
    Traceback (most recent call last):
    gdt.errors.NanError: log: the result has 0 NaN and 1 infinite of 2 elements, first at [1]...
    """
    return Setting(OBSERVERS, (*OBSERVERS.get(), _NanCheck()))


# ---------------------------------------------------------------- synchronization


class SynchronizationWarning(UserWarning):
    """The warning that the host waited for devices inside `gdt.sync_debug_mode("warn")`."""


class _SynchronizationCheck(Observer):
    """The observer of `sync_debug_mode`."""

    wants_moves = False

    def __init__(self, raises: bool) -> None:
        self.raises = raises

    def on_synchronize(self, what: str) -> None:
        problem = error(
            MoveError,
            "sync_debug_mode",
            f"the host waits for devices: {what}",
            remedy="Keep values on their devices, and read them together, after the steps.",
        )
        if self.raises:
            raise problem
        warnings.warn(str(problem), SynchronizationWarning, stacklevel=frame_of_user()[1])


@checked
def sync_debug_mode(mode: str) -> Setting[tuple[Observer, ...]]:
    """Report, until the end of a `with` block or from here on, when the host waits for devices: in
    fetching or printing values, `float(x)`, `gdt.synchronize`.

    mode: `"warn"` gives a SynchronizationWarning that names the line, `"error"` raises MoveError.
    On a mesh of the CPU, where waiting costs nothing, the same is reported. Follows
    `torch.cuda.set_sync_debug_mode`. Raises ArgumentError for another mode.

    >>> with gdt.sync_debug_mode("error"):
    ...     float(gdt.ones(3).sum())
    Traceback (most recent call last):
    gdt.errors.MoveError: sync_debug_mode: the host waits for devices: copying to the host...
    """
    if not isinstance(mode, str) or mode not in ("warn", "error"):
        raise error(ArgumentError, f"mode is {mode!r}", remedy="Use 'warn' or 'error'.")
    return Setting(OBSERVERS, (*OBSERVERS.get(), _SynchronizationCheck(mode == "error")))
