"""`gdt.function`: a step that is recorded once, and then runs as a program."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.engine.plan import exact_key, exactly
from gdt.errors import FunctionError, error, frame_of_user, line_of_user
from gdt.observe import OBSERVERS, observing
from gdt.programs.captures import PRIMITIVES, Captures, Place
from gdt.programs.moving_values import moved_on, positions
from gdt.programs.program import Program
from gdt.programs.recorder import Recorder
from gdt.programs.recording import OUTDATED, Input, Recording, Result, replaced, templated
from gdt.programs.user_code import Ran
from gdt.settings import MATMUL_BACKEND, MATMUL_PRECISION
from gdt.sharding.mesh import chosen_mesh

__all__ = ["Function", "RerecordedWarning", "function"]


MANY = 16  # recordings after which a function warns that it is recorded over and over
MANY_KINDS = 64  # of calls, after which it warns that each is another
MOST_KINDS = 1024  # of calls that are known; then the oldest is forgotten

Tree = Any
Path = tuple[Any, ...]  # the number or name of an argument, and the keys that lead to a part of it


class RerecordedWarning(UserWarning):
    """A function is recorded anew in most of its calls, which costs more than it saves."""


# ---------------------------------------------------------------- arguments


class Arguments:
    """The arguments of a call: `key`, all but the values in arrays; `places`, where its arrays are
    kept (owner, key and path); `objects`, the paths of what is no array, number or container of
    those, with it; `containers`, lists and dicts.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> None:
        self.places: list[tuple[Any, Any, Path]] = []
        self.objects: list[tuple[Path, Any]] = []
        self.containers: list[Any] = []
        self._numbers: dict[int, int] = {}  # of the containers, by identity
        # Every part says how many follow: no two calls that differ are to have one key.
        settings = (chosen_mesh(), MATMUL_BACKEND.get(), MATMUL_PRECISION.get())
        self._parts: list[Any] = [*settings, *np.geterr().values(), len(args)]
        self._name = name
        try:
            for i, a in enumerate(args):
                self._add(args, i, a, (i,))
            for k, a in kwargs.items():
                self._parts.append(k)
                self._add(kwargs, k, a, (k,))
        except RecursionError:
            raise error(
                FunctionError, name, "an argument is nested too deep", remedy="Pass flat lists."
            ) from None
        self.key = tuple(self._parts)

    def _add(self, owner: Any, key: Any, value: Any, path: Path) -> None:
        parts = self._parts
        if type(value) is DistributedArray:
            parts.append(value.type)
            self.places.append((owner, key, path))
        elif isinstance(value, np.ndarray):
            raise error(
                FunctionError,
                self._name,
                f"{_spelled(path)} is a NumPy array {value.dtype}{list(value.shape)}",
                remedy="Pass gdt.asarray(x, layout=...): a recorded step reads its operands anew.",
            )
        elif isinstance(value, PRIMITIVES):
            parts.extend(exactly(value))
        elif type(value) in (list, tuple) or hasattr(value, "_fields"):
            parts.extend((type(value), len(value)))
            if type(value) is not list or self._is_new(value):
                for i, v in enumerate(value):
                    self._add(value, i, v, (*path, i))
        elif type(value) is dict:
            parts.extend((dict, len(value), *value, *_kinds(value)))
            if self._is_new(value):
                for k, v in value.items():
                    self._add(value, k, v, (*path, k))
        else:
            parts.append(id(value))
            self.objects.append((path, value))

    def _is_new(self, container: Any) -> bool:
        """Whether it has not been given before; the key has its number among the containers, which
        tells one that is given twice from two."""
        count = len(self.containers)
        number = self._numbers.setdefault(id(container), count)
        self._parts.append(number)
        if number == count:
            self.containers.append(container)
        return number == count


def _spelled(path: Path) -> str:
    """An argument, or a part of one, as messages name it."""
    first, *keys = path
    return f"argument {first!r}" + "".join([f"[{key!r}]" for key in keys])


def _kinds(keys: dict[Any, Any]) -> Iterable[Any]:
    """What tells these keys from those that are equal to them."""
    kinds = [*map(type, keys)]
    return kinds if kinds.count(str) == len(kinds) else map(exact_key, keys)


# ---------------------------------------------------------------- recording


def _has_changed(path: str | None) -> str:
    return f"{path} has changed" if path else ""


class StepRecorder(Recorder):
    """A recorder that lets no value reach the host: the program would not wait for it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def line(self) -> str:
        """The user's line."""
        return line_of_user()

    def on_seed(self) -> None:
        raise error(
            FunctionError,
            self._name,
            f"a recorded step cannot seed random numbers, as {line_of_user()} does",
            remedy="Seed outside of it, or give each draw a key: key=gdt.random.key(1).",
        )

    def on_host(self, name: str) -> None:
        raise error(
            FunctionError,
            self._name,
            f"a recorded step cannot read values on the host, as {line_of_user()} does",
            remedy="Return the array and read it outside, or compute with gdt.where.",
        )


