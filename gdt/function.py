"""`gdt.function`: a step that is recorded once, and then runs as a program."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.array import DistributedArray
from gdt.captures import PRIMITIVES, Captures, Place
from gdt.errors import FunctionError, error
from gdt.mesh import chosen_mesh
from gdt.observe import OBSERVERS, observing
from gdt.policy import MATMUL_BACKEND, MATMUL_PRECISION
from gdt.program import Program, Recorder
from gdt.recording import OUTDATED, Input, Recording, Result, replaced, templated

PACKAGE = str(Path(__file__).parent)
MANY = 16  # recordings after which a function warns that it is recorded over and over

Tree = Any


class RerecordedWarning(UserWarning):
    """A function is recorded anew in most of its calls, which costs more than it saves."""


# ---------------------------------------------------------------- arguments


class Arguments:
    """The arguments of a call: `key`, all but the values in arrays; `places`, where its arrays are
    kept; `captures`, what is reached through other objects among them."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> None:
        self.places: list[Place] = []
        self.objects: list[tuple[str, Any]] = []
        self._parts: list[Any] = [chosen_mesh(), MATMUL_BACKEND.get(), MATMUL_PRECISION.get()]
        self._name = name
        for i, a in enumerate(args):
            self._add(args, i, a, f"argument {i}")
        for k, a in kwargs.items():
            self._parts.append(k)
            self._add(kwargs, k, a, f"argument {k!r}")
        self.key = tuple(self._parts)

    def _add(self, owner: Any, key: Any, value: Any, path: str) -> None:
        parts = self._parts
        if type(value) is DistributedArray:
            parts.append(value.type)
            self.places.append(Place(owner, key, path))
        elif isinstance(value, np.ndarray):
            raise error(
                FunctionError,
                self._name,
                f"{path} is a NumPy array {value.dtype}{list(value.shape)}",
                remedy="Pass gdt.asarray(x, layout=...): a recorded step reads its operands anew.",
            )
        elif isinstance(value, PRIMITIVES):
            parts.extend((type(value), value))
        elif type(value) in (list, tuple) or hasattr(value, "_fields"):
            parts.extend((type(value), len(value)))
            for i, v in enumerate(value):
                self._add(value, i, v, f"{path}[{i}]")
        elif type(value) is dict:
            parts.extend((dict, *value))
            for k, v in value.items():
                self._add(value, k, v, f"{path}[{k!r}]")
        else:
            parts.append(id(value))
            self.objects.append((path, value))


# ---------------------------------------------------------------- recording


class StepRecorder(Recorder):
    """A recorder that lets no value reach the host: the program would not wait for it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def line(self) -> str:
        """The user's line."""
        return _line_of_user()

    def on_host(self, name: str) -> None:
        raise error(
            FunctionError,
            self._name,
            f"a recorded step cannot read values on the host, as {_line_of_user()} does",
            remedy="Return the array and read it outside, or compute with gdt.where.",
        )


def _line_of_user() -> str:
    """The innermost line of the running code that is not gdt's."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((PACKAGE, "<gdt")):
        frame = frame.f_back
    if frame is None:
        return "some line"
    return f"line {frame.f_lineno} of {frame.f_code.co_filename} ({frame.f_code.co_name})"


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


class Function:
    """What `gdt.function` returns: calls `function`, recorded and replayed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._name = getattr(function, "__name__", type(function).__name__)
        self._known: dict[Any, list[Recording]] = {}
        self._count = 0

    def __repr__(self) -> str:
        return f"<gdt.function {self._name}, {self._count} recordings>"

    @property
    def programs(self) -> list[Program]:
        """The programs recorded so far; `print(program.source)` shows what runs."""
        return [r.program for recordings in self._known.values() for r in recordings]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if OBSERVERS.get():  # a tape, explain or a recording around this one wants every op
            return self._function(*args, **kwargs)
        arguments = Arguments(args, kwargs, self._name)
        recordings = self._known.get(arguments.key)
        if recordings is None:
            # The first call makes plans and whatever state there is to be; it runs as written.
            with _without_traces([p.read() for p, _ in self._places(arguments)[1]]):
                result = self._function(*args, **kwargs)
            self._known[arguments.key] = []
            return result
        for recording in recordings:
            result = recording.replay(arguments.places)
            if result is not OUTDATED:
                return result
        return self._record(arguments, recordings, args, kwargs)

    def _places(self, arguments: Arguments) -> tuple[Captures, list[tuple[Place, int]]]:
        """What the function can reach; and where its arrays are, with their numbers among the
        arguments, -1 for others."""
        captures = Captures()
        captures.enter(self._function, self._name)
        for path, value in arguments.objects:
            captures.enter(value, path)
        places = [(p, n) for n, p in enumerate(arguments.places)]
        return captures, places + [(p, -1) for p, _ in captures.arrays]

    def _record(
        self, arguments: Arguments, recordings: list[Recording], args: Any, kwargs: Any
    ) -> Any:
        recorder = StepRecorder(self._name)
        captures, places = self._places(arguments)
        before = [(p, n, p.read(), recorder.declare(p.read())) for p, n in places]
        with _without_traces([was for _, _, was, _ in before]), observing(recorder):
            returned = self._function(*args, **kwargs)
        changed = captures.changed()
        if changed is not None:
            self._count_recording(changed)
            return returned
        results: list[DistributedArray] = []
        template = templated(returned, results, self._name)
        inputs = []
        for place, n, was, register in before:
            now, written = place.read(), None
            if now is not was:
                if not isinstance(now, DistributedArray):
                    self._count_recording(place.path)
                    return returned
                written = Result.of(now, results)
            inputs.append(Input(place, n, was.type, register, written))
        outputs = [recorder.find(r) for r in results]
        program = recorder.program([i.register for i in inputs], outputs, replaced(inputs))
        if program is None:
            raise self._unknown(recorder, outputs)
        recordings.insert(0, Recording(self._name, recorder, captures, inputs, program, template))
        del recordings[MANY:]
        self._count_recording()
        return returned

    def _count_recording(self, changed: str = "") -> None:
        self._count += 1
        if self._count == MANY:
            reason = f": {changed} changes in every call" if changed else ""
            warnings.warn(
                f"gdt.function: {self._name} was recorded {MANY} times{reason}; numbers that "
                "change from call to call belong in arrays, such as gdt.asarray(rate)",
                RerecordedWarning,
                stacklevel=4,
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
    has been made before, and is replayed as long as nothing that it relies on has changed; else it
    is recorded anew. Inside a tape, `gdt.explain` or another recording, `f` itself is called.
    Printing, appending to lists and whatever else is not computation on arrays happens only when
    `f` runs, as with `jax.jit` and `tf.function`. Results are bitwise those of `f`.

    On one GPU the step becomes a CUDA graph with memory of its own, which its fourth call captures:
    from then on a call is one launch. On several GPUs its plans run one by one, as on the CPU.

    Raises FunctionError where a step reads values on the host, returns numbers that are no arrays,
    or takes a NumPy array as an argument; and for what a CUDA graph cannot capture.

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
