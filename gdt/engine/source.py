"""Functions of blocks as Python expressions: what surrounds an op's body in a plan, in one frame.

An op on small blocks costs about as much as two or three calls of Python functions. So a plan puts
together what is to be called, and compiles that as one function; a program of many plans writes
their expressions into its own lines.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType
from typing import Any, NamedTuple, cast

import numpy as np

from gdt.backend.numpy import Order, order_in_memory
from gdt.caches import memoized
from gdt.engine.loops import ChosenBody


class Operand(NamedTuple):
    """A parameter of the function, by its number."""

    number: int


class Value(NamedTuple):
    """An object that is known already, and what it may be called in source."""

    name: str
    value: Any


class Item(NamedTuple):
    """An item of a sequence, such as one of an array's blocks."""

    sequence: Expression
    number: int


class CallExpression(NamedTuple):
    """A call of `function`, as an expression of generated source."""

    function: Value
    arguments: Sequence[Expression]
    keywords: Mapping[str, Expression] = {}


class Reshaped(NamedTuple):
    """A view of a block in another shape."""

    block: Expression
    shape: tuple[int, ...]


class Unpacked(NamedTuple):
    """The parts of a tuple, as arguments of a call."""

    parts: Expression


class Tuple(NamedTuple):
    """A tuple of parts."""

    parts: Sequence[Expression]


class Choice(NamedTuple):
    """`chosen` if `condition` is true, else `other`."""

    condition: Expression
    chosen: Expression
    other: Expression


class Buffer(NamedTuple):
    """The memory that a body writes into: the arguments of `Backend.empty`."""

    shape: tuple[int, ...]
    dtype: np.dtype
    order: Order


class NewMemory(NamedTuple):
    """Memory that `empty` makes for a result, as `buffer` says; its axes lie as those of the block
    `like` do, if there is one, as NumPy has it."""

    empty: Callable[..., Any]
    buffer: Buffer
    like: Expression | None = None


Expression = (
    Operand | Value | Item | CallExpression | Reshaped | Unpacked | Tuple | Choice | NewMemory
)


class Names(dict[str, Any]):
    """The global names of generated source and their values; no name is one of `taken`."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = {*taken, *keyword.kwlist}

    def add(self, name: str, value: Any) -> str:
        """Add a value and return its name: `name`, with a number if another value has that name."""
        if not name.isidentifier():
            name = "function"
        candidate, number = name, 1
        while candidate in self.taken or (candidate in self and self[candidate] is not value):
            number += 1
            candidate = f"{name}_{number}"
        self[candidate] = value
        return candidate


def called(
    function: Callable[..., Any],
    arguments: Sequence[Expression],
    keywords: Mapping[str, Expression] = {},
    name: str = "function",
) -> Expression:
    """A call of a function; of a partial, of `reshaped`, or of a body that has been chosen, what it
    stands for. name: what it is called if it is no function of Python's."""
    if isinstance(function, ChosenBody) and function.chosen is not None:
        function = function.chosen
    if isinstance(function, partial):
        if function.func is reshaped:
            return _reshaped(function.args[0], *arguments)
        bound_arguments = [Value("xp" if a is np else "given", a) for a in function.args]
        static = {k: Value(k, v) for k, v in function.keywords.items()}
        return called(function.func, [*bound_arguments, *arguments], {**static, **keywords}, name)
    name = function.__name__ if isinstance(function, FunctionType) else name
    return CallExpression(Value(name, function), arguments, keywords)


