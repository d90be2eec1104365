"""Activation checkpointing: functions that are one entry on the tape, and run again backwards."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.array.gathers import Gather, noted_gathers
from gdt.autodiff.reverse_mode import cotangents_of
from gdt.autodiff.tape import GradientTape
from gdt.comm.agreement import crc32_of
from gdt.errors import GradientError, error, line_of_user
from gdt.observe import OBSERVERS, Observer, observing, observing_only, repeating
from gdt.ops.gathering import GATHERED_SLOTS, in_their_slots, postponing
from gdt.state import Place, Stateful
from gdt.state.trees import mapped
from gdt.state.variables import Reach

__all__ = ["checkpointed"]

Draw = tuple[str, tuple[Any, ...]]


@partial(checked, eager=True)
def checkpointed(f: Callable[..., Any]) -> Checkpointed:
    """Return a function like `f` of whose work a tape keeps only what goes in and what comes out.

    f: a function, or a module, of arrays (and anything else) that returns an array, or lists,
        tuples and dicts of arrays. It may use arrays and modules that are not its arguments.

    The backward pass runs `f` again, with the same random numbers, for the arrays between. So a
    chain of checkpointed layers keeps one array for each, and all of one layer at a time, and takes
    a second forward pass. Follows `jax.checkpoint`. Source: Chen et al. 2016, "Training Deep Nets
    with Sublinear Memory Cost".

    A call under a tape raises GradientError where `f` puts new arrays into its variables or modules
    (as batch normalization in training does), writes into an argument or a variable, as `x += 1`
    does, or reads values on the host; so does the backward pass where `f` then uses other arrays,
    such as updated parameters, or other numbers, such as a count or random numbers of NumPy.

    >>> w = gdt.asarray([1.0, 2.0])
    >>> layer = gdt.checkpointed(lambda x: gdt.tanh(x * w))
    >>> gdt.grad(lambda x: gdt.sum(layer(layer(x))))(gdt.asarray([0.0, 0.0])).tolist()
    [1.0, 4.0]
    """
    return Checkpointed(f)


class Checkpointed(Stateful):
    """A function that runs again in the backward pass; see `gdt.checkpointed`.

    The arrays of a module are found under the attribute `function`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __repr__(self) -> str:
        return f"<gdt.checkpointed {self.__name__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tapes = [o for o in OBSERVERS.get() if not o.wants_parts]
        if not tapes:
            return self.function(*args, **kwargs)
        watch = _Watch(self.__name__)
        observers = [o for o in OBSERVERS.get() if o.wants_parts]
        with observing_only(*observers, watch), noted_gathers() as gathers:
            out = self.function(*args, **kwargs)
        watch.on_return(_arrays(out))
        self._refuse_writes(watch, _arrays((args, kwargs)))
        self._refuse_new_state(watch, _arrays((out, args, kwargs)))
        outs: list[DistributedArray] = []
        returned = mapped(lambda leaf: _own(leaf, outs), out)
        del out  # what the function has made and returned is nothing that it reads
        # The second run reads the values of partial sums, whose parts can then be freed.
        read = tuple(map(_value, _without_resolved(_alive(watch.read))))
        args, kwargs = mapped(_value, (args, kwargs))
        segment = _Segment(self, args, kwargs, watch, len(read), gathers)
        for tape in tapes:
            tape.on_op(segment, read, {}, tuple(outs))
        return returned

    def _refuse_writes(self, watch: _Watch, given: Sequence[DistributedArray]) -> None:
        """Raise GradientError if the function has written into an argument, one of the arrays
        `given`, or into its state: the second time it would read what the first one has written."""
        if not (written := _alive(watch.written)):
            return
        names = dict.fromkeys(map(id, given), "an argument")
        names |= {id(x): name for name, x in self._state()}
        for x in written:
            if id(x) in names:
                raise error(
                    GradientError,
                    "checkpointed",
                    f"{self.__name__} writes into {names[id(x)]} in the call of {line_of_user()}, "
                    "and would write there again in the backward pass",
                    operands={names[id(x)]: x.type},
                    remedy="Make a new array, x = x + y or x = x.at[i].set(y), and return it.",
                )

    def _refuse_new_state(self, watch: _Watch, passed: Sequence[DistributedArray]) -> None:
        """Raise GradientError if an array that the function has made lies in its state now.

        passed: the arrays among its arguments and in what it returns.
        """

        def held() -> list[DistributedArray]:
            known = {id(y) for x in (*passed, *_alive(watch.read)) for y in (x, x._resolved)}
            return [x for x in _alive(watch.made) if id(x) not in known]

        if not held():
            return
        gc.collect()  # of cycles that nobody reaches
        names = {id(x): name for name, x in self._state()}
        for x in held():
            if id(x) in names:
                raise error(
                    GradientError,
                    "checkpointed",
                    f"{self.__name__} puts a new array into {names[id(x)]} in the call of "
                    f"{line_of_user()}, and would put another there in the backward pass",
                    operands={names[id(x)]: x.type},
                    remedy="Return it, or take out of the checkpointed function what does so. "
                    "Layers that find their sizes at the first call: call them once before.",
                )

    def _state(self) -> Iterator[tuple[str, Any]]:
        """Return an iterator of the names and values of what the function can reach."""
        root = Place(self.__name__, (self.function,), 0)
        yield from [(place.name, value) for place, value, _ in Reach(self.function).walk([root])]


