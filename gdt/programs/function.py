"""`gdt.function`: a step that is recorded once, and then runs as a program."""

from __future__ import annotations

import functools
import itertools
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, DtypeError, FunctionError, error, frame_of_user, line_of_user
from gdt.observe import HELD, OBSERVERS, observing
from gdt.programs.program import Program
from gdt.programs.recorder import Recorder
from gdt.programs.replay import OUTDATED, Input, Recording, Result, replaced, templated
from gdt.programs.signature import Arguments
from gdt.programs.step_state import State, name_of, same_bits
from gdt.programs.variables import read
from gdt.state import Place, Stateful, is_container, places

__all__ = ["Function", "RerecordedWarning", "function"]


MANY = 16  # recordings after which a function warns that it is recorded over and over
MANY_SIGNATURES = 64  # after which it warns that each call has another
MOST_SIGNATURES = 1024  # that are kept; then the oldest is forgotten

Tree = Any


class RerecordedWarning(UserWarning):
    """A function is recorded anew in most of its calls, which costs more than it saves."""


# ---------------------------------------------------------------- recording


class StepRecorder(Recorder):
    """A recorder that refuses what a replay could not do again."""

    def __init__(self, name: str, state: State) -> None:
        super().__init__()
        self._name, self._state = name, state

    def line(self) -> str:
        """The user's line."""
        return line_of_user()

    def on_host(self, action: str, remedy: str) -> None:
        raise error(
            FunctionError,
            self._name,
            f"a recorded step cannot {action}, as {line_of_user()} does",
            remedy=remedy,
        )

    def on_count(self, function: Callable[[], tuple[Any, ...]]) -> None:
        counting = getattr(function, "__self__", None)
        if isinstance(counting, Stateful) and id(counting) not in self._state.entered:
            kind = type(counting).__name__
            self.on_host(f"use what counts in a place that no state names ({kind})", HELD)


@contextmanager
def _without_traces(arrays: Sequence[DistributedArray]) -> Iterator[None]:
    """Forget in this context the resolved values of `arrays`, and whether ops have passed their
    partial reductions on; restore both at its end.

    So every call sends the same, whether it is replayed, recorded or runs as written, and processes
    may differ in that.
    """
    values = [(a._resolved, a._is_passed) for a in arrays]
    for a in arrays:
        a._resolved, a._is_passed = None, False
    try:
        yield
    finally:
        for a, (resolved, is_passed) in zip(arrays, values, strict=True):
            a._resolved, a._is_passed = resolved, is_passed


@contextmanager
def _restoring(state: State) -> Iterator[None]:
    """Put the state back if what runs in this context raises: else somebody who catches that would
    take half a step, or take one twice."""
    try:
        yield
    except BaseException:
        state.put_back()
        raise


