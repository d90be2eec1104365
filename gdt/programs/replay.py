"""Replays: a call of a step that has been recorded, as a function that runs its program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gdt.array.array import DistributedArray
from gdt.array.views import rebind
from gdt.engine.source import define
from gdt.engine.updates import OWNERSHIP, is_only_owned_source, is_owned
from gdt.errors import FunctionError, error
from gdt.programs.graphs.cuda_graph import StepGraph, step_graph
from gdt.programs.instruction import array_of
from gdt.programs.program import Program
from gdt.programs.recorder import Recorder
from gdt.programs.step_state import State
from gdt.sharding.array_type import ArrayType
from gdt.state import Place
from gdt.state.trees import mapped
from gdt.state.variables import MISSING_KEY

OUTDATED = object()  # what a replay returns if something is not what it was
UNVERIFIED = object()  # what a replay returns that is to be verified first

Tree = Any


@dataclass(frozen=True, slots=True)
class ReturnedArray:
    """An array that a function makes: which of the program's outputs it is, and which of them is
    its value with nothing partial, -1 if the function did not ask for that.

    is_passed: whether the function passed its partial reduction on.
    """

    type: ArrayType
    output: int
    resolved: int
    is_passed: bool

    @classmethod
    def of(cls, array: DistributedArray, results: list[DistributedArray]) -> ReturnedArray:
        """An array as a result; what the program is to return of it is added to `results`."""
        results.append(array)
        if array._resolved is None:
            return cls(array.type, len(results) - 1, -1, array._is_passed)
        results.append(array._resolved)
        return cls(array.type, len(results) - 2, len(results) - 1, array._is_passed)

    def source(self, name: str, namespace: dict[str, Any]) -> str:
        """The expression of `array(outputs)`; names that begin with `name` are put into
        `namespace`."""
        if self.resolved >= 0 or self.is_passed or len(self.type.mesh.blocks) > 1:
            namespace[name] = self.array
            return f"{name}(outputs)"
        namespace[name] = self.type
        return f"array({name}, (outputs[{self.output}],))"

    def array(self, outputs: Sequence[Any]) -> DistributedArray:
        """The array that a run of the program has made."""
        result = array_of(self.type, outputs[self.output])
        result._is_passed = self.is_passed
        if self.resolved >= 0:
            array_type = self.type.with_layout(self.type.layout.resolved)
            result._resolved = array_of(array_type, outputs[self.resolved])
        return result


def templated(tree: Tree, results: list[DistributedArray], name: str) -> Tree:
    """The returned tree with a `ReturnedArray` for every array, which are added to `results`."""

    def template(leaf: Any) -> Any:
        if isinstance(leaf, DistributedArray):
            return ReturnedArray.of(leaf, results)
        if leaf is None or isinstance(leaf, str):
            return leaf
        raise _not_computed(name, f"a value of type {type(leaf).__name__}")

    try:
        return mapped(template, tree)
    except RecursionError:
        raise _not_computed(name, "a tree that is nested too deep, or that holds itself") from None
    except (TypeError, ValueError, AttributeError) as e:
        raise _not_computed(name, f"a container which is not made of its items ({e})") from e


def _not_computed(name: str, result: str) -> FunctionError:
    return error(
        FunctionError,
        name,
        f"it returns {result}: a replay could not make another one",
        remedy="Return arrays, None, or lists, tuples and dicts of them.",
    )


def _returned(template: Tree, namespace: dict[str, Any]) -> str:
    """The expression of the tree that a template stands for."""
    if type(template) is ReturnedArray:
        return template.source("returned", namespace)
    if type(template) is dict and all(
        type(key) is str and type(leaf) is ReturnedArray for key, leaf in template.items()
    ):  # a trainer's results, among others: without a walk in every call
        parts = [
            f"{key!r}: {leaf.source(f'returned{n}', namespace)}"
            for n, (key, leaf) in enumerate(template.items())
        ]
        return f"{{{', '.join(parts)}}}"

    namespace["filled"] = lambda outputs: mapped(
        lambda leaf: leaf.array(outputs) if type(leaf) is ReturnedArray else leaf, template
    )
    return "filled(outputs)"


class Input(NamedTuple):
    """The place from which a program reads a register.

    argument: the number of the place among those of the arguments, of which each call has its own
    owner (here None); -1 for a place of the state. type: the type that the array there must have.
    written: the result that is put there after the call; None if the array stays. in_place: whether
    the array itself takes the value of that result.
    """

    place: Place
    argument: int
    type: ArrayType
    register: int
    written: ReturnedArray | None
    in_place: bool = False


def replaced(inputs: Sequence[Input]) -> set[int]:
    """The registers of arrays that are kept in one place, where another array will be put."""
    counts = Counter(i.register for i in inputs)
    return {i.register for i in inputs if i.written and counts[i.register] == 1}


class Recording:
    """A call that has been recorded.

    `replay` takes the places (owner and key) of the arrays among a call's arguments, and its lists
    and dicts; it runs the program on what is in them and in the places of the state, puts results
    back and returns them as the step does; or returns OUTDATED, or UNVERIFIED if the list
    `unverified` is not empty, and has changed nothing. `source`
    is its text: in a step of small arrays, loops over the places would cost as much as some of the
    ops. `inputs` are the places of all arrays that the step was given.
    """

    def __init__(
        self,
        name: str,
        recorder: Recorder,
        state: State,
        containers: Sequence[Any],
        inputs: Sequence[Input],
        program: Program,
        template: Tree,
    ) -> None:
        self.state, self.program, self.inputs = state, program, inputs
        self.unverified = [True]
        namespace: dict[str, Any] = {
            "unverified": self.unverified, "UNVERIFIED": UNVERIFIED,
            "changed": state.changed, "missing": MISSING_KEY, "OUTDATED": OUTDATED,
            "array": DistributedArray, "rebind": rebind, "is_owned": is_owned,
            "entered": frozenset(state.entered), **OWNERSHIP,
        }  # fmt: skip
        self.graph = _graph(name, recorder, inputs, program)
        # Lists and dicts of the arguments are the same ones of the state as then, or none of it.
        tests = [f"== {id(c)}" if id(c) in state.entered else "not in entered" for c in containers]
        guards = [
            state.unchanged(namespace),
            *_guards(inputs, namespace),
            *[f"id(containers[{n}]) {test}" for n, test in enumerate(tests)],
        ]
        lines = [
            *[
                f"o{n}, k{n} = places[{i.argument}]"
                for n, i in enumerate(inputs)
                if i.argument >= 0
            ],
            "try:",
            *[f"    if not ({guard}):\n            return OUTDATED" for guard in guards],
            "except missing:",
            "    return OUTDATED",
            "if unverified:",
            "    return UNVERIFIED",
            *_run(inputs, program, self.graph, namespace),
            f"return {_returned(template, namespace)}",
        ]
        replay = define("replay(places, containers)", lines, namespace, "<gdt replay>")
        self.replay: Callable[[Sequence[tuple[Any, Any]], Sequence[Any]], Tree] = replay
        self.source: str = replay.source


def _guards(inputs: Sequence[Input], namespace: dict[str, Any]) -> list[str]:
    """Expressions that are true if the places hold what a program was recorded for."""
    guards, first = [], _first(inputs)
    for n, i in enumerate(inputs):
        place = f"o{n}[k{n}]"
        if i.argument < 0:  # the types of arguments are part of what a recording is known by
            namespace |= {f"o{n}": i.place.owner, f"k{n}": i.place.key, f"t{n}": i.type}
            guards.append(f"type({place}) is array and {place}.type is t{n}")
        if first[i.register] != n:  # places that held one array must go on to hold one
            other = first[i.register]
            guards.append(f"{place}.blocks is o{other}[k{other}].blocks")
    return guards


def _first(inputs: Sequence[Input]) -> dict[int, int]:
    """For every register the number of the first input that is one of its places."""
    return {i.register: n for n, i in reversed([*enumerate(inputs)])}


def _graph(
    name: str, recorder: Recorder, inputs: Sequence[Input], program: Program
) -> StepGraph | None:
    """The program as CUDA graphs, where it is on GPUs."""
    first, once = _first(inputs), replaced(inputs)
    program_inputs = [inputs[first[r]] for r in program.inputs]
    states = {
        at: i.written.output
        for at, i in enumerate(program_inputs)
        if i.register in once and i.written and i.written.type is i.type
    }
    meshes = [i.type.mesh for i in program_inputs]
    are_arguments = [i.argument >= 0 for i in program_inputs]
    return step_graph(name, program, recorder.values, meshes, states, are_arguments)


def _run(
    inputs: Sequence[Input], program: Program, graph: StepGraph | None, namespace: dict[str, Any]
) -> list[str]:
    """The lines that run a program, or launch it as a graph, and put what it makes in its place."""
    first = _first(inputs)
    alone = {i.register for i in inputs if len(i.type.mesh.blocks) == 1}  # as `value_of` has them
    values = {r: f"o{n}[k{n}].blocks" for r, n in first.items()}
    # The blocks of a view whose base has been written are made when they are taken.
    blocks = [f"{values[r]}[0]" if r in alone else f"tuple({values[r]})" for r in program.inputs]
    if graph is None:
        namespace["run"] = program.run
        places = {r: f"o{first[r]}[k{first[r]}]" for r in program.donated}
        lines = [
            f"free{r} = {is_only_owned_source(place)}"
            if r in alone
            else f"free{r} = is_owned(o{first[r]}, k{first[r]})"
            for r, place in places.items()
        ]
        operands = ", ".join(blocks + [f"free{r}" for r in program.donated])
    else:
        namespace["run"] = graph.run
        states = [(at, first[program.inputs[at]]) for at in graph.states]
        free = [f"{at}: all(is_owned(o{n}, k{n}))" for at, n in states]
        # Asked before the list of blocks, which refers to them, is made.
        blocks = [f"tuple({values[r]})" for r in program.inputs]
        lines, operands = [f"free = {{{', '.join(free)}}}"], f"[{', '.join(blocks)}], free"
    lines.append(f"outputs = run({operands})")
    for n, i in enumerate(inputs):
        if i.written:
            result = i.written.source(f"w{n}", namespace)
            put = f"rebind(o{n}[k{n}], {result})" if i.in_place else f"o{n}[k{n}] = {result}"
            lines.append(put)
    return lines
