"""`gdt.function`: a step that is recorded once, and then runs as a program."""

from __future__ import annotations

import functools
import itertools
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, overload

from gdt.arguments import checked, shown_value
from gdt.array.array import DistributedArray
from gdt.caches import Cache
from gdt.comm.agreement import HISTORIES
from gdt.comm.notes import noted_dataflow, noted_step
from gdt.errors import (
    ArgumentError,
    DtypeError,
    FunctionError,
    ReplayError,
    error,
    frame_of_user,
    line_of_user,
)
from gdt.observe import HELD, OBSERVERS, observing, observing_only
from gdt.programs.program import Program
from gdt.programs.recorder import Recorder
from gdt.programs.replay import OUTDATED, UNVERIFIED, Recording, source_of_returned
from gdt.programs.step_state import Arguments, State, difference, name_of
from gdt.random.generator import Generator
from gdt.sharding.array_type import ArrayType
from gdt.state import Place, Stateful, places
from gdt.state.trees import is_container, leaves
from gdt.state.variables import read_all, tree_of

__all__ = ["Function", "RerecordedWarning", "function"]


MANY = 64  # calls that run as written, after which a function warns that they are many
MOST_RECORDINGS = 16  # of one signature that are kept
RECORDING_BYTES = 50_000  # an estimate of what a recording takes

UNSEEN = (
    "The step relies on what a recording does not see, such as a clock, a file, or the elements of "
    "a NumPy array: pass it as an argument, and a number that changes in every call as "
    "gdt.asarray(number). Where the step as it is written differs from call to call by itself, "
    "verify=0 does not compare them."
)
UNVERIFIED_FOR_MEMORY = (
    "gdt.function: there was not the memory to compare a replay of {} with the step as it is "
    "written, which takes another copy of its state and results; verify=0 does not compare them"
)

Tree = Any


class RerecordedWarning(UserWarning):
    """A function is recorded over and over, which costs more than it saves."""

    def __init__(self, *message: object) -> None:
        super().__init__(*message)


class UnverifiedWarning(UserWarning):
    """A replay has not been verified, since there was not the memory to run the step twice."""


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
        problem = f"a recorded step cannot {action}, as {line_of_user()} does"
        raise error(FunctionError, self._name, problem, remedy=remedy)

    def on_write(self, array: Any, before: Any, after: Any) -> None:
        self._state.on_write(array, before, after)
        if not self._state.is_written(array):
            super().on_write(array, before, after)

    def on_count(self, function: Callable[[], tuple[Any, ...]]) -> None:
        counting = getattr(getattr(function, "func", function), "__self__", None)
        if isinstance(counting, Stateful | Generator) and id(counting) not in self._state.entered:
            kind = type(counting).__name__
            self.on_host(f"use what counts in a place that no state names ({kind})", HELD)


P = ParamSpec("P")
R = TypeVar("R")