class Function:
    """A step that records the ops of its first call and replays them; see `gdt.function`."""

    def __init__(
        self, function: Callable[..., Any], state: tuple[Any, ...] | None, verify: int
    ) -> None:
        functools.update_wrapper(self, function)
        self._function, self._named, self._verify = function, state, verify
        self._name = name_of(function)
        self._recordings: dict[Any, list[Recording]] = {}  # by the keys of arguments
        # Alive, so that no others have the identities that are in those keys.
        self._objects: dict[Any, list[tuple[str, Any]]] = {}
        self._count = 0
        self._calls = itertools.count(1)
        self._has_warned = False

    def __repr__(self) -> str:
        return f"<gdt.function {self._name}, {self._count} recordings>"

    @property
    def programs(self) -> list[Program]:
        """The programs recorded so far; `print(program.source)` shows what runs."""
        return [r.program for recordings in self._recordings.values() for r in recordings]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if OBSERVERS.get():  # a tape, explain or a recording around this one wants every op
            return self._function(*args, **kwargs)
        arguments = Arguments(args, kwargs, self._name)
        recordings = self._recordings.get(arguments.key)
        is_verified = self._verify and next(self._calls) % self._verify == 0
        if recordings is None:
            return self._first_call(arguments, args, kwargs)
        before = None
        if is_verified and recordings:
            before = self._state(arguments)
            before.copy_arrays()
        for recording in recordings:
            result = recording.replay(arguments.places, arguments.containers)
            if result is not OUTDATED:
                break
        else:
            result = self._record(arguments, recordings, args, kwargs)
        if before is not None:
            self._verify_result(result, before, arguments, args, kwargs)
        return result

    def _state(self, arguments: Arguments) -> State:
        return State(self._function, self._named, arguments.objects, arguments.containers)

    def _first_call(self, arguments: Arguments, args: Any, kwargs: Any) -> Any:
        """Run as written, which makes plans and whatever state there is to be."""
        state = self._state(arguments)
        with _restoring(state), _without_traces(_arrays(arguments, state)):
            result = self._function(*args, **kwargs)
            templated(result, [], self._name)  # raises for what a replay could not return
        if len(self._recordings) == MANY_SIGNATURES:
            self._warn(
                f"was called in {MANY_SIGNATURES} ways, of each of which the first two calls run "
                "as written; numbers that change from call to call are arrays: gdt.asarray(number)"
            )
        while len(self._recordings) >= MOST_SIGNATURES:
            oldest = next(iter(self._recordings))
            del self._recordings[oldest], self._objects[oldest]
        self._recordings[arguments.key], self._objects[arguments.key] = [], arguments.objects
        return result

    def _record(
        self, arguments: Arguments, recordings: list[Recording], args: Any, kwargs: Any
    ) -> Any:
        outdated = recordings[0].state.changed() if recordings else None
        state = self._state(arguments)
        recorder = StepRecorder(self._name, state)
        argument_places = [
            (Place(f"argument {k!r}", o, k), n) for n, (o, k) in enumerate(arguments.places)
        ]
        before = [
            (place, n, array.type, recorder.declare(array), array)
            for place, n in [*argument_places, *[(p, -1) for p in state.arrays]]
            if isinstance(array := read(place), DistributedArray)
        ]
        with _restoring(state):
            arrays = [array for *_, array in before]
            with _without_traces(arrays), state.refusing_iterators(), observing(recorder):
                returned = self._function(*args, **kwargs)
            state.refuse_changes()
            results: list[DistributedArray] = []
            template = templated(returned, results, self._name)
            inputs = [
                Input(place, n, kind, register, _written(place, array, results))
                for place, n, kind, register, array in before
            ]
            outputs = [recorder.find(r) for r in results]
            program = recorder.program([i.register for i in inputs], outputs, replaced(inputs))
            if program is None:
                unknown = recorder.first_unknown(outputs)
                problem = f"{unknown} that is kept in a place that no state names"
                raise error(FunctionError, self._name, problem, remedy=HELD)
        state.forget()
        containers = arguments.containers
        recordings.insert(
            0, Recording(self._name, recorder, state, containers, inputs, program, template)
        )
        del recordings[MANY:]
        self._count += 1
        if self._count - len(self._recordings) >= MANY - 1:
            because = f", the last time because {outdated} has changed" if outdated else ""
            self._warn(
                f"was recorded {MANY} times{because}; numbers that change from call to call are "
                "arrays, gdt.asarray(number), and learning rates are schedules, which go on by "
                "themselves"
            )
        return returned

    def _verify_result(
        self, returned: Tree, before: State, arguments: Arguments, args: Any, kwargs: Any
    ) -> None:
        """Take a call that has been replayed again as it is written; FunctionError names what
        differs in what both return and leave."""
        replayed = self._state(arguments)
        before.put_back()
        with _restoring(before), _without_traces(_arrays(arguments, before)):
            expected = self._function(*args, **kwargs)
        difference = _difference(returned, expected)
        difference = difference or replayed.difference(self._state(arguments))
        if difference:
            name, replay_value, plain_value = difference
            raise error(
                FunctionError,
                self._name,
                f"a replay, in the call in {line_of_user()}, and the step as it is written differ "
                f"in {name}",
                operands={"replay": replay_value, "as written": plain_value},
                remedy="The step relies on what is constant in its recording: pass it as an "
                "argument, or keep it in a Module, dict or list that the step or state= names.",
            )
        replayed.put_back()

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"gdt.function: {self._name} {problem}",
                RerecordedWarning,
                stacklevel=frame_of_user()[1],
            )


def _arrays(arguments: Arguments, state: State) -> list[DistributedArray]:
    """All arrays that a call may read."""
    values = [owner[key] for owner, key in arguments.places] + [read(p) for p in state.arrays]
    return [array for array in values if isinstance(array, DistributedArray)]


def _written(
    place: Place, before: DistributedArray, results: list[DistributedArray]
) -> Result | None:
    """The array that a call has put at a place; None if the array `before` is still there."""
    now = read(place)
    return None if now is before else Result.of(now, results)


