"""`grad`, `value_and_grad`, `vjp` and `stop_gradient`: functions of the tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, ParamSpec, TypeVar, overload

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.autodiff.tape import GradientTape, Tree, flatten
from gdt.errors import ArgumentError, GradientError, error, type_text
from gdt.observe import OBSERVERS
from gdt.ops.movement import _relayout
from gdt.state.trees import is_container, leaves, mapped

__all__ = ["grad", "stop_gradient", "value_and_grad", "vjp"]


def renamed(tree: Tree) -> Tree:
    """Return the tree with new array objects of the same values.

    So a function may close over the very arrays that are its arguments: the closure's are constants
    to its tape, the arguments are not. Outer tapes record that both are the same. An object with
    `parameters()` stays as it is.
    """
    if type(tree) is DistributedArray:
        return _alias(tree)
    is_remade = type(tree) in (dict, list, tuple) or (
        is_container(tree) and any(isinstance(leaf, DistributedArray) for leaf in leaves(tree))
    )
    return mapped(_alias, tree) if is_remade else tree


def _alias(leaf: Any) -> Any:
    """Return a new array object of the same values; return any other value itself."""
    if type(leaf) is not DistributedArray:
        return leaf
    alias = leaf._alias()
    for observer in OBSERVERS.get():
        if isinstance(observer, GradientTape):
            observer.on_op(_relayout, (leaf,), {"layout": leaf.layout}, alias)
    return alias


def argument_at(op: str, args: Sequence[Any], argnums: object) -> Any:
    """Return the argument at `argnums`, or the tuple of arguments for a tuple; raise ArgumentError
    or GradientError if there is none. op: the function that errors name."""
    if isinstance(argnums, tuple):
        return tuple(argument_at(op, args, i) for i in argnums)
    if isinstance(argnums, bool) or not isinstance(argnums, int):
        problem = f"argnums is {argnums!r}, not an int or a tuple of ints"
        raise error(ArgumentError, op, problem)
    if not -len(args) <= argnums < len(args):
        count = f"{len(args)} positional argument{'s' * (len(args) != 1)}"
        raise error(GradientError, op, f"argnums is {argnums}, of {count}")
    return args[argnums]


def _with_aux(returned: object) -> tuple[Any, Any]:
    """Return what a function with `has_aux` has returned, or raise GradientError if that is no
    pair."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        what = type_text(returned)
        what += f" of {len(returned)}" if isinstance(returned, tuple) else ""
        problem = f"with has_aux the function returns {what}, not the pair (value, aux)"
        raise error(GradientError, problem)
    return returned


P = ParamSpec("P")
Aux = TypeVar("Aux")


@overload
def value_and_grad(
    f: Callable[P, Any],
    argnums: int | tuple[int, ...] = 0,
    *,
    has_aux: Literal[False] = False,
    resolve: bool = True,
) -> Callable[P, tuple[DistributedArray, Any]]: ...
@overload
def value_and_grad(
    f: Callable[P, tuple[Any, Aux]],
    argnums: int | tuple[int, ...] = 0,
    *,
    has_aux: Literal[True],
    resolve: bool = True,
) -> Callable[P, tuple[tuple[DistributedArray, Aux], Any]]: ...
@partial(checked, eager=True)
def value_and_grad(
    f: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    *,
    has_aux: bool = False,
    resolve: bool = True,
) -> Callable[..., Any]:
    """Return a function of `f`'s arguments that returns `f`'s value and its gradient.

    f: returns a scalar array, or with `has_aux` a pair `(scalar, aux)`, where aux is a tree of
        arrays (metrics) and of any other objects.
    argnums: the position of the argument of the gradient, or a tuple of positions, which gives a
        tuple of gradients. The argument is an array, a tree of arrays, or an object with
        `parameters()`, whose gradient is a dict.
    has_aux: whether the function returns `((value, aux), gradient)` in place of `(value,
        gradient)`.
    resolve: False leaves value, aux and gradients as they are computed, mostly partial; see
        `GradientTape.gradient`.

    Gradients have the shapes, dtypes and layouts of their arguments, and are zeros where the value
    does not depend on one. All partial reductions of gradients, value and aux are resolved in one
    bundle. Follows `jax.value_and_grad`.

    Raises GradientError where `f` does not return a scalar array, for an argument that is not of
    floating-point numbers, and for what would be a mistake in training: parameters that no op in
    `f` has read, and a value that does not depend on an argument where `f` has read values on the
    host.

    >>> gdt.value_and_grad(lambda x: gdt.sum(x * x))(gdt.asarray([1.0, 2.0]))[1].tolist()
    [2.0, 4.0]
    """

    return _differentiated("value_and_grad", f, argnums, has_aux, resolve)