class Function(Generic[P, R]):
    """A step that records the ops of its first call and replays them; see `gdt.function`.

    >>> step = gdt.function(lambda x: gdt.sum(x * x))
    >>> [float(step(gdt.asarray([1.0, 2.0]))) for _ in range(3)]
    [5.0, 5.0, 5.0]
    >>> len(step.programs)
    1
    """

    def __init__(
        self, function: Callable[P, R], state: tuple[Any, ...] | None, verify: int | None
    ) -> None:
        functools.update_wrapper(self, function)
        self._function, self._named, self._verify = function, state, verify
        self._name = name_of(function)
        # By keys of arguments; with the objects whose identities are in a key, alive, so that no
        # others have them.
        self._recordings = Cache[tuple[list[Recording], list[tuple[str, Any]]]](RECORDING_BYTES)
        self._calls = itertools.count(1)
        self._calls_by_types = Counter[tuple[ArrayType, ...]]()  # where processes compare them
        self._calls_as_written = itertools.count(1)

    def __repr__(self) -> str:
        return f"<gdt.function {self._name}, {len(self.programs)} recordings>"

    @property
    def programs(self) -> list[Program]:
        """The programs recorded so far; `print(program.source)` shows what runs."""
        entries = (self._recordings.older | self._recordings).values()
        return [r.program for recordings, _ in entries for r in recordings]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        observers = OBSERVERS.get()
        if observers:  # a tape, explain or a recording around this one wants every op
            # Processes compare the steps also where only one of them counts its collectives.
            is_step = HISTORIES and not HISTORIES[0].in_step
            if not (is_step and all(observer.wants_moves for observer in observers)):
                return self._function(*args, **kwargs)
        arguments = Arguments(args, kwargs, self._name)
        is_verified = self._verify and next(self._calls) % self._verify == 0
        if HISTORIES:
            return self._compared(arguments, is_verified)  # type: ignore[no-any-return]
        run = self._verified if is_verified else self._run
        return run(arguments)  # type: ignore[no-any-return]

    def _compared(self, arguments: Arguments, is_verified: Any) -> Any:
        """Run a call that processes compare: which arrays it is given, and not what its ops are
        given, since one process may replay what another runs as it is written.

        In place of the first replays, all processes verify the third call with arrays of the same
        types, since other parts of signatures may differ."""
        types = [owner[key].type for owner, key in arguments.places]
        shared = tuple([t for t in types if t.layout.mesh.num_processes > 1])
        self._calls_by_types[shared] += 1
        is_third = self._verify != 0 and self._calls_by_types[shared] == 3
        recordings, _ = self._recordings.recall(arguments.key) or ((), ())
        arrays = recordings[0].places if recordings else self._state(arguments).places
        places = _in_order(arguments, arrays)
        with noted_step(f"the step {self._name}", partial(read_all, places)) as results:
            result = (self._verified if is_verified or is_third else self._run)(arguments)
            results.extend(leaves(result, by_name=True))
        return result

    def _run(self, arguments: Arguments, *, is_verified: bool = False) -> Any:
        """Replay a call by the recording that fits; record it if none does. The first call with a
        signature runs as it is written, which makes plans and whatever state there is to be."""
        try:
            recordings, _ = self._recordings[arguments.key]
        except KeyError:
            recordings = None
        if recordings is None or (HISTORIES and OBSERVERS.get()):
            return self._first_call(arguments)
        for recording in recordings:
            result = recording.replay(arguments.places, arguments.containers)
            if result is UNVERIFIED:
                if not is_verified:
                    return self._verified(arguments)
                recording.unverified.clear()
                result = recording.replay(arguments.places, arguments.containers)
            if result is not OUTDATED:
                return result
        return self._record(arguments, recordings)

    def _verified(self, arguments: Arguments) -> Any:
        """Run a call as written, put the state back, and run it as other calls are run; raise
        FunctionError for what differs in what they return and leave, if the call has been recorded.
        The state is then that of the step as written."""
        recordings, _ = self._recordings.recall(arguments.key) or ((), ())
        is_recorded, before, after = bool(recordings), self._state(arguments), None
        try:
            with before.attempt(), observing_only(before):
                written = self._as_written(arguments, before)
            after = self._state(arguments)
            after.hold(before)
            before.put_back()
            del before  # a replay overwrites arrays to which nobody else refers
            result = self._run(arguments, is_verified=True)
        except Exception as e:
            lacks_memory = isinstance(e, MemoryError) or isinstance(e.__cause__, MemoryError)
            if HISTORIES or not lacks_memory:
                raise
            if after is None:
                written = self._run(arguments, is_verified=True)  # which may lack memory too
            else:
                after.put_back()
            message = UNVERIFIED_FOR_MEMORY.format(self._name)
            warnings.warn(message, UnverifiedWarning, stacklevel=frame_of_user()[1])
            return written
        stale = difference(_values(result), _values(written))
        stale = stale or difference(self._state(arguments).values, after.values)
        if not (stale and is_recorded):
            return result
        after.put_back()
        self._verify = 1  # from now on nobody can rely on a replay
        name, replayed, value = stale
        call = f"a replay, in the call in {line_of_user()}, and the step as it is written"
        operands = {"replay": replayed, "as written": value}
        problem = f"{call} differ in {name}"
        raise error(ReplayError, self._name, problem, operands=operands, remedy=UNSEEN)

    def _first_call(self, arguments: Arguments) -> Any:
        state = self._state(arguments)
        with state.attempt(), observing(state):
            result = self._as_written(arguments, state)
        if self._recordings.recall(arguments.key) is None:
            self._recordings[arguments.key] = [], arguments.objects
            self._count_as_written("its arguments")
        return result

    def _record(self, arguments: Arguments, recordings: list[Recording]) -> Any:
        outdated = recordings[0].state.changed() if recordings else None
        state = self._state(arguments)
        recorder = StepRecorder(self._name, state)
        declared = [(place, x, x.type, recorder.declare(x)) for place, x in state.arrays]
        with state.attempt():
            with state.refusing_iterators(), observing(recorder):
                result = self._as_written(arguments, state)
            state.refuse_changes()
            recording = Recording(self._name, state, arguments, recorder, declared, result)
        state.forget()
        if self._verify == 0 or HISTORIES:
            recording.unverified.clear()
        recordings.insert(0, recording)
        del recordings[MOST_RECORDINGS:]
        self._count_as_written(outdated)
        return result

    def _as_written(self, arguments: Arguments, state: State) -> Any:
        """Call the step itself, which is given this state."""
        with noted_dataflow(f"the step {self._name}") as results:
            result = self._function(*arguments.args, **arguments.kwargs)
            source_of_returned(result, [], {}, self._name)  # raises for what a replay cannot make
            results.extend(read_all(_in_order(arguments, state.places)))
            results.extend(leaves(result, by_name=True))
        return result

    def _state(self, arguments: Arguments) -> State:
        return State(self._function, self._named, arguments)

    def _count_as_written(self, changed: str | None) -> None:
        """Count a call that has run as written, as something had changed; warn if they are many."""
        if next(self._calls_as_written) == MANY:
            because = f", the last one because {changed} changed" if changed else ""
            warnings.warn(
                f"gdt.function: {MANY} calls of {self._name} have run as written{because}; numbers "
                "that change from call to call are arrays, gdt.asarray(number), and learning rates "
                "are schedules, which go on by themselves",
                RerecordedWarning,
                stacklevel=frame_of_user()[1],
            )