class _Segment:
    """The entry of one call on a tape: an op whose gradient calls the function again."""

    name = "checkpointed"
    vjps = ()
    __hash__ = None  # type: ignore[assignment]  # no recorded backward pass: it runs Python

    def __init__(
        self,
        call: Checkpointed,
        args: Any,
        kwargs: Any,
        watch: _Watch,
        count: int,
        gathers: list[Gather],
    ) -> None:
        self._call, self._args, self._kwargs = call, args, kwargs
        self._draws, self._numbers, self._line = watch.draws, watch.numbers, line_of_user()
        self.reads = (frozenset(range(count)),)  # all operands, and no output
        self.gathers = gathers  # that it makes, and will make again
        self._slots = GATHERED_SLOTS.get()  # of modules around it, which do not run again

    def joint_vjp(
        self, cotangents: Sequence[DistributedArray | None], out: Any, *read: DistributedArray
    ) -> list[DistributedArray | None]:
        """Return the cotangents of the arrays that the function reads, from those of its
        outputs."""
        tape, watch = GradientTape(), _Watch(self._call.__name__)
        with (
            in_their_slots(self._slots),
            repeating(self._draws),
            postponing() as recomputations,
            tape,
            observing(watch),
        ):
            again = _arrays(self._call.function(*self._args, **self._kwargs))
        watch.on_return(again)
        self._check_returned(out, again)
        self._check_read(read, watch)
        self._check_numbers(watch.numbers)
        pairs = zip(again, cotangents, strict=True)
        targets = [(x, g) for x, g in pairs if g is not None]
        nodes = tape.nodes or []
        outputs, seeds = [x for x, _ in targets], [g for _, g in targets]
        return cotangents_of(nodes, outputs, seeds, read, recomputations)

    def _check_returned(
        self, out: Sequence[DistributedArray], again: Sequence[DistributedArray]
    ) -> None:
        """Raise GradientError unless the function has returned such arrays again."""
        if [(x.shape, x.dtype) for x in out] != [(x.shape, x.dtype) for x in again]:
            raise error(
                GradientError,
                "checkpointed",
                f"{self._call.__name__}, called in {self._line}, returns other arrays in the "
                "backward pass than in the forward pass",
                operands={
                    **{f"forward {n}": x.type for n, x in enumerate(out)},
                    **{f"backward {n}": x.type for n, x in enumerate(again)},
                },
                remedy="Let what it computes depend on its arguments alone.",
            )

    def _check_read(self, read: Sequence[DistributedArray], watch: _Watch) -> None:
        """Raise GradientError unless the function has read the same arrays again."""
        seen = watch.read.keys()
        missing = [x for x in read if id(x) not in seen and id(x._resolved) not in seen]
        if missing:
            raise error(
                GradientError,
                "checkpointed",
                f"{self._call.__name__}, called in {self._line}, uses other arrays in the backward "
                "pass than in the forward pass",
                operands={f"missing {n}": x.type for n, x in enumerate(missing)},
                remedy="Take the gradient before parameters are updated.",
            )

    def _check_numbers(self, numbers: Sequence[Any]) -> None:
        """Raise GradientError if the same number of calls of ops has got other numbers."""
        # Other calls are no mistake: what they make may have been there already the second time.
        if len(numbers) != len(self._numbers):
            return
        for one, other in zip(self._numbers, numbers, strict=True):
            if isinstance(one, Number | _HostArray) and repr(one) != repr(other):
                raise error(
                    GradientError,
                    "checkpointed",
                    f"{self._call.__name__}, called in {self._line}, computes with {other} in the "
                    f"backward pass, and with {one} in the forward pass",
                    remedy="Pass what differs between calls, such as a count, as an argument.",
                )