def _difference(one: Tree, other: Tree) -> tuple[str, Any, Any] | None:
    """The first place where two trees differ by a bit: its name and both values; None if none."""
    trees = [[(p.name, p.value) for p in places((t,), "what it returns")] for t in (one, other)]
    for (name, a), (twin, b) in itertools.zip_longest(*trees, fillvalue=("its structure", None)):
        is_alike = type(a) is type(b) and (is_container(a) or same_bits(a, b))
        if name != twin or not is_alike:
            return name, a, b
    return None


# ---------------------------------------------------------------- the decorator


@partial(checked, eager=True)
def function(
    f: Callable[..., Any] | None = None, *, state: Sequence[Any] | None = None, verify: int = 0
) -> Any:
    """`f`, recorded once for every kind of call and then replayed without Python running it.

    f: a training step, say: a function of arrays, in any tree of lists, tuples and dicts, and of
    whatever else it needs. Without it a decorator is returned: `@gdt.function(verify=100)`.

    1. The arrays of a step come from its arguments and from its state. The state is what `state`
       names (Modules, optimizers, dicts, lists, objects with attributes); where there is none,
       the arrays, Modules, optimizers, generators and trees of them in the variables of `f`: those
       of enclosing functions, defaults, the object that a method is bound to (or that `f` is), and
       the global variables that its code names; likewise in the variables of functions among
       these, but for global variables of other files. Arrays are read anew in every call, and what
       the step puts in their place is put there.
    2. All else in arguments and state (numbers, texts, structure, `model.training`,
       hyperparameters), in containers and in the attributes of Modules and optimizers, is part of
       a call's signature. The first call with a signature runs as written, the second is recorded,
       later ones are replayed. Learning rates that are schedules, counts of steps and random
       numbers go on as without recording.
    3. All other values of Python are constants of the recording, as with `jax.jit`: numbers in
       variables and in objects that are no state, attributes of classes and of other objects
       within a Module, elements of sets and of NumPy arrays, clocks, files. A FunctionError with
       the user's line says where a recorded step takes NumPy arrays or lists from the host, reads
       values there (`float`, `.numpy()`, `.item()`), draws from another generator than gdt's, takes
       the next value of an iterator in a variable, reads or sets what gdt counts
       (`optimizer.steps`, `batches.epoch`, the next batch of `gdt.data.Batches`), reads an array in
       a place that is no state, or changes anything in its variables and state but arrays.

    verify: every call of that number also runs as written, on a copy of the state, and
    FunctionError names the first result or part of the state that differs by a bit. Parameters,
    counters and random numbers are then what the step as written has left. 0 verifies nothing.

    Where a call that runs as written or is recorded raises anything, parameters, counters and
    random numbers are what they were before the call; where a replay finds wrong indices or
    labels, parameters and counters are. Inside a tape, `gdt.explain` or another recording, `f`
    itself is called. Printing and whatever else is not computation on arrays happens only when `f`
    runs. Results are bitwise those of `f`, in lists, tuples and dicts that are new in every call.
    Recordings keep modules and optimizers of their state alive.

    On one GPU the step becomes a CUDA graph with memory of its own, which its fourth call captures:
    from then on a call is one launch. On several GPUs of one process, what it computes between two
    collectives becomes a graph on each, and the collectives run as without recording. Its plans run
    one by one, as on the CPU, in several processes, and if its arrays are not all on the same GPUs.

    >>> w = {"w": gdt.asarray([1.0, 2.0])}
    >>> optimizer = gdt.optim.SGD(0.5)
    >>> @gdt.function
    ... def step(x):
    ...     loss, g = gdt.value_and_grad(lambda p: gdt.sum(p["w"] * x))(w)
    ...     optimizer.update(w, g)
    ...     return loss
    >>> x = gdt.asarray([1.0, 1.0])
    >>> [float(step(x)) for _ in range(3)]
    [3.0, 2.0, 1.0]
    """
    if verify < 0:
        raise error(ArgumentError, "function", f"verify is {verify}", remedy="Pass 0 or more.")
    if state is not None:
        for i, part in enumerate(state):
            if isinstance(part, DistributedArray):
                raise error(
                    DtypeError,
                    "function",
                    f"state[{i}] is an array, which has no place where another could be put",
                    operands={f"state[{i}]": part.type},
                    remedy="Keep it in a Module, a dict or a list, and name that.",
                )
    named = None if state is None else tuple(state)
    return (
        partial(Function, state=named, verify=verify) if f is None else Function(f, named, verify)
    )