def _differentiated(
    op: str, f: Callable[..., Any], argnums: int | tuple[int, ...], has_aux: bool, resolve: bool
) -> Callable[..., Any]:
    """Return the function that `value_and_grad` returns, of whose errors `op` is the name."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        argument_at(op, args, argnums)
        arguments = [*args]
        for n in argnums if isinstance(argnums, tuple) else (argnums,):
            arguments[n] = renamed(arguments[n])
        if isinstance(argnums, tuple):
            sources: Any = tuple([arguments[n] for n in argnums])
        else:
            sources = arguments[argnums]
        with GradientTape() as tape:
            value = f(*arguments, **kwargs)
        aux: Any = ()
        if has_aux:
            value, aux = _with_aux(value)
        if tape.written:  # the gradient is with respect to the values that the function was given
            given = {
                id(array): before
                for written, before in reversed(tape.written)
                if (array := written()) is not None
            }
            sources = mapped(lambda leaf: given.get(id(leaf), leaf), sources)
        if not isinstance(value, DistributedArray) or value.type.shape != ():
            flatten(sources)  # raises for arguments that are no arrays, of which f makes none
            what = value.type if isinstance(value, DistributedArray) else type(value).__name__
            raise error(
                GradientError,
                op,
                "the function does not return a scalar array",
                operands={"value": what},
                remedy="Reduce it with gdt.sum or gdt.mean; it may return (value, aux) where "
                "gdt.value_and_grad has has_aux=True.",
            )
        policy = _unconnected(sources, tape)
        if not has_aux:
            gradient = tape._gradient(value, sources, None, policy, resolve=resolve)
            return value.resolve() if resolve else value, gradient
        extras, rebuild = flatten(aux, others=True)
        gradient = tape._gradient(value, sources, None, policy, extras, resolve)
        if not resolve:
            return (value, aux), gradient
        return (value.resolve(), rebuild([x.resolve() for x in extras])), gradient

    return wrapped


def _unconnected(sources: Tree, tape: GradientTape) -> str:
    """Return what `grad` does about a source on which the value does not depend."""
    if tape.has_fetched:  # the value may have been computed on the host
        return "raise"
    values = sources.values() if type(sources) is dict else (sources,)
    if set(map(type, values)) == {DistributedArray}:  # as mostly; what follows takes longer
        return "zero"
    has_parameters = any(
        type(leaf) is not DistributedArray and hasattr(leaf, "parameters")
        for leaf in leaves(sources)
    )
    return "unread" if has_parameters else "zero"


@partial(checked, eager=True)
def grad(f: Callable[P, Any], argnums: int | tuple[int, ...] = 0) -> Callable[P, Any]:
    """Return a function of `f`'s arguments that returns the gradient of `f`, a scalar function.

    argnums: as of `gdt.value_and_grad`, which returns the value as well. Follows `jax.grad`.

    >>> float(gdt.grad(gdt.grad(lambda x: x * x * x))(gdt.asarray(2.0)))
    12.0
    """

    both = _differentiated("grad", f, argnums, False, True)

    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Any:
        return both(*args, **kwargs)[1]

    return wrapped


@checked
def vjp(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Return `f(*primals)`, and a function from a cotangent of it to cotangents of the primals.

    primals: arrays or trees of arrays. The cotangent has the shape of the value; of the primals
    there is a tuple of cotangents, zeros where the value does not depend on one. Follows `jax.vjp`.

    >>> out, pull = gdt.vjp(lambda x: 3 * x, gdt.asarray([1.0, 2.0]))
    >>> pull(gdt.asarray([1.0, 10.0]))[0].tolist()
    [3.0, 30.0]
    """
    tape = GradientTape(persistent=True)
    primals = tuple(map(renamed, primals))
    with tape:
        out = f(*primals)

    def pull(cotangent: Any) -> tuple[Any, ...]:
        cotangents: tuple[Any, ...] = tape.gradient(out, primals, cotangent, unconnected="zero")
        return cotangents

    return out, pull


@checked
def stop_gradient(x: DistributedArray) -> DistributedArray:
    """Return an array of the same values, through which no gradient flows.

    >>> x = gdt.asarray(3.0)
    >>> float(gdt.grad(lambda x: x * gdt.stop_gradient(x))(x))
    3.0
    """
    return x._alias()