def reshaped(shape: tuple[int, ...], x: Any) -> Any:
    """A block in another shape."""
    return x.reshape(shape)


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    """The outputs of a body as a tuple, also where there is only one."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


def in_turn(
    first: Callable[..., Any] | None, second: Callable[..., Any] | None
) -> Callable[..., Any] | None:
    """The function `second(first(...))`; None stands for a function that changes nothing."""
    if first is None or second is None:
        return first or second
    return lambda *xs: second(first(*xs))


def _reshaped(shape: tuple[int, ...], block: Expression) -> Expression:
    return Reshaped(block.block if isinstance(block, Reshaped) else block, shape)


def replaced_operands(expression: Expression, operands: Sequence[Expression]) -> Expression | None:
    """A call with other expressions in the place of its operands; None if some are taken apart."""
    if not isinstance(expression, CallExpression):
        return None
    arguments: list[Expression] = []
    for argument in expression.arguments:
        match argument:
            case Operand(number):
                arguments.append(operands[number])
            case Reshaped(Operand(number), shape):
                arguments.append(_reshaped(shape, operands[number]))
            case Value():
                arguments.append(argument)
            case _:
                return None
    return expression._replace(arguments=arguments)


def written(expression: Expression, operands: Sequence[str], names: Names) -> str:
    """The source of an expression of operands with these names; what else it names is added to
    `names`."""

    def write(part: Expression) -> str:
        return written(part, operands, names)

    match expression:
        case Operand(number):
            return operands[number]
        case Value(name, value):
            return repr(value) if value is None else names.add(name, value)
        case Item(sequence, number):
            return f"{write(sequence)}[{number}]"
        case CallExpression(function, arguments, keywords):
            name = write(function)
            sources = [write(a) for a in arguments]
            sources += [f"{k}={write(v)}" for k, v in keywords.items()]
            return f"{name}({', '.join(sources)})"
        case Reshaped(block, shape):
            return f"{write(block)}.reshape({names.add('shape', shape)})"
        case Unpacked(parts):
            return f"*{write(parts)}"
        case Tuple(parts):
            return f"({''.join(f'{write(p)}, ' for p in parts)})"
        case NewMemory(empty, buffer, like):
            facts: list[Expression] = [Value(k, v) for k, v in buffer._asdict().items()]
            if like is None:
                return write(CallExpression(Value("empty", empty), facts))
            function = Value("empty_like", _empty_like)
            return write(CallExpression(function, [Value("empty", empty), *facts, like]))
        case Choice(condition, chosen, other):
            asked = write(condition)
            if asked in ("True", "False"):
                return write(chosen if asked == "True" else other)
            return f"({write(chosen)} if {asked} else {write(other)})"


def _empty_like(
    empty: Callable[..., Any], shape: tuple[int, ...], dtype: np.dtype, order: Order, x: Any
) -> Any:
    is_broadcast = 0 in x.strides  # its axes have no order
    return empty(shape, dtype, order if is_broadcast else order_in_memory(x))


def memory_of(expression: Expression) -> NewMemory | None:
    """The new memory in which the result of an expression lies, or that of every block; None if
    nobody knows."""
    while isinstance(expression, Tuple):
        expression = expression.parts[0]
    memory = expression.keywords.get("out") if isinstance(expression, CallExpression) else None
    return memory if isinstance(memory, NewMemory) else None


def in_place(expression: Expression, free: Mapping[int, NewMemory]) -> Expression:
    """The expression with operands overwritten by element-wise functions of which the result would
    lie in memory as the operand does.

    free: the operands that may be overwritten, and the memory in which they lie.
    """
    match expression:
        case Tuple(parts):
            return Tuple([in_place(part, free) for part in parts])
        case CallExpression(Value(_, np.ufunc()), arguments, {"out": NewMemory() as memory}):
            for argument in arguments:
                operand = argument.sequence if isinstance(argument, Item) else argument
                have = free.get(operand.number) if isinstance(operand, Operand) else None
                if have is not None and _lies_alike(have, memory, argument):
                    return expression._replace(keywords={"out": argument})
    return expression


def _lies_alike(have: NewMemory, memory: NewMemory, argument: Expression) -> bool:
    """Whether `argument`, which lies in `have`, lies as new memory would in every run."""
    if memory.like is None:
        return have.like is None and have.buffer == memory.buffer
    return memory.like == argument and have.buffer[:2] == memory.buffer[:2]


def compiled(expression: Expression, count: int) -> Callable[..., Any]:
    """A function of `count` operands that returns what the expression says. It is the function
    that the expression calls, if that is all; of any other, its attribute `expression` says what it
    does."""
    if isinstance(expression, CallExpression):
        function, arguments, keywords = expression
        if not keywords and list(arguments) == [Operand(n) for n in range(count)]:
            return function.value  # type: ignore[no-any-return]
    operands = [f"x{i}" for i in range(count)]
    names = Names(["run", *operands])
    lines = [f"return {written(expression, operands, names)}"]
    run = define(f"run({', '.join(operands)})", lines, names)
    run.expression = expression
    return cast(Callable[..., Any], run)


def compiled_on_blocks(
    outputs_of_blocks: Sequence[Expression], count: int, outputs: int
) -> Callable[..., Any]:
    """A function of the list of `count` operands, each a sequence of blocks, that returns for each
    output the tuple of its blocks.

    outputs_of_blocks: for each block of a process the expression of its output, or of the tuple of
        its outputs, in which `Item(Operand(n), i)` is block i of operand n.
    """
    parts = Tuple(outputs_of_blocks)
    expression: Expression = Tuple([parts])
    if outputs > 1:
        expression = CallExpression(Value("by_output", _by_output), [parts])
    names = Names(["run", "operands"])
    operands = [f"operands[{n}]" for n in range(count)]
    run = define("run(operands)", [f"return {written(expression, operands, names)}"], names)
    run.expression = expression
    return cast(Callable[..., Any], run)


def _by_output(outputs_of_blocks: Sequence[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...]:
    """The blocks of each output, of the outputs of each block."""
    return tuple(zip(*outputs_of_blocks, strict=True))


def define(
    signature: str, lines: Iterable[str], names: dict[str, Any], file: str = "<gdt plan>"
) -> Any:
    """Define a Python function of that signature by the lines of its body, in which `names` says
    what global names stand for. Its attribute `source` is all of its source.

    file: the name of its file in tracebacks.

    >>> double = define("double(x)", ["y = x + x", "return y"], {})
    >>> double(2), double.source
    (4, 'def double(x):\\n    y = x + x\\n    return y')
    """
    source = "\n    ".join([f"def {signature}:", *lines])
    exec(code_of(source, file), names)
    # Popped, else the function would refer to itself, and live until a collection of cycles.
    function = names.pop(signature.partition("(")[0])
    function.source = source
    return function


@memoized(2000)  # most plans of other shapes have the same source
def code_of(source: str, file: str) -> CodeType:
    """Compile source."""
    return compile(source, file, "exec")