@contextmanager
def _without_traces(arrays: Sequence[DistributedArray]) -> Iterator[None]:
    """In this context nothing is known of what was resolved before, and afterwards nothing of what
    was resolved of these arrays meanwhile: so every call sends the same, whether it is replayed, is
    recorded or runs as written, and processes may differ in that."""
    known = [a._resolved for a in arrays]
    for a in arrays:
        a._resolved = None
    try:
        yield
    finally:
        for a, resolved in zip(arrays, known, strict=True):
            a._resolved = resolved


@contextmanager
def _restoring(
    kept: Sequence[tuple[Place, DistributedArray]], captures: Captures
) -> Iterator[None]:
    """Put these arrays, and counters of steps, back if what has run in this context turns out not
    to be a step that can be recorded: else somebody who catches that would take the step twice."""
    counters = captures.counters()
    try:
        yield
    except FunctionError:
        for place, array in kept:
            if place.read() is not array:
                place.owner[place.key] = array
        for attributes, values in counters:
            attributes.update(values)
        raise


class Function:
    """What `gdt.function` returns: calls `function`, recorded and replayed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._name = getattr(function, "__name__", type(function).__name__)
        self._known: dict[Any, list[Recording]] = {}
        self._ran = Ran()
        self._count = 0
        self._has_warned = False

    def __repr__(self) -> str:
        return f"<gdt.function {self._name}, {self._count} recordings>"

    @property
    def programs(self) -> list[Program]:
        """The programs recorded so far; `print(program.source)` shows what runs."""
        return [r.program for recordings in self._known.values() for r in recordings]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if OBSERVERS.get():  # a tape, explain or a recording around this one wants every op
            return self._function(*args, **kwargs)
        arguments = Arguments(args, kwargs, self._name)
        recordings = self._known.get(arguments.key)
        if recordings is None:
            return self._first_call(arguments, args, kwargs)
        for recording in recordings:
            result = recording.replay(arguments.places, arguments.containers)
            if result is not OUTDATED:
                return result
        return self._record(arguments, recordings, args, kwargs)

    def _first_call(self, arguments: Arguments, args: Any, kwargs: Any) -> Any:
        """Run as written: what makes plans and whatever state there is to be, and shows which
        functions run."""
        captures, places = self._places(arguments)
        kept = [(p, p.read()) for p, _ in places]
        with _restoring(kept, captures), _without_traces([a for _, a in kept]):
            with self._ran.watching(captures.functions):
                result = self._function(*args, **kwargs)
            templated(result, [], self._name)  # raises for what a replay could not return
        if len(self._known) == MANY_KINDS:
            self._warn(
                f"was called in {MANY_KINDS} ways, of each of which the first two calls run as "
                "written; numbers that change from call to call are arrays: gdt.asarray(number)"
            )
        while len(self._known) >= MOST_KINDS:
            del self._known[next(iter(self._known))]
        self._known[arguments.key] = []
        return result

    def _places(self, arguments: Arguments) -> tuple[Captures, list[tuple[Place, int]]]:
        """What the function can reach; and where its arrays are, with their numbers among the
        arguments, -1 for others."""
        captures = Captures(self._ran)
        captures.enter(self._function, self._name)
        for path, value in arguments.objects:
            captures.enter(value, _spelled(path))
        captures.enter_ran()
        places = [
            (Place(owner, key, _spelled(path)), n)
            for n, (owner, key, path) in enumerate(arguments.places)
        ]
        return captures, places + [(p, -1) for p, _ in captures.arrays]

    def _record(
        self, arguments: Arguments, recordings: list[Recording], args: Any, kwargs: Any
    ) -> Any:
        outdated = recordings[0].captures.changed() if recordings else None
        recorder, known = StepRecorder(self._name), len(self._ran.codes)
        captures, places = self._places(arguments)
        before = [(p, n, p.read(), recorder.declare(p.read())) for p, n in places]
        arrays = [was for _, _, was, _ in before]
        began = positions(captures.moving)
        with _restoring([(p, was) for p, _, was, _ in before], captures):
            with (
                _without_traces(arrays),
                observing(recorder),
                self._ran.watching(captures.functions) as is_watched,
            ):
                returned = self._function(*args, **kwargs)
            reason = self._why_not(captures, began)
            if reason:
                self._count_recording(reason)
                return returned
            # Functions whose variables have not been looked at, or that nobody has seen.
            if not is_watched or len(self._ran.codes) > known:
                return returned
            self._keep(arguments, recordings, recorder, captures, before, returned)
        self._count_recording(_has_changed(outdated))
        return returned

    def _why_not(self, captures: Captures, began: Sequence[tuple[Any, ...]]) -> str:
        """Why what has just run must run as written the next time, too; empty if it need not."""
        resumed = self._ran.resumed
        return (
            _has_changed(captures.changed())
            or moved_on(captures.moving, began)
            or _has_changed(resumed and f"the state of {resumed}")
        )

    def _keep(
        self,
        arguments: Arguments,
        recordings: list[Recording],
        recorder: StepRecorder,
        captures: Captures,
        before: Sequence[tuple[Place, int, DistributedArray, int]],
        returned: Tree,
    ) -> None:
        """Keep what has been recorded, if the step has left arrays where arrays were."""
        results: list[DistributedArray] = []
        template = templated(returned, results, self._name)
        inputs = []
        for place, n, was, register in before:
            now, written = place.read(), None
            if now is not was:
                if not isinstance(now, DistributedArray):
                    return
                written = Result.of(now, results)
            inputs.append(Input(place, n, was.type, register, written))
        outputs = [recorder.find(r) for r in results]
        program = recorder.program([i.register for i in inputs], outputs, replaced(inputs))
        if program is None:
            raise self._unknown(recorder, outputs)
        captures.arrays.clear()  # places are all that is needed, and arrays may be large
        recordings.insert(
            0,
            Recording(
                self._name, recorder, captures, arguments.containers, inputs, program, template
            ),
        )
        del recordings[MANY:]

    def _count_recording(self, reason: str) -> None:
        self._count += 1
        if self._count == MANY:
            because = f", the last time because {reason}" if reason else ""
            self._warn(
                f"was recorded {MANY} times{because}; numbers that change from call to call are "
                "arrays, gdt.asarray(number), and learning rates are schedules, which go on by "
                "themselves"
            )

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"gdt.function: {self._name} {problem}",
                RerecordedWarning,
                stacklevel=frame_of_user()[1],
            )

    def _unknown(self, recorder: Recorder, outputs: Sequence[int]) -> Exception:
        name, kind = recorder.first_unknown(outputs)
        return error(
            FunctionError,
            self._name,
            f"{name} reads an array of {kind} that is no argument, and that no variable, module or "
            "container within reach of the function holds",
            remedy="Pass it as an argument, or keep it in a Module, a dict or a list.",
        )


@partial(checked, eager=True)
def function(f: Callable[..., Any]) -> Function:
    """`f`, recorded once for every kind of call and then replayed without Python running it.

    f: a training step, say: a function of arrays, in any tree of lists, tuples and dicts, and of
    whatever else it needs. Arrays may also be reached through its arguments, variables of enclosing
    functions, global variables, and the attributes of Modules, optimizers and other objects there;
    they are read anew in every call, and what the step puts in their place is put there. Learning
    rates, counts of steps and random numbers go on as without recording.

    A call is recorded when one like it (types and layouts of arrays, values of numbers and texts)
    has been made before, and is replayed as long as no Python value that it relies on has changed:
    variables, attributes, defaults, containers, classes and modules that the functions it calls can
    reach; else it is recorded anew. A step that takes values from an iterator, or from the random
    numbers of Python or NumPy, runs as written in every call; so does one that can reach an
    iterator whose position Python does not tell, as `itertools.cycle`. No call is recorded while a
    profiler written in C, as `cProfile`, is at work. What functions read elsewhere is as it was
    when the call was recorded: the elements of NumPy arrays and buffers in Python's hands, queues,
    files, clocks, the environment, what installed packages keep, what `globals()` and `eval` look
    up, members of lists, dicts and sets of more than 4096. Inside a tape, `gdt.explain` or another
    recording, `f` itself is called. Printing, appending to lists and whatever else is not
    computation on arrays happens only when `f` runs, as with `jax.jit` and `tf.function`. Results
    are bitwise those of `f`, in lists, tuples and dicts that are new in every call.

    Recordings keep what they rely on alive: modules and optimizers, too, that the step can reach.

    On one GPU the step becomes a CUDA graph with memory of its own, which its fourth call captures:
    from then on a call is one launch. On several GPUs of one process, what it computes between two
    collectives becomes a graph on each, and the collectives run as without recording. Its plans run
    one by one, as on the CPU, in several processes, and if its arrays are not all on the same GPUs.

    Raises FunctionError where a step reads values on the host, seeds random numbers, returns what
    is no array, or takes a NumPy array as an argument: parameters and counters are then as they
    were before the call; and for what a CUDA graph cannot capture.

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
    return Function(f)