def _in_order(arguments: Arguments, state: Iterable[Place]) -> list[Place]:
    """The places that hold the arrays of a call, in the order of their names. state: the places of
    those that are no arguments."""
    places = [*[Place("argument", owner, key) for owner, key in arguments.places], *state]
    values = read_all(places)
    names = [(place.name, str(place.key)) for place in places]
    order = sorted(range(len(places)), key=names.__getitem__)
    return [places[n] for n in order if type(values[n]) is DistributedArray]


def _values(tree: Tree) -> list[tuple[str, Any]]:
    """The names and values of a returned tree; of a container, its class."""
    name = "what it returns"
    values = [(name, tree), *[(place.name, place.value) for place in places(tree, name)]]
    return [(name, type(v) if is_container(v) else v) for name, v in values]


# ---------------------------------------------------------------- the decorator


@overload
def function(
    f: Callable[P, R], *, state: Any = None, verify: int | None = None
) -> Function[P, R]: ...
@overload
def function(
    f: None = None, *, state: Any = None, verify: int | None = None
) -> Callable[[Callable[P, R]], Function[P, R]]: ...
@partial(checked, eager=True)
def function(
    f: Callable[..., Any] | None = None, *, state: Any = None, verify: int | None = None
) -> Any:
    """`f`, recorded once for every kind of call and then replayed without Python running it.

    f: a function of arrays, in any tree of lists, tuples and dicts, and of whatever else it needs;
        a training step, say. Without it a decorator is returned: `@gdt.function(verify=100)`.

    1. The arrays of a step come from its arguments and its state. `state` names the state: a
       Module, an optimizer, a generator, a dict or list of arrays, an object with attributes, or
       several of them in a list or tuple; a list of arrays alone is one of several,
       `state=[arrays]`. Without it the state is what `f` refers to: the variables of enclosing
       functions, defaults, the object that `f` is or is bound to, the global variables that its
       code names, and all that these lead to: the items of containers, the attributes of Modules,
       of your own objects, classes and modules, and the variables of your own functions and
       methods among them. A replay reads arrays anew in their places, and puts new arrays where
       the step does.
    2. All else in arguments and state (numbers, texts, None, structure, which function or object is
       where) is part of the signature of a call: where it changes, the step is recorded anew. The
       first call with a signature runs as written, the second is recorded, later ones are replayed.
       Schedules of learning rates, counts of steps and random numbers go on as without recording.
    3. A recording does not see, and takes for constant: the elements of NumPy arrays, clocks,
       files, context variables, objects and modules of Python's library and of other installed
       packages (but for containers, namespaces, partials and weak references), names made as text
       (`eval`), a function's `__code__`, what is neither array nor Module in containers of more
       than 1,000 items; and, where `state` is given, other variables, unless they lead to the
       state, are None or hold nothing.

    Raises FunctionError, with the user's line, where a recorded step takes NumPy arrays or lists
    from the host, reads values there (`float`, `.numpy()`, `.item()`), draws from another generator
    than gdt's, takes the next value of an iterator in a variable, reads or sets what gdt counts
    (`optimizer.steps`, `batches.epoch`, the next batch of `gdt.data.Batches`), reads an array in a
    place that is no state, writes to elements of an array that it has not made, or changes anything
    in its variables and state but arrays.

    verify: None verifies the first replay of each recording: the call runs as written, and then
        again as a replay; FunctionError names the first result or part of the state in which they
        differ by a bit. So what changes from call to call and is not seen is found in the third
        call. A number verifies every call of that number too, and 0 verifies none. Parameters,
        counters and random numbers are then those of the step as written, taken once. It costs a
        step and another copy of the results and the state, freed at once; without the memory for it
        UnverifiedWarning is given. Several processes, in which that is an error, verify the third
        call with arrays of the same types.

    Where a call that runs as written or is recorded raises anything, parameters, counters and
    random numbers are what they were before the call; where a replay finds wrong indices or
    labels, parameters and counters are. Inside a tape, `gdt.explain` or another recording, `f`
    itself is called. Printing and whatever else is not computation on arrays happens only when `f`
    runs: in the first three calls. Results are bitwise those of `f`, in lists, tuples and dicts
    that are new in every call. Recordings keep what the step refers to alive; those that have not
    been used for long are forgotten (`gdt.caches`).

    On one GPU the step becomes a CUDA graph with memory of its own, which its fourth call captures:
    from then on a call is one launch. On several GPUs, of one process or of several, what it
    computes between two collectives becomes a graph on each, and collectives are calls of NCCL
    between them. Its plans run one by one, as on the CPU, if its arrays are not all on the same
    GPUs, and in several processes if it returns an argument or its state as it is.

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
    if verify is not None and verify < 0:
        raise error(ArgumentError, "function", f"verify is {verify}", remedy="Pass 0 or more.")
    named = state if isinstance(state, list | tuple | None) else (state,)
    for i, part in enumerate(named or ()):
        if tree_of(part) is None and not isinstance(part, Generator):
            raise error(
                DtypeError,
                "function",
                f"state[{i}] is {shown_value(part)}, which has no place for an array",
                remedy="Name Modules, optimizers, generators, dicts, lists or objects with "
                "attributes, and keep arrays in them. A list names several: write "
                "state=[arrays] of a list of arrays.",
            )
    decorate = partial(Function, state=None if named is None else tuple(named), verify=verify)
    return decorate if f is None else decorate(f)
