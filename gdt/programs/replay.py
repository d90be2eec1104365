"""Recordings: calls of a step as functions that run their programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

from gdt.array.array import DistributedArray
from gdt.array.views import rebind
from gdt.engine.ownership import OWNERSHIP, is_only_owned_source, is_owned
from gdt.engine.source import define
from gdt.errors import FunctionError, error
from gdt.observe import HELD
from gdt.programs.graphs.cuda_graph import StepGraph, step_graph
from gdt.programs.instruction import array_of
from gdt.programs.program import Program
from gdt.programs.recorder import Recorder
from gdt.programs.step_state import Arguments, State
from gdt.sharding.array_type import ArrayType
from gdt.state import Place
from gdt.state.trees import SEQUENCES, is_container, with_values
from gdt.state.variables import MISSING_KEY, read

OUTDATED = object()  # what a replay returns if something is not what it was
UNVERIFIED = object()  # what a replay returns that is to be verified first
MOST_DEPTH = 64  # of returned containers in containers

Tree = Any
Namespace = dict[str, Any]


# ---------------------------------------------------------------- what a step returns


class ReturnedArray(NamedTuple):
    """An array that a function makes: which of the program's outputs it is, and which of them is
    the form of it that it remembers, of type `form`, -1 if it remembers none.

    is_passed: whether the function passed its partial reduction on.
    """

    type: ArrayType
    output: int
    resolved: int
    form: ArrayType
    is_passed: bool

    @classmethod
    def of(cls, array: DistributedArray, results: list[DistributedArray]) -> ReturnedArray:
        """An array as a result; what the program is to return of it is added to `results`."""
        known = [x for x in (array, array._resolved) if x is not None]
        output = len(results)
        results += known
        resolved = output + 1 if len(known) > 1 else -1
        return cls(array.type, output, resolved, known[-1].type, array._is_passed)

    def source(self, namespace: Namespace) -> str:
        """The expression of `array(outputs)`; its names are put into `namespace`."""
        name = f"result{self.output}"
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
            result._resolved = array_of(self.form, outputs[self.resolved])
        return result


def source_of_returned(
    tree: Tree,
    results: list[DistributedArray],
    namespace: Namespace,
    name: str,
    depth: int = 0,
) -> str:
    """The expression of what a step of that name returns, from the tuple `outputs` of its program.
    What the program is to return is added to `results`, and names to `namespace`.

    depth: of `tree` in what is returned.
    """
    if isinstance(tree, DistributedArray):
        return ReturnedArray.of(tree, results).source(namespace)
    if tree is None or type(tree) is str:
        return repr(tree)
    if not is_container(tree):
        raise _not_computed(name, f"a value of type {type(tree).__name__}")
    if depth == MOST_DEPTH:
        raise _not_computed(name, "a tree that is nested too deep, or that holds itself")
    keys = range(len(tree)) if isinstance(tree, SEQUENCES) else tree
    items = [source_of_returned(tree[key], results, namespace, name, depth + 1) for key in keys]
    values = "".join([f"{item}, " for item in items])
    if type(tree) in (list, tuple):
        return f"[{values}]" if type(tree) is list else f"({values})"
    like = f"like{len(namespace)}"
    try:
        namespace[like] = with_values(tree, [None] * len(tree))
    except (TypeError, ValueError, AttributeError) as e:
        problem = f"a container which is not made of its items ({e})"
        raise _not_computed(name, problem) from e
    return f"{'dict(zip' if type(tree) is dict else '(with_values'}({like}, ({values})))"


def _not_computed(name: str, result: str) -> FunctionError:
    return error(
        FunctionError,
        name,
        f"it returns {result}: a replay could not make another one",
        remedy="Return arrays, None, or lists, tuples and dicts of them.",
    )


# ---------------------------------------------------------------- recordings


class Input(NamedTuple):
    """A register of a program, and the place where its array is found.

    place: that of an array of the state; of an argument None, since each call has another. type:
    the type that the array there must have. written: the result that is put there after the call;
    None if the array stays. in_place: whether the array itself takes the value of that result.
    """

    place: Place | None
    type: ArrayType
    register: int
    written: ReturnedArray | None
    in_place: bool


class Recording:
    """A call that has been recorded.

    `replay` takes the places (owner and key) of the arrays among a call's arguments, and its lists
    and dicts; it runs the program on what is in them and in the places of the state, puts results
    back and returns them as the step does; or returns OUTDATED, or UNVERIFIED if the list
    `unverified` is not empty, and has changed nothing. `source` is its text: in a step of small
    arrays, loops over the places would cost as much as some of the ops.

    declared: the places of all arrays that the step was given, the types of the arrays there, and
    their registers.
    """

    def __init__(
        self,
        name: str,
        state: State,
        arguments: Arguments,
        recorder: Recorder,
        declared: Sequence[tuple[Place, DistributedArray, ArrayType, int]],
        returned: Tree,
    ) -> None:
        self.state, self.unverified = state, [True]
        namespace: Namespace = {
            "unverified": self.unverified, "UNVERIFIED": UNVERIFIED, "OUTDATED": OUTDATED,
            "changed": state.changed, "missing": MISSING_KEY, "entered": frozenset(state.entered),
            "array": DistributedArray, "rebind": rebind, "is_owned": is_owned,
            "with_values": with_values, **OWNERSHIP,
        }  # fmt: skip
        results: list[DistributedArray] = []
        expression = source_of_returned(returned, results, namespace, name)
        count, inputs = len(arguments.places), []
        for n, (place, array, array_type, register) in enumerate(declared):
            now = read(place)
            is_other = now is not array or state.is_written(array)
            written = ReturnedArray.of(now, results) if is_other else None
            kept = place if n >= count else None
            inputs.append(Input(kept, array_type, register, written, now is array))
        self.places = [i.place for i in inputs if i.place is not None]
        registers = Counter(i.register for i in inputs)
        # Arrays that are kept in one place, where another array will be put.
        once = {i.register for i in inputs if i.written and registers[i.register] == 1}
        outputs = [recorder.find(r) for r in results]
        program = recorder.program([*registers], outputs, once)
        if program is None:
            problem = (
                f"{recorder.first_unknown(outputs)} that is kept in a place that no state names"
            )
            raise error(FunctionError, name, problem, remedy=HELD)
        state.forget()
        self.program = program
        self.graph = _graph(name, recorder, inputs, program, once)
        # Lists and dicts of the arguments are the same ones of the state as then, or none of it.
        containers = [id(container) for container in arguments.containers]
        tests = [f"== {c}" if c in state.entered else "not in entered" for c in containers]
        guards = [
            state.unchanged(namespace),
            *_guards(inputs, namespace),
            *[f"id(containers[{n}]) {test}" for n, test in enumerate(tests)],
        ]
        lines = [
            *[f"o{n}, k{n} = places[{n}]" for n in range(count)],
            "try:",
            *[f"    if not ({guard}):\n            return OUTDATED" for guard in guards],
            "except missing:",
            "    return OUTDATED",
            "if unverified:",
            "    return UNVERIFIED",
            *_run(inputs, program, self.graph, namespace),
            f"return {expression}",
        ]
        self.replay = define("replay(places, containers)", lines, namespace, "<gdt replay>")
        self.source: str = self.replay.source


def _first(inputs: Sequence[Input]) -> dict[int, int]:
    """For every register the number of the first input that is one of its places."""
    return {i.register: n for n, i in reversed([*enumerate(inputs)])}


def _guards(inputs: Sequence[Input], namespace: Namespace) -> list[str]:
    """Expressions that are true if the places hold what a program was recorded for."""
    guards, first = [], _first(inputs)
    for n, i in enumerate(inputs):
        place = f"o{n}[k{n}]"
        if i.place is not None:  # the types of arguments are part of the signature of a call
            namespace |= {f"o{n}": i.place.owner, f"k{n}": i.place.key, f"t{n}": i.type}
            guards.append(f"type({place}) is array and {place}.type is t{n}")
        if (other := first[i.register]) != n:  # places that held one array must go on to hold one
            guards.append(f"{place}.blocks is o{other}[k{other}].blocks")
    return guards


def _graph(
    name: str, recorder: Recorder, inputs: Sequence[Input], program: Program, once: Set[int]
) -> StepGraph | None:
    """The program as CUDA graphs, where it is on GPUs."""
    first = _first(inputs)
    read = [inputs[first[r]] for r in program.inputs]
    states = {
        at: i.written.output
        for at, i in enumerate(read)
        if i.register in once and i.written and i.written.type is i.type
    }
    meshes, are_arguments = [i.type.mesh for i in read], [i.place is None for i in read]
    return step_graph(name, program, recorder.values, meshes, states, are_arguments)


def _run(
    inputs: Sequence[Input], program: Program, graph: StepGraph | None, namespace: Namespace
) -> list[str]:
    """The lines that run a program, or launch it as a graph, and put what it makes in its place."""
    first = _first(inputs)
    alone = {i.register for i in inputs if len(i.type.mesh.blocks) == 1}  # as `value_of` has them
    places = {r: f"o{n}[k{n}]" for r, n in first.items()}
    owned = {r: f"is_owned(o{n}, k{n})" for r, n in first.items()}
    # The blocks of a view whose base has been written are made when they are taken.
    whole = {r: f"tuple({place}.blocks)" for r, place in places.items()}
    if graph is None:
        namespace["run"] = program.run
        flags = {r: is_only_owned_source(places[r]) if r in alone else owned[r] for r in first}
        lines = [f"free{r} = {flags[r]}" for r in program.donated]
        operands = [f"{places[r]}.blocks[0]" if r in alone else whole[r] for r in program.inputs]
        operands += [f"free{r}" for r in program.donated]
    else:
        namespace["run"] = graph.run
        states = {at: program.inputs[at] for at in graph.states}
        flags = {
            r: is_only_owned_source(places[r]) if r in alone else f"all({owned[r]})" for r in first
        }
        # Asked before the list of blocks, which refers to them, is made.
        lines = [f"free = {{{', '.join([f'{at}: {flags[r]}' for at, r in states.items()])}}}"]
        operands = [f"[{', '.join([whole[r] for r in program.inputs])}]", "free"]
    lines.append(f"outputs = run({', '.join(operands)})")
    for n, i in enumerate(inputs):
        if i.written:
            put = f"rebind(o{n}[k{n}], {{}})" if i.in_place else f"o{n}[k{n}] = {{}}"
            lines.append(put.format(i.written.source(namespace)))
    return lines