class _HostArray(NamedTuple):
    """The facts about an array of NumPy that two calls of a function compare."""

    dtype: np.dtype
    shape: tuple[int, ...]
    checksum: int

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.shape)} of NumPy with checksum {self.checksum:08x}"


class _Watch(Observer):
    """An observer of the arrays that a function reads and makes, and of its random numbers."""

    wants_moves = False

    def __init__(self, name: str) -> None:
        self._name = name
        # By identity: weakly, since arrays between must go as without a checkpoint.
        self.read: dict[int, weakref.ref[DistributedArray]] = {}
        self.made: dict[int, weakref.ref[DistributedArray]] = {}
        self.written: dict[int, weakref.ref[DistributedArray]] = {}
        self.draws: list[Draw] = []
        self.numbers: list[Any] = []  # Python's, which ops take, and those of NumPy's arrays

    def on_return(self, arrays: Sequence[DistributedArray]) -> None:
        """Add the arrays that the function returns: it reads those that it has not made, though
        perhaps by no op."""
        for x in arrays:
            if id(x) not in self.made:
                self.read[id(x)] = weakref.ref(x)

    def on_op(self, op: Any, args: tuple[Any, ...], static: dict[str, Any], out: Any) -> None:
        self.on_return([x for x in args if type(x) is DistributedArray])
        self.numbers += [x for x in args if type(x) is not DistributedArray]
        for x in _arrays(out):
            if id(x) not in self.read or self.read[id(x)]() is not x:
                self.made[id(x)] = weakref.ref(x)

    def on_write(self, array: Any, before: Any, after: Any) -> None:
        self.written[id(array)] = weakref.ref(array)

    def on_place(self, value: Any) -> None:
        if type(value) is np.ndarray:
            self.numbers.append(_HostArray(value.dtype, value.shape, crc32_of(value)))

    def on_leave(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        self.on_op(None, args, {}, out)

    def on_draw(self, name: str, function: Callable[[], tuple[Any, ...]], values: Any) -> None:
        self.draws.append((name, values))

    def on_host(self, action: str, remedy: str) -> None:
        raise error(
            GradientError,
            "checkpointed",
            f"{self._name} cannot {action}, as {line_of_user()} does",
            remedy="The backward pass calls it again: return the array, and read it outside.",
        )


def calls_checkpointed() -> bool:
    """Return whether a checkpointed function runs now, in the forward pass or again."""
    return any(isinstance(observer, _Watch) for observer in OBSERVERS.get())


def _alive(references: dict[int, weakref.ref[DistributedArray]]) -> list[DistributedArray]:
    """Return the arrays that somebody holds."""
    return [x for reference in references.values() if (x := reference()) is not None]


def _without_resolved(arrays: Sequence[DistributedArray]) -> tuple[DistributedArray, ...]:
    """Return arrays without the resolved values of others among them, whose cotangents are part of
    the cotangents of those."""
    resolved = {id(x._resolved) for x in arrays}
    return tuple([x for x in arrays if id(x) not in resolved])


def _value(leaf: Any) -> Any:
    """Return the resolved value of an array that has one; any other value itself."""
    value = leaf._resolved if type(leaf) is DistributedArray else None
    return leaf if value is None else value


def _own(leaf: Any, outs: list[DistributedArray]) -> Any:
    """Return another array of the same values, which is added to `outs`: a function may return what
    it reads. Return any other value itself."""
    if not isinstance(leaf, DistributedArray):
        return leaf
    out = leaf._alias()
    out._resolved = leaf._resolved
    outs.append(out)
    return out


def _arrays(tree: Any) -> list[DistributedArray]:
    """Return the arrays of a tree, in the order of definition."""
    arrays: list[DistributedArray] = []
    mapped(lambda leaf: arrays.append(leaf) if type(leaf) is DistributedArray else None, tree)
    return arrays
